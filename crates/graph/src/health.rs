//! The health of an engine: whether it accepts transactions, and which descriptors it waits for.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The health of an engine.
///
/// ```
/// use mainstay_graph::{Builder, Options};
///
/// # fn main() -> Result<(), mainstay_graph::Error> {
/// let (engine, _service) = Builder::new(Options::default()).build()?;
/// assert!(engine.health().accepts);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// Whether transactions are accepted. Once they are not, only a restart changes that; reads are
    /// answered all the same.
    pub accepts: bool,
    /// Why no transactions are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether there is a journal.
    pub journalled: bool,
    /// Changes made when the journal was opened, and errors of its compaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// Descriptors whose first retrieval has failed. Their values are uncertain and left alone until
    /// a retrieval succeeds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Unseen>,
}

/// A descriptor that could not retrieve its values yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unseen {
    /// The name of the descriptor.
    pub descriptor: String,
    /// The error of the last attempt.
    pub error: String,
    /// The number of attempts so far.
    pub attempts: u32,
    /// When the next attempt is due.
    pub next: Timestamp,
}

impl Health {
    pub(crate) fn new(journalled: bool, notices: Vec<String>) -> Self {
        Self { accepts: true, reason: None, journalled, notices, unseen: Vec::new() }
    }
}
