//! A backend in memory, for tests and benchmarks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_host::Space;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::backend::{self, Backend, Known, Pool};
use crate::phase::Record;

/// Pools in memory.
#[derive(Debug)]
pub struct MemoryBackend {
    pools: Mutex<BTreeMap<String, Registered>>,
    changed: Notify,
    node: AtomicBool,
}

#[derive(Clone, Debug)]
struct Registered {
    pool: Pool,
    space: Space,
    closed: bool,
    replicas: Vec<String>,
    writes: usize,
}

impl Default for MemoryBackend {
    fn default() -> Self {
        let node = AtomicBool::new(true);
        Self { pools: Mutex::default(), changed: Notify::new(), node }
    }
}

impl MemoryBackend {
    fn pools(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        self.pools.lock()
    }

    /// Says which replicas a pool has.
    pub fn set_replicas(&self, device: &str, replicas: &[&str]) {
        if let Some(pool) = self.pools().get_mut(device) {
            pool.replicas = replicas.iter().map(|name| (*name).to_owned()).collect();
        }
        self.changed.notify_waiters();
    }

    /// Forgets a pool, as if its record had been deleted.
    pub fn forget(&self, device: &str) {
        self.pools().remove(device);
    }

    /// Whether the node is known.
    pub fn set_node(&self, known: bool) {
        self.node.store(known, Ordering::SeqCst);
    }

    /// The pools there are, and how often each record was written anew.
    #[must_use]
    pub fn registered(&self) -> BTreeMap<String, (Pool, usize)> {
        let pools = self.pools();
        pools
            .iter()
            .map(|(name, known)| (name.clone(), (known.pool.clone(), known.writes)))
            .collect()
    }

    /// The space of a pool as it was last reported.
    #[must_use]
    pub fn space(&self, device: &str) -> Option<Space> {
        self.pools().get(device).map(|pool| pool.space)
    }

    /// Whether a pool is closed for new replicas.
    #[must_use]
    pub fn is_closed(&self, device: &str) -> bool {
        self.pools().get(device).is_some_and(|pool| pool.closed)
    }
}

impl Backend for MemoryBackend {
    fn look<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Known, backend::Error>> {
        let pools = self.pools();
        let there = pools.get(&pool.device);
        let node = self.node.load(Ordering::SeqCst);
        let record = match there {
            _ if !node => Record::NoNode,
            None => Record::Missing,
            Some(known) if known.pool.place != pool.place => Record::OtherPath,
            Some(known) if known.pool.tags != pool.tags => Record::OtherTags,
            Some(_) => Record::Equal,
        };
        let known = Known {
            record,
            closed: there.is_some_and(|known| known.closed),
            ready: there.is_some_and(|known| known.pool.unready.is_none()),
            replicas: there.map(|known| known.replicas.clone()).unwrap_or_default(),
        };
        drop(pools);
        std::future::ready(Ok(known)).boxed()
    }

    fn register<'a>(
        &'a self,
        pool: &'a Pool,
        space: Space,
    ) -> BoxFuture<'a, Result<(), backend::Error>> {
        if !self.node.load(Ordering::SeqCst) {
            return std::future::ready(Err(backend::Error::NoNode)).boxed();
        }
        let mut pools = self.pools();
        match pools.get_mut(&pool.device) {
            Some(known) if known.pool == *pool => known.space = space,
            Some(known) => {
                known.pool = pool.clone();
                known.space = space;
                known.writes += 1;
            }
            None => {
                let known = Registered {
                    pool: pool.clone(),
                    space,
                    closed: false,
                    replicas: Vec::new(),
                    writes: 1,
                };
                pools.insert(pool.device.clone(), known);
            }
        }
        drop(pools);
        std::future::ready(Ok(())).boxed()
    }

    fn report_unready<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), backend::Error>> {
        if let Some(known) = self.pools().get_mut(&pool.device) {
            known.pool.unready.clone_from(&pool.unready);
        }
        std::future::ready(Ok(())).boxed()
    }

    fn evict<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<(), backend::Error>> {
        if let Some(known) = self.pools().get_mut(&pool.device) {
            known.closed = true;
        }
        std::future::ready(Ok(())).boxed()
    }

    fn changed<'a>(&'a self, _pool: &'a Pool) -> BoxFuture<'a, ()> {
        self.changed.notified().boxed()
    }

    fn remove<'a>(
        &'a self,
        pool: &'a Pool,
        lost: bool,
    ) -> BoxFuture<'a, Result<(), backend::Error>> {
        let mut pools = self.pools();
        let known = pools.get(&pool.device);
        let replicas = known.map(|known| known.replicas.join(", ")).unwrap_or_default();
        let done = if !replicas.is_empty() && !lost {
            Err(backend::Error::Refused(format!("replicas are there: {replicas}")))
        } else {
            pools.remove(&pool.device);
            Ok(())
        };
        drop(pools);
        std::future::ready(done).boxed()
    }
}
