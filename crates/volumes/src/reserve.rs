//! The ledger at work: fed by what the store shows, with narrow reservations kept in the store.
//!
//! A place is decided and promised at one moment, under the ledger's lock ([`Reserve::decide`]),
//! so that no two decisions of this process count on the same space. Before the replica is
//! written the promise is confirmed ([`Reserve::confirm`]): one object for each volume group holds
//! its narrow reservations and is written with compare-and-swap, so that two servers, one of them
//! out of date, can never promise the same space either. Promises of a group that wait while its
//! object is being written go together into the next write. The objects are in no registry, hence
//! not served. Broad reservations live in this process only.
//!
//! Whoever finds that somebody else wrote a group's object takes over its entries, then waits
//! until it has seen all replicas there are, and only then decides which of its own promises still
//! stand: entries leave the object as soon as their writer saw the replica placed, so the newest
//! replicas and the newest entries together miss nothing. An entry belongs to the server that made
//! it: another one that reserves for the same replica, here or elsewhere, leaves it alone until it
//! sees the replica placed, or the entry has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::reflector::{Change, Reflector, Subscription};
use mainstay_store::clock::Clock;
use mainstay_store::object::{Body, Key, Record, Resource, Revision};
use mainstay_store::objects::{self, At, Objects, Write};
use mainstay_store::registry::Typed;
use mainstay_store::resources::Resources;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{GROUP, LVMVolumeGroup, ReplicatedVolume, ReplicatedVolumeReplica};
use crate::ledger::{
    self, Balance, Claim, Held, Ledger, Owner, Placed, Reservation, Reservations, Size, Target,
};
use crate::schedule::is_replicated;

/// How often a write is tried again when somebody else was faster.
const TRIES: usize = 16;

/// Why a reservation could not be narrowed or given back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger refused.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The store failed. Retry once it is mended.
    #[error("the reservation could not be stored")]
    Store(#[from] objects::Error),
    /// Nobody follows the replicas any more. Do not retry: the process ends.
    #[error("the replicas are not followed any more")]
    Stopped,
}

/// A group's reservations as they are stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Stored {
    /// Who wrote this last.
    writer: String,
    reservations: Vec<Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    owner: Owner,
    #[serde(flatten)]
    reservation: Reservation,
}

impl Stored {
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

/// What the store has of a group, as far as this process knows.
#[derive(Debug, Default)]
struct Known {
    revision: Option<Revision>,
    entries: Reservations,
}

/// The copies that feed the ledger.
#[derive(Debug)]
struct Followed {
    volumes: Reflector<ReplicatedVolume>,
    replicas: Reflector<ReplicatedVolumeReplica>,
}

/// The ledger and its store.
pub struct Reserve {
    writer: String,
    ledger: Mutex<Ledger>,
    groups: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Known>>>>,
    followed: OnceLock<Followed>,
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    swept: Mutex<Timestamp>,
    subscriptions: Mutex<Vec<Subscription>>,
}

impl std::fmt::Debug for Reserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserve").field("writer", &self.writer).finish_non_exhaustive()
    }
}

fn resource() -> Resource {
    Resource::new(&format!("internal.{GROUP}"), "volumegroupreservations")
}

/// Where a replica is, if it is somewhere.
#[must_use]
pub fn placed(replica: &ReplicatedVolumeReplica) -> Option<Placed> {
    let spec = &replica.spec;
    (!spec.lvm_volume_group_name.is_empty()).then(|| Placed {
        volume: spec.replicated_volume_name.clone(),
        target: Target::new(&spec.lvm_volume_group_name, &spec.lvm_volume_group_thin_pool_name),
        reported: replica.status.backing_volume.is_some(),
    })
}

/// The size of a volume.
#[must_use]
pub fn size(volume: &ReplicatedVolume) -> Size {
    Size {
        size: u64::try_from(volume.spec.size.value()).unwrap_or_default(),
        replicated: is_replicated(volume),
    }
}

impl Reserve {
    /// A ledger for this store. `writer` tells servers apart; [`Reserve::load`] comes next.
    #[must_use]
    pub fn new(resources: &Resources, writer: String) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(Ledger::of(&writer)),
            writer,
            groups: Mutex::default(),
            followed: OnceLock::new(),
            objects: resources.objects().clone(),
            clock: resources.clock().clone(),
            swept: Mutex::new(Timestamp::MIN),
            subscriptions: Mutex::default(),
        })
    }

    /// Follows what groups, volumes and replicas say, until it is dropped.
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
        // The first to follow wins; it is called once.
        let _ =
            self.followed.set(Followed { volumes: volumes.clone(), replicas: replicas.clone() });
        *self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner) = subscriptions;
    }

    /// Takes over the reservations that were narrowed before this process began.
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

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn times(&self, ttl: Duration) -> (Timestamp, Timestamp) {
        let now = self.clock.now();
        (now, now.checked_add(ttl).unwrap_or(Timestamp::MAX))
    }

    fn sweep(&self, now: Timestamp) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(*swept) > jiff::SignedDuration::from_secs(1) {
            *swept = now;
            self.lock().sweep(now);
        }
    }

    /// Decides at one moment: nobody else changes the account meanwhile.
    pub fn decide<T>(&self, decide: impl FnOnce(&mut Ledger, Timestamp) -> T) -> T {
        let now = self.clock.now();
        self.sweep(now);
        decide(&mut self.lock(), now)
    }

    /// FilterAndScore: see [`Ledger::filter_and_score`].
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

    /// What a target could promise to a claim now.
    #[must_use]
    pub fn balance(&self, target: &Target, claim: &Claim) -> Option<Balance> {
        let now = self.clock.now();
        self.lock().balance(target, claim, now)
    }

    /// Every reservation that counts now.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        let now = self.clock.now();
        self.lock().held(now)
    }

    /// How long until the first reservation on any of these targets ends.
    #[must_use]
    pub fn next_expiry(&self, targets: &[Target]) -> Option<Duration> {
        let now = self.clock.now();
        let until = self.lock().next_expiry(targets, now)?;
        Duration::try_from(until.duration_since(now)).ok()
    }

    /// NarrowReservation: keeps the holder's reservation on one target, in the store, under the
    /// fence of `resources`. Called twice, the second call prolongs it.
    ///
    /// # Errors
    /// If there is no such reservation, the space is gone, or the store fails.
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

    /// Writes a holder's narrow reservation in a group, and those of others that wait. Called
    /// twice, the second call does nothing.
    ///
    /// # Errors
    /// [`ledger::Error::Full`] if somebody else was faster, others if the store fails.
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

    /// Gives a holder's reservations back. Called twice, the second call does nothing.
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

    fn gate(&self, group: &str) -> Arc<tokio::sync::Mutex<Known>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        match groups.get(group) {
            Some(gate) => gate.clone(),
            None => groups.entry(group.to_owned()).or_default().clone(),
        }
    }

    /// Writes a group's entries. If somebody else was faster, theirs are taken over instead, and
    /// the caller looks again.
    async fn store(
        &self,
        resources: &Resources,
        group: &str,
        known: &mut Known,
        entries: Reservations,
        tries: usize,
    ) -> Result<(), Error> {
        let key = Key::new(&resource(), None, group);
        match self.write(resources, &key, known.revision, &entries).await {
            Ok(revision) => {
                *known = Known { revision: Some(revision), entries };
                Ok(())
            }
            Err(error) if is_race(&error) && tries > 0 => {
                let record = self.objects.get(&key).await?;
                let entries = record.as_deref().map(decode).unwrap_or_default().reservations();
                self.catch_up().await?;
                let now = self.clock.now();
                self.lock().merge_reservations(group, &entries, now);
                *known = Known { revision: record.map(|record| record.revision()), entries };
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the ledger has seen every volume and replica there is now. That some of them
    /// have gone since is not waited for: it only means more room.
    async fn catch_up(&self) -> Result<(), Error> {
        let Some(followed) = self.followed.get() else { return Ok(()) };
        let newest = async |plural: &str| {
            let all = self.objects.collection(&Resource::new(GROUP, plural), At::Latest).await?;
            let newest = all.range(None, None).map(|record| record.revision()).max();
            Ok::<_, Error>(newest.unwrap_or(Revision::ZERO))
        };
        let at = newest(ReplicatedVolume::PLURAL).await?;
        followed.volumes.wait_until_at(at).await.map_err(|_| Error::Stopped)?;
        let at = newest(ReplicatedVolumeReplica::PLURAL).await?;
        followed.replicas.wait_until_at(at).await.map_err(|_| Error::Stopped)
    }

    async fn write(
        &self,
        resources: &Resources,
        key: &Key,
        revision: Option<Revision>,
        reservations: &Reservations,
    ) -> Result<Revision, objects::Error> {
        let stored = Stored::of(&self.writer, reservations);
        let mut object = Map::new();
        // Serialising plain data with string keys cannot fail.
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

fn decode(record: &Record) -> Stored {
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
