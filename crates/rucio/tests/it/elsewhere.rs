//! Tests of copies between folders, S3 and WebDAV, on both databases: every failure is detected and
//! reported, and afterwards every byte belongs to a replica.

use std::io::{Read, Write};
use std::net::TcpListener;

use mainstay_rules::api::{Grouping, NewRule};
use mainstay_rules::queue;
use mainstay_transfers::credential::{Credential, Credentials};
use mainstay_transfers::store::Plan;
use mainstay_transfers::{End, Job};
use serde_json::json;

use crate::disks::Disks;
use crate::services::{ACCESS_KEY, Nginx, PASSWORD, S3, SECRET_KEY, SmallDisk, USER};
use crate::tls::certified;
use crate::world::World;

fn missing(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "not tested: {what}");
    eprintln!("!!! NOT TESTED: {what}");
}

fn keys() -> Credentials {
    let text = |text: &str| Some(text.to_owned());
    let s3 = Credential {
        access_key: text(ACCESS_KEY),
        secret_key: text(SECRET_KEY),
        ..Credential::default()
    };
    let dav = Credential { user: text(USER), password: text(PASSWORD), ..Credential::default() };
    let parts = Credential { single_put_bytes: Some(5 << 20), ..s3.clone() };
    let wrong = Credential { secret_key: text("another-secret"), ..s3.clone() };
    Credentials::from([
        ("BUCKET".to_owned(), s3),
        ("PARTS".to_owned(), parts),
        ("WRONG".to_owned(), wrong),
        ("DAV".to_owned(), dav.clone()),
        ("CUT".to_owned(), dav),
    ])
}

/// The services of one world; they stop with it.
struct Services {
    _s3: S3,
    _nginx: Nginx,
    _roots: tempfile::TempDir,
}

/// For each catalog a world with the RSEs BUCKET and PARTS on S3, and DAV on WebDAV.
fn worlds() -> Vec<(Disks, Services)> {
    let mut all = Vec::new();
    for disks in Disks::each_with(&keys()) {
        let roots = tempfile::tempdir().unwrap();
        let s3 = S3::start(&roots.path().join("s3"));
        std::fs::create_dir(roots.path().join("dav")).unwrap();
        let nginx = match Nginx::start(&roots.path().join("dav")) {
            Ok(nginx) => nginx,
            Err(why) => {
                missing(&why);
                return Vec::new();
            }
        };
        for (name, below) in [("BUCKET", "one/deep"), ("PARTS", "two"), ("WRONG", "three")] {
            disks.world.rse(name);
            let body = json!({"hostname": "127.0.0.1", "port": s3.port, "prefix": format!("/files/{below}")});
            disks.protocol(name, "s3+http", body, &s3.bucket().join(below));
        }
        disks.world.rse("DAV");
        let body = json!({"hostname": "127.0.0.1", "port": nginx.port, "prefix": "/"});
        disks.protocol("DAV", "dav", body, &nginx.files());
        all.push((disks, Services { _s3: s3, _nginx: nginx, _roots: roots }));
    }
    all
}

/// Test content without repetition at short distances.
fn content(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// A rule that copies a file to `to` from `from` alone.
fn fetch(name: &str, from: &str, to: &str) -> NewRule {
    let source_replica_expression = Some(from.to_owned());
    NewRule { source_replica_expression, purge_replicas: true, ..World::new_rule(name, 1, to) }
}

#[test]
fn files_are_copied_between_folder_s3_and_webdav_and_removed_when_unneeded() {
    for (disks, _services) in worlds() {
        let world = &disks.world;
        let sizes = [0, 1, 100_000, (3 << 20) + 17, 12 << 20];
        for (at, size) in sizes.into_iter().enumerate() {
            let content = content(size);
            disks.file(&format!("f{at}"), "A", &content, Some(&content));
        }
        let mut rules = Vec::new();
        for (from, to) in [("A", "BUCKET"), ("BUCKET", "DAV"), ("DAV", "PARTS"), ("PARTS", "B")] {
            for at in 0..sizes.len() {
                rules.push(world.add(&fetch(&format!("f{at}"), from, to)));
            }
            assert_eq!(disks.work("w"), sizes.len(), "{from} to {to}");
        }
        for rule in &rules {
            assert_eq!(world.state(rule), "OK 1/0/0");
        }
        for (at, size) in sizes.into_iter().enumerate() {
            for rse in ["BUCKET", "DAV", "PARTS", "B"] {
                let found = std::fs::read(disks.place(rse, &format!("f{at}"))).unwrap();
                assert!(found == content(size), "f{at} on {rse}");
            }
        }
        disks.check();
        for rule in &rules {
            world.delete(rule);
        }
        disks.reap();
        assert!(!disks.place("BUCKET", "f3").exists() && !disks.place("DAV", "f3").exists());
        disks.check();
    }
}

#[test]
fn remote_files_are_accepted_only_if_they_match_the_catalog() {
    for (disks, _services) in worlds() {
        let world = &disks.world;
        let right = content(2 << 20);
        let mut other = right.clone();
        other[1_500_000] ^= 1;
        for rse in ["BUCKET", "DAV"] {
            for (what, found, why) in [
                ("cut", Some(&right[..1000]), "size is 1000 bytes, expected 2097152"),
                ("false", Some(&other[..]), "adler32"),
                ("gone", None, "is not there"),
            ] {
                let name = format!("{what}-{}", rse.to_lowercase());
                disks.file(&name, rse, &right, found);
                // Copy to the other service: neither may keep any of it.
                let to = if rse == "DAV" { "PARTS" } else { "DAV" };
                let rule = world.rule(&name, 1, to, Grouping::None);
                for _ in 0..=world.settings.transfer_retries {
                    assert_eq!(disks.work("w"), 0);
                    disks.finish();
                    world.advance(3600);
                }
                assert_eq!(world.state(&rule), "STUCK 0/0/1", "{name}");
                let error = world.get(&rule).error.unwrap();
                assert!(error.contains(why) && error.contains(rse), "{name}: {error}");
                assert!(!disks.place(to, &name).exists());
                world.check();
                world.delete(&rule);
                // The source does not match the catalog: the copy is removed again.
                drop(std::fs::remove_file(disks.place(rse, &name)));
                let sql = format!(
                    "UPDATE replicas SET state = 'U' WHERE did_id = (SELECT id FROM dids WHERE name = '{name}')"
                );
                world.change(&sql);
            }
        }
        disks.reap();
        disks.check();
    }
}

/// Answers every request with half of the announced length.
fn cut_short(whole: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { return };
            let mut request = [0; 4096];
            // Every request is for the file.
            if socket.read(&mut request).is_err() {
                continue;
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\nETag: \"x\"\r\n\r\n");
            drop(
                socket
                    .write_all(head.as_bytes())
                    .and_then(|()| socket.write_all(&vec![7; whole / 2])),
            );
        }
    });
    port
}

#[test]
fn a_truncated_source_leaves_no_partial_files() {
    let length = 3 << 20;
    let port = cut_short(length);
    for (disks, _services) in worlds() {
        disks.world.rse("CUT");
        let nowhere = tempfile::tempdir().unwrap();
        let body = json!({"hostname": "127.0.0.1", "port": port, "prefix": "/"});
        disks.protocol("CUT", "dav", body, nowhere.path());
        let world = &disks.world;
        disks.file("f", "CUT", &vec![7; length], None);
        for to in ["B", "BUCKET", "DAV"] {
            world.rule("f", 1, to, Grouping::None);
            assert_eq!(disks.work("w"), 0);
            let (settings, now) = (&world.settings, world.now());
            disks.finish();
            let waiting = world.write(|tx| queue::show(tx, 10, settings, now)).1;
            assert!(
                waiting.iter().all(|one| one.why.as_ref().unwrap().contains("source CUT")),
                "{waiting:?}"
            );
        }
        world.change("UPDATE replicas SET state = 'T' WHERE state = 'A'");
        disks.check();
    }
}

#[test]
fn leftovers_of_a_killed_worker_are_overwritten_or_removed() {
    for (disks, _services) in worlds() {
        let world = &disks.world;
        let content = content(100_000);
        for name in ["again", "dropped"] {
            disks.file(name, "A", &content, Some(&content));
        }
        let rules = ["again", "dropped"].map(|name| world.rule(name, 1, "DAV", Grouping::None));
        // The worker has written both completely and dies before it renames them.
        assert_eq!(disks.take("dead", 10).len(), 2);
        for name in ["again", "dropped"] {
            let place = disks.place("DAV", name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place.with_file_name(format!(".{name}.part")), &content).unwrap();
        }
        world.delete(&rules[1]);
        world.advance(61);
        assert_eq!(disks.work("alive"), 1);
        assert_eq!(world.state(&rules[0]), "OK 1/0/0");
        disks.reap();
        disks.check();
        // A finished copy that was not reported is found, not copied again: its source is gone.
        let rule = world.rule("again", 1, "BUCKET", Grouping::None);
        let jobs = disks.take("dead", 10);
        disks.copy(&jobs[0]).unwrap();
        let source = disks.place("A", "again");
        std::fs::rename(&source, disks.folder("C").join("aside")).unwrap();
        std::fs::remove_file(disks.place("DAV", "again")).unwrap();
        world.advance(61);
        assert_eq!(disks.work("alive"), 1);
        assert_eq!(world.state(&rule), "OK 1/0/0");
        std::fs::rename(disks.folder("C").join("aside"), &source).unwrap();
        std::fs::copy(&source, disks.place("DAV", "again")).unwrap();
        disks.check();
    }
}

#[test]
fn a_worker_keeps_an_object_that_another_worker_has_reported() {
    for (disks, _services) in worlds() {
        let world = &disks.world;
        let content = content(100_000);
        disks.file("f", "A", &content, Some(&content));
        // The worker has written the object, and is cancelled before it has read it back.
        let bring = |job: &Job| {
            let End { rse, protocol, path } = &job.destination;
            let store = disks.access().open(rse, protocol).unwrap();
            let plan = Plan { tag: "1-1".to_owned(), bytes: content.len() as u64, new: false };
            let mut draft = store.write(path, &plan).unwrap();
            draft.add(&content).unwrap();
            draft.seal().unwrap();
            draft
        };
        for to in ["BUCKET", "PARTS"] {
            let rule = world.add(&fetch("f", "A", to));
            let given_up = bring(&disks.take("slow", 1)[0]);
            world.advance(61);
            assert_eq!(disks.work("other"), 1);
            assert_eq!(world.state(&rule), "OK 1/0/0");
            drop(given_up);
            disks.check();
            world.delete(&rule);
            disks.reap();
            disks.check();
            // If no other worker has reported it, the reaper removes it, however late.
            for late in [0, 61] {
                let rule = world.add(&fetch("f", "A", to));
                let job = disks.take("slow", 1).remove(0);
                world.advance(late);
                world.delete(&rule);
                disks.reap();
                drop(bring(&job));
                assert!(disks.place(to, "f").exists(), "{to}");
                disks.tell("slow", &job, Some("the copy was cancelled".to_owned()));
                disks.reap();
                disks.check();
            }
            // An object that reads back wrong belongs to no replica.
            let rule = world.add(&fetch("f", "A", to));
            let mut wrong = bring(&disks.take("slow", 1)[0]);
            wrong.reject();
            drop(wrong);
            disks.check();
            world.advance(61);
            world.delete(&rule);
            disks.reap();
        }
    }
}

#[test]
fn a_full_destination_is_retried_and_keeps_no_partial_files() {
    let content = content(6 << 20);
    for disks in Disks::each_with(&keys()) {
        let root = tempfile::tempdir().unwrap();
        let Some(small) = SmallDisk::mount(root.path(), 4 << 20) else {
            return missing("a full disk: a file system cannot be mounted here");
        };
        let s3 = S3::start(&root.path().join("s3"));
        std::fs::create_dir(root.path().join("dav")).unwrap();
        let nginx = match Nginx::start(&root.path().join("dav")) {
            Ok(nginx) => nginx,
            Err(why) => return missing(&why),
        };
        for name in ["SMALL", "BUCKET", "DAV"] {
            disks.world.rse(name);
        }
        let folder = root.path().join("folder");
        disks.protocol("SMALL", "file", json!({"prefix": folder.display().to_string()}), &folder);
        let body = json!({"hostname": "127.0.0.1", "port": s3.port, "prefix": "/files"});
        disks.protocol("BUCKET", "s3+http", body, &s3.bucket());
        let body = json!({"hostname": "127.0.0.1", "port": nginx.port});
        disks.protocol("DAV", "dav", body, &nginx.files());
        let world = &disks.world;
        disks.file("f", "A", &content, Some(&content));
        for to in ["SMALL", "BUCKET", "DAV"] {
            let rule = world.rule("f", 1, to, Grouping::None);
            assert_eq!(disks.work("w"), 0, "{to}");
            disks.finish();
            let (settings, now) = (&world.settings, world.now());
            let waiting = world.write(|tx| queue::show(tx, 10, settings, now)).1;
            let why = waiting[0].why.clone().unwrap();
            assert!(why.contains(&format!("destination {to}: ")), "{why}");
            disks.check();
            // With more space the next attempt succeeds.
            small.grow(64 << 20);
            world.advance(3600);
            assert_eq!(disks.work("w"), 1, "{to}");
            assert_eq!(world.state(&rule), "OK 1/0/0");
            disks.check();
            world.change("UPDATE rules SET purge_replicas = 1");
            world.delete(&rule);
            disks.reap();
            disks.check();
            small.grow(4 << 20);
        }
        drop((s3, nginx));
    }
}

#[test]
fn wrong_keys_are_reported_and_never_shown() {
    for (disks, _services) in worlds() {
        let world = &disks.world;
        disks.file("f", "A", b"content", Some(b"content"));
        world.rule("f", 1, "WRONG", Grouping::None);
        assert_eq!(disks.work("w"), 0);
        disks.finish();
        let (settings, now) = (&world.settings, world.now());
        let shown = format!("{:?}", world.write(|tx| queue::show(tx, 10, settings, now)));
        assert!(shown.contains("403"), "{shown}");
        for secret in [SECRET_KEY, PASSWORD, "another-secret", "X-Amz-Signature"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        disks.check();
    }
}

#[test]
fn a_tls_server_is_trusted_only_by_its_authority() {
    let root = tempfile::tempdir().unwrap();
    let ours = certified();
    let file = |name: &str, text: &str| {
        let path = root.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let authority = file("ca.pem", &ours.authority);
    let (certificate, key) = (file("cert.pem", &ours.certificate), file("key.pem", &ours.key));
    std::fs::create_dir(root.path().join("dav")).unwrap();
    let nginx = match Nginx::start_with(&root.path().join("dav"), Some((&certificate, &key))) {
        Ok(nginx) => nginx,
        Err(why) => return missing(&why),
    };
    let mut keys = keys();
    let known = Credential { ca: Some(authority), ..keys["DAV"].clone() };
    keys.insert("KNOWN".to_owned(), known);
    keys.insert("STRANGE".to_owned(), keys["DAV"].clone());
    for disks in Disks::each_with(&keys) {
        disks.file("f", "A", b"content", Some(b"content"));
        let below = disks.world.url.len();
        for (rse, moved) in [("KNOWN", 1), ("STRANGE", 0)] {
            disks.world.rse(rse);
            let prefix = format!("/{below}-{rse}");
            let body = json!({"hostname": "localhost", "port": nginx.port, "prefix": prefix});
            disks.protocol(rse, "davs", body, &nginx.files().join(prefix.trim_matches('/')));
            disks.world.rule("f", 1, rse, Grouping::None);
            assert_eq!(disks.work("w"), moved, "{rse}");
        }
        disks.check();
    }
}
