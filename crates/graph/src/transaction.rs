//! Transactions with their options, and notifications.
//!
//! A transaction is a set of wanted values; of a key that is set twice the last value counts. By
//! default a failure reverts the whole transaction; a resync applies as much as it can instead.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::descriptor::{Model, UserLabels};
use crate::key::Key;
use crate::picture::Picture;
use crate::value::{Metadata, Value, ValueType};

/// Why a transaction is not valid; it was not executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reverting a resync would undo repairs.
    #[error("a resync cannot be reverted; use best effort")]
    RevertedResync,
    /// A downstream resync uses the values that are already wanted.
    #[error("a downstream resync takes no values")]
    DownstreamValues,
    /// A value without a key.
    #[error("a key is empty")]
    EmptyKey,
    /// A retry without a pause would never let the engine rest.
    #[error("retry.period is 0: a retry needs a positive period, such as 1s")]
    RetryPeriod,
    /// A derived value follows from its base and cannot be set or deleted by itself.
    #[error("{key} is derived from {base}: it cannot be set or deleted; change {base} instead")]
    DerivedKey {
        /// The derived key.
        key: Key,
        /// The key of the value it is derived from.
        base: Key,
    },
}

/// When and how often a failed operation is retried.
///
/// ```
/// use std::time::Duration;
///
/// use mainstay_graph::{Retry, Transaction};
///
/// let retry = Retry::every(Duration::from_secs(5)).max(10).backoff(false);
/// let change = Transaction::new().set_typed("a", 1_u32).retry(retry);
/// assert_eq!(change.keys().count(), 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Retry {
    /// The pause before the first retry; a transaction with a pause of 0 is refused.
    pub period: Duration,
    /// The most retries; 0 for no limit.
    pub max: u32,
    /// Whether the pause doubles each time.
    pub backoff: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { period: Duration::from_secs(1), max: 3, backoff: true }
    }
}

impl Retry {
    /// Retries after this pause, with the limit and the back-off of the default.
    pub fn every(period: Duration) -> Self {
        Self { period, ..Self::default() }
    }

    /// Sets the most retries; 0 for no limit.
    #[must_use]
    pub fn max(mut self, max: u32) -> Self {
        self.max = max;
        self
    }

    /// Sets whether the pause doubles each time.
    #[must_use]
    pub fn backoff(mut self, backoff: bool) -> Self {
        self.backoff = backoff;
        self
    }

    /// The pause before a retry, counted from 1; none if the limit is exceeded.
    pub(crate) fn delay(&self, attempt: u32) -> Option<Duration> {
        let allowed = self.max == 0 || attempt <= self.max;
        let factor =
            if self.backoff { 1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX) } else { 1 };
        allowed.then(|| self.period.saturating_mul(factor))
    }
}

/// Which values a transaction lists, and whether the south is retrieved first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[non_exhaustive]
pub enum Resync {
    /// Not a resync: only the listed values change.
    #[default]
    NotResync,
    /// The transaction lists every wanted value; the south is retrieved first.
    FullResync,
    /// The transaction lists every wanted value; the south is as remembered.
    UpstreamResync,
    /// The wanted values are as remembered; the south is retrieved first.
    DownstreamResync,
}

impl Resync {
    /// Whether the south is retrieved first.
    pub fn refreshes(self) -> bool {
        matches!(self, Self::FullResync | Self::DownstreamResync)
    }
}

/// Reads names and numbers; any other text or number is [`Resync::NotResync`].
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

/// The cause of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum TransactionType {
    /// A commit of the user.
    NBTransaction,
    /// A notification of the south.
    SBNotification,
    /// A retry of failed operations.
    RetryFailedOps,
    /// A new descriptor, for values that waited for it.
    RetryUnimplOps,
    /// A type written by a newer version.
    #[serde(rename = "-1")]
    Unknown,
}

impl TransactionType {
    /// The name in logs and JSON.
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

/// Reads names and numbers; any other text or number is [`TransactionType::Unknown`].
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

/// How a transaction handles a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnFailure {
    /// The operations so far are reverted.
    Revert,
    /// Every operation that is possible is executed.
    BestEffort,
}

/// A wanted value; none to delete it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) value: Option<Value>,
    pub(crate) labels: Option<Arc<UserLabels>>,
}

/// A set of changes that are applied together.
///
/// ```
/// use mainstay_graph::{OnFailure, Retry, Transaction};
///
/// let change = Transaction::new()
///     .set_typed("interface/eth0", 1500_u32)
///     .delete("interface/eth1")
///     .on_failure(OnFailure::BestEffort)
///     .retry(Retry::default())
///     .description("replace eth1");
/// assert_eq!(change.keys().map(|key| key.as_str()).collect::<Vec<_>>(), [
///     "interface/eth0",
///     "interface/eth1",
/// ]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    pub(crate) values: BTreeMap<Key, Wanted>,
    pub(crate) resync: Resync,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) retry: Option<Retry>,
    pub(crate) description: String,
    pub(crate) operation_timeout: Option<Duration>,
    pub(crate) durable: bool,
    /// Where to put a picture of the graph as it was retrieved.
    pub(crate) retrieved: Option<Arc<OnceLock<Picture>>>,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transaction that retrieves the south and repairs every difference to the wanted values.
    pub fn downstream_resync() -> Self {
        Self::new().resync(Resync::DownstreamResync)
    }

    /// Sets the value of a key.
    #[must_use]
    pub fn set(mut self, key: impl Into<Key>, value: impl Into<Value>) -> Self {
        self.values.insert(key.into(), Wanted { value: Some(value.into()), labels: None });
        self
    }

    /// Sets the typed value of a key.
    #[must_use]
    pub fn set_typed<V: ValueType>(self, key: impl Into<Key>, value: V) -> Self {
        self.set(key, Value::new(value))
    }

    /// Sets a value under the key of its model. Committing fails if the model gives no key.
    ///
    /// ```
    /// use mainstay_graph::{PrefixModel, Transaction};
    ///
    /// let names = PrefixModel::new("name/", |name: &String| Some(name.clone()));
    /// let change = Transaction::new().put(&names, "eth0".to_owned());
    /// assert_eq!(change.keys().next().unwrap().as_str(), "name/eth0");
    /// ```
    #[must_use]
    pub fn put<M: Model>(self, model: &M, value: M::Value) -> Self {
        let key = model.key(&value).unwrap_or_else(|| Key::from(""));
        self.set(key, Value::new(value))
    }

    /// Deletes a key.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Key>) -> Self {
        self.values.insert(key.into(), Wanted { value: None, labels: None });
        self
    }

    /// Puts labels on a value that was set before; ignored for other keys.
    #[must_use]
    pub fn labels(mut self, key: &str, labels: UserLabels) -> Self {
        if let Some(wanted) = self.values.get_mut(key) {
            wanted.labels = Some(Arc::new(labels));
        }
        self
    }

    /// Makes the transaction a resync.
    #[must_use]
    pub fn resync(mut self, resync: Resync) -> Self {
        self.resync = resync;
        self
    }

    /// Sets how failures are handled; the default is to revert, and best effort for a resync.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = Some(on_failure);
        self
    }

    /// Retries failed operations on these values.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets a description for the history.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Cancels an operation that takes longer; its effect is then retrieved from the south.
    #[must_use]
    pub fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = Some(timeout);
        self
    }

    /// Whether a commit returns only once a crash of the machine cannot lose the transaction. A
    /// transaction that has returned survives the end of the process in any case; transactions that
    /// wait at the same time share one flush of the journal. Without a journal it has no effect.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
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
        if self.retry.is_some_and(|retry| retry.period.is_zero()) {
            return Err(Error::RetryPeriod);
        }
        Ok(())
    }
}

/// Values that the south created, changed or deleted by itself.
///
/// ```
/// use mainstay_graph::{Metadata, Notification, Value};
///
/// let event = Notification::new()
///     .set("link/eth0", Value::new(true), Some(Metadata::new(7_u32)))
///     .delete("link/eth1");
/// # let _ = event;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Notification {
    pub(crate) values: BTreeMap<Key, (Option<Value>, Option<Metadata>)>,
}

impl Notification {
    /// An empty notification.
    pub fn new() -> Self {
        Self::default()
    }

    /// A value that exists now, with its metadata.
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

    /// A value that no longer exists.
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
    fn a_retry_needs_a_positive_period() {
        let retrying =
            |period, max| Transaction::new().retry(Retry { period, max, backoff: false }).check();
        assert_eq!(retrying(Duration::ZERO, 0), Err(Error::RetryPeriod));
        assert_eq!(retrying(Duration::ZERO, 3), Err(Error::RetryPeriod));
        assert_eq!(retrying(Duration::from_nanos(1), 0), Ok(()));
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
