//! The capacity ledger: how many bytes every volume group can still promise to replicas.
//!
//! This is the scheduler extender. It counts, for every group and thin pool,
//!
//! * the size and free space that the group reports;
//! * replicas placed there whose space the group has not reported as used yet;
//! * reservations: broad ones while a place is chosen, and narrow ones until the replica is written.
//!
//! [`CapacityLedger`] is pure; [`crate::reserve`] feeds it and stores narrow reservations.
//!
//! Invariants: a reservation never counts against its own holder, nor a broad one against the other
//! replicas of its volume (they never share a node); the bytes promised of a pool never exceed its
//! size; the same request twice gets the same answer.

mod account;
mod reservations;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::LVMVolumeGroup;
use account::Account;
pub use space::{DEFAULT_EXTENT, Space, backing_size, percent, space};

/// A volume group, or a thin pool in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The volume group.
    pub name: String,
    /// The thin pool; empty for the group itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool_name: String,
}

impl Target {
    /// A group, or a thin pool in it.
    #[must_use]
    pub fn new(name: &str, thin_pool: &str) -> Self {
        Self { name: name.to_owned(), thin_pool_name: thin_pool.to_owned() }
    }
}

/// A request for space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The replica, or another id of a reservation.
    pub holder: String,
    /// The volume it belongs to: its other replicas go to other nodes. May be empty.
    pub volume: String,
    /// The size of the volume.
    pub size: u64,
    /// Whether the metadata of replication is added to it.
    pub replicated: bool,
}

/// A replica with a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedReplica {
    /// The volume it belongs to.
    pub volume: String,
    /// The group or thin pool that holds it.
    pub target: Target,
    /// Whether the group already reports its space as used.
    pub reported: bool,
}

/// The size of a volume, as the ledger needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSize {
    /// The size of the volume.
    pub size: u64,
    /// Whether the metadata of replication is added to it.
    pub replicated: bool,
}

/// Why a reservation could not be narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Score again, then narrow again.
    #[error("the reservation is unknown or expired")]
    Unknown,
    /// Another claim took the space first. Score again.
    #[error("the space has been taken meanwhile")]
    Full,
}

/// A narrow reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The thin pool; empty for the group itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool_name: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The time at which it expires.
    pub until: Timestamp,
}

/// The holder and the writer of a narrow reservation. Two servers may reserve for the same replica, in
/// the same place or in different ones. Only one of them will place it; until then, neither may
/// remove the reservation of the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReservationOwner {
    /// A replica, or another id of a reservation.
    pub holder: String,
    /// The server that wrote it.
    pub writer: String,
}

/// The narrow reservations of a group.
pub type Reservations = BTreeMap<ReservationOwner, Reservation>;

/// A reservation with its holder and place, as listed over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReservation {
    /// The group or thin pool.
    pub lvg: Target,
    /// A replica, or another id of a reservation.
    pub holder: String,
    /// The number of bytes.
    pub bytes: u64,
    /// The time at which it expires.
    pub until: Timestamp,
}

#[derive(Clone, Debug)]
struct BroadReservation {
    claim: Claim,
    until: Timestamp,
    /// The targets on which it counts against others.
    held: BTreeSet<Target>,
}

/// The bytes that a target can promise, and how they were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Balance {
    /// The bytes that can be promised in total.
    pub total: u64,
    /// The bytes that the group reports as free.
    pub free: u64,
    /// Bytes of replicas placed there.
    pub placed: u64,
    /// Bytes of reservations by others.
    pub reserved: u64,
    /// The bytes that can still be promised.
    pub available: u64,
    /// The size of an extent.
    pub extent: u64,
}

/// The accounts of all groups.
#[derive(Clone, Debug, Default)]
pub struct CapacityLedger {
    accounts: BTreeMap<Target, Account>,
    groups: BTreeMap<String, BTreeSet<Target>>,
    volumes: BTreeMap<String, VolumeSize>,
    replicas: BTreeMap<String, PlacedReplica>,
    by_volume: BTreeMap<String, BTreeSet<String>>,
    broad: BTreeMap<String, BroadReservation>,
    /// The writer and target of each holder's narrow reservations.
    narrowed: BTreeMap<String, BTreeSet<(String, Target)>>,
    /// The writer of reservations made here.
    writer: String,
}

impl CapacityLedger {
    /// An empty ledger for the server `writer`.
    #[must_use]
    pub fn of(writer: &str) -> Self {
        Self { writer: writer.to_owned(), ..Self::default() }
    }

    /// Sets the report of a group; `None` when it is gone.
    pub fn set_group(&mut self, name: &str, group: Option<&LVMVolumeGroup>) {
        let mut targets: BTreeSet<Target> = BTreeSet::new();
        if let Some(group) = group {
            targets.insert(Target::new(name, ""));
            let pools = group.status.thin_pools.iter();
            targets.extend(pools.map(|pool| Target::new(name, &pool.name)));
        }
        let before = self.groups.insert(name.to_owned(), targets.clone()).unwrap_or_default();
        for target in before.union(&targets) {
            let space = group.and_then(|group| space(group, &target.thin_pool_name));
            let account = self.accounts.entry(target.clone()).or_default();
            let extent = |space: Option<Space>| space.map_or(DEFAULT_EXTENT, |space| space.extent);
            let recount = extent(account.space) != extent(space);
            account.space = space;
            if recount {
                let placed: Vec<String> = account.placed.keys().cloned().collect();
                placed.iter().for_each(|replica| self.recount(replica));
            }
        }
        if targets.is_empty() {
            self.groups.remove(name);
        }
    }

    /// Sets the size of a volume; `None` when it is gone.
    pub fn set_volume(&mut self, name: &str, size: Option<VolumeSize>) {
        let before = match size {
            Some(size) => self.volumes.insert(name.to_owned(), size),
            None => self.volumes.remove(name),
        };
        if before != size {
            let replicas = self.by_volume.get(name).cloned().unwrap_or_default();
            replicas.iter().for_each(|replica| self.recount(replica));
        }
    }

    /// Sets the place of a replica; `None` when it has none, or is gone.
    pub fn set_replica(&mut self, name: &str, placed: Option<PlacedReplica>) {
        if self.replicas.get(name) == placed.as_ref() {
            return;
        }
        if let Some(before) = self.replicas.remove(name) {
            self.uncount(name, &before);
            if let Some(siblings) = self.by_volume.get_mut(&before.volume) {
                siblings.remove(name);
                if siblings.is_empty() {
                    self.by_volume.remove(&before.volume);
                }
            }
        }
        if let Some(placed) = placed {
            self.by_volume.entry(placed.volume.clone()).or_default().insert(name.to_owned());
            self.replicas.insert(name.to_owned(), placed);
            self.count(name);
        }
    }

    fn recount(&mut self, replica: &str) {
        if let Some(placed) = self.replicas.get(replica).cloned() {
            self.uncount(replica, &placed);
            self.count(replica);
        }
    }

    fn count(&mut self, replica: &str) {
        let Some(placed) = self.replicas.get(replica) else { return };
        let VolumeSize { size, replicated } =
            self.volumes.get(&placed.volume).copied().unwrap_or_default();
        let (target, volume_size) = (placed.target.clone(), (size, replicated));
        let reported = placed.reported;
        // A placed replica needs no reservation, by any writer: it cannot be placed again.
        self.forget(replica);
        let account = self.accounts.entry(target).or_default();
        let extent = account.space.map_or(DEFAULT_EXTENT, |space| space.extent);
        let bytes = backing_size(volume_size.0, volume_size.1, extent);
        account.placed.insert(replica.to_owned(), (bytes, reported));
        account.placed_bytes += bytes;
        if !reported {
            account.unreported_bytes += bytes;
        }
    }

    fn uncount(&mut self, replica: &str, placed: &PlacedReplica) {
        if let Some(account) = self.accounts.get_mut(&placed.target)
            && let Some((bytes, reported)) = account.placed.remove(replica)
        {
            account.placed_bytes -= bytes;
            if !reported {
                account.unreported_bytes -= bytes;
            }
        }
    }

    fn extent(&self, target: &Target) -> u64 {
        let space = self.accounts.get(target).and_then(|account| account.space);
        space.map_or(DEFAULT_EXTENT, |space| space.extent)
    }

    /// The balance of a target for a claim; `None` when the target is missing or not ready.
    #[must_use]
    pub fn balance(&self, target: &Target, claim: &Claim, now: Timestamp) -> Option<Balance> {
        let account = self.accounts.get(target)?;
        let space = account.space?;
        let narrow = account.reserved(&claim.holder, now);
        let own: u64 = if account.held_bytes == 0 { 0 } else { self.own_held(target, claim, now) };
        let reserved = narrow + account.held_bytes.saturating_sub(own);
        // The space of a replica that is placed here already counts as available to itself.
        let (mine, reported) = account.placed.get(&claim.holder).copied().unwrap_or_default();
        let mine_unreported = if reported { 0 } else { mine };
        let by_size = space.total.saturating_sub(account.placed_bytes - mine);
        let by_report = space.free.saturating_sub(account.unreported_bytes - mine_unreported);
        Some(Balance {
            total: space.total,
            free: space.free,
            placed: account.placed_bytes,
            reserved,
            available: by_size.min(by_report).saturating_sub(reserved),
            extent: space.extent,
        })
    }

    /// Every target.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.accounts.keys()
    }
}

#[cfg(test)]
mod tests;
