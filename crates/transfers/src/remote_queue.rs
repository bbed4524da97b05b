//! The transfer queue of a server over HTTP, for workers that run in another process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::worker::Queue;
use super::{Job, JobProgress, Outcome};

/// A connection to the server whose queue is used.
pub trait Server: Send + Sync {
    /// Posts a JSON document to a path below the REST interface; returns the status and the body.
    fn post<'a>(
        &'a self,
        path: &'a str,
        body: Value,
    ) -> BoxFuture<'a, Result<(u16, String), String>>;
}

/// A server's queue.
pub struct RemoteQueue {
    server: Arc<dyn Server>,
    worker: String,
    lease: Duration,
    /// The reason why the server refuses this worker, once it has done so.
    refused: watch::Sender<Option<String>>,
}

impl std::fmt::Debug for RemoteQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RemoteQueue").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl RemoteQueue {
    /// The queue of `server`, for the worker named `worker`. Leases are rounded down to whole
    /// seconds.
    #[must_use]
    pub fn new(server: Arc<dyn Server>, worker: String, lease: Duration) -> Self {
        Self { server, worker, lease, refused: watch::Sender::new(None) }
    }

    /// Completes with the reason when the server rejects the worker's credentials or permissions,
    /// so that retries are useless. Other errors are temporary.
    pub async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        // The sender lives as long as `self`.
        let why = refused.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or_default()
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        mut body: Value,
        key: &str,
    ) -> Result<T, String> {
        body["worker"] = json!(self.worker);
        body["lease"] = json!(self.lease.as_secs().max(1));
        let path = format!("/mainstay/transfers/{what}");
        let (status, answer) = self.server.post(&path, body).await?;
        let read = serde_json::from_str(&answer);
        if status >= 400 {
            let answered: Value = read.unwrap_or_default();
            // The server answers 400 to an unknown token, as if there were none.
            let unknown = answered["ExceptionClass"] == "CannotAuthenticate";
            let answered =
                answered["ExceptionMessage"].as_str().or_else(|| answered["message"].as_str());
            let why = answered.map_or_else(|| format!("refused with {}", status), str::to_owned);
            if unknown || matches!(status, 401 | 403) {
                self.refused.send_replace(Some(why.clone()));
            }
            return Err(why);
        }
        let mut value: Value = read.map_err(|error| error.to_string())?;
        serde_json::from_value(value[key].take()).map_err(|error| error.to_string())
    }
}

impl Queue for RemoteQueue {
    fn take(&self, most: usize) -> BoxFuture<'_, Result<Vec<Job>, String>> {
        async move { self.ask("take", json!({"most": most}), "jobs").await }.boxed()
    }

    fn renew(&self, held: Vec<JobProgress>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move { self.ask("renew", json!({"held": held}), "lost").await }.boxed()
    }

    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move { self.ask("finish", json!({"outcomes": outcomes}), "unwanted").await }.boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        // The server sends no notifications: the worker polls.
        std::future::pending().boxed()
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    struct FixedAnswer(u16, &'static str);

    impl Server for FixedAnswer {
        fn post<'a>(
            &'a self,
            _: &'a str,
            _: Value,
        ) -> BoxFuture<'a, Result<(u16, String), String>> {
            let answer = match self.0 {
                0 => Err("connection refused".to_owned()),
                status => Ok((status, self.1.to_owned())),
            };
            std::future::ready(answer).boxed()
        }
    }

    #[test]
    fn only_rejected_credentials_and_permissions_are_permanent_refusals() {
        for (status, body, refusal) in [
            (200, r#"{"jobs": []}"#, None),
            (403, r#"{"ExceptionMessage": "not you"}"#, Some("not you")),
            (401, r#"{"message": "Unauthorized"}"#, Some("Unauthorized")),
            (401, "", Some("refused with 401")),
            (
                400,
                r#"{"ExceptionClass": "CannotAuthenticate", "ExceptionMessage": "who"}"#,
                Some("who"),
            ),
            (400, r#"{"ExceptionClass": "InvalidObject", "ExceptionMessage": "what"}"#, None),
            (500, r#"{"ExceptionMessage": "oh"}"#, None),
            (503, "<html>", None),
            (429, "", None),
            (404, "", None),
            (0, "", None),
        ] {
            let server = Arc::new(FixedAnswer(status, body));
            let queue = RemoteQueue::new(server, "w".to_owned(), Duration::from_secs(1));
            let taken = queue.take(1).now_or_never().unwrap();
            assert_eq!(taken.is_ok(), status == 200, "{status}: {taken:?}");
            assert_eq!(queue.refused().now_or_never().as_deref(), refusal, "{status}");
        }
    }
}
