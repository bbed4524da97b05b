//! Scheduling: chooses node, volume group and thin pool for replicas that have none.
//!
//! It writes the three placement fields and the Scheduled condition, and nothing else. Space is reserved
//! before a placement is written. Replicas are read from the store, not from a reflector that may lag,
//! so that a run never repeats the work of the last one. The triggers are here; a run is in [`run`].

mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::runtime::{BoxError, Context, Controller, Handle, Outcome};
use mainstay_placement::ReplicaType;
use mainstay_store::objects::At;
use mainstay_store::resources::{Error, decode};
use parking_lot::Mutex;

use super::{BY_GROUP, BY_POOL, Shared};
use crate::api::{
    LVMVolumeGroup, ReplicatedStoragePool, ReplicatedVolume, ReplicatedVolumeReplica, replica_name,
};
use crate::candidates::Candidates;
use crate::satisfy::is_misplaced;
use crate::schedule::{self, SCHEDULED};
use crate::{attach, conditions, ledger};
use run::{Interrupted, Run};

/// Volumes with unplaced replicas, and caches between runs.
#[derive(Debug, Default)]
pub(super) struct WaitingVolumes {
    /// By volume: its pool, and the bytes that a replica needs.
    volumes: Mutex<BTreeMap<String, (String, u64)>>,
    /// By pool: the candidates of its newest revision.
    candidates: Mutex<BTreeMap<String, (i64, Arc<Candidates>)>>,
    counted: Mutex<BTreeMap<String, Timestamp>>,
}

impl WaitingVolumes {
    fn waits(&self, volume: &str) -> bool {
        self.volumes.lock().contains_key(volume)
    }

    /// Waiting volumes of a pool whose replicas need no more than `available` bytes.
    fn of_pool(&self, pool: &str, available: u64) -> Vec<String> {
        let volumes = self.volumes.lock();
        let fitting = volumes.iter().filter(|(_, (of, bytes))| of == pool && *bytes <= available);
        fitting.map(|(volume, _)| volume.clone()).collect()
    }

    fn candidates(&self, pool: &ReplicatedStoragePool) -> Arc<Candidates> {
        let (revision, nodes) = (pool.status.eligible_nodes_revision, &pool.status.eligible_nodes);
        let mut candidates = self.candidates.lock();
        let known = candidates.get(&pool.metadata.name);
        // A pool whose eligible nodes were never computed may change without a new revision.
        if let Some((_, known)) = known.filter(|(known, candidates)| {
            *known == revision && candidates.eligible.nodes().len() == nodes.len() && revision != 0
        }) {
            return known.clone();
        }
        let new = Arc::new(Candidates::new(nodes.iter().cloned()));
        candidates.insert(pool.metadata.name.clone(), (revision, new.clone()));
        new
    }

    /// Whether a class's volumes were counted within `gather`; if not, records a count now.
    pub(super) fn counted_lately(&self, class: &str, now: Timestamp, gather: Duration) -> bool {
        let mut counted = self.counted.lock();
        let lately = counted.get(class).is_some_and(|last| {
            Duration::try_from(now.duration_since(*last)).is_ok_and(|passed| passed < gather)
        });
        if !lately {
            counted.insert(class.to_owned(), now);
        }
        lately
    }
}

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let (by_pool, by_group, freed) = (views.volumes.clone(), shared.clone(), shared.clone());
    let (for_volumes, for_attachments) = (shared.waiting.clone(), shared.waiting.clone());
    let this = shared.clone();
    controller
        .watch_if(
            &views.volumes,
            move |old, new| {
                let seen = |volume: &ReplicatedVolume| volume.status.configuration_generation;
                let wanted = |volume: &ReplicatedVolume| {
                    (volume.status.desired_attach_to.clone(), volume.spec.size)
                };
                old.is_none()
                    || old.map(seen) != new.map(seen)
                    || (old.map(wanted) != new.map(wanted)
                        && new.is_some_and(|new| for_volumes.waits(&new.metadata.name)))
            },
            |volume| [volume.metadata.name.clone()],
        )
        .watch_if(&views.replicas, replica_matters, |replica| {
            [replica.spec.replicated_volume_name.clone()]
        })
        .watch_if(
            // A replica that leaves a group frees space for waiting volumes.
            &views.replicas,
            |old, new| {
                let group =
                    |replica: &ReplicatedVolumeReplica| replica.spec.lvm_volume_group_name.clone();
                old.map(group).is_some_and(|group| !group.is_empty()) && new.is_none()
            },
            move |replica| waiting_for(&freed, &replica.spec.lvm_volume_group_name, u64::MAX),
        )
        .watch_if(
            &views.pools,
            |old, new| {
                let revision = |pool: &ReplicatedStoragePool| pool.status.eligible_nodes_revision;
                old.map(revision) != new.map(revision)
            },
            move |pool| {
                let volumes = by_pool.by_index(BY_POOL, &pool.metadata.name);
                volumes.iter().map(|volume| volume.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch_if(&views.groups, has_more_room, move |group: &LVMVolumeGroup| {
            let spaces = group.status.thin_pools.iter().map(|pool| pool.name.as_str());
            let spaces = spaces.chain([""]).filter_map(|thin| ledger::space(group, thin));
            let most = spaces.map(|space| space.free).max().unwrap_or_default();
            waiting_for(&by_group, &group.metadata.name, most)
        })
        .watch(&views.attachments, move |it| {
            let volume = it.spec.replicated_volume_name.clone();
            for_attachments.waits(&volume).then_some(volume)
        })
        .run(move |context, name| reconcile(this.clone(), context, name))
}

/// Whether a group, or a thin pool in it, has more room than before.
fn has_more_room(old: Option<&LVMVolumeGroup>, new: Option<&LVMVolumeGroup>) -> bool {
    let Some(new) = new else { return false };
    let thin_pools = new.status.thin_pools.iter().map(|pool| pool.name.as_str());
    thin_pools.chain([""]).any(|thin| {
        let before = old.and_then(|old| ledger::space(old, thin)).unwrap_or_default();
        ledger::space(new, thin)
            .is_some_and(|now| now.free > before.free || now.total > before.total)
    })
}

/// Volumes that wait for space in a group.
fn waiting_for(shared: &Shared, group: &str, available: u64) -> Vec<String> {
    let pools = shared.views.pools.by_index(BY_GROUP, group);
    let pools = pools.iter().map(|pool| &pool.metadata.name);
    pools.flat_map(|pool| shared.waiting.of_pool(pool, available)).collect()
}

/// Whether a change of a replica concerns scheduling.
fn replica_matters(
    old: Option<&ReplicatedVolumeReplica>,
    new: Option<&ReplicatedVolumeReplica>,
) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return true };
    let scheduled = |replica: &ReplicatedVolumeReplica| {
        conditions::find(&replica.status.conditions, SCHEDULED).map(|it| it.status)
    };
    old.metadata.generation != new.metadata.generation
        || is_misplaced(new)
        || (scheduled(old).is_some() && scheduled(new).is_none())
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, BoxError> {
    let volume = shared.views.volume(&name);
    let pool = volume.as_ref().and_then(|volume| volume.status.configuration.as_ref());
    let pool = pool.and_then(|it| shared.views.pool(&it.storage_pool_name));
    let guarded = schedule::guard(volume.as_deref(), |_| pool.as_deref());
    if let Ok((_, _, pool)) = &guarded
        && is_settled(&shared.views.replicas_of(&name), pool)
    {
        // Most runs are triggered by the writes of the last one.
        shared.waiting.volumes.lock().remove(&name);
        return Ok(Outcome::Done);
    }
    let replicas = read_replicas(&context, &name).await?;
    let mut run = Run::new(&shared, &context, replicas);
    let result = match guarded {
        Err(guard) => run.set_on_all(&guard.statement()).await,
        Ok((volume, configuration, pool)) => {
            let attachments = shared.views.attachments_of(&name);
            let attachments = attachments.iter().map(Arc::as_ref);
            let wanted = attach::wanted_nodes(&volume.status.desired_attach_to, attachments);
            let seen = schedule::volume(configuration, pool, run.replicas(), wanted);
            run.pass(volume, &shared.waiting.candidates(pool), &seen).await
        }
    };
    let (failed, unavailable) = run.finish();
    let mut waiting = shared.waiting.volumes.lock();
    match (&volume, &pool) {
        (Some(volume), Some(pool)) if failed => {
            let claim = schedule::claim(volume, "");
            let bytes = ledger::backing_size(claim.size, claim.replicated, 1);
            waiting.insert(name.clone(), (pool.metadata.name.clone(), bytes));
        }
        _ => {
            waiting.remove(&name);
        }
    }
    drop(waiting);
    match (result, unavailable) {
        (Err(Interrupted::Outdated), _) => Ok(Outcome::Retry),
        (Err(Interrupted::Failed(error)), _) => Err(error.into()),
        (Ok(()), Some(error)) => Err(error.into()),
        (Ok(()), None) => Ok(match pool.filter(|_| failed) {
            Some(pool) => until_room(&shared, &pool),
            None => Outcome::Done,
        }),
    }
}

/// Whether every replica is placed and has condition Scheduled. A reflector that lags is no problem: a
/// change that it does not show yet triggers another run when it arrives.
fn is_settled(replicas: &[Arc<ReplicatedVolumeReplica>], pool: &ReplicatedStoragePool) -> bool {
    let statement = schedule::scheduled();
    replicas.iter().all(|replica| {
        let condition = conditions::find(&replica.status.conditions, SCHEDULED);
        match replica.spec.kind {
            ReplicaType::Access => condition.is_none(),
            _ => {
                schedule::replica(replica).scheduled(pool.spec.kind)
                    && condition.is_some_and(|condition| {
                        condition.observed_generation == replica.metadata.generation
                            && condition.status == statement.status
                            && condition.reason == statement.reason
                            && condition.message == statement.message
                    })
            }
        }
    })
}

/// Runs again when a reservation on one of the pool's groups expires.
fn until_room(shared: &Shared, pool: &ReplicatedStoragePool) -> Outcome {
    let candidates = shared.waiting.candidates(pool);
    let expiry = shared.extender.next_expiry(candidates.targets());
    expiry.map_or(Outcome::Done, |wait| Outcome::After(wait + Duration::from_millis(1)))
}

/// The replicas of a volume, read from the store, by id.
async fn read_replicas(
    context: &Context,
    volume: &str,
) -> Result<Vec<ReplicatedVolumeReplica>, Error> {
    let kind = context.resources.kind_of::<ReplicatedVolumeReplica>()?;
    let all = context.resources.list(kind, At::Latest).await?;
    let records = (0..32).filter_map(|id| all.get(&kind.key(None, &replica_name(volume, id))));
    let replicas = records.map(|record| decode::<ReplicatedVolumeReplica>(record));
    // A name can look like that of a replica of another volume (`a-1` of `a`, `a-1-0` of `a-1`).
    replicas
        .filter(|replica| {
            replica.as_ref().map_or(true, |it| it.spec.replicated_volume_name == volume)
        })
        .collect()
}
