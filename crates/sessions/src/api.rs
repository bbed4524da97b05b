//! The resources: what users write and see.

pub mod application;
pub mod instance;
pub mod session;

use mainstay_store::registry::Kind;

pub use application::{
    Application, ApplicationSpec, ApplicationStatus, Container, EnvironmentVariable, Port,
    Protocol, Readiness, ResourceRequirements, ScalingPolicy, ScalingPolicyType, SecretKeyRef,
    Standby, Threshold, ValueSource, VolumeUse,
};
pub use instance::{Instance, InstancePool, InstanceSpec, InstanceStatus};
pub use session::{
    AccessEndPoint, ApplicationSession, ClientSession, OnNodeLoss, OpenMode, SessionSpec,
    SessionState, SessionStatus,
};

/// The API group.
pub const GROUP: &str = "apps.mainstay.dev";
/// Its version.
pub const VERSION: &str = "v1";

/// The kinds of this crate.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    vec![application::kind(), session::kind(), instance::kind()]
}
