//! Laws of the formats that are read byte by byte: protobuf bodies and continue tokens.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use mainstay_store::object::{Resource, Revision};
use serde_json::{Map, Value};

use super::Draw;
use crate::cursor::{Cursor, Seal};
use crate::patch::{DEPTH, shallow};
use crate::protobuf::write::Message;
use crate::protobuf::{self, Field, KINDS, MAGIC, Shape};

/// Continue tokens: a token opens to what it was made from, and nothing else opens.
///
/// # Panics
/// If a law is broken.
pub fn continue_token(data: &[u8]) {
    let (seal, resource) = (Seal::new("a secret"), Resource::new("", "configmaps"));
    let mut draw = Draw::new(data);
    let namespace = (draw.below(2) == 1).then(|| draw.text());
    let revision = (draw.below(2) == 1).then(|| Revision(draw.number().cast_unsigned()));
    let remaining = (draw.below(2) == 1).then(|| draw.below(256));
    let cursor = Cursor::new(revision, &draw.text(), remaining, &resource, namespace.as_deref());
    let token = seal.token(&cursor);
    let open = |token: &str| seal.open(token, &resource, namespace.as_deref());
    assert_eq!(open(&token).expect("our own token opens"), cursor);

    let elsewhere = Resource::new("", "nodes");
    assert!(seal.open(&token, &elsewhere, namespace.as_deref()).is_err(), "another list");
    assert!(Seal::new("another secret").open(&token, &resource, namespace.as_deref()).is_err());

    let mut forged = URL_SAFE_NO_PAD.decode(&token).expect("tokens are base64");
    let at = usize::from(u16::from_be_bytes([draw.byte(), draw.byte()])) % forged.len();
    forged[at] ^= draw.byte().max(1);
    assert!(open(&URL_SAFE_NO_PAD.encode(&forged)).is_err(), "a changed byte goes unseen");
    forged.truncate(at);
    assert!(open(&URL_SAFE_NO_PAD.encode(&forged)).is_err(), "a cut token opens");

    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(opened) = open(text)
    {
        assert_eq!(seal.token(&opened), text, "what opens is what we made");
    }
}

/// Protobuf bodies: whatever comes is read or refused, and what is written is read as it was.
///
/// # Panics
/// If a law is broken.
pub fn protobuf(data: &[u8]) {
    for body in [data.to_vec(), [MAGIC, data].concat()] {
        if let Ok(object) = protobuf::object(&body) {
            assert!(shallow(&Value::Object(object), DEPTH));
        }
    }
    let mut draw = Draw::new(data);
    let (version, kind, fields) = draw.pick(KINDS);
    let raw = draw.rest();
    if let Ok(object) = protobuf::object(&enveloped(version, kind, raw)) {
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json(version), &json(kind)));
    }
    let mut object = message(&mut draw, fields, 4);
    let bytes = write_message(fields, &object).into_bytes();
    let read = protobuf::object(&enveloped(version, kind, &bytes)).expect("it is well written");
    object.insert("apiVersion".to_owned(), json(version));
    object.insert("kind".to_owned(), json(kind));
    assert_eq!(read, object);
}

fn json(text: &str) -> Value {
    Value::from(text)
}

fn enveloped(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut said = Message::default();
    said.bytes(1, version);
    said.bytes(2, kind);
    let mut body = Message::default();
    body.message(1, said);
    body.bytes(2, raw);
    [MAGIC, &body.into_bytes()].concat()
}

/// A message as JSON has it: what is empty is not there.
fn message(draw: &mut Draw<'_>, fields: &[Field], depth: usize) -> Map<String, Value> {
    let mut object = Map::new();
    for (_, name, shape) in fields {
        if draw.below(2) == 0 {
            continue;
        }
        let several = |draw: &mut Draw<'_>| 1 + draw.below(3);
        let value = match shape {
            Shape::Text => Value::from(format!("t{}", draw.text())),
            Shape::Texts => (0..several(draw)).map(|_| Value::from(draw.text())).collect(),
            Shape::Number => Value::from(draw.number().max(1)),
            Shape::Flag => Value::from(draw.below(2) == 1),
            Shape::Time => Value::from(format!("2026-01-01T00:00:{:02}Z", draw.below(60))),
            Shape::MicroTime => {
                Value::from(format!("1969-12-31T23:59:59.{:06}Z", 1000 * draw.below(256)))
            }
            Shape::Message(_) | Shape::Messages(_) if depth == 0 => continue,
            Shape::Message(fields) => match message(draw, fields, depth - 1) {
                below if below.is_empty() => continue,
                below => Value::Object(below),
            },
            Shape::Messages(fields) => {
                let all = (0..several(draw)).map(|_| message(draw, fields, depth - 1));
                all.map(Value::Object).collect()
            }
            Shape::TextMap => Value::Object(
                (0..several(draw)).map(|_| (draw.text(), Value::from(draw.text()))).collect(),
            ),
            Shape::BytesMap => Value::Object(
                (0..several(draw))
                    .map(|_| (draw.text(), Value::from(STANDARD.encode([draw.byte()]))))
                    .collect(),
            ),
        };
        object.insert((*name).to_owned(), value);
    }
    object
}

fn write_message(fields: &[Field], object: &Map<String, Value>) -> Message {
    let mut written = Message::default();
    for (number, name, shape) in fields {
        let Some(value) = object.get(*name) else { continue };
        let text = value.as_str().unwrap_or_default();
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let below = |fields, value: &Value| match value {
            Value::Object(object) => write_message(fields, object),
            _ => Message::default(),
        };
        match shape {
            Shape::Text => written.bytes(*number, text),
            Shape::Number => written.number(*number, value.as_i64().unwrap_or_default()),
            Shape::Flag => written.flag(*number, value == &Value::Bool(true)),
            Shape::Time | Shape::MicroTime => {
                let time: jiff::Timestamp = text.parse().expect("a moment");
                // A moment before 1970 counts its nanoseconds forward, as protobuf has it.
                let nanos = time.as_nanosecond();
                let part = |number: i128| i64::try_from(number).expect("in range");
                let mut moment = Message::default();
                moment.number(1, part(nanos.div_euclid(1_000_000_000)));
                moment.number(2, part(nanos.rem_euclid(1_000_000_000)));
                written.message(*number, moment);
            }
            Shape::Texts => {
                for item in items {
                    written.bytes(*number, item.as_str().unwrap_or_default());
                }
            }
            Shape::Message(fields) => written.message(*number, below(fields, value)),
            Shape::Messages(fields) => {
                for item in items {
                    written.message(*number, below(fields, item));
                }
            }
            Shape::TextMap | Shape::BytesMap => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let text = value.as_str().unwrap_or_default();
                    let content = match shape {
                        Shape::BytesMap => STANDARD.decode(text).expect("base64"),
                        _ => text.as_bytes().to_vec(),
                    };
                    let mut entry = Message::default();
                    entry.bytes(1, key);
                    entry.bytes(2, content);
                    written.message(*number, entry);
                }
            }
        }
    }
    written
}
