//! The keyed work queue: what is waiting to be reconciled, and when its turn is.
//!
//! A key stands for "look at this again", never for what happened to it. So a key that is asked
//! for ten times while it waits is worked on once, and one that is asked for while it is being
//! worked on is worked on once more afterwards, because that worker may have read the state
//! before it changed.
//!
//! Always true:
//! * No key is with two workers at once.
//! * After every [`Queue::add`] a run of that key begins; nothing is lost, also when a worker
//!   panics or is cancelled (its [`Work`] puts the key back).
//! * Each key has at most one next run, at the earliest of the times asked for: an add cancels a
//!   delay, and of two delays the sooner stays.
//! * Keys that are due are served first come, first served.
//! * A key that fails waits longer each time ([`Backoff`]), and all failing keys together come
//!   back no faster than a token bucket lets them ([`Flow`]). First tries are never held up by it.
//! * A success forgets the failures before it, and the queue remembers nothing of the key.
//!
//! [`Backlog`] is all of this as plain data with time as an argument. [`Queue`] is the shell that
//! lets tasks wait for work on a [`Clock`]. Every operation costs O(log n) in the number of keys.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use mainstay_clock::{Backoff, Clock};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::meter::{Depth, Meter, NoMeter};
use crate::rate::{Bucket, Flow};

/// A key of a queue: small, ordered, cheap to clone.
pub trait QueueKey: Ord + Clone + Debug + Send + Sync + 'static {}

impl<K: Ord + Clone + Debug + Send + Sync + 'static> QueueKey for K {}

/// How fast failing keys come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// For each key by itself.
    pub backoff: Backoff,
    /// For the retries of all keys together.
    pub retries: Flow,
}

/// How work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done; its failures are forgotten.
    Done,
    /// Once more after this long; its failures are forgotten.
    After(Duration),
    /// Once more with back-off: it failed.
    Retry,
}

/// A key whose turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<K> {
    /// The key.
    pub key: K,
    /// How long it had been due.
    pub waited: Duration,
    /// How often it failed in a row before this.
    pub failures: u32,
}

#[derive(Debug)]
struct Item {
    place: Place,
    failures: u32,
}

#[derive(Debug)]
enum Place {
    Ready {
        since: Duration,
    },
    Delayed {
        until: Duration,
        ticket: u64,
    },
    /// With a worker, and when to run it again if it was added meanwhile.
    Running {
        again: Option<Duration>,
    },
}

/// The queue as plain data.
#[derive(Debug)]
pub struct Backlog<K> {
    items: BTreeMap<K, Item>,
    ready: VecDeque<K>,
    delayed: BTreeMap<(Duration, u64), K>,
    running: usize,
    tickets: u64,
    backoff: Backoff,
    bucket: Bucket,
}

impl<K: QueueKey> Backlog<K> {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            items: BTreeMap::new(),
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            running: 0,
            tickets: 0,
            backoff: limits.backoff,
            bucket: Bucket::new(limits.retries),
        }
    }

    /// Asks for a run of `key` at `due`, or sooner if one is coming sooner anyway.
    pub fn add(&mut self, key: K, due: Duration, now: Duration) {
        self.promote(now);
        match self.items.get_mut(&key) {
            None => self.put(key, due, 0, now),
            Some(item) => match &mut item.place {
                Place::Ready { .. } => {}
                Place::Running { again } => *again = Some(again.map_or(due, |at| at.min(due))),
                Place::Delayed { until, ticket } if due < *until => {
                    let (place, failures) = ((*until, *ticket), item.failures);
                    self.delayed.remove(&place);
                    self.put(key, due, failures, now);
                }
                Place::Delayed { .. } => {}
            },
        }
    }

    /// Hands out the key that has been due the longest.
    pub fn take(&mut self, now: Duration) -> Option<Taken<K>> {
        self.promote(now);
        let key = self.ready.pop_front()?;
        let item = self.items.get_mut(&key)?;
        let Place::Ready { since } = item.place else {
            unreachable!("only keys in their ready place are in line");
        };
        item.place = Place::Running { again: None };
        self.running += 1;
        Some(Taken { key, waited: now.saturating_sub(since), failures: item.failures })
    }

    /// Takes a key back from its worker. Returns the delay if it will be retried for failing.
    ///
    /// A key that is not with a worker is left as it is.
    pub fn finish(&mut self, key: &K, verdict: Verdict, now: Duration) -> Option<Duration> {
        self.promote(now);
        let item = self.items.get(key)?;
        let Place::Running { again } = item.place else {
            return None;
        };
        let (asked, mut failures) = (again, item.failures);
        let mut retry = None;
        let wanted = match verdict {
            Verdict::Done => None,
            Verdict::After(delay) => Some(now.saturating_add(delay)),
            Verdict::Retry => {
                failures = failures.saturating_add(1);
                // A run that was asked for meanwhile is a first try: it costs no token.
                (asked.is_none_or(|at| at > now)).then(|| {
                    let delay = self.backoff.after(failures).max(self.bucket.reserve(now));
                    retry = Some(delay);
                    now.saturating_add(delay)
                })
            }
        };
        if verdict != Verdict::Retry {
            failures = 0;
        }
        self.running -= 1;
        match asked.into_iter().chain(wanted).min() {
            Some(due) => self.put(key.clone(), due, failures, now),
            None => drop(self.items.remove(key)),
        }
        retry
    }

    /// When [`Backlog::take`] is worth trying: a moment that has passed means now.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        if self.ready.is_empty() {
            self.delayed.first_key_value().map(|((until, _), _)| *until)
        } else {
            Some(Duration::ZERO)
        }
    }

    /// How many keys there are.
    #[must_use]
    pub fn depth(&self) -> Depth {
        Depth { ready: self.ready.len(), delayed: self.delayed.len(), running: self.running }
    }

    fn put(&mut self, key: K, due: Duration, failures: u32, now: Duration) {
        let place = if due <= now {
            self.ready.push_back(key.clone());
            Place::Ready { since: now }
        } else {
            let ticket = self.tickets;
            self.tickets += 1;
            self.delayed.insert((due, ticket), key.clone());
            Place::Delayed { until: due, ticket }
        };
        self.items.insert(key, Item { place, failures });
    }

    /// Lines up the keys whose time has come, in the order of their times.
    fn promote(&mut self, now: Duration) {
        while let Some(entry) = self.delayed.first_entry()
            && entry.key().0 <= now
        {
            let ((until, _), key) = entry.remove_entry();
            if let Some(item) = self.items.get_mut(&key) {
                item.place = Place::Ready { since: until };
                self.ready.push_back(key);
            }
        }
    }
}

/// Waits until `due`, but no longer than a day: the caller checks a later moment again.
pub(crate) async fn sleep_until(clock: &dyn Clock, due: Duration) {
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    let wait = due.saturating_sub(clock.elapsed());
    clock.sleep(wait.min(LONGEST)).await;
}

/// A [`Backlog`] that tasks can wait at. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

#[derive(Debug)]
struct Shared<K> {
    name: String,
    backlog: Mutex<Backlog<K>>,
    changed: Notify,
    clock: Arc<dyn Clock>,
    meter: Arc<dyn Meter>,
}

impl<K: QueueKey> Queue<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(name: &str, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self::metered(name, limits, clock, Arc::new(NoMeter))
    }

    /// An empty queue that tells `meter` what it does.
    #[must_use]
    pub fn metered(
        name: &str,
        limits: Limits,
        clock: Arc<dyn Clock>,
        meter: Arc<dyn Meter>,
    ) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            backlog: Mutex::new(Backlog::new(limits)),
            changed: Notify::new(),
            clock,
            meter,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Asks for a run of `key` as soon as may be. Calling it again before the run begins changes
    /// nothing.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Asks for a run of `key` after `delay`, or sooner if one is coming sooner anyway.
    pub fn add_after(&self, key: K, delay: Duration) {
        let now = self.shared.clock.elapsed();
        let mut backlog = self.shared.lock();
        backlog.add(key, now.saturating_add(delay), now);
        self.shared.tell(backlog);
    }

    /// Waits for the next key whose turn it is.
    ///
    /// Safe to cancel: a key is handed out only when this returns. Many may wait at once.
    pub async fn take(&self) -> Work<K> {
        let _baton = Baton(&self.shared);
        loop {
            let changed = self.shared.changed.notified();
            let due = match self.try_take() {
                Ok(work) => return work,
                Err(due) => due,
            };
            let Some(due) = due else {
                changed.await;
                continue;
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(&*self.shared.clock, due) => {}
            }
        }
    }

    /// The next key whose turn it is, or else the time to look again.
    fn try_take(&self) -> Result<Work<K>, Option<Duration>> {
        let now = self.shared.clock.elapsed();
        let mut backlog = self.shared.lock();
        let Some(taken) = backlog.take(now) else {
            return Err(backlog.next_due());
        };
        self.shared.tell(backlog);
        self.shared.meter.waited(&self.shared.name, taken.waited);
        Ok(Work { shared: self.shared.clone(), taken, finished: false })
    }

    /// How many keys there are.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.shared.lock().depth()
    }
}

impl<K: QueueKey> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, Backlog<K>> {
        self.backlog.lock()
    }

    /// Unlocks, and wakes one waiter if there is anything to wait for.
    fn tell(&self, backlog: MutexGuard<'_, Backlog<K>>) {
        let (depth, pending) = (backlog.depth(), backlog.next_due().is_some());
        drop(backlog);
        if pending {
            self.changed.notify_one();
        }
        self.meter.depth(&self.name, depth);
    }

    fn finish(&self, key: &K, verdict: Verdict) -> Option<Duration> {
        let now = self.clock.elapsed();
        let mut backlog = self.lock();
        let retry = backlog.finish(key, verdict, now);
        self.tell(backlog);
        if let Some(delay) = retry {
            self.meter.retried(&self.name, delay);
        }
        retry
    }
}

/// Held by a waiter. Only one waiter is woken for a new time; when it stops waiting, for any reason,
/// another must be woken.
struct Baton<'a, K: QueueKey>(&'a Shared<K>);

impl<K: QueueKey> Drop for Baton<'_, K> {
    fn drop(&mut self) {
        if self.0.lock().next_due().is_some() {
            self.0.changed.notify_one();
        }
    }
}

/// A key in the hands of its one worker. Dropped unfinished, it goes back as if it had failed.
#[derive(Debug)]
pub struct Work<K: QueueKey> {
    shared: Arc<Shared<K>>,
    taken: Taken<K>,
    finished: bool,
}

impl<K: QueueKey> Work<K> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.taken.key
    }

    /// How often it failed in a row before this.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.taken.failures
    }

    /// Gives the key back. Returns the delay if it will be retried for failing.
    pub fn finish(mut self, verdict: Verdict) -> Option<Duration> {
        self.finished = true;
        self.shared.finish(&self.taken.key, verdict)
    }
}

impl<K: QueueKey> Drop for Work<K> {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.finish(&self.taken.key, Verdict::Retry);
        }
    }
}

#[cfg(test)]
mod tests;
