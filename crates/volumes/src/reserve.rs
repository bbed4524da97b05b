//! Reservations in the store: the ledger of this process, and what it shares with other servers.
//!
//! Space is chosen and reserved under the ledger's lock ([`ReservationStore::decide`]), so that no two
//! decisions of this process count on the same space. Before the replica is written, the reservation
//! is confirmed ([`ReservationStore::confirm`]): one object for each volume group holds its narrow
//! reservations and is written with compare-and-swap, so that two servers, one of them out of date,
//! can never promise the same space either. Reservations of a group that wait while its object is
//! written go together into the next write. The objects are in no registry, hence not served. Broad
//! reservations exist in this process only.
//!
//! A server that finds an object of a group written by another server takes over its entries, waits
//! until its reflectors have seen all current replicas, and only then decides which of its own
//! reservations still fit: an entry leaves the object as soon as its writer has seen the replica
//! placed, so the newest replicas and the newest entries together are complete. An entry belongs to
//! the server that wrote it: a server that reserves for the same replica leaves the other's entry
//! alone until it sees the replica placed, or the entry has expired.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::Clock;
use mainstay_controller::reflector::{Change, Reflector, Subscription};
use mainstay_store::object::{Body, Key, Record, Resource, Revision};
use mainstay_store::objects::{self, At, Objects, Write};
use mainstay_store::registry::Typed;
use mainstay_store::resources::Resources;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{GROUP, LVMVolumeGroup, ReplicatedVolume, ReplicatedVolumeReplica};
use crate::ledger::{
    self, Balance, CapacityLedger, Claim, HeldReservation, PlacedReplica, Reservation,
    ReservationOwner, Reservations, Target, VolumeSize,
};
use crate::schedule::is_replicated;

/// The number of retries of a write that conflicts with another server's.
const TRIES: usize = 16;

/// Why a reservation could not be narrowed or released.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger refused.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The store failed. Retry later.
    #[error("the reservation could not be stored")]
    Store(#[from] objects::Error),
    /// The reflectors have stopped. Do not retry: the process is shutting down.
    #[error("the reflector of replicas has stopped: the process is shutting down")]
    Stopped,
}

/// A group's reservations as they are stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct StoredReservations {
    /// The server that wrote it last.
    writer: String,
    reservations: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    owner: ReservationOwner,
    #[serde(flatten)]
    reservation: Reservation,
}

impl StoredReservations {
    fn of(writer: &str, reservations: &Reservations) -> Self {
        let entries = reservations.iter().map(|(owner, reservation)| Entry {
            owner: owner.clone(),
            reservation: reservation.clone(),
        });
        Self { writer: writer.to_owned(), reservations: entries.collect() }
    }

    fn reservations(self) -> Reservations {
        self.reservations.into_iter().map(|entry| (entry.owner, entry.reservation)).collect()
    }
}

/// The stored reservations of a group, as this process last read or wrote them.
#[derive(Debug, Default)]
struct StoredGroup {
    revision: Option<Revision>,
    entries: Reservations,
}

/// The reflectors that feed the ledger.
#[derive(Debug)]
struct Reflectors {
    volumes: Reflector<ReplicatedVolume>,
    replicas: Reflector<ReplicatedVolumeReplica>,
}

/// The ledger, and the stored reservations.
pub struct ReservationStore {
    writer: String,
    ledger: Mutex<CapacityLedger>,
    groups: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<StoredGroup>>>>,
    reflectors: OnceLock<Reflectors>,
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    swept: Mutex<Timestamp>,
    subscriptions: Mutex<Vec<Subscription>>,
}

impl std::fmt::Debug for ReservationStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservationStore").field("writer", &self.writer).finish_non_exhaustive()
    }
}

fn resource() -> Resource {
    Resource::new(&format!("internal.{GROUP}"), "volumegroupreservations")
}

/// The place of a replica, if it has one.
#[must_use]
pub fn placed(replica: &ReplicatedVolumeReplica) -> Option<PlacedReplica> {
    let spec = &replica.spec;
    (!spec.lvm_volume_group_name.is_empty()).then(|| PlacedReplica {
        volume: spec.replicated_volume_name.clone(),
        target: Target::new(&spec.lvm_volume_group_name, &spec.lvm_volume_group_thin_pool_name),
        reported: replica.status.backing_volume.is_some(),
    })
}

/// The size of a volume.
#[must_use]
pub fn size(volume: &ReplicatedVolume) -> VolumeSize {
    VolumeSize {
        size: u64::try_from(volume.spec.size.value()).unwrap_or_default(),
        replicated: is_replicated(volume),
    }
}

impl ReservationStore {
    /// A ledger for this store. `writer` is the identity of this server. Call
    /// [`ReservationStore::load`] next.
    #[must_use]
    pub fn new(resources: &Resources, writer: String) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(CapacityLedger::of(&writer)),
            writer,
            groups: Mutex::default(),
            reflectors: OnceLock::new(),
            objects: resources.objects().clone(),
            clock: resources.clock().clone(),
            swept: Mutex::new(Timestamp::MIN),
            subscriptions: Mutex::default(),
        })
    }

    /// Follows groups, volumes and replicas until it is dropped.
    pub fn follow(
        self: &Arc<Self>,
        groups: &Reflector<LVMVolumeGroup>,
        volumes: &Reflector<ReplicatedVolume>,
        replicas: &Reflector<ReplicatedVolumeReplica>,
    ) {
        let weak = [(); 3].map(|()| Arc::downgrade(self));
        let [for_groups, for_volumes, for_replicas] = weak;
        let subscriptions = vec![
            groups.subscribe(move |change: &Change<LVMVolumeGroup>| {
                if let Some(this) = for_groups.upgrade() {
                    this.lock().set_group(change.key.name(), change.new.as_deref());
                }
            }),
            volumes.subscribe(move |change: &Change<ReplicatedVolume>| {
                if let Some(this) = for_volumes.upgrade() {
                    this.lock().set_volume(change.key.name(), change.new.as_deref().map(size));
                }
            }),
            replicas.subscribe(move |change: &Change<ReplicatedVolumeReplica>| {
                if let Some(this) = for_replicas.upgrade() {
                    let placed = change.new.as_deref().and_then(placed);
                    let mut ledger = this.lock();
                    ledger.set_replica(change.key.name(), placed);
                    if change.new.is_none() {
                        ledger.forget(change.key.name());
                    }
                }
            }),
        ];
        // It is called once; a second call has no effect.
        let _ = self
            .reflectors
            .set(Reflectors { volumes: volumes.clone(), replicas: replicas.clone() });
        *self.subscriptions.lock() = subscriptions;
    }

    /// Loads the narrow reservations of earlier processes.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn load(&self) -> Result<(), Error> {
        let stored = self.objects.collection(&resource(), At::Latest).await?;
        for record in stored.range(None, None) {
            let entries = decode(record).reservations();
            self.lock().set_reservations(record.key().name(), &entries);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, CapacityLedger> {
        self.ledger.lock()
    }

    fn times(&self, ttl: Duration) -> (Timestamp, Timestamp) {
        let now = self.clock.now();
        (now, now.checked_add(ttl).unwrap_or(Timestamp::MAX))
    }

    fn sweep(&self, now: Timestamp) {
        let mut swept = self.swept.lock();
        if now.duration_since(*swept) > jiff::SignedDuration::from_secs(1) {
            *swept = now;
            self.lock().sweep(now);
        }
    }

    /// Runs a decision under the ledger's lock.
    pub fn decide<T>(&self, decide: impl FnOnce(&mut CapacityLedger, Timestamp) -> T) -> T {
        let now = self.clock.now();
        self.sweep(now);
        decide(&mut self.lock(), now)
    }

    /// FilterAndScore: see [`CapacityLedger::filter_and_score`].
    pub fn filter_and_score(
        &self,
        claim: &Claim,
        targets: &[&Target],
        ttl: Duration,
        hold: bool,
    ) -> Vec<i64> {
        let times = self.times(ttl);
        self.sweep(times.0);
        self.lock().filter_and_score(claim, targets, times, hold)
    }

    /// The balance of a target for a claim.
    #[must_use]
    pub fn balance(&self, target: &Target, claim: &Claim) -> Option<Balance> {
        let now = self.clock.now();
        self.lock().balance(target, claim, now)
    }

    /// Every reservation that has not expired.
    #[must_use]
    pub fn held(&self) -> Vec<HeldReservation> {
        let now = self.clock.now();
        self.lock().held(now)
    }

    /// The time until the first reservation on any of these targets expires.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target]) -> Option<Duration> {
        let now = self.clock.now();
        let until = self.lock().next_expiry(targets, now)?;
        Duration::try_from(until.duration_since(now)).ok()
    }

    /// NarrowReservation: stores the holder's reservation on one target, under the fence of `resources`.
    /// A second call extends it.
    ///
    /// # Errors
    /// If the reservation does not exist, the space is taken, or the store fails.
    pub async fn narrow(
        &self,
        resources: &Resources,
        holder: &str,
        target: &Target,
        ttl: Duration,
    ) -> Result<(), Error> {
        let times = self.times(ttl);
        self.lock().narrow(holder, target, times)?;
        let confirmed = self.confirm(resources, holder, &target.name).await;
        if confirmed.is_err() {
            self.lock().release(holder);
        }
        confirmed
    }

    /// Writes a holder's narrow reservation in a group, together with others that wait. A second call
    /// does nothing.
    ///
    /// # Errors
    /// [`ledger::Error::Full`] if another server took the space, others if the store fails.
    pub async fn confirm(
        &self,
        resources: &Resources,
        holder: &str,
        group: &str,
    ) -> Result<(), Error> {
        let lost = || Error::from(ledger::Error::Full);
        let owner = self.lock().owner(holder);
        let entries = self.lock().reservations(group, self.clock.now());
        let promised = entries.get(&owner).cloned().ok_or_else(lost)?;
        let gate = self.gate(group);
        let mut known = gate.lock().await;
        let mut tries = TRIES;
        loop {
            tries -= 1;
            if known.entries.get(&owner) == Some(&promised) {
                return Ok(());
            }
            let entries = self.lock().reservations(group, self.clock.now());
            if entries.get(&owner) != Some(&promised) {
                return Err(lost());
            }
            self.store(resources, group, &mut known, entries, tries).await?;
        }
    }

    /// Releases a holder's reservations. A second call does nothing.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release(&self, resources: &Resources, holder: &str) -> Result<(), Error> {
        let Some(group) = self.lock().release(holder) else { return Ok(()) };
        let owner = self.lock().owner(holder);
        let gate = self.gate(&group);
        let mut known = gate.lock().await;
        let mut tries = TRIES;
        while known.revision.is_none() || known.entries.contains_key(&owner) {
            tries -= 1;
            let mut entries = self.lock().reservations(&group, self.clock.now());
            entries.remove(&owner);
            self.store(resources, &group, &mut known, entries, tries).await?;
        }
        Ok(())
    }

    fn gate(&self, group: &str) -> Arc<tokio::sync::Mutex<StoredGroup>> {
        let mut groups = self.groups.lock();
        match groups.get(group) {
            Some(gate) => gate.clone(),
            None => groups.entry(group.to_owned()).or_default().clone(),
        }
    }

    /// Writes a group's entries. If another server wrote them first, its entries are taken over instead,
    /// and the caller tries again.
    async fn store(
        &self,
        resources: &Resources,
        group: &str,
        known: &mut StoredGroup,
        entries: Reservations,
        tries: usize,
    ) -> Result<(), Error> {
        let key = Key::new(&resource(), None, group);
        match self.write(resources, &key, known.revision, &entries).await {
            Ok(revision) => {
                *known = StoredGroup { revision: Some(revision), entries };
                Ok(())
            }
            Err(error) if is_race(&error) && tries > 0 => {
                let record = self.objects.get(&key).await?;
                let entries = record.as_deref().map(decode).unwrap_or_default().reservations();
                self.catch_up().await?;
                let now = self.clock.now();
                self.lock().merge_reservations(group, &entries, now);
                *known = StoredGroup { revision: record.map(|record| record.revision()), entries };
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the ledger has seen every current volume and replica. Deletions are not waited for:
    /// they only free space.
    async fn catch_up(&self) -> Result<(), Error> {
        let Some(reflectors) = self.reflectors.get() else { return Ok(()) };
        let newest = async |plural: &str| {
            let all = self.objects.collection(&Resource::new(GROUP, plural), At::Latest).await?;
            let newest = all.range(None, None).map(|record| record.revision()).max();
            Ok::<_, Error>(newest.unwrap_or(Revision::ZERO))
        };
        let at = newest(ReplicatedVolume::PLURAL).await?;
        reflectors.volumes.wait_until_at(at).await.map_err(|_| Error::Stopped)?;
        let at = newest(ReplicatedVolumeReplica::PLURAL).await?;
        reflectors.replicas.wait_until_at(at).await.map_err(|_| Error::Stopped)
    }

    async fn write(
        &self,
        resources: &Resources,
        key: &Key,
        revision: Option<Revision>,
        reservations: &Reservations,
    ) -> Result<Revision, objects::Error> {
        let stored = StoredReservations::of(&self.writer, reservations);
        let mut object = Map::new();
        // Serializing plain data with string keys cannot fail.
        object.insert("spec".to_owned(), serde_json::to_value(stored).unwrap_or(Value::Null));
        let body = Body::new(&object);
        let change = match revision {
            None => objects::Change::Create(body),
            Some(revision) => objects::Change::Update(revision, body),
        };
        let write = Write { key: key.clone(), change, fence: resources.fence().cloned() };
        self.objects.write(write).await.map(|event| event.revision())
    }
}

fn decode(record: &Record) -> StoredReservations {
    let spec = record.object().remove("spec").unwrap_or(Value::Null);
    serde_json::from_value(spec).unwrap_or_default()
}

fn is_race(error: &objects::Error) -> bool {
    matches!(
        error,
        objects::Error::Conflict { .. }
            | objects::Error::AlreadyExists { .. }
            | objects::Error::NotFound { .. }
    )
}
