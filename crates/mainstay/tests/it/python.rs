//! PyPI's clients: `kubernetes` (list, watch, patch) and `rucio-clients`.

use std::path::PathBuf;
use std::process::Command;

use mainstay_catalog::private_postgres::PrivatePostgres;

use crate::process::{TestServer, cannot_test, folder, text_of};

/// An interpreter that has the client: `cargo xtask test` makes one and names it.
fn python(package: &str) -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let own = cache.map(|cache| cache.join("mainstay/python/bin/python"));
    let candidates = [set("MAINSTAY_TEST_PYTHON"), own, Some(PathBuf::from("python3"))];
    candidates.into_iter().flatten().find(|python| {
        let output = Command::new(python).args(["-c", &format!("import {package}")]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn the_python_client_works_unchanged() {
    let Some(python) = python("kubernetes") else {
        return cannot_test(
            "PyPI's kubernetes client: it is not installed (`cargo xtask test` does that)",
        );
    };
    let server = TestServer::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python_client.py");
    let output = server.client(&python.display().to_string()).arg(script).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(text_of(&output).ends_with("all is well\n"), "{}", text_of(&output));
}

/// The whole life of every resource with Rucio's own client, and the file the server wrote for it.
fn rucio_works_unchanged(arguments: &[&str]) {
    let Some(python) = python("rucio.client") else {
        return cannot_test(
            "PyPI's rucio-clients: it is not installed (`cargo xtask test` does that)",
        );
    };
    let (data, own) = (folder(), folder());
    let root = own.path().display().to_string();
    let words = ["--only", "rules", "--transfer-workers", "0", "--storage-root", &root];
    let server = TestServer::start_in(data.path(), &[&words[..], arguments].concat());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rucio_client.py");
    let output = server
        .client(&python.display().to_string())
        .arg(script)
        .env("RUCIO_CONFIG", data.path().join("rucio.cfg"))
        .env("FOLDER", own.path())
        // Where the client keeps its tokens.
        .env("TMPDIR", own.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(text_of(&output).contains("all is well\n"), "{}", text_of(&output));
    let check = server.mainstay(&["rules", "check"]);
    assert_eq!(check.status.code(), Some(0), "{}", text_of(&check));
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn rucios_own_client_works_unchanged_on_sqlite() {
    rucio_works_unchanged(&[]);
}

#[test]
fn rucios_own_client_works_unchanged_on_postgresql() {
    let database = match PrivatePostgres::start(&["fsync=off"]) {
        Ok(database) => database,
        Err(why) => return cannot_test(&format!("the client on PostgreSQL: {why}")),
    };
    database.make_schema("rucio").unwrap();
    rucio_works_unchanged(&["--catalog", &database.url("rucio")]);
}
