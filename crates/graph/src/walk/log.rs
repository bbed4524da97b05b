//! The list of operations of a walk, and which calls must stay in order.

use super::Call;
use crate::graph::{EdgeTarget, Graph};
use crate::hash::HashMap;
use crate::key::KeyId;
use crate::record::OperationRecord;
use crate::state::{Operation, ValueState};

/// Operations in order. A value that first waits and is then created counts as created; one that is
/// first sent to wait and then deleted counts as deleted.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationLog {
    operations: Vec<Option<OperationRecord>>,
    last: HashMap<KeyId, u32>,
}

impl OperationLog {
    /// An empty log with room for this many operations.
    pub(super) fn with_room(room: usize) -> Self {
        let last = HashMap::with_capacity_and_hasher(room, Default::default());
        Self { operations: Vec::with_capacity(room), last }
    }

    /// Makes room for this many more operations.
    pub(super) fn reserve(&mut self, operations: usize) {
        self.operations.reserve(operations);
        self.last.reserve(operations);
    }

    /// Whether there is an operation on the value.
    pub(super) fn mentions(&self, id: KeyId) -> bool {
        self.last.contains_key(&id)
    }

    pub(super) fn push(&mut self, id: KeyId, mut record: OperationRecord) {
        let place = u32::try_from(self.operations.len())
            .expect("a transaction has fewer than four thousand million operations");
        let earlier = self.last.insert(id, place);
        if let Some((at, slot)) =
            earlier.and_then(|at| Some((at, self.operations.get_mut(at as usize)?)))
        {
            match slot {
                Some(last)
                    if last.operation == Operation::Create
                        && last.new_state == ValueState::Pending
                        && record.operation == Operation::Create =>
                {
                    record.prev_state = last.prev_state;
                    record.prev_value = last.prev_value.take();
                    record.prev_error = last.prev_error.take();
                    *slot = None;
                }
                Some(last)
                    if last.operation == Operation::Delete
                        && record.operation == Operation::Delete
                        && record.prev_state == ValueState::Pending =>
                {
                    last.new_state = record.new_state;
                    self.last.insert(id, at);
                    return;
                }
                _ => {}
            }
        }
        self.operations.push(Some(record));
    }

    pub(super) fn finish(mut self) -> Vec<OperationRecord> {
        self.operations.retain(Option::is_some);
        // In place, so that a million operations are not copied.
        self.operations.into_iter().map_while(|operation| operation).collect()
    }
}

/// The calls of a plan, and for each the earlier calls that must end before it may begin: those on
/// the same value, on its present and previous dependencies, on its dependents, on its base and on
/// its derived values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conflicts {
    pub(crate) calls: Vec<(Call, Vec<usize>)>,
    last: HashMap<KeyId, usize>,
    /// Calls on values that point, or pointed, at a key since its own last call.
    toward: HashMap<KeyId, Vec<usize>>,
    /// The targets of a value before its edges changed.
    former: HashMap<KeyId, Vec<KeyId>>,
}

impl Conflicts {
    /// A new list of calls, for the rest of the same walk.
    pub(super) fn continued(&self) -> Self {
        Self { former: self.former.clone(), ..Self::default() }
    }

    /// To be called when a call is made that is not recorded.
    pub(super) fn forget(&mut self, id: KeyId) {
        self.former.remove(&id);
    }

    /// To be called before the edges or the witnesses of a value change.
    pub(super) fn remember_targets(&mut self, graph: &Graph, id: KeyId) {
        let targets = targets(graph, id);
        self.former.entry(id).or_default().extend(targets);
    }

    /// To be called before a target is deleted: its dependents may find other witnesses.
    pub(super) fn remember_sources(&mut self, graph: &Graph, id: KeyId) {
        for source in graph.sources(id) {
            self.remember_targets(graph, source);
            self.former.entry(id).or_default().push(source);
        }
    }

    pub(super) fn add(&mut self, graph: &Graph, call: &Call) {
        let id = call.id;
        let index = self.calls.len();
        let mut around = targets(graph, id);
        around.extend(self.former.remove(&id).unwrap_or_default());
        around.extend(graph.node(id).and_then(|node| node.base));
        let mut before: Vec<usize> = self.toward.remove(&id).unwrap_or_default();
        before.extend(self.last.get(&id));
        for other in around {
            before.extend(self.last.get(&other));
            // A dependent that stays may now depend on a value that was just created.
            if call.operation == Operation::Delete {
                before.extend(
                    targets(graph, other).iter().filter_map(|target| self.last.get(target)),
                );
            }
            self.toward.entry(other).or_default().push(index);
        }
        before.sort_unstable();
        before.dedup();
        self.last.insert(id, index);
        self.calls.push((call.clone(), before));
    }
}

fn targets(graph: &Graph, id: KeyId) -> Vec<KeyId> {
    let edges = graph.node(id).map(|node| &*node.edges).unwrap_or_default();
    edges
        .iter()
        .filter_map(|edge| match &edge.target {
            EdgeTarget::Key(_, target) => Some(*target),
            EdgeTarget::AnyOf { witness, .. } => *witness,
        })
        .collect()
}
