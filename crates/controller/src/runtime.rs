//! The controller: watch → map to keys → queue → reconcile.
//!
//! # Reconcile from state, never from the event
//!
//! A reconciler is handed a key and nothing else: not what changed, not how, not why. It reads the
//! state as it is, works out what should be different, and does that. It is tempting to pass the
//! event along ("the pool grew: place the waiting volumes"), and it would be wrong in every case
//! that matters:
//!
//! * Events get lost. The process was not running, the history was compacted, another
//!   server was leader. A reconciler that reads state does the right thing at its next run, whatever
//!   it missed; one that acts on events never learns what it did not hear.
//! * Events get merged. A hundred changes of one object are one run, because only the last state
//!   can be acted upon. Queues stay as short as there are objects, not as long as history.
//! * Events are late. Between a change and the reaction to it, something else changed. The state
//!   read now is the newest there is; the event is from the past.
//! * Events fail. A run that failed is tried again by its key. What would it mean to try an event
//!   again, after others were handled?
//!
//! So an event is a hint to look, and looking once too often must be harmless: a reconciler that
//! finds everything as it should be writes nothing, and its own writes, which wake it again, end
//! there. That also makes a restart, a new leader's first run and a repair after a fault the same
//! thing as any other run: the ordinary path is the recovery path, and it is tested all day.
//!
//! # What always holds
//!
//! * Runs begin when every source has been read once; no reconciler sees half a world.
//! * One key is with one worker; at most [`Options::workers`] run at once (see [`crate::queue`]).
//! * When an object moves from one owner to another, the keys of both are queued: mappings see
//!   the object before and after.
//! * A reconciler that panics is counted and backed off, and affects no other.
//! * With [`Controller::led_by`], runs happen only while this process leads, every write goes under
//!   the fence of that term, and each term begins with everything the sources know.
//! * [`Handle::shutdown`] takes no more keys, lets running ones finish within
//!   [`Options::grace`], and returns when every task has ended.

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_clock::Clock;
use mainstay_store::objects::Fence;
use mainstay_store::registry::Typed;
use mainstay_store::resources::Resources;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::election::{self, Leadership};
use crate::meter::{Depth, Ending, Meter, NoMeter};
use crate::queue::{Limits, Queue, QueueKey, Verdict, Work, sleep_until};
use crate::reflector::{self, Change, Reflector, Subscription};
use crate::task::Owned;

/// How a controller runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name in logs and metrics.
    pub name: String,
    /// How many keys are worked on at once; at least one.
    pub workers: usize,
    /// How fast failing keys come back.
    pub limits: Limits,
    /// How long running reconcilers may take to finish when the controller stops.
    pub grace: Duration,
    /// Where it is counted.
    pub meter: Arc<dyn Meter>,
}

impl Options {
    /// Ten workers, the usual limits, and ten seconds to finish.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            workers: 10,
            limits: Limits::default(),
            grace: Duration::from_secs(10),
            meter: Arc::new(NoMeter),
        }
    }
}

/// How a reconciliation ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done until something changes.
    Done,
    /// Look again after this long, if nothing changes before.
    After(Duration),
    /// Run again with back-off, though there was no error: after a conflict, for example.
    Retry,
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The arguments of a reconciler besides its key.
#[derive(Clone, Debug)]
pub struct Context {
    /// The objects; under the fence of this term, if the controller is led by an election.
    pub resources: Resources,
    /// How often this key failed in a row before this run.
    pub failures: u32,
    /// Cancelled when the controller stops: a long run should look, and end early.
    pub stopping: CancellationToken,
}

type Subscribe<K> = Box<dyn Fn(Queue<K>) -> Subscription + Send + Sync>;
type Synced = Box<dyn Fn() -> BoxFuture<'static, Result<(), reflector::Error>> + Send + Sync>;

struct Source<K> {
    subscribe: Subscribe<K>,
    synced: Synced,
}

/// A controller being put together.
pub struct Controller<K> {
    options: Options,
    resources: Resources,
    sources: Vec<Source<K>>,
    leadership: Option<watch::Receiver<Leadership>>,
}

impl<K> Debug for Controller<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("options", &self.options)
            .field("sources", &self.sources.len())
            .finish_non_exhaustive()
    }
}

impl<K: QueueKey> Controller<K> {
    /// A controller that watches nothing yet.
    #[must_use]
    pub fn new(options: Options, resources: &Resources) -> Self {
        Self { options, resources: resources.clone(), sources: Vec::new(), leadership: None }
    }

    /// Queues the keys `map` gives for an object whenever that object changes.
    #[must_use]
    pub fn watch<T: Typed, I: IntoIterator<Item = K>>(
        self,
        reflector: &Reflector<T>,
        map: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self {
        self.watch_if(reflector, |_, _| true, map)
    }

    /// The same, but only for changes that `predicate` (of the object before and after) lets
    /// through. One of the two is absent when the object is new or gone.
    #[must_use]
    pub fn watch_if<T: Typed, I: IntoIterator<Item = K>>(
        mut self,
        reflector: &Reflector<T>,
        predicate: impl Fn(Option<&T>, Option<&T>) -> bool + Send + Sync + 'static,
        map: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self {
        let wake = move |queue: &Queue<K>, change: &Change<T>| {
            let (old, new) = (change.old.as_deref(), change.new.as_deref());
            if predicate(old, new) {
                for object in old.into_iter().chain(new) {
                    map(object).into_iter().for_each(|key| queue.add(key));
                }
            }
        };
        let wake = Arc::new(wake);
        let (source, synced) = (reflector.clone(), reflector.clone());
        self.sources.push(Source {
            subscribe: Box::new(move |queue| {
                let wake = wake.clone();
                source.subscribe(move |change| wake(&queue, change))
            }),
            synced: Box::new(move || {
                let synced = synced.clone();
                async move { synced.wait_until_synced().await }.boxed()
            }),
        });
        self
    }

    /// Runs only while this process leads, and writes under the fence of each term.
    #[must_use]
    pub fn led_by(mut self, election: &election::Handle) -> Self {
        self.leadership = Some(election.leadership());
        self
    }

    /// Begins to reconcile. Must be called within a tokio runtime.
    ///
    /// [`Handle::shutdown`] ends it gently; when the last handle is dropped, everything ends at
    /// once.
    pub fn run<R, F, E>(self, reconcile: R) -> Handle<K>
    where
        R: Fn(Context, K) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let reconcile = Arc::new(reconcile);
        let reconcile: Reconcile<K> = Arc::new(move |context, key| {
            let reconcile = reconcile.clone();
            async move { reconcile(context, key).await.map_err(Into::into) }.boxed()
        });
        let shared = Arc::new(Shared { queue: Mutex::new(None), stop: CancellationToken::new() });
        let runner = Runner { controller: self, reconcile, shared: shared.clone() };
        if runner.controller.leadership.is_none() {
            // Keys may be added from now on, before the task has begun.
            runner.open();
        }
        let task = Owned::spawn(runner.run());
        Handle { shared, task }
    }
}

type Reconcile<K> =
    Arc<dyn Fn(Context, K) -> BoxFuture<'static, Result<Outcome, BoxError>> + Send + Sync>;

#[derive(Debug)]
struct Shared<K> {
    /// There while a term lasts.
    queue: Mutex<Option<Queue<K>>>,
    stop: CancellationToken,
}

impl<K: QueueKey> Shared<K> {
    fn queue(&self) -> Option<Queue<K>> {
        self.queue.lock().clone()
    }
}

/// The one task that takes keys and owns every run.
struct Runner<K: QueueKey> {
    controller: Controller<K>,
    reconcile: Reconcile<K>,
    shared: Arc<Shared<K>>,
}

impl<K: QueueKey> Runner<K> {
    fn clock(&self) -> &Arc<dyn Clock> {
        self.controller.resources.clock()
    }

    /// The queue of this term.
    fn open(&self) -> Queue<K> {
        let mut slot = self.shared.queue.lock();
        let options = &self.controller.options;
        let queue = slot.get_or_insert_with(|| {
            let (clock, meter) = (self.clock().clone(), options.meter.clone());
            Queue::metered(&options.name, options.limits, clock, meter)
        });
        queue.clone()
    }

    /// Says how many runs were cut off in all.
    async fn run(self) -> usize {
        let mut cut_off = 0;
        match self.controller.leadership.clone() {
            None => cut_off += self.term(None, std::future::pending()).await,
            Some(mut leadership) => {
                while let Some(fence) = self.office(&mut leadership).await {
                    let mut leadership = leadership.clone();
                    let office = fence.clone();
                    let over = async move {
                        // An election that has ended does not lead.
                        let lost = |now: &Leadership| now.fence() != Some(&office);
                        let _ = leadership.wait_for(lost).await;
                    };
                    cut_off += self.term(Some(fence), over).await;
                }
            }
        }
        cut_off
    }

    /// Waits for a term of office; `None` if the controller or the election ends first.
    async fn office(&self, leadership: &mut watch::Receiver<Leadership>) -> Option<Fence> {
        // One that ended without a word may still say that it leads.
        leadership.has_changed().ok()?;
        let leading = leadership.wait_for(|now| now.fence().is_some());
        let now = self.shared.stop.run_until_cancelled(leading).await?.ok()?;
        now.fence().cloned()
    }

    /// Works until the controller stops or the term is over; says how many runs were cut off.
    async fn term(&self, fence: Option<Fence>, over: impl Future<Output = ()>) -> usize {
        let queue = self.open();
        let stopping = self.shared.stop.child_token();
        let resources = match fence {
            Some(fence) => self.controller.resources.fenced(fence),
            None => self.controller.resources.clone(),
        };
        let context = Context { resources, failures: 0, stopping: stopping.clone() };
        let mut runs = JoinSet::new();
        {
            let sources = self.controller.sources.iter();
            let subscribe = |source: &Source<K>| (source.subscribe)(queue.clone());
            let _subscriptions: Vec<_> = sources.map(subscribe).collect();
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                () = over => {}
                () = self.work(&queue, &context, &mut runs) => {}
            }
            *self.shared.queue.lock() = None;
        }
        stopping.cancel();
        self.drain(runs).await
    }

    /// Hands keys to workers, for ever.
    async fn work(&self, queue: &Queue<K>, context: &Context, runs: &mut JoinSet<()>) {
        for source in &self.controller.sources {
            if (source.synced)().await.is_err() {
                // Its store has closed: wait for the shutdown that follows.
                std::future::pending::<()>().await;
            }
        }
        let workers = self.controller.options.workers.max(1);
        loop {
            tokio::select! {
                Some(_) = runs.join_next(), if !runs.is_empty() => {}
                work = queue.take(), if runs.len() < workers => {
                    let failures = work.failures();
                    let context = Context { failures, ..context.clone() };
                    runs.spawn(self.one(context, work));
                }
            }
        }
    }

    /// One run of one key.
    fn one(&self, context: Context, work: Work<K>) -> impl Future<Output = ()> + Send + use<K> {
        let reconcile = self.reconcile.clone();
        let clock = self.clock().clone();
        let Options { name, meter, .. } = self.controller.options.clone();
        async move {
            let (key, begun) = (work.key().clone(), clock.elapsed());
            let run = AssertUnwindSafe(async move { reconcile(context, key).await });
            let result = run.catch_unwind().await;
            let (ending, verdict) = judge(&result);
            meter.reconciled(&name, ending, clock.elapsed().saturating_sub(begun));
            let key = work.key().clone();
            let retry_in = work.finish(verdict);
            match result {
                Ok(Ok(_)) => tracing::debug!(controller = name, ?key, ending = ending.as_str()),
                Ok(Err(error)) => {
                    let error = chain(&*error);
                    tracing::warn!(
                        controller = name,
                        ?key,
                        error,
                        ?retry_in,
                        "reconciling failed; retrying"
                    );
                }
                Err(panic) => {
                    let panic = message(&*panic);
                    tracing::error!(
                        controller = name,
                        ?key,
                        panic,
                        ?retry_in,
                        "a reconciler panicked; retrying"
                    );
                }
            }
        }
    }

    /// Waits for the running ones within the grace, and cuts off the rest.
    async fn drain(&self, mut runs: JoinSet<()>) -> usize {
        let clock = self.clock().clone();
        let deadline = clock.elapsed().saturating_add(self.controller.options.grace);
        loop {
            tokio::select! {
                biased;
                run = runs.join_next() => if run.is_none() {
                    return 0;
                },
                () = sleep_until(&*clock, deadline) => if clock.elapsed() >= deadline {
                    let cut_off = runs.len();
                    runs.shutdown().await;
                    return cut_off;
                },
            }
        }
    }
}

type Run = Result<Result<Outcome, BoxError>, Box<dyn Any + Send>>;

fn judge(run: &Run) -> (Ending, Verdict) {
    match run {
        Ok(Ok(Outcome::Done)) => (Ending::Done, Verdict::Done),
        Ok(Ok(Outcome::After(delay))) => (Ending::Later, Verdict::After(*delay)),
        Ok(Ok(Outcome::Retry)) => (Ending::Retry, Verdict::Retry),
        Ok(Err(_)) => (Ending::Failed, Verdict::Retry),
        Err(_) => (Ending::Panicked, Verdict::Retry),
    }
}

/// An error and its causes in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("no message")
}

/// Wakes a controller and ends it. Clones are the same controller.
#[derive(Clone, Debug)]
pub struct Handle<K> {
    shared: Arc<Shared<K>>,
    task: Owned<usize>,
}

impl<K: QueueKey> Handle<K> {
    /// Queues a key, for what no watched object tells. Says whether the controller works at all:
    /// one that does not lead takes no keys, and begins its term with what its sources know.
    pub fn add(&self, key: K) -> bool {
        self.add_after(key, Duration::ZERO)
    }

    /// Queues a key to be due after `delay`, or sooner if it is due sooner anyway.
    pub fn add_after(&self, key: K, delay: Duration) -> bool {
        let queue = self.shared.queue();
        if let Some(queue) = &queue {
            queue.add_after(key, delay);
        }
        queue.is_some()
    }

    /// How many keys there are; none while the controller does not work.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.shared.queue().map(|queue| queue.depth()).unwrap_or_default()
    }

    /// Takes no more keys, lets running ones finish within the grace, and waits until every task
    /// has ended. Says how many runs were cut off. A later call waits for the same end.
    pub async fn shutdown(&self) -> usize {
        self.shared.stop.cancel();
        self.task.end().await
    }
}

#[cfg(test)]
mod tests;
