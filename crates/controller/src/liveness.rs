//! Decides from heartbeats which nodes are alive, and writes the answer into their Node objects.
//!
//! An agent renews the Lease of its node in the namespace `kube-node-lease`. If a renewal is late, the
//! conditions Ready and AgentReady of the Node become Unknown; with the next renewal they are True
//! again. A node without a Lease has no agent; its status is whatever was written by hand.
//!
//! Every server runs [`run`], whichever engines it has, and all engines read the Node objects.
//! [`judge`], [`Heartbeats`] and [`settle`] are the pure half. [`Monitor`] does the same for many
//! reporters with one timeout, such as the streams of agents.
//!
//! A heartbeat counts from the moment this process sees it, by its own clock: the clocks of nodes may
//! be wrong.

pub mod monitor;

use std::sync::Arc;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::builtin::{Lease, Node, NodeCondition};
use mainstay_store::meta::{ConditionStatus, MicroTime, Time};
use mainstay_store::resources::{Error, Resources};
use parking_lot::Mutex;

pub use self::monitor::Monitor;
use crate::reflector::Reflector;
use crate::runtime::{Context, Controller, Options, Outcome};
use crate::write::set_status;

/// The namespace of the Leases that agents renew.
pub const LEASES: &str = "kube-node-lease";
/// The condition of a Node whose agent is up.
pub const AGENT_READY: &str = "AgentReady";

/// For how long a renewal is good if its Lease has no duration.
pub const GOOD_FOR: Duration = Duration::from_secs(40);
/// The reason of a condition that is Unknown because no heartbeat came in time.
pub const SILENT: &str = "HeartbeatStopped";
/// The field manager of what is written.
const MANAGER: &str = "mainstay-node-monitor";

/// Whether a node is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its last heartbeat is still good.
    Alive {
        /// When the next one must have come.
        until: Duration,
    },
    /// Its last heartbeat is too old.
    Silent,
}

/// Judges a node whose last heartbeat was seen at `seen`, both times by the same clock.
#[must_use]
pub fn judge(seen: Duration, good_for: Duration, now: Duration) -> Liveness {
    let until = seen.saturating_add(good_for);
    if now < until { Liveness::Alive { until } } else { Liveness::Silent }
}

/// The last heartbeat of each node, and when this process first saw it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    last: BTreeMap<String, (Option<MicroTime>, Duration)>,
}

impl Heartbeats {
    /// Records the newest heartbeat of a node, and returns when it was first seen. The same heartbeat
    /// again changes nothing.
    pub fn record(&mut self, node: &str, renewed: Option<MicroTime>, now: Duration) -> Duration {
        match self.last.get(node) {
            Some((known, seen)) if *known == renewed => *seen,
            _ => {
                self.last.insert(node.to_owned(), (renewed, now));
                now
            }
        }
    }

    /// Forgets a node that has no Lease any more.
    pub fn forget(&mut self, node: &str) {
        self.last.remove(node);
    }
}

/// Writes into a node's conditions whether it is alive. A silent node is Unknown; an alive one is ready
/// again if late heartbeats had made it Unknown. Returns whether anything changed.
pub fn settle(node: &mut Node, liveness: Liveness, now: Timestamp) -> bool {
    let before = node.status.conditions.clone();
    if liveness == Liveness::Silent && !before.iter().any(|condition| condition.kind == "Ready") {
        node.status.conditions.push(condition("Ready", ConditionStatus::Unknown, now));
    }
    for known in &mut node.status.conditions {
        if known.kind != "Ready" && known.kind != AGENT_READY {
            continue;
        }
        let silenced = known.reason.as_deref() == Some(SILENT);
        let next = match liveness {
            Liveness::Silent if known.status != ConditionStatus::Unknown => {
                ConditionStatus::Unknown
            }
            Liveness::Alive { .. } if silenced => ConditionStatus::True,
            _ => continue,
        };
        let heartbeat = known.last_heartbeat_time;
        *known =
            NodeCondition { last_heartbeat_time: heartbeat, ..condition(&known.kind, next, now) };
    }
    before != node.status.conditions
}

fn condition(kind: &str, status: ConditionStatus, now: Timestamp) -> NodeCondition {
    let (reason, message) = match status {
        ConditionStatus::Unknown => {
            (SILENT, "the agent has not renewed its heartbeat lease in time")
        }
        _ => (AGENT_READY, "the agent renews its heartbeat lease again"),
    };
    NodeCondition {
        last_heartbeat_time: None,
        last_transition_time: Some(Time::new(now)),
        message: Some(message.to_owned()),
        reason: Some(reason.to_owned()),
        status,
        kind: kind.to_owned(),
    }
}

/// The copies that the monitor reads. Clones share them.
#[derive(Clone)]
struct NodeMonitor {
    nodes: Reflector<Node>,
    leases: Reflector<Lease>,
    heartbeats: Arc<Mutex<Heartbeats>>,
}

/// Writes which nodes are alive until the store closes. Ends at once when it is dropped.
///
/// # Errors
/// None at present; a closed store is an orderly end.
pub async fn run(resources: &Resources) -> Result<(), Error> {
    let monitor = NodeMonitor {
        nodes: Reflector::of(resources).start(),
        leases: Reflector::of(resources).namespace(LEASES).start(),
        heartbeats: Arc::default(),
    };
    let nodes = monitor.nodes.clone();
    let _handle = Controller::new(Options::new("node"), resources)
        .watch(&monitor.leases, |lease| [lease.metadata.name.clone()])
        .watch_if(
            &monitor.nodes,
            |old, new| old.is_none() && new.is_some(),
            |node| [node.metadata.name.clone()],
        )
        .run(move |context, name| monitor.clone().reconcile(context, name));
    nodes.ended().await;
    Ok(())
}

impl NodeMonitor {
    async fn reconcile(self, context: Context, name: String) -> Result<Outcome, Error> {
        let clock = context.resources.clock().clone();
        let (now, time) = (clock.elapsed(), clock.now());
        let Some(lease) = self.leases.find(Some(LEASES), &name) else {
            self.heartbeats.lock().forget(&name);
            return Ok(Outcome::Done);
        };
        let seen = self.heartbeats.lock().record(&name, lease.spec.renew_time, now);
        let good_for = lease.spec.lease_duration_seconds;
        let good_for = good_for.and_then(|seconds| u64::try_from(seconds).ok());
        let liveness = judge(seen, good_for.map_or(GOOD_FOR, Duration::from_secs), now);
        let node = self.nodes.find(None, &name);
        if node.is_some_and(|node| settle(&mut (*node).clone(), liveness, time)) {
            let write = |node: &mut Node| {
                settle(node, liveness, time);
            };
            set_status(&context.resources, None, &name, MANAGER, write).await?;
            tracing::info!(node = name, ?liveness, "node liveness changed");
        }
        Ok(match liveness {
            Liveness::Alive { until } => Outcome::After(until.saturating_sub(now)),
            Liveness::Silent => Outcome::Done,
        })
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::builtin::Namespace;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{settle as settle_tasks, until, world};

    const ALIVE: Liveness = Liveness::Alive { until: Duration::MAX };

    fn node(conditions: &[(&str, ConditionStatus)]) -> Node {
        let mut node = Node::default();
        for (kind, status) in conditions {
            let mut made = condition(kind, *status, Timestamp::UNIX_EPOCH);
            made.reason = Some("ByHand".to_owned());
            node.status.conditions.push(made);
        }
        node
    }

    fn statuses(node: &Node) -> Vec<ConditionStatus> {
        node.status.conditions.iter().map(|condition| condition.status).collect()
    }

    #[test]
    fn a_silent_node_is_unknown_and_ready_with_the_next_heartbeat() {
        use ConditionStatus::{False, True, Unknown};
        let now = Timestamp::from_second(100).unwrap();
        let mut known = node(&[("Ready", True), ("AgentReady", True), ("DiskPressure", False)]);
        assert!(settle(&mut known, Liveness::Silent, now));
        assert_eq!(statuses(&known), [Unknown, Unknown, False]);
        assert_eq!(known.status.conditions[0].last_transition_time, Some(Time::new(now)));
        assert!(!settle(&mut known, Liveness::Silent, now), "written once");
        assert!(settle(&mut known, ALIVE, now));
        assert_eq!(statuses(&known), [True, True, False]);
        assert!(!settle(&mut known, ALIVE, now));
        let mut unready = node(&[("Ready", False)]);
        assert!(
            !settle(&mut unready, ALIVE, now),
            "an alive node keeps the conditions its agent wrote"
        );
        let mut silent = node(&[]);
        assert!(settle(&mut silent, Liveness::Silent, now));
        assert_eq!(statuses(&silent), [Unknown]);
    }

    #[test]
    fn the_same_heartbeat_again_does_not_count() {
        let second = Duration::from_secs;
        let beat = |at| Some(MicroTime::new(Timestamp::from_second(at).unwrap()));
        let mut heartbeats = Heartbeats::default();
        assert_eq!(heartbeats.record("a", beat(1), second(10)), second(10));
        assert_eq!(heartbeats.record("a", beat(1), second(30)), second(10));
        assert_eq!(
            heartbeats.record("a", beat(0), second(40)),
            second(40),
            "its clock may go back"
        );
        heartbeats.forget("a");
        assert_eq!(heartbeats.record("a", beat(0), second(50)), second(50));
    }

    /// The status of the Ready condition of node `a`.
    async fn ready(resources: &Resources) -> Option<ConditionStatus> {
        let node: Node = resources.get_as(None, "a").await.unwrap().unwrap();
        node.status.conditions.first().map(|condition| condition.status)
    }

    #[tokio::test]
    async fn a_lease_that_is_not_renewed_makes_its_node_unknown_until_it_is() {
        let (resources, clock) = world().await;
        let options = crate::write::options("test");
        let mut namespace = Namespace::default();
        namespace.metadata.name = LEASES.to_owned();
        resources.create_as(&namespace, &options).await.unwrap();
        let mut node = Node::default();
        node.metadata.name = "a".to_owned();
        resources.create_as(&node, &options).await.unwrap();
        let mut lease = Lease::default();
        lease.metadata.name = "a".to_owned();
        lease.metadata.namespace = Some(LEASES.to_owned());
        lease.spec.lease_duration_seconds = Some(10);
        resources.create_as(&lease, &options).await.unwrap();
        let observed = resources.clone();
        let monitor = tokio::spawn(async move { run(&observed).await });
        until("it waits for the lease", || clock.sleepers() > 0).await;
        assert_eq!(ready(&resources).await, None, "an alive node is not written");
        clock.advance(Duration::from_secs(10));
        settle_tasks().await;
        assert_eq!(ready(&resources).await, Some(ConditionStatus::Unknown));
        let now = MicroTime::new(resources.clock().now());
        let renew = |lease: &mut Lease| lease.spec.renew_time = Some(now);
        resources.modify_as(Some(LEASES), "a", None, &options, renew).await.unwrap();
        settle_tasks().await;
        assert_eq!(ready(&resources).await, Some(ConditionStatus::True));
        resources.objects().close().await;
        monitor.await.unwrap().unwrap();
    }

    proptest! {
        #[test]
        fn a_node_is_alive_exactly_as_long_as_its_heartbeat_is_good(
            seen in 0..10_000_u64, good in 1..100_u64, later in 0..200_u64,
        ) {
            let second = Duration::from_secs;
            let liveness = judge(second(seen), second(good), second(seen + later));
            prop_assert_eq!(liveness == Liveness::Silent, later >= good);
        }
    }
}
