//! Laws over generated worlds.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_placement::pipeline::Candidate;
use mainstay_placement::volume::Strategy as Together;
use mainstay_placement::{
    EligibleNode, EligibleNodes, Pass, Replica, ReplicaType, Slot, Topology, Volume, ZoneFallback,
};
use proptest::prelude::*;

use crate::world::{Table, group, replica, settle};

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<EligibleNode>,
    volume: Volume,
    table: Table,
}

fn node_strategy() -> impl Strategy<Value = (u8, u8, u8)> {
    (0_u8..3, 0_u8..3, 0_u8..16)
}

fn build(
    nodes: &[(u8, u8, u8)],
    topology: Topology,
    fallback: ZoneFallback,
    counts: (u8, u8),
    scores: &[i64],
    pinned: Option<usize>,
) -> World {
    let mut table = Table::default();
    let nodes: Vec<EligibleNode> = nodes
        .iter()
        .enumerate()
        .map(|(index, (zone, groups, flags))| {
            let name = format!("n{index}");
            let groups: Vec<_> =
                (0..*groups).map(|number| group(&format!("vg-{index}-{number}"))).collect();
            for group in &groups {
                table.scores.insert(group.name.clone(), scores[table.scores.len() % scores.len()]);
            }
            EligibleNode {
                node_name: name,
                zone_name: format!("z{zone}"),
                unschedulable: *flags == 0,
                node_ready: *flags != 1,
                agent_ready: *flags != 2,
                lvm_volume_groups: groups,
            }
        })
        .collect();
    let mut replicas: Vec<Replica> = Vec::new();
    for id in 0..counts.0 {
        replicas.push(replica(id, ReplicaType::Diskful));
    }
    for id in 0..counts.1 {
        replicas.push(replica(counts.0 + id, ReplicaType::TieBreaker));
    }
    if let (Some(pinned), Some(first)) = (pinned, replicas.first_mut())
        && first.kind == ReplicaType::Diskful
        && let Some(node) = nodes.get(pinned)
    {
        first.node_name = node.node_name.clone();
    }
    let volume = Volume {
        topology,
        required_diskful: usize::from(counts.0),
        replicas,
        zone_fallback: fallback,
        ..Volume::default()
    };
    World { nodes, volume, table }
}

fn worlds() -> impl Strategy<Value = World> {
    let topology =
        prop_oneof![Just(Topology::Ignored), Just(Topology::Zonal), Just(Topology::TransZonal)];
    let fallback = prop_oneof![Just(ZoneFallback::Never), Just(ZoneFallback::WhenUnusable)];
    (
        proptest::collection::vec(node_strategy(), 0..7),
        topology,
        fallback,
        (0_u8..4, 0_u8..2),
        proptest::collection::vec(-1_i64..8, 1..7),
        proptest::option::weighted(0.2, 0_usize..7),
    )
        .prop_map(|(nodes, topology, fallback, counts, scores, pinned)| {
            build(&nodes, topology, fallback, counts, &scores, pinned)
        })
}

fn usable(eligible: &EligibleNodes, table: &Table, slot: Slot) -> bool {
    let group = eligible.lvg(slot);
    slot.node_usable()
        && group.is_none_or(|group| {
            slot.group_usable() && table.score(&group.name).is_some_and(|score| score > 0)
        })
}

/// Tries every way to place the remaining replicas, one after another, each in a zone that the rule
/// allows; with Zonal, every zone is tried. Returns the best total.
fn brute_force(eligible: &EligibleNodes, world: &World) -> Option<i64> {
    if world.volume.replicas.is_empty() {
        return Some(0);
    }
    let zones: Vec<Option<usize>> = if world.volume.topology == Topology::Zonal {
        (0..eligible.zones().len()).map(Some).collect()
    } else {
        vec![None]
    };
    zones.into_iter().filter_map(|zone| place(eligible, world, &mut Vec::new(), zone)).max()
}

fn place(
    eligible: &EligibleNodes,
    world: &World,
    placed: &mut Vec<Slot>,
    only: Option<usize>,
) -> Option<i64> {
    let Some(replica) = world.volume.replicas.get(placed.len()) else { return Some(0) };
    let slots = if replica.kind.has_disk() { eligible.lvgs() } else { eligible.only_nodes() };
    let free = |slot: &&Slot| {
        usable(eligible, &world.table, **slot)
            && placed.iter().all(|other| other.node() != slot.node())
    };
    let open: Vec<Slot> = slots.iter().filter(free).copied().collect();
    let before = placed.clone();
    let rank = |zone: usize| {
        let in_zone = before.iter().filter(|slot| slot.zone() == zone);
        let disks = in_zone.clone().filter(|slot| slot.group().is_some()).count();
        let ties = in_zone.count() - disks;
        if replica.kind.has_disk() { (disks, 0) } else { (disks + ties, ties) }
    };
    let counts = |zone: usize| {
        world.volume.zone_fallback == ZoneFallback::Never
            || open.iter().any(|slot| slot.zone() == zone)
    };
    let least = (0..eligible.zones().len()).filter(|zone| counts(*zone)).map(rank).min();
    let mut best = None;
    for slot in &open {
        let welcome = match world.volume.topology {
            Topology::Ignored => true,
            Topology::Zonal => Some(slot.zone()) == only,
            Topology::TransZonal => Some(rank(slot.zone())) == least,
        };
        if !welcome {
            continue;
        }
        let score = eligible.lvg(*slot).and_then(|group| world.table.score(&group.name));
        let groups_left = open.iter().filter(|other| other.node() == slot.node()).count();
        let bonus = if replica.kind.has_disk() && groups_left > 1 { 2 } else { 0 };
        placed.push(*slot);
        if let Some(rest) = place(eligible, world, placed, only) {
            best = best.max(Some(rest + score.unwrap_or_default() + bonus));
        }
        placed.pop();
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn replicas_never_share_a_node_and_never_land_where_a_predicate_forbids(
        world in worlds(), all_or_nothing in any::<bool>()
    ) {
        let eligible = EligibleNodes::new(world.nodes.clone());
        let mut volume = world.volume.clone();
        if all_or_nothing {
            volume.strategy = Together::AllOrNothing;
        }
        let mut again = volume.clone();
        let settled = settle(&eligible, &mut volume, &world.table);
        prop_assert_eq!(&settled, &settle(&eligible, &mut again, &world.table), "same answer");
        let mut seen = BTreeSet::new();
        let by_name: BTreeMap<&str, &EligibleNode> =
            world.nodes.iter().map(|node| (node.node_name.as_str(), node)).collect();
        for replica in volume.replicas.iter().filter(|replica| replica.scheduled(volume.pool_type)) {
            prop_assert!(seen.insert(replica.node_name.clone()));
            let node = by_name[replica.node_name.as_str()];
            prop_assert!(node.node_ready && node.agent_ready && !node.unschedulable);
            if replica.kind.has_disk() {
                prop_assert!(world.table.score(&replica.lvg) > Some(0));
            }
        }
    }

    #[test]
    fn explanation_and_message_have_the_same_counts(world in worlds()) {
        let eligible = EligibleNodes::new(world.nodes.clone());
        let mut volume = world.volume.clone();
        volume.required_diskful = 0;
        for index in 0..volume.replicas.len() {
            let alone = Volume { replicas: vec![volume.replicas[index].clone()], ..volume.clone() };
            let pass = Pass::new(&eligible, &alone);
            let score = |group: usize| {
                eligible.lvg(eligible.lvgs()[group]).and_then(|lvg| world.table.score(&lvg.name))
            };
            let explanation = pass.explain(0, &score);
            let mut counted = vec![0; explanation.steps().len()];
            for (_, step) in explanation.excluded() {
                counted[*step] += 1;
            }
            let stated: Vec<usize> =
                explanation.steps().iter().map(|step| step.excluded).collect();
            prop_assert_eq!(counted, stated);
            let mut settled = alone.clone();
            let text = settle(&eligible, &mut settled, &world.table).remove(0);
            match explanation.chosen() {
                Some(entry) => {
                    prop_assert_eq!(&eligible.node(entry.candidate).node_name, &settled.replicas[0].node_name);
                }
                None => prop_assert_eq!(text, format!("FAIL {}", explanation.summary())),
            }
        }
    }

    #[test]
    fn the_explanation_of_all_or_nothing_matches_the_decision(world in worlds()) {
        let eligible = EligibleNodes::new(world.nodes.clone());
        let volume = Volume { strategy: Together::AllOrNothing, ..world.volume.clone() };
        let mut settled = volume.clone();
        let texts = settle(&eligible, &mut settled, &world.table);
        let score = |group: usize| {
            eligible.lvg(eligible.lvgs()[group]).and_then(|lvg| world.table.score(&lvg.name))
        };
        let pass = Pass::new(&eligible, &volume);
        for index in pass.pending() {
            let explanation = pass.explain(index, &score);
            let mut counted = vec![0; explanation.steps().len()];
            for (_, step) in explanation.excluded() {
                counted[*step] += 1;
            }
            let stated: Vec<usize> =
                explanation.steps().iter().map(|step| step.excluded).collect();
            prop_assert_eq!(counted, stated);
            match explanation.chosen() {
                Some(entry) => {
                    let node = &eligible.node(entry.candidate).node_name;
                    prop_assert_eq!(node, &settled.replicas[index].node_name);
                }
                None => prop_assert_eq!(&texts[index], &format!("FAIL {}", explanation.summary())),
            }
        }
    }

    #[test]
    fn all_or_nothing_finds_the_best_set_whenever_there_is_one(world in worlds()) {
        let eligible = EligibleNodes::new(world.nodes.clone());
        let mut volume = Volume { strategy: Together::AllOrNothing, ..world.volume.clone() };
        for replica in &mut volume.replicas {
            replica.node_name.clear();
        }
        let world = World { volume: volume.clone(), ..world };
        let expected = brute_force(&eligible, &world);
        let settled = settle(&eligible, &mut volume, &world.table);
        let placed = volume.replicas.iter().filter(|replica| replica.scheduled(volume.pool_type)).count();
        prop_assert!(placed == 0 || placed == volume.replicas.len(), "{:?}", settled);
        prop_assert_eq!(expected.is_some(), placed == volume.replicas.len(), "{:?}", settled);
        if let Some(expected) = expected {
            let multiple = |name: &str| {
                let node = world.nodes.iter().find(|node| node.node_name == name).unwrap();
                let left = node.lvm_volume_groups.iter();
                left.filter(|group| world.table.score(&group.name) > Some(0)).count() > 1
            };
            let total: i64 = volume
                .replicas
                .iter()
                .filter(|replica| replica.kind.has_disk())
                .map(|replica| {
                    let bonus = if multiple(&replica.node_name) { 2 } else { 0 };
                    world.table.score(&replica.lvg).unwrap() + bonus
                })
                .sum();
            prop_assert_eq!(total, expected, "{:?}", settled);
        }
    }
}
