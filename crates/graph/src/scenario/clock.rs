//! The clock of a scenario: it moves by hand while the steps are played, and afterwards it can be
//! replaced by the machine's, for good.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use mainstay_clock::{ManualClock, SystemClock};
use tokio_util::sync::CancellationToken;

use crate::time::Clock;

/// A manual clock until [`Self::go_live`], the machine's clock from then on.
#[derive(Debug)]
pub(super) struct ScenarioClock {
    manual: Arc<ManualClock>,
    system: Arc<SystemClock>,
    live: CancellationToken,
}

impl ScenarioClock {
    pub(super) fn new(manual: Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self { manual, system: SystemClock::new(), live: CancellationToken::new() })
    }

    /// Continues with the machine's clock. Everything that waits for a moment of the scenario has
    /// waited long enough.
    pub(super) fn go_live(&self) {
        self.live.cancel();
    }
}

impl Clock for ScenarioClock {
    fn now(&self) -> Timestamp {
        if self.live.is_cancelled() { self.system.now() } else { self.manual.now() }
    }

    fn elapsed(&self) -> Duration {
        let before = self.manual.elapsed();
        if self.live.is_cancelled() { before + self.system.elapsed() } else { before }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.live.is_cancelled() {
            return self.system.sleep(duration);
        }
        let (manual, live) = (self.manual.sleep(duration), self.live.clone());
        async move {
            tokio::select! {
                () = manual => {}
                () = live.cancelled() => {}
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn going_live_ends_the_waits_of_the_scenario() {
        let start: Timestamp = "2020-09-13T12:26:40Z".parse().unwrap();
        let clock = ScenarioClock::new(ManualClock::new(start));
        assert_eq!(clock.now(), start);
        let wait = clock.sleep(Duration::from_secs(3_600));
        clock.go_live();
        wait.await;
        assert!(clock.now() > start + jiff::SignedDuration::from_hours(24 * 365));
        clock.sleep(Duration::ZERO).await;
    }
}
