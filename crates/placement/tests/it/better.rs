//! Cases where the recorded behaviour was a defect.

use mainstay_placement::{
    EligibleNodes, Pass, ReplicaType, Strategy, Topology, Volume, ZoneFallback,
};

use crate::world::{Answers, Table, diskful, node, nodes, replica, settle};

fn table() -> Table {
    Table { default: Some(5), ..Table::default() }
}

fn volume(topology: Topology, replicas: u8) -> Volume {
    Volume {
        topology,
        required_diskful: usize::from(replicas),
        replicas: diskful(replicas),
        ..Volume::default()
    }
}

#[test]
fn x1_d1_a_placed_tie_breaker_stays_scheduled() {
    let eligible = nodes(&[("a", &["a1"]), ("b", &["b1"]), ("c", &["c1"])]);
    let mut volume = volume(Topology::TransZonal, 2);
    volume.replicas.push(replica(2, ReplicaType::TieBreaker));
    let first = settle(&eligible, &mut volume, &table());
    assert_eq!(first, ["a1/vg-a1", "b1/vg-b1", "c1"]);
    assert_eq!(settle(&eligible, &mut volume, &table()), first);
}

#[test]
fn x2_d2_a_partly_placed_replica_does_not_count_itself() {
    let eligible = nodes(&[("a", &["a1"]), ("b", &["b1"]), ("c", &["c1"])]);
    let mut volume = volume(Topology::TransZonal, 3);
    volume.replicas[0].node_name = "c1".to_owned();
    let settled = settle(&eligible, &mut volume, &table());
    assert_eq!(settled, ["c1/vg-c1", "a1/vg-a1", "b1/vg-b1"]);
}

#[test]
fn x3_d3_a_zone_without_groups_is_named_or_left_out() {
    let eligible = nodes(&[("zone-a", &["a1", "a2"]), ("zone-b", &["-b1"])]);
    let mut strict = volume(Topology::TransZonal, 2);
    let settled = settle(&eligible, &mut strict, &table());
    assert_eq!(settled[0], "a1/vg-a1");
    assert_eq!(
        settled[1],
        "FAIL 2 candidates (node×LVG) from 3 eligible nodes; 1 excluded: node occupied; \
         1 excluded: zone (transZonal min replicas)"
    );
    let pass = Pass::new(&eligible, &strict);
    let explanation = pass.explain(1, &|_| Some(5));
    assert_eq!(explanation.notes(), ["zone-b must take the next replica, but has no volume group"]);

    let mut lenient = volume(Topology::TransZonal, 2);
    lenient.zone_fallback = ZoneFallback::WhenUnusable;
    assert_eq!(settle(&eligible, &mut lenient, &table()), ["a1/vg-a1", "a2/vg-a2"]);
}

#[test]
fn x4_d4_all_or_nothing_looks_ahead() {
    let eligible = nodes(&[("a", &["a1"]), ("b", &["b1", "b2", "b3"])]);
    let mut volume = volume(Topology::Zonal, 3);
    volume.attach_to.insert("a1".to_owned());
    volume.strategy = Strategy::AllOrNothing;
    assert_eq!(settle(&eligible, &mut volume, &table()), ["b1/vg-b1", "b2/vg-b2", "b3/vg-b3"]);
}

#[test]
fn x4_all_or_nothing_places_none_when_not_all_fit() {
    let eligible = nodes(&[("a", &["a1"]), ("b", &["b1", "b2"])]);
    let mut volume = volume(Topology::Zonal, 3);
    volume.strategy = Strategy::AllOrNothing;
    let settled = settle(&eligible, &mut volume, &table());
    let message = "FAIL 3 candidates (node×LVG) from 3 eligible nodes; \
                   3 excluded: all or nothing (2 of 3 replicas fit)";
    assert_eq!(settled, [message; 3]);
    assert!(volume.replicas.iter().all(|replica| replica.node_name.is_empty()));
}

#[test]
fn all_or_nothing_releases_all_reservations_when_one_fails() {
    let eligible = nodes(&[("a", &["a1", "a2"])]);
    let mut volume = volume(Topology::Ignored, 2);
    volume.replicas.push(replica(2, ReplicaType::TieBreaker));
    volume.strategy = Strategy::AllOrNothing;
    let eligible_three =
        EligibleNodes::new(eligible.nodes().iter().cloned().chain([node("a", "-a3")]));
    for (scoring_fails, narrowing_fails, expected) in
        [(true, false, "EXT Scoring"), (false, true, "EXT Narrowing")]
    {
        let table = Table { scoring_fails, narrowing_fails, ..table() };
        let settled = settle(&eligible_three, &mut volume, &table);
        assert_eq!(settled, [expected, expected, "-"]);
    }
}

#[test]
fn x5_an_unready_zone_waits_or_falls_back() {
    let mut b1 = node("b", "b1");
    b1.node_ready = false;
    let eligible = EligibleNodes::new([node("a", "a1"), node("a", "a2"), b1]);
    for (fallback, expected) in [
        (
            ZoneFallback::Never,
            "FAIL 3 candidates (node×LVG) from 3 eligible nodes; 1 excluded: node not ready; \
             1 excluded: node occupied; 1 excluded: zone (transZonal min replicas)",
        ),
        (ZoneFallback::WhenUnusable, "a2/vg-a2"),
    ] {
        let mut volume = volume(Topology::TransZonal, 2);
        volume.replicas[0].node_name = "a1".to_owned();
        volume.replicas[0].lvg = "vg-a1".to_owned();
        volume.zone_fallback = fallback;
        assert_eq!(settle(&eligible, &mut volume, &table())[1], expected);
    }
}

#[test]
fn a_full_zone_falls_back_too() {
    let eligible = nodes(&[("a", &["a1", "a2"]), ("b", &["b1"])]);
    let mut volume = volume(Topology::TransZonal, 2);
    volume.zone_fallback = ZoneFallback::WhenUnusable;
    let full = Table { scores: [("vg-b1".to_owned(), 0)].into(), ..table() };
    assert_eq!(settle(&eligible, &mut volume, &full), ["a1/vg-a1", "a2/vg-a2"]);
}

#[test]
fn x7_d11_a_tie_breaker_prefers_a_node_without_groups() {
    let eligible = nodes(&[("a", &["a1", "a2", "-z9"])]);
    let mut volume = volume(Topology::Ignored, 1);
    volume.replicas.push(replica(1, ReplicaType::TieBreaker));
    assert_eq!(settle(&eligible, &mut volume, &table()), ["a1/vg-a1", "z9"]);
}

#[test]
fn d12_a_shadow_replica_is_placed_after_the_diskful_ones() {
    let eligible = nodes(&[("a", &["a1", "a2"])]);
    let mut volume = volume(Topology::Ignored, 1);
    volume.replicas[0].id = 1;
    volume.replicas.insert(0, replica(0, ReplicaType::ShadowDiskful));
    assert_eq!(settle(&eligible, &mut volume, &table()), ["a2/vg-a2", "a1/vg-a1"]);
}

#[test]
fn only_a_volume_split_between_zones_causes_a_warning() {
    let eligible = nodes(&[("a", &["a1"]), ("b", &["b1"])]);
    let mut volume = volume(Topology::Zonal, 2);
    assert!(Pass::new(&eligible, &volume).torn_zones().is_empty(), "new");
    volume.replicas[0].node_name = "a1".to_owned();
    assert!(Pass::new(&eligible, &volume).torn_zones().is_empty(), "one zone");
    volume.replicas[1].node_name = "b1".to_owned();
    assert_eq!(Pass::new(&eligible, &volume).torn_zones(), ["a", "b"]);
}

#[test]
fn an_explanation_names_the_change_that_would_help() {
    let mut cordoned = node("a", "a1");
    cordoned.unschedulable = true;
    let eligible =
        EligibleNodes::new([cordoned, node("a", "a2"), node("a", "a3"), node("b", "b1")]);
    let mut volume = volume(Topology::Zonal, 2);
    volume.replicas[0].node_name = "a3".to_owned();
    volume.replicas[0].lvg = "vg-a3".to_owned();
    let table = Table { scores: [("vg-a2".to_owned(), 0)].into(), ..table() };
    let pass = Pass::new(&eligible, &volume);
    let score = |group: usize| {
        eligible.lvg(eligible.lvgs()[group]).and_then(|group| table.score(&group.name))
    };
    let explanation = pass.explain(1, &score);
    let room = mainstay_placement::explain::Room { needed: 10, available: 4 };
    let rows: Vec<_> = explanation
        .candidates(&|_| Some(room))
        .into_iter()
        .map(|row| {
            let step = row.excluded_by.unwrap_or_default();
            (row.node, step.into_owned(), row.because, row.change)
        })
        .collect();
    let row = |node: &str, step: &str, because: &str, change: &str| {
        (node.to_owned(), step.to_owned(), because.to_owned(), change.to_owned())
    };
    assert_eq!(
        rows,
        [
            row(
                "a2",
                "scoring (no capacity)",
                "needs 10 B, 4 B are available",
                "6 B more become available"
            ),
            row(
                "b1",
                "zone (zonal majority)",
                "the volume is in a, and b holds 0 of its Diskful replicas",
                ""
            ),
            row(
                "a3",
                "node occupied",
                "a3 already holds a replica of this volume (replica 0)",
                "that replica leaves a3"
            ),
            row("a1", "node not ready", "node a1 is cordoned", "uncordon a1"),
        ]
    );
    let mut answers = Answers(&table, &eligible);
    let decisions = Pass::new(&eligible, &volume).run(&mut answers);
    let failed = mainstay_placement::ReplicaDecision::Failed(explanation.summary());
    assert!(decisions.contains(&(1, failed)));
}
