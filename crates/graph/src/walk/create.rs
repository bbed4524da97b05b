//! Creates a value: validates it, waits for its dependencies, applies it, then the values that waited
//! for it, then its derived values.

use std::sync::Arc;

use super::delete::Kind;
use super::{Applied, Before, Call, Child, Flow, Frame, How, Input, Outcome, Walk};
use crate::descriptor::Derived;
use crate::graph::{Failure, Graph, Node};
use crate::hash::HashSet;
use crate::key::KeyId;
use crate::state::{Operation, Origin, ValueState};
use crate::value::{Metadata, Value};

#[derive(Clone)]
pub(super) struct Create {
    pub(super) id: KeyId,
    how: How,
    before: Before,
    /// The derived values before a re-creation, in key order.
    recreated: Option<Arc<[KeyId]>>,
    stage: Stage,
    outcome: Outcome,
}

#[derive(Clone)]
enum Stage {
    Apply,
    Dependents(std::vec::IntoIter<KeyId>),
    /// Values that were derived from the previous value and are not derived from the new one.
    Obsolete(std::vec::IntoIter<KeyId>),
    Derived(std::vec::IntoIter<Child>),
}

impl Create {
    /// Creates a value again that was just deleted.
    pub(super) fn again(mut self, recreated: &Arc<[KeyId]>) -> Self {
        self.recreated = Some(Arc::clone(recreated));
        self
    }
}

impl Walk {
    /// `requested` is true for a value of the transaction, false for one that was waiting.
    pub(super) fn begin_create(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        value: Value,
        requested: bool,
        how: How,
    ) -> Applied {
        let before = self.before(graph, id);
        let descriptor = self.descriptor_of(graph, id, how);
        let node = graph.write(id);
        node.base = how.base;
        node.descriptor = descriptor;
        node.value = Some(value.clone());
        node.error = None;
        let wanted = (requested || how.base.is_some()).then(|| Some(value.clone()));
        self.write_last(graph, id, Operation::Create, wanted, how);
        if how.origin == Origin::South {
            graph.set_edges(id, Vec::new());
        } else if let Some(applied) = self.hold_back(graph, id, &value, &before, requested, how) {
            return applied;
        }
        let create =
            Create { id, how, before, recreated: None, stage: Stage::Apply, outcome: Ok(()) };
        Applied::Later(Frame::Create(create))
    }

    /// Keeps back a value that is not valid, has no descriptor, or waits for a dependency.
    fn hold_back(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        value: &Value,
        before: &Before,
        requested: bool,
        how: How,
    ) -> Option<Applied> {
        let descriptor = graph.node(id).and_then(|node| node.descriptor);
        let Some(descriptor) = descriptor.map(|id| self.settings.registry.get(id)) else {
            if how.base.is_some() {
                return None;
            }
            graph.write(id).state = ValueState::Unimplemented;
            if before.state != ValueState::Unimplemented {
                self.record(graph, id, Operation::Create, before, true, how);
            }
            return Some(Applied::Now(Ok(())));
        };
        if !self.plans()
            && let Err(problem) = descriptor.validate(graph.key(id), value)
        {
            graph.set_edges(id, Vec::new());
            self.drop_derived(graph, id);
            self.invalidate(graph, id, Operation::Create, problem);
            self.record(graph, id, Operation::Create, before, true, how);
            return Some(Applied::Now(Ok(())));
        }
        // A node that waited with this very value has its edges already.
        let waited = before.state == ValueState::Pending && before.value.as_ref() == Some(value);
        if !waited {
            if let Some(conflicts) = &mut self.conflicts {
                conflicts.remember_targets(graph, id);
            }
            let dependencies = descriptor.dependencies(graph.key(id), value);
            graph.set_edges(id, dependencies);
        }
        if let Some(unseen) = graph.unseen(id).cloned() {
            return Some(self.leave_unseen(graph, id, unseen, before, how));
        }
        // A value that waited was checked before it was woken.
        if (waited && !requested) || graph.is_ready(id) {
            return None;
        }
        if graph.node(id).is_some_and(Node::stands) {
            let kind = Kind::Unready { old: before.value.clone(), state: before.state };
            return Some(self.begin_delete(graph, id, kind, how));
        }
        self.drop_derived(graph, id);
        graph.write(id).state = ValueState::Pending;
        self.record(graph, id, Operation::Create, before, true, how);
        Some(Applied::Now(Ok(())))
    }

    /// Leaves a value alone of which it is not known whether it exists.
    fn leave_unseen(
        &mut self,
        graph: &mut Graph,
        id: KeyId,
        unseen: Arc<Failure>,
        before: &Before,
        how: How,
    ) -> Applied {
        let node = graph.write(id);
        node.state = ValueState::Pending;
        node.uncertain = true;
        node.error = Some(unseen);
        if before.state != ValueState::Pending || before.value != graph.write(id).value {
            self.record(graph, id, Operation::Create, before, true, how);
        }
        Applied::Now(Ok(()))
    }

    /// Removes the derived values of a value that does not exist.
    pub(super) fn drop_derived(&mut self, graph: &mut Graph, id: KeyId) {
        if graph.unseen(id).is_some() {
            return;
        }
        let derived = graph.node(id).map(|node| Arc::clone(&node.derived)).unwrap_or_default();
        for derived in derived.iter().copied() {
            if !graph.is_available(derived) {
                graph.remove(derived);
            }
        }
        if !derived.is_empty() {
            graph.write(id).derived = Arc::default();
        }
    }

    pub(super) fn run_create(
        &mut self,
        graph: &mut Graph,
        frame: &mut Create,
        input: Input,
    ) -> Flow {
        match input {
            Input::Start => match self.create_call(graph, frame) {
                Some(Ok(call)) => return Flow::Call(call),
                Some(Err(error)) => return self.create_failed(graph, frame, &error),
                None => self.created(graph, frame, None),
            },
            Input::Answer(Ok(metadata)) => self.created(graph, frame, metadata),
            Input::Answer(Err(error)) => return self.create_failed(graph, frame, &error),
            Input::Child(outcome) => {
                if matches!(frame.stage, Stage::Derived(_)) {
                    frame.outcome = frame.outcome.and(outcome);
                }
            }
        }
        self.create_others(graph, frame)
    }

    fn create_call(
        &self,
        graph: &Graph,
        frame: &Create,
    ) -> Option<Result<Call, crate::descriptor::OperationError>> {
        let node = graph.node(frame.id)?;
        let descriptor = node.descriptor.filter(|_| frame.how.origin != Origin::South)?;
        if !self.settings.registry.get(descriptor).abilities().create {
            let error = crate::descriptor::OperationError::permanent("create is not implemented");
            return (!self.plans()).then_some(Err(error));
        }
        Some(Ok(Call {
            id: frame.id,
            key: graph.key(frame.id).clone(),
            operation: Operation::Create,
            descriptor,
            old: None,
            new: node.value.clone(),
            metadata: None,
            base: node.base.map(|base| graph.key(base).clone()),
            revert: frame.how.revert,
        }))
    }

    fn create_failed(
        &mut self,
        graph: &mut Graph,
        frame: &Create,
        error: &crate::descriptor::OperationError,
    ) -> Flow {
        self.fail(graph, frame.id, Operation::Create, error, frame.how);
        self.record(graph, frame.id, Operation::Create, &frame.before, false, frame.how);
        Flow::Return(if self.counts(graph, frame.id) { Err(super::Abandoned) } else { Ok(()) })
    }

    fn created(&mut self, graph: &mut Graph, frame: &mut Create, metadata: Option<Metadata>) {
        let node = graph.write(frame.id);
        node.state = settled(frame.how);
        node.error = None;
        node.uncertain = false;
        graph.set_available(frame.id, true);
        if frame.how.origin != Origin::South {
            self.set_metadata(graph, frame.id, metadata);
        }
        self.record(graph, frame.id, Operation::Create, &frame.before, false, frame.how);
        let dependents = self.waiting_dependents(graph, frame.id);
        self.log.reserve(dependents.len());
        frame.stage = Stage::Dependents(dependents.into_iter());
    }

    fn create_others(&mut self, graph: &mut Graph, frame: &mut Create) -> Flow {
        loop {
            if self.stopping() {
                return Flow::Return(frame.outcome);
            }
            let applied = match &mut frame.stage {
                Stage::Apply => return Flow::Return(frame.outcome),
                Stage::Dependents(list) => match list.next() {
                    Some(dependent) => self.wake(graph, dependent),
                    None => {
                        frame.stage = Stage::Obsolete(self.obsolete(graph, frame.id).into_iter());
                        continue;
                    }
                },
                Stage::Obsolete(list) => match list.next() {
                    Some(id) => self.apply(graph, id, None, frame.how.derived(frame.id, false)),
                    None => {
                        frame.stage = Stage::Derived(self.derive(graph, frame.id).into_iter());
                        continue;
                    }
                },
                Stage::Derived(list) => match list.next() {
                    Some(child) => {
                        let recreate = frame.how.recreate
                            && frame
                                .recreated
                                .as_ref()
                                .is_some_and(|old| is_in(graph, old, child.id));
                        let how = How { recreate, ..frame.how.derived(frame.id, child.property) };
                        self.apply(graph, child.id, Some(child.value), how)
                    }
                    None => return Flow::Return(frame.outcome),
                },
            };
            match applied {
                Applied::Now(outcome) => {
                    if matches!(frame.stage, Stage::Derived(_)) {
                        frame.outcome = frame.outcome.and(outcome);
                    }
                }
                Applied::Later(child) => return Flow::Push(child),
            }
        }
    }

    /// Values that do not exist and have an edge to this one, in key order.
    pub(super) fn waiting_dependents(&self, graph: &Graph, id: KeyId) -> Vec<KeyId> {
        if !graph.has_sources(id) {
            return Vec::new();
        }
        let mut dependents = graph.sources(id);
        dependents.retain(|dependent| self.is_wanted(graph, *dependent));
        dependents
    }

    /// Whether a value that does not exist is wanted.
    fn is_wanted(&self, graph: &Graph, id: KeyId) -> bool {
        let Some(node) = graph.node(id) else {
            return false;
        };
        if node.available || matches!(node.state, ValueState::Removed | ValueState::Invalid) {
            return false;
        }
        match node.base {
            None => node.last.requested.is_some(),
            // A value that failed to be deleted may no longer be derived; one that waits always is.
            Some(base) => {
                graph.is_available(base)
                    && (node.state == ValueState::Pending || graph.derives(base, id))
            }
        }
    }

    /// Applies a value that waited, if its dependencies are met now.
    pub(super) fn wake(&mut self, graph: &mut Graph, id: KeyId) -> Applied {
        if self.branch.contains(&id) || !self.is_wanted(graph, id) {
            return Applied::Now(Ok(()));
        }
        match self.wake_early(graph, id) {
            super::early::Wake::Leave => return Applied::Now(Ok(())),
            super::early::Wake::Instead(item) => return self.apply_item(graph, item),
            super::early::Wake::Go => {}
        }
        let Some(node) = graph.node(id) else {
            return Applied::Now(Ok(()));
        };
        let value = match node.base {
            None => node.last.requested.clone(),
            Some(_) => node.value.clone(),
        };
        let how = self.dependent(graph, id);
        if !graph.is_ready(id) || self.failed_already(graph, id) {
            return Applied::Now(Ok(()));
        }
        match value {
            Some(value) => self.begin_create(graph, id, value, false, how),
            None => Applied::Now(Ok(())),
        }
    }

    /// Restores a dependent that failed to be deleted: it may have lost its derived values and its
    /// own dependents, or be gone after all.
    pub(super) fn mend_dependent(&mut self, graph: &mut Graph, id: KeyId) -> Option<Applied> {
        let node = graph.node(id)?;
        let value = node.last.requested.clone()?;
        let how = self.dependent(graph, id);
        if node.available {
            let whole = self.make_whole(graph, id, HashSet::default(), how);
            return Some(Applied::Later(whole));
        }
        let given_up = self.failed_already(graph, id);
        if given_up || !self.is_wanted(graph, id) || !graph.is_ready(id) {
            return None;
        }
        Some(self.begin_create(graph, id, value, false, how))
    }

    /// How a value is applied that is not of the transaction but depends on one that is.
    pub(super) fn dependent(&self, graph: &Graph, id: KeyId) -> How {
        let how = How::base(Origin::North, self.reverting());
        match graph.node(id).and_then(|node| Some((node.base?, node.descriptor.is_none()))) {
            Some((base, property)) => how.derived(base, property),
            None => how,
        }
    }

    pub(super) fn reverting(&self) -> bool {
        self.phase == super::Phase::Revert
    }

    /// Values that are no longer derived from this one.
    fn obsolete(&mut self, graph: &mut Graph, id: KeyId) -> Vec<KeyId> {
        let old = graph.node(id).map(|node| Arc::clone(&node.derived)).unwrap_or_default();
        if old.is_empty() {
            return Vec::new();
        }
        let new: HashSet<KeyId> = self.derived_of(graph, id).iter().map(|child| child.id).collect();
        old.iter().copied().filter(|id| !new.contains(id)).collect()
    }

    /// Computes the derived values, in key order, and records them in the node.
    pub(super) fn derive(&mut self, graph: &mut Graph, id: KeyId) -> Vec<Child> {
        let list = self.derived_of(graph, id);
        if list.is_empty() && graph.node(id).is_none_or(|node| node.derived.is_empty()) {
            return list;
        }
        self.log.reserve(list.len());
        let ids: Arc<[KeyId]> = list.iter().map(|child| child.id).collect();
        if graph.node(id).is_some_and(|node| node.derived != ids) {
            graph.write(id).derived = ids;
        }
        list
    }

    /// Whether a key that follows from a base is another value, or becomes one in this transaction.
    fn is_taken(&self, graph: &Graph, id: KeyId, base: KeyId) -> bool {
        let free = |node: &Node| {
            let deleted = node.state == ValueState::Removed && node.value.is_none();
            node.base == Some(base) || node.base.is_none() && deleted
        };
        let coming = self.list.place(id).and_then(|place| self.list.items().get(place));
        coming.is_some_and(|item| item.value.is_some())
            || graph.node(id).is_some_and(|node| !free(node))
    }

    /// The derived values of a value, in key order.
    pub(super) fn derived_of(&mut self, graph: &mut Graph, id: KeyId) -> Vec<Child> {
        let Some(node) = graph.node(id).filter(|node| node.base.is_none()) else {
            return Vec::new();
        };
        let (Some(descriptor), Some(base_value)) = (node.descriptor, &node.value) else {
            return Vec::new();
        };
        if let Some(planned) = self.derivations.of(graph, id, base_value) {
            return planned;
        }
        let mut derived = self.settings.registry.get(descriptor).derived(graph.key(id), base_value);
        if derived.is_empty() {
            return Vec::new();
        }
        let (key, base_value) = (graph.key(id).clone(), base_value.clone());
        derived.sort_by(|a, b| a.key.cmp(&b.key));
        derived.dedup_by(|a, b| a.key == b.key);
        let count = derived.len();
        let mut list = Vec::with_capacity(count);
        let ids = graph.intern_all(derived.iter().map(|one| &one.key));
        for (Derived { key: derived_key, value, property }, derived_id) in
            derived.into_iter().zip(ids)
        {
            if self.is_taken(graph, derived_id, id) {
                self.warnings
                    .push(format!("{derived_key}, derived from {key}, is a value of its own"));
                graph.claim(&derived_key, &key);
                continue;
            }
            let reader = self.settings.registry.for_key(&derived_key).filter(|_| !property);
            let read = reader.and_then(|reader| self.settings.registry.get(reader).read(&value));
            list.push(Child { id: derived_id, value: read.unwrap_or(value), property });
        }
        // A list with a warning is computed again, so that the record has the warning too.
        if list.len() == count
            && let (true, Some(planned)) = (self.plans(), Arc::get_mut(&mut self.derivations))
        {
            planned.0.insert(id, (base_value, list.clone()));
        }
        list
    }
}

/// Whether a list in key order has a value.
fn is_in(graph: &Graph, list: &[KeyId], id: KeyId) -> bool {
    let key = graph.key(id);
    list.binary_search_by(|other| graph.key(*other).cmp(key)).is_ok()
}

/// The state of a value that was applied.
pub(super) fn settled(how: How) -> ValueState {
    match how.origin {
        Origin::North => ValueState::Configured,
        Origin::South | Origin::Unknown => ValueState::Obtained,
    }
}
