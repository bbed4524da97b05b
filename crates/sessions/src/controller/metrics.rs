//! Metrics of sessions: requests by outcome, time to open by phase, instances by pool, messages.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PoolLabel {
    pool: &'static str,
}

fn latencies() -> Histogram {
    let buckets = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
    Histogram::new(buckets)
}

/// The metrics. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    opened: Family<OutcomeLabel, Counter>,
    opening: Family<PhaseLabel, Histogram>,
    instances: Family<PoolLabel, Gauge>,
    pub(super) sessions: Gauge,
    pub(super) nodes: Gauge,
    pub(super) nodes_lost: Counter,
    pub(super) sent: Counter<u64, AtomicU64>,
    pub(super) received: Counter<u64, AtomicU64>,
    pub(super) disconnected: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            opened: Family::default(),
            opening: Family::new_with_constructor(latencies),
            instances: Family::default(),
            sessions: Gauge::default(),
            nodes: Gauge::default(),
            nodes_lost: Counter::default(),
            sent: Counter::default(),
            received: Counter::default(),
            disconnected: Counter::default(),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("mainstay_sessions");
        registry.register("opened", "Requests to open a session, by outcome", self.opened.clone());
        registry.register(
            "opening_seconds",
            "Time to open a session, by phase: waiting for an instance, its node, total",
            self.opening.clone(),
        );
        registry.register("instances", "Instances by pool", self.instances.clone());
        registry.register("open", "Sessions that are not over", self.sessions.clone());
        registry.register("nodes", "Nodes with an open stream", self.nodes.clone());
        registry.register(
            "nodes_lost",
            "Nodes that were lost because their heartbeats stopped",
            self.nodes_lost.clone(),
        );
        registry.register("messages_sent", "Messages sent to nodes", self.sent.clone());
        registry.register(
            "messages_received",
            "Messages received from nodes",
            self.received.clone(),
        );
        registry.register(
            "slow_streams_closed",
            "Streams closed because the node did not read them",
            self.disconnected.clone(),
        );
    }

    pub(super) fn answered(&self, outcome: &'static str) {
        self.opened.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(super) fn took(&self, phase: &'static str, seconds: f64) {
        self.opening.get_or_create(&PhaseLabel { phase }).observe(seconds);
    }

    pub(super) fn in_pool(&self, pool: &'static str, instances: i64) {
        self.instances.get_or_create(&PoolLabel { pool }).set(instances);
    }
}
