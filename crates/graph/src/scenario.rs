//! Scenarios: a simulated south, steps, and the expected results, in one file.
//!
//! A scenario describes descriptors, the content of the south and where it fails, and a list of steps
//! with expectations. [`play`] runs it against a real engine with a manual clock, so that the same
//! file gives the same result every time. [`live`] makes an engine with the same descriptors and no
//! steps, to be used on the machine's clock. `docs/graph-scenarios.md` is the reference.
//!
//! ```
//! use mainstay_graph::scenario;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = "descriptors: [{name: thing, prefix: thing/}]\nsteps: [{txn: {set: {thing/a: {}}}}]";
//! let played = scenario::play(&scenario::parse(file)?).await?;
//! assert!(played.report.differences.is_empty());
//! played.stop().await;
//! # Ok(())
//! # }
//! ```

mod clock;
mod compare;
mod file;
mod kept;
mod live;
mod play;
mod report;
mod south;

pub use self::file::{DelaySpec, Scenario};
pub use self::live::live;
pub use self::play::{Played, play};
pub use self::report::{Report, StepReport};

/// Why a scenario cannot be played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a scenario.
    #[error("not a scenario: {0}")]
    Syntax(String),
    /// A descriptor was refused.
    #[error(transparent)]
    Registration(#[from] crate::registry::Error),
    /// The engine returned an error.
    #[error(transparent)]
    Engine(#[from] crate::engine::Error),
    /// The file of the simulated south cannot be used.
    #[error("{}: the simulated south cannot be read or written", path.display())]
    South {
        /// The file.
        path: std::path::PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
}

/// Reads a scenario.
pub fn parse(text: &str) -> Result<Scenario, Error> {
    read_yaml(text).map_err(Error::Syntax)
}

/// Reads YAML in which only `true` and `false` are booleans: an item may be called `y` or `on`.
pub(crate) fn read_yaml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}
