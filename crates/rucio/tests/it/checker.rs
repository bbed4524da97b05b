//! Tests that the catalog check finds every kind of corruption and repairs counters.

use mainstay_catalog::{Catalog, Error as CatalogError};
use mainstay_rules::api::Grouping;
use mainstay_rules::check;
use mainstay_rules::rule::read;

use crate::world::World;

fn furnished(world: &World) {
    world.f4();
    world.dataset("ds", 3, 10, "R1");
    world.rule("ds", 2, "T1", Grouping::Dataset);
    world.judge(mainstay_catalog::Daemon::Evaluator);
    world.check();
}

fn found(world: &World) -> Vec<&'static str> {
    let mut found: Vec<&str> = world
        .catalog
        .read_blocking(|tx| check::check(tx, 5))
        .unwrap()
        .into_iter()
        .map(|violation| violation.invariant)
        .collect();
    found.dedup();
    found
}

#[test]
fn every_corruption_is_found_and_counters_are_repaired() {
    for (corruption, law, counter) in [
        ("UPDATE replicas SET lock_cnt = lock_cnt + 1", "I1", true),
        ("UPDATE rules SET locks_ok_cnt = locks_ok_cnt + 1", "I2", true),
        ("DELETE FROM locks WHERE did_id = (SELECT MIN(did_id) FROM locks)", "I3", false),
        ("DELETE FROM contents WHERE child = (SELECT MIN(child) FROM contents)", "I4", false),
        ("UPDATE replicas SET state = 'A' WHERE state = 'C'", "I5", false),
        ("DELETE FROM requests", "I5", false),
        ("UPDATE replicas SET tombstone = 5", "I6", true),
        ("UPDATE account_usage SET bytes = bytes + 1", "I7", true),
        ("UPDATE rse_usage SET files = files + 1", "I7", true),
        ("UPDATE requests SET state = 'S', dest_rse_id = -1", "I9", false),
        ("INSERT INTO given_up VALUES (-1, -1, 1, 1, 'w', 5)", "I9", false),
    ] {
        for world in World::each() {
            furnished(&world);
            world.change(corruption);
            assert!(found(&world).contains(&law), "{corruption}: {:?}", found(&world));
            if counter {
                world.write(|tx| check::repair(tx, 1));
                world.check();
            }
        }
    }
}

#[test]
fn two_copies_on_one_rse_are_found() {
    // The primary key forbids it, so the table is recreated without one.
    let world = World::sqlite();
    furnished(&world);
    world.change("CREATE TABLE other AS SELECT * FROM locks");
    world.change("INSERT INTO other SELECT * FROM locks");
    world.change("DROP VIEW named_locks");
    world.change("DROP TABLE locks");
    world.change("ALTER TABLE other RENAME TO locks");
    assert!(found(&world).contains(&"I8"));
}

#[test]
fn a_catalog_of_a_newer_version_is_refused() {
    for world in World::each() {
        world.change("INSERT INTO catalog_schema (version) VALUES (999)");
        assert!(matches!(
            Catalog::open_blocking(&world.url),
            Err(CatalogError::NewerSchema { found: 999, .. })
        ));
    }
}

#[test]
fn damaged_columns_and_unknown_states_are_reported_by_name() {
    for world in World::each() {
        world.rse("A");
        world.dataset("ds", 1, 1, "A");
        let rule = world.rule("ds", 1, "A", Grouping::Dataset);
        let failed = || {
            let read = world.catalog.read_blocking(|tx| {
                let rule = read::rule(tx, &rule)?;
                read::locks(tx, &rule, &mut |_| Ok(()))
            });
            read.unwrap_err().to_string()
        };
        world.change("UPDATE locks SET state = 'Z'");
        let error = failed();
        assert!(error.contains("l.state") && error.contains("\"Z\""), "{error}");
        world.change("UPDATE rules SET state = '?'");
        let error = failed();
        assert!(error.contains("r.state") && error.contains("FROM rules"), "{error}");
    }
}
