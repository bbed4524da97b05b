//! The shape of a scenario file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use crate::clock::parse_duration;

type Map<T> = BTreeMap<String, T>;

/// A scenario as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// The descriptors.
    #[serde(default)]
    pub descriptors: Vec<DescriptorSpec>,
    /// What the south holds in the beginning.
    #[serde(default)]
    pub south: Vec<SouthValue>,
    /// Which values are refused.
    #[serde(default)]
    pub invalid: Vec<InvalidSpec>,
    /// Which operations fail.
    #[serde(default)]
    pub fail: Vec<FailSpec>,
    /// How many operations may run at once.
    #[serde(default)]
    pub parallel: Option<usize>,
    /// Whether the south is checked after every transaction.
    #[serde(default)]
    pub verify: bool,
    /// What happens.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// What follows from the items of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Items {
    /// Derived values, each with the descriptor its key belongs to.
    #[default]
    Derive,
    /// Derived values without a descriptor.
    Properties,
    /// Nothing.
    None,
}

/// An operation a descriptor may lack or fail at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Bring into being.
    Create,
    /// Change in place.
    Update,
    /// Take away.
    Delete,
    /// List what is there.
    Retrieve,
}

/// A descriptor.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DescriptorSpec {
    /// Its name.
    pub name: String,
    /// What its keys begin with.
    pub prefix: String,
    /// What follows from items.
    #[serde(default)]
    pub items: Items,
    /// Whether it keeps a number for each value.
    #[serde(default)]
    pub metadata: bool,
    /// What it cannot do.
    #[serde(default)]
    pub without: Vec<Op>,
    /// Which descriptors are retrieved before it.
    #[serde(default)]
    pub after: Vec<String>,
    /// Keys whose change is a deletion and a creation.
    #[serde(default)]
    pub recreate: Vec<String>,
    /// What each key depends on.
    #[serde(default)]
    pub depends: Map<Vec<DependencySpec>>,
    /// Keys whose values all count as equal.
    #[serde(default)]
    pub equivalent: Vec<String>,
    /// Whether it is registered by a step only.
    #[serde(default)]
    pub late: bool,
}

/// A dependency.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DependencySpec {
    /// On this key.
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
    /// Who made it: `nb`, `sb` or `unknown`.
    #[serde(default)]
    pub origin: Option<String>,
    /// Its number.
    #[serde(default)]
    pub metadata: Option<i64>,
}

/// A value that is refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InvalidSpec {
    /// Under this key.
    pub key: String,
    /// With exactly these items.
    #[serde(default)]
    pub items: Vec<String>,
    /// Because of these fields.
    #[serde(default)]
    pub fields: Vec<String>,
    /// In these words.
    #[serde(default)]
    pub error: Option<String>,
}

/// An operation that fails.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailSpec {
    /// On this key.
    #[serde(default)]
    pub key: Option<String>,
    /// Of this descriptor, for a retrieval.
    #[serde(default)]
    pub descriptor: Option<String>,
    /// This one.
    pub op: Op,
    /// The how-manieth; every one if not given.
    #[serde(default)]
    pub nth: Option<u32>,
    /// In these words.
    #[serde(default)]
    pub error: Option<String>,
    /// What the south holds afterwards: as before if not given, nothing if null.
    #[serde(default, deserialize_with = "given")]
    pub south: Option<Option<Json>>,
    /// Whether trying again may help.
    #[serde(default = "yes")]
    pub retriable: bool,
}

fn yes() -> bool {
    true
}

/// Tells null from not given.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

/// One step: something that happens, and what must come of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The north wants something.
    #[serde(default)]
    pub txn: Option<TxnSpec>,
    /// The south tells something.
    #[serde(default)]
    pub notify: Option<NotifySpec>,
    /// A late descriptor arrives.
    #[serde(default)]
    pub register: Option<String>,
    /// Time passes.
    #[serde(default, deserialize_with = "duration")]
    pub advance: Option<Duration>,
    /// The south changes and tells nobody.
    #[serde(default)]
    pub drift: Option<ChangeSpec>,
    /// The transactions it must cause.
    #[serde(default)]
    pub expect: Option<Vec<ExpectSpec>>,
    /// The states afterwards.
    #[serde(default)]
    pub states: Option<Map<Json>>,
    /// The south afterwards.
    #[serde(default)]
    pub south: Option<Map<Json>>,
    /// The unmet dependencies afterwards.
    #[serde(default)]
    pub pending: Option<Map<Json>>,
    /// The metadata afterwards.
    #[serde(default)]
    pub metadata: Option<Map<Json>>,
    /// The statuses afterwards.
    #[serde(default)]
    pub status: Option<Map<Json>>,
    /// What each descriptor was told before it retrieved.
    #[serde(default)]
    pub correlate: Option<Map<Json>>,
    /// Everything that was done in the south.
    #[serde(default)]
    pub calls: Option<Vec<String>>,
    /// The step must be refused with this text.
    #[serde(default)]
    pub error: Option<String>,
}

/// A transaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TxnSpec {
    /// Wanted values.
    #[serde(default)]
    pub set: Map<Json>,
    /// Unwanted keys.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Which resync, if any.
    #[serde(default)]
    pub resync: Option<ResyncSpec>,
    /// What happens on failure.
    #[serde(default)]
    pub on_failure: Option<crate::transaction::OnFailure>,
    /// Whether failures are retried.
    #[serde(default)]
    pub retry: Option<RetrySpec>,
    /// What it is for.
    #[serde(default)]
    pub description: String,
}

/// A kind of resync.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncSpec {
    /// Everything wanted is in the transaction; the south is looked at.
    Full,
    /// Everything wanted is in the transaction.
    Upstream,
    /// The south is looked at.
    Downstream,
}

/// How failures are retried.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrySpec {
    /// How long to wait.
    #[serde(default, deserialize_with = "duration")]
    pub period: Option<Duration>,
    /// How often.
    #[serde(default)]
    pub max: Option<u32>,
    /// Whether the wait doubles.
    #[serde(default)]
    pub backoff: Option<bool>,
}

/// What the south tells.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifySpec {
    /// Values that are there.
    #[serde(default)]
    pub set: Map<Json>,
    /// Keys that are gone.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Numbers of the values.
    #[serde(default)]
    pub metadata: Map<i64>,
}

/// A change of the south.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSpec {
    /// Values that are there.
    #[serde(default)]
    pub set: Map<Json>,
    /// Keys that are gone.
    #[serde(default)]
    pub delete: Vec<String>,
}

/// What a transaction must look like.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// Its type.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// Its plan; the same as executed if not given.
    #[serde(default)]
    pub planned: Option<Vec<String>>,
    /// What was done.
    #[serde(default)]
    pub executed: Option<Vec<String>>,
    /// Which keys failed.
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
