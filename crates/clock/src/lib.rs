//! Time: the clock that every crate reads, retry delays, and durations and sizes as text.
//!
//! A [`Clock`] is the only way to read the time or to sleep, so that tests can replace it by a
//! [`ManualClock`] and decide how time passes. [`Backoff`] is the only retry schedule. Durations are
//! read with [`duration::parse`] and sizes are written with [`bytes::format`], the same everywhere.
//!
//! This crate depends on no other crate of the project.

mod backoff;
pub mod bytes;
pub mod duration;
mod manual;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

pub use backoff::{Backoff, Retries};
pub use manual::ManualClock;

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The wall clock. It may jump when the machine's clock is set.
    fn now(&self) -> Timestamp;

    /// The monotonic clock: time since a fixed moment. It never jumps and never goes back.
    fn elapsed(&self) -> Duration;

    /// Completes once [`Clock::elapsed`] has grown by `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Completes after the time that is left until `deadline` on the wall clock; at once if it has
    /// passed. The time left is computed once: setting the machine's clock later has no effect.
    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'static, ()> {
        let left = deadline.duration_since(self.now());
        self.sleep(Duration::try_from(left).unwrap_or_default())
    }
}

/// The machine's clock.
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
