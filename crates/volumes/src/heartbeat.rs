//! Whether a node is alive, by its heartbeats. Pure.
//!
//! What a heartbeat is does not matter here: a Lease that was renewed, a message on a connection.
//! What counts is when it was heard, by the clock of whoever hears it; the clocks of nodes may be
//! wrong. Whoever hears heartbeats asks [`judge`], and lets [`settle`] write the verdict down.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_store::builtin::{Node, NodeCondition};
use mainstay_store::meta::{ConditionStatus, MicroTime, Time};

use crate::eligible::AGENT_READY;

/// For how long a heartbeat is good if it does not say.
pub const GOOD_FOR: Duration = Duration::from_secs(40);
/// The reason of a condition that is unknown because the node is silent.
pub const SILENT: &str = "HeartbeatStopped";

/// Whether a node is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is, as far as can be told until then.
    Alive {
        /// When it must have been heard again.
        until: Duration,
    },
    /// It has not been heard in time.
    Silent,
}

/// Judges a node that was last heard at `heard`, both times by the same clock.
#[must_use]
pub fn judge(heard: Duration, good_for: Duration, now: Duration) -> Verdict {
    let until = heard.saturating_add(good_for);
    if now < until { Verdict::Alive { until } } else { Verdict::Silent }
}

/// When each node was last heard, by our own clock.
#[derive(Clone, Debug, Default)]
pub struct Pulses {
    heard: BTreeMap<String, (Option<MicroTime>, Duration)>,
}

impl Pulses {
    /// Notes the newest heartbeat of a node, and says when it was heard first. The same one again
    /// changes nothing: it proves nothing.
    pub fn hear(&mut self, node: &str, beat: Option<MicroTime>, now: Duration) -> Duration {
        match self.heard.get(node) {
            Some((known, heard)) if *known == beat => *heard,
            _ => {
                self.heard.insert(node.to_owned(), (beat, now));
                now
            }
        }
    }

    /// Forgets a node that has no heartbeats any more.
    pub fn forget(&mut self, node: &str) {
        self.heard.remove(node);
    }
}

/// Writes a verdict into a node's conditions. A silent node is Unknown; one that is heard again is
/// ready again, if it was its silence that spoke against it. Says whether anything changed.
pub fn settle(node: &mut Node, verdict: Verdict, now: Timestamp) -> bool {
    let before = node.status.conditions.clone();
    if verdict == Verdict::Silent && !before.iter().any(|condition| condition.kind == "Ready") {
        node.status.conditions.push(condition("Ready", ConditionStatus::Unknown, now));
    }
    for known in &mut node.status.conditions {
        if known.kind != "Ready" && known.kind != AGENT_READY {
            continue;
        }
        let silenced = known.reason.as_deref() == Some(SILENT);
        let next = match verdict {
            Verdict::Silent if known.status != ConditionStatus::Unknown => ConditionStatus::Unknown,
            Verdict::Alive { .. } if silenced => ConditionStatus::True,
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
        ConditionStatus::Unknown => (SILENT, "the agent has not been heard in time"),
        _ => ("AgentReady", "the agent is heard again"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALIVE: Verdict = Verdict::Alive { until: Duration::MAX };

    fn node(conditions: &[(&str, ConditionStatus)]) -> Node {
        let mut node = Node::default();
        for (kind, status) in conditions {
            let mut made = condition(kind, *status, Timestamp::UNIX_EPOCH);
            made.reason = Some("Said".to_owned());
            node.status.conditions.push(made);
        }
        node
    }

    fn statuses(node: &Node) -> Vec<ConditionStatus> {
        node.status.conditions.iter().map(|condition| condition.status).collect()
    }

    #[test]
    fn silence_is_unknown_and_a_voice_is_ready_again() {
        use ConditionStatus::{False, True, Unknown};
        let now = Timestamp::from_second(100).unwrap();
        let mut known = node(&[("Ready", True), ("AgentReady", True), ("DiskPressure", False)]);
        assert!(settle(&mut known, Verdict::Silent, now));
        assert_eq!(statuses(&known), [Unknown, Unknown, False]);
        assert_eq!(known.status.conditions[0].last_transition_time, Some(Time::new(now)));
        assert!(!settle(&mut known, Verdict::Silent, now), "said once");
        assert!(settle(&mut known, ALIVE, now));
        assert_eq!(statuses(&known), [True, True, False]);
        assert!(!settle(&mut known, ALIVE, now));
        let mut unready = node(&[("Ready", False)]);
        assert!(!settle(&mut unready, ALIVE, now), "what the agent says of itself stands");
        let mut silent = node(&[]);
        assert!(settle(&mut silent, Verdict::Silent, now));
        assert_eq!(statuses(&silent), [Unknown]);
    }

    #[test]
    fn the_same_beat_again_proves_nothing() {
        let second = Duration::from_secs;
        let beat = |at| Some(MicroTime::new(Timestamp::from_second(at).unwrap()));
        let mut pulses = Pulses::default();
        assert_eq!(pulses.hear("a", beat(1), second(10)), second(10));
        assert_eq!(pulses.hear("a", beat(1), second(30)), second(10));
        assert_eq!(pulses.hear("a", beat(0), second(40)), second(40), "its clock may go back");
        pulses.forget("a");
        assert_eq!(pulses.hear("a", beat(0), second(50)), second(50));
    }

    proptest! {
        #[test]
        fn a_node_is_alive_exactly_as_long_as_its_beat_is_good(
            heard in 0..10_000_u64, good in 1..100_u64, later in 0..200_u64,
        ) {
            let second = Duration::from_secs;
            let verdict = judge(second(heard), second(good), second(heard + later));
            prop_assert_eq!(verdict == Verdict::Silent, later >= good);
        }
    }
}
