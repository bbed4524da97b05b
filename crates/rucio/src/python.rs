//! Reads JSON as Python clients write it, where `Infinity`, which is not JSON, means "no limit".

use std::borrow::Cow;

/// The word that Python's `json` writes for an infinite number.
pub(super) const INFINITY: &str = "Infinity";

/// Puts quotes around the word Infinity wherever it is not part of a string.
pub(super) fn json(body: &[u8]) -> Cow<'_, [u8]> {
    let word = INFINITY.as_bytes();
    if memchr::memmem::find(body, word).is_none() {
        return Cow::Borrowed(body);
    }
    let mut text = Vec::with_capacity(body.len() + 2);
    let (mut at, mut quoted) = (0, false);
    while let Some(byte) = body.get(at) {
        let length = match byte {
            b'I' if !quoted && body[at..].starts_with(word) => {
                text.extend([b"\"", word, b"\""].concat());
                at += word.len();
                continue;
            }
            b'\\' if quoted => 2.min(body.len() - at),
            _ => 1,
        };
        quoted ^= *byte == b'"';
        text.extend(&body[at..at + length]);
        at += length;
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn infinity_outside_strings_becomes_a_string() {
        for (body, expected) in [
            (r#"{"bytes": Infinity}"#, Some(json!({"bytes": "Infinity"}))),
            (r#"[Infinity,Infinity]"#, Some(json!(["Infinity", "Infinity"]))),
            (r#"{"Infinity": "an Infinity"}"#, Some(json!({"Infinity": "an Infinity"}))),
            (
                r#"{"a": "\"Infinity\\", "b": Infinity}"#,
                Some(json!({"a": "\"Infinity\\", "b": "Infinity"})),
            ),
            (r#"{"bytes": -Infinity}"#, None),
            (r#"{"bytes": "Infinity\"#, None),
            ("Infinity\\", None),
        ] {
            assert_eq!(
                serde_json::from_slice::<Value>(&json(body.as_bytes())).ok(),
                expected,
                "{body}"
            );
        }
    }
}
