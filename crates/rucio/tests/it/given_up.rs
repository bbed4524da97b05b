//! Tests of transfers that are cancelled while a worker runs them, on both databases: after any crash
//! or delay every byte on disk has a replica, and no worker removes a file that another has written.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use mainstay_catalog::{Catalog, Daemon, Tx};
use mainstay_rules::api::{Grouping, Micros, NewFile, NewRule};
use mainstay_rules::expression::Rse;
use mainstay_rules::judge::{self, Found, Managed, Pass, Storage};
use mainstay_rules::reap::{Doomed, Needed};
use mainstay_rules::rse::{self, RseSettings};
use mainstay_rules::rule::{Settings, update};
use mainstay_rules::{Class, explain, queue, replica};
use mainstay_transfers::worker::{Queue, Worker};
use mainstay_transfers::{Job, JobProgress, Outcome};
use serde_json::json;

use crate::disks::Disks;
use crate::world::World;

fn set(world: &World, rule: &str, options: &serde_json::Value) {
    let now = world.now();
    world.write(|tx| update::update_rule(tx, rule, options.as_object().unwrap(), now));
}

/// A way to cancel a running transfer without its worker, so that its replica is to be removed.
type Way = (&'static str, fn(&World, &str));

const WAYS: [Way; 6] = [
    ("the rule goes", World::delete),
    ("the rule goes, then the replica", |world, rule| {
        world.delete(rule);
        let now = world.now();
        world.write(|tx| replica::doom(tx, &World::did("f"), "B", now));
    }),
    ("it is stuck by hand", |world, rule| {
        set(world, rule, &json!({"state": "STUCK"}));
        world.delete(rule);
    }),
    ("it is cancelled by hand", |world, rule| {
        set(world, rule, &json!({"state": "STUCK", "cancel_requests": true}));
        world.delete(rule);
    }),
    ("its activity changes", |world, rule| {
        set(world, rule, &json!({"activity": "Express"}));
        world.delete(rule);
    }),
    ("another says it is there", |world, rule| {
        world.succeed(&["f"], "B");
        world.delete(rule);
    }),
];

#[test]
fn leftovers_of_a_killed_worker_are_removed_after_its_lease() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        for (way, give_up) in WAYS {
            for left in [&["draft"][..], &["whole"], &["draft", "whole"]] {
                let case = format!("{way}, {left:?} on {}", world.catalog.backend());
                let new = NewRule { purge_replicas: true, ..World::new_rule("f", 1, "B") };
                let rule = world.add(&new);
                let job = disks.take("killed", 1).remove(0);
                give_up(world, &rule);
                let place = disks.place("B", "f");
                let draft =
                    place.with_file_name(format!(".f.{}-{}.part", job.request, job.attempt));
                let files: Vec<PathBuf> = left
                    .iter()
                    .map(|&left| if left == "draft" { draft.clone() } else { place.clone() })
                    .collect();
                std::fs::create_dir_all(place.parent().unwrap()).unwrap();
                for file in &files {
                    std::fs::write(file, b"content").unwrap();
                }
                disks.reap();
                world.advance(58);
                disks.reap();
                assert!(files.iter().all(|file| file.exists()), "{case}");
                let now = world.now();
                let refused = world.refused(|tx| rse::delete(tx, "B", now));
                assert_eq!(refused, Class::RSEOperationNotSupported, "{case}");
                world.check();
                world.advance(3);
                disks.reap();
                assert!(files.iter().all(|file| !file.exists()), "{case}");
                assert_eq!(world.sql("SELECT COUNT(*) FROM given_up"), 0, "{case}");
                assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1, "{case}");
                disks.check();
            }
        }
    }
}

#[test]
fn a_cancelled_upload_is_removed_after_a_day() {
    for disks in Disks::each() {
        let world = &disks.world;
        for (name, by_hand) in [("deleted", false), ("cancelled", true)] {
            disks.file(name, "B", b"content", Some(b"content"));
            world.change("UPDATE replicas SET state = 'C'");
            let rule = world.rule(name, 1, "B", Grouping::None);
            if by_hand {
                set(world, &rule, &json!({"state": "STUCK", "cancel_requests": true}));
            }
            world.delete(&rule);
            world.advance(86_399);
            disks.reap();
            assert!(disks.place("B", name).exists(), "{name} on {}", world.catalog.backend());
            world.check();
            world.advance(2);
            disks.reap();
            disks.check();
        }
        // A client that reports the upload as arrived has written it.
        disks.file("done", "B", b"content", Some(b"content"));
        world.change("UPDATE replicas SET state = 'C'");
        let new = NewRule { purge_replicas: true, ..World::new_rule("done", 1, "B") };
        let rule = world.add(&new);
        world.succeed(&["done"], "B");
        world.delete(&rule);
        disks.reap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 0);
        disks.check();
    }
}

#[test]
fn the_reaper_stops_waiting_only_when_the_worker_itself_reports() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        for error in [None, Some("the copy was cancelled".to_owned())] {
            let rule = world.rule("f", 1, "B", Grouping::None);
            let job = disks.take("w", 1).remove(0);
            world.delete(&rule);
            if error.is_none() {
                disks.copy(&job).unwrap();
            }
            let earlier = Job { attempt: job.attempt - 1, ..job.clone() };
            for (worker, job) in [("other", &job), ("w", &earlier)] {
                assert_eq!(disks.tell(worker, job, error.clone()), Vec::<i64>::new());
                disks.reap();
                assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 2);
            }
            assert_eq!(disks.tell("w", &job, error.clone()), Vec::<i64>::new());
            disks.reap();
            assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
            disks.check();
        }
    }
}

#[test]
fn a_copy_that_arrives_after_its_replica_is_removed_goes_to_the_reaper() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        world.rse_with("FREE", &free);
        disks.folder_protocol("FREE");
        disks.file("f", "A", b"content", Some(b"content"));
        for to in ["B", "FREE"] {
            let rule = world.rule("f", 1, to, Grouping::None);
            let job = disks.take("late", 1).remove(0);
            world.advance(61);
            world.delete(&rule);
            disks.reap();
            assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
            disks.copy(&job).unwrap();
            // A report on a request that never existed creates no replica.
            let other = Outcome { rse: "C".to_owned(), ..Outcome::of(&job, None) };
            queue::finish_each(&world.catalog, "late", &[other], world.now()).unwrap();
            assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
            for _ in 0..2 {
                assert_eq!(disks.tell("late", &job, None), Vec::<i64>::new());
                assert!(disks.folder(to).join(&job.destination.path).exists());
                assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 2);
                world.check();
            }
            disks.reap();
            assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
            disks.check();
        }
        // If the catalog no longer has the file, the worker removes its copy.
        let rule = world.rule("f", 1, "B", Grouping::None);
        let job = disks.take("late", 1).remove(0);
        world.advance(61);
        disks.copy(&job).unwrap();
        world.delete(&rule);
        world.change("UPDATE replicas SET tombstone = 0");
        disks.reap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM dids"), 0);
        assert_eq!(disks.tell("late", &job, None), [job.request]);
        world.check();
    }
}

/// Storage in which a worker finishes a file right after it was removed.
#[derive(Debug)]
struct Written {
    storage: Managed,
    catalog: Catalog,
    job: Mutex<Option<Job>>,
    place: PathBuf,
    now: Micros,
}

impl Storage for Written {
    fn remove(&self, rse: &Rse, doomed: &Doomed) -> Result<(), String> {
        self.storage.remove(rse, doomed)?;
        if let Some(job) = self.job.lock().unwrap().take() {
            std::fs::write(&self.place, b"content").unwrap();
            let outcome = Outcome::of(&job, None);
            let told = queue::finish_each(&self.catalog, "late", &[outcome], self.now).unwrap();
            assert_eq!(told.unwanted, Vec::<i64>::new());
        }
        Ok(())
    }

    fn look(&self, rse: &Rse, needed: &Needed) -> Result<Found, String> {
        self.storage.look(rse, needed)
    }

    fn is_there(&self, rse: &Rse, needed: &Needed) -> Result<bool, String> {
        self.storage.is_there(rse, needed)
    }
}

#[test]
fn a_copy_that_arrives_during_removal_is_removed_too() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        let rule = world.rule("f", 1, "B", Grouping::None);
        let job = disks.take("late", 1).remove(0);
        world.advance(61);
        disks.copy(&job).unwrap();
        world.delete(&rule);
        let storage = Arc::new(Written {
            storage: Managed(disks.access()),
            catalog: world.catalog.clone(),
            job: Mutex::new(Some(job)),
            place: disks.place("B", "f"),
            now: world.now(),
        });
        let pass = Pass { storage, ..Pass::new(world.now(), world.seed()) };
        judge::pass(&world.catalog, Daemon::Reaper, &world.settings, &pass).unwrap();
        assert!(disks.place("B", "f").exists());
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'B'"), 1);
        world.check();
        disks.reap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
        disks.check();
    }
}

/// Storage in which, before the first file is removed, another reaper removes all of them and one is
/// registered again.
#[derive(Debug)]
struct Overtaken {
    storage: Managed,
    catalog: Catalog,
    settings: Settings,
    again: Mutex<Option<(NewFile, PathBuf)>>,
    now: Micros,
}

impl Storage for Overtaken {
    fn remove(&self, rse: &Rse, doomed: &Doomed) -> Result<(), String> {
        if let Some((file, place)) = self.again.lock().unwrap().take() {
            let storage = Arc::new(self.storage.clone());
            let other = Pass { storage, ..Pass::new(self.now, 1) };
            judge::pass(&self.catalog, Daemon::Reaper, &self.settings, &other).unwrap();
            let files = std::slice::from_ref(&file);
            let add =
                |tx: &mut Tx<'_>| replica::add_replicas(tx, &rse.name, files, "root", self.now);
            self.catalog.write_blocking(add).unwrap();
            std::fs::write(place, b"content").unwrap();
        }
        self.storage.remove(rse, doomed)
    }

    fn look(&self, rse: &Rse, needed: &Needed) -> Result<Found, String> {
        self.storage.look(rse, needed)
    }

    fn is_there(&self, rse: &Rse, needed: &Needed) -> Result<bool, String> {
        self.storage.is_there(rse, needed)
    }
}

#[test]
fn an_overtaken_reaper_removes_no_newer_file() {
    for disks in Disks::each() {
        let world = &disks.world;
        for at in 0..51 {
            disks.file(&format!("f{at}"), "A", b"content", Some(b"content"));
        }
        world.change("UPDATE replicas SET tombstone = 0");
        let (did, path, state) = (World::did("f50"), None, None);
        let file = NewFile { did, bytes: 7, adler32: None, md5: None, path, state };
        let storage = Arc::new(Overtaken {
            storage: Managed(disks.access()),
            catalog: world.catalog.clone(),
            settings: world.settings.clone(),
            again: Mutex::new(Some((file, disks.place("A", "f50")))),
            now: world.now(),
        });
        let pass = Pass { storage, ..Pass::new(world.now(), world.seed()) };
        judge::pass(&world.catalog, Daemon::Reaper, &world.settings, &pass).unwrap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'A'"), 1);
        disks.check();
    }
}

#[test]
fn the_last_copy_stays_while_a_rule_is_stuck_for_it() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        let here = world.rule("f", 1, "A", Grouping::None);
        world.rule("f", 1, "B", Grouping::None);
        // Its transfer failed for good, and the repairer has not run yet.
        world.change("UPDATE locks SET state = 'S' WHERE state = 'R'");
        world.change("DELETE FROM requests");
        world.delete(&here);
        world.change("UPDATE replicas SET tombstone = 0 WHERE lock_cnt = 0");
        disks.reap();
        assert!(disks.place("A", "f").exists(), "on {}", world.catalog.backend());
    }
}

#[test]
fn a_marked_replica_that_is_locked_again_is_checked_and_never_removed() {
    for disks in Disks::each() {
        let world = &disks.world;
        for name in ["kept", "gone"] {
            disks.file(name, "A", b"content", Some(b"content"));
        }
        world.change("UPDATE replicas SET tombstone = 0");
        // Its folder is missing: marked replicas cannot be removed.
        let (folder, away) = (disks.folder("A"), disks.folder("A").with_extension("away"));
        std::fs::rename(&folder, &away).unwrap();
        disks.reap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'B'"), 2);
        for name in ["kept", "gone"] {
            let rule = world.get(&world.rule(name, 1, "A", Grouping::None));
            let why = world.write(|tx| explain::explain(tx, &rule, None, 1));
            let why = &why.copies[0].why;
            assert!(why.contains("marked for removal"), "{why}");
        }
        std::fs::rename(&away, &folder).unwrap();
        std::fs::remove_file(disks.place("A", "gone")).unwrap();
        disks.file("gone", "B", b"content", Some(b"content"));
        disks.reap();
        assert!(disks.place("A", "kept").exists());
        world.advance(61);
        disks.reap();
        let states = |letter: &str| {
            world.sql(&format!("SELECT COUNT(*) FROM replicas WHERE state = '{letter}'"))
        };
        assert_eq!((states("A"), states("U")), (2, 1), "on {}", world.catalog.backend());
        assert_eq!(world.sql("SELECT COUNT(*) FROM rules WHERE state = 'O'"), 1);
        disks.check();
        // A missing file is fetched at once.
        world.judge(Daemon::Repairer);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.sql("SELECT COUNT(*) FROM rules WHERE state = 'O'"), 2);
        disks.check();
    }
}

/// A queue with one file, which delays its answer to the report.
struct Slow {
    catalog: Catalog,
    jobs: Mutex<Vec<Job>>,
    now: Micros,
    told: SyncSender<()>,
    answer: Arc<Mutex<Receiver<()>>>,
}

impl Queue for Slow {
    fn take(&self, _: usize) -> BoxFuture<'_, Result<Vec<Job>, String>> {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        async move { Ok(jobs) }.boxed()
    }

    fn renew(&self, _: Vec<JobProgress>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn finish(&self, outcomes: Vec<Outcome>) -> BoxFuture<'_, Result<Vec<i64>, String>> {
        let (catalog, now) = (self.catalog.clone(), self.now);
        let (told, answer) = (self.told.clone(), Arc::clone(&self.answer));
        let finish = tokio::task::spawn_blocking(move || {
            let finished = queue::finish_each(&catalog, "slow", &outcomes, now).unwrap();
            told.send(()).unwrap();
            answer.lock().unwrap().recv().unwrap();
            finished.unwanted
        });
        async { finish.await.map_err(|error| error.to_string()) }.boxed()
    }

    fn woken(&self) -> BoxFuture<'_, ()> {
        pending().boxed()
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(60)
    }
}

#[test]
fn a_worker_that_lost_its_request_keeps_the_file_of_another_worker() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        for late in [false, true] {
            let rule = world.rule("f", 1, "B", Grouping::None);
            let jobs = Mutex::new(disks.take("slow", 1));
            if late {
                world.advance(61);
            }
            world.delete(&rule);
            disks.reap();
            let (told, hears) = sync_channel(1);
            let (answers, answer) = sync_channel(1);
            let answer = Arc::new(Mutex::new(answer));
            let (catalog, now) = (world.catalog.clone(), world.now());
            let slow = Slow { catalog, jobs, now, told, answer };
            let within = runtime.enter();
            let worker = Worker::start(Arc::new(slow), disks.access(), 1);
            drop(within);
            hears.recv().unwrap();
            // Before the answer, a rule needs the file again and another worker copies it.
            let again = NewRule { purge_replicas: true, ..World::new_rule("f", 1, "B") };
            let again = world.add(&again);
            assert_eq!(disks.work("other"), 1);
            assert_eq!(world.state(&again), "OK 1/0/0");
            answers.send(()).unwrap();
            runtime.block_on(worker.stop());
            assert!(disks.place("B", "f").exists(), "on {}", world.catalog.backend());
            disks.check();
            world.delete(&again);
            disks.reap();
            disks.check();
        }
    }
}
