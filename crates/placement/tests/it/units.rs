//! The steps of the pipeline, one by one.

use mainstay_placement::pipeline::Silent;
use mainstay_placement::{
    EligibleNodes, Extender, Narrowing, Pass, ReplicaDecision, ReplicaType, Slot, Topology, Volume,
};

use crate::world::{Table, diskful, group, node, nodes, replica, settle};

/// C98: building candidates from a pool's list neither reorders nor keeps it.
#[test]
fn the_list_of_a_pool_does_not_change() {
    let mut list = vec![node("b", "n2"), node("a", "n1")];
    list[0].lvm_volume_groups = vec![group("vg-z"), group("vg-a")];
    let before = list.clone();
    let eligible = EligibleNodes::new(list.iter().cloned());
    assert_eq!(list, before);
    let names: Vec<&str> = eligible.nodes().iter().map(|it| it.node_name.as_str()).collect();
    assert_eq!(names, ["n1", "n2"]);
    let groups: Vec<&str> =
        eligible.lvgs().iter().map(|slot| eligible.lvg(*slot).unwrap().name.as_str()).collect();
    assert_eq!(groups, ["vg-n1", "vg-a", "vg-z"]);
}

/// C99: a node without groups yields no candidate for data, and one for a vote.
#[test]
fn sources_take_groups_or_nodes() {
    let eligible = nodes(&[("a", &["a1", "-a2"])]);
    assert_eq!(eligible.take_lvgs_from_eligible_nodes(Silent).total(), 1);
    assert_eq!(eligible.take_only_nodes_from_eligible_nodes(Silent).total(), 2);
    let none = EligibleNodes::new([]);
    let pipeline = none.take_lvgs_from_eligible_nodes(Silent);
    assert_eq!(pipeline.select_best(), None);
    assert_eq!(pipeline.summary(), "0 candidates (node×LVG) from 0 eligible nodes");
}

/// C99: candidates with score 0 or none are excluded; scores of unknown candidates are ignored.
#[test]
fn only_candidates_with_a_score_stay() {
    let eligible = nodes(&[("a", &["a1", "a2", "a3"])]);
    let mut volume = Volume { required_diskful: 1, replicas: diskful(1), ..Volume::default() };
    let scores = |pairs: &[(&str, i64)]| Table {
        scores: pairs.iter().map(|(name, score)| ((*name).to_owned(), *score)).collect(),
        ..Table::default()
    };
    let two = scores(&[("vg-a1", 0), ("vg-a3", 4), ("vg-elsewhere", 100)]);
    let pass = Pass::new(&eligible, &volume);
    let by_group = |group: usize| {
        eligible.lvg(eligible.lvgs()[group]).and_then(|group| two.score(&group.name))
    };
    let explanation = pass.explain(0, &by_group);
    assert_eq!(
        explanation.summary(),
        "3 candidates (node×LVG) from 3 eligible nodes; 2 excluded: scoring (no capacity)"
    );
    let chosen = explanation.chosen().unwrap();
    assert_eq!((eligible.node(chosen.candidate).node_name.as_str(), chosen.score), ("a3", 4));
    assert_eq!(settle(&eligible, &mut volume, &two), ["a3/vg-a3"]);
}

/// C99: points by node and by zone go to every remaining candidate there, and the order stays.
#[test]
fn points_for_groups_keep_the_order() {
    let mut wide = node("a", "a1");
    wide.lvm_volume_groups = vec![group("vg-1"), group("vg-2")];
    let eligible = EligibleNodes::new([wide, node("b", "b1"), node("b", "b2")]);
    let pipeline = eligible
        .take_lvgs_from_eligible_nodes(Silent)
        .with_node_score("several", |left| if left > 1 { 2 } else { 0 })
        .with_zone_score("few nodes", |nodes| if nodes < 2 { -10 } else { 0 });
    let rows: Vec<(&str, i64)> = pipeline
        .entries()
        .iter()
        .map(|entry| (eligible.lvg(entry.candidate).unwrap().name.as_str(), entry.score))
        .collect();
    assert_eq!(rows, [("vg-1", -8), ("vg-2", -8), ("vg-b1", 0), ("vg-b2", 0)]);
}

/// An extender that must not be called.
struct Unasked;

impl Extender for Unasked {
    fn filter_and_score(&mut self, _: usize, _: &[Slot]) -> Option<Vec<i64>> {
        panic!("a TieBreaker needs no capacity")
    }

    fn narrow_reservation(&mut self, _: Narrowing) -> bool {
        panic!("a TieBreaker reserves nothing")
    }

    fn release(&mut self, _: Narrowing) {}
}

/// C99: the extender is not asked about nodes alone, nor without candidates.
#[test]
fn the_extender_is_asked_only_about_groups() {
    let eligible = nodes(&[("a", &["a1"])]);
    let volume = Volume {
        topology: Topology::Ignored,
        replicas: vec![replica(0, ReplicaType::TieBreaker)],
        ..Volume::default()
    };
    let decisions = Pass::new(&eligible, &volume).run(&mut Unasked);
    assert!(matches!(decisions[0].1, ReplicaDecision::Placed(_)));
    let none = EligibleNodes::new([]);
    let volume = Volume { required_diskful: 1, replicas: diskful(1), ..Volume::default() };
    let decisions = Pass::new(&none, &volume).run(&mut Unasked);
    let message = "0 candidates (node×LVG) from 0 eligible nodes".to_owned();
    assert_eq!(decisions, [(0, ReplicaDecision::Failed(message))]);
}
