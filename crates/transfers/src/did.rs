//! Names of data identifiers ([`Did`]), and times in microseconds.

use serde::{Deserialize, Serialize};

/// A time or duration in microseconds; times count from 1970, UTC.
pub type Micros = i64;

/// One second in [`Micros`].
pub const SECOND: Micros = 1_000_000;

/// The name of a data identifier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Did {
    /// Its scope.
    pub scope: String,
    /// Its name within the scope.
    pub name: String,
}

impl Did {
    /// A name from its two parts.
    pub fn new(scope: impl Into<String>, name: impl Into<String>) -> Self {
        Self { scope: scope.into(), name: name.into() }
    }

    /// Reads `scope:name`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scope, name) = text.split_once(':')?;
        Some(Self::new(scope, name))
    }
}

impl std::fmt::Display for Did {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.scope, self.name)
    }
}
