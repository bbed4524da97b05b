//! The words of the engine: what state a value is in, what was done to it, where it came from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What state a value is in.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ValueState {
    /// Never existed, or is gone.
    #[default]
    Nonexistent,
    /// Was configured, but the last look at the south did not find it.
    Missing,
    /// Wanted, but no descriptor knows it.
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
    /// The last operation failed and none is planned.
    Failed,
    /// The last operation failed and will be tried again.
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

    /// The name as people read it.
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

    /// Where a value in this state comes from.
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

/// What was done, or was to be done, to a value.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Nothing is known to have been done.
    #[default]
    Undefined,
    /// The value was looked over.
    Validate,
    /// The value was brought into being.
    Create,
    /// The value was changed in place.
    Update,
    /// The value was taken away.
    Delete,
}

impl Operation {
    /// The name as people read it.
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

/// Who brought a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Origin {
    /// Not known; the engine works it out from what it remembers.
    #[default]
    #[serde(rename = "unknown")]
    Unknown,
    /// Wanted by the user.
    #[serde(rename = "NB")]
    North,
    /// Made by the controlled system itself.
    #[serde(rename = "SB")]
    South,
}
