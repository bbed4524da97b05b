//! The engine's public interface: [`Builder`], [`Options`] and the handle [`Engine`].
//!
//! A [`Builder`] takes [`Options`] and descriptors and makes two halves: a [`Service`] that runs until
//! it is cancelled and processes one transaction after the other, and an [`Engine`], a cheap handle
//! to commit transactions and to read state. Reads are answered while a transaction runs; they see
//! what has been done so far.

mod options;
mod reads;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

pub use self::options::Options;
pub use self::reads::{Dump, DumpIndex, DumpedValue, View};
use crate::erased::{BoxedDescriptor, ErasedDescriptor};
use crate::graph::Graph;
use crate::health::Health;
use crate::history::{self, History};
use crate::journal::{self, Recovered};
use crate::ledger::Ledger;
use crate::log::TransactionLog;
use crate::metadata::MetadataIndexes;
use crate::picture::Picture;
use crate::record::{OperationRecord, TransactionRecord};
use crate::registry::{self, Registry};
use crate::state::ValueState;
use crate::stats::Stats;
use crate::status::{StatusWatch, ValueStatus, WatchEvent, Watchers};
use crate::time::{Clock, later};
use crate::transaction::{self, Notification, Resync, Transaction, Wanted};
use crate::worker::Service;

/// Why a call of the engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transaction is not valid; nothing was done.
    #[error(transparent)]
    Refused(#[from] transaction::Error),
    /// The queue is full; nothing was done. Retry later.
    #[error("the transaction queue is full")]
    QueueFull,
    /// The engine has stopped; nothing more will be done.
    #[error("the engine has stopped")]
    Stopped,
    /// The journal failed, so that the engine accepts no transactions until it is restarted; reads
    /// are still answered.
    #[error("the engine accepts no transactions: {0}")]
    Halted(String),
    /// The past that was asked for is not known.
    #[error(transparent)]
    History(history::Error),
    /// Some values failed; the record lists them.
    #[error("transaction {} failed: {}", .0.seq, all_errors(.0))]
    Failed(Arc<TransactionRecord>),
    /// The values did not become configured in time; the transaction itself stands.
    #[error("{key} is not configured yet")]
    NotConfigured {
        /// The key of a value that is not.
        key: String,
        /// The transaction.
        record: Arc<TransactionRecord>,
    },
    /// A descriptor was refused.
    #[error(transparent)]
    Registration(#[from] registry::Error),
    /// The journal cannot be read or written.
    #[error("the journal cannot be used")]
    Journal(#[from] journal::Error),
    /// There is no such transaction, descriptor or key prefix.
    #[error("{0} is not known")]
    Unknown(String),
    /// The descriptor does not implement `retrieve`.
    #[error("descriptor {0} does not support Retrieve operation")]
    NotRetrievable(String),
    /// The descriptor's `retrieve` failed.
    #[error("descriptor {name} failed to retrieve")]
    Retrieve {
        /// The name of the descriptor.
        name: String,
        /// Its error.
        #[source]
        source: crate::descriptor::OperationError,
    },
}

impl From<history::Error> for Error {
    fn from(error: history::Error) -> Self {
        match error {
            history::Error::Unknown(seq) => Self::Unknown(format!("transaction {seq}")),
            other => Self::History(other),
        }
    }
}

/// The errors of a transaction in one line, at most three of them.
fn all_errors(record: &TransactionRecord) -> String {
    let first: Vec<String> = record.errors.iter().take(3).map(ToString::to_string).collect();
    match record.errors.len().saturating_sub(first.len()) {
        0 => first.join("; "),
        more => format!("{}; and {more} more", first.join("; ")),
    }
}

/// Makes an engine from options and descriptors.
///
/// ```
/// use mainstay_graph::{Builder, Options, Transaction};
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (engine, service) = Builder::new(Options::default()).build()?;
/// let stop = CancellationToken::new();
/// let worker = tokio::spawn(service.run(stop.clone()));
///
/// // There is no descriptor for this key yet, so the value waits for one.
/// engine.commit(Transaction::new().set_typed("interface/eth0", 1500_u32)).await?;
/// assert_eq!(engine.status("interface/eth0").state.name(), "UNIMPLEMENTED");
///
/// stop.cancel();
/// worker.await?;
/// # Ok(())
/// # }
/// ```
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

    /// Adds a descriptor.
    ///
    /// # Errors
    /// Refuses a name or keys that are taken, and a cycle in the order of retrieval.
    pub fn register(
        mut self,
        descriptor: impl Into<BoxedDescriptor>,
    ) -> Result<Self, registry::Error> {
        let BoxedDescriptor(descriptor) = descriptor.into();
        self.registry.register(Arc::clone(&descriptor))?;
        if let Some(index) = descriptor.metadata_index() {
            self.indexes.declare(index);
        }
        Ok(self)
    }

    /// Makes the two halves. Reads the journal.
    ///
    /// # Errors
    /// Fails if the journal cannot be read, is damaged, or was written by a newer version.
    pub fn build(self) -> Result<(Engine, Service), Error> {
        let Self { mut options, registry, indexes } = self;
        let recovered = match &mut options.journal {
            Some(journal) => journal::replay(journal.load()?),
            None => Recovered::default(),
        };
        let (requests, queue) = mpsc::channel(options.queue.max(1));
        let start = options.clock.now();
        let mut history = History::new(options.history, start);
        let mut notices = Vec::new();
        if let Some(journal) = &options.journal {
            history.collect_changes();
            notices = journal.notices();
        }
        let health = Arc::new(Mutex::new(Health::new(options.journal.is_some(), notices)));
        let shared = Shared {
            graph: Graph::default(),
            registry: Arc::new(registry),
            history,
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
            health: Arc::clone(&health),
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
            options.journal.map(|journal| Ledger::new(journal, health)),
            log,
            recovered,
        );
        Ok((engine, service))
    }
}

/// The state that the worker changes and every handle reads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) graph: Graph,
    pub(crate) registry: Arc<Registry>,
    pub(crate) history: History,
    pub(crate) next_seq: u64,
    pub(crate) next_retry: Option<Timestamp>,
    pub(crate) stats: Stats,
}

/// A request to the worker.
pub(crate) enum Request {
    Commit(Transaction, Timestamp, Option<Reply<Arc<TransactionRecord>>>),
    Notify(Notification, Timestamp),
    Plan(Transaction, Reply<Vec<OperationRecord>>),
    Register(Arc<dyn ErasedDescriptor>, Reply<()>),
    Barrier(oneshot::Sender<()>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A handle on an engine. Cheap to clone; the service ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Mutex<Shared>>,
    requests: mpsc::Sender<Request>,
    indexes: MetadataIndexes,
    watchers: Arc<Watchers>,
    clock: Arc<dyn Clock>,
    health: Arc<Mutex<Health>>,
}

/// The worker's share of an engine: everything but the sender of requests, so that the queue closes
/// with the last handle.
#[derive(Debug, Clone)]
pub(crate) struct Inside {
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) indexes: MetadataIndexes,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Arc<Mutex<Health>>,
}

impl Inside {
    /// Fails once the engine accepts no more transactions.
    pub(crate) fn accepting(&self) -> Result<(), Error> {
        accepting(&self.health)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock()
    }
}

fn accepting(health: &Mutex<Health>) -> Result<(), Error> {
    match &health.lock().reason {
        Some(reason) => Err(Error::Halted(reason.clone())),
        None => Ok(()),
    }
}

impl Engine {
    pub(crate) fn weak(&self) -> Inside {
        Inside {
            shared: Arc::clone(&self.shared),
            indexes: self.indexes.clone(),
            watchers: Arc::clone(&self.watchers),
            clock: Arc::clone(&self.clock),
            health: Arc::clone(&self.health),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock()
    }

    /// Commits a transaction and waits for its result. Dropping the future does not revert the
    /// transaction.
    ///
    /// ```
    /// # use mainstay_graph::{Builder, Options};
    /// # use tokio_util::sync::CancellationToken;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (engine, service) = Builder::new(Options::default()).build()?;
    /// # let worker = tokio::spawn(service.run(CancellationToken::new()));
    /// use mainstay_graph::Transaction;
    ///
    /// let change = Transaction::new().set_typed("a", 1_u32).set_typed("b", 2_u32);
    /// let record = engine.commit(change).await?;
    /// assert_eq!(record.executed.len(), 2);
    ///
    /// // Committing the same values again changes nothing.
    /// let same = engine.commit(Transaction::new().set_typed("a", 1_u32)).await?;
    /// assert!(same.errors.is_empty());
    /// # drop(engine);
    /// # worker.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`] if a value failed; the record has the details.
    pub async fn commit(&self, transaction: Transaction) -> Result<Arc<TransactionRecord>, Error> {
        let record = self.apply(transaction).await?;
        if record.errors.is_empty() { Ok(record) } else { Err(Error::Failed(record)) }
    }

    /// Like [`Self::commit`], but failed values are not an error; the record lists them.
    pub async fn apply(&self, transaction: Transaction) -> Result<Arc<TransactionRecord>, Error> {
        transaction.check()?;
        accepting(&self.health)?;
        let (reply, answer) = oneshot::channel();
        let request = Request::Commit(transaction, self.clock.now(), Some(reply));
        self.requests.send(request).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Like [`Self::apply`], and returns a picture of the graph as it was before the first
    /// operation: after a resync has retrieved the south.
    pub async fn apply_with_picture(
        &self,
        mut transaction: Transaction,
    ) -> Result<(Arc<TransactionRecord>, Picture), Error> {
        let retrieved = Arc::new(OnceLock::new());
        transaction.retrieved = Some(Arc::clone(&retrieved));
        let record = self.apply(transaction).await?;
        match retrieved.get() {
            Some(picture) => Ok((record, picture.clone())),
            None => Ok((record, self.picture(None)?)),
        }
    }

    /// Queues a transaction and returns at once.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if there is no room.
    pub fn submit(&self, transaction: Transaction) -> Result<(), Error> {
        transaction.check()?;
        accepting(&self.health)?;
        self.try_send(Request::Commit(transaction, self.clock.now(), None))
    }

    /// Commits and then waits until every value of the transaction is configured, or gone if it
    /// was deleted.
    ///
    /// # Errors
    /// [`Error::Failed`] if a value failed and is not retried, [`Error::NotConfigured`] after
    /// `timeout`.
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
                () = &mut sleep => {
                    return Err(Error::NotConfigured { key: key.to_string(), record });
                }
            }
        }
    }

    /// Plans a transaction: returns its operations without running them. A resync retrieves the
    /// state of the south.
    ///
    /// ```
    /// # use mainstay_graph::{Builder, Options};
    /// # use tokio_util::sync::CancellationToken;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (engine, service) = Builder::new(Options::default()).build()?;
    /// # let worker = tokio::spawn(service.run(CancellationToken::new()));
    /// use mainstay_graph::Transaction;
    ///
    /// let plan = engine.plan(Transaction::new().set_typed("a", 1_u32)).await?;
    /// assert_eq!(plan[0].key.as_str(), "a");
    /// assert!(engine.history(None, None).is_empty(), "nothing was executed");
    /// # drop(engine);
    /// # worker.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn plan(&self, transaction: Transaction) -> Result<Vec<OperationRecord>, Error> {
        transaction.check()?;
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Plan(transaction, reply)).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Reports values that the south created, changed or deleted by itself.
    ///
    /// ```
    /// # use mainstay_graph::{Builder, Options};
    /// # use tokio_util::sync::CancellationToken;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (engine, service) = Builder::new(Options::default()).build()?;
    /// # let worker = tokio::spawn(service.run(CancellationToken::new()));
    /// use mainstay_graph::{Notification, Transaction};
    ///
    /// engine.notify(Notification::new().set("link/eth0", mainstay_graph::Value::new(true), None))?;
    /// engine.barrier().await?;
    /// assert_eq!(engine.history(None, None).len(), 1);
    /// # drop(engine);
    /// # worker.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn notify(&self, notification: Notification) -> Result<(), Error> {
        accepting(&self.health)?;
        self.try_send(Request::Notify(notification, self.clock.now()))
    }

    /// Adds a descriptor to a running engine; values that waited for it are applied.
    ///
    /// # Errors
    /// [`Error::Registration`] for what [`Builder::register`] refuses, and if it would take over a
    /// value that another descriptor has applied.
    pub async fn register(&self, descriptor: impl Into<BoxedDescriptor>) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let BoxedDescriptor(descriptor) = descriptor.into();
        let request = Request::Register(descriptor, reply);
        self.requests.send(request).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Waits until every earlier request, notifications included, is done.
    pub async fn barrier(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Barrier(reply)).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Restores the wanted values, with their labels, of the moment when a transaction had ended.
    ///
    /// # Errors
    /// [`Error::History`] if the history does not have that moment completely.
    pub async fn roll_back_to(&self, seq: u64) -> Result<Arc<TransactionRecord>, Error> {
        let desired = {
            let shared = self.lock();
            shared.history.desired_after(seq, shared.next_seq)?
        };
        let mut transaction = Transaction::new()
            .resync(Resync::UpstreamResync)
            .description(format!("roll back to transaction {seq}"));
        for (key, (value, labels)) in desired {
            transaction.values.insert(key, Wanted { value: Some(value), labels });
        }
        self.commit(transaction).await
    }

    /// Whether the engine accepts transactions, and which descriptors it waits for.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// Watches the status of base values whose keys the filter accepts. A watcher that falls more
    /// than `capacity` changes behind gets [`WatchEvent::Missed`].
    ///
    /// ```
    /// # use mainstay_graph::{Builder, Options};
    /// # use tokio_util::sync::CancellationToken;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (engine, service) = Builder::new(Options::default()).build()?;
    /// # let worker = tokio::spawn(service.run(CancellationToken::new()));
    /// use mainstay_graph::{Transaction, WatchEvent};
    ///
    /// let mut watch = engine.watch(16, |key| key.starts_with("interface/"));
    /// engine.commit(Transaction::new().set_typed("interface/eth0", 1500_u32)).await?;
    /// let Some(WatchEvent::Status(status)) = watch.next().await else { panic!("no change") };
    /// assert_eq!(status.key.as_str(), "interface/eth0");
    /// # drop(engine);
    /// # worker.await?;
    /// # Ok(())
    /// # }
    /// ```
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

    /// The present time of the engine's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The number of requests that wait, and the most that may.
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

/// Whether a value reached the wanted state; none while it still may.
fn settled(status: &ValueStatus, wanted: bool) -> Option<bool> {
    match (wanted, status.state) {
        (true, ValueState::Configured) => Some(true),
        (false, ValueState::Nonexistent | ValueState::Removed) => Some(true),
        (_, ValueState::Failed | ValueState::Invalid) => Some(false),
        _ => None,
    }
}

impl StatusWatch {
    /// Whether an event means that changes were missed, so that the status must be read again.
    pub fn is_behind(event: &WatchEvent) -> bool {
        matches!(event, WatchEvent::Missed(_))
    }
}
