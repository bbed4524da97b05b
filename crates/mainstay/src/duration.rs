//! Lengths of time as people and Kubernetes write them: `90s`, `1h30m`, `2d`.

use std::time::Duration;

/// Reads `1h30m`, `500ms`, `2d`; a bare number is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a length of time (such as 30s, 5m or 1h30m)");
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let count: u32 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86_400),
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        total =
            unit.checked_mul(count).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// The age of something, short: `12s`, `5m`, `3h10m`, `4d`.
pub(crate) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        120..10_800 => format!("{minutes}m"),
        10_800..28_800 if !minutes.is_multiple_of(60) => format!("{hours}h{}m", minutes % 60),
        10_800..172_800 => format!("{hours}h"),
        172_800..691_200 if !hours.is_multiple_of(24) => format!("{days}d{}h", hours % 24),
        _ if days < 730 => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        let cases = [
            ("30s", Some(30_000)),
            ("1h30m", Some(5_400_000)),
            ("250ms", Some(250)),
            ("7", Some(7_000)),
            ("2d", Some(172_800_000)),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("5 m", None),
            ("99999999999h", None),
        ];
        for (text, expected) in cases {
            let read = parse(text).ok().map(|duration| duration.as_millis());
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn ages_are_short() {
        let cases = [
            (5, "5s"),
            (119, "119s"),
            (125, "2m5s"),
            (3600, "60m"),
            (11_400, "3h10m"),
            (90_000, "25h"),
            (176_400, "2d1h"),
            (86_400 * 30, "30d"),
            (86_400 * 800, "2y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }
}
