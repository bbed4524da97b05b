//! What a user hands in: a transaction with its options.
//!
//! A transaction is a set of wanted values; a key mentioned twice counts once, with the last word.
//! By default a failure takes the whole transaction back; a resync does as much as it can instead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::descriptor::{Model, UserLabels};
use crate::key::Key;
use crate::value::{Metadata, Value, ValueType};

/// Why a transaction was refused before anything was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Taking back a resync would undo repairs.
    #[error("a resync cannot be reverted; use best effort")]
    RevertedResync,
    /// A downstream resync works from what is already wanted.
    #[error("a downstream resync takes no values")]
    DownstreamValues,
    /// A value without a name.
    #[error("a key is empty")]
    EmptyKey,
}

/// When and how often a failed operation is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retry {
    /// How long to wait before the first retry.
    pub period: Duration,
    /// How many retries; 0 for no limit.
    pub max: u32,
    /// Whether the wait doubles each time.
    pub backoff: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { period: Duration::from_secs(1), max: 3, backoff: true }
    }
}

impl Retry {
    /// The wait before a retry, counted from 1; none if it is one too many.
    pub(crate) fn delay(&self, attempt: u32) -> Option<Duration> {
        let allowed = self.max == 0 || attempt <= self.max;
        let factor =
            if self.backoff { 1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX) } else { 1 };
        allowed.then(|| self.period.saturating_mul(factor))
    }
}

/// How wanted values and the south are brought together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub enum Resync {
    /// Not at all: only the given values change.
    #[default]
    NotResync,
    /// The transaction holds everything that is wanted; the south is looked at first.
    FullResync,
    /// The transaction holds everything that is wanted; the south is as remembered.
    UpstreamResync,
    /// What is wanted is as remembered; the south is looked at first.
    DownstreamResync,
}

impl Resync {
    /// Whether the south is looked at first.
    pub fn refreshes(self) -> bool {
        matches!(self, Self::FullResync | Self::DownstreamResync)
    }
}

/// Reads names and numbers; what it does not know is no resync.
impl<'de> Deserialize<'de> for Resync {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(name) => match name.as_str() {
                "FullResync" => Self::FullResync,
                "UpstreamResync" => Self::UpstreamResync,
                "DownstreamResync" => Self::DownstreamResync,
                _ => Self::NotResync,
            },
            number => match number.as_i64() {
                Some(1) => Self::FullResync,
                Some(2) => Self::UpstreamResync,
                Some(3) => Self::DownstreamResync,
                _ => Self::NotResync,
            },
        })
    }
}

/// What brought a transaction about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum TransactionType {
    /// The user.
    NBTransaction,
    /// The controlled system.
    SBNotification,
    /// Operations that failed before.
    RetryFailedOps,
    /// Values whose descriptor has arrived.
    RetryUnimplOps,
    /// Written by something newer than this.
    #[serde(rename = "-1")]
    Unknown,
}

impl TransactionType {
    /// The name as people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NBTransaction => "NBTransaction",
            Self::SBNotification => "SBNotification",
            Self::RetryFailedOps => "RetryFailedOps",
            Self::RetryUnimplOps => "RetryUnimplOps",
            Self::Unknown => "Unknown",
        }
    }
}

/// Reads names and numbers; what it does not know is [`TransactionType::Unknown`].
impl<'de> Deserialize<'de> for TransactionType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(name) => match name.as_str() {
                "NBTransaction" => Self::NBTransaction,
                "SBNotification" => Self::SBNotification,
                "RetryFailedOps" => Self::RetryFailedOps,
                "RetryUnimplOps" => Self::RetryUnimplOps,
                _ => Self::Unknown,
            },
            number => match number.as_i64() {
                Some(0) => Self::NBTransaction,
                Some(1) => Self::SBNotification,
                Some(2) => Self::RetryFailedOps,
                Some(3) => Self::RetryUnimplOps,
                _ => Self::Unknown,
            },
        })
    }
}

/// What happens to a transaction when one of its operations fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// Everything done so far is taken back.
    Revert,
    /// Everything that can be done is done.
    BestEffort,
}

/// A wanted value; none to have it gone.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) value: Option<Value>,
    pub(crate) labels: Option<Arc<UserLabels>>,
}

/// A set of changes that belong together.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    pub(crate) values: BTreeMap<Key, Wanted>,
    pub(crate) resync: Resync,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) retry: Option<Retry>,
    pub(crate) description: String,
    pub(crate) operation_timeout: Option<Duration>,
}

impl Transaction {
    /// A transaction that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transaction that looks at the south and mends what differs from what is wanted.
    pub fn downstream_resync() -> Self {
        Self::new().resync(Resync::DownstreamResync)
    }

    /// Wants a value under a key.
    #[must_use]
    pub fn set(mut self, key: impl Into<Key>, value: impl Into<Value>) -> Self {
        self.values.insert(key.into(), Wanted { value: Some(value.into()), labels: None });
        self
    }

    /// Wants a typed value under a key.
    #[must_use]
    pub fn set_typed<V: ValueType>(self, key: impl Into<Key>, value: V) -> Self {
        self.set(key, Value::new(value))
    }

    /// Wants a value under the key its model gives it; a value the model cannot name is refused
    /// when the transaction is committed.
    #[must_use]
    pub fn put<M: Model>(self, model: &M, value: M::Value) -> Self {
        let key = model.key(&value).unwrap_or_else(|| Key::from(""));
        self.set(key, Value::new(value))
    }

    /// Wants a key gone.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Key>) -> Self {
        self.values.insert(key.into(), Wanted { value: None, labels: None });
        self
    }

    /// Puts labels on a value set before.
    #[must_use]
    pub fn labels(mut self, key: &str, labels: UserLabels) -> Self {
        if let Some(wanted) = self.values.get_mut(key) {
            wanted.labels = Some(Arc::new(labels));
        }
        self
    }

    /// Makes it a resync.
    #[must_use]
    pub fn resync(mut self, resync: Resync) -> Self {
        self.resync = resync;
        self
    }

    /// Says what happens on failure; the default is to revert, and best effort for a resync.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = Some(on_failure);
        self
    }

    /// Tries failed operations on these values again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Says what the transaction is for.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Gives up on an operation that takes longer; what it did is then looked up in the south.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = Some(timeout);
        self
    }

    /// The keys of the transaction, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.values.keys()
    }

    pub(crate) fn reverts(&self) -> bool {
        let default = match self.resync {
            Resync::NotResync => OnFailure::Revert,
            _ => OnFailure::BestEffort,
        };
        self.on_failure.unwrap_or(default) == OnFailure::Revert
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.resync != Resync::NotResync && self.reverts() {
            return Err(Error::RevertedResync);
        }
        if self.resync == Resync::DownstreamResync && !self.values.is_empty() {
            return Err(Error::DownstreamValues);
        }
        if self.values.keys().any(|key| key.is_empty()) {
            return Err(Error::EmptyKey);
        }
        Ok(())
    }
}

/// What the south has to say: values it made, changed or took away by itself.
#[derive(Debug, Clone, Default)]
pub struct Notification {
    pub(crate) values: BTreeMap<Key, (Option<Value>, Option<Metadata>)>,
}

impl Notification {
    /// A notification that says nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A value is there, with its metadata.
    #[must_use]
    pub fn set(
        mut self,
        key: impl Into<Key>,
        value: impl Into<Value>,
        metadata: Option<Metadata>,
    ) -> Self {
        self.values.insert(key.into(), (Some(value.into()), metadata));
        self
    }

    /// A value is gone.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Key>) -> Self {
        self.values.insert(key.into(), (None, None));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_types_are_read_from_names_and_numbers() {
        let read = |text: &str| serde_json::from_str::<TransactionType>(text).unwrap();
        assert_eq!(read("\"SBNotification\""), TransactionType::SBNotification);
        assert_eq!(read("2"), TransactionType::RetryFailedOps);
        assert_eq!(read("\"RetryUnimplOps\""), TransactionType::RetryUnimplOps);
        assert_eq!(read("\"Later\""), TransactionType::Unknown);
        assert_eq!(serde_json::to_string(&TransactionType::Unknown).unwrap(), "\"-1\"");
    }

    #[test]
    fn resync_types_are_read_from_names_and_numbers() {
        let read = |text: &str| serde_json::from_str::<Resync>(text).unwrap();
        assert_eq!(read("\"FullResync\""), Resync::FullResync);
        assert_eq!(read("3"), Resync::DownstreamResync);
        assert_eq!(read("\"Later\""), Resync::NotResync);
        assert_eq!(read("17"), Resync::NotResync);
    }

    #[test]
    fn retries_double_until_they_are_used_up() {
        let retry = Retry { period: Duration::from_secs(2), max: 3, backoff: true };
        let delays: Vec<_> = (1..=4).map(|n| retry.delay(n).map(|d| d.as_secs())).collect();
        assert_eq!(delays, [Some(2), Some(4), Some(8), None]);
        let forever = Retry { max: 0, backoff: false, ..retry };
        assert_eq!(forever.delay(1_000).map(|d| d.as_secs()), Some(2));
        let long = Retry { max: 0, ..retry };
        assert!(long.delay(1_000).is_some(), "a long back-off saturates");
    }
}
