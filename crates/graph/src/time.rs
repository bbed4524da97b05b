//! Arithmetic with moments, and durations as REST and scenario files write them.

use std::time::Duration;

use jiff::Timestamp;
pub(crate) use mainstay_clock::{Clock, SystemClock};

/// `moment` plus `by`, at most the latest timestamp.
pub(crate) fn later(moment: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| moment.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

/// `moment` minus `by`, at least the earliest timestamp.
pub(crate) fn earlier(moment: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| moment.checked_sub(by).ok())
        .unwrap_or(Timestamp::MIN)
}

/// Reads a duration such as `3s` or `500ms`; a bare number counts seconds.
#[cfg(any(feature = "rest", feature = "scenario"))]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => mainstay_clock::duration::parse(text).ok(),
    }
}

#[cfg(all(test, any(feature = "rest", feature = "scenario")))]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_are_seconds() {
        for (text, milliseconds) in
            [("3", Some(3_000)), ("0.5", Some(500)), ("250ms", Some(250)), ("1m", Some(60_000))]
        {
            assert_eq!(parse_duration(text), milliseconds.map(Duration::from_millis), "{text}");
        }
        for text in ["", "soon", "-1", "3 parsecs", "NaN"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
