//! The history: past transactions, and the revisions of every value.
//!
//! Bounded by age, count and bytes, so that it can stay on for years; the first hour is kept as
//! long as count and bytes allow. A revision shares its node with the graph, so that keeping it
//! costs a pointer until the value changes.
//!
//! The past has gaps: revisions that were dropped, and transactions of which none were recorded. A
//! question about a moment in a gap is refused, because the answer would lack values.
//!
//! Always holds: the revisions of a key do not overlap and are in order; only the last is open.

mod gaps;
mod stored;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use self::gaps::Gaps;
pub(crate) use self::stored::Stored;
use crate::descriptor::UserLabels;
use crate::graph::{Edge, EdgeTarget, Graph, Node};
use crate::hash::HashMap;
use crate::journal::Gap;
use crate::key::{Key, KeyId};
use crate::record::TransactionRecord;
use crate::registry::Registry;
use crate::state::{Operation, Origin, ValueState};
use crate::time::{earlier, later};
use crate::value::{Metadata, Value};

/// How much history is kept.
///
/// ```
/// use std::time::Duration;
///
/// use mainstay_graph::Limits;
///
/// let limits = Limits::default().age(Duration::from_secs(3600)).transactions(1_000);
/// assert!(limits.enabled);
/// assert!(!Limits::off().enabled);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Limits {
    /// Whether history is kept at all.
    pub enabled: bool,
    /// Older transactions and revisions are dropped.
    pub age: Duration,
    /// The time after the start whose transactions are exempt from the age limit.
    pub keep_initial: Duration,
    /// The most transactions that are kept.
    pub transactions: usize,
    /// The most revisions that are kept.
    pub revisions: usize,
    /// About the most bytes that transactions take.
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
    /// No history.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }

    /// Sets the age limit.
    #[must_use]
    pub fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Sets the time after the start that is exempt from the age limit.
    #[must_use]
    pub fn keep_initial(mut self, keep_initial: Duration) -> Self {
        self.keep_initial = keep_initial;
        self
    }

    /// Sets the most transactions that are kept.
    #[must_use]
    pub fn transactions(mut self, transactions: usize) -> Self {
        self.transactions = transactions;
        self
    }

    /// Sets the most revisions that are kept.
    #[must_use]
    pub fn revisions(mut self, revisions: usize) -> Self {
        self.revisions = revisions;
        self
    }

    /// Sets about the most bytes that transactions take.
    #[must_use]
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }
}

/// A value between two changes.
#[derive(Debug, Clone)]
pub(crate) struct Revision {
    since: Timestamp,
    /// The transaction that made it.
    from: u64,
    until: Option<Timestamp>,
    /// The transaction of the next change.
    to: Option<u64>,
    base: Option<Key>,
    node: Arc<Node>,
}

/// A change of a value that the journal does not have yet: its key, the time, and the new revision's
/// base and node, unless the value is gone.
#[derive(Debug)]
struct Unsaved {
    key: Key,
    since: Timestamp,
    node: Option<(Option<Key>, Arc<Node>)>,
}

/// A moment of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Time(Timestamp),
    /// The end of a transaction. More precise than its time: a clock may stand still.
    After(u64),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => write!(f, "the state at {time}"),
            Self::After(seq) => write!(f, "the state after transaction {seq}"),
        }
    }
}

/// Why a question about the past has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No history is kept.
    #[error("no history is kept")]
    Off,
    /// The history does not reach back that far, or was not recorded then.
    #[error("{0} is not in the kept history")]
    NotKept(String),
    /// There is no such transaction yet.
    #[error("transaction {0} is not known")]
    Unknown(u64),
    /// The transaction is still running.
    #[error("transaction {0} has not ended yet")]
    Running(u64),
}

/// A revision of a value, for reading.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RevisionView {
    /// The time of the change that made it.
    pub since: Timestamp,
    /// The time of the next change; none for the present revision.
    pub until: Option<Timestamp>,
    /// The key.
    pub key: Key,
    /// The label.
    pub label: String,
    /// The value, if known.
    pub value: Option<Value>,
    /// The state.
    pub state: ValueState,
    /// Whether other values could depend on it.
    pub available: bool,
    /// The name of the descriptor.
    pub descriptor: Option<String>,
    /// The key of the value it was derived from.
    pub derived_from: Option<Key>,
    /// The transaction that last changed it.
    pub transaction: u64,
    /// The operation of that transaction.
    pub operation: Operation,
    /// The wanted value.
    pub requested: Option<Value>,
    /// The error, if any.
    pub error: Option<String>,
    /// The metadata.
    pub metadata: Option<Metadata>,
    /// Its dependencies: label and target.
    pub targets: Vec<(String, String)>,
    /// The dependencies themselves, in the same order.
    #[serde(skip)]
    pub(crate) edges: Arc<[Edge]>,
}

impl Revision {
    pub(crate) fn view(&self, key: &Key, registry: &Registry) -> RevisionView {
        let node = &*self.node;
        let descriptor = node.descriptor.map(|id| registry.get(id));
        let target = |edge: &Edge| {
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
            edges: Arc::clone(&node.edges),
        }
    }

    fn covers(&self, moment: Moment) -> bool {
        match moment {
            Moment::Time(time) => self.since <= time && self.until.is_none_or(|until| until > time),
            Moment::After(seq) => self.from <= seq && self.to.is_none_or(|to| to > seq),
        }
    }

    /// The part of the past that is not known without this revision.
    fn gap(&self) -> Option<Gap> {
        let (until, to) = (self.until?, self.to?);
        Some(Gap { from: self.from, to, since: self.since, until })
    }
}

/// How many revisions have a flag set, by the flag's value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlagStats {
    /// The number of revisions.
    pub total: usize,
    /// The number of revisions by value of the flag.
    pub per_value: BTreeMap<String, usize>,
}

/// Wanted values with their labels.
pub(crate) type Desires = BTreeMap<Key, (Value, Option<Arc<UserLabels>>)>;

/// The history of an engine.
#[derive(Debug)]
pub(crate) struct History {
    limits: Limits,
    start: Timestamp,
    transactions: VecDeque<(Arc<TransactionRecord>, usize)>,
    bytes: usize,
    revisions: HashMap<Key, Vec<Revision>>,
    count: usize,
    trimmed: Timestamp,
    gaps: Gaps,
    /// The changes since the journal was last written; none without a journal.
    unsaved: Option<Vec<Unsaved>>,
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
            gaps: Gaps::default(),
            unsaved: None,
        }
    }

    /// Collects changes for a journal from here on.
    pub(crate) fn collect_changes(&mut self) {
        self.unsaved = self.limits.enabled.then(Vec::new);
    }

    /// Adds a transaction that has begun; [`Self::end`] removes it.
    pub(crate) fn begin(&mut self, record: Arc<TransactionRecord>) {
        if self.limits.enabled {
            self.transactions.push_back((record, 0));
        }
    }

    /// Removes the entry of a transaction that has ended, before its record is added.
    pub(crate) fn end(&mut self, seq: u64) {
        if self.transactions.back().is_some_and(|(last, _)| last.pre_record && last.seq == seq) {
            self.transactions.pop_back();
        }
    }

    /// Adds a transaction.
    pub(crate) fn add(&mut self, record: Arc<TransactionRecord>, now: Timestamp) {
        if !self.limits.enabled {
            return;
        }
        let weight = record.weight();
        self.bytes += weight;
        self.transactions.push_back((record, weight));
        self.trim(now);
    }

    /// Adds a revision for every touched value that changed in a transaction.
    pub(crate) fn revise(&mut self, graph: &Graph, touched: &[KeyId], seq: u64, now: Timestamp) {
        if !self.limits.enabled {
            return;
        }
        for id in touched.iter().copied() {
            let key = graph.key(id);
            let node = graph.shared(id);
            if node.is_none() && !self.revisions.contains_key(key) {
                continue;
            }
            // Most values are created once and never change.
            let revisions =
                self.revisions.entry(key.clone()).or_insert_with(|| Vec::with_capacity(1));
            let mut changed = false;
            if let Some(last) = revisions.last_mut()
                && last.until.is_none()
            {
                if node.is_some_and(|node| Arc::ptr_eq(node, &last.node)) {
                    continue;
                }
                (last.until, last.to) = (Some(now), Some(seq));
                changed = true;
            }
            let base = node.and_then(|node| node.base).map(|base| graph.key(base).clone());
            if let Some(node) = node {
                let (base, node) = (base.clone(), Arc::clone(node));
                revisions.push(Revision {
                    since: now,
                    from: seq,
                    until: None,
                    to: None,
                    base,
                    node,
                });
                self.count += 1;
                changed = true;
            }
            if let (true, Some(unsaved)) = (changed, &mut self.unsaved) {
                let node = node.map(|node| (base, Arc::clone(node)));
                unsaved.push(Unsaved { key: key.clone(), since: now, node });
            }
        }
    }

    /// After a restart: ends the revisions of values that are no longer there, and adds one for each
    /// value that has none.
    pub(crate) fn adopt(&mut self, graph: &Graph, seq: u64, now: Timestamp) {
        let open = |revisions: &[Revision]| revisions.last().is_some_and(|one| one.until.is_none());
        for (key, revisions) in &mut self.revisions {
            if open(revisions) && graph.find(key).is_none() {
                if let Some(last) = revisions.last_mut() {
                    (last.until, last.to) = (Some(now), Some(seq));
                }
                if let Some(unsaved) = &mut self.unsaved {
                    unsaved.push(Unsaved { key: key.clone(), since: now, node: None });
                }
            }
        }
        let unknown: Vec<KeyId> = graph
            .nodes()
            .filter(|(key, _, _)| !self.revisions.get(*key).is_some_and(|all| open(all)))
            .map(|(_, id, _)| id)
            .collect();
        self.revise(graph, &unknown, seq, now);
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
        // The first hour is exempt, so that expired entries may follow it.
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
        let mut dropped: Vec<Gap> = Vec::new();
        for revisions in self.revisions.values_mut() {
            let old = revisions.extract_if(.., |one| one.until.is_some_and(expired));
            dropped.extend(old.filter_map(|one| one.gap()));
            closed.extend(revisions.iter().filter_map(|revision| revision.until));
        }
        let total: usize = self.revisions.values().map(Vec::len).sum();
        if total > self.limits.revisions {
            // Drop a tenth more than needed, so that this does not run for every transaction.
            let spare =
                (total - self.limits.revisions + self.limits.revisions / 10).min(closed.len());
            closed.sort_unstable();
            if let Some(limit) = spare.checked_sub(1).and_then(|last| closed.get(last)).copied() {
                for revisions in self.revisions.values_mut() {
                    let over = |one: &mut Revision| one.until.is_some_and(|until| until <= limit);
                    dropped.extend(revisions.extract_if(.., over).filter_map(|one| one.gap()));
                }
            }
        }
        self.revisions.retain(|_, revisions| !revisions.is_empty());
        self.count = self.revisions.values().map(Vec::len).sum();
        self.gaps.extend(dropped);
    }

    pub(crate) fn transactions(&self) -> impl DoubleEndedIterator<Item = &Arc<TransactionRecord>> {
        self.transactions.iter().map(|(record, _)| record)
    }

    pub(crate) fn transaction(&self, seq: u64) -> Option<&Arc<TransactionRecord>> {
        let position =
            self.transactions.binary_search_by_key(&seq, |(record, _)| record.seq).ok()?;
        self.transactions.get(position).map(|(record, _)| record)
    }

    /// The record of a transaction, also of one that is still running. `next` is the number of the
    /// next transaction.
    pub(crate) fn kept(&self, seq: u64, next: u64) -> Result<&Arc<TransactionRecord>, Error> {
        self.transaction(seq).ok_or_else(|| match (seq < next, self.limits.enabled) {
            (true, true) => Error::NotKept(format!("transaction {seq}")),
            (true, false) => Error::Off,
            (false, _) => Error::Unknown(seq),
        })
    }

    /// The record of a transaction that has ended and after which every value is known. `next` is
    /// the number of the next transaction.
    pub(crate) fn ended(&self, seq: u64, next: u64) -> Result<&Arc<TransactionRecord>, Error> {
        let record = self.kept(seq, next)?;
        if record.pre_record {
            return Err(Error::Running(seq));
        }
        self.known(Moment::After(seq))?;
        Ok(record)
    }

    /// Whether every value of a moment is known.
    fn known(&self, moment: Moment) -> Result<(), Error> {
        if !self.limits.enabled {
            return Err(Error::Off);
        }
        let early = matches!(moment, Moment::Time(time) if time < self.start);
        match early || self.gaps.cover(moment) {
            true => Err(Error::NotKept(moment.to_string())),
            false => Ok(()),
        }
    }

    /// Every kept revision of a key, oldest first.
    pub(crate) fn timeline(&self, key: &str) -> Result<&[Revision], Error> {
        if !self.limits.enabled {
            return Err(Error::Off);
        }
        Ok(self.revisions_of(key))
    }

    fn revisions_of(&self, key: &str) -> &[Revision] {
        self.revisions.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The revision of a key at a moment; none if the value did not exist.
    pub(crate) fn at(&self, key: &str, moment: Moment) -> Result<Option<&Revision>, Error> {
        let found = self.timeline(key)?.iter().rev().find(|revision| revision.covers(moment));
        if found.is_none() {
            self.known(moment)?;
        }
        Ok(found)
    }

    /// The revision of every value at a moment, in key order.
    pub(crate) fn snapshot(
        &self,
        moment: Moment,
    ) -> Result<impl Iterator<Item = (&Key, &Revision)>, Error> {
        self.known(moment)?;
        let mut found: Vec<(&Key, &Revision)> = self
            .revisions
            .iter()
            .filter_map(|(key, revisions)| {
                let covers = |revision: &&Revision| revision.covers(moment);
                Some((key, revisions.iter().rev().find(covers)?))
            })
            .collect();
        found.sort_unstable_by_key(|(key, _)| *key);
        Ok(found.into_iter())
    }

    /// The origin of the last revision of a value.
    pub(crate) fn origin(&self, key: &str) -> Option<Origin> {
        self.revisions_of(key).last().map(|revision| revision.node.state.origin())
    }

    /// The wanted values, with their labels, after a transaction: every base value of northern
    /// origin.
    pub(crate) fn desired_after(&self, seq: u64, next: u64) -> Result<Desires, Error> {
        self.ended(seq, next)?;
        let wanted = |(key, revision): (&Key, &Revision)| {
            let node = &revision.node;
            let requested = node.last.requested.clone().filter(|_| revision.base.is_none())?;
            Some((key.clone(), (requested, node.labels.clone())))
        };
        Ok(self.snapshot(Moment::After(seq))?.filter_map(wanted).collect())
    }

    /// Counts revisions by a flag; none for a flag that does not exist.
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
