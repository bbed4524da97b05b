//! The handle through which requests and messages reach the task that runs sessions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mainstay_placement::machines::Considered;
use mainstay_store::keeper::Prepared;
use mainstay_store::object::{self, Record, Revision};
use mainstay_store::status::{Error, Reason};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::metrics::Metrics;
use crate::engine::{ApplicationView, Key};
use crate::protocol::{FromNode, LogChunk, ToNode};

/// One input of the actor.
#[derive(Debug)]
pub(super) enum Input {
    Open {
        key: object::Key,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    },
    Update {
        key: object::Key,
        /// The version that the change is based on; `None` applies it to any version.
        before: Option<Revision>,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    },
    DeleteInstance {
        key: object::Key,
    },
    Connect {
        node: Key,
        outgoing: mpsc::Sender<ToNode>,
        answer: oneshot::Sender<Option<u64>>,
    },
    Received {
        node: Key,
        connection: u64,
        message: FromNode,
    },
    Closed {
        node: Key,
        connection: u64,
    },
    Reserved(Option<usize>),
    Top(oneshot::Sender<Vec<ApplicationView>>),
    Explain(Key, oneshot::Sender<Vec<Considered>>),
    ReadLog {
        instance: Key,
        tail: u64,
        follow: bool,
        chunks: mpsc::Sender<Result<LogChunk, String>>,
    },
}

/// Closed sessions, readable for a while after their objects are gone.
#[derive(Debug, Default)]
struct ClosedSessions {
    records: HashMap<String, Arc<Record>>,
    ages: VecDeque<(Duration, String)>,
}

/// The largest number of closed sessions that stay readable; the oldest go first.
const MAX_CLOSED: usize = 20_000;

/// Sends requests and messages to the running sessions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    sender: mpsc::Sender<Input>,
    closed: Arc<Mutex<ClosedSessions>>,
    pub(super) metrics: Metrics,
}

/// The message of requests that arrive while sessions are not running.
pub(super) const NOT_RUNNING: &str = "sessions are not run at the moment";

/// The error of requests while sessions are starting or stopping.
pub(super) fn not_running() -> Error {
    let mut error = Error::new(Reason::ServiceUnavailable, NOT_RUNNING);
    error.retry_after = Some(1);
    error
}

impl Handle {
    pub(super) fn new(sender: mpsc::Sender<Input>, metrics: Metrics) -> Self {
        Self { sender, closed: Arc::default(), metrics }
    }

    /// Sends an input. `false` if sessions are not running.
    pub(super) async fn put(&self, input: Input) -> bool {
        self.sender.send(input).await.is_ok()
    }

    /// Sends an input that has an answer, and waits for it. `None` if sessions are not running.
    pub(super) async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Input,
    ) -> Option<T> {
        let (answer, waiting) = oneshot::channel();
        if !self.put(question(answer)).await {
            return None;
        }
        waiting.await.ok()
    }

    /// Every application with its instance pools.
    pub async fn top(&self) -> Vec<ApplicationView> {
        self.ask(Input::Top).await.unwrap_or_default()
    }

    /// Every node, with the reason if an instance of the application cannot be placed there.
    pub async fn explain(&self, application: Key) -> Vec<Considered> {
        self.ask(|answer| Input::Explain(application, answer)).await.unwrap_or_default()
    }

    /// The log of an instance, chunk by chunk.
    pub async fn read_log(
        &self,
        instance: Key,
        tail: u64,
        follow: bool,
    ) -> mpsc::Receiver<Result<LogChunk, String>> {
        let (chunks, receiver) = mpsc::channel(64);
        self.put(Input::ReadLog { instance, tail, follow, chunks }).await;
        receiver
    }

    /// Keeps a closed session readable until `until`.
    pub(super) fn keep_readable(&self, record: Arc<Record>, until: Duration) {
        let mut closed = self.closed.lock();
        let path = record.key().path().to_owned();
        closed.ages.push_back((until, path.clone()));
        closed.records.insert(path, record);
        if closed.ages.len() > MAX_CLOSED
            && let Some((_, oldest)) = closed.ages.pop_front()
        {
            closed.records.remove(&oldest);
        }
    }

    /// A closed session that is still readable.
    pub(super) fn recall(&self, key: &object::Key) -> Option<Arc<Record>> {
        let closed = self.closed.lock();
        closed.records.get(key.path()).cloned()
    }

    /// Drops closed sessions whose time is over.
    pub(super) fn forget(&self, now: Duration) {
        let mut closed = self.closed.lock();
        while closed.ages.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, path)) = closed.ages.pop_front() {
                closed.records.remove(&path);
            }
        }
    }
}
