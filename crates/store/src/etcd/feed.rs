//! Keeps the cached state in step with etcd: one list, then one watch for everything.
//!
//! The watch is resumed from the last revision applied, on whichever endpoint answers, and events
//! that were applied already are skipped: no event is missed or applied twice. It is not resumed
//! from the revision after it, because etcd may forget the deletions of a revision when it is
//! compacted there, and still watch from it. If etcd has compacted more, everything is listed
//! again, and the watches of clients from before that expire.
//!
//! All changes of one transaction are applied at once, each with a version of its own
//! ([`version`](super::version)). A value that was only re-encrypted is no change: its object keeps
//! its version and watches see no event.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, RetentionQueue, State};
use crate::object::{Action, Event, Key, Resource, Revision};
use crate::seal::{data_keys, is_sealed};
use mainstay_clock::Clock;

use super::client::{Client, Error};
use super::layout::{Layout, Stored};
use super::proto::{
    CompactionRequest, CompactionResponse, EventType, KeyValue, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::sealing::{self, Signals};
use super::version::{end, number, places, version};

/// How many objects one page of the first list has.
const PAGE: i64 = 1000;
/// How long to wait before etcd is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads everything as it is at one revision, page by page, and returns that revision.
async fn walk(
    client: &Client,
    layout: &Layout,
    mut each: impl FnMut(i64, &KeyValue),
) -> Result<i64, Error> {
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
        let page: RangeResponse = client.read_patiently("/etcdserverpb.KV/Range", request).await?;
        if at == 0 {
            at = page.header.map_or(0, |header| header.revision);
        }
        page.kvs.iter().for_each(|kv| each(at, kv));
        match page.kvs.last() {
            Some(last) if page.more => {
                key = last.key.clone();
                key.push(0);
            }
            _ => return Ok(at),
        }
    }
}

/// Everything as it is at one revision. The data keys are read first, and once more if a value is
/// sealed with one that was stored meanwhile.
pub(super) async fn list(
    client: &Client,
    layout: &Layout,
    signals: &Signals,
) -> Result<State, Error> {
    sealing::learn_all(client, layout).await?;
    let (state, complete) = list_once(client, layout, signals).await?;
    if complete {
        return Ok(state);
    }
    sealing::learn_all(client, layout).await?;
    list_once(client, layout, signals).await.map(|(state, _)| state)
}

/// Everything as it is at one revision, and whether the data keys of all values are known.
async fn list_once(
    client: &Client,
    layout: &Layout,
    signals: &Signals,
) -> Result<(State, bool), Error> {
    let mut listed: Option<State> = None;
    let mut complete = true;
    let at = walk(client, layout, |at, kv| {
        let state = listed.get_or_insert_with(|| State::new(end(at), end(at)));
        let Some(key) = layout.decode(&kv.key) else { return warn_of_foreign_key(&kv.key) };
        complete &= !layout.sealer().is_unknown(&kv.value);
        if layout.is_stale(&key, &kv.value) {
            signals.note_stale();
        }
        match layout.read(&key, &kv.value) {
            Ok(stored) => {
                state.note_rewritten(&key, stored.rewritten(kv));
                state.load(Arc::new(stored.record(kv, key)));
            }
            Err(problem) => state.damage(key, problem),
        }
    });
    let at = at.await?;
    Ok((listed.unwrap_or_else(|| State::new(end(at), end(at))), complete))
}

/// Everything under the prefix that is damaged or not Mainstay's, one sentence each.
pub(super) async fn verify(client: &Client, layout: &Layout) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    walk(client, layout, |_, kv| match layout.decode(&kv.key) {
        Some(key) => found.extend(layout.read(&key, &kv.value).err()),
        None => {
            let key = String::from_utf8_lossy(&kv.key);
            found.push(format!("the key {key:?} in etcd is not one of Mainstay's"));
        }
    })
    .await?;
    Ok(found)
}

/// How many values are encrypted.
pub(super) async fn count_sealed(client: &Client, layout: &Layout) -> Result<u64, Error> {
    let mut sealed = 0;
    walk(client, layout, |_, kv| sealed += u64::from(is_sealed(&kv.value))).await?;
    Ok(sealed)
}

fn warn_of_foreign_key(key: &[u8]) {
    let key = String::from_utf8_lossy(key);
    tracing::warn!(%key, "a key under the prefix in etcd is not Mainstay's; it is ignored");
}

/// One change of a key, as the watch reports it.
struct KeyChange<'a> {
    kv: &'a KeyValue,
    key: Key,
    content: Content,
}

/// The content of a key after a change.
enum Content {
    /// An object.
    Object(Stored),
    /// A value that is not as it was written.
    Damaged(String),
    /// The key was deleted.
    Gone,
}

impl KeyChange<'_> {
    /// The place in its transaction that was written with it.
    fn place(&self) -> Option<u8> {
        match &self.content {
            Content::Object(stored) => Some(stored.place),
            Content::Damaged(_) | Content::Gone => None,
        }
    }

    /// Whether the value was written without a change of its object.
    fn is_rewritten(&self) -> bool {
        matches!(&self.content, Content::Object(stored) if stored.changed.is_some())
    }

    /// The event that readers of a state see; `version` is given to a deletion. `None` if no
    /// object that can be read has changed.
    fn event(&self, state: &State, version: Revision) -> Option<Event> {
        let previous = state.get(&self.key).cloned();
        match (&self.content, previous) {
            (Content::Damaged(_), _) | (Content::Gone, None) => None,
            (Content::Gone, Some(previous)) => {
                let record = Arc::new(previous.at(version));
                Some(Event::new(Action::Deleted, record, Some(previous)))
            }
            (Content::Object(stored), previous) => {
                let record = Arc::new(stored.record(self.kv, self.key.clone()));
                let action = if previous.is_some() { Action::Modified } else { Action::Added };
                Some(Event::new(action, record, previous))
            }
        }
    }
}

/// The task that follows etcd.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) client: Arc<Client>,
    pub(super) layout: Layout,
    pub(super) cache: Arc<Cache>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stop: CancellationToken,
    pub(super) signals: Arc<Signals>,
    /// Collections that the store writes for itself.
    pub(super) own: [Resource; 2],
    /// Notified by callers for whom the feed did not catch up in time.
    pub(super) stalled: Arc<Notify>,
    /// Requests to forget history: only this task may change the state.
    pub(super) compactions: mpsc::Receiver<(Revision, oneshot::Sender<()>)>,
}

/// Why a watch ended.
enum End {
    /// Resume from where it stopped, perhaps at another endpoint.
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
            let mut retained = RetentionQueue::default();
            loop {
                if matches!(self.follow(&mut retained).await, End::Compacted) {
                    self.relist(&mut retained).await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
            () = compacting => {}
        }
    }

    async fn follow(&mut self, retained: &mut RetentionQueue) -> End {
        let create = WatchCreateRequest {
            key: self.layout.start(),
            range_end: self.layout.end(),
            // 0 would mean: from now on.
            start_revision: number(self.cache.revision()).max(1),
            fragment: true,
        };
        let mut stream = match self.client.watch(WatchRequest { create: Some(create) }).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "opening the watch on etcd failed; retrying");
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
                    retained.compact(&mut state, through);
                    self.cache.publish(state, []);
                    // The caller may have gone away; the history is forgotten all the same.
                    let _ = done.send(());
                    continue;
                }
            };
            let mut response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return End::Again,
                Err(status) => {
                    tracing::debug!(%status, "the watch on etcd broke; resuming it");
                    self.client.move_on();
                    tokio::time::sleep(PAUSE).await;
                    return End::Again;
                }
            };
            if response.compact_revision > 0 {
                return End::Compacted;
            }
            if response.canceled {
                tracing::debug!(
                    reason = response.cancel_reason,
                    "etcd cancelled the watch; resuming it"
                );
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
                continue;
            }
            self.learn_unknown_keys(&response).await;
            self.apply(&response, retained);
        }
    }

    /// Reads the data keys again if a value is sealed with one that is not known. A value whose
    /// key is still unknown afterwards is treated as damaged.
    async fn learn_unknown_keys(&self, response: &WatchResponse) {
        let sealer = self.layout.sealer();
        let mut values = response.events.iter().filter_map(|event| event.kv.as_ref());
        if values.any(|kv| sealer.is_unknown(&kv.value))
            && let Err(error) = sealing::learn_all(&self.client, &self.layout).await
        {
            tracing::warn!(%error, "reading the data keys from etcd failed");
        }
    }

    fn apply(&self, response: &WatchResponse, retained: &mut RetentionQueue) {
        let now = self.clock.now();
        let mut state = State::clone(&self.cache.load());
        let mut changed: Vec<Resource> = Vec::new();
        let mut cut = false;
        for together in response.events.chunk_by(|one, next| at(one) == at(next)) {
            let Some(made) = together.first().map(at) else { continue };
            if end(made) <= state.revision {
                continue;
            }
            let (rewritten, changes): (Vec<_>, Vec<_>) = together
                .iter()
                .filter_map(|event| self.read(event))
                .partition(KeyChange::is_rewritten);
            let (places, mut ordered) = places(changes.iter().map(KeyChange::place));
            for rewritten in &rewritten {
                ordered &= take_over_rewritten(&mut state, rewritten);
            }
            for (change, place) in changes.iter().zip(places) {
                if !changed.contains(change.key.resource()) {
                    changed.push(change.key.resource().clone());
                }
                note_damage(&mut state, change);
                state.note_rewritten(&change.key, None);
                let Some(event) = change.event(&state, version(made, place)) else { continue };
                if ordered {
                    let event = Arc::new(event);
                    if self.own.contains(change.key.resource()) {
                        retained.note_aside(&event, now);
                    } else {
                        retained.note(&event, now);
                    }
                    state.apply(event);
                } else {
                    state.replace(&event);
                }
            }
            state.advance(end(made));
            if !ordered {
                tracing::warn!(
                    revision = made,
                    "changes of one etcd transaction have no order; watches expire and list again"
                );
                retained.compact(&mut state, end(made));
                cut = true;
            }
        }
        retained.trim(&mut state, self.cache.retention(), now);
        if cut {
            self.cache.publish_all(state);
        } else {
            self.cache.publish(state, &changed);
        }
    }

    fn read<'a>(&self, event: &'a super::proto::Event) -> Option<KeyChange<'a>> {
        let kv = event.kv.as_ref()?;
        let Some(key) = self.layout.decode(&kv.key) else {
            warn_of_foreign_key(&kv.key);
            return None;
        };
        let content = match event.r#type() {
            EventType::Delete => Content::Gone,
            EventType::Put => self.read_value(&key, kv),
        };
        Some(KeyChange { kv, key, content })
    }

    fn read_value(&self, key: &Key, kv: &KeyValue) -> Content {
        if self.layout.is_stale(key, &kv.value) {
            self.signals.note_stale();
        }
        let stored = match self.layout.read(key, &kv.value) {
            Ok(stored) => stored,
            Err(problem) => return Content::Damaged(problem),
        };
        if *key.resource() == data_keys() {
            let before = self.layout.sealer().current();
            sealing::learn(&self.layout, key, kv, &stored);
            self.signals.keys_changed(self.layout.sealer().current() != before);
        }
        Content::Object(stored)
    }

    async fn relist(&self, retained: &mut RetentionQueue) {
        loop {
            match list(&self.client, &self.layout, &self.signals).await {
                Ok(state) => {
                    for (key, problem) in state.damaged() {
                        tracing::error!(%key, problem, "listed value is damaged; its object is not served");
                    }
                    tracing::info!(revision = %state.revision, "listed etcd again after compaction");
                    *retained = RetentionQueue::default();
                    self.cache.publish_all(state);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "listing etcd failed; retrying");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// The revision of etcd in which a change was made.
fn at(event: &super::proto::Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// Notes which objects cannot be read.
fn note_damage(state: &mut State, change: &KeyChange<'_>) {
    match &change.content {
        Content::Damaged(problem) => {
            tracing::error!(
                key = %change.key, problem, "stored value is damaged; its object is not served"
            );
            state.damage(change.key.clone(), problem.clone());
        }
        Content::Object(..) | Content::Gone => state.mend(&change.key),
    }
}

/// Takes over a value that was rewritten without a change of its object. Returns whether the state
/// had the object at that version, so that watches need no event: otherwise the value
/// before could not be read here.
fn take_over_rewritten(state: &mut State, change: &KeyChange<'_>) -> bool {
    let Content::Object(stored) = &change.content else { return true };
    state.mend(&change.key);
    state.note_rewritten(&change.key, stored.rewritten(change.kv));
    let record = stored.record(change.kv, change.key.clone());
    let previous = state.get(&change.key).cloned();
    if previous.as_ref().is_some_and(|previous| previous.revision() == record.revision()) {
        return true;
    }
    let action = if previous.is_some() { Action::Modified } else { Action::Added };
    state.replace(&Event::new(action, Arc::new(record), previous));
    false
}

/// etcd keeps every version of every key until it is compacted: versions that our own history no
/// longer has are of no use there either.
async fn compact_now_and_then(client: Arc<Client>, cache: Arc<Cache>, clock: Arc<dyn Clock>) {
    let mut before = cache.revision();
    loop {
        clock.sleep(cache.retention().age).await;
        let request = CompactionRequest { revision: number(before) };
        before = cache.revision();
        let outcome: Result<CompactionResponse, Error> =
            client.read("/etcdserverpb.KV/Compact", request).await;
        if let Err(error) = outcome {
            tracing::debug!(%error, "compacting etcd failed; retrying later");
        }
    }
}
