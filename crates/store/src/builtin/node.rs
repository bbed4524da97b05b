//! Node: a machine that things can be placed on.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::column::{Column, ColumnType};
use crate::meta::{ConditionStatus, ObjectMeta, Quantity, Time};
use crate::names;
use crate::registry::Kind;
use crate::status::Violation;
use crate::typed;

/// Node is a worker node. Each node has a unique identifier in the store, its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Spec defines the behavior of a node.
    #[serde(default)]
    pub spec: NodeSpec,
    /// Most recently observed status of the node. Populated by the system. Read-only.
    #[serde(default)]
    pub status: NodeStatus,
}

/// NodeSpec describes the attributes that a node is created with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// ID of the node assigned by the cloud provider in the format:
    /// &lt;ProviderName&gt;://&lt;ProviderSpecificNodeID&gt;
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// If specified, the node's taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub taints: Vec<Taint>,
    /// Unschedulable controls node schedulability of new things. By default, node is schedulable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
}

/// The node this Taint is attached to has the "effect" on anything that does not tolerate the
/// Taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Required. The effect of the taint on things that do not tolerate the taint. Valid effects
    /// are NoSchedule, PreferNoSchedule and NoExecute.
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]))]
    pub effect: String,
    /// Required. The taint key to be applied to a node.
    pub key: String,
    /// TimeAdded represents the time at which the taint was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Time>,
    /// The taint value corresponding to the taint key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// NodeStatus is information about the current status of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// List of addresses reachable to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub addresses: Vec<NodeAddress>,
    /// Allocatable represents the resources of a node that are available for scheduling. Defaults
    /// to Capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Capacity represents the total resources of a node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Conditions is an array of current observed node conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub conditions: Vec<NodeCondition>,
    /// Set of ids/uuids to uniquely identify the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
}

/// NodeAddress contains information for the node's address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAddress {
    /// The node address.
    pub address: String,
    /// Node address type, one of Hostname, ExternalIP or InternalIP.
    #[serde(rename = "type")]
    pub kind: String,
}

/// NodeCondition contains condition information for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Last time we got an update on a given condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Last time the condition transit from one status to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Human readable message indicating details about last transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// (brief) reason for the condition's last transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Status of the condition, one of True, False, Unknown.
    pub status: ConditionStatus,
    /// Type of node condition.
    #[serde(rename = "type")]
    pub kind: String,
}

/// NodeSystemInfo is a set of ids/uuids to uniquely identify the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// The Architecture reported by the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Boot ID reported by the node.
    #[serde(rename = "bootID", skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// ContainerRuntime Version reported by the node through runtime remote API.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_runtime_version: String,
    /// Kernel Version reported by the node from 'uname -r'.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_version: String,
    /// KubeProxy Version reported by the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kube_proxy_version: String,
    /// Version of the agent reported by the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
    /// MachineID reported by the node. For unique machine identification in the cluster this field
    /// is preferred.
    #[serde(rename = "machineID", skip_serializing_if = "String::is_empty")]
    pub machine_id: String,
    /// The Operating System reported by the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operating_system: String,
    /// OS Image reported by the node from /etc/os-release.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub os_image: String,
    /// SystemUUID reported by the node. For unique machine identification MachineID is preferred.
    #[serde(rename = "systemUUID", skip_serializing_if = "String::is_empty")]
    pub system_uuid: String,
}

typed!(Node, group: "", version: "v1", plural: "nodes", namespaced: false);

pub(super) fn kind() -> Kind {
    let text = ColumnType::String;
    Kind::of::<Node>()
        .short("no")
        .status()
        .status_on_create()
        .selectable("spec.unschedulable")
        .column(Column::computed("Status", text, status).about("The status of the node."))
        .column(Column::computed("Roles", text, roles).about("The roles of the node."))
        .column(Column::age())
        .column(
            Column::string("Version", ".status.nodeInfo.kubeletVersion")
                .about("Version of the agent reported by the node."),
        )
        .column(
            Column::computed("Zone", text, |node, _| {
                label(node, "topology.kubernetes.io/zone").map_or_else(none, Value::from)
            })
            .about("The failure zone the node is in."),
        )
        .column(
            Column::computed("Internal-IP", text, |node, _| address(node, "InternalIP"))
                .about("List of addresses reachable to the node.")
                .wide(),
        )
        .column(
            Column::computed("External-IP", text, |node, _| address(node, "ExternalIP"))
                .about("List of addresses reachable to the node.")
                .wide(),
        )
        .column(
            Column::computed("OS-Image", text, |node, _| info(node, "osImage"))
                .about("OS Image reported by the node from /etc/os-release.")
                .wide(),
        )
        .column(
            Column::computed("Kernel-Version", text, |node, _| info(node, "kernelVersion"))
                .about("Kernel Version reported by the node from 'uname -r'.")
                .wide(),
        )
        .column(
            Column::computed("Container-Runtime", text, |node, _| {
                info(node, "containerRuntimeVersion")
            })
            .about("ContainerRuntime Version reported by the node through runtime remote API.")
            .wide(),
        )
        .validate(check)
        .build()
}

fn none() -> Value {
    Value::from("<none>")
}

fn at<'a>(node: &'a Map<String, Value>, top: &str, name: &str) -> Option<&'a Value> {
    node.get(top).and_then(|part| part.get(name))
}

fn label<'a>(node: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let label = at(node, "metadata", "labels")?.get(name)?.as_str()?;
    (!label.is_empty()).then_some(label)
}

fn status(node: &Map<String, Value>, _: Timestamp) -> Value {
    let conditions = at(node, "status", "conditions").and_then(Value::as_array);
    let ready = conditions
        .and_then(|conditions| conditions.iter().find(|condition| condition["type"] == "Ready"));
    let mut status = match ready {
        Some(ready) if ready["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if at(node, "spec", "unschedulable") == Some(&Value::Bool(true)) {
        status.push_str(",SchedulingDisabled");
    }
    Value::from(status)
}

fn roles(node: &Map<String, Value>, _: Timestamp) -> Value {
    let labels = at(node, "metadata", "labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.as_str() {
            "kubernetes.io/role" => value.as_str(),
            key => key.strip_prefix("node-role.kubernetes.io/"),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { none() } else { Value::from(roles.join(",")) }
}

fn address(node: &Map<String, Value>, kind: &str) -> Value {
    let addresses = at(node, "status", "addresses").and_then(Value::as_array);
    let found = addresses.and_then(|all| all.iter().find(|address| address["type"] == kind));
    found.map_or_else(none, |address| address["address"].clone())
}

fn info(node: &Map<String, Value>, name: &str) -> Value {
    at(node, "status", "nodeInfo")
        .and_then(|info| info.get(name))
        .filter(|text| **text != "")
        .cloned()
        .unwrap_or_else(|| Value::from("<unknown>"))
}

fn check(node: &Node, _: Option<&Node>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (index, taint) in node.spec.taints.iter().enumerate() {
        let field = format!("spec.taints[{index}]");
        for problem in names::qualified_name_problems(&taint.key) {
            let value = Value::from(taint.key.as_str());
            found.push(Violation::invalid(format!("{field}.key"), &value, &problem));
        }
        let value = taint.value.as_deref().unwrap_or_default();
        for problem in names::label_value_problems(value) {
            found.push(Violation::invalid(format!("{field}.value"), &Value::from(value), &problem));
        }
        if !seen.insert((&taint.key, &taint.effect)) {
            let value = serde_json::json!({"key": taint.key, "effect": taint.effect});
            found.push(Violation::duplicate(field, &value));
        }
    }
    found
}
