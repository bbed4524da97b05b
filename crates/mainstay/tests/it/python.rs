//! PyPI's `kubernetes` client: list, watch, patch.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{TestServer, cannot_test, text_of};

/// An interpreter that has the client: `cargo xtask test` makes one and names it.
fn python() -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let own = cache.map(|cache| cache.join("mainstay/python/bin/python"));
    let candidates = [set("MAINSTAY_TEST_PYTHON"), own, Some(PathBuf::from("python3"))];
    candidates.into_iter().flatten().find(|python| {
        let output = Command::new(python).args(["-c", "import kubernetes"]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn the_python_client_works_unchanged() {
    let Some(python) = python() else {
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
