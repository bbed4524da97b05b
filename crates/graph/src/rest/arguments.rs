//! Parses the query arguments of a request.

use jiff::Timestamp;

use super::Refusal;

/// Arguments by name; a name may come several times.
#[derive(Debug, Default)]
pub(super) struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Parses a query; an unknown argument is refused.
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut arguments = Vec::new();
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if !known.contains(&name.as_str()) {
                let reason = match known.is_empty() {
                    true => format!("{name} is not an argument; there are none"),
                    false => format!("{name} is not an argument; there is {}", known.join(", ")),
                };
                return Err(Refusal::Bad(reason));
            }
            let repeated = arguments.iter().any(|(known, _): &(String, String)| *known == name);
            if repeated && !["prefix", "open"].contains(&name.as_str()) {
                return Err(Refusal::Bad(format!("{name} is given more than once")));
            }
            arguments.push((name, value));
        }
        Ok(Self(arguments))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|_| Refusal::Bad(format!("{name} is {text:?}; it must be a number")))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => {
                Err(Refusal::Bad(format!("{name} is {other:?}; it can be 1, true, 0 or false")))
            }
        }
    }

    /// A moment: seconds, milliseconds or nanoseconds since 1970, distinguished by size, or RFC 3339.
    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let bad = || {
            let forms =
                "seconds, milliseconds or nanoseconds since 1970, or like 2026-01-31T12:00:00Z";
            Refusal::Bad(format!("{name} is {text:?}; it must be {forms}"))
        };
        let Ok(number) = text.parse::<i128>() else {
            return text.parse().map(Some).map_err(|_| bad());
        };
        let nanoseconds = match number.unsigned_abs() {
            0..100_000_000_000 => number.checked_mul(1_000_000_000),
            100_000_000_000..100_000_000_000_000 => number.checked_mul(1_000_000),
            _ => Some(number),
        };
        nanoseconds
            .and_then(|number| Timestamp::from_nanosecond(number).ok())
            .map(Some)
            .ok_or_else(bad)
    }
}

fn decode(text: &str) -> Result<String, Refusal> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                let both = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
                both.ok_or_else(|| Refusal::Bad(format!("{text} is not properly encoded")))?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| Refusal::Bad(format!("{text} is not text")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_in_every_form() {
        let read = |text: &str| {
            let query = format!("time={text}");
            Arguments::parse(Some(&query), &["time"]).unwrap().time("time")
        };
        let expected: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for text in [
            "1769860800",
            "1769860800000",
            "1769860800000000000",
            "2026-01-31T12:00:00Z",
            "2026-01-31T12%3A00%3A00Z",
        ] {
            assert_eq!(read(text).unwrap(), Some(expected), "{text}");
        }
        assert!(matches!(read("yesterday"), Err(Refusal::Bad(_))));
        assert!(matches!(Arguments::parse(Some("x=1"), &["time"]), Err(Refusal::Bad(_))));
        assert!(matches!(Arguments::parse(Some("time=%zz"), &["time"]), Err(Refusal::Bad(_))));
    }
}
