//! The capacity ledger: what every volume group can still promise.
//!
//! This is the scheduler extender. It counts, for every group and thin pool,
//!
//! * what the group reports (its size, and what is free of it);
//! * replicas placed there whose space the group has not reported used yet;
//! * reservations: broad ones, held while a place is being chosen, and narrow ones, held until
//!   the replica is written.
//!
//! [`Ledger`] is the pure account; [`crate::reserve`] is the shell that feeds it and keeps narrow
//! reservations in the store. What always holds: a reservation never counts against its own
//! holder, nor a broad one against its volume's other replicas (they never share a node); what is
//! promised of a pool never exceeds what it has; whoever asks twice gets the same answer.

mod account;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::LVMVolumeGroup;
use account::{Account, largest};
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

/// Who wants space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The replica, or whatever identifies a reservation.
    pub holder: String,
    /// The volume it belongs to: its other replicas go to other nodes. May be empty.
    pub volume: String,
    /// The size of the volume.
    pub size: u64,
    /// Whether metadata of replication is added to it.
    pub replicated: bool,
}

/// A replica that has its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The volume it belongs to.
    pub volume: String,
    /// Where it is.
    pub target: Target,
    /// The group's report already has its space.
    pub reported: bool,
}

/// A volume as far as its space goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The size of the volume.
    pub size: u64,
    /// Whether metadata of replication is added to it.
    pub replicated: bool,
}

/// Why a reservation could not be narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Score again, then narrow again.
    #[error("the reservation is unknown or expired")]
    Unknown,
    /// Somebody else was faster. Score again.
    #[error("the space has been taken meanwhile")]
    Full,
}

/// A narrowed reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The thin pool; empty for the group itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool_name: String,
    /// How much.
    pub bytes: u64,
    /// Until when.
    pub until: Timestamp,
}

/// Whose a narrowed reservation is. Two servers may reserve for the same replica in different
/// places, or in the same: only one of them will place it, but until it has, neither may take back
/// what the other counts on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// A replica, or whatever identifies a reservation.
    pub holder: String,
    /// The server that made it.
    pub writer: String,
}

/// The narrowed reservations of a group.
pub type Reservations = BTreeMap<Owner, Reservation>;

/// A reservation and whose it is, as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Where.
    pub lvg: Target,
    /// Whose: a replica, or whatever identifies a reservation.
    pub holder: String,
    /// How much.
    pub bytes: u64,
    /// Until when.
    pub until: Timestamp,
}

#[derive(Clone, Debug)]
struct Broad {
    claim: Claim,
    until: Timestamp,
    /// Where it counts against others.
    held: BTreeSet<Target>,
}

/// What a target can promise, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Balance {
    /// How much there is to promise at all.
    pub total: u64,
    /// How much of it the group reports free.
    pub free: u64,
    /// Bytes of replicas placed there.
    pub placed: u64,
    /// Bytes of reservations by others.
    pub reserved: u64,
    /// What can still be promised.
    pub available: u64,
    /// The size of an extent.
    pub extent: u64,
}

/// The account of all groups.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<Target, Account>,
    groups: BTreeMap<String, BTreeSet<Target>>,
    volumes: BTreeMap<String, Size>,
    replicas: BTreeMap<String, Placed>,
    by_volume: BTreeMap<String, BTreeSet<String>>,
    broad: BTreeMap<String, Broad>,
    /// Where each holder's narrow reservations are, and who made them.
    narrowed: BTreeMap<String, BTreeSet<(String, Target)>>,
    /// Who makes reservations here.
    writer: String,
}

impl Ledger {
    /// An empty one, whose reservations are made by `writer`.
    #[must_use]
    pub fn of(writer: &str) -> Self {
        Self { writer: writer.to_owned(), ..Self::default() }
    }

    /// Takes over what a group reports; `None` when it is gone.
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

    /// Takes over the size of a volume; `None` when it is gone.
    pub fn set_volume(&mut self, name: &str, size: Option<Size>) {
        let before = match size {
            Some(size) => self.volumes.insert(name.to_owned(), size),
            None => self.volumes.remove(name),
        };
        if before != size {
            let replicas = self.by_volume.get(name).cloned().unwrap_or_default();
            replicas.iter().for_each(|replica| self.recount(replica));
        }
    }

    /// Takes over where a replica is; `None` when it is nowhere, or gone.
    pub fn set_replica(&mut self, name: &str, placed: Option<Placed>) {
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
        let Size { size, replicated } =
            self.volumes.get(&placed.volume).copied().unwrap_or_default();
        let (target, volume_size) = (placed.target.clone(), (size, replicated));
        let reported = placed.reported;
        // What is placed needs no reservation any more, whoever made it: nobody can place it again.
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

    fn uncount(&mut self, replica: &str, placed: &Placed) {
        if let Some(account) = self.accounts.get_mut(&placed.target)
            && let Some((bytes, reported)) = account.placed.remove(replica)
        {
            account.placed_bytes -= bytes;
            if !reported {
                account.unreported_bytes -= bytes;
            }
        }
    }

    /// Takes over the narrow reservations of a group, as the store has them.
    pub fn set_reservations(&mut self, group: &str, entries: &Reservations) {
        let first = Target::new(group, "");
        let accounts =
            self.accounts.range_mut(first..).take_while(|(target, _)| target.name == group);
        for (target, account) in accounts {
            account.narrow_bytes = 0;
            for (holder, entries) in std::mem::take(&mut account.narrow) {
                let Some(places) = self.narrowed.get_mut(&holder) else { continue };
                for writer in entries.into_keys() {
                    places.remove(&(writer, target.clone()));
                }
                if places.is_empty() {
                    self.narrowed.remove(&holder);
                }
            }
        }
        for (owner, entry) in entries {
            self.reserve(owner, &Target::new(group, &entry.thin_pool_name), entry);
        }
    }

    /// Who a reservation made here for a holder belongs to.
    #[must_use]
    pub fn owner(&self, holder: &str) -> Owner {
        Owner { holder: holder.to_owned(), writer: self.writer.clone() }
    }

    /// What is placed somewhere needs no reservation there.
    fn reserve(&mut self, owner: &Owner, target: &Target, entry: &Reservation) {
        let Owner { holder, writer } = owner;
        let account = self.accounts.entry(target.clone()).or_default();
        if !account.placed.contains_key(holder) {
            account.reserve(holder, writer, entry.bytes, entry.until);
            let places = self.narrowed.entry(holder.clone()).or_default();
            places.insert((writer.clone(), target.clone()));
        }
    }

    /// Takes over what somebody else stored for a group. Of what was reserved here, that counts
    /// which the store has already, and the rest as far as there is room beside what it has; what
    /// does not fit is gone.
    pub fn merge_reservations(&mut self, group: &str, stored: &Reservations, now: Timestamp) {
        let mut mine = self.reservations(group, now);
        mine.retain(|owner, _| owner.writer == self.writer);
        let mut known = stored.clone();
        known.retain(|owner, entry| owner.writer != self.writer || mine.get(owner) == Some(entry));
        self.set_reservations(group, &known);
        for (owner, entry) in mine.iter().filter(|(owner, _)| !known.contains_key(*owner)) {
            let target = Target::new(group, &entry.thin_pool_name);
            let claim = Claim { holder: owner.holder.clone(), ..Claim::default() };
            let balance = self.balance(&target, &claim, now);
            if balance.is_some_and(|balance| balance.available >= entry.bytes) {
                self.reserve(owner, &target, entry);
            }
        }
    }

    /// The narrow reservations of a group that still count: not expired, and not placed yet.
    #[must_use]
    pub fn reservations(&self, group: &str, now: Timestamp) -> Reservations {
        let first = Target::new(group, "");
        let accounts = self.accounts.range(first..).take_while(|(target, _)| target.name == group);
        accounts
            .flat_map(|(target, account)| {
                account.live(now).map(|(holder, writer, bytes, until)| {
                    let owner = Owner { holder: holder.to_owned(), writer: writer.to_owned() };
                    let thin_pool_name = target.thin_pool_name.clone();
                    (owner, Reservation { thin_pool_name, bytes, until })
                })
            })
            .collect()
    }

    /// Every reservation that still counts, narrow and broad.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> Vec<Held> {
        let narrow = self.accounts.iter().flat_map(|(target, account)| {
            account.live(now).map(|(holder, _, bytes, until)| Held {
                lvg: target.clone(),
                holder: holder.to_owned(),
                bytes,
                until,
            })
        });
        let broad = self.broad.values().filter(|broad| broad.until > now).flat_map(|broad| {
            let Claim { holder, size, replicated, .. } = &broad.claim;
            broad.held.iter().map(|target| Held {
                lvg: target.clone(),
                holder: holder.clone(),
                bytes: backing_size(*size, *replicated, self.extent(target)),
                until: broad.until,
            })
        });
        narrow.chain(broad).collect()
    }

    /// Counts a reservation that somebody else holds.
    pub fn hold_for(&mut self, held: &Held) {
        let thin_pool_name = held.lvg.thin_pool_name.clone();
        let entry = Reservation { thin_pool_name, bytes: held.bytes, until: held.until };
        self.reserve(&self.owner(&held.holder), &held.lvg, &entry);
    }

    fn extent(&self, target: &Target) -> u64 {
        let space = self.accounts.get(target).and_then(|account| account.space);
        space.map_or(DEFAULT_EXTENT, |space| space.extent)
    }

    /// What a target can promise to a claim; `None` when it is missing or not ready.
    #[must_use]
    pub fn balance(&self, target: &Target, claim: &Claim, now: Timestamp) -> Option<Balance> {
        let account = self.accounts.get(target)?;
        let space = account.space?;
        let narrow = account.reserved(&claim.holder, now);
        let own: u64 = if account.held_bytes == 0 { 0 } else { self.own_held(target, claim, now) };
        let reserved = narrow + account.held_bytes.saturating_sub(own);
        // A replica that is placed here already does not stand in its own way.
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

    /// Broad reservations that do not count: expired, the claim's own, or of its own volume.
    fn own_held(&self, target: &Target, claim: &Claim, now: Timestamp) -> u64 {
        let extent = self.extent(target);
        self.broad
            .iter()
            .filter(|(holder, broad)| {
                broad.held.contains(target)
                    && (**holder == claim.holder
                        || broad.until <= now
                        || (!claim.volume.is_empty() && broad.claim.volume == claim.volume))
            })
            .map(|(_, broad)| backing_size(broad.claim.size, broad.claim.replicated, extent))
            .sum()
    }

    /// FilterAndScore: the score of each target, 0 for those that cannot take the claim. Keeps a
    /// broad reservation until `until`, in place of an earlier one of the same holder; with
    /// `hold` it counts against others wherever it fits. Nothing is kept when nothing fits.
    ///
    /// Scores are 1 to 100, by the share that stays free; whoever would stay freest gets a point
    /// more than its rank, so that among nearly equal pools the freest is always taken.
    pub fn filter_and_score(
        &mut self,
        claim: &Claim,
        targets: &[&Target],
        (now, until): (Timestamp, Timestamp),
        hold: bool,
    ) -> Vec<i64> {
        let left: Vec<Option<(u64, u64)>> = targets
            .iter()
            .map(|target| {
                let balance = self.balance(target, claim, now)?;
                let bytes = backing_size(claim.size, claim.replicated, balance.extent);
                let left = balance.available.checked_sub(bytes)?;
                Some((left, balance.total.max(1)))
            })
            .collect();
        // left / total as numbers that compare exactly.
        let share = |(left, total): (u64, u64)| {
            u64::try_from((u128::from(left) << 32) / u128::from(total)).unwrap_or(u64::MAX)
        };
        let freest = left.iter().flatten().map(|entry| share(*entry)).max();
        let score = |entry: (u64, u64)| {
            let points = u128::from(entry.0) * 98 / u128::from(entry.1);
            let points = i64::try_from(points.min(98)).unwrap_or(98);
            1 + points + i64::from(Some(share(entry)) == freest)
        };
        if freest.is_some() {
            let fits = targets.iter().zip(&left).filter(|(_, left)| left.is_some());
            let held = fits.filter(|_| hold).map(|(target, _)| (*target).clone()).collect();
            self.hold(Broad { claim: claim.clone(), until, held });
        }
        left.into_iter().map(|entry| entry.map_or(0, score)).collect()
    }

    fn hold(&mut self, broad: Broad) {
        self.drop_broad(&broad.claim.holder.clone());
        for target in &broad.held {
            let account = self.accounts.entry(target.clone()).or_default();
            let extent = account.space.map_or(DEFAULT_EXTENT, |space| space.extent);
            account.held_bytes += backing_size(broad.claim.size, broad.claim.replicated, extent);
        }
        self.broad.insert(broad.claim.holder.clone(), broad);
    }

    fn drop_broad(&mut self, holder: &str) -> Option<Broad> {
        let broad = self.broad.remove(holder)?;
        for target in &broad.held {
            if let Some(account) = self.accounts.get_mut(target) {
                let extent = account.space.map_or(DEFAULT_EXTENT, |space| space.extent);
                let bytes = backing_size(broad.claim.size, broad.claim.replicated, extent);
                account.held_bytes = account.held_bytes.saturating_sub(bytes);
            }
        }
        Some(broad)
    }

    /// Forgets what has expired. Expired entries never count; this only frees their memory.
    pub fn sweep(&mut self, now: Timestamp) {
        let expired: Vec<String> = self
            .broad
            .iter()
            .filter(|(_, broad)| broad.until <= now)
            .map(|(holder, _)| holder.clone())
            .collect();
        for holder in expired {
            self.drop_broad(&holder);
        }
        let narrowed = &mut self.narrowed;
        let over = self.accounts.iter_mut().filter(|(_, account)| account.narrow_until <= now);
        for (target, account) in over {
            account.narrow.retain(|holder, entries| {
                entries.retain(|writer, (_, until)| {
                    let counts = *until > now;
                    if !counts && let Some(places) = narrowed.get_mut(holder) {
                        places.remove(&(writer.clone(), target.clone()));
                        if places.is_empty() {
                            narrowed.remove(holder);
                        }
                    }
                    counts
                });
                !entries.is_empty()
            });
            account.narrow_bytes = account.narrow.values().map(largest).sum();
            let ends = account.narrow.values().flat_map(BTreeMap::values).map(|(_, until)| *until);
            account.narrow_until = ends.min().unwrap_or(Timestamp::MAX);
        }
    }

    /// Whether a holder's reservation can be narrowed to a target: how many bytes it takes.
    ///
    /// # Errors
    /// [`Error::Unknown`] without a live reservation there, [`Error::Full`] if the space is gone.
    pub fn room(&self, holder: &str, target: &Target, now: Timestamp) -> Result<u64, Error> {
        if let Some(broad) = self.broad.get(holder).filter(|broad| broad.until > now) {
            if !broad.held.is_empty() && !broad.held.contains(target) {
                return Err(Error::Unknown);
            }
            let claim = &broad.claim;
            let balance = self.balance(target, claim, now).ok_or(Error::Full)?;
            let bytes = backing_size(claim.size, claim.replicated, balance.extent);
            return if balance.available < bytes { Err(Error::Full) } else { Ok(bytes) };
        }
        let account = self.accounts.get(target).ok_or(Error::Unknown)?;
        let narrow = account.narrow.get(holder).into_iter().flat_map(BTreeMap::values);
        let live = narrow.filter(|(_, until)| *until > now);
        live.map(|(bytes, _)| *bytes).max().ok_or(Error::Unknown)
    }

    /// NarrowReservation: keeps the holder's reservation on one target only, until `until`.
    /// Narrowing what is narrowed already prolongs it.
    ///
    /// # Errors
    /// As [`Ledger::room`].
    pub fn narrow(
        &mut self,
        holder: &str,
        target: &Target,
        (now, until): (Timestamp, Timestamp),
    ) -> Result<Reservation, Error> {
        let bytes = self.room(holder, target, now)?;
        self.release(holder);
        let thin_pool_name = target.thin_pool_name.clone();
        let entry = Reservation { thin_pool_name, bytes, until };
        self.reserve(&self.owner(holder), target, &entry);
        Ok(entry)
    }

    /// Gives every reservation back that was made here for a holder. Says in which group a narrow
    /// one was.
    pub fn release(&mut self, holder: &str) -> Option<String> {
        self.drop_broad(holder);
        let places = self.narrowed.get_mut(holder)?;
        let (_, target) = places.extract_if(.., |(writer, _)| *writer == self.writer).next()?;
        if places.is_empty() {
            self.narrowed.remove(holder);
        }
        if let Some(account) = self.accounts.get_mut(&target) {
            account.give_back(holder, &self.writer);
        }
        Some(target.name)
    }

    /// Forgets every reservation for a holder, whoever made it: it is placed, or gone.
    pub fn forget(&mut self, holder: &str) {
        self.drop_broad(holder);
        for (writer, target) in self.narrowed.remove(holder).unwrap_or_default() {
            if let Some(account) = self.accounts.get_mut(&target) {
                account.give_back(holder, &writer);
            }
        }
    }

    /// When the first reservation on any of these targets ends, if there is one.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target], now: Timestamp) -> Option<Timestamp> {
        let narrow = targets
            .iter()
            .filter_map(|target| self.accounts.get(target))
            .flat_map(|account| account.narrow.values().flat_map(BTreeMap::values))
            .map(|(_, until)| *until);
        let broad = self
            .broad
            .values()
            .filter(|broad| targets.iter().any(|target| broad.held.contains(target)))
            .map(|broad| broad.until);
        narrow.chain(broad).filter(|until| *until > now).min()
    }

    /// Every target there is.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.accounts.keys()
    }
}

#[cfg(test)]
mod tests;
