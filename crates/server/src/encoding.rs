//! Sending less: answers the client has already, and large ones compressed.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use crate::reply::{Body, Reply};

/// Smaller bodies are sent as they are: compressing them would cost more than it saves.
const WORTHWHILE: usize = 128 << 10;

/// The tag of a document: another one as soon as a byte differs.
pub(crate) fn tag(document: &[u8]) -> HeaderValue {
    let digest: String =
        Sha256::digest(document).iter().take(16).map(|byte| format!("{byte:02X}")).collect();
    HeaderValue::try_from(format!("\"{digest}\"")).expect("hexadecimal digits make a header")
}

/// The encoding that a client asks for.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    gzip: bool,
    known: Vec<String>,
}

impl Wants {
    /// The encodings that the headers of a request ask for; most ask for none.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let known: Vec<String> = headers
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(|tag| tag.trim().to_owned())
            .collect();
        let gzip = takes_gzip(headers);
        (gzip || !known.is_empty()).then_some(Self { gzip, known })
    }

    /// Makes the answer so.
    pub(crate) async fn shape(&self, reply: Reply) -> Reply {
        let reply = unless_known(reply, &self.known);
        if self.gzip { compressed(reply).await } else { reply }
    }
}

/// Answers "not modified" if the client has this very document already.
fn unless_known(reply: Reply, known: &[String]) -> Reply {
    let Some(tag) = reply.headers().get(ETAG).cloned() else { return reply };
    let same = |given: &String| given == "*" || given.strip_prefix("W/").unwrap_or(given) == tag;
    if !known.iter().any(same) {
        return reply;
    }
    let mut unchanged = Reply::new(Body::whole(Bytes::new()));
    *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
    unchanged.headers_mut().insert(ETAG, tag);
    unchanged
}

/// Compresses a large answer.
async fn compressed(mut reply: Reply) -> Reply {
    let large = reply.body().whole_len().is_some_and(|length| length >= WORTHWHILE);
    if !large || reply.headers().contains_key(CONTENT_ENCODING) {
        return reply;
    }
    let Some(plain) = reply.body_mut().take_whole() else { return reply };
    let work = {
        let plain = plain.clone();
        move || gzip(&plain)
    };
    let Ok(Some(packed)) = tokio::task::spawn_blocking(work).await else {
        reply.body_mut().put_whole(plain);
        return reply;
    };
    reply.body_mut().put_whole(packed);
    let headers = reply.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    reply
}

fn gzip(plain: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    encoder.write_all(plain).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let given = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    given.flat_map(|list| list.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts.any(|part| {
            let quality = part.strip_prefix("q=").map(str::trim);
            quality.is_some_and(|quality| quality.parse() == Ok(0.0_f32))
        });
        named && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn gzip_is_sent_if_accepted() {
        let cases = [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("br", false),
            ("", false),
        ];
        for (given, expected) in cases {
            assert_eq!(takes_gzip(&headers(ACCEPT_ENCODING, given)), expected, "{given}");
        }
    }

    #[test]
    fn a_known_document_is_not_sent_again() {
        let reply = || {
            let mut reply = Reply::new(Body::whole("document"));
            reply.headers_mut().insert(ETAG, HeaderValue::from_static("\"A\""));
            reply
        };
        let cases = [("\"A\"", 304), ("\"B\", W/\"A\"", 304), ("*", 304), ("\"B\"", 200)];
        for (given, code) in cases {
            let wants = Wants::of(&headers(IF_NONE_MATCH, given)).unwrap();
            let answer = unless_known(reply(), &wants.known);
            assert_eq!(answer.status(), code, "{given}");
        }
        assert_ne!(tag(b"a"), tag(b"b"));
    }
}
