//! The past in the journal: revisions of values, and the parts of the past that are not known.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Recovered;
use crate::descriptor::UserLabels;
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::state::{Operation, ValueState};
use crate::transaction::Retry;
use crate::value::Value;

/// A value as one revision shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PastNode {
    /// Its state.
    pub state: ValueState,
    /// Whether other values could depend on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub available: bool,
    /// Whether the south could differ.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// The name of the descriptor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<String>,
    /// The key of the value it was derived from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Key>,
    /// The value, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Whether the value was also the wanted one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub as_wanted: bool,
    /// The wanted value, if it was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested: Option<Value>,
    /// The metadata as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
    /// The error, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<PastError>,
    /// The transaction that last changed it.
    pub transaction: u64,
    /// The operation of that transaction.
    pub operation: Operation,
    /// Whether that operation reverted another.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub revert: bool,
    /// How its failures are retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The labels of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<UserLabels>,
}

/// Why the last operation on a value had failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PastError {
    /// The operation.
    pub operation: Operation,
    /// The error.
    pub message: String,
    /// Whether a retry could succeed.
    pub retriable: bool,
    /// The fields that are not valid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// A value between two changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PastRevision {
    /// The time of the change that made it.
    pub since: Timestamp,
    /// The transaction that made it.
    pub from: u64,
    /// The time of the next change; none for the present revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The transaction of the next change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// The value.
    pub node: PastNode,
}

/// A change of a value: ends its revision and, unless the value is gone, begins another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RevisionChange {
    /// The key.
    pub key: Key,
    /// The time of the change.
    pub since: Timestamp,
    /// The value; none if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PastNode>,
}

/// A part of the past of which revisions are missing: after transactions `from` up to, without,
/// `to`, and at times from `since` up to, without, `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gap {
    /// The first transaction.
    pub from: u64,
    /// The transaction after the last one.
    pub to: u64,
    /// The first moment.
    pub since: Timestamp,
    /// The moment at which it is over.
    pub until: Timestamp,
}

/// A share of the history.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Rollup {
    /// Transactions, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Arc<TransactionRecord>>,
    /// Revisions by key, oldest first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub revisions: BTreeMap<Key, Vec<PastRevision>>,
}

impl Rollup {
    pub(super) fn add_to(self, state: &mut Recovered) {
        state.history.extend(self.history);
        for (key, mut revisions) in self.revisions {
            state.revisions.entry(key).or_default().append(&mut revisions);
        }
    }
}

/// Adds the revisions that a transaction made.
pub(super) fn revise(
    state: &mut Recovered,
    seq: u64,
    record: Option<&TransactionRecord>,
    changes: Option<Vec<RevisionChange>>,
) {
    if let Some(record) = record {
        state.since.get_or_insert(record.start);
        // The end of an unrecorded part is only known from the next record.
        if let Some(gap) = state.gaps.last_mut().filter(|gap| gap.until == Timestamp::MAX) {
            gap.until = record.start;
        }
    }
    let Some(changes) = changes else {
        let until = record.map_or(Timestamp::MAX, |record| record.stop);
        // Of the state before it no revision can be complete.
        state.gaps = vec![Gap { from: 0, to: seq + 1, since: Timestamp::MIN, until }];
        return;
    };
    for RevisionChange { key, since, node } in changes {
        let revisions = state.revisions.entry(key).or_default();
        if let Some(last) = revisions.last_mut().filter(|last| last.until.is_none()) {
            (last.until, last.to) = (Some(since), Some(seq));
        }
        if let Some(node) = node {
            revisions.push(PastRevision { since, from: seq, until: None, to: None, node });
        }
    }
}
