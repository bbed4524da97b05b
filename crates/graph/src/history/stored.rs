//! Writes the history to the journal and reads it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::{History, Revision, Unsaved};
use crate::graph::{Edge, Failure, LastUpdate, Node};
use crate::journal::{Entry, Gap, PastError, PastNode, PastRevision, RevisionChange, Rollup};
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::registry::Registry;
use crate::value::{Metadata, Value};

/// How many transactions or keys one entry of a compacted journal holds.
const SHARE: usize = 500;

/// The history as a journal has it.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) history: Vec<Arc<TransactionRecord>>,
    pub(crate) revisions: BTreeMap<Key, Vec<PastRevision>>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) since: Option<Timestamp>,
}

impl History {
    /// The changes since the last call, for the journal; none if no history is kept.
    pub(crate) fn take_changes(&mut self, registry: &Registry) -> Option<Vec<RevisionChange>> {
        let unsaved = std::mem::take(self.unsaved.as_mut()?);
        let change = |Unsaved { key, since, node }: Unsaved| {
            let node = node.map(|(base, node)| store(registry, base, &node));
            RevisionChange { key, since, node }
        };
        Some(unsaved.into_iter().map(change).collect())
    }

    /// When the first engine with this history started.
    pub(crate) fn start(&self) -> Timestamp {
        self.start
    }

    pub(crate) fn gaps(&self) -> &[Gap] {
        self.gaps.all()
    }

    /// A copy of the history, to write it without holding a lock.
    pub(crate) fn frozen(&self) -> Frozen {
        let ended = self.transactions().filter(|one| !one.pre_record);
        let revisions = self.revisions.iter();
        Frozen {
            transactions: ended.map(Arc::clone).collect(),
            revisions: revisions.map(|(key, all)| (key.clone(), all.clone())).collect(),
        }
    }

    /// Restores the history after a restart.
    pub(crate) fn restore(&mut self, stored: Stored, registry: &Registry, now: Timestamp) {
        if !self.limits.enabled {
            return;
        }
        let Stored { history, revisions, gaps, since } = stored;
        self.start = since.map_or(self.start, |since| since.min(self.start));
        // The end of a part that was not recorded is the restart, if there was no record since.
        self.gaps.extend(gaps.into_iter().map(|gap| Gap { until: gap.until.min(now), ..gap }));
        for (key, past) in revisions {
            let restore = |one: PastRevision| {
                let PastRevision { since, from, until, to, node } = one;
                let (base, node) = restored(registry, &key, node);
                Revision { since, from, until, to, base, node: Arc::new(node) }
            };
            let revisions: Vec<Revision> = past.into_iter().map(restore).collect();
            self.count += revisions.len();
            self.revisions.insert(key, revisions);
        }
        for record in history {
            self.add(record, now);
        }
        self.trim(now);
    }
}

/// A copy of a history. Cheap: records and values are shared.
pub(crate) struct Frozen {
    transactions: Vec<Arc<TransactionRecord>>,
    revisions: Vec<(Key, Vec<Revision>)>,
}

impl Frozen {
    /// The history as entries of a journal, of limited size each.
    pub(crate) fn rollups(&self, registry: &Registry) -> impl Iterator<Item = Entry> {
        let transactions = self
            .transactions
            .chunks(SHARE)
            .map(|share| Rollup { history: share.to_vec(), ..Rollup::default() });
        let revisions = self.revisions.chunks(SHARE).map(|share| {
            let stored = share.iter().map(|(key, revisions)| {
                let all = revisions.iter().map(|one| stored_revision(registry, one));
                (key.clone(), all.collect())
            });
            Rollup { revisions: stored.collect(), ..Rollup::default() }
        });
        transactions.chain(revisions).map(|rollup| Entry::Past(Box::new(rollup)))
    }
}

fn stored_revision(registry: &Registry, revision: &Revision) -> PastRevision {
    let Revision { since, from, until, to, base, node } = revision;
    let node = store(registry, base.clone(), node);
    PastRevision { since: *since, from: *from, until: *until, to: *to, node }
}

fn store(registry: &Registry, base: Option<Key>, node: &Node) -> PastNode {
    let requested = node.last.requested.clone();
    let as_wanted = requested.is_some() && requested == node.value;
    let error = node.error.as_ref().map(|error| PastError {
        operation: error.operation,
        message: error.message.clone(),
        retriable: error.retriable,
        fields: error.fields.clone(),
    });
    PastNode {
        state: node.state,
        available: node.available,
        uncertain: node.uncertain,
        descriptor: node.descriptor.map(|id| registry.get(id).name().to_owned()),
        base,
        value: node.value.clone(),
        as_wanted,
        requested: requested.filter(|_| !as_wanted),
        metadata: node.metadata.as_ref().map(Metadata::json),
        error,
        transaction: node.last.transaction,
        operation: node.last.operation,
        revert: node.last.revert,
        retry: node.last.retry,
        labels: node.labels.as_deref().cloned(),
    }
}

/// The base and the node of a stored revision. Its dependencies follow from its value.
fn restored(registry: &Registry, key: &Key, past: PastNode) -> (Option<Key>, Node) {
    let descriptor = past.descriptor.as_deref().and_then(|name| registry.by_name(name));
    let read = |value: Value| {
        let read = descriptor.and_then(|id| registry.get(id).read(&value));
        read.unwrap_or(value)
    };
    let value = past.value.map(read);
    let requested = if past.as_wanted { value.clone() } else { past.requested.map(read) };
    let dependencies = match (descriptor, &value) {
        (Some(id), Some(value)) if past.state != crate::state::ValueState::Obtained => {
            registry.get(id).dependencies(key, value)
        }
        _ => Vec::new(),
    };
    let error = past.error.map(|error| {
        Arc::new(Failure {
            operation: error.operation,
            message: error.message,
            retriable: error.retriable,
            fields: error.fields,
        })
    });
    let node = Node {
        state: past.state,
        available: past.available,
        uncertain: past.uncertain,
        descriptor,
        value,
        metadata: past.metadata.map(Metadata::from),
        last: LastUpdate {
            transaction: past.transaction,
            operation: past.operation,
            revert: past.revert,
            requested,
            retry: past.retry,
        },
        error,
        labels: past.labels.map(Arc::new),
        edges: dependencies.into_iter().map(Edge::remembered).collect(),
        ..Node::default()
    };
    (past.base, node)
}
