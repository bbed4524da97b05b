//! Decides which nodes of a pool may hold replicas, and with which groups.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::duration;
use mainstay_controller::liveness::AGENT_READY;
use mainstay_placement::{EligibleGroup, EligibleNode};
use mainstay_store::builtin::Node;
use mainstay_store::meta::ConditionStatus;

use crate::api::{LVMVolumeGroup, ReplicatedStoragePoolSpec, ZONE_LABEL};

/// Why the eligible nodes of a pool cannot be computed. The old list stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A group of the pool does not exist.
    #[error("LVMVolumeGroup not found: {}", .0.join(", "))]
    LVMVolumeGroupNotFound(Vec<String>),
    /// A group of the pool does not match its description.
    #[error("{0}")]
    InvalidLVMVolumeGroup(String),
    /// The selector is invalid.
    #[error("nodeLabelSelector has an operator other than In, NotIn, Exists or DoesNotExist")]
    InvalidNodeLabelSelector,
}

impl Error {
    /// The reason in the pool's Ready condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::LVMVolumeGroupNotFound(_) => "LVMVolumeGroupNotFound",
            Self::InvalidLVMVolumeGroup(_) => "InvalidLVMVolumeGroup",
            Self::InvalidNodeLabelSelector => "InvalidNodeLabelSelector",
        }
    }
}

/// The eligible nodes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eligibility {
    /// Sorted by name.
    pub nodes: Vec<EligibleNode>,
    /// The time at which the first grace period ends, if a node is not ready now.
    pub look_again: Option<Timestamp>,
}

/// Computes the eligible nodes of a pool.
///
/// A node is eligible if it matches the pool's selector and zones and is ready, has never reported
/// its readiness, or has not been ready for at most the grace period. Nodes without groups
/// are listed too: they may hold TieBreakers.
///
/// # Errors
/// If a group is missing or cannot be used, or the selector is invalid.
pub fn eligible_nodes<'a>(
    pool: &ReplicatedStoragePoolSpec,
    nodes: impl IntoIterator<Item = &'a Node>,
    groups: &BTreeMap<String, impl AsRef<LVMVolumeGroup>>,
    now: Timestamp,
) -> Result<Eligibility, Error> {
    let mut offered = offered(pool, groups)?;
    let grace = duration::parse(&pool.eligible_nodes_policy.not_ready_grace_period)
        .unwrap_or(Duration::from_secs(600));
    let mut eligibility = Eligibility::default();
    for node in nodes {
        let labels = &node.metadata.labels;
        let selected = match &pool.node_label_selector {
            None => true,
            Some(selector) => selector.matches(labels).ok_or(Error::InvalidNodeLabelSelector)?,
        };
        let zone = labels.get(ZONE_LABEL).cloned().unwrap_or_default();
        let in_zone = pool.zones.is_empty() || pool.zones.contains(&zone);
        if !selected || !in_zone || node.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let readiness = readiness(node, grace, now);
        if let Some(until) = readiness.grace_ends {
            if until <= now {
                continue;
            }
            eligibility.look_again =
                Some(eligibility.look_again.map_or(until, |other| other.min(until)));
        }
        let name = node.metadata.name.clone();
        eligibility.nodes.push(EligibleNode {
            lvm_volume_groups: offered.remove(&name).unwrap_or_default(),
            node_name: name,
            zone_name: zone,
            unschedulable: node.spec.unschedulable.unwrap_or_default(),
            node_ready: readiness.node,
            agent_ready: readiness.agent,
        });
    }
    eligibility.nodes.sort_by(|a, b| a.node_name.cmp(&b.node_name));
    Ok(eligibility)
}

/// The pool's groups by node, sorted by name.
fn offered(
    pool: &ReplicatedStoragePoolSpec,
    groups: &BTreeMap<String, impl AsRef<LVMVolumeGroup>>,
) -> Result<BTreeMap<String, Vec<EligibleGroup>>, Error> {
    let names = pool.lvm_volume_groups.iter().map(|reference| &reference.name);
    let missing: Vec<String> = names.filter(|name| !groups.contains_key(*name)).cloned().collect();
    if !missing.is_empty() {
        return Err(Error::LVMVolumeGroupNotFound(missing));
    }
    let mut offered: BTreeMap<String, Vec<EligibleGroup>> = BTreeMap::new();
    for reference in &pool.lvm_volume_groups {
        let group = groups[&reference.name].as_ref();
        let thin = &reference.thin_pool_name;
        let known = group.spec.thin_pools.iter().any(|pool| pool.name == *thin)
            || group.thin_pool(thin).is_some();
        if !thin.is_empty() && !known {
            let message = format!("LVMVolumeGroup {} has no thin pool {thin}", reference.name);
            return Err(Error::InvalidLVMVolumeGroup(message));
        }
        // Replicas on a group that is being emptied count as misplaced.
        if group.is_evicted() {
            continue;
        }
        offered.entry(group.spec.local.node_name.clone()).or_default().push(EligibleGroup {
            name: reference.name.clone(),
            thin_pool_name: thin.clone(),
            unschedulable: group.is_unschedulable(),
            ready: group.is_ready(thin),
        });
    }
    for groups in offered.values_mut() {
        groups.sort_by(|a, b| (&a.name, &a.thin_pool_name).cmp(&(&b.name, &b.thin_pool_name)));
    }
    Ok(offered)
}

struct Readiness {
    node: bool,
    agent: bool,
    /// The time at which a node that is not ready stops being eligible.
    grace_ends: Option<Timestamp>,
}

fn readiness(node: &Node, grace: Duration, now: Timestamp) -> Readiness {
    let find = |kind: &str| node.status.conditions.iter().find(|condition| condition.kind == kind);
    let is_true = |status: ConditionStatus| status == ConditionStatus::True;
    let ready = find("Ready");
    let node_ready = ready.is_some_and(|ready| is_true(ready.status));
    let agent = find(AGENT_READY).map_or(node_ready, |agent| is_true(agent.status));
    let grace_ends = ready.filter(|_| !node_ready).map(|ready| {
        let since = ready.last_transition_time.map_or(now, |time| time.timestamp());
        since.checked_add(grace).unwrap_or(Timestamp::MAX)
    });
    Readiness { node: node_ready, agent, grace_ends }
}
