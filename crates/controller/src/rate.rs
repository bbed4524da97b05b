//! Rate limits: token buckets and sliding windows. Pure.
//!
//! Time is an argument everywhere, as a [`Duration`] since some fixed moment
//! ([`Clock::elapsed`](mainstay_clock::Clock::elapsed)), so the same calls always give the same
//! results. A [`Bucket`] limits a flow of requests, a [`Window`] the starts within any interval.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

/// How fast a [`Bucket`] refills, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// How long one token takes to come back. Zero means no limit.
    pub interval: Duration,
    /// How many tokens a full bucket has.
    pub burst: u32,
}

impl Default for Flow {
    /// 100 a second, 500 at once.
    fn default() -> Self {
        Self { interval: Duration::from_millis(10), burst: 500 }
    }
}

/// A token bucket that lends: it returns how long a caller must wait for its token.
#[derive(Clone, Debug)]
pub struct Bucket {
    flow: Flow,
    /// When the bucket will be full again.
    full_at: Duration,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(flow: Flow) -> Self {
        Self { flow, full_at: Duration::ZERO }
    }

    /// Takes a token, and returns how long to wait until it is there.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        self.full_at = self.full_at.max(now).saturating_add(self.flow.interval);
        let ahead = self.flow.interval.saturating_mul(self.flow.burst.max(1));
        self.full_at.saturating_sub(ahead).saturating_sub(now)
    }

    /// Takes a token if one is there.
    pub fn take(&mut self, now: Duration) -> bool {
        let before = self.full_at;
        let there = self.reserve(now).is_zero();
        if !there {
            self.full_at = before;
        }
        there
    }
}

/// At most so many starts within any stretch of time of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many may start.
    pub starts: NonZeroUsize,
    /// Within this time, whichever moment one begins to count at.
    pub within: Duration,
}

/// Remembers the last starts, so that a [`Rate`] is never exceeded in any window.
#[derive(Clone, Debug)]
pub struct Window {
    rate: Rate,
    starts: VecDeque<Duration>,
}

impl Window {
    /// A window in which nothing has started yet.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self { rate, starts: VecDeque::new() }
    }

    /// When the next start is allowed; a moment that has passed means now.
    #[must_use]
    pub fn free_at(&self) -> Duration {
        match self.starts.front() {
            Some(oldest) if self.starts.len() == self.rate.starts.get() => {
                oldest.saturating_add(self.rate.within)
            }
            _ => Duration::ZERO,
        }
    }

    /// Notes a start, if one is allowed now.
    pub fn start(&mut self, now: Duration) -> bool {
        if self.free_at() > now {
            return false;
        }
        if self.starts.len() == self.rate.starts.get() {
            self.starts.pop_front();
        }
        self.starts.push_back(now);
        true
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
    fn a_bucket_gives_its_burst_at_once_and_then_one_an_interval() {
        let mut bucket = Bucket::new(Flow { interval: ms(10), burst: 3 });
        let waits: Vec<_> = (0..5).map(|_| bucket.reserve(ms(1_000))).collect();
        assert_eq!(waits, [ms(0), ms(0), ms(0), ms(10), ms(20)]);
        assert_eq!(bucket.reserve(ms(1_030)), ms(0), "the loan is paid back");
        assert!(!bucket.take(ms(1_030)));
        assert!(bucket.take(ms(1_040)), "a refused take costs nothing");
    }

    #[test]
    fn a_bucket_without_interval_never_waits() {
        let mut bucket = Bucket::new(Flow { interval: Duration::ZERO, burst: 1 });
        assert!((0..100).all(|_| bucket.take(ms(7))));
    }

    proptest! {
        #[test]
        fn a_rate_is_never_exceeded_in_any_window(
            starts in 1_usize..5,
            within in 1_u64..50,
            steps in prop::collection::vec(0_u64..20, 1..200),
        ) {
            let rate = Rate { starts: NonZeroUsize::new(starts).unwrap(), within: ms(within) };
            let mut window = Window::new(rate);
            let (mut now, mut begun) = (Duration::ZERO, Vec::new());
            for step in steps {
                now += ms(step);
                let due = window.free_at() <= now;
                prop_assert_eq!(window.start(now), due);
                if due {
                    begun.push(now);
                }
            }
            for group in begun.windows(starts + 1) {
                prop_assert!(group[starts] - group[0] >= ms(within));
            }
        }

        #[test]
        fn a_bucket_never_lends_more_than_its_flow(
            burst in 1_u32..5,
            steps in prop::collection::vec(0_u64..30, 1..200),
        ) {
            let mut bucket = Bucket::new(Flow { interval: ms(10), burst });
            let (mut now, mut turns) = (Duration::ZERO, Vec::new());
            for step in steps {
                now += ms(step);
                turns.push(now + bucket.reserve(now));
            }
            prop_assert!(turns.is_sorted(), "first come, first served");
            let span = burst as usize;
            for group in turns.windows(span + 1) {
                prop_assert!(group[span] - group[0] >= ms(10));
            }
        }
    }
}
