//! Instance: one process of an application on a node. Applications create instances; users may read
//! and delete them.

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
    /// Its application, node and template.
    #[serde(default)]
    pub spec: InstanceSpec,
    /// Its pool and state.
    #[serde(default)]
    pub status: InstanceStatus,
}

/// The application, node and template of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSpec {
    /// Its application.
    pub application_name: String,
    /// Its node, once it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The hash of the template it was created from.
    pub template: String,
}

words! {
    /// The pool of an instance.
    pub enum InstancePool {
        /// Starting.
        #[default]
        Pending = "Pending",
        /// Ready for a session.
        Ready = "Ready",
        /// Frozen.
        Standby = "Standby",
        /// With a session.
        Active = "Active",
        /// Terminating.
        Deleting = "Deleting",
    }
}

/// The pool and state of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceStatus {
    /// Pending, Ready, Standby, Active or Deleting.
    pub pool: InstancePool,
    /// The state that its node reports: Creating, Standby, Activating, Running, Evacuating, Terminating or
    /// Terminated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Its session.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session_name: String,
    /// The address and port on which it listens.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The time at which it became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<Time>,
    /// The reason of its state, as one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason of its state, for people.
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
