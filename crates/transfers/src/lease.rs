//! The files a worker has under way, each for as long as its lease. Leases are renewed while the worker
//! runs; a copy whose lease was lost or has expired is cancelled.

#![expect(clippy::disallowed_methods, reason = "leases run on the monotonic clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::worker::{Queue, SMALL};
use super::{Held, Job};

/// How often it is told how far a large file is.
const PROGRESS: Duration = Duration::from_secs(2);

/// A file under way.
#[derive(Clone, Debug)]
pub(super) struct Moving {
    attempt: i64,
    bytes: i64,
    pub(super) moved: Arc<AtomicI64>,
    pub(super) stop: Arc<AtomicBool>,
    /// When its lease is over, unless it is renewed.
    until: Arc<Mutex<Instant>>,
}

impl Moving {
    pub(super) fn new(job: &Job, until: Instant) -> Self {
        Self::of(job.attempt, job.bytes, until)
    }

    fn of(attempt: i64, bytes: i64, until: Instant) -> Self {
        let until = Arc::new(Mutex::new(until));
        Self { attempt, bytes, moved: Arc::default(), stop: Arc::default(), until }
    }

    /// Whether nothing may be written for it any more: it was given up, or its lease is over. A
    /// worker can be stopped at any moment, and go on when others are at its files.
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire) || Instant::now() >= *self.until.lock()
    }

    /// Whether people want to see how far it is.
    fn is_watched(&self) -> bool {
        self.bytes > SMALL && self.moved.load(Ordering::Acquire) > 0
    }
}

/// What is under way, by request.
pub(super) type Under = Arc<Mutex<BTreeMap<i64, Moving>>>;

/// Renews leases; a copy whose lease is gone, or could not be renewed in time, is given up. How far
/// large files are is told in between.
pub(super) async fn keep_leases(queue: Arc<dyn Queue>, under: Under, stop: CancellationToken) {
    let lease = queue.lease();
    let tick = PROGRESS.min(lease / 4);
    let ticks = (lease.as_millis() / 4).div_euclid(tick.as_millis().max(1)).max(1);
    for at in 1_u128.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(tick) => {}
        }
        let all = at % ticks == 0;
        let held: Vec<Held> = under
            .lock()
            .iter()
            .filter(|(_, moving)| all || moving.is_watched())
            .map(|(request, moving)| Held {
                request: *request,
                attempt: moving.attempt,
                moved: moving.moved.load(Ordering::Acquire),
            })
            .collect();
        if held.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = renew(&*queue, &under, held) => {}
        }
    }
}

async fn renew(queue: &dyn Queue, under: &Under, held: Vec<Held>) {
    let (asked, lease) = (Instant::now(), queue.lease());
    let answer = tokio::time::timeout(lease / 4, queue.renew(held.clone())).await;
    let lost: BTreeSet<i64> = match answer.unwrap_or_else(|_| Err("nobody answers".to_owned())) {
        Ok(lost) => lost.into_iter().collect(),
        Err(error) => return tracing::warn!(error, "renewing transfer leases failed; retrying"),
    };
    let under = under.lock();
    for one in held {
        let Some(moving) = under.get(&one.request) else { continue };
        match lost.contains(&one.request) {
            true => moving.stop.store(true, Ordering::Release),
            false => *moving.until.lock() = asked + lease,
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

    /// Answers each renewal as it is told, and the last one from then on.
    struct Renewing(Mutex<VecDeque<Result<Vec<i64>, String>>>);

    impl Queue for Renewing {
        fn take(&self, _: usize) -> BoxFuture<'_, Result<Vec<Job>, String>> {
            async { Ok(Vec::new()) }.boxed()
        }

        fn renew(&self, _: Vec<Held>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
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

    /// What becomes of a lease.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Kept,
        Lost,
        RunsOut,
    }

    #[test]
    fn what_is_no_longer_leased_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let refused = || Err("the catalog is away".to_owned());
        for (fate, answers) in [
            (Fate::Kept, vec![Ok(vec![])]),
            (Fate::Lost, vec![Ok(vec![1])]),
            (Fate::Lost, vec![Ok(vec![]), refused(), Ok(vec![]), Ok(vec![1])]),
            (Fate::RunsOut, vec![refused()]),
            (Fate::RunsOut, vec![Ok(vec![]), Ok(vec![]), refused()]),
            (Fate::RunsOut, vec![]),
        ] {
            let queue: Arc<dyn Queue> = Arc::new(Renewing(Mutex::new(answers.into())));
            let first = Instant::now() + queue.lease();
            let moving = Moving::of(1, 1, first);
            let under: Under = Arc::new(Mutex::new(BTreeMap::from([(1, moving.clone())])));
            let over = CancellationToken::new();
            let is_so = || match fate {
                Fate::Kept => *moving.until.lock() > first,
                Fate::Lost => moving.stop.load(Ordering::Acquire),
                Fate::RunsOut => moving.is_over(),
            };
            runtime.block_on(async {
                let keeping = tokio::spawn(keep_leases(queue, under, over.clone()));
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
