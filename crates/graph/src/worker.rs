//! The worker of an engine: processes one transaction after the other.
//!
//! Every transaction takes the same steps: its values are collected, a plan is made on the graph and
//! rolled back, the plan is written to log and journal and executed, and the results are recorded.
//! The lock is held while deciding, never while an operation runs in the south.
//!
//! Enter at [`Service::run`]; [`process`] has the steps of a transaction, [`prepare`] collects its
//! values, [`settle`] records its results.

mod prepare;
mod process;
mod settle;
mod unseen;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::process::Work;
use crate::engine::{Error, Inside, Request};
use crate::erased::ErasedDescriptor;
use crate::graph::{Failure, Graph};
use crate::hash::HashSet;
use crate::health::Unseen;
use crate::history::Stored;
use crate::journal::{Desired, Doubt, Entry, Part, Recovered, ScheduledRetry};
use crate::key::Key;
use crate::ledger::{CommitReply, Ledger};
use crate::log::TransactionLog;
use crate::record::TransactionRecord;
use crate::registry::{self, DescriptorId, Registry};
use crate::state::{Operation, ValueState};
use crate::transaction::{self, Resync, Transaction, TransactionType};
use crate::value::Value;

/// The worker's share of the options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conduct {
    pub(crate) parallel: usize,
    pub(crate) verify: bool,
    pub(crate) resync_on_start: bool,
}

/// The worker of an engine; to be spawned once.
///
/// ```
/// # use mainstay_graph::{Builder, Options};
/// # use tokio_util::sync::CancellationToken;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (engine, service) = Builder::new(Options::default()).build()?;
/// let stop = CancellationToken::new();
/// let worker = tokio::spawn(service.run(stop.clone()));
/// engine.barrier().await?;
/// stop.cancel();
/// worker.await?;
/// # Ok(())
/// # }
/// ```
pub struct Service {
    inside: Inside,
    queue: mpsc::Receiver<Request>,
    conduct: Conduct,
    /// None without a journal, and while an execution writes to it.
    journal: Option<Ledger>,
    log: Option<TransactionLog>,
    recovered: Option<Recovered>,
    retries: Vec<ScheduledRetry>,
    /// The derived values that, by the journal, may differ from what their bases imply.
    doubted: BTreeSet<Key>,
    /// Whether the south was ever retrieved.
    looked: bool,
    /// The descriptors that have retrieved.
    seen: HashSet<DescriptorId>,
    /// The descriptors whose first retrieval has failed.
    unseen: BTreeMap<DescriptorId, Unseen>,
    /// Whether the next transaction is the first after a restart.
    restarted: bool,
    /// Cancelled when the service stops.
    stopping: CancellationToken,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("conduct", &self.conduct).finish_non_exhaustive()
    }
}

impl Service {
    pub(crate) fn new(
        inside: Inside,
        queue: mpsc::Receiver<Request>,
        conduct: Conduct,
        journal: Option<Ledger>,
        log: Option<TransactionLog>,
        recovered: Recovered,
    ) -> Self {
        Self {
            inside,
            queue,
            conduct,
            journal,
            log,
            recovered: Some(recovered),
            retries: Vec::new(),
            doubted: BTreeSet::new(),
            looked: false,
            seen: HashSet::default(),
            unseen: BTreeMap::new(),
            restarted: false,
            stopping: CancellationToken::new(),
        }
    }

    /// Runs until `shutdown` is cancelled or the last handle is dropped. The transaction under way
    /// is finished first; requests that still wait in the queue get [`Error::Stopped`].
    pub async fn run(mut self, shutdown: CancellationToken) {
        self.stopping = shutdown.clone();
        let recovered = self.recovered.take().unwrap_or_default();
        self.recover(recovered).await;
        self.share_flush();
        let deserted = |queue: &mpsc::Receiver<Request>| queue.is_closed() && queue.is_empty();
        while !shutdown.is_cancelled() && !deserted(&self.queue) {
            self.round(&shutdown).await;
            self.look_again().await;
            let next = self.retries.iter().map(|retry| retry.due).min();
            self.inside.lock().next_retry = next;
            let next = next.into_iter().chain(self.next_look()).min();
            let wake = next.map(|due| self.inside.clock.sleep_until(due));
            let wake = async {
                match wake {
                    Some(wake) => wake.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = wake => {}
                request = self.queue.recv() => match request {
                    Some(request) => self.handle(request).await,
                    None => break,
                },
            }
            self.share_flush();
        }
        self.flush();
        self.inside.watchers.close();
    }

    /// Flushes the journal, unless transactions wait that can share the flush.
    fn share_flush(&mut self) {
        let queued = !self.queue.is_empty();
        if let Some(journal) = self.journal.as_mut().filter(|one| !queued || one.is_full()) {
            journal.settle();
        }
    }

    /// Flushes the journal before something that may take long.
    fn flush(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.settle();
        }
    }

    /// Answers a commit: at once, or with the flush of its entries.
    fn answer(
        &mut self,
        done: Result<Arc<TransactionRecord>, Error>,
        durable: bool,
        reply: Option<CommitReply>,
    ) {
        match (done, &mut self.journal, reply) {
            (Ok(record), Some(journal), reply) => journal.committed(record, durable, reply),
            // The caller may have stopped waiting; the transaction stands all the same.
            (done, _, Some(reply)) => drop(reply.send(done)),
            (_, _, None) => {}
        }
    }

    /// Processes a transaction that nobody waits for.
    async fn process_alone(&mut self, work: Work) {
        let done = self.process(work).await;
        self.answer(done, false, None);
    }

    /// Runs the retries that are due, then the requests that waited meanwhile. Neither can starve
    /// the other: retries and requests that arrive during a round wait for the next one.
    async fn round(&mut self, shutdown: &CancellationToken) {
        let (now, next) = (self.now(), self.inside.lock().next_seq);
        while !shutdown.is_cancelled()
            && let Some(retry) = self.due(now, next)
        {
            self.retry(retry).await;
            self.share_flush();
            // Operations that complete at once would keep other tasks of this thread waiting.
            tokio::task::yield_now().await;
        }
        for _ in 0..self.queue.len() {
            let Ok(request) = self.queue.try_recv() else { return };
            self.handle(request).await;
            self.share_flush();
            if shutdown.is_cancelled() {
                return;
            }
        }
    }

    /// Takes the first retry that is due at `now` of those scheduled before transaction `next`.
    fn due(&mut self, now: Timestamp, next: u64) -> Option<ScheduledRetry> {
        let (position, _) = self
            .retries
            .iter()
            .enumerate()
            .filter(|(_, retry)| retry.due <= now && retry.failed_in < next)
            .min_by_key(|(_, retry)| (retry.due, retry.failed_in, retry.attempt))?;
        Some(self.retries.remove(position))
    }

    async fn handle(&mut self, request: Request) {
        match request {
            Request::Commit(transaction, queued, reply) => {
                self.inside.lock().stats.waited(queued, self.inside.clock.now());
                let durable = transaction.durable;
                let done = match self.refused(&transaction) {
                    Some(refused) => Err(refused),
                    None => self.process(Work::north(transaction)).await,
                };
                self.answer(done, durable, reply);
            }
            Request::Notify(notification, queued) => {
                self.inside.lock().stats.waited(queued, self.inside.clock.now());
                self.process_alone(Work::south(notification)).await;
            }
            Request::Plan(transaction, reply) => {
                let plan = match self.refused(&transaction) {
                    Some(refused) => Err(refused),
                    None => Ok(self.plan_only(transaction).await),
                };
                let _ = reply.send(plan);
            }
            Request::Register(descriptor, reply) => {
                let done = self.register(descriptor).await;
                let _ = reply.send(done);
            }
            Request::Barrier(reply) => {
                let _ = reply.send(());
            }
        }
    }

    async fn register(&mut self, descriptor: Arc<dyn ErasedDescriptor>) -> Result<(), Error> {
        self.inside.accepting()?;
        let waiting = {
            let mut shared = self.inside.lock();
            let mut registry = Registry::clone(&shared.registry);
            let id = registry.register(Arc::clone(&descriptor))?;
            refuse_takeover(&shared.graph, &registry, id)?;
            shared.registry = Arc::new(registry);
            if let Some(index) = descriptor.metadata_index() {
                self.inside.indexes.declare(index);
            }
            let registry = Arc::clone(&shared.registry);
            let unimplemented: Vec<_> = registry
                .starts_of(id)
                .flat_map(|start| shared.graph.with_prefix(start))
                .filter(|(key, _, node)| {
                    node.state == ValueState::Unimplemented && registry.serves(id, key)
                })
                .map(|(key, _, _)| key.clone())
                .collect();
            unimplemented
        };
        if !waiting.is_empty() {
            self.process_alone(Work::again(TransactionType::RetryUnimplOps, waiting)).await;
        }
        Ok(())
    }

    /// Why a transaction cannot be executed on the graph as it is.
    fn refused(&self, transaction: &Transaction) -> Option<Error> {
        let shared = self.inside.lock();
        let graph = &shared.graph;
        let known = transaction.keys().find_map(|key| {
            let base = graph.find(key)?.1.base?;
            Some((key.clone(), graph.key(base).clone()))
        });
        let (key, base) = known.or_else(|| contradiction(&shared.registry, transaction))?;
        Some(transaction::Error::DerivedKey { key, base }.into())
    }

    async fn retry(&mut self, retry: ScheduledRetry) {
        let keys: Vec<_> = {
            let shared = self.inside.lock();
            let unchanged = |key: &crate::key::Key| {
                let node = shared.graph.find(key).map(|(_, node)| node);
                node.is_some_and(|node| node.last.transaction <= retry.failed_in)
            };
            retry.keys.iter().filter(|key| unchanged(key)).cloned().collect()
        };
        if keys.is_empty() {
            return;
        }
        let mut work = Work::again(TransactionType::RetryFailedOps, keys);
        work.retry_for = Some(retry.retry_for);
        work.attempt = retry.attempt;
        self.process_alone(work).await;
    }

    /// Restores the state from the journal, and resyncs if the options ask for it.
    async fn recover(&mut self, recovered: Recovered) {
        let Recovered { next_seq, desired, retries, parts, uncertain, interrupted, .. } = recovered;
        let Recovered { history, revisions, gaps, since, .. } = recovered;
        self.restarted = next_seq > 0;
        let now = self.inside.clock.now();
        let something = !desired.is_empty() || !uncertain.is_empty() || !retries.is_empty();
        {
            let mut shared = self.inside.lock();
            let registry = Arc::clone(&shared.registry);
            let stored = Stored { history, revisions, gaps, since };
            shared.history.restore(stored, &registry, now);
            for (key, Desired { value, labels, retry }) in desired {
                let id = shared.graph.intern(&key);
                let node = shared.graph.write(id);
                node.last.requested = Some(value);
                node.last.retry = retry;
                node.labels = labels.map(Arc::new);
            }
            self.doubted = parts.keys().cloned().collect();
            for (key, part) in parts {
                restore_part(&mut shared.graph, &registry, &key, &part);
            }
            for (key, operation) in uncertain {
                if self.doubted.contains(&key) {
                    continue;
                }
                let id = shared.graph.intern(&key);
                let node = shared.graph.write(id);
                node.uncertain = true;
                node.last.operation = operation;
            }
            for key in retries.iter().flat_map(|retry| &retry.reverts) {
                let id = shared.graph.intern(key);
                shared.graph.write(id).last.revert = true;
            }
            shared.graph.take_touched();
        }
        self.retries = retries;
        if something && self.conduct.resync_on_start {
            let reason = match interrupted {
                Some(seq) => format!("after a restart that interrupted transaction {seq}"),
                None => "after a restart".to_owned(),
            };
            let resync = Transaction::downstream_resync().description(reason);
            let mut work = Work::north(resync);
            work.resumes = true;
            self.process_alone(work).await;
        }
    }

    /// Writes to the journal, if there is one.
    fn note(&mut self, entry: &Entry, durable: bool) -> Result<(), Error> {
        match &mut self.journal {
            Some(journal) => journal.append(entry, durable),
            None => Ok(()),
        }
    }

    fn now(&self) -> Timestamp {
        self.inside.clock.now()
    }
}

/// A key that a transaction sets although it follows from another value of the transaction, and that
/// value. A resync is exempt: it restores values of which each was accepted by itself.
fn contradiction(registry: &Registry, transaction: &Transaction) -> Option<(Key, Key)> {
    let values = &transaction.values;
    if values.len() < 2 || transaction.resync != Resync::NotResync {
        return None;
    }
    let is_set = |key: &Key| values.get(key).is_some_and(|wanted| wanted.value.is_some());
    values.iter().find_map(|(base, wanted)| {
        let value = wanted.value.as_ref()?;
        let descriptor = registry.get(registry.for_key(base)?);
        let read = descriptor.read(value);
        let derived = descriptor.derived(base, read.as_ref().unwrap_or(value));
        let key = derived.into_iter().map(|one| one.key).find(|key| is_set(key))?;
        Some((key, base.clone()))
    })
}

/// Refuses a new descriptor for keys whose values another descriptor has applied.
fn refuse_takeover(graph: &Graph, registry: &Registry, id: DescriptorId) -> Result<(), Error> {
    let mut nodes = registry.starts_of(id).flat_map(|start| graph.with_prefix(start));
    let taken = nodes.find_map(|(key, _, node)| {
        let other = node.descriptor.filter(|other| *other != id && registry.serves(id, key))?;
        Some((key.to_string(), other))
    });
    let Some((key, other)) = taken else { return Ok(()) };
    let (name, other) = (registry.get(id).name().to_owned(), registry.get(other).name().to_owned());
    Err(registry::Error::Taken { name, key, other }.into())
}

/// Restores the recorded doubt about a derived value: it waits to be created, or failed half-way.
fn restore_part(graph: &mut Graph, registry: &Registry, key: &Key, part: &Part) {
    let (base, id) = (graph.intern(&part.base), graph.intern(key));
    let descriptor = registry.for_key(key);
    let read = |value: &Value| {
        let read = descriptor.and_then(|descriptor| registry.get(descriptor).read(value));
        read.unwrap_or_else(|| value.clone())
    };
    let node = graph.write(id);
    node.base = Some(base);
    node.descriptor = descriptor;
    node.value = part.value.as_ref().map(read);
    node.uncertain = part.doubt != Doubt::Absent;
    let interrupted = |operation| Failure {
        operation,
        message: "was interrupted; its effect is unknown".to_owned(),
        retriable: true,
        fields: Vec::new(),
    };
    node.error = match part.doubt {
        Doubt::Absent => None,
        Doubt::Unfinished => Some(Arc::new(interrupted(Operation::Create))),
        Doubt::Uncertain => Some(Arc::new(interrupted(Operation::Update))),
    };
    node.state = match part.doubt {
        Doubt::Absent => ValueState::Pending,
        Doubt::Unfinished | Doubt::Uncertain => ValueState::Failed,
    };
    let value = node.value.clone();
    if let (Some(descriptor), Some(value)) = (descriptor, value) {
        graph.set_edges(id, registry.get(descriptor).dependencies(key, &value));
    }
    // Parts come in key order.
    let node = graph.write(base);
    node.derived = node.derived.iter().copied().chain([id]).collect();
}
