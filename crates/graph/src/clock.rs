//! Where time comes from.
//!
//! The engine never reads a clock by itself: it asks the [`Clock`] it was given. [`SystemClock`] is
//! the only place that touches the machine's time; [`ManualClock`] moves when it is told to, which
//! makes retries and ages testable without waiting.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

/// A future that ends when a moment is reached.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the time and waits for it.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
    /// Ends once `deadline` is reached; at once if it has passed.
    fn sleep_until(&self, deadline: Timestamp) -> Sleep;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        let wait = Duration::try_from(deadline.duration_since(self.now())).unwrap_or_default();
        Box::pin(tokio::time::sleep(wait))
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Timestamp>>,
}

impl ManualClock {
    /// A clock that shows `start`.
    pub fn new(start: Timestamp) -> Self {
        Self { now: Arc::new(watch::Sender::new(start)) }
    }

    /// Moves the clock to `moment`; never backwards.
    pub fn set(&self, moment: Timestamp) {
        self.now.send_modify(|now| *now = (*now).max(moment));
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = later(*now, by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> Sleep {
        let mut moves = self.now.subscribe();
        Box::pin(async move {
            if moves.wait_for(|now| *now >= deadline).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

/// `moment` plus `by`, at most the end of time.
pub fn later(moment: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| moment.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// `moment` minus `by`, at least the beginning of time.
pub fn earlier(moment: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| moment.checked_sub(by).ok())
        .unwrap_or(Timestamp::MIN)
}

/// A number with a unit; seconds without one.
#[cfg(any(feature = "rest", feature = "scenario"))]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "ns" => number / 1e9,
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}
