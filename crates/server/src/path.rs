//! Parses the path of a request: which objects or documents it names. Parsed by hand, borrowing from the request: this is on the way of every one.
//!
//! No segment with a slash, `.` or `..` in it ever gets past here, however it was encoded; so a
//! key of the store is always made of exactly one namespace and one name.

use std::borrow::Cow;

use mainstay_store::status::Error;
use percent_encoding::percent_decode_str;

/// The thing that the path of a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path<'a> {
    /// `/api`, `/apis`, `/apis/GROUP`, `/api/v1`, `/apis/GROUP/VERSION`.
    Discovery(Discovery<'a>),
    /// Objects: a collection, an object, or a part of an object.
    Objects(Target<'a>),
    /// Anything else.
    Other(&'a str),
}

/// Which document of discovery is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery<'a> {
    Core,
    Groups,
    Group(&'a str),
    Version { group: &'a str, version: &'a str },
}

/// Which objects are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) namespace: Option<Cow<'a, str>>,
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) subresource: Option<&'a str>,
}

/// Parses a path.
///
/// # Errors
/// 400 if a segment could never be a name.
pub(crate) fn parse(path: &str) -> Result<Path<'_>, Error> {
    let trimmed = path.strip_suffix('/').unwrap_or(path);
    let (group, version, rest) = if let Some(rest) = below(trimmed, "/api") {
        let (version, rest) = first(rest);
        ("", version, rest)
    } else if let Some(rest) = below(trimmed, "/apis") {
        let (group, rest) = first(rest);
        let Some(group) = group else {
            return Ok(Path::Discovery(Discovery::Groups));
        };
        let (version, rest) = first(rest);
        if version.is_none() {
            return Ok(Path::Discovery(Discovery::Group(group)));
        }
        (group, version, rest)
    } else {
        return Ok(Path::Other(if trimmed.is_empty() { path } else { trimmed }));
    };
    let Some(version) = version else {
        return Ok(Path::Discovery(Discovery::Core));
    };
    if rest.is_empty() {
        return Ok(Path::Discovery(Discovery::Version { group, version }));
    }
    match target(group, version, rest)? {
        Some(target) => Ok(Path::Objects(target)),
        None => Ok(Path::Other(path)),
    }
}

/// The text after `prefix`, if `path` is it or lies below it. Begins with a slash or is empty.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn first(rest: &str) -> (Option<&str>, &str) {
    let Some(rest) = rest.strip_prefix('/') else {
        return (None, "");
    };
    match rest.find('/') {
        Some(end) => (Some(&rest[..end]), &rest[end..]),
        None => (Some(rest), ""),
    }
}

fn target<'a>(
    group: &'a str,
    version: &'a str,
    rest: &'a str,
) -> Result<Option<Target<'a>>, Error> {
    let mut segments = [""; 6];
    let mut count = 0;
    for segment in rest[1..].split('/') {
        let Some(place) = segments.get_mut(count) else {
            return Ok(None);
        };
        *place = segment;
        count += 1;
    }
    let target = |plural, namespace, name: Option<&'a str>, subresource| {
        let name = name.map(decoded).transpose()?;
        Ok(Some(Target { group, version, plural, namespace, name, subresource }))
    };
    match segments[..count] {
        ["namespaces", namespace, sub @ ("status" | "finalize")] => {
            target("namespaces", None, Some(namespace), Some(sub))
        }
        ["namespaces", namespace, plural] => target(plural, Some(decoded(namespace)?), None, None),
        ["namespaces", namespace, plural, name] => {
            target(plural, Some(decoded(namespace)?), Some(name), None)
        }
        ["namespaces", namespace, plural, name, sub] => {
            target(plural, Some(decoded(namespace)?), Some(name), Some(sub))
        }
        [plural] => target(plural, None, None, None),
        [plural, name] => target(plural, None, Some(name), None),
        [plural, name, sub] => target(plural, None, Some(name), Some(sub)),
        _ => Ok(None),
    }
}

/// A segment without its percent-encoding.
fn decoded(segment: &str) -> Result<Cow<'_, str>, Error> {
    let decoded = percent_decode(segment, false)
        .ok_or_else(|| Error::bad_request(format!("path segment {segment:?} is not UTF-8")))?;
    let fault = match &*decoded {
        "" => "may not be empty",
        "." => "may not be '.'",
        ".." => "may not be '..'",
        text if text.contains('/') => "may not contain '/'",
        text if text.contains('%') => "may not contain '%'",
        text if text.chars().any(char::is_control) => "may not contain control characters",
        text if text.len() > 253 => "must be no more than 253 characters",
        _ => return Ok(decoded),
    };
    Err(Error::bad_request(format!("invalid name {decoded:?} in the path: {fault}")))
}

/// Undoes percent-encoding, and `+` for a space if `plus`; `None` if it is not UTF-8.
pub(crate) fn percent_decode(text: &str, plus: bool) -> Option<Cow<'_, str>> {
    if plus && text.contains('+') {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8().ok()?;
        return Some(Cow::Owned(decoded.into_owned()));
    }
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects<'a>(
        group: &'a str,
        plural: &'a str,
        namespace: Option<&'a str>,
        name: Option<&'a str>,
        subresource: Option<&'a str>,
    ) -> Path<'a> {
        let (namespace, name) = (namespace.map(Cow::Borrowed), name.map(Cow::Borrowed));
        Path::Objects(Target { group, version: "v1", plural, namespace, name, subresource })
    }

    #[test]
    fn paths_name_what_kubernetes_says_they_name() {
        let lease = "coordination.k8s.io";
        let version = |group| Path::Discovery(Discovery::Version { group, version: "v1" });
        let cases = [
            ("/api", Path::Discovery(Discovery::Core)),
            ("/api/", Path::Discovery(Discovery::Core)),
            ("/api/v1", version("")),
            ("/apis", Path::Discovery(Discovery::Groups)),
            ("/apis/coordination.k8s.io", Path::Discovery(Discovery::Group(lease))),
            ("/apis/coordination.k8s.io/v1", version(lease)),
            ("/api/v1/nodes", objects("", "nodes", None, None, None)),
            ("/api/v1/nodes/a", objects("", "nodes", None, Some("a"), None)),
            ("/api/v1/nodes/a/status", objects("", "nodes", None, Some("a"), Some("status"))),
            ("/api/v1/namespaces", objects("", "namespaces", None, None, None)),
            ("/api/v1/namespaces/a", objects("", "namespaces", None, Some("a"), None)),
            (
                "/api/v1/namespaces/a/finalize",
                objects("", "namespaces", None, Some("a"), Some("finalize")),
            ),
            ("/api/v1/configmaps", objects("", "configmaps", None, None, None)),
            ("/api/v1/namespaces/a/configmaps", objects("", "configmaps", Some("a"), None, None)),
            (
                "/api/v1/namespaces/a/configmaps/b%2Dc",
                objects("", "configmaps", Some("a"), Some("b-c"), None),
            ),
            (
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/b/status",
                objects(lease, "leases", Some("a"), Some("b"), Some("status")),
            ),
            ("/apiserver", Path::Other("/apiserver")),
            ("/", Path::Other("/")),
            ("/healthz", Path::Other("/healthz")),
            ("/version/", Path::Other("/version")),
            ("/api/v1/a/b/c/d/e/f/g/h", Path::Other("/api/v1/a/b/c/d/e/f/g/h")),
        ];
        for (path, expected) in cases {
            assert_eq!(parse(path).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn no_segment_escapes_its_place() {
        for name in ["..", ".", "%2e%2e", "a%2Fb", "..%2F..%2Fx", "%00", "%ff", "a%25b", ""] {
            for path in [
                format!("/api/v1/namespaces/a/configmaps/{name}/status"),
                format!("/api/v1/namespaces/{name}/configmaps/x"),
            ] {
                assert!(parse(&path).is_err(), "{path}");
            }
        }
    }

    #[test]
    fn percent_decoding_leaves_what_is_not_encoded() {
        let cases = [("a+b%20c", true, "a b c"), ("a+b", false, "a+b"), ("%zz%4", true, "%zz%4")];
        for (text, plus, expected) in cases {
            assert_eq!(percent_decode(text, plus).unwrap(), expected);
        }
        assert_eq!(percent_decode("%ff", true), None);
    }
}
