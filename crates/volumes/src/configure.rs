//! Derives the configuration of volumes from their class: number of replicas, pool, guarantees.

use crate::api::{
    Configuration, ReplicatedStorageClass, ReplicatedStoragePoolSpec, Replication, Storage,
};
use crate::fnv::fnv1a_128;

/// The wanted numbers of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNumbers {
    /// Replicas that hold the data.
    pub diskful: usize,
    /// Replicas that only vote.
    pub tie_breakers: usize,
}

/// The numbers of replicas for these guarantees: failures to tolerate plus redundancy plus one with
/// data, and a tie-breaker if an even number of them must survive the loss of half.
#[must_use]
pub fn wanted((failures, redundancy): (u8, u8)) -> ReplicaNumbers {
    let diskful = usize::from(failures) + usize::from(redundancy) + 1;
    let tie = diskful.is_multiple_of(2) && usize::from(failures) == diskful / 2;
    ReplicaNumbers { diskful, tie_breakers: usize::from(tie) }
}

/// The configuration of volumes of a class.
#[must_use]
pub fn configuration(class: &ReplicatedStorageClass) -> Configuration {
    let spec = &class.spec;
    let guarantees = spec.guarantees();
    Configuration {
        topology: spec.topology,
        replication: Replication::of(guarantees),
        failures_to_tolerate: Some(guarantees.0),
        guaranteed_minimum_data_redundancy: Some(guarantees.1),
        volume_access: spec.volume_access,
        storage_pool_name: pool_name(class),
        placement_strategy: spec.placement_strategy,
        zone_fallback: spec.zone_fallback,
    }
}

/// The pool of a class: the one it names, or one created from its own groups. Classes with the same
/// groups, zones and nodes share a pool.
#[must_use]
pub fn pool_name(class: &ReplicatedStorageClass) -> String {
    match own_pool(class) {
        None => class.spec.storage_pool_name.clone(),
        Some(spec) => {
            // Serializing plain data with string keys cannot fail.
            let text = serde_json::to_vec(&spec).unwrap_or_default();
            format!("auto-rsp-{:032x}", fnv1a_128(&[&text]))
        }
    }
}

/// The spec of the pool to create for a class; `None` if it names an existing one.
#[must_use]
pub fn own_pool(class: &ReplicatedStorageClass) -> Option<ReplicatedStoragePoolSpec> {
    let spec = &class.spec;
    let Storage { kind, lvm_volume_groups } = spec.storage.clone()?;
    let mut groups = lvm_volume_groups;
    groups.sort();
    let mut zones = spec.zones.clone();
    zones.sort();
    Some(ReplicatedStoragePoolSpec {
        kind,
        lvm_volume_groups: groups,
        zones,
        node_label_selector: spec.node_label_selector.clone(),
        system_network_names: spec.system_network_names.clone(),
        eligible_nodes_policy: spec.eligible_nodes_policy.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantees_determine_the_numbers_of_replicas() {
        let table = [
            ((0, 0), (1, 0)),
            ((1, 0), (2, 1)),
            ((0, 1), (2, 0)),
            ((1, 1), (3, 0)),
            ((2, 1), (4, 1)),
            ((1, 2), (4, 0)),
            ((2, 2), (5, 0)),
        ];
        for (guarantees, (diskful, tie_breakers)) in table {
            assert_eq!(
                wanted(guarantees),
                ReplicaNumbers { diskful, tie_breakers },
                "{guarantees:?}"
            );
        }
    }
}
