//! The result of a scenario, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;

use crate::record::{KeyError, TransactionRecord};

/// The result of a scenario.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The result of each step.
    pub steps: Vec<StepReport>,
    /// The differences from the expectations, as text.
    #[serde(skip)]
    pub differences: Vec<String>,
    /// How much time operations took.
    #[serde(skip)]
    pub slept: Duration,
}

/// The result of one step.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct StepReport {
    /// The transactions it caused.
    pub transactions: Vec<TransactionReport>,
    /// The state of every value.
    pub states: BTreeMap<String, Json>,
    /// The values in the south.
    pub south: BTreeMap<String, Json>,
    /// The operations in the south.
    pub calls: Vec<String>,
    /// The unmet dependencies of every value that waits.
    pub pending: BTreeMap<String, Json>,
    /// The metadata of every value that has any.
    pub metadata: BTreeMap<String, Json>,
    /// The status of every value.
    pub status: BTreeMap<String, Json>,
    /// The known values that each descriptor got for its retrieval.
    pub correlate: BTreeMap<String, Json>,
    /// The error of the step.
    pub error: Option<String>,
}

/// A summary of a transaction.
#[derive(Debug, Clone, Serialize)]
pub struct TransactionReport {
    /// Its sequence number.
    pub seq: u64,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The planned operations.
    pub planned: Vec<String>,
    /// The executed operations.
    pub executed: Vec<String>,
    /// The values that failed.
    pub errors: Vec<KeyError>,
}

impl TransactionReport {
    pub(super) fn new(record: &TransactionRecord) -> Self {
        Self {
            seq: record.seq,
            kind: record.kind.name().to_owned(),
            planned: record.planned.iter().map(ToString::to_string).collect(),
            executed: record.executed.iter().map(ToString::to_string).collect(),
            errors: record.errors.clone(),
        }
    }
}

impl Report {
    /// The report for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (number, step) in self.steps.iter().enumerate() {
            let _ = writeln!(out, "step {}", number + 1);
            if let Some(error) = &step.error {
                let _ = writeln!(out, "  refused: {error}");
            }
            for one in &step.transactions {
                let _ = writeln!(out, "  #{} {}", one.seq, one.kind);
                let same = one.planned == one.executed;
                if !same {
                    lines(&mut out, "planned", &one.planned);
                }
                lines(
                    &mut out,
                    if same { "planned and executed" } else { "executed" },
                    &one.executed,
                );
                for error in &one.errors {
                    let _ = writeln!(out, "    failed: {error}");
                }
            }
        }
        out
    }
}

fn lines(out: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        let _ = writeln!(out, "    {title}: nothing");
        return;
    }
    let _ = writeln!(out, "    {title}:");
    for (number, line) in lines.iter().enumerate() {
        let _ = writeln!(out, "      {:>2}. {line}", number + 1);
    }
}
