//! Objects kept by a remote server, which checks every write by the rules of its kind.
//!
//! For such objects [`Resources`](crate::resources::Resources) hands over objects as the caller
//! wrote them: the remote server does defaults, validation, field owners and namespaces, and
//! reading first would cost a request each time. A copy that is at hand is tried first; the
//! compare-and-swap at the server decides whether it was the newest.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use crate::object::{Key, Record};
use crate::objects::Error;
use crate::registry::Kind;
use crate::strategy::Subresource;

/// A remote server that keeps objects.
pub trait Remote: Send + Sync {
    /// The newest version of an object that is known here. It may be older than what is kept, and
    /// the object may be gone.
    fn at_hand(&self, key: &Key) -> Option<Arc<Record>>;

    /// Creates an object. One without a name is given one.
    fn create<'a>(
        &'a self,
        kind: &'a Kind,
        namespace: Option<&'a str>,
        object: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Arc<Record>, Error>>;

    /// Replaces an object or a part of it; only the version it names, if it names one.
    fn replace<'a>(
        &'a self,
        kind: &'a Kind,
        key: &'a Key,
        subresource: Option<Subresource>,
        object: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Arc<Record>, Error>>;
}

/// Whether an object goes once this is written: it is marked, and nothing holds it back any more.
pub(crate) fn is_leaving(object: &Map<String, Value>) -> bool {
    let metadata = object.get("metadata");
    let marked = metadata.and_then(|metadata| metadata.get("deletionTimestamp")).is_some();
    let held = metadata.and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    marked && held.is_none_or(Vec::is_empty)
}
