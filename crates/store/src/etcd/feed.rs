//! Keeping the readable state in step with etcd: one list, then one watch for everything.
//!
//! The watch is resumed from the revision after the last one applied, on whichever endpoint
//! answers, so nothing is missed and nothing is applied twice. If etcd has compacted that
//! revision away meanwhile, everything is listed again, and whoever watches from before is told
//! that the history has expired.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Ledger, State};
use crate::clock::Clock;
use crate::object::{Action, Body, Event, Key, Record, Resource, Revision};

use super::client::{Client, Error};
use super::proto::{
    CompactionRequest, CompactionResponse, EventType, KeyValue, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

/// How many objects one page of the first list has.
const PAGE: i64 = 1000;
/// How long to wait before etcd is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Where our keys are: `PREFIX/objects/RESOURCE/PATH`.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { root: format!("{prefix}/objects/") }
    }

    pub(super) fn encode(&self, key: &Key) -> Vec<u8> {
        format!("{}{}/{}", self.root, key.resource(), key.path()).into_bytes()
    }

    fn decode(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let (resource, path) = rest.split_once('/')?;
        Some(Key::from_stored(Resource::from_stored(resource), path))
    }

    fn record(&self, kv: &KeyValue) -> Option<Record> {
        let body = Body::from_stored(&kv.value)?;
        let (created, changed) = (revision(kv.create_revision), revision(kv.mod_revision));
        Some(body.at(self.decode(&kv.key)?, created, changed))
    }

    fn start(&self) -> Vec<u8> {
        self.root.clone().into_bytes()
    }

    /// The first key behind all of ours: the root with its last byte one up.
    fn end(&self) -> Vec<u8> {
        let mut end = self.start();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        end
    }
}

pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Reads everything as it is at one revision, page by page, and returns that revision.
async fn walk(
    client: &Client,
    layout: &Layout,
    mut each: impl FnMut(Revision, &KeyValue),
) -> Result<Revision, Error> {
    let mut at = 0;
    let mut key = layout.start();
    loop {
        let request = RangeRequest {
            key,
            range_end: layout.end(),
            limit: PAGE,
            revision: at,
            count_only: false,
        };
        let page: RangeResponse = client.read("/etcdserverpb.KV/Range", request).await?;
        if at == 0 {
            at = page.header.map_or(0, |header| header.revision);
        }
        page.kvs.iter().for_each(|kv| each(revision(at), kv));
        match page.kvs.last() {
            Some(last) if page.more => {
                key = last.key.clone();
                key.push(0);
            }
            _ => return Ok(revision(at)),
        }
    }
}

/// Everything as it is at one revision.
pub(super) async fn list(client: &Client, layout: &Layout) -> Result<State, Error> {
    let mut state: Option<State> = None;
    let at = walk(client, layout, |at, kv| match layout.record(kv) {
        Some(record) => {
            state.get_or_insert_with(|| State::new(at, at)).load(Arc::new(record));
        }
        None => complain(&kv.key),
    });
    let at = at.await?;
    Ok(state.unwrap_or_else(|| State::new(at, at)))
}

/// What is under our prefix and is not ours, one sentence each.
pub(super) async fn strangers(client: &Client, layout: &Layout) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    walk(client, layout, |_, kv| {
        if layout.record(kv).is_none() {
            let key = String::from_utf8_lossy(&kv.key);
            found.push(format!("the key {key:?} in etcd holds no object"));
        }
    })
    .await?;
    Ok(found)
}

fn complain(key: &[u8]) {
    let key = String::from_utf8_lossy(key);
    tracing::warn!(%key, "a key under our prefix is not ours; it is passed over");
}

/// The task that follows etcd.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) client: Arc<Client>,
    pub(super) layout: Layout,
    pub(super) cache: Arc<Cache>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stop: CancellationToken,
    /// Set by whoever waited in vain for the feed to catch up.
    pub(super) stalled: Arc<Notify>,
    /// History to forget: only this task may change the state.
    pub(super) compactions: mpsc::Receiver<(Revision, oneshot::Sender<()>)>,
}

/// Why a watch ended.
enum End {
    /// Go on from where it stopped, perhaps elsewhere.
    Again,
    /// The history is gone: list again.
    Compacted,
}

impl Feed {
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        let compacting =
            compact_now_and_then(self.client.clone(), self.cache.clone(), self.clock.clone());
        let following = async {
            let mut ledger = Ledger::default();
            loop {
                if matches!(self.follow(&mut ledger).await, End::Compacted) {
                    self.relist(&mut ledger).await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
            () = compacting => {}
        }
    }

    async fn follow(&mut self, ledger: &mut Ledger) -> End {
        let create = WatchCreateRequest {
            key: self.layout.start(),
            range_end: self.layout.end(),
            start_revision: number(self.cache.revision().next()),
            fragment: true,
        };
        let mut stream = match self.client.watch(WatchRequest { create: Some(create) }).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "the watch on etcd could not be opened");
                tokio::time::sleep(PAUSE).await;
                return End::Again;
            }
        };
        let mut unfinished: Option<WatchResponse> = None;
        loop {
            let message = tokio::select! {
                message = stream.message() => message,
                () = self.stalled.notified() => {
                    self.client.move_on();
                    return End::Again;
                }
                Some((through, done)) = self.compactions.recv() => {
                    let mut state = State::clone(&self.cache.load());
                    ledger.compact(&mut state, through);
                    self.cache.publish(state, []);
                    // Whoever asked may have gone away; it is done all the same.
                    let _ = done.send(());
                    continue;
                }
            };
            let mut response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return End::Again,
                Err(status) => {
                    tracing::debug!(%status, "the watch on etcd broke; it is resumed");
                    self.client.move_on();
                    tokio::time::sleep(PAUSE).await;
                    return End::Again;
                }
            };
            if response.compact_revision > 0 {
                return End::Compacted;
            }
            if response.canceled {
                tracing::debug!(reason = response.cancel_reason, "etcd ended the watch");
                self.client.move_on();
                tokio::time::sleep(PAUSE).await;
                return End::Again;
            }
            if let Some(mut earlier) = unfinished.take() {
                earlier.events.append(&mut response.events);
                earlier.fragment = response.fragment;
                response = earlier;
            }
            if response.fragment {
                unfinished = Some(response);
            } else {
                self.apply(&response, ledger);
            }
        }
    }

    fn apply(&self, response: &WatchResponse, ledger: &mut Ledger) {
        let now = self.clock.now();
        let mut state = State::clone(&self.cache.load());
        let mut changed: Vec<Resource> = Vec::new();
        for event in &response.events {
            let Some(event) = self.translate(&state, event) else { continue };
            let resource = event.record.key().resource();
            if !changed.contains(resource) {
                changed.push(resource.clone());
            }
            let event = Arc::new(event);
            ledger.note(&event, now);
            state.apply(event);
        }
        let last = response.events.iter().filter_map(|event| event.kv.as_ref());
        let last = last.map(|kv| revision(kv.mod_revision)).max().unwrap_or_default();
        state.revision = state.revision.max(last);
        ledger.trim(&mut state, self.cache.retention(), now);
        self.cache.publish(state, &changed);
    }

    /// What etcd's event means to us, who know what was there before.
    fn translate(&self, state: &State, event: &super::proto::Event) -> Option<Event> {
        let kv = event.kv.as_ref()?;
        let at = revision(kv.mod_revision);
        if at <= self.cache.revision() {
            return None;
        }
        let key = self.layout.decode(&kv.key)?;
        let previous = state.get(&key).cloned();
        let record = match event.r#type() {
            EventType::Put => self.layout.record(kv),
            EventType::Delete => None,
        };
        match (record, previous) {
            (Some(record), None) => Some(Event::new(Action::Added, Arc::new(record), None)),
            (Some(record), previous) => {
                Some(Event::new(Action::Modified, Arc::new(record), previous))
            }
            (None, Some(previous)) => {
                let record = Arc::new(previous.at(at));
                Some(Event::new(Action::Deleted, record, Some(previous)))
            }
            (None, None) => {
                complain(&kv.key);
                None
            }
        }
    }

    async fn relist(&self, ledger: &mut Ledger) {
        loop {
            match list(&self.client, &self.layout).await {
                Ok(state) => {
                    tracing::info!(revision = %state.revision, "listed etcd again after compaction");
                    *ledger = Ledger::default();
                    self.cache.publish_all(state);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "etcd could not be listed; it is tried again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// etcd keeps every version of every key until it is told not to: what our own history no longer
/// reaches back to is of no use there either.
async fn compact_now_and_then(client: Arc<Client>, cache: Arc<Cache>, clock: Arc<dyn Clock>) {
    let mut before = cache.revision();
    loop {
        clock.sleep(cache.retention().age).await;
        let request = CompactionRequest { revision: number(before) };
        before = cache.revision();
        let outcome: Result<CompactionResponse, Error> =
            client.read("/etcdserverpb.KV/Compact", request).await;
        if let Err(error) = outcome {
            tracing::debug!(%error, "etcd was not compacted this time");
        }
    }
}
