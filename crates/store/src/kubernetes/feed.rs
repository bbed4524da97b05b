//! A copy of one collection, kept in step with a server: listed once, then watched.

use std::sync::Arc;
use std::time::Duration;

use mainstay_client::{Call, Client, encode};
use mainstay_clock::{Backoff, Clock, Retries};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::OWNERS;
use super::wire::{collection_path, record};
use crate::cache::{Cache, Collection, Retention, RetentionQueue, State, Watch};
use crate::object::{Action, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Scope};
use crate::registry::Kind;
use crate::select::Selection;

/// How many objects one page of a list has.
const PAGE: usize = 500;
/// The retry schedule after a server did not answer.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// After how many seconds the server is asked to end a watch.
const WATCH_SECONDS: u64 = 600;
/// How long a watch may be silent: a server that did not end it by then is gone.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// How long a version that the server reported may take to arrive in the copy.
const PATIENCE: Duration = Duration::from_millis(250);

/// Which objects of a collection are copied: all, or those of a namespace with some labels and
/// fields. The selectors are written as a request has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selected {
    pub(super) resource: Resource,
    pub(super) namespace: Option<String>,
    pub(super) labels: String,
    pub(super) fields: String,
}

impl Selected {
    /// The smallest copy that serves a scope. Scopes without selectors share the copy of the whole
    /// collection, so that a watch of one namespace can begin where a list of all ended.
    pub(super) fn of(scope: &Scope) -> Self {
        let Scope { resource, namespace, selection, .. } = scope;
        let namespace = namespace.clone().filter(|_| !selection.is_everything());
        Self {
            resource: resource.clone(),
            namespace,
            labels: selection.labels.to_string(),
            fields: selection.fields.to_string(),
        }
    }
}

/// Where a copy comes from.
pub(super) struct Source {
    pub(super) client: Arc<Client>,
    pub(super) kind: Arc<Kind>,
    pub(super) selected: Selected,
    pub(super) selection: Selection,
}

/// A copy of one collection, or of a part of it.
#[derive(Debug)]
pub(super) struct Feed {
    namespace: Option<String>,
    selection: Selection,
    cache: Arc<Cache>,
    synced: watch::Receiver<bool>,
    /// The newest version that the server reported to this client.
    expected: Mutex<Revision>,
    stop: CancellationToken,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Feed {
    pub(super) fn start(
        source: Source,
        clock: Arc<dyn Clock>,
        retention: Retention,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let cache = Arc::new(Cache::new(State::default(), retention));
        let (sender, synced) = watch::channel(false);
        let Source { client, kind, selected, selection } = source;
        let namespace = selected.namespace.clone();
        let copy = cache.clone();
        let follower = Follower { client, kind, selected, clock, cache: copy, synced: sender };
        let ended = stop.clone();
        let task = tokio::spawn(async move {
            let _ = ended.run_until_cancelled(follower.run()).await;
        });
        let task = Mutex::new(Some(task));
        let expected = Mutex::default();
        Arc::new(Self { namespace, selection, cache, synced, expected, stop, task })
    }

    /// Whether a change to this object shows in the copy: it is selected, or was until now.
    pub(super) fn covers(&self, record: &Record) -> bool {
        let key = record.key();
        let in_namespace = self.namespace.as_deref().is_none_or(|own| key.namespace() == Some(own));
        in_namespace && (self.selection.matches(record) || self.cache.get(key).is_some())
    }

    /// Notes a version that the copy must reach before it is read again.
    pub(super) fn expect(&self, revision: Revision) {
        let mut expected = self.expected.lock();
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
            selection: Selection::default(),
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

    /// Waits until the copy has what was written through us.
    async fn caught_up(&self) -> Result<(), Error> {
        self.ready().await?;
        let expected = *self.expected.lock();
        tokio::select! {
            () = self.stop.cancelled() => Err(Error::Closed),
            () = self.cache.reached(expected) => Ok(()),
        }
    }

    pub(super) async fn collection(
        &self,
        resource: &Resource,
        at: At,
    ) -> Result<Collection, Error> {
        self.caught_up().await?;
        self.cache.collection(resource, at)
    }

    /// Watches from a version that the server reported, which the copy may not have yet.
    pub(super) async fn watch(&self, scope: Scope, from: Revision) -> Result<Watch, Error> {
        self.caught_up().await?;
        if from > self.cache.revision() {
            // One that never comes is too new.
            let _ = tokio::time::timeout(PATIENCE, self.cache.reached(from)).await;
        }
        self.cache.watch(scope, from)
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // One that panicked has ended as well.
            let _ = task.await;
        }
        self.cache.close();
    }
}

/// Why following stopped.
enum Interruption {
    /// The history is gone: list again.
    Expired,
    /// The connection failed: resume where it stopped.
    Broken(String),
}

impl From<mainstay_client::Error> for Interruption {
    fn from(error: mainstay_client::Error) -> Self {
        Self::Broken(error.explained())
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: String,
    resource_version: String,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Why a server ended a watch.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: u16,
    message: String,
}

/// The one task that changes a copy.
struct Follower {
    client: Arc<Client>,
    kind: Arc<Kind>,
    selected: Selected,
    clock: Arc<dyn Clock>,
    cache: Arc<Cache>,
    synced: watch::Sender<bool>,
}

impl Follower {
    async fn run(self) {
        let mut retries = RETRY.retries();
        let mut retained = RetentionQueue::default();
        let mut listed = false;
        loop {
            if !listed {
                match self.list().await {
                    Ok(()) => {
                        retained = RetentionQueue::default();
                        listed = true;
                        retries.reset();
                        self.synced.send_replace(true);
                    }
                    Err(Interruption::Broken(why)) => self.wait(&why, &mut retries).await,
                    Err(Interruption::Expired) => {}
                }
                continue;
            }
            let before = self.cache.revision();
            match self.follow(&mut retained).await {
                Interruption::Expired => listed = false,
                Interruption::Broken(why) => {
                    if self.cache.revision() > before {
                        retries.reset();
                    }
                    self.wait(&why, &mut retries).await;
                }
            }
        }
    }

    async fn wait(&self, why: &str, retries: &mut Retries) {
        let (collection, pause) = (self.kind.resource(), retries.failed());
        tracing::debug!(%collection, why, ?pause, "listing or watching a collection failed; retrying");
        self.clock.sleep(pause).await;
    }

    /// The path of what is copied, with the beginning of a query.
    fn path(&self) -> String {
        let Selected { namespace, labels, fields, .. } = &self.selected;
        let mut path = collection_path(&self.kind, namespace.as_deref());
        path.push('?');
        for (parameter, selector) in [("labelSelector", labels), ("fieldSelector", fields)] {
            if !selector.is_empty() {
                path.push_str(&format!("{parameter}={}&", encode(selector)));
            }
        }
        path
    }

    /// Reads everything as it is at one revision. Watches from before expire.
    async fn list(&self) -> Result<(), Interruption> {
        let path = self.path();
        let mut token = String::new();
        let mut records = Vec::new();
        let revision = loop {
            let page = format!("{path}limit={PAGE}&continue={token}");
            let answer = self.client.call(http::Method::GET, &page, None).await?;
            match answer.code.as_u16() {
                200 => {}
                410 => return Err(Interruption::Expired),
                code => {
                    return Err(Interruption::Broken(format!(
                        "the server answered {code} to a list"
                    )));
                }
            }
            let page: Page<'_> = serde_json::from_slice(&answer.body)
                .map_err(|error| Interruption::Broken(format!("a list cannot be read: {error}")))?;
            for item in page.items.into_iter().flatten() {
                records.push(Arc::new(self.record(item)?));
            }
            token = encode(&page.metadata.next);
            if token.is_empty() {
                break page.metadata.resource_version.parse().unwrap_or_default();
            }
        };
        let mut state = State::new(revision, revision);
        records.into_iter().for_each(|record| state.load(record));
        self.cache.publish_all(state);
        Ok(())
    }

    /// Takes an object over. Items of a list lack `apiVersion` and `kind`, which are added. The
    /// holders of fields are left out: they would be half of the memory.
    fn record(&self, object: &RawValue) -> Result<Record, Interruption> {
        let read = record(&self.kind, None, object.get().as_bytes(), OWNERS);
        read.map_err(|error| Interruption::Broken(format!("an object cannot be read: {error}")))
    }

    /// Watches from where the copy is, until that ends.
    async fn follow(&self, retained: &mut RetentionQueue) -> Interruption {
        let from = self.cache.revision();
        let path = self.path();
        let path = format!(
            "{path}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}"
        );
        let mut lines = match self.client.open(&Call::get(path)).await {
            Ok(lines) => lines,
            Err(error) => return error.into(),
        };
        match lines.code().as_u16() {
            200 => {}
            410 => return Interruption::Expired,
            code => return Interruption::Broken(format!("the server answered {code} to a watch")),
        }
        loop {
            let line = match lines.line_within(SILENCE).await {
                Ok(Some(line)) => line,
                Ok(None) => return Interruption::Broken("the server ended the watch".to_owned()),
                Err(error) => return error.into(),
            };
            if let Err(cut) = self.take(&line, retained) {
                return cut;
            }
        }
    }

    /// Takes one line of a watch into the copy.
    fn take(&self, line: &[u8], retained: &mut RetentionQueue) -> Result<(), Interruption> {
        let Line { kind, object }: Line<'_> = serde_json::from_slice(line)
            .map_err(|error| Interruption::Broken(format!("a change cannot be read: {error}")))?;
        if !matches!(kind.as_str(), "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK") {
            let refusal: Refusal = serde_json::from_str(object.get()).unwrap_or_default();
            return Err(match refusal.code {
                410 => Interruption::Expired,
                _ => Interruption::Broken(refusal.message),
            });
        }
        let record = Arc::new(self.record(object)?);
        let mut state = (*self.cache.load()).clone();
        if kind == "BOOKMARK" {
            state.advance(record.revision());
            self.cache.publish(state, [self.kind.resource()]);
            return Ok(());
        }
        let previous = state.get(record.key()).cloned();
        let action = match kind.as_str() {
            "DELETED" => Action::Deleted,
            _ if previous.is_some() => Action::Modified,
            _ => Action::Added,
        };
        if record.revision() <= state.revision {
            // A server whose changes share versions: a watch resumed here could skip one.
            return Err(Interruption::Expired);
        }
        let event = Arc::new(Event::new(action, record, previous));
        state.apply(event.clone());
        retained.note(&event, self.clock.now());
        retained.trim(&mut state, self.cache.retention(), self.clock.now());
        self.cache.publish(state, [self.kind.resource()]);
        Ok(())
    }
}
