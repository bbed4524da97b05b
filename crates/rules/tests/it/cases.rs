//! Every case of `rules.jsonl`, on every database.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_rules::api::{
    DidType, Grouping, NewRule, Notification, ReplicaState, RuleState, SECOND,
};
use mainstay_rules::catalog::{Daemon, Tx};
use mainstay_rules::did::Child;
use mainstay_rules::expression::Rse;
use mainstay_rules::rse::RseSettings;
use mainstay_rules::rule::{delete, message, update};
use mainstay_rules::select::{Allowance, Selector, Wish};
use mainstay_rules::{Class, Result, account, did, replica, rse};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use crate::world::{START, World, names};

const CASES: &str = include_str!("../rules.jsonl");

/// Cases that need no catalog, or are about HTTP, have their own tests.
const ELSEWHERE: &[&str] = &["REST-01"];

#[test]
fn every_case_holds_on_every_database() {
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let id = case["id"].as_str().unwrap();
        if ELSEWHERE.contains(&id) {
            continue;
        }
        if id.starts_with("EXPR") {
            for world in World::each() {
                expression(&world, &case);
            }
            continue;
        }
        let Some(run) = runner(id) else { panic!("no test for {id}") };
        for world in World::each() {
            eprintln!("{id} on {}", world.catalog.backend());
            run(&world);
            world.check();
        }
    }
}

fn expression(world: &World, case: &Value) {
    for (name, attributes, write) in [
        (
            "A",
            &[("tier", "1"), ("country", "at"), ("T1", "True"), ("a.b", "x"), ("num", "10")][..],
            true,
        ),
        ("B", &[("tier", "1"), ("country", "de"), ("T1", "true"), ("num", "20")][..], true),
        ("C", &[("tier", "2"), ("country", "fr"), ("T1", "true"), ("num", "abc")][..], true),
        ("D", &[("tier", "2"), ("country", "uk"), ("T2", "true"), ("num", "40.5")][..], true),
        ("E", &[("country", "us"), ("T2", "true")][..], false),
    ] {
        world.rse_with(name, &RseSettings { write, ..RseSettings::default() });
        for (key, value) in attributes {
            world.attribute(name, key, value);
        }
    }
    let action = case["action"].as_str().unwrap();
    let (verb, text) = action.split_once(' ').unwrap();
    let text: String = serde_json::from_str(text).unwrap();
    let found = world.catalog.write_blocking(|tx| {
        let found = if verb == "resolve" {
            rse::resolve(tx, &text)
        } else {
            rse::resolve_writable(tx, &text)
        }?;
        let rses = tx.rses()?;
        Ok(rses
            .iter()
            .filter(|rse| found.contains(&rse.id))
            .map(|rse| rse.name.clone())
            .collect::<Vec<_>>())
    });
    let got = match found {
        Ok(rses) => json!({"rses": rses}),
        Err(error) => {
            json!({"error": error.class().unwrap().to_string(), "message": error.to_string()})
        }
    };
    assert_eq!(got, case["expect"], "{}", case["id"]);
}

fn runner(id: &str) -> Option<fn(&World)> {
    Some(match id {
        "SELE-01" => sele_01,
        "SELE-02" => sele_02,
        "SELE-03" => sele_03,
        "SELE-04" => sele_04,
        "SELE-06" => sele_06,
        "SELE-08" => sele_08,
        "SELE-09" => sele_09,
        "SELE-11" => sele_11,
        "SELE-12" => sele_12,
        "SELE-14" => sele_14,
        "SELE-15" => sele_15,
        "ADD_-01" => add_01,
        "ADD_-02" => add_02,
        "ADD_-03" => add_03,
        "ADD_-05" => add_05,
        "ADD_-06" => add_06,
        "ADD_-07" => add_07,
        "ADD_-08" => add_08,
        "ADD_-10" => add_10,
        "ADD_-12" => add_12,
        "ADD_-13" => add_13,
        "ADD_-14" => add_14,
        "ADD_-15" => add_15,
        "ADD_-17" => add_17,
        "ADD_-18" => add_18,
        "ADD_-20" => add_20,
        "ADD_-21" => add_21,
        "ADD_-23" => add_23,
        "ADD_-24" => add_24,
        "ADD_-25" => add_25,
        "DELE-01" => dele_01,
        "DELE-02" => dele_02,
        "DELE-03" => dele_03,
        "DELE-04" => dele_04,
        "DELE-05" => dele_05,
        "DELE-07" => dele_07,
        "DELE-08" => dele_08,
        "EVAL-01" => eval_01,
        "EVAL-02" => eval_02,
        "EVAL-04" => eval_04,
        "EVAL-05" => eval_05,
        "EVAL-07" => eval_07,
        "EVAL-09" => eval_09,
        "EVAL-10" => eval_10,
        "EVAL-12" => eval_12,
        "TRAN-01" => tran_01,
        "TRAN-02" => tran_02,
        "TRAN-04" => tran_04,
        "REPA-01" => repa_01,
        "REPA-02" => repa_02,
        "REPA-03" => repa_03,
        "REPA-05" => repa_05,
        "REPA-07" => repa_07,
        "INJE-01" => inje_01,
        "INJE-02" => inje_02,
        "INJE-03" => inje_03,
        "INJE-04" => inje_04,
        "CLEA-01" => clea_01,
        "CLEA-02" => clea_02,
        "UPDA-01" => upda_01,
        "UPDA-02" => upda_02,
        "UPDA-03" => upda_03,
        "UPDA-05" => upda_05,
        "MOVE-01" => move_01,
        "MOVE-02" => move_02,
        "MOVE-03" => move_03,
        "REDU-01" => redu_01,
        "DID-01" => did_01,
        "DID-02" => did_02,
        "DID-04" => did_04,
        "REPL-01" => repl_01,
        "REPL-02" => repl_02,
        "REPL-03" => repl_03,
        "REAP-01" => reap_01,
        _ => return None,
    })
}

/// A selector over r1 and r2 with these local and global remainders.
fn selector(
    rses: &[i64],
    copies: usize,
    local: &[(i64, i64)],
    global: &[(i64, i64)],
) -> Result<Selector, Class> {
    let known: Vec<Rse> = rses.iter().map(|id| Rse { id: *id, ..Rse::default() }).collect();
    let allowance = Allowance {
        unlimited: false,
        local: local.iter().map(|(rse, left)| (*rse, Some(*left))).collect(),
        global: global.iter().map(|(rse, left)| (BTreeSet::from([*rse]), Some(*left))).collect(),
    };
    let targets: Vec<&Rse> = known.iter().collect();
    let selector = Selector::new(&targets, None, copies, &allowance, &BTreeMap::new())
        .map_err(|refusal| refusal.class)?;
    selector.check_quota().map_err(|refusal| refusal.class)?;
    Ok(selector)
}

fn sele_01(_: &World) {
    assert_eq!(selector(&[1], 2, &[(1, 10)], &[]).unwrap_err(), Class::InsufficientTargetRSEs);
}

fn sele_02(_: &World) {
    assert_eq!(selector(&[1, 2], 2, &[(1, 0)], &[]).unwrap_err(), Class::InsufficientAccountLimit);
}

fn sele_03(_: &World) {
    assert_eq!(
        selector(&[1, 2], 2, &[(1, 10)], &[(1, 0)]).unwrap_err(),
        Class::InsufficientAccountLimit
    );
}

fn sele_04(_: &World) {
    assert_eq!(
        selector(&[1, 2], 2, &[(1, 20), (2, 20)], &[(1, 20), (2, 20)]).unwrap().candidates(),
        2
    );
}

fn sele_06(_: &World) {
    let mut selector = selector(&[1, 2], 1, &[(1, 10), (2, 10)], &[(1, 20), (2, 20)]).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    let wish = Wish { size: 9, coverage: &[(1, 9)], copies: 1, ..Wish::default() };
    assert_eq!(selector.pick(&wish, &mut rng).unwrap(), [1]);
    assert_eq!(
        selector.pick(&Wish { size: 5, copies: 1, ..Wish::default() }, &mut rng).unwrap(),
        [2]
    );
}

fn sele_08(_: &World) {
    let mut selector = selector(&[1, 2], 1, &[(1, 20), (2, 20)], &[(1, 20), (2, 20)]).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    for preferred in [1, 2] {
        let wish = Wish { size: 10, coverage: &[(preferred, 10)], copies: 1, ..Wish::default() };
        assert_eq!(selector.pick(&wish, &mut rng).unwrap(), [preferred]);
    }
    assert_eq!(
        selector.pick(&Wish { size: 5, copies: 2, ..Wish::default() }, &mut rng).unwrap().len(),
        2
    );
}

fn sele_09(world: &World) {
    for (name, limit, weight) in
        [("A", 1300, "0.1"), ("B", 400, "10"), ("C", 4000, "100"), ("D", 3000, "50")]
    {
        world.rse(name);
        world.attribute(name, "tag", "true");
        world.attribute(name, "w", weight);
        world.limit("alice", name, limit);
    }
    let files = world.dataset("ds", 10, 100, "A");
    let on = |rse: &str, number: usize| world.files(&files[..number], 100, rse);
    on("B", 5);
    world.change("DELETE FROM replicas WHERE rse_id = (SELECT id FROM rses WHERE rse = 'A') AND did_id NOT IN (SELECT id FROM dids WHERE name IN ('ds-0', 'ds-1', 'ds-2'))");
    world.change("UPDATE rse_usage SET files = 3, used = 300 WHERE rse_id = (SELECT id FROM rses WHERE rse = 'A')");
    let mut seconds = BTreeMap::new();
    let rounds = if world.catalog.backend() == "sqlite" { 60 } else { 10 };
    for _ in 0..rounds {
        let rule = NewRule {
            weight: Some("w".to_owned()),
            account: "alice".to_owned(),
            ..World::new_rule("ds", 2, "tag")
        };
        let uuid = world.add(&rule);
        let locks = world.locks(&uuid);
        let first = locks["ds-0"].clone();
        assert!(locks.values().all(|rses| *rses == first));
        assert!(first.contains("A") && !first.contains("B"), "{first:?}");
        let second = first.into_iter().find(|rse| rse != "A").unwrap();
        *seconds.entry(second).or_insert(0) += 1;
        world.delete(&uuid);
        world.change("DELETE FROM replicas WHERE lock_cnt = 0 AND state = 'U'");
        world.change("UPDATE rse_usage SET files = (SELECT COUNT(*) FROM replicas p WHERE p.rse_id = rse_usage.rse_id), used = (SELECT COUNT(*) FROM replicas p WHERE p.rse_id = rse_usage.rse_id) * 100");
    }
    if rounds > 20 {
        assert!(seconds["C"] > seconds["D"], "{seconds:?}");
    }
}

fn sele_11(world: &World) {
    world.rse("X");
    world.rse("Y");
    world.rse("Z");
    world.attribute("X", "w", "0");
    world.attribute("Y", "w", "1000");
    world.dataset("ds", 2, 1, "Z");
    let uuid =
        world.add(&NewRule { weight: Some("w".to_owned()), ..World::new_rule("ds", 1, "X|Y") });
    assert_eq!(world.locks(&uuid)["ds-0"], names(&["Y"]));
}

fn sele_12(world: &World) {
    world.rse("X");
    world.dataset("ds", 2, 10, "X");
    world.limit("alice", "X", 19);
    let rule = NewRule { account: "alice".to_owned(), ..World::new_rule("ds", 1, "X") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
    world.limit("alice", "X", 20);
    world.add(&rule);
    assert_eq!(world.usage("alice", "X"), (2, 20));
}

fn sele_14(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let rule = NewRule { weight: Some("nosuch".to_owned()), ..World::new_rule("ds", 1, "T1") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientTargetRSEs));
}

fn sele_15(world: &World) {
    world.f4();
    world.attribute("R1", "badw", "abc");
    world.dataset("ds", 1, 1, "R1");
    let rule = NewRule { weight: Some("badw".to_owned()), ..World::new_rule("ds", 1, "T1") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InvalidRuleWeight));
}

fn add_01(world: &World) {
    world.f4();
    for file in world.dataset("ds", 3, 1, "R1") {
        let uuid = world.rule(&file, 2, "T1", Grouping::None);
        let rses = &world.locks(&uuid)[&file];
        assert!(rses.contains("R1") && rses.len() == 2 && !rses.contains("R3"));
    }
}

fn add_02(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let first = world.locks(&world.rule("ds", 2, "T1", Grouping::None));
    let second = world.locks(&world.rule("ds", 2, "T1|T2", Grouping::None));
    assert_eq!(first, second);
    assert!(second.values().all(|rses| rses.len() == 2 && !rses.contains("R3")));
}

fn add_03(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let rule = World::new_rule("ds", 2, "T1");
    world.add(&rule);
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::DuplicateRule));
}

fn container(world: &World, name: &str, datasets: usize, rse: &str) {
    world.collection(name, DidType::Container);
    let names: Vec<String> = (0..datasets).map(|at| format!("{name}-d{at}")).collect();
    for dataset in &names {
        world.dataset(dataset, 3, 1, rse);
    }
    world.attach(name, &names);
}

fn add_05(world: &World) {
    world.f4();
    container(world, "c", 3, "R1");
    let locks = world.locks(&world.rule("c", 1, "T2", Grouping::None));
    assert_eq!(locks.len(), 9);
    assert!(locks.values().all(|rses| *rses == names(&["R3"])));
}

fn add_06(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.rule("ds", 2, "T1", Grouping::All);
    let locks = world.locks(&uuid);
    assert!(locks.values().all(|rses| *rses == locks["ds-0"] && rses.contains("R1")));
    assert_eq!(world.dataset_locks(&uuid).len(), 2);
}

fn add_07(world: &World) {
    world.f4();
    container(world, "c", 3, "R1");
    let locks = world.locks(&world.rule("c", 2, "T1", Grouping::Dataset));
    for dataset in 0..3 {
        let of = |file: usize| &locks[&format!("c-d{dataset}-{file}")];
        assert!(of(0) == of(1) && of(1) == of(2) && of(0).len() == 2);
    }
}

fn add_08(world: &World) {
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

fn add_10(world: &World) {
    tree(world);
    let uuid = world.rule("c1213", 1, "R1|R2|R3|R4", Grouping::All);
    assert_eq!(world.state(&uuid), "REPLICATING 11/14/0");
    let locks: BTreeMap<String, String> =
        world.dataset_locks(&uuid).into_iter().map(|lock| (lock.0, lock.1)).collect();
    let expected = ["ds1", "ds2", "ds3"].map(|name| (name.to_owned(), "R1".to_owned()));
    assert_eq!(locks, expected.into());
}

fn add_12(world: &World) {
    tree(world);
    let uuid = world.rule("c1213", 1, "R1|R2|R3|R4", Grouping::None);
    assert_eq!(world.state(&uuid), "OK 25/0/0");
    assert_eq!(world.dataset_locks(&uuid), []);
}

fn add_13(world: &World) {
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

fn add_14(world: &World) {
    world.f4();
    world.dataset("ds", 3, 100, "R2");
    world.limit("jdoe", "R2", 5);
    let rule = NewRule { grouping: Grouping::All, ..World::new_rule("ds", 1, "R2") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
}

fn global(world: &World, account: &str, expression: &str, bytes: i64) {
    world.write(|tx| account::set_global_limit(tx, account, expression, Some(bytes)));
}

fn add_15(world: &World) {
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

fn add_17(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let rule = World::new_rule("ds", 0, "T1");
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InvalidValueForKey));
}

fn add_18(world: &World) {
    world.rse("R");
    world.collection("ds", DidType::Dataset);
    let uuid = world.rule("ds", 1, "R", Grouping::Dataset);
    assert_eq!(world.state(&uuid), "OK 0/0/0");
    assert_eq!(world.dataset_locks(&uuid), [("ds".to_owned(), "R".to_owned(), "OK".to_owned())]);
}

fn add_20(world: &World) {
    world.rse_with("S", &RseSettings { staging_area: true, ..RseSettings::default() });
    world.dataset("ds", 1, 1, "S");
    let rule = World::new_rule("ds", 1, "S");
    assert_eq!(
        world.try_add(&rule).unwrap_err().class(),
        Some(Class::StagingAreaRuleRequiresLifetime)
    );
}

fn add_21(world: &World) {
    world.rse_with("T", &RseSettings { rse_type: "TAPE".to_owned(), ..RseSettings::default() });
    world.dataset("ds", 1, 1, "T");
    let uuid = world.add(&World::new_rule("ds", 1, "T"));
    assert!(world.get(&uuid).locked);
}

fn add_23(world: &World) {
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

fn add_24(world: &World) {
    world.rse("R");
    world.attribute("R", "block_manual_approval", "1");
    world.dataset("ds", 1, 1, "R");
    let rule = NewRule { ask_approval: true, ..World::new_rule("ds", 1, "R") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::ManualRuleApprovalBlocked));
}

fn add_25(world: &World) {
    world.rse("R");
    world.dataset("ds", 1, 1, "R");
    global(world, "jdoe", "nothing=matches", 10);
    world.add(&World::new_rule("ds", 1, "R"));
}

fn dele_01(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.rule("ds", 2, "T1", Grouping::Dataset);
    world.delete(&uuid);
    assert_eq!(world.sql("SELECT COUNT(*) FROM locks"), 0);
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::RuleNotFound));
}

fn dele_02(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let first = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.rule("ds", 2, "T1", Grouping::Dataset);
    world.rule("ds", 3, "T1", Grouping::Dataset);
    world.delete(&first);
    assert_eq!(world.locks_of("ds-0"), 5);
}

fn options(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn update(world: &World, uuid: &str, value: Value) {
    let now = world.now();
    world.write(|tx| update::update_rule(tx, uuid, &options(value.clone()), now));
}

fn dele_03(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.add(&NewRule { locked: true, ..World::new_rule("ds", 1, "R1") });
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::UnsupportedOperation));
    update(world, &uuid, json!({"locked": false}));
    world.delete(&uuid);
}

fn dele_04(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    assert_eq!(world.replica("ds-0", "R1").tombstone, None);
    world.delete(&uuid);
    let replica = world.replica("ds-0", "R1");
    assert_eq!((replica.lock_cnt, replica.state), (0, ReplicaState::Available));
    assert_eq!(replica.tombstone, Some(replica.created_at));
}

fn dele_05(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    world.delete(&uuid);
    let replica = world.replica("ds-0", "R3");
    assert_eq!(
        (replica.lock_cnt, replica.state, replica.tombstone),
        (0, ReplicaState::Unavailable, Some(0))
    );
    assert_eq!(world.sql("SELECT COUNT(*) FROM requests"), 0);
    assert_eq!(world.sql("SELECT COUNT(*) FROM requests_history"), 1);
}

fn dele_07(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R3");
    let uuid = world.add(&NewRule { purge_replicas: true, ..World::new_rule("ds", 1, "R3") });
    world.delete(&uuid);
    assert_eq!(world.replica("ds-0", "R3").tombstone, Some(0));
}

fn dele_08(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    let now = world.now();
    world.write(|tx| delete::expire_replication_rule(tx, &uuid, None, &world.settings, now));
    assert_eq!(world.get(&uuid).expires_at, Some(now + 3600 * SECOND));
    world.judge(Daemon::Cleaner);
    world.get(&uuid);
    world.advance(3601);
    world.judge(Daemon::Cleaner);
    assert_eq!(world.sql("SELECT COUNT(*) FROM rules"), 0);
}

fn eval_01(world: &World) {
    world.j4();
    world.collection("ds", DidType::Dataset);
    let uuid = world.rule("ds", 2, "T1", Grouping::Dataset);
    world.more_files("ds", 0, 3, 1, "R1");
    world.judge(Daemon::Evaluator);
    let first = world.locks(&uuid)["ds-0"].clone();
    assert!(first.contains("R1"));
    world.more_files("ds", 3, 3, 1, "R1");
    world.judge(Daemon::Evaluator);
    let locks = world.locks(&uuid);
    assert_eq!(locks.len(), 6);
    assert!(locks.values().all(|rses| *rses == first));
    let held: BTreeSet<String> =
        world.dataset_locks(&uuid).into_iter().map(|lock| lock.1).collect();
    assert_eq!(held, first);
}

fn eval_02(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R1");
    world.collection("c", DidType::Container);
    let uuid = world.rule("c", 2, "T1", Grouping::Dataset);
    world.attach("c", &["ds".to_owned()]);
    world.judge(Daemon::Evaluator);
    let locks = world.locks(&uuid);
    assert!(locks.len() == 3 && locks.values().all(|rses| rses.len() == 2));
    assert_eq!(world.dataset_locks(&uuid).len(), 2);
}

fn eval_04(world: &World) {
    world.j4();
    container(world, "c", 3, "R1");
    let uuid = world.rule("c", 1, "R1", Grouping::All);
    assert_eq!(world.state(&uuid), "OK 9/0/0");
    world.detach("c-d0", &["c-d0-0"]);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.state(&uuid), "OK 8/0/0");
}

fn eval_05(world: &World) {
    world.j4();
    container(world, "c", 1, "R1");
    let uuid = world.rule("c", 1, "R1", Grouping::Dataset);
    assert_eq!(world.dataset_locks(&uuid).len(), 1);
    world.detach("c", &["c-d0"]);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.dataset_locks(&uuid), []);
    assert_eq!(world.state(&uuid), "OK 0/0/0");
}

fn eval_07(world: &World) {
    world.rse("M");
    world.attribute("M", "k", "v");
    world.collection("c", DidType::Container);
    world.dataset("d1", 1, 1, "M");
    world.attach("c", &["d1".to_owned()]);
    let first = world.rule("c", 1, "M", Grouping::Dataset);
    world.dataset("d2", 1, 1, "M");
    world.attach("c", &["d2".to_owned()]);
    let second = world.rule("c", 1, "k=v", Grouping::Dataset);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.state(&first), "OK 2/0/0");
    assert_eq!(world.state(&second), "OK 2/0/0");
}

fn eval_09(world: &World) {
    world.j4();
    world.collection("ds", DidType::Dataset);
    world.rule("ds", 1, "R1", Grouping::All);
    world.more_files("ds", 0, 3, 100, "R1");
    world.judge(Daemon::Evaluator);
    assert_eq!(world.usage("jdoe", "R1"), (3, 300));
}

fn eval_10(world: &World) {
    world.j4();
    world.dataset("ds", 3, 100, "R1");
    world.rule("ds", 1, "R1", Grouping::Dataset);
    world.add(&NewRule { account: "root".to_owned(), ..World::new_rule("ds", 1, "R1") });
    world.judge(Daemon::Evaluator);
    world.detach("ds", &["ds-0"]);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.usage("jdoe", "R1"), (2, 200));
    assert_eq!(world.usage("root", "R1"), (2, 200));
}

fn eval_12(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.judge(Daemon::Evaluator);
    update(world, &uuid, json!({"state": "SUSPENDED"}));
    world.more_files("ds", 1, 1, 1, "R1");
    world.judge(Daemon::Evaluator);
    assert_eq!(world.state(&uuid), "SUSPENDED 1/0/0");
    update(world, &uuid, json!({"state": "STUCK"}));
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&uuid), "OK 2/0/0");
}

fn tran_01(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let parent = world.rule("ds", 1, "R1", Grouping::Dataset);
    let child = world.rule("ds", 1, "R2", Grouping::Dataset);
    update(world, &parent, json!({"child_rule_id": child}));
    for file in ["ds-0", "ds-1", "ds-2"] {
        assert_eq!(
            world.try_delete(&parent).unwrap_err().class(),
            Some(Class::UnsupportedOperation)
        );
        world.succeed(&[file], "R2");
    }
    world.delete(&parent);
}

fn tran_02(world: &World) {
    world.f4();
    world.dataset("ds", 2, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    world.fail(&["ds-0"], "R3");
    assert_eq!(world.state(&uuid), "STUCK 0/1/1");
    world.succeed(&["ds-1"], "R3");
    assert_eq!(world.state(&uuid), "STUCK 1/0/1");
    world.succeed(&["ds-0"], "R3");
    assert_eq!(world.state(&uuid), "OK 2/0/0");
}

fn tran_04(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    world.add(&NewRule { notify: Notification::Close, ..World::new_rule("ds", 1, "R3") });
    world.succeed(&["ds-0", "ds-1", "ds-2"], "R3");
    let events = |world: &World| {
        let messages = world.write(message::list);
        messages.into_iter().map(|(event, _)| event).collect::<Vec<_>>()
    };
    assert!(!events(world).contains(&"DATASETLOCK_OK".to_owned()));
    world.close("ds");
    assert!(events(world).contains(&"DATASETLOCK_OK".to_owned()));
    assert!(events(world).contains(&"RULE_OK".to_owned()));
}

fn repa_01(world: &World) {
    world.j4();
    world.dataset("ds", 3, 100, "R4");
    let uuid = world.rule("ds", 1, "T1", Grouping::None);
    let at = |file: &str| world.locks(&uuid)[file].first().unwrap().clone();
    for file in ["ds-0", "ds-1"] {
        world.succeed(&[file], &at(file));
    }
    let failed = at("ds-2");
    world.fail(&["ds-2"], &failed);
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&uuid), "REPLICATING 2/1/0");
    let old = world.replica("ds-2", &failed);
    assert_eq!((old.state, old.lock_cnt, old.tombstone), (ReplicaState::Unavailable, 0, Some(0)));
    assert_ne!(at("ds-2"), failed);
}

fn repa_02(world: &World) {
    world.j4();
    world.dataset("ds", 4, 1, "R4");
    let rule = NewRule {
        grouping: Grouping::All,
        activity: "DebugJudge".to_owned(),
        ..World::new_rule("ds", 1, "T1")
    };
    let uuid = world.add(&rule);
    let at = world.locks(&uuid)["ds-0"].first().unwrap().clone();
    world.succeed(&["ds-0", "ds-1"], &at);
    world.fail(&["ds-2", "ds-3"], &at);
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&uuid), "REPLICATING 2/2/0");
    assert!(world.locks(&uuid).values().all(|rses| *rses == names(&[&at])));
}

fn repa_03(world: &World) {
    world.j4();
    world.dataset("ds", 4, 1, "R4");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.succeed(&["ds-0", "ds-1"], "R1");
    world.fail(&["ds-2", "ds-3"], "R1");
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&uuid), "STUCK 2/0/2");
    world.advance(2 * 3600);
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&uuid), "REPLICATING 2/2/0");
}

fn repa_05(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R4");
    let first = world.rule("ds", 1, "R1", Grouping::Dataset);
    let second = world.add(&NewRule {
        source_replica_expression: Some("R1".to_owned()),
        ..World::new_rule("ds", 1, "R3")
    });
    assert_eq!(world.state(&first), "REPLICATING 0/3/0");
    assert_eq!(world.state(&second), "STUCK 0/0/3");
    world.succeed(&["ds-0", "ds-1", "ds-2"], "R1");
    world.judge(Daemon::Repairer);
    assert_eq!(world.state(&first), "OK 3/0/0");
    assert_eq!(world.state(&second), "REPLICATING 0/3/0");
}

fn repa_07(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R4");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.fail(&["ds-0"], "R1");
    world.advance(15 * 86_400);
    world.judge(Daemon::Repairer);
    assert_eq!(world.get(&uuid).state, RuleState::Suspended);
    // Given up by the repairer, well as soon as the copy is there.
    world.succeed(&["ds-0"], "R1");
    assert_eq!(world.state(&uuid), "OK 1/0/0");
}

fn inje_01(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.add(&NewRule { asynchronous: true, ..World::new_rule("ds", 2, "T1") });
    assert_eq!(world.state(&uuid), "INJECT 0/0/0");
    world.judge(Daemon::Injector);
    assert_eq!(world.state(&uuid), "REPLICATING 3/3/0");
    assert!(world.locks(&uuid).values().all(|rses| rses.len() == 2));
}

fn inje_02(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let uuid =
        world.add(&NewRule { delay_injection: Some(3600), ..World::new_rule("ds", 1, "T1") });
    let created = world.get(&uuid).created_at;
    assert!((START + 3600 * SECOND..START + 3700 * SECOND).contains(&created));
    world.judge(Daemon::Injector);
    assert_eq!(world.get(&uuid).state, RuleState::Inject);
    world.advance(3601);
    world.judge(Daemon::Injector);
    assert_eq!(world.state(&uuid), "OK 1/0/0");
}

fn inje_03(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.add(&NewRule { ask_approval: true, ..World::new_rule("ds", 1, "R4") });
    assert_eq!(world.get(&uuid).state, RuleState::WaitingApproval);
    let now = world.now();
    world.write(|tx| delete::approve(tx, &uuid, now));
    assert_eq!(world.get(&uuid).state, RuleState::Inject);
    assert!(world.get(&uuid).ignore_account_limit);
    world.judge(Daemon::Injector);
    assert_eq!(world.get(&uuid).state, RuleState::Replicating);
}

fn inje_04(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let uuid =
        world.add(&NewRule { ask_approval: true, locked: true, ..World::new_rule("ds", 1, "R4") });
    let now = world.now();
    world.write(|tx| delete::deny(tx, &uuid, Some("no"), now));
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::RuleNotFound));
}

fn clea_01(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R1");
    world.add(&NewRule { lifetime: Some(-1), ..World::new_rule("ds", 1, "R1") });
    world.rule("ds", 2, "T1", Grouping::Dataset);
    world.rule("ds", 3, "T1", Grouping::Dataset);
    world.judge(Daemon::Cleaner);
    assert_eq!(world.locks_of("ds-0"), 5);
}

fn clea_02(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let parent = world.rule("ds", 1, "R1", Grouping::Dataset);
    let child = move_to(world, &parent, "R3", json!({})).unwrap();
    update(world, &child, json!({"lifetime": -10}));
    world.judge(Daemon::Cleaner);
    let parent = world.get(&parent);
    assert_eq!((parent.child_rule_id, parent.expires_at), (None, None));
}

fn upda_01(world: &World) {
    world.f4();
    world.dataset("d1", 1, 1, "R1");
    world.dataset("d2", 1, 1, "R1");
    let parent = world.rule("d1", 1, "R1", Grouping::Dataset);
    let other = world.rule("d2", 1, "R3", Grouping::Dataset);
    let child = world.rule("d1", 1, "R3", Grouping::Dataset);
    let now = world.now();
    let set = |tx: &mut Tx<'_>, child: &str| {
        update::update_rule(tx, &parent, &options(json!({"child_rule_id": child})), now)
    };
    assert_eq!(world.refused(|tx| set(tx, &other)), Class::InputValidationError);
    world.write(|tx| set(tx, &child));
    assert_eq!(world.try_delete(&parent).unwrap_err().class(), Some(Class::UnsupportedOperation));
}

fn upda_02(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let parent = world.rule("ds", 1, "R1", Grouping::Dataset);
    move_to(world, &parent, "R3", json!({})).unwrap();
    update(world, &parent, json!({"child_rule_id": null}));
    let rule = world.get(&parent);
    assert_eq!((rule.child_rule_id, rule.expires_at), (None, None));
    let now = world.now();
    let again = |tx: &mut Tx<'_>| {
        update::update_rule(tx, &parent, &options(json!({"child_rule_id": null})), now)
    };
    assert_eq!(world.refused(again), Class::InputValidationError);
}

fn upda_03(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    update(world, &uuid, json!({"priority": 5}));
    assert_eq!(world.get(&uuid).priority, 5);
    assert_eq!(world.sql("SELECT priority FROM requests"), 5);
}

fn upda_05(world: &World) {
    world.f4();
    world.dataset("ds", 2, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    update(world, &uuid, json!({"state": "STUCK"}));
    assert_eq!(world.state(&uuid), "STUCK 0/0/2");
    assert_eq!(world.sql("SELECT COUNT(*) FROM locks WHERE state = 'S'"), 2);
}

fn move_to(world: &World, uuid: &str, expression: &str, overrides: Value) -> Result<String> {
    let (now, seed) = (world.now(), world.seed());
    world.catalog.write_blocking(|tx| {
        let mut rng = SmallRng::seed_from_u64(seed);
        update::move_rule(
            tx,
            uuid,
            expression,
            &options(overrides.clone()),
            &world.settings,
            &mut rng,
            now,
        )
    })
}

fn move_01(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let old = world.rule("ds", 1, "R1", Grouping::Dataset);
    let new = move_to(world, &old, "R2", json!({})).unwrap();
    assert_eq!(world.get(&new).state, RuleState::Replicating);
    let moved = world.get(&old);
    assert_eq!(moved.child_rule_id, Some(world.get(&new).id));
    assert!(moved.expires_at.is_some());
    assert_eq!(
        move_to(world, &old, "R3", json!({})).unwrap_err().class(),
        Some(Class::RuleReplaceFailed)
    );
    world.judge(Daemon::Cleaner);
    world.get(&old);
    world.succeed(&["ds-0", "ds-1", "ds-2"], "R2");
    world.judge(Daemon::Cleaner);
    assert_eq!(world.sql("SELECT COUNT(*) FROM rules"), 1);
}

fn move_02(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    for overrides in [json!({"session": 1}), json!({"dids": []}), json!({"nonsense": true})] {
        let refused = move_to(world, &uuid, "R2", overrides).unwrap_err().class();
        assert_eq!(refused, Some(Class::UnsupportedOperation));
    }
}

fn move_03(world: &World) {
    world.f4();
    world.attribute("R2", "src", "yes");
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.add(&NewRule {
        source_replica_expression: Some("src=yes".to_owned()),
        ..World::new_rule("ds", 1, "R1")
    });
    world.write(|tx| rse::delete_attribute(tx, "R2", "src"));
    let refused = move_to(world, &uuid, "R3", json!({})).unwrap_err().class();
    assert_eq!(refused, Some(Class::InvalidSourceReplicaExpression));
}

fn redu_01(world: &World) {
    world.f4();
    let files = world.dataset("ds", 3, 1, "R1");
    world.files(&files, 1, "R2");
    let old = world.rule("ds", 2, "R1|R2", Grouping::Dataset);
    assert_eq!(world.state(&old), "OK 6/0/0");
    let (now, seed) = (world.now(), world.seed());
    let new = world.write(|tx| {
        let mut rng = SmallRng::seed_from_u64(seed);
        update::reduce_rule(tx, &old, 1, Some("R1"), &world.settings, &mut rng, now)
    });
    assert_eq!(world.get(&new).rse_expression, "(R1|R2)\\(R1)");
    assert_eq!(world.state(&new), "OK 3/0/0");
    assert_eq!(world.try_delete(&old).unwrap_err().class(), Some(Class::RuleNotFound));
}

fn attach_refused(world: &World, parent: &str, child: &str) -> (Class, String) {
    let now = world.now();
    let child = [Child::named(World::did(child))];
    let error = world
        .catalog
        .write_blocking(|tx| did::attach_identifier(tx, &World::did(parent), &child, false, now))
        .unwrap_err();
    (error.class().unwrap(), error.to_string())
}

fn did_01(world: &World) {
    for name in ["c1", "c2", "c3"] {
        world.collection(name, DidType::Container);
    }
    world.attach("c1", &["c2".to_owned()]);
    world.attach("c2", &["c3".to_owned()]);
    for parent in ["c2", "c3"] {
        let (class, message) = attach_refused(world, parent, "c1");
        assert_eq!(
            (class, message.as_str()),
            (Class::UnsupportedOperation, "Circular attachment detected")
        );
    }
}

fn did_02(world: &World) {
    world.rse("R");
    world.dataset("ds", 1, 1, "R");
    world.files(&["other".to_owned()], 1, "R");
    world.close("ds");
    assert_eq!(attach_refused(world, "ds", "other").0, Class::UnsupportedOperation);
    let now = world.now();
    assert_eq!(
        world.refused(|tx| did::close(tx, &World::did("ds"), now)),
        Class::UnsupportedOperation
    );
}

fn did_04(world: &World) {
    world.rse("R");
    world.dataset("ds", 1, 1, "R");
    world.collection("c", DidType::Container);
    world.attach("c", &["ds".to_owned()]);
    assert_eq!(attach_refused(world, "c", "ds").0, Class::DuplicateContent);
    assert_eq!(attach_refused(world, "ds", "ds-0").0, Class::FileAlreadyExists);
    let now = world.now();
    let child = [Child::named(World::did("ds"))];
    world.write(|tx| did::attach_identifier(tx, &World::did("c"), &child, true, now));
}

fn repl_01(world: &World) {
    world.rse("R");
    world.dataset("ds", 2, 1, "R");
    world.rule("ds-0", 1, "R", Grouping::None);
    let now = world.now();
    let set = |tx: &mut Tx<'_>, file: &str, rse: &str| {
        replica::set_tombstone(tx, &World::did(file), rse, now)
    };
    assert_eq!(world.refused(|tx| set(tx, "ds-0", "R")), Class::ReplicaIsLocked);
    world.write(|tx| set(tx, "ds-1", "R"));
    assert_eq!(world.replica("ds-1", "R").tombstone, Some(0));
    world.rse("Q");
    assert_eq!(world.refused(|tx| set(tx, "ds-1", "Q")), Class::ReplicaNotFound);
}

fn repl_02(world: &World) {
    world.rse("R");
    world.attribute("R", "tombstone_delay", "3600");
    world.dataset("ds", 1, 1, "R");
    let replica = world.replica("ds-0", "R");
    assert_eq!(replica.tombstone, Some(replica.created_at + 3600 * SECOND));
    world.rule("ds-0", 1, "R", Grouping::None);
    assert_eq!(world.replica("ds-0", "R").tombstone, None);
}

fn repl_03(world: &World) {
    for name in ["R1", "R2", "R3"] {
        world.rse(name);
    }
    world.collection("empty", DidType::Dataset);
    world.dataset("ds", 7, 100, "R1");
    world.more_files("ds", 7, 3, 100, "R2");
    world.more_files("ds", 10, 5, 100, "R3");
    let covered = |name: &str| world.write(|tx| replica::coverage(tx, &World::did(name)));
    let expected =
        [("R1", 700), ("R2", 300), ("R3", 500)].map(|(rse, bytes)| (rse.to_owned(), bytes));
    assert_eq!(covered("ds"), expected.into());
    assert_eq!(covered("empty"), BTreeMap::new());
}

fn reap_01(world: &World) {
    world.rse("R");
    world.attribute("R", "tombstone_delay", "1");
    world.dataset("ds", 250, 200, "R");
    world.write(|tx| rse::set_limit(tx, "R", "MinFreeSpace", 50 * 200));
    world.advance(10);
    let left = || world.sql("SELECT COUNT(*) FROM replicas");
    for (free, expected) in [(323_000_000_000, 250), (1, 200)] {
        let now = world.now();
        world.write(|tx| rse::set_usage(tx, "R", "storage", 0, free, now));
        world.judge(Daemon::Reaper);
        assert_eq!(left(), expected);
    }
}
