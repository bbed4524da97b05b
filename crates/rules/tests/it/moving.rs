//! Files that really move, between folders, on either catalog: what goes wrong on the way is seen,
//! what is taken is told, and afterwards every byte on disk belongs to a replica.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64};

use mainstay_rules::api::{Grouping, NewFile, NewRule, SECOND};
use mainstay_rules::catalog::Daemon;
use mainstay_rules::judge::{self, Pass};
use mainstay_rules::protocol::{self, Protocol};
use mainstay_rules::rse::RseSettings;
use mainstay_rules::transfers::copy::{Adding, copy};
use mainstay_rules::transfers::{Held, Job, Outcome, queue};
use mainstay_rules::{replica, rse};
use serde_json::{Value, json};

use crate::world::World;

const LEASE: i64 = 60 * SECOND;

/// A world whose RSEs are folders.
struct Disks {
    world: World,
    root: tempfile::TempDir,
}

impl Disks {
    fn each() -> Vec<Self> {
        let disks = |world: World| {
            let disks = Self { world, root: tempfile::tempdir().unwrap() };
            for name in ["A", "B", "C"] {
                disks.world.rse(name);
                disks.protocol(name);
            }
            disks
        };
        World::each().into_iter().map(disks).collect()
    }

    fn folder(&self, rse: &str) -> PathBuf {
        self.root.path().join(rse)
    }

    fn protocol(&self, rse: &str) {
        std::fs::create_dir_all(self.folder(rse)).unwrap();
        let Value::Object(body) = json!({"prefix": self.folder(rse).display().to_string()}) else {
            unreachable!()
        };
        let new = Protocol::read("file", &body).unwrap();
        self.world.write(|tx| protocol::add(tx, rse, &new));
    }

    fn place(&self, rse: &str, file: &str) -> PathBuf {
        self.folder(rse).join(protocol::hashed_path(&World::did(file)))
    }

    /// Registers a file on an RSE; what lies there is `found`.
    fn file(&self, name: &str, rse: &str, said: &[u8], found: Option<&[u8]>) {
        let mut adding = Adding::new(false);
        adding.add(said);
        let file = NewFile {
            did: World::did(name),
            bytes: said.len() as i64,
            adler32: Some(adding.sums().adler32),
            md5: None,
            path: None,
            state: None,
        };
        let now = self.world.now();
        self.world
            .write(|tx| replica::add_replicas(tx, rse, std::slice::from_ref(&file), "root", now));
        if let Some(found) = found {
            let place = self.place(rse, name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, found).unwrap();
        }
    }

    fn take(&self, worker: &str, most: usize) -> Vec<Job> {
        let (now, settings) = (self.world.now(), &self.world.settings);
        self.world.write(|tx| queue::take(tx, worker, most, LEASE, settings, now))
    }

    fn tell(&self, worker: &str, job: &Job, error: Option<String>) -> Vec<i64> {
        let outcome = Outcome::of(job, error);
        queue::finish_each(&self.world.catalog, worker, &[outcome], self.world.now()).unwrap()
    }

    /// Takes and moves everything that can be, and tells what became of it.
    fn work(&self, worker: &str) -> usize {
        let mut moved = 0;
        loop {
            let jobs = self.take(worker, 10);
            if jobs.is_empty() {
                return moved;
            }
            for job in jobs {
                let done = copy(&job, &AtomicI64::new(0), &AtomicBool::new(false));
                moved += usize::from(done.is_ok());
                self.tell(worker, &job, done.err().map(|error| error.to_string()));
            }
        }
    }

    fn reap(&self) {
        let pass = Pass::new(self.world.now(), self.world.seed());
        judge::pass(&self.world.catalog, Daemon::Reaper, &self.world.settings, &pass).unwrap();
    }

    fn finish(&self) {
        self.world.judge(Daemon::Finisher);
    }

    /// The catalog is right, and what is on disk is what it says: no more, no less.
    fn check(&self) {
        self.world.check();
        let rows = self.world.write(|tx| {
            tx.query("SELECT d.name, r.rse, p.bytes FROM replicas p JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id WHERE p.state = 'A'", &[])
        });
        let said: BTreeMap<PathBuf, u64> = rows
            .iter()
            .map(|row| (self.place(row.text(1), row.text(0)), u64::try_from(row.int(2)).unwrap()))
            .collect();
        let mut found = BTreeMap::new();
        walk(self.root.path(), &mut found);
        assert_eq!(found, said, "on {}", self.world.catalog.backend());
    }
}

fn walk(at: &Path, found: &mut BTreeMap<PathBuf, u64>) {
    for entry in std::fs::read_dir(at).unwrap().flatten() {
        if entry.path().is_dir() {
            walk(&entry.path(), found);
        } else {
            found.insert(entry.path(), entry.metadata().unwrap().len());
        }
    }
}

#[test]
fn a_rule_moves_its_files_and_what_nobody_needs_is_removed() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.collection("ds", mainstay_rules::api::DidType::Dataset);
        let names: Vec<String> = (0..5).map(|at| format!("f{at}")).collect();
        for name in &names {
            disks.file(name, "A", name.as_bytes(), Some(name.as_bytes()));
        }
        world.attach("ds", &names);
        let rule = world.rule("ds", 2, "A|B", Grouping::Dataset);
        assert_eq!(disks.work("w"), 5);
        assert_eq!(world.state(&rule), "OK 10/0/0");
        disks.check();
        world.delete(&rule);
        disks.reap();
        disks.check();
        // What was asked for by a purging rule goes at once, from the disk too.
        let purging = NewRule { purge_replicas: true, ..World::new_rule("ds", 1, "C") };
        let rule = world.add(&purging);
        assert_eq!(disks.work("w"), 5);
        disks.check();
        world.delete(&rule);
        disks.reap();
        assert!(!disks.place("C", "f0").exists());
        disks.check();
    }
}

#[test]
fn sources_that_lie_are_tried_elsewhere_and_then_the_rule_says_why_it_is_stuck() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("good", "A", b"content", Some(b"content"));
        disks.file("cut", "A", b"content", Some(b"con"));
        disks.file("false", "A", b"content", Some(b"CONTENT"));
        disks.file("gone", "A", b"content", None);
        for name in ["good", "cut", "false", "gone"] {
            let rule = world.rule(name, 1, "B", Grouping::None);
            for _ in 0..=world.settings.transfer_retries {
                disks.work("w");
                disks.finish();
                let (settings, now) = (&world.settings, world.now());
                for one in world.write(|tx| queue::show(tx, 10, settings, now)).1 {
                    assert!(one.why.unwrap().contains("at the source A"), "{name}");
                }
                world.advance(3600);
            }
            let (state, error) = (world.state(&rule), world.get(&rule).error.unwrap_or_default());
            let (meant, why) = match name {
                "good" => ("OK 1/0/0", ""),
                "cut" => ("STUCK 0/0/1", "3 bytes instead of 7"),
                "false" => ("STUCK 0/0/1", "adler32"),
                _ => ("STUCK 0/0/1", "is not there"),
            };
            assert_eq!(state, meant, "{name}: {error}");
            assert!(error.contains(why), "{name}: {error}");
        }
        // A second, good source is found by itself on the next try.
        let rule = world.rule("cut", 1, "C", Grouping::None);
        disks.world.change("UPDATE requests SET retry_count = 0");
        disks.work("w");
        disks.finish();
        let now = world.now();
        let file = NewFile {
            did: World::did("cut"),
            bytes: 7,
            adler32: None,
            md5: None,
            path: None,
            state: None,
        };
        world.rse("D");
        disks.protocol("D");
        world.write(|tx| replica::add_replicas(tx, "D", std::slice::from_ref(&file), "root", now));
        let place = disks.place("D", "cut");
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, b"content").unwrap();
        world.advance(3600);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.state(&rule), "OK 1/0/0");
        world.check();
    }
}

#[test]
fn a_worker_that_dies_loses_its_lease_and_nothing_is_copied_twice_or_lost() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("one", "A", b"first", Some(b"first"));
        disks.file("two", "A", b"second", Some(b"second"));
        let (one, two) =
            (world.rule("one", 1, "B", Grouping::None), world.rule("two", 1, "B", Grouping::None));
        // It takes both, finishes one and is killed before it tells, with half of the other there.
        let jobs = disks.take("dead", 10);
        assert_eq!(jobs.len(), 2);
        copy(&jobs[0], &AtomicI64::new(0), &AtomicBool::new(false)).unwrap();
        let place = disks.place("B", &jobs[1].did.name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        let name = place.file_name().unwrap().to_str().unwrap();
        let half = place.with_file_name(format!(".{name}.{}-1.part", jobs[1].request));
        std::fs::write(half, b"sec").unwrap();
        assert_eq!(disks.take("alive", 10), Vec::new(), "the leases last");
        world.advance(61);
        std::fs::remove_file(disks.place("A", &jobs[0].did.name)).unwrap();
        // Without its source the first can only be found, not copied again.
        assert_eq!(disks.work("alive"), 2);
        assert_eq!((world.state(&one), world.state(&two)), ("OK 1/0/0".into(), "OK 1/0/0".into()));
        // What the dead one says now, if it was only slow, changes nothing.
        assert_eq!(disks.tell("dead", &jobs[1], Some("late".to_owned())), Vec::<i64>::new());
        assert_eq!(disks.tell("dead", &jobs[0], None), Vec::<i64>::new());
        assert_eq!(world.state(&two), "OK 1/0/0");
        let restored = disks.place("A", &jobs[0].did.name);
        std::fs::write(restored, if jobs[0].did.name == "one" { "first" } else { "second" })
            .unwrap();
        disks.check();
    }
}

#[test]
fn a_transfer_whose_last_lock_goes_is_given_up_and_leaves_no_file() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        let rule = world.rule("f", 1, "B", Grouping::None);
        let jobs = disks.take("w", 10);
        // Given up in order, it waits again at once, and nothing is held against it.
        let outcome = Outcome { given_up: true, ..Outcome::of(&jobs[0], Some("told".to_owned())) };
        queue::finish_each(&world.catalog, "w", &[outcome], world.now()).unwrap();
        assert_eq!(
            world.sql("SELECT COUNT(*) FROM requests WHERE state = 'Q' AND retry_count = 0"),
            1
        );
        let jobs = disks.take("w", 10);
        assert_eq!(jobs[0].attempt, 2);
        let held = Held { request: jobs[0].request, attempt: jobs[0].attempt, moved: 3 };
        let now = world.now();
        assert_eq!(world.write(|tx| queue::renew(tx, "w", &[held], LEASE, now)), Vec::<i64>::new());
        world.delete(&rule);
        disks.reap();
        // The lease is gone; a worker that was past asking has written its file already.
        assert_eq!(world.write(|tx| queue::renew(tx, "w", &[held], LEASE, now)), [held.request]);
        copy(&jobs[0], &AtomicI64::new(0), &AtomicBool::new(false)).unwrap();
        assert_eq!(disks.tell("w", &jobs[0], None), [jobs[0].request]);
        std::fs::remove_file(disks.place("B", "f")).unwrap();
        disks.check();
    }
}

#[test]
fn what_is_urgent_near_and_allowed_goes_first() {
    for disks in Disks::each() {
        let world = &disks.world;
        for (at, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            disks.file(name, "A", name.as_bytes(), Some(name.as_bytes()));
            let priority = if name == "c" { 5 } else { 3 };
            world.add(&NewRule { priority, ..World::new_rule(name, 1, "C") });
            if at == 3 {
                let now = world.now();
                let file = NewFile {
                    did: World::did(name),
                    bytes: 1,
                    adler32: None,
                    md5: None,
                    path: None,
                    state: None,
                };
                world.write(|tx| {
                    replica::add_replicas(tx, "B", std::slice::from_ref(&file), "root", now)
                });
            }
        }
        world.write(|tx| rse::set_distance(tx, "A", "C", 5));
        world.write(|tx| rse::set_distance(tx, "B", "C", 1));
        world.change("INSERT INTO transfer_limits (rse_expression, activity, direction, max_transfers) VALUES ('C', '', 'DESTINATION', 3)");
        let first = disks.take("w", 1);
        assert_eq!(first[0].did.name, "c", "the most urgent");
        let more = disks.take("w", 10);
        assert_eq!(more.len(), 2, "three at once to C");
        let (settings, now) = (&world.settings, world.now());
        let (moving, waiting) = world.write(|tx| queue::show(tx, 10, settings, now));
        assert_eq!((moving.len(), waiting.len()), (3, 1));
        assert!(waiting[0].why.as_ref().unwrap().contains("3 transfers to C run already"));
        for job in first.iter().chain(&more) {
            copy(job, &AtomicI64::new(0), &AtomicBool::new(false)).unwrap();
            disks.tell("w", job, None);
        }
        let last = disks.take("w", 10);
        assert_eq!(
            (last[0].did.name.as_str(), last[0].source.rse.as_str()),
            ("d", "B"),
            "the nearest"
        );
        // A closed RSE and one nobody can reach are said to be the reason.
        world.rse("FAR");
        world.rule("a", 1, "FAR", Grouping::None);
        let now = world.now();
        let (_, waiting) = world.write(|tx| queue::show(tx, 10, settings, now));
        let why: BTreeSet<String> = waiting.into_iter().filter_map(|one| one.why).collect();
        assert!(why.iter().any(|why| why.contains("FAR has no protocol")), "{why:?}");
    }
}

#[test]
fn where_names_are_free_the_catalog_knows_where_a_file_went() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        world.rse_with("FREE", &free);
        disks.protocol("FREE");
        disks.file("f", "A", b"x", Some(b"x"));
        let rule = world.rule("f", 1, "FREE", Grouping::None);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.state(&rule), "OK 1/0/0");
        let path = world.replica("f", "FREE").path.unwrap();
        assert!(disks.folder("FREE").join(path).exists());
        disks.check();
    }
}

#[test]
fn a_file_without_any_replica_makes_its_rule_stuck() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"x", Some(b"x"));
        let rule = world.rule("f", 1, "B", Grouping::None);
        world.change("UPDATE replicas SET state = 'T' WHERE state = 'A'");
        assert_eq!(disks.work("w"), 0);
        disks.finish();
        assert_eq!(world.state(&rule), "STUCK 0/0/1");
        assert!(world.get(&rule).error.unwrap().contains("no replica to copy from"));
        world.check();
    }
}
