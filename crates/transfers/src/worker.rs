//! The transfer worker: takes jobs, copies several files at once, renews its leases, reports
//! outcomes.
//!
//! It knows the queue only through [`Queue`]: the catalog of its own process, or a server over
//! HTTP. When it is stopped, it gives back the jobs in progress, which then wait for other
//! workers.

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
use super::lease::{ActiveTransfer, InProgress, keep_leases};
use super::store::{Access, Opened};
use super::{End, Job, JobProgress, Outcome};

/// The default duration of a lease. It is renewed four times within this time.
pub const LEASE: Duration = Duration::from_secs(60);

/// The time after which an idle worker polls the queue, unless it is woken.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The longest wait for an answer of the queue after the worker was stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The most outcomes that are reported together.
const REPORTED_TOGETHER: usize = 500;

/// The longest wait of the first outcome for others, while more copies are pending: syncing and
/// reporting many takes hardly longer than one.
const GATHER: Duration = Duration::from_millis(100);

/// Files up to this size are copied one after the other by the same thread, because waking a thread
/// for each takes longer than the copy.
pub(super) const SMALL: i64 = 4 << 20;

/// The bytes that a worker takes in advance for each concurrent copy.
const PREFETCH_BYTES: i64 = 128 << 20;

/// The most files that it takes in advance for each concurrent copy.
const PREFETCH_FILES: i64 = 512;

/// The queue from which a worker takes jobs.
pub trait Queue: Send + Sync {
    /// Takes up to `most` jobs.
    fn take(&self, most: usize) -> BoxFuture<'_, Result<Vec<Job>, String>>;
    /// Renews leases; returns the requests whose lease is lost.
    fn renew(&self, held: Vec<JobProgress>) -> BoxFuture<'_, Result<Vec<i64>, String>>;
    /// Reports outcomes; returns the requests whose file or RSE was deleted.
    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>>;
    /// Completes when there may be new jobs.
    fn woken(&self) -> BoxFuture<'_, ()>;
    /// The duration of a lease.
    fn lease(&self) -> Duration;
}

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker that copies `most` files concurrently.
    #[must_use]
    pub fn start(queue: Arc<dyn Queue>, access: Arc<Access>, most: usize) -> Self {
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(queue, access, most, stop.clone()));
        Self { stop, running }
    }

    /// Cancels the copies in progress and waits until the worker has stopped.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.running.await {
            tracing::error!(%error, "transfer worker panicked");
        }
    }
}

/// The number of files that a worker with `most` concurrent copies takes, by the size of the last
/// ones it took. Some files are always ready, so that no copy waits for the queue. Few large files
/// are taken, so that other workers get some.
fn prefetch(most: usize, last: &[Job]) -> usize {
    let bytes = last.iter().map(|job| job.bytes).fold(0, i64::saturating_add);
    let mean = bytes.checked_div(last.len() as i64).unwrap_or(i64::MAX).max(1);
    let each = (PREFETCH_BYTES / mean).clamp(2, PREFETCH_FILES);
    most.saturating_mul(usize::try_from(each).unwrap_or(2))
}

/// The number of files that one thread copies one after the other: more than one only if all are
/// small.
fn batch_size(most: usize, jobs: &[Job]) -> usize {
    match jobs.iter().all(|job| job.bytes <= SMALL) {
        true => (jobs.len() / most.saturating_mul(4).max(1)).clamp(1, 16),
        false => 1,
    }
}

/// Copies files until `stop` is cancelled, `most` concurrently.
async fn run(queue: Arc<dyn Queue>, access: Arc<Access>, most: usize, stop: CancellationToken) {
    if most == 0 {
        return;
    }
    let in_progress: InProgress = Arc::default();
    let slots = Arc::new(Semaphore::new(most));
    let pending = Arc::new(AtomicUsize::new(0));
    let (report, copied) = mpsc::channel(REPORTED_TOGETHER * 2);
    let (synced, to_report) = mpsc::channel(1);
    // Reported outcomes free capacity, here and below the limits of storage elements.
    let room = Arc::new(Notify::new());
    let syncing = Syncing { access: Arc::clone(&access), pending: Arc::clone(&pending), copied };
    let syncing = tokio::spawn(syncing.run(synced));
    let reporting = Reporting {
        queue: Arc::clone(&queue),
        access: Arc::clone(&access),
        in_progress: Arc::clone(&in_progress),
        room: Arc::clone(&room),
        stop: stop.clone(),
    };
    let reporting = tokio::spawn(reporting.run(to_report));
    let renewing =
        tokio::spawn(keep_leases(Arc::clone(&queue), Arc::clone(&in_progress), stop.clone()));
    let mut copies = JoinSet::new();
    let mut wanted = prefetch(most, &[]);
    while !stop.is_cancelled() {
        while copies.try_join_next().is_some() {}
        // More jobs are taken only when half of the last ones are copied, not one at a time. As
        // many may be copied and not reported yet.
        let until = Instant::now() + queue.lease();
        let unreported = wanted.saturating_mul(2).saturating_sub(in_progress.lock().len());
        let jobs = match wanted.saturating_sub(pending.load(Ordering::Acquire)).min(unreported) {
            room if room * 2 < wanted => None,
            room => Some(answer_of(&stop, queue.take(room)).await.unwrap_or_else(|error| {
                tracing::warn!(error, "taking transfers from the queue failed; retrying");
                Vec::new()
            })),
        };
        if let Some(jobs) = jobs.filter(|jobs| !jobs.is_empty()) {
            wanted = prefetch(most, &jobs);
            pending.fetch_add(jobs.len(), Ordering::AcqRel);
            let batch_size = batch_size(most, &jobs);
            let mut jobs =
                jobs.into_iter().map(|job| (ActiveTransfer::new(&job, until), job)).peekable();
            while jobs.peek().is_some() {
                let some: Vec<_> = jobs.by_ref().take(batch_size).collect();
                let new = some.iter().map(|(transfer, job)| (job.request, transfer.clone()));
                in_progress.lock().extend(new);
                let transfer = Batch {
                    some,
                    access: Arc::clone(&access),
                    pending: Arc::clone(&pending),
                    report: report.clone(),
                };
                copies.spawn(transfer.run(Arc::clone(&slots)));
            }
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            Some(_) = copies.join_next(), if !copies.is_empty() => {}
            () = queue.woken() => {}
            () = room.notified() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
    for transfer in in_progress.lock().values() {
        transfer.stop.store(true, Ordering::Release);
    }
    while copies.join_next().await.is_some() {}
    drop(report);
    for task in [syncing, reporting, renewing] {
        if let Err(error) = task.await {
            tracing::error!(%error, "task of the transfer worker panicked");
        }
    }
}

/// Waits for an answer of the queue; after `stop` was cancelled, for [`STOP_TIMEOUT`] at most.
async fn answer_of<T>(
    stop: &CancellationToken,
    answer: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::select! {
        answer = answer => answer,
        () = async { stop.cancelled().await; tokio::time::sleep(STOP_TIMEOUT).await } => {
            Err("no answer before the worker stopped".to_owned())
        }
    }
}

/// Files that one thread copies.
struct Batch {
    some: Vec<(ActiveTransfer, Job)>,
    access: Arc<Access>,
    pending: Arc<AtomicUsize>,
    report: mpsc::Sender<(Job, Outcome)>,
}

impl Batch {
    /// Copies the files one after the other once a slot is free, and sends the outcome of each.
    async fn run(self, slots: Arc<Semaphore>) {
        let slot = slots.acquire().await;
        let moved = tokio::task::spawn_blocking(move || {
            let mut opened = Opened::new(&self.access);
            for (transfer, job) in self.some {
                let outcome = transfer_one(&mut opened, &transfer, &job);
                self.pending.fetch_sub(1, Ordering::AcqRel);
                // Fails only if the worker has ended; then the lease expires.
                let _ = self.report.blocking_send((job, outcome));
            }
        });
        if let Err(error) = moved.await {
            tracing::error!(%error, "transfer task panicked");
        }
        drop(slot);
    }
}

/// Copies one file, and returns the outcome.
fn transfer_one(opened: &mut Opened<'_>, transfer: &ActiveTransfer, job: &Job) -> Outcome {
    let copy = || copy(opened, job, &transfer.moved, &|| transfer.is_cancelled());
    let done = catch_unwind(AssertUnwindSafe(copy));
    let outcome = match done {
        Ok(done) => Outcome::after(job, &done),
        Err(_) => Outcome::of(job, Some("the worker panicked".to_owned())),
    };
    if let Some(error) = &outcome.error {
        tracing::info!(file = %job.did, to = job.destination.rse, error, "transfer failed");
    }
    outcome
}

/// Syncs the destinations of copied files. If that fails, their outcomes become failures.
fn sync_destinations(access: &Access, some: &mut [(Job, Outcome)]) {
    let mut seen: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (job, outcome) in some.iter_mut().filter(|(_, outcome)| outcome.error.is_none()) {
        let (rse, protocol) = (&job.destination.rse, &job.destination.protocol);
        let fault = seen.entry(protocol.base()).or_insert_with(|| {
            let synced = access.open(rse, protocol).and_then(|store| store.sync());
            synced.err().map(|error| format!("destination {rse}: {error}"))
        });
        outcome.error.clone_from(fault);
    }
}

/// Jobs with their outcomes.
type Outcomes = Vec<(Job, Outcome)>;

/// Syncs copied files to disk, many together.
struct Syncing {
    access: Arc<Access>,
    /// The number of jobs that are taken and not copied yet.
    pending: Arc<AtomicUsize>,
    copied: mpsc::Receiver<(Job, Outcome)>,
}

impl Syncing {
    /// Syncs batches of copied files until there are no more. The batch before is reported
    /// meanwhile.
    async fn run(mut self, synced: mpsc::Sender<Outcomes>) {
        loop {
            let mut outcomes = self.gather().await;
            if outcomes.is_empty() {
                return;
            }
            let access = Arc::clone(&self.access);
            let syncing = tokio::task::spawn_blocking(move || {
                if catch_unwind(AssertUnwindSafe(|| sync_destinations(&access, &mut outcomes)))
                    .is_err()
                {
                    for (_, outcome) in &mut outcomes {
                        outcome.error.get_or_insert_with(|| "the worker panicked".to_owned());
                    }
                }
                outcomes
            });
            let Ok(outcomes) = syncing.await else { return };
            let _ = synced.send(outcomes).await;
        }
    }

    /// Collects the outcomes that arrive within [`GATHER`], at most [`REPORTED_TOGETHER`]; returns
    /// none at the end.
    async fn gather(&mut self) -> Outcomes {
        let mut some = Vec::new();
        self.copied.recv_many(&mut some, REPORTED_TOGETHER).await;
        let until = Instant::now() + GATHER;
        while (1..REPORTED_TOGETHER).contains(&some.len()) {
            let room = REPORTED_TOGETHER - some.len();
            // An outcome that is being sent at this moment is in the next batch.
            if self.pending.load(Ordering::Acquire) == 0 && self.copied.is_empty() {
                break;
            }
            let more = self.copied.recv_many(&mut some, room);
            match tokio::time::timeout_at(until, more).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        some
    }
}

/// Reports outcomes to the queue.
struct Reporting {
    queue: Arc<dyn Queue>,
    access: Arc<Access>,
    in_progress: InProgress,
    room: Arc<Notify>,
    stop: CancellationToken,
}

impl Reporting {
    async fn run(self, mut synced: mpsc::Receiver<Outcomes>) {
        while let Some(some) = synced.recv().await {
            self.report(some).await;
        }
    }

    async fn report(&self, some: Outcomes) {
        let (jobs, outcomes): (Vec<Job>, Vec<Outcome>) = some.into_iter().unzip();
        let unwanted: BTreeSet<i64> = match answer_of(&self.stop, self.queue.finish(outcomes)).await
        {
            Ok(unwanted) => unwanted.into_iter().collect(),
            Err(error) => {
                // Their leases expire, and the next worker finds the complete files.
                tracing::warn!(
                    error,
                    "reporting transfer outcomes failed; their leases will expire"
                );
                BTreeSet::new()
            }
        };
        for job in &jobs {
            // The lease is renewed until the outcome is reported.
            self.in_progress.lock().remove(&job.request);
        }
        self.room.notify_one();
        // Only files of deleted requests are removed here. The reaper removes the others, because
        // another worker may own them by now.
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
    fn outcomes_wait_for_others_only_while_copies_are_pending() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let (report, copied) = mpsc::channel(REPORTED_TOGETHER * 2);
        let pending = Arc::new(AtomicUsize::new(0));
        let mut syncing = Syncing { access: Arc::default(), pending: Arc::clone(&pending), copied };
        let mut gathered = |sent: usize, more: usize| {
            for _ in 0..sent {
                report.try_send(arrived()).unwrap();
            }
            pending.store(more, Ordering::Release);
            syncing.gather().now_or_never().map(|some| some.len())
        };
        assert_eq!(gathered(1, 0), Some(1), "no copy is pending");
        assert_eq!(gathered(3, 0), Some(3));
        assert_eq!(gathered(REPORTED_TOGETHER + 1, 5), Some(REPORTED_TOGETHER), "enough");
        assert_eq!(gathered(0, 0), Some(1), "the rest");
        assert_eq!(gathered(1, 1), None, "another copy is pending");
    }

    #[test]
    fn many_small_files_are_taken_at_a_time_and_few_large_ones() {
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
            assert_eq!(prefetch(4, &last), taken, "{sizes:?}");
        }
        for (sizes, at_once) in [
            (vec![], 1),
            (vec![100_000; 8], 1),
            (vec![100_000; 256], 16),
            (vec![100_000; 2_000], 16),
            (vec![1 << 30; 256], 1),
        ] {
            let jobs: Vec<Job> = sizes.iter().copied().map(job).collect();
            assert_eq!(batch_size(4, &jobs), at_once, "{} of {:?}", sizes.len(), sizes.first());
        }
    }

    #[test]
    fn no_copy_starts_after_its_lease_has_expired() {
        let (job, _) = arrived();
        let access = Access::default();
        let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        for (until, given_up) in [(past, true), (past + Duration::from_secs(3_600), false)] {
            let outcome =
                transfer_one(&mut Opened::new(&access), &ActiveTransfer::new(&job, until), &job);
            assert_eq!(outcome.given_up, given_up, "{:?}", outcome.error);
        }
    }
}
