//! The server's end: a tonic service around whoever takes the streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::LARGEST;
use super::messages::{FromNode, ToNode};

/// What an agent says.
pub type Incoming = Streaming<FromNode>;
/// What is said to an agent.
pub type Outgoing = Pin<Box<dyn Stream<Item = Result<ToNode, Status>> + Send>>;

/// Takes the streams of agents.
pub trait Agents: Send + Sync + 'static {
    /// Takes one stream. `caller` is what the listener knows of who opened it.
    fn connect(&self, caller: http::Extensions, incoming: Incoming) -> BoxFuture<Outgoing, Status>;
}

/// The service.
#[derive(Debug)]
pub struct AgentsServer<A> {
    agents: Arc<A>,
}

impl<A> Clone for AgentsServer<A> {
    fn clone(&self) -> Self {
        Self { agents: Arc::clone(&self.agents) }
    }
}

impl<A> AgentsServer<A> {
    /// Hands every stream to `agents`.
    pub fn new(agents: Arc<A>) -> Self {
        Self { agents }
    }
}

impl<A: Agents> tonic::server::NamedService for AgentsServer<A> {
    const NAME: &'static str = "mainstay.agents.v1.Agents";
}

struct Connect<A>(Arc<A>);

impl<A: Agents> tonic::server::StreamingService<FromNode> for Connect<A> {
    type Response = ToNode;
    type ResponseStream = Outgoing;
    type Future = BoxFuture<Response<Outgoing>, Status>;

    fn call(&mut self, request: Request<Streaming<FromNode>>) -> Self::Future {
        let agents = Arc::clone(&self.0);
        Box::pin(async move {
            let (_, caller, incoming) = request.into_parts();
            agents.connect(caller, incoming).await.map(Response::new)
        })
    }
}

impl<A, B> Service<http::Request<B>> for AgentsServer<A>
where
    A: Agents,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let agents = Arc::clone(&self.agents);
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            if path != "/mainstay.agents.v1.Agents/Connect" {
                return Ok(Status::unimplemented(format!("there is no {path}")).into_http());
            }
            let grpc = tonic::server::Grpc::new(ProstCodec::default());
            let mut grpc =
                grpc.max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST);
            Ok(grpc.streaming(Connect(agents), request).await)
        })
    }
}
