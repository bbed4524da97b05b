//! Scheduling: chooses node, volume group and thin pool for replicas that have none.
//!
//! It writes the three placement fields and the Scheduled condition, and nothing else. What it
//! places it has reserved before. Replicas are read from the store, not from a copy that may lag,
//! so that a run never repeats what the last one did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::events::{Severity, reference};
use mainstay_controller::runtime::{BoxError, Context, Controller, Handle, Outcome};
use mainstay_placement::{EligibleNodes, Narrowing, Next, Pass, Slot, Verdict, Volume};
use mainstay_store::objects::At;
use mainstay_store::resources::{self, Error, Subresource, decode, encode};

use super::{BY_GROUP, BY_POOL, Shared, or_gone};
use crate::api::{
    LVMVolumeGroup, ReplicatedStoragePool, ReplicatedVolume, ReplicatedVolumeReplica, replica_name,
};
use crate::conditions::{self, Statement};
use crate::extender::{self, Request};
use crate::ledger::Target;
use crate::satisfy::is_misplaced;
use crate::schedule::{self, SCHEDULED};
use crate::{attach, ledger};

const MANAGER: &str = "mainstay-scheduling";

/// Volumes that wait for a place, and what is remembered between runs.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By volume: its pool, and the bytes a replica needs.
    volumes: Mutex<BTreeMap<String, (String, u64)>>,
    /// By pool: the eligible nodes of its newest revision.
    eligible: Mutex<BTreeMap<String, (i64, Arc<EligibleNodes>)>>,
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

    fn eligible(&self, pool: &ReplicatedStoragePool) -> Arc<EligibleNodes> {
        let revision = pool.status.eligible_nodes_revision;
        let mut eligible = lock(&self.eligible);
        let known = eligible.get(&pool.metadata.name);
        if let Some((_, nodes)) = known.filter(|(known, nodes)| {
            *known == revision
                && nodes.nodes().len() == pool.status.eligible_nodes.len()
                && revision != 0
        }) {
            return nodes.clone();
        }
        let nodes = Arc::new(EligibleNodes::new(pool.status.eligible_nodes.iter().cloned()));
        eligible.insert(pool.metadata.name.clone(), (revision, nodes.clone()));
        nodes
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
        .watch_if(
            &views.groups,
            |old, new| old.map(|old| &old.status) != new.map(|new| &new.status),
            move |group: &LVMVolumeGroup| {
                let spaces = group.status.thin_pools.iter().map(|pool| pool.name.as_str());
                let spaces = spaces.chain([""]).filter_map(|thin| ledger::space(group, thin));
                let most = spaces.map(|space| space.free).max().unwrap_or_default();
                waiting_for(&by_group, &group.metadata.name, most)
            },
        )
        .watch(&views.attachments, move |it| {
            let volume = it.spec.replicated_volume_name.clone();
            for_attachments.waits(&volume).then_some(volume)
        })
        .run(move |context, name| reconcile(this.clone(), context, name))
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

/// One run: the pass, and what it works with.
struct Run<'r> {
    shared: &'r Shared,
    context: &'r Context,
    replicas: Vec<ReplicatedVolumeReplica>,
    failed: bool,
    unavailable: Option<extender::Error>,
}

/// Why a run ended early, though nothing went wrong: what it saw is no longer so.
enum Interrupted {
    Outdated,
    Failed(Error),
}

impl From<Error> for Interrupted {
    fn from(error: Error) -> Self {
        if error.is_conflict() { Self::Outdated } else { Self::Failed(error) }
    }
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, BoxError> {
    let replicas = read_replicas(&context, &name).await?;
    let volume = shared.views.volume(&name);
    let pool = volume.as_ref().and_then(|volume| volume.status.configuration.as_ref());
    let pool = pool.and_then(|it| shared.views.pool(&it.storage_pool_name));
    let mut run =
        Run { shared: &shared, context: &context, replicas, failed: false, unavailable: None };
    let result = match schedule::guard(volume.as_deref(), |_| pool.as_deref()) {
        Err(guard) => run.say_to_all(&guard.statement()).await,
        Ok((volume, configuration, pool)) => {
            let attachments = shared.views.attachments_of(&name);
            let attachments = attachments.iter().map(Arc::as_ref);
            let wanted = attach::wanted_nodes(&volume.status.desired_attach_to, attachments);
            let seen = schedule::volume(configuration, pool, &run.replicas, wanted);
            run.pass(volume, pool, &seen).await
        }
    };
    let (failed, unavailable) = (run.failed, run.unavailable.take());
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

/// Looks again when a reservation on one of the pool's groups ends.
fn until_room(shared: &Shared, pool: &ReplicatedStoragePool) -> Outcome {
    let references = pool.spec.lvm_volume_groups.iter();
    let targets: Vec<Target> = references
        .map(|reference| Target::new(&reference.name, &reference.thin_pool_name))
        .collect();
    let expiry = shared.extender.next_expiry(&targets);
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

impl Run<'_> {
    async fn pass(
        &mut self,
        volume: &ReplicatedVolume,
        pool: &ReplicatedStoragePool,
        seen: &Volume,
    ) -> Result<(), Interrupted> {
        let eligible = self.shared.waiting.eligible(pool);
        let mut pass = Pass::new(&eligible, seen);
        if let Some(warning) = schedule::warning(&pass) {
            let about = reference(volume);
            let recorder = &self.shared.recorder;
            recorder.event(&about, Severity::Warning, "SpreadAcrossZones", &warning);
        }
        loop {
            match pass.advance() {
                Next::Score { replica, slots } => {
                    let request = self.request(volume, replica);
                    let targets = targets(&eligible, &slots);
                    match self.shared.extender.filter_and_score(&request, &targets).await {
                        Ok(scores) => {
                            let by_group: BTreeMap<usize, i64> = slots
                                .iter()
                                .zip(scores)
                                .filter_map(|(slot, score)| Some((slot.group()?, score)))
                                .collect();
                            pass.scored(Some(&|group| by_group.get(&group).copied()));
                        }
                        Err(error) => {
                            self.unavailable = Some(error);
                            pass.scored(None);
                        }
                    }
                }
                Next::Narrow(Narrowing { replica, slot }) => {
                    let request = self.request(volume, replica);
                    let target = &targets(&eligible, &[slot])[0];
                    let resources = &self.context.resources;
                    let extender = &self.shared.extender;
                    match extender.narrow_reservation(resources, &request, target).await {
                        Ok(()) => pass.narrowed(true),
                        Err(extender::Error::Full) => return Err(Interrupted::Outdated),
                        Err(error) => {
                            self.unavailable = Some(error);
                            pass.narrowed(false);
                        }
                    }
                }
                Next::Release(Narrowing { replica, .. }) => {
                    let request = self.request(volume, replica);
                    let released =
                        self.shared.extender.release(&self.context.resources, &request).await;
                    if let Err(error) = released {
                        self.unavailable = Some(error);
                    }
                }
                Next::Place(Narrowing { replica, slot }) => {
                    self.place(replica, &eligible, slot).await?;
                }
                Next::Report { replica, verdict } => self.report(replica, &verdict).await?,
                Next::Done => return Ok(()),
            }
        }
    }

    fn request(&self, volume: &ReplicatedVolume, replica: usize) -> Request {
        let replica = &self.replicas[replica];
        Request {
            claim: schedule::claim(volume, &replica.metadata.name),
            reservation_id: schedule::reservation_id(volume, replica),
        }
    }

    /// Writes a placement, unless the replica's spec has changed since it was read.
    async fn place(
        &mut self,
        replica: usize,
        eligible: &EligibleNodes,
        slot: Slot,
    ) -> Result<(), Interrupted> {
        let seen = &self.replicas[replica];
        let resources = &self.context.resources;
        let kind = resources.kind_of::<ReplicatedVolumeReplica>()?;
        let key = kind.key(None, &seen.metadata.name);
        let written = resources
            .modify(kind, &key, None, &super::options(MANAGER), |old| {
                let mut typed: ReplicatedVolumeReplica =
                    serde::Deserialize::deserialize(old).map_err(Error::internal)?;
                if typed.metadata.uid != seen.metadata.uid || typed.spec != seen.spec {
                    return Err(Error::conflict(kind, &seen.metadata.name, "the spec changed"));
                }
                typed.spec.node_name.clone_from(&eligible.node(slot).node_name);
                if let Some(group) = eligible.lvg(slot) {
                    typed.spec.lvm_volume_group_name.clone_from(&group.name);
                    let thin_pool = &mut typed.spec.lvm_volume_group_thin_pool_name;
                    thin_pool.clone_from(&group.thin_pool_name);
                }
                encode(kind, &typed)
            })
            .await;
        if let Some(written) = or_gone(written)? {
            self.replicas[replica] = decode(&written.record)?;
        }
        Ok(())
    }

    async fn report(&mut self, replica: usize, verdict: &Verdict) -> Result<(), Interrupted> {
        if matches!(verdict, Verdict::Failed(_) | Verdict::ExtenderUnavailable(_)) {
            self.failed = true;
        }
        let statement = schedule::statement(verdict);
        let changed = self.say(replica, statement.as_ref()).await?;
        let about = &self.replicas[replica];
        let recorder = &self.shared.recorder;
        match (verdict, statement) {
            (Verdict::Placed(_), _) => {
                let spec = &about.spec;
                let mut place = format!("placed on {}", spec.node_name);
                if !spec.lvm_volume_group_name.is_empty() {
                    place += &format!(" in {}", spec.lvm_volume_group_name);
                }
                recorder.event(&reference(about), Severity::Normal, "Scheduled", &place);
            }
            (Verdict::Failed(_) | Verdict::ExtenderUnavailable(_), Some(said)) if changed => {
                let about = reference(about);
                recorder.event(&about, Severity::Warning, said.reason, &said.message);
            }
            _ => {}
        }
        Ok(())
    }

    async fn say_to_all(&mut self, statement: &Statement) -> Result<(), Interrupted> {
        for replica in 0..self.replicas.len() {
            self.say(replica, Some(statement)).await?;
        }
        Ok(())
    }

    /// Sets or removes the condition. Says whether that changed anything.
    async fn say(
        &mut self,
        replica: usize,
        statement: Option<&Statement>,
    ) -> Result<bool, Interrupted> {
        let now = self.context.resources.clock().now();
        let generation = self.replicas[replica].metadata.generation;
        let settle = |it: &mut ReplicatedVolumeReplica| match statement {
            Some(statement) => {
                conditions::set(&mut it.status.conditions, statement, generation, now)
            }
            None => conditions::remove(&mut it.status.conditions, SCHEDULED),
        };
        if !settle(&mut self.replicas[replica].clone()) {
            return Ok(false);
        }
        let name = self.replicas[replica].metadata.name.clone();
        let resources = &self.context.resources;
        let written: Result<(ReplicatedVolumeReplica, resources::Effect), Error> = resources
            .modify_as(None, &name, Some(Subresource::Status), &super::options(MANAGER), |it| {
                settle(it);
            })
            .await;
        if let Some((written, _)) = or_gone(written)? {
            self.replicas[replica] = written;
        }
        Ok(true)
    }
}

fn targets(eligible: &EligibleNodes, slots: &[Slot]) -> Vec<Target> {
    slots
        .iter()
        .map(|slot| {
            let group = eligible.lvg(*slot);
            group.map_or_else(Target::default, |it| Target::new(&it.name, &it.thin_pool_name))
        })
        .collect()
}
