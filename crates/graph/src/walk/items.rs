//! The values of a transaction: in which order they are applied, which were reached, and their
//! previous values for a revert.

use std::sync::Arc;

use super::{Applied, How, Phase, Step, Walk};
use crate::descriptor::UserLabels;
use crate::graph::{Failure, Graph, Node};
use crate::hash::{HashMap, HashSet};
use crate::key::KeyId;
use crate::registry::Registry;
use crate::state::{Operation, Origin};
use crate::transaction::Retry;
use crate::value::{Metadata, Value};

/// A value of the transaction.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) id: KeyId,
    pub(crate) value: Option<Value>,
    pub(crate) labels: Option<Arc<UserLabels>>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) origin: Origin,
}

/// The values of a transaction in the order of work. Plan and execution share it.
#[derive(Debug)]
pub(crate) struct List {
    items: Vec<Item>,
    places: HashMap<KeyId, u32>,
}

impl List {
    /// Sorts items, which come in key order, into the order that needs the fewest operations:
    /// deletions, re-creations, creations, updates.
    pub(crate) fn new(graph: &Graph, registry: &Registry, mut items: Vec<Item>) -> Arc<Self> {
        items.sort_by_cached_key(|item| urgency(graph, registry, item));
        let places = items.iter().zip(0..).map(|(item, place)| (item.id, place)).collect();
        Arc::new(Self { items, places })
    }

    pub(crate) fn items(&self) -> &[Item] {
        &self.items
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The position of a key.
    pub(super) fn place(&self, id: KeyId) -> Option<usize> {
        self.places.get(&id).map(|place| *place as usize)
    }
}

/// The state of a value before the transaction, for a revert; empty if it was not known.
#[derive(Debug, Clone)]
pub(super) struct Previous {
    id: KeyId,
    known: Option<Box<Known>>,
}

impl Previous {
    pub(super) fn is_of(&self, id: KeyId) -> bool {
        self.id == id
    }
}

#[derive(Debug, Clone)]
struct Known {
    requested: Option<Value>,
    labels: Option<Arc<UserLabels>>,
    retry: Option<Retry>,
    /// The value existed although it was no longer wanted.
    leftover: Option<Value>,
    /// The value belonged to the south.
    obtained: Option<Option<Value>>,
}

impl Known {
    fn new(node: &Node) -> Self {
        let leftover = node.available && node.last.requested.is_none();
        Self {
            requested: node.last.requested.clone(),
            labels: node.labels.clone(),
            retry: node.last.retry,
            leftover: node.value.clone().filter(|_| leftover),
            obtained: node.is_obtained().then(|| node.value.clone()),
        }
    }
}

impl Walk {
    pub(super) fn next_item(&mut self, graph: &mut Graph) -> Option<Result<Applied, Step>> {
        match self.phase {
            Phase::Forward => {
                while let Some(item) = self.list.items.get(self.next) {
                    self.next += 1;
                    let id = item.id;
                    if let Some(item) = self.reach(graph, id) {
                        return Some(Ok(self.apply_item(graph, item)));
                    }
                }
                if let Some(applied) = self.next_claimant(graph) {
                    return Some(Ok(applied));
                }
                self.mend = self.bereft(graph);
                if self.mend.is_empty() {
                    return None;
                }
                self.phase = Phase::Mend;
                Some(Err(Step::Refresh(self.mend.iter().copied().collect())))
            }
            Phase::Mend => self.mend_next(graph).map(Ok),
            Phase::Stopped => {
                self.phase = Phase::Revert;
                let failed: HashSet<KeyId> = self.failed.iter().map(|(base, _)| *base).collect();
                self.mend = self.bystanders(graph);
                Some(Err(Step::Refresh(failed)))
            }
            Phase::Revert => {
                if let Some(applied) = self.mend_next(graph) {
                    return Some(Ok(applied));
                }
                match self.reached.pop() {
                    Some(previous) => Some(Ok(self.take_back(graph, previous))),
                    None => self.next_claimant(graph).map(Ok),
                }
            }
        }
    }

    /// Creates the derived values of a base that became free when their owner was deleted.
    fn next_claimant(&mut self, graph: &mut Graph) -> Option<Applied> {
        while let Some(id) = self.claimants.pop() {
            let wanted = graph.node(id).is_some_and(|node| {
                node.available && node.base.is_none() && node.last.requested.is_some()
            });
            if wanted && !self.failed_already(graph, id) {
                let how = self.dependent(graph, id);
                let whole = self.make_whole(graph, id, HashSet::default(), how);
                return Some(Applied::Later(whole));
            }
        }
        None
    }

    fn mend_next(&mut self, graph: &mut Graph) -> Option<Applied> {
        while let Some(id) = self.mend.pop() {
            if let Some(applied) = self.mend_dependent(graph, id) {
                return Some(applied);
            }
        }
        None
    }

    /// Wanted values that failed to be deleted and lost dependents or derived values before.
    fn bereft(&self, graph: &Graph) -> Vec<KeyId> {
        if self.plans() {
            return Vec::new();
        }
        let failed: HashSet<KeyId> = self.failed.iter().map(|(base, _)| *base).collect();
        let wanted = |id: &KeyId| graph.node(*id).is_some_and(|node| node.last.requested.is_some());
        let stuck = |id: &KeyId| {
            graph.node(*id).is_some_and(|node| {
                let deleted = |error: &Arc<Failure>| error.operation == Operation::Delete;
                node.state.is_failure() && node.error.as_ref().is_some_and(deleted)
            })
        };
        let lost = |id: &KeyId| {
            let derived = graph.node(*id).map(|node| &*node.derived).unwrap_or_default();
            derived.iter().any(|id| graph.node(*id).is_none())
                || !self.waiting_dependents(graph, *id).is_empty()
        };
        let mut bereft: Vec<KeyId> = failed.into_iter().filter(wanted).collect();
        bereft.retain(|id| stuck(id) && lost(id));
        bereft.sort_unstable_by(|a, b| graph.key(*b).cmp(graph.key(*a)));
        bereft
    }

    /// Values that a revert does not cover but that may have changed: values that failed to be
    /// deleted, and items of the list that were deleted for others before their own turn, which now
    /// does not come.
    fn bystanders(&self, graph: &Graph) -> Vec<KeyId> {
        let failed = self.failed.iter().map(|(base, _)| *base);
        let foreign = failed.filter(|id| self.list.place(*id).is_none());
        let unreached = self.list.items.iter().zip(&self.done).filter(|(_, done)| !**done);
        let touched = |id: &KeyId| {
            let derived = graph.node(*id).map(|node| &*node.derived).unwrap_or_default();
            self.log.mentions(*id) || derived.iter().any(|id| self.log.mentions(*id))
        };
        let left = unreached.map(|(item, _)| item.id).filter(touched);
        foreign.chain(left).collect()
    }

    /// The item of a key that was not reached yet; marks it as reached.
    pub(super) fn reach(&mut self, graph: &Graph, id: KeyId) -> Option<Item> {
        let place = self.list.place(id).filter(|_| self.undone > 0)?;
        if std::mem::replace(&mut self.done[place], true) {
            return None;
        }
        self.undone -= 1;
        let item = self.list.items[place].clone();
        if self.settings.reverts && !self.plans() {
            let known = graph.node(id).map(|node| Box::new(Known::new(node)));
            self.reached.push(Previous { id, known });
        }
        Some(item)
    }

    /// The item of a key whose turn is still to come.
    pub(super) fn coming(&self, id: KeyId) -> Option<&Item> {
        if self.undone == 0 {
            return None;
        }
        let place = self.list.place(id).filter(|place| !self.done[*place])?;
        self.list.items.get(place)
    }

    pub(super) fn apply_item(&mut self, graph: &mut Graph, item: Item) -> Applied {
        let Item { id, value, labels, metadata, origin } = item;
        let reverts = self.settings.repeats && graph.node(id).is_some_and(|node| node.last.revert);
        let how = How::base(origin, reverts);
        if origin == Origin::South && value.is_some() {
            let applied = self.apply(graph, id, value, how);
            if graph.node(id).is_some() {
                self.set_metadata(graph, id, metadata);
            }
            return applied;
        }
        let labelled = graph.node(id).and_then(|node| node.labels.as_ref());
        if labels.is_some() && value.is_some() && labelled != labels.as_ref() {
            graph.write(id).labels = labels;
        }
        self.apply(graph, id, value, how)
    }

    fn take_back(&mut self, graph: &mut Graph, previous: Previous) -> Applied {
        let Previous { id, known } = previous;
        let (requested, labels, retry, leftover, obtained) = match known {
            Some(known) => {
                let Known { requested, labels, retry, leftover, obtained } = *known;
                (requested, labels, retry, leftover, obtained)
            }
            None => (None, None, None, None, None),
        };
        // A base took the key over when the value was deleted: it gives it back.
        if let Some(base) = graph.node(id).and_then(|node| node.base) {
            graph.write(id).base = None;
            graph.prune_derived(base);
        }
        if let Some(node) = graph.node(id) {
            let retry = self.settings.retry.or(retry);
            let same = node.last.retry == retry && node.labels == labels;
            if !same {
                let node = graph.write(id);
                node.labels = labels;
                node.last.retry = retry;
            }
        }
        match obtained {
            // It belonged to the south: restored as a wanted value, then released.
            Some(value) => {
                let how = How::base(Origin::Unknown, true);
                self.apply(graph, id, value, how)
            }
            None => {
                let how = How::base(Origin::North, true);
                if leftover.is_none() {
                    return self.apply(graph, id, requested, how);
                }
                let applied = self.apply(graph, id, leftover, how);
                graph.write(id).last.requested = None;
                applied
            }
        }
    }
}

/// The position of an item in the order of work: smaller comes first.
fn urgency(graph: &Graph, registry: &Registry, item: &Item) -> (bool, u8) {
    let Some(node) = graph.node(item.id) else {
        return (true, if item.value.is_none() { 0 } else { 2 });
    };
    let class = match (&item.value, &node.value) {
        (None, _) => 0,
        (Some(_), None) => 2,
        (Some(_), Some(_)) if !node.available => 2,
        (Some(new), Some(old)) => {
            let recreated = node.descriptor.is_some_and(|id| {
                let descriptor = registry.get(id);
                !descriptor.abilities().update
                    || descriptor.recreate(graph.key(item.id), old, new, node.metadata.as_ref())
            });
            if recreated { 1 } else { 3 }
        }
    };
    (!node.uncertain, class)
}
