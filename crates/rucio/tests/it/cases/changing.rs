//! Cases about updating, moving and reducing rules, and about data identifiers, replicas and the reaper.

use std::collections::BTreeMap;

use mainstay_catalog::{Daemon, Tx};
use mainstay_rules::api::{DidType, Grouping, NewRule, RuleState, SECOND};
use mainstay_rules::did::{self, Child};
use mainstay_rules::rule::update;
use mainstay_rules::{Class, Result, replica, rse};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::judging::{options, update};
use crate::world::World;

pub(super) fn upda_01(world: &World) {
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

pub(super) fn upda_02(world: &World) {
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

pub(super) fn upda_03(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    update(world, &uuid, json!({"priority": 5}));
    assert_eq!(world.get(&uuid).priority, 5);
    assert_eq!(world.sql("SELECT priority FROM requests"), 5);
}

pub(super) fn upda_05(world: &World) {
    world.f4();
    world.dataset("ds", 2, 1, "R1");
    let uuid = world.rule("ds", 1, "R3", Grouping::Dataset);
    update(world, &uuid, json!({"state": "STUCK"}));
    assert_eq!(world.state(&uuid), "STUCK 0/0/2");
    assert_eq!(world.sql("SELECT COUNT(*) FROM locks WHERE state = 'S'"), 2);
}

pub(super) fn move_to(
    world: &World,
    uuid: &str,
    expression: &str,
    overrides: Value,
) -> Result<String> {
    let (now, seed) = (world.now(), world.seed());
    world.catalog.write_blocking(|tx| {
        let mut rng = SmallRng::seed_from_u64(seed);
        let overrides = options(overrides.clone());
        let to = update::Move { expression, overrides: &overrides, privileged: true };
        update::move_rule(tx, uuid, &to, &world.settings, &mut rng, now)
    })
}

pub(super) fn move_01(world: &World) {
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

pub(super) fn move_02(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let uuid = world.rule("ds", 1, "R1", Grouping::Dataset);
    for overrides in [json!({"session": 1}), json!({"dids": []}), json!({"nonsense": true})] {
        let refused = move_to(world, &uuid, "R2", overrides).unwrap_err().class();
        assert_eq!(refused, Some(Class::UnsupportedOperation));
    }
}

pub(super) fn move_03(world: &World) {
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

pub(super) fn redu_01(world: &World) {
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

pub(super) fn did_01(world: &World) {
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

pub(super) fn did_02(world: &World) {
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

pub(super) fn did_04(world: &World) {
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

pub(super) fn repl_01(world: &World) {
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

pub(super) fn repl_02(world: &World) {
    world.rse("R");
    world.attribute("R", "tombstone_delay", "3600");
    world.dataset("ds", 1, 1, "R");
    let replica = world.replica("ds-0", "R");
    assert_eq!(replica.tombstone, Some(replica.created_at + 3600 * SECOND));
    world.rule("ds-0", 1, "R", Grouping::None);
    assert_eq!(world.replica("ds-0", "R").tombstone, None);
}

pub(super) fn repl_03(world: &World) {
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

pub(super) fn reap_01(world: &World) {
    world.rse("R");
    world.attribute("R", "tombstone_delay", "1");
    world.dataset("ds", 250, 200, "R");
    world.write(|tx| rse::set_limit(tx, "R", "MinFreeSpace", 50 * 200));
    world.advance(10);
    let left = || world.sql("SELECT COUNT(*) FROM replicas");
    for (free, expected) in [(323_000_000_000, 250), (1, 200)] {
        let now = world.now();
        let measured = rse::Measured { used: 0, free, files: None };
        world.write(|tx| rse::set_usage(tx, "R", "storage", &measured, now));
        world.judge(Daemon::Reaper);
        assert_eq!(left(), expected);
    }
}
