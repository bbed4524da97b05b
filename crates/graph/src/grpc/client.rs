//! The other end.

use tonic::codegen::{Body, Bytes, StdError, http::uri::PathAndQuery};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{
    CommitReply, PlanReply, StatusReply, StatusRequest, TransactionRequest, WatchReply,
};

/// Talks to an engine over a channel.
#[derive(Debug, Clone)]
pub struct GraphClient<T> {
    grpc: tonic::client::Grpc<T>,
}

impl<T> GraphClient<T>
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as Body>::Error: Into<StdError> + Send,
{
    /// Talks over this channel.
    pub fn new(channel: T) -> Self {
        Self { grpc: tonic::client::Grpc::new(channel) }
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.grpc.ready().await.map_err(|error| Status::unavailable(error.into().to_string()))
    }

    /// Makes a change.
    pub async fn commit(&mut self, request: TransactionRequest) -> Result<CommitReply, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/mainstay.graph.v1.Graph/Commit");
        let reply = self.grpc.unary(Request::new(request), path, ProstCodec::default()).await?;
        Ok(reply.into_inner())
    }

    /// Asks what a change would do.
    pub async fn plan(&mut self, request: TransactionRequest) -> Result<PlanReply, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/mainstay.graph.v1.Graph/Plan");
        let reply = self.grpc.unary(Request::new(request), path, ProstCodec::default()).await?;
        Ok(reply.into_inner())
    }

    /// Asks how values stand.
    pub async fn status(&mut self, request: StatusRequest) -> Result<StatusReply, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/mainstay.graph.v1.Graph/Status");
        let reply = self.grpc.unary(Request::new(request), path, ProstCodec::default()).await?;
        Ok(reply.into_inner())
    }

    /// Hears how values stand, then every change.
    pub async fn watch(&mut self, request: StatusRequest) -> Result<Streaming<WatchReply>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/mainstay.graph.v1.Graph/Watch");
        let reply =
            self.grpc.server_streaming(Request::new(request), path, ProstCodec::default()).await?;
        Ok(reply.into_inner())
    }
}
