//! ReplicatedStorageClass: how many replicas a volume has, and where they may be.

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

/// ReplicatedStorageClass says how volumes are kept: with how many replicas, in which zones, on
/// which pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClass {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What volumes of this class shall be like.
    pub spec: ReplicatedStorageClassSpec,
    /// What became of it.
    #[serde(default)]
    pub status: ReplicatedStorageClassStatus,
}

/// What volumes of a class shall be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClassSpec {
    /// The volume groups of this class. A pool is made of them. Either this or storagePoolName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// An existing ReplicatedStoragePool. Either this or storage.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_pool_name: String,
    /// What happens to a volume whose claim is gone.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// How much may fail. None keeps one replica, Availability two and a tie-breaker, Consistency
    /// two, ConsistencyAndAvailability three. Defaults to ConsistencyAndAvailability unless
    /// failuresToTolerate or guaranteedMinimumDataRedundancy is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
    /// How many replicas may fail while the volume stays usable: 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub failures_to_tolerate: Option<u8>,
    /// How many copies beyond the first are certain at any time: 0 to 2, and at most one away from
    /// failuresToTolerate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub guaranteed_minimum_data_redundancy: Option<u8>,
    /// Where volumes may be used: Local, EventuallyLocal, PreferablyLocal or Any.
    #[serde(default)]
    pub volume_access: VolumeAccess,
    /// Zonal keeps all replicas in one zone, TransZonal spreads them evenly, Ignored does not look
    /// at zones.
    #[serde(default)]
    pub topology: Topology,
    /// The zones that may be used; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub zones: Vec<String>,
    /// Which nodes may be used; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_label_selector: Option<LabelSelector>,
    /// The networks over which replicas talk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub system_network_names: Vec<String>,
    /// How existing volumes follow changes of this class.
    #[serde(default)]
    pub configuration_rollout_strategy: ConfigurationRolloutStrategy,
    /// What is done about replicas on nodes that are no longer eligible.
    #[serde(default)]
    pub eligible_nodes_conflict_resolution_strategy: ConflictResolutionStrategy,
    /// When a node stops being eligible.
    #[serde(default)]
    pub eligible_nodes_policy: EligibleNodesPolicy,
    /// Greedy places replicas one by one, each as well as it can be. AllOrNothing places all
    /// replicas of a volume or none.
    #[serde(default)]
    pub placement_strategy: Strategy,
    /// What a TransZonal volume does about a zone that can take nothing: Never goes elsewhere, or
    /// leaves it out of the balance WhenUnusable.
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

/// What happens to a volume whose claim is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays.
    Retain,
}

/// How much may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Replication {
    /// Nothing.
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
    /// How many volumes follow at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<MaxParallel>,
}

/// Whether existing volumes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Rollout {
    /// They do, a few at a time.
    #[default]
    RollingUpdate,
    /// They do not.
    NewVolumesOnly,
}

/// How many volumes may change at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaxParallel {
    /// How many volumes may change at once.
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

/// What is done about replicas on nodes that are no longer eligible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictResolutionStrategy {
    /// RollingRepair replaces them, Manual only reports them.
    #[serde(default, rename = "type")]
    pub kind: ConflictResolution,
    /// How many volumes are repaired at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_repair: Option<MaxParallel>,
}

/// Whether replicas in the wrong place are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictResolution {
    /// They are, a few volumes at a time.
    #[default]
    RollingRepair,
    /// They are only reported.
    Manual,
}

/// What became of a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStorageClassStatus {
    /// Ready, or why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// What volumes of this class are configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// Counts changes of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_generation: Option<i64>,
    /// The pool of this class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_pool_name: String,
    /// The revision of the pool's eligible nodes that was last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_pool_eligible_nodes_revision: Option<i64>,
    /// How the volumes of this class are doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumeCounts>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How the volumes of a class are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeCounts {
    /// How many there are.
    #[serde(default)]
    pub total: u32,
    /// How many have not been looked at yet.
    #[serde(default)]
    pub pending_observation: u32,
    /// How many are as the class says.
    #[serde(default)]
    pub aligned: u32,
    /// How many have an older configuration.
    #[serde(default)]
    pub stale_configuration: u32,
    /// How many have replicas on nodes that are no longer eligible.
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

/// The fewest zones over which a volume with these guarantees can be spread.
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
