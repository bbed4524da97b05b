//! Objects kept by somebody else's API server: the client half of the Kubernetes dialect.
//!
//! An agent's way to its servers. Single objects are read and written over HTTPS, one request each;
//! collections are listed once and then watched, and are served from that copy. What always holds:
//!
//! * A write is a compare-and-swap at the server, by `resourceVersion`.
//! * A collection shows at least every write this client was told of.
//! * What the server forbids or finds invalid is [`Error::Refused`], which asking again does not
//!   mend.
//! * While no server answers, reads and writes say [`Error::Unavailable`], and the copies stay as
//!   they were; watches go on where they were when one answers again.
//!
//! The status of an object is written through its subresource, as the dialect wants it: an update
//! that changes both parts is two writes, the status last. The dialect does not tell the version at
//! which an object went: a deletion bears it only where its collection is followed. Revisions are
//! compared within one collection. Enter at [`KubernetesStore::new`].

mod feed;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Method;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use self::feed::{Feed, Selected, Source};
use crate::cache::{Collection, Retention, Watch};
use crate::clock::Clock;
use crate::object::{Action, Body, Event, Key, Received, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Objects, Scope, Write};
use crate::registry::{Kind, Registry};
use crate::remote::{Remote, is_leaving};
use crate::snapshot::{Medium, Snapshot};
use crate::status::Reason;
use crate::strategy::Subresource;
pub use mainstay_client::{Access, Address, AddressError, Answer, Client};

/// How many objects that were just read are kept, for the write that follows.
const RECENT: usize = 64;
/// The field of the metadata in which a server notes who holds which field.
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
    /// Objects of the kinds in `registry`, kept at the servers of `client`. `manager` is noted as
    /// the holder of what is written.
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
            // Whoever watches a copy is in this process: it seldom falls behind, and lists anew
            // without asking the server if it does.
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
            reason: format!("{resource} is not a kind this client knows"),
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
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
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
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
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
                // Only who reads may want to know who holds which field.
                let without = if reads { "" } else { OWNERS };
                let read = record(kind, key.namespace(), &body, without);
                read.map(Arc::new).map_err(|error| Error::Unavailable {
                    reason: format!("the answer about {key} cannot be read: {error}"),
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

    /// Keeps what the server said of an object, for the write that may follow.
    fn note(&self, record: &Arc<Record>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|older| older.key() != record.key());
        recent.truncate(RECENT - 1);
        recent.push_front(record.clone());
    }

    /// Notes what the server made of a write: the copy of the collection must show it.
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
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Sends an object that takes the place of another. Who holds which field is the server's to
    /// know.
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

    /// A conflict with the version that is in the way, which the dialect does not tell.
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

    /// Sends a new object. The name in `key` is for messages; what it is called in the end is the
    /// server's to say.
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

/// The object without what the server looks after and without its status.
fn bare(object: &Map<String, Value>) -> Map<String, Value> {
    let mut bare = object.clone();
    bare.remove("status");
    if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", OWNERS, "generation"] {
            metadata.remove(field);
        }
    }
    bare
}

fn is_marked(object: &Map<String, Value>) -> bool {
    object.get("metadata").and_then(|metadata| metadata.get("deletionTimestamp")).is_some()
}

/// What a server sent, as it is kept, but for one field of its metadata.
fn record(
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
fn collection_path(kind: &Kind, namespace: Option<&str>) -> String {
    let root = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    match namespace.filter(|_| kind.namespaced) {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{}", kind.plural),
        None => format!("{root}/{}", kind.plural),
    }
}

fn object_path(kind: &Kind, key: &Key, part: &str) -> String {
    format!("{}/{}{part}", collection_path(kind, key.namespace()), key.name())
}

/// What a refusal means here.
fn refusal(answer: &Answer, key: &Key) -> Error {
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

impl Objects for KubernetesStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        async move {
            if write.fence.is_some() {
                let reason = "a remote server knows no fences".to_owned();
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
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
            Ok(Snapshot { revision, oldest: revision, collections })
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
        // What the server keeps is for the server to verify.
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.stop.cancel();
        let feeds = std::mem::take(&mut *self.feeds.lock().unwrap_or_else(PoisonError::into_inner));
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
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::builtin;

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
