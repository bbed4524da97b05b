//! Transactions through the public interface: queue, waiting, watching, planning, parallel execution.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mainstay_graph::{
    Clock, Error, KeySet, Limits, ManualClock, Notification, OnFailure, Options, Retry,
    Transaction, Value, ValueState, WatchEvent,
};
use tokio::sync::Notify;

use crate::south::{Running, Thing};

fn set(key: &str, number: u32) -> Transaction {
    Transaction::new().set_typed(key, Thing::new(number))
}

/// Yields to other tasks until a condition holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_plan_lists_the_operations_of_a_commit_without_running_them() {
    let running = Running::start(Options::default());
    running.engine.commit(set("thing/a", 1)).await.unwrap();
    let before = running.engine.states();
    let change = Transaction::new()
        .set_typed("thing/a", Thing::new(9))
        .set_typed("thing/b", Thing::needing(2, &["thing/a"]));
    let plan: Vec<_> = running
        .engine
        .plan(change.clone())
        .await
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(running.engine.states(), before);
    assert_eq!(running.south.with(|south| south.calls.len()), 1);
    let done = running.engine.commit(change).await.unwrap();
    assert_eq!(done.executed.iter().map(ToString::to_string).collect::<Vec<_>>(), plan);
    assert!(running.engine.plan(Transaction::downstream_resync()).await.unwrap().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn the_queue_is_bounded_and_a_barrier_waits_for_all_of_it() {
    let running = Running::start(Options::default().queue(2));
    let gate = Arc::new(Notify::new());
    running.south.with(|south| south.held.insert("thing/slow".into(), Arc::clone(&gate)));
    running.engine.submit(set("thing/slow", 1)).unwrap();
    let south = running.south.clone();
    until(|| south.with(|south| !south.running.is_empty())).await;
    running
        .engine
        .notify(Notification::new().set("thing/seen", Value::new(Thing::new(3)), None))
        .unwrap();
    running.engine.submit(set("thing/b", 1)).unwrap();
    assert!(matches!(running.engine.submit(set("thing/c", 1)), Err(Error::QueueFull)));
    assert!(matches!(running.engine.notify(Notification::new()), Err(Error::QueueFull)));
    assert_eq!(running.engine.stats().dropped, 2);
    let engine = running.engine.clone();
    let barrier = tokio::spawn(async move { engine.barrier().await });
    let last = Arc::new(Notify::new());
    south.with(|south| south.held.insert("thing/b".into(), Arc::clone(&last)));
    gate.notify_one();
    until(|| south.with(|south| south.running.contains("thing/b"))).await;
    // The transaction that was under way has ended; the queued ones have not.
    assert_eq!(running.engine.status("thing/slow").state, ValueState::Configured);
    assert_eq!(running.engine.status("thing/seen").state, ValueState::Obtained);
    assert!(!barrier.is_finished());
    last.notify_one();
    barrier.await.unwrap().unwrap();
    assert_eq!(running.engine.status("thing/b").state, ValueState::Configured);
    running.stop().await;
}

#[tokio::test]
async fn a_commit_can_wait_until_everything_is_configured() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let running = Running::start(Options::default().clock(clock.clone()));
    let waiting = Transaction::new().set_typed("thing/b", Thing::needing(2, &["thing/a"]));
    let engine = running.engine.clone();
    let patient = waiting.clone();
    let commit = tokio::spawn(async move {
        engine.commit_until_configured(patient, Duration::from_secs(60)).await
    });
    let engine = running.engine.clone();
    until(|| engine.status("thing/b").state == ValueState::Pending).await;
    assert!(!commit.is_finished());
    running.engine.commit(set("thing/a", 1)).await.unwrap();
    assert_eq!(commit.await.unwrap().unwrap().seq, 0);
    let impatient = Transaction::new().set_typed("thing/d", Thing::needing(2, &["thing/c"]));
    let engine = running.engine.clone();
    let commit = tokio::spawn(async move {
        engine.commit_until_configured(impatient, Duration::from_secs(1)).await
    });
    let engine = running.engine.clone();
    until(|| engine.status("thing/d").state == ValueState::Pending).await;
    clock.advance(Duration::from_secs(2));
    assert!(
        matches!(commit.await.unwrap(), Err(Error::NotConfigured { key, .. }) if key == "thing/d")
    );
    running.stop().await;
}

#[tokio::test]
async fn a_watcher_that_falls_behind_gets_the_number_of_missed_changes() {
    let running = Running::start(Options::default());
    let mut watch = running.engine.watch(2, |_| true);
    for number in 0..5 {
        running.engine.commit(set(&format!("thing/{number}"), number)).await.unwrap();
    }
    for expected in ["thing/0", "thing/1"] {
        let Some(WatchEvent::Status(status)) = watch.try_next() else {
            panic!("nothing was heard")
        };
        assert_eq!(status.key.as_str(), expected);
    }
    assert_eq!(watch.try_next(), Some(WatchEvent::Missed(3)));
    running.engine.commit(set("thing/9", 9)).await.unwrap();
    assert!(
        matches!(watch.try_next(), Some(WatchEvent::Status(status)) if &*status.key == "thing/9")
    );
    running.stop().await;
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_long_operation_does_not_hold_up_independent_ones() {
    let running = Running::start(Options::default().parallel(4));
    let gate = Arc::new(Notify::new());
    running.south.with(|south| south.held.insert("thing/a".into(), Arc::clone(&gate)));
    let transaction = Transaction::new()
        .set_typed("thing/a", Thing::new(1))
        .set_typed("thing/b", Thing::needing(2, &["thing/a"]))
        .set_typed("thing/c", Thing::new(3))
        .set_typed("thing/d", Thing::needing(4, &["thing/c"]));
    let engine = running.engine.clone();
    let commit = tokio::spawn(async move { engine.commit(transaction).await });
    let south = running.south.clone();
    until(|| south.with(|south| south.values.contains_key("thing/d"))).await;
    assert_eq!(
        south.with(|south| south.values.keys().cloned().collect::<Vec<_>>()),
        ["thing/c", "thing/d"]
    );
    gate.notify_one();
    let record = commit.await.unwrap().unwrap();
    let keys: Vec<_> = record.executed.iter().map(|one| one.key.as_str()).collect();
    assert_eq!(keys, ["thing/a", "thing/b", "thing/c", "thing/d"], "the record is in order");
    assert!(south.with(|south| south.offences.is_empty()));
    running.stop().await;
}

#[tokio::test]
async fn operations_that_ran_ahead_of_a_failure_are_undone() {
    let running = Running::start(Options::default().parallel(4));
    let gate = Arc::new(Notify::new());
    running.south.with(|south| {
        south.held.insert("thing/a".into(), Arc::clone(&gate));
        south.fail.insert(1, false);
    });
    let transaction =
        Transaction::new().set_typed("thing/a", Thing::new(1)).set_typed("thing/b", Thing::new(2));
    let engine = running.engine.clone();
    let commit = tokio::spawn(async move { engine.apply(transaction).await });
    let south = running.south.clone();
    until(|| south.with(|south| south.values.contains_key("thing/b"))).await;
    gate.notify_one();
    let record = commit.await.unwrap().unwrap();
    assert!(record.reverted);
    let lines = |list: &[mainstay_graph::OperationRecord]| -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    };
    assert!(lines(&record.executed).iter().all(|line| line.contains("thing/a")), "{record:?}");
    assert_eq!(
        lines(&record.ahead),
        ["CREATE thing/b NONEXISTENT>CONFIGURED", "DELETE thing/b CONFIGURED>NONEXISTENT REVERT"]
    );
    assert!(south.values().is_empty());
    assert!(running.engine.states().is_empty());
    assert!(running.engine.indexes().lookup("thing-numbers", "b").is_none());
    running.stop().await;
}

#[tokio::test]
async fn an_operation_that_exceeds_its_timeout_is_cancelled() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let running = Running::start(Options::default().clock(clock.clone()));
    running.south.with(|south| south.held.insert("thing/a".into(), Arc::new(Notify::new())));
    let engine = running.engine.clone();
    let transaction = set("thing/a", 1).operation_timeout(Duration::from_secs(5));
    let commit = tokio::spawn(async move { engine.apply(transaction).await });
    let south = running.south.clone();
    until(|| south.with(|south| !south.running.is_empty())).await;
    clock.advance(Duration::from_secs(5));
    let record = commit.await.unwrap().unwrap();
    assert!(record.errors[0].error.contains("timed out"), "{record:?}");
    running.stop().await;
}

#[tokio::test]
async fn history_is_bounded_by_count_and_bytes() {
    let history = Limits::default().transactions(3);
    let running = Running::start(Options::default().history(history));
    for number in 0..10 {
        running.engine.commit(set("thing/a", number * 10)).await.unwrap();
    }
    let seqs: Vec<_> = running.engine.history(None, None).iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [7, 8, 9]);
    running.stop().await;
    let running = Running::start(Options::default().history(Limits::default().bytes(4_000)));
    for number in 0..50 {
        running.engine.commit(set("thing/a", number * 10)).await.unwrap();
    }
    assert!(running.engine.history(None, None).len() < 10);
    running.stop().await;
}

#[tokio::test]
async fn timeline_snapshot_and_roll_back_go_to_any_moment() {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let running = Running::start(Options::default().clock(clock.clone()));
    let engine = &running.engine;
    for change in [
        set("thing/a", 1).set_typed("thing/b", Thing::new(2)),
        set("thing/a", 3),
        Transaction::new().delete("thing/a"),
    ] {
        clock.advance(Duration::from_secs(10));
        engine.commit(change).await.unwrap();
    }
    let numbers: Vec<_> = engine
        .timeline("thing/a", None)
        .unwrap()
        .iter()
        .map(|one| one.value.clone().unwrap().get::<Thing>().unwrap().number)
        .collect();
    assert_eq!(numbers, [1, 3]);
    let second = engine.transaction(1).unwrap();
    assert_eq!(engine.timeline("thing/a", Some(second.stop)).unwrap().len(), 1);
    assert_eq!(engine.snapshot(second.stop).unwrap().len(), 2);
    let before = engine.snapshot("2025-12-31T00:00:00Z".parse().unwrap());
    assert!(matches!(before, Err(Error::History(_))), "it did not exist then");
    assert_eq!(engine.snapshot(engine.now()).unwrap().len(), 1);
    clock.advance(Duration::from_secs(10));
    engine.roll_back_to(1).await.unwrap();
    assert_eq!(running.south.values()["thing/a"].number, 3);
    engine.roll_back_to(0).await.unwrap();
    assert_eq!(running.south.values()["thing/a"].number, 1);
    assert!(matches!(engine.roll_back_to(77).await, Err(Error::Unknown(_))));
    running.stop().await;
}

#[tokio::test]
async fn user_labels_are_kept_and_shown() {
    let running = Running::start(Options::default());
    let labels = [("team".to_owned(), "storage".to_owned())].into();
    running.engine.commit(set("thing/a", 1).labels("thing/a", labels)).await.unwrap();
    assert_eq!(running.engine.status("thing/a").labels["team"], "storage");
    running.stop().await;
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_invalid_with_a_reason() {
    let running = Running::start(Options::default());
    let wrong = Transaction::new()
        .set("thing/a", serde_json::json!({"number": "x"}))
        .on_failure(OnFailure::BestEffort);
    running.engine.apply(wrong).await.unwrap();
    let status = running.engine.status("thing/a");
    assert_eq!(status.state, ValueState::Invalid);
    assert!(status.error.unwrap().contains("not a value of thing"));
    let right = serde_json::json!({"number": 1, "needs": [], "parts": {}});
    running.engine.commit(Transaction::new().set("thing/a", right)).await.unwrap();
    assert_eq!(running.south.values()["thing/a"], Thing::new(1));
    running.stop().await;
}

#[tokio::test]
async fn a_chain_of_a_hundred_thousand_is_created_and_deleted() {
    let size = 100_000_u32;
    let running = Running::start(Options::default().history(Limits::off()));
    let chain = (1..size).fold(Transaction::new(), |transaction, number| {
        let before = format!("thing/{:06}", number - 1);
        transaction.set_typed(format!("thing/{number:06}"), Thing::needing(number, &[&before]))
    });
    running.engine.commit(chain).await.unwrap();
    let record = running.engine.commit(set("thing/000000", 0)).await.unwrap();
    assert_eq!(record.executed.len(), size as usize);
    let record = running.engine.commit(Transaction::new().delete("thing/000000")).await.unwrap();
    assert_eq!(record.executed.len(), size as usize);
    assert!(running.south.values().is_empty());
    running.stop().await;
}

#[tokio::test]
async fn queued_requests_fail_when_the_engine_stops() {
    let running = Running::start(Options::default());
    let engine = running.engine.clone();
    running.stop().await;
    assert!(matches!(engine.commit(set("thing/a", 1)).await, Err(Error::Stopped)));
    assert!(matches!(engine.barrier().await, Err(Error::Stopped)));
}

#[tokio::test]
async fn retry_options_apply_to_their_own_transaction_only() {
    let running = Running::start(Options::default());
    running.south.with(|south| south.fail.insert(1, false));
    let retried =
        set("thing/a", 1).retry(Retry::every(Duration::from_millis(1)).max(1).backoff(false));
    let mut watch = running.engine.watch(8, |_| true);
    running.engine.apply(retried.on_failure(OnFailure::BestEffort)).await.unwrap();
    let mut states = KeySet::new();
    while !states.contains(&ValueState::Configured) {
        if let Some(WatchEvent::Status(status)) = watch.next().await {
            states.add(status.state);
        }
    }
    assert!(states.contains(&ValueState::Retrying));
    running.stop().await;
}

/// A clock that moves by a millisecond whenever it is read.
#[derive(Debug)]
struct Hurrying(Arc<ManualClock>);

impl Clock for Hurrying {
    fn now(&self) -> jiff::Timestamp {
        self.0.advance(Duration::from_millis(1));
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

#[tokio::test]
async fn retries_that_are_always_due_do_not_starve_transactions() {
    let clock = ManualClock::new("2026-01-31T12:00:00Z".parse().unwrap());
    let running = Running::start(Options::default().clock(Arc::new(Hurrying(clock))));
    running.south.with(|south| {
        south.fail_on.insert(("create", "thing/bad".into()));
        // Ends the test if the transactions below never get their turn.
        south.patience = 500;
    });
    let retry = Retry::every(Duration::from_millis(1)).max(0).backoff(false);
    let bad = set("thing/bad", 1).on_failure(OnFailure::BestEffort).retry(retry);
    running.engine.apply(bad).await.unwrap();
    let retried = || running.south.with(|south| south.calls.len());
    until(|| retried() > 10).await;
    for number in 0..10 {
        running.engine.commit(set(&format!("thing/good{number}"), number)).await.unwrap();
    }
    let before = retried();
    assert!(before < 300, "the transactions waited for {before} operations");
    until(|| retried() > before + 10).await;
    running.stop().await;
}
