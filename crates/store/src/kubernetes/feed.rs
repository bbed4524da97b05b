//! A copy of one collection, kept in step with a server: listed once, then watched.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Failure};
use super::{collection_path, record};
use crate::cache::{Cache, Collection, Ledger, Retention, State, Watch};
use crate::clock::Clock;
use crate::object::{Action, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Scope};
use crate::registry::Kind;

/// How many objects one page of a list has.
const PAGE: usize = 500;
/// How long one waits before a server is asked again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A copy of one collection.
#[derive(Debug)]
pub(super) struct Feed {
    cache: Arc<Cache>,
    synced: watch::Receiver<bool>,
    /// The newest version this client was told of.
    expected: Mutex<Revision>,
    stop: CancellationToken,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Feed {
    pub(super) fn start(
        client: Arc<Client>,
        kind: Arc<Kind>,
        clock: Arc<dyn Clock>,
        retention: Retention,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let cache = Arc::new(Cache::new(State::default(), retention));
        let (sender, synced) = watch::channel(false);
        let follower = Follower { client, kind, clock, cache: cache.clone(), synced: sender };
        let ended = stop.clone();
        let task = tokio::spawn(async move {
            let _ = ended.run_until_cancelled(follower.run()).await;
        });
        let task = Mutex::new(Some(task));
        Arc::new(Self { cache, synced, expected: Mutex::default(), stop, task })
    }

    /// Notes a version that the copy must reach before it is read again.
    pub(super) fn expect(&self, revision: Revision) {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        *expected = (*expected).max(revision);
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Record>> {
        self.cache.get(key)
    }

    pub(super) fn revision(&self) -> Revision {
        self.cache.revision()
    }

    /// Follows one object from here on; nothing while there is no copy.
    pub(super) fn follow(&self, key: &Key) -> Option<Watch> {
        if !*self.synced.borrow() {
            return None;
        }
        let scope = Scope {
            resource: key.resource().clone(),
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name().to_owned()),
        };
        self.cache.watch(scope, self.cache.revision()).ok()
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut synced = self.synced.clone();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Error::Closed),
            done = synced.wait_for(|synced| *synced) => done.map(drop).map_err(|_| Error::Closed),
        }
    }

    pub(super) async fn collection(
        &self,
        resource: &Resource,
        at: At,
    ) -> Result<Collection, Error> {
        self.ready().await?;
        let expected = *self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            () = self.stop.cancelled() => return Err(Error::Closed),
            () = self.cache.reached(expected) => {}
        }
        self.cache.collection(resource, at)
    }

    pub(super) async fn watch(&self, scope: Scope, from: Revision) -> Result<Watch, Error> {
        self.ready().await?;
        self.cache.watch(scope, from)
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // One that panicked has ended as well.
            let _ = task.await;
        }
        self.cache.close();
    }
}

/// Why following stopped.
enum Cut {
    /// The history is gone: list again.
    Expired,
    /// The way there failed: go on where we were.
    Broken(String),
}

impl From<Failure> for Cut {
    fn from(failure: Failure) -> Self {
        Self::Broken(failure.0)
    }
}

/// The one task that changes a copy.
struct Follower {
    client: Arc<Client>,
    kind: Arc<Kind>,
    clock: Arc<dyn Clock>,
    cache: Arc<Cache>,
    synced: watch::Sender<bool>,
}

impl Follower {
    async fn run(self) {
        let mut pause = PAUSES.0;
        let mut ledger = Ledger::default();
        let mut listed = false;
        loop {
            if !listed {
                match self.list().await {
                    Ok(()) => {
                        ledger = Ledger::default();
                        listed = true;
                        pause = PAUSES.0;
                        self.synced.send_replace(true);
                    }
                    Err(Cut::Broken(why)) => self.wait(&why, &mut pause).await,
                    Err(Cut::Expired) => {}
                }
                continue;
            }
            let before = self.cache.revision();
            match self.follow(&mut ledger).await {
                Cut::Expired => listed = false,
                Cut::Broken(why) => {
                    if self.cache.revision() > before {
                        pause = PAUSES.0;
                    }
                    self.wait(&why, &mut pause).await;
                }
            }
        }
    }

    async fn wait(&self, why: &str, pause: &mut Duration) {
        let collection = self.kind.resource();
        tracing::debug!(%collection, why, ?pause, "a collection cannot be followed; will try again");
        self.clock.sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSES.1);
    }

    /// Reads everything as it is at one revision. Whoever watches from before learns that the
    /// history has expired.
    async fn list(&self) -> Result<(), Cut> {
        let path = collection_path(&self.kind, None);
        let mut token = String::new();
        let mut records = Vec::new();
        let revision = loop {
            let page = format!("{path}?limit={PAGE}&continue={token}");
            let answer = self.client.call(http::Method::GET, &page, None).await?;
            match answer.code.as_u16() {
                200 => {}
                410 => return Err(Cut::Expired),
                code => return Err(Cut::Broken(format!("the server answered {code} to a list"))),
            }
            let whole: Value = serde_json::from_slice(&answer.body)
                .map_err(|error| Cut::Broken(format!("a list cannot be read: {error}")))?;
            let items = whole.get("items").and_then(Value::as_array).into_iter().flatten();
            for item in items.filter_map(Value::as_object) {
                records.push(Arc::new(self.record(item)));
            }
            let field = |name: &str| {
                let metadata = whole.get("metadata").and_then(|metadata| metadata.get(name));
                metadata.and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            token = escaped(&field("continue"));
            if token.is_empty() {
                break field("resourceVersion").parse().unwrap_or_default();
            }
        };
        let mut state = State::new(revision, revision);
        records.into_iter().for_each(|record| state.load(record));
        self.cache.publish_all(state);
        Ok(())
    }

    /// Items of a list do not say what they are; ours must.
    fn record(&self, item: &Map<String, Value>) -> Record {
        let mut object = item.clone();
        object.entry("apiVersion").or_insert_with(|| Value::from(self.kind.api_version()));
        object.entry("kind").or_insert_with(|| Value::from(self.kind.kind));
        record(&self.key(item), &object)
    }

    fn key(&self, object: &Map<String, Value>) -> Key {
        let field = |name: &str| {
            let metadata = object.get("metadata").and_then(|metadata| metadata.get(name));
            metadata.and_then(Value::as_str)
        };
        self.kind.key(field("namespace"), field("name").unwrap_or_default())
    }

    /// Watches from where the copy is, until that ends.
    async fn follow(&self, ledger: &mut Ledger) -> Cut {
        let from = self.cache.revision();
        let path = collection_path(&self.kind, None);
        let path = format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={from}");
        let mut lines = match self.client.stream(&path).await {
            Ok(lines) => lines,
            Err(failure) => return failure.into(),
        };
        match lines.code.as_u16() {
            200 => {}
            410 => return Cut::Expired,
            code => return Cut::Broken(format!("the server answered {code} to a watch")),
        }
        loop {
            let line = match lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) => return Cut::Broken("the server ended the watch".to_owned()),
                Err(failure) => return failure.into(),
            };
            if let Err(cut) = self.take(&line, ledger) {
                return cut;
            }
        }
    }

    /// Takes one line of a watch into the copy.
    fn take(&self, line: &[u8], ledger: &mut Ledger) -> Result<(), Cut> {
        if line.is_empty() {
            return Ok(());
        }
        let event: Value = serde_json::from_slice(line)
            .map_err(|error| Cut::Broken(format!("a change cannot be read: {error}")))?;
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let Some(object) = event.get("object").and_then(Value::as_object) else {
            return Err(Cut::Broken("a change without an object".to_owned()));
        };
        let record = Arc::new(self.record(object));
        let mut state = (*self.cache.load()).clone();
        let previous = state.get(record.key()).cloned();
        let action = match kind {
            "ADDED" | "MODIFIED" if previous.is_some() => Action::Modified,
            "ADDED" | "MODIFIED" => Action::Added,
            "DELETED" => Action::Deleted,
            "BOOKMARK" => {
                state.advance(record.revision());
                self.cache.publish(state, [self.kind.resource()]);
                return Ok(());
            }
            _ => {
                let code = object.get("code").and_then(Value::as_u64).unwrap_or_default();
                let gone = code == 410;
                let message = object.get("message").and_then(Value::as_str).unwrap_or_default();
                return Err(if gone { Cut::Expired } else { Cut::Broken(message.to_owned()) });
            }
        };
        if record.revision() < state.revision {
            return Err(Cut::Expired);
        }
        let event = Arc::new(Event::new(action, record, previous));
        state.apply(event.clone());
        ledger.note(&event, self.clock.now());
        ledger.trim(&mut state, self.cache.retention(), self.clock.now());
        self.cache.publish(state, [self.kind.resource()]);
        Ok(())
    }
}

/// A continue token as it stands in a query.
fn escaped(token: &str) -> String {
    let mut text = String::with_capacity(token.len());
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
