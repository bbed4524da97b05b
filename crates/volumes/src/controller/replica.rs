//! Replicas: writes the zone, the phase and condition SatisfyEligibleNodes of each.

use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_controller::write;
use mainstay_store::resources::Error;

use super::{BY_POOL, Shared};
use crate::api::{ReplicatedStoragePool, ReplicatedVolume, ReplicatedVolumeReplica};
use crate::{conditions, satisfy};

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let (by_pool, by_volume) = (views.clone(), views.clone());
    let this = shared.clone();
    controller
        .watch(&views.replicas, |replica| [replica.metadata.name.clone()])
        .watch_if(
            &views.pools,
            |old, new| {
                let revision = |pool: &ReplicatedStoragePool| pool.status.eligible_nodes_revision;
                old.map(revision) != new.map(revision)
            },
            move |pool| {
                let volumes = by_pool.volumes.by_index(BY_POOL, &pool.metadata.name);
                let replicas = |volume: &std::sync::Arc<ReplicatedVolume>| {
                    by_pool.replicas_of(&volume.metadata.name)
                };
                let replicas = volumes.iter().flat_map(replicas);
                replicas.map(|replica| replica.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch_if(
            &views.volumes,
            |old, new| {
                let pool = |volume: &ReplicatedVolume| {
                    let configuration = volume.status.configuration.as_ref();
                    configuration.map(|configuration| configuration.storage_pool_name.clone())
                };
                old.and_then(pool) != new.and_then(pool)
            },
            move |volume| {
                let replicas = by_volume.replicas_of(&volume.metadata.name);
                replicas.iter().map(|replica| replica.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .run(move |context, name| reconcile(this.clone(), context, name))
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, Error> {
    let Some(replica) = shared.views.replicas.find(None, &name) else { return Ok(Outcome::Done) };
    if satisfy::is_being_scheduled(&replica) {
        // The write by scheduling triggers another run.
        return Ok(Outcome::Done);
    }
    let pool = shared.views.pool_of(&replica);
    let now = context.resources.clock().now();
    let mut next = (*replica).clone();
    settle(&mut next, pool.as_deref(), now);
    if next.status == replica.status {
        return Ok(Outcome::Done);
    }
    let settle = |replica: &mut _| settle(replica, pool.as_deref(), now);
    write::set_status(&context.resources, None, &name, "mainstay-replica", settle).await?;
    Ok(Outcome::Done)
}

fn settle(
    replica: &mut ReplicatedVolumeReplica,
    pool: Option<&ReplicatedStoragePool>,
    now: jiff::Timestamp,
) {
    let generation = replica.metadata.generation;
    match satisfy::statement(replica, pool) {
        Some(statement) => {
            conditions::set(&mut replica.status.conditions, &statement, generation, now);
        }
        None => {
            conditions::remove(&mut replica.status.conditions, satisfy::SATISFY);
        }
    }
    replica.status.zone_name = satisfy::zone(replica, pool);
    let (phase, message) = satisfy::phase(replica);
    replica.status.phase = Some(phase);
    replica.status.message = message;
}
