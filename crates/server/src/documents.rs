//! Documents about the API itself: discovery and OpenAPI. They follow from the registry alone, so
//! they are made once, at the start, and served as they are from then on.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use http::{HeaderValue, request::Parts};
use mainstay_store::registry::Registry;
use mainstay_store::status::Error;
use serde_json::json;

use crate::openapi::OpenApi;
use crate::path::Discovery;
use crate::reply::{self, Body, Reply};
use crate::service::{accept, no_such_resource};
use crate::{discovery, encoding, negotiate};

/// A document and its tag.
#[derive(Debug)]
struct Document {
    body: Bytes,
    tag: HeaderValue,
}

impl Document {
    fn new(value: &serde_json::Value) -> Self {
        let body = Bytes::from(value.to_string());
        let tag = encoding::tag(&body);
        Self { body, tag }
    }
}

/// Every document, ready to be sent.
#[derive(Debug)]
pub(crate) struct Documents {
    core: Document,
    groups: Document,
    by_group: BTreeMap<String, Document>,
    by_version: BTreeMap<(String, String), Document>,
    /// The aggregated form: of the core group, and of all others, by version of the form.
    aggregated: BTreeMap<(bool, &'static str), Document>,
    openapi: OpenApi,
    paths: Document,
}

impl Documents {
    pub(crate) fn new(registry: &Registry, address: SocketAddr) -> Self {
        let bytes = |value: serde_json::Value| Document::new(&value);
        let versions = registry.groups();
        let by_group = versions.iter().filter_map(|known| {
            Some((known.group.to_owned(), bytes(discovery::group(registry, known.group)?)))
        });
        let by_version = versions.iter().filter_map(|known| {
            let body = discovery::resources(registry, known.group, known.version)?;
            Some(((known.group.to_owned(), known.version.to_owned()), bytes(body)))
        });
        let forms = [(true, "v2"), (true, "v2beta1"), (false, "v2"), (false, "v2beta1")];
        let aggregated = forms.into_iter().map(|(core, version)| {
            ((core, version), bytes(discovery::aggregated(registry, core, version)))
        });
        let openapi = OpenApi::new(registry, env!("CARGO_PKG_VERSION"));
        Self {
            core: bytes(discovery::core_versions(&address.to_string())),
            groups: bytes(discovery::groups(registry)),
            by_group: by_group.collect(),
            by_version: by_version.collect(),
            aggregated: aggregated.collect(),
            openapi,
            paths: bytes(json!({"paths": paths(registry)})),
        }
    }

    /// A document of discovery.
    pub(crate) fn discovery(
        &self,
        document: Discovery<'_>,
        accept: Option<&str>,
    ) -> Result<Reply, Error> {
        let form = negotiate::aggregated_discovery(accept);
        let aggregated = |core| {
            let form = form?;
            let body = self.aggregated.get(&(core, form))?;
            let mut reply = found(body);
            let kind =
                format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
            if let Ok(kind) = HeaderValue::try_from(kind) {
                reply.headers_mut().insert(CONTENT_TYPE, kind);
            }
            Some(reply)
        };
        let plain = match document {
            Discovery::Core => match aggregated(true) {
                Some(reply) => return Ok(reply),
                None => Some(&self.core),
            },
            Discovery::Groups => match aggregated(false) {
                Some(reply) => return Ok(reply),
                None => Some(&self.groups),
            },
            Discovery::Group(group) => self.by_group.get(group),
            Discovery::Version { group, version } => {
                self.by_version.get(&(group.to_owned(), version.to_owned()))
            }
        };
        let plain = plain.ok_or_else(no_such_resource)?;
        negotiate::plain(accept)?;
        Ok(found(plain))
    }

    /// OpenAPI and the index of paths; `None` if the path is neither.
    pub(crate) fn other(&self, path: &str, parts: &Parts) -> Option<Result<Reply, Error>> {
        if path == "/" {
            return Some(Ok(found(&self.paths)));
        }
        let rest = path.strip_prefix("/openapi/")?;
        if rest == "v2" && negotiate::binary_openapi(accept(parts)) {
            let mut reply = openapi(self.openapi.v2_binary());
            let kind = HeaderValue::from_static(crate::openapi::binary::MEDIA);
            reply.headers_mut().insert(CONTENT_TYPE, kind);
            return Some(Ok(reply));
        }
        let document = match rest {
            "v3" => self.openapi.index(),
            "v2" => self.openapi.v2(),
            _ => match rest.strip_prefix("v3/").and_then(|path| self.openapi.document(path)) {
                Some(document) => document,
                None => return Some(Err(no_such_resource())),
            },
        };
        if let Err(error) = negotiate::plain(accept(parts)) {
            return Some(Err(error));
        }
        let mut reply = openapi(document);
        // A document that is asked for by its hash never changes.
        let hashed = parts.uri.query().is_some_and(|query| query.contains(&*document.hash));
        if hashed {
            let forever = HeaderValue::from_static("public, immutable");
            reply.headers_mut().insert(CACHE_CONTROL, forever);
        }
        Some(Ok(reply))
    }
}

fn openapi(document: &crate::openapi::Document) -> Reply {
    let mut reply = reply::json(StatusCode::OK, Body::whole(document.body.clone()));
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", document.hash)) {
        reply.headers_mut().insert(ETAG, tag);
    }
    reply
}

fn found(document: &Document) -> Reply {
    let mut reply = reply::json(StatusCode::OK, Body::whole(document.body.clone()));
    reply.headers_mut().insert(ETAG, document.tag.clone());
    reply
}

fn paths(registry: &Registry) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/mainstay/v1/join",
        "/mainstay/v1/tokens",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for known in registry.groups() {
        let (group, version) = (known.group, known.version);
        if group.is_empty() {
            paths.push(format!("/api/{version}"));
        } else {
            paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
        }
    }
    paths.sort();
    paths.dedup();
    paths
}
