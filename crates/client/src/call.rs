//! One request, before it is sent.

use bytes::Bytes;
use http::Method;
use serde_json::Value;

/// The media type of JSON.
pub const JSON: &str = "application/json";
/// The media type of a server-side apply.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// The media type of a merge patch (RFC 7386).
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// The media type of a JSON patch (RFC 6902).
pub const JSON_PATCH: &str = "application/json-patch+json";

/// One request: a path with its query, and perhaps a body.
#[derive(Clone, Debug)]
pub struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    pub(crate) body: Option<(&'static str, Bytes)>,
}

impl Call {
    /// A GET.
    pub fn get(path: impl Into<String>) -> Self {
        Self::without_body(Method::GET, path)
    }

    /// A request with a JSON value as its body.
    pub fn send(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: &Value,
    ) -> Self {
        Self::with_body(method, path, content_type, body.to_string())
    }

    /// A request with these bytes as its body.
    pub fn with_body(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Self {
        Self { body: Some((content_type, body.into())), ..Self::without_body(method, path) }
    }

    /// A request without a body.
    pub fn without_body(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), accept: JSON, body: None }
    }

    /// Asks for an answer of another media type than JSON.
    #[must_use]
    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }
}
