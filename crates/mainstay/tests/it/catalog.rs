//! The rule catalog of a server when it is lost, exchanged, damaged or full: it is never served by
//! mistake, and a start that is refused leaves nothing behind.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_catalog::Catalog;
use mainstay_catalog::private_postgres::PrivatePostgres;
use parking_lot::Mutex;

use crate::process::{MAINSTAY, TestServer, cannot_test, folder, offline, refused, text_of};
use crate::services::SmallDisk;

/// Asks as an administrator; the status and the answer.
fn ask(server: &TestServer, arguments: &[&str], path: &str) -> (u16, String) {
    let kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token:")).unwrap();
    let bearer = format!("Authorization: Bearer {}", token.trim().trim_matches('"'));
    let authority = server.kubeconfig().with_file_name("ca.crt");
    let output = Command::new("curl")
        .args(["-sS", "-w", "\n%{http_code}", "-H", &bearer, "--cacert"])
        .arg(authority)
        .args(arguments)
        .arg(format!("{}{path}", server.address()))
        .output()
        .expect("curl is needed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", "0"));
    (status.parse().unwrap_or(0), body.to_owned())
}

fn add_account(server: &TestServer, name: &str) -> (u16, String) {
    let body = r#"{"type": "USER", "email": "a@b.c"}"#;
    ask(server, &["-X", "POST", "-d", body], &format!("/rucio/accounts/{name}"))
}

/// Waits until `/readyz` fails, or passes, and gives its answer.
fn readyz(server: &TestServer, ready: bool) -> String {
    loop {
        let (status, text) = ask(server, &[], "/readyz?verbose");
        if (status == 200) == ready {
            return text;
        }
        std::thread::yield_now();
    }
}

/// Every file of a folder with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap_or_default())).collect()
}

#[test]
fn checks_without_a_server_change_no_byte_of_the_data_folder() {
    let there = folder();
    let server = TestServer::start_in(there.path(), &[]);
    assert_eq!(add_account(&server, "alice").0, 201);
    server.kill();
    let intact = files(there.path());
    for file in ["none", "objects.db", "objects.db-wal", "catalog.db", "catalog.db-wal"] {
        for empty in [true, false] {
            let there = folder();
            let dir = there.path();
            for (path, bytes) in intact.iter().filter(|(path, _)| path.is_file()) {
                std::fs::write(dir.join(path.file_name().unwrap()), bytes).unwrap();
            }
            let harmed = dir.join(file);
            if file != "none" {
                std::fs::remove_file(&harmed).unwrap();
                if empty {
                    std::fs::write(&harmed, "").unwrap();
                }
            }
            let before = files(dir);
            for command in ["check", "repair"] {
                let done = offline(&["store", command, "--data-dir", dir.to_str().unwrap()]);
                let said = text_of(&done);
                assert_eq!(done.status.success(), file == "none", "{command} {file}: {said}");
                assert!(files(dir) == before, "{command} {file} {empty}: {said}");
            }
        }
    }
}

#[test]
fn a_catalog_that_lost_acknowledged_commits_is_refused_checked_and_repaired_as_shown() {
    let there = folder();
    let dir = there.path();
    let data = dir.to_str().unwrap();
    let server = TestServer::start_in(dir, &[]);
    for at in 0..10 {
        assert_eq!(add_account(&server, &format!("a{at}")).0, 201);
    }
    server.kill();
    let wal = dir.join("catalog.db-wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    // In the last commit but a few.
    let late = bytes.len() - 9 * 4096;
    bytes[late] ^= 1;
    std::fs::write(&wal, &bytes).unwrap();
    let said = refused(dir, &[]);
    assert!(said.contains("commits are missing") && said.contains("mainstay restore"), "{said}");
    assert!(std::fs::read(&wal).unwrap() == bytes, "the log stays as it is");
    let checked = text_of(&offline(&["store", "check", "--data-dir", data]));
    assert!(checked.contains("commits are missing") && checked.contains("[exit code 1]"));
    let shown = text_of(&offline(&["store", "repair", "--data-dir", data]));
    assert!(shown.contains("were acknowledged and are missing"), "{shown}");
    let word = shown.split("--accept ").nth(1).unwrap().split_whitespace().next().unwrap();
    let repaired = offline(&["store", "repair", "--data-dir", data, "--accept", word]);
    assert!(repaired.status.success(), "{}", text_of(&repaired));
    let server = TestServer::start_in(dir, &[]);
    assert_eq!(add_account(&server, "later").0, 201);
    assert!(server.terminate().success());
    let checked = offline(&["store", "check", "--data-dir", data]);
    assert!(checked.status.success(), "{}", text_of(&checked));
}

#[test]
fn damage_in_a_running_catalog_turns_the_server_not_ready_and_is_named() {
    let there = folder();
    let dir = there.path();
    let server = TestServer::start_in(dir, &[]);
    assert_eq!(add_account(&server, "a").0, 201);
    assert!(server.mainstay(&["store", "check"]).status.success());
    assert!(server.terminate().success());
    // The first page of the index that new names are looked up in.
    let table = Command::new("sqlite3")
        .arg(dir.join("catalog.db"))
        .arg("SELECT rootpage FROM sqlite_schema WHERE name = 'rules_account'")
        .output();
    let Ok(table) = table else { return cannot_test("damage: there is no sqlite3") };
    let page: u64 = String::from_utf8_lossy(&table.stdout).trim().parse().unwrap();
    let file = std::fs::File::options().write(true).open(dir.join("catalog.db")).unwrap();
    file.write_all_at(&[0; 4096], (page - 1) * 4096).unwrap();
    let server = TestServer::start_in(dir, &[]);
    let checked = text_of(&server.mainstay(&["store", "check"]));
    assert!(checked.contains("rule catalog: ") && checked.contains("[exit code 1]"), "{checked}");
    let (status, said) = ask(&server, &[], "/rucio/accounts/a/rules");
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("catalog.db is damaged") && said.contains("mainstay restore"), "{said}");
    let said = readyz(&server, false);
    assert!(said.contains("catalog"), "{said}");
    let (status, said) = add_account(&server, "b");
    assert!(status == 503 && said.contains("is damaged"), "writes are refused: {said}");
    assert_eq!(ask(&server, &[], "/rucio/accounts/a").0, 200, "what is whole is read");
}

#[test]
fn a_start_that_is_refused_makes_no_catalog() {
    let there = folder();
    let dir = there.path();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(dir, &["--listen", &address]);
    assert!(said.contains("cannot listen"), "{said}");
    assert!(!dir.join("catalog.db").exists());

    let postgres = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(postgres) => postgres,
        Err(why) => return cannot_test(&format!("a catalog in PostgreSQL: {why}")),
    };
    for schema in ["own", "empty", "others"] {
        postgres.make_schema(schema).unwrap();
    }
    let at = |schema: &str| postgres.url(schema);
    let said = refused(dir, &["--listen", &address, "--catalog", &at("own")]);
    assert!(said.contains("cannot listen"), "{said}");
    assert_eq!(tables(&at("own")), 0);
    assert!(TestServer::start_in(dir, &["--catalog", &at("own")]).terminate().success());
    let other = folder();
    assert!(
        TestServer::start_in(other.path(), &["--catalog", &at("others")]).terminate().success()
    );
    let said = refused(dir, &["--catalog", &at("empty")]);
    assert!(said.contains("missing or empty") && said.contains("--new-cluster"), "{said}");
    assert_eq!(tables(&at("empty")), 0, "no table is left in it");
    let said = refused(dir, &["--catalog", &at("others")]);
    assert!(said.contains("should belong to catalog"), "{said}");
    assert!(TestServer::start_in(dir, &["--catalog", &at("own")]).terminate().success());
}

fn tables(address: &str) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let peeked = runtime.block_on(Catalog::peek(address)).unwrap();
    i64::from(peeked.there)
}

#[test]
fn a_second_server_and_a_read_only_folder_are_told_by_the_folder() {
    let there = folder();
    let dir = there.path();
    let server = TestServer::start_in(dir, &[]);
    let said = refused(dir, &[]);
    let running = format!("{} (process id {})", server.address(), server.pid());
    let named = format!("data folder {} is in use", dir.display());
    assert!(said.contains(&named) && said.contains(&running), "{said}");
    drop(server);

    let mount = folder();
    let Some(disk) = SmallDisk::mount(mount.path(), 64 << 20) else {
        return cannot_test("a read-only folder: a file system cannot be mounted here");
    };
    assert!(TestServer::start_in(&disk.path, &[]).terminate().success());
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.path).status();
    assert!(status.unwrap().success());
    let said = refused(&disk.path, &[]);
    let named = format!("the data folder {} cannot be written to", disk.path.display());
    assert!(said.contains(&named) && said.contains("--data-dir"), "{said}");
}

#[test]
fn a_catalog_on_a_full_disk_refuses_changes_and_goes_on_when_there_is_space() {
    let mount = folder();
    let Some(disk) = SmallDisk::mount(mount.path(), 8 << 20) else {
        return cannot_test("a full disk: a file system cannot be mounted here");
    };
    let there = folder();
    let catalog = disk.path.join("catalog.db");
    let server = TestServer::start_in(there.path(), &["--catalog", catalog.to_str().unwrap()]);
    assert_eq!(add_account(&server, "before").0, 201);
    let login = root_login(there.path());
    let login: Vec<&str> = login.iter().map(String::as_str).collect();
    let ballast = disk.path.join("ballast");
    // As much as there is space for.
    drop(std::fs::write(&ballast, vec![0; 8 << 20]));
    let mut added = 0;
    let (status, said) = loop {
        match add_account(&server, &format!("a{added}")) {
            (201, _) => added += 1,
            refused => break refused,
        }
    };
    assert_eq!(status, 507, "{said}");
    assert!(said.contains("catalog.db is full"), "{said}");
    assert!(readyz(&server, false).contains("catalog"));
    assert_eq!(ask(&server, &[], "/rucio/accounts/before").0, 200, "reads go on");
    for _ in 0..30 {
        let login = ask(&server, &login, "/rucio/auth/userpass");
        assert_eq!(login.0, 200, "logins go on: {}", login.1);
        let (status, said) = ask(&server, &[], "/readyz");
        assert_eq!(status, 503, "it stays full: {said}");
    }
    std::fs::remove_file(&ballast).unwrap();
    readyz(&server, true);
    assert_eq!(add_account(&server, "after").0, 201);
    for name in ["before", "after"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..added).map(|at| format!("a{at}")))
    {
        assert_eq!(ask(&server, &[], &format!("/rucio/accounts/{name}")).0, 200, "{name}");
    }
}

/// The login of root, with the password in `rucio.cfg`.
fn root_login(dir: &Path) -> [String; 4] {
    let config = std::fs::read_to_string(dir.join("rucio.cfg")).unwrap();
    let password = config.lines().find_map(|line| line.strip_prefix("password")).unwrap();
    let password = password.trim_start_matches([' ', '=']).trim();
    let password = format!("X-Rucio-Password: {password}");
    ["-H", "X-Rucio-Username: root", "-H", &password].map(str::to_owned)
}

#[test]
fn a_catalog_that_cannot_be_repaired_is_named_by_check_and_repair() {
    let [one, other] = [(); 2].map(|()| folder());
    for dir in [&one, &other] {
        let server = TestServer::start_in(dir.path(), &[]);
        assert_eq!(add_account(&server, "a").0, 201);
        assert!(server.terminate().success());
    }
    let (dir, catalog) = (one.path(), one.path().join("catalog.db"));
    let said =
        |what: &str| text_of(&offline(&["store", what, "--data-dir", dir.to_str().unwrap()]));
    assert!(said("repair").contains("nothing to repair"));
    let own = std::fs::read(&catalog).unwrap();
    let foreign = std::fs::read(other.path().join("catalog.db")).unwrap();
    // The catalog of another folder, with fewer commits than were acknowledged here or with more.
    for acknowledged in [99, 1] {
        std::fs::write(&catalog, &foreign).unwrap();
        let counter = dir.join("catalog.db.acknowledged");
        let kept = std::fs::read(&counter).unwrap();
        if acknowledged == 1 {
            std::fs::remove_file(&counter).unwrap();
        }
        for what in ["check", "repair"] {
            let said = said(what);
            assert!(said.contains("should belong to catalog"), "{what}: {said}");
            assert!(said.contains("[exit code 1]"), "{what}: {said}");
            assert!(!said.contains("commits are missing"), "{what}: {said}");
        }
        let said = refused(dir, &[]);
        assert!(said.contains("should belong to catalog"), "{said}");
        std::fs::write(&counter, kept).unwrap();
    }
    for (damage, expected) in [(&b"junk"[..], "is damaged"), (b"", "is missing or empty")] {
        std::fs::write(&catalog, damage.repeat(5000)).unwrap();
        for what in ["check", "repair"] {
            let said = said(what);
            assert!(said.contains(expected) && said.contains("[exit code 1]"), "{what}: {said}");
            assert!(said.contains("mainstay restore"), "{what}: {said}");
        }
    }
    let nowhere = dir.join("nowhere.db");
    let given = ["store", "repair", "--catalog", nowhere.to_str().unwrap()];
    let said_of_nowhere = text_of(&offline(&given));
    assert!(said_of_nowhere.contains("there is no rule catalog"), "{said_of_nowhere}");
    std::fs::write(&catalog, own).unwrap();
    assert!(said("repair").contains("nothing to repair"));
}

#[test]
fn a_catalog_deleted_under_a_running_server_turns_it_not_ready() {
    let there = folder();
    let server = TestServer::start_in(there.path(), &[]);
    assert_eq!(add_account(&server, "a").0, 201);
    for file in ["catalog.db", "objects.db"] {
        let (path, aside) = (there.path().join(file), there.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let said = readyz(&server, false);
        assert!(said.contains(file) && said.contains("was deleted"), "{said}");
        std::fs::rename(&aside, &path).unwrap();
        readyz(&server, true);
    }
}

#[test]
fn a_backup_of_a_damaged_catalog_fails_with_the_reason() {
    let there = folder();
    let dir = there.path();
    let server = TestServer::start_in(dir, &[]);
    for at in 0..300 {
        assert_eq!(add_account(&server, &format!("a{at}")).0, 201);
    }
    assert!(server.terminate().success());
    let catalog = dir.join("catalog.db");
    let sql = "SELECT MAX(pageno) FROM dbstat WHERE name = 'accounts'";
    let page = Command::new("sqlite3").arg(&catalog).arg(sql).output();
    let Ok(page) = page else { return cannot_test("damage: there is no sqlite3") };
    let page = String::from_utf8_lossy(&page.stdout).trim().parse::<u64>();
    let Ok(page) = page else { return cannot_test("damage: sqlite3 has no dbstat") };
    let server = TestServer::start_in(dir, &[]);
    let file = std::fs::File::options().write(true).open(&catalog).unwrap();
    file.write_all_at(&[0xff; 4096], (page - 1) * 4096).unwrap();
    let target = dir.join("backup");
    let said = text_of(&server.mainstay(&["backup", target.to_str().unwrap()]));
    assert!(said.contains("catalog.db is damaged") && !said.contains("close_notify"), "{said}");
    assert!(said.contains("[exit code 1]") && !target.exists(), "{said}");
}

#[test]
fn an_empty_account_header_is_named_as_what_is_wrong() {
    let server = TestServer::start();
    let (status, said) = ask(&server, &["-H", "X-Rucio-Account;"], "/rucio/accounts/root");
    assert!(status == 400 && said.contains("X-Rucio-Account is empty"), "{status} {said}");
    assert_eq!(ask(&server, &[], "/rucio/accounts/root").0, 200);
}

#[test]
fn a_backup_is_checked_as_it_comes_in_by_the_standard_input() {
    let server = TestServer::start();
    let backup = server.mainstay(&["backup", "-"]);
    assert!(backup.status.success());
    let check = |bytes: &[u8]| {
        use std::io::Write;
        let mut command = Command::new(MAINSTAY);
        let command = command.args(["backup", "--check", "-"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A check that has seen enough does not read on.
        drop(child.stdin.take().unwrap().write_all(bytes));
        child.wait_with_output().unwrap()
    };
    let whole = check(&backup.stdout);
    let said = text_of(&whole);
    assert!(whole.status.success() && said.starts_with("the standard input: "), "{said}");
    let cut = check(&backup.stdout[..backup.stdout.len() / 2]);
    assert_eq!(cut.status.code(), Some(2), "{}", text_of(&cut));
}

#[test]
fn writes_acknowledged_while_postgresql_crashes_are_all_there_afterwards() {
    const WRITERS: usize = 6;
    const BETWEEN_CRASHES: usize = 20;
    let mut postgres = match PrivatePostgres::start(&[]) {
        Ok(postgres) => postgres,
        Err(why) => return cannot_test(&why),
    };
    postgres.make_schema("crashes").unwrap();
    let there = folder();
    let server = TestServer::start_in(there.path(), &["--catalog", &postgres.url("crashes")]);
    let stop = AtomicBool::new(false);
    let acknowledged = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (server, stop, acknowledged) = (&server, &stop, &acknowledged);
            scope.spawn(move || {
                for at in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("w{writer}x{at}");
                    match add_account(server, &name) {
                        (201, _) => acknowledged.lock().push(name),
                        // The outcome is unknown: the answer is a 503 with this message.
                        (503, _) => {}
                        (status, said) => {
                            stop.store(true, Ordering::Relaxed);
                            panic!("{name}: {status} {said}");
                        }
                    }
                }
            });
        }
        for crash in 0..4 {
            let enough = acknowledged.lock().len() + BETWEEN_CRASHES;
            while acknowledged.lock().len() < enough && !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            if crash < 3 {
                postgres.crash().unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    readyz(&server, true);
    for name in acknowledged.into_inner() {
        let (status, said) = ask(&server, &[], &format!("/rucio/accounts/{name}"));
        assert_eq!(status, 200, "{name} was acknowledged: {said}");
    }
}
