//! Small worlds: nodes, replicas, and an extender that answers from a table.

use std::collections::BTreeMap;

use mainstay_placement::{
    EligibleGroup, EligibleNode, EligibleNodes, Extender, Narrowing, Pass, Replica,
    ReplicaDecision, ReplicaType, Slot, Volume,
};

/// An extender that answers from a table of group names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) scores: BTreeMap<String, i64>,
    pub(crate) default: Option<i64>,
    pub(crate) scoring_fails: bool,
    pub(crate) narrowing_fails: bool,
}

impl Table {
    pub(crate) fn score(&self, group: &str) -> Option<i64> {
        self.scores.get(group).copied().or(self.default)
    }
}

/// A table in the context of eligible nodes.
pub(crate) struct Answers<'t>(pub(crate) &'t Table, pub(crate) &'t EligibleNodes);

impl Extender for Answers<'_> {
    fn filter_and_score(&mut self, _: usize, slots: &[Slot]) -> Option<Vec<i64>> {
        assert!(!slots.is_empty(), "the extender is never asked about an empty list");
        let name = |slot: &Slot| self.1.lvg(*slot).map_or("", |group| group.name.as_str());
        let answers = slots.iter().map(|slot| self.0.score(name(slot)).unwrap_or_default());
        (!self.0.scoring_fails).then(|| answers.collect())
    }

    fn narrow_reservation(&mut self, _: Narrowing) -> bool {
        !self.0.narrowing_fails
    }

    fn release(&mut self, _: Narrowing) {}
}

pub(crate) fn group(name: &str) -> EligibleGroup {
    EligibleGroup { name: name.to_owned(), ready: true, ..EligibleGroup::default() }
}

/// A ready node with one group `vg-NAME`; `-` before the name means without.
pub(crate) fn node(zone: &str, name: &str) -> EligibleNode {
    let (bare, groups) = match name.strip_prefix('-') {
        Some(bare) => (bare, Vec::new()),
        None => (name, vec![group(&format!("vg-{name}"))]),
    };
    EligibleNode {
        node_name: bare.to_owned(),
        zone_name: zone.to_owned(),
        node_ready: true,
        agent_ready: true,
        lvm_volume_groups: groups,
        ..EligibleNode::default()
    }
}

pub(crate) fn nodes(zones: &[(&str, &[&str])]) -> EligibleNodes {
    EligibleNodes::new(
        zones.iter().flat_map(|(zone, names)| names.iter().map(|name| node(zone, name))),
    )
}

pub(crate) fn replica(id: u8, kind: ReplicaType) -> Replica {
    Replica {
        id,
        kind,
        node_name: String::new(),
        lvg: String::new(),
        thin_pool: String::new(),
        deleting: false,
    }
}

pub(crate) fn diskful(count: u8) -> Vec<Replica> {
    (0..count).map(|id| replica(id, ReplicaType::Diskful)).collect()
}

/// Applies a pass to the volume and returns the result of each replica: `node/group`, or why not.
pub(crate) fn settle(eligible: &EligibleNodes, volume: &mut Volume, table: &Table) -> Vec<String> {
    let decisions = Pass::new(eligible, volume).run(&mut Answers(table, eligible));
    let mut texts = vec!["-".to_owned(); volume.replicas.len()];
    for (index, decision) in decisions {
        let replica = &mut volume.replicas[index];
        texts[index] = match decision {
            ReplicaDecision::Access => "-".to_owned(),
            ReplicaDecision::AlreadyScheduled => place(replica),
            ReplicaDecision::Placed(entry) => {
                replica.node_name = eligible.node(entry.candidate).node_name.clone();
                if let Some(group) = eligible.lvg(entry.candidate) {
                    replica.lvg = group.name.clone();
                    replica.thin_pool = group.thin_pool_name.clone();
                }
                place(replica)
            }
            ReplicaDecision::Failed(summary) => format!("FAIL {summary}"),
            ReplicaDecision::ExtenderUnavailable(call) => format!("EXT {call:?}"),
        };
    }
    texts
}

fn place(replica: &Replica) -> String {
    [&replica.node_name, &replica.lvg, &replica.thin_pool]
        .into_iter()
        .filter(|part| !part.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join("/")
}
