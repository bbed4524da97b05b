//! Instance: one process of an application on a node. Users look at instances and may delete them;
//! applications make them.

use mainstay_store::meta::{ObjectMeta, Time};
use mainstay_store::registry::{Column, Kind};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};

/// Instance is one running (or frozen, or starting) process of an application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What it is.
    #[serde(default)]
    pub spec: InstanceSpec,
    /// How it is.
    #[serde(default)]
    pub status: InstanceStatus,
}

/// What an instance is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSpec {
    /// Its application.
    pub application_name: String,
    /// Its node, once it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Which version of the application's template it is made from.
    pub template: String,
}

/// In which pool an instance is.
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
pub enum InstancePool {
    /// On its way.
    #[default]
    Pending,
    /// Waiting for a session.
    Ready,
    /// Frozen.
    Standby,
    /// With a session.
    Active,
    /// Ending.
    Deleting,
}

impl InstancePool {
    /// As users read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Ready => "Ready",
            Self::Standby => "Standby",
            Self::Active => "Active",
            Self::Deleting => "Deleting",
        }
    }
}

/// How an instance is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceStatus {
    /// Pending, Ready, Standby, Active or Deleting.
    pub pool: InstancePool,
    /// What its node says of it: Creating, Standby, Activating, Running, Evacuating, Terminating or
    /// Terminated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// The session it has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session_name: String,
    /// Where it listens: address and port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Since when it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<Time>,
    /// Why it is as it is, in a word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it is as it is, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

typed!(Instance, group: GROUP, version: VERSION, plural: "instances", namespaced: true);

pub(super) fn kind() -> Kind {
    Kind::of::<Instance>()
        .short("inst")
        .category("all")
        .status()
        .status_on_create()
        .memory()
        .column(Column::string("Application", ".spec.applicationName"))
        .column(Column::string("Node", ".spec.nodeName"))
        .column(Column::string("Pool", ".status.pool"))
        .column(Column::string("Session", ".status.sessionName"))
        .column(Column::string("Address", ".status.address").wide())
        .column(Column::string("Template", ".spec.template").wide())
        .column(Column::string("Message", ".status.message").wide())
        .column(Column::age())
        .selectable("spec.applicationName")
        .selectable("spec.nodeName")
        .selectable("status.pool")
        .build()
}
