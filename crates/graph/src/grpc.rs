//! The engine over gRPC: commit, plan, status, watch, health.
//!
//! `proto/graph.proto` is the contract; messages, client and server are generated from it at build
//! time. [`server`] makes a tonic service to add to any listener, [`GraphClient`] is the client.
//! Field numbers never change: a test compares the encoding with bytes of the first release.
//!
//! The client takes any tonic channel. Here it calls the service directly, without a socket:
//!
//! ```
//! use mainstay_graph::grpc::{self, GraphClient, StatusRequest};
//! use mainstay_graph::{Builder, Options};
//! use tokio_util::sync::CancellationToken;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (engine, service) = Builder::new(Options::default()).build()?;
//! let stop = CancellationToken::new();
//! let worker = tokio::spawn(service.run(stop.clone()));
//!
//! let mut client = GraphClient::new(grpc::server(engine));
//! let reply = client.status(StatusRequest::default()).await?.into_inner();
//! assert!(reply.values.is_empty());
//!
//! stop.cancel();
//! worker.await?;
//! # Ok(())
//! # }
//! ```

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use tonic::{Request, Response, Status};

mod generated {
    #![expect(clippy::allow_attributes, unreachable_pub, reason = "generated code")]

    tonic::include_proto!("mainstay.graph.v1");
}

pub use self::generated::graph_client::GraphClient;
pub use self::generated::graph_server::{Graph, GraphServer};
pub use self::generated::{
    CommitReply, HealthReply, HealthRequest, KeyError, Labels, OnFailure, Operation, PlanReply,
    Resync, Retry, RollBackRequest, StatusReply, StatusRequest, TransactionRequest,
    UnseenDescriptor, ValueStatus, WatchReply,
};
use crate::engine::{Engine, Error};
use crate::record::{OperationRecord, TransactionRecord};
use crate::status::{StatusWatch, WatchEvent};
use crate::transaction::{self, Transaction};

/// How many changes a remote watcher may fall behind.
const WATCH_CAPACITY: usize = 1024;

/// The tonic service of an engine.
pub fn server(engine: Engine) -> GraphServer<EngineService> {
    GraphServer::new(EngineService { engine })
}

/// The same as a router, for a listener that serves nothing else.
#[cfg(feature = "rest")]
pub fn router(engine: Engine) -> axum::Router {
    axum::Router::new().route_service("/mainstay.graph.v1.Graph/{*call}", server(engine))
}

/// Answers the calls of `proto/graph.proto` with one engine. Made by [`server`].
#[derive(Debug, Clone)]
pub struct EngineService {
    engine: Engine,
}

#[tonic::async_trait]
impl Graph for EngineService {
    async fn commit(
        &self,
        request: Request<TransactionRequest>,
    ) -> Result<Response<CommitReply>, Status> {
        let request = request.into_inner();
        let wait = request.wait_ms;
        let transaction = read(request)?;
        let record = match wait {
            0 => self.engine.apply(transaction).await,
            wait => {
                let timeout = Duration::from_millis(wait);
                self.engine.commit_until_configured(transaction, timeout).await
            }
        };
        let record = match record {
            Err(Error::Failed(record)) => record,
            other => other.map_err(refusal)?,
        };
        Ok(Response::new(reply(&record)))
    }

    async fn plan(
        &self,
        request: Request<TransactionRequest>,
    ) -> Result<Response<PlanReply>, Status> {
        let transaction = read(request.into_inner())?;
        let operations = self.engine.plan(transaction).await.map_err(refusal)?;
        Ok(Response::new(PlanReply { operations: operations.iter().map(operation).collect() }))
    }

    async fn roll_back(
        &self,
        request: Request<RollBackRequest>,
    ) -> Result<Response<CommitReply>, Status> {
        let Some(seq) = request.get_ref().seq else {
            return Err(Status::invalid_argument("seq is missing: name the transaction"));
        };
        let record = match self.engine.roll_back_to(seq).await {
            Err(Error::Failed(record)) => record,
            other => other.map_err(refusal)?,
        };
        Ok(Response::new(reply(&record)))
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        Ok(Response::new(StatusReply { values: present(&self.engine, request.get_ref()) }))
    }

    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthReply>, Status> {
        let health = self.engine.health();
        let unseen = health.unseen.into_iter().map(|one| UnseenDescriptor {
            descriptor: one.descriptor,
            error: one.error,
            attempts: one.attempts,
            next: one.next.to_string(),
        });
        Ok(Response::new(HealthReply {
            accepts: health.accepts,
            reason: health.reason.unwrap_or_default(),
            notices: health.notices,
            unseen: unseen.collect(),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchReply, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let (key, prefix) = (request.key.clone(), request.key_prefix.clone());
        // The watch begins before the present is read, so that no change falls in between.
        let watch = self.engine.watch(WATCH_CAPACITY, move |changed| {
            if key.is_empty() { changed.starts_with(&prefix) } else { changed == key }
        });
        let first = present(&self.engine, &request).into_iter();
        let first =
            stream::iter(first.map(|status| Ok(WatchReply { status: Some(status), missed: 0 })));
        let later = stream::unfold(watch, |mut watch: StatusWatch| async move {
            let reply = match watch.next().await? {
                WatchEvent::Status(one) => WatchReply { status: Some(status(&one)), missed: 0 },
                WatchEvent::Missed(count) => WatchReply { status: None, missed: count as u64 },
            };
            Some((Ok(reply), watch))
        });
        Ok(Response::new(Box::pin(first.chain(later))))
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
    for (key, labels) in &request.labels {
        if !request.set.contains_key(key) {
            return Err(Status::invalid_argument(format!("labels: {key} is not in set")));
        }
        transaction = transaction.labels(key, labels.labels.clone().into_iter().collect());
    }
    let resync = Resync::try_from(request.resync).map_err(|_| unknown("resync", request.resync))?;
    let on_failure = OnFailure::try_from(request.on_failure)
        .map_err(|_| unknown("on_failure", request.on_failure))?;
    transaction = transaction.resync(match resync {
        Resync::None => transaction::Resync::NotResync,
        Resync::Full => transaction::Resync::FullResync,
        Resync::Upstream => transaction::Resync::UpstreamResync,
        Resync::Downstream => transaction::Resync::DownstreamResync,
    });
    transaction = match on_failure {
        OnFailure::Default => transaction,
        OnFailure::Revert => transaction.on_failure(transaction::OnFailure::Revert),
        OnFailure::BestEffort => transaction.on_failure(transaction::OnFailure::BestEffort),
    };
    transaction = transaction.durable(request.durable);
    Ok(match request.retry {
        Some(retry) => transaction.retry(transaction::Retry {
            period: Duration::from_millis(retry.period_ms),
            max: retry.max,
            backoff: retry.backoff,
        }),
        None => transaction,
    })
}

/// Refuses a number that an enumeration does not have.
fn unknown(field: &str, number: i32) -> Status {
    Status::invalid_argument(format!("{field}: {number} is not known"))
}

fn refusal(error: Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Refused(_) => Status::invalid_argument(text),
        Error::QueueFull => Status::resource_exhausted(text),
        Error::Stopped | Error::Halted(_) => Status::unavailable(text),
        Error::History(_) => Status::out_of_range(text),
        Error::NotConfigured { .. } => Status::deadline_exceeded(text),
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

#[cfg(test)]
mod tests;
