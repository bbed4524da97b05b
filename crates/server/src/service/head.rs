//! Refuses requests whose head is ambiguous or too large.

use http::Version;
use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use mainstay_store::status::{Error, Reason};

use super::OWN_TOKEN;

/// Headers of which a request has one at most. A proxy in front that takes the other one of two
/// would have judged another request than the one that is served.
const SINGLE: [&str; 4] = ["host", "content-length", "authorization", OWN_TOKEN];

/// The most header fields of a request. Over HTTP/1 the library keeps this bound.
const FIELDS: usize = 100;

/// Refuses heads that are ambiguous, and over HTTP/2 those that are too large. The library would
/// refuse large ones too, but its answer is lost on clients that see the stream refused. Over HTTP/1
/// they never get here.
pub(super) fn check_head(parts: &Parts, limit: usize) -> Result<(), Error> {
    for name in SINGLE {
        if parts.headers.get_all(name).iter().nth(1).is_some() {
            return Err(Error::bad_request(format!("the request has more than one {name} header")));
        }
    }
    if parts.version == Version::HTTP_11 && !parts.headers.contains_key(HOST) {
        return Err(Error::bad_request("the request has no host header, which HTTP/1.1 requires"));
    }
    if parts.headers.get(HOST).is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(Error::bad_request(
            "the host header is not a host name or address with an optional port",
        ));
    }
    if parts.version != Version::HTTP_2 {
        return Ok(());
    }
    if let (Some(authority), Some(host)) = (parts.uri.authority(), parts.headers.get(HOST))
        && !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
    {
        return Err(Error::bad_request("the host header differs from :authority"));
    }
    if parts.headers.len() > FIELDS {
        let message = format!("the head of the request has more than {FIELDS} fields");
        return Err(Error::new(Reason::RequestHeaderFieldsTooLarge, message));
    }
    // As RFC 9113 counts, in section 6.5.2.
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if fields.sum::<usize>() + target <= limit {
        return Ok(());
    }
    let message = format!("the head of the request is too large: the limit is {limit} bytes");
    Err(Error::new(Reason::RequestHeaderFieldsTooLarge, message))
}

/// Whether a host header names a host: neither a user, nor a path, nor nothing.
fn is_host(host: &[u8]) -> bool {
    Authority::try_from(host)
        .is_ok_and(|host| !host.host().is_empty() && !host.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_address_with_an_optional_port() {
        for host in ["a", "a.b:80", "127.0.0.1", "[::1]:7443", "a_b"] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in ["", "a b", "a/b?c", "u:p@x", "@x", ":80", "a#b"] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
