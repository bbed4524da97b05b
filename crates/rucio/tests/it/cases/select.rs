//! Cases about choosing RSEs.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_rules::api::NewRule;
use mainstay_rules::expression::Rse;
use mainstay_rules::select::{Allowance, Selector, Wish};
use mainstay_rules::{Class, Result};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::world::{World, names};

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

pub(super) fn sele_01(_: &World) {
    assert_eq!(selector(&[1], 2, &[(1, 10)], &[]).unwrap_err(), Class::InsufficientTargetRSEs);
}

pub(super) fn sele_02(_: &World) {
    assert_eq!(selector(&[1, 2], 2, &[(1, 0)], &[]).unwrap_err(), Class::InsufficientAccountLimit);
}

pub(super) fn sele_03(_: &World) {
    assert_eq!(
        selector(&[1, 2], 2, &[(1, 10)], &[(1, 0)]).unwrap_err(),
        Class::InsufficientAccountLimit
    );
}

pub(super) fn sele_04(_: &World) {
    assert_eq!(
        selector(&[1, 2], 2, &[(1, 20), (2, 20)], &[(1, 20), (2, 20)]).unwrap().candidates(),
        2
    );
}

pub(super) fn sele_06(_: &World) {
    let mut selector = selector(&[1, 2], 1, &[(1, 10), (2, 10)], &[(1, 20), (2, 20)]).unwrap();
    let mut rng = SmallRng::seed_from_u64(1);
    let wish = Wish { size: 9, coverage: &[(1, 9)], copies: 1, ..Wish::default() };
    assert_eq!(selector.pick(&wish, &mut rng).unwrap(), [1]);
    assert_eq!(
        selector.pick(&Wish { size: 5, copies: 1, ..Wish::default() }, &mut rng).unwrap(),
        [2]
    );
}

pub(super) fn sele_08(_: &World) {
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

pub(super) fn sele_09(world: &World) {
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

pub(super) fn sele_11(world: &World) {
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

pub(super) fn sele_12(world: &World) {
    world.rse("X");
    world.dataset("ds", 2, 10, "X");
    world.limit("alice", "X", 19);
    let rule = NewRule { account: "alice".to_owned(), ..World::new_rule("ds", 1, "X") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientAccountLimit));
    world.limit("alice", "X", 20);
    world.add(&rule);
    assert_eq!(world.usage("alice", "X"), (2, 20));
}

pub(super) fn sele_14(world: &World) {
    world.f4();
    world.dataset("ds", 1, 1, "R1");
    let rule = NewRule { weight: Some("nosuch".to_owned()), ..World::new_rule("ds", 1, "T1") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InsufficientTargetRSEs));
}

pub(super) fn sele_15(world: &World) {
    world.f4();
    world.attribute("R1", "badw", "abc");
    world.dataset("ds", 1, 1, "R1");
    let rule = NewRule { weight: Some("badw".to_owned()), ..World::new_rule("ds", 1, "T1") };
    assert_eq!(world.try_add(&rule).unwrap_err().class(), Some(Class::InvalidRuleWeight));
}
