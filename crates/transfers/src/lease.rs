//! Renews the leases of the transfers that a worker has in progress. A copy whose lease was lost or
//! has expired is cancelled.

#![expect(clippy::disallowed_methods, reason = "leases run on the monotonic clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::worker::{Queue, SMALL};
use super::{Job, JobProgress};

/// How often the progress of large files is reported.
const PROGRESS: Duration = Duration::from_secs(2);

/// A transfer in progress.
#[derive(Clone, Debug)]
pub(super) struct ActiveTransfer {
    attempt: i64,
    bytes: i64,
    pub(super) moved: Arc<AtomicI64>,
    pub(super) stop: Arc<AtomicBool>,
    /// When its lease expires, unless it is renewed.
    until: Arc<Mutex<Instant>>,
}

impl ActiveTransfer {
    pub(super) fn new(job: &Job, until: Instant) -> Self {
        Self::of(job.attempt, job.bytes, until)
    }

    fn of(attempt: i64, bytes: i64, until: Instant) -> Self {
        let until = Arc::new(Mutex::new(until));
        Self { attempt, bytes, moved: Arc::default(), stop: Arc::default(), until }
    }

    /// Whether it must not write any more: it was cancelled, or its lease has expired. The process
    /// can be suspended at any time, and resume when another worker has the file.
    pub(super) fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Acquire) || Instant::now() >= *self.until.lock()
    }

    /// Whether its progress is reported between renewals: the file is large and the copy has begun.
    fn reports_progress(&self) -> bool {
        self.bytes > SMALL && self.moved.load(Ordering::Acquire) > 0
    }
}

/// The transfers in progress, by request.
pub(super) type InProgress = Arc<Mutex<BTreeMap<i64, ActiveTransfer>>>;

/// Renews leases until `stop` is cancelled. A copy whose lease was lost, or could not be renewed in
/// time, is cancelled. The progress of large files is reported in between.
pub(super) async fn keep_leases(
    queue: Arc<dyn Queue>,
    in_progress: InProgress,
    stop: CancellationToken,
) {
    let lease = queue.lease();
    let tick = PROGRESS.min(lease / 4);
    let ticks = (lease.as_millis() / 4).div_euclid(tick.as_millis().max(1)).max(1);
    for at in 1_u128.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(tick) => {}
        }
        let all = at % ticks == 0;
        let held: Vec<JobProgress> = in_progress
            .lock()
            .iter()
            .filter(|(_, transfer)| all || transfer.reports_progress())
            .map(|(request, transfer)| JobProgress {
                request: *request,
                attempt: transfer.attempt,
                moved: transfer.moved.load(Ordering::Acquire),
            })
            .collect();
        if held.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = renew(&*queue, &in_progress, held) => {}
        }
    }
}

async fn renew(queue: &dyn Queue, in_progress: &InProgress, held: Vec<JobProgress>) {
    let (asked, lease) = (Instant::now(), queue.lease());
    let answer = tokio::time::timeout(lease / 4, queue.renew(held.clone())).await;
    let lost: BTreeSet<i64> = match answer.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
        Ok(lost) => lost.into_iter().collect(),
        Err(error) => return tracing::warn!(error, "renewing transfer leases failed; retrying"),
    };
    let in_progress = in_progress.lock();
    for one in held {
        let Some(transfer) = in_progress.get(&one.request) else { continue };
        match lost.contains(&one.request) {
            true => transfer.stop.store(true, Ordering::Release),
            false => *transfer.until.lock() = asked + lease,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::super::Outcome;
    use super::*;

    /// A queue that answers renewals with these results in order; the last one repeats.
    struct Renewing(Mutex<VecDeque<Result<Vec<i64>, String>>>);

    impl Queue for Renewing {
        fn take(&self, _: usize) -> BoxFuture<'_, Result<Vec<Job>, String>> {
            async { Ok(Vec::new()) }.boxed()
        }

        fn renew(&self, _: Vec<JobProgress>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
            let mut answers = self.0.lock();
            let next =
                if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            async move {
                match next {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
            .boxed()
        }

        fn finish(&self, _: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
            async { Ok(Vec::new()) }.boxed()
        }

        fn woken(&self) -> BoxFuture<'_, ()> {
            std::future::pending().boxed()
        }

        fn lease(&self) -> Duration {
            Duration::from_millis(40)
        }
    }

    /// The expected end of a lease.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Renewed,
        Lost,
        Expires,
    }

    #[test]
    fn copies_are_cancelled_when_their_lease_is_lost_or_expires() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let refused = || Err("the catalog is unreachable".to_owned());
        for (fate, answers) in [
            (End::Renewed, vec![Ok(vec![])]),
            (End::Lost, vec![Ok(vec![1])]),
            (End::Lost, vec![Ok(vec![]), refused(), Ok(vec![]), Ok(vec![1])]),
            (End::Expires, vec![refused()]),
            (End::Expires, vec![Ok(vec![]), Ok(vec![]), refused()]),
            (End::Expires, vec![]),
        ] {
            let queue: Arc<dyn Queue> = Arc::new(Renewing(Mutex::new(answers.into())));
            let first = Instant::now() + queue.lease();
            let transfer = ActiveTransfer::of(1, 1, first);
            let in_progress: InProgress =
                Arc::new(Mutex::new(BTreeMap::from([(1, transfer.clone())])));
            let over = CancellationToken::new();
            let is_so = || match fate {
                End::Renewed => *transfer.until.lock() > first,
                End::Lost => transfer.stop.load(Ordering::Acquire),
                End::Expires => transfer.is_cancelled(),
            };
            runtime.block_on(async {
                let keeping = tokio::spawn(keep_leases(queue, in_progress, over.clone()));
                let seen = async {
                    while !is_so() {
                        tokio::task::yield_now().await;
                    }
                };
                let patience = Duration::from_secs(60);
                assert!(tokio::time::timeout(patience, seen).await.is_ok(), "{fate:?}");
                over.cancel();
                keeping.await.unwrap();
            });
        }
    }
}
