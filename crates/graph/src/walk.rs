//! The walk: computes the operations for wanted values, in dependency order.
//!
//! The same walk plans and executes. It is a state machine without input or output: [`Walk::step`]
//! runs until it needs an operation in the south, returns a [`Call`], and goes on when it gets the
//! result. A plan answers every call with success and rolls the graph back afterwards; an execution
//! calls the descriptor.
//!
//! Applying a value may apply others: creating one creates the values that waited for it, deleting
//! one first deletes its dependents, and both apply to its derived values too. A stack of frames
//! takes the place of recursion, so that a chain of any length fits.
//!
//! Always holds: a value is created after everything it depends on and deleted before it; a key is
//! never applied while it is already being applied further up the stack.
//!
//! Enter at [`Walk::new`]; [`items`] is the list of values to apply, [`create`], [`update`] and
//! [`delete`] hold the three flows, [`early`] the cases where a later item of the list is applied
//! before its turn, [`replace`] the search for such items, [`failure`] the handling of failures.

mod create;
mod delete;
mod early;
mod failure;
mod items;
mod log;
mod replace;
mod update;

use std::sync::Arc;

use self::items::Previous;
pub(crate) use self::items::{Item, List};
pub(crate) use self::log::{Conflicts, OperationLog};
use crate::descriptor::OperationError;
use crate::graph::{Failure, Graph};
use crate::hash::{HashMap, HashSet};
use crate::journal::PlannedPart;
use crate::key::{Key, KeyId};
use crate::metadata::MetadataIndexes;
use crate::record::{Flags, KeyError, OperationRecord};
use crate::registry::{DescriptorId, Registry};
use crate::state::{Operation, Origin, ValueState};
use crate::transaction::{Retry, TransactionType};
use crate::value::{Metadata, Value};

/// An operation to run in the south.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) id: KeyId,
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) descriptor: DescriptorId,
    pub(crate) old: Option<Value>,
    pub(crate) new: Option<Value>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) base: Option<Key>,
    pub(crate) revert: bool,
}

/// The result of a call.
pub(crate) type Answer = Result<Option<Metadata>, OperationError>;

/// The next step of a walk.
#[derive(Debug)]
pub(crate) enum Step {
    /// An operation to run; its result is the argument of the next step.
    Call(Call),
    /// A retrieval of the values that failed, before the transaction is reverted.
    Refresh(HashSet<KeyId>),
    /// The walk has ended.
    Done,
}

/// The walk's share of its transaction.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) seq: u64,
    pub(crate) kind: TransactionType,
    pub(crate) retry: Option<Retry>,
    /// Whether values keep their own retry options if the transaction has none.
    pub(crate) keeps_retry: bool,
    pub(crate) reverts: bool,
    pub(crate) attempt: u32,
    /// Whether every value is applied again, changed or not.
    pub(crate) resync: bool,
    /// Whether failed operations are repeated: the repetition of a revert is still a revert.
    pub(crate) repeats: bool,
    pub(crate) registry: Arc<Registry>,
    /// Whether the journal records which derived values are about to change.
    pub(crate) journalled: bool,
    /// The metadata of values; none while planning.
    pub(crate) indexes: Option<MetadataIndexes>,
}

/// How a value is being applied.
#[derive(Debug, Clone, Copy)]
struct How {
    base: Option<KeyId>,
    origin: Origin,
    revert: bool,
    recreate: bool,
    /// A derived value that needs no operation.
    property: bool,
}

/// A value derived from another.
#[derive(Debug, Clone)]
struct Child {
    id: KeyId,
    value: Value,
    property: bool,
}

/// The derived values that a plan computed, with the value of their base, for the execution.
#[derive(Debug, Default)]
pub(crate) struct Derivations(HashMap<KeyId, (Value, Vec<Child>)>);

impl Derivations {
    /// The derived values of a base, unless its value differs from the planned one or one of their
    /// keys has another owner by now.
    fn of(&self, graph: &Graph, base: KeyId, value: &Value) -> Option<Vec<Child>> {
        let (planned, list) = self.0.get(&base)?;
        let own = |child: &Child| graph.node(child.id).is_none_or(|node| node.base == Some(base));
        (planned == value && list.iter().all(own)).then(|| list.clone())
    }
}

impl How {
    /// For a base value.
    fn base(origin: Origin, revert: bool) -> Self {
        Self { base: None, origin, revert, recreate: false, property: false }
    }

    /// For a value derived from `base`.
    fn derived(self, base: KeyId, property: bool) -> Self {
        Self { base: Some(base), recreate: false, property, ..self }
    }
}

/// A value before an operation.
#[derive(Debug, Clone, Default)]
struct Before {
    state: ValueState,
    value: Option<Value>,
    error: Option<Arc<Failure>>,
}

/// Whether a failure concerns the frame that asked for the value.
type Outcome = Result<(), Abandoned>;

#[derive(Debug, Clone, Copy)]
struct Abandoned;

/// The result of applying a value: an outcome, or more work.
enum Applied {
    Now(Outcome),
    Later(Frame),
}

#[derive(Clone)]
enum Frame {
    Create(create::Create),
    // Most frames create values; the others are larger and stay in one place.
    Update(Box<update::Update>),
    Delete(Box<delete::Delete>),
    Recreate(Box<update::Recreate>),
}

/// Why a frame is running again.
#[derive(Clone)]
enum Input {
    Start,
    Child(Outcome),
    Answer(Answer),
}

/// How a frame continues.
enum Flow {
    /// Runs again when this other frame is done.
    Push(Frame),
    /// Runs again when the call is answered.
    Call(Call),
    Return(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Forward,
    /// The list is done; values that failed to be deleted get back what was deleted for them.
    Mend,
    Stopped,
    Revert,
}

/// A walk in progress.
#[derive(Clone)]
pub(crate) struct Walk {
    settings: Settings,
    list: Arc<List>,
    /// The items of the list that were reached.
    done: Vec<bool>,
    /// The number of items that remain: none once the transaction has stopped.
    undone: usize,
    next: usize,
    stack: Vec<(Frame, Option<KeyId>)>,
    branch: HashSet<KeyId>,
    input: Input,
    reached: Vec<Previous>,
    phase: Phase,
    /// Values to restore before the transaction is reverted.
    mend: Vec<KeyId>,
    log: OperationLog,
    conflicts: Option<Conflicts>,
    parts: Vec<PlannedPart>,
    errors: Vec<KeyError>,
    failed: Vec<(KeyId, u32)>,
    /// Bases from which a deleted key follows too.
    claimants: Vec<KeyId>,
    warnings: Vec<String>,
    /// The number of frames that restore values they deleted: they are not interrupted.
    mending: usize,
    /// The values that the list brings, once they were asked for.
    offers: Option<replace::Offers>,
    /// Shared once it is complete.
    derivations: Arc<Derivations>,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) operations: Vec<OperationRecord>,
    pub(crate) conflicts: Option<Conflicts>,
    /// The operations of a plan on derived values, for the journal.
    pub(crate) parts: Vec<PlannedPart>,
    pub(crate) errors: Vec<KeyError>,
    /// Base values that ended in failure, each with the number of its next retry.
    pub(crate) failed: Vec<(KeyId, u32)>,
    pub(crate) reverted: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) derivations: Arc<Derivations>,
}

impl Walk {
    /// A walk over a list of items.
    pub(crate) fn new(settings: Settings, list: Arc<List>) -> Self {
        let room = list.len();
        Self {
            settings,
            list,
            done: vec![false; room],
            undone: room,
            next: 0,
            stack: Vec::new(),
            branch: HashSet::default(),
            input: Input::Start,
            reached: Vec::new(),
            phase: Phase::Forward,
            mend: Vec::new(),
            log: OperationLog::with_room(room),
            conflicts: None,
            parts: Vec::new(),
            errors: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
            claimants: Vec::new(),
            mending: 0,
            offers: None,
            derivations: Arc::default(),
        }
    }

    /// An execution takes the derived values from its plan instead of computing them again.
    pub(crate) fn with_derivations(mut self, derivations: Arc<Derivations>) -> Self {
        self.derivations = derivations;
        self
    }

    /// Also computes which calls must stay in order; an execution only records what
    /// [`Self::foresee`] needs for that.
    pub(crate) fn with_conflicts(mut self) -> Self {
        self.conflicts = Some(Conflicts::default());
        self
    }

    /// The calls that remain if every call after this answer succeeds. None if the answer makes the
    /// transaction revert, which cannot be predicted.
    pub(crate) fn foresee(&self, graph: &mut Graph, answer: Answer) -> Option<Conflicts> {
        let mut walk = self.clone();
        walk.settings.indexes = None;
        walk.conflicts = self.conflicts.as_ref().map(Conflicts::continued);
        graph.begin_trial();
        let mut answer = Some(answer);
        while let Step::Call(_) = walk.step(graph, answer.take()) {
            if walk.is_stopping() {
                break;
            }
            answer = Some(Ok(None));
        }
        graph.end_trial();
        walk.conflicts.take().filter(|_| !walk.is_stopping())
    }

    /// Whether a failure has already decided that the transaction will be reverted.
    pub(crate) fn is_stopping(&self) -> bool {
        self.phase != Phase::Forward
    }

    fn plans(&self) -> bool {
        self.settings.indexes.is_none()
    }

    /// Runs until a call or a retrieval is needed. `answer` is the result of the last call, if any.
    pub(crate) fn step(&mut self, graph: &mut Graph, answer: Option<Answer>) -> Step {
        if let Some(answer) = answer {
            self.input = Input::Answer(answer);
        }
        loop {
            let Some((mut frame, owner)) = self.stack.pop() else {
                match self.next_item(graph) {
                    Some(Ok(applied)) => self.begin(applied),
                    Some(Err(step)) => return step,
                    None => return Step::Done,
                }
                continue;
            };
            let input = std::mem::replace(&mut self.input, Input::Start);
            let flow = match &mut frame {
                Frame::Create(frame) => self.run_create(graph, frame, input),
                Frame::Update(frame) => self.run_update(graph, frame, input),
                Frame::Delete(frame) => self.run_delete(graph, frame, input),
                Frame::Recreate(frame) => self.run_recreate(graph, frame, input),
            };
            match flow {
                Flow::Push(child) => {
                    self.stack.push((frame, owner));
                    self.begin(Applied::Later(child));
                }
                Flow::Call(call) => {
                    self.stack.push((frame, owner));
                    self.foreseen(graph, &call);
                    return Step::Call(call);
                }
                Flow::Return(outcome) => {
                    if let Some(id) = owner {
                        self.branch.remove(&id);
                    }
                    self.input = Input::Child(outcome);
                }
            }
        }
    }

    /// Records a call that is about to be made, for the journal and for parallel execution.
    fn foreseen(&mut self, graph: &Graph, call: &Call) {
        let plans = self.plans();
        match &mut self.conflicts {
            Some(conflicts) if plans => conflicts.add(graph, call),
            Some(conflicts) => conflicts.forget(call.id),
            None => {}
        }
        if let (true, true, Some(base)) = (plans, self.settings.journalled, &call.base) {
            let (key, base, operation) = (call.key.clone(), base.clone(), call.operation);
            let value = call.old.clone().or_else(|| call.new.clone());
            self.parts.push(PlannedPart { key, base, operation, value });
        }
    }

    fn begin(&mut self, applied: Applied) {
        match applied {
            Applied::Now(outcome) => self.input = Input::Child(outcome),
            Applied::Later(frame) => {
                let id = frame.id();
                let owner = self.branch.insert(id).then_some(id);
                self.stack.push((frame, owner));
                self.input = Input::Start;
            }
        }
    }

    /// Applies a value; none deletes it.
    fn apply(&mut self, graph: &mut Graph, id: KeyId, new: Option<Value>, how: How) -> Applied {
        if self.branch.contains(&id) {
            return Applied::Now(Ok(()));
        }
        if self.failed_already(graph, id) {
            return Applied::Now(self.fail_again(graph, id, new, how));
        }
        if self.settings.resync && self.waits_on(graph, id, new.as_ref(), how) {
            return Applied::Now(Ok(()));
        }
        match new {
            None => self.begin_delete(graph, id, delete::Kind::Requested, how),
            Some(new) if graph.is_available(id) => self.begin_update(graph, id, new, how),
            Some(new) => self.begin_create(graph, id, new, true, how),
        }
    }

    /// Whether a value waits with this very value, and goes on waiting: a resync has nothing to
    /// record about it.
    fn waits_on(&self, graph: &mut Graph, id: KeyId, new: Option<&Value>, how: How) -> bool {
        let waits = graph.node(id).is_some_and(|node| {
            node.state == ValueState::Pending
                && !node.available
                && !node.uncertain
                && new.is_some()
                && node.value.as_ref() == new
                && (how.base.is_some()
                    || node.last.requested.as_ref() == new
                        && (self.settings.retry.is_none()
                            || node.last.retry == self.settings.retry))
        });
        waits && !graph.is_ready(id)
    }

    /// The descriptor that handles a value.
    fn descriptor_of(&self, graph: &Graph, id: KeyId, how: How) -> Option<DescriptorId> {
        if how.property {
            return None;
        }
        // The descriptor of a key does not change once a value of it is known.
        let known = graph.node(id).and_then(|node| node.descriptor);
        known.or_else(|| self.settings.registry.for_key(graph.key(id)))
    }

    fn before(&self, graph: &Graph, id: KeyId) -> Before {
        graph.node(id).map_or_else(Before::default, |node| Before {
            state: node.state,
            value: node.value.clone(),
            error: node.error.clone(),
        })
    }

    /// Records in the node that the value is being applied, and for which transaction.
    fn write_last(
        &self,
        graph: &mut Graph,
        id: KeyId,
        operation: Operation,
        requested: Option<Option<Value>>,
        how: How,
    ) {
        if self.plans() {
            // A plan needs only the wanted value.
            let Some(requested) = requested else { return };
            let requested = requested.filter(|_| how.origin == Origin::North);
            if graph.node(id).is_none_or(|node| node.last.requested != requested) {
                graph.write(id).last.requested = requested;
            }
            return;
        }
        let base_retry =
            how.base.and_then(|base| graph.node(base)).and_then(|base| base.last.retry);
        let own = how.base.is_none() && requested.is_some() && !how.revert;
        let node = graph.write(id);
        node.last.transaction = self.settings.seq;
        node.last.operation = operation;
        node.last.revert = how.revert;
        if let Some(requested) = requested {
            node.last.requested = if how.origin == Origin::North { requested } else { None };
        }
        if how.base.is_some() {
            node.last.retry = base_retry;
        } else if own && self.settings.kind == TransactionType::NBTransaction {
            let kept = node.last.retry.filter(|_| self.settings.keeps_retry);
            node.last.retry = self.settings.retry.or(kept);
        }
    }

    fn set_metadata(&self, graph: &mut Graph, id: KeyId, metadata: Option<Metadata>) {
        let Some(node) = graph.node(id) else { return };
        if node.base.is_some() || node.metadata == metadata {
            return;
        }
        if let (Some(indexes), Some(descriptor)) = (&self.settings.indexes, node.descriptor) {
            let descriptor = self.settings.registry.get(descriptor);
            if let Some(index) = descriptor.metadata_index() {
                let label = descriptor.label(graph.key(id));
                match &metadata {
                    Some(metadata) => indexes.put(index, label, metadata.clone()),
                    None => indexes.remove(index, &label),
                }
            }
        }
        graph.write(id).metadata = metadata;
    }

    fn record(
        &mut self,
        graph: &Graph,
        id: KeyId,
        operation: Operation,
        before: &Before,
        noop: bool,
        how: How,
    ) {
        let Some(node) = graph.node(id) else { return };
        let derived = node.base.is_some();
        let text = |error: &Arc<Failure>| Arc::from(error.message.as_str());
        let record = OperationRecord {
            operation,
            key: graph.key(id).clone(),
            prev_state: before.state,
            new_state: node.state,
            prev_value: before.value.clone(),
            new_value: if operation == Operation::Delete { None } else { node.value.clone() },
            prev_error: before.error.as_ref().map(text),
            new_error: node
                .error
                .as_ref()
                .filter(|_| node.state.is_failure() || node.state == ValueState::Invalid)
                .map(text),
            flags: Flags {
                derived,
                property: derived && node.descriptor.is_none(),
                noop,
                revert: how.revert,
                retry: self.settings.kind == TransactionType::RetryFailedOps,
                recreate: how.recreate,
            },
        };
        self.log.push(id, record);
    }

    /// Ends the walk.
    pub(crate) fn finish(self) -> Walked {
        Walked {
            operations: self.log.finish(),
            conflicts: self.conflicts,
            parts: self.parts,
            errors: self.errors,
            failed: self.failed,
            reverted: self.phase == Phase::Revert,
            warnings: self.warnings,
            derivations: self.derivations,
        }
    }
}

impl Frame {
    fn id(&self) -> KeyId {
        match self {
            Self::Create(frame) => frame.id,
            Self::Update(frame) => frame.id,
            Self::Delete(frame) => frame.id,
            Self::Recreate(frame) => frame.id,
        }
    }
}
