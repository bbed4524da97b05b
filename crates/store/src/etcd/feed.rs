//! Keeping the readable state in step with etcd: one list, then one watch for everything.
//!
//! The watch is resumed from the last revision applied, on whichever endpoint answers, and what is
//! known of it already is passed over: nothing is missed and nothing is applied twice. It is not
//! resumed from the revision after it, because etcd may forget the deletions of a revision when it
//! is compacted there, and still watch from it. If etcd has compacted more, everything is listed
//! again, and watchers from before are told that the history has expired.
//!
//! All changes of one transaction are applied at once, each with a version of its own
//! ([`version`](super::version)).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Ledger, State};
use crate::clock::Clock;
use crate::object::{Action, Body, Event, Key, Resource, Revision};

use super::client::{Client, Error};
use super::layout::{self, Layout};
use super::proto::{
    CompactionRequest, CompactionResponse, EventType, KeyValue, RangeRequest, RangeResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
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
        let page: RangeResponse = client.read("/etcdserverpb.KV/Range", request).await?;
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

/// Everything as it is at one revision.
pub(super) async fn list(client: &Client, layout: &Layout) -> Result<State, Error> {
    let mut listed: Option<State> = None;
    let at = walk(client, layout, |at, kv| {
        let state = listed.get_or_insert_with(|| State::new(end(at), end(at)));
        let Some(key) = layout.decode(&kv.key) else { return complain(&kv.key) };
        match layout.read(&key, &kv.value) {
            Ok((body, place)) => state.load(Arc::new(layout::record(kv, key, &body, place))),
            Err(problem) => state.damage(key, problem),
        }
    });
    let at = at.await?;
    Ok(listed.unwrap_or_else(|| State::new(end(at), end(at))))
}

/// What is under our prefix and is not as we wrote it, one sentence each.
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

fn complain(key: &[u8]) {
    let key = String::from_utf8_lossy(key);
    tracing::warn!(%key, "a key under our prefix is not ours; it is passed over");
}

/// One change as etcd tells of it.
struct Told<'a> {
    kv: &'a KeyValue,
    key: Key,
    content: Content,
}

/// What a key holds after a change.
enum Content {
    /// An object, which was written at this place of its transaction.
    Object(Body, u8),
    /// A value that is not as it was written.
    Damaged(String),
    /// Nothing any more.
    Gone,
}

impl Told<'_> {
    /// The place in its transaction that was written with it.
    fn place(&self) -> Option<u8> {
        match self.content {
            Content::Object(_, place) => Some(place),
            Content::Damaged(_) | Content::Gone => None,
        }
    }

    /// What it means to a state; `version` is what a deletion is given. `None` if nothing that
    /// can be shown has changed.
    fn event(&self, state: &State, version: Revision) -> Option<Event> {
        let previous = state.get(&self.key).cloned();
        match (&self.content, previous) {
            (Content::Damaged(_), _) | (Content::Gone, None) => None,
            (Content::Gone, Some(previous)) => {
                let record = Arc::new(previous.at(version));
                Some(Event::new(Action::Deleted, record, Some(previous)))
            }
            (Content::Object(body, place), previous) => {
                let record = Arc::new(layout::record(self.kv, self.key.clone(), body, *place));
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
    /// What the store writes for itself.
    pub(super) own: [Resource; 2],
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
            // 0 would mean: from now on.
            start_revision: number(self.cache.revision()).max(1),
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
        let mut cut = false;
        for together in response.events.chunk_by(|one, next| at(one) == at(next)) {
            let Some(made) = together.first().map(at) else { continue };
            if end(made) <= state.revision {
                continue;
            }
            let told: Vec<Told<'_>> =
                together.iter().filter_map(|event| self.read(event)).collect();
            let (places, ordered) = places(told.iter().map(Told::place));
            for (told, place) in told.iter().zip(places) {
                if !changed.contains(told.key.resource()) {
                    changed.push(told.key.resource().clone());
                }
                note_damage(&mut state, told);
                let Some(event) = told.event(&state, version(made, place)) else { continue };
                if ordered {
                    let event = Arc::new(event);
                    if self.own.contains(told.key.resource()) {
                        ledger.note_aside(&event, now);
                    } else {
                        ledger.note(&event, now);
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
                    "changes of one etcd transaction have no order; watches have to list again"
                );
                ledger.compact(&mut state, end(made));
                cut = true;
            }
        }
        ledger.trim(&mut state, self.cache.retention(), now);
        if cut {
            self.cache.publish_all(state);
        } else {
            self.cache.publish(state, &changed);
        }
    }

    fn read<'a>(&self, event: &'a super::proto::Event) -> Option<Told<'a>> {
        let kv = event.kv.as_ref()?;
        let Some(key) = self.layout.decode(&kv.key) else {
            complain(&kv.key);
            return None;
        };
        let content = match event.r#type() {
            EventType::Delete => Content::Gone,
            EventType::Put => match self.layout.read(&key, &kv.value) {
                Ok((body, place)) => Content::Object(body, place),
                Err(problem) => Content::Damaged(problem),
            },
        };
        Some(Told { kv, key, content })
    }

    async fn relist(&self, ledger: &mut Ledger) {
        loop {
            match list(&self.client, &self.layout).await {
                Ok(state) => {
                    for (key, problem) in state.damaged() {
                        tracing::error!(%key, problem, "a stored value is damaged; it is not served");
                    }
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

/// The revision of etcd in which a change was made.
fn at(event: &super::proto::Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// Keeps in mind which objects cannot be shown.
fn note_damage(state: &mut State, told: &Told<'_>) {
    match &told.content {
        Content::Damaged(problem) => {
            tracing::error!(key = %told.key, problem, "a stored value is damaged; it is not served");
            state.damage(told.key.clone(), problem.clone());
        }
        Content::Object(..) | Content::Gone => state.mend(&told.key),
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
