//! The transfer worker: takes jobs, copies several files at once, renews its leases, reports outcomes.
//!
//! It knows the queue only through [`Queue`]: the catalog of its own process, or a server over HTTP. When
//! it is stopped, it gives back the jobs under way, which then wait for other workers.

#![expect(clippy::disallowed_methods, reason = "leases run on the monotonic clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::copy::copy;
use super::lease::{Moving, Under, keep_leases};
use super::store::{Access, Opened};
use super::{End, Held, Job, Outcome};

/// How long a lease lasts unless it is renewed, or somebody says otherwise. It is renewed four times
/// as often.
pub const LEASE: Duration = Duration::from_secs(60);

/// How long a worker without work waits before it asks again, unless it is woken.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits for an answer when it is to stop.
const LAST: Duration = Duration::from_secs(3);

/// How many outcomes are told at once at most.
const TOLD_TOGETHER: usize = 500;

/// How long the first of them waits for others at most, while there are any on their way: putting
/// many on disk and telling of them takes hardly longer than one.
const GATHER: Duration = Duration::from_millis(100);

/// Files up to this size are moved one after the other by the same thread: waking one takes longer.
pub(super) const SMALL: i64 = 4 << 20;

/// How many bytes a worker has ahead for each file it moves at once.
const AHEAD: i64 = 128 << 20;

/// How many files it has ahead for each, at most.
const MOST_AHEAD: i64 = 512;

/// Where a worker's files come from.
pub trait Queue: Send + Sync {
    /// Takes up to `most` files.
    fn take(&self, most: usize) -> BoxFuture<'_, Result<Vec<Job>, String>>;
    /// Keeps what is held; returns the requests that are ours no longer.
    fn renew(&self, held: Vec<Held>) -> BoxFuture<'_, Result<Vec<i64>, String>>;
    /// Tells what became of some; returns the requests whose file or RSE is gone.
    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>>;
    /// Completes when there may be more to do.
    fn woken(&self) -> BoxFuture<'_, ()>;
    /// How long a lease lasts.
    fn lease(&self) -> Duration;
}

/// A worker that runs.
#[derive(Debug)]
pub struct Worker {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Worker {
    /// Starts to move files, `most` at once.
    #[must_use]
    pub fn start(queue: Arc<dyn Queue>, access: Arc<Access>, most: usize) -> Self {
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(queue, access, most, stop.clone()));
        Self { stop, running }
    }

    /// Gives up what is under way and waits for the end.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.running.await {
            tracing::error!(%error, "transfer worker panicked");
        }
    }
}

/// How many files a worker has at once that moves `most`, by the size of the last ones it had. Some
/// are always ready, so that no copy waits for the catalog, and some have arrived and are not told
/// of yet; large ones are left to others.
fn ahead(most: usize, last: &[Job]) -> usize {
    let bytes = last.iter().map(|job| job.bytes).fold(0, i64::saturating_add);
    let mean = bytes.checked_div(last.len() as i64).unwrap_or(i64::MAX).max(1);
    let each = (AHEAD / mean).clamp(2, MOST_AHEAD);
    most.saturating_mul(usize::try_from(each).unwrap_or(2))
}

/// How many files one thread moves one after the other: small ones, so that none is woken for each.
fn together(most: usize, jobs: &[Job]) -> usize {
    match jobs.iter().all(|job| job.bytes <= SMALL) {
        true => (jobs.len() / most.saturating_mul(4).max(1)).clamp(1, 16),
        false => 1,
    }
}

/// Moves files until it is told to stop, `most` at once.
async fn run(queue: Arc<dyn Queue>, access: Arc<Access>, most: usize, stop: CancellationToken) {
    if most == 0 {
        return;
    }
    let under: Under = Arc::default();
    let turns = Arc::new(Semaphore::new(most));
    let coming = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel(TOLD_TOGETHER * 2);
    let (settled, settle) = mpsc::channel(1);
    // What was told makes room, here and below the limits of storage elements: there may be more.
    let room = Arc::new(Notify::new());
    let settling = Settling { access: Arc::clone(&access), coming: Arc::clone(&coming), told };
    let settling = tokio::spawn(settling.run(settled));
    let telling = Telling {
        queue: Arc::clone(&queue),
        access: Arc::clone(&access),
        under: Arc::clone(&under),
        room: Arc::clone(&room),
        stop: stop.clone(),
    };
    let telling = tokio::spawn(telling.run(settle));
    let renewing = tokio::spawn(keep_leases(Arc::clone(&queue), Arc::clone(&under), stop.clone()));
    let mut copies = JoinSet::new();
    let mut wanted = ahead(most, &[]);
    while !stop.is_cancelled() {
        while copies.try_join_next().is_some() {}
        // Asked for only when half of them have arrived: not for one at a time. As many may have
        // arrived and not be told of yet.
        let until = Instant::now() + queue.lease();
        let untold = wanted.saturating_mul(2).saturating_sub(under.lock().len());
        let jobs = match wanted.saturating_sub(coming.load(Ordering::Acquire)).min(untold) {
            room if room * 2 < wanted => None,
            room => Some(within(&stop, queue.take(room)).await.unwrap_or_else(|error| {
                tracing::warn!(error, "taking transfers from the queue failed; retrying");
                Vec::new()
            })),
        };
        if let Some(jobs) = jobs.filter(|jobs| !jobs.is_empty()) {
            wanted = ahead(most, &jobs);
            coming.fetch_add(jobs.len(), Ordering::AcqRel);
            let together = together(most, &jobs);
            let mut jobs = jobs.into_iter().map(|job| (Moving::new(&job, until), job)).peekable();
            while jobs.peek().is_some() {
                let some: Vec<_> = jobs.by_ref().take(together).collect();
                let new = some.iter().map(|(moving, job)| (job.request, moving.clone()));
                under.lock().extend(new);
                let moving = Batch {
                    some,
                    access: Arc::clone(&access),
                    coming: Arc::clone(&coming),
                    tell: tell.clone(),
                };
                copies.spawn(moving.run(Arc::clone(&turns)));
            }
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            Some(_) = copies.join_next(), if !copies.is_empty() => {}
            () = queue.woken() => {}
            () = room.notified() => {}
            () = tokio::time::sleep(PATIENCE) => {}
        }
    }
    for moving in under.lock().values() {
        moving.stop.store(true, Ordering::Release);
    }
    while copies.join_next().await.is_some() {}
    drop(tell);
    for task in [settling, telling, renewing] {
        if let Err(error) = task.await {
            tracing::error!(%error, "task of the transfer worker panicked");
        }
    }
}

/// Waits for an answer; for who is told to stop, not long.
async fn within<T>(
    stop: &CancellationToken,
    answer: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::select! {
        answer = answer => answer,
        () = async { stop.cancelled().await; tokio::time::sleep(LAST).await } => {
            Err("nobody answers".to_owned())
        }
    }
}

/// Files that one thread moves.
struct Batch {
    some: Vec<(Moving, Job)>,
    access: Arc<Access>,
    coming: Arc<AtomicUsize>,
    tell: mpsc::Sender<(Job, Outcome)>,
}

impl Batch {
    /// Moves them one after the other when it is their turn, and hands over what became of each.
    async fn run(self, turns: Arc<Semaphore>) {
        let turn = turns.acquire().await;
        let moved = tokio::task::spawn_blocking(move || {
            let mut opened = Opened::new(&self.access);
            for (moving, job) in self.some {
                let outcome = one(&mut opened, &moving, &job);
                self.coming.fetch_sub(1, Ordering::AcqRel);
                // Nobody listens only when all is over; then the lease runs out.
                let _ = self.tell.blocking_send((job, outcome));
            }
        });
        if let Err(error) = moved.await {
            tracing::error!(%error, "transfer task panicked");
        }
        drop(turn);
    }
}

/// Moves one file, and says what became of it.
fn one(opened: &mut Opened<'_>, moving: &Moving, job: &Job) -> Outcome {
    let copy = || copy(opened, job, &moving.moved, &|| moving.is_over());
    let done = catch_unwind(AssertUnwindSafe(copy));
    let outcome = match done {
        Ok(done) => Outcome::after(job, &done),
        Err(_) => Outcome::of(job, Some("the worker failed".to_owned())),
    };
    if let Some(error) = &outcome.error {
        tracing::info!(file = %job.did, to = job.destination.rse, error, "transfer failed");
    }
    outcome
}

/// Puts what has arrived on disk for good; what cannot be has not arrived.
fn settle(access: &Access, some: &mut [(Job, Outcome)]) {
    let mut seen: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (job, outcome) in some.iter_mut().filter(|(_, outcome)| outcome.error.is_none()) {
        let (rse, protocol) = (&job.destination.rse, &job.destination.protocol);
        let fault = seen.entry(protocol.base()).or_insert_with(|| {
            let synced = access.open(rse, protocol).and_then(|store| store.sync());
            synced.err().map(|error| format!("at the destination {rse} {error}"))
        });
        outcome.error.clone_from(fault);
    }
}

/// What became of some files.
type Outcomes = Vec<(Job, Outcome)>;

/// Puts files on disk for good, many at once.
struct Settling {
    access: Arc<Access>,
    /// Files that are taken and have not arrived.
    coming: Arc<AtomicUsize>,
    told: mpsc::Receiver<(Job, Outcome)>,
}

impl Settling {
    /// Settles outcomes until there are no more. Meanwhile those before are told.
    async fn run(mut self, settled: mpsc::Sender<Outcomes>) {
        loop {
            let mut outcomes = self.gather().await;
            if outcomes.is_empty() {
                return;
            }
            let access = Arc::clone(&self.access);
            let settling = tokio::task::spawn_blocking(move || {
                if catch_unwind(AssertUnwindSafe(|| settle(&access, &mut outcomes))).is_err() {
                    for (_, outcome) in &mut outcomes {
                        outcome.error.get_or_insert_with(|| "the worker failed".to_owned());
                    }
                }
                outcomes
            });
            let Ok(outcomes) = settling.await else { return };
            let _ = settled.send(outcomes).await;
        }
    }

    /// As many outcomes as are told together, or all that come soon; none when there are no more.
    async fn gather(&mut self) -> Outcomes {
        let mut some = Vec::new();
        self.told.recv_many(&mut some, TOLD_TOGETHER).await;
        let until = Instant::now() + GATHER;
        while (1..TOLD_TOGETHER).contains(&some.len()) {
            let room = TOLD_TOGETHER - some.len();
            // One that is being handed over at this moment goes with the next ones.
            if self.coming.load(Ordering::Acquire) == 0 && self.told.is_empty() {
                break;
            }
            let more = self.told.recv_many(&mut some, room);
            match tokio::time::timeout_at(until, more).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        some
    }
}

/// Tells what became of files.
struct Telling {
    queue: Arc<dyn Queue>,
    access: Arc<Access>,
    under: Under,
    room: Arc<Notify>,
    stop: CancellationToken,
}

impl Telling {
    async fn run(self, mut settled: mpsc::Receiver<Outcomes>) {
        while let Some(some) = settled.recv().await {
            self.tell(some).await;
        }
    }

    async fn tell(&self, some: Outcomes) {
        let (jobs, outcomes): (Vec<Job>, Vec<Outcome>) = some.into_iter().unzip();
        let unwanted: BTreeSet<i64> = match within(&self.stop, self.queue.finish(outcomes)).await {
            Ok(unwanted) => unwanted.into_iter().collect(),
            Err(error) => {
                // Their leases run out, and whoever takes them next finds the files there.
                tracing::warn!(
                    error,
                    "reporting transfer outcomes failed; their leases will expire"
                );
                BTreeSet::new()
            }
        };
        for job in &jobs {
            // Until it is told its lease is kept.
            self.under.lock().remove(&job.request);
        }
        self.room.notify_one();
        // All else that counts for nothing is the reaper's: here it might be another's by now.
        for job in jobs.into_iter().filter(|job| unwanted.contains(&job.request)) {
            let access = Arc::clone(&self.access);
            let removed = tokio::task::spawn_blocking(move || {
                let End { rse, protocol, path } = &job.destination;
                access.open(rse, protocol).and_then(|store| store.remove(path))
            });
            if let Ok(Err(error)) = removed.await {
                tracing::warn!(%error, "removing the copy of a deleted file failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use futures_util::FutureExt;

    use super::*;
    use crate::did::Did;
    use crate::protocol::Protocol;

    fn arrived() -> (Job, Outcome) {
        let protocol = Arc::new(Protocol::read("file", &Map::new()).unwrap());
        let end = End { rse: "A".to_owned(), protocol, path: "f".to_owned() };
        let job = Job {
            request: 1,
            attempt: 1,
            did: Did::new("s", "f"),
            bytes: 1,
            adler32: None,
            md5: None,
            source: end.clone(),
            destination: end,
        };
        let outcome = Outcome::of(&job, None);
        (job, outcome)
    }

    #[test]
    fn what_arrives_waits_for_what_is_coming_and_for_nothing_else() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _within = runtime.enter();
        let (tell, told) = mpsc::channel(TOLD_TOGETHER * 2);
        let coming = Arc::new(AtomicUsize::new(0));
        let mut settling = Settling { access: Arc::default(), coming: Arc::clone(&coming), told };
        let mut gathered = |sent: usize, more: usize| {
            for _ in 0..sent {
                tell.try_send(arrived()).unwrap();
            }
            coming.store(more, Ordering::Release);
            settling.gather().now_or_never().map(|some| some.len())
        };
        assert_eq!(gathered(1, 0), Some(1), "nobody else comes");
        assert_eq!(gathered(3, 0), Some(3));
        assert_eq!(gathered(TOLD_TOGETHER + 1, 5), Some(TOLD_TOGETHER), "enough");
        assert_eq!(gathered(0, 0), Some(1), "the rest");
        assert_eq!(gathered(1, 1), None, "another comes");
    }

    #[test]
    fn small_files_are_taken_many_at_a_time_and_large_ones_are_left_to_others() {
        let protocol = Arc::new(Protocol::read("file", &Map::new()).unwrap());
        let end = End { rse: "A".to_owned(), protocol, path: "f".to_owned() };
        let job = |bytes: i64| Job {
            request: 1,
            attempt: 1,
            did: Did::new("s", "f"),
            bytes,
            adler32: None,
            md5: None,
            source: end.clone(),
            destination: end.clone(),
        };
        for (sizes, taken) in [
            (vec![], 8),
            (vec![100_000; 3], 2_048),
            (vec![0; 3], 2_048),
            (vec![4 << 20; 3], 128),
            (vec![100_000, 1 << 30], 8),
            (vec![i64::MAX, i64::MAX], 8),
        ] {
            let last: Vec<Job> = sizes.iter().copied().map(job).collect();
            assert_eq!(ahead(4, &last), taken, "{sizes:?}");
        }
        for (sizes, at_once) in [
            (vec![], 1),
            (vec![100_000; 8], 1),
            (vec![100_000; 256], 16),
            (vec![100_000; 2_000], 16),
            (vec![1 << 30; 256], 1),
        ] {
            let jobs: Vec<Job> = sizes.iter().copied().map(job).collect();
            assert_eq!(together(4, &jobs), at_once, "{} of {:?}", sizes.len(), sizes.first());
        }
    }

    #[test]
    fn nothing_is_begun_after_its_lease() {
        let (job, _) = arrived();
        let access = Access::default();
        let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        for (until, given_up) in [(past, true), (past + Duration::from_secs(3_600), false)] {
            let outcome = one(&mut Opened::new(&access), &Moving::new(&job, until), &job);
            assert_eq!(outcome.given_up, given_up, "{:?}", outcome.error);
        }
    }
}
