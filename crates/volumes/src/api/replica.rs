//! ReplicatedVolumeReplica: one copy (or vote, or access path) of a volume on one node.

use mainstay_placement::ReplicaType;
use mainstay_store::meta::{Condition, ObjectMeta, Quantity};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GROUP, VERSION};

/// ReplicatedVolumeReplica is one replica of a ReplicatedVolume. Its name is that of the volume, a
/// dash, and an id from 0 to 31.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeReplica {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its volume, type and place.
    pub spec: ReplicatedVolumeReplicaSpec,
    /// Its phase, zone and backing space.
    #[serde(default)]
    pub status: ReplicatedVolumeReplicaStatus,
}

/// The volume, type and place of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeReplicaSpec {
    /// The volume it belongs to. It cannot change.
    #[schemars(length(min = 1, max = 120))]
    pub replicated_volume_name: String,
    /// Diskful holds the data, TieBreaker only votes, Access only reaches the data of others;
    /// ShadowDiskful holds the data without a vote.
    #[serde(rename = "type")]
    pub kind: ReplicaType,
    /// The node. Chosen by scheduling; once set it cannot change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The volume group on that node. Chosen by scheduling.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvm_volume_group_name: String,
    /// The thin pool in that group. Chosen by scheduling.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvm_volume_group_thin_pool_name: String,
}

/// The phase, zone and backing space of a replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeReplicaStatus {
    /// Its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ReplicaPhase>,
    /// The reason for which it waits, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The zone of its node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zone_name: String,
    /// Its backing space. The node's agent reports it after the group's free space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing_volume: Option<Backing>,
    /// Scheduled and SatisfyEligibleNodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The backing space of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backing {
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// UpToDate, or the reason why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// The volume group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvm_volume_group_name: String,
    /// The thin pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvm_volume_group_thin_pool_name: String,
}

/// The phase of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplicaPhase {
    /// It has no place yet.
    Pending,
    /// It has a place.
    Scheduled,
    /// Its place is no longer eligible.
    Misplaced,
    /// It is being deleted.
    Deleting,
}

typed!(ReplicatedVolumeReplica, group: GROUP, version: VERSION, plural: "replicatedvolumereplicas", namespaced: false);

/// The id at the end of a replica's name: 0..=31, without leading zeros.
#[must_use]
pub fn replica_id(volume: &str, name: &str) -> Option<u8> {
    let digits = name.strip_prefix(volume)?.strip_prefix('-')?;
    let id: u8 = digits.parse().ok()?;
    (id < 32 && id.to_string() == digits).then_some(id)
}

/// The name of a replica.
#[must_use]
pub fn replica_name(volume: &str, id: u8) -> String {
    format!("{volume}-{id}")
}

impl ReplicatedVolumeReplica {
    /// Its id; 0 if the name is invalid.
    #[must_use]
    pub fn id(&self) -> u8 {
        replica_id(&self.spec.replicated_volume_name, &self.metadata.name).unwrap_or_default()
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

pub(super) fn kind() -> Kind {
    Kind::of::<ReplicatedVolumeReplica>()
        .short("rvr")
        .category("storage")
        .status()
        .column(Column::string("Volume", ".spec.replicatedVolumeName"))
        .column(Column::string("Type", ".spec.type"))
        .column(Column::string("Node", ".spec.nodeName"))
        .column(Column::string("Zone", ".status.zoneName"))
        .column(Column::string("Group", ".spec.lvmVolumeGroupName"))
        .column(Column::string("Thin Pool", ".spec.lvmVolumeGroupThinPoolName").wide())
        .column(Column::string("Scheduled", ".status.conditions[?(@.type==\"Scheduled\")].status"))
        .column(
            Column::string("Message", ".status.conditions[?(@.type==\"Scheduled\")].message")
                .wide(),
        )
        .column(Column::age())
        .selectable("spec.replicatedVolumeName")
        .selectable("spec.nodeName")
        .selectable("spec.lvmVolumeGroupName")
        .selectable("spec.type")
        .validate(check)
        .build()
}

fn check(new: &ReplicatedVolumeReplica, old: Option<&ReplicatedVolumeReplica>) -> Vec<Violation> {
    let spec = &new.spec;
    let mut found = Vec::new();
    if replica_id(&spec.replicated_volume_name, &new.metadata.name).is_none() {
        found.push(Violation::invalid(
            "metadata.name",
            &Value::from(new.metadata.name.as_str()),
            "must be spec.replicatedVolumeName, a dash, and an id from 0 to 31",
        ));
    }
    if !spec.lvm_volume_group_name.is_empty() {
        if spec.node_name.is_empty() {
            found.push(Violation::required(
                "spec.nodeName",
                "a volume group is on a node: set both",
            ));
        }
        if !spec.kind.has_disk() {
            found.push(Violation::forbidden(
                "spec.lvmVolumeGroupName",
                "only Diskful and ShadowDiskful replicas have a volume group",
            ));
        }
    }
    if !spec.lvm_volume_group_thin_pool_name.is_empty() && spec.lvm_volume_group_name.is_empty() {
        found.push(Violation::required(
            "spec.lvmVolumeGroupName",
            "a thin pool is in a volume group: set both",
        ));
    }
    if let Some(old) = old {
        let old = &old.spec;
        if old.replicated_volume_name != spec.replicated_volume_name {
            let value = Value::from(spec.replicated_volume_name.as_str());
            found.push(Violation::immutable("spec.replicatedVolumeName", &value));
        }
        if !old.node_name.is_empty() && old.node_name != spec.node_name {
            let value = Value::from(spec.node_name.as_str());
            found.push(Violation::immutable("spec.nodeName", &value));
        }
    }
    found
}
