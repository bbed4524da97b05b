//! `mainstay transfer-worker`: transfers files for a server in a separate process.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_clock::duration;
use mainstay_rules::queue::CatalogQueue;
use mainstay_rules::{Environment, Settings};
use mainstay_transfers::remote_queue::RemoteQueue;
use mainstay_transfers::worker::{Queue, Worker};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::rules::Server;
use super::serve::Log;
use crate::connect::Connect;
use crate::credentials::{Bounds, FileBounds, Keys, local_file};
use crate::error::Error;
use mainstay_server::engines::open_catalog;

/// Transfer files for a server, in a separate process
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay transfer-worker --server https://mainstay:7443 --token TOKEN --storage-root /srv/storage
  mainstay transfer-worker --files 16 --name rack-7
  mainstay transfer-worker --catalog postgres://mainstay@db/catalog

It must reach the storage of both ends by the RSEs' protocols, and log in as an administrator.
Several may run, anywhere. SIGTERM and SIGINT end it: what is under way is given up and waits for
others. `mainstay serve --transfer-workers 0` leaves all files to such workers.")]
pub(crate) struct TransferWorker {
    /// How many files are transferred at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    files: usize,
    /// The lease on claimed files: others may take them after this time without a renewal; at least 1s
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    lease: Duration,
    /// The name of this worker [default: worker- and the process id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Use this catalog directly instead of a server: a file, or postgres://…
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    log: Log,
}

impl TransferWorker {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        self.log.start()?;
        let name = self.name.clone().unwrap_or_else(|| {
            format!("worker-{}-{:08x}", std::process::id(), Environment::system().seed() >> 32)
        });
        let keys = self.keys.file(None).map(std::path::Path::to_owned);
        let private = [local_file(self.catalog.as_deref()), keys];
        let allowed = self.bounds.allowed(&FileBounds::default(), &private)?;
        let access = self.keys.access(None, allowed)?;
        let over = CancellationToken::new();
        let (mut notifications, mut remote_queue) = (None, None);
        let queue: Arc<dyn Queue> = match &self.catalog {
            Some(address) => {
                let catalog = open_catalog(address).await?;
                // Servers on the same catalog are notified of failures, and notify of new work.
                let (listener, until) = (catalog.clone(), over.clone());
                notifications =
                    Some(tokio::spawn(
                        async move { listener.exchange_notifications(&until).await },
                    ));
                Arc::new(CatalogQueue {
                    catalog,
                    settings: Settings::default(),
                    around: Environment::system(),
                    worker: name.clone(),
                    lease: self.lease,
                })
            }
            None => {
                let remote = Arc::new(Server(self.connect.client()?));
                let queue = Arc::new(RemoteQueue::new(remote, name.clone(), self.lease));
                remote_queue = Some(Arc::clone(&queue));
                queue
            }
        };
        let failed = || Error::io("cannot listen for signals");
        let mut terminate = signal(SignalKind::terminate()).map_err(failed())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed())?;
        let worker = Worker::start(queue, access, self.files);
        anstream::eprintln!("transfer worker {name} is running");
        let refused = async {
            match &remote_queue {
                Some(queue) => queue.refused().await,
                None => std::future::pending().await,
            }
        };
        let refused = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            why = refused => Some(why),
        };
        worker.stop().await;
        over.cancel();
        if let Some(task) = notifications
            && let Err(error) = task.await
        {
            tracing::error!(%error, "catalog listener panicked");
        }
        match refused {
            Some(why) => {
                Err(Error::negative(format!("the server refuses transfer worker {name}: {why}")))
            }
            None => Ok(0),
        }
    }
}
