//! Models: how the keys of one type of value look, and how key and label follow from a value.

use std::fmt;

use crate::key::Key;
use crate::selector::{KeyPattern, KeySelector};
use crate::value::ValueType;

/// Describes one type of value: how its keys look, and how key and label follow from a value.
///
/// ```
/// use mainstay_graph::{Key, Model, PrefixModel};
///
/// let names = PrefixModel::new("name/", |name: &String| Some(name.clone()));
/// assert_eq!(names.key(&"eth0".to_owned()), Some(Key::from("name/eth0")));
/// assert_eq!(names.parse("name/eth0"), Some("eth0"));
/// assert_eq!(names.parse("route/eth0"), None);
/// ```
pub trait Model: Send + Sync + 'static {
    /// The Rust type of the values.
    type Value: ValueType;

    /// The beginning of all keys of this model.
    fn prefix(&self) -> &str;

    /// The short name of a value, unique inside the model; none if the value does not carry it.
    fn label(&self, value: &Self::Value) -> Option<String>;

    /// The key of a value; by default the prefix and the label.
    fn key(&self, value: &Self::Value) -> Option<Key> {
        self.label(value).map(|label| Key::from(format!("{}{label}", self.prefix())))
    }

    /// The label in a key of this model; none for a key of another model.
    fn parse<'k>(&self, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(self.prefix()).filter(|label| !label.is_empty())
    }

    /// The keys of this model; by default all that begin with the prefix.
    fn selector(&self) -> KeySelector {
        KeySelector::prefix(self.prefix())
    }
}

/// The usual model: a prefix, followed by a label taken from the value.
pub struct PrefixModel<V> {
    prefix: String,
    label: fn(&V) -> Option<String>,
}

impl<V> PrefixModel<V> {
    /// A model whose keys are `prefix` followed by the label of the value.
    pub fn new(prefix: impl Into<String>, label: fn(&V) -> Option<String>) -> Self {
        Self { prefix: prefix.into(), label }
    }
}

impl<V> fmt::Debug for PrefixModel<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixModel").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl<V: ValueType> Model for PrefixModel<V> {
    type Value = V;

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn label(&self, value: &V) -> Option<String> {
        (self.label)(value)
    }
}

/// A model whose keys have variable parts in the middle, such as `bd/*/interface/*`.
///
/// Its keys may begin like those of another model: a pattern beats a prefix.
///
/// ```
/// use mainstay_graph::{Key, Model, PatternModel};
///
/// let members = PatternModel::new("bd/*/interface/*", |(domain, interface): &(String, String)| {
///     vec![domain.clone(), interface.clone()]
/// });
/// let member = ("bd1".to_owned(), "tap1".to_owned());
/// assert_eq!(members.key(&member), Some(Key::from("bd/bd1/interface/tap1")));
/// assert_eq!(members.parse("bd/bd1/interface/tap1"), Some("bd1/interface/tap1"));
/// assert_eq!(members.parse("bd/bd1"), None);
/// ```
pub struct PatternModel<V> {
    pattern: KeyPattern,
    parts: fn(&V) -> Vec<String>,
}

impl<V> PatternModel<V> {
    /// A model with this [`KeySelector::pattern`]; `parts` gives the text for each `*`, in order.
    /// A value with too few or too many parts, or with an empty one, has no key.
    pub fn new(pattern: impl AsRef<str>, parts: fn(&V) -> Vec<String>) -> Self {
        Self { pattern: KeyPattern::new(pattern.as_ref()), parts }
    }
}

impl<V> fmt::Debug for PatternModel<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PatternModel").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl<V: ValueType> Model for PatternModel<V> {
    type Value = V;

    fn prefix(&self) -> &str {
        self.pattern.start()
    }

    fn label(&self, value: &V) -> Option<String> {
        let key = self.pattern.fill(&(self.parts)(value))?;
        Some(key[self.pattern.start().len()..].to_owned())
    }

    fn parse<'k>(&self, key: &'k str) -> Option<&'k str> {
        self.pattern.accepts(key).then(|| &key[self.pattern.start().len()..])
    }

    fn selector(&self) -> KeySelector {
        KeySelector::pattern(self.pattern.text())
    }
}
