//! Tests of the judge daemons as servers run them: woken by new work, shared among servers, stopped
//! cleanly.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_catalog::Catalog;
use mainstay_clock::ManualClock;
use mainstay_rules::api::{Grouping, NewRule, SECOND};
use mainstay_rules::judge::{Judge, Managed, beat};
use mainstay_rules::{Environment, Settings};

use crate::world::{START, World, postgres};

#[test]
fn live_servers_share_the_work_and_dead_ones_are_left_out() {
    for world in World::each() {
        let share = |server: &str, seconds: i64| {
            beat(&world.catalog, server, START + seconds * SECOND).unwrap()
        };
        assert_eq!(share("b", 0), (0, 1));
        assert_eq!(share("a", 1), (0, 2));
        assert_eq!(share("b", 5), (1, 2));
        assert_eq!(share("c", 6), (2, 3));
        // `a` was last seen at 1 and counts as dead at 22.
        assert_eq!(share("b", 22), (0, 2));
        assert_eq!(share("c", 22), (1, 2));
        assert_eq!(share("a", 30), (0, 3));
    }
}

/// A clock one hour after the start of the world.
fn later() -> Environment {
    let later = Timestamp::from_microsecond(START + 3600 * SECOND).unwrap();
    Environment::new(ManualClock::new(later))
}

/// Waits until no daemon has work left.
fn until_done(world: &World, uuid: &str) {
    while world.sql("SELECT COUNT(*) FROM updated_dids") > 0
        || world.state(uuid) != "REPLICATING 2/2/0"
    {
        std::thread::yield_now();
    }
}

#[test]
fn daemons_finish_their_work_and_stop_on_shutdown() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 2, 1, "R1");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let judge = {
            let _inside = runtime.enter();
            let (around, storage) = (later(), Arc::new(Managed::default()));
            Judge::start(world.catalog.clone(), Settings::default(), around, storage)
        };
        let rule = NewRule {
            asynchronous: true,
            grouping: Grouping::Dataset,
            ..World::new_rule("ds", 2, "R1|R2")
        };
        let uuid = world.add(&rule);
        until_done(&world, &uuid);
        runtime.block_on(judge.stop());
        assert_eq!(world.sql("SELECT COUNT(*) FROM judges"), 0);
        world.check();
    }
}

#[test]
fn two_servers_share_a_catalog() {
    let Some(server) = postgres() else { return };
    let world = World::on(server);
    world.f4();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = || {
        let _inside = runtime.enter();
        let catalog = Catalog::open_blocking(&world.url).unwrap();
        Judge::start(catalog, Settings::default(), later(), Arc::new(Managed::default()))
    };
    let (first, second) = (start(), start());
    let rules: Vec<String> = (0..12)
        .map(|at| {
            let name = format!("ds{at}");
            world.dataset(&name, 2, 1, "R1");
            let rule = NewRule { asynchronous: true, ..World::new_rule(&name, 2, "R1|R2") };
            world.add(&rule)
        })
        .collect();
    rules.iter().for_each(|uuid| until_done(&world, uuid));
    assert_eq!(world.sql("SELECT COUNT(*) FROM judges"), 2);
    runtime.block_on(first.stop());
    assert_eq!(world.sql("SELECT COUNT(*) FROM judges"), 1);
    runtime.block_on(second.stop());
    world.check();
}
