//! The format of scenario files.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use crate::selector::KeySelector;
use crate::time::parse_duration;

type Map<T> = BTreeMap<String, T>;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Scenario {
    /// The descriptors.
    #[serde(default)]
    pub descriptors: Vec<DescriptorSpec>,
    /// The values in the south at the start.
    #[serde(default)]
    pub south: Vec<SouthValue>,
    /// Values that fail validation.
    #[serde(default)]
    pub invalid: Vec<InvalidSpec>,
    /// Operations that fail.
    #[serde(default)]
    pub fail: Vec<FailSpec>,
    /// Operations that take time.
    #[serde(default, deserialize_with = "delays")]
    pub delay: Vec<DelaySpec>,
    /// The most operations that run at once.
    #[serde(default)]
    pub parallel: Option<usize>,
    /// Whether the south is checked after every transaction.
    #[serde(default)]
    pub verify: bool,
    /// The steps.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// How values are derived from the items of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Items {
    /// Derived values, each with the descriptor its key belongs to.
    #[default]
    Derive,
    /// Derived values without a descriptor.
    Properties,
    /// No derived values.
    None,
}

/// An operation of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Create a value.
    Create,
    /// Change a value in place.
    Update,
    /// Delete a value.
    Delete,
    /// List the values in the south.
    Retrieve,
}

impl Op {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Retrieve => "retrieve",
        }
    }
}

/// A descriptor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DescriptorSpec {
    /// Its name.
    pub name: String,
    /// The prefix of its keys.
    #[serde(default)]
    pub prefix: Option<String>,
    /// The pattern of its keys; it beats the prefix of another descriptor.
    #[serde(default)]
    pub pattern: Option<String>,
    /// How values are derived from items.
    #[serde(default)]
    pub items: Items,
    /// Whether it keeps a number as metadata for each value.
    #[serde(default)]
    pub metadata: bool,
    /// The operations that it lacks.
    #[serde(default)]
    pub without: Vec<Op>,
    /// The descriptors that retrieve before it.
    #[serde(default)]
    pub after: Vec<String>,
    /// Keys whose change is a deletion and a creation.
    #[serde(default)]
    pub recreate: Vec<String>,
    /// The dependencies of each key.
    #[serde(default)]
    pub depends: Map<Vec<DependencySpec>>,
    /// Keys whose values all count as equal.
    #[serde(default)]
    pub equivalent: Vec<String>,
    /// Whether it is registered by a step only.
    #[serde(default)]
    pub late: bool,
}

impl DescriptorSpec {
    /// The keys of the descriptor.
    pub(super) fn keys(&self) -> KeySelector {
        let prefix = self.prefix.as_ref().map(KeySelector::prefix);
        let pattern = self.pattern.as_ref().map(KeySelector::pattern);
        prefix.into_iter().chain(pattern).fold(KeySelector::default(), KeySelector::or)
    }
}

/// A dependency.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DependencySpec {
    /// The key.
    #[serde(default)]
    pub key: Option<String>,
    /// Its name; the key if not given.
    #[serde(default)]
    pub label: Option<String>,
    /// On any key of a set.
    #[serde(default)]
    pub any_of: Option<AnyOfSpec>,
    /// Applies only while the value has this item.
    #[serde(default)]
    pub when: Option<String>,
}

/// A set of keys.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnyOfSpec {
    /// Keys that begin with one of these.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Keys that end with this.
    #[serde(default)]
    pub suffix: Option<String>,
}

/// A value in the south.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SouthValue {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: Json,
    /// Its origin: `nb`, `sb` or `unknown`.
    #[serde(default)]
    pub origin: Option<String>,
    /// Its number.
    #[serde(default)]
    pub metadata: Option<i64>,
}

/// A value that fails validation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InvalidSpec {
    /// Its key.
    pub key: String,
    /// Its items, exactly.
    #[serde(default)]
    pub items: Vec<String>,
    /// The fields that are wrong.
    #[serde(default)]
    pub fields: Vec<String>,
    /// The error text.
    #[serde(default)]
    pub error: Option<String>,
}

/// An operation that fails.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailSpec {
    /// The key.
    #[serde(default)]
    pub key: Option<String>,
    /// The descriptor, for a retrieval.
    #[serde(default)]
    pub descriptor: Option<String>,
    /// The operation.
    pub op: Op,
    /// The number of the call that fails; every call if not given.
    #[serde(default)]
    pub nth: Option<u32>,
    /// The error text.
    #[serde(default)]
    pub error: Option<String>,
    /// The value in the south afterwards: unchanged if not given, deleted if null.
    #[serde(default, deserialize_with = "given")]
    pub south: Option<Option<Json>>,
    /// Whether a retry may help.
    #[serde(default = "yes")]
    pub retriable: bool,
}

/// An operation that takes time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DelaySpec {
    /// The key; any key if not given.
    #[serde(default)]
    pub key: Option<String>,
    /// The descriptor, for a retrieval.
    #[serde(default)]
    pub descriptor: Option<String>,
    /// The operation; creation, update and deletion if not given.
    #[serde(default)]
    pub op: Option<Op>,
    /// The number of the call that takes time; every call if not given.
    #[serde(default)]
    pub nth: Option<u32>,
    /// How long it takes.
    #[serde(deserialize_with = "some_duration")]
    pub time: Duration,
}

impl DelaySpec {
    /// Every creation, update and deletion takes this long.
    pub fn all(time: Duration) -> Self {
        Self { key: None, descriptor: None, op: None, nth: None, time }
    }
}

/// Reads a list, or one duration for every operation.
fn delays<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DelaySpec>, D::Error> {
    let given = Json::deserialize(deserializer)?;
    if given.is_array() {
        return serde_json::from_value(given).map_err(serde::de::Error::custom);
    }
    let time = duration(given).map_err(serde::de::Error::custom)?;
    Ok(time.map(DelaySpec::all).into_iter().collect())
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer)?.ok_or_else(|| serde::de::Error::custom("a duration is missing"))
}

fn yes() -> bool {
    true
}

/// Distinguishes null from a missing field.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

/// One step: an event, and the expected result.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A transaction.
    #[serde(default)]
    pub txn: Option<TxnSpec>,
    /// A notification of the south.
    #[serde(default)]
    pub notify: Option<NotifySpec>,
    /// A late descriptor to register.
    #[serde(default)]
    pub register: Option<String>,
    /// Time that passes.
    #[serde(default, deserialize_with = "duration")]
    pub advance: Option<Duration>,
    /// A change of the south without notification.
    #[serde(default)]
    pub drift: Option<ChangeSpec>,
    /// The expected transactions.
    #[serde(default)]
    pub expect: Option<Vec<ExpectSpec>>,
    /// The expected states.
    #[serde(default)]
    pub states: Option<Map<Json>>,
    /// The expected values in the south.
    #[serde(default)]
    pub south: Option<Map<Json>>,
    /// The expected unmet dependencies.
    #[serde(default)]
    pub pending: Option<Map<Json>>,
    /// The expected metadata.
    #[serde(default)]
    pub metadata: Option<Map<Json>>,
    /// The expected statuses.
    #[serde(default)]
    pub status: Option<Map<Json>>,
    /// The known values that each descriptor got for its retrieval.
    #[serde(default)]
    pub correlate: Option<Map<Json>>,
    /// The expected operations in the south.
    #[serde(default)]
    pub calls: Option<Vec<String>>,
    /// The expected error of the step.
    #[serde(default)]
    pub error: Option<String>,
}

/// A transaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TxnSpec {
    /// Values to set.
    #[serde(default)]
    pub set: Map<Json>,
    /// Keys to delete.
    #[serde(default)]
    pub delete: Vec<String>,
    /// The kind of resync, if any.
    #[serde(default)]
    pub resync: Option<ResyncSpec>,
    /// How failures are handled.
    #[serde(default)]
    pub on_failure: Option<crate::transaction::OnFailure>,
    /// Whether failures are retried.
    #[serde(default)]
    pub retry: Option<RetrySpec>,
    /// A description.
    #[serde(default)]
    pub description: String,
}

/// A kind of resync.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncSpec {
    /// The transaction lists every wanted value; the south is retrieved.
    Full,
    /// The transaction lists every wanted value.
    Upstream,
    /// The south is retrieved.
    Downstream,
}

/// How failures are retried.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrySpec {
    /// The pause before the first retry.
    #[serde(default, deserialize_with = "duration")]
    pub period: Option<Duration>,
    /// The most retries.
    #[serde(default)]
    pub max: Option<u32>,
    /// Whether the pause doubles each time.
    #[serde(default)]
    pub backoff: Option<bool>,
}

/// A notification of the south.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifySpec {
    /// Values that exist now.
    #[serde(default)]
    pub set: Map<Json>,
    /// Keys that no longer exist.
    #[serde(default)]
    pub delete: Vec<String>,
    /// The metadata of the values.
    #[serde(default)]
    pub metadata: Map<i64>,
}

/// A change of the south.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSpec {
    /// Values that exist now.
    #[serde(default)]
    pub set: Map<Json>,
    /// Keys that no longer exist.
    #[serde(default)]
    pub delete: Vec<String>,
}

/// An expected transaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// Its type.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Its plan; the same as executed if not given.
    #[serde(default)]
    pub planned: Option<Vec<String>>,
    /// The executed operations.
    #[serde(default)]
    pub executed: Option<Vec<String>>,
    /// The keys that failed.
    #[serde(default)]
    pub errors: Option<Vec<String>>,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<Json>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let text = match text {
        Json::String(text) => text,
        other => other.to_string(),
    };
    parse_duration(&text).map(Some).ok_or_else(|| {
        serde::de::Error::custom(format!("{text} is not a duration such as 3s or 500ms"))
    })
}
