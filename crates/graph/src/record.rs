//! What was planned and what was done, written down.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::state::{Operation, Origin, ValueState};
use crate::transaction::{Resync, TransactionType};
use crate::value::Value;

/// One operation, planned or executed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OperationRecord {
    /// What was done.
    pub operation: Operation,
    /// To which value.
    pub key: Key,
    /// The state before.
    pub prev_state: ValueState,
    /// The state after.
    pub new_state: ValueState,
    /// The value before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_value: Option<Value>,
    /// The value after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_value: Option<Value>,
    /// The error before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_error: Option<Arc<str>>,
    /// The error after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_error: Option<Arc<str>>,
    /// What kind of operation it was.
    #[serde(default, skip_serializing_if = "Flags::is_none")]
    pub flags: Flags,
}

/// What kind of operation it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Flags {
    /// On a derived value.
    pub derived: bool,
    /// On a derived value without a descriptor.
    pub property: bool,
    /// Nothing was done in the south.
    pub noop: bool,
    /// It took back an earlier operation.
    pub revert: bool,
    /// It was tried again.
    pub retry: bool,
    /// It was part of a re-creation.
    pub recreate: bool,
}

impl Flags {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for OperationRecord {
    /// `OP KEY PREVIOUS>NEW FLAG… !error`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}>{}", self.operation, self.key, self.prev_state, self.new_state)?;
        let Flags { derived, property, noop, revert, retry, recreate } = self.flags;
        for (is, flag) in [
            (derived && !property, "DERIVED"),
            (property, "PROPERTY"),
            (noop, "NOOP"),
            (revert, "REVERT"),
            (retry, "RETRY"),
            (recreate, "RECREATE"),
        ] {
            if is {
                write!(f, " {flag}")?;
            }
        }
        match &self.new_error {
            Some(error) => write!(f, " !{error}"),
            None => Ok(()),
        }
    }
}

/// A value that failed in a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{op} {key}: {error}")]
pub struct KeyError {
    /// Which value.
    pub key: Key,
    /// In which operation.
    pub op: Operation,
    /// How.
    pub error: String,
}

/// A value as it was handed in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InputValue {
    /// Its key.
    pub key: Key,
    /// The value; none to have it gone.
    pub value: Option<Value>,
    /// Who brought it.
    pub origin: Origin,
}

/// A transaction, written down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TransactionRecord {
    /// Whether execution had not ended when this was written.
    #[serde(default)]
    pub pre_record: bool,
    /// Its number.
    pub seq: u64,
    /// What brought it about.
    #[serde(rename = "type")]
    pub kind: TransactionType,
    /// Whether it was a resync.
    pub resync: Resync,
    /// What it was for.
    #[serde(default)]
    pub description: String,
    /// The transaction whose failures are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_for: Option<u64>,
    /// Which retry it is.
    #[serde(default)]
    pub attempt: u32,
    /// When execution began.
    pub start: Timestamp,
    /// When it ended.
    pub stop: Timestamp,
    /// What was handed in, in key order.
    pub values: Vec<InputValue>,
    /// What was to be done.
    pub planned: Vec<OperationRecord>,
    /// What was done.
    pub executed: Vec<OperationRecord>,
    /// What failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<KeyError>,
    /// Whether it was taken back.
    #[serde(default)]
    pub reverted: bool,
    /// What was made ahead of a failure, beside what the record says, and taken back. Empty unless
    /// operations may run side by side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<OperationRecord>,
    /// What a descriptor should have done otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl TransactionRecord {
    /// About how many bytes the record takes.
    pub(crate) fn weight(&self) -> usize {
        let value = |value: &Option<Value>| value.as_ref().map_or(0, Value::weight);
        let operation = |one: &OperationRecord| {
            size_of::<OperationRecord>()
                + one.key.len()
                + value(&one.prev_value)
                + value(&one.new_value)
        };
        size_of::<Self>()
            + self.values.iter().map(|one| 64 + one.key.len() + value(&one.value)).sum::<usize>()
            + self
                .planned
                .iter()
                .chain(&self.executed)
                .chain(&self.ahead)
                .map(operation)
                .sum::<usize>()
    }

    /// The keys whose values the transaction touched.
    pub fn touched(&self) -> impl Iterator<Item = &Key> {
        self.executed.iter().map(|operation| &operation.key)
    }
}
