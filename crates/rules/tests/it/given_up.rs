//! Transfers that are given up while somebody is at them, on either catalog: whoever dies, every byte
//! on disk has a replica.

use std::path::PathBuf;

use mainstay_rules::api::{Grouping, NewRule};
use mainstay_rules::rule::update;
use mainstay_rules::{Class, replica, rse};
use serde_json::json;

use crate::disks::Disks;
use crate::world::World;

fn set(world: &World, rule: &str, options: &serde_json::Value) {
    let now = world.now();
    world.write(|tx| update::update_rule(tx, rule, options.as_object().unwrap(), now));
}

/// A way in which a transfer that runs ends for all but its worker, and its replica is to go.
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
fn what_a_killed_worker_leaves_of_a_transfer_that_was_given_up_is_removed_after_its_lease() {
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
fn what_a_client_was_uploading_when_it_was_given_up_is_removed_after_its_day() {
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
        // Who says that it is there has written it.
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
