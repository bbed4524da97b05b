//! The ledger at work: fed by what the store shows, with narrow reservations kept in the store.
//!
//! Broad reservations live in this process. Each narrowing writes one object for the volume group
//! with compare-and-swap before the replica is written, so that two servers, one of them out of
//! date, can never promise the same space. The objects are in no registry, hence not served.
//!
//! Whoever finds that somebody else wrote a group's object last takes over its entries and reads
//! all replicas afresh before deciding: entries leave the object as soon as their writer saw the
//! replica placed, so the newest replicas and the newest entries together miss nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::reflector::{Change, Reflector, Subscription};
use mainstay_store::clock::Clock;
use mainstay_store::object::{Body, Key, Record, Resource};
use mainstay_store::objects::{self, At, Objects, Write};
use mainstay_store::resources::Resources;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{GROUP, LVMVolumeGroup, ReplicatedVolume, ReplicatedVolumeReplica};
use crate::ledger::{self, Balance, Claim, Ledger, Placed, Reservation, Size, Target};
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
    /// Replicas could not be read. Retry once the store is mended.
    #[error("the replicas could not be read: {0}")]
    Read(String),
}

/// A group's reservations as they are stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Stored {
    writer: String,
    reservations: BTreeMap<String, Reservation>,
}

/// The ledger and its store.
pub struct Reserve {
    writer: String,
    ledger: Mutex<Ledger>,
    groups: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
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
            writer,
            ledger: Mutex::default(),
            groups: Mutex::default(),
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
                    this.lock().set_replica(change.key.name(), placed);
                }
            }),
        ];
        *self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner) = subscriptions;
    }

    /// Takes over the reservations that were narrowed before this process began.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn load(&self) -> Result<(), Error> {
        let stored = self.objects.collection(&resource(), At::Latest).await?;
        for record in stored.range(None, None) {
            let entries = decode(record).reservations;
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

    /// FilterAndScore: see [`Ledger::filter_and_score`].
    pub fn filter_and_score(
        &self,
        claim: &Claim,
        targets: &[Target],
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
        let gate = self.gate(&target.name);
        let _turn = gate.lock().await;
        let key = Key::new(&resource(), None, &target.name);
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let record = self.refresh(&key, &target.name).await?;
            let times = self.times(ttl);
            let entries = {
                let ledger = self.lock();
                let bytes = ledger.room(holder, target, times.0)?;
                let mut entries = ledger.reservations(&target.name, times.0);
                let thin_pool_name = target.thin_pool_name.clone();
                let entry = Reservation { thin_pool_name, bytes, until: times.1 };
                entries.insert(holder.to_owned(), entry);
                entries
            };
            match self.write(resources, &key, record.as_deref(), entries).await {
                Ok(()) => {
                    // The room was there under the lock of this group.
                    self.lock().narrow(holder, target, times)?;
                    return Ok(());
                }
                Err(error) if is_race(&error) && tries > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives a holder's reservations back. Called twice, the second call does nothing.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release(&self, resources: &Resources, holder: &str) -> Result<(), Error> {
        let groups = self.lock().release(holder);
        for group in groups {
            let gate = self.gate(&group);
            let _turn = gate.lock().await;
            let key = Key::new(&resource(), None, &group);
            let mut tries = TRIES;
            loop {
                tries -= 1;
                let record = self.refresh(&key, &group).await?;
                let mut entries = self.lock().reservations(&group, self.clock.now());
                entries.remove(holder);
                self.lock().set_reservations(&group, &entries);
                match self.write(resources, &key, record.as_deref(), entries).await {
                    Ok(()) => break,
                    Err(error) if is_race(&error) && tries > 0 => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn gate(&self, group: &str) -> Arc<tokio::sync::Mutex<()>> {
        let groups = self.groups.lock();
        groups.unwrap_or_else(PoisonError::into_inner).entry(group.to_owned()).or_default().clone()
    }

    /// The group's object; if somebody else wrote it last, the ledger has taken it over.
    async fn refresh(&self, key: &Key, group: &str) -> Result<Option<Arc<Record>>, Error> {
        let Some(record) = self.objects.get(key).await? else { return Ok(None) };
        let stored = decode(&record);
        if stored.writer != self.writer {
            self.lock().set_reservations(group, &stored.reservations);
            self.read_replicas().await?;
        }
        Ok(Some(record))
    }

    async fn read_replicas(&self) -> Result<(), Error> {
        let replicas = Resource::new(GROUP, "replicatedvolumereplicas");
        let volumes = Resource::new(GROUP, "replicatedvolumes");
        let replicas = self.objects.collection(&replicas, At::Latest).await?;
        let volumes = self.objects.collection(&volumes, At::Latest).await?;
        let unreadable = |error: mainstay_store::resources::Error| Error::Read(error.to_string());
        let mut ledger = self.lock();
        for record in volumes.range(None, None) {
            let volume: ReplicatedVolume =
                mainstay_store::resources::decode(record).map_err(unreadable)?;
            ledger.set_volume(record.key().name(), Some(size(&volume)));
        }
        for record in replicas.range(None, None) {
            let replica: ReplicatedVolumeReplica =
                mainstay_store::resources::decode(record).map_err(unreadable)?;
            ledger.set_replica(record.key().name(), placed(&replica));
        }
        Ok(())
    }

    async fn write(
        &self,
        resources: &Resources,
        key: &Key,
        record: Option<&Record>,
        reservations: BTreeMap<String, Reservation>,
    ) -> Result<(), objects::Error> {
        let stored = Stored { writer: self.writer.clone(), reservations };
        let mut object = Map::new();
        // Serialising plain data with string keys cannot fail.
        object.insert("spec".to_owned(), serde_json::to_value(stored).unwrap_or(Value::Null));
        let body = Body::new(&object);
        let change = match record {
            None => objects::Change::Create(body),
            Some(record) => objects::Change::Update(record.revision(), body),
        };
        let write = Write { key: key.clone(), change, fence: resources.fence().cloned() };
        self.objects.write(write).await.map(drop)
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
