//! How long to wait before a failed write or call is retried, and which errors are final. Pure.
//!
//! Waits double up to a minute. Each disk shortens them by a share of its own: when a server comes
//! back, a thousand disks do not send requests at the same moment.

use std::time::Duration;

use mainstay_clock::Backoff;
use mainstay_store::resources::{Error, Reason};

/// The wait of `name` after `failures` failures in a row: between a half and the whole of the usual
/// one.
#[must_use]
pub(crate) fn pause(name: &str, failures: u32) -> Duration {
    // FNV-1a: spreads names that differ in one letter.
    let hash = name
        .bytes()
        .chain(failures.to_le_bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let share = f64::from(hash) / f64::from(u32::MAX);
    Backoff::default().jittered(failures, share)
}

/// Whether a retry is useless: the store understood the request and refuses it.
#[must_use]
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::BadRequest
            | Reason::Forbidden
            | Reason::Invalid
            | Reason::MethodNotAllowed
            | Reason::RequestEntityTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_minute_and_differ_from_disk_to_disk() {
        let usual = Backoff::default();
        for failures in 1..40 {
            let waits: std::collections::BTreeSet<_> =
                (0..100).map(|n| pause(&format!("disk-{n}"), failures)).collect();
            let whole = usual.after(failures);
            assert!(waits.iter().all(|wait| *wait >= whole / 2 && *wait <= whole), "{failures}");
            assert!(waits.len() > 90, "{failures}: only {} different waits", waits.len());
        }
        assert_eq!(pause("a", 0), Duration::ZERO);
        assert!(pause("a", 40) <= Duration::from_secs(60));
    }

    #[test]
    fn refusals_are_final_and_outages_are_not() {
        for (reason, last) in [
            (Reason::Forbidden, true),
            (Reason::Invalid, true),
            (Reason::Conflict, false),
            (Reason::ServiceUnavailable, false),
            (Reason::Unauthorized, false),
            (Reason::TooManyRequests, false),
        ] {
            assert_eq!(is_final(&Error::new(reason, "why")), last, "{reason:?}");
        }
    }
}
