//! Changes a value: in place where possible, else by deleting and creating it.

use std::sync::Arc;

use super::create::settled;
use super::delete::Kind;
use super::{Abandoned, Applied, Before, Call, Child, Flow, Frame, How, Input, Outcome, Walk};
use crate::descriptor::OperationError;
use crate::erased::ErasedDescriptor;
use crate::graph::Graph;
use crate::hash::HashSet;
use crate::key::KeyId;
use crate::state::{Operation, Origin, ValueState};
use crate::value::{Metadata, Value};

#[derive(Clone)]
pub(super) struct Update {
    pub(super) id: KeyId,
    how: How,
    before: Before,
    equivalent: bool,
    /// Values that are no longer derived from it and were only discovered.
    strange: HashSet<KeyId>,
    /// Values that are no longer derived from it but stay until their replacements exist.
    replaced: Vec<KeyId>,
    stage: Stage,
    outcome: Outcome,
}

#[derive(Clone)]
enum Stage {
    /// Deletes values that are no longer derived. Then come the dependents.
    Obsolete(std::vec::IntoIter<KeyId>, Vec<KeyId>),
    /// Applies later items of the list that make it unnecessary to delete dependents.
    Early(std::vec::IntoIter<KeyId>, Vec<KeyId>),
    /// Deletes dependents whose condition the new value does not meet.
    Lost(std::vec::IntoIter<KeyId>),
    Call,
    /// The last step is under way: the new value waits for a dependency, or the update was abandoned
    /// and the values it deleted are restored.
    End,
    Gained(std::vec::IntoIter<KeyId>),
    Derived(std::vec::IntoIter<Child>),
    /// Deletes values that are no longer derived and whose replacements exist by now.
    Replaced(std::vec::IntoIter<KeyId>),
}

#[derive(Clone)]
pub(super) struct Recreate {
    pub(super) id: KeyId,
    value: Value,
    how: How,
    derived: Arc<[KeyId]>,
    deleted: bool,
}

impl Walk {
    pub(super) fn begin_update(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        new: Value,
        how: How,
    ) -> Applied {
        let before = self.before(graph, id);
        let Some(node) = graph.node(id) else {
            return Applied::Now(Ok(()));
        };
        let (metadata, uncertain) = (node.metadata.clone(), node.uncertain);
        let key = graph.key(id).clone();
        let descriptor = self.descriptor_of(graph, id, how);
        let descriptor = descriptor.map(|id| Arc::clone(self.settings.registry.get(id)));
        self.write_last(graph, id, Operation::Update, Some(Some(new.clone())), how);
        let from_south = how.origin == Origin::South;
        if let (Some(descriptor), false, false) = (&descriptor, self.plans(), from_south)
            && let Err(problem) = descriptor.validate(&key, &new)
        {
            self.invalidate(graph, id, Operation::Update, problem);
            self.record(graph, id, Operation::Update, &before, true, how);
            return Applied::Now(Ok(()));
        }
        let Some(old) = &before.value else {
            return Applied::Now(Ok(()));
        };
        let same = descriptor.as_ref().map_or(*old == new, |one| one.equivalent(&key, old, &new));
        let equivalent = same && !uncertain;
        if let (Some(descriptor), false, false) = (&descriptor, equivalent, from_south) {
            let in_place = descriptor.abilities().update
                && !descriptor.recreate(&key, old, &new, metadata.as_ref());
            let later = match in_place {
                true => self.drops_needed(graph, id, &new),
                false => graph.is_bound_to_unseen(id),
            };
            if later {
                return Applied::Now(Ok(()));
            }
            if !in_place {
                let derived =
                    graph.node(id).map(|node| Arc::clone(&node.derived)).unwrap_or_default();
                let how = How { recreate: true, ..how };
                let frame = Recreate { id, value: new, how, derived, deleted: false };
                return Applied::Later(Frame::Recreate(Box::new(frame)));
            }
        }
        if equivalent && *old == new && self.is_settled(graph, id, &new, descriptor.as_deref(), how)
        {
            return Applied::Now(Ok(()));
        }
        if let Some(conflicts) = &mut self.conflicts {
            conflicts.remember_targets(graph, id);
        }
        let dependents = if graph.has_tests() { graph.sources(id) } else { Vec::new() };
        let node = graph.write(id);
        node.value = Some(new.clone());
        let was_derived = Arc::clone(&node.derived);
        let dependencies = match &descriptor {
            Some(descriptor) if !from_south => descriptor.dependencies(&key, &new),
            _ => Vec::new(),
        };
        graph.set_edges(id, dependencies);
        graph.value_changed(id);
        let children = self.derived_of(graph, id);
        let derived: HashSet<KeyId> = children.iter().map(|child| child.id).collect();
        let obsolete: Vec<KeyId> =
            was_derived.iter().copied().filter(|old| !derived.contains(old)).collect();
        let strange = self.strange(graph, id, &obsolete);
        let (replaced, obsolete): (Vec<_>, Vec<_>) =
            obsolete.into_iter().partition(|old| self.is_replaced(graph, id, *old, &children));
        let stage = Stage::Obsolete(obsolete.into_iter(), dependents);
        let outcome = Ok(());
        let update = Update { id, how, before, equivalent, strange, replaced, stage, outcome };
        Applied::Later(Frame::Update(Box::new(update)))
    }

    /// Whether a derived value would be deleted on which a value that cannot be seen may depend.
    fn drops_needed(&self, graph: &Graph, id: KeyId, new: &Value) -> bool {
        let derived = graph.node(id).map(|node| &*node.derived).unwrap_or_default();
        let mut needed = derived.iter().filter(|one| graph.is_needed_by_unseen(**one)).peekable();
        if needed.peek().is_none() {
            return false;
        }
        let kept = self.derived_from(graph, id, new);
        needed.any(|one| kept.iter().all(|kept| kept.key != *graph.key(*one)))
    }

    /// Whether a value that does not change needs no other operation either.
    fn is_settled(
        &self,
        graph: &Graph,
        id: KeyId,
        value: &Value,
        descriptor: Option<&dyn ErasedDescriptor>,
        how: How,
    ) -> bool {
        let Some(node) = graph.node(id) else {
            return false;
        };
        let derives = || {
            let key = graph.key(id);
            descriptor.is_some_and(|descriptor| !descriptor.derived(key, value).is_empty())
        };
        node.state == settled(how)
            && node.error.is_none()
            && node.derived.is_empty()
            && node.edges.iter().all(|edge| graph.is_met(edge))
            && (node.base.is_some() || !derives())
    }

    pub(super) fn run_update(
        &mut self,
        graph: &mut Graph,
        frame: &mut Update,
        input: Input,
    ) -> Flow {
        match input {
            Input::Start => {}
            Input::Answer(Ok(metadata)) => self.updated(graph, frame, metadata),
            Input::Answer(Err(error)) => return self.update_failed(graph, frame, &error),
            Input::Child(outcome) => match frame.stage {
                Stage::Obsolete(..) | Stage::Lost(_) if outcome.is_err() => {
                    return self.abandon_update(graph, frame);
                }
                Stage::End => return Flow::Return(outcome),
                Stage::Derived(_) | Stage::Replaced(_) => {
                    frame.outcome = frame.outcome.and(outcome)
                }
                _ => {}
            },
        }
        self.update_others(graph, frame)
    }

    fn update_others(&mut self, graph: &mut Graph, frame: &mut Update) -> Flow {
        loop {
            if self.stopping() {
                if matches!(frame.stage, Stage::Early(..)) {
                    return self.abandon_update(graph, frame);
                }
                return Flow::Return(frame.outcome);
            }
            let applied = match &mut frame.stage {
                Stage::Obsolete(list, dependents) => match list.next() {
                    Some(id) => self.apply(graph, id, None, frame.how.derived(frame.id, false)),
                    None => {
                        let dependents = std::mem::take(dependents);
                        let early = self.replacements(graph, &dependents, frame.id);
                        frame.stage = Stage::Early(early.into_iter(), dependents);
                        continue;
                    }
                },
                Stage::Early(list, dependents) => match list.next() {
                    Some(id) if self.branch.contains(&id) => continue,
                    Some(id) => match self.reach(graph, id) {
                        Some(item) => self.apply_item(graph, item),
                        None => continue,
                    },
                    None => {
                        frame.stage = Stage::Lost(std::mem::take(dependents).into_iter());
                        continue;
                    }
                },
                Stage::Lost(list) => match list.next() {
                    Some(id) => self.send_to_wait(graph, id),
                    None => {
                        if let Some(flow) = self.update_itself(graph, frame) {
                            return flow;
                        }
                        continue;
                    }
                },
                Stage::Call | Stage::End => return Flow::Return(frame.outcome),
                Stage::Gained(list) => match list.next() {
                    Some(id) => self.wake(graph, id),
                    None => {
                        frame.stage = Stage::Derived(self.derive(graph, frame.id).into_iter());
                        continue;
                    }
                },
                Stage::Derived(list) => match list.next() {
                    Some(child) => {
                        let how = frame.how.derived(frame.id, child.property);
                        self.apply(graph, child.id, Some(child.value), how)
                    }
                    None if frame.replaced.is_empty() => return Flow::Return(frame.outcome),
                    None => {
                        let replaced = std::mem::take(&mut frame.replaced);
                        self.still_derives(graph, frame.id, &replaced);
                        frame.stage = Stage::Replaced(replaced.into_iter());
                        continue;
                    }
                },
                Stage::Replaced(list) => match list.next() {
                    Some(id) => self.apply(graph, id, None, frame.how.derived(frame.id, false)),
                    None => return Flow::Return(frame.outcome),
                },
            };
            match applied {
                Applied::Now(Ok(())) => {}
                Applied::Now(Err(abandoned)) => match frame.stage {
                    Stage::Obsolete(..) | Stage::Lost(_) => {
                        return self.abandon_update(graph, frame);
                    }
                    Stage::Derived(_) | Stage::Replaced(_) => frame.outcome = Err(abandoned),
                    _ => {}
                },
                Applied::Later(child) => return Flow::Push(child),
            }
        }
    }

    /// The update of the value itself; none once it is done.
    fn update_itself(&mut self, graph: &mut Graph, frame: &mut Update) -> Option<Flow> {
        let from_south = frame.how.origin == Origin::South;
        // A value that is as wanted may still have unmet dependencies: its deletion failed, or the
        // south lost the dependency.
        if !from_south && !graph.is_ready(frame.id) {
            frame.stage = Stage::End;
            let old = frame.before.value.clone();
            let kind = Kind::Unready { old, state: frame.before.state };
            return match self.begin_delete(graph, frame.id, kind, frame.how) {
                Applied::Now(outcome) => Some(Flow::Return(outcome)),
                Applied::Later(child) => Some(Flow::Push(child)),
            };
        }
        let node = graph.node(frame.id)?;
        let descriptor = node.descriptor.filter(|_| !frame.equivalent && !from_south);
        let Some(descriptor) = descriptor else {
            self.updated(graph, frame, None);
            return None;
        };
        let call = Call {
            id: frame.id,
            key: graph.key(frame.id).clone(),
            operation: Operation::Update,
            descriptor,
            old: frame.before.value.clone(),
            new: node.value.clone(),
            metadata: node.metadata.clone(),
            base: node.base.map(|base| graph.key(base).clone()),
            revert: frame.how.revert,
        };
        frame.stage = Stage::Call;
        Some(Flow::Call(call))
    }

    fn updated(&mut self, graph: &mut Graph, frame: &mut Update, metadata: Option<Metadata>) {
        let from_south = frame.how.origin == Origin::South;
        let descriptor = self.descriptor_of(graph, frame.id, frame.how);
        let node = graph.write(frame.id);
        node.state = settled(frame.how);
        node.descriptor = descriptor;
        node.error = None;
        node.uncertain = false;
        let state = node.state;
        if metadata.is_some() && !from_south {
            self.set_metadata(graph, frame.id, metadata);
        }
        let moved = state != frame.before.state
            && !(frame.before.state == ValueState::Discovered && frame.equivalent);
        if !frame.equivalent || moved {
            self.record(
                graph,
                frame.id,
                Operation::Update,
                &frame.before,
                frame.equivalent,
                frame.how,
            );
        }
        // Values that wait for it may have missed its return.
        let look = graph.has_tests() || frame.before.state.is_failure();
        let gained = if look { self.waiting_dependents(graph, frame.id) } else { Vec::new() };
        frame.stage = Stage::Gained(gained.into_iter());
    }

    fn update_failed(&mut self, graph: &mut Graph, frame: &Update, error: &OperationError) -> Flow {
        self.fail(graph, frame.id, Operation::Update, error, frame.how);
        self.record(graph, frame.id, Operation::Update, &frame.before, false, frame.how);
        Flow::Return(if self.counts(graph, frame.id) { Err(Abandoned) } else { Ok(()) })
    }

    /// A value that had to be deleted first was not: the value stays as it was, with its derived
    /// values.
    fn abandon_update(&mut self, graph: &mut Graph, frame: &mut Update) -> Flow {
        let key = graph.key(frame.id).clone();
        let descriptor = graph.node(frame.id).and_then(|node| node.descriptor);
        let dependencies = match (descriptor, &frame.before.value) {
            (Some(id), Some(old)) => self.settings.registry.get(id).dependencies(&key, old),
            _ => Vec::new(),
        };
        let node = graph.write(frame.id);
        node.value = frame.before.value.clone();
        node.state = frame.before.state;
        graph.set_edges(frame.id, dependencies);
        graph.value_changed(frame.id);
        if self.counts(graph, frame.id) {
            self.stop();
        }
        let strange = std::mem::take(&mut frame.strange);
        let whole = self.make_whole(graph, frame.id, strange, frame.how);
        frame.stage = Stage::End;
        Flow::Push(whole)
    }

    pub(super) fn run_recreate(
        &mut self,
        graph: &mut Graph,
        frame: &mut Recreate,
        input: Input,
    ) -> Flow {
        match input {
            Input::Child(Err(abandoned)) => return Flow::Return(Err(abandoned)),
            Input::Child(Ok(())) if frame.deleted => return Flow::Return(Ok(())),
            _ => {}
        }
        if !matches!(input, Input::Child(_)) {
            return match self.begin_delete(graph, frame.id, Kind::Recreate, frame.how) {
                Applied::Now(outcome) => self.run_recreate(graph, frame, Input::Child(outcome)),
                Applied::Later(child) => Flow::Push(child),
            };
        }
        frame.deleted = true;
        match self.begin_create(graph, frame.id, frame.value.clone(), true, frame.how) {
            Applied::Now(outcome) => Flow::Return(outcome),
            Applied::Later(Frame::Create(create)) => {
                let create = create.again(&frame.derived);
                Flow::Push(Frame::Create(create))
            }
            Applied::Later(child) => Flow::Push(child),
        }
    }
}
