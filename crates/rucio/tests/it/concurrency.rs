//! Tests of concurrent sessions, some of them with a database that is killed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use mainstay_catalog::private_postgres::PrivatePostgres;
use mainstay_catalog::{Catalog, Daemon};
use mainstay_rules::api::{DidType, Grouping, NewRule};
use mainstay_rules::did::{self, Child};
use mainstay_rules::judge::{self, Pass};
use mainstay_rules::rule::{add, delete, transfer};
use mainstay_rules::{Error, Settings, check};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::world::{START, World, postgres};

/// Attaches a file while the transaction that makes a rule is open, and returns the file's locks. With
/// row locks the attachment waits and gets its locks; without them they are lost.
fn race(world: &World, leave_unlocked: bool) -> i64 {
    world.f4();
    world.dataset("ds", 2, 1, "R1");
    world.judge(Daemon::Evaluator);
    world.files(&["late".to_owned()], 1, "R1");
    let (made, wait_made) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let wait_go = std::sync::Mutex::new(wait_go);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let new = World::new_rule("ds", 1, "R1");
            world
                .catalog
                .write_blocking(|tx| -> mainstay_rules::Result<()> {
                    if leave_unlocked {
                        tx.leave_dids_unlocked();
                    }
                    let mut rng = SmallRng::seed_from_u64(1);
                    add::add_replication_rule(tx, &new, &Settings::default(), &mut rng, START)?;
                    made.send(()).unwrap();
                    wait_go.lock().unwrap().recv().unwrap();
                    Ok(())
                })
                .unwrap();
        });
        wait_made.recv().unwrap();
        let attached = scope.spawn(|| {
            world.attach("ds", &["late".to_owned()]);
            world.judge(Daemon::Evaluator);
        });
        // Wait until the attachment waits for our lock, or is done.
        loop {
            if attached.is_finished() {
                break;
            }
            let waiting = world.catalog.read_blocking(|tx| {
                tx.number("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND state = 'active'
                    AND query LIKE '%FOR UPDATE%' AND pid IN (SELECT pid FROM pg_locks WHERE NOT granted)", &[])
            });
            if waiting.unwrap() > 0 {
                break;
            }
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        attached.join().unwrap();
    });
    world.judge(Daemon::Evaluator);
    world.locks_of("late")
}

#[test]
fn a_file_attached_while_a_rule_is_made_gets_its_locks() {
    // A separate server: lock waits of other tests would be counted too.
    if postgres().is_none() {
        return;
    }
    let server = PrivatePostgres::start(&["fsync=off"]).unwrap();
    let world = World::on(&server);
    assert_eq!(race(&world, false), 1);
    world.check();
    let without = World::on(&server);
    assert_eq!(race(&without, true), 0, "the race is real: without the row lock the file is lost");
}

/// One session that runs random operations on overlapping trees.
fn session(catalog: &Catalog, seed: u64, steps: usize, settings: &Settings) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut rules: Vec<String> = Vec::new();
    for step in 0..steps {
        let now = START + (seed as i64) * 1_000 + step as i64;
        let dataset = format!("d{}", rng.random_range(0..4));
        let file = World::did(&format!("f{}", rng.random_range(0..40)));
        let inner = rng.random::<u64>();
        let done = match rng.random_range(0..8) {
            0 | 1 => {
                let name = if rng.random_range(0..3) == 0 { "c".to_owned() } else { dataset };
                let grouping =
                    [Grouping::All, Grouping::Dataset, Grouping::None][rng.random_range(0..3)];
                let copies = rng.random_range(1..3);
                let new = NewRule {
                    grouping,
                    comment: Some(format!("{seed}-{step}")),
                    ..World::new_rule(&name, copies, "T1|T2")
                };
                catalog
                    .write_blocking(|tx| {
                        add::add_replication_rule(
                            tx,
                            &new,
                            settings,
                            &mut SmallRng::seed_from_u64(inner),
                            now,
                        )
                    })
                    .map(|made| rules.extend(made))
            }
            2 if !rules.is_empty() => {
                let uuid = rules.swap_remove(rng.random_range(0..rules.len()));
                catalog
                    .write_blocking(|tx| {
                        delete::delete_replication_rule(tx, &uuid, None, settings, now)
                    })
                    .map(drop)
            }
            3 => catalog
                .write_blocking(|tx| {
                    did::attach_identifier(
                        tx,
                        &World::did(&dataset),
                        &[Child::named(file.clone())],
                        true,
                        now,
                    )
                })
                .map(drop),
            4 => catalog.write_blocking(|tx| {
                did::detach_identifier(tx, &World::did(&dataset), std::slice::from_ref(&file), now)
            }),
            5 | 6 => finish(catalog, inner, now),
            _ => {
                judge::pass(catalog, Daemon::Evaluator, settings, &Pass::new(now, inner)).map(drop)
            }
        };
        match done {
            Ok(()) | Err(Error::Refused(_)) => {}
            // A database that recovers for longer than a request waits has changed nothing.
            Err(Error::Catalog(mainstay_catalog::Error::Unavailable(_))) => {}
            Err(error) => panic!("session {seed}, step {step}: {error}"),
        }
    }
}

/// Ends some transfers, with success or failure.
fn finish(catalog: &Catalog, seed: u64, now: i64) -> mainstay_rules::Result<()> {
    let units: Vec<(i64, i64)> = catalog.read_blocking(|tx| -> mainstay_rules::Result<_> {
        let rows = tx.query(
            "SELECT did_id, dest_rse_id FROM requests ORDER BY (id * 7919) % 104729 LIMIT 6",
            &[],
        )?;
        rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
    })?;
    catalog.write_blocking(|tx| match seed % 3 {
        0 => transfer::failed_transfer(tx, &units, "no luck", None, now),
        _ => transfer::successful_transfer(tx, &units, now),
    })
}

fn furnish(world: &World) {
    world.f4();
    world.collection("c", DidType::Container);
    let files: Vec<String> = (0..40).map(|at| format!("f{at}")).collect();
    world.files(&files, 10, "R3");
    for at in 0..4 {
        let name = format!("d{at}");
        world.collection(&name, DidType::Dataset);
        world.attach(&name, &files[at * 8..at * 8 + 12]);
        world.attach("c", &[name]);
    }
}

fn settle(world: &World) {
    while world.judge(Daemon::Evaluator).more {}
    let found = world.catalog.read_blocking(|tx| check::check(tx, 5)).unwrap();
    assert_eq!(found, Vec::new(), "on {}", world.catalog.backend());
}

#[test]
fn concurrent_sessions_never_deadlock_and_keep_the_catalog_consistent() {
    for world in World::each() {
        furnish(&world);
        let steps = if world.catalog.backend() == "sqlite" { 20 } else { 40 };
        std::thread::scope(|scope| {
            for seed in 0..6 {
                let (catalog, settings) = (world.catalog.clone(), world.settings.clone());
                scope.spawn(move || session(&catalog, seed, steps, &settings));
            }
        });
        assert_eq!(world.catalog.retries().1, 0, "a deadlock on {}", world.catalog.backend());
        settle(&world);
    }
}

#[test]
fn a_killed_database_loses_no_acknowledged_change() {
    if postgres().is_none() {
        return;
    }
    let mut server = PrivatePostgres::start(&["max_connections=100"]).unwrap();
    let world = World::on(&server);
    furnish(&world);
    let (over, crashes) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..4)
            .map(|seed| {
                let (catalog, settings) = (world.catalog.clone(), world.settings.clone());
                scope.spawn(move || session(&catalog, 100 + seed, 30, &settings))
            })
            .collect();
        scope.spawn(|| {
            // Crash again only after clients have retried, so that each crash takes effect.
            while !over.load(Ordering::Acquire) && crashes.load(Ordering::Relaxed) < 3 {
                let before = world.catalog.retries().0;
                server.crash().unwrap();
                crashes.fetch_add(1, Ordering::Relaxed);
                while world.catalog.retries().0 <= before + 3 && !over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
        });
        let ended: Vec<_> = sessions.into_iter().map(|session| session.join()).collect();
        over.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(crashes.load(Ordering::Relaxed) > 0);
    assert_eq!(world.catalog.retries().1, 0, "a deadlock");
    settle(&world);
}

#[test]
fn two_rules_cannot_both_use_the_rest_of_a_quota() {
    for world in World::each() {
        world.rse("R1");
        world.limit("alice", "R1", 250);
        for name in ["a", "b", "c", "d"] {
            world.dataset(name, 2, 100, "R1");
        }
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let (world, made) = (&world, &made);
                scope.spawn(move || {
                    let rule =
                        NewRule { account: "alice".to_owned(), ..World::new_rule(name, 1, "R1") };
                    made.fetch_add(usize::from(world.try_add(&rule).is_ok()), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert_eq!(world.usage("alice", "R1"), (2, 200));
        world.judge(Daemon::Evaluator);
        world.check();
    }
}
