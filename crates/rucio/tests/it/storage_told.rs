//! Tests of the storage check's output as text and JSON, and of the check on S3 and WebDAV.

use std::collections::BTreeSet;

use clap::Parser;
use jiff::Timestamp;
use mainstay_clock::ManualClock;
use mainstay_rucio::{Local, Service};
use mainstay_rules::Environment;
use mainstay_rules::audit::Wanted;
use mainstay_rules::cli::{self, Command, Format};
use mainstay_transfers::credential::{Credential, Credentials};
use serde_json::{Value, json};

use crate::disks::Disks;
use crate::services::{ACCESS_KEY, Dav, S3, SECRET_KEY};
use crate::storage::{DAYS_LATER, LATER, found_by, found_while, put, shown, wanted};
use crate::surface::{Shell, service};
use crate::world::World;

/// A clock that is some hours ahead of the machine's.
fn ahead() -> Environment {
    let later = Environment::system().now() + LATER;
    Environment::new(ManualClock::new(Timestamp::from_microsecond(later).unwrap()))
}

#[derive(Parser)]
struct Tree {
    #[command(subcommand)]
    command: Command,
}

/// The output of a command and its exit code.
fn run(disks: &Disks, line: &str, format: Format) -> Result<(u8, String), String> {
    let words = std::iter::once("rules").chain(line.split_whitespace());
    let tree = Tree::try_parse_from(words).map_err(|error| error.to_string())?;
    let around = ahead();
    let local = Local::new(Service { around, access: disks.access(), ..service(&disks.world) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut out = Vec::new();
    let done = cli::run(tree.command, &local, Default::default(), format, &mut out);
    let code = runtime.block_on(done).map_err(|error| error.to_string())?;
    Ok((code, String::from_utf8(out).unwrap()))
}

#[test]
fn text_and_json_output_have_a_line_per_finding_and_a_summary() {
    for disks in Disks::each() {
        let world = &disks.world;
        world.rse("SILENT");
        disks.file("f", "A", b"content", Some(b"content"));
        let table = |line: &str| run(&disks, line, Format::Table);
        assert_eq!(table("check --storage --checksums").unwrap(), (0, String::new()));
        std::fs::write(disks.place("A", "f"), b"CONTENT").unwrap();
        put(&disks.folder("B").join("lost"), b"123");
        let (code, told) = table("check --storage").unwrap();
        assert_eq!((code, told.lines().count()), (1, 1), "{told}");
        assert!(
            told.starts_with("ORPHAN lost on B: no replica has this path (3 bytes, "),
            "{told}"
        );
        assert_eq!(table("check --storage --rse A").unwrap(), (0, String::new()));
        let (code, told) = table("check --storage --rse A --checksums").unwrap();
        assert!(code == 1 && told.starts_with("DIFFERS s:f on A: adler32"), "{told}");
        world.change("UPDATE rse_usage SET files = files + 1 WHERE source <> 'x'");
        let (code, told) = table("check --storage --rse A").unwrap();
        assert!(code == 1 && told.starts_with("I7 RSE A"), "{told}");
        // Counters are repaired; storage is not changed.
        assert_eq!(table("check --repair --storage --rse A").unwrap(), (0, String::new()));
        assert_eq!(table("check --repair --storage").unwrap().0, 1);
        assert!(disks.folder("B").join("lost").exists());
        let (code, told) = run(&disks, "check --storage --checksums", Format::Json).unwrap();
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(code, 1);
        assert_eq!(told["violations"], json!([]));
        assert_eq!(told["looked_at"], json!({"replicas": 1, "files": 2}));
        assert_eq!(told["notes"].as_array().unwrap().len(), 1);
        let kinds: Vec<&Value> =
            told["storage"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
        assert_eq!(kinds, ["ORPHAN", "DIFFERS"]);
        assert_eq!(told["storage"][1]["name"], "f");
        assert_eq!(told["storage"][0]["path"], "lost");
        let (_, told) = run(&disks, "check --storage --rse A", Format::Json).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["storage"], json!([]));
        for (line, why) in [
            ("check --storage --rse A|", "InvalidRSEExpression"),
            ("check --rse A", "--storage"),
            ("check --checksums", "--storage"),
        ] {
            let refused = table(line).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
        let shell = Shell::over(world);
        let path = "/mainstay/check/storage?checksums=perhaps";
        assert_eq!(shell.call("GET", path, Value::Null).0, 409);
    }
}

fn keys() -> Credentials {
    let text = |text: &str| Some(text.to_owned());
    let s3 = Credential {
        access_key: text(ACCESS_KEY),
        secret_key: text(SECRET_KEY),
        ..Credential::default()
    };
    let wrong = Credential { secret_key: text("another-secret"), ..s3.clone() };
    let named = |name: &str, key: &Credential| (name.to_owned(), key.clone());
    Credentials::from([named("BUCKET", &s3), named("NONE", &s3), named("WRONG", &wrong)])
}

#[test]
fn s3_and_listing_webdav_are_checked_in_both_directions() {
    for disks in Disks::each_with(&keys()) {
        let world = &disks.world;
        let roots = tempfile::tempdir().unwrap();
        let s3 = S3::start(&roots.path().join("s3"));
        for (rse, prefix) in
            [("BUCKET", "files/one/deep"), ("NONE", "nothing/x"), ("WRONG", "files/two")]
        {
            world.rse(rse);
            let body = json!({"hostname": "127.0.0.1", "port": s3.port, "prefix": prefix});
            disks.protocol(rse, "s3+http", body, &roots.path().join("s3").join(prefix));
        }
        std::fs::remove_dir_all(roots.path().join("s3/nothing")).unwrap();
        let lists = Dav::start(&roots.path().join("lists"), true);
        let mute = Dav::start(&roots.path().join("mute"), false);
        for (rse, dav, prefix) in [
            ("DAV", &lists, "/pool/a"),
            ("ROOT", &lists, "/"),
            ("MUTE", &mute, "/pool"),
            ("LOST", &lists, "/nothing"),
            ("SUNK", &mute, "/nothing"),
        ] {
            world.rse(rse);
            let body = json!({"hostname": "127.0.0.1", "port": dav.port, "prefix": prefix});
            disks.protocol(rse, "dav", body, &dav.root.join(prefix.trim_matches('/')));
        }
        std::fs::remove_dir(lists.root.join("nothing")).unwrap();
        std::fs::remove_dir(mute.root.join("nothing")).unwrap();
        let all = ["BUCKET", "DAV", "ROOT", "MUTE"];
        let mut meant: Vec<String> =
            ["NONE", "WRONG", "LOST", "SUNK"].map(|rse| format!("UNREAD {rse} ")).into();
        for rse in ["NONE", "WRONG", "LOST", "SUNK"] {
            disks.file(&format!("on-{}", rse.to_lowercase()), rse, b"content", None);
        }
        for rse in all {
            let own = rse.to_lowercase();
            for what in ["right/a.b", "gone", "cut", "false"] {
                disks.file(&format!("{own}-{what}"), rse, b"content", Some(b"content"));
            }
        }
        let told = |meant: &[String]| -> BTreeSet<String> { meant.iter().cloned().collect() };
        let closely = Wanted { checksums: true, ..wanted(&disks, DAYS_LATER) };
        assert_eq!(found_by(&disks, &closely), told(&meant));
        for rse in all {
            let own = rse.to_lowercase();
            let at = |what: &str| disks.place(rse, &format!("{own}-{what}"));
            std::fs::remove_file(at("gone")).unwrap();
            std::fs::write(at("cut"), b"con").unwrap();
            std::fs::write(at("false"), b"CONTENT").unwrap();
            put(&disks.folder(rse).join("lost and/found ü"), b"abc");
            let draft = format!("s/.{own}.part");
            put(&disks.folder(rse).join(&draft), b"abc");
            meant.push(format!("MISSING {rse} {own}-gone"));
            meant.extend(["cut", "false"].map(|what| format!("DIFFERS {rse} {own}-{what}")));
            if rse != "MUTE" {
                meant.extend(
                    ["lost and/found ü", &draft].map(|path| format!("ORPHAN {rse} {path}")),
                );
            }
        }
        // The prefix of one RSE lies within that of another.
        meant.extend(
            ["lost and/found ü", "s/.dav.part"].map(|path| format!("ORPHAN ROOT pool/a/{path}")),
        );
        let (found, notes) = found_while(&disks, &closely, |_| {});
        assert_eq!(shown(&found), told(&meant));
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("MUTE: ") && notes[0].contains("does not list its files"));
        let what = format!("{found:?}");
        assert!(!what.contains(SECRET_KEY) && !what.contains("another-secret"), "{what}");
        drop(s3);
    }
}

#[test]
fn only_privileged_accounts_may_check_storage() {
    let world = World::sqlite();
    let router = mainstay_rucio::router(service(&world));
    let caller =
        mainstay_rucio::Caller { account: "alice".to_owned(), privileged: false, read_only: false };
    let mut request = axum::http::Request::builder()
        .uri("/mainstay/check/storage")
        .body(axum::body::Body::empty())
        .unwrap();
    request.extensions_mut().insert(caller);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(tower::ServiceExt::oneshot(router, request)).unwrap();
    assert_eq!(answer.status().as_u16(), 403);
}
