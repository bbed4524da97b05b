//! Records of transactions: the planned and the executed operations.

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
#[non_exhaustive]
pub struct OperationRecord {
    /// The kind of operation.
    pub operation: Operation,
    /// The key of the value.
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
    /// Details of the operation.
    #[serde(default, skip_serializing_if = "Flags::is_none")]
    pub flags: Flags,
}

/// Details of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Flags {
    /// On a derived value.
    pub derived: bool,
    /// On a derived value without a descriptor.
    pub property: bool,
    /// The south was not changed.
    pub noop: bool,
    /// It reverted an earlier operation.
    pub revert: bool,
    /// It was a retry.
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
#[non_exhaustive]
pub struct KeyError {
    /// The key of the value.
    pub key: Key,
    /// The operation that failed.
    pub op: Operation,
    /// The error.
    pub error: String,
}

/// A value of a transaction, as given.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InputValue {
    /// Its key.
    pub key: Key,
    /// The value; none to delete it.
    pub value: Option<Value>,
    /// Where it comes from.
    pub origin: Origin,
}

/// The record of a transaction.
///
/// ```
/// # use mainstay_graph::{Builder, Options, Transaction};
/// # use tokio_util::sync::CancellationToken;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (engine, service) = Builder::new(Options::default()).build()?;
/// # let worker = tokio::spawn(service.run(CancellationToken::new()));
/// let record = engine.commit(Transaction::new().set_typed("a", 1_u32)).await?;
/// assert_eq!(record.seq, 0);
/// assert_eq!(record.touched().count(), 1);
/// println!("{}", mainstay_graph::log::text(&record));
/// # drop(engine);
/// # worker.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TransactionRecord {
    /// Whether execution had not ended when this was written.
    #[serde(default)]
    pub pre_record: bool,
    /// Its sequence number.
    pub seq: u64,
    /// Its cause.
    #[serde(rename = "type")]
    pub kind: TransactionType,
    /// Whether it was a resync.
    pub resync: Resync,
    /// The description that was given.
    #[serde(default)]
    pub description: String,
    /// The transaction whose failures are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_for: Option<u64>,
    /// Which retry it is.
    #[serde(default)]
    pub attempt: u32,
    /// When execution began.
    pub start: Timestamp,
    /// When it ended.
    pub stop: Timestamp,
    /// The given values, in key order.
    pub values: Vec<InputValue>,
    /// The planned operations.
    pub planned: Vec<OperationRecord>,
    /// The executed operations.
    pub executed: Vec<OperationRecord>,
    /// The values that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<KeyError>,
    /// Whether it was reverted.
    #[serde(default)]
    pub reverted: bool,
    /// Operations that ran ahead of a failure and were undone. Empty unless operations run in
    /// parallel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<OperationRecord>,
    /// Mistakes of descriptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl TransactionRecord {
    /// About the number of bytes that the record takes.
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

    /// The keys that the transaction changed, in the order of its operations.
    pub fn touched(&self) -> impl Iterator<Item = &Key> {
        self.executed.iter().map(|operation| &operation.key)
    }
}
