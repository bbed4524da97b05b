//! ReplicatedVolume: a volume with replicas on several nodes.

use mainstay_placement::{Strategy, Topology, VolumeAccess, ZoneFallback};
use mainstay_store::meta::{Condition, ObjectMeta, Quantity};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::class::Replication;
use super::{FINALIZER, GROUP, VERSION};

/// ReplicatedVolume is a volume with replicas on several nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolume {
    /// Standard object's metadata. The annotation storage.mainstay.dev/scheduling-reservation-id
    /// is the id under which an external extender reserves space for it.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its size and class.
    pub spec: ReplicatedVolumeSpec,
    /// Its phase and configuration.
    #[serde(default)]
    pub status: ReplicatedVolumeStatus,
}

/// The size and class of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeSpec {
    /// Its size. It may grow, not shrink.
    pub size: Quantity,
    /// The ReplicatedStorageClass that defines its replication.
    pub replicated_storage_class_name: String,
    /// The number of nodes that may use it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2))]
    pub max_attachments: Option<u8>,
}

impl Default for ReplicatedVolumeSpec {
    fn default() -> Self {
        let size = Quantity::bytes(0);
        Self { size, replicated_storage_class_name: String::new(), max_attachments: None }
    }
}

/// The replication of a volume, resolved from its class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// How replicas relate to zones.
    #[serde(default)]
    pub topology: Topology,
    /// The name of the guarantees below, if they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
    /// The number of replicas that may fail while the volume stays usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_to_tolerate: Option<u8>,
    /// The number of copies beyond the first that exist at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed_minimum_data_redundancy: Option<u8>,
    /// Where it may be used.
    #[serde(default)]
    pub volume_access: VolumeAccess,
    /// The ReplicatedStoragePool that holds it.
    #[serde(default)]
    pub storage_pool_name: String,
    /// Greedy or AllOrNothing.
    #[serde(default)]
    pub placement_strategy: Strategy,
    /// How zones without any usable candidate are handled.
    #[serde(default)]
    pub zone_fallback: ZoneFallback,
}

impl Configuration {
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

/// The phase and configuration of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeStatus {
    /// Pending, Forming, Ready, Degraded, or Deleting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VolumePhase>,
    /// The reason for which it waits, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The numbers of placed and wanted replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaCounts>,
    /// Its replication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configuration>,
    /// The generation of the class's configuration that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_generation: Option<i64>,
    /// The last observed generation of the class's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_observed_generation: Option<i64>,
    /// The nodes that want to use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "set"))]
    pub desired_attach_to: Vec<String>,
    /// The nodes that use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub actually_attached_to: Vec<String>,
    /// ConfigurationReady and Scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The phase of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumePhase {
    /// Its class has no configuration yet.
    Pending,
    /// Its replicas are being placed.
    Forming,
    /// All replicas are placed.
    Ready,
    /// It was ready, and a replica is missing or misplaced.
    Degraded,
    /// It is being deleted.
    Deleting,
}

/// The numbers of placed and wanted replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaCounts {
    /// Placed replicas.
    #[serde(default)]
    pub placed: u32,
    /// Wanted replicas.
    #[serde(default)]
    pub wanted: u32,
    /// The same as text: placed/wanted.
    #[serde(default)]
    pub summary: String,
}

typed!(ReplicatedVolume, group: GROUP, version: VERSION, plural: "replicatedvolumes", namespaced: false);

/// The longest name of a volume; names of replicas are longer by their ids.
const MAX_NAME: usize = 120;

pub(super) fn kind() -> Kind {
    Kind::of::<ReplicatedVolume>()
        .short("rv")
        .category("storage")
        .status()
        .column(Column::string("Size", ".spec.size"))
        .column(Column::string("Class", ".spec.replicatedStorageClassName"))
        .column(Column::string("Phase", ".status.phase"))
        .column(Column::string("Replicas", ".status.replicas.summary"))
        .column(Column::string("Attached", ".status.desiredAttachTo[*]"))
        .column(Column::string("Topology", ".status.configuration.topology").wide())
        .column(Column::string("Pool", ".status.configuration.storagePoolName").wide())
        .column(Column::string("Message", ".status.message").wide())
        .column(Column::age())
        .selectable("spec.replicatedStorageClassName")
        .selectable("status.configuration.storagePoolName")
        .selectable("status.phase")
        .begin_with(add_finalizer)
        .validate(check)
        .build()
}

/// Adds the finalizer: a volume stays until its replicas are gone.
fn add_finalizer(object: &mut Map<String, Value>) {
    let metadata = object.entry("metadata").or_insert_with(|| Map::new().into());
    let Some(metadata) = metadata.as_object_mut() else { return };
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Vec::<Value>::new().into());
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|finalizer| finalizer == FINALIZER)
    {
        finalizers.push(FINALIZER.into());
    }
}

fn check(new: &ReplicatedVolume, old: Option<&ReplicatedVolume>) -> Vec<Violation> {
    let mut found = Vec::new();
    let size = Value::from(new.spec.size.to_string());
    if new.metadata.name.len() > MAX_NAME {
        found.push(Violation::too_long("metadata.name", MAX_NAME));
    }
    if new.spec.size.value() <= 0 {
        found.push(Violation::invalid("spec.size", &size, "must be greater than 0"));
    }
    if old.is_some_and(|old| new.spec.size < old.spec.size) {
        found.push(Violation::invalid("spec.size", &size, "a volume cannot shrink"));
    }
    if new.spec.replicated_storage_class_name.is_empty() {
        found.push(Violation::required(
            "spec.replicatedStorageClassName",
            "name a ReplicatedStorageClass",
        ));
    }
    found
}
