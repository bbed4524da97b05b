//! Deletes a value: first its derived values and its dependents, then the value itself.
//!
//! If one of those cannot be deleted, the value stays as it was, the ones already deleted are created
//! again, and the failure counts for the frame that asked for the deletion.

use std::sync::Arc;

use super::{Abandoned, Applied, Before, Call, Child, Flow, Frame, How, Input, Walk};
use crate::descriptor::OperationError;
use crate::graph::{EdgeTarget, Graph};
use crate::hash::HashSet;
use crate::key::KeyId;
use crate::state::{Operation, Origin, ValueState};
use crate::value::Value;

/// Why a value is deleted.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// It is no longer wanted.
    Requested,
    /// One of its dependencies is being deleted.
    Wait,
    /// It will be created again at once.
    Recreate,
    /// A dependency of its new value is not met. Recorded as an update.
    Unready { old: Option<Value>, state: ValueState },
}

#[derive(Clone)]
pub(super) struct Delete {
    pub(super) id: KeyId,
    kind: Kind,
    how: How,
    before: Before,
    derived: Arc<[KeyId]>,
    /// Its dependents before it was marked as gone.
    dependents: Vec<KeyId>,
    /// Derived values that were only discovered and do not follow from the wanted value.
    strange: HashSet<KeyId>,
    /// It does not exist itself; only values that still depend on it are deleted.
    absent: bool,
    /// Later items of the list are applied before it.
    early: bool,
    stage: Stage,
}

#[derive(Clone)]
enum Stage {
    /// Later items of the list that make it unnecessary to delete dependents.
    Early(std::vec::IntoIter<KeyId>),
    Derived(std::vec::IntoIter<KeyId>),
    Dependents(std::vec::IntoIter<KeyId>),
    Call,
    PutBack(std::vec::IntoIter<KeyId>),
    PutBackDerived(std::vec::IntoIter<Child>),
}

impl Walk {
    pub(super) fn begin_delete(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        kind: Kind,
        how: How,
    ) -> Applied {
        let Some(node) = graph.node(id) else {
            return Applied::Now(Ok(()));
        };
        if node.state == ValueState::Removed && matches!(kind, Kind::Requested) {
            return Applied::Now(Ok(()));
        }
        let mut before = self.before(graph, id);
        let there = node.stands();
        let operation = match &kind {
            Kind::Unready { old, state } => {
                before.value.clone_from(old);
                before.state = *state;
                Operation::Update
            }
            Kind::Recreate => Operation::Update,
            Kind::Requested | Kind::Wait => Operation::Delete,
        };
        let derived = Arc::clone(&node.derived);
        if operation == Operation::Delete {
            let requested = matches!(kind, Kind::Requested).then_some(None);
            self.write_last(graph, id, operation, requested, how);
        }
        // It goes once it is known which values depend on it, or whether it exists itself.
        let later = if there { graph.is_needed_by_unseen(id) } else { graph.unseen(id).is_some() };
        if later && matches!(kind, Kind::Requested) {
            return Applied::Now(Ok(()));
        }
        if !there && !self.is_leaned_on(graph, id, &derived) {
            return self.delete_absent(graph, id, &before, how);
        }
        let derived = if there { derived } else { Arc::default() };
        let changes = self.early_changes(graph, id);
        let early = !changes.is_empty();
        let stage = Stage::Early(changes.into_iter());
        Applied::Later(Frame::Delete(Box::new(Delete {
            id,
            kind,
            how,
            before,
            derived,
            dependents: Vec::new(),
            strange: HashSet::default(),
            absent: !there,
            early,
            stage,
        })))
    }

    /// Whether a value exists whose dependency on this one is not met.
    fn is_leaned_on(&self, graph: &mut Graph, id: KeyId, derived: &[KeyId]) -> bool {
        std::iter::once(id)
            .chain(derived.iter().copied())
            .flat_map(|id| graph.sources(id))
            .collect::<Vec<_>>()
            .into_iter()
            .any(|source| self.must_go(graph, source))
    }

    /// The value does not exist: it is only no longer wanted.
    fn delete_absent(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        before: &Before,
        how: How,
    ) -> Applied {
        self.drop_derived(graph, id);
        let node = graph.write(id);
        let known = node.value.is_some();
        node.state = ValueState::Removed;
        node.error = None;
        if known {
            self.record(graph, id, Operation::Delete, before, true, how);
        }
        self.leave(graph, id);
        Applied::Now(Ok(()))
    }

    /// Removes a deleted value: a derived one at once, a base once the transaction has ended.
    fn leave(&mut self, graph: &mut Graph, id: KeyId) {
        self.claimants.extend(graph.claimants(id));
        if graph.node(id).is_some_and(|node| node.base.is_some()) {
            graph.remove(id);
        } else {
            graph.set_edges(id, Vec::new());
            let node = graph.write(id);
            node.value = None;
            node.derived = Arc::default();
            node.labels = None;
        }
    }

    pub(super) fn run_delete(
        &mut self,
        graph: &mut Graph,
        frame: &mut Delete,
        input: Input,
    ) -> Flow {
        match input {
            Input::Start => {}
            Input::Answer(Ok(_)) => return self.deleted(graph, frame),
            Input::Answer(Err(error)) => return self.delete_failed(graph, frame, &error),
            Input::Child(Err(_))
                if matches!(frame.stage, Stage::Derived(_) | Stage::Dependents(_)) =>
            {
                self.put_back(graph, frame);
            }
            Input::Child(_) => {}
        }
        loop {
            let applied = match &mut frame.stage {
                Stage::Early(list) => match list.next() {
                    _ if self.stopping() => return Flow::Return(Err(Abandoned)),
                    Some(id) if self.branch.contains(&id) => continue,
                    Some(id) => match self.reach(graph, id) {
                        Some(item) => self.apply_item(graph, item),
                        None => continue,
                    },
                    None => {
                        if frame.early {
                            self.revert_before_early(graph, frame.id);
                        }
                        frame.dependents = leaning(graph, frame.id);
                        frame.strange = self.strange(graph, frame.id, &frame.derived);
                        self.mark_gone(graph, frame);
                        let derived: Vec<KeyId> = frame.derived.to_vec();
                        frame.stage = Stage::Derived(derived.into_iter());
                        continue;
                    }
                },
                Stage::Derived(list) => match list.next() {
                    Some(id) => {
                        let how = How {
                            recreate: frame.how.recreate,
                            ..frame.how.derived(frame.id, false)
                        };
                        self.apply(graph, id, None, how)
                    }
                    None => {
                        let dependents = std::mem::take(&mut frame.dependents);
                        frame.stage = Stage::Dependents(dependents.into_iter());
                        continue;
                    }
                },
                Stage::Dependents(list) => match list.next() {
                    Some(id) => self.send_to_wait(graph, id),
                    None => return self.delete_itself(graph, frame),
                },
                Stage::Call => return Flow::Return(Ok(())),
                Stage::PutBack(list) => match list.next() {
                    Some(id) => self.wake(graph, id),
                    None => {
                        let derived = match frame.absent {
                            true => Vec::new(),
                            false => self.derive(graph, frame.id),
                        };
                        frame.stage = Stage::PutBackDerived(derived.into_iter());
                        continue;
                    }
                },
                Stage::PutBackDerived(list) => match list.next() {
                    Some(child) if frame.strange.contains(&child.id) => {
                        self.leave_away(graph, frame.id, child);
                        continue;
                    }
                    Some(child) => {
                        let how = frame.how.derived(frame.id, child.property);
                        self.apply(graph, child.id, Some(child.value), how)
                    }
                    None => {
                        self.mending -= 1;
                        return Flow::Return(Err(Abandoned));
                    }
                },
            };
            match applied {
                Applied::Now(Ok(())) => {}
                Applied::Now(Err(_)) => {
                    if matches!(frame.stage, Stage::Derived(_) | Stage::Dependents(_)) {
                        self.put_back(graph, frame);
                    }
                }
                Applied::Later(child) => return Flow::Push(child),
            }
        }
    }

    fn mark_gone(&mut self, graph: &mut Graph, frame: &Delete) {
        if let Some(conflicts) = &mut self.conflicts {
            conflicts.remember_sources(graph, frame.id);
        }
        let node = graph.write(frame.id);
        node.state = match frame.kind {
            Kind::Requested | Kind::Recreate => ValueState::Removed,
            Kind::Wait | Kind::Unready { .. } => ValueState::Pending,
        };
        graph.set_available(frame.id, false);
        graph.unsettle(frame.id);
    }

    /// Whether a value that exists has an unmet dependency.
    pub(super) fn must_go(&self, graph: &mut Graph, id: KeyId) -> bool {
        let Some(node) = graph.node(id) else {
            return false;
        };
        if !node.stands() || node.is_obtained() || self.branch.contains(&id) {
            return false;
        }
        // A value that is being deleted meets no dependency, not even inside a cycle.
        let leans_on_going = node.edges.iter().any(|edge| match edge.target {
            EdgeTarget::Key(_, target) => self.branch.contains(&target) && !graph.is_met(edge),
            EdgeTarget::AnyOf { .. } => false,
        });
        leans_on_going || !graph.is_ready(id)
    }

    /// Deletes a value one of whose dependencies is being deleted; it waits afterwards.
    pub(super) fn send_to_wait(&mut self, graph: &mut Graph, id: KeyId) -> Applied {
        if !self.must_go(graph, id) {
            return Applied::Now(Ok(()));
        }
        if self.coming(id).is_some_and(|item| item.value.is_none())
            && let Some(item) = self.reach(graph, id)
        {
            return self.apply_item(graph, item);
        }
        let how = self.dependent(graph, id);
        if self.failed_already(graph, id) {
            return Applied::Now(Err(Abandoned));
        }
        self.begin_delete(graph, id, Kind::Wait, how)
    }

    fn delete_itself(&mut self, graph: &mut Graph, frame: &mut Delete) -> Flow {
        if frame.absent {
            self.delete_absent(graph, frame.id, &frame.before, frame.how);
            return Flow::Return(Ok(()));
        }
        let Some(node) = graph.node(frame.id) else {
            return Flow::Return(Ok(()));
        };
        let touches = frame.how.origin != Origin::South;
        let Some(descriptor) = node.descriptor.filter(|_| touches) else {
            return self.deleted(graph, frame);
        };
        if !self.settings.registry.get(descriptor).abilities().delete {
            if self.plans() {
                return self.deleted(graph, frame);
            }
            let error = OperationError::permanent("delete is not implemented");
            return self.delete_failed(graph, frame, &error);
        }
        let call = Call {
            id: frame.id,
            key: graph.key(frame.id).clone(),
            operation: Operation::Delete,
            descriptor,
            old: frame.before.value.clone(),
            new: None,
            metadata: node.metadata.clone(),
            base: node.base.map(|base| graph.key(base).clone()),
            revert: frame.how.revert,
        };
        frame.stage = Stage::Call;
        Flow::Call(call)
    }

    fn deleted(&mut self, graph: &mut Graph, frame: &Delete) -> Flow {
        // A derived value whose base was deleted meanwhile, as in a cycle, is deleted with it.
        let base = graph.node(frame.id).and_then(|node| node.base);
        let orphan =
            matches!(frame.kind, Kind::Wait) && base.is_some_and(|base| !graph.is_available(base));
        let node = graph.write(frame.id);
        if orphan {
            node.state = ValueState::Removed;
        }
        node.error = None;
        node.uncertain = false;
        node.derived = Arc::default();
        self.set_metadata(graph, frame.id, None);
        let operation = match frame.kind {
            Kind::Unready { .. } => Operation::Update,
            _ => Operation::Delete,
        };
        self.record(graph, frame.id, operation, &frame.before, false, frame.how);
        if orphan || matches!(frame.kind, Kind::Requested) {
            self.leave(graph, frame.id);
        }
        Flow::Return(Ok(()))
    }

    fn delete_failed(&mut self, graph: &mut Graph, frame: &Delete, error: &OperationError) -> Flow {
        self.fail(graph, frame.id, Operation::Delete, error, frame.how);
        self.record(graph, frame.id, Operation::Delete, &frame.before, false, frame.how);
        Flow::Return(Err(Abandoned))
    }

    /// Restores the dependents and derived values of a value that was not deleted after all.
    pub(super) fn make_whole(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        strange: HashSet<KeyId>,
        how: How,
    ) -> Frame {
        self.mending += 1;
        let before = self.before(graph, id);
        Frame::Delete(Box::new(Delete {
            id,
            kind: Kind::Wait,
            how,
            before,
            derived: Arc::default(),
            dependents: Vec::new(),
            strange,
            absent: false,
            early: false,
            stage: Stage::PutBack(self.waiting_dependents(graph, id).into_iter()),
        }))
    }

    /// The derived values that are not wanted: a retrieval showed them, which may be outdated.
    pub(super) fn strange(&self, graph: &Graph, base: KeyId, derived: &[KeyId]) -> HashSet<KeyId> {
        let discovered = |id: &KeyId| {
            graph.node(*id).is_some_and(|node| {
                node.state == ValueState::Discovered && node.descriptor.is_some()
            })
        };
        let mut strange: HashSet<KeyId> = derived.iter().copied().filter(discovered).collect();
        let wanted = graph.node(base).and_then(|node| node.last.requested.as_ref());
        if let (false, Some(wanted)) = (strange.is_empty(), wanted) {
            for derived in self.derived_from(graph, base, wanted) {
                graph.id(&derived.key).map(|id| strange.remove(&id));
            }
        }
        strange
    }

    /// Leaves a derived value deleted that is not wanted. Its base implies that it exists, so the
    /// graph records that it does not.
    fn leave_away(&mut self, graph: &mut Graph, base: KeyId, child: Child) {
        if graph.node(child.id).is_some() {
            return;
        }
        let descriptor = self.settings.registry.for_key(graph.key(child.id));
        let node = graph.write(child.id);
        node.base = Some(base);
        node.descriptor = descriptor;
        node.value = Some(child.value);
        node.state = ValueState::Pending;
    }

    fn put_back(&mut self, graph: &mut Graph, frame: &mut Delete) {
        let node = graph.write(frame.id);
        node.state = frame.before.state;
        if !frame.absent {
            node.derived = Arc::clone(&frame.derived);
        }
        if let Kind::Unready { old, .. } = &frame.kind {
            node.value.clone_from(old);
            // The base no longer has this derived value.
            node.uncertain |= node.base.is_some();
        }
        graph.set_available(frame.id, !frame.absent);
        if self.counts(graph, frame.id) {
            self.stop();
        }
        self.mending += 1;
        frame.stage = Stage::PutBack(self.waiting_dependents(graph, frame.id).into_iter());
    }
}

/// The dependents of a value that is deleted, and of derived values that do not exist.
fn leaning(graph: &Graph, id: KeyId) -> Vec<KeyId> {
    let mut sources = graph.sources(id);
    let derived = graph.node(id).map(|node| &*node.derived).unwrap_or_default();
    for derived in derived.iter().copied() {
        if !graph.is_available(derived) {
            sources.extend(graph.sources(derived));
        }
    }
    sources
}
