//! The agent's end.

use futures_util::Stream;
use tonic::codegen::{Body, Bytes, StdError, http::uri::PathAndQuery};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::LARGEST;
use super::messages::{FromNode, ToNode};

/// Speaks to a server over a channel.
#[derive(Debug, Clone)]
pub struct AgentsClient<T> {
    grpc: tonic::client::Grpc<T>,
}

impl<T> AgentsClient<T>
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as Body>::Error: Into<StdError> + Send,
{
    /// Speaks over this channel.
    pub fn new(channel: T) -> Self {
        let grpc = tonic::client::Grpc::new(channel);
        Self { grpc: grpc.max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST) }
    }

    /// Opens the stream of a node: says what `said` yields, and hears what the server says.
    ///
    /// # Errors
    /// What the server answers if it does not take the node.
    pub async fn connect(
        &mut self,
        said: impl Stream<Item = FromNode> + Send + 'static,
    ) -> Result<Streaming<ToNode>, Status> {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.into().to_string()))?;
        let path = PathAndQuery::from_static("/mainstay.agents.v1.Agents/Connect");
        let reply = self.grpc.streaming(Request::new(said), path, ProstCodec::default()).await?;
        Ok(reply.into_inner())
    }
}
