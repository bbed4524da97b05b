//! The transfer queue of a server, over HTTP, for workers in processes of their own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::worker::Queue;
use super::{Held, Job, Outcome};

/// A connection to the server whose queue is used.
pub trait Server: Send + Sync {
    /// Posts a JSON document to a path below the REST surface; answers the status and the body.
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
    /// Why the server will have nothing to do with this worker, once it has said so.
    refused: watch::Sender<Option<String>>,
}

impl std::fmt::Debug for RemoteQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RemoteQueue").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl RemoteQueue {
    /// The queue of the server that `server` leads to, for a worker that calls itself `worker`; its
    /// leases last whole seconds.
    #[must_use]
    pub fn new(server: Arc<dyn Server>, worker: String, lease: Duration) -> Self {
        Self { server, worker, lease, refused: watch::Sender::new(None) }
    }

    /// Completes with the reason when the server does not know or not allow the worker: asking
    /// again would be in vain. Everything else passes.
    pub async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        // The sender lives as long as this.
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
            let said: Value = read.unwrap_or_default();
            // A token that the server does not know is to it as none at all, and that is a 400.
            let unknown = said["ExceptionClass"] == "CannotAuthenticate";
            let said = said["ExceptionMessage"].as_str().or_else(|| said["message"].as_str());
            let why = said.map_or_else(|| format!("refused with {}", status), str::to_owned);
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

    fn renew(&self, held: Vec<Held>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move { self.ask("renew", json!({"held": held}), "lost").await }.boxed()
    }

    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move { self.ask("finish", json!({"outcomes": outcomes}), "unwanted").await }.boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        // A server does not call: the worker asks again after a while.
        std::future::pending().boxed()
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    struct Says(u16, &'static str);

    impl Server for Says {
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
    fn only_who_is_not_allowed_or_not_known_asks_in_vain() {
        for (status, body, vain) in [
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
            let server = Arc::new(Says(status, body));
            let queue = RemoteQueue::new(server, "w".to_owned(), Duration::from_secs(1));
            let taken = queue.take(1).now_or_never().unwrap();
            assert_eq!(taken.is_ok(), status == 200, "{status}: {taken:?}");
            assert_eq!(queue.refused().now_or_never().as_deref(), vain, "{status}");
        }
    }
}
