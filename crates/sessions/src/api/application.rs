//! Application: what runs, and how many instances of it are kept warm.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_store::meta::{ObjectMeta, Quantity, Time};
use mainstay_store::names;
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{GROUP, VERSION};

/// What keeps an application until its instances are gone.
pub const FINALIZER: &str = "apps.mainstay.dev/instances";

/// Application describes a program and how many instances of it are kept ready for sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What runs, and how many.
    pub spec: ApplicationSpec,
    /// How many there are.
    #[serde(default)]
    pub status: ApplicationStatus,
}

/// What runs, and how many instances are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSpec {
    /// The process of an instance, as a list of one. The fields command, args, env, workingDir,
    /// user, ports, resources and readiness beside it say the same in short; give one or the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub containers: Vec<Container>,
    /// The process of an instance, in short.
    #[serde(flatten)]
    pub process: Container,
    /// Whether instances are told of sessions through the local session service, and say themselves
    /// when a session is open and closed. If not set, a session is open as soon as it is assigned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub using_node_session_service: bool,
    /// Settings that instances find as files in the folder MAINSTAY_CONFIG_DIR.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config_data: BTreeMap<String, String>,
    /// Only nodes with all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Whether an instance takes another session after one that ended cleanly. If not set, an
    /// instance ends with its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse_instances: bool,
    /// How long a process has to end by itself after SIGTERM.
    #[serde(default = "thirty")]
    #[schemars(range(min = 0, max = 3600))]
    pub termination_grace_period_seconds: i32,
    /// A volume that instances use; nodes that have a replica of it are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeUse>,
    /// How many instances are kept.
    pub scaling_policy: ScalingPolicy,
}

fn thirty() -> i32 {
    30
}

impl ApplicationSpec {
    /// The process of an instance, whichever way it was written.
    #[must_use]
    pub fn process(&self) -> &Container {
        self.containers.first().unwrap_or(&self.process)
    }
}

/// A process and its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// What it is called in messages.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Not for now: instances are processes. An image is refused.
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
    /// The folder it runs in. If not set, a folder of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The user it runs as, by name or number. If not set, the agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The ports it listens on. The first is the one that sessions get an endpoint for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<Port>,
    /// What it needs, and what it may take.
    #[serde(skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// How to tell that it is ready. If not set, it is as soon as it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Readiness>,
}

/// One environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Its name.
    pub name: String,
    /// Its value. Everybody who reads Applications reads it: for a password, use valueFrom.
    #[serde(default)]
    pub value: String,
    /// Where its value comes from instead. It is looked up when an instance starts; a change applies
    /// to instances that start later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
}

/// Where the value of an environment variable comes from.
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
    /// The port itself. If not set, the agent chooses a free one and says which in the environment:
    /// only so can several instances share a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub container_port: Option<i32>,
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
}

/// How a port is spoken to.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// A stream of bytes.
    #[default]
    Tcp,
    /// Packets.
    Udp,
}

impl Protocol {
    /// `TCP` or `UDP`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// What a process needs, and what it may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRequirements {
    /// What is reserved for it on its node: cpu and memory. Nothing requested, nothing reserved.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may take at most, where the node can hold it to that: cpu and memory.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

impl ResourceRequirements {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    /// What is reserved: thousandths of a processor, and bytes. A limit without a request counts as
    /// one, as in Kubernetes.
    #[must_use]
    pub fn reserved(&self) -> (u64, u64) {
        let of = |name: &str| self.requests.get(name).or_else(|| self.limits.get(name));
        (millis(of("cpu")), bytes(of("memory")))
    }

    /// What it may take: thousandths of a processor, and bytes; `None` is without end.
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

/// How to tell that a process is ready: by a port that accepts connections, or by a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// Ready when this TCP port accepts a connection: a port's name, or its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Ready when this file is there; relative to the working folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// An instance that is not ready after so long is ended and replaced.
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
    /// Where instances find it.
    #[serde(default)]
    pub mount_path: String,
}

/// How many instances are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Never fewer than this.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub minimum_instance: i32,
    /// Never more than this.
    pub maximum_instance: i32,
    /// How many are made or ended in one step. If 0, two.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub burst: i32,
    /// What is kept between low and high: the number of idle instances, or their share of all.
    #[serde(default)]
    pub scaling_policy_type: ScalingPolicyType,
    /// The thresholds of idle_session_number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_session_num_threshold: Option<Threshold>,
    /// The thresholds of idle_session_percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_session_percent_threshold: Option<Threshold>,
    /// How many instances beyond the idle ones are kept frozen: they take memory but no processor,
    /// and are thawed when needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<Standby>,
}

/// What a scaling policy looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScalingPolicyType {
    /// The number of idle instances.
    #[default]
    IdleSessionNumber,
    /// The share of idle instances among all, in percent.
    IdleSessionPercent,
}

/// Between what is idle kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// More idle than this are ended.
    #[serde(default)]
    pub high: i32,
    /// Fewer idle than this are added to.
    #[serde(default)]
    pub low: i32,
}

/// How many instances are kept frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Standby {
    /// Never fewer than this, as long as the maximum of all allows it.
    #[serde(default)]
    pub minimum: i32,
    /// Never more than this.
    #[serde(default)]
    pub maximum: i32,
}

/// How many instances there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApplicationStatus {
    /// How many there should be.
    pub desired_instances: i32,
    /// How many there are.
    pub total_instances: i32,
    /// How many are on their way.
    pub pending_instances: i32,
    /// How many are ending.
    pub deleting_instances: i32,
    /// How many have a session.
    pub allocated_instances: i32,
    /// How many wait for a session.
    pub idle_instances: i32,
    /// How many are frozen.
    pub standby_instances: i32,
    /// How many sessions wait for an instance.
    pub waiting_sessions: i32,
    /// The generation these numbers are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Why instances that are wanted are not there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_history: Option<DeploymentHistory>,
    /// The last ten steps, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<DeploymentHistory>,
}

/// One step of making or ending instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentHistory {
    /// CreateInstance or DeleteInstance.
    pub action: String,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// Why, in a word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Success, PartialSuccess or Failure.
    pub deployment_status: String,
}

typed!(Application, group: GROUP, version: VERSION, plural: "applications", namespaced: true);

pub(super) fn kind() -> Kind {
    Kind::of::<Application>()
        .short("app")
        .category("all")
        .label_names()
        .status()
        .begin_with(hold)
        .column(Column::integer("Desired", ".status.desiredInstances"))
        .column(Column::integer("Idle", ".status.idleInstances"))
        .column(Column::integer("In-Use", ".status.allocatedInstances"))
        .column(Column::integer("Pending", ".status.pendingInstances"))
        .column(Column::integer("Standby", ".status.standbyInstances").wide())
        .column(Column::integer("Waiting", ".status.waitingSessions").wide())
        .column(Column::integer("Maximum", ".spec.scalingPolicy.maximumInstance").wide())
        .column(Column::age())
        .validate(check)
        .build()
}

/// An application is held until its sessions are closed and its instances gone.
fn hold(object: &mut Map<String, Value>) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|known| known == FINALIZER)
        {
            list.push(FINALIZER.into());
        }
    }
}

fn check(new: &Application, _old: Option<&Application>) -> Vec<Violation> {
    let mut found = Vec::new();
    let spec = &new.spec;
    let short = spec.process != Container::default();
    match (spec.containers.len(), short) {
        (0, false) => found.push(Violation::required(
            "spec.containers",
            "say what runs: one container, or spec.command",
        )),
        (0, true) => check_process("spec", &spec.process, &mut found),
        (1, false) => check_process("spec.containers[0]", &spec.containers[0], &mut found),
        (_, true) => found.push(Violation::forbidden(
            "spec.command",
            "spec.containers says already what runs; give one of them",
        )),
        (many, false) => found.push(Violation::invalid(
            "spec.containers",
            &Value::from(many),
            "an instance is one process: give exactly one container",
        )),
    }
    check_policy(&spec.scaling_policy, &mut found);
    if let Some(volume) = &spec.volume
        && !volume.mount_path.is_empty()
        && !volume.mount_path.starts_with('/')
    {
        let path = Value::from(volume.mount_path.as_str());
        let why = "must be an absolute path, as /data";
        found.push(Violation::invalid("spec.volume.mountPath", &path, why));
    }
    for name in spec.config_data.keys() {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(plain) || name.starts_with('.')
        {
            let why = "becomes the name of a file: letters, digits, -, _ and ., not first";
            let name = Value::from(name.as_str());
            found.push(Violation::invalid("spec.configData", &name, why));
        }
    }
    found
}

/// Checks where the value of a variable comes from.
fn check_source(field: &str, value: &str, source: &ValueSource, found: &mut Vec<Violation>) {
    if !value.is_empty() {
        let why = "may not be specified when `value` is not empty";
        found.push(Violation::invalid(format!("{field}.valueFrom"), &Value::from(""), why));
    }
    let place = format!("{field}.valueFrom.secretKeyRef");
    let Some(reference) = &source.secret_key_ref else {
        found.push(Violation::required(place, "name a Secret and one of its keys"));
        return;
    };
    for (part, text, problems) in [
        ("name", &reference.name, names::subdomain_problems(&reference.name)),
        ("key", &reference.key, names::config_key_problems(&reference.key)),
    ] {
        let text = Value::from(text.as_str());
        let violation = |why: &String| Violation::invalid(format!("{place}.{part}"), &text, why);
        found.extend(problems.iter().map(violation));
    }
}

fn check_process(field: &str, process: &Container, found: &mut Vec<Violation>) {
    if process.image.is_some() {
        found.push(Violation::forbidden(
            format!("{field}.image"),
            "instances are processes of the node for now; give a command instead of an image",
        ));
    } else if process.command.first().is_none_or(String::is_empty) {
        let why = "say which program runs, as [\"/usr/bin/game\", \"--fast\"]";
        found.push(Violation::required(format!("{field}.command"), why));
    }
    for (part, texts) in [("command", &process.command), ("args", &process.args)] {
        if texts.iter().any(|text| text.contains('\0')) {
            let why = "must not contain a null character";
            found.push(Violation::invalid(format!("{field}.{part}"), &Value::Null, why));
        }
    }
    for (index, variable) in process.env.iter().enumerate() {
        let EnvironmentVariable { name, value, value_from } = variable;
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let why = "must be a name without = and a value without null characters";
            let name = Value::from(name.as_str());
            found.push(Violation::invalid(format!("{field}.env[{index}]"), &name, why));
        }
        if let Some(source) = value_from {
            check_source(&format!("{field}.env[{index}]"), value, source, found);
        }
    }
    let mut names = BTreeSet::new();
    for (index, port) in process.ports.iter().enumerate() {
        let place = format!("{field}.ports[{index}].name");
        if !port.name.is_empty() && !names.insert(&port.name) {
            found.push(Violation::duplicate(&place, &Value::from(port.name.as_str())));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if port.name.len() > 15 || !port.name.chars().all(plain) {
            let why = "at most 15 lower-case letters, digits and -";
            found.push(Violation::invalid(&place, &Value::from(port.name.as_str()), why));
        }
    }
    for (part, amounts) in
        [("requests", &process.resources.requests), ("limits", &process.resources.limits)]
    {
        for (name, amount) in amounts {
            let place = format!("{field}.resources.{part}[{name}]");
            if !matches!(name.as_str(), "cpu" | "memory") {
                let known = ["cpu", "memory"];
                found.push(Violation::not_supported(&place, &Value::from(name.as_str()), &known));
            } else if amount.milli_value() < 0 {
                let why = "must be greater than or equal to 0";
                found.push(Violation::invalid(&place, &Value::from(amount.to_string()), why));
            }
        }
    }
    if let Some(readiness) = &process.readiness {
        let place = format!("{field}.readiness");
        match (&readiness.port, &readiness.file) {
            (Some(_), Some(_)) => {
                found.push(Violation::forbidden(&place, "give a port or a file, not both"));
            }
            (None, None) => found.push(Violation::required(&place, "give a port or a file")),
            (Some(port), None) => {
                let named = process.ports.iter().any(|known| known.name == *port);
                if !named && !port.parse::<u16>().is_ok_and(|port| port > 0) {
                    let why = "must be the name of one of the ports, or a port";
                    let port = Value::from(port.as_str());
                    found.push(Violation::invalid(format!("{place}.port"), &port, why));
                }
            }
            (None, Some(_)) => {}
        }
    }
}

fn check_policy(policy: &ScalingPolicy, found: &mut Vec<Violation>) {
    let at = |field: &str| format!("spec.scalingPolicy.{field}");
    if policy.maximum_instance <= 0 {
        let value = Value::from(policy.maximum_instance);
        found.push(Violation::invalid(at("maximumInstance"), &value, "must be greater than 0"));
    }
    if policy.maximum_instance < policy.minimum_instance {
        let value = Value::from(policy.maximum_instance);
        let why = format!("must be at least minimumInstance ({})", policy.minimum_instance);
        found.push(Violation::invalid(at("maximumInstance"), &value, &why));
    }
    let (field, threshold, top) = match policy.scaling_policy_type {
        ScalingPolicyType::IdleSessionNumber => {
            ("idleSessionNumThreshold", policy.idle_session_num_threshold, i32::MAX)
        }
        ScalingPolicyType::IdleSessionPercent => {
            ("idleSessionPercentThreshold", policy.idle_session_percent_threshold, 100)
        }
    };
    match threshold {
        None => {
            let why = "is required for this scalingPolicyType: say high and low";
            found.push(Violation::required(at(field), why));
        }
        Some(Threshold { high, low }) => {
            if low < 0 {
                let why = "must be greater than or equal to 0";
                found.push(Violation::invalid(at(&format!("{field}.low")), &low.into(), why));
            }
            let high_field = at(&format!("{field}.high"));
            if high < low {
                let why = format!("must be at least low ({low})");
                found.push(Violation::invalid(&high_field, &high.into(), &why));
            }
            if high > top {
                let why = format!("must be at most {top}");
                found.push(Violation::invalid(&high_field, &high.into(), &why));
            }
        }
    }
    if let Some(Standby { minimum, maximum }) = policy.standby {
        if minimum < 0 {
            let why = "must be greater than or equal to 0";
            found.push(Violation::invalid(at("standby.minimum"), &minimum.into(), why));
        }
        if maximum < minimum {
            let why = format!("must be at least minimum ({minimum})");
            found.push(Violation::invalid(at("standby.maximum"), &maximum.into(), &why));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mainstay_store::registry::Typed;
    use serde_json::json;

    use super::*;

    fn violations(spec: &Value) -> Vec<String> {
        let application: Application =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        check(&application, None).iter().map(|found| found.field.clone()).collect()
    }

    /// Every refusal names its field.
    pub(crate) fn refusals() {
        assert_eq!(Application::KIND, "Application");
        let policy = |change: Value| {
            let mut policy =
                json!({"maximumInstance": 5, "idleSessionNumThreshold": {"high": 3, "low": 1}});
            for (name, value) in change.as_object().unwrap() {
                policy[name] = value.clone();
            }
            json!({"command": ["x"], "scalingPolicy": policy})
        };
        let fine = policy(json!({}));
        assert_eq!(violations(&fine), Vec::<String>::new());
        let mut listed = fine.clone();
        listed.as_object_mut().unwrap().remove("command");
        listed["containers"] = json!([{"name": "game", "command": ["x"]}]);
        assert_eq!(violations(&listed), Vec::<String>::new());
        let mut nothing = fine.clone();
        nothing.as_object_mut().unwrap().remove("command");
        let (mut image, mut both, mut amounts) = (fine.clone(), fine.clone(), fine.clone());
        image["image"] = json!("game:1");
        both["containers"] = listed["containers"].clone();
        amounts["resources"] = json!({"requests": {"gpu": "1"}});
        let percent = |change: Value| {
            let mut spec = policy(json!({"scalingPolicyType": "idle_session_percent"}));
            spec["scalingPolicy"]["idleSessionPercentThreshold"] = change;
            spec
        };
        let cases = [
            (nothing, "spec.containers"),
            (image, "spec.image"),
            (both, "spec.command"),
            (amounts, "spec.resources.requests[gpu]"),
            (policy(json!({"maximumInstance": 0})), "spec.scalingPolicy.maximumInstance"),
            (policy(json!({"minimumInstance": 6})), "spec.scalingPolicy.maximumInstance"),
            (
                policy(json!({"idleSessionNumThreshold": null})),
                "spec.scalingPolicy.idleSessionNumThreshold",
            ),
            (percent(Value::Null), "spec.scalingPolicy.idleSessionPercentThreshold"),
            (
                policy(json!({"idleSessionNumThreshold": {"high": 1, "low": 2}})),
                "spec.scalingPolicy.idleSessionNumThreshold.high",
            ),
            (
                percent(json!({"high": 1, "low": 2})),
                "spec.scalingPolicy.idleSessionPercentThreshold.high",
            ),
            (
                percent(json!({"high": 101, "low": 2})),
                "spec.scalingPolicy.idleSessionPercentThreshold.high",
            ),
        ];
        for (spec, field) in cases {
            assert_eq!(violations(&spec), [field], "{spec}");
        }
    }
}
