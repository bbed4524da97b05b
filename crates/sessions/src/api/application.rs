//! Application: a program, and how many instances of it are kept ready for sessions.

pub(crate) mod check;
mod process;

use std::collections::BTreeMap;

use mainstay_store::meta::{ObjectMeta, Time};
use mainstay_store::registry::{Column, Kind};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{GROUP, VERSION};
pub use process::{
    Container, EnvironmentVariable, Port, Protocol, Readiness, ResourceRequirements, SecretKeyRef,
    ValueSource, VolumeUse,
};

/// The finalizer that keeps a deleted application until its instances are gone.
pub const FINALIZER: &str = "apps.mainstay.dev/instances";

/// Application describes a program and how many instances of it are kept ready for sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The process, and the number of instances.
    pub spec: ApplicationSpec,
    /// The numbers of instances in each pool.
    #[serde(default)]
    pub status: ApplicationStatus,
}

/// The process of an application, and the number of its instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSpec {
    /// The process of an instance, as a list of one. The fields command, args, env, workingDir,
    /// user, ports, resources and readiness beside it are the short form; give one or the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub containers: Vec<Container>,
    /// The process of an instance, in the short form.
    #[serde(flatten)]
    pub process: Container,
    /// Whether instances learn of sessions through the session service of their node, and report
    /// themselves when a session is open and closed. If not set, a session is open as soon as it is
    /// assigned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub using_node_session_service: bool,
    /// Configuration that instances find as files in the folder MAINSTAY_CONFIG_DIR.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config_data: BTreeMap<String, String>,
    /// Only nodes with all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Whether an instance takes another session after one that was closed cleanly. If not set, an
    /// instance is terminated with its session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse_instances: bool,
    /// Seconds between SIGTERM and SIGKILL of a process.
    #[serde(default = "thirty")]
    #[schemars(range(min = 0, max = 3600))]
    pub termination_grace_period_seconds: i32,
    /// A volume that instances use; nodes with a replica of it are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeUse>,
    /// The number of instances.
    pub scaling_policy: ScalingPolicy,
}

fn thirty() -> i32 {
    30
}

impl ApplicationSpec {
    /// The process of an instance, from either form.
    #[must_use]
    pub fn process(&self) -> &Container {
        self.containers.first().unwrap_or(&self.process)
    }
}

/// The number of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// The smallest number of instances.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub minimum_instance: i32,
    /// The largest number of instances.
    pub maximum_instance: i32,
    /// The largest number of instances created or terminated in one step. If 0, two.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub burst: i32,
    /// The quantity that is kept between low and high: the number of idle instances, or their share.
    #[serde(default)]
    pub scaling_policy_type: ScalingPolicyType,
    /// The thresholds of idle_session_number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_session_num_threshold: Option<Threshold>,
    /// The thresholds of idle_session_percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_session_percent_threshold: Option<Threshold>,
    /// The number of frozen instances beyond the idle ones: they use memory but no processor, and are
    /// thawed when needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<Standby>,
}

/// The quantity that a scaling policy controls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScalingPolicyType {
    /// The number of idle instances.
    #[default]
    IdleSessionNumber,
    /// The share of idle instances among all, in percent.
    IdleSessionPercent,
}

/// The bounds of the idle instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Threshold {
    /// Above this, idle instances are terminated.
    #[serde(default)]
    pub high: i32,
    /// Below this, instances are created.
    #[serde(default)]
    pub low: i32,
}

/// The number of frozen instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Standby {
    /// The smallest number, as far as maximumInstance allows it.
    #[serde(default)]
    pub minimum: i32,
    /// The largest number.
    #[serde(default)]
    pub maximum: i32,
}

/// The numbers of instances, and the last scaling steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApplicationStatus {
    /// The number of instances that the policy wants.
    pub desired_instances: i32,
    /// The number of all instances.
    pub total_instances: i32,
    /// Instances that are starting.
    pub pending_instances: i32,
    /// Instances that are terminating.
    pub deleting_instances: i32,
    /// Instances with a session.
    pub allocated_instances: i32,
    /// Instances that are ready for a session.
    pub idle_instances: i32,
    /// Instances that are frozen.
    pub standby_instances: i32,
    /// Sessions that wait for an instance.
    pub waiting_sessions: i32,
    /// The generation of the spec that the numbers refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Why wanted instances are missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last scaling step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_history: Option<DeploymentHistory>,
    /// The last ten scaling steps, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<DeploymentHistory>,
}

/// One scaling step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentHistory {
    /// CreateInstance or DeleteInstance.
    pub action: String,
    /// The time of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// The reason, as one word.
    pub reason: String,
    /// The message for people.
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
        .begin_with(add_finalizer)
        .column(Column::integer("Desired", ".status.desiredInstances"))
        .column(Column::integer("Idle", ".status.idleInstances"))
        .column(Column::integer("In-Use", ".status.allocatedInstances"))
        .column(Column::integer("Pending", ".status.pendingInstances"))
        .column(Column::integer("Standby", ".status.standbyInstances").wide())
        .column(Column::integer("Waiting", ".status.waitingSessions").wide())
        .column(Column::integer("Maximum", ".spec.scalingPolicy.maximumInstance").wide())
        .column(Column::age())
        .validate(check::check)
        .build()
}

/// Adds the finalizer: an application stays until its sessions are closed and its instances gone.
fn add_finalizer(object: &mut Map<String, Value>) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|known| known == FINALIZER)
        {
            list.push(FINALIZER.into());
        }
    }
}
