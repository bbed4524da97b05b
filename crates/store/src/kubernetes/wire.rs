//! How objects look in requests and answers: paths, records, and errors of the Kubernetes dialect.

use mainstay_client::Answer;
use serde_json::{Map, Value};

use super::OWNERS;
use crate::object::{Key, Received, Record, Revision};
use crate::objects::Error;
use crate::registry::Kind;
use crate::status::Reason;

/// The object without its status and without the fields that the server maintains.
pub(super) fn bare(object: &Map<String, Value>) -> Map<String, Value> {
    let mut bare = object.clone();
    bare.remove("status");
    if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", OWNERS, "generation"] {
            metadata.remove(field);
        }
    }
    bare
}

pub(super) fn is_marked(object: &Map<String, Value>) -> bool {
    object.get("metadata").and_then(|metadata| metadata.get("deletionTimestamp")).is_some()
}

/// The record of an object that a server sent, without one field of its metadata.
pub(super) fn record(
    kind: &Kind,
    namespace: Option<&str>,
    json: &[u8],
    without: &str,
) -> serde_json::Result<Record> {
    let tags = [("apiVersion", kind.api_version()), ("kind", kind.kind)];
    let received = Received::read(json, tags, without)?;
    let key = kind.key(received.namespace.as_deref().or(namespace), &received.name);
    let revision = received.version.parse().unwrap_or_default();
    Ok(received.body.at(key, revision, revision))
}

/// `/apis/GROUP/VERSION[/namespaces/NS]/PLURAL`.
pub(super) fn collection_path(kind: &Kind, namespace: Option<&str>) -> String {
    let root = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    match namespace.filter(|_| kind.namespaced) {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", kind.plural),
        None => format!("{root}/{}", kind.plural),
    }
}

pub(super) fn object_path(kind: &Kind, key: &Key, part: &str) -> String {
    format!("{}/{}{part}", collection_path(kind, key.namespace()), key.name())
}

/// The error of this crate for a refusal of the server.
pub(super) fn refusal(answer: &Answer, key: &Key) -> Error {
    let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = |field: &str| status.get(field).and_then(Value::as_str).unwrap_or_default();
    let key = key.clone();
    let refused = |reason| Error::Refused { reason, message: text("message").to_owned() };
    match (answer.code.as_u16(), text("reason")) {
        (404, _) => Error::NotFound { key },
        (409, "AlreadyExists") => Error::AlreadyExists { key },
        (409, _) => Error::Conflict { key, expected: Revision::ZERO, actual: Revision::ZERO },
        (410, _) => Error::Expired { requested: Revision::ZERO, oldest: Revision::ZERO },
        (400, _) => refused(Reason::BadRequest),
        (403, _) => refused(Reason::Forbidden),
        (405, _) => refused(Reason::MethodNotAllowed),
        (413, _) => refused(Reason::RequestEntityTooLarge),
        (422, _) => refused(Reason::Invalid),
        (429, _) => Error::Busy { waiting: 0 },
        (code, _) => Error::Unavailable {
            reason: format!("the server answered {code}: {}", text("message")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::Resource;
    use crate::registry::{Registry, builtin};

    #[test]
    fn paths_are_those_of_the_dialect() {
        let registry = Registry::new(builtin()).unwrap();
        let path = |plural: &str, namespace: Option<&str>| {
            let kind = registry.iter().find(|kind| kind.plural == plural).unwrap();
            object_path(kind, &kind.key(namespace, "x"), "/status")
        };
        assert_eq!(path("nodes", None), "/api/v1/nodes/x/status");
        assert_eq!(
            path("leases", Some("a")),
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/x/status"
        );
    }

    #[test]
    fn refusals_keep_their_meaning() {
        let key = Key::from_stored(Resource::from_stored("nodes"), "a");
        let answer = |code: u16, reason: &str| Answer {
            code: http::StatusCode::from_u16(code).unwrap(),
            headers: http::HeaderMap::new(),
            body: json!({"reason": reason, "message": "why"}).to_string().into_bytes().into(),
        };
        let word = |code, reason| match refusal(&answer(code, reason), &key) {
            Error::NotFound { .. } => "not found",
            Error::AlreadyExists { .. } => "exists",
            Error::Conflict { .. } => "conflict",
            Error::Expired { .. } => "expired",
            Error::Unavailable { .. } => "unavailable",
            Error::Refused { .. } => "refused",
            Error::Busy { .. } => "busy",
            _ => "other",
        };
        let cases = [
            (404, "NotFound", "not found"),
            (409, "AlreadyExists", "exists"),
            (409, "Conflict", "conflict"),
            (410, "Expired", "expired"),
            (503, "", "unavailable"),
            (401, "Unauthorized", "unavailable"),
            (403, "Forbidden", "refused"),
            (413, "RequestEntityTooLarge", "refused"),
            (422, "Invalid", "refused"),
            (429, "TooManyRequests", "busy"),
        ];
        for (code, reason, expected) in cases {
            assert_eq!(word(code, reason), expected, "{code} {reason}");
        }
    }
}
