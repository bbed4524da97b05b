//! Objects kept by a remote API server: the client side of the Kubernetes dialect.
//!
//! Agents use it to reach their servers. Single objects are read and written over HTTPS, one
//! request each; collections are listed once and then watched, and are served from that copy.
//! Invariants:
//!
//! * A write is a compare-and-swap at the server, by `resourceVersion`.
//! * A collection shows at least every write that the server acknowledged to this client.
//! * A write that the server forbids or finds invalid is [`Error::Refused`]; a retry does not help.
//! * While no server answers, reads and writes fail with [`Error::Unavailable`], and the copies
//!   stay as they were; watches resume when a server answers again.
//!
//! The status of an object is written through its subresource, as the dialect wants it: an update
//! that changes both parts is two writes, the status last. The answer to a deletion has no version:
//! the event of a deletion has one only if its collection is watched. Revisions are compared within
//! one collection. Enter at [`KubernetesStore::new`].

mod feed;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use self::feed::{Feed, Selected, Source};
use self::wire::{bare, collection_path, is_marked, object_path, record, refusal};
use crate::cache::{Collection, Retention, Watch};
use crate::object::{Action, Body, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Objects, Scope, Write};
use crate::registry::{Kind, Registry};
use crate::remote::{Remote, is_leaving};
use crate::snapshot::{Medium, Snapshot};
use crate::strategy::Subresource;
use mainstay_client::{Answer, Client};
use mainstay_clock::Clock;

/// How many objects that were just read are kept, for the write that follows.
const RECENT: usize = 64;
/// The field of the metadata in which a server notes the holders of fields.
const OWNERS: &str = "managedFields";
/// How long one waits to see a deletion in the copy of its collection.
const SEEN: Duration = Duration::from_secs(15);

/// Objects at a server that speaks the Kubernetes dialect.
#[derive(Debug)]
pub struct KubernetesStore {
    client: Arc<Client>,
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    manager: String,
    feeds: Mutex<BTreeMap<Selected, Arc<Feed>>>,
    recent: Mutex<VecDeque<Arc<Record>>>,
    retention: Retention,
    stop: CancellationToken,
}

impl KubernetesStore {
    /// Objects of the kinds in `registry`, kept at the servers of `client`. `manager` becomes the
    /// holder of written fields.
    #[must_use]
    pub fn new(
        client: Arc<Client>,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        manager: &str,
    ) -> Self {
        let stop = CancellationToken::new();
        Self {
            client,
            registry,
            clock,
            manager: manager.to_owned(),
            feeds: Mutex::default(),
            recent: Mutex::default(),
            // Watchers of a copy are in this process: they seldom fall behind, and list again
            // without asking the server if they do.
            retention: Retention { events: 256, bytes: 1 << 20, ..Retention::default() },
            stop,
        }
    }

    /// Keeps this much history of each collection.
    #[must_use]
    pub fn keeping(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    fn kind(&self, resource: &Resource) -> Result<&Arc<Kind>, Error> {
        self.registry.by_resource(resource).ok_or_else(|| Error::Unavailable {
            reason: format!("{resource} is not registered in this client"),
        })
    }

    /// The copy of a collection, or of the part of it that a scope selects by labels and fields; made
    /// if it is not there yet.
    fn feed(&self, scope: &Scope) -> Result<Arc<Feed>, Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        let kind = self.kind(&scope.resource)?.clone();
        let selected = Selected::of(scope);
        let mut feeds = self.feeds.lock();
        let feed = feeds.entry(selected.clone()).or_insert_with(|| {
            let stop = self.stop.child_token();
            let selection = scope.selection.clone();
            let source = Source { client: self.client.clone(), kind, selected, selection };
            Feed::start(source, self.clock.clone(), self.retention, stop)
        });
        Ok(feed.clone())
    }

    /// The copies of a collection and of parts of it that are there already.
    fn known(&self, resource: &Resource) -> Vec<Arc<Feed>> {
        let feeds = self.feeds.lock();
        let of_it = feeds.iter().filter(|(selected, _)| selected.resource == *resource);
        of_it.map(|(_, feed)| feed.clone()).collect()
    }

    /// An object as a copy has it; the newest if several do.
    fn copied(&self, key: &Key) -> Option<Arc<Record>> {
        let copies = self.known(key.resource()).into_iter().filter_map(|feed| feed.get(key));
        copies.max_by_key(|record| record.revision())
    }

    /// Follows an object in a copy that holds it; nothing if none does.
    fn follow(&self, record: &Record) -> Option<Watch> {
        let mut feeds = self.known(record.key().resource()).into_iter();
        feeds.find_map(|feed| feed.covers(record).then(|| feed.follow(record.key())).flatten())
    }

    async fn ask(
        &self,
        method: Method,
        path: String,
        body: Option<&Value>,
        key: &Key,
    ) -> Result<Arc<Record>, Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        let reads = method == Method::GET;
        let body = body.map(|body| body.to_string().into_bytes());
        match self.client.call(method, &path, body).await {
            Ok(Answer { code, body, .. }) if code.is_success() => {
                let kind = self.kind(key.resource())?;
                // Only readers may need the holders of fields.
                let without = if reads { "" } else { OWNERS };
                let read = record(kind, key.namespace(), &body, without);
                read.map(Arc::new).map_err(|error| Error::Unavailable {
                    reason: format!("the answer for {key} cannot be decoded: {error}"),
                })
            }
            Ok(answer) => Err(refusal(&answer, key)),
            Err(error) => Err(Error::Unavailable { reason: error.explained() }),
        }
    }

    async fn fetch(&self, key: &Key) -> Result<Option<Arc<Record>>, Error> {
        let kind = self.kind(key.resource())?;
        match self.ask(Method::GET, object_path(kind, key, ""), None, key).await {
            Ok(found) => {
                self.note(&found);
                Ok(Some(found))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps an object that the server returned, for the write that may follow.
    fn note(&self, record: &Arc<Record>) {
        let mut recent = self.recent.lock();
        recent.retain(|older| older.key() != record.key());
        recent.truncate(RECENT - 1);
        recent.push_front(record.clone());
    }

    /// Notes the object that the server returned for a write: the copy of the collection must show
    /// it.
    fn wrote(&self, record: &Arc<Record>) {
        self.note(record);
        for feed in self.known(record.key().resource()) {
            if feed.covers(record) {
                feed.expect(record.revision());
            }
        }
    }

    /// The object a change starts from, which must be at `expected`.
    async fn before(&self, key: &Key, expected: Revision) -> Result<Arc<Record>, Error> {
        let is_it = |record: &Arc<Record>| record.key() == key && record.revision() == expected;
        let copy = self.copied(key).filter(is_it);
        let copy = copy.or_else(|| {
            let recent = self.recent.lock();
            recent.iter().find(|record| is_it(record)).cloned()
        });
        let found = match copy {
            Some(record) => record,
            None => match self.fetch(key).await? {
                Some(record) => record,
                None => return Err(Error::NotFound { key: key.clone() }),
            },
        };
        if found.revision() != expected {
            let actual = found.revision();
            return Err(Error::Conflict { key: key.clone(), expected, actual });
        }
        Ok(found)
    }

    async fn put(
        &self,
        key: &Key,
        part: &str,
        mut object: Map<String, Value>,
        revision: Revision,
    ) -> Result<Arc<Record>, Error> {
        let kind = self.kind(key.resource())?;
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        metadata["name"] = Value::from(key.name());
        metadata["resourceVersion"] = Value::from(revision.to_string());
        let written = self.send(kind, key, part, object).await;
        self.explained(written, key, revision).await
    }

    /// Sends an object that takes the place of another. The server notes the holders of fields.
    async fn send(
        &self,
        kind: &Kind,
        key: &Key,
        part: &str,
        mut object: Map<String, Value>,
    ) -> Result<Arc<Record>, Error> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove(OWNERS);
        }
        let path = format!("{}?fieldManager={}", object_path(kind, key, part), self.manager);
        self.ask(Method::PUT, path, Some(&Value::Object(object)), key).await
    }

    /// Adds to a conflict the version that is in the way, which the answer does not have.
    async fn explained<T>(
        &self,
        outcome: Result<T, Error>,
        key: &Key,
        expected: Revision,
    ) -> Result<T, Error> {
        match outcome {
            Err(Error::Conflict { key: contested, .. }) => match self.fetch(key).await? {
                Some(now) => {
                    let actual = now.revision();
                    Err(Error::Conflict { key: contested, expected, actual })
                }
                None => Err(Error::NotFound { key: contested }),
            },
            other => other,
        }
    }

    async fn create(&self, key: &Key, body: &Body) -> Result<Arc<Event>, Error> {
        let kind = self.kind(key.resource())?;
        let mut object = body.at(key.clone(), Revision::ZERO, Revision::ZERO).object();
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        metadata["name"] = Value::from(key.name());
        let made = self.post(kind, key, object).await?;
        Ok(Arc::new(Event::new(Action::Added, made, None)))
    }

    /// Sends a new object. The name in `key` is for messages; the server may generate the name.
    async fn post(
        &self,
        kind: &Kind,
        key: &Key,
        mut object: Map<String, Value>,
    ) -> Result<Arc<Record>, Error> {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("resourceVersion");
            metadata.remove(OWNERS);
            if let Some(namespace) = key.namespace() {
                metadata.insert("namespace".to_owned(), Value::from(namespace));
            }
        }
        let path =
            format!("{}?fieldManager={}", collection_path(kind, key.namespace()), self.manager);
        self.ask(Method::POST, path, Some(&Value::Object(object)), key).await
    }

    async fn update(&self, key: &Key, at: Revision, body: &Body) -> Result<Arc<Event>, Error> {
        let previous = self.before(key, at).await?;
        let kind = self.kind(key.resource())?;
        let (old, new) = (previous.object(), body.at(key.clone(), at, at).object());
        if is_marked(&new) && !is_marked(&old) {
            return self.delete(key, at).await;
        }
        let mut current = previous.clone();
        if bare(&old) != bare(&new) {
            current = self.put(key, "", new.clone(), at).await?;
        }
        let differs = kind.has_status && current.object().get("status") != new.get("status");
        if differs && old.get("status") != new.get("status") {
            current = self.put(key, "/status", new, current.revision()).await?;
        }
        Ok(Arc::new(Event::new(Action::Modified, current, Some(previous))))
    }

    async fn delete(&self, key: &Key, at: Revision) -> Result<Arc<Event>, Error> {
        let previous = self.before(key, at).await?;
        let kind = self.kind(key.resource())?;
        let followed = self.follow(&previous);
        let mut object = previous.object();
        if is_marked(&object) {
            // The last finalizer goes, and the object with it.
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("finalizers");
            }
            self.put(key, "", object, at).await?;
        } else {
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": {"resourceVersion": at.to_string()},
            });
            let path = object_path(kind, key, "");
            let answered = self.ask(Method::DELETE, path, Some(&options), key).await;
            let answered = self.explained(answered, key, at).await?;
            if is_marked(&answered.object()) {
                return Ok(Arc::new(Event::new(Action::Modified, answered, Some(previous))));
            }
        }
        if let Some(event) = deletion(followed).await {
            return Ok(event);
        }
        Ok(Arc::new(Event::new(Action::Deleted, previous.clone(), Some(previous))))
    }
}

/// The deletion that a watch shows; nothing if it ends before, or is not seen for long.
async fn deletion(watch: Option<Watch>) -> Option<Arc<Event>> {
    let mut watch = watch?;
    let seen = async {
        loop {
            let events = watch.next().await.ok()?;
            if let Some(event) = events.into_iter().find(|event| event.action == Action::Deleted) {
                return Some(event);
            }
        }
    };
    tokio::time::timeout(SEEN, seen).await.ok().flatten()
}

impl Objects for KubernetesStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        async move {
            if write.fence.is_some() {
                let reason = "writes under a lease are not supported by a remote server".to_owned();
                return Err(Error::Unavailable { reason });
            }
            let event = match &write.change {
                Change::Create(body) => self.create(&write.key, body).await?,
                Change::Update(at, body) => self.update(&write.key, *at, body).await?,
                Change::Delete(at) => self.delete(&write.key, *at).await?,
            };
            if event.action != Action::Deleted {
                self.wrote(&event.record);
            }
            Ok(event)
        }
        .boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        let key = key.clone();
        async move { self.fetch(&key).await }.boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        let scope = Scope::all(resource);
        async move { self.feed(&scope)?.collection(&scope.resource, at).await }.boxed()
    }

    fn select(&self, scope: &Scope) -> BoxFuture<'_, Result<Collection, Error>> {
        let scope = scope.clone();
        async move {
            let copied = self.feed(&scope)?.collection(&scope.resource, At::Latest).await?;
            Ok(copied.narrowed(&scope))
        }
        .boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        async move { self.feed(&scope)?.watch(scope, from).await }.boxed()
    }

    fn revision(&self, resource: &Resource) -> Revision {
        let revisions = self.known(resource).into_iter().map(|feed| feed.revision());
        revisions.max().unwrap_or(Revision::ZERO)
    }

    fn compact(&self, _through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(Ok(())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        let feeds = self.feeds.lock().clone();
        async move {
            let mut collections: BTreeMap<Resource, Collection> = BTreeMap::new();
            let mut revision = Revision::ZERO;
            for (Selected { resource, .. }, feed) in feeds {
                let mut collection = feed.collection(&resource, At::Latest).await?;
                revision = revision.max(collection.revision());
                if let Some(other) = collections.remove(&resource) {
                    collection = collection.united(other);
                }
                collections.insert(resource, collection);
            }
            let collections = collections.into_iter().collect();
            Ok(Snapshot { revision, oldest: revision, collections, damaged: Vec::new() })
        }
        .boxed()
    }

    fn advance(&self, _to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        std::future::ready(Ok(())).boxed()
    }

    fn medium(&self) -> Medium {
        Medium::Kubernetes(self.client.servers())
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        // The server verifies its own store.
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.stop.cancel();
        let feeds = std::mem::take(&mut *self.feeds.lock());
        async move {
            for feed in feeds.into_values() {
                feed.close().await;
            }
        }
        .boxed()
    }
}

impl Remote for KubernetesStore {
    fn at_hand(&self, key: &Key) -> Option<Arc<Record>> {
        let copy = self.copied(key);
        let recent = self.recent.lock();
        let recent = recent.iter().find(|record| record.key() == key).cloned();
        copy.into_iter().chain(recent).max_by_key(|record| record.revision())
    }

    fn create<'a>(
        &'a self,
        kind: &'a Kind,
        namespace: Option<&'a str>,
        object: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Arc<Record>, Error>> {
        async move {
            let name = object.get("metadata").and_then(|metadata| metadata.get("name"));
            let key = kind.key(namespace, name.and_then(Value::as_str).unwrap_or_default());
            let made = self.post(kind, &key, object).await?;
            self.wrote(&made);
            Ok(made)
        }
        .boxed()
    }

    fn replace<'a>(
        &'a self,
        kind: &'a Kind,
        key: &'a Key,
        subresource: Option<Subresource>,
        object: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Arc<Record>, Error>> {
        async move {
            let part = match subresource {
                None => "",
                Some(Subresource::Status) => "/status",
                Some(Subresource::Finalize) => "/finalize",
            };
            let leaves = subresource.is_none() && is_leaving(&object);
            let previous = self.at_hand(key).filter(|_| leaves);
            let followed = previous.and_then(|previous| self.follow(&previous));
            let written = self.send(kind, key, part, object).await?;
            match leaves {
                true => drop(deletion(followed).await),
                false => self.wrote(&written),
            }
            Ok(written)
        }
        .boxed()
    }
}
