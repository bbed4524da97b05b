//! Helpers of the tests: keys, objects and writes in short form.

use mainstay_store::object::{Body, Key, Record, Resource, Revision};
use mainstay_store::objects::{Change, Write};
use serde_json::{Map, Value, json};

/// Runs an asynchronous test body on one thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn key(resource: &str, namespace: &str, name: &str) -> Key {
    Key::new(&Resource::new("", resource), Some(namespace), name)
}

/// An object that holds a value, in a form that every kind with text in its data takes.
pub(crate) fn object(value: impl Into<Value>) -> Map<String, Value> {
    let text = value.into().to_string();
    let Value::Object(object) = json!({"data": {"value": text}}) else { unreachable!() };
    object
}

/// The value an object holds.
pub(crate) fn value(record: &Record) -> Value {
    stored(&Value::Object(record.object()))
}

/// The value that stands in an object.
pub(crate) fn stored(object: &Value) -> Value {
    serde_json::from_str(object["data"]["value"].as_str().unwrap()).unwrap()
}

pub(crate) fn create(key: &Key, value: impl Into<Value>) -> Write {
    Write { key: key.clone(), change: Change::Create(Body::new(&object(value))), fence: None }
}

pub(crate) fn update(key: &Key, at: Revision, value: impl Into<Value>) -> Write {
    let change = Change::Update(at, Body::new(&object(value)));
    Write { key: key.clone(), change, fence: None }
}

pub(crate) fn delete(key: &Key, at: Revision) -> Write {
    Write { key: key.clone(), change: Change::Delete(at), fence: None }
}
