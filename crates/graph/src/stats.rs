//! The statistics of one engine. Engines share none.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::record::TransactionRecord;
use crate::registry::{DescriptorId, Registry};
use crate::state::Operation;

/// The upper bounds of the buckets of a histogram, in seconds.
const BOUNDS: [f64; 8] = [0.000_1, 0.001, 0.01, 0.1, 0.5, 1.0, 10.0, 60.0];

#[derive(Debug, Clone, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn write(&self, out: &mut String, name: &str, label: &str) {
        let separator = if label.is_empty() { "" } else { "," };
        for (count, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(out, "{name}_bucket{{{label}{separator}le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{name}_bucket{{{label}{separator}le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum{{{label}}} {}", self.sum);
        let _ = writeln!(out, "{name}_count{{{label}}} {}", self.count);
    }
}

/// The counters of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Stats {
    start: Timestamp,
    processed: BTreeMap<&'static str, Histogram>,
    wait: Histogram,
    calls: BTreeMap<(DescriptorId, Operation), (u64, u64, Duration)>,
    pub(crate) dropped: u64,
    errors: u64,
    reverted: u64,
}

/// The statistics of an engine, for reading.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StatsView {
    /// The start of the engine.
    pub since: Timestamp,
    /// The number of values.
    pub values: usize,
    /// The number of requests that wait.
    pub queue_length: usize,
    /// The most requests that may wait.
    pub queue_capacity: usize,
    /// Requests that were refused because the queue was full.
    pub dropped: u64,
    /// Transactions by type.
    pub transactions: BTreeMap<String, u64>,
    /// Values that failed in a transaction.
    pub errors: u64,
    /// Reverted transactions.
    pub reverted: u64,
    /// Operations by kind.
    pub operations: BTreeMap<String, OperationStats>,
    /// The same for each descriptor.
    pub descriptors: BTreeMap<String, BTreeMap<String, OperationStats>>,
    #[serde(skip)]
    detail: Vec<(&'static str, Histogram)>,
    #[serde(skip)]
    wait: Histogram,
}

/// The number and duration of operations of one kind.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct OperationStats {
    /// The number of operations.
    pub count: u64,
    /// The number of failures.
    pub failed: u64,
    /// The total time.
    pub seconds: f64,
}

impl OperationStats {
    fn add(&mut self, (count, failed, time): &(u64, u64, Duration)) {
        self.count += count;
        self.failed += failed;
        self.seconds += time.as_secs_f64();
    }
}

impl Stats {
    pub(crate) fn new(start: Timestamp) -> Self {
        Self {
            start,
            processed: BTreeMap::new(),
            wait: Histogram::default(),
            calls: BTreeMap::new(),
            dropped: 0,
            errors: 0,
            reverted: 0,
        }
    }

    pub(crate) fn waited(&mut self, queued: Timestamp, now: Timestamp) {
        self.wait.add(between(queued, now));
    }

    pub(crate) fn called(
        &mut self,
        descriptor: DescriptorId,
        operation: Operation,
        took: Duration,
        well: bool,
    ) {
        let (count, failed, time) = self.calls.entry((descriptor, operation)).or_default();
        *count += 1;
        *failed += u64::from(!well);
        *time += took;
    }

    pub(crate) fn finished(&mut self, record: &TransactionRecord) {
        let took = between(record.start, record.stop);
        self.processed.entry(record.kind.name()).or_default().add(took);
        self.errors += record.errors.len() as u64;
        self.reverted += u64::from(record.reverted);
    }

    pub(crate) fn view(
        &self,
        registry: &Registry,
        values: usize,
        queue_length: usize,
        queue_capacity: usize,
    ) -> StatsView {
        let mut operations: BTreeMap<String, OperationStats> = BTreeMap::new();
        let mut descriptors: BTreeMap<String, BTreeMap<String, OperationStats>> = BTreeMap::new();
        for ((descriptor, operation), calls) in &self.calls {
            let descriptor = registry.get(*descriptor).name().to_owned();
            let own = descriptors.entry(descriptor).or_default();
            own.entry(operation.to_string()).or_default().add(calls);
            operations.entry(operation.to_string()).or_default().add(calls);
        }
        StatsView {
            since: self.start,
            values,
            queue_length,
            queue_capacity,
            dropped: self.dropped,
            transactions: self
                .processed
                .iter()
                .map(|(kind, one)| ((*kind).to_owned(), one.count))
                .collect(),
            errors: self.errors,
            reverted: self.reverted,
            operations,
            descriptors,
            detail: self.processed.iter().map(|(kind, one)| (*kind, one.clone())).collect(),
            wait: self.wait.clone(),
        }
    }
}

impl StatsView {
    /// The statistics in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let name = "mainstay_graph";
        for (metric, kind, help, value) in [
            ("values", "gauge", "Values in the graph.", self.values as u64),
            ("queue_length", "gauge", "Requests that wait.", self.queue_length as u64),
            ("queue_capacity", "gauge", "Requests that may wait.", self.queue_capacity as u64),
            ("txn_dropped", "counter", "Requests that found no room.", self.dropped),
            ("txn_errors", "counter", "Values that failed.", self.errors),
            ("txn_reverted", "counter", "Transactions taken back.", self.reverted),
            (
                "txn_processed",
                "counter",
                "Transactions processed.",
                self.transactions.values().copied().sum(),
            ),
        ] {
            let _ = writeln!(out, "# HELP {name}_{metric} {help}\n# TYPE {name}_{metric} {kind}");
            let _ = writeln!(out, "{name}_{metric} {value}");
        }
        let _ = writeln!(out, "# TYPE {name}_queue_wait_seconds histogram");
        self.wait.write(&mut out, &format!("{name}_queue_wait_seconds"), "");
        let _ = writeln!(out, "# TYPE {name}_txn_duration_seconds histogram");
        for (kind, histogram) in &self.detail {
            let label = format!("txn_type=\"{kind}\"");
            histogram.write(&mut out, &format!("{name}_txn_duration_seconds"), &label);
        }
        let _ = writeln!(out, "# TYPE {name}_operations counter");
        for (operation, stats) in &self.operations {
            let _ = writeln!(out, "{name}_operations{{operation=\"{operation}\"}} {}", stats.count);
        }
        out
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
