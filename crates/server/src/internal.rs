//! Collections of the store that belong to the server itself and are never served.
//!
//! The certificate authority and the hashes of tokens live in the store, so that every server of
//! a cluster trusts the same. Their collections are in no registry, hence have no path in the API.

use std::sync::Arc;

use mainstay_store::object::{Body, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{Change, Error, Objects, Scope, Write};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const GROUP: &str = "internal.mainstay.dev";

/// One of the server's own collections.
pub(crate) fn resource(plural: &str) -> Resource {
    Resource::new(GROUP, plural)
}

/// Wraps a value as the `spec` of an object, the way every object is stored.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Body, serde_json::Error> {
    let mut object = Map::new();
    object.insert("spec".to_owned(), serde_json::to_value(value)?);
    Ok(Body::new(&object))
}

/// Unwraps what [`encode`] wrapped; `None` if it is something else.
pub(crate) fn decode<T: DeserializeOwned>(record: &Record) -> Option<T> {
    let spec = record.object().remove("spec").unwrap_or(Value::Null);
    serde_json::from_value(spec).ok()
}

/// Creates an object, or returns the one that is there already.
pub(crate) async fn create_or_get(
    objects: &dyn Objects,
    key: &Key,
    body: Body,
) -> Result<Arc<Record>, Error> {
    let write = Write { key: key.clone(), change: Change::Create(body), fence: None };
    match objects.write(write).await {
        Ok(event) => Ok(event.record.clone()),
        Err(Error::AlreadyExists { .. }) => {
            let found = objects.get(key).await?;
            found.ok_or_else(|| Error::NotFound { key: key.clone() })
        }
        Err(error) => Err(error),
    }
}

/// Passes every change of a collection after `from` to `apply`, until the store closes. `reload`
/// reads the collection anew and returns its revision; it is called when changes were missed.
pub(crate) async fn follow<Reload>(
    objects: &dyn Objects,
    resource: &Resource,
    mut from: Revision,
    apply: impl Fn(&[Arc<Event>]),
    reload: impl Fn() -> Reload,
) -> Result<(), Error>
where
    Reload: Future<Output = Result<Revision, Error>>,
{
    loop {
        let ended = match objects.watch(Scope::all(resource), from).await {
            Ok(mut changes) => loop {
                match changes.next().await {
                    Ok(events) => apply(&events),
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        match ended {
            Error::Closed => return Ok(()),
            Error::Expired { .. } | Error::TooNew { .. } => from = reload().await?,
            error => return Err(error),
        }
    }
}
