//! ReplicatedStoragePool: volume groups on nodes, and the nodes that are eligible now.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_placement::{EligibleNode, PoolType};
use mainstay_store::meta::{Condition, ObjectMeta};
use mainstay_store::registry::{Column, ColumnType, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GROUP, VERSION};

/// ReplicatedStoragePool is a set of volume groups, and the nodes that offer them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStoragePool {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its volume groups, zones and nodes.
    pub spec: ReplicatedStoragePoolSpec,
    /// The nodes that are eligible now.
    #[serde(default)]
    pub status: ReplicatedStoragePoolStatus,
}

/// The volume groups, zones and nodes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStoragePoolSpec {
    /// LVM for thick volumes, LVMThin for thin ones, File for files.
    #[serde(rename = "type")]
    pub kind: PoolType,
    /// The volume groups. Each entry names a thin pool if the type is LVMThin, and none otherwise.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub lvm_volume_groups: Vec<VolumeGroupReference>,
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
    /// When a node stops being eligible.
    #[serde(default)]
    pub eligible_nodes_policy: EligibleNodesPolicy,
}

/// A volume group, or a thin pool in one.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupReference {
    /// The LVMVolumeGroup.
    pub name: String,
    /// The thin pool in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool_name: String,
}

/// When a node stops being eligible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EligibleNodesPolicy {
    /// How long a node may be not ready before it is no longer eligible, as 10m or 1h30m.
    #[serde(default = "ten_minutes")]
    pub not_ready_grace_period: String,
}

fn ten_minutes() -> String {
    "10m".to_owned()
}

impl Default for EligibleNodesPolicy {
    fn default() -> Self {
        Self { not_ready_grace_period: ten_minutes() }
    }
}

/// Selects objects by their labels; all requirements must be met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Labels an object must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// A requirement about one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRequirement {
    /// The label.
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: String,
    /// The values for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

impl LabelRequirement {
    /// Whether labels meet it; `None` if the operator is unknown.
    #[must_use]
    pub fn met(&self, labels: &BTreeMap<String, String>) -> Option<bool> {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => Some(value.is_some_and(|value| self.values.contains(value))),
            "NotIn" => Some(value.is_none_or(|value| !self.values.contains(value))),
            "Exists" => Some(value.is_some()),
            "DoesNotExist" => Some(value.is_none()),
            _ => None,
        }
    }
}

impl LabelSelector {
    /// Whether labels match; `None` if the selector is invalid.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> Option<bool> {
        let mut all = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        for requirement in &self.match_expressions {
            all &= requirement.met(labels)?;
        }
        Some(all)
    }
}

/// The eligible nodes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedStoragePoolStatus {
    /// Ready, or the reason why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The number of changes of eligibleNodes.
    #[serde(default)]
    pub eligible_nodes_revision: i64,
    /// The nodes that may hold replicas, sorted by name, with the groups they offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub eligible_nodes: Vec<EligibleNode>,
    /// The users of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<UsedBy>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The users of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedBy {
    /// The classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicated_storage_class_names: Vec<String>,
}

typed!(ReplicatedStoragePool, group: GROUP, version: VERSION, plural: "replicatedstoragepools", namespaced: false);

pub(super) fn kind() -> Kind {
    Kind::of::<ReplicatedStoragePool>()
        .short("rsp")
        .category("storage")
        .status()
        .column(Column::string("Type", ".spec.type"))
        .column(Column::string("Phase", ".status.phase"))
        .column(Column::computed("Nodes", ColumnType::String, |object, _| {
            let nodes = object.get("status").and_then(|status| status.get("eligibleNodes"));
            let nodes = nodes.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let usable = nodes.iter().filter(|node| {
                node["nodeReady"] == true
                    && node["agentReady"] == true
                    && node["unschedulable"] != true
            });
            format!("{}/{}", usable.count(), nodes.len()).into()
        }))
        .column(Column::computed("Zones", ColumnType::Integer, |object, _| {
            let nodes = object.get("status").and_then(|status| status.get("eligibleNodes"));
            let nodes = nodes.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let zones: BTreeSet<&str> =
                nodes.iter().filter_map(|n| n["zoneName"].as_str()).collect();
            zones.len().into()
        }))
        .column(Column::integer("Revision", ".status.eligibleNodesRevision").wide())
        .column(Column::string("Message", ".status.message").wide())
        .column(Column::age())
        .validate(check)
        .build()
}

fn check(new: &ReplicatedStoragePool, old: Option<&ReplicatedStoragePool>) -> Vec<Violation> {
    let spec = &new.spec;
    let mut found = check_groups("spec.lvmVolumeGroups", spec.kind, &spec.lvm_volume_groups);
    let period = &spec.eligible_nodes_policy.not_ready_grace_period;
    if mainstay_clock::duration::parse(period).is_err() {
        found.push(Violation::invalid(
            "spec.eligibleNodesPolicy.notReadyGracePeriod",
            &Value::from(period.as_str()),
            "must be a duration, as 10m or 1h30m",
        ));
    }
    if old.is_some_and(|old| old.spec.kind != spec.kind) {
        let value = serde_json::to_value(spec.kind).unwrap_or_default();
        found.push(Violation::immutable("spec.type", &value));
    }
    found
}

/// Checks that references to groups match the type of the pool.
pub(super) fn check_groups(
    path: &str,
    kind: PoolType,
    groups: &[VolumeGroupReference],
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, group) in groups.iter().enumerate() {
        let field = format!("{path}[{index}]");
        if group.name.is_empty() {
            found.push(Violation::required(format!("{field}.name"), "name a volume group"));
        }
        match (kind, group.thin_pool_name.is_empty()) {
            (PoolType::LVMThin, true) => found.push(Violation::required(
                format!("{field}.thinPoolName"),
                "every group of an LVMThin pool names a thin pool",
            )),
            (PoolType::LVM | PoolType::File, false) => found.push(Violation::forbidden(
                format!("{field}.thinPoolName"),
                "only groups of an LVMThin pool have thin pools",
            )),
            _ => {}
        }
        if !seen.insert(group) {
            let name = Value::from(group.name.as_str());
            found.push(Violation::duplicate(field, &name));
        }
    }
    found
}
