//! Tests of copies between folders, on both databases: every failure is detected and reported, and
//! afterwards every byte on disk belongs to a replica.

use std::collections::BTreeSet;

use mainstay_rules::api::{Grouping, NewFile, NewRule};
use mainstay_rules::rse::{self, RseSettings};
use mainstay_rules::{Class, explain, protocol, queue, replica};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::SupportedProtocols;
use mainstay_transfers::{Job, JobProgress, Outcome};
use serde_json::json;

use crate::disks::{Disks, LEASE};
use crate::world::World;

#[test]
fn a_rule_copies_its_files_and_unneeded_ones_are_removed() {
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
        // Replicas of a purging rule are removed at once, from the disk too.
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
fn bad_sources_are_replaced_and_then_the_rule_explains_why_it_is_stuck() {
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
                    assert!(one.why.unwrap().contains("source A: "), "{name}");
                }
                world.advance(3600);
            }
            let (state, error) = (world.state(&rule), world.get(&rule).error.unwrap_or_default());
            let (meant, why) = match name {
                "good" => ("OK 1/0/0", ""),
                "cut" => ("STUCK 0/0/1", "size is 3 bytes, expected 7"),
                "false" => ("STUCK 0/0/1", "adler32"),
                _ => ("STUCK 0/0/1", "is not there"),
            };
            assert_eq!(state, meant, "{name}: {error}");
            assert!(error.contains(why), "{name}: {error}");
        }
        // The next attempt uses a second, good source.
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
        disks.folder_rse("D");
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
fn a_dead_worker_loses_its_lease_and_no_file_is_copied_twice_or_lost() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("one", "A", b"first", Some(b"first"));
        disks.file("two", "A", b"second", Some(b"second"));
        let (one, two) =
            (world.rule("one", 1, "B", Grouping::None), world.rule("two", 1, "B", Grouping::None));
        // The worker takes both, finishes one and half of the other, and is killed before it reports.
        let jobs = disks.take("dead", 10);
        assert_eq!(jobs.len(), 2);
        disks.copy(&jobs[0]).unwrap();
        let place = disks.place("B", &jobs[1].did.name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        let name = place.file_name().unwrap().to_str().unwrap();
        let half = place.with_file_name(format!(".{name}.{}-1.part", jobs[1].request));
        std::fs::write(half, b"sec").unwrap();
        assert_eq!(disks.take("alive", 10), Vec::new(), "the leases last");
        world.advance(61);
        std::fs::remove_file(disks.place("A", &jobs[0].did.name)).unwrap();
        // Without its source the first file can only be found, not copied again.
        assert_eq!(disks.work("alive"), 2);
        assert_eq!((world.state(&one), world.state(&two)), ("OK 1/0/0".into(), "OK 1/0/0".into()));
        // A late report of the first worker changes nothing.
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
fn a_transfer_without_locks_is_cancelled_and_leaves_no_file() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        let rule = world.rule("f", 1, "B", Grouping::None);
        let jobs = disks.take("w", 10);
        // A request that its worker returns waits again at once, without a retry penalty.
        let outcome = Outcome { given_up: true, ..Outcome::of(&jobs[0], Some("told".to_owned())) };
        queue::finish_each(&world.catalog, "w", &[outcome], world.now()).unwrap();
        assert_eq!(
            world.sql("SELECT COUNT(*) FROM requests WHERE state = 'Q' AND retry_count = 0"),
            1
        );
        let jobs = disks.take("w", 10);
        assert_eq!(jobs[0].attempt, 2);
        let held = JobProgress { request: jobs[0].request, attempt: jobs[0].attempt, moved: 3 };
        let now = world.now();
        assert_eq!(world.write(|tx| queue::renew(tx, "w", &[held], LEASE, now)), Vec::<i64>::new());
        world.delete(&rule);
        disks.reap();
        // The lease is gone, but the worker has written its file already.
        assert_eq!(world.write(|tx| queue::renew(tx, "w", &[held], LEASE, now)), [held.request]);
        disks.copy(&jobs[0]).unwrap();
        assert_eq!(disks.tell("w", &jobs[0], None), Vec::<i64>::new());
        disks.reap();
        disks.check();
    }
}

#[test]
fn priority_distance_and_availability_order_the_transfers() {
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
            disks.copy(job).unwrap();
            disks.tell("w", job, None);
        }
        let last = disks.take("w", 10);
        assert_eq!(
            (last[0].did.name.as_str(), last[0].source.rse.as_str()),
            ("d", "B"),
            "the nearest"
        );
        // A closed and an unreachable RSE are named as the reason.
        world.rse("FAR");
        world.rule("a", 1, "FAR", Grouping::None);
        let now = world.now();
        let (_, waiting) = world.write(|tx| queue::show(tx, 10, settings, now));
        let why: BTreeSet<String> = waiting.into_iter().filter_map(|one| one.why).collect();
        assert!(why.iter().any(|why| why.contains("FAR has no protocol")), "{why:?}");
    }
}

#[test]
fn unreachable_requests_hide_no_others_and_priority_holds_across_destinations() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.rse("FAR");
        world.limit("root", "FAR", -1);
        for at in 0..300 {
            let name = format!("far{at}");
            disks.file(&name, "A", b"x", Some(b"x"));
            world.add(&NewRule { priority: 5, ..World::new_rule(&name, 1, "FAR") });
        }
        for (name, to, priority, activity) in [
            ("slow", "B", 1, "User Subscriptions"),
            ("urgent", "C", 4, "User Subscriptions"),
            ("second", "B", 3, "User Subscriptions"),
            ("other", "C", 1, "Express"),
        ] {
            disks.file(name, "A", name.as_bytes(), Some(name.as_bytes()));
            let activity = activity.to_owned();
            world.add(&NewRule { priority, activity, ..World::new_rule(name, 1, to) });
        }
        // Four shares of five are for Express, but it has only one.
        let names = |most: usize| -> Vec<String> {
            disks.take("w", most).into_iter().map(|job| job.did.name).collect()
        };
        assert_eq!(names(2), ["other", "urgent"]);
        assert_eq!(names(1), ["second"]);
        assert_eq!(names(10), ["slow"]);
        assert_eq!(names(10), Vec::<String>::new());
    }
}

#[test]
fn the_catalog_records_paths_on_nondeterministic_rses() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        disks.world.rse_with("FREE", &free);
        disks.folder_protocol("FREE");
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

#[test]
fn an_upload_is_a_transfer_of_its_client_and_an_abandoned_one_is_detected() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("done", "A", b"content", Some(b"content"));
        disks.file("died", "A", b"content", None);
        disks.file("elsewhere", "A", b"content", None);
        disks.file("elsewhere", "C", b"content", Some(b"content"));
        // Clients register a file before they upload it, and lock it at once.
        world.change(
            "UPDATE replicas SET state = 'C' WHERE rse_id = (SELECT id FROM rses WHERE rse = 'A')",
        );
        let names = ["done", "died", "elsewhere"];
        let rules = names.map(|name| world.rule(name, 1, "A", Grouping::None));
        // A second rule waits for the same copy.
        let second =
            world.add(&NewRule { account: "root".to_owned(), ..World::new_rule("died", 1, "A") });
        world.check();
        assert_eq!(world.state(&rules[0]), "REPLICATING 0/1/0");
        let (settings, now) = (&world.settings, world.now());
        let moving = world.write(|tx| queue::show(tx, 10, settings, now)).0;
        assert_eq!(moving.len(), 3, "{moving:?}");
        assert!(moving.iter().all(|one| one.worker.as_deref() == Some("upload")));
        world.succeed(&["done"], "A");
        assert_eq!(world.state(&rules[0]), "OK 1/0/0");
        assert_eq!(disks.work("w"), 0, "they are the client's");
        world.advance(86_401);
        assert_eq!(disks.work("w"), 1, "one is fetched from where it is");
        disks.finish();
        assert_eq!(world.state(&rules[2]), "OK 1/0/0");
        for rule in [&rules[1], &second] {
            assert_eq!(world.state(rule), "STUCK 0/0/1");
            assert!(world.get(rule).error.unwrap().contains("no replica to copy from"));
        }
        disks.check();
    }
}

#[test]
fn blocked_requests_do_not_delay_others() {
    let express = |name: &str, to: &str| NewRule {
        activity: "Express".to_owned(),
        ..World::new_rule(name, 1, to)
    };
    for disks in Disks::each() {
        let world = &disks.world;
        disks.folder_rse("D");
        world.limit("root", "D", -1);
        world.change("INSERT INTO transfer_limits (rse_expression, activity, direction, max_transfers) VALUES ('C', '', 'DESTINATION', 0)");
        world.change("UPDATE rses SET availability_read = 0 WHERE rse = 'D'");
        world.change("UPDATE versions SET value = value + 1 WHERE name = 'rses'");
        for at in 0..30 {
            // To an RSE whose limit is reached, and from one that is closed for reading.
            let [full, urgent, unread] =
                ["full", "urgent", "unread"].map(|name| format!("{name}{at}"));
            disks.file(&full, "A", b"x", Some(b"x"));
            disks.file(&urgent, "A", b"x", Some(b"x"));
            disks.file(&unread, "D", b"x", Some(b"x"));
            world.add(&World::new_rule(&full, 1, "C"));
            world.add(&express(&urgent, "C"));
            world.add(&World::new_rule(&unread, 1, "B"));
        }
        disks.file("free", "A", b"x", Some(b"x"));
        world.add(&World::new_rule("free", 1, "B"));
        let names = |most: usize| -> Vec<String> {
            disks.take("w", most).into_iter().map(|job| job.did.name).collect()
        };
        assert_eq!(names(1), ["free"], "on {}", world.catalog.backend());
        assert_eq!(names(5), Vec::<String>::new());
    }
}

#[test]
fn a_report_counts_only_for_the_request_of_the_file_it_names() {
    for disks in Disks::each() {
        let world = &disks.world;
        for name in ["one", "two"] {
            disks.file(name, "A", b"x", Some(b"x"));
        }
        let first = world.rule("one", 1, "B", Grouping::None);
        let held = disks.take("w", 10).remove(0);
        let say = |job: &Job, did: &str, rse: &str| {
            let said =
                Outcome { did: World::did(did), rse: rse.to_owned(), ..Outcome::of(job, None) };
            queue::finish_each(&world.catalog, "w", &[said], world.now()).unwrap()
        };
        for (did, rse) in [("two", "B"), ("one", "C"), ("nosuch", "B"), ("one", "NOWHERE")] {
            assert_eq!(say(&held, did, rse).lost, [held.request], "{did} {rse}");
            assert_eq!(world.state(&first), "REPLICATING 0/1/0");
        }
        // The id of a deleted request is not used again.
        world.delete(&first);
        let second = world.rule("two", 1, "B", Grouping::None);
        let next = disks.take("w", 10).remove(0);
        assert_ne!(next.request, held.request, "on {}", world.catalog.backend());
        assert_eq!(say(&held, "one", "B").lost, [held.request]);
        assert_eq!(world.state(&second), "REPLICATING 0/1/0");
        disks.copy(&next).unwrap();
        assert_eq!(say(&next, "two", "B"), queue::Finished::default());
        assert_eq!(world.state(&second), "OK 1/0/0");
    }
}

#[test]
fn the_reaper_keeps_shared_files_and_replicas_whose_folder_is_missing() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        world.rse_with("FREE", &free);
        disks.folder_protocol("FREE");
        for name in ["kept", "doomed"] {
            disks.file(name, "FREE", b"x", None);
        }
        world.change("UPDATE replicas SET path = 'both'");
        let file = disks.folder("FREE").join("both");
        std::fs::write(&file, b"x").unwrap();
        let doom = |name: &str| {
            world.change(&format!(
                "UPDATE replicas SET tombstone = 0 WHERE did_id = (SELECT id FROM dids WHERE name = '{name}')"
            ));
            disks.reap();
            world.sql(&format!(
                "SELECT COUNT(*) FROM replicas p JOIN dids d ON d.id = p.did_id WHERE d.name = '{name}'"
            ))
        };
        assert_eq!(doom("doomed"), 0);
        assert!(file.exists());
        let away = disks.folder("FREE").with_file_name("away");
        std::fs::rename(disks.folder("FREE"), &away).unwrap();
        assert_eq!(doom("kept"), 1, "its disk is not mounted");
        assert!(!disks.folder("FREE").exists());
        std::fs::rename(&away, disks.folder("FREE")).unwrap();
        assert_eq!(doom("kept"), 0);
        assert!(!file.exists());
    }
}

#[test]
fn a_transfer_that_cannot_start_shows_the_reason() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        world.rse_with("FREE", &free);
        disks.folder_protocol("FREE");
        disks.file("f", "FREE", b"x", None);
        let rule = world.rule("f", 1, "B", Grouping::None);
        assert_eq!(disks.take("w", 10), Vec::new());
        let (settings, now) = (&world.settings, world.now());
        let (_, waiting) = world.write(|tx| queue::show(tx, 10, settings, now));
        let why = waiting[0].why.clone().unwrap();
        assert!(why.contains("on FREE is not known: the RSE is not deterministic"), "{why}");
        // A missing destination folder fails and is not created.
        world.change("UPDATE replicas SET path = 'there' WHERE path IS NULL AND state = 'A'");
        std::fs::write(disks.folder("FREE").join("there"), b"x").unwrap();
        std::fs::remove_dir(disks.folder("B")).unwrap();
        assert_eq!(disks.work("w"), 0);
        assert!(!disks.folder("B").exists());
        std::fs::create_dir(disks.folder("B")).unwrap();
        disks.finish();
        world.advance(3600);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.state(&rule), "OK 1/0/0");
    }
}

#[test]
fn a_transfer_tool_takes_only_requests_it_can_reach() {
    for disks in Disks::each() {
        let world = &disks.world;
        for rse in ["FAR", "FARTHER"] {
            world.rse(rse);
            world.limit("root", rse, -1);
            let body = json!({"hostname": "xr.example.org", "port": 1094, "prefix": "/data"});
            let new = Protocol::read("root", body.as_object().unwrap()).unwrap();
            world.write(|tx| protocol::add(tx, rse, &new));
        }
        disks.file("f", "FAR", b"x", None);
        let far = world.rule("f", 1, "FARTHER", Grouping::None);
        let near = world.rule("f", 1, "B", Grouping::None);
        assert_eq!(disks.take("ours", 10), Vec::new());
        let by = |schemes: &[&str]| {
            let schemes = schemes.iter().map(|&scheme| scheme.to_owned()).collect();
            disks.take_by("tool", 10, SupportedProtocols::Schemes(schemes))
        };
        assert_eq!(by(&["gsiftp"]), Vec::new());
        let jobs = by(&["root"]);
        let reached: Vec<&str> = jobs.iter().map(|job| job.destination.rse.as_str()).collect();
        assert_eq!(reached, ["FARTHER"]);
        assert!(disks.tell("tool", &jobs[0], None).is_empty());
        assert_eq!(
            (world.state(&far), world.state(&near)),
            ("OK 1/0/0".into(), "REPLICATING 0/1/0".into())
        );
        let both = by(&["root", "file"]);
        assert_eq!(both[0].destination.rse, "B");
        assert_eq!(both[0].source.protocol.scheme, "root");
    }
}

#[test]
fn no_two_files_are_at_the_same_path() {
    for disks in Disks::each() {
        let world = &disks.world;
        let free = RseSettings { deterministic: false, ..RseSettings::default() };
        world.rse_with("FREE", &free);
        world.rse_with("OTHER", &free);
        let at = |name: &str, path: &str| NewFile {
            did: World::did(name),
            bytes: 1,
            adler32: None,
            md5: None,
            path: Some(path.to_owned()),
            state: None,
        };
        let now = world.now();
        let register = |rse: &str, files: &[NewFile]| {
            let done = world
                .catalog
                .write_blocking(|tx| replica::add_replicas(tx, rse, files, "root", now));
            done.map_err(|error| error.to_string())
        };
        register("FREE", &[at("one", "x/one")]).unwrap();
        register("FREE", &[at("one", "x/one")]).unwrap();
        register("OTHER", &[at("two", "x/one")]).unwrap();
        let taken = register("FREE", &[at("three", "y"), at("two", "x/one")]).unwrap_err();
        assert!(taken.contains("'x/one'") && taken.contains("one'"), "{taken}");
        assert!(register("FREE", &[at("four", "z"), at("five", "z")]).is_err());
        register("FREE", &[at("three", "y"), at("four", "z")]).unwrap();
        world.check();
    }
}

#[test]
fn failed_requests_are_listed_as_waiting_until_the_finisher_runs() {
    for disks in Disks::each() {
        let world = &disks.world;
        for name in ["a", "b"] {
            disks.file(name, "A", b"x", Some(b"x"));
            world.rule(name, 1, "B", Grouping::None);
        }
        let job = disks.take("w", 1).remove(0);
        disks.tell("w", &job, Some("the disk is full".to_owned()));
        let settings = &world.settings;
        let shown = |most: i64| {
            let now = world.now();
            let (moving, waiting) = world.write(|tx| queue::show(tx, most, settings, now));
            assert_eq!(moving, []);
            waiting
        };
        for (most, names) in [(0, 0), (1, 1), (10, 2)] {
            assert_eq!(shown(most).len(), names);
        }
        let first = shown(1).remove(0);
        let why = "it failed (the disk is full) and waits to be judged";
        assert_eq!((first.did, first.why.as_deref()), (job.did, Some(why)));
        assert_eq!((first.source.as_deref(), first.destination.as_str()), (Some("A"), "B"));
        assert_eq!(first.error.as_deref(), Some("the disk is full"));
        disks.finish();
        assert!(shown(10).iter().all(|one| !one.why.as_ref().unwrap().contains("judged")));
    }
}

#[test]
fn a_name_without_a_valid_path_is_refused_or_shown_as_the_reason() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.rse("PAPER");
        let file = |name: &str| NewFile {
            did: World::did(name),
            bytes: 1,
            adler32: None,
            md5: None,
            path: None,
            state: None,
        };
        let now = world.now();
        for name in ["a/", "a//b"] {
            let files = [file("right"), file(name)];
            let class = world.refused(|tx| replica::add_replicas(tx, "A", &files, "root", now));
            assert_eq!(class, Class::InvalidPath, "{name}");
            world.files(&[name.to_owned()], 1, "PAPER");
            let uuid = world.rule(name, 1, "B", Grouping::None);
            disks.folder_protocol("PAPER");
            assert_eq!(disks.take("w", 10), []);
            let (settings, now) = (&world.settings, world.now());
            let (_, waiting) = world.write(|tx| queue::show(tx, 10, settings, now));
            let rule = world.get(&uuid);
            let why = world.write(|tx| explain::explain(tx, &rule, None, 10));
            for said in [waiting[0].why.as_ref().unwrap(), &why.copies[0].why] {
                assert!(said.contains("has no place in storage"), "{name}: {said}");
            }
            world.delete(&uuid);
            let way = protocol::Which { scheme: "file".to_owned(), ..protocol::Which::default() };
            world.write(|tx| protocol::delete(tx, "PAPER", &way));
        }
    }
}
