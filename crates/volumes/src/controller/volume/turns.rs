//! Rolling changes: a few volumes at a time follow a change of their class, or have misplaced replicas
//! replaced.
//!
//! Volumes take turns in the order of their names. A turn lasts until the volume is Ready again; then
//! the next waiting volumes are reconciled.

use std::collections::BTreeSet;

use super::super::{CONFIGURED, DEGRADED, MISPLACED, Views};
use crate::api::{
    ConflictResolution, ReplicatedStorageClass, ReplicatedVolume, ReplicatedVolumeReplica, Rollout,
    VolumePhase,
};
use crate::satisfy::is_misplaced;

fn count(most: u32) -> usize {
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// The index value of a volume: its class and the generation of its configuration.
pub(in super::super) fn configured(volume: &ReplicatedVolume) -> Option<String> {
    volume.status.configuration.as_ref()?;
    let generation = volume.status.configuration_generation?;
    Some(key(&volume.spec.replicated_storage_class_name, generation))
}

/// The same, for a volume that is not Ready.
pub(in super::super) fn degraded(volume: &ReplicatedVolume) -> Option<String> {
    configured(volume).filter(|_| is_degraded(volume))
}

fn key(class: &str, generation: i64) -> String {
    format!("{class} {generation}")
}

fn is_degraded(volume: &ReplicatedVolume) -> bool {
    volume.status.phase == Some(VolumePhase::Degraded)
}

/// The first volumes of a class, by name, with an older configuration than the class.
fn behind(views: &Views, class: &ReplicatedStorageClass, most: usize) -> BTreeSet<String> {
    let name = &class.metadata.name;
    let newest = class.status.configuration_generation.unwrap_or_default();
    let mut names: BTreeSet<String> = (1..newest)
        .flat_map(|older| views.volumes.first_by_index(CONFIGURED, &key(name, older), most))
        .map(|volume| volume.metadata.name.clone())
        .collect();
    while names.len() > most {
        names.pop_last();
    }
    names
}

fn at_once(class: &ReplicatedStorageClass) -> usize {
    let update = class.spec.configuration_rollout_strategy.rolling_update;
    count(update.unwrap_or_default().max_parallel)
}

/// Whether it is a volume's turn to follow its class.
pub(super) fn follows(
    views: &Views,
    volume: &ReplicatedVolume,
    class: &ReplicatedStorageClass,
) -> bool {
    if class.spec.configuration_rollout_strategy.kind == Rollout::NewVolumesOnly {
        return false;
    }
    let most = at_once(class);
    let newest = class.status.configuration_generation.unwrap_or_default();
    let changing = views.volumes.first_by_index(DEGRADED, &key(&class.metadata.name, newest), most);
    behind(views, class, most - changing.len()).contains(&volume.metadata.name)
}

/// The volumes whose turn may come after that of `volume`.
pub(super) fn next_to_follow(views: &Views, volume: &ReplicatedVolume) -> BTreeSet<String> {
    let class = views.class(&volume.spec.replicated_storage_class_name);
    class.map(|class| behind(views, &class, at_once(&class))).unwrap_or_default()
}

/// Whether a change of a volume ends its turn.
pub(super) fn has_followed(old: Option<&ReplicatedVolume>, new: Option<&ReplicatedVolume>) -> bool {
    let Some(old) = old else { return false };
    new.is_none_or(|new| {
        old.status.configuration_generation != new.status.configuration_generation
            || (is_degraded(old) && !is_degraded(new))
    })
}

/// The first volumes of a class, by name, with misplaced replicas.
fn misplaced(views: &Views, class: &ReplicatedStorageClass) -> Vec<String> {
    let repair = class.spec.eligible_nodes_conflict_resolution_strategy.rolling_repair;
    let most = count(repair.unwrap_or_default().max_parallel);
    let mut names = BTreeSet::new();
    for replica in views.replicas.by_index(MISPLACED, "yes") {
        let volume = views.volume(&replica.spec.replicated_volume_name);
        if volume.is_some_and(|it| it.spec.replicated_storage_class_name == class.metadata.name) {
            names.insert(replica.spec.replicated_volume_name.clone());
        }
    }
    names.into_iter().take(most).collect()
}

/// Whether it is a volume's turn to have misplaced replicas replaced.
pub(super) fn repairs(views: &Views, class: &ReplicatedStorageClass, volume: &str) -> bool {
    let strategy = class.spec.eligible_nodes_conflict_resolution_strategy;
    strategy.kind != ConflictResolution::Manual
        && views.replicas_of(volume).iter().any(|replica| is_misplaced(replica))
        && misplaced(views, class).iter().any(|name| name == volume)
}

/// The volumes whose turn may come when `replica` is gone, or no longer misplaced.
pub(super) fn next_to_repair(views: &Views, replica: &ReplicatedVolumeReplica) -> Vec<String> {
    let volume = views.volume(&replica.spec.replicated_volume_name);
    let class = volume.and_then(|it| views.class(&it.spec.replicated_storage_class_name));
    class.map(|class| misplaced(views, &class)).unwrap_or_default()
}

/// Whether a change of a replica ends its volume's turn.
pub(super) fn is_repaired(
    old: Option<&ReplicatedVolumeReplica>,
    new: Option<&ReplicatedVolumeReplica>,
) -> bool {
    old.is_some_and(is_misplaced) && !new.is_some_and(is_misplaced)
}
