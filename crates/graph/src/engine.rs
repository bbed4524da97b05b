//! The engine: what users hold in their hands.
//!
//! A [`Builder`] takes [`Options`] and descriptors and makes two halves: a [`Service`] that runs until
//! it is told to stop and does all the work, one transaction after the other, and an [`Engine`], a
//! cheap handle for everyone who wants something done or wants to know something. Questions are
//! answered while a transaction runs; they see what has been done so far.

mod reads;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

pub use self::reads::{Dump, DumpIndex, DumpedValue, View};
use crate::clock::{Clock, SystemClock, later};
use crate::descriptor::Descriptor;
use crate::erased::{ErasedDescriptor, Typed};
use crate::graph::Graph;
use crate::history::{History, Limits};
use crate::journal::{self, Journal, Recovered};
use crate::log::TransactionLog;
use crate::metadata::MetadataIndexes;
use crate::record::{OperationRecord, TransactionRecord};
use crate::registry::{self, Registry};
use crate::state::ValueState;
use crate::stats::Stats;
use crate::status::{StatusWatch, ValueStatus, WatchEvent, Watchers};
use crate::transaction::{self, Notification, Resync, Transaction};
use crate::worker::Service;

/// Why the engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transaction makes no sense; nothing was done.
    #[error(transparent)]
    Refused(#[from] transaction::Error),
    /// There is no room; nothing was done. Try again later.
    #[error("the transaction queue is full")]
    QueueFull,
    /// The engine has stopped; nothing more will be done.
    #[error("the engine has stopped")]
    Stopped,
    /// Some values failed; the record says which.
    #[error("transaction {} failed: {}", .0.seq, first_error(.0))]
    Failed(Arc<TransactionRecord>),
    /// The values did not become configured in time; the transaction itself stands.
    #[error("{0} is not configured yet")]
    NotConfigured(String),
    /// A descriptor was refused.
    #[error(transparent)]
    Registration(#[from] registry::Error),
    /// What must survive a restart cannot be written down.
    #[error("the journal cannot be used")]
    Journal(#[from] journal::Error),
    /// No such thing is known.
    #[error("{0} is not known")]
    Unknown(String),
    /// The south cannot be asked.
    #[error("descriptor {0} does not support Retrieve operation")]
    NotRetrievable(String),
    /// The south was asked and failed to answer.
    #[error("descriptor {name} failed to retrieve")]
    Retrieve {
        /// Which descriptor.
        name: String,
        /// Why.
        #[source]
        source: crate::descriptor::OperationError,
    },
}

fn first_error(record: &TransactionRecord) -> String {
    record.errors.first().map(ToString::to_string).unwrap_or_default()
}

/// How an engine behaves.
pub struct Options {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// How many transactions may wait.
    pub queue: usize,
    /// How many operations may run at once.
    pub parallel: usize,
    /// How much is remembered.
    pub history: Limits,
    /// Whether the south is asked after every transaction if it really did what it said.
    pub verify: bool,
    /// What outlives a restart.
    pub journal: Option<Box<dyn Journal>>,
    /// Whether an engine that finds something in its journal begins with a resync.
    pub resync_on_start: bool,
    /// Where the transaction log goes.
    pub log: Option<Box<dyn std::io::Write + Send>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            queue: 200,
            parallel: 1,
            history: Limits::default(),
            verify: false,
            journal: None,
            resync_on_start: true,
            log: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queue", &self.queue)
            .field("parallel", &self.parallel)
            .field("history", &self.history)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

/// Puts an engine together.
#[derive(Debug, Default)]
pub struct Builder {
    options: Options,
    registry: Registry,
    indexes: MetadataIndexes,
}

impl Builder {
    /// An engine with these options and no descriptors yet.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Teaches the engine a descriptor.
    pub fn register<D: Descriptor>(mut self, descriptor: D) -> Result<Self, registry::Error> {
        if let Some(index) = descriptor.metadata_index() {
            self.indexes.declare(index);
        }
        self.registry.register(Arc::new(Typed(descriptor)))?;
        Ok(self)
    }

    /// Makes the two halves. What the journal remembers is read here.
    pub fn build(self) -> Result<(Engine, Service), Error> {
        let Self { mut options, registry, indexes } = self;
        let recovered = match &mut options.journal {
            Some(journal) => journal::replay(journal.load()?),
            None => Recovered::default(),
        };
        let (requests, queue) = mpsc::channel(options.queue.max(1));
        let start = options.clock.now();
        let shared = Shared {
            graph: Graph::default(),
            registry: Arc::new(registry),
            history: History::new(options.history, start),
            next_seq: recovered.next_seq,
            next_retry: None,
            stats: Stats::new(start),
        };
        let engine = Engine {
            shared: Arc::new(Mutex::new(shared)),
            requests,
            indexes,
            watchers: Arc::default(),
            clock: Arc::clone(&options.clock),
        };
        let log = options.log.map(TransactionLog::new);
        let service = Service::new(
            engine.weak(),
            queue,
            crate::worker::Conduct {
                parallel: options.parallel.max(1),
                verify: options.verify,
                resync_on_start: options.resync_on_start,
            },
            options.journal,
            log,
            recovered,
        );
        Ok((engine, service))
    }
}

/// What the worker changes and everyone reads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) graph: Graph,
    pub(crate) registry: Arc<Registry>,
    pub(crate) history: History,
    pub(crate) next_seq: u64,
    pub(crate) next_retry: Option<Timestamp>,
    pub(crate) stats: Stats,
}

/// Something for the worker to do.
pub(crate) enum Request {
    Commit(Transaction, Timestamp, Option<Reply<Arc<TransactionRecord>>>),
    Notify(Notification, Timestamp),
    Plan(Transaction, Reply<Vec<OperationRecord>>),
    Register(Arc<dyn ErasedDescriptor>, Reply<()>),
    Barrier(oneshot::Sender<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A handle on an engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Mutex<Shared>>,
    requests: mpsc::Sender<Request>,
    indexes: MetadataIndexes,
    watchers: Arc<Watchers>,
    clock: Arc<dyn Clock>,
}

/// What the worker keeps of an engine: everything but the way in, so that the last handle that goes
/// closes the queue.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) indexes: MetadataIndexes,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Inside {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for dyn Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl Engine {
    pub(crate) fn weak(&self) -> Inside {
        Inside {
            shared: Arc::clone(&self.shared),
            indexes: self.indexes.clone(),
            watchers: Arc::clone(&self.watchers),
            clock: Arc::clone(&self.clock),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room in the queue and for the result. Giving up waiting does not take the
    /// transaction back.
    pub async fn commit(&self, transaction: Transaction) -> Result<Arc<TransactionRecord>, Error> {
        let record = self.apply(transaction).await?;
        if record.errors.is_empty() { Ok(record) } else { Err(Error::Failed(record)) }
    }

    /// Like [`Self::commit`], but failed values are no error: the record tells.
    pub async fn apply(&self, transaction: Transaction) -> Result<Arc<TransactionRecord>, Error> {
        transaction.check()?;
        let (reply, answer) = oneshot::channel();
        let request = Request::Commit(transaction, self.clock.now(), Some(reply));
        self.requests.send(request).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Queues a transaction without waiting for anything.
    pub fn submit(&self, transaction: Transaction) -> Result<(), Error> {
        transaction.check()?;
        self.try_send(Request::Commit(transaction, self.clock.now(), None))
    }

    /// Commits and then waits until every value of the transaction is configured, or gone if it
    /// was to be deleted. A value that failed for good ends the waiting with an error.
    pub async fn commit_until_configured(
        &self,
        transaction: Transaction,
        timeout: Duration,
    ) -> Result<Arc<TransactionRecord>, Error> {
        let wanted: Vec<_> = transaction
            .values
            .iter()
            .map(|(key, wanted)| (key.clone(), wanted.value.is_some()))
            .collect();
        let keys: std::collections::HashSet<_> =
            wanted.iter().map(|(key, _)| key.clone()).collect();
        let mut watch = self.watch(keys.len().max(16), move |key| keys.contains(key));
        let deadline = later(self.clock.now(), timeout);
        let record = self.apply(transaction).await?;
        if record.reverted {
            return Err(Error::Failed(record));
        }
        let mut sleep = self.clock.sleep_until(deadline);
        loop {
            let mut waiting = None;
            for (key, present) in &wanted {
                match settled(&self.status(key), *present) {
                    Some(true) => {}
                    Some(false) => return Err(Error::Failed(record)),
                    None => waiting = Some(key),
                }
            }
            let Some(key) = waiting else {
                return Ok(record);
            };
            tokio::select! {
                event = watch.next() => if event.is_none() { return Err(Error::Stopped) },
                () = &mut sleep => return Err(Error::NotConfigured(key.to_string())),
            }
        }
    }

    /// What a transaction would do. Nothing is done; for a resync the south is looked at.
    pub async fn plan(&self, transaction: Transaction) -> Result<Vec<OperationRecord>, Error> {
        transaction.check()?;
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Plan(transaction, reply)).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Tells the engine what the south did by itself.
    pub fn notify(&self, notification: Notification) -> Result<(), Error> {
        self.try_send(Request::Notify(notification, self.clock.now()))
    }

    /// Teaches a running engine a descriptor; values that waited for it are applied.
    pub async fn register<D: Descriptor>(&self, descriptor: D) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Register(Arc::new(Typed(descriptor)), reply);
        self.requests.send(request).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Waits until everything that was queued before, notifications included, is done.
    pub async fn barrier(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Barrier(reply)).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Wants again what was wanted when a transaction had just ended.
    pub async fn roll_back_to(&self, seq: u64) -> Result<Arc<TransactionRecord>, Error> {
        let desired = {
            let shared = self.lock();
            let record = shared.history.transaction(seq);
            let record = record.ok_or_else(|| Error::Unknown(format!("transaction {seq}")))?;
            shared.history.desired_at(record.stop)
        };
        let transaction = Transaction::new()
            .resync(Resync::UpstreamResync)
            .description(format!("roll back to transaction {seq}"));
        let transaction = desired
            .into_iter()
            .fold(transaction, |transaction, (key, value)| transaction.set(key, value));
        self.commit(transaction).await
    }

    /// Hears of status changes of base values whose keys the filter accepts.
    pub fn watch(
        &self,
        capacity: usize,
        filter: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> StatusWatch {
        self.watchers.watch(capacity, filter)
    }

    /// The metadata of all descriptors.
    pub fn indexes(&self) -> &MetadataIndexes {
        &self.indexes
    }

    /// When the next retry is due.
    pub fn next_retry(&self) -> Option<Timestamp> {
        self.lock().next_retry
    }

    /// The present moment, as the engine sees it.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// How many requests are waiting, and how many may.
    pub fn queue(&self) -> (usize, usize) {
        let capacity = self.requests.max_capacity();
        (capacity - self.requests.capacity(), capacity)
    }

    fn try_send(&self, request: Request) -> Result<(), Error> {
        self.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.lock().stats.dropped += 1;
                Error::QueueFull
            }
            mpsc::error::TrySendError::Closed(_) => Error::Stopped,
        })
    }
}

/// Whether a value got where it should; none while it may still.
fn settled(status: &ValueStatus, wanted: bool) -> Option<bool> {
    match (wanted, status.state) {
        (true, ValueState::Configured) => Some(true),
        (false, ValueState::Nonexistent | ValueState::Removed) => Some(true),
        (_, ValueState::Failed | ValueState::Invalid) => Some(false),
        _ => None,
    }
}

impl StatusWatch {
    /// Whether an event calls for reading everything again.
    pub fn is_behind(event: &WatchEvent) -> bool {
        matches!(event, WatchEvent::Missed(_))
    }
}
