//! ReplicatedStorageClass: the number and places of the replicas of volumes.

use mainstay_placement::{PoolType, Strategy, Topology, VolumeAccess, ZoneFallback};
use mainstay_store::meta::{Condition, ObjectMeta};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pool::{EligibleNodesPolicy, LabelSelector, VolumeGroupReference, check_groups};
use super::volume::Configuration;
use super::{GROUP, VERSION};

/// ReplicatedStorageClass defines the replication of volumes: number of replicas, zones and pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClass {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The replication of volumes of this class.
    pub spec: ReplicatedStorageClassSpec,
    /// The resolved configuration, and counts of volumes.
    #[serde(default)]
    pub status: ReplicatedStorageClassStatus,
}

/// The replication of volumes of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClassSpec {
    /// The volume groups of this class. A pool is created from them. Either this or storagePoolName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// An existing ReplicatedStoragePool. Either this or storage.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_pool_name: String,
    /// Whether a volume is deleted with its claim.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// The failures that volumes survive. None has one replica, Availability two and a tie-breaker,
    /// Consistency two, ConsistencyAndAvailability three. Defaults to ConsistencyAndAvailability unless
    /// failuresToTolerate or guaranteedMinimumDataRedundancy is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
    /// The number of replicas that may fail while the volume stays usable: 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub failures_to_tolerate: Option<u8>,
    /// The number of copies beyond the first that exist at any time: 0 to 2, and at most one away from
    /// failuresToTolerate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub guaranteed_minimum_data_redundancy: Option<u8>,
    /// Where volumes may be used: Local, EventuallyLocal, PreferablyLocal or Any.
    #[serde(default)]
    pub volume_access: VolumeAccess,
    /// Zonal places all replicas in one zone, TransZonal spreads them evenly over zones, Ignored
    /// disregards zones.
    #[serde(default)]
    pub topology: Topology,
    /// The zones that may be used; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub zones: Vec<String>,
    /// Which nodes may be used; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// The networks for traffic between replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_network_names: Vec<String>,
    /// How existing volumes follow changes of this class.
    #[serde(default)]
    pub configuration_rollout_strategy: ConfigurationRolloutStrategy,
    /// How replicas on nodes that are no longer eligible are handled.
    #[serde(default)]
    pub eligible_nodes_conflict_resolution_strategy: ConflictResolutionStrategy,
    /// When a node stops being eligible.
    #[serde(default)]
    pub eligible_nodes_policy: EligibleNodesPolicy,
    /// Greedy places replicas one by one, each in its best place. AllOrNothing places all replicas of a
    /// volume or none.
    #[serde(default)]
    pub placement_strategy: Strategy,
    /// How a TransZonal volume handles a zone without any usable candidate: Never waits for it,
    /// WhenUnusable leaves it out of the balance.
    #[serde(default)]
    pub zone_fallback: ZoneFallback,
}

/// Volume groups of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// LVM for thick volumes, LVMThin for thin ones, File for files.
    #[serde(rename = "type")]
    pub kind: PoolType,
    /// The volume groups.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub lvm_volume_groups: Vec<VolumeGroupReference>,
}

/// Whether a volume is deleted with its claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays.
    Retain,
}

/// The failures that a volume survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Replication {
    /// No failure.
    None,
    /// One replica may fail, and the volume stays usable.
    Availability,
    /// One replica may fail, and no data is lost.
    Consistency,
    /// One replica may fail, the volume stays usable, and no data is lost.
    #[default]
    ConsistencyAndAvailability,
}

/// How existing volumes follow a change of their class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationRolloutStrategy {
    /// RollingUpdate changes existing volumes, NewVolumesOnly leaves them alone.
    #[serde(default, rename = "type")]
    pub kind: Rollout,
    /// The number of volumes that change at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<MaxParallel>,
}

/// Whether existing volumes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Rollout {
    /// Existing volumes follow, a few at a time.
    #[default]
    RollingUpdate,
    /// Existing volumes do not follow.
    NewVolumesOnly,
}

/// The number of volumes that may change at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaxParallel {
    /// The number of volumes that may change at once.
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 200))]
    pub max_parallel: u32,
}

fn five() -> u32 {
    5
}

impl Default for MaxParallel {
    fn default() -> Self {
        Self { max_parallel: five() }
    }
}

/// How replicas on nodes that are no longer eligible are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictResolutionStrategy {
    /// RollingRepair replaces them, Manual only reports them.
    #[serde(default, rename = "type")]
    pub kind: ConflictResolution,
    /// The number of volumes that are repaired at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_repair: Option<MaxParallel>,
}

/// Whether misplaced replicas are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictResolution {
    /// Misplaced replicas are replaced, a few volumes at a time.
    #[default]
    RollingRepair,
    /// Misplaced replicas are only reported.
    Manual,
}

/// The resolved configuration of a class, and counts of its volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClassStatus {
    /// Ready, or the reason why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The configuration of volumes of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// The number of changes of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_generation: Option<i64>,
    /// The pool of this class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_pool_name: String,
    /// The last observed revision of the pool's eligible nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_pool_eligible_nodes_revision: Option<i64>,
    /// Counts of the volumes of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumeCounts>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Counts of the volumes of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeCounts {
    /// All volumes.
    #[serde(default)]
    pub total: u32,
    /// Volumes that have not been processed yet.
    #[serde(default)]
    pub pending_observation: u32,
    /// Volumes with the configuration of the class.
    #[serde(default)]
    pub aligned: u32,
    /// Volumes with an older configuration.
    #[serde(default)]
    pub stale_configuration: u32,
    /// Volumes with replicas on nodes that are no longer eligible.
    #[serde(default)]
    pub in_conflict_with_eligible_nodes: u32,
}

typed!(ReplicatedStorageClass, group: GROUP, version: VERSION, plural: "replicatedstorageclasses", namespaced: false);

impl ReplicatedStorageClassSpec {
    /// Failures to tolerate, and guaranteed minimum data redundancy.
    #[must_use]
    pub fn guarantees(&self) -> (u8, u8) {
        match (self.failures_to_tolerate, self.guaranteed_minimum_data_redundancy) {
            (None, None) => self.replication.unwrap_or_default().guarantees(),
            (failures, redundancy) => {
                (failures.unwrap_or_default(), redundancy.unwrap_or_default())
            }
        }
    }
}

impl Replication {
    /// Failures to tolerate, and guaranteed minimum data redundancy.
    #[must_use]
    pub fn guarantees(self) -> (u8, u8) {
        match self {
            Self::None => (0, 0),
            Self::Availability => (1, 0),
            Self::Consistency => (0, 1),
            Self::ConsistencyAndAvailability => (1, 1),
        }
    }

    /// The name of these guarantees, if they have one.
    #[must_use]
    pub fn of(guarantees: (u8, u8)) -> Option<Self> {
        let all =
            [Self::None, Self::Availability, Self::Consistency, Self::ConsistencyAndAvailability];
        all.into_iter().find(|replication| replication.guarantees() == guarantees)
    }
}

/// The smallest number of zones over which a volume with these guarantees can be spread.
fn fewest_zones(guarantees: (u8, u8)) -> usize {
    match guarantees {
        (0, 0) => 1,
        (0, 1) => 2,
        (2, 1) => 4,
        _ => 3,
    }
}

pub(super) fn kind() -> Kind {
    Kind::of::<ReplicatedStorageClass>()
        .short("rsc")
        .category("storage")
        .status()
        .column(Column::string("Replication", ".status.configuration.replication"))
        .column(Column::string("Topology", ".spec.topology"))
        .column(Column::string("Access", ".spec.volumeAccess"))
        .column(Column::string("Pool", ".status.storagePoolName"))
        .column(Column::string("Phase", ".status.phase"))
        .column(Column::integer("Volumes", ".status.volumes.total"))
        .column(Column::integer("Aligned", ".status.volumes.aligned").wide())
        .column(Column::string("Placement", ".spec.placementStrategy").wide())
        .column(Column::age())
        .selectable("status.storagePoolName")
        .validate(check)
        .build()
}

fn check(new: &ReplicatedStorageClass, _: Option<&ReplicatedStorageClass>) -> Vec<Violation> {
    let spec = &new.spec;
    let mut found = Vec::new();
    match (&spec.storage, spec.storage_pool_name.is_empty()) {
        (Some(storage), true) => {
            let groups = &storage.lvm_volume_groups;
            found.extend(check_groups("spec.storage.lvmVolumeGroups", storage.kind, groups));
        }
        (None, false) => {}
        (None, true) => {
            found.push(Violation::required("spec.storage", "give storage or storagePoolName"));
        }
        (Some(_), false) => found.push(Violation::forbidden(
            "spec.storagePoolName",
            "give either storage or storagePoolName, not both",
        )),
    }
    let guarantees = spec.guarantees();
    let given =
        spec.failures_to_tolerate.is_some() || spec.guaranteed_minimum_data_redundancy.is_some();
    if given && spec.replication.is_some_and(|named| named.guarantees() != guarantees) {
        found.push(Violation::forbidden(
            "spec.replication",
            "contradicts failuresToTolerate and guaranteedMinimumDataRedundancy; give one or the \
             other",
        ));
    }
    if guarantees.0.abs_diff(guarantees.1) > 1 {
        found.push(Violation::invalid(
            "spec.guaranteedMinimumDataRedundancy",
            &Value::from(guarantees.1),
            "must be at most 1 away from failuresToTolerate",
        ));
    }
    if guarantees == (0, 0) && spec.topology != Topology::Ignored {
        found.push(Violation::invalid(
            "spec.topology",
            &serde_json::to_value(spec.topology).unwrap_or_default(),
            "must be Ignored when there is only one replica (replication None)",
        ));
    }
    let fewest = fewest_zones(guarantees);
    if spec.topology == Topology::TransZonal && !spec.zones.is_empty() && spec.zones.len() < fewest
    {
        found.push(Violation::invalid(
            "spec.zones",
            &Value::from(spec.zones.clone()),
            &format!("TransZonal with this replication needs at least {fewest} zones"),
        ));
    }
    found
}
