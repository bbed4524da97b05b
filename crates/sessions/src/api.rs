//! The kinds Application, ApplicationSession and Instance, with their validation.

/// Declares an enum of words: serialized as these words, and printed with `as_str`.
macro_rules! words {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$meta:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        $(#[$about])*
        pub enum $name {
            $($(#[$meta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The word that users read and write.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

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

/// The API group of the kinds.
pub const GROUP: &str = "apps.mainstay.dev";
/// The version of the group.
pub const VERSION: &str = "v1";

/// The kinds of this crate.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    vec![application::kind(), session::kind(), instance::kind()]
}
