//! The servers that use the same etcd, and whether a read may be answered without asking etcd.
//!
//! Every server keeps a record of itself among the objects. It answers reads from its cache alone
//! for a moment ([`PROMISE`]) after it renewed that record, as long as the cache shows no other
//! server's record. This is as good as asking etcd, because:
//!
//! * A server writes nothing before it is *admitted*: every other record says that its server has
//!   seen the newcomer, or the longest promise it could have made has run out ([`GRACE`]).
//! * Each write is made under the condition that the writer's record is still the one it was
//!   admitted with. A server whose record was removed because it seemed dead can write no more; by
//!   the time its record is gone from a cache, everything it ever wrote is there.
//! * A promise counts from before its renewal was sent, and is made only once the cache shows the
//!   renewal: a server that was there before is seen, and a server that comes later waits longer
//!   than the promise lasts.
//!
//! Clocks need not agree, only run at about the same speed. A server without reads renews its
//! record just often enough for it not to be removed.

#![expect(clippy::disallowed_methods, reason = "leases run on the monotonic clock")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, State};
use crate::check::INTERNAL;
use crate::object::{Action, Body, Key, Record, Resource, Revision};
use crate::objects::{Error, Scope};

use super::client::Client;
use super::layout::Layout;
use super::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, PutRequest, Request, RequestOp,
    Response, TxnRequest, TxnResponse,
};
use super::version::{end, number};
use super::{look, unchanged};

/// How long reads are answered from the cache after the record was renewed.
const PROMISE: Duration = Duration::from_secs(1);
/// How long a new server waits for servers whose record does not show that they have seen it.
/// Longer than any promise, by more than clocks differ in speed.
const GRACE: Duration = Duration::from_millis(1_500);
/// How much of a promise is left when it is renewed, if there are reads.
const EARLY: Duration = Duration::from_millis(600);
/// How often the record is renewed without reads.
const KEEP: Duration = Duration::from_secs(5);
/// A record that was not renewed for this long is removed by other servers.
const DEAD: Duration = Duration::from_secs(20);
/// How long to wait after etcd did not answer.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a write waits to be admitted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the cache may take to show a renewal.
const LAG: Duration = Duration::from_secs(1);

pub(super) fn records() -> Resource {
    Resource::new(INTERNAL, "servers")
}

/// This server among those that use the same etcd.
#[derive(Debug)]
pub(super) struct Roster {
    key: Key,
    client: Arc<Client>,
    layout: Layout,
    cache: Arc<Cache>,
    stop: CancellationToken,
    rewrites: Rewrites,
    /// The machine and process of this server, for messages of other servers.
    host: String,
    start: Instant,
    /// Until when reads are answered from the cache: microseconds since `start`.
    until: AtomicU64,
    /// Notified by reads: the promise is worth renewing.
    wanted: Notify,
    renewing: AtomicBool,
    /// Why the record could not be renewed the last time.
    failure: Mutex<Option<String>>,
    /// The revision at which our record was made, once we are admitted.
    admitted: watch::Sender<Option<Revision>>,
    /// Others' records, and since when they have not been renewed.
    seen: Mutex<HashMap<Key, (Revision, Instant)>>,
}

/// The outcome of a transaction that needs our record.
enum Renewal {
    /// Done at this revision.
    Done(Revision),
    /// Our record is gone.
    RecordGone,
}

impl Roster {
    #[expect(clippy::disallowed_methods, reason = "this is where a server gets its identity")]
    pub(super) fn new(
        (client, layout, cache): (Arc<Client>, Layout, Arc<Cache>),
        stop: CancellationToken,
        rewrites: Rewrites,
    ) -> Arc<Self> {
        let name = uuid::Uuid::new_v4().to_string();
        Arc::new(Self {
            key: Key::new(&records(), None, &name),
            client,
            layout,
            cache,
            stop,
            rewrites,
            host: host(),
            start: Instant::now(),
            until: AtomicU64::new(0),
            wanted: Notify::new(),
            renewing: AtomicBool::new(false),
            failure: Mutex::default(),
            admitted: watch::Sender::new(None),
            seen: Mutex::default(),
        })
    }

    /// Whether `state` is as good as asking etcd now. `state` must have been loaded before the
    /// call.
    pub(super) fn may_answer_from(&self, state: &State) -> bool {
        if !state.holds_only(&self.key) {
            return false;
        }
        let now = micros(self.start.elapsed());
        let left = self.until.load(Ordering::Acquire).saturating_sub(now);
        if left < micros(EARLY) && !self.renewing.swap(true, Ordering::Relaxed) {
            self.wanted.notify_one();
        }
        left > 0
    }

    /// Takes back the promise: the cache does not keep up.
    pub(super) fn end_promise(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// The revision at which our record was made, once we may write.
    pub(super) async fn admission(&self) -> Result<Revision, Error> {
        let mut admitted = self.admitted.subscribe();
        let waiting = tokio::time::timeout(PATIENCE, admitted.wait_for(Option::is_some));
        let found = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(Error::Closed),
            found = waiting => found,
        };
        match found {
            Ok(Ok(made)) => Ok(made.unwrap_or_default()),
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => {
                let reason = "registering this server in etcd did not succeed in time".to_owned();
                Err(Error::Unavailable { reason })
            }
        }
    }

    /// Fails if etcd did not take the last renewal of our record, the one write that every server
    /// makes all the time: an etcd without space answers reads. Tries again soon.
    pub(super) fn renewed(&self) -> Result<(), Error> {
        match &*self.failure.lock() {
            None => Ok(()),
            Some(reason) => {
                self.renew();
                let reason = format!("etcd did not take the last write of this server: {reason}");
                Err(Error::Unavailable { reason })
            }
        }
    }

    /// The condition under which we may write, and the read that shows whether it failed.
    pub(super) fn condition(&self, made: Revision) -> (Compare, RequestOp) {
        let key = self.layout.encode(&self.key);
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            create_revision: Some(number(made)),
            mod_revision: None,
            range_end: Vec::new(),
        };
        (compare, look(key))
    }

    /// Notes that a write failed because our record is gone.
    pub(super) fn note_removed(&self, made: Revision) {
        self.admitted.send_if_modified(|current| {
            let ours = *current == Some(made);
            if ours {
                *current = None;
            }
            ours
        });
        self.wanted.notify_one();
    }

    /// Renews this server's record soon, because its content has changed.
    pub(super) fn renew(&self) {
        self.wanted.notify_one();
    }

    /// The name of this server.
    pub(super) fn name(&self) -> &str {
        self.key.name()
    }

    /// Registers, and keeps the record for as long as the store is open.
    pub(super) async fn run(self: Arc<Self>) {
        let keeping = async {
            loop {
                if let Some(made) = self.register().await {
                    self.wait_until_seen(made).await;
                    self.admitted.send_replace(Some(made));
                    self.keep(made).await;
                    self.end_promise();
                    self.admitted.send_replace(None);
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = keeping => {}
        }
    }

    /// Removes our record, so that no other server waits for it. Called after [`Roster::run`] has ended.
    pub(super) async fn leave(&self) {
        self.end_promise();
        let Some(made) = self.admitted.send_replace(None) else { return };
        let key = self.layout.encode(&self.key);
        let deletion = Request::DeleteRange(DeleteRangeRequest { key, range_end: Vec::new() });
        let left = tokio::time::timeout(LAG, self.transact(made, deletion)).await;
        if !matches!(left, Ok(Ok(_))) {
            tracing::debug!(
                "removing this server's record failed; another server removes it later"
            );
        }
    }

    /// Makes our record; returns at which revision, if etcd answers.
    async fn register(&self) -> Option<Revision> {
        let key = self.layout.encode(&self.key);
        let put = Request::Put(PutRequest { key: key.clone(), value: self.record() });
        let request = TxnRequest {
            compare: vec![unchanged(key.clone(), 0)],
            success: vec![RequestOp { request: Some(put) }],
            failure: vec![look(key)],
        };
        let answer: TxnResponse = self.client.write(TXN, request).await.ok()?;
        let made = if answer.succeeded {
            end(answer.header.map_or(0, |header| header.revision))
        } else {
            // An earlier attempt of unknown outcome had made it.
            found(&answer, 0)?
        };
        tokio::time::timeout(GRACE, self.cache.reached(made)).await.ok()?;
        Some(made)
    }

    /// Waits until every other server has seen us, or can no longer have a promise from before.
    async fn wait_until_seen(&self, made: Revision) {
        let end = Instant::now() + GRACE;
        let Ok(mut changes) = self.cache.watch(Scope::all(&records()), made) else { return };
        loop {
            let state = self.cache.load();
            if self.others(&state).all(|record| seen_by(record) >= number(made)) {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(end) => return,
                change = changes.next() => if change.is_err() {
                    return tokio::time::sleep_until(end).await;
                },
            }
        }
    }

    /// Renews our record until it is gone.
    async fn keep(&self, made: Revision) {
        let mut since = made;
        while self.admitted.borrow().is_some() {
            let sent = Instant::now();
            let put = PutRequest { key: self.layout.encode(&self.key), value: self.record() };
            match self.transact(made, Request::Put(put)).await {
                Ok(Renewal::Done(at)) => {
                    *self.failure.lock() = None;
                    if tokio::time::timeout(LAG, self.cache.reached(at)).await.is_ok() {
                        let until = micros(sent.duration_since(self.start) + PROMISE);
                        self.until.store(until, Ordering::Release);
                    }
                }
                Ok(Renewal::RecordGone) => return,
                Err(error) => {
                    *self.failure.lock() = Some(error.to_string());
                    tokio::time::sleep(PAUSE).await;
                }
            }
            self.renewing.store(false, Ordering::Relaxed);
            self.remove_dead_records().await;
            tokio::select! {
                () = tokio::time::sleep(KEEP) => {}
                () = self.wanted.notified() => {}
                at = self.newcomer(since) => since = at,
            }
        }
    }

    /// Waits until a record is made after `since`; returns the revision up to which it has looked.
    async fn newcomer(&self, since: Revision) -> Revision {
        let Ok(mut changes) = self.cache.watch(Scope::all(self.key.resource()), since) else {
            // That history is gone: a server that came meanwhile is seen by the next renewal.
            return self.cache.revision();
        };
        loop {
            match changes.next().await {
                Ok(events) if events.iter().all(|event| event.action != Action::Added) => {}
                Ok(_) => return changes.position(),
                Err(_) => return self.cache.revision(),
            }
        }
    }

    /// Removes records of servers that no longer renew them.
    async fn remove_dead_records(&self) {
        let now = Instant::now();
        let state = self.cache.load();
        let dead: Vec<(Key, Revision)> = {
            let mut seen = self.seen.lock();
            let others =
                self.others(&state).map(|record| (record.key().clone(), record.revision()));
            let others: Vec<_> = others.collect();
            seen.retain(|key, _| others.iter().any(|(other, _)| other == key));
            let overdue = |(key, at): &(Key, Revision)| {
                let entry = seen.entry(key.clone()).or_insert((*at, now));
                if entry.0 != *at {
                    *entry = (*at, now);
                }
                now.duration_since(entry.1) > DEAD
            };
            others.into_iter().filter(overdue).collect()
        };
        for (key, at) in dead {
            let server = state.get(&key).map_or_else(String::new, |record| shown(record));
            tracing::info!(server, "a server stopped renewing its record; removing the record");
            let key = self.layout.encode(&key);
            let deletion = DeleteRangeRequest { key: key.clone(), range_end: Vec::new() };
            let request = TxnRequest {
                compare: vec![unchanged(key, number(at))],
                success: vec![RequestOp { request: Some(Request::DeleteRange(deletion)) }],
                failure: Vec::new(),
            };
            let outcome: Result<TxnResponse, _> = self.client.write(TXN, request).await;
            if let Err(error) = outcome {
                tracing::debug!(%error, "removing the record of a dead server failed; retrying");
            }
        }
    }

    /// Changes our own record, if it is still the one that was made at `made`.
    async fn transact(&self, made: Revision, request: Request) -> Result<Renewal, Error> {
        let (compare, look) = self.condition(made);
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(request) }],
            failure: vec![look],
        };
        let answer: Result<TxnResponse, _> = self.client.write(TXN, request).await;
        match answer {
            Ok(answer) if answer.succeeded => {
                Ok(Renewal::Done(end(answer.header.map_or(0, |header| header.revision))))
            }
            Ok(_) => Ok(Renewal::RecordGone),
            Err(error) => Err(Error::Unavailable { reason: error.to_string() }),
        }
    }

    /// The records of the other servers.
    fn others<'a>(&self, state: &'a State) -> impl Iterator<Item = &'a Arc<Record>> {
        state.members(self.key.resource()).filter(|record| *record.key() != self.key)
    }

    /// Our record: the revision of etcd that our cache has reached, and the data keys we can open.
    fn record(&self) -> Vec<u8> {
        let mut object = Map::new();
        object.insert("seen".to_owned(), Value::from(number(self.cache.revision())));
        object.insert(REWRITES.to_owned(), Value::from(self.rewrites != Rewrites::Nothing));
        object.insert(DECRYPTS.to_owned(), Value::from(self.rewrites == Rewrites::Decrypts));
        object.insert(HOST.to_owned(), Value::from(self.host.as_str()));
        object.insert(DATA_KEYS.to_owned(), Value::from(self.layout.sealer().usable()));
        self.layout.write(&self.key, &Body::new(&object), 0)
    }
}

const TXN: &str = "/etcdserverpb.KV/Txn";

/// The field of a record that names the data keys its server can open.
const DATA_KEYS: &str = "dataKeys";

/// The field of a record that says whether its server rewrites values.
const REWRITES: &str = "rewrites";

/// The field of a record that says whether its server decrypts values.
const DECRYPTS: &str = "decrypts";

/// The field of a record with the machine and process of its server.
const HOST: &str = "host";

/// How a server rewrites the values that are not encrypted as new ones are, by its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewrites {
    /// It has no key file, or only looks at the store.
    Nothing,
    /// It encrypts values.
    Encrypts,
    /// It decrypts values.
    Decrypts,
}

/// How the server of a record rewrites values. Servers of older versions count as encrypting.
pub(super) fn rewrites(record: &Record) -> Rewrites {
    let object = record.object();
    let field = |name: &str| object.get(name).and_then(Value::as_bool).unwrap_or(false);
    match (field(REWRITES), field(DECRYPTS)) {
        (false, _) => Rewrites::Nothing,
        (true, false) => Rewrites::Encrypts,
        (true, true) => Rewrites::Decrypts,
    }
}

/// The server of a record in messages: its machine and process or, for a server of an older version,
/// the name of the record.
pub(super) fn shown(record: &Record) -> String {
    let object = record.object();
    let host = object.get(HOST).and_then(Value::as_str);
    host.unwrap_or_else(|| record.key().name()).to_owned()
}

/// The machine and process of this server.
fn host() -> String {
    let machine = rustix::system::uname();
    format!("{} (process {})", machine.nodename().to_string_lossy(), std::process::id())
}

/// Whether the server of a record can open a data key.
pub(super) fn opens(record: &Record, id: &str) -> bool {
    let object = record.object();
    let keys = object.get(DATA_KEYS).and_then(Value::as_array);
    keys.is_some_and(|keys| keys.iter().any(|key| key == id))
}

/// How far the cache of a record's server had come when it was written.
fn seen_by(record: &Record) -> i64 {
    record.object().get("seen").and_then(Value::as_i64).unwrap_or(0)
}

/// The revision at which the key was made that an operation of a transaction looked at.
pub(super) fn found(answer: &TxnResponse, operation: usize) -> Option<Revision> {
    match answer.responses.get(operation).map(|answer| &answer.response) {
        Some(Some(Response::Range(range))) => range.kvs.first().map(|kv| end(kv.create_revision)),
        _ => None,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
