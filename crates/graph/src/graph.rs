//! The graph of values: nodes with their dependencies and their derived values.
//!
//! Keys are interned into slots of a slab; an edge is a slot number. A slot exists for every key
//! that has a node and for every key that is a dependency, so that a new value finds its dependents
//! at once. A dependency on any key of a set holds on to one *witness* that satisfies
//! it; while there is none, it waits under its prefixes. So the cost of a
//! change depends on what it touches, not on the size of the graph.
//!
//! Planning changes the graph itself and rolls the changes back: [`Graph::begin_trial`] starts an
//! undo log, [`Graph::end_trial`] rolls it back. Nodes are shared pointers that are copied when
//! written while shared, which also makes a revision in the history a pointer and not a copy.
//!
//! Always holds: the sources of a slot are exactly the nodes with an edge to it, a witness included;
//! an unmet any-of edge waits under each of its prefixes, a met one under none.

mod circles;
mod claims;
mod edges;
mod ready;
mod veil;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

pub(crate) use self::circles::Circles;
pub(crate) use self::veil::Veil;
use crate::descriptor::{AnyOf, UserLabels};
use crate::hash::HashMap;
use crate::key::{Key, KeyId, KeySet};
use crate::registry::DescriptorId;
use crate::state::{Operation, ValueState};
use crate::transaction::Retry;
use crate::value::{Metadata, Value};

/// A value as the engine knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub(crate) state: ValueState,
    /// Whether it satisfies dependencies.
    pub(crate) available: bool,
    /// Whether the south may differ from this node: the last operation was interrupted.
    pub(crate) uncertain: bool,
    pub(crate) descriptor: Option<DescriptorId>,
    /// The base that it is derived from.
    pub(crate) base: Option<KeyId>,
    /// The value in the south, if known.
    pub(crate) value: Option<Value>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) last: LastUpdate,
    pub(crate) error: Option<Arc<Failure>>,
    pub(crate) labels: Option<Arc<UserLabels>>,
    pub(crate) edges: Arc<[Edge]>,
    /// Its derived values, in key order.
    pub(crate) derived: Arc<[KeyId]>,
}

impl Node {
    /// Whether the value belongs to the south: it is retrieved, never changed.
    pub(crate) fn is_obtained(&self) -> bool {
        self.state == ValueState::Obtained
    }

    /// Whether it is not known if this derived value exists, because its base cannot be seen.
    pub(crate) fn is_out_of_sight(&self) -> bool {
        self.base.is_some() && self.uncertain && self.state == ValueState::Pending
    }

    /// Whether the value exists, or may: the last update or deletion failed, and it was not
    /// retrieved since.
    pub(crate) fn stands(&self) -> bool {
        self.available || (self.uncertain && self.state.is_failure())
    }
}

/// The last change of a value.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastUpdate {
    pub(crate) transaction: u64,
    pub(crate) operation: Operation,
    pub(crate) revert: bool,
    /// The wanted value; none if it is not wanted.
    pub(crate) requested: Option<Value>,
    pub(crate) retry: Option<Retry>,
}

/// Why the last operation on a value failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) operation: Operation,
    pub(crate) message: String,
    pub(crate) retriable: bool,
    pub(crate) fields: Vec<String>,
}

/// One dependency of a node.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    pub(crate) label: Arc<str>,
    pub(crate) target: EdgeTarget,
    test: Option<Test>,
}

#[derive(Clone)]
struct Test(Arc<dyn Fn(&Value) -> bool + Send + Sync>);

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Test")
    }
}

#[derive(Debug, Clone)]
pub(crate) enum EdgeTarget {
    Key(Key, KeyId),
    AnyOf { set: Arc<AnyOf>, witness: Option<KeyId> },
}

impl Edge {
    /// Whether a value meets the condition of the edge.
    pub(crate) fn accepts(&self, value: Option<&Value>) -> bool {
        self.test.as_ref().is_none_or(|test| value.is_some_and(|value| (test.0)(value)))
    }
}

#[derive(Debug)]
struct Slot {
    key: Key,
    node: Option<Arc<Node>>,
    sources: KeySet<KeyId>,
    /// The epoch in which the node was last noted as touched.
    touched: u32,
    /// The last verdict on readiness.
    verdict: Verdict,
}

/// A verdict on the readiness of a key. It is valid for one version of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Verdict {
    #[default]
    Unknown,
    /// The node waits, directly or not, for a missing key.
    Blocked(u64),
    /// The key is missing itself.
    Missing(u64),
}

enum Undo {
    Node(KeyId, Option<Arc<Node>>),
    SourceAdded(KeyId, KeyId),
    SourceRemoved(KeyId, KeyId),
    WaitAdded(Arc<str>, KeyId),
    WaitRemoved(Arc<str>, KeyId),
    Counted { tests: usize, any_of: usize },
}

/// The graph.
#[derive(Default)]
pub(crate) struct Graph {
    slots: Vec<Slot>,
    free: Vec<KeyId>,
    ids: HashMap<Key, KeyId>,
    /// Slots in key order.
    index: BTreeMap<Key, KeyId>,
    /// The number of slots with a node.
    count: usize,
    /// Nodes with an unmet any-of edge, by prefix.
    waiting: HashMap<Arc<str>, KeySet<KeyId>>,
    /// The number of waiting prefixes of each length.
    lengths: BTreeMap<usize, usize>,
    /// Edges with a test on the target's value, and edges to any key of a set.
    tests: usize,
    any_of: usize,
    /// Slots that may be empty.
    hollow: Vec<KeyId>,
    epoch: u32,
    touched: Vec<KeyId>,
    /// Grows with every change that may affect a verdict.
    version: u64,
    trial: Option<Trial>,
    /// The descriptors whose values cannot be seen.
    veil: Option<Veil>,
    /// Keys that belong to one value and follow from other bases too: these bases.
    claims: BTreeMap<Key, BTreeSet<Key>>,
}

struct Trial {
    undo: Vec<Undo>,
    touched: Vec<KeyId>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.count).finish_non_exhaustive()
    }
}

impl Graph {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn id(&self, key: &str) -> Option<KeyId> {
        self.ids.get(key).copied()
    }

    pub(crate) fn key(&self, id: KeyId) -> &Key {
        &self.slots[id.index()].key
    }

    pub(crate) fn node(&self, id: KeyId) -> Option<&Node> {
        self.slots[id.index()].node.as_deref()
    }

    /// The node as a revision keeps it.
    pub(crate) fn shared(&self, id: KeyId) -> Option<&Arc<Node>> {
        self.slots[id.index()].node.as_ref()
    }

    pub(crate) fn find(&self, key: &str) -> Option<(KeyId, &Node)> {
        let id = self.id(key)?;
        Some((id, self.node(id)?))
    }

    pub(crate) fn state(&self, id: KeyId) -> ValueState {
        self.node(id).map_or(ValueState::Nonexistent, |node| node.state)
    }

    pub(crate) fn is_available(&self, id: KeyId) -> bool {
        self.node(id).is_some_and(|node| node.available)
    }

    /// The base key of a value: its base's, or its own.
    pub(crate) fn base_of(&self, id: KeyId) -> KeyId {
        self.node(id).and_then(|node| node.base).unwrap_or(id)
    }

    /// Whether a value is derived from a base. The list is in key order.
    pub(crate) fn derives(&self, base: KeyId, id: KeyId) -> bool {
        let derived = self.node(base).map(|node| &*node.derived).unwrap_or_default();
        let key = self.key(id);
        derived.binary_search_by(|other| self.key(*other).cmp(key)).is_ok()
    }

    /// Removes derived values that are gone from a base whose operation was interrupted before it
    /// could remove them: their slots may soon be reused for other keys.
    pub(crate) fn prune_derived(&mut self, base: KeyId) {
        let Some(node) = self.node(base).filter(|node| !node.derived.is_empty()) else {
            return;
        };
        let derived = Arc::clone(&node.derived);
        let kept = |id: &KeyId| self.node(*id).is_some_and(|node| node.base == Some(base));
        if !derived.iter().all(kept) {
            self.write(base).derived = derived.iter().copied().filter(kept).collect();
        }
    }

    /// All nodes in key order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&Key, KeyId, &Node)> {
        self.index.iter().filter_map(|(key, id)| Some((key, *id, self.node(*id)?)))
    }

    /// The nodes whose keys begin with `prefix`, in key order.
    pub(crate) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&Key, KeyId, &Node)> {
        self.index
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter_map(|(key, id)| Some((key, *id, self.node(*id)?)))
    }

    /// The slot of a key, made if there is none.
    pub(crate) fn intern(&mut self, key: &Key) -> KeyId {
        if let Some(id) = self.id(key) {
            return id;
        }
        let id = self.give(key);
        self.index.insert(key.clone(), id);
        id
    }

    /// The slots of many keys. In key order this is much cheaper than one after the other.
    pub(crate) fn intern_all<'a>(
        &mut self,
        keys: impl ExactSizeIterator<Item = &'a Key>,
    ) -> Vec<KeyId> {
        self.ids.reserve(keys.len());
        self.slots.reserve(keys.len().saturating_sub(self.free.len()));
        let mut new = Vec::new();
        let ids = keys
            .map(|key| {
                self.id(key).unwrap_or_else(|| {
                    let id = self.give(key);
                    new.push((key.clone(), id));
                    id
                })
            })
            .collect();
        // Few keys are looked up one by one; many are merged with the existing ones.
        if new.len() > self.index.len() / 8 {
            self.index.append(&mut new.into_iter().collect());
        } else {
            self.index.extend(new);
        }
        ids
    }

    /// A slot for a key that has none.
    fn give(&mut self, key: &Key) -> KeyId {
        let slot = Slot {
            key: key.clone(),
            node: None,
            sources: KeySet::new(),
            touched: u32::MAX,
            verdict: Verdict::Unknown,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id.index()] = slot;
                id
            }
            None => {
                let next = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                assert!(next < u32::MAX, "a graph holds fewer than four thousand million keys");
                self.slots.push(slot);
                KeyId(next)
            }
        };
        self.ids.insert(key.clone(), id);
        self.hollow.push(id);
        id
    }

    /// The node for writing, made if there is none.
    pub(crate) fn write(&mut self, id: KeyId) -> &mut Node {
        self.touch(id);
        let slot = &mut self.slots[id.index()];
        if slot.node.is_none() {
            self.count += 1;
        }
        Arc::make_mut(slot.node.get_or_insert_default())
    }

    /// To be called when a key changes in a way that affects readiness: verdicts stay valid unless
    /// they depend on this key.
    pub(crate) fn unsettle(&mut self, id: KeyId) {
        match self.slots[id.index()].verdict {
            Verdict::Blocked(version) | Verdict::Missing(version) if version == self.version => {
                self.version += 1;
            }
            _ => {}
        }
    }

    /// Removes the node from the graph. Edges to the key stay.
    pub(crate) fn remove(&mut self, id: KeyId) {
        if self.node(id).is_none() {
            return;
        }
        self.set_available(id, false);
        self.set_edges(id, Vec::new());
        self.touch(id);
        self.slots[id.index()].node = None;
        self.count -= 1;
        self.hollow.push(id);
        self.unsettle(id);
    }

    fn touch(&mut self, id: KeyId) {
        let slot = &mut self.slots[id.index()];
        if slot.touched == self.epoch {
            return;
        }
        slot.touched = self.epoch;
        self.touched.push(id);
        if let Some(trial) = &mut self.trial {
            trial.undo.push(Undo::Node(id, slot.node.clone()));
        }
    }

    fn note(&mut self, undo: Undo) {
        if let Some(trial) = &mut self.trial {
            trial.undo.push(undo);
        }
    }

    /// The nodes touched since the last call.
    pub(crate) fn take_touched(&mut self) -> Vec<KeyId> {
        self.epoch = self.epoch.wrapping_add(1);
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Begins a trial: every change from here on can be rolled back.
    pub(crate) fn begin_trial(&mut self) {
        debug_assert!(self.trial.is_none(), "trials do not nest");
        self.epoch = self.epoch.wrapping_add(1);
        let touched = std::mem::take(&mut self.touched);
        self.trial = Some(Trial { undo: Vec::new(), touched });
    }

    /// Whether the trial has changed anything.
    pub(crate) fn is_changed(&self) -> bool {
        self.trial.as_ref().is_some_and(|trial| !trial.undo.is_empty())
    }

    /// Rolls back every change since [`Self::begin_trial`], except new slots: they are needed again
    /// at once, or freed by the next [`Self::sweep`].
    pub(crate) fn end_trial(&mut self) {
        let Some(Trial { undo, touched }) = self.trial.take() else {
            return;
        };
        for step in undo.into_iter().rev() {
            self.take_back(step);
        }
        self.touched = touched;
        self.epoch = self.epoch.wrapping_add(1);
        self.version += 1;
    }

    fn take_back(&mut self, step: Undo) {
        match step {
            Undo::Node(id, node) => {
                let slot = &mut self.slots[id.index()];
                self.count -= usize::from(slot.node.is_some());
                self.count += usize::from(node.is_some());
                slot.node = node;
            }
            Undo::SourceAdded(target, source) => {
                self.slots[target.index()].sources.remove(&source);
            }
            Undo::SourceRemoved(target, source) => {
                self.slots[target.index()].sources.add(source);
            }
            Undo::WaitAdded(prefix, source) => {
                self.stop_waiting(&prefix, source);
            }
            Undo::WaitRemoved(prefix, source) => {
                self.start_waiting(&prefix, source);
            }
            Undo::Counted { tests, any_of } => {
                self.tests = tests;
                self.any_of = any_of;
            }
        }
    }

    /// Frees the slots of keys without node and edges.
    pub(crate) fn sweep(&mut self) {
        if self.trial.is_some() {
            return;
        }
        self.forget_claims();
        for id in std::mem::take(&mut self.hollow) {
            let slot = &self.slots[id.index()];
            let hollow = slot.node.is_none() && slot.sources.is_empty();
            if hollow && self.ids.get(&slot.key) == Some(&id) {
                self.ids.remove(&slot.key);
                self.index.remove(&slot.key);
                self.free.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
