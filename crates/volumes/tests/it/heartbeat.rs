//! Nodes whose heartbeats stop, on a manual clock.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::{Clock, ManualClock};
use mainstay_controller::liveness;
use mainstay_store::builtin::{Lease, Node};
use mainstay_store::meta::{ConditionStatus, MicroTime};
use mainstay_store::resources::WriteOptions;
use serde_json::json;

use crate::cluster::{Cluster, pool, resources, store};

struct Nodes {
    cluster: Cluster,
    clock: Arc<ManualClock>,
}

impl Nodes {
    async fn start() -> Self {
        let clock = ManualClock::new("2026-03-01T12:00:00Z".parse::<Timestamp>().unwrap());
        let shared: Arc<dyn Clock> = clock.clone();
        let resources = resources(store(shared.clone()), shared);
        let cluster = Cluster::over(resources.clone(), "server-a", None).await;
        tokio::spawn(async move { liveness::run(&resources).await });
        let leases = "kube-node-lease";
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": leases}});
        cluster.apply(namespace).await;
        for name in ["a", "by-hand"] {
            cluster.node(name, "z", true).await;
        }
        cluster.group("vg-a", "a", "10Gi").await;
        cluster.apply(pool("pool", &["vg-a"])).await;
        Self { cluster, clock }
    }

    async fn beat(&self) {
        let now = MicroTime::new(self.clock.now());
        let options = WriteOptions::default();
        let mut lease = Lease::default();
        lease.metadata.name = "a".to_owned();
        lease.metadata.namespace = Some("kube-node-lease".to_owned());
        lease.spec.lease_duration_seconds = Some(40);
        lease.spec.renew_time = Some(now);
        let resources = &self.cluster.resources;
        match resources.create_as(&lease, &options).await {
            Err(error) if error.is_already_exists() => {
                let renew = |lease: &mut Lease| lease.spec.renew_time = Some(now);
                let namespace = Some("kube-node-lease");
                resources.modify_as(namespace, "a", None, &options, renew).await.unwrap();
            }
            made => drop(made.unwrap()),
        }
    }

    fn ready(&self, name: &str) -> Option<ConditionStatus> {
        let node: Arc<Node> = self.cluster.volumes.views().nodes.find(None, name)?;
        let ready = node.status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        Some(ready.status)
    }

    /// Whether node a and its agent are ready, in the pool's status.
    fn eligible(&self) -> Option<(bool, bool)> {
        let pool = self.cluster.volumes.views().pools.find(None, "pool")?;
        let node = pool.status.eligible_nodes.iter().find(|node| node.node_name == "a")?;
        Some((node.node_ready, node.agent_ready))
    }

    async fn until(&self, what: &str, ready: ConditionStatus, eligible: (bool, bool)) {
        let there =
            || async { self.ready("a") == Some(ready) && self.eligible() == Some(eligible) };
        self.cluster.until(what, there).await;
    }

    async fn settle(&self) {
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_node_without_heartbeats_is_not_eligible_until_the_next_one() {
    use ConditionStatus::{True, Unknown};
    let nodes = Nodes::start().await;
    nodes.beat().await;
    nodes.until("it is ready", True, (true, true)).await;
    for _ in 0..5 {
        nodes.clock.advance(Duration::from_secs(30));
        nodes.beat().await;
        nodes.settle().await;
        assert_eq!(nodes.ready("a"), Some(True), "the heartbeat was in time");
    }
    nodes.clock.advance(Duration::from_secs(39));
    nodes.settle().await;
    assert_eq!(nodes.ready("a"), Some(True), "the last heartbeat is still valid");
    nodes.clock.advance(Duration::from_secs(2));
    nodes.until("it is unknown", Unknown, (false, false)).await;
    nodes.clock.advance(Duration::from_secs(3_600));
    nodes.settle().await;
    assert_eq!(nodes.ready("by-hand"), Some(True), "a node without an agent is not judged");
    nodes.beat().await;
    nodes.until("its heartbeats are back", True, (true, true)).await;
    nodes.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn the_clock_of_a_node_does_not_matter() {
    let nodes = Nodes::start().await;
    let mut lease = Lease::default();
    lease.metadata.name = "a".to_owned();
    lease.metadata.namespace = Some("kube-node-lease".to_owned());
    lease.spec.renew_time = Some(MicroTime::new(Timestamp::UNIX_EPOCH));
    nodes.cluster.resources.create_as(&lease, &WriteOptions::default()).await.unwrap();
    nodes.settle().await;
    assert_eq!(nodes.ready("a"), Some(ConditionStatus::True), "its heartbeat arrived just now");
    nodes.clock.advance(Duration::from_secs(41));
    nodes.until("40 s is the default", ConditionStatus::Unknown, (false, false)).await;
    nodes.cluster.volumes.shutdown().await;
}
