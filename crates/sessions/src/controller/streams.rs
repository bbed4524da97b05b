//! The gRPC endpoint to which agents open their streams.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::handle::{Handle, Input, NOT_RUNNING};
use crate::engine::Key;
use crate::protocol::{Agents, AgentsServer, FromNode, MAX_MESSAGE_BYTES, ToNode, from_node};

/// The largest number of messages a node may leave unread before it is disconnected.
pub(super) const UNREAD: usize = 4_096;

/// How long an agent may take to send Register.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Decides whether the caller may act for a node, from what the listener recorded in the request's
/// extensions.
pub type SpeaksFor = fn(&http::Extensions, &str) -> bool;

/// Receives the name of the node that a stream is opened for, whether it is accepted or not (for the
/// audit log).
pub type RecordNode = fn(&http::Extensions, &str);

/// The path prefix of agents' streams, which stay open for long.
pub const STREAMS: &str = "/mainstay.agents.v1.Agents/";

/// The routes of this crate: agents' streams, and the REST endpoints of [`super::rest`].
pub fn router(handle: Handle, speaks_for: SpeaksFor, record: RecordNode) -> axum::Router {
    let service = AgentsServer::new(Streams { handle: handle.clone(), speaks_for, record })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    axum::Router::new()
        .route_service("/mainstay.agents.v1.Agents/{*method}", service)
        .merge(super::rest::routes(handle))
}

/// The gRPC service that takes the streams.
#[derive(Debug)]
struct Streams {
    handle: Handle,
    speaks_for: SpeaksFor,
    record: RecordNode,
}

#[tonic::async_trait]
impl Agents for Streams {
    type ConnectStream = BoxStream<'static, Result<ToNode, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<FromNode>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (_, caller, mut incoming) = request.into_parts();
        let first = tokio::time::timeout(REGISTER_TIMEOUT, incoming.message()).await;
        let first = first.map_err(|_| {
            Status::deadline_exceeded(format!("no Register message within {REGISTER_TIMEOUT:?}"))
        })?;
        let Some(first) = first? else {
            return Err(Status::cancelled("the stream ended before a Register message"));
        };
        let Some(from_node::Body::Register(register)) = &first.body else {
            return Err(Status::failed_precondition("the first message must be a Register"));
        };
        (self.record)(&caller, &register.node);
        let node: Key = register.node.as_str().into();
        if node.is_empty() || !(self.speaks_for)(&caller, &node) {
            let why = format!("these credentials do not speak for the node {node:?}");
            return Err(Status::permission_denied(why));
        }
        let (outgoing, messages) = mpsc::channel(UNREAD);
        let accepted =
            self.handle.ask(|answer| Input::Connect { node: node.clone(), outgoing, answer });
        let Some(accepted) = accepted.await else {
            return Err(Status::unavailable(NOT_RUNNING));
        };
        let Some(connection) = accepted else {
            let why = format!("the node {node} has a stream already");
            return Err(Status::already_exists(why));
        };
        tokio::spawn(listen(self.handle.clone(), node, connection, first, incoming));
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages).map(Ok);
        Ok(Response::new(messages.boxed()))
    }
}

/// Passes the messages of a node to the engine until the stream ends.
async fn listen(
    handle: Handle,
    node: Key,
    connection: u64,
    first: FromNode,
    mut incoming: Streaming<FromNode>,
) {
    let mut next = Some(first);
    while let Some(message) = next.take() {
        let received = Input::Received { node: node.clone(), connection, message };
        if !handle.put(received).await {
            return;
        }
        next = incoming.message().await.ok().flatten();
    }
    handle.put(Input::Closed { node, connection }).await;
}
