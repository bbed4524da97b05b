//! OpenAPI documents of the kinds: what `kubectl explain`, `create` and `apply` read.
//!
//! The documents are made once from the registry, and named by their content: `/openapi/v3` lists
//! each with its hash, so that clients fetch it again only when it changed.

pub(crate) mod binary;
mod models;
mod paths;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use mainstay_store::registry::{GroupVersion, Registry};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// One document, ready to be sent.
#[derive(Clone, Debug)]
pub struct Document {
    /// The document itself.
    pub body: Bytes,
    /// A name for exactly this content.
    pub hash: String,
}

impl Document {
    fn new(body: &Value) -> Self {
        Self::of_bytes(body.to_string().into())
    }

    fn of_bytes(body: Bytes) -> Self {
        let mut hash = String::with_capacity(64);
        for byte in Sha256::digest(&body) {
            let _ = write!(hash, "{byte:02X}");
        }
        Self { body, hash }
    }
}

/// Every document.
#[derive(Clone, Debug)]
pub struct OpenApi {
    index: Document,
    v2: Document,
    v2_binary: Document,
    by_path: BTreeMap<String, Document>,
}

impl OpenApi {
    /// The documents of the kinds in `registry`. `version` is that of the program.
    #[must_use]
    pub fn new(registry: &Registry, version: &str) -> Self {
        let mut by_path = BTreeMap::new();
        for known in registry.groups() {
            let body = document(&known, version);
            by_path.insert(relative_path(known.group, known.version), Document::new(&body));
        }
        let index: Map<String, Value> = by_path
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        let v2 = v2(registry, version);
        Self {
            index: Document::new(&json!({"paths": index})),
            v2: Document::new(&v2),
            v2_binary: Document::of_bytes(binary::document(&v2).into()),
            by_path,
        }
    }

    /// The body of `/openapi/v3`.
    #[must_use]
    pub fn index(&self) -> &Document {
        &self.index
    }

    /// The body of `/openapi/v3/PATH`, as `api/v1` or `apis/GROUP/VERSION`.
    #[must_use]
    pub fn document(&self, path: &str) -> Option<&Document> {
        self.by_path.get(path)
    }

    /// The body of `/openapi/v2`, in JSON.
    #[must_use]
    pub fn v2(&self) -> &Document {
        &self.v2
    }

    /// The body of `/openapi/v2`, in protobuf.
    #[must_use]
    pub fn v2_binary(&self) -> &Document {
        &self.v2_binary
    }
}

fn relative_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn document(known: &GroupVersion, version: &str) -> Value {
    let mut schemas = models::shared(models::V3);
    let mut all_paths = Map::new();
    for kind in &known.kinds {
        schemas.extend(models::of_kind(kind, models::V3));
        all_paths.extend(paths::of_kind(kind));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Mainstay", "version": version},
        "paths": all_paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "BearerToken": {
                    "type": "apiKey",
                    "name": "authorization",
                    "in": "header",
                    "description": "A token, sent as: Bearer TOKEN.",
                },
            },
        },
    })
}

/// The models in the older format. Of the paths it has what its readers ask for: whether a kind
/// can be written without being stored.
fn v2(registry: &Registry, version: &str) -> Value {
    let mut definitions = models::shared(models::V2);
    let mut writable = Map::new();
    for kind in registry.iter() {
        definitions.extend(models::of_kind(kind, models::V2));
        writable.extend(paths::dry_run_of_kind(kind));
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Mainstay", "version": version},
        "paths": writable,
        "definitions": definitions,
    })
}

#[cfg(test)]
mod tests;
