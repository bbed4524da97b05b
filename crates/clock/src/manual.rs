//! A clock for tests: it stands still until the test moves it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::Clock;

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    start: Timestamp,
    elapsed: Duration,
    /// By the moment to wake at, then in the order in which they went to sleep.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    count: u64,
}

impl State {
    fn now(&self) -> Timestamp {
        self.start.checked_add(self.elapsed).unwrap_or(Timestamp::MAX)
    }

    fn advance(&mut self, by: Duration) {
        self.elapsed = self.elapsed.saturating_add(by);
        let asleep = self.sleepers.split_off(&(self.elapsed, u64::MAX));
        for sleeper in std::mem::replace(&mut self.sleepers, asleep).into_values() {
            // An error means that the sleep was cancelled.
            let _ = sleeper.send(());
        }
    }
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Arc<Self> {
        let state = State { start, elapsed: Duration::ZERO, sleepers: BTreeMap::new(), count: 0 };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Moves time forward and wakes every sleeper whose time has come, the earliest first.
    pub fn advance(&self, duration: Duration) {
        self.state.lock().advance(duration);
    }

    /// Moves time forward to `moment`. Does nothing if `moment` has passed.
    pub fn set(&self, moment: Timestamp) {
        let mut state = self.state.lock();
        let by = moment.duration_since(state.now());
        state.advance(Duration::try_from(by).unwrap_or_default());
    }

    /// The number of sleepers. Tests wait for it before they advance.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        let mut state = self.state.lock();
        state.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        state.sleepers.len()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.state.lock().now()
    }

    fn elapsed(&self) -> Duration {
        self.state.lock().elapsed
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() {
            return std::future::ready(()).boxed();
        }
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let (until, count) = (state.elapsed.saturating_add(duration), state.count);
        state.count += 1;
        state.sleepers.insert((until, count), sender);
        async move {
            // If the clock was dropped, time stands still for good.
            if receiver.await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Arc<ManualClock> {
        ManualClock::new(Timestamp::UNIX_EPOCH)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn both_clocks_stand_still_until_moved() {
        let clock = clock();
        assert_eq!((clock.now(), clock.elapsed()), (Timestamp::UNIX_EPOCH, Duration::ZERO));
        clock.advance(seconds(3));
        assert_eq!((clock.now().as_second(), clock.elapsed()), (3, seconds(3)));
        clock.set(Timestamp::from_second(10).unwrap());
        clock.set(Timestamp::from_second(5).unwrap());
        assert_eq!((clock.now().as_second(), clock.elapsed()), (10, seconds(10)));
    }

    #[test]
    fn sleepers_wake_when_their_time_has_come_and_not_before() {
        let clock = clock();
        let mut short = clock.sleep(seconds(2));
        let mut long = clock.sleep_until(Timestamp::from_second(5).unwrap());
        assert!(clock.sleep(Duration::ZERO).now_or_never().is_some());
        assert!(clock.sleep_until(Timestamp::UNIX_EPOCH).now_or_never().is_some());
        assert_eq!(clock.sleepers(), 2);
        clock.advance(seconds(1));
        assert!((&mut short).now_or_never().is_none());
        clock.advance(seconds(1));
        assert!((&mut short).now_or_never().is_some());
        assert!((&mut long).now_or_never().is_none());
        assert_eq!(clock.sleepers(), 1);
        drop(long);
        assert_eq!(clock.sleepers(), 0, "a cancelled sleep does not count");
    }

    #[test]
    fn sleeps_never_end_after_the_clock_is_dropped() {
        let clock = clock();
        let sleep = clock.sleep(seconds(1));
        drop(clock);
        assert!(sleep.now_or_never().is_none());
    }
}
