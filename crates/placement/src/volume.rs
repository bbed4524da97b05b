//! A volume and its replicas, as input of placement.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::topology::Topology;

/// The type of a replica.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ReplicaType {
    /// Holds the data.
    Diskful,
    /// Holds the data but has no vote yet.
    ShadowDiskful,
    /// Votes, holds no data.
    TieBreaker,
    /// Reaches the data of other replicas; it is not scheduled.
    Access,
}

impl ReplicaType {
    /// Whether it needs a volume group.
    #[must_use]
    pub fn has_disk(self) -> bool {
        matches!(self, Self::Diskful | Self::ShadowDiskful)
    }
}

/// The type of a pool's volume groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolType {
    /// Thick volumes.
    #[default]
    LVM,
    /// Thin volumes, each in a thin pool.
    LVMThin,
    /// Files; treated as LVM.
    File,
}

/// The nodes on which a volume may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeAccess {
    /// Only on nodes with its data.
    Local,
    /// On any node at once; a replica with data follows.
    EventuallyLocal,
    /// Preferably on nodes with its data.
    #[default]
    PreferablyLocal,
    /// On any node.
    Any,
}

/// Whether replicas may be placed one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// One after another, each in its best place.
    #[default]
    Greedy,
    /// All replicas of the volume or none.
    AllOrNothing,
}

/// How a zone is handled that must take the next replica and has no usable candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ZoneFallback {
    /// Wait for the zone.
    #[default]
    Never,
    /// Leave zones without a usable candidate out of the balance.
    WhenUnusable,
}

/// A replica, as input of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// 0..=31.
    pub id: u8,
    /// Its type.
    pub kind: ReplicaType,
    /// The node; empty until placed.
    pub node_name: String,
    /// The volume group; empty until placed.
    pub lvg: String,
    /// The thin pool; empty until placed, and for thick pools.
    pub thin_pool: String,
    /// It has a deletion timestamp.
    pub deleting: bool,
}

impl Replica {
    /// Whether it has all it needs: a TieBreaker a node, a disk also the right kind of group.
    #[must_use]
    pub fn scheduled(&self, pool: PoolType) -> bool {
        let group =
            || !self.lvg.is_empty() && self.thin_pool.is_empty() == (pool != PoolType::LVMThin);
        match self.kind {
            ReplicaType::Access => false,
            ReplicaType::TieBreaker => !self.node_name.is_empty(),
            ReplicaType::Diskful | ReplicaType::ShadowDiskful => {
                !self.node_name.is_empty() && group()
            }
        }
    }
}

/// A volume, as input of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// How replicas relate to zones.
    pub topology: Topology,
    /// The wanted number of Diskful replicas.
    pub required_diskful: usize,
    /// The nodes on which it may be used.
    pub volume_access: VolumeAccess,
    /// The kind of pool.
    pub pool_type: PoolType,
    /// Nodes of its attachments.
    pub attach_to: BTreeSet<String>,
    /// Greedy or AllOrNothing.
    pub strategy: Strategy,
    /// How unusable zones are handled.
    pub zone_fallback: ZoneFallback,
    /// All its replicas.
    pub replicas: Vec<Replica>,
}

/// A set of replica ids, 0..=31.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdSet(u32);

impl IdSet {
    /// Adds an id. Ids beyond 31 do not exist.
    pub fn insert(&mut self, id: u8) {
        debug_assert!(id < 32, "replica ids are 0..=31");
        self.0 |= 1_u32.checked_shl(u32::from(id)).unwrap_or_default();
    }

    /// Whether an id is in it.
    #[must_use]
    pub fn contains(self, id: u8) -> bool {
        self.0 & 1_u32.checked_shl(u32::from(id)).unwrap_or_default() != 0
    }

    /// The smallest id that is not in it.
    #[must_use]
    pub fn lowest_free(self) -> Option<u8> {
        let free = self.0.trailing_ones();
        u8::try_from(free).ok().filter(|id| *id < 32)
    }
}

impl FromIterator<u8> for IdSet {
    fn from_iter<I: IntoIterator<Item = u8>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}
