//! The read methods of an engine.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::{Engine, Error};
use crate::descriptor::{Context, SharedContext};
use crate::graph::Circles;
use crate::history::{FlagStats, Moment, Revision, RevisionView};
use crate::key::Key;
use crate::picture::Picture;
use crate::record::TransactionRecord;
use crate::refresh;
use crate::registry::DescriptorId;
use crate::state::{Origin, ValueState};
use crate::stats::StatsView;
use crate::status::{ValueStatus, status};
use crate::value::{Metadata, Value};

/// A view of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum View {
    /// The wanted values.
    NB,
    /// The values in the south: the descriptor retrieves them.
    SB,
    /// The values in the south as the engine remembers them; `cached` is another name for it.
    #[serde(rename = "internal")]
    Cached,
}

/// One value of a dump.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct DumpedValue {
    /// Its key.
    pub key: Key,
    /// The value.
    pub value: Value,
    /// Its metadata.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Where it comes from.
    pub origin: Origin,
}

/// The values of a descriptor or a prefix.
pub type Dump = Vec<DumpedValue>;

/// The arguments that a dump takes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[non_exhaustive]
pub struct DumpIndex {
    /// The names of descriptors.
    pub descriptors: Vec<String>,
    /// The prefixes and patterns of keys.
    pub key_prefixes: Vec<String>,
    /// The views.
    pub views: Vec<View>,
}

impl Engine {
    /// The status of a value, its derived values included.
    pub fn status(&self, key: &str) -> ValueStatus {
        let shared = self.lock();
        match shared.graph.find(key) {
            Some((id, _)) => status(&shared.graph, id, &mut Circles::default()),
            None => ValueStatus {
                key: Key::from(key),
                state: ValueState::Nonexistent,
                last_operation: crate::state::Operation::Undefined,
                error: None,
                details: Vec::new(),
                cycle: Vec::new(),
                uncertain: false,
                labels: Default::default(),
                derived: Vec::new(),
            },
        }
    }

    /// The status of every base value whose key the filter accepts, in key order.
    pub fn statuses(&self, filter: impl Fn(&str) -> bool) -> Vec<ValueStatus> {
        let shared = self.lock();
        let bases =
            shared.graph.nodes().filter(|(key, _, node)| node.base.is_none() && filter(key));
        let mut circles = Circles::default();
        bases.map(|(_, id, _)| status(&shared.graph, id, &mut circles)).collect()
    }

    /// The state of every value, derived ones included, in key order.
    pub fn states(&self) -> Vec<(Key, ValueState)> {
        let shared = self.lock();
        shared.graph.nodes().map(|(key, _, node)| (key.clone(), node.state)).collect()
    }

    /// The metadata of every base value that has any, in key order.
    pub fn metadata(&self) -> Vec<(Key, Metadata)> {
        let shared = self.lock();
        let nodes = shared.graph.nodes();
        nodes.filter_map(|(key, _, node)| Some((key.clone(), node.metadata.clone()?))).collect()
    }

    /// The transactions that began between two moments, oldest first.
    pub fn history(
        &self,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
    ) -> Vec<Arc<TransactionRecord>> {
        let shared = self.lock();
        let within = |record: &&Arc<TransactionRecord>| {
            since.is_none_or(|since| record.start >= since)
                && until.is_none_or(|until| record.start <= until)
        };
        shared.history.transactions().filter(within).cloned().collect()
    }

    /// The record of one transaction, if the history has it.
    pub fn transaction(&self, seq: u64) -> Option<Arc<TransactionRecord>> {
        self.lock().history.transaction(seq).cloned()
    }

    /// The record of one transaction.
    ///
    /// # Errors
    /// [`Error::History`] tells a transaction that is no longer kept from one that never was.
    pub fn kept_transaction(&self, seq: u64) -> Result<Arc<TransactionRecord>, Error> {
        let shared = self.lock();
        Ok(Arc::clone(shared.history.kept(seq, shared.next_seq)?))
    }

    /// Every kept revision of a key, or the one at a moment.
    ///
    /// # Errors
    /// [`Error::History`] if no history is kept, or not of that moment.
    pub fn timeline(&self, key: &str, at: Option<Timestamp>) -> Result<Vec<RevisionView>, Error> {
        let shared = self.lock();
        let key = Key::from(key);
        let view = |one: &Revision| one.view(&key, &shared.registry);
        Ok(match at {
            None => shared.history.timeline(&key)?.iter().map(view).collect(),
            Some(at) => shared.history.at(&key, Moment::Time(at))?.map(view).into_iter().collect(),
        })
    }

    /// Every value as it was at a moment.
    ///
    /// # Errors
    /// [`Error::History`] if the history does not have that moment completely.
    pub fn snapshot(&self, at: Timestamp) -> Result<Vec<RevisionView>, Error> {
        let shared = self.lock();
        let found = shared.history.snapshot(Moment::Time(at))?;
        Ok(found.map(|(key, one)| one.view(key, &shared.registry)).collect())
    }

    /// Counts revisions by a flag: last-update, error, value-state, unavailable, descriptor, derived.
    pub fn flag_stats(&self, flag: &str, prefixes: &[String]) -> Result<FlagStats, Error> {
        let shared = self.lock();
        let accepts = |key: &str| {
            prefixes.is_empty() || prefixes.iter().any(|one| key.starts_with(one.as_str()))
        };
        let stats = shared.history.flag_stats(flag, &shared.registry, &accepts);
        stats.ok_or_else(|| Error::Unknown(format!("flag {flag}")))
    }

    /// The statistics of the engine.
    pub fn stats(&self) -> StatsView {
        let (length, capacity) = self.queue();
        let shared = self.lock();
        shared.stats.view(&shared.registry, shared.graph.len(), length, capacity)
    }

    /// A picture of the graph as it is now, or after a transaction.
    pub fn picture(&self, transaction: Option<u64>) -> Result<Picture, Error> {
        let shared = self.lock();
        let Some(seq) = transaction else {
            return Ok(Picture::current(&shared.graph, &shared.registry, self.clock.now()));
        };
        let record = shared.history.ended(seq, shared.next_seq)?;
        let revisions: Vec<RevisionView> = shared
            .history
            .snapshot(Moment::After(seq))?
            .map(|(key, one)| one.view(key, &shared.registry))
            .collect();
        Ok(Picture::past(revisions, record))
    }

    /// The arguments that [`Self::dump`] takes.
    pub fn dump_index(&self) -> DumpIndex {
        let shared = self.lock();
        let registry = &shared.registry;
        let mut descriptors: Vec<String> =
            registry.in_retrieve_order().map(|id| registry.get(id).name().to_owned()).collect();
        descriptors.sort_unstable();
        DumpIndex {
            descriptors,
            key_prefixes: registry.all_keys().map(|(keys, _)| keys.to_owned()).collect(),
            views: vec![View::NB, View::SB, View::Cached],
        }
    }

    /// The name of the descriptor with exactly this prefix or pattern.
    pub fn descriptor_of_prefix(&self, prefix: &str) -> Result<String, Error> {
        let shared = self.lock();
        let found = shared.registry.all_keys().find(|(known, _)| *known == prefix);
        let found = found.map(|(_, id)| shared.registry.get(id).name().to_owned());
        found.ok_or_else(|| Error::Unknown(format!("key prefix {prefix}")))
    }

    /// The name of the descriptor that serves a key.
    pub fn descriptor_of_key(&self, key: &str) -> Option<String> {
        let shared = self.lock();
        shared.registry.for_key(key).map(|id| shared.registry.get(id).name().to_owned())
    }

    /// The base values of a descriptor in one view.
    pub async fn dump(&self, descriptor: &str, view: View) -> Result<Dump, Error> {
        let (registry, id, known) = {
            let shared = self.lock();
            let registry = Arc::clone(&shared.registry);
            let id = registry.by_name(descriptor);
            let id = id.ok_or_else(|| Error::Unknown(format!("descriptor {descriptor}")))?;
            match view {
                View::NB | View::Cached => return Ok(dump(&shared.graph, &registry, id, view)),
                View::SB => {}
            }
            let known = refresh::known(&shared.graph, &registry, id, None);
            (registry, id, known)
        };
        let erased = Arc::clone(registry.get(id));
        if !erased.abilities().retrieve {
            return Err(Error::NotRetrievable(descriptor.to_owned()));
        }
        let origins: std::collections::HashMap<Key, Origin> =
            known.iter().map(|one| (one.key.clone(), one.origin)).collect();
        let shared = SharedContext {
            transaction: self.lock().next_seq,
            attempt: 0,
            deadline: None,
            cancellation: tokio_util::sync::CancellationToken::new(),
            indexes: self.indexes.clone(),
        };
        let context = Context { shared: Arc::new(shared), base: None, revert: false };
        let name = descriptor.to_owned();
        let found = erased.retrieve(context, known).await;
        let mut found: Dump = found
            .map_err(|source| Error::Retrieve { name, source })?
            .into_iter()
            .map(|found| {
                let origin = match found.origin {
                    Origin::Unknown => origins.get(&found.key).copied().unwrap_or(Origin::South),
                    origin => origin,
                };
                DumpedValue { key: found.key, value: found.value, metadata: found.metadata, origin }
            })
            .collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }
}

fn dump(
    graph: &crate::graph::Graph,
    registry: &crate::registry::Registry,
    id: DescriptorId,
    view: View,
) -> Dump {
    let mut values: Dump = refresh::base_values(graph, registry, id)
        .into_iter()
        .filter_map(|id| {
            let node = graph.node(id)?;
            let value = match view {
                View::NB => node.last.requested.clone().filter(|_| !node.is_obtained()),
                _ => node.value.clone().filter(|_| node.available),
            }?;
            let metadata = node.metadata.clone();
            Some(DumpedValue {
                key: graph.key(id).clone(),
                value,
                metadata,
                origin: node.state.origin(),
            })
        })
        .collect();
    values.sort_by(|a, b| a.key.cmp(&b.key));
    values
}
