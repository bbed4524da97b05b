//! The job queue: long, heavy work, a bounded number at once.
//!
//! Reconcilers decide quickly and often; formatting a disk takes minutes and must not be done
//! twice at once. So a reconciler puts the key here and is done, and the job reads what is to be
//! done when its turn comes (a copy made when it was queued would be stale by then).
//!
//! Always true:
//! * At most [`Options::slots`] jobs hold a slot, and never two of one key.
//! * A key queued twice before it starts runs once; one queued while it runs runs once more.
//! * Jobs start in the order they were queued, and no more of them than [`Options::rate`] allows
//!   within any interval. A failed job is not retried here: the reconciler decides whether
//!   that is safe.
//! * A job that waits for something outside ([`Slot::release_while`], or [`Slot::release`] for the
//!   rest of it) holds no slot meanwhile. It
//!   then waits for a slot like any other job, but does not count as another start.
//! * A waiting job can be cancelled; a running one is never interrupted, except by the
//!   deadline of [`Handle::shutdown`].
//!
//! [`Line`] is all of this as plain data with time as an argument; [`JobQueue`] runs it.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::meter::{Depth, Meter, NoMeter};
use crate::queue::{QueueKey, sleep_until};
use crate::rate::{Rate, Window};
use crate::task::Owned;

/// The result of a request to run a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is in line.
    Queued,
    /// It was in line already, or will run once more already.
    AlreadyQueued,
    /// It is running, and will run once more afterwards.
    OnceMore,
    /// The queue is shutting down.
    Refused,
}

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<K> {
    /// A job that begins.
    Start(K),
    /// A job that had let go of its slot and has it again.
    Resume(K),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waiting { ticket: u64 },
    Running { again: bool },
    Away { again: bool },
    Returning { ticket: u64, again: bool },
}

/// The job queue as plain data.
#[derive(Debug)]
pub struct Line<K> {
    jobs: BTreeMap<K, Place>,
    waiting: BTreeMap<u64, K>,
    returning: BTreeMap<u64, K>,
    slots: usize,
    taken: usize,
    tickets: u64,
    window: Option<Window>,
}

impl<K: QueueKey> Line<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(slots: NonZeroUsize, rate: Option<Rate>) -> Self {
        Self {
            jobs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            returning: BTreeMap::new(),
            slots: slots.get(),
            taken: 0,
            tickets: 0,
            window: rate.map(Window::new),
        }
    }

    /// Asks for one run of `key`.
    pub fn add(&mut self, key: K) -> Added {
        use Place::{Away, Returning, Running, Waiting};
        match self.jobs.get_mut(&key) {
            None => {
                self.line_up(key);
                Added::Queued
            }
            Some(Waiting { .. }) => Added::AlreadyQueued,
            Some(Running { again } | Away { again } | Returning { again, .. }) => {
                if std::mem::replace(again, true) {
                    Added::AlreadyQueued
                } else {
                    Added::OnceMore
                }
            }
        }
    }

    /// Takes back a run that has not begun. Says whether there was one.
    pub fn cancel(&mut self, key: &K) -> bool {
        use Place::{Away, Returning, Running, Waiting};
        match self.jobs.get_mut(key) {
            None => false,
            Some(Waiting { ticket }) => {
                self.waiting.remove(ticket);
                self.jobs.remove(key);
                true
            }
            Some(Running { again } | Away { again } | Returning { again, .. }) => {
                std::mem::replace(again, false)
            }
        }
    }

    /// Gives a slot to the job that has waited longest and may start now.
    pub fn next(&mut self, now: Duration) -> Option<Turn<K>> {
        if self.taken == self.slots {
            return None;
        }
        let returning = self.returning.first_key_value().map(|(ticket, _)| *ticket);
        let waiting = self.waiting.first_key_value().map(|(ticket, _)| *ticket);
        let may_start = waiting.filter(|_| self.free_at() <= now);
        let resumes = returning.filter(|back| may_start.is_none_or(|first| *back < first));
        let turn = if let Some(ticket) = resumes {
            let key = self.returning.remove(&ticket)?;
            let again = matches!(self.jobs.get(&key), Some(Place::Returning { again: true, .. }));
            self.jobs.insert(key.clone(), Place::Running { again });
            Turn::Resume(key)
        } else {
            let key = self.waiting.remove(&may_start?)?;
            if let Some(window) = &mut self.window {
                window.start(now);
            }
            self.jobs.insert(key.clone(), Place::Running { again: false });
            Turn::Start(key)
        };
        self.taken += 1;
        Some(turn)
    }

    /// Lets go of a running job's slot. Does nothing for any other job.
    pub fn release(&mut self, key: &K) {
        if let Some(place) = self.jobs.get_mut(key)
            && let Place::Running { again } = *place
        {
            *place = Place::Away { again };
            self.taken -= 1;
        }
    }

    /// Lines a job up for its slot again. Does nothing for a job that has not let go of it.
    pub fn reclaim(&mut self, key: &K) {
        if let Some(place) = self.jobs.get_mut(key)
            && let Place::Away { again } = *place
        {
            let ticket = self.tickets;
            self.tickets += 1;
            *place = Place::Returning { ticket, again };
            self.returning.insert(ticket, key.clone());
        }
    }

    /// Whether a job holds a slot.
    #[must_use]
    pub fn holds(&self, key: &K) -> bool {
        matches!(self.jobs.get(key), Some(Place::Running { .. }))
    }

    /// A job has ended, wherever it was. Does nothing for one that has not begun.
    pub fn finish(&mut self, key: &K) {
        let again = match self.jobs.get(key) {
            None | Some(Place::Waiting { .. }) => return,
            Some(Place::Running { again }) => {
                self.taken -= 1;
                *again
            }
            Some(Place::Away { again }) => *again,
            Some(Place::Returning { ticket, again }) => {
                self.returning.remove(ticket);
                *again
            }
        };
        self.jobs.remove(key);
        if again {
            self.line_up(key.clone());
        }
    }

    /// Forgets every run that has not begun.
    pub fn clear(&mut self) {
        for key in std::mem::take(&mut self.waiting).into_values() {
            self.jobs.remove(&key);
        }
        for place in self.jobs.values_mut() {
            use Place::{Away, Returning, Running, Waiting};
            match place {
                Running { again } | Away { again } | Returning { again, .. } => *again = false,
                Waiting { .. } => {}
            }
        }
    }

    /// When [`Line::next`] is worth trying, if time alone can make it so.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        if self.taken == self.slots || (self.waiting.is_empty() && self.returning.is_empty()) {
            return None;
        }
        let at_once = !self.returning.is_empty();
        Some(if at_once { Duration::ZERO } else { self.free_at() })
    }

    /// How many jobs there are. Jobs that have released their slots count as delayed.
    #[must_use]
    pub fn depth(&self) -> Depth {
        Depth {
            ready: self.waiting.len(),
            delayed: self.jobs.len() - self.waiting.len() - self.taken,
            running: self.taken,
        }
    }

    fn free_at(&self) -> Duration {
        self.window.as_ref().map_or(Duration::ZERO, Window::free_at)
    }

    fn line_up(&mut self, key: K) {
        let ticket = self.tickets;
        self.tickets += 1;
        self.waiting.insert(ticket, key.clone());
        self.jobs.insert(key, Place::Waiting { ticket });
    }
}

/// How a [`JobQueue`] runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name in logs and metrics.
    pub name: String,
    /// How many jobs hold a slot at once.
    pub slots: NonZeroUsize,
    /// How many jobs may start within a stretch of time; no limit by default.
    pub rate: Option<Rate>,
    /// Where it is counted.
    pub meter: Arc<dyn Meter>,
}

impl Options {
    /// A queue with so many slots and no limit on the rate of starts.
    #[must_use]
    pub fn new(name: &str, slots: NonZeroUsize) -> Self {
        Self { name: name.to_owned(), slots, rate: None, meter: Arc::new(NoMeter) }
    }
}

/// Runs jobs from a [`Line`].
#[derive(Debug)]
pub struct JobQueue;

impl JobQueue {
    /// Begins to run `job` for every key that is added. Must be called within a tokio runtime.
    ///
    /// [`Handle::shutdown`] ends it gently; when the last handle is dropped, everything ends at
    /// once.
    pub fn run<K, J, F>(options: Options, clock: Arc<dyn Clock>, job: J) -> Handle<K>
    where
        K: QueueKey,
        J: Fn(Slot<K>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let state = State {
            line: Line::new(options.slots, options.rate),
            grants: BTreeMap::new(),
            closed: None,
        };
        let shared = Arc::new(Shared {
            name: options.name,
            state: Mutex::new(state),
            changed: Notify::new(),
            stop: CancellationToken::new(),
            depths: watch::Sender::new(Depth::default()),
            clock,
            meter: options.meter,
        });
        let dispatcher =
            Dispatcher { shared: shared.clone(), job: Arc::new(move |slot| job(slot).boxed()) };
        let task = Owned::spawn(dispatcher.run());
        Handle { shared, task }
    }
}

#[derive(Debug)]
struct State<K> {
    line: Line<K>,
    /// Whom to tell that its slot is there again.
    grants: BTreeMap<K, oneshot::Sender<()>>,
    /// Set at shutdown: when the last jobs are cut off.
    closed: Option<Duration>,
}

#[derive(Debug)]
struct Shared<K> {
    name: String,
    state: Mutex<State<K>>,
    changed: Notify,
    stop: CancellationToken,
    depths: watch::Sender<Depth>,
    clock: Arc<dyn Clock>,
    meter: Arc<dyn Meter>,
}

impl<K: QueueKey> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Unlocks, and notifies the dispatcher and the watchers of the depth.
    fn tell(&self, state: MutexGuard<'_, State<K>>) {
        let depth = state.line.depth();
        drop(state);
        self.changed.notify_one();
        self.depths.send_replace(depth);
        self.meter.depth(&self.name, depth);
    }
}

/// The one task that hands out slots and owns every job.
struct Dispatcher<K: QueueKey> {
    shared: Arc<Shared<K>>,
    job: Arc<dyn Fn(Slot<K>) -> BoxFuture<'static, ()> + Send + Sync>,
}

impl<K: QueueKey> Dispatcher<K> {
    /// Says how many jobs were cut off in the end.
    async fn run(self) -> usize {
        let shared = &self.shared;
        let mut jobs = JoinSet::new();
        let mut cut_off = 0;
        loop {
            let (closed, due) = self.hand_out(&mut jobs);
            if closed.is_some() && jobs.is_empty() {
                break;
            }
            let deadline = closed.unwrap_or(Duration::MAX);
            tokio::select! {
                () = shared.changed.notified() => {}
                Some(_) = jobs.join_next(), if !jobs.is_empty() => {}
                () = sleep_until(&*shared.clock, due.unwrap_or_default()), if due.is_some() => {}
                () = sleep_until(&*shared.clock, deadline), if closed.is_some() => {
                    if shared.clock.elapsed() >= deadline {
                        cut_off = jobs.len();
                        jobs.shutdown().await;
                    }
                }
            }
        }
        cut_off
    }

    /// Gives out every slot that can be had, and says when the queue closes and when to look again.
    fn hand_out(&self, jobs: &mut JoinSet<()>) -> (Option<Duration>, Option<Duration>) {
        let now = self.shared.clock.elapsed();
        let mut state = self.shared.lock();
        while let Some(turn) = state.line.next(now) {
            match turn {
                Turn::Start(key) => drop(jobs.spawn(self.start(key))),
                // One that stopped waiting finds that it holds its slot when it asks again.
                Turn::Resume(key) => drop(state.grants.remove(&key).map(|grant| grant.send(()))),
            }
        }
        let closed = state.closed;
        let due = state.line.next_due();
        let depth = state.line.depth();
        drop(state);
        self.shared.depths.send_replace(depth);
        self.shared.meter.depth(&self.shared.name, depth);
        (closed, due)
    }

    fn start(&self, key: K) -> impl Future<Output = ()> + Send + use<K> {
        let slot = Slot { shared: self.shared.clone(), key: key.clone() };
        let running = Running { shared: self.shared.clone(), key };
        let job = self.job.clone();
        async move {
            let running = running;
            let outcome = AssertUnwindSafe(async move { job(slot).await });
            if outcome.catch_unwind().await.is_err() {
                let (queue, key) = (&running.shared.name, &running.key);
                tracing::error!(queue, ?key, "a job panicked");
            }
        }
    }
}

/// Ends the job in the books when its task ends, however it ends.
struct Running<K: QueueKey> {
    shared: Arc<Shared<K>>,
    key: K,
}

impl<K: QueueKey> Drop for Running<K> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.grants.remove(&self.key);
        state.line.finish(&self.key);
        self.shared.tell(state);
    }
}

/// A job's place at the table.
#[derive(Debug)]
pub struct Slot<K: QueueKey> {
    shared: Arc<Shared<K>>,
    key: K,
}

impl<K: QueueKey> Slot<K> {
    /// The key of the job.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Cancelled when the queue shuts down: a job that can stop early should.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Waits for something outside without holding a slot, and takes one again in its turn.
    ///
    /// If it is dropped before it returns, the job holds no slot until [`Slot::reclaim`].
    pub async fn release_while<T>(&mut self, outside: impl Future<Output = T>) -> T {
        self.release();
        let value = outside.await;
        self.reclaim().await;
        value
    }

    /// Waits until the job holds a slot; at once if it does already.
    pub async fn reclaim(&mut self) {
        let Some(granted) = self.line_up() else {
            return;
        };
        if granted.await.is_err() {
            // Only the end of the queue takes a grant away, and it ends this job as well.
            std::future::pending::<()>().await;
        }
    }

    /// Releases the slot: the rest of the job delays no other. A job that needs it again asks
    /// with [`Slot::reclaim`]. Calling it again changes nothing.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        state.line.release(&self.key);
        self.shared.tell(state);
    }

    fn line_up(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.shared.lock();
        if state.line.holds(&self.key) {
            return None;
        }
        state.line.reclaim(&self.key);
        let (grant, granted) = oneshot::channel();
        state.grants.insert(self.key.clone(), grant);
        self.shared.tell(state);
        Some(granted)
    }
}

/// Adds jobs and ends the queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Handle<K> {
    shared: Arc<Shared<K>>,
    task: Owned<usize>,
}

impl<K: QueueKey> Handle<K> {
    /// Asks for one run of `key`. Calling it again before that run begins changes nothing.
    pub fn add(&self, key: K) -> Added {
        let mut state = self.shared.lock();
        if state.closed.is_some() {
            return Added::Refused;
        }
        let added = state.line.add(key);
        self.shared.tell(state);
        added
    }

    /// Takes back a run that has not begun. Says whether there was one.
    pub fn cancel(&self, key: &K) -> bool {
        let mut state = self.shared.lock();
        let cancelled = state.line.cancel(key);
        self.shared.tell(state);
        cancelled
    }

    /// How many jobs there are. Jobs that have released their slots count as delayed.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.shared.lock().line.depth()
    }

    /// Waits until there is no job left, neither waiting nor begun.
    pub async fn idle(&self) {
        let mut depths = self.shared.depths.subscribe();
        // The sender lives in `shared`, so this cannot fail while `self` lives.
        let _ = depths.wait_for(|_| self.depth() == Depth::default()).await;
    }

    /// Starts no more jobs, waits for those that have begun, and cuts off what is left after
    /// `grace`. Says how many were cut off. A later call waits for the same end.
    pub async fn shutdown(&self, grace: Duration) -> usize {
        self.close(grace);
        self.task.end().await
    }

    fn close(&self, grace: Duration) {
        let mut state = self.shared.lock();
        if state.closed.is_none() {
            let now = self.shared.clock.elapsed();
            state.closed = Some(now.saturating_add(grace));
            state.line.clear();
        }
        self.shared.tell(state);
        self.shared.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
