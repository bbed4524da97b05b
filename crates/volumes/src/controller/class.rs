//! Classes: resolves each to a configuration, creates its pool, and counts its volumes.

use std::time::Duration;

use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_controller::write;
use mainstay_store::meta::ObjectMeta;
use mainstay_store::resources::{Error, Subresource};

use super::{BY_CLASS, BY_POOL, Shared};
use crate::api::{
    ReplicatedStorageClass, ReplicatedStoragePool, ReplicatedVolume, VolumeCounts, VolumePhase,
};
use crate::conditions::{self, Statement};
use crate::configure;
use crate::satisfy::is_misplaced;

/// The shortest time between two counts of a class's volumes.
const GATHER: Duration = Duration::from_secs(1);

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let by_pool = views.classes.clone();
    let this = shared.clone();
    controller
        .watch(&views.classes, |class| [class.metadata.name.clone()])
        .watch_if(
            &views.pools,
            |old, new| {
                let seen = |pool: Option<&ReplicatedStoragePool>| {
                    pool.map(|pool| {
                        (pool.status.eligible_nodes_revision, pool.status.phase.clone())
                    })
                };
                seen(old) != seen(new)
            },
            move |pool| {
                let classes = by_pool.by_index(BY_POOL, &pool.metadata.name);
                classes.iter().map(|class| class.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch_if(
            &views.volumes,
            |old, new| {
                let seen = |volume: Option<&ReplicatedVolume>| {
                    volume.map(|volume| {
                        (volume.status.phase, volume.status.configuration_observed_generation)
                    })
                };
                seen(old) != seen(new)
            },
            |volume| [volume.spec.replicated_storage_class_name.clone()],
        )
        .run(move |context, name| reconcile(this.clone(), context, name))
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, Error> {
    let Some(class) = shared.views.class(&name) else { return Ok(Outcome::Done) };
    if class.metadata.deletion_timestamp.is_some() {
        return Ok(Outcome::Done);
    }
    let options = write::options("mainstay-storageclass");
    let pool = configure::pool_name(&class);
    if let Some(spec) = configure::own_pool(&class)
        && shared.views.pool(&pool).is_none()
    {
        let metadata = ObjectMeta { name: pool.clone(), ..ObjectMeta::default() };
        let object = ReplicatedStoragePool { metadata, spec, status: Default::default() };
        match context.resources.create_as(&object, &options).await {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error),
        }
    }
    let now = context.resources.clock().now();
    let pool = shared.views.pool(&pool);
    let mut next = (*class).clone();
    settle(&mut next, pool.as_deref(), now);
    let only_counts = next.status == class.status;
    // Counts lag behind: many volumes change at once when many are created.
    if only_counts && context.failures == 0 && shared.waiting.counted_lately(&name, now, GATHER) {
        return Ok(Outcome::After(GATHER));
    }
    let counted = counts(&shared, &class);
    if only_counts && Some(counted) == class.status.volumes {
        return Ok(Outcome::Done);
    }
    let status = Some(Subresource::Status);
    let written = context
        .resources
        .modify_as(None, &name, status, &options, |class: &mut ReplicatedStorageClass| {
            settle(class, pool.as_deref(), now);
            class.status.volumes = Some(counted);
        })
        .await;
    write::or_gone(written).map(|_| Outcome::Done)
}

/// Computes a class's status, except the counts of its volumes.
fn settle(
    class: &mut ReplicatedStorageClass,
    pool: Option<&ReplicatedStoragePool>,
    now: jiff::Timestamp,
) {
    let configuration = configure::configuration(class);
    let generation = class.metadata.generation;
    let status = &mut class.status;
    if status.configuration.as_ref() != Some(&configuration) {
        let counted = status.configuration_generation.unwrap_or_default();
        status.configuration_generation = Some(counted + 1);
    }
    status.storage_pool_name.clone_from(&configuration.storage_pool_name);
    status.storage_pool_eligible_nodes_revision =
        pool.map(|pool| pool.status.eligible_nodes_revision);
    let statement = match pool {
        None => Statement::new(
            "Ready",
            false,
            "StoragePoolNotFound",
            format!("ReplicatedStoragePool {} not found", configuration.storage_pool_name),
        ),
        Some(pool) if pool.status.phase != "Ready" => {
            Statement::new("Ready", false, "StoragePoolNotReady", pool.status.message.clone())
        }
        Some(pool) => {
            let wanted = configure::wanted(configuration.guarantees());
            let nodes = pool.status.eligible_nodes.len();
            let disks = pool.status.eligible_nodes.iter();
            let disks = disks.filter(|node| !node.lvm_volume_groups.is_empty()).count();
            if nodes < wanted.diskful + wanted.tie_breakers || disks < wanted.diskful {
                let message = format!(
                    "{} replicas with data and {} tie-breakers need as many nodes; {disks} of \
                     {nodes} eligible nodes have volume groups",
                    wanted.diskful, wanted.tie_breakers
                );
                Statement::new("Ready", false, "InsufficientEligibleNodes", message)
            } else {
                Statement::new("Ready", true, "Ready", "volumes can be created")
            }
        }
    };
    let ready = statement.reason == "Ready";
    status.phase = if ready { "Ready" } else { "NotReady" }.to_owned();
    status.configuration = Some(configuration);
    conditions::set(&mut status.conditions, &statement, generation, now);
}

fn counts(shared: &Shared, class: &ReplicatedStorageClass) -> VolumeCounts {
    let generation = class.status.configuration_generation;
    let mut counts = VolumeCounts::default();
    for volume in shared.views.volumes.by_index(BY_CLASS, &class.metadata.name) {
        counts.total += 1;
        if volume.status.configuration_observed_generation != generation {
            counts.pending_observation += 1;
        } else if volume.status.configuration_generation != generation {
            counts.stale_configuration += 1;
        } else if volume.status.phase == Some(VolumePhase::Ready) {
            counts.aligned += 1;
        }
        let degraded = volume.status.phase == Some(VolumePhase::Degraded);
        let misplaced = || shared.views.replicas_of(&volume.metadata.name);
        if degraded && misplaced().iter().any(|replica| is_misplaced(replica)) {
            counts.in_conflict_with_eligible_nodes += 1;
        }
    }
    counts
}
