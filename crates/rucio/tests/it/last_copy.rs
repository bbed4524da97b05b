//! Tests that the last good copy of a file stays as long as a rule needs one, on both databases,
//! whatever was decided earlier about it or found later about the others.

use mainstay_catalog::Daemon;
use mainstay_rules::api::{DidType, Grouping, NewRule};
use mainstay_rules::{explain, replica};
use mainstay_transfers::credential::Credentials;
use serde_json::json;

use crate::disks::Disks;
use crate::world::World;

/// Lets the reaper mark unlocked replicas without removing them: their folder is missing meanwhile.
fn mark_only(disks: &Disks, rse: &str) {
    disks.world.change("UPDATE replicas SET tombstone = 0 WHERE lock_cnt = 0");
    let (folder, away) = (disks.folder(rse), disks.folder(rse).with_extension("away"));
    std::fs::rename(&folder, &away).unwrap();
    disks.reap();
    std::fs::rename(&away, &folder).unwrap();
}

#[test]
fn a_marked_last_copy_is_copied_before_it_is_removed() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        mark_only(&disks, "A");
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'B'"), 1);
        let rule = world.rule("f", 1, "B", Grouping::None);
        // The request is not cancelled for lack of a source.
        assert_eq!(disks.work("w"), 0);
        disks.finish();
        assert_eq!(world.state(&rule), "REPLICATING 0/1/0", "on {}", world.catalog.backend());
        disks.reap();
        assert!(disks.place("A", "f").exists(), "on {}", world.catalog.backend());
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.state(&rule), "OK 1/0/0");
        disks.reap();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
        disks.check();
    }
}

#[test]
fn a_marked_copy_that_is_damaged_is_reported() {
    for disks in Disks::each() {
        let world = &disks.world;
        for (name, found, said) in [
            ("gone", None, "there is no replica to copy from"),
            ("damaged", Some(&b"CONTENT"[..]), "source A: adler32 checksum is"),
        ] {
            disks.file(name, "A", b"content", found);
            mark_only(&disks, "A");
            let rule = world.rule(name, 1, "B", Grouping::None);
            assert_eq!(disks.work("w"), 0);
            disks.reap();
            for _ in 0..4 {
                assert_eq!(disks.work("w"), 0);
                disks.finish();
                world.advance(300);
            }
            let case = format!("{name} on {}", world.catalog.backend());
            assert_eq!(world.state(&rule), "STUCK 0/0/1", "{case}");
            let why = world.get(&rule).error.unwrap_or_default();
            assert!(why.contains(said), "{case}: {why}");
            disks.reap();
            assert_eq!(disks.place("A", name).exists(), found.is_some(), "{case}");
            world.check();
        }
    }
}

/// A file that is locked on A, whose storage holds `found`, and that has a good, unlocked copy on B. A
/// rule wants it on C, and the first attempt, from A, has failed. Returns the two rules.
fn tried_in_vain(disks: &Disks, name: &str, found: Option<&[u8]>) -> (String, String) {
    let world = &disks.world;
    disks.file(name, "A", b"content", found);
    disks.file(name, "B", b"content", Some(b"content"));
    let locked = world.rule(name, 1, "A", Grouping::None);
    let wanted = world.rule(name, 1, "C", Grouping::None);
    world.change("UPDATE replicas SET tombstone = 0 WHERE lock_cnt = 0");
    let job = disks.take("w", 1).remove(0);
    assert_eq!(job.source.rse, "A");
    let done = disks.copy(&job);
    assert!(done.is_err());
    disks.end("w", &job, &done);
    disks.finish();
    world.advance(16);
    (locked, wanted)
}

fn suspects(world: &World) -> i64 {
    world.sql("SELECT COUNT(*) FROM suspicious_replicas")
}

#[test]
fn a_damaged_copy_protects_the_others_and_is_replaced_by_a_good_one() {
    for disks in Disks::each() {
        let world = &disks.world;
        for (name, found) in [("wrong", &b"CONTENT"[..]), ("short", b"con"), ("long", b"contents")]
        {
            let (locked, wanted) = tried_in_vain(&disks, name, Some(found));
            let case = format!("{name} on {}", world.catalog.backend());
            assert_eq!(suspects(world), 1, "{case}");
            let rule = world.get(&locked);
            let why = world.write(|tx| explain::explain(tx, &rule, None, 1));
            assert!(why.copies[0].why.contains("under suspicion (source A: "), "{case}");
            disks.reap();
            assert!(disks.place("B", name).exists(), "{case}");
            assert_eq!(disks.work("w"), 1, "{case}");
            assert_eq!(world.state(&wanted), "OK 1/0/0", "{case}");
            // Now it is proven: another copy matches the catalog.
            world.judge(Daemon::Finisher);
            assert_eq!(world.state(&locked), "REPLICATING 0/1/0", "{case}");
            assert_eq!(suspects(world), 0, "{case}");
            assert_eq!(disks.work("w"), 1, "{case}");
            assert_eq!(world.state(&locked), "OK 1/0/0", "{case}");
            assert_eq!(std::fs::read(disks.place("A", name)).unwrap(), b"content", "{case}");
            disks.reap();
            assert!(!disks.place("B", name).exists(), "{case}");
            disks.check();
        }
    }
}

#[test]
fn a_copy_that_is_missing_is_suspect_until_it_is_back() {
    for disks in Disks::each() {
        let world = &disks.world;
        let (locked, wanted) = tried_in_vain(&disks, "f", None);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(world.state(&wanted), "OK 1/0/0");
        // A missing file proves nothing: its disk may not be mounted.
        world.judge(Daemon::Finisher);
        assert_eq!((world.state(&locked).as_str(), suspects(world)), ("OK 1/0/0", 1));
        world.advance(601);
        disks.reap();
        assert_eq!(suspects(world), 1);
        let place = disks.place("A", "f");
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, b"content").unwrap();
        world.advance(601);
        disks.reap();
        assert_eq!(suspects(world), 0, "on {}", world.catalog.backend());
        disks.check();
    }
}

#[test]
fn the_only_copy_is_not_declared_bad_because_it_differs() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"CONTENT"));
        let rule = world.rule("f", 1, "C", Grouping::None);
        for _ in 0..4 {
            assert_eq!(disks.work("w"), 0);
            disks.finish();
            world.advance(300);
        }
        assert_eq!(world.state(&rule), "STUCK 0/0/1");
        assert_eq!(suspects(world), 1);
        // Nor because a client reported another differing copy as good without checking it.
        disks.file("f", "B", b"content", Some(b"CONTENT"));
        world.change("UPDATE suspicious_replicas SET proven = 1");
        world.change("INSERT INTO suspicious_replicas SELECT did_id, (SELECT id FROM rses WHERE rse = 'B'), 0, 'odd', 1, 0, 0, 0 FROM suspicious_replicas");
        world.judge(Daemon::Finisher);
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'A'"), 2);
        assert!(disks.place("A", "f").exists());
        world.check();
        // Suspicion ends when the replica is removed from the catalog.
        world.delete(&rule);
        world.change("UPDATE replicas SET tombstone = 0");
        disks.reap();
        assert_eq!((suspects(world), world.sql("SELECT COUNT(*) FROM replicas")), (0, 0));
        disks.check();
    }
}

#[test]
fn a_file_that_another_rse_shares_is_not_removed() {
    // Links to folders are not followed below storage roots.
    for disks in Disks::each_with(&Credentials::new()) {
        let world = &disks.world;
        let (same, link) = (disks.folder("A"), disks.folder("A").with_extension("link"));
        std::os::unix::fs::symlink(&same, &link).unwrap();
        for (rse, folder) in [("SAME", &same), ("LINK", &link)] {
            world.rse(rse);
            disks.protocol(rse, "file", json!({"prefix": folder.display().to_string()}), folder);
            disks.file(rse, "A", b"content", Some(b"content"));
            let kept = world.rule(rse, 1, "A", Grouping::None);
            let purged = NewRule { purge_replicas: true, ..World::new_rule(rse, 1, rse) };
            let purged = world.add(&purged);
            disks.work("w");
            assert_eq!(world.state(&purged), "OK 1/0/0");
            world.delete(&purged);
            disks.reap();
            assert!(disks.place("A", rse).exists(), "{rse} on {}", world.catalog.backend());
            assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 1);
            world.delete(&kept);
            world.change("UPDATE replicas SET tombstone = 0");
            disks.reap();
            assert!(!disks.place("A", rse).exists(), "{rse} on {}", world.catalog.backend());
        }
    }
}

#[test]
fn a_rule_reports_a_lost_last_copy_until_the_file_is_back() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        let rule = world.rule("f", 1, "A", Grouping::None);
        let now = world.now();
        world
            .write(|tx| replica::declare_bad(tx, &World::did("f"), "A", "unreadable", "root", now));
        let said = || (world.state(&rule), world.get(&rule).error.unwrap_or_default());
        let lost = ("STUCK 0/0/0".to_owned(), "The last copy of s:f is lost".to_owned());
        assert_eq!(said(), lost, "on {}", world.catalog.backend());
        world.check();
        world.judge(Daemon::Repairer);
        assert_eq!(said(), lost, "on {}", world.catalog.backend());
        disks.reap();
        disks.check();
        disks.file("f", "B", b"content", Some(b"content"));
        world.judge(Daemon::Repairer);
        assert_eq!(disks.work("w"), 1);
        assert_eq!(said().0, "OK 1/0/0", "on {}", world.catalog.backend());
        disks.check();
    }
}

#[test]
fn attached_files_stay_until_they_are_evaluated() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.attribute("A", "greedyDeletion", "true");
        world.collection("ds", DidType::Dataset);
        world.collection("c", DidType::Container);
        world.rule("c", 1, "B", Grouping::Dataset);
        disks.file("f", "A", b"content", Some(b"content"));
        disks.file("late", "A", b"content", Some(b"content"));
        world.attach("ds", &["f".to_owned()]);
        world.judge(Daemon::Evaluator);
        world.change("UPDATE replicas SET tombstone = 1");
        // An intermediate collection was attached: marked replicas are not removed either.
        world.attach("c", &["ds".to_owned()]);
        world.change("UPDATE replicas SET state = 'B', tombstone = 0 WHERE did_id IN (SELECT id FROM dids WHERE name = 'late')");
        world.attach("ds", &["late".to_owned()]);
        disks.reap();
        for name in ["f", "late"] {
            assert!(disks.place("A", name).exists(), "{name} on {}", world.catalog.backend());
        }
        world.judge(Daemon::Evaluator);
        disks.reap();
        assert_eq!(disks.work("w"), 2, "on {}", world.catalog.backend());
        disks.reap();
        disks.check();
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas"), 2);
    }
}
