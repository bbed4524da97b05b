//! The messages of `proto/graph.proto`, written by hand so that building needs no compiler for them.

use std::collections::HashMap;

/// A change.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TransactionRequest {
    /// Wanted values, as JSON.
    #[prost(map = "string, string", tag = "1")]
    pub set: HashMap<String, String>,
    /// Unwanted keys.
    #[prost(string, repeated, tag = "2")]
    pub delete: Vec<String>,
    /// Which resync.
    #[prost(enumeration = "Resync", tag = "3")]
    pub resync: i32,
    /// What happens on failure.
    #[prost(enumeration = "OnFailure", tag = "4")]
    pub on_failure: i32,
    /// Tries failed operations again.
    #[prost(message, optional, tag = "5")]
    pub retry: Option<Retry>,
    /// What it is for.
    #[prost(string, tag = "6")]
    pub description: String,
    /// Waits until configured, at most this long.
    #[prost(uint64, tag = "7")]
    pub wait_ms: u64,
}

/// Which resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Resync {
    /// None.
    None = 0,
    /// Everything wanted is in the transaction; the south is looked at.
    Full = 1,
    /// Everything wanted is in the transaction.
    Upstream = 2,
    /// The south is looked at.
    Downstream = 3,
}

/// What happens on failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum OnFailure {
    /// Revert, or best effort for a resync.
    Default = 0,
    /// Everything is taken back.
    Revert = 1,
    /// Everything possible is done.
    BestEffort = 2,
}

/// How failures are retried.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Retry {
    /// How long to wait.
    #[prost(uint64, tag = "1")]
    pub period_ms: u64,
    /// How often; 0 for no limit.
    #[prost(uint32, tag = "2")]
    pub max: u32,
    /// Whether the wait doubles.
    #[prost(bool, tag = "3")]
    pub backoff: bool,
}

/// An operation.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Operation {
    /// What.
    #[prost(string, tag = "1")]
    pub operation: String,
    /// On which value.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The state before.
    #[prost(string, tag = "3")]
    pub previous_state: String,
    /// The state after.
    #[prost(string, tag = "4")]
    pub new_state: String,
    /// The error.
    #[prost(string, tag = "5")]
    pub error: String,
    /// The whole line.
    #[prost(string, tag = "6")]
    pub line: String,
}

/// A value that failed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyError {
    /// Which value.
    #[prost(string, tag = "1")]
    pub key: String,
    /// In which operation.
    #[prost(string, tag = "2")]
    pub operation: String,
    /// How.
    #[prost(string, tag = "3")]
    pub error: String,
}

/// What a change did.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitReply {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// What was to be done.
    #[prost(message, repeated, tag = "2")]
    pub planned: Vec<Operation>,
    /// What was done.
    #[prost(message, repeated, tag = "3")]
    pub executed: Vec<Operation>,
    /// What failed.
    #[prost(message, repeated, tag = "4")]
    pub errors: Vec<KeyError>,
    /// Whether it was taken back.
    #[prost(bool, tag = "5")]
    pub reverted: bool,
}

/// What a change would do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PlanReply {
    /// The operations, in order.
    #[prost(message, repeated, tag = "1")]
    pub operations: Vec<Operation>,
}

/// Which values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {
    /// Only this one.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Only those whose keys begin with this.
    #[prost(string, tag = "2")]
    pub key_prefix: String,
}

/// How a value stands.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueStatus {
    /// Its key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its state.
    #[prost(string, tag = "2")]
    pub state: String,
    /// What was last done to it.
    #[prost(string, tag = "3")]
    pub last_operation: String,
    /// The error.
    #[prost(string, tag = "4")]
    pub error: String,
    /// Unmet dependencies or invalid fields.
    #[prost(string, repeated, tag = "5")]
    pub details: Vec<String>,
    /// The circle it waits in.
    #[prost(string, repeated, tag = "6")]
    pub cycle: Vec<String>,
    /// Whether the south may differ.
    #[prost(bool, tag = "7")]
    pub uncertain: bool,
    /// What the user wrote on it.
    #[prost(map = "string, string", tag = "8")]
    pub labels: HashMap<String, String>,
    /// The values derived from it.
    #[prost(message, repeated, tag = "9")]
    pub derived: Vec<ValueStatus>,
}

/// How values stand.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusReply {
    /// In key order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<ValueStatus>,
}

/// A change of status.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchReply {
    /// How the value stands now.
    #[prost(message, optional, tag = "1")]
    pub status: Option<ValueStatus>,
    /// This many changes were missed.
    #[prost(uint64, tag = "2")]
    pub missed: u64,
}
