//! Scenarios: a made-up south, steps, and what must come of them, in one file.
//!
//! A scenario describes descriptors, what the south holds and where it fails, and a list of steps
//! with expectations. [`run`] plays it against a real engine with a clock that is moved by hand, so
//! that the same file gives the same result every time. `docs/graph-scenarios.md` is the reference.

mod compare;
mod file;
mod play;
mod report;
mod south;

pub use self::file::Scenario;
pub use self::play::{Played, play};
pub use self::report::{Report, StepReport};

/// Why a scenario could not be played.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a scenario.
    #[error("not a scenario: {0}")]
    Syntax(String),
    /// The descriptors do not go together.
    #[error(transparent)]
    Registration(#[from] crate::registry::Error),
    /// The engine gave up.
    #[error(transparent)]
    Engine(#[from] crate::engine::Error),
}

/// Reads a scenario.
pub fn parse(text: &str) -> Result<Scenario, Error> {
    read_yaml(text).map_err(Error::Syntax)
}

/// Reads YAML in which only `true` and `false` are truth values: an item may be called `y` or `on`.
pub(crate) fn read_yaml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
