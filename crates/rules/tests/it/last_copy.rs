//! The last right copy of a file, on either catalog: it stays as long as somebody wants one, whatever
//! was decided before about it or found out since about the others.

use mainstay_rules::api::Grouping;

use crate::disks::Disks;

/// Marks all that has no locks, and cannot remove it: its folder is away meanwhile.
fn mark_only(disks: &Disks, rse: &str) {
    disks.world.change("UPDATE replicas SET tombstone = 0 WHERE lock_cnt = 0");
    let (folder, away) = (disks.folder(rse), disks.folder(rse).with_extension("away"));
    std::fs::rename(&folder, &away).unwrap();
    disks.reap();
    std::fs::rename(&away, &folder).unwrap();
}

#[test]
fn what_is_wanted_elsewhere_after_it_was_marked_is_copied_first_and_removed_then() {
    for disks in Disks::each() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        mark_only(&disks, "A");
        assert_eq!(world.sql("SELECT COUNT(*) FROM replicas WHERE state = 'B'"), 1);
        let rule = world.rule("f", 1, "B", Grouping::None);
        // Nobody gives it up for want of a source.
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
fn what_was_marked_and_is_not_right_any_more_is_said_to_be_so() {
    for disks in Disks::each() {
        let world = &disks.world;
        for (name, found, said) in [
            ("gone", None, "there is no replica to copy from"),
            ("damaged", Some(&b"CONTENT"[..]), "at the source A the adler32 checksum is"),
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
