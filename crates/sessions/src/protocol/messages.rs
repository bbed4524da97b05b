//! The messages of `proto/agents.proto`, field for field.

#![expect(missing_docs, reason = "the fields are described in proto/agents.proto")]

use std::collections::HashMap;

/// What an agent says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromNode {
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    #[prost(oneof = "from_node::Body", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18")]
    pub body: Option<from_node::Body>,
}

/// An agent introduces its node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Register {
    #[prost(string, tag = "1")]
    pub node: String,
    #[prost(string, tag = "2")]
    pub boot_id: String,
    #[prost(uint64, tag = "3")]
    pub cpu_milli: u64,
    #[prost(uint64, tag = "4")]
    pub memory_bytes: u64,
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    #[prost(string, tag = "6")]
    pub address: String,
    #[prost(string, tag = "7")]
    pub version: String,
}

/// Everything on a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    #[prost(message, repeated, tag = "1")]
    pub instances: Vec<InstanceState>,
    #[prost(message, repeated, tag = "2")]
    pub sessions: Vec<SessionState>,
}

/// How an instance is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InstanceState {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub application: String,
    #[prost(string, tag = "4")]
    pub template: String,
    #[prost(enumeration = "InstancePhase", tag = "5")]
    pub phase: i32,
    #[prost(uint64, tag = "6")]
    pub cpu_milli: u64,
    #[prost(uint64, tag = "7")]
    pub memory_bytes: u64,
    #[prost(message, repeated, tag = "8")]
    pub endpoints: Vec<Endpoint>,
    #[prost(string, tag = "9")]
    pub reason: String,
    #[prost(string, tag = "10")]
    pub message: String,
}

/// Where an instance listens.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Endpoint {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bool, tag = "2")]
    pub udp: bool,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(uint32, tag = "4")]
    pub port: u32,
}

/// How a session is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionState {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub application: String,
    #[prost(string, tag = "4")]
    pub instance: String,
    #[prost(enumeration = "SessionPhase", tag = "5")]
    pub phase: i32,
    #[prost(message, repeated, tag = "6")]
    pub clients: Vec<Client>,
    #[prost(uint32, tag = "7")]
    pub external_port: u32,
    #[prost(string, tag = "8")]
    pub reason: String,
    #[prost(string, tag = "9")]
    pub message: String,
    #[prost(bytes = "vec", tag = "10")]
    pub object: Vec<u8>,
}

/// Somebody connected to a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Client {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(int64, tag = "2")]
    pub joined_micros: i64,
}

/// The agent is there.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Heartbeat {}

/// These are well.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Health {
    #[prost(message, repeated, tag = "1")]
    pub instances: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    pub sessions: Vec<Name>,
}

/// An instance or a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A command that could not be done.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommandFailed {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    #[prost(enumeration = "Failure", tag = "2")]
    pub failure: i32,
    #[prost(string, tag = "3")]
    pub message: String,
}

/// A piece of an instance's output.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogChunk {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub last: bool,
}

/// What a server says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToNode {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub request: u64,
    #[prost(oneof = "to_node::Body", tags = "10, 11, 12, 13, 14, 15, 16, 17, 18")]
    pub body: Option<to_node::Body>,
}

/// How the agent is to behave.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Configuration {
    #[prost(string, tag = "1")]
    pub cluster_domain: String,
    #[prost(uint32, tag = "2")]
    pub heartbeat_millis: u32,
    #[prost(uint32, tag = "3")]
    pub health_millis: u32,
}

/// Tell me everything.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FullSync {}

/// Start an instance.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct CreateInstance {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub application: String,
    #[prost(string, tag = "4")]
    pub template: String,
    #[prost(uint64, tag = "5")]
    pub cpu_milli: u64,
    #[prost(uint64, tag = "6")]
    pub memory_bytes: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub process: Vec<u8>,
    #[prost(bool, tag = "8")]
    pub standby: bool,
    #[prost(map = "string, bytes", tag = "9")]
    pub secrets: HashMap<String, Vec<u8>>,
}

/// Values of Secrets are not printed.
impl std::fmt::Debug for CreateInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateInstance")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("template", &self.template)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

/// Give a session to an instance.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OpenSession {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub instance: String,
    #[prost(string, tag = "4")]
    pub session_data: String,
    #[prost(uint32, tag = "5")]
    pub external_port: u32,
    #[prost(bytes = "vec", tag = "6")]
    pub object: Vec<u8>,
}

/// Take a session from its instance.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CloseSession {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub instance: String,
    #[prost(uint32, tag = "4")]
    pub grace_seconds: u32,
}

/// Show an instance's output.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadLog {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub instance: String,
    #[prost(uint64, tag = "3")]
    pub tail: u64,
    #[prost(bool, tag = "4")]
    pub follow: bool,
}

/// How far an instance is, as its node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum InstancePhase {
    Creating = 0,
    Standby = 10,
    Activating = 20,
    Running = 30,
    Evacuating = 40,
    Terminating = 50,
    Terminated = 60,
}

/// How far a session is, as its node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SessionPhase {
    Initializing = 0,
    Open = 101,
    Closed = 102,
    Closing = 103,
    NoHeartbeat = 104,
}

/// Why a command could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Failure {
    Unknown = 0,
    NotFound = 1,
    Conflict = 2,
    StaleEpoch = 3,
    Exhausted = 4,
    Invalid = 5,
    Failed = 6,
}

/// What a [`FromNode`] is about.
pub mod from_node {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "10")]
        Register(super::Register),
        #[prost(message, tag = "11")]
        Ready(super::Report),
        #[prost(message, tag = "12")]
        State(super::Report),
        #[prost(message, tag = "13")]
        Instance(super::InstanceState),
        #[prost(message, tag = "14")]
        Session(super::SessionState),
        #[prost(message, tag = "15")]
        Heartbeat(super::Heartbeat),
        #[prost(message, tag = "16")]
        Health(super::Health),
        #[prost(message, tag = "17")]
        Failed(super::CommandFailed),
        #[prost(message, tag = "18")]
        Log(super::LogChunk),
    }
}

/// What a [`ToNode`] is about.
pub mod to_node {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "10")]
        Configuration(super::Configuration),
        #[prost(message, tag = "11")]
        FullSync(super::FullSync),
        #[prost(message, tag = "12")]
        Create(super::CreateInstance),
        #[prost(message, tag = "13")]
        Terminate(super::Name),
        #[prost(message, tag = "14")]
        Hibernate(super::Name),
        #[prost(message, tag = "15")]
        Activate(super::Name),
        #[prost(message, tag = "16")]
        Open(super::OpenSession),
        #[prost(message, tag = "17")]
        Close(super::CloseSession),
        #[prost(message, tag = "18")]
        ReadLog(super::ReadLog),
    }
}
