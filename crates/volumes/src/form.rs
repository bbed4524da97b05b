//! Decides which replicas of a volume to create and delete, and computes its phase.

use std::collections::BTreeSet;

use mainstay_placement::{IdSet, ReplicaType};
use mainstay_store::meta::{Condition, ConditionStatus};

use crate::api::{
    ReplicaCounts, ReplicatedVolume, ReplicatedVolumeReplica, VolumePhase, replica_name,
};
use crate::conditions::{self, Statement};
use crate::configure::ReplicaNumbers;
use crate::satisfy::{is_misplaced, is_scheduled};
use crate::schedule::SCHEDULED;

/// A replica to create, without a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: ReplicaType,
}

/// The replicas of a volume to create and delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Replicas to create, in this order.
    pub create: Vec<NewReplica>,
    /// Replicas to delete.
    pub delete: Vec<String>,
}

/// Brings the replicas of a volume to the wanted number, Diskful before TieBreaker, with the lowest free
/// ids. With `repair`, misplaced replicas are replaced: the new one is created first, and the old one
/// is deleted when the new one is placed.
#[must_use]
pub fn changes(
    volume: &str,
    wanted: ReplicaNumbers,
    replicas: &[impl AsRef<ReplicatedVolumeReplica>],
    repair: bool,
) -> Changes {
    let replicas: Vec<&ReplicatedVolumeReplica> = replicas.iter().map(AsRef::as_ref).collect();
    let mut used: IdSet = replicas.iter().map(|replica| replica.id()).collect();
    let mut changes = Changes::default();
    let kinds =
        [(ReplicaType::Diskful, wanted.diskful), (ReplicaType::TieBreaker, wanted.tie_breakers)];
    for (kind, wanted) in kinds {
        let (misplaced, mut good): (Vec<_>, Vec<_>) = replicas
            .iter()
            .copied()
            .filter(|replica| replica.spec.kind == kind && !replica.deleting())
            .partition(|replica| repair && is_misplaced(replica));
        for _ in good.len()..wanted {
            let Some(id) = used.lowest_free() else { break };
            used.insert(id);
            changes.create.push(NewReplica { name: replica_name(volume, id), kind });
        }
        // Unplaced replicas are deleted first, then the youngest.
        good.sort_by_key(|replica| (!is_scheduled(replica), replica.id()));
        let excess = good.split_off(good.len().min(wanted));
        let settled = good.len() == wanted && good.iter().all(|replica| is_scheduled(replica));
        let replaced = misplaced.into_iter().filter(|_| settled);
        let superfluous = excess.into_iter().chain(replaced);
        changes.delete.extend(superfluous.map(|replica| replica.metadata.name.clone()));
    }
    changes
}

/// The replicas to delete next of a volume that is being deleted: Access first, then TieBreaker, then
/// those with data.
#[must_use]
pub fn deletions(replicas: &[impl AsRef<ReplicatedVolumeReplica>]) -> Vec<String> {
    let rank = |kind: ReplicaType| match kind {
        ReplicaType::Access => 0,
        ReplicaType::TieBreaker => 1,
        ReplicaType::ShadowDiskful => 2,
        ReplicaType::Diskful => 3,
    };
    let replicas = || replicas.iter().map(AsRef::as_ref);
    let first = replicas().map(|replica| rank(replica.spec.kind)).min();
    replicas()
        .filter(|replica| Some(rank(replica.spec.kind)) == first && !replica.deleting())
        .map(|replica| replica.metadata.name.clone())
        .collect()
}

/// The progress of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The phase.
    pub phase: VolumePhase,
    /// The reason for which it waits; empty if it does not.
    pub message: String,
    /// The numbers of placed and wanted replicas.
    pub replicas: Option<ReplicaCounts>,
    /// The Scheduled condition of the volume.
    pub statement: Statement,
    /// Scheduling is still running: the fields above need not be written yet.
    pub passing: bool,
}

/// The progress of a volume, from its replicas.
#[must_use]
pub fn progress(
    volume: &ReplicatedVolume,
    wanted: Option<ReplicaNumbers>,
    waiting_for: &str,
    replicas: &[impl AsRef<ReplicatedVolumeReplica>],
) -> Progress {
    let replicas: Vec<&ReplicatedVolumeReplica> = replicas.iter().map(AsRef::as_ref).collect();
    if volume.metadata.deletion_timestamp.is_some() {
        let message = match replicas.len() {
            0 => String::new(),
            left => format!("{left} replicas are left to be deleted"),
        };
        let statement = Statement::new(SCHEDULED, false, "Deleting", "the volume is being deleted");
        let phase = VolumePhase::Deleting;
        return Progress { phase, message, replicas: None, statement, passing: false };
    }
    let Some(wanted) = wanted else {
        let message = waiting_for.to_owned();
        let statement = Statement::new(SCHEDULED, false, "WaitingForClass", waiting_for);
        let phase = VolumePhase::Pending;
        return Progress { phase, message, replicas: None, statement, passing: false };
    };
    let total = wanted.diskful + wanted.tie_breakers;
    let placed = |kind, wanted: usize| {
        let placed = replicas.iter().filter(|replica| {
            replica.spec.kind == kind && !replica.deleting() && is_scheduled(replica)
        });
        placed.count().min(wanted)
    };
    let count = placed(ReplicaType::Diskful, wanted.diskful)
        + placed(ReplicaType::TieBreaker, wanted.tie_breakers);
    let misplaced: BTreeSet<&str> = replicas
        .iter()
        .filter(|replica| is_misplaced(replica))
        .map(|replica| replica.metadata.name.as_str())
        .collect();
    let was_ready = matches!(volume.status.phase, Some(VolumePhase::Ready | VolumePhase::Degraded));
    let done = count == total && misplaced.is_empty();
    let phase = match (done, was_ready) {
        (true, _) => VolumePhase::Ready,
        (false, true) => VolumePhase::Degraded,
        (false, false) => VolumePhase::Forming,
    };
    let mut message = String::new();
    if count < total {
        message = format!("{} of {total} replicas wait for a place", total - count);
        let reasons: BTreeSet<&str> = replicas
            .iter()
            .filter(|replica| !replica.deleting() && !is_scheduled(replica))
            .filter_map(|replica| conditions::find(&replica.status.conditions, SCHEDULED))
            .map(|condition| condition.message.as_str())
            .filter(|message| !message.is_empty())
            .collect();
        if !reasons.is_empty() {
            message += ": ";
            message += &reasons.into_iter().collect::<Vec<_>>().join(" | ");
        }
    } else if !misplaced.is_empty() {
        let names = misplaced.into_iter().collect::<Vec<_>>().join(", ");
        message = format!("on nodes that are no longer eligible: {names}");
    }
    let passing = volume.status.phase == Some(VolumePhase::Forming) && is_passing(&replicas);
    let text = if message.is_empty() { "all replicas have their places" } else { &message };
    let reason = if count == total { "Scheduled" } else { "WaitingForPlacement" };
    let statement = Statement::new(SCHEDULED, count == total, reason, text);
    let replicas = ReplicaCounts {
        placed: u32::try_from(count).unwrap_or_default(),
        wanted: u32::try_from(total).unwrap_or_default(),
        summary: format!("{count}/{total}"),
    };
    Progress { phase, message, replicas: Some(replicas), statement, passing }
}

/// Whether scheduling is still running: a replica has no current condition, and none has failed.
fn is_passing(replicas: &[&ReplicatedVolumeReplica]) -> bool {
    let scheduled = replicas
        .iter()
        .filter(|replica| replica.spec.kind != ReplicaType::Access && !replica.deleting())
        .map(|replica| {
            let condition = conditions::find(&replica.status.conditions, SCHEDULED);
            let current = |it: &&Condition| it.observed_generation == replica.metadata.generation;
            condition.filter(current).map(|it| it.status)
        });
    let (mut unheard, mut refused) = (false, false);
    for status in scheduled {
        unheard |= status.is_none();
        refused |= status.is_some_and(|status| status != ConditionStatus::True);
    }
    unheard && !refused
}
