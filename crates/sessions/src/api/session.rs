//! ApplicationSession: somebody's use of one instance.

use mainstay_store::meta::{MicroTime, ObjectMeta, Time};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::application::Protocol;
use super::{GROUP, VERSION};

/// What keeps a session until its instance has closed it.
pub const FINALIZER: &str = "apps.mainstay.dev/session";

/// ApplicationSession takes an instance of an application, and has an endpoint while it lasts.
/// Creating one opens it; deleting it closes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSession {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Which application, and how. It cannot change.
    pub spec: SessionSpec,
    /// How far it is, and where to reach it.
    #[serde(default)]
    pub status: SessionStatus,
}

/// Which application a session is of, and how it is opened and closed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpec {
    /// The application, in the session's namespace.
    #[schemars(length(min = 1))]
    pub application_name: String,
    /// Handed to the instance as it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session_data: String,
    /// Ends the instance with the session, also where the application would use it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kill_instance_when_session_closed: bool,
    /// How long the instance has to close the session by itself.
    #[serde(default = "sixty")]
    #[schemars(range(min = 0, max = 3600))]
    pub close_grace_period_seconds: i32,
    /// How long opening may take, from the moment of creation.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 3600))]
    pub open_timeout_seconds: i32,
    /// What happens when no instance is ready.
    #[serde(default)]
    pub open_mode: OpenMode,
    /// What happens when the instance's node is lost.
    #[serde(default)]
    pub on_node_loss: OnNodeLoss,
}

fn sixty() -> i32 {
    60
}

fn ten() -> i32 {
    10
}

/// What happens when no instance is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OpenMode {
    /// The request is refused at once with SystemBusy, and an instance is started.
    #[default]
    FailFast,
    /// The request waits for an instance, first come, first served.
    Wait,
}

/// What happens when the instance's node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnNodeLoss {
    /// The session gets another instance, and keeps its endpoint.
    #[default]
    Recreate,
    /// The session is closed.
    Close,
}

/// How far a session is.
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
pub enum SessionState {
    /// It waits for an instance.
    #[default]
    Pending,
    /// Its instance has been told.
    Starting,
    /// It can be used.
    Available,
    /// It is used: at least one client is connected.
    InUse,
    /// Its instance has been told to close it.
    Closing,
    /// It is over.
    Closed,
    /// No instance was there in time.
    Timeout,
}

impl SessionState {
    /// As users read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Available => "Available",
            Self::InUse => "InUse",
            Self::Closing => "Closing",
            Self::Closed => "Closed",
            Self::Timeout => "Timeout",
        }
    }

    /// Whether it is open or on the way there.
    #[must_use]
    pub fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Starting | Self::Available | Self::InUse)
    }

    /// Whether nothing more happens to it.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Closed | Self::Timeout)
    }
}

/// How far a session is, and where to reach it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionStatus {
    /// Where to reach it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_end_points: Vec<AccessEndPoint>,
    /// Pending, Starting, Available, InUse, Closing, Closed or Timeout.
    pub session_status: SessionState,
    /// Who is connected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub client_sessions: Vec<ClientSession>,
    /// Since when it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_time: Option<Time>,
    /// The same, to the microsecond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_time_micro: Option<MicroTime>,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close_time: Option<Time>,
    /// Its instance.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance_name: String,
    /// The node of its instance.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Why it is as it is, in a word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it is as it is, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Where a session can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccessEndPoint {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The address of the gateway.
    pub ip_address: String,
    /// The port there.
    pub port: i32,
}

/// Somebody connected to a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSession {
    /// Who, as the instance or the gateway names it.
    pub id: String,
    /// Since when.
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
        .begin_with(hold)
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

/// A session is held until it is closed.
fn hold(object: &mut Map<String, Value>) {
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
    if new.spec.session_data.len() > LARGEST_DATA {
        found.push(Violation::too_long("spec.sessionData", LARGEST_DATA));
    }
    found
}

/// How much a session may hand to its instance, in bytes.
const LARGEST_DATA: usize = 256 << 10;
