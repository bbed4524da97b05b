//! `mainstay transfer-worker`: a process of its own that moves files for a server.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_rules::Settings;
use mainstay_rules::judge::{Machine, Surroundings};
use mainstay_rules::queue::CatalogQueue;
use mainstay_transfers::remote_queue::RemoteQueue;
use mainstay_transfers::worker::{Queue, Worker};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::rules::Server;
use super::serve::Log;
use crate::connect::Connect;
use crate::credentials::{Bounds, FileBounds, Keys, local_file};
use crate::duration;
use crate::error::Error;
use mainstay_server::engines::open_catalog;

/// Move files for a server, in a process of its own
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay transfer-worker --server https://mainstay:7443 --token TOKEN --storage-root /srv/storage
  mainstay transfer-worker --files 16 --name rack-7
  mainstay transfer-worker --catalog postgres://mainstay@db/catalog

It must reach the storage of both ends by the RSEs' protocols, and log in as an administrator.
Several may run, anywhere. SIGTERM and SIGINT end it: what is under way is given up and waits for
others. `mainstay serve --transfer-workers 0` leaves all files to such workers.")]
pub(crate) struct TransferWorker {
    /// How many files are moved at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    files: usize,
    /// How long files stay its own when it is not heard of any more; at least a second
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    lease: Duration,
    /// What it is called among workers [default: worker- and its process]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Work on this catalog directly instead of asking a server: a file, or postgres://…
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
            format!("worker-{}-{:08x}", std::process::id(), Machine.seed() >> 32)
        });
        let keys = self.keys.file(None).map(std::path::Path::to_owned);
        let private = [local_file(self.catalog.as_deref()), keys];
        let allowed = self.bounds.allowed(&FileBounds::default(), &private)?;
        let access = self.keys.access(None, allowed)?;
        let over = CancellationToken::new();
        let (mut bell, mut remote_queue) = (None, None);
        let queue: Arc<dyn Queue> = match &self.catalog {
            Some(address) => {
                let catalog = open_catalog(address).await?;
                // Servers on the same catalog hear of what failed here, and call when there is more.
                let (attended, until) = (catalog.clone(), over.clone());
                bell = Some(tokio::spawn(async move { attended.attend(&until).await }));
                Arc::new(CatalogQueue {
                    catalog,
                    settings: Settings::default(),
                    around: Arc::new(Machine),
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
        anstream::eprintln!("{name} moves files");
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
        if let Some(bell) = bell
            && let Err(error) = bell.await
        {
            tracing::error!(%error, "whoever listens to the catalog panicked");
        }
        match refused {
            Some(why) => Err(Error::negative(format!("the server has no work for {name}: {why}"))),
            None => Ok(0),
        }
    }
}
