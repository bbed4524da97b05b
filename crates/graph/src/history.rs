//! What happened: transactions, and every value through time.
//!
//! Bounded by age, count and bytes, so that it can stay on for years; the first hour is kept as
//! long as count and bytes allow. A revision shares its node with the graph, so that keeping it
//! costs a pointer until the value changes.
//!
//! Always holds: the revisions of a key do not overlap and are in order; only the last is open.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::clock::{earlier, later};
use crate::graph::{EdgeTarget, Graph, Node};
use crate::hash::HashMap;
use crate::key::{Key, KeyId};
use crate::record::TransactionRecord;
use crate::registry::Registry;
use crate::state::{Operation, Origin, ValueState};
use crate::value::{Metadata, Value};

/// How much is remembered.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Whether anything is remembered at all.
    pub enabled: bool,
    /// Older transactions and revisions are forgotten.
    pub age: Duration,
    /// What happened this soon after the start is exempt from the age limit.
    pub keep_initial: Duration,
    /// How many transactions are remembered.
    pub transactions: usize,
    /// How many revisions are remembered.
    pub revisions: usize,
    /// About how many bytes the transactions may take.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            enabled: true,
            age: Duration::from_secs(24 * 3600),
            keep_initial: Duration::from_secs(3600),
            transactions: 100_000,
            revisions: 500_000,
            bytes: 256 << 20,
        }
    }
}

impl Limits {
    /// Remembers nothing.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }
}

/// A value during a stretch of time.
#[derive(Debug, Clone)]
pub(crate) struct Revision {
    since: Timestamp,
    until: Option<Timestamp>,
    base: Option<Key>,
    node: Arc<Node>,
}

/// A revision as it is shown.
#[derive(Debug, Clone, Serialize)]
pub struct RevisionView {
    /// From when on.
    pub since: Timestamp,
    /// Until when; none for the present.
    pub until: Option<Timestamp>,
    /// The key.
    pub key: Key,
    /// The label.
    pub label: String,
    /// The value, as far as known.
    pub value: Option<Value>,
    /// The state.
    pub state: ValueState,
    /// Whether it satisfied dependencies.
    pub available: bool,
    /// The descriptor.
    pub descriptor: Option<String>,
    /// What it was derived from.
    pub derived_from: Option<Key>,
    /// The transaction that last changed it.
    pub transaction: u64,
    /// What that did.
    pub operation: Operation,
    /// What was wanted.
    pub requested: Option<Value>,
    /// The error, if any.
    pub error: Option<String>,
    /// The metadata.
    pub metadata: Option<Metadata>,
    /// What it depended on: label and target.
    pub targets: Vec<(String, String)>,
}

impl Revision {
    pub(crate) fn view(&self, key: &Key, registry: &Registry) -> RevisionView {
        let node = &*self.node;
        let descriptor = node.descriptor.map(|id| registry.get(id));
        let target = |edge: &crate::graph::Edge| {
            let target = match &edge.target {
                EdgeTarget::Key(key, _) => key.to_string(),
                EdgeTarget::AnyOf { set, .. } => format!("any of {}", set.prefixes.join(", ")),
            };
            (edge.label.to_string(), target)
        };
        RevisionView {
            since: self.since,
            until: self.until,
            key: key.clone(),
            label: descriptor.map_or_else(|| key.to_string(), |one| one.label(key)),
            value: node.value.clone(),
            state: node.state,
            available: node.available,
            descriptor: descriptor.map(|one| one.name().to_owned()),
            derived_from: self.base.clone(),
            transaction: node.last.transaction,
            operation: node.last.operation,
            requested: node.last.requested.clone(),
            error: node.error.as_ref().map(|error| error.message.clone()),
            metadata: node.metadata.clone(),
            targets: node.edges.iter().map(target).collect(),
        }
    }

    fn covers(&self, moment: Timestamp) -> bool {
        self.since <= moment && self.until.is_none_or(|until| until > moment)
    }
}

/// How often a mark was set, by its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FlagStats {
    /// In how many revisions.
    pub total: usize,
    /// By value.
    pub per_value: BTreeMap<String, usize>,
}

/// The memory of an engine.
#[derive(Debug)]
pub(crate) struct History {
    limits: Limits,
    start: Timestamp,
    transactions: VecDeque<(Arc<TransactionRecord>, usize)>,
    bytes: usize,
    revisions: HashMap<Key, Vec<Revision>>,
    count: usize,
    trimmed: Timestamp,
}

impl History {
    pub(crate) fn new(limits: Limits, start: Timestamp) -> Self {
        Self {
            limits,
            start,
            transactions: VecDeque::new(),
            bytes: 0,
            revisions: HashMap::default(),
            count: 0,
            trimmed: start,
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.limits.enabled
    }

    /// Shows a transaction that has begun, until it is over.
    pub(crate) fn begin(&mut self, record: Arc<TransactionRecord>) {
        if self.limits.enabled {
            self.transactions.push_back((record, 0));
        }
    }

    /// Lets go of a transaction that is over, so that it can be completed and remembered.
    pub(crate) fn end(&mut self, seq: u64) {
        if self.transactions.back().is_some_and(|(last, _)| last.pre_record && last.seq == seq) {
            self.transactions.pop_back();
        }
    }

    /// Remembers a transaction.
    pub(crate) fn add(&mut self, record: Arc<TransactionRecord>, now: Timestamp) {
        if !self.limits.enabled {
            return;
        }
        let weight = record.weight();
        self.bytes += weight;
        self.transactions.push_back((record, weight));
        self.trim(now);
    }

    /// Remembers what the touched values look like now.
    pub(crate) fn revise(&mut self, graph: &Graph, touched: &[KeyId], now: Timestamp) {
        if !self.limits.enabled {
            return;
        }
        for id in touched.iter().copied() {
            let key = graph.key(id);
            let node = graph.shared(id);
            if node.is_none() && !self.revisions.contains_key(key) {
                continue;
            }
            // Most values are made once and then stay as they are.
            let revisions =
                self.revisions.entry(key.clone()).or_insert_with(|| Vec::with_capacity(1));
            if let Some(last) = revisions.last_mut()
                && last.until.is_none()
            {
                if node.is_some_and(|node| Arc::ptr_eq(node, &last.node)) {
                    continue;
                }
                last.until = Some(now);
            }
            if let Some(node) = node {
                let base = node.base.map(|base| graph.key(base).clone());
                revisions.push(Revision { since: now, until: None, base, node: Arc::clone(node) });
                self.count += 1;
            }
        }
    }

    fn trim(&mut self, now: Timestamp) {
        let oldest = earlier(now, self.limits.age);
        let initial = later(self.start, self.limits.keep_initial);
        let expired = |moment: Timestamp| moment < oldest && moment > initial;
        while let Some((first, weight)) = self.transactions.front() {
            let over = self.transactions.len() > self.limits.transactions
                || self.bytes > self.limits.bytes;
            if !over && !expired(first.stop) {
                break;
            }
            self.bytes -= weight;
            self.transactions.pop_front();
        }
        // The front may be kept for ever while what follows is expired.
        if now.duration_since(self.trimmed) >= jiff::SignedDuration::from_secs(60)
            || self.count > self.limits.revisions
        {
            self.trimmed = now;
            self.transactions.retain(|(record, weight)| {
                let keep = !expired(record.stop);
                if !keep {
                    self.bytes -= weight;
                }
                keep
            });
            self.trim_revisions(&expired);
        }
    }

    fn trim_revisions(&mut self, expired: &dyn Fn(Timestamp) -> bool) {
        let mut closed: Vec<Timestamp> = Vec::new();
        for revisions in self.revisions.values_mut() {
            revisions.retain(|revision| !revision.until.is_some_and(expired));
            closed.extend(revisions.iter().filter_map(|revision| revision.until));
        }
        let total: usize = self.revisions.values().map(Vec::len).sum();
        if total > self.limits.revisions {
            // Forget a tenth more than needed, so that this is not done for every transaction.
            let spare =
                (total - self.limits.revisions + self.limits.revisions / 10).min(closed.len());
            closed.sort_unstable();
            if let Some(limit) = spare.checked_sub(1).and_then(|last| closed.get(last)).copied() {
                for revisions in self.revisions.values_mut() {
                    revisions.retain(|revision| revision.until.is_none_or(|until| until > limit));
                }
            }
        }
        self.revisions.retain(|_, revisions| !revisions.is_empty());
        self.count = self.revisions.values().map(Vec::len).sum();
    }

    pub(crate) fn transactions(&self) -> impl DoubleEndedIterator<Item = &Arc<TransactionRecord>> {
        self.transactions.iter().map(|(record, _)| record)
    }

    pub(crate) fn transaction(&self, seq: u64) -> Option<&Arc<TransactionRecord>> {
        let position =
            self.transactions.binary_search_by_key(&seq, |(record, _)| record.seq).ok()?;
        self.transactions.get(position).map(|(record, _)| record)
    }

    /// Every revision of a key, oldest first.
    pub(crate) fn timeline(&self, key: &str) -> &[Revision] {
        self.revisions.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The revision of a key that held at a moment.
    pub(crate) fn at(&self, key: &str, moment: Timestamp) -> Option<&Revision> {
        self.timeline(key).iter().rev().find(|revision| revision.covers(moment))
    }

    /// Every value as it was at a moment, in key order.
    pub(crate) fn snapshot(&self, moment: Timestamp) -> impl Iterator<Item = (&Key, &Revision)> {
        let mut found: Vec<(&Key, &Revision)> = self
            .revisions
            .iter()
            .filter_map(|(key, revisions)| {
                let covers = |revision: &&Revision| revision.covers(moment);
                Some((key, revisions.iter().rev().find(covers)?))
            })
            .collect();
        found.sort_unstable_by_key(|(key, _)| *key);
        found.into_iter()
    }

    /// Where a value came from when it was last seen.
    pub(crate) fn origin(&self, key: &str) -> Option<Origin> {
        self.timeline(key).last().map(|revision| revision.node.state.origin())
    }

    /// What was wanted at a moment: every base value of northern origin.
    pub(crate) fn desired_at(&self, moment: Timestamp) -> BTreeMap<Key, Value> {
        self.snapshot(moment)
            .filter(|(_, revision)| revision.base.is_none())
            .filter_map(|(key, revision)| {
                Some((key.clone(), revision.node.last.requested.clone()?))
            })
            .collect()
    }

    /// Counts revisions by a mark; none for a mark that does not exist.
    pub(crate) fn flag_stats(
        &self,
        flag: &str,
        registry: &Registry,
        accepts: &dyn Fn(&str) -> bool,
    ) -> Option<FlagStats> {
        let mut stats = FlagStats::default();
        for (key, revisions) in self.revisions.iter().filter(|(key, _)| accepts(key)) {
            for revision in revisions {
                let node = &*revision.node;
                let value = match flag {
                    "last-update" => Some(format!("TXN-{}", node.last.transaction)),
                    "value-state" => Some(node.state.to_string()),
                    "descriptor" => node.descriptor.map(|id| registry.get(id).name().to_owned()),
                    "derived" => revision.base.as_ref().map(Key::to_string),
                    "unavailable" => (!node.available).then(|| key.to_string()),
                    "error" => node.error.as_ref().map(|error| error.message.clone()),
                    _ => return None,
                };
                if let Some(value) = value {
                    stats.total += 1;
                    *stats.per_value.entry(value).or_default() += 1;
                }
            }
        }
        let known = ["last-update", "value-state", "descriptor", "derived", "unavailable", "error"];
        known.contains(&flag).then_some(stats)
    }
}
