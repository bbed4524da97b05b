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

/// A machine that things can be placed on. It goes by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Standard metadata: name, labels, owners and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Settings of the administrator for the node.
    #[serde(default)]
    pub spec: NodeSpec,
    /// The state that the node reports. Changed through the status subresource.
    #[serde(default)]
    pub status: NodeStatus,
}

/// Settings of the administrator for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// The machine's name at its provider, as rack4://unit-17. Often not set.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Reasons to keep off the node, for workloads that do not tolerate them. None if not set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub taints: Vec<Taint>,
    /// True keeps new things off the node; what is there stays. kubectl cordon sets it. If not set,
    /// the node takes new things.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<bool>,
}

/// A reason to keep off a node. It applies to everything that does not tolerate it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// How strictly: NoSchedule takes nothing new, PreferNoSchedule takes it only if there is no
    /// better place, NoExecute also sends away what is there.
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]))]
    pub effect: String,
    /// The name of the reason. A key may occur once with every effect.
    pub key: String,
    /// When it was put on the node. Not set if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Time>,
    /// A value of the reason that tolerations can match too. Empty if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The state that a node reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Where the node can be reached, one address for each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub addresses: Vec<NodeAddress>,
    /// How much of capacity can be given out, less the machine's own needs. Resources that are not
    /// set here count as in capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// How much the node has, by resource, as cpu and memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Conditions of the node, one entry for each type. Look at Ready first: a node without it
    /// shows as Unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"],
        "x-kubernetes-patch-merge-key" = "type",
        "x-kubernetes-patch-strategy" = "merge",
    ))]
    pub conditions: Vec<NodeCondition>,
    /// Hardware and software of the node. Not set until it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
}

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAddress {
    /// The address itself: an IP address or a host name.
    pub address: String,
    /// The sort of address: InternalIP, ExternalIP or Hostname.
    #[serde(rename = "type")]
    pub kind: String,
}

/// One thing that is known about a node: whether it holds, since when, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// When it was last reported, changed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The details, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it is so, in one word for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it holds: True or False, or Unknown if that cannot be determined, for instance
    /// because the node does not report.
    pub status: ConditionStatus,
    /// The name of the condition, in one word, as Ready.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Hardware and software of a node, as it reports them. Facts that it does not report are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// The architecture of its processor, as amd64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Changes at every boot of the machine.
    #[serde(rename = "bootID", skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// The container runtime on the node, with its version. Empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_runtime_version: String,
    /// The release of its kernel, as uname -r prints it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel_version: String,
    /// Not used here. Kept for programs that send it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kube_proxy_version: String,
    /// The version of the agent on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
    /// The identity of the installed system, from /etc/machine-id. The best way to tell machines
    /// apart.
    #[serde(rename = "machineID", skip_serializing_if = "String::is_empty")]
    pub machine_id: String,
    /// Its operating system, as linux.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operating_system: String,
    /// Its distribution, by the name in /etc/os-release.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub os_image: String,
    /// The identity of the hardware, from its firmware. Some firmware gives every machine the same
    /// one.
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
        .column(
            Column::computed("Status", text, status)
                .about("Whether it is up, and whether it is closed for new things."),
        )
        .column(Column::computed("Roles", text, roles).about("Its purpose, by its labels."))
        .column(Column::age())
        .column(
            Column::string("Version", ".status.nodeInfo.kubeletVersion")
                .about("The version of its agent."),
        )
        .column(
            Column::computed("Zone", text, |node, _| {
                label(node, "topology.kubernetes.io/zone").map_or_else(none, Value::from)
            })
            .about("The zone it is in, by its label: what may fail together."),
        )
        .column(
            Column::computed("Internal-IP", text, |node, _| address(node, "InternalIP"))
                .about("Its address inside the cluster.")
                .wide(),
        )
        .column(
            Column::computed("External-IP", text, |node, _| address(node, "ExternalIP"))
                .about("Its address for the outside.")
                .wide(),
        )
        .column(
            Column::computed("OS-Image", text, |node, _| info(node, "osImage"))
                .about("Its distribution.")
                .wide(),
        )
        .column(
            Column::computed("Kernel-Version", text, |node, _| info(node, "kernelVersion"))
                .about("The release of its kernel.")
                .wide(),
        )
        .column(
            Column::computed("Container-Runtime", text, |node, _| {
                info(node, "containerRuntimeVersion")
            })
            .about("Its container runtime, with the version.")
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
