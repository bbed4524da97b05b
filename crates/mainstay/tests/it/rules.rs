//! The rule engine in a server: the walk-through as it is printed, and servers that are killed while
//! their database is restarted under them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mainstay_catalog::Catalog;
use mainstay_catalog::private_postgres::PrivatePostgres;

use crate::process::{MAINSTAY, TestServer, cannot_test, folder};

/// The commands of the first block of a page, without their prompts.
fn commands(page: &str) -> String {
    let block = page.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = block.expect("a block of commands").lines();
    lines.filter_map(|line| line.strip_prefix("$ ")).collect::<Vec<_>>().join("\n")
}

pub(crate) fn run(server: &TestServer, arguments: &[&str]) -> (Option<i32>, String) {
    let output = server.mainstay(&[&["rules"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
pub(crate) fn must(server: &TestServer, line: &str) -> String {
    let (code, text) = run(server, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{line}: {text}");
    text
}

#[test]
fn the_walk_through_works_when_it_is_copied() {
    let server = TestServer::start();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let script = commands(&std::fs::read_to_string(page).unwrap());
    let own = Path::new(MAINSTAY).parent().unwrap().display().to_string();
    let path = format!("{own}:{}", std::env::var("PATH").unwrap_or_default());
    let output = server
        .client("sh")
        .args(["-e", "-x", "-c", &script])
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{talk}");
    for part in ["QUEUED", "4 ok, 0 replicating, 0 stuck: OK", "SITE-B"] {
        assert!(said.contains(part), "{part} is not in\n{said}\n{talk}");
    }
    // Commands on the catalog itself see the same data as those through the server.
    let catalog = server.kubeconfig().with_file_name("catalog.db");
    drop(server.mainstay(&["rules", "did", "show", "user.alice:ds1"]));
    let local = Command::new(MAINSTAY)
        .args(["rules", "check", "--catalog"])
        .arg(&catalog)
        .env("HOME", folder().path())
        .output()
        .unwrap();
    assert_eq!(local.status.code(), Some(0), "{}", String::from_utf8_lossy(&local.stdout));
}

#[test]
fn viewers_cannot_change_rules() {
    let server = TestServer::start();
    must(&server, "rse add SITE-A");
    let token = server.mainstay(&["token", "create", "--role", "viewer"]).stdout;
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    let (code, text) = run(&server, &["--token", &token, "rse", "list"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&server, &["--token", &token, "rse", "add", "SITE-B"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("AccessDenied"), "{text}");
    // A worker that is not allowed, or not known, ends and says why.
    for token in [&*token, "nobody"] {
        let output = server.mainstay(&["transfer-worker", "--token", token, "--log", "error"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("the server refuses transfer worker"), "{text}");
    }
    assert_eq!(server.terminate().code(), Some(0));
}

/// A number that differs from the last.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 40).unwrap_or(0)
}

/// One person at a server that comes and goes: what cannot be done now is not done.
fn session(kubeconfig: &Path, seed: u64, done: &AtomicUsize, over: &AtomicBool) {
    let mut state = seed;
    let mut rules: Vec<String> = Vec::new();
    while !over.load(Ordering::Acquire) {
        let dataset = format!("s:d{}", next(&mut state) % 3);
        let file = format!("s:f{}", next(&mut state) % 12);
        let copies = (1 + next(&mut state) % 2).to_string();
        let grouping = ["ALL", "DATASET", "NONE"][next(&mut state) % 3];
        let site = ["SITE-A", "SITE-B", "SITE-C"][next(&mut state) % 3];
        let rule = rules.get(next(&mut state) % rules.len().max(1)).cloned().unwrap_or_default();
        let words: Vec<&str> = match next(&mut state) % 6 {
            0 | 1 => {
                vec!["add", &dataset, "--copies", &copies, "-e", "tier=1", "--grouping", grouping]
            }
            2 => vec!["did", "attach", &dataset, &file],
            3 => vec!["did", "detach", &dataset, &file],
            4 => vec!["transfer", "done", site, &file],
            _ => vec!["delete", &rule],
        };
        let output = Command::new(MAINSTAY)
            .arg("rules")
            .args(&words)
            .args(["--request-timeout", "20s"])
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if words[0] == "add" && output.status.success() {
            rules.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        done.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn a_server_whose_database_does_not_answer_ends_all_the_same() {
    let database = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(database) => database,
        Err(why) => return cannot_test(&format!("a database that does not answer: {why}")),
    };
    database.make_schema("mute").unwrap();
    let (url, disk) = (database.url("mute"), folder());
    let server = TestServer::start_in(disk.path(), &["--only", "rules", "--catalog", &url]);
    let server = Mutex::new(Some(server));
    let catalog = Catalog::open_blocking(&url).unwrap();
    // This lock keeps the server from removing itself from the list of live servers.
    let held = catalog.write_blocking(|tx| -> mainstay_catalog::Result<_> {
        tx.execute("LOCK TABLE judges IN ACCESS EXCLUSIVE MODE", &[])?;
        Ok(server.lock().unwrap().take().map(TestServer::terminate))
    });
    assert_eq!(held.unwrap().and_then(|status| status.code()), Some(1));
}

#[test]
fn progress_goes_to_stderr_and_a_stuck_rule_is_a_failure() {
    let server = TestServer::start();
    for line in [
        "rse add SITE-A",
        "rse add SITE-B",
        "rse add SITE-C",
        "account scope root s",
        "quota set root SITE-A -1",
        "quota set root SITE-B -1",
        "replica add SITE-A s:f:100",
    ] {
        must(&server, line);
    }
    for (expression, more, code, said) in [
        ("SITE-A", "", 0, "1 ok, 0 replicating, 0 stuck: OK"),
        ("SITE-B", "--timeout 1", 1, "0 ok, 1 replicating, 0 stuck: REPLICATING"),
        ("SITE-C", "--ask-approval", 1, "WAITING_APPROVAL"),
        ("SITE-A|SITE-C", "--ask-approval", 1, "InvalidReplicationRule"),
    ] {
        let line = format!("rules add s:f --wait -e {expression} {more}");
        let output = server.mainstay(&line.split_whitespace().collect::<Vec<_>>());
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {talk}");
        assert!(talk.contains(said), "{line}: {talk}");
        let data = String::from_utf8_lossy(&output.stdout);
        assert!(data.is_empty() || data.trim().len() == 32, "{line}: {data}");
    }
    let (_, listed) = run(&server, &["list", "-o", "json"]);
    assert_eq!(listed.matches("rse_expression").count(), 3, "{listed}");
}

#[test]
fn a_flood_of_wrong_logins_makes_no_administrator_wait() {
    let here = folder();
    let arguments = ["--plain-http", "--only", "rules", "--log", "error"];
    let server = TestServer::start_in(here.path(), &arguments);
    let address = server.address();
    let host = address.strip_prefix("http://").unwrap();
    let kubeconfig = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    let login = "GET /rucio/auth/userpass HTTP/1.1\r\nhost: x\r\nx-rucio-account: root\r\nx-rucio-username: root\r\nx-rucio-password: wrong\r\n\r\n";
    let flood: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(host).unwrap();
            stream.write_all(login.repeat(20).as_bytes()).unwrap();
            stream
        })
        .collect();
    let asked = format!(
        "GET /api/v1/namespaces/default HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    for _ in 0..50 {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(asked.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(flood);
}

#[test]
fn a_database_that_stops_makes_the_server_not_ready_and_is_named() {
    let database = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(database) => database,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "PostgreSQL is needed: {why}");
            eprintln!("!!! NOT TESTED: {why}");
            return;
        }
    };
    // The process that accepts connections, and those that serve them.
    let signal = |name: &str| {
        let pid = std::fs::read_to_string(database.folder().join("data/postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().to_owned();
        let all = format!("kill -{name} {pid} $(pgrep -P {pid})");
        assert!(Command::new("sh").args(["-c", &all]).status().unwrap().success(), "{all}");
    };
    database.make_schema("ready").unwrap();
    let (here, catalog) = (folder(), database.url("ready"));
    let server = TestServer::start_in(here.path(), &["--only", "rules", "--catalog", &catalog]);
    let probe = |wanted: &str| loop {
        let url = format!("{}/readyz?verbose", server.address());
        let authority = here.path().join("ca.crt");
        let output = Command::new("curl").args(["-sS", &url, "--cacert"]).arg(authority).output();
        let text = String::from_utf8_lossy(&output.expect("curl is needed").stdout).into_owned();
        if text.contains(wanted) {
            return text;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    probe("[+]catalog ok\n");
    signal("STOP");
    let text = probe("[-]catalog failed: PostgreSQL: ");
    assert!(text.contains("[+]store ok\n"), "{text}");
    assert!(text.ends_with("readyz check failed\n"), "{text}");
    signal("CONT");
    probe("readyz check passed\n");
    // A database that is gone is named with the error of the connection.
    signal("KILL");
    probe("[-]catalog failed: PostgreSQL: the catalog's database cannot be reached: ");
}

#[test]
fn servers_killed_on_a_database_restarted_leave_the_catalog_right() {
    let mut database = match PrivatePostgres::start(&["fsync=off", "max_connections=100"]) {
        Ok(database) => database,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "PostgreSQL is needed: {why}");
            eprintln!("!!! NOT TESTED: {why}");
            return;
        }
    };
    database.make_schema("shared").unwrap();
    let catalog = database.url("shared");
    let (here, there) = (folder(), folder());
    let start = |at: &Path| {
        TestServer::start_in(at, &["--only", "rules", "--catalog", &catalog, "--log", "error"])
    };
    let mut servers = vec![start(here.path()), start(there.path())];
    for line in [
        "rse add SITE-A",
        "rse add SITE-B",
        "rse add SITE-C",
        "rse set SITE-A tier=1",
        "rse set SITE-B tier=1",
        "rse set SITE-C tier=1",
        "account scope root s",
        "quota set root SITE-A -1",
        "quota set root SITE-B 100000",
        "quota set root SITE-C -1",
        "did add s:d0",
        "did add s:d1",
        "did add s:d2",
    ] {
        must(&servers[0], line);
    }
    let files: Vec<String> = (0..12).map(|at| format!("s:f{at}:{}", 100 + at)).collect();
    must(&servers[1], &format!("replica add SITE-A {}", files.join(" ")));
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let after = |more: usize| {
        let until = done.load(Ordering::Acquire) + more;
        while done.load(Ordering::Acquire) < until {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for (seed, at) in [(1, here.path()), (2, there.path()), (3, here.path())] {
            let (kubeconfig, done, over) = (at.join("kubeconfig"), &done, &over);
            scope.spawn(move || session(&kubeconfig, seed, done, over));
        }
        for round in 0..4 {
            after(6);
            match round % 3 {
                0 => {
                    servers.remove(0).kill();
                    servers.insert(0, start(here.path()));
                }
                1 => database.crash().unwrap(),
                _ => {
                    database.crash().unwrap();
                    servers.remove(1).kill();
                    after(1);
                    servers.push(start(there.path()));
                }
            }
        }
        after(12);
        over.store(true, Ordering::Release);
    });
    // The judges may still be at what was left; by hand it is done now.
    must(&servers[0], "judge evaluator --once");
    must(&servers[1], "judge evaluator --once");
    let (code, found) = run(&servers[0], &["check"]);
    assert_eq!(code, Some(0), "{found}");
    let log = std::fs::read_to_string(database.folder().join("log")).unwrap_or_default();
    assert!(!log.contains("deadlock detected"), "{log}");
    for server in servers {
        assert_eq!(server.terminate().code(), Some(0));
    }
}
