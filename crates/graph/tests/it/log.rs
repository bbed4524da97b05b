//! The transaction log: its text, and that the plan is on disk before anything is done.

use std::fs::File;

use mainstay_graph::{ManualClock, Notification, OnFailure, Options, Retry, Transaction, Value};

use crate::south::{Running, Thing};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/transactions.log");

/// A few transactions that cover every part of the log.
async fn story(running: &Running, clock: &ManualClock) {
    let mut base = Thing::new(1);
    base.parts.insert("x".into(), Vec::new());
    let first = Transaction::new()
        .set_typed("thing/a", base)
        .set_typed("thing/b", Thing::needing(2, &["thing/a"]))
        .set_typed("thing/c", Thing::needing(3, &["thing/none"]))
        .set("unknown/u", serde_json::json!({}))
        .description("example transaction\nin two lines");
    running.engine.commit(first).await.unwrap();
    let changes = Transaction::new()
        .set_typed("thing/a", Thing::new(9))
        .delete("thing/c")
        .on_failure(OnFailure::BestEffort);
    running.engine.commit(changes).await.unwrap();
    let seen = Notification::new().set("thing/none", Value::new(Thing::new(4)), None);
    running.engine.notify(seen).unwrap();
    running.engine.barrier().await.unwrap();
    running.south.with(|south| {
        south.fail_on.insert(("create", "thing/e".into()));
        south.fail_on.insert(("create", "thing/f".into()));
    });
    let reverted =
        Transaction::new().set_typed("thing/b", Thing::new(5)).set_typed("thing/e", Thing::new(6));
    running.engine.apply(reverted).await.unwrap();
    let retried = Transaction::new()
        .set_typed("thing/f", Thing::new(7))
        .on_failure(OnFailure::BestEffort)
        .retry(Retry::default());
    running.engine.apply(retried).await.unwrap();
    running.south.with(|south| south.fail_on.clear());
    clock.advance(std::time::Duration::from_millis(1_500));
    while running.engine.status("thing/f").error.is_some() {
        tokio::task::yield_now().await;
    }
    running.south.with(|south| south.values.remove("thing/b"));
    running.engine.commit(Transaction::downstream_resync()).await.unwrap();
}

#[tokio::test]
async fn the_log_matches_the_golden_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let clock = ManualClock::new("2026-01-31T12:00:00Z".parse().unwrap());
    let running =
        Running::start(Options::default().clock(clock.clone()).log(File::create(&path).unwrap()));
    story(&running, &clock).await;
    running.stop().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let rules = text.lines().filter(|line| line.starts_with(['+', '|', 'o', 'x']));
    assert!(rules.clone().all(|line| line.len() == 120), "a rule is not 120 wide");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    for (found, expected) in text.lines().zip(golden.lines()) {
        assert_eq!(found, expected, "UPDATE_GOLDEN=1 rewrites {GOLDEN}");
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}

/// Runs this test again in a child process that an operation aborts.
#[tokio::test]
async fn an_operation_that_aborts_the_process_leaves_its_plan_in_the_log() {
    if let Some(path) = std::env::var_os("MAINSTAY_GRAPH_ABORTS") {
        let log = File::create(path).unwrap();
        let running = Running::start(Options::default().log(log));
        running.south.with(|south| south.aborts = true);
        let doomed = Transaction::new()
            .set_typed("thing/a", Thing::new(1))
            .set_typed("thing/b", Thing::needing(2, &["thing/a"]))
            .description("the last one");
        let _ = running.engine.commit(doomed).await;
        unreachable!("the operation ended");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let name = "log::an_operation_that_aborts_the_process_leaves_its_plan_in_the_log";
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env("MAINSTAY_GRAPH_ABORTS", &path)
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!ended.success());
    let text = std::fs::read_to_string(&path).unwrap();
    for line in [
        "      - Description: the last one",
        "  * planned operations:",
        "      1. CREATE:",
        "          - key: thing/a",
        "      2. CREATE:",
        "          - key: thing/b",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("executed operations"));
}
