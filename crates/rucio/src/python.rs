//! Numbers as Python writes them, which is what clients are written in: `1e12` is a whole number
//! there, and `Infinity`, which is not JSON, the limit of who has none.

use std::borrow::Cow;

/// What is no number, but stands where one does.
pub(super) const INFINITY: &str = "Infinity";

/// A body in which the word Infinity is a text wherever it stands for itself.
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
    fn infinity_is_a_text_where_it_stands_for_itself() {
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
