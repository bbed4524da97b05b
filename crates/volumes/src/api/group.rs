//! LVMVolumeGroup: a volume group on a node, with its size and free space.

use mainstay_store::meta::{Condition, ConditionStatus, ObjectMeta, Quantity};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EVICT_ANNOTATION, GROUP, UNSCHEDULABLE_ANNOTATION, VERSION, is_false};

/// LVMVolumeGroup is a volume group on a node. The node's agent reports its status; without one it
/// is set by hand, through the status subresource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LVMVolumeGroup {
    /// Standard object's metadata. The annotation storage.mainstay.dev/unschedulable closes the
    /// group for new replicas.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its node and thin pools.
    pub spec: LVMVolumeGroupSpec,
    /// Its size, free space and readiness.
    #[serde(default)]
    pub status: LVMVolumeGroupStatus,
}

/// The node and thin pools of a volume group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LVMVolumeGroupSpec {
    /// The node of the group.
    pub local: Local,
    /// The thin pools in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub thin_pools: Vec<ThinPool>,
}

/// The node of a volume group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Local {
    /// The node.
    pub node_name: String,
}

/// A wanted thin pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThinPool {
    /// Its name.
    pub name: String,
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// The share of it that may be promised, as 150%: more than 100% over-commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_limit: Option<String>,
}

/// The size, free space and readiness of a volume group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LVMVolumeGroupStatus {
    /// Ready, or the reason why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vg_size: Option<Quantity>,
    /// Its free space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vg_free: Option<Quantity>,
    /// The size of an extent; 4Mi if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent_size: Option<Quantity>,
    /// The thin pools in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub thin_pools: Vec<ThinPoolStatus>,
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The state of a thin pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThinPoolStatus {
    /// Its name.
    pub name: String,
    /// Its actual size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual_size: Option<Quantity>,
    /// The size of its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_size: Option<Quantity>,
    /// The size promised to volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_size: Option<Quantity>,
    /// The size that can still be promised, over-commitment included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_space: Option<Quantity>,
    /// The share of it that may be promised, as 150%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_limit: Option<String>,
    /// Whether it can take volumes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ready: bool,
}

typed!(LVMVolumeGroup, group: GROUP, version: VERSION, plural: "lvmvolumegroups", namespaced: false);

impl LVMVolumeGroup {
    /// Whether it takes volumes: its Ready condition is true, or it has none and the phase is
    /// Ready; with a thin pool, that one is ready too.
    #[must_use]
    pub fn is_ready(&self, thin_pool: &str) -> bool {
        let condition = self.status.conditions.iter().find(|condition| condition.kind == "Ready");
        let whole = condition.map_or(self.status.phase == "Ready", |condition| {
            condition.status == ConditionStatus::True
        });
        whole && (thin_pool.is_empty() || self.thin_pool(thin_pool).is_some_and(|pool| pool.ready))
    }

    /// The state of a thin pool.
    #[must_use]
    pub fn thin_pool(&self, name: &str) -> Option<&ThinPoolStatus> {
        self.status.thin_pools.iter().find(|pool| pool.name == name)
    }

    /// Whether it is closed for new replicas.
    #[must_use]
    pub fn is_unschedulable(&self) -> bool {
        self.metadata.annotations.contains_key(UNSCHEDULABLE_ANNOTATION)
    }

    /// Whether the replicas on it are to be moved elsewhere.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.metadata.annotations.contains_key(EVICT_ANNOTATION)
    }
}

pub(super) fn kind() -> Kind {
    Kind::of::<LVMVolumeGroup>()
        .short("lvg")
        .category("storage")
        .status()
        .status_on_create()
        .column(Column::string("Node", ".spec.local.nodeName"))
        .column(Column::string("Phase", ".status.phase"))
        .column(Column::string("Size", ".status.vgSize"))
        .column(Column::string("Free", ".status.vgFree"))
        .column(Column::string("Thin Pools", ".status.thinPools[*].name").wide())
        .column(Column::age())
        .selectable("spec.local.nodeName")
        .validate(check)
        .build()
}

fn check(new: &LVMVolumeGroup, old: Option<&LVMVolumeGroup>) -> Vec<Violation> {
    let mut found = Vec::new();
    let node = &new.spec.local.node_name;
    if node.is_empty() {
        found.push(Violation::required("spec.local.nodeName", "name the node that has the group"));
    }
    if old.is_some_and(|old| old.spec.local.node_name != *node) {
        found.push(Violation::immutable("spec.local.nodeName", &Value::from(node.as_str())));
    }
    let limits = new.spec.thin_pools.iter().map(|pool| pool.allocation_limit.as_deref());
    for (index, limit) in limits.enumerate() {
        if let Some(limit) = limit
            && crate::ledger::percent(limit).is_none()
        {
            found.push(Violation::invalid(
                format!("spec.thinPools[{index}].allocationLimit"),
                &Value::from(limit),
                "must be a percentage of at least 100%, as 150%",
            ));
        }
    }
    found
}
