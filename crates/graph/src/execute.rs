//! Executes the calls of a walk, several at once if allowed.
//!
//! Operations run in the order of the walk. With more than one at once, calls of the plan that do not
//! depend on unfinished ones are started ahead while the walk waits for a slow one; when the walk
//! gets there, the result is already known. So the walk, and with it the outcome and the record, is
//! the same as in sequence. A call that completes at once never runs beside another.
//!
//! When a call fails, the walk leaves the plan, so the rest is planned again. Calls that ran ahead
//! and are not part of the new plan are undone before the walk goes on, and listed in the record.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::descriptor::{Context, OperationError, SharedContext};
use crate::engine::Error;
use crate::hash::{HashMap, HashSet};
use crate::journal::{self, Entry};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::metadata::MetadataIndexes;
use crate::registry::Registry;
use crate::state::Operation;
use crate::time::{Clock, later};
use crate::value::Metadata;
use crate::walk::{Answer, Call, Conflicts};

/// The context that the operations of a transaction share.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) seq: u64,
    pub(crate) registry: Arc<Registry>,
    pub(crate) indexes: MetadataIndexes,
    pub(crate) clock: Arc<dyn Clock>,
    /// The context of operations without a deadline.
    shared: Arc<SharedContext>,
    timeout: Option<Duration>,
}

impl Surroundings {
    pub(crate) fn new(
        shared: SharedContext,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        timeout: Option<Duration>,
    ) -> Self {
        let (seq, indexes) = (shared.transaction, shared.indexes.clone());
        Self { seq, registry, indexes, clock, shared: Arc::new(shared), timeout }
    }

    pub(crate) fn context(&self, base: Option<Key>, revert: bool) -> Context {
        let shared = match self.timeout {
            None => Arc::clone(&self.shared),
            Some(timeout) => Arc::new(SharedContext {
                deadline: Some(later(self.clock.now(), timeout)),
                cancellation: self.shared.cancellation.child_token(),
                ..SharedContext::clone(&self.shared)
            }),
        };
        Context { shared, base, revert }
    }

    /// Runs a job until it ends, panics, or reaches its deadline.
    pub(crate) async fn run<T>(
        &self,
        context: Context,
        job: crate::erased::Job<T>,
    ) -> Result<T, OperationError> {
        run(Arc::clone(&self.clock), context, job).await
    }

    fn start(&self, call: Call) -> Running {
        let (context, job) = self.prepare(call);
        let clock = Arc::clone(&self.clock);
        Box::pin(async move { run(clock, context, job?).await })
    }

    /// The context and the job of a call; the job has not begun.
    fn prepare(&self, call: Call) -> (Context, Result<Prepared, OperationError>) {
        let context = self.context(call.base.clone(), call.revert);
        let descriptor = Arc::clone(self.registry.get(call.descriptor));
        let missing = || OperationError::permanent("the operation has no value");
        let job = match (call.operation, call.old, call.new) {
            (Operation::Create, _, Some(new)) => {
                Ok(descriptor.create(context.clone(), call.key, new))
            }
            (Operation::Update, Some(old), Some(new)) => {
                Ok(descriptor.update(context.clone(), call.key, old, new, call.metadata))
            }
            (Operation::Delete, Some(old), _) => {
                Ok(descriptor.delete(context.clone(), call.key, old, call.metadata))
            }
            _ => Err(missing()),
        };
        (context, job)
    }
}

async fn run<T>(
    clock: Arc<dyn Clock>,
    context: Context,
    job: crate::erased::Job<T>,
) -> Result<T, OperationError> {
    let job = AssertUnwindSafe(job).catch_unwind();
    let result = match context.deadline() {
        None => job.await,
        Some(deadline) => tokio::select! {
            result = job => result,
            () = clock.sleep_until(deadline) => {
                context.cancellation().cancel();
                return Err(OperationError::new("timed out; its effect is unknown"));
            }
        },
    };
    result.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> OperationError {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    OperationError::permanent(format!("panicked: {}", text.unwrap_or_default()))
}

/// Polls a job once, without a deadline: most operations that need no waiting end here.
async fn try_at_once(job: &mut Prepared) -> Option<Answer> {
    std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(context)));
        Poll::Ready(match polled {
            Ok(Poll::Ready(answer)) => Some(answer),
            Ok(Poll::Pending) => None,
            Err(panic) => Some(Err(panicked(&*panic))),
        })
    })
    .await
}

/// A call under way, with its ticket.
type Ticketed = Pin<Box<dyn Future<Output = (u64, Answer)> + Send>>;

/// A call that has not begun.
type Prepared = crate::erased::Job<Option<Metadata>>;

type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A call that ran ahead and that the walk never reached.
pub(crate) struct Stray {
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

/// Makes calls, some of them ahead of time.
pub(crate) struct Executor<'a> {
    surroundings: Surroundings,
    journal: Option<&'a mut Ledger>,
    /// The derived values whose change the journal records.
    parts: HashSet<Key>,
    /// Whether the journal records that the plan was left.
    astray: bool,
    limit: usize,
    plan: Plan,
    running: FuturesUnordered<Ticketed>,
    /// The calls under way, by ticket.
    tickets: BTreeMap<u64, Ticket>,
    next_ticket: u64,
    /// The position in the plan of the last call.
    last: Option<usize>,
}

enum Ticket {
    /// A call of the plan.
    Planned(usize),
    /// A call that is no longer part of a plan.
    Stray(Call),
}

/// The planned calls, and the progress of each.
#[derive(Default)]
struct Plan {
    calls: Vec<Planned>,
    by_call: HashMap<(Key, Operation), VecDeque<usize>>,
    ready: BTreeSet<usize>,
    answers: BTreeMap<usize, Answer>,
}

struct Planned {
    call: Call,
    waits_for: usize,
    followers: Vec<usize>,
    progress: Progress,
    /// Whether its arguments are known before the walk gets there.
    foreseeable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    Running,
    Answered,
    Used,
}

impl Plan {
    fn new(conflicts: Option<Conflicts>) -> Self {
        let calls = conflicts.map(|conflicts| conflicts.calls).unwrap_or_default();
        let mut plan = Self { calls: Vec::with_capacity(calls.len()), ..Self::default() };
        let mut touched = HashSet::default();
        for (index, (call, before)) in calls.into_iter().enumerate() {
            let first = touched.insert(call.key.clone());
            plan.by_call.entry((call.key.clone(), call.operation)).or_default().push_back(index);
            for earlier in &before {
                plan.calls[*earlier].followers.push(index);
            }
            let foreseeable = first || call.operation == Operation::Create;
            let (waits_for, followers) = (before.len(), Vec::new());
            let progress = Progress::Waiting;
            plan.calls.push(Planned { call, waits_for, followers, progress, foreseeable });
        }
        plan.ready =
            (0..plan.calls.len()).filter(|index| plan.calls[*index].waits_for == 0).collect();
        plan
    }

    /// The position of a call: the next of its kind on its value.
    fn find(&mut self, call: &Call) -> Option<usize> {
        if self.calls.is_empty() {
            return None;
        }
        let queue = self.by_call.get_mut(&(call.key.clone(), call.operation))?;
        let index = *queue.front()?;
        let planned = &self.calls[index].call;
        let same =
            planned.old == call.old && planned.new == call.new && planned.revert == call.revert;
        same.then(|| {
            queue.pop_front();
            index
        })
    }

    /// The position of a call that ran ahead and waits for the walk.
    fn adopt(&mut self, call: &Call, progress: Progress) -> Option<usize> {
        let index = self.find(call)?;
        if let Some(queue) = self.by_call.get_mut(&(call.key.clone(), call.operation)) {
            queue.push_front(index);
        }
        let waiting = self.calls[index].progress == Progress::Waiting;
        waiting.then(|| {
            self.calls[index].progress = progress;
            self.ready.remove(&index);
            index
        })
    }

    /// Marks a call as ended; if it succeeded, it no longer blocks others.
    fn over(&mut self, index: usize, well: bool) {
        self.calls[index].progress = Progress::Used;
        if !well {
            return;
        }
        for follower in std::mem::take(&mut self.calls[index].followers) {
            let planned = &mut self.calls[follower];
            planned.waits_for -= 1;
            if planned.waits_for == 0 && planned.progress == Progress::Waiting {
                self.ready.insert(follower);
            }
        }
    }

    fn answered(&mut self, index: usize, answer: Answer) {
        self.over(index, answer.is_ok());
        self.calls[index].progress = Progress::Answered;
        self.answers.insert(index, answer);
    }
}

impl<'a> Executor<'a> {
    pub(crate) fn new(
        surroundings: Surroundings,
        journal: Option<&'a mut Ledger>,
        parts: HashSet<Key>,
        limit: usize,
        conflicts: Option<Conflicts>,
    ) -> Self {
        let plan = Plan::new(conflicts.filter(|conflicts| acceptable(&surroundings, conflicts)));
        Self {
            surroundings,
            journal,
            parts,
            astray: false,
            limit,
            plan,
            running: FuturesUnordered::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            last: None,
        }
    }

    /// Runs a call, or takes the result of one that ran ahead.
    pub(crate) async fn call(&mut self, call: Call) -> Answer {
        let index = self.plan.find(&call);
        self.last = index;
        match index {
            Some(index) if self.plan.calls[index].progress != Progress::Waiting => {
                self.made_ahead(index).await
            }
            _ => self.make(call, index).await,
        }
    }

    async fn made_ahead(&mut self, index: usize) -> Answer {
        loop {
            if let Some(answer) = self.plan.answers.remove(&index) {
                self.plan.calls[index].progress = Progress::Used;
                return answer;
            }
            self.start_ahead();
            let Some((ticket, answer)) = self.running.next().await else {
                return Err(OperationError::new("the operation was lost"));
            };
            drop(self.take(ticket, answer));
        }
    }

    async fn make(&mut self, call: Call, index: Option<usize>) -> Answer {
        if let Some(index) = index {
            self.plan.calls[index].progress = Progress::Running;
            self.plan.ready.remove(&index);
        }
        let (key, operation) = (call.key.clone(), call.operation);
        if let Err(error) = self.note_start(&call) {
            if let Some(index) = index {
                self.plan.over(index, false);
            }
            return Err(not_started(&error));
        }
        let (context, job) = self.surroundings.prepare(call);
        let answer = match job {
            Err(error) => Err(error),
            Ok(mut job) => match try_at_once(&mut job).await {
                Some(answer) => answer,
                None => self.wait(context, job, index).await,
            },
        };
        self.note_end(&key, operation, &answer);
        if let Some(index) = index {
            self.plan.over(index, answer.is_ok());
        }
        answer
    }

    /// Waits for a job that takes longer.
    async fn wait(&mut self, context: Context, job: Prepared, index: Option<usize>) -> Answer {
        if let Some(journal) = &mut self.journal {
            // Transactions before it do not wait for a shared flush.
            journal.settle();
        }
        let job = run(Arc::clone(&self.surroundings.clock), context, job);
        match index {
            Some(index) if self.limit > 1 => self.wait_beside(index, Box::pin(job)).await,
            _ => job.await,
        }
    }

    async fn wait_beside(&mut self, index: usize, job: Running) -> Answer {
        let own = self.run(Ticket::Planned(index), job);
        loop {
            self.start_ahead();
            match self.running.next().await {
                Some((ticket, answer)) if ticket == own => {
                    self.tickets.remove(&own);
                    return answer;
                }
                Some((ticket, answer)) => drop(self.take(ticket, answer)),
                None => return Err(OperationError::new("the operation was lost")),
            }
        }
    }

    fn run(&mut self, what: Ticket, job: Running) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, what);
        self.running.push(Box::pin(async move { (ticket, job.await) }));
        ticket
    }

    fn start_ahead(&mut self) {
        while self.running.len() < self.limit {
            let Some(index) = self.plan.ready.pop_first() else {
                return;
            };
            let planned = &self.plan.calls[index];
            if !planned.foreseeable || planned.progress != Progress::Waiting {
                continue;
            }
            let call = planned.call.clone();
            // The journal has failed: the walk gets the error when it gets there.
            if self.note_start(&call).is_err() {
                return;
            }
            self.plan.calls[index].progress = Progress::Running;
            let job = self.surroundings.start(call);
            self.run(Ticket::Planned(index), job);
        }
    }

    /// Takes the result of a call that ran ahead; returns it if it is no longer part of a plan.
    fn take(&mut self, ticket: u64, answer: Answer) -> Option<Stray> {
        let call = match self.tickets.remove(&ticket)? {
            Ticket::Planned(index) => {
                let call = self.plan.calls[index].call.clone();
                self.plan.answered(index, answer.clone());
                self.made(&call, &answer);
                return None;
            }
            Ticket::Stray(call) => call,
        };
        self.made(&call, &answer);
        Some(Stray { call, answer })
    }

    /// A call that ran ahead has ended.
    fn made(&mut self, call: &Call, answer: &Answer) {
        self.note_end(&call.key, call.operation, answer);
        if let (Ok(Some(metadata)), None) = (answer, &call.base) {
            let descriptor = self.surroundings.registry.get(call.descriptor);
            if let Some(name) = descriptor.metadata_index() {
                self.surroundings.indexes.put(name, descriptor.label(&call.key), metadata.clone());
            }
        }
    }

    /// Whether calls run ahead, or may.
    pub(crate) fn looks_ahead(&self) -> bool {
        !self.plan.calls.is_empty()
    }

    /// Whether other calls depend on the last one, which failed.
    pub(crate) fn has_followers(&self) -> bool {
        self.last.is_some_and(|index| !self.plan.calls[index].followers.is_empty())
    }

    /// Continues with another plan after a failure. Calls that ran ahead and are part of it stay; the
    /// others are returned once they have ended, the last first.
    pub(crate) async fn replan(&mut self, conflicts: Option<Conflicts>) -> Vec<Stray> {
        self.last = None;
        let old = std::mem::replace(&mut self.plan, Plan::new(conflicts));
        let mut strays = Vec::new();
        let mut astray = 0;
        for ticket in self.tickets.values_mut() {
            if let Ticket::Planned(index) = ticket {
                let call = old.calls[*index].call.clone();
                *ticket = match self.plan.adopt(&call, Progress::Running) {
                    Some(index) => Ticket::Planned(index),
                    None => {
                        astray += 1;
                        Ticket::Stray(call)
                    }
                };
            }
        }
        for (index, answer) in old.answers {
            let call = old.calls[index].call.clone();
            match self.plan.adopt(&call, Progress::Answered) {
                Some(index) => self.plan.answered(index, answer),
                None => strays.push(Stray { call, answer }),
            }
        }
        while astray > 0
            && let Some((ticket, answer)) = self.running.next().await
        {
            if let Some(stray) = self.take(ticket, answer) {
                astray -= 1;
                strays.push(stray);
            }
        }
        strays.reverse();
        strays
    }

    /// Writes that a call is about to start; it must not if that fails.
    fn note_start(&mut self, call: &Call) -> Result<(), Error> {
        let entry = || Entry::Start {
            key: call.key.clone(),
            base: call.base.clone(),
            operation: call.operation,
            revert: call.revert,
        };
        let unforeseen = self.journal.is_some()
            && call.base.is_some()
            && !self.parts.contains(&call.key)
            && self.parts.insert(call.key.clone());
        let leaves = call.revert && !self.astray;
        self.astray |= call.revert;
        self.note(entry, leaves || unforeseen)
    }

    fn note_end(&mut self, key: &Key, operation: Operation, answer: &Answer) {
        let failed = answer.is_err();
        let entry = || Entry::End { key: key.clone(), failed };
        let leaves = journal::leaves_the_plan(operation, failed);
        let durable = leaves && !self.astray;
        self.astray |= leaves;
        // After an error the journal accepts no other entry, so that no other call starts and the
        // transaction does not commit.
        let _ = self.note(entry, durable);
    }

    /// Writes to the journal. The plan is there already, so a lost entry can be inferred; only leaving
    /// the plan, and calls outside it, must be flushed.
    fn note(&mut self, entry: impl FnOnce() -> Entry, durable: bool) -> Result<(), Error> {
        match &mut self.journal {
            Some(journal) => journal.append(&entry(), durable),
            None => Ok(()),
        }
    }
}

fn not_started(error: &Error) -> OperationError {
    OperationError::permanent(format!("not started: {error}"))
}

/// Whether every value of a plan is valid: an invalid one would change the course of the walk.
fn acceptable(surroundings: &Surroundings, conflicts: &Conflicts) -> bool {
    conflicts.calls.iter().all(|(call, _)| {
        let descriptor = surroundings.registry.get(call.descriptor);
        call.new.as_ref().is_none_or(|new| descriptor.validate(&call.key, new).is_ok())
    })
}
