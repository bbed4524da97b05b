//! Writes durations exactly as Go does, which the contract of the scheduler extender requires: `1m0s`.

use std::time::Duration;

/// A duration of whole seconds as Go writes it.
#[must_use]
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_all_smaller_units_as_in_go() {
        for (seconds, text) in [(2, "2s"), (60, "1m0s"), (3661, "1h1m1s")] {
            assert_eq!(format(Duration::from_secs(seconds)), text);
        }
    }
}
