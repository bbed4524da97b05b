//! The engine over gRPC: commit, plan, status, watch.
//!
//! `proto/graph.proto` is the contract. [`GraphServer`] is a tonic service to be added to any
//! listener; [`GraphClient`] is the other end.

mod client;
mod messages;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

pub use self::client::GraphClient;
pub use self::messages::{
    CommitReply, KeyError, OnFailure, Operation, PlanReply, Resync, Retry, StatusReply,
    StatusRequest, TransactionRequest, ValueStatus, WatchReply,
};
use crate::engine::{Engine, Error};
use crate::record::{OperationRecord, TransactionRecord};
use crate::status::{StatusWatch, WatchEvent};
use crate::transaction::{self, Transaction};

/// How many changes a remote watcher may fall behind.
const WATCH_CAPACITY: usize = 1024;

/// The service of one engine.
#[derive(Debug, Clone)]
pub struct GraphServer {
    engine: Engine,
}

impl GraphServer {
    /// Serves this engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

impl tonic::server::NamedService for GraphServer {
    const NAME: &'static str = "mainstay.graph.v1.Graph";
}

struct Commit(Engine);
struct Plan(Engine);
struct StatusOf(Engine);
struct Watch(Engine);

type Replies = Pin<Box<dyn Stream<Item = Result<WatchReply, Status>> + Send>>;

impl tonic::server::UnaryService<TransactionRequest> for Commit {
    type Response = CommitReply;
    type Future = BoxFuture<Response<CommitReply>, Status>;

    fn call(&mut self, request: Request<TransactionRequest>) -> Self::Future {
        let engine = self.0.clone();
        Box::pin(async move {
            let request = request.into_inner();
            let wait = request.wait_ms;
            let transaction = read(request)?;
            let record = match wait {
                0 => engine.apply(transaction).await,
                wait => {
                    engine.commit_until_configured(transaction, Duration::from_millis(wait)).await
                }
            };
            let record = match record {
                Err(Error::Failed(record)) => record,
                other => other.map_err(refusal)?,
            };
            Ok(Response::new(reply(&record)))
        })
    }
}

impl tonic::server::UnaryService<TransactionRequest> for Plan {
    type Response = PlanReply;
    type Future = BoxFuture<Response<PlanReply>, Status>;

    fn call(&mut self, request: Request<TransactionRequest>) -> Self::Future {
        let engine = self.0.clone();
        Box::pin(async move {
            let operations = engine.plan(read(request.into_inner())?).await.map_err(refusal)?;
            Ok(Response::new(PlanReply { operations: operations.iter().map(operation).collect() }))
        })
    }
}

impl tonic::server::UnaryService<StatusRequest> for StatusOf {
    type Response = StatusReply;
    type Future = BoxFuture<Response<StatusReply>, Status>;

    fn call(&mut self, request: Request<StatusRequest>) -> Self::Future {
        let values = present(&self.0, &request.into_inner());
        Box::pin(async move { Ok(Response::new(StatusReply { values })) })
    }
}

impl tonic::server::ServerStreamingService<StatusRequest> for Watch {
    type Response = WatchReply;
    type ResponseStream = Replies;
    type Future = BoxFuture<Response<Replies>, Status>;

    fn call(&mut self, request: Request<StatusRequest>) -> Self::Future {
        let request = request.into_inner();
        let engine = self.0.clone();
        let (key, prefix) = (request.key.clone(), request.key_prefix.clone());
        // Watching begins before the present is read, so that no change falls in between.
        let watch = engine.watch(WATCH_CAPACITY, move |changed| {
            if key.is_empty() { changed.starts_with(&prefix) } else { changed == key }
        });
        let first = present(&engine, &request).into_iter();
        let first =
            stream::iter(first.map(|status| Ok(WatchReply { status: Some(status), missed: 0 })));
        let later = stream::unfold(watch, |mut watch: StatusWatch| async move {
            let reply = match watch.next().await? {
                WatchEvent::Status(one) => WatchReply { status: Some(status(&one)), missed: 0 },
                WatchEvent::Missed(count) => WatchReply { status: None, missed: count as u64 },
            };
            Some((Ok(reply), watch))
        });
        let replies: Replies = Box::pin(first.chain(later));
        Box::pin(async move { Ok(Response::new(replies)) })
    }
}

impl<B> Service<http::Request<B>> for GraphServer
where
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
        let engine = self.engine.clone();
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            Ok(match path.strip_prefix("/mainstay.graph.v1.Graph/").unwrap_or_default() {
                "Commit" => {
                    tonic::server::Grpc::new(ProstCodec::default())
                        .unary(Commit(engine), request)
                        .await
                }
                "Plan" => {
                    tonic::server::Grpc::new(ProstCodec::default())
                        .unary(Plan(engine), request)
                        .await
                }
                "Status" => {
                    tonic::server::Grpc::new(ProstCodec::default())
                        .unary(StatusOf(engine), request)
                        .await
                }
                "Watch" => {
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.server_streaming(Watch(engine), request).await
                }
                _ => Status::unimplemented(format!("there is no {path}")).into_http(),
            })
        })
    }
}

fn read(request: TransactionRequest) -> Result<Transaction, Status> {
    let mut transaction = Transaction::new().description(request.description.clone());
    for (key, text) in &request.set {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
            Status::invalid_argument(format!("the value of {key} is not JSON: {error}"))
        })?;
        transaction = transaction.set(key.as_str(), value);
    }
    for key in &request.delete {
        transaction = transaction.delete(key.as_str());
    }
    transaction = transaction.resync(match request.resync() {
        Resync::None => transaction::Resync::NotResync,
        Resync::Full => transaction::Resync::FullResync,
        Resync::Upstream => transaction::Resync::UpstreamResync,
        Resync::Downstream => transaction::Resync::DownstreamResync,
    });
    transaction = match request.on_failure() {
        OnFailure::Default => transaction,
        OnFailure::Revert => transaction.on_failure(transaction::OnFailure::Revert),
        OnFailure::BestEffort => transaction.on_failure(transaction::OnFailure::BestEffort),
    };
    Ok(match request.retry {
        Some(retry) => transaction.retry(transaction::Retry {
            period: Duration::from_millis(retry.period_ms),
            max: retry.max,
            backoff: retry.backoff,
        }),
        None => transaction,
    })
}

fn refusal(error: Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Refused(_) => Status::invalid_argument(text),
        Error::QueueFull => Status::resource_exhausted(text),
        Error::Stopped => Status::unavailable(text),
        Error::NotConfigured(_) => Status::deadline_exceeded(text),
        Error::Unknown(_) => Status::not_found(text),
        _ => Status::internal(text),
    }
}

fn operation(record: &OperationRecord) -> Operation {
    Operation {
        operation: record.operation.to_string(),
        key: record.key.to_string(),
        previous_state: record.prev_state.to_string(),
        new_state: record.new_state.to_string(),
        error: record.new_error.as_deref().unwrap_or_default().to_owned(),
        line: record.to_string(),
    }
}

fn reply(record: &TransactionRecord) -> CommitReply {
    let error = |one: &crate::record::KeyError| KeyError {
        key: one.key.to_string(),
        operation: one.op.to_string(),
        error: one.error.clone(),
    };
    CommitReply {
        seq: record.seq,
        planned: record.planned.iter().map(operation).collect(),
        executed: record.executed.iter().map(operation).collect(),
        errors: record.errors.iter().map(error).collect(),
        reverted: record.reverted,
    }
}

fn present(engine: &Engine, request: &StatusRequest) -> Vec<ValueStatus> {
    if !request.key.is_empty() {
        return vec![status(&engine.status(&request.key))];
    }
    let all = engine.statuses(|key| key.starts_with(&request.key_prefix));
    all.iter().map(status).collect()
}

fn status(one: &crate::status::ValueStatus) -> ValueStatus {
    ValueStatus {
        key: one.key.to_string(),
        state: one.state.to_string(),
        last_operation: one.last_operation.to_string(),
        error: one.error.clone().unwrap_or_default(),
        details: one.details.clone(),
        cycle: one.cycle.iter().map(ToString::to_string).collect(),
        uncertain: one.uncertain,
        labels: one.labels.clone().into_iter().collect(),
        derived: one.derived.iter().map(status).collect(),
    }
}
