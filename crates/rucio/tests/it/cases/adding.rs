//! Cases about adding rules.

use std::collections::BTreeMap;

use mainstay_rules::api::{DidType, Grouping, NewRule, ReplicaState, RuleState};
use mainstay_rules::rse::RseSettings;
use mainstay_rules::{Class, account};

use crate::world::{World, names};

pub(super) fn add_01(world: &World) {
    world.f4();
    for file in world.dataset("ds", 3, 1, "R1") {
        let uuid = world.rule(&file, 2, "T1", Grouping::None);
        let rses = &world.locks(&uuid)[&file];
        assert!(rses.contains("R1") && rses.len() == 2 && !rses.contains("R3"));
    }
}

pub(super) fn add_02(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let first = world.locks(&world.rule("ds", 2, "T1", Grouping::None));
    let second = world.locks(&world.rule("ds", 2, "T1|T2", Grouping::None));
    assert_eq!(first, second);
    assert!(second.values().all(|rses| rses.len() == 2 && !rses.contains("R3")));
}

pub(super) fn add_03(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let rule = World::new_rule("ds", 2, "T1");
    world.add(&rule);
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::DuplicateRule));
}

pub(super) fn container(world: &World, name: &str, datasets: usize, rse: &str) {
    world.collection(name, DidType::Container);
    let names: Vec<String> = (0..datasets).map(|at| format!("{name}-d{at}")).collect();
    for dataset in &names {
        world.dataset(dataset, 3, 1, rse);
    }
    world.attach(name, &names);
}

pub(super) fn add_05(world: &World) {
    world.f4();
    container(world, "c", 3, "R1");
    let locks = world.locks(&world.rule("c", 1, "T2", Grouping::None));
    assert_eq!(locks.len(), 9);
    assert!(locks.values().all(|rses| *rses == names(&["R3"])));
}

pub(super) fn add_06(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.rule("ds", 2, "T1", Grouping::All);
    let locks = world.locks(&uuid);
    assert!(locks.values().all(|rses| *rses == locks["ds-0"] && rses.contains("R1")));
    assert_eq!(world.dataset_locks(&uuid).len(), 2);
}

pub(super) fn add_07(world: &World) {
    world.f4();
    container(world, "c", 3, "R1");
    let locks = world.locks(&world.rule("c", 2, "T1", Grouping::Dataset));
    for dataset in 0..3 {
        let of = |file: usize| &locks[&format!("c-d{dataset}-{file}")];
        assert!(of(0) == of(1) && of(1) == of(2) && of(0).len() == 2);
    }
}

pub(super) fn add_08(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.rule("ds", 1, "R4", Grouping::Dataset);
    assert_eq!(world.state(&uuid), "REPLICATING 0/3/0");
    let sql = "SELECT COUNT(*) FROM named_requests WHERE rse = 'R4' AND request_type = 'T' AND state = 'Q'";
    assert_eq!(world.sql(sql), 3);
}

/// The overlapping tree: ds3 shares files with ds1 and ds2, and ds1 is in two containers.
fn tree(world: &World) {
    for name in ["R1", "R2", "R3", "R4"] {
        world.rse(name);
    }
    let range = |from: usize, to: usize| (from..=to).map(|at| format!("f{at}")).collect::<Vec<_>>();
    for (rse, ranges) in [
        ("R1", vec![(1, 7), (21, 24)]),
        ("R2", vec![(8, 10)]),
        ("R3", vec![(11, 16)]),
        ("R4", vec![(17, 20), (25, 25)]),
    ] {
        for (from, to) in ranges {
            for at in from..=to {
                world.files(&[format!("f{at}")], 10_000 + at as i64, rse);
            }
        }
    }
    for (name, files) in [
        ("ds1", range(1, 10)),
        ("ds2", range(11, 20)),
        ("ds3", [range(1, 2), range(11, 12), range(21, 25)].concat()),
    ] {
        world.collection(name, DidType::Dataset);
        world.attach(name, &files);
    }
    for (name, children) in
        [("c12", ["ds1", "ds2"]), ("c13", ["ds1", "ds3"]), ("c1213", ["c12", "c13"])]
    {
        world.collection(name, DidType::Container);
        world.attach(name, &children.map(str::to_owned));
    }
}

pub(super) fn add_10(world: &World) {
    tree(world);
    let uuid = world.rule("c1213", 1, "R1|R2|R3|R4", Grouping::All);
    assert_eq!(world.state(&uuid), "REPLICATING 11/14/0");
    let locks: BTreeMap<String, String> =
        world.dataset_locks(&uuid).into_iter().map(|lock| (lock.0, lock.1)).collect();
    let expected = ["ds1", "ds2", "ds3"].map(|name| (name.to_owned(), "R1".to_owned()));
    assert_eq!(locks, expected.into());
}

pub(super) fn add_12(world: &World) {
    tree(world);
    let uuid = world.rule("c1213", 1, "R1|R2|R3|R4", Grouping::None);
    assert_eq!(world.state(&uuid), "OK 25/0/0");
    assert_eq!(world.dataset_locks(&uuid), []);
}

pub(super) fn add_13(world: &World) {
    world.rse("R1");
    world.rse_with("W", &RseSettings { write: false, ..RseSettings::default() });
    world.dataset("ds", 3, 1, "R1");
    let rule = World::new_rule("ds", 1, "W");
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::RSEWriteBlocked));
    let uuid = world.add(&NewRule { ignore_availability: true, ..rule });
    assert_eq!(world.state(&uuid), "STUCK 0/0/3");
    assert_eq!(world.get(&uuid).error.as_deref(), Some("MissingSourceReplica"));
    assert_eq!(world.replica("ds-0", "W").state, ReplicaState::Unavailable);
    assert_eq!(world.sql("SELECT COUNT(*) FROM requests"), 0);
}

pub(super) fn add_14(world: &World) {
    world.f4();
    world.dataset("ds", 3, 100, "R2");
    world.limit("jdoe", "R2", 5);
    let rule = NewRule { grouping: Grouping::All, ..World::new_rule("ds", 1, "R2") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
}

fn global(world: &World, account: &str, expression: &str, bytes: i64) {
    world.write(|tx| account::set_global_limit(tx, account, expression, Some(bytes)));
}

pub(super) fn add_15(world: &World) {
    world.f4();
    world.dataset("ds", 3, 100, "R1");
    world.limit("jdoe", "R1", 400);
    global(world, "jdoe", "R1|R2", 400);
    global(world, "jdoe", "R1|R3", 10);
    let rule = NewRule { grouping: Grouping::All, ..World::new_rule("ds", 1, "R1") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
    global(world, "jdoe", "R1|R3", 300);
    world.add(&rule);
}

pub(super) fn add_17(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let rule = World::new_rule("ds", 0, "T1");
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InvalidValueForKey));
}

pub(super) fn add_18(world: &World) {
    world.rse("R");
    world.collection("ds", DidType::Dataset);
    let uuid = world.rule("ds", 1, "R", Grouping::Dataset);
    assert_eq!(world.state(&uuid), "OK 0/0/0");
    assert_eq!(world.dataset_locks(&uuid), [("ds".to_owned(), "R".to_owned(), "OK".to_owned())]);
}

pub(super) fn add_20(world: &World) {
    world.rse_with("S", &RseSettings { staging_area: true, ..RseSettings::default() });
    world.dataset("ds", 1, 1, "S");
    let rule = World::new_rule("ds", 1, "S");
    assert_eq!(
        world.try_add(&rule).unwrap_err().class(),
        Some(Class::StagingAreaRuleRequiresLifetime)
    );
}

pub(super) fn add_21(world: &World) {
    world.rse_with("T", &RseSettings { rse_type: "TAPE".to_owned(), ..RseSettings::default() });
    world.dataset("ds", 1, 1, "T");
    let uuid = world.add(&World::new_rule("ds", 1, "T"));
    assert!(world.get(&uuid).locked);
}

pub(super) fn add_23(world: &World) {
    world.rse("R");
    world.rse("R0");
    world.dataset("ds", 3, 200, "R0");
    world.close("ds");
    let rule = NewRule { account: "alice".to_owned(), ..World::new_rule("ds", 1, "R") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
    for (threshold, state) in [
        (None, RuleState::WaitingApproval),
        (Some("500"), RuleState::WaitingApproval),
        (Some("1000"), RuleState::Inject),
    ] {
        if let Some(threshold) = threshold {
            world.attribute("R", "auto_approve_bytes", threshold);
        }
        let uuid = world.add(&NewRule { ask_approval: true, ..rule.clone() });
        assert_eq!(world.get(&uuid).state, state, "{threshold:?}");
        world.delete(&uuid);
    }
}

pub(super) fn add_24(world: &World) {
    world.rse("R");
    world.attribute("R", "block_manual_approval", "1");
    world.dataset("ds", 1, 1, "R");
    let rule = NewRule { ask_approval: true, ..World::new_rule("ds", 1, "R") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::ManualRuleApprovalBlocked));
}

pub(super) fn add_25(world: &World) {
    world.rse("R");
    world.dataset("ds", 1, 1, "R");
    global(world, "jdoe", "nothing=matches", 10);
    world.add(&World::new_rule("ds", 1, "R"));
}
