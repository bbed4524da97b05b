//! Broad and narrow reservations of the ledger: scoring, narrowing, releasing, expiring.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::account::largest;
use super::{
    BroadReservation, CapacityLedger, Claim, DEFAULT_EXTENT, Error, HeldReservation, Reservation,
    ReservationOwner, Reservations, Target, backing_size,
};

impl CapacityLedger {
    /// Replaces the narrow reservations of a group by those in the store.
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

    /// The owner of a reservation made here for a holder.
    #[must_use]
    pub fn owner(&self, holder: &str) -> ReservationOwner {
        ReservationOwner { holder: holder.to_owned(), writer: self.writer.clone() }
    }

    /// Adds a narrow reservation, unless the holder is placed on the target already.
    fn reserve(&mut self, owner: &ReservationOwner, target: &Target, entry: &Reservation) {
        let ReservationOwner { holder, writer } = owner;
        let account = self.accounts.entry(target.clone()).or_default();
        if !account.placed.contains_key(holder) {
            account.reserve(holder, writer, entry.bytes, entry.until);
            let places = self.narrowed.entry(holder.clone()).or_default();
            places.insert((writer.clone(), target.clone()));
        }
    }

    /// Merges the reservations that another server stored for a group. Reservations made here stay if
    /// the store has them, or if they still fit beside the stored ones; the others are dropped.
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
                    let owner =
                        ReservationOwner { holder: holder.to_owned(), writer: writer.to_owned() };
                    let thin_pool_name = target.thin_pool_name.clone();
                    (owner, Reservation { thin_pool_name, bytes, until })
                })
            })
            .collect()
    }

    /// Every reservation that still counts, narrow and broad.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> Vec<HeldReservation> {
        let narrow = self.accounts.iter().flat_map(|(target, account)| {
            account.live(now).map(|(holder, _, bytes, until)| HeldReservation {
                lvg: target.clone(),
                holder: holder.to_owned(),
                bytes,
                until,
            })
        });
        let broad = self.broad.values().filter(|broad| broad.until > now).flat_map(|broad| {
            let Claim { holder, size, replicated, .. } = &broad.claim;
            broad.held.iter().map(|target| HeldReservation {
                lvg: target.clone(),
                holder: holder.clone(),
                bytes: backing_size(*size, *replicated, self.extent(target)),
                until: broad.until,
            })
        });
        narrow.chain(broad).collect()
    }

    /// Adds a reservation of another server.
    pub fn hold_for(&mut self, held: &HeldReservation) {
        let thin_pool_name = held.lvg.thin_pool_name.clone();
        let entry = Reservation { thin_pool_name, bytes: held.bytes, until: held.until };
        self.reserve(&self.owner(&held.holder), &held.lvg, &entry);
    }

    /// Broad reservations that do not count: expired, the claim's own, or of its own volume.
    pub(super) fn own_held(&self, target: &Target, claim: &Claim, now: Timestamp) -> u64 {
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

    /// FilterAndScore: the score of each target, 0 if it cannot take the claim. Adds a broad
    /// reservation until `until`, which replaces an earlier one of the same holder; with `hold` it
    /// counts against others on every target that fits. If no target fits, no reservation is added.
    ///
    /// Scores are 1 to 100, by the share that stays free; the target that would stay freest gets an
    /// extra point, so that among nearly equal pools the freest always wins.
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
        // left / total as integers, which compare exactly.
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
            self.hold(BroadReservation { claim: claim.clone(), until, held });
        }
        left.into_iter().map(|entry| entry.map_or(0, score)).collect()
    }

    fn hold(&mut self, broad: BroadReservation) {
        self.drop_broad(&broad.claim.holder.clone());
        for target in &broad.held {
            let account = self.accounts.entry(target.clone()).or_default();
            let extent = account.space.map_or(DEFAULT_EXTENT, |space| space.extent);
            account.held_bytes += backing_size(broad.claim.size, broad.claim.replicated, extent);
        }
        self.broad.insert(broad.claim.holder.clone(), broad);
    }

    fn drop_broad(&mut self, holder: &str) -> Option<BroadReservation> {
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

    /// Removes expired reservations. They never count; this only frees their memory.
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

    /// The bytes that narrowing a holder's reservation to a target would take.
    ///
    /// # Errors
    /// [`Error::Unknown`] without a valid reservation there, [`Error::Full`] if the space is taken.
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

    /// NarrowReservation: keeps the holder's reservation on one target only, until `until`. Called
    /// again, it extends the reservation.
    ///
    /// # Errors
    /// As [`CapacityLedger::room`].
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

    /// Releases every reservation made here for a holder. Returns the group of a narrow one.
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

    /// Removes every reservation for a holder, of every writer: the replica is placed, or gone.
    pub fn forget(&mut self, holder: &str) {
        self.drop_broad(holder);
        for (writer, target) in self.narrowed.remove(holder).unwrap_or_default() {
            if let Some(account) = self.accounts.get_mut(&target) {
                account.give_back(holder, &writer);
            }
        }
    }

    /// The time at which the first reservation on any of these targets expires.
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
}
