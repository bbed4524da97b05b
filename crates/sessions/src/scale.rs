//! Decides how many instances to create or terminate. Pure: counts in, a step out.
//!
//! `unused` instances are ready for a session or starting; `waiting` sessions have no instance. The
//! number of idle instances is the difference, and may be negative. The policy keeps it between low
//! and high; minimum and maximum bound all instances; a step is at most a burst.

use crate::api::{ScalingPolicy, ScalingPolicyType, Threshold};

/// The numbers of instances and of waiting sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instances with a session.
    pub allocated: i64,
    /// Instances that are pending or ready.
    pub unused: i64,
    /// Sessions without an instance.
    pub waiting: i64,
}

/// The size of a step if the policy has no burst.
const BURST: i64 = 2;

/// The wanted number of unused instances, without regard to the size of a step.
#[must_use]
pub fn wanted(policy: &ScalingPolicy, counts: Counts) -> i64 {
    let Counts { allocated, unused, waiting } = counts;
    let idle = unused - waiting;
    let want = match policy.scaling_policy_type {
        ScalingPolicyType::IdleSessionNumber => {
            let Threshold { high, low } = policy.idle_session_num_threshold.unwrap_or_default();
            idle.clamp(i64::from(low), i64::from(high.max(low))) + waiting
        }
        ScalingPolicyType::IdleSessionPercent => {
            let Threshold { high, low } = policy.idle_session_percent_threshold.unwrap_or_default();
            by_percent(idle, allocated + waiting, i64::from(low), i64::from(high.max(low)))
                + waiting
        }
    };
    let minimum = i64::from(policy.minimum_instance) - allocated;
    let maximum = i64::from(policy.maximum_instance) - allocated;
    want.max(minimum).min(maximum).max(0)
}

/// The number of idle instances, nearest to `idle`, for which the idle share of all instances lies
/// between `low` and `high` percent. `busy` instances are not idle.
fn by_percent(idle: i64, busy: i64, low: i64, high: i64) -> i64 {
    // idle / (busy + idle) >= low% is idle * (100 - low) >= busy * low.
    let least = match 100 - low {
        0 if busy > 0 => i64::from(i32::MAX),
        0 => 0,
        rest => (busy * low + rest - 1) / rest,
    };
    let most = match 100 - high {
        0 => i64::MAX,
        rest => busy * high / rest,
    };
    // If no number satisfies both bounds, the lower bound wins.
    idle.min(most).max(least).max(0)
}

/// The number of instances to create (positive) or to terminate (negative) now.
#[must_use]
pub fn step(policy: &ScalingPolicy, counts: Counts) -> i64 {
    let burst = if policy.burst > 0 { i64::from(policy.burst) } else { BURST };
    (wanted(policy, counts) - counts.unused).clamp(-burst, burst)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(
        kind: ScalingPolicyType,
        bounds: (i32, i32),
        low: i32,
        high: i32,
        burst: i32,
    ) -> ScalingPolicy {
        let threshold = Some(Threshold { high, low });
        ScalingPolicy {
            minimum_instance: bounds.0,
            maximum_instance: bounds.1,
            burst,
            scaling_policy_type: kind,
            idle_session_num_threshold: threshold,
            idle_session_percent_threshold: threshold,
            standby: None,
        }
    }

    proptest! {
        #[test]
        fn repeated_steps_settle_within_bounds_and_stay(
            percent in any::<bool>(),
            minimum in 0_i32..20, more in 1_i32..40, low in 0_i32..60, above in 0_i32..40, burst in 0_i32..7,
            allocated in 0_i64..30, unused in 0_i64..60, waiting in 0_i64..20,
        ) {
            let kind = if percent { ScalingPolicyType::IdleSessionPercent } else { ScalingPolicyType::IdleSessionNumber };
            let policy = policy(kind, (minimum, minimum + more), low, low + above, burst);
            let mut counts = Counts { allocated, unused, waiting };
            for _ in 0..200 {
                let step = step(&policy, counts);
                if step == 0 { break; }
                counts.unused += step;
                prop_assert!(counts.unused >= 0);
                if step > 0 {
                    prop_assert!(counts.allocated + counts.unused <= i64::from(minimum + more));
                }
            }
            prop_assert_eq!(step(&policy, counts), 0, "it settles: {:?}", counts);
            let all = counts.allocated + counts.unused;
            if allocated <= i64::from(minimum + more) {
                prop_assert!(all >= i64::from(minimum) && all <= i64::from(minimum + more));
            }
        }
    }
}
