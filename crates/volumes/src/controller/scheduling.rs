//! Scheduling: chooses node, volume group and thin pool for replicas that have none.
//!
//! It writes the three placement fields and the Scheduled condition, and nothing else. What it
//! places it has reserved before. Replicas are read from the store, not from a copy that may lag,
//! so that a run never repeats what the last one did. What wakes it is here; what it then does is
//! in [`run`].

mod run;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::runtime::{BoxError, Context, Controller, Handle, Outcome};
use mainstay_placement::ReplicaType;
use mainstay_store::objects::At;
use mainstay_store::resources::{Error, decode};

use super::{BY_GROUP, BY_POOL, Shared};
use crate::api::{
    LVMVolumeGroup, ReplicatedStoragePool, ReplicatedVolume, ReplicatedVolumeReplica, replica_name,
};
use crate::candidates::Candidates;
use crate::satisfy::is_misplaced;
use crate::schedule::{self, SCHEDULED};
use crate::{attach, conditions, ledger};
use run::{Interrupted, Run};

/// Volumes that wait for a place, and what is remembered between runs.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By volume: its pool, and the bytes a replica needs.
    volumes: Mutex<BTreeMap<String, (String, u64)>>,
    /// By pool: the candidates of its newest revision.
    candidates: Mutex<BTreeMap<String, (i64, Arc<Candidates>)>>,
    counted: Mutex<BTreeMap<String, Timestamp>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    fn waits(&self, volume: &str) -> bool {
        lock(&self.volumes).contains_key(volume)
    }

    /// Volumes of a pool that wait and need no more than this.
    fn of_pool(&self, pool: &str, available: u64) -> Vec<String> {
        let volumes = lock(&self.volumes);
        let fitting = volumes.iter().filter(|(_, (of, bytes))| of == pool && *bytes <= available);
        fitting.map(|(volume, _)| volume.clone()).collect()
    }

    fn candidates(&self, pool: &ReplicatedStoragePool) -> Arc<Candidates> {
        let (revision, nodes) = (pool.status.eligible_nodes_revision, &pool.status.eligible_nodes);
        let mut candidates = lock(&self.candidates);
        let known = candidates.get(&pool.metadata.name);
        // A pool whose status was never worked out may change without a new revision.
        if let Some((_, known)) = known.filter(|(known, candidates)| {
            *known == revision && candidates.eligible.nodes().len() == nodes.len() && revision != 0
        }) {
            return known.clone();
        }
        let new = Arc::new(Candidates::new(nodes.iter().cloned()));
        candidates.insert(pool.metadata.name.clone(), (revision, new.clone()));
        new
    }

    /// Whether a class's volumes were counted within `gather`; if not, they are counted now.
    pub(super) fn counted_lately(&self, class: &str, now: Timestamp, gather: Duration) -> bool {
        let mut counted = lock(&self.counted);
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
            // Whoever leaves a group makes room for those that wait.
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

/// Volumes that wait for room in a group.
fn waiting_for(shared: &Shared, group: &str, available: u64) -> Vec<String> {
    let pools = shared.views.pools.by_index(BY_GROUP, group);
    let pools = pools.iter().map(|pool| &pool.metadata.name);
    pools.flat_map(|pool| shared.waiting.of_pool(pool, available)).collect()
}

/// Whether a change of a replica is one that scheduling looks at.
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
        // Most runs are woken by what the last one wrote.
        lock(&shared.waiting.volumes).remove(&name);
        return Ok(Outcome::Done);
    }
    let replicas = read_replicas(&context, &name).await?;
    let mut run = Run::new(&shared, &context, replicas);
    let result = match guarded {
        Err(guard) => run.say_to_all(&guard.statement()).await,
        Ok((volume, configuration, pool)) => {
            let attachments = shared.views.attachments_of(&name);
            let attachments = attachments.iter().map(Arc::as_ref);
            let wanted = attach::wanted_nodes(&volume.status.desired_attach_to, attachments);
            let seen = schedule::volume(configuration, pool, run.replicas(), wanted);
            run.pass(volume, &shared.waiting.candidates(pool), &seen).await
        }
    };
    let (failed, unavailable) = run.finish();
    let mut waiting = lock(&shared.waiting.volumes);
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

/// Whether every replica has its place and says so. A copy that lags may show it too early, never
/// too late: whatever it does not show yet wakes us when it does.
fn is_settled(replicas: &[Arc<ReplicatedVolumeReplica>], pool: &ReplicatedStoragePool) -> bool {
    let said = schedule::scheduled();
    replicas.iter().all(|replica| {
        let condition = conditions::find(&replica.status.conditions, SCHEDULED);
        match replica.spec.kind {
            ReplicaType::Access => condition.is_none(),
            _ => {
                schedule::replica(replica).scheduled(pool.spec.kind)
                    && condition.is_some_and(|condition| {
                        condition.observed_generation == replica.metadata.generation
                            && condition.status == said.status
                            && condition.reason == said.reason
                            && condition.message == said.message
                    })
            }
        }
    })
}

/// Looks again when a reservation on one of the pool's groups ends.
fn until_room(shared: &Shared, pool: &ReplicatedStoragePool) -> Outcome {
    let candidates = shared.waiting.candidates(pool);
    let expiry = shared.extender.next_expiry(candidates.targets());
    expiry.map_or(Outcome::Done, |wait| Outcome::After(wait + Duration::from_millis(1)))
}

/// The replicas of a volume as the store has them, by id.
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
