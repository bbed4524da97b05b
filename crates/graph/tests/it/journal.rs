//! Restarts with a journal.

use std::sync::Arc;
use std::time::Duration;

use mainstay_graph::journal::{Entry, Journal, replay};
use mainstay_graph::{
    FileJournal, ManualClock, OnFailure, Options, Retry, Transaction, ValueState,
};
use tokio::sync::Notify;

use crate::south::{Running, South, Thing};

fn journalled(path: &std::path::Path) -> Options {
    Options::default().journal(FileJournal::open(path).unwrap())
}

#[tokio::test]
async fn wanted_values_and_history_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let running = Running::start(journalled(&path));
    let wanted = Transaction::new()
        .set_typed("thing/a", Thing::new(1))
        .set_typed("thing/b", Thing::needing(2, &["thing/none"]));
    running.engine.commit(wanted).await.unwrap();
    let south = running.south.clone();
    running.stop().await;
    south.with(|south| south.values.remove("thing/a"));
    let running = Running::over(south.clone(), journalled(&path));
    running.engine.barrier().await.unwrap();
    assert_eq!(south.values()["thing/a"], Thing::new(1), "the resync brought it back");
    assert_eq!(running.engine.status("thing/b").state, ValueState::Pending);
    let seqs: Vec<_> = running.engine.history(None, None).iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [0, 1]);
    running.stop().await;
}

#[tokio::test]
async fn an_interrupted_operation_is_uncertain_and_retrieved_first() {
    for (on_failure, kept) in [(OnFailure::Revert, false), (OnFailure::BestEffort, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let running = Running::start(journalled(&path));
        running.south.with(|south| south.held.insert("thing/a".into(), Arc::new(Notify::new())));
        running
            .engine
            .submit(Transaction::new().set_typed("thing/a", Thing::new(1)).on_failure(on_failure))
            .unwrap();
        while running.south.with(|south| south.running.is_empty()) {
            tokio::task::yield_now().await;
        }
        running.kill().await;
        let recovered = replay(FileJournal::open(&path).unwrap().load().unwrap());
        assert_eq!(recovered.interrupted, Some(0));
        assert_eq!(recovered.uncertain.len(), 1);
        // The operation took effect after all.
        let south = South::default();
        south.with(|south| south.values.insert("thing/a".into(), Thing::new(1)));
        let running = Running::over(south.clone(), journalled(&path));
        running.engine.barrier().await.unwrap();
        let status = running.engine.status("thing/a");
        assert!(!status.uncertain);
        assert_eq!(south.values().contains_key("thing/a"), kept);
        assert!(!south.with(|south| south.calls.iter().any(|call| call.starts_with("create"))));
        running.stop().await;
    }
}

#[tokio::test]
async fn a_journal_cut_at_any_byte_replays_to_an_earlier_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let running = Running::start(journalled(&path));
    let mut states = vec!["{}".to_owned()];
    for number in 0..6_u32 {
        let change = Transaction::new()
            .set_typed(format!("thing/{}", number % 3), Thing::new(number))
            .on_failure(OnFailure::Revert);
        running.engine.commit(change).await.unwrap();
        let copy = folder.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        let recovered = replay(FileJournal::open(&copy).unwrap().load().unwrap());
        states.push(serde_json::to_string(&recovered.desired).unwrap());
    }
    running.stop().await;
    let bytes = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut");
    let mut reached = 0;
    // The first entry is flushed before the file gets its name.
    let head: [u8; 4] = bytes[..4].try_into().unwrap();
    let first = 8 + u32::from_le_bytes(head) as usize;
    for length in first..=bytes.len() {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let mut journal = FileJournal::open(&cut).unwrap();
        let state = serde_json::to_string(&replay(journal.load().unwrap()).desired).unwrap();
        let position = states.iter().position(|known| *known == state);
        let position = position.unwrap_or_else(|| panic!("cut at {length}: {state}"));
        assert!(position >= reached, "cut at {length}");
        reached = position;
        if length % 97 == 0 {
            let entry =
                Entry::Begin { seq: 77, reverts: true, changes: Vec::new(), parts: Vec::new() };
            journal.append(&entry, true).unwrap();
            drop(journal);
            let again = replay(FileJournal::open(&cut).unwrap().load().unwrap());
            assert_eq!(again.interrupted, Some(77), "what is written after a repair is found");
        }
    }
    assert_eq!(reached, states.len() - 1);
}

#[tokio::test]
async fn a_compacted_journal_replays_to_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let running = Running::start(
        journalled(&path).history(mainstay_graph::Limits::default().transactions(5)),
    );
    let mut big = Thing::new(0);
    big.needs = vec![];
    big.parts = (0..2_000).map(|number| (format!("part-{number}"), Vec::new())).collect();
    for number in 0..12 {
        big.number = number * 10;
        running.engine.commit(Transaction::new().set_typed("thing/a", big.clone())).await.unwrap();
    }
    running.stop().await;
    let recovered = replay(FileJournal::open(&path).unwrap().load().unwrap());
    assert_eq!(recovered.next_seq, 12);
    assert_eq!(recovered.desired.len(), 1);
    let mut entries = FileJournal::open(&path).unwrap().load().unwrap().into_iter();
    assert!(matches!(entries.next(), Some(Entry::Snapshot(_))), "it was never compacted");
}

/// The operations of the last transaction that are marked as reverts.
fn last_reverts(running: &Running) -> Vec<String> {
    let last = running.engine.history(None, None).pop().unwrap();
    let reverts = last.executed.iter().filter(|one| one.flags.revert);
    reverts.map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_failed_revert_is_still_a_revert_after_a_restart() {
    let set = |key| Transaction::new().set_typed(key, Thing::new(1));
    let deletion = set("thing/b").delete("thing/a").retry(Retry::default());
    let creation = set("thing/b").set_typed("thing/a", Thing::new(1)).retry(Retry::default());
    let resumed = "CREATE thing/a NONEXISTENT>RETRYING REVERT !operation 5 failed";
    let retried = "CREATE thing/a RETRYING>CONFIGURED REVERT RETRY";
    let removed = "DELETE thing/a DISCOVERED>REMOVED REVERT";
    for (before, reverted, fail, resumed, retried, left) in [
        (Some(set("thing/a")), deletion, &[3, 4, 5][..], resumed, retried, true),
        (None, creation, &[2, 3], removed, removed, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let running = Running::start(journalled(&path).clock(clock.clone()));
        running.south.with(|south| south.fail = fail.iter().map(|one| (*one, false)).collect());
        if let Some(transaction) = before {
            running.engine.commit(transaction).await.unwrap();
        }
        let record = running.engine.apply(reverted).await.unwrap();
        assert!(record.reverted);
        let south = running.south.clone();
        running.kill().await;
        let running = Running::over(south.clone(), journalled(&path).clock(clock.clone()));
        running.engine.barrier().await.unwrap();
        assert_eq!(last_reverts(&running), [resumed]);
        clock.advance(Duration::from_secs(1));
        running.engine.barrier().await.unwrap();
        assert_eq!(last_reverts(&running), [retried]);
        assert_eq!(south.values().contains_key("thing/a"), left);
        running.stop().await;
    }
}

#[tokio::test]
async fn a_retry_without_a_resync_is_still_a_revert_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let running = Running::start(journalled(&path).clock(clock.clone()));
    running.south.with(|south| south.fail = [(3, false), (4, false)].into());
    let first = Transaction::new().set_typed("thing/a", Thing::new(1));
    running.engine.commit(first).await.unwrap();
    let second = Transaction::new().delete("thing/a").set_typed("thing/b", Thing::new(2));
    running.engine.apply(second.retry(Retry::default())).await.unwrap();
    let south = running.south.clone();
    running.stop().await;
    let options = journalled(&path).clock(clock.clone()).resync_on_start(false);
    let running = Running::over(south, options);
    running.engine.barrier().await.unwrap();
    clock.advance(Duration::from_secs(1));
    running.engine.barrier().await.unwrap();
    assert_eq!(last_reverts(&running), ["CREATE thing/a NONEXISTENT>CONFIGURED REVERT RETRY"]);
    running.stop().await;
}

#[tokio::test]
async fn retry_options_survive_a_restart_and_a_resync() {
    for killed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
        let running = Running::start(journalled(&path).clock(clock.clone()));
        let south = running.south.clone();
        south.with(|south| south.fail = (1..=4).map(|one| (one, false)).collect());
        let mut retry = Retry::default();
        (retry.period, retry.max, retry.backoff) = (Duration::from_secs(2), 10, false);
        let change = Transaction::new()
            .set_typed("thing/a", Thing::new(1))
            .on_failure(OnFailure::BestEffort)
            .retry(retry);
        running.engine.apply(change).await.unwrap();
        let state = |running: &Running| running.engine.status("thing/a").state;
        assert_eq!(state(&running), ValueState::Retrying);
        if killed {
            running.kill().await
        } else {
            running.stop().await
        }
        let running = Running::over(south.clone(), journalled(&path).clock(clock.clone()));
        running.engine.barrier().await.unwrap();
        assert_eq!(state(&running), ValueState::Retrying, "after the restart");
        running.engine.apply(Transaction::downstream_resync()).await.unwrap();
        assert_eq!(state(&running), ValueState::Retrying, "after a resync");
        for expected in [ValueState::Retrying, ValueState::Configured] {
            clock.advance(Duration::from_secs(2));
            running.engine.barrier().await.unwrap();
            assert_eq!(state(&running), expected);
        }
        running.stop().await;
    }
}
