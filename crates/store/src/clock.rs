//! Time as an argument: the one place that reads the machine's clock.
//!
//! Everything that depends on time takes a [`Clock`]; tests take a [`ManualClock`] and move it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::oneshot;

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The time of day. May jump when the machine's clock is set.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment. Never jumps, never goes back.
    fn elapsed(&self) -> Duration;

    /// Completes once [`Clock::elapsed`] has grown by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's own clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose [`Clock::elapsed`] begins now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        tokio::time::sleep(duration).boxed()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock {
    inner: Mutex<Manual>,
}

#[derive(Debug)]
struct Manual {
    start: Timestamp,
    elapsed: Duration,
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    count: u64,
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Arc<Self> {
        let inner = Manual { start, elapsed: Duration::ZERO, sleepers: BTreeMap::new(), count: 0 };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// Moves time forward and wakes whoever slept until then, earliest first.
    pub fn advance(&self, duration: Duration) {
        let mut manual = self.lock();
        manual.elapsed += duration;
        let now = manual.elapsed;
        let asleep = manual.sleepers.split_off(&(now, u64::MAX));
        for sleeper in std::mem::replace(&mut manual.sleepers, asleep).into_values() {
            // Whoever no longer waits need not be woken.
            let _ = sleeper.send(());
        }
    }

    /// How many are asleep: tests wait for this before they advance.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        let mut manual = self.lock();
        manual.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        manual.sleepers.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Manual> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let manual = self.lock();
        manual.start + manual.elapsed
    }

    fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (sender, receiver) = oneshot::channel();
        let mut manual = self.lock();
        if duration.is_zero() {
            return std::future::ready(()).boxed();
        }
        let (until, count) = (manual.elapsed + duration, manual.count);
        manual.count += 1;
        manual.sleepers.insert((until, count), sender);
        // A dropped clock never wakes anybody: time stood still for good.
        async move {
            if receiver.await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }
}
