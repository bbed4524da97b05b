//! Doing what the walk asks for.
//!
//! Operations are done in the order of the walk. Where several may run at once, calls of the plan
//! that do not depend on anything unfinished are started ahead while the walk waits for a slow one;
//! when the walk gets there, the answer is already known. So the walk, and with it the outcome and
//! the record, is the same as in order. A call that answers at once never runs beside another.
//!
//! Only a revert can leave calls the walk never reached: they are taken back, and written down.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, later};
use crate::descriptor::{Context, OperationError, SharedContext};
use crate::journal::{Entry, Journal};
use crate::key::Key;
use crate::metadata::MetadataIndexes;
use crate::registry::Registry;
use crate::state::Operation;
use crate::value::Metadata;
use crate::walk::{Answer, Call, Conflicts};

/// What every operation of a transaction shares.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) seq: u64,
    pub(crate) attempt: u32,
    pub(crate) registry: Arc<Registry>,
    pub(crate) indexes: MetadataIndexes,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cancellation: CancellationToken,
    pub(crate) timeout: Option<Duration>,
}

impl Surroundings {
    pub(crate) fn context(&self, base: Option<Key>, revert: bool) -> Context {
        let deadline = self.timeout.map(|timeout| later(self.clock.now(), timeout));
        let cancellation = match deadline {
            Some(_) => self.cancellation.child_token(),
            None => self.cancellation.clone(),
        };
        let shared = SharedContext {
            transaction: self.seq,
            attempt: self.attempt,
            deadline,
            cancellation,
            indexes: self.indexes.clone(),
        };
        Context { shared: Arc::new(shared), base, revert }
    }

    /// Runs a job to its end, its deadline or its panic.
    pub(crate) async fn run<T>(
        &self,
        context: Context,
        job: crate::erased::Job<T>,
    ) -> Result<T, OperationError> {
        let job = AssertUnwindSafe(job).catch_unwind();
        let result = match context.deadline() {
            None => job.await,
            Some(deadline) => tokio::select! {
                result = job => result,
                () = self.clock.sleep_until(deadline) => {
                    context.cancellation().cancel();
                    return Err(OperationError::new("timed out; what it did is not known"));
                }
            },
        };
        result.unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned());
            Err(OperationError::permanent(format!("panicked: {}", text.unwrap_or_default())))
        })
    }

    fn start(&self, call: Call) -> Running {
        let context = self.context(call.base.clone(), call.revert);
        let descriptor = Arc::clone(self.registry.get(call.descriptor));
        let missing = || OperationError::permanent("the operation has no value");
        let job: Result<crate::erased::Job<Option<Metadata>>, OperationError> =
            match (call.operation, call.old, call.new) {
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
        let surroundings = self.clone();
        Box::pin(async move { surroundings.run(context, job?).await })
    }
}

/// A call of the plan, with its place there.
type Numbered = Pin<Box<dyn Future<Output = (usize, Answer)> + Send>>;

type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A call that was made although the walk never came to it.
pub(crate) struct Stray {
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

/// Makes calls, some of them ahead of time.
pub(crate) struct Executor<'a> {
    surroundings: Surroundings,
    journal: Option<&'a mut (dyn Journal + 'static)>,
    limit: usize,
    plan: Vec<Planned>,
    by_call: HashMap<(Key, Operation), VecDeque<usize>>,
    ready: BTreeSet<usize>,
    running: FuturesUnordered<Numbered>,
    answers: HashMap<usize, Answer>,
    ahead: bool,
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

impl<'a> Executor<'a> {
    pub(crate) fn new(
        surroundings: Surroundings,
        journal: Option<&'a mut (dyn Journal + 'static)>,
        limit: usize,
        conflicts: Option<Conflicts>,
    ) -> Self {
        let calls = conflicts.map(|conflicts| conflicts.calls).unwrap_or_default();
        let mut plan: Vec<Planned> = Vec::with_capacity(calls.len());
        let mut by_call: HashMap<_, VecDeque<usize>> = HashMap::new();
        let mut touched = HashSet::new();
        for (index, (call, before)) in calls.into_iter().enumerate() {
            let first = touched.insert(call.key.clone());
            by_call.entry((call.key.clone(), call.operation)).or_default().push_back(index);
            for earlier in &before {
                plan[*earlier].followers.push(index);
            }
            let foreseeable = first || call.operation == Operation::Create;
            let (waits_for, followers) = (before.len(), Vec::new());
            plan.push(Planned {
                call,
                waits_for,
                followers,
                progress: Progress::Waiting,
                foreseeable,
            });
        }
        let refused = |planned: &Planned| {
            let descriptor = surroundings.registry.get(planned.call.descriptor);
            let new = planned.call.new.as_ref();
            new.is_some_and(|new| descriptor.validate(&planned.call.key, new).is_err())
        };
        let ahead = !plan.iter().any(refused);
        let ready = (0..plan.len()).filter(|index| plan[*index].waits_for == 0).collect();
        Self {
            surroundings,
            journal,
            limit,
            plan,
            by_call,
            ready,
            running: FuturesUnordered::new(),
            answers: HashMap::new(),
            ahead,
        }
    }

    /// From now on nothing is started ahead of time.
    pub(crate) fn stop_ahead(&mut self) {
        self.ahead = false;
    }

    /// Makes a call, or takes the answer of one made ahead.
    pub(crate) async fn call(&mut self, call: Call) -> Answer {
        let index = self.planned(&call);
        if index.is_none_or(|index| self.plan[index].progress == Progress::Waiting) {
            if let Some(index) = index {
                self.plan[index].progress = Progress::Running;
                self.ready.remove(&index);
            }
            let key = call.key.clone();
            self.note_start(&call);
            let mut job = self.surroundings.start(call);
            let first = std::future::poll_fn(|context| match job.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => Poll::Ready(None),
            });
            let answer = match first.await {
                Some(answer) => answer,
                None if self.limit <= 1 || index.is_none() => job.await,
                None => self.wait_beside(index.unwrap_or_default(), job).await,
            };
            self.note_end(&key);
            if let Some(index) = index {
                self.over(index, answer.is_ok());
            }
            return answer;
        }
        let index = index.unwrap_or_default();
        while !self.answers.contains_key(&index) {
            self.start_ahead();
            match self.running.next().await {
                Some((index, answer)) => self.take(index, answer),
                None => return Err(OperationError::new("the operation was lost")),
            }
        }
        self.plan[index].progress = Progress::Used;
        self.answers
            .remove(&index)
            .unwrap_or_else(|| Err(OperationError::new("the operation was lost")))
    }

    /// The place of a call in the plan.
    fn planned(&mut self, call: &Call) -> Option<usize> {
        let queue = self.by_call.get_mut(&(call.key.clone(), call.operation))?;
        let index = *queue.front()?;
        let planned = &self.plan[index].call;
        (planned.old == call.old && planned.new == call.new && planned.revert == call.revert).then(
            || {
                queue.pop_front();
                index
            },
        )
    }

    async fn wait_beside(&mut self, index: usize, job: Running) -> Answer {
        self.running.push(Box::pin(async move { (index, job.await) }));
        loop {
            self.start_ahead();
            match self.running.next().await {
                Some((done, answer)) if done == index => return answer,
                Some((other, answer)) => self.take(other, answer),
                None => return Err(OperationError::new("the operation was lost")),
            }
        }
    }

    fn start_ahead(&mut self) {
        while self.ahead && self.running.len() < self.limit {
            let Some(index) = self.ready.pop_first() else {
                return;
            };
            let planned = &mut self.plan[index];
            if !planned.foreseeable || planned.progress != Progress::Waiting {
                continue;
            }
            let call = planned.call.clone();
            planned.progress = Progress::Running;
            self.note_start(&call);
            let job = self.surroundings.start(call);
            self.running.push(Box::pin(async move { (index, job.await) }));
        }
    }

    /// Takes the answer of a call made ahead.
    fn take(&mut self, index: usize, answer: Answer) {
        let call = self.plan[index].call.clone();
        self.note_end(&call.key);
        if let (Ok(Some(metadata)), None) = (&answer, &call.base) {
            let descriptor = self.surroundings.registry.get(call.descriptor);
            if let Some(name) = descriptor.metadata_index() {
                self.surroundings.indexes.put(name, descriptor.label(&call.key), metadata.clone());
            }
        }
        self.over(index, answer.is_ok());
        self.plan[index].progress = Progress::Answered;
        self.answers.insert(index, answer);
    }

    fn over(&mut self, index: usize, well: bool) {
        self.plan[index].progress = Progress::Used;
        if !well {
            return;
        }
        for follower in std::mem::take(&mut self.plan[index].followers) {
            let planned = &mut self.plan[follower];
            planned.waits_for -= 1;
            if planned.waits_for == 0 && planned.progress == Progress::Waiting {
                self.ready.insert(follower);
            }
        }
    }

    /// Waits for everything still running and hands over what the walk never came to, last first.
    pub(crate) async fn strays(&mut self) -> Vec<Stray> {
        self.ahead = false;
        while let Some((index, answer)) = self.running.next().await {
            self.take(index, answer);
        }
        let mut left: Vec<(usize, Answer)> = self.answers.drain().collect();
        left.sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        left.into_iter()
            .map(|(index, answer)| Stray { call: self.plan[index].call.clone(), answer })
            .collect()
    }

    fn note_start(&mut self, call: &Call) {
        if let Some(journal) = &mut self.journal {
            let entry = Entry::Start { key: call.key.clone(), operation: call.operation };
            // The transaction's begin is already durable; losing this line only widens the doubt.
            let _ = journal.append(&entry, false);
        }
    }

    fn note_end(&mut self, key: &Key) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.append(&Entry::End { key: key.clone() }, false);
        }
    }
}
