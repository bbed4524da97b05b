//! The desk: where requests and agents come in.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use mainstay_placement::machines::Considered;
use mainstay_store::keeper::{Keeper, Prepared};
use mainstay_store::object::{self, Record, Revision};
use mainstay_store::status::{Error, Reason};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, Streaming};

use super::metrics::Metrics;
use crate::engine::{ApplicationView, Key};
use crate::protocol::{
    Agents, AgentsServer, FromNode, LogChunk, MAX_MESSAGE_BYTES, ToNode, from_node,
};

/// How much may be said to a node that it has not read yet. A node that reads less is hung up on.
const UNREAD: usize = 4_096;

/// How long an agent has to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Something for the engine.
#[derive(Debug)]
pub(super) enum Input {
    Open {
        key: object::Key,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    },
    Update {
        key: object::Key,
        /// What the change was made of; nothing if it counts whatever happened since.
        before: Option<Revision>,
        object: Prepared,
        answer: oneshot::Sender<Result<Arc<Record>, Error>>,
    },
    DeleteInstance {
        key: object::Key,
    },
    Connect {
        node: Key,
        said: mpsc::Sender<ToNode>,
        answer: oneshot::Sender<Option<u64>>,
    },
    Heard {
        node: Key,
        connection: u64,
        message: FromNode,
    },
    HungUp {
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
        pieces: mpsc::Sender<Result<LogChunk, String>>,
    },
}

/// Closed sessions that can be read a little longer.
#[derive(Debug, Default)]
struct Graveyard {
    records: HashMap<String, Arc<Record>>,
    ages: VecDeque<(Duration, String)>,
}

/// How many closed sessions can be read at most.
const GRAVES: usize = 20_000;

/// Takes what is asked for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Desk {
    sender: mpsc::Sender<Input>,
    graveyard: Arc<Mutex<Graveyard>>,
    pub(super) metrics: Metrics,
}

fn closing() -> Error {
    let mut error = Error::new(Reason::ServiceUnavailable, "sessions are not run at the moment");
    error.retry_after = Some(1);
    error
}

impl Desk {
    pub(super) fn new(sender: mpsc::Sender<Input>, metrics: Metrics) -> Self {
        Self { sender, graveyard: Arc::default(), metrics }
    }

    pub(super) async fn put(&self, input: Input) -> bool {
        self.sender.send(input).await.is_ok()
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Input) -> Option<T> {
        let (answer, waiting) = oneshot::channel();
        if !self.put(question(answer)).await {
            return None;
        }
        waiting.await.ok()
    }

    /// Every application and its pools.
    pub async fn top(&self) -> Vec<ApplicationView> {
        self.ask(Input::Top).await.unwrap_or_default()
    }

    /// Every node, and why an instance of an application could or could not go there.
    pub async fn explain(&self, application: Key) -> Vec<Considered> {
        self.ask(|answer| Input::Explain(application, answer)).await.unwrap_or_default()
    }

    /// The output of an instance, piece by piece.
    pub async fn read_log(
        &self,
        instance: Key,
        tail: u64,
        follow: bool,
    ) -> mpsc::Receiver<Result<LogChunk, String>> {
        let (pieces, receiver) = mpsc::channel(64);
        self.put(Input::ReadLog { instance, tail, follow, pieces }).await;
        receiver
    }

    /// A session is gone, and can be read for a while.
    pub(super) fn bury(&self, record: Arc<Record>, until: Duration) {
        let mut graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        let path = record.key().path().to_owned();
        graveyard.ages.push_back((until, path.clone()));
        graveyard.records.insert(path, record);
        if graveyard.ages.len() > GRAVES
            && let Some((_, oldest)) = graveyard.ages.pop_front()
        {
            graveyard.records.remove(&oldest);
        }
    }

    /// A session that is gone and can still be read.
    pub(super) fn recall(&self, key: &object::Key) -> Option<Arc<Record>> {
        let graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        graveyard.records.get(key.path()).cloned()
    }

    /// Forgets whom nobody may read any more.
    pub(super) fn forget(&self, now: Duration) {
        let mut graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
        while graveyard.ages.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, path)) = graveyard.ages.pop_front() {
                graveyard.records.remove(&path);
            }
        }
    }
}

/// Keeps one of the kinds.
#[derive(Debug)]
struct Kept {
    desk: Desk,
    sessions: bool,
}

impl Desk {
    /// The keepers of sessions and of instances.
    #[must_use]
    pub fn keepers(&self) -> (Arc<dyn Keeper>, Arc<dyn Keeper>) {
        let keeper = |sessions| Arc::new(Kept { desk: self.clone(), sessions });
        (keeper(true), keeper(false))
    }
}

fn not_yours() -> Error {
    let message = "instances are made and changed by their application; change its scalingPolicy, or delete the instance";
    Error::new(Reason::MethodNotAllowed, message)
}

impl Keeper for Kept {
    fn create(
        &self,
        key: object::Key,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        if !self.sessions {
            return std::future::ready(Err(not_yours())).boxed();
        }
        let opened = self.desk.ask(|answer| Input::Open { key, object, answer });
        opened.map(|answer| answer.unwrap_or_else(|| Err(closing()))).boxed()
    }

    fn read_only(&self) -> Option<Error> {
        (!self.sessions).then(not_yours)
    }

    fn update(
        &self,
        key: object::Key,
        before: Arc<Record>,
        object: Prepared,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        if !self.sessions {
            return std::future::ready(Err(not_yours())).boxed();
        }
        let before = Some(before.revision());
        let changed = self.desk.ask(move |answer| Input::Update { key, before, object, answer });
        changed.map(|answer| answer.unwrap_or_else(|| Err(closing()))).boxed()
    }

    fn remove(
        &self,
        key: object::Key,
        before: Arc<Record>,
    ) -> BoxFuture<'_, Result<Arc<Record>, Error>> {
        async move {
            if self.sessions {
                // Somebody took the finalizer away: the session is closed all the same.
                let mut object = before.object();
                let now = serde_json::Value::from("1970-01-01T00:00:00Z");
                if let Some(metadata) = object.get_mut("metadata").and_then(|it| it.as_object_mut())
                {
                    metadata.entry("deletionTimestamp").or_insert(now);
                }
                let changed =
                    self.desk.ask(|answer| Input::Update { key, before: None, object, answer });
                changed.await.unwrap_or_else(|| Err(closing()))?;
            } else if !self.desk.put(Input::DeleteInstance { key }).await {
                return Err(closing());
            }
            Ok(before)
        }
        .boxed()
    }

    fn recall(&self, key: &object::Key) -> Option<Arc<Record>> {
        self.desk.recall(key).filter(|_| self.sessions)
    }
}

/// Decides whether the caller may act for a node, from what the listener recorded in the request's
/// extensions.
pub type SpeaksFor = fn(&http::Extensions, &str) -> bool;

/// Receives the name of the node that a stream is opened for, whether it is accepted or not (for the
/// audit log).
pub type Noted = fn(&http::Extensions, &str);

/// The path prefix of agents' streams, which stay open for long.
pub const STREAMS: &str = "/mainstay.agents.v1.Agents/";

/// The routes of this crate: agents' streams, and the REST endpoints of [`super::rest`].
pub fn router(desk: Desk, speaks_for: SpeaksFor, noted: Noted) -> axum::Router {
    let service = AgentsServer::new(Streams { desk: desk.clone(), speaks_for, noted })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    axum::Router::new()
        .route_service("/mainstay.agents.v1.Agents/{*method}", service)
        .merge(super::rest::routes(desk))
}

#[derive(Debug)]
struct Streams {
    desk: Desk,
    speaks_for: SpeaksFor,
    noted: Noted,
}

#[tonic::async_trait]
impl Agents for Streams {
    type ConnectStream = BoxStream<'static, Result<ToNode, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<FromNode>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (_, caller, mut incoming) = request.into_parts();
        let first = tokio::time::timeout(INTRODUCTION, incoming.message()).await;
        let first = first.map_err(|_| {
            Status::deadline_exceeded(format!("no Register message within {INTRODUCTION:?}"))
        })?;
        let Some(first) = first? else {
            return Err(Status::cancelled("the stream ended before a Register message"));
        };
        let Some(from_node::Body::Register(register)) = &first.body else {
            return Err(Status::failed_precondition("the first message must be a Register"));
        };
        (self.noted)(&caller, &register.node);
        let node: Key = register.node.as_str().into();
        if node.is_empty() || !(self.speaks_for)(&caller, &node) {
            let why = format!("these credentials do not speak for the node {node:?}");
            return Err(Status::permission_denied(why));
        }
        let (said, saying) = mpsc::channel(UNREAD);
        let taken = self.desk.ask(|answer| Input::Connect { node: node.clone(), said, answer });
        let Some(taken) = taken.await else {
            return Err(Status::unavailable("sessions are not run at the moment"));
        };
        let Some(connection) = taken else {
            let why = format!("the node {node} has a stream already");
            return Err(Status::already_exists(why));
        };
        tokio::spawn(listen(self.desk.clone(), node, connection, first, incoming));
        let outgoing = tokio_stream::wrappers::ReceiverStream::new(saying).map(Ok);
        Ok(Response::new(outgoing.boxed()))
    }
}

/// Passes the messages of a node to the engine until the stream ends.
async fn listen(
    desk: Desk,
    node: Key,
    connection: u64,
    first: FromNode,
    mut incoming: Streaming<FromNode>,
) {
    let mut next = Some(first);
    while let Some(message) = next.take() {
        let heard = Input::Heard { node: node.clone(), connection, message };
        if !desk.put(heard).await {
            return;
        }
        next = incoming.message().await.ok().flatten();
    }
    desk.put(Input::HungUp { node, connection }).await;
}
