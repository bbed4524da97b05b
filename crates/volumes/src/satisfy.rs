//! Decides whether a replica is still on an eligible node: condition SatisfyEligibleNodes.

use mainstay_placement::{EligibleNode, ReplicaType};
use mainstay_store::meta::ConditionStatus;

use crate::api::{ReplicaPhase, ReplicatedStoragePool, ReplicatedVolumeReplica};
use crate::conditions::{self, Statement};
use crate::schedule::SCHEDULED;

/// The condition the replica controller sets.
pub const SATISFY: &str = "SatisfyEligibleNodes";

/// The condition of a replica; `None` while it has no node.
#[must_use]
pub fn statement(
    replica: &ReplicatedVolumeReplica,
    pool: Option<&ReplicatedStoragePool>,
) -> Option<Statement> {
    let spec = &replica.spec;
    if spec.node_name.is_empty() {
        return None;
    }
    let Some(pool) = pool else {
        let message = "waiting for the volume and its pool";
        let status = ConditionStatus::Unknown;
        return Some(Statement::new(SATISFY, status, "WaitingForReplicatedVolume", message));
    };
    let (reason, message) = match node(pool, &spec.node_name) {
        None => ("NodeMismatch", format!("node {} is not eligible", spec.node_name)),
        Some(node) if has_group(replica) => {
            let group = &spec.lvm_volume_group_name;
            let thin = &spec.lvm_volume_group_thin_pool_name;
            let mut same = node.lvm_volume_groups.iter().filter(|other| other.name == *group);
            match (same.clone().next(), same.any(|other| other.thin_pool_name == *thin)) {
                (None, _) => (
                    "LVMVolumeGroupMismatch",
                    format!("volume group {group} is not one of the pool's on {}", spec.node_name),
                ),
                (Some(_), false) => (
                    "ThinPoolMismatch",
                    format!("thin pool {thin:?} of {group} is not one of the pool's"),
                ),
                (Some(_), true) => ("Satisfied", "replica is on an eligible node".to_owned()),
            }
        }
        Some(_) => ("Satisfied", "replica is on an eligible node".to_owned()),
    };
    Some(Statement::new(SATISFY, reason == "Satisfied", reason, message))
}

fn has_group(replica: &ReplicatedVolumeReplica) -> bool {
    replica.spec.kind.has_disk() && !replica.spec.lvm_volume_group_name.is_empty()
}

fn node<'a>(pool: &'a ReplicatedStoragePool, name: &str) -> Option<&'a EligibleNode> {
    let nodes = &pool.status.eligible_nodes;
    // The controller sorts the list; a list applied by hand may be unsorted.
    match nodes.binary_search_by(|node| node.node_name.as_str().cmp(name)) {
        Ok(found) => nodes.get(found),
        Err(_) => nodes.iter().find(|node| node.node_name == name),
    }
}

/// The zone of a replica, from its pool.
#[must_use]
pub fn zone(replica: &ReplicatedVolumeReplica, pool: Option<&ReplicatedStoragePool>) -> String {
    let node = pool.and_then(|pool| node(pool, &replica.spec.node_name));
    // A node that is no longer eligible keeps its zone.
    node.map_or_else(|| replica.status.zone_name.clone(), |node| node.zone_name.clone())
}

/// Whether a replica is on a node that is no longer eligible.
#[must_use]
pub fn is_misplaced(replica: &ReplicatedVolumeReplica) -> bool {
    conditions::find(&replica.status.conditions, SATISFY)
        .is_some_and(|condition| condition.status == ConditionStatus::False)
}

/// Whether a replica is placed, by a condition of its current generation.
#[must_use]
pub fn is_scheduled(replica: &ReplicatedVolumeReplica) -> bool {
    let generation = replica.metadata.generation;
    conditions::holds(&replica.status.conditions, SCHEDULED, generation)
        || (replica.spec.kind == ReplicaType::Access && !replica.spec.node_name.is_empty())
}

/// Whether scheduling has not yet set a condition for the replica's current generation.
#[must_use]
pub fn is_being_scheduled(replica: &ReplicatedVolumeReplica) -> bool {
    let scheduled = conditions::find(&replica.status.conditions, SCHEDULED);
    replica.spec.kind != ReplicaType::Access
        && !replica.deleting()
        && scheduled.is_none_or(|it| it.observed_generation != replica.metadata.generation)
}

/// The phase of a replica, and the reason for which it waits.
#[must_use]
pub fn phase(replica: &ReplicatedVolumeReplica) -> (ReplicaPhase, String) {
    let message = |kind| {
        let condition = conditions::find(&replica.status.conditions, kind);
        condition.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    if replica.deleting() {
        (ReplicaPhase::Deleting, String::new())
    } else if is_misplaced(replica) {
        (ReplicaPhase::Misplaced, message(SATISFY))
    } else if is_scheduled(replica) {
        (ReplicaPhase::Scheduled, String::new())
    } else {
        (ReplicaPhase::Pending, message(SCHEDULED))
    }
}
