//! Objects in etcd: for several servers, and for outgrowing one machine.
//!
//! One object is one key; a compare-and-swap is one transaction. Reads come from the same cached
//! state as on every backend, which a [`feed`] keeps in step with etcd. Two things make that as
//! good as asking etcd itself:
//!
//! * A write is acknowledged once it is in etcd *and* in the cache of the server that made it.
//! * A read of the latest state first learns from etcd how far it has come, and waits until the
//!   cache is there. Reads that come at the same time share one such question. A server that is
//!   the only one need not ask: the [`roster`] says when that is so.

mod client;
mod feed;
mod proto;
mod roster;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Collection, Retention, Watch};
use crate::clock::Clock;
use crate::memory::check_size;
use crate::object::{Action, Body, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Fence, Objects, Scope, Write};
use crate::snapshot::{Medium, Snapshot};

pub use client::{Address, AddressError, Tls};

use client::Client;
use feed::{Feed, Layout, number, revision};
use roster::Roster;

use proto::{
    CompactionRequest, CompactionResponse, Compare, CompareResult, CompareTarget,
    DeleteRangeRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, Request, RequestOp,
    Response, TxnRequest, TxnResponse,
};

/// How long a write waits for the cache to show it before the feed is told to hurry.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a read waits for the cache before it makes etcd send something.
const LULL: Duration = Duration::from_millis(5);
/// How many readers may wait for one answer.
const READERS: usize = 16_384;
/// How many questions about etcd's progress may be on their way at once.
const QUESTIONS: usize = 4;
/// How many readers make another question worth its cost while one is on its way.
const CROWD: usize = 8;

/// Why etcd could not be used as a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address, or a file it names, is wrong.
    #[error("the store's address is wrong")]
    Address(#[from] AddressError),
    /// It did not answer, or did not let us in.
    #[error("cannot use etcd at {endpoints}: {reason}")]
    Unavailable {
        /// Where it was looked for.
        endpoints: String,
        /// What it said.
        reason: String,
    },
}

/// A store in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    endpoints: String,
    client: Arc<Client>,
    layout: Layout,
    cache: Arc<Cache>,
    largest: usize,
    stop: CancellationToken,
    stalled: Arc<Notify>,
    readers: mpsc::Sender<oneshot::Sender<Result<Revision, Error>>>,
    roster: Arc<Roster>,
    compactions: mpsc::Sender<(Revision, oneshot::Sender<()>)>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl EtcdStore {
    /// Connects, reads everything under the prefix, and follows it from then on.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub async fn open(
        address: &Address,
        retention: Retention,
        largest: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let client = Arc::new(Client::new(address)?);
        let layout = Layout::new(&address.prefix);
        let state = feed::list(&client, &layout).await.map_err(|error| OpenError::Unavailable {
            endpoints: address.endpoints.join(","),
            reason: error.to_string(),
        })?;
        let cache = Arc::new(Cache::new(state, retention));
        let (stop, stalled) = (CancellationToken::new(), Arc::new(Notify::new()));
        let (compactions, queue) = mpsc::channel(16);
        let feed = Feed {
            client: client.clone(),
            layout: layout.clone(),
            cache: cache.clone(),
            clock,
            stop: stop.clone(),
            stalled: stalled.clone(),
            compactions: queue,
        };
        let (readers, waiting) = mpsc::channel(READERS);
        let progress = progress(client.clone(), layout.clone(), waiting, stop.clone());
        let roster = Roster::new(client.clone(), layout.clone(), cache.clone(), stop.clone());
        let enlisted = roster.clone().run();
        let tasks = [tokio::spawn(feed.run()), tokio::spawn(progress), tokio::spawn(enlisted)];
        let tasks = Mutex::new(Vec::from(tasks));
        Ok(Self {
            endpoints: address.endpoints.join(","),
            client,
            layout,
            cache,
            largest,
            stop,
            stalled,
            readers,
            roster,
            compactions,
            tasks,
        })
    }

    async fn commit(&self, write: Write) -> Result<Arc<Event>, Error> {
        if self.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        check_size(&write, self.largest)?;
        let response = loop {
            let made = self.roster.admission().await?;
            let request = self.transaction(&write, made);
            let looks = request.failure.len();
            let sent: Result<TxnResponse, _> =
                self.client.write("/etcdserverpb.KV/Txn", request).await;
            let response = sent.map_err(|error| match error {
                client::Error::TooLarge => {
                    let size = body(&write.change).map_or(0, Body::len);
                    Error::TooLarge { key: write.key.clone(), size, limit: self.largest.min(size) }
                }
                error => Error::Unavailable { reason: error.to_string() },
            })?;
            if response.succeeded {
                break response;
            }
            if roster::found(&response, looks - 1) == Some(made) {
                return Err(refusal(&write, &response));
            }
            // We were taken for dead. Nothing was written; it is once we are admitted again.
            self.roster.struck_off(made);
        };
        let at = revision(response.header.map_or(0, |header| header.revision));
        self.caught_up(at).await;
        Ok(self.cache.event_at(&write.key, at).unwrap_or_else(|| self.event(&write, at)))
    }

    fn transaction(&self, write: &Write, admitted: Revision) -> TxnRequest {
        let key = self.layout.encode(&write.key);
        // To etcd revision 0 means "no such key", which only a creation may mean; nothing was ever
        // changed at revision 1.
        let known = |expected: Revision| expected.max(Revision(1));
        let put =
            |body: &Body| Request::Put(PutRequest { key: key.clone(), value: body.to_stored() });
        let (expected, operation) = match &write.change {
            Change::Create(body) => (Revision::ZERO, put(body)),
            Change::Update(expected, body) => (known(*expected), put(body)),
            Change::Delete(expected) => {
                let request = DeleteRangeRequest { key: key.clone(), range_end: Vec::new() };
                (known(*expected), Request::DeleteRange(request))
            }
        };
        let mut compare = vec![unchanged(key.clone(), expected)];
        let mut failure = vec![look(key)];
        if let Some(fence) = &write.fence {
            let key = self.layout.encode(&fence.key);
            compare.push(unchanged(key.clone(), fence.token));
            failure.push(look(key));
        }
        let (condition, look) = self.roster.condition(admitted);
        compare.push(condition);
        failure.push(look);
        TxnRequest { compare, success: vec![RequestOp { request: Some(operation) }], failure }
    }

    /// The change as it must have been, for a cache that no longer has it.
    fn event(&self, write: &Write, at: Revision) -> Arc<Event> {
        let previous = self.cache.get(&write.key).filter(|record| record.revision() < at);
        let created = previous.as_ref().map_or(at, |record| record.created());
        let (action, record) = match (&write.change, &previous) {
            (Change::Delete(_), Some(previous)) => (Action::Deleted, previous.at(at)),
            (change, _) => {
                let action = if matches!(change, Change::Create(_)) {
                    Action::Added
                } else {
                    Action::Modified
                };
                let empty = Body::new(&serde_json::Map::new());
                (action, body(change).unwrap_or(&empty).at(write.key.clone(), created, at))
            }
        };
        Arc::new(Event::new(action, Arc::new(record), previous))
    }

    /// Waits until the cache shows `at`. A feed that does not get there is sent elsewhere; what
    /// was committed stays committed either way.
    async fn caught_up(&self, at: Revision) {
        for _ in 0..3 {
            if tokio::time::timeout(PATIENCE, self.cache.reached(at)).await.is_ok() {
                return;
            }
            self.stalled.notify_one();
        }
        self.roster.recant();
        tracing::warn!(revision = %at, "the cache has not caught up with etcd");
    }

    /// Returns once the cache holds everything that was acknowledged before the call.
    async fn latest(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.readers.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Busy { waiting: READERS },
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })?;
        let at = answer.await.unwrap_or(Err(Error::Closed))?;
        if self.cache.revision() >= at {
            return Ok(());
        }
        if tokio::time::timeout(LULL, self.cache.reached(at)).await.is_ok() {
            return Ok(());
        }
        self.tick().await?;
        let patience = PATIENCE * 2;
        if tokio::time::timeout(patience, self.cache.reached(at)).await.is_ok() {
            return Ok(());
        }
        self.stalled.notify_one();
        let reason = "the connection that follows etcd does not keep up".to_owned();
        Err(Error::Unavailable { reason })
    }

    /// Somebody else moved etcd's revision, which our watch does not see: makes it see something.
    async fn tick(&self) -> Result<(), Error> {
        let key = Key::new(&Resource::new("internal.mainstay.dev", "ticks"), None, "tick");
        let value = Body::new(&serde_json::Map::new()).to_stored();
        let request = PutRequest { key: self.layout.encode(&key), value };
        let outcome: Result<PutResponse, _> =
            self.client.read("/etcdserverpb.KV/Put", request).await;
        outcome.map(drop).map_err(|error| Error::Unavailable { reason: error.to_string() })
    }
}

fn body(change: &Change) -> Option<&Body> {
    match change {
        Change::Create(body) | Change::Update(_, body) => Some(body),
        Change::Delete(_) => None,
    }
}

fn unchanged(key: Vec<u8>, since: Revision) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        create_revision: None,
        mod_revision: Some(number(since)),
    }
}

fn look(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::Range(RangeRequest { key, ..RangeRequest::default() })) }
}

/// Why a transaction did not succeed, from what it saw instead.
fn refusal(write: &Write, response: &TxnResponse) -> Error {
    let seen = |index: usize| match response.responses.get(index).map(|answer| &answer.response) {
        Some(Some(Response::Range(range))) => range.kvs.first().map(|kv| revision(kv.mod_revision)),
        _ => None,
    };
    if let Some(Fence { key, token }) = &write.fence
        && seen(1) != Some(*token)
    {
        return Error::Fenced { lease: key.name().to_owned(), token: *token };
    }
    let key = write.key.clone();
    match (&write.change, seen(0)) {
        (Change::Create(_), _) => Error::AlreadyExists { key },
        (_, None) => Error::NotFound { key },
        (Change::Update(expected, _) | Change::Delete(expected), Some(actual)) => {
            Error::Conflict { key, expected: *expected, actual }
        }
    }
}

/// Tells readers how far etcd has come. An answer says nothing to those who came after its
/// question was sent, so they wait for the next; enough of them do not wait for the one under way.
async fn progress(
    client: Arc<Client>,
    layout: Layout,
    mut waiting: mpsc::Receiver<oneshot::Sender<Result<Revision, Error>>>,
    stop: CancellationToken,
) {
    let mut asked = FuturesUnordered::new();
    let mut readers = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = asked.next() => {}
            count = waiting.recv_many(&mut readers, READERS), if readers.len() < READERS => {
                if count == 0 {
                    return;
                }
            }
        }
        let crowded = readers.len() >= CROWD && asked.len() < QUESTIONS;
        if crowded || (asked.is_empty() && !readers.is_empty()) {
            asked.push(tell(&client, &layout, std::mem::take(&mut readers)));
        }
    }
}

/// Asks etcd how far it has come, and tells everybody who waits for the answer.
async fn tell(
    client: &Client,
    layout: &Layout,
    readers: Vec<oneshot::Sender<Result<Revision, Error>>>,
) {
    let key = layout.encode(&Key::new(&Resource::new("internal.mainstay.dev", "none"), None, ""));
    let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
    let answer: Result<RangeResponse, _> = client.read("/etcdserverpb.KV/Range", request).await;
    let answer = match answer {
        Ok(response) => Ok(revision(response.header.map_or(0, |header| header.revision))),
        Err(error) => Err(Error::Unavailable { reason: error.to_string() }),
    };
    for reader in readers {
        // A reader that gave up needs no answer.
        let _ = reader.send(answer.clone());
    }
}

impl Objects for EtcdStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        self.commit(write).boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        let key = key.clone();
        async move {
            let state = self.cache.load();
            if self.roster.vouches_for(&state) {
                return Ok(state.get(&key).cloned());
            }
            self.latest().await?;
            Ok(self.cache.get(&key))
        }
        .boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        let resource = resource.clone();
        async move {
            match at {
                At::Latest => {
                    let state = self.cache.load();
                    if self.roster.vouches_for(&state) {
                        return state.collection(&resource, at);
                    }
                    self.latest().await?;
                }
                At::NotOlderThan(wanted) | At::Exactly(wanted)
                    if wanted > self.cache.revision() =>
                {
                    self.latest().await?;
                }
                At::NotOlderThan(_) | At::Exactly(_) => {}
            }
            self.cache.collection(&resource, at)
        }
        .boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        async move {
            if from > self.cache.revision() {
                self.latest().await?;
            }
            self.cache.watch(scope, from)
        }
        .boxed()
    }

    fn revision(&self, _resource: &Resource) -> Revision {
        self.cache.revision()
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let through = through.min(self.cache.revision());
            let request = CompactionRequest { revision: number(through) };
            let outcome: Result<CompactionResponse, _> =
                self.client.read("/etcdserverpb.KV/Compact", request).await;
            match outcome {
                Ok(_) | Err(client::Error::Compacted) => {}
                Err(error) => return Err(Error::Unavailable { reason: error.to_string() }),
            }
            let (reply, done) = oneshot::channel();
            self.compactions.send((through, reply)).await.map_err(|_| Error::Closed)?;
            done.await.map_err(|_| Error::Closed)
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        async move {
            self.latest().await?;
            Ok(self.cache.load().snapshot())
        }
        .boxed()
    }

    /// Does nothing: etcd counts its revisions itself.
    fn advance(&self, _to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        ready(Ok(())).boxed()
    }

    fn medium(&self) -> Medium {
        Medium::Etcd(self.endpoints.clone())
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        async move {
            let strangers = feed::strangers(&self.client, &self.layout).await;
            strangers.map_err(|error| Error::Unavailable { reason: error.to_string() })
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            let mut tasks = self.tasks.lock().await;
            let open = !tasks.is_empty();
            self.stop.cancel();
            self.cache.close();
            for task in tasks.drain(..) {
                if task.await.is_err() {
                    tracing::error!("a task of the store panicked");
                }
            }
            if open {
                self.roster.leave().await;
            }
        }
        .boxed()
    }
}
