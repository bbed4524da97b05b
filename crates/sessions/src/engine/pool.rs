//! The instance pools of an application. Every instance is in exactly one; iteration starts with the
//! instance that has been in the pool longest.

use std::collections::BTreeMap;

use super::Key;
use crate::api::InstancePool;

/// The instances of an application, by pool and position.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pools: [BTreeMap<u64, Key>; 5],
}

impl Pools {
    pub(crate) fn of(&self, pool: InstancePool) -> &BTreeMap<u64, Key> {
        &self.pools[pool as usize]
    }

    pub(crate) fn len(&self, pool: InstancePool) -> i64 {
        i64::try_from(self.pools[pool as usize].len()).unwrap_or(i64::MAX)
    }

    pub(crate) fn insert(&mut self, pool: InstancePool, place: u64, instance: Key) {
        self.pools[pool as usize].insert(place, instance);
    }

    pub(crate) fn remove(&mut self, pool: InstancePool, place: u64) {
        self.pools[pool as usize].remove(&place);
    }

    /// The number of instances that are not terminating.
    pub(crate) fn alive(&self) -> i64 {
        self.total() - self.len(InstancePool::Deleting)
    }

    pub(crate) fn total(&self) -> i64 {
        self.pools.iter().map(|pool| i64::try_from(pool.len()).unwrap_or(i64::MAX)).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.pools.iter().flat_map(BTreeMap::values)
    }
}
