//! The pure part of the scheduling controller: guards, the input of placement, and the Scheduled
//! condition.

use std::collections::BTreeSet;

use mainstay_placement::{Pass, Replica, ReplicaDecision, Unavailable, Volume};
use mainstay_store::meta::ConditionStatus;

use crate::api::{
    Configuration, RESERVATION_ANNOTATION, ReplicatedStoragePool, ReplicatedVolume,
    ReplicatedVolumeReplica,
};
use crate::conditions::Statement;
use crate::configure::wanted;
use crate::fnv::fnv1a_128;
use crate::ledger::Claim;

/// The condition this controller sets.
pub const SCHEDULED: &str = "Scheduled";

/// A missing object that scheduling waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The volume does not exist.
    NoVolume,
    /// The volume has no configuration.
    NoConfiguration,
    /// The pool does not exist.
    NoPool,
}

impl Guard {
    /// The condition of every replica meanwhile.
    #[must_use]
    pub fn statement(self) -> Statement {
        let message = match self {
            Self::NoVolume => "ReplicatedVolume not found; waiting for it to be present",
            Self::NoConfiguration => {
                "ReplicatedVolume has no configuration yet; waiting for it to appear"
            }
            Self::NoPool => "ReplicatedStoragePool not found; waiting for it to be present",
        };
        let status = ConditionStatus::Unknown;
        Statement::new(SCHEDULED, status, "WaitingForReplicatedVolume", message)
    }
}

/// The configuration and pool of a volume, or the object that scheduling waits for.
///
/// # Errors
/// The first guard that holds.
pub fn guard<'a>(
    volume: Option<&'a ReplicatedVolume>,
    pool: impl FnOnce(&str) -> Option<&'a ReplicatedStoragePool>,
) -> Result<(&'a ReplicatedVolume, &'a Configuration, &'a ReplicatedStoragePool), Guard> {
    let volume = volume.ok_or(Guard::NoVolume)?;
    let configuration = volume.status.configuration.as_ref().ok_or(Guard::NoConfiguration)?;
    let pool = pool(&configuration.storage_pool_name).ok_or(Guard::NoPool)?;
    Ok((volume, configuration, pool))
}

/// The volume as input of placement.
#[must_use]
pub fn volume<'a>(
    configuration: &Configuration,
    pool: &ReplicatedStoragePool,
    replicas: impl IntoIterator<Item = &'a ReplicatedVolumeReplica>,
    attach_to: BTreeSet<String>,
) -> Volume {
    Volume {
        topology: configuration.topology,
        required_diskful: wanted(configuration.guarantees()).diskful,
        volume_access: configuration.volume_access,
        pool_type: pool.spec.kind,
        attach_to,
        strategy: configuration.placement_strategy,
        zone_fallback: configuration.zone_fallback,
        replicas: replicas.into_iter().map(replica).collect(),
    }
}

/// The replica as input of placement.
#[must_use]
pub fn replica(replica: &ReplicatedVolumeReplica) -> Replica {
    Replica {
        id: replica.id(),
        kind: replica.spec.kind,
        node_name: replica.spec.node_name.clone(),
        lvg: replica.spec.lvm_volume_group_name.clone(),
        thin_pool: replica.spec.lvm_volume_group_thin_pool_name.clone(),
        deleting: replica.deleting(),
    }
}

/// The condition of a placed replica.
#[must_use]
pub fn scheduled() -> Statement {
    Statement::new(SCHEDULED, true, "Scheduled", "Replica scheduled successfully")
}

/// The condition for a decision; `None` removes it.
#[must_use]
pub fn statement(decision: &ReplicaDecision) -> Option<Statement> {
    let (status, reason, message) = match decision {
        ReplicaDecision::Access => return None,
        ReplicaDecision::AlreadyScheduled | ReplicaDecision::Placed(_) => return Some(scheduled()),
        ReplicaDecision::Failed(summary) => (false, "SchedulingFailed", summary.clone()),
        ReplicaDecision::ExtenderUnavailable(call) => {
            (false, "ExtenderUnavailable", unavailable(*call).to_owned())
        }
    };
    Some(Statement::new(SCHEDULED, status, reason, message))
}

/// The message about a failed call to the extender.
#[must_use]
pub fn unavailable(call: Unavailable) -> &'static str {
    match call {
        Unavailable::Scoring => {
            "Scheduling is temporarily unavailable: capacity scoring service is unreachable"
        }
        Unavailable::Narrowing => {
            "Scheduling is temporarily unavailable: failed to confirm capacity reservation"
        }
    }
}

/// The id under which an external extender reserves for a replica: the volume's annotation, or one
/// computed from the replica.
#[must_use]
pub fn reservation_id(volume: &ReplicatedVolume, replica: &ReplicatedVolumeReplica) -> String {
    let annotation = volume.metadata.annotations.get(RESERVATION_ANNOTATION);
    if let Some(id) = annotation.filter(|id| !id.is_empty()) {
        return id.clone();
    }
    let lvg = replica.spec.lvm_volume_group_name.as_bytes();
    let thin_pool = replica.spec.lvm_volume_group_thin_pool_name.as_bytes();
    format!("{}-{:032x}", replica.metadata.name, fnv1a_128(&[lvg, thin_pool]))
}

/// The claim of a replica to the ledger.
#[must_use]
pub fn claim(volume: &ReplicatedVolume, replica: &str) -> Claim {
    Claim {
        holder: replica.to_owned(),
        volume: volume.metadata.name.clone(),
        size: u64::try_from(volume.spec.size.value()).unwrap_or_default(),
        replicated: is_replicated(volume),
    }
}

/// Whether a volume has more than one replica.
#[must_use]
pub fn is_replicated(volume: &ReplicatedVolume) -> bool {
    let configuration = volume.status.configuration.as_ref();
    configuration.is_some_and(|configuration| configuration.guarantees() != (0, 0))
}

/// A warning about the present placement of the volume.
#[must_use]
pub fn warning(pass: &Pass<'_>) -> Option<String> {
    let zones = pass.torn_zones();
    (!zones.is_empty()).then(|| {
        format!(
            "Diskful replicas of a Zonal volume are spread evenly over several zones: {}",
            zones.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use mainstay_placement::ReplicaType;

    use super::*;
    use crate::api::{ReplicatedVolumeReplicaSpec, ReplicatedVolumeReplicaStatus};

    #[test]
    fn reservation_ids_follow_the_contract() {
        let mut volume = ReplicatedVolume::default();
        let mut replica = ReplicatedVolumeReplica {
            metadata: Default::default(),
            spec: ReplicatedVolumeReplicaSpec {
                replicated_volume_name: "rv-test".to_owned(),
                kind: ReplicaType::Diskful,
                node_name: String::new(),
                lvm_volume_group_name: String::new(),
                lvm_volume_group_thin_pool_name: String::new(),
            },
            status: ReplicatedVolumeReplicaStatus::default(),
        };
        replica.metadata.name = "rv-test-0".to_owned();
        for (lvg, thin, expected) in [
            ("", "", "rv-test-0-d228cb69101a8caf78912b704e4a147f"),
            ("vg-a", "", "rv-test-0-e0564245aa83d94f70816f70ba546cfc"),
            ("vg-a", "thin-a", "rv-test-0-14609268297a6e508ce870f5b8dcd71d"),
        ] {
            lvg.clone_into(&mut replica.spec.lvm_volume_group_name);
            thin.clone_into(&mut replica.spec.lvm_volume_group_thin_pool_name);
            assert_eq!(reservation_id(&volume, &replica), expected);
        }
        let annotations = &mut volume.metadata.annotations;
        annotations.insert(RESERVATION_ANNOTATION.to_owned(), "ns/pvc-123".to_owned());
        assert_eq!(reservation_id(&volume, &replica), "ns/pvc-123");
    }
}
