//! The store seen from outside: one conformance suite that every backend must pass, and what is
//! particular to each.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod backup;
mod cluster;
mod concern;
mod conformance;
mod damage;
mod etcd;
mod full;
mod golden;
mod lease;
mod model;
mod random;
mod resumed;
mod sealed;
mod sealed_etcd;
mod sqlite;
mod words;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use mainstay_store::etcd::{Address, EtcdStore};
use mainstay_store::memory::MemoryStore;
use mainstay_store::objects::Objects;
use mainstay_store::sqlite::SqliteStore;

use cluster::Cluster;
use words::{block_on, create, delete, key, object, update, value};

/// A backend under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Memory,
    Sqlite,
    Etcd,
}

const BACKENDS: [Backend; 3] = [Backend::Memory, Backend::Sqlite, Backend::Etcd];

/// A store in a place of its own, which can be closed and opened again.
struct Stage {
    backend: Backend,
    retention: Retention,
    folder: tempfile::TempDir,
    address: Option<Address>,
    clock: Arc<ManualClock>,
    store: Arc<dyn Objects>,
}

impl Stage {
    async fn new(backend: Backend, retention: Retention) -> Self {
        Self::on(backend, retention, shared_cluster).await
    }

    async fn on(
        backend: Backend,
        retention: Retention,
        cluster: impl FnOnce() -> &'static Cluster,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = (backend == Backend::Etcd).then(|| cluster().address());
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let store: Arc<dyn Objects> = Arc::new(MemoryStore::new(0, retention, 1, clock.clone()));
        let mut stage = Self { backend, retention, folder, address, clock, store };
        stage.store = stage.open().await;
        stage
    }

    async fn open(&self) -> Arc<dyn Objects> {
        const LARGEST: usize = 64 * 1024;
        let (retention, clock) = (self.retention, self.clock.clone());
        match self.backend {
            Backend::Memory => Arc::new(MemoryStore::new(0, retention, LARGEST, clock)),
            Backend::Sqlite => {
                Arc::new(SqliteStore::open(&self.path(), retention, LARGEST, clock).unwrap())
            }
            Backend::Etcd => {
                let address = self.address.as_ref().unwrap();
                Arc::new(EtcdStore::open(address, retention, LARGEST, clock).await.unwrap())
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("objects.db")
    }

    /// Whether objects outlive the process.
    fn survives(&self) -> bool {
        self.backend != Backend::Memory
    }

    /// Whether a store that was opened again may have forgotten history it still knew before.
    fn forgets(&self) -> bool {
        self.backend == Backend::Etcd
    }

    /// Whether history is forgotten on request.
    fn compacts(&self) -> bool {
        true
    }

    /// Stores write whatever they are given; comparing is for the layer above.
    fn ignores_unchanged(&self) -> bool {
        false
    }

    /// Whether what an object says of itself is kept as it was given.
    fn keeps_metadata(&self) -> bool {
        true
    }

    /// Waits until what was written can be watched: at once, where the store and its writer are
    /// one.
    async fn caught_up(&self) {}

    async fn reopen(&mut self) {
        self.store.close().await;
        self.store = self.open().await;
    }
}

/// The one-member cluster that tests without faults share.
fn shared_cluster() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(1))
}

/// A cluster for a single test, so that no other test moves its revision or compacts.
fn quiet_cluster() -> &'static Cluster {
    static QUIET: OnceLock<Cluster> = OnceLock::new();
    QUIET.get_or_init(|| Cluster::start(1))
}
