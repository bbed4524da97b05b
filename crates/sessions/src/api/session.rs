//! ApplicationSession: the use of one instance by one user.

use mainstay_store::meta::{MicroTime, ObjectMeta, Time};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::application::Protocol;
use super::{GROUP, VERSION};

/// The finalizer that keeps a deleted session until its instance has closed it.
pub const FINALIZER: &str = "apps.mainstay.dev/session";

/// ApplicationSession takes an instance of an application, and has an endpoint while it lasts.
/// Creating one opens it; deleting it closes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSession {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The application and how to open the session. It cannot change.
    pub spec: SessionSpec,
    /// Its state and endpoint.
    #[serde(default)]
    pub status: SessionStatus,
}

/// The application of a session, and how it is opened and closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// The application, in the session's namespace.
    #[schemars(length(min = 1))]
    pub application_name: String,
    /// Passed to the instance unchanged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session_data: String,
    /// Terminates the instance with the session, even if the application has reuseInstances.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kill_instance_when_session_closed: bool,
    /// Seconds that the instance may take to close the session.
    #[serde(default = "sixty")]
    #[schemars(range(min = 0, max = 3600))]
    pub close_grace_period_seconds: i32,
    /// Seconds that opening may take, from creation.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 3600))]
    pub open_timeout_seconds: i32,
    /// Whether a request is refused or waits if no instance is ready.
    #[serde(default)]
    pub open_mode: OpenMode,
    /// Whether the session moves or is closed if the node of its instance is lost.
    #[serde(default)]
    pub on_node_loss: OnNodeLoss,
}

fn sixty() -> i32 {
    60
}

fn ten() -> i32 {
    10
}

/// Whether a request is refused or waits if no instance is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OpenMode {
    /// The request is refused at once with SystemBusy, and an instance is started.
    #[default]
    FailFast,
    /// The request waits for an instance, first come, first served.
    Wait,
}

/// Whether a session moves or is closed if the node of its instance is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnNodeLoss {
    /// The session gets another instance, and keeps its endpoint.
    #[default]
    Recreate,
    /// The session is closed.
    Close,
}

words! {
    /// The state of a session.
    pub enum SessionState {
        /// It waits for an instance.
        #[default]
        Pending = "Pending",
        /// Its instance was asked to open it.
        Starting = "Starting",
        /// It is open.
        Available = "Available",
        /// It is open and at least one client is connected.
        InUse = "InUse",
        /// Its instance was asked to close it.
        Closing = "Closing",
        /// It is closed.
        Closed = "Closed",
        /// It was not open in time.
        Timeout = "Timeout",
    }
}

impl SessionState {
    /// Whether it is open or on the way there.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Starting | Self::Available | Self::InUse)
    }

    /// Whether it is in a final state.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Timeout)
    }
}

/// The state of a session, and its endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionStatus {
    /// The address of the session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_end_points: Vec<AccessEndPoint>,
    /// Pending, Starting, Available, InUse, Closing, Closed or Timeout.
    pub session_status: SessionState,
    /// The connected clients.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub client_sessions: Vec<ClientSession>,
    /// The time at which it was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_time: Option<Time>,
    /// The same, to the microsecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_time_micro: Option<MicroTime>,
    /// The time at which it was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close_time: Option<Time>,
    /// Its instance.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance_name: String,
    /// The node of its instance.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The reason of its state, as one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason of its state, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// An address of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccessEndPoint {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The address of the gateway.
    pub ip_address: String,
    /// The port of the gateway.
    pub port: i32,
}

/// A client connected to a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSession {
    /// The client's name, as the instance or the gateway reports it.
    pub id: String,
    /// The time at which it connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_time: Option<Time>,
}

typed!(ApplicationSession, group: GROUP, version: VERSION, plural: "applicationsessions", namespaced: true);

pub(super) fn kind() -> Kind {
    Kind::of::<ApplicationSession>()
        .short("ses")
        .category("all")
        .status()
        .memory()
        .begin_with(add_finalizer)
        .column(Column::string("Application", ".spec.applicationName"))
        .column(Column::string("Status", ".status.sessionStatus"))
        .column(Column::string("Address", ".status.accessEndPoints[0].ipAddress"))
        .column(Column::integer("Port", ".status.accessEndPoints[0].port"))
        .column(Column::string("Instance", ".status.instanceName"))
        .column(Column::string("Node", ".status.nodeName").wide())
        .column(Column::string("Reason", ".status.reason").wide())
        .column(Column::age())
        .selectable("spec.applicationName")
        .selectable("status.sessionStatus")
        .selectable("status.instanceName")
        .validate(check)
        .build()
}

/// Adds the finalizer: a session stays until it is closed.
fn add_finalizer(object: &mut Map<String, Value>) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("finalizers".to_owned(), json!([FINALIZER]));
    }
}

fn check(new: &ApplicationSession, old: Option<&ApplicationSession>) -> Vec<Violation> {
    let mut found = Vec::new();
    if let Some(old) = old
        && old.spec != new.spec
    {
        let spec = serde_json::to_value(&new.spec).unwrap_or_default();
        found.push(Violation::immutable("spec", &spec));
    }
    if new.spec.session_data.len() > MAX_DATA {
        found.push(Violation::too_long("spec.sessionData", MAX_DATA));
    }
    found
}

/// The largest sessionData, in bytes.
const MAX_DATA: usize = 256 << 10;
