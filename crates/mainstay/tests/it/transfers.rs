//! Workers in processes of their own, killed in the middle: on either catalog, to a folder, to S3 and
//! to WebDAV, nothing is lost, nothing is orphaned, and what comes back is what went in.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use mainstay_catalog::private_postgres::PrivatePostgres;
use mainstay_rules::api::Did;
use mainstay_transfers::protocol::hashed_path;

use crate::process::{MAINSTAY, TestServer, cannot_test, folder, signal};
use crate::rules::{must, run};
use crate::services::{ACCESS_KEY, Nginx, PASSWORD, S3, SECRET_KEY, USER};

/// A worker in a process of its own; killed when dropped.
struct Hand(std::process::Child);

impl Hand {
    fn start(server: &TestServer, name: &str, keys: &str, bounds: &[&str]) -> Self {
        let mut command = server.client(MAINSTAY);
        let words = ["transfer-worker", "--lease", "1s", "--name", name, "--log", "error"];
        let command = command.args(words).args(["--credentials", keys]).args(bounds);
        Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // It may have been killed already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Every file below a folder, with its length.
fn found(at: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => all.extend(found(&entry.path())),
            false => all.push((entry.path(), entry.metadata().map_or(0, |meta| meta.len()))),
        }
    }
    all
}

/// Four files go from a folder to `way`, whose files are in `to`; the first worker is killed.
fn killed_in_the_middle(catalog: &[&str], disk: &Path, way: &str, to: &Path) {
    let data = folder();
    let keys = disk.join("keys.toml");
    let text = format!(
        "[SITE-B]\naccess-key = {ACCESS_KEY:?}\nsecret-key = {SECRET_KEY:?}\nuser = {USER:?}\npassword = {PASSWORD:?}\n"
    );
    // Each service takes what is meant for it, and no other server does.
    let text = match way.starts_with("s3") {
        true => text.lines().take(3).collect::<Vec<_>>().join("\n"),
        false => text.replace("access-key", "#").replace("secret-key", "#"),
    };
    let endpoint: Vec<&str> = way.splitn(4, '/').take(3).collect();
    // Folders need no keys.
    let text = match way.starts_with("file") {
        true => String::new(),
        false => format!("{text}\nendpoint = {:?}\ninsecure = true\n", endpoint.join("/")),
    };
    std::fs::write(&keys, text).unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let keys = keys.display().to_string();
    let own =
        ["--only", "rules", "--transfer-workers", "0", "--log", "error", "--credentials", &keys];
    let (from, other) = (disk.join("a"), disk.join("b"));
    for root in [&from, &other] {
        std::fs::create_dir_all(root).unwrap();
    }
    let roots = [&from, &other].map(|root| root.display().to_string());
    let bounds = [
        "--storage-root",
        &roots[0],
        "--storage-root",
        &roots[1],
        "--storage-endpoint",
        "127.0.0.1",
    ];
    let server = TestServer::start_in(data.path(), &[&own[..], &bounds, catalog].concat());
    for line in [
        "rse add SITE-A",
        "rse add SITE-B",
        &format!("rse protocol SITE-A file://{}", from.display()),
        &format!("rse protocol SITE-B {way}"),
        "account scope root s",
        "quota set root SITE-A -1",
        "quota set root SITE-B -1",
        "did add s:d",
    ] {
        must(&server, line);
    }
    // Large enough that a worker can be killed while it is at them.
    let names: Vec<String> = (0..4).map(|at| format!("f{at}")).collect();
    for name in &names {
        let place = disk.join(name);
        std::fs::write(&place, name.as_bytes().repeat(6 << 20)).unwrap();
        must(&server, &format!("upload SITE-A --scope s --dataset s:d {}", place.display()));
    }
    let rule = must(&server, "add s:d --copies 2 -e SITE-A|SITE-B").trim().to_owned();
    let first = Hand::start(&server, "first", &keys, &bounds);
    while found(to).is_empty() {
        std::thread::yield_now();
    }
    drop(first);
    let _second = Hand::start(&server, "second", &keys, &bounds);
    must(&server, &format!("watch {rule}"));
    let (code, said) = run(&server, &["check"]);
    assert_eq!(code, Some(0), "{said}");
    let mut lengths: Vec<u64> = found(to).into_iter().map(|(_, length)| length).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [12 << 20; 4], "{:?}", found(to));
    // Downloads equal uploads, and purged files are gone from the disk.
    let into = disk.join("in");
    must(
        &server,
        &format!("download s:d --into {} -e SITE-B --credentials {keys}", into.display()),
    );
    assert_eq!(std::fs::read(into.join("s/f2")).unwrap(), b"f2".repeat(6 << 20));
    // An upload registers one replica; the same file again is found, another content is refused.
    let letter = disk.join("letter");
    std::fs::write(&letter, "dear reader").unwrap();
    let upload = format!("upload SITE-B --scope s {} --credentials {keys}", letter.display());
    must(&server, &upload);
    assert_eq!(found(to).len(), 5);
    let (code, said) = run(&server, &upload.split_whitespace().collect::<Vec<_>>());
    assert!(code == Some(0) && said.contains("s:letter is there already on SITE-B"), "{said}");
    std::fs::write(&letter, "another").unwrap();
    let (code, said) = run(&server, &upload.split_whitespace().collect::<Vec<_>>());
    assert!(code == Some(1) && said.contains("registered with another content"), "{said}");
    assert_eq!(found(to).len(), 5, "what is there stays");
    must(&server, "replica tombstone SITE-B s:letter");
    let listed = must(&server, "rse list -o json");
    assert!(!listed.contains(SECRET_KEY) && !listed.contains(PASSWORD));
    must(&server, &format!("update {rule} purge_replicas=true"));
    must(&server, &format!("delete {rule} --purge"));
    must(&server, "judge reaper --once");
    while !found(to).is_empty() || !found(&from).is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(server.terminate().code(), Some(0));
}

/// Runs a case on either catalog, with a folder of its own.
fn on_each_catalog(case: impl Fn(&[&str], &Path)) {
    case(&[], folder().path());
    let database = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(database) => database,
        Err(why) => return cannot_test(&format!("workers on PostgreSQL: {why}")),
    };
    database.make_schema("rules").unwrap();
    case(&["--catalog", &database.url("rules")], folder().path());
}

#[test]
fn killed_worker_is_replaced_and_leaves_no_orphans() {
    on_each_catalog(|catalog, disk| {
        let to = disk.join("b");
        killed_in_the_middle(catalog, disk, &format!("file://{}", to.display()), &to);
    });
}

#[test]
fn killed_worker_leaves_no_orphans_on_s3() {
    on_each_catalog(|catalog, disk| {
        let s3 = S3::start(&disk.join("s3"));
        let way = format!("s3+http://127.0.0.1:{}/files/site-b", s3.port);
        killed_in_the_middle(catalog, disk, &way, &s3.bucket());
    });
}

#[test]
fn killed_worker_leaves_no_orphans_on_webdav() {
    on_each_catalog(|catalog, disk| {
        std::fs::create_dir(disk.join("dav")).unwrap();
        let nginx = match Nginx::start(&disk.join("dav")) {
            Ok(nginx) => nginx,
            Err(why) => return cannot_test(&why),
        };
        let way = format!("dav://127.0.0.1:{}/", nginx.port);
        killed_in_the_middle(catalog, disk, &way, &nginx.files());
    });
}

/// A large sparse file: a worker that copies it is stopped long before it is done.
fn endless(place: &Path) {
    std::fs::File::create(place).unwrap().set_len(1 << 34).unwrap();
}

/// Runs a command, tells it to end once there is something in a folder, and gives its exit code.
fn cut_off(server: &TestServer, line: &str, at: &Path, how: &str) -> Option<i32> {
    let mut command = server.client(MAINSTAY);
    let command = command.arg("rules").args(line.split_whitespace());
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while found(at).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "{line} ended by itself");
        std::thread::yield_now();
    }
    signal(child.id(), how);
    child.wait().unwrap().code()
}

#[test]
fn interrupted_transfers_leave_no_files_and_killed_ones_are_cleaned_up_by_the_next() {
    let (data, disk) = (folder(), folder());
    let root = disk.path().display().to_string();
    let words = ["--only", "rules", "--log", "error", "--storage-root", &root];
    let server = TestServer::start_in(data.path(), &words);
    let (site, into) = (disk.path().join("a"), disk.path().join("in"));
    for line in [
        "rse add SITE-A",
        &format!("rse protocol SITE-A file://{}", site.display()),
        "account scope root s",
    ] {
        must(&server, line);
    }
    let place = disk.path().join("f");
    endless(&place);
    let upload = format!("upload SITE-A --scope s {}", place.display());
    for (how, code) in [("INT", Some(130)), ("TERM", Some(143))] {
        assert_eq!(cut_off(&server, &upload, &site, how), code);
        assert_eq!(found(&site), []);
    }
    assert_eq!(cut_off(&server, &upload, &site, "KILL"), None);
    assert_eq!(found(&site).len(), 1);
    std::fs::write(&place, "short").unwrap();
    must(&server, &upload);
    let uploaded = site.join(hashed_path(&Did::new("s", "f")));
    assert_eq!(found(&site), [(uploaded.clone(), 5)]);

    let long = site.join(hashed_path(&Did::new("s", "long")));
    std::fs::create_dir_all(long.parent().unwrap()).unwrap();
    endless(&long);
    must(&server, &format!("replica add SITE-A s:long:{}", 1_u64 << 34));
    let download = format!("download s:long --into {}", into.display());
    for (how, code) in [("INT", Some(130)), ("TERM", Some(143))] {
        assert_eq!(cut_off(&server, &download, &into, how), code);
        assert_eq!(found(&into), []);
    }
    // Every RSE is named with what was wrong there.
    must(&server, "rse add SITE-B");
    must(&server, "replica add SITE-B s:f:5");
    std::fs::write(&uploaded, "SHORT").unwrap();
    let into = into.display().to_string();
    let (code, said) = run(&server, &["download", "s:f", "--into", &into]);
    let why = ["s:f: SITE-A: adler32 checksum", "; SITE-B: it has no protocol"];
    assert!(code == Some(1) && why.iter().all(|part| said.contains(part)), "{said}");
    assert!(!disk.path().join("in").exists(), "nothing is left, not even folders");
    std::fs::write(&uploaded, "short").unwrap();
    must(&server, &format!("download s:f --into {into}"));
    std::fs::write(disk.path().join("in/s/f"), "mine").unwrap();
    let (code, said) = run(&server, &["download", "s:f", "--into", &into]);
    assert!(code == Some(1) && said.contains("in/s/f is there with another content"), "{said}");
    assert!(said.contains("--force"), "{said}");
    assert_eq!(server.terminate().code(), Some(0));
}
