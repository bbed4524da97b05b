//! Runs the daemons of one server: when they run, and on which shard of the work.
//!
//! Changes by this server wake a daemon at once, changes by other servers through the catalog's
//! notifications, and a timer covers missed ones. Every server renews a heartbeat, and the live
//! servers divide the work by number. A server that stops removes its heartbeat; that of a crashed
//! server expires soon, and the others take over its shard. Shards may overlap for a moment: every
//! piece of work is one transaction under row locks that reads the pending work again, so doing it
//! twice is harmless.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use mainstay_catalog::{Catalog, Daemon, values};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Done, Pass, Storage, pass};
use crate::Environment;
use crate::api::{Micros, SECOND};
use crate::error::Result;
use crate::rule::Settings;

/// How often a server renews its heartbeat.
const BEAT: Duration = Duration::from_secs(5);

/// A heartbeat older than this has expired.
const LIFE: Micros = 20 * SECOND;

/// All daemons of one server.
#[derive(Debug)]
pub struct Judge {
    catalog: Catalog,
    tasks: TaskTracker,
    stop: CancellationToken,
}

const DAEMONS: [(Daemon, Duration); 6] = [
    (Daemon::Evaluator, Duration::from_secs(30)),
    (Daemon::Repairer, Duration::from_secs(60)),
    (Daemon::Cleaner, Duration::from_secs(60)),
    (Daemon::Injector, Duration::from_secs(60)),
    (Daemon::Finisher, Duration::from_secs(30)),
    (Daemon::Reaper, Duration::from_secs(60)),
];

/// This server's shard of the work: its index and the number of shards.
#[derive(Debug)]
struct Share {
    place: AtomicI64,
    of: AtomicI64,
}

impl Judge {
    /// Starts the daemons.
    #[must_use]
    pub fn start(
        catalog: Catalog,
        settings: Settings,
        around: Environment,
        storage: Arc<dyn Storage>,
    ) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let share = Arc::new(Share { place: AtomicI64::new(0), of: AtomicI64::new(1) });
        for (daemon, every) in DAEMONS {
            let runner = Runner {
                catalog: catalog.clone(),
                settings: settings.clone(),
                share: Arc::clone(&share),
                around: around.clone(),
                storage: Arc::clone(&storage),
                daemon,
                every,
            };
            tasks.spawn(runner.run(stop.clone()));
        }
        // On SQLite there is only one server; heartbeats of killed predecessors must not count.
        if catalog.backend() == "postgres" {
            tasks.spawn(live(catalog.clone(), around, share, stop.clone()));
        }
        let (listener, until) = (catalog.clone(), stop.clone());
        tasks.spawn(async move { listener.exchange_notifications(&until).await });
        tasks.close();
        Self { catalog, tasks, stop }
    }

    /// Stops the daemons after their current work, waits for them, and removes this server's
    /// heartbeat.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
        let server = self.catalog.origin().to_owned();
        let gone = self
            .catalog
            .write(move |tx| tx.execute("DELETE FROM judges WHERE server = ?1", values![&server]));
        if let Err(error) = gone.await {
            tracing::debug!(%error, "removing this server from the list of judges failed; it expires");
        }
    }
}

/// Renews the heartbeat of this server and updates its shard.
async fn live(catalog: Catalog, around: Environment, share: Arc<Share>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let (one, now) = (catalog.clone(), around.now());
        let found = tokio::task::spawn_blocking(move || beat(&one, one.origin(), now)).await;
        match found {
            Ok(Ok((place, of))) => {
                let before = share.place.swap(place, Ordering::AcqRel);
                if share.of.swap(of, Ordering::AcqRel) != of || before != place {
                    // Work of another server may belong to this one now.
                    catalog.wake(&Daemon::ALL);
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "judge heartbeat failed"),
            Err(error) => tracing::error!(%error, "judge heartbeat panicked"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(BEAT) => {}
        }
    }
}

struct Runner {
    catalog: Catalog,
    settings: Settings,
    share: Arc<Share>,
    around: Environment,
    storage: Arc<dyn Storage>,
    daemon: Daemon,
    every: Duration,
}

impl Runner {
    async fn run(self, stop: CancellationToken) {
        let runner = Arc::new(self);
        while !stop.is_cancelled() {
            let one = Arc::clone(&runner);
            let done = tokio::task::spawn_blocking(move || one.once()).await;
            match done {
                Ok(Ok(done)) if done.more => continue,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(daemon = ?runner.daemon, %error, "judge pass failed")
                }
                Err(error) => {
                    tracing::error!(daemon = ?runner.daemon, %error, "judge pass panicked")
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = runner.catalog.woken(runner.daemon) => {}
                () = tokio::time::sleep(runner.every) => {}
            }
        }
    }

    fn once(&self) -> Result<Done> {
        let shard =
            (self.share.place.load(Ordering::Acquire), self.share.of.load(Ordering::Acquire));
        let one = Pass {
            now: self.around.now(),
            seed: self.around.seed(),
            shard: (shard.0.min(shard.1 - 1), shard.1),
            storage: Arc::clone(&self.storage),
        };
        pass(&self.catalog, self.daemon, &self.settings, &one)
    }
}

/// Renews the heartbeat of a server and returns its shard among the live servers. Deletes
/// heartbeats that expired long ago.
pub fn beat(catalog: &Catalog, server: &str, now: Micros) -> Result<(i64, i64)> {
    catalog.write_blocking(|tx| {
        tx.execute(
            "INSERT INTO judges (server, seen_at) VALUES (?1, ?2) ON CONFLICT (server) DO UPDATE SET seen_at = excluded.seen_at",
            values![server, now],
        )?;
        let live = tx.query(
            "SELECT server FROM judges WHERE seen_at > ?1 ORDER BY server",
            values![now.saturating_sub(LIFE)],
        )?;
        let long_ago = now.saturating_sub(100 * LIFE);
        tx.later("DELETE FROM judges WHERE seen_at < ?1", values![long_ago])?;
        let names: Vec<&str> =
            live.iter().map(|row| row.text(0)).collect::<mainstay_catalog::Result<_>>()?;
        let place = names.iter().position(|name| *name == server).unwrap_or(0);
        Ok((place as i64, (live.len() as i64).max(1)))
    })
}
