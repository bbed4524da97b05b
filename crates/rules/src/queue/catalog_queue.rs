//! The transfer queue of a catalog in this process, for workers.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_catalog::Catalog;
use mainstay_transfers::store::SupportedProtocols;
use mainstay_transfers::worker::Queue;
use mainstay_transfers::{Job, JobProgress, Outcome};

use crate::Environment;
use crate::api::Micros;
use crate::queue;
use crate::rule::Settings;

/// The queue of a catalog in this process.
#[derive(Clone, Debug)]
pub struct CatalogQueue {
    /// The catalog.
    pub catalog: Catalog,
    /// Settings for transfers.
    pub settings: Settings,
    /// Time and randomness.
    pub around: Environment,
    /// The name of the worker.
    pub worker: String,
    /// How long a lease lasts.
    pub lease: Duration,
}

impl CatalogQueue {
    fn micros(&self) -> Micros {
        Micros::try_from(self.lease.as_micros()).unwrap_or(Micros::MAX)
    }
}

impl Queue for CatalogQueue {
    fn take(&self, most: usize) -> BoxFuture<'_, Result<Vec<Job>, String>> {
        async move {
            let (worker, lease, supported) =
                (self.worker.clone(), self.micros(), SupportedProtocols::Ours);
            let wanted = queue::Wanted { worker, most, lease, supported };
            let (settings, now) = (self.settings.clone(), self.around.now());
            let taken =
                self.catalog.write(move |tx| queue::take(tx, &wanted, &settings, now)).await;
            taken.map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn renew(&self, held: Vec<JobProgress>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move {
            let (worker, now, lease) = (self.worker.clone(), self.around.now(), self.micros());
            let lost =
                self.catalog.write(move |tx| queue::renew(tx, &worker, &held, lease, now)).await;
            lost.map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async move {
            let (catalog, worker) = (self.catalog.clone(), self.worker.clone());
            let now = self.around.now();
            let told = tokio::task::spawn_blocking(move || {
                queue::finish_each(&catalog, &worker, &outcomes, now)
            });
            let told = told.await.map_err(|error| error.to_string())?;
            told.map(|finished| finished.unwanted).map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        self.catalog.transfers_woken().boxed()
    }

    fn lease(&self) -> Duration {
        self.lease
    }
}
