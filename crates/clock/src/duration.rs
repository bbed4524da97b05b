//! Reads and writes durations as people do: `30s`, `1h30m`, `500ms`, `2 days`.
//!
//! The format is the friendly one of `jiff`, which also covers what Go and Kubernetes write. A number
//! always needs a unit, so that a second is never taken for a minute; only `0` is the same in every
//! unit. A day is 24 hours, a week 7 days; months and years have no fixed length and are refused.

use std::time::Duration;

use jiff::SpanRelativeTo;
use jiff::fmt::friendly::{Spacing, SpanParser, SpanPrinter};

static PARSER: SpanParser = SpanParser::new();
static PRINTER: SpanPrinter = SpanPrinter::new().spacing(Spacing::None);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write a number with a unit, such as 500ms, 30s, 1h30m or 2d")]
pub struct Error {
    text: String,
}

/// Reads a duration.
///
/// # Errors
/// [`Error`] if there is a number without a unit, an unknown unit, a negative or a too large value.
pub fn parse(text: &str) -> Result<Duration, Error> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let read = || {
        let span = PARSER.parse_span(text).ok()?;
        let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Duration::try_from(exact).ok()
    };
    read().ok_or_else(|| Error { text: text.to_owned() })
}

/// Writes a duration so that [`parse`] and Go read it: `90s` becomes `1m30s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    PRINTER.unsigned_duration_to_string(&duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units() {
        let cases = [
            ("30s", Some(30_000)),
            ("1h30m", Some(5_400_000)),
            ("1m0s", Some(60_000)),
            ("250ms", Some(250)),
            ("1.5s", Some(1_500)),
            ("2d", Some(172_800_000)),
            ("1w", Some(604_800_000)),
            ("1 hour 30 minutes", Some(5_400_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("7", None),
            ("", None),
            ("s", None),
            ("1x", None),
            ("-1s", None),
            ("1s ago", None),
            ("1mo", None),
            ("1y", None),
            ("99999999999h", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).ok(), expected.map(Duration::from_millis), "{text:?}");
        }
        for text in ["0s", "250ms", "1m30s", "2h", "49h5s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
        let error = parse("7").unwrap_err().to_string();
        assert!(
            error.starts_with("\"7\" is not a duration: write a number with a unit"),
            "{error}"
        );
    }
}
