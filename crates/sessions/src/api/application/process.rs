//! The process of an instance: command, environment, ports, resources, readiness, volume.

use std::collections::BTreeMap;

use mainstay_store::meta::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::thirty;

/// A process, its environment and its limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// The name in messages.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Not supported: instances are processes. An image is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The program and its first arguments. The program is looked up in PATH.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub command: Vec<String>,
    /// More arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,
    /// Environment variables. The agent adds PORT, and PORT_NAME for every named port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub env: Vec<EnvironmentVariable>,
    /// The working folder. If not set, a folder of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The user that runs it, by name or number. If not set, the agent's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The ports it listens on. Sessions get an endpoint for the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<Port>,
    /// Its requests and limits.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// How to detect that it is ready. If not set, it is ready as soon as it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Readiness>,
}

/// One environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Its name.
    pub name: String,
    /// Its value. Every user who may read Applications can read it: for a password, use valueFrom.
    #[serde(default)]
    pub value: String,
    /// The source of the value, in place of `value`. It is read when an instance starts; a change
    /// applies to instances that start later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
}

/// The source of an environment variable's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueSource {
    /// A key of a Secret in the Application's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyRef>,
}

/// A key of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's name.
    pub name: String,
    /// The key.
    pub key: String,
    /// True starts instances without the variable while the Secret or the key is missing. If not
    /// set, they wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A port an instance listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The port number. If not set, the agent chooses a free one and passes it in the environment; this
    /// is required for several instances on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: Option<i32>,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
}

words! {
    /// The transport protocol of a port.
    pub enum Protocol {
        /// A stream of bytes.
        #[default]
        Tcp = "TCP",
        /// Packets.
        Udp = "UDP",
    }
}

/// The requests and limits of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRequirements {
    /// The amounts reserved on its node: cpu and memory. Without a request none is reserved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// The largest amounts it may use, on nodes that can enforce it: cpu and memory.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

impl ResourceRequirements {
    /// Whether it has neither requests nor limits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    /// The reserved thousandths of a processor and bytes. A limit without a request counts as the
    /// request, as in Kubernetes.
    #[must_use]
    pub fn reserved(&self) -> (u64, u64) {
        let of = |name: &str| self.requests.get(name).or_else(|| self.limits.get(name));
        (millis(of("cpu")), bytes(of("memory")))
    }

    /// The limits in thousandths of a processor and bytes; `None` is unlimited.
    #[must_use]
    pub fn limited(&self) -> (Option<u64>, Option<u64>) {
        let (cpu, memory) = (self.limits.get("cpu"), self.limits.get("memory"));
        (cpu.map(|cpu| millis(Some(cpu))), memory.map(|memory| bytes(Some(memory))))
    }
}

fn millis(amount: Option<&Quantity>) -> u64 {
    amount.and_then(|amount| u64::try_from(amount.milli_value()).ok()).unwrap_or(0)
}

fn bytes(amount: Option<&Quantity>) -> u64 {
    amount.and_then(|amount| u64::try_from(amount.value()).ok()).unwrap_or(0)
}

/// The readiness check of a process: a port that accepts connections, or a file that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// Ready when this TCP port accepts a connection: a port's name, or its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Ready when this file exists; relative to the working folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// An instance that is not ready after this time is terminated and replaced.
    #[serde(default = "thirty")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: i32,
}

/// A volume that instances use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeUse {
    /// The ReplicatedVolume.
    #[schemars(length(min = 1))]
    pub replicated_volume_name: String,
    /// The folder in which instances find it.
    #[serde(default)]
    pub mount_path: String,
}
