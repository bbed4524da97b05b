//! Pools: computes the eligible nodes, and again when a grace period ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_controller::runtime::{Context, Controller, Handle, Outcome};
use mainstay_controller::write;
use mainstay_store::builtin::Node;
use mainstay_store::resources::{DeleteOptions, Error, Subresource};

use super::{BY_GROUP, BY_POOL, Shared};
use crate::api::{LVMVolumeGroup, ReplicatedStoragePool, UsedBy, ZONE_LABEL};
use crate::conditions::{self, Statement};
use crate::configure;
use crate::eligible::{Eligibility, Error as Ineligible, eligible_nodes};

pub(super) fn start(controller: Controller<String>, shared: &Shared) -> Handle<String> {
    let views = &shared.views;
    let (all, by_group) = (views.pools.clone(), views.pools.clone());
    let this = shared.clone();
    controller
        .watch_if(
            &views.pools,
            |old, new| old.map(|pool| &pool.spec) != new.map(|pool| &pool.spec),
            |pool| [pool.metadata.name.clone()],
        )
        .watch_if(
            &views.nodes,
            |old, new| old.map(seen) != new.map(seen),
            move |_| {
                let pools = all.list();
                pools.iter().map(|pool| pool.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch_if(
            &views.groups,
            |old, new| old.map(offers) != new.map(offers),
            move |group| {
                let pools = by_group.by_index(BY_GROUP, &group.metadata.name);
                pools.iter().map(|pool| pool.metadata.name.clone()).collect::<Vec<_>>()
            },
        )
        .watch(&views.classes, |class| [configure::pool_name(class)])
        .run(move |context, name| reconcile(this.clone(), context, name))
}

/// The part of a node that pools depend on; heartbeats do not matter.
fn seen(node: &Node) -> impl PartialEq + use<> {
    let conditions = node.status.conditions.iter();
    let readiness: Vec<_> = conditions
        .map(|condition| (condition.kind.clone(), condition.status, condition.last_transition_time))
        .collect();
    let labels = node.metadata.labels.clone();
    let zone = labels.get(ZONE_LABEL).cloned();
    (labels, zone, node.spec.unschedulable, readiness, node.metadata.deletion_timestamp)
}

/// The part of a group that pools depend on; free space does not matter.
fn offers(group: &LVMVolumeGroup) -> impl PartialEq + use<> {
    let thin: Vec<(String, bool)> =
        group.status.thin_pools.iter().map(|pool| (pool.name.clone(), pool.ready)).collect();
    let node = group.spec.local.node_name.clone();
    let closed = (group.is_unschedulable(), group.is_evicted());
    (node, group.is_ready(""), closed, thin, group.spec.thin_pools.clone())
}

async fn reconcile(shared: Shared, context: Context, name: String) -> Result<Outcome, Error> {
    let Some(pool) = shared.views.pool(&name) else { return Ok(Outcome::Done) };
    let options = write::options("mainstay-storagepool");
    let classes = shared.views.classes.by_index(BY_POOL, &name);
    let made_for_a_class = name.starts_with("auto-rsp-");
    let unused = || shared.views.volumes.by_index(BY_POOL, &name).is_empty();
    if made_for_a_class && classes.is_empty() && unused() {
        let delete = DeleteOptions::default();
        let deleted = context.resources;
        deleted.delete_as::<ReplicatedStoragePool>(None, &name, &delete, &options).await?;
        return Ok(Outcome::Done);
    }
    let now = context.resources.clock().now();
    let nodes = shared.views.nodes.list();
    let groups: BTreeMap<String, Arc<LVMVolumeGroup>> = pool
        .spec
        .lvm_volume_groups
        .iter()
        .filter_map(|reference| {
            let group = shared.views.groups.find(None, &reference.name)?;
            Some((reference.name.clone(), group))
        })
        .collect();
    let found = eligible_nodes(&pool.spec, nodes.iter().map(Arc::as_ref), &groups, now);
    let mut names: Vec<String> = classes.iter().map(|class| class.metadata.name.clone()).collect();
    names.sort();
    let used_by = (!names.is_empty()).then_some(UsedBy { replicated_storage_class_names: names });
    let mut next = (*pool).clone();
    settle(&mut next, &found, used_by.clone(), now);
    if next.status != pool.status {
        let status = Some(Subresource::Status);
        let written = context
            .resources
            .modify_as(None, &name, status, &options, |pool: &mut ReplicatedStoragePool| {
                settle(pool, &found, used_by.clone(), now);
            })
            .await;
        write::or_gone(written)?;
    }
    let again = found.ok().and_then(|found| found.look_again);
    let wait = again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    Ok(wait.map_or(Outcome::Done, |wait| Outcome::After(wait + Duration::from_millis(1))))
}

/// Computes a pool's status. If the eligible nodes cannot be computed, the old list stays.
fn settle(
    pool: &mut ReplicatedStoragePool,
    found: &Result<Eligibility, Ineligible>,
    used_by: Option<UsedBy>,
    now: Timestamp,
) {
    let generation = pool.metadata.generation;
    let status = &mut pool.status;
    let statement = match found {
        Ok(found) => {
            if status.eligible_nodes != found.nodes || status.eligible_nodes_revision == 0 {
                status.eligible_nodes.clone_from(&found.nodes);
                status.eligible_nodes_revision += 1;
            }
            Statement::new("Ready", true, "Ready", "eligible nodes are known")
        }
        Err(error) => Statement::new("Ready", false, error.reason(), error.to_string()),
    };
    status.phase = if found.is_ok() { "Ready" } else { "NotReady" }.to_owned();
    status.message = if found.is_ok() { String::new() } else { statement.message.clone() };
    status.used_by = used_by;
    conditions::set(&mut status.conditions, &statement, generation, now);
}
