//! Objects in etcd, shared by several servers.
//!
//! One object is one key; a compare-and-swap is one transaction, or part of one that several writes
//! share. Each change has a [`version`] of its own. Reads come from the same cached state as on
//! every backend, which a [`feed`] keeps in step with etcd. Invariants:
//!
//! * A write is acknowledged once it is in etcd *and* in the cache of the server that made it.
//! * A value that is not as it was written is never served: etcd is not opened with one, and while
//!   it is open reads of its object and lists of its collection fail with the reason.
//! * A read of the latest state first asks etcd for its newest revision, and waits until the cache
//!   has it. Concurrent reads share one such request. A server that is the only one need not ask:
//!   the [`roster`] decides when that is so.

mod client;
mod feed;
mod layout;
mod proto;
mod roster;
mod sealing;
mod version;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Collection, Retention, State, Watch};
use crate::check::INTERNAL;
use crate::location::Settings;
use crate::memory::check_size;
use crate::object::{Body, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Objects, Scope, Write};
use crate::seal::{KeyError, KeyState, Sealer, is_data_keys};
use crate::snapshot::{Medium, Snapshot};
use mainstay_clock::Clock;

pub use client::{Address, AddressError, Tls};

use client::Client;
use feed::Feed;
use layout::Layout;
use roster::{Rewrites, Roster};
use sealing::{Sealing, Signals};
use version::{end, number};
use writer::{PendingWrite, Writer};

use proto::{
    CompactionRequest, CompactionResponse, Compare, CompareResult, CompareTarget, PutRequest,
    PutResponse, RangeRequest, RangeResponse, Request, RequestOp,
};

/// How long a read of the latest state may take before it fails.
const READ_DEADLINE: Duration = Duration::from_secs(6);
/// How long a store that opens may take to store its first data key.
const SEALING: Duration = Duration::from_secs(20);
/// How long etcd may take to show that it works.
const READY: Duration = Duration::from_millis(1_500);
/// How long a read waits for the cache before it makes etcd send something.
const LULL: Duration = Duration::from_millis(5);
/// How many readers may wait for one answer.
const READERS: usize = 16_384;
/// How many writes may wait for their turn.
const WRITERS: usize = 16_384;
/// How many requests for etcd's newest revision may be on their way at once.
const QUESTIONS: usize = 4;
/// How many waiting readers cause another request while one is on its way.
const CROWD: usize = 8;

/// Why etcd could not be used as a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address, or a file it names, is wrong.
    #[error("the store's address is wrong")]
    Address(#[from] AddressError),
    /// It did not answer, or refused the login.
    #[error("cannot use etcd at {endpoints}: {reason}")]
    Unavailable {
        /// Where it was looked for.
        endpoints: String,
        /// The error.
        reason: String,
    },
    /// It is encrypted, and its key is missing.
    #[error("the objects in etcd at {endpoints} cannot be read: {source}")]
    Key {
        /// Where it is.
        endpoints: String,
        /// Which key is missing.
        source: KeyError,
    },
    /// Values in it are not as they were written.
    #[error("the objects in etcd at {endpoints} are damaged: {what}")]
    Damaged {
        /// Where it is.
        endpoints: String,
        /// The damage, and what to do.
        what: String,
    },
}

/// Why the store is refused: a data key that is in use, or about to be, cannot be opened.
fn refused_key(sealer: &Sealer, endpoints: &str) -> Option<OpenError> {
    let states = [KeyState::Pending, KeyState::Active, KeyState::Complete];
    let source = sealer.locked(&states)?;
    Some(OpenError::Key { endpoints: endpoints.to_owned(), source })
}

/// How many damaged values an error names.
const NAMED: usize = 5;

/// A store in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    endpoints: String,
    client: Arc<Client>,
    layout: Layout,
    cache: Arc<Cache>,
    stop: CancellationToken,
    stalled: Arc<Notify>,
    largest: usize,
    writes: mpsc::Sender<PendingWrite>,
    readers: mpsc::Sender<oneshot::Sender<Result<Revision, Error>>>,
    roster: Arc<Roster>,
    sealing: Arc<Sealing>,
    compactions: mpsc::Sender<(Revision, oneshot::Sender<()>)>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl EtcdStore {
    /// Opens etcd with the usual settings but these.
    ///
    /// # Errors
    /// As [`EtcdStore::open_with`].
    pub async fn open(
        address: &Address,
        retention: Retention,
        largest: usize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let settings = Settings { retention, largest_object: largest, ..Settings::default() };
        Self::open_with(address, &settings, clock).await
    }

    /// Connects, reads everything under the prefix, and follows it from then on. One value that is
    /// not as it was written is enough to refuse all of it, as with every store.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub async fn open_with(
        address: &Address,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let (retention, largest) = (settings.retention, settings.largest_object);
        let client = Arc::new(Client::new(address)?);
        let layout = Layout::new(&address.prefix, settings.codec.clone());
        let endpoints = address.endpoints.join(",");
        let signals = Arc::new(Signals::default());
        let state = feed::list(&client, &layout, &signals).await.map_err(|error| {
            let (endpoints, reason) = (endpoints.clone(), error.to_string());
            OpenError::Unavailable { endpoints, reason }
        })?;
        if let Some(refused) = refused_key(layout.sealer(), &endpoints) {
            return Err(refused);
        }
        if !settings.inspect
            && let Some(what) = damage(&state)
        {
            if let Some(source) = layout.sealer().locked(&[KeyState::Retired]) {
                return Err(OpenError::Key { endpoints, source });
            }
            return Err(OpenError::Damaged { endpoints, what });
        }
        let cache = Arc::new(Cache::new(state, retention));
        let (stop, stalled) = (CancellationToken::new(), Arc::new(Notify::new()));
        let (compactions, queue) = mpsc::channel(16);
        let feed = Feed {
            client: client.clone(),
            layout: layout.clone(),
            cache: cache.clone(),
            clock,
            stop: stop.clone(),
            signals: signals.clone(),
            own: [roster::records(), ticks()],
            stalled: stalled.clone(),
            compactions: queue,
        };
        let (readers, waiting) = mpsc::channel(READERS);
        let progress = progress(client.clone(), layout.clone(), waiting, stop.clone());
        let seals = layout.sealer().has_keys() && !settings.inspect;
        let rewrites = match (seals, settings.decrypt) {
            (false, _) => Rewrites::Nothing,
            (true, false) => Rewrites::Encrypts,
            (true, true) => Rewrites::Decrypts,
        };
        let roster =
            Roster::new((client.clone(), layout.clone(), cache.clone()), stop.clone(), rewrites);
        let writer = Writer {
            client: client.clone(),
            layout: layout.clone(),
            cache: cache.clone(),
            stop: stop.clone(),
            stalled: stalled.clone(),
            roster: roster.clone(),
        };
        let sealing = Sealing::new(
            (client.clone(), layout.clone(), cache.clone()),
            roster.clone(),
            signals,
            stop.clone(),
            settings.decrypt,
        );
        let (writes, queue) = mpsc::channel(WRITERS);
        let mut tasks = vec![
            tokio::spawn(feed.run()),
            tokio::spawn(progress),
            tokio::spawn(roster.clone().run()),
            tokio::spawn(async move { writer.run(queue).await }),
        ];
        if seals {
            tasks.push(tokio::spawn(sealing.clone().run()));
        }
        let store = Self {
            endpoints,
            client,
            layout,
            cache,
            stop,
            stalled,
            largest,
            writes,
            readers,
            roster,
            sealing,
            compactions,
            tasks: Mutex::new(tasks),
        };
        if seals && let Err(error) = store.sealing.settled(SEALING).await {
            store.close().await;
            let endpoints = store.endpoints.clone();
            return Err(OpenError::Unavailable { endpoints, reason: error.to_string() });
        }
        Ok(store)
    }

    /// Returns once the cache holds everything that was acknowledged before the call, within
    /// [`READ_DEADLINE`].
    async fn latest(&self) -> Result<(), Error> {
        let reached = tokio::time::timeout(READ_DEADLINE, self.reach_latest()).await;
        reached.unwrap_or_else(|_| {
            self.stalled.notify_one();
            let reason = format!(
                "reading from etcd at {} took longer than {READ_DEADLINE:?}",
                self.endpoints
            );
            Err(Error::Unavailable { reason })
        })
    }

    async fn reach_latest(&self) -> Result<(), Error> {
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
        self.cache.reached(at).await;
        Ok(())
    }

    /// Writes a record so that the watch reports a revision: a change outside the prefix moved
    /// etcd's revision, which the watch does not see.
    async fn tick(&self) -> Result<(), Error> {
        let key = Key::new(&ticks(), None, "tick");
        let value = self.layout.write(&key, &Body::new(&serde_json::Map::new()), 0);
        let request = PutRequest { key: self.layout.encode(&key), value };
        let outcome: Result<PutResponse, _> =
            self.client.read("/etcdserverpb.KV/Put", request).await;
        outcome.map(drop).map_err(|error| Error::Unavailable { reason: error.to_string() })
    }
}

/// The collection that is written to make the watch report a revision.
fn ticks() -> Resource {
    Resource::new(INTERNAL, "ticks")
}

/// The first few values of a list that are damaged, and how many more there are. Data keys come
/// first: values under a damaged one cannot be read for that reason.
fn damage(state: &State) -> Option<String> {
    let mut problems: Vec<(&Key, &str)> = state.damaged().collect();
    problems.sort_by_key(|(key, _)| !is_data_keys(key.resource()));
    let problems: Vec<&str> = problems.into_iter().map(|(_, problem)| problem).collect();
    let mut what = problems.iter().take(NAMED).copied().collect::<Vec<_>>().join("; ");
    if problems.len() > NAMED {
        what.push_str(&format!("; and {} more", problems.len() - NAMED));
    }
    (!problems.is_empty()).then_some(what)
}

/// The condition that a key was last changed at this revision of etcd; 0: that there is none.
fn unchanged(key: Vec<u8>, since: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        create_revision: None,
        mod_revision: Some(since),
        range_end: Vec::new(),
    }
}

fn look(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::Range(RangeRequest { key, ..RangeRequest::default() })) }
}

/// Answers readers with etcd's newest revision. An answer is of no use to a reader that came after
/// the request was sent, so later readers wait for the next request; if they are many, it is sent
/// before the first is answered.
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
            asked.push(answer_readers(&client, &layout, std::mem::take(&mut readers)));
        }
    }
}

/// Asks etcd for its newest revision, and answers all readers that wait for it.
async fn answer_readers(
    client: &Client,
    layout: &Layout,
    readers: Vec<oneshot::Sender<Result<Revision, Error>>>,
) {
    let key = layout.encode(&Key::new(&Resource::new("internal.mainstay.dev", "none"), None, ""));
    let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
    let answer: Result<RangeResponse, _> = client.read("/etcdserverpb.KV/Range", request).await;
    let answer = match answer {
        Ok(response) => Ok(end(response.header.map_or(0, |header| header.revision))),
        Err(error) => Err(Error::Unavailable { reason: error.to_string() }),
    };
    for reader in readers {
        // A reader that gave up needs no answer.
        let _ = reader.send(answer.clone());
    }
}

impl Objects for EtcdStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        async move {
            check_size(&write, self.largest)?;
            if writer::expected(&write.change) > Some(self.cache.revision()) {
                // Another server reported this version; the cache must have it for the comparison.
                self.latest().await?;
            }
            let (reply, answer) = oneshot::channel();
            self.writes.try_send(PendingWrite { write, reply }).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Error::Busy { waiting: WRITERS },
                mpsc::error::TrySendError::Closed(_) => Error::Closed,
            })?;
            answer.await.unwrap_or(Err(Error::Closed))
        }
        .boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        let key = key.clone();
        async move {
            let mut state = self.cache.load();
            if !self.roster.may_answer_from(&state) {
                self.latest().await?;
                state = self.cache.load();
            }
            state.served(&key)?;
            Ok(state.get(&key).cloned())
        }
        .boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        let resource = resource.clone();
        async move {
            match at {
                At::Latest => {
                    let state = self.cache.load();
                    if self.roster.may_answer_from(&state) {
                        state.all_served(&resource)?;
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
            self.cache.load().all_served(&resource)?;
            self.cache.collection(&resource, at)
        }
        .boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        async move {
            if from > self.cache.revision() {
                self.latest().await?;
            }
            self.cache.load().all_served(&scope.resource)?;
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
            let state = self.cache.load();
            if let Some(reason) = damage(&state) {
                return Err(Error::Unavailable { reason });
            }
            Ok(state.snapshot())
        }
        .boxed()
    }

    fn readable(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        async move {
            self.latest().await?;
            Ok(self.cache.load().readable())
        }
        .boxed()
    }

    fn values_left(&self) -> BoxFuture<'_, Result<u64, Error>> {
        async move {
            let counted = feed::count_sealed(&self.client, &self.layout).await;
            counted.map_err(|error| Error::Unavailable { reason: error.to_string() })
        }
        .boxed()
    }

    fn rekey(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.sealing.rekey().boxed()
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
            let found = feed::verify(&self.client, &self.layout).await;
            let unavailable =
                |error: client::Error| Error::Unavailable { reason: error.to_string() };
            let mut found = found.map_err(unavailable)?;
            if let Err(Error::Unavailable { reason }) = self.layout.writable(&self.cache.load()) {
                found.push(reason);
            }
            Ok(found)
        }
        .boxed()
    }

    /// Whether etcd answers, lets this server write, and the cache keeps up with it.
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let asked = async {
                self.roster.admission().await?;
                self.roster.renewed()?;
                self.layout.writable(&self.cache.load())?;
                self.latest().await
            };
            let late = |_| Error::Unavailable {
                reason: format!("etcd at {} did not answer within {READY:?}", self.endpoints),
            };
            tokio::time::timeout(READY, asked).await.map_err(late)??;
            match damage(&self.cache.load()) {
                Some(reason) => Err(Error::Unavailable { reason }),
                None => Ok(()),
            }
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
                    tracing::error!("a task of the etcd store panicked");
                }
            }
            if open {
                self.roster.leave().await;
            }
        }
        .boxed()
    }
}
