//! What servers and agents say to each other: `proto/agents.proto`, and the template of instances.
//!
//! The messages are written by hand so that building needs no compiler for them; a test holds them
//! to the file.

mod client;
mod messages;
mod service;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use client::AgentsClient;
pub use messages::{
    Client, CloseSession, CommandFailed, Configuration, CreateInstance, Endpoint, Failure,
    FromNode, FullSync, Health, Heartbeat, InstancePhase, InstanceState, LogChunk, Name,
    OpenSession, ReadLog, Register, Report, SessionPhase, SessionState, ToNode, from_node, to_node,
};
pub use service::{Agents, AgentsServer, Incoming, Outgoing};

use crate::api::{ApplicationSpec, Container, VolumeUse};

/// The largest message either side takes, in bytes.
pub const LARGEST: usize = 16 << 20;

/// The reason of a session that was closed in order: its instance may have another.
pub const CLEAN: &str = "Closed";

/// What an instance runs: the part of an application that an instance is made from. Two instances
/// of equal templates are the same; scaling and reuse are not part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// The process.
    pub process: Container,
    /// Whether it speaks to the session service.
    pub using_node_session_service: bool,
    /// Settings it finds as files.
    pub config_data: BTreeMap<String, String>,
    /// How long it has to end by itself.
    pub grace_seconds: u32,
    /// The volume it uses.
    pub volume: Option<VolumeUse>,
}

impl Template {
    /// What instances of an application run.
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

    /// As it is sent.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What tells it from others: the beginning of its hash.
    #[must_use]
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.to_json());
        digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests;
