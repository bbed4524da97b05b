//! The contents of a store: keys, revisions, and objects as ready-made JSON.
//!
//! An object is kept as the bytes a client will receive, so that serving it costs a copy and no
//! parsing. The only part that is unknown until the commit is its `resourceVersion`; a [`Body`]
//! therefore leaves a hole for it, which the committer fills in when it knows the revision.

mod encode;

use std::borrow::Borrow;
use std::fmt;
use std::num::ParseIntError;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};

pub(crate) use self::encode::Received;

/// A point in the history of a store. Every change has its own; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a store that has never been written to.
    pub const ZERO: Self = Self(0);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The collection an object lives in: `configmaps`, `replicatedvolumes.storage.mainstay.dev`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<str>);

impl Resource {
    /// The collection of `plural` in `group`; the core group is the empty string.
    #[must_use]
    pub fn new(group: &str, plural: &str) -> Self {
        if group.is_empty() {
            Self(plural.into())
        } else {
            Self(format!("{plural}.{group}").into())
        }
    }

    /// The name under which it was written to disk.
    #[must_use]
    pub fn from_stored(name: &str) -> Self {
        Self(name.into())
    }

    /// `plural` or `plural.group`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where one object is: its collection, and `namespace/name` (or `name` for cluster-scoped kinds).
///
/// Within a collection objects are ordered by that path, bytewise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    resource: Resource,
    path: Arc<str>,
}

impl Key {
    /// The key of `name` in `namespace`, or of a cluster-scoped `name`.
    #[must_use]
    pub fn new(resource: &Resource, namespace: Option<&str>, name: &str) -> Self {
        let path = match namespace {
            Some(namespace) => format!("{namespace}/{name}").into(),
            None => name.into(),
        };
        Self { resource: resource.clone(), path }
    }

    /// The key of a path as it was written to disk.
    #[must_use]
    pub fn from_stored(resource: Resource, path: &str) -> Self {
        Self { resource, path: path.into() }
    }

    /// The collection.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// `namespace/name`, or `name`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The namespace, if the object has one.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.path.split_once('/').map(|(namespace, _)| namespace)
    }

    /// The object's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.split_once('/').map_or(&*self.path, |(_, name)| name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.resource, self.path)
    }
}

/// An object about to be written: JSON with a hole where its `resourceVersion` will stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    json: Vec<u8>,
    hole: usize,
}

impl Body {
    /// Encodes an object. A `metadata.resourceVersion` it may carry is left out: the store sets it.
    ///
    /// An object without `metadata` gets one, so that the version has a place.
    #[must_use]
    pub fn new(object: &Map<String, Value>) -> Self {
        let empty = Map::new();
        let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        encode::body(object, metadata)
    }

    /// The same object with one more field, which must come after all others in the alphabet: for
    /// objects that are written often and differ in their status alone. `None` if `value` cannot be
    /// written as JSON.
    #[must_use]
    pub fn with_last(&self, name: &str, value: &impl Serialize) -> Option<Self> {
        let whole = self.json.len().saturating_sub(1);
        let mut json = Vec::with_capacity(self.json.len() + 256);
        json.extend_from_slice(&self.json[..whole]);
        json.push(b',');
        serde_json::to_writer(&mut json, name).ok()?;
        json.push(b':');
        serde_json::to_writer(&mut json, value).ok()?;
        json.push(b'}');
        Some(Self { json, hole: self.hole })
    }

    /// The body as text that says by itself where its hole is: the JSON, and the number of bytes
    /// before the hole on a line of its own.
    #[must_use]
    pub fn to_stored(&self) -> Vec<u8> {
        let mut text = self.json.clone();
        text.extend_from_slice(format!("\n{}", self.hole).as_bytes());
        text
    }

    /// Reads [`Body::to_stored`] back; `None` if it is anything else.
    #[must_use]
    pub fn from_stored(text: &[u8]) -> Option<Self> {
        let end = text.iter().rposition(|byte| *byte == b'\n')?;
        let hole: usize = std::str::from_utf8(&text[end + 1..]).ok()?.parse().ok()?;
        Self::from_parts(text[..end].to_vec(), hole)
    }

    /// The object with an empty version.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// Where in [`Body::json`] the version is missing.
    #[must_use]
    pub fn hole(&self) -> usize {
        self.hole
    }

    /// Takes an object apart from its version, from outside; `None` if `json` is no object or has
    /// no empty text at `hole`.
    #[must_use]
    pub fn from_parts(json: Vec<u8>, hole: usize) -> Option<Self> {
        let around = json.get(hole.checked_sub(1)?..hole.checked_add(1)?)?;
        (around == b"\"\"" && is_object(&json)).then_some(Self { json, hole })
    }

    /// How many bytes it takes without its version.
    #[must_use]
    pub fn len(&self) -> usize {
        self.json.len()
    }

    /// Never true: even an empty object has a place for its version.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// The object as it stands at `revision`, first created at `created`.
    #[must_use]
    pub fn at(&self, key: Key, created: Revision, revision: Revision) -> Record {
        let digits = revision.to_string();
        let mut json = Vec::with_capacity(self.json.len() + digits.len());
        json.extend_from_slice(&self.json[..self.hole]);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.json[self.hole..]);
        Record { key, created, revision, hole: self.hole, json: json.into() }
    }
}

/// One version of one object, as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    key: Key,
    created: Revision,
    revision: Revision,
    hole: usize,
    json: Bytes,
}

impl Record {
    /// A record as it was written to disk; `None` if `json` has no version at `hole`.
    #[must_use]
    pub fn from_stored(
        key: Key,
        created: Revision,
        revision: Revision,
        hole: usize,
        json: Vec<u8>,
    ) -> Option<Self> {
        let record = Self { key, created, revision, hole, json: json.into() };
        let digits = record.json.get(record.digits())?;
        (digits == revision.to_string().as_bytes() && is_object(&record.json)).then_some(record)
    }

    /// Where it is.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The revision of its creation. On etcd objects that were created together may share it.
    #[must_use]
    pub fn created(&self) -> Revision {
        self.created
    }

    /// The revision of its last change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The whole object, `resourceVersion` included.
    #[must_use]
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// Where in [`Record::json`] the version begins.
    #[must_use]
    pub fn hole(&self) -> usize {
        self.hole
    }

    /// The object as a tree.
    ///
    /// # Panics
    /// Never: only objects become records.
    #[must_use]
    pub fn object(&self) -> Map<String, Value> {
        serde_json::from_slice(&self.json).expect("a record holds an encoded object")
    }

    /// The same object at another revision: what a DELETED event shows.
    #[must_use]
    pub fn at(&self, revision: Revision) -> Self {
        let digits = revision.to_string();
        let old = self.digits();
        let mut json = Vec::with_capacity(self.json.len() + digits.len());
        json.extend_from_slice(&self.json[..old.start]);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.json[old.end..]);
        let (key, created) = (self.key.clone(), self.created);
        Self { key, created, revision, hole: self.hole, json: json.into() }
    }

    /// The object without its version: what another store needs to hold the same.
    #[must_use]
    pub fn body(&self) -> Body {
        let digits = self.digits();
        let mut json = Vec::with_capacity(self.json.len());
        json.extend_from_slice(&self.json[..digits.start]);
        json.extend_from_slice(&self.json[digits.end..]);
        Body { json, hole: self.hole }
    }

    /// About how much memory it holds.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.json.len() + self.key.path.len() + 128
    }

    fn digits(&self) -> Range<usize> {
        self.hole..self.hole + self.revision.to_string().len()
    }
}

/// Whether bytes from a disk or a network are a JSON object through and through.
fn is_object(json: &[u8]) -> bool {
    json.first() == Some(&b'{') && serde_json::from_slice::<serde::de::IgnoredAny>(json).is_ok()
}

/// A record in an ordered set: compared by path alone.
#[derive(Clone, Debug)]
pub(crate) struct Entry(pub(crate) Arc<Record>);

impl Borrow<str> for Entry {
    fn borrow(&self) -> &str {
        self.0.key.path()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.0.key.path == other.0.key.path
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key.path.cmp(&other.0.key.path)
    }
}

/// The sort of change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was removed; the event's record is its last state at the revision of its removal.
    Deleted,
}

/// One change, as watchers see it.
#[derive(Debug)]
pub struct Event {
    /// The sort of change.
    pub action: Action,
    /// The object after the change (for a deletion: as it last was, at the deletion's revision).
    pub record: Arc<Record>,
    /// The object before the change, if there was one.
    pub previous: Option<Arc<Record>>,
    line: OnceLock<Bytes>,
}

impl Event {
    /// A new event.
    #[must_use]
    pub fn new(action: Action, record: Arc<Record>, previous: Option<Arc<Record>>) -> Self {
        Self { action, record, previous, line: OnceLock::new() }
    }

    /// The revision of the change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.record.revision
    }

    /// The event as a line of a watch stream, encoded once however many watchers there are.
    #[must_use]
    pub fn line(&self) -> &Bytes {
        self.line.get_or_init(|| {
            let head: &[u8] = match self.action {
                Action::Added => b"{\"type\":\"ADDED\",\"object\":",
                Action::Modified => b"{\"type\":\"MODIFIED\",\"object\":",
                Action::Deleted => b"{\"type\":\"DELETED\",\"object\":",
            };
            let mut line = Vec::with_capacity(head.len() + self.record.json.len() + 2);
            line.extend_from_slice(head);
            line.extend_from_slice(&self.record.json);
            line.extend_from_slice(b"}\n");
            line.into()
        })
    }

    pub(crate) fn weight(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |record| record.weight());
        self.record.weight() + previous + 64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn appending_a_last_field_equals_encoding_it_at_once() {
        let mut object = json!({"kind": "K", "metadata": {"name": "n", "uid": "u"}, "spec": {}});
        let without = Body::new(object.as_object().unwrap());
        object["status"] = json!({"phase": "Open", "text": "\"quoted\""});
        let whole = Body::new(object.as_object().unwrap());
        assert_eq!(without.with_last("status", &object["status"]).unwrap(), whole);
    }
}
