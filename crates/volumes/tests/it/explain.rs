//! The explanation matches the decision: the same numbers, the same choice, the same message.

use jiff::Timestamp;
use mainstay_volumes::capacity::capacity;
use mainstay_volumes::explain::{ReplicaExplanation, explain};
use mainstay_volumes::ledger::{HeldReservation, Target};
use mainstay_volumes::plan::{Scores, plan};
use mainstay_volumes::world::World;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::cluster::{class, group, pool, volume};
use crate::recorded::node;

const GIB: u64 = 1 << 30;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

/// Nodes with a group each, of these sizes in GiB, and a class over all of them.
fn objects(sizes: &[u64], spec: &Value) -> Vec<Value> {
    let names: Vec<String> = (0..sizes.len()).map(|index| format!("vg-{index}")).collect();
    let references: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut class = class("class", "Consistency", "pool");
    for (field, value) in spec.as_object().unwrap() {
        class["spec"][field] = value.clone();
    }
    let mut objects = vec![pool("pool", &references), class];
    for (index, size) in sizes.iter().enumerate() {
        let name = format!("n{index}");
        objects.push(node(&name, &format!("z{}", index % 3), true, true, false));
        objects.push(group(&names[index], &name, &format!("{size}Gi")));
    }
    objects
}

fn held(group: usize, gib: u64, holder: &str, seconds: i64) -> HeldReservation {
    HeldReservation {
        lvg: Target::new(&format!("vg-{group}"), ""),
        holder: holder.to_owned(),
        bytes: gib * GIB,
        until: now() + jiff::SignedDuration::from_secs(seconds),
    }
}

fn world(objects: Vec<Value>, reservations: Vec<HeldReservation>) -> World {
    World { reservations, ..World::read(objects).unwrap() }
}

fn explained(world: World, id: u8) -> ReplicaExplanation {
    explain(world, "data", Some(id), now()).unwrap().replicas.remove(0)
}

#[test]
fn reservations_of_others_count_and_own_ones_do_not() {
    let mut objects = objects(&[10, 10, 10], &json!({"replication": "None"}));
    objects.push(volume("data", "class", "6Gi"));
    let reservations =
        vec![held(0, 5, "other-0", 30), held(1, 5, "data-0", 30), held(2, 5, "late-0", -1)];
    let replica = explained(world(objects.clone(), reservations.clone()), 0);
    let rows: Vec<(&str, Option<&str>, &str)> = replica
        .candidates
        .iter()
        .map(|row| (row.node.as_str(), row.excluded_by.as_deref(), row.because.as_str()))
        .collect();
    let full = "needs 6 GiB, 5 GiB are available";
    assert_eq!(
        rows,
        [("n1", None, ""), ("n2", None, ""), ("n0", Some("scoring (no capacity)"), full)]
    );
    let room = replica.candidates[2].room.unwrap();
    assert_eq!((room.needed, room.available), (6 * GIB, 5 * GIB));
    // The plan makes the explained decision.
    let planned = plan(world(objects.clone(), reservations.clone()), &Scores::Ledger, now());
    assert_eq!(planned.volumes[0].replicas[0].node, "n1");
    let chosen = replica.candidates.iter().find(|row| row.chosen).unwrap();
    assert_eq!(chosen.node, "n1");
    // The capacity agrees too.
    let found = capacity(world(objects, reservations), None, None, now());
    let available: Vec<u64> = found.nodes.iter().map(|node| node.available / GIB).collect();
    assert_eq!(available, [5, 5, 10]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For each replica that is decided about first, the explanation has the result of the plan: its place
    /// or its message.
    #[test]
    fn the_explanation_matches_the_plan(
        sizes in proptest::collection::vec(1_u64..8, 1..6),
        reserved in proptest::collection::vec((0_usize..6, 1_u64..4, 0_u8..3), 0..4),
        size in 1_u64..6,
        topology in prop_oneof![Just("Ignored"), Just("Zonal"), Just("TransZonal")],
        strategy in prop_oneof![Just("Greedy"), Just("AllOrNothing")],
        fallback in prop_oneof![Just("Never"), Just("WhenUnusable")],
    ) {
        let spec = json!({"topology": topology, "placementStrategy": strategy,
            "zoneFallback": fallback});
        let mut objects = objects(&sizes, &spec);
        objects.push(volume("data", "class", &format!("{size}Gi")));
        let reservations: Vec<HeldReservation> = reserved
            .iter()
            .filter(|(group, _, _)| *group < sizes.len())
            .map(|(group, gib, holder)| held(*group, *gib, &format!("other-{holder}"), 30))
            .collect();
        let planned = plan(world(objects.clone(), reservations.clone()), &Scores::Ledger, now());
        let first = &planned.volumes[0].replicas[0];
        let replica = explained(world(objects, reservations), 0);
        match replica.candidates.iter().find(|row| row.chosen) {
            Some(row) => prop_assert_eq!((&row.node, &row.lvg), (&first.node, &first.lvg)),
            None => {
                prop_assert_eq!(&first.node, "");
                prop_assert_eq!(&replica.summary, &first.scheduled.as_ref().unwrap().message);
            }
        }
        let dropped = |name: &str| {
            replica.candidates.iter().filter(|row| row.excluded_by.as_deref() == Some(name)).count()
        };
        for step in &replica.steps {
            prop_assert_eq!(dropped(&step.name), step.excluded, "{}", &step.name);
        }
    }
}
