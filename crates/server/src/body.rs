//! Reading the body of a request: bounded, and turned into a tree once.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use mainstay_store::schema::{Decoded, decode};
use mainstay_store::status::{Error, Reason};
use serde_json::Value;

use crate::negotiate::Format;
use crate::patch::{DEPTH, shallow};
use crate::protobuf;

/// How much of a body that is too large is still taken, so that its sender hears the answer
/// instead of a broken connection.
const DRAINED: usize = 32 << 20;

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// 413 if it is larger, 400 if it breaks off.
pub(crate) async fn read(parts: &Parts, body: Incoming, limit: usize) -> Result<Bytes, Error> {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        if length.is_some_and(|length| length <= DRAINED) && !parts.headers.contains_key(EXPECT) {
            drain(body, DRAINED).await;
        }
        return Err(too_large(limit));
    }
    let mut body = body;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let broken = |error| Error::bad_request(format!("the body could not be read: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        if first.len() + rest.len() + data.len() > limit {
            drain(body, DRAINED).await;
            return Err(too_large(limit));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(length.unwrap_or(0).max(first.len() + data.len()));
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let whole = if rest.is_empty() { first } else { rest.freeze() };
    if let Some(tap) = parts.extensions.get::<crate::audit::Tap>() {
        tap.keep(&whole);
    }
    Ok(whole)
}

async fn drain(mut body: Incoming, limit: usize) {
    let mut taken = 0;
    while let Some(Ok(frame)) = body.frame().await {
        taken += frame.data_ref().map_or(0, Bytes::len);
        if taken > limit {
            return;
        }
    }
}

fn too_large(limit: usize) -> Error {
    let message = format!("Request entity too large: limit is {limit}");
    Error::new(Reason::RequestEntityTooLarge, message)
}

/// Turns a body into an object.
///
/// # Errors
/// 400 if it is none.
pub(crate) fn object(format: Format, body: &[u8]) -> Result<Decoded, Error> {
    if body.is_empty() {
        return Err(Error::bad_request("the body of the request is empty: an object is expected"));
    }
    // Clients send JSON as YAML, which it is, but which JSON's own parser reads faster.
    let may_be_json = || body.trim_ascii_start().first() == Some(&b'{');
    let decoded = match format {
        Format::Yaml => from_yaml(body)?,
        Format::Protobuf => Decoded { object: protobuf::object(body)?, duplicates: Vec::new() },
        Format::Apply if may_be_json() => decode(body).or_else(|_| from_yaml(body))?,
        Format::Apply => from_yaml(body)?,
        _ => decode(body)?,
    };
    if decoded.object.values().all(|value| shallow(value, DEPTH)) {
        return Ok(decoded);
    }
    Err(Error::bad_request(format!("the object is nested deeper than {DEPTH} levels")))
}

fn from_yaml(body: &[u8]) -> Result<Decoded, Error> {
    let wrong = |why: String| Error::bad_request(format!("yaml parse error: {why}"));
    let text = std::str::from_utf8(body).map_err(|error| wrong(error.to_string()))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match value {
        Value::Object(object) => Ok(Decoded { object, duplicates: Vec::new() }),
        _ => Err(wrong("the document is not an object".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        let deep = "[".repeat(1_000_000);
        let nested = format!("{{\"a\":{}1{}}}", "[".repeat(110), "]".repeat(110));
        let bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n".to_owned()
            + &('d'..='z')
                .map(|letter| {
                    let before = char::from_u32(letter as u32 - 1).unwrap();
                    format!("{letter}: &{letter} [{}]\n", vec![format!("*{before}"); 9].join(","))
                })
                .collect::<String>();
        let cases: [(Format, &[u8]); 11] = [
            (Format::Json, b""),
            (Format::Json, b"{"),
            (Format::Json, b"[]"),
            (Format::Json, b"{\"a\":1} x"),
            (Format::Json, b"{\"a\":\"\xff\"}"),
            (Format::Json, deep.as_bytes()),
            (Format::Json, nested.as_bytes()),
            (Format::Yaml, b"a: \xff"),
            (Format::Yaml, b"- a"),
            (Format::Yaml, deep.as_bytes()),
            (Format::Yaml, bomb.as_bytes()),
        ];
        for (format, body) in cases {
            let refused = object(format, body).unwrap_err();
            assert_eq!(refused.reason, Reason::BadRequest, "{}", refused.message);
        }
    }

    #[test]
    fn json_and_yaml_mean_the_same() {
        let json = object(Format::Json, b"{\"a\":{\"b\":[1,\"x\",true,null]}}").unwrap();
        let yaml = object(Format::Yaml, b"a:\n  b: [1, x, true, null]\n").unwrap();
        assert_eq!(json, yaml);
    }
}
