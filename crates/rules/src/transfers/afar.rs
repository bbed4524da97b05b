//! The queue of a server somewhere else, for workers in processes of their own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::worker::Queue;
use super::{Held, Job, Outcome};
use crate::cli::Remote;

/// A server's queue.
pub struct Afar {
    /// The way to the server.
    pub remote: Arc<dyn Remote>,
    /// What the worker calls itself.
    pub worker: String,
    /// How long a lease lasts, in whole seconds.
    pub lease: Duration,
}

impl std::fmt::Debug for Afar {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Afar").field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl Afar {
    async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        mut body: Value,
        key: &str,
    ) -> Result<T, String> {
        body["worker"] = json!(self.worker);
        body["lease"] = json!(self.lease.as_secs().max(1));
        let path = format!("/mainstay/transfers/{what}");
        let answer = self.remote.send("POST", &path, Some(body)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let mut value: Value =
            serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
        if answer.status >= 400 {
            return Err(value["ExceptionMessage"].as_str().unwrap_or("refused").to_owned());
        }
        serde_json::from_value(value[key].take()).map_err(|error| error.to_string())
    }
}

impl Queue for Afar {
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
