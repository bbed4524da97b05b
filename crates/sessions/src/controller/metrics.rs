//! What is counted: sessions by outcome, how long opening takes by phase, what is said to nodes.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Phase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct InPool {
    pool: &'static str,
}

fn latencies() -> Histogram {
    let buckets = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];
    Histogram::new(buckets)
}

/// What is counted. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    opened: Family<Outcome, Counter>,
    opening: Family<Phase, Histogram>,
    instances: Family<InPool, Gauge>,
    pub(super) sessions: Gauge,
    pub(super) nodes: Gauge,
    pub(super) nodes_lost: Counter,
    pub(super) said: Counter<u64, AtomicU64>,
    pub(super) heard: Counter<u64, AtomicU64>,
    pub(super) hung_up: Counter,
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
            said: Counter::default(),
            heard: Counter::default(),
            hung_up: Counter::default(),
        }
    }
}

impl Metrics {
    /// Shows everything in a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("mainstay_sessions");
        registry.register("opened", "Requests to open a session, by outcome", self.opened.clone());
        registry.register(
            "opening_seconds",
            "How long opening takes: waiting for an instance, its node, all of it",
            self.opening.clone(),
        );
        registry.register("instances", "Instances by pool", self.instances.clone());
        registry.register("open", "Sessions that are not over", self.sessions.clone());
        registry.register("nodes", "Nodes with a stream", self.nodes.clone());
        registry.register("nodes_lost", "Nodes that fell silent", self.nodes_lost.clone());
        registry.register("messages_said", "Messages to nodes", self.said.clone());
        registry.register("messages_heard", "Messages from nodes", self.heard.clone());
        registry.register("hung_up", "Streams of nodes that did not read", self.hung_up.clone());
    }

    pub(super) fn answered(&self, outcome: &'static str) {
        self.opened.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn took(&self, phase: &'static str, seconds: f64) {
        self.opening.get_or_create(&Phase { phase }).observe(seconds);
    }

    pub(super) fn in_pool(&self, pool: &'static str, instances: i64) {
        self.instances.get_or_create(&InPool { pool }).set(instances);
    }
}
