//! Cases about deleting, evaluating, transferring, repairing, injecting and cleaning.

use std::collections::BTreeSet;

use mainstay_catalog::Daemon;
use mainstay_rules::Class;
use mainstay_rules::api::{
    DidType, Grouping, NewRule, Notification, ReplicaState, RuleState, SECOND,
};
use mainstay_rules::rule::{delete, message, update};
use serde_json::{Map, Value, json};

use super::adding::container;
use super::changing::move_to;
use crate::world::{START, World, names};

pub(super) fn dele_01(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.rule("ds", 2, "T1", Grouping::Dataset);
    world.delete(&uuid);
    assert_eq!(world.sql("SELECT COUNT(*) FROM locks"), 0);
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::RuleNotFound));
}

pub(super) fn dele_02(world: &World) {
    world.f4();
    world.dataset("ds", 3, 1, "R1");
    let first = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.rule("ds", 2, "T1", Grouping::Dataset);
    world.rule("ds", 3, "T1", Grouping::Dataset);
    world.delete(&first);
    assert_eq!(world.locks_of("ds-0"), 5);
}

pub(super) fn options(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

pub(super) fn update(world: &World, uuid: &str, value: Value) {
    let now = world.now();
    world.write(|tx| update::update_rule(tx, uuid, &options(value.clone()), now));
}

pub(super) fn dele_03(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.add(&NewRule { locked: true, ..World::new_rule("ds", 1, "R1") });
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::UnsupportedOperation));
    update(world, &uuid, json!({"locked": false}));
    world.delete(&uuid);
}

pub(super) fn dele_04(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    assert_eq!(world.replica("ds-0", "R1").tombstone, None);
    world.delete(&uuid);
    let replica = world.replica("ds-0", "R1");
    assert_eq!((replica.lock_cnt, replica.state), (0, ReplicaState::Available));
    assert_eq!(replica.tombstone, Some(replica.created_at));
}

pub(super) fn dele_05(world: &World) {
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

pub(super) fn dele_07(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R3");
    let uuid = world.add(&NewRule { purge_replicas: true, ..World::new_rule("ds", 1, "R3") });
    world.delete(&uuid);
    assert_eq!(world.replica("ds-0", "R3").tombstone, Some(0));
}

pub(super) fn dele_08(world: &World) {
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

pub(super) fn eval_01(world: &World) {
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

pub(super) fn eval_02(world: &World) {
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

pub(super) fn eval_04(world: &World) {
    world.j4();
    container(world, "c", 3, "R1");
    let uuid = world.rule("c", 1, "R1", Grouping::All);
    assert_eq!(world.state(&uuid), "OK 9/0/0");
    world.detach("c-d0", &["c-d0-0"]);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.state(&uuid), "OK 8/0/0");
}

pub(super) fn eval_05(world: &World) {
    world.j4();
    container(world, "c", 1, "R1");
    let uuid = world.rule("c", 1, "R1", Grouping::Dataset);
    assert_eq!(world.dataset_locks(&uuid).len(), 1);
    world.detach("c", &["c-d0"]);
    world.judge(Daemon::Evaluator);
    assert_eq!(world.dataset_locks(&uuid), []);
    assert_eq!(world.state(&uuid), "OK 0/0/0");
}

pub(super) fn eval_07(world: &World) {
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

pub(super) fn eval_09(world: &World) {
    world.j4();
    world.collection("ds", DidType::Dataset);
    world.rule("ds", 1, "R1", Grouping::All);
    world.more_files("ds", 0, 3, 100, "R1");
    world.judge(Daemon::Evaluator);
    assert_eq!(world.usage("jdoe", "R1"), (3, 300));
}

pub(super) fn eval_10(world: &World) {
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

pub(super) fn eval_12(world: &World) {
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

pub(super) fn tran_01(world: &World) {
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

pub(super) fn tran_02(world: &World) {
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

pub(super) fn tran_04(world: &World) {
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

pub(super) fn repa_01(world: &World) {
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

pub(super) fn repa_02(world: &World) {
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

pub(super) fn repa_03(world: &World) {
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

pub(super) fn repa_05(world: &World) {
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

pub(super) fn repa_07(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R4");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    world.fail(&["ds-0"], "R1");
    world.advance(15 * 86_400);
    world.judge(Daemon::Repairer);
    assert_eq!(world.get(&uuid).state, RuleState::Suspended);
    // The repairer suspended the rule; it becomes OK as soon as the copy arrives.
    world.succeed(&["ds-0"], "R1");
    assert_eq!(world.state(&uuid), "OK 1/0/0");
}

pub(super) fn inje_01(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R1");
    let uuid = world.add(&NewRule { asynchronous: true, ..World::new_rule("ds", 2, "T1") });
    assert_eq!(world.state(&uuid), "INJECT 0/0/0");
    world.judge(Daemon::Injector);
    assert_eq!(world.state(&uuid), "REPLICATING 3/3/0");
    assert!(world.locks(&uuid).values().all(|rses| rses.len() == 2));
}

pub(super) fn inje_02(world: &World) {
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

pub(super) fn inje_03(world: &World) {
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

pub(super) fn inje_04(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let uuid =
        world.add(&NewRule { ask_approval: true, locked: true, ..World::new_rule("ds", 1, "R4") });
    let now = world.now();
    world.write(|tx| delete::deny(tx, &uuid, Some("no"), now));
    assert_eq!(world.try_delete(&uuid).unwrap_err().class(), Some(Class::RuleNotFound));
}

pub(super) fn clea_01(world: &World) {
    world.j4();
    world.dataset("ds", 3, 1, "R1");
    world.add(&NewRule { lifetime: Some(-1), ..World::new_rule("ds", 1, "R1") });
    world.rule("ds", 2, "T1", Grouping::Dataset);
    world.rule("ds", 3, "T1", Grouping::Dataset);
    world.judge(Daemon::Cleaner);
    assert_eq!(world.locks_of("ds-0"), 5);
}

pub(super) fn clea_02(world: &World) {
    world.j4();
    world.dataset("ds", 1, 1, "R1");
    let parent = world.rule("ds", 1, "R1", Grouping::Dataset);
    let child = move_to(world, &parent, "R3", json!({})).unwrap();
    update(world, &child, json!({"lifetime": -10}));
    world.judge(Daemon::Cleaner);
    let parent = world.get(&parent);
    assert_eq!((parent.child_rule_id, parent.expires_at), (None, None));
}
