//! The metrics: operations by kind and outcome, how long they took, how long they waited.

use std::fmt::Write as _;
use std::time::Duration;

use mainstay_controller::meter::{Depth, Meter};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::phase::Operation;

/// The bounds of every histogram, in seconds.
const SECONDS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    operation: &'static str,
}

/// The counters of one agent's disks.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    operations: Family<Ended, Counter>,
    durations: Family<Kind, Histogram>,
    waits: Histogram,
    waiting: Gauge,
    running: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("mainstay_disks");
        let durations = Family::<Kind, Histogram>::new_with_constructor(|| Histogram::new(SECONDS));
        let operations = Family::default();
        let waits = Histogram::new(SECONDS);
        let (waiting, running) = (Gauge::default(), Gauge::default());
        let ended: &Family<Ended, Counter> = &operations;
        registry.register("operations", "Operations that ended", ended.clone());
        registry.register("operation_seconds", "How long operations took", durations.clone());
        registry.register("queue_wait_seconds", "How long operations waited", waits.clone());
        registry.register("queue_waiting", "Operations that wait for a slot", waiting.clone());
        registry.register("queue_running", "Operations that hold a slot", running.clone());
        Self { registry, operations, durations, waits, waiting, running }
    }
}

impl Metrics {
    /// An operation ended.
    pub fn ended(&self, operation: Operation, outcome: &'static str, took: Duration) {
        let operation = operation.as_str();
        self.operations.get_or_create(&Ended { operation, outcome }).inc();
        self.durations.get_or_create(&Kind { operation }).observe(took.as_secs_f64());
    }

    /// An operation began after it had waited.
    pub fn waited(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    /// Everything, as Prometheus reads it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry).is_err() {
            // Writing to a text cannot fail; if it does, say so rather than nothing.
            let _ = write!(text, "# EOF");
        }
        text
    }
}

impl Meter for Metrics {
    fn depth(&self, _queue: &str, depth: Depth) {
        self.waiting.set(i64::try_from(depth.ready).unwrap_or(i64::MAX));
        self.running.set(i64::try_from(depth.running).unwrap_or(i64::MAX));
    }
}
