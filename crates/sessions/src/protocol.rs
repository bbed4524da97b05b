//! The gRPC protocol between servers and agents, and the template that instances are made from.
//!
//! `proto/agents.proto` is the contract; messages, client and server are generated from it at build
//! time. Field numbers never change: a test compares the encoding with bytes recorded from released
//! versions.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

mod generated {
    #![expect(clippy::allow_attributes, unreachable_pub, reason = "generated code")]

    tonic::include_proto!("mainstay.agents.v1");
}

pub use generated::agents_client::AgentsClient;
pub use generated::agents_server::{Agents, AgentsServer};
pub use generated::{
    Client, CloseSession, CommandFailed, Configuration, CreateInstance, Endpoint, Failure,
    FromNode, FullSync, Health, Heartbeat, InstancePhase, InstanceState, LogChunk, Name,
    OpenSession, ReadLog, Register, Report, SessionPhase, SessionState, ToNode, from_node, to_node,
};

use crate::api::{ApplicationSpec, Container, VolumeUse};

/// Size limit of one message in bytes, for both sides to set on their end of the stream.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The reason of a session that was closed in order: its instance may take another session.
pub const CLEAN: &str = "Closed";

/// Prints the names of secret variables, not their values.
impl fmt::Debug for CreateInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateInstance")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("template", &self.template)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

/// The part of an application's spec that an instance is made from. Instances of equal templates
/// are interchangeable; scaling and reuse are not part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// The process.
    pub process: Container,
    /// Whether the process uses the session service of its node.
    pub using_node_session_service: bool,
    /// Configuration that the process finds as files: content by file name.
    pub config_data: BTreeMap<String, String>,
    /// Seconds between the request to terminate and the kill.
    pub grace_seconds: u32,
    /// The volume it uses.
    pub volume: Option<VolumeUse>,
}

impl Template {
    /// The template of an application.
    #[must_use]
    pub fn of(spec: &ApplicationSpec) -> Self {
        Self {
            process: spec.process().clone(),
            using_node_session_service: spec.using_node_session_service,
            config_data: spec.config_data.clone(),
            grace_seconds: u32::try_from(spec.termination_grace_period_seconds).unwrap_or(0),
            volume: spec.volume.clone(),
        }
    }

    /// The form in which it is sent to agents and hashed.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The first ten hexadecimal digits of its SHA-256, which name the template.
    #[must_use]
    pub fn hash(&self) -> String {
        hex::encode(&Sha256::digest(self.to_json())[..5])
    }
}

#[cfg(test)]
mod tests;
