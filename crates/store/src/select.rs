//! Which objects a list or a watch is about: label and field selectors.
//!
//! [`Selection::parse`] reads both as Kubernetes does, errors included. Matching works on stored
//! bytes: names come from the key, and only the fields in question are read from the JSON.

mod extract;
mod fields;
mod labels;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use fields::FieldSelector;
pub use labels::{LabelSelector, Operator, Requirement};

use crate::object::{Action, Event, Record};
use crate::registry::Kind;
use crate::status;

/// Why a selector cannot be read. Correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not a selector.
    #[error("{0}")]
    Syntax(String),
    /// The kind does not let itself be selected by this field.
    #[error("field label not supported: {0}")]
    Field(String),
}

impl From<Error> for status::Error {
    fn from(error: Error) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// A label selector and a field selector of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The labels asked for.
    pub labels: LabelSelector,
    /// The fields asked for.
    pub fields: FieldSelector,
}

impl Selection {
    /// Reads the two selectors; an empty text selects everything.
    ///
    /// # Errors
    /// If one of them cannot be read, or names a field the kind does not declare.
    pub fn parse(kind: &Kind, labels: &str, fields: &str) -> Result<Self, Error> {
        let labels = LabelSelector::parse(labels)?;
        let fields = FieldSelector::parse(fields)?;
        fields.check(kind)?;
        Ok(Self { labels, fields })
    }

    /// Whether every object is selected.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// The one name that is selected, if only one can be.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.fields.exactly("metadata.name")
    }

    /// The one namespace that is selected, if only one can be.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.fields.exactly("metadata.namespace")
    }

    /// Whether a stored object is selected.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        self.fields.matches(record) && self.labels.matches(record)
    }

    /// How a watch of this selection reports a change: an object that begins to match is added, one
    /// that no longer matches is deleted. `None` if the object matched neither before nor after.
    #[must_use]
    pub fn action(&self, event: &Event) -> Option<Action> {
        let now = || self.matches(&event.record);
        let before = || event.previous.as_ref().is_some_and(|record| self.matches(record));
        match event.action {
            Action::Added => now().then_some(Action::Added),
            Action::Deleted => before().then_some(Action::Deleted),
            Action::Modified => match (before(), now()) {
                (true, true) => Some(Action::Modified),
                (false, true) => Some(Action::Added),
                (true, false) => Some(Action::Deleted),
                (false, false) => None,
            },
        }
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches_object(&self, object: &Map<String, Value>) -> bool {
        self.fields.matches_object(object) && self.labels.matches_object(object)
    }
}
