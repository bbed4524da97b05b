//! The states of values, the kinds of operations, and the origins of values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a value.
///
/// ```
/// use mainstay_graph::ValueState;
///
/// assert_eq!(ValueState::Configured.name(), "CONFIGURED");
/// assert!(ValueState::Retrying.is_failure());
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum ValueState {
    /// Never existed, or was deleted.
    #[default]
    Nonexistent,
    /// Was configured, but the last retrieval did not find it.
    Missing,
    /// Wanted, but there is no descriptor for its key.
    Unimplemented,
    /// Being deleted, or between the two halves of a re-creation.
    Removed,
    /// Wanted and applied.
    Configured,
    /// Known from the south only.
    Obtained,
    /// Found in the south, of northern origin, not configured by this run.
    Discovered,
    /// Wanted, with unmet dependencies.
    Pending,
    /// Wanted, but its validation failed.
    Invalid,
    /// The last operation failed and is not retried.
    Failed,
    /// The last operation failed and is retried.
    Retrying,
}

impl ValueState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Nonexistent,
        Self::Missing,
        Self::Unimplemented,
        Self::Removed,
        Self::Configured,
        Self::Obtained,
        Self::Discovered,
        Self::Pending,
        Self::Invalid,
        Self::Failed,
        Self::Retrying,
    ];

    /// The name in logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nonexistent => "NONEXISTENT",
            Self::Missing => "MISSING",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Removed => "REMOVED",
            Self::Configured => "CONFIGURED",
            Self::Obtained => "OBTAINED",
            Self::Discovered => "DISCOVERED",
            Self::Pending => "PENDING",
            Self::Invalid => "INVALID",
            Self::Failed => "FAILED",
            Self::Retrying => "RETRYING",
        }
    }

    /// Whether the last operation on the value failed.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Retrying)
    }

    /// The origin of a value in this state.
    pub fn origin(self) -> Origin {
        match self {
            Self::Obtained => Origin::South,
            Self::Nonexistent => Origin::Unknown,
            _ => Origin::North,
        }
    }
}

impl fmt::Display for ValueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of an operation on a value.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum Operation {
    /// No operation is known.
    #[default]
    Undefined,
    /// The value was checked.
    Validate,
    /// The value was created.
    Create,
    /// The value was changed in place.
    Update,
    /// The value was deleted.
    Delete,
}

impl Operation {
    /// The name in logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Undefined => "UNDEFINED",
            Self::Validate => "VALIDATE",
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Origin {
    /// Not known; the engine derives it from its history.
    #[default]
    #[serde(rename = "unknown")]
    Unknown,
    /// Wanted by the user.
    #[serde(rename = "NB")]
    North,
    /// Made by the south itself.
    #[serde(rename = "SB")]
    South,
}
