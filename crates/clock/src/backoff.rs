//! How long to wait before the next try. Pure: failures and randomness are arguments.

use std::time::Duration;

/// A retry schedule: the wait doubles with every failure in a row, up to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// No wait is longer.
    pub most: Duration,
}

impl Default for Backoff {
    /// From 5 ms to one minute.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(60))
    }
}

impl Backoff {
    /// A schedule that starts with `first` and doubles up to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The wait after `failures` failures in a row; zero without a failure.
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }

    /// [`Backoff::after`], shortened by up to a half: the whole wait for a `share` of 1, half of it
    /// for 0. With shares that differ, many clients do not retry at the same moment.
    #[must_use]
    pub fn jittered(&self, failures: u32, share: f64) -> Duration {
        self.after(failures).mul_f64(0.5 + share.clamp(0.0, 1.0) / 2.0)
    }

    /// Counts failures by this schedule, from none.
    #[must_use]
    pub const fn retries(self) -> Retries {
        Retries { backoff: self, failures: 0 }
    }
}

/// A [`Backoff`] with the number of failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    backoff: Backoff,
    failures: u32,
}

impl Retries {
    /// Counts a failure and returns the wait before the next try.
    #[must_use]
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.after(self.failures)
    }

    /// Counts a failure and returns the wait before the next try, as [`Backoff::jittered`].
    #[must_use]
    pub fn failed_with(&mut self, share: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.jittered(self.failures, share)
    }

    /// Forgets the failures: call it after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How many failures in a row were counted.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_limit() {
        let backoff = Backoff::default();
        let cases =
            [(0, 0), (1, 5), (2, 10), (5, 80), (14, 40_960), (15, 60_000), (1_000_000, 60_000)];
        for (failures, millis) in cases {
            assert_eq!(backoff.after(failures), ms(millis), "{failures} failures");
        }
    }

    #[test]
    fn a_success_starts_the_schedule_anew() {
        let mut retries = Backoff::new(ms(100), ms(300)).retries();
        let waits: Vec<_> = (0..4).map(|_| retries.failed()).collect();
        assert_eq!(waits, [ms(100), ms(200), ms(300), ms(300)]);
        assert_eq!(retries.failures(), 4);
        retries.reset();
        assert_eq!(retries.failed_with(0.0), ms(50));
        assert_eq!(retries.failed_with(1.0), ms(200));
    }

    proptest! {
        #[test]
        fn jitter_shortens_a_wait_by_at_most_a_half(failures in 0_u32..50, share in -1.0..2.0) {
            let backoff = Backoff::default();
            let (whole, wait) = (backoff.after(failures), backoff.jittered(failures, share));
            prop_assert!(wait >= whole / 2 && wait <= whole);
        }
    }
}
