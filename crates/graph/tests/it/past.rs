//! The past over restarts: roll back, snapshot, timeline, `graph?txn=`, compaction, group commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay_graph::journal::{self, Entry, Journal, replay};
use mainstay_graph::{Error, FileJournal, Limits, ManualClock, Options, Transaction, ValueState};

use crate::south::{Running, South, Thing};

fn start() -> Arc<ManualClock> {
    ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap())
}

fn set(key: &str, number: u32) -> Transaction {
    Transaction::new().set_typed(key, Thing::new(number))
}

fn options(path: &std::path::Path, clock: &Arc<ManualClock>) -> Options {
    Options::default().journal(FileJournal::open(path).unwrap()).clock(clock.clone())
}

async fn restart(running: Running, path: &std::path::Path, clock: &Arc<ManualClock>) -> Running {
    let south = running.south.clone();
    running.stop().await;
    let running = Running::over(south, options(path, clock));
    running.engine.barrier().await.unwrap();
    running
}

/// The past as readers see it. The end of a revision is left out: the resync of a restart is a
/// change.
fn past(running: &Running, until: jiff::Timestamp) -> String {
    let engine = &running.engine;
    let mut snapshot = engine.snapshot(until).unwrap();
    snapshot.iter_mut().for_each(|one| one.until = None);
    let snapshot = serde_json::to_string_pretty(&snapshot).unwrap();
    let picture = engine.picture(Some(1)).unwrap().dot();
    let drawn: Vec<&str> = picture.lines().filter(|line| !line.contains("pid ")).collect();
    let history = engine.history(None, Some(until));
    format!("{snapshot}\n{}\n{}", drawn.join("\n"), serde_json::to_string_pretty(&history).unwrap())
}

#[tokio::test]
async fn the_past_is_the_same_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = start();
    let mut running = Running::start(options(&path, &clock));
    let mut base = Thing::needing(1, &["thing/b"]);
    base.parts.insert("x".into(), vec!["thing/none".into()]);
    base.parts.insert("y".into(), Vec::new());
    let labels = [("team".to_owned(), "blue".to_owned())].into();
    for change in [
        Transaction::new().set_typed("thing/a", base).labels("thing/a", labels),
        set("thing/b", 2),
        set("thing/b", 3).set_typed("thing/c", Thing::new(4)),
        Transaction::new().delete("thing/c"),
    ] {
        clock.advance(Duration::from_secs(60));
        running.engine.commit(change).await.unwrap();
    }
    let moment = running.engine.transaction(2).unwrap().stop;
    let known = past(&running, moment);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(60));
        running = restart(running, &path, &clock).await;
        pretty_equal(&known, &past(&running, moment));
    }
    let engine = &running.engine;
    let numbers = |key: &str| -> Vec<u64> {
        let timeline = engine.timeline(key, None).unwrap();
        timeline
            .iter()
            .map(|one| one.value.as_ref().unwrap().json()["number"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(numbers("thing/b")[..2], [2, 3]);
    assert_eq!(numbers("thing/c"), [4], "it is gone, and stays in the timeline");
    clock.advance(Duration::from_secs(60));
    engine.roll_back_to(2).await.unwrap();
    assert_eq!(running.south.values()["thing/c"], Thing::new(4));
    assert_eq!(running.south.values().len(), 4);
    assert_eq!(engine.status("thing/a").labels["team"], "blue");
    engine.roll_back_to(0).await.unwrap();
    assert!(running.south.values().is_empty(), "thing/a waits for thing/b");
    assert_eq!(engine.status("thing/a").state, ValueState::Pending);
    running.stop().await;
}

fn pretty_equal(known: &str, found: &str) {
    for (known, found) in known.lines().zip(found.lines()) {
        assert_eq!(known, found);
    }
    assert_eq!(known.lines().count(), found.lines().count());
}

#[tokio::test]
async fn rolling_back_does_not_depend_on_the_clock() {
    let running = Running::start(Options::default().clock(start()));
    for number in 1..4 {
        running.engine.commit(set("thing/a", number)).await.unwrap();
    }
    running.engine.roll_back_to(1).await.unwrap();
    assert_eq!(running.south.values()["thing/a"].number, 2);
    running.stop().await;
}

#[tokio::test]
async fn the_past_beyond_the_kept_history_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = start();
    let limits = Limits::default().transactions(3).revisions(4).keep_initial(Duration::ZERO);
    let mut running = Running::start(options(&path, &clock).history(limits));
    let mut stops = Vec::new();
    for number in 0..12 {
        clock.advance(Duration::from_secs(60));
        let key = format!("thing/{}", number % 2);
        stops.push(running.engine.commit(set(&key, number * 10)).await.unwrap().stop);
    }
    for _ in 0..2 {
        let engine = &running.engine;
        let count = running.south.with(|south| south.count);
        let told = engine.roll_back_to(1).await.unwrap_err().to_string();
        assert!(told.contains("transaction 1 is not in the kept history"), "{told}");
        assert_eq!(running.south.with(|south| south.count), count, "nothing was done");
        assert!(matches!(engine.snapshot(stops[1]), Err(Error::History(_))));
        assert!(matches!(engine.timeline("thing/0", Some(stops[1])), Err(Error::History(_))));
        assert!(engine.picture(Some(1)).is_err());
        assert!(matches!(engine.picture(Some(99)), Err(Error::Unknown(_))));
        assert_eq!(engine.snapshot(stops[11]).unwrap().len(), 2);
        let south = running.south.clone();
        running.stop().await;
        running = Running::over(south, options(&path, &clock).history(limits));
        running.engine.barrier().await.unwrap();
    }
    running.stop().await;
    let off = Running::start(Options::default().history(Limits::off()));
    off.engine.commit(set("thing/a", 1)).await.unwrap();
    assert!(off.engine.snapshot(off.engine.now()).is_err());
    assert!(off.engine.timeline("thing/a", None).is_err());
    assert!(off.engine.roll_back_to(0).await.is_err());
    off.stop().await;
}

#[tokio::test]
async fn a_compacted_journal_keeps_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = start();
    let running = Running::start(options(&path, &clock));
    let mut big = Thing::new(0);
    big.parts = (0..600).map(|number| (format!("part-{number}"), Vec::new())).collect();
    for number in 0..12 {
        clock.advance(Duration::from_secs(60));
        big.number = number * 10;
        running.engine.commit(Transaction::new().set_typed("thing/a", big.clone())).await.unwrap();
    }
    let moment = running.engine.transaction(3).unwrap().stop;
    let known = past(&running, moment);
    clock.advance(Duration::from_secs(60));
    let running = restart(running, &path, &clock).await;
    let mut loaded = replay_copy(&path);
    assert!(matches!(loaded.remove(0), Entry::Snapshot(_)), "it was never compacted");
    pretty_equal(&known, &past(&running, moment));
    running.engine.roll_back_to(3).await.unwrap();
    assert_eq!(running.south.values()["thing/a"].number, 30);
    running.stop().await;
    // A crash between writing and renaming leaves a file that is ignored.
    std::fs::write(path.with_extension("next"), "half").unwrap();
    let running = Running::over(South::default(), options(&path, &clock));
    running.engine.barrier().await.unwrap();
    assert_eq!(running.south.values()["thing/a"].number, 30);
    assert!(!path.with_extension("next").exists());
    running.stop().await;
}

fn replay_copy(path: &std::path::Path) -> Vec<Entry> {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).unwrap();
    FileJournal::open(&copy).unwrap().load().unwrap()
}

/// The journal was written by version 0.1.0; see `tests/golden`.
#[tokio::test]
async fn a_journal_of_the_first_version_opens_and_its_past_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/journal-v1"), &path).unwrap();
    let entries = FileJournal::open(&path).unwrap().load().unwrap();
    assert!(matches!(entries[0], Entry::Snapshot(_)));
    let state = replay(entries);
    let keys: Vec<&str> = state.desired.keys().map(|key| key.as_str()).collect();
    assert_eq!(keys, ["thing/a", "thing/b", "thing/f", "thing/i", "thing/w"]);
    assert_eq!(state.desired["thing/a"].labels.as_ref().unwrap()["team"], "blue");
    let seqs: Vec<u64> = state.history.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, [0, 1, 2, 3, 4, 5]);
    assert_eq!((state.retries.len(), state.interrupted), (1, Some(6)));
    assert!(state.retries[0].reverts.is_empty());
    let clock = ManualClock::new("2026-11-17T13:00:00Z".parse().unwrap());
    let running = Running::over(South::default(), options(&path, &clock));
    running.engine.barrier().await.unwrap();
    assert_eq!(running.engine.status("thing/b").state, ValueState::Configured);
    for seq in 0..7 {
        let refused = running.engine.roll_back_to(seq).await;
        assert!(matches!(refused, Err(Error::History(_))), "{seq}: {refused:?}");
    }
    clock.advance(Duration::from_secs(60));
    running.engine.commit(set("thing/b", 40)).await.unwrap();
    running.engine.roll_back_to(7).await.unwrap();
    assert_eq!(running.south.values()["thing/b"].number, 4);
    running.stop().await;
}

/// Counts flushes.
struct Counting(FileJournal, Arc<AtomicUsize>);

impl Journal for Counting {
    fn load(&mut self) -> Result<Vec<Entry>, journal::Error> {
        self.0.load()
    }
    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), journal::Error> {
        assert!(!durable, "the engine flushes by itself");
        self.0.append(entry, durable)
    }
    fn flush(&mut self) -> Result<(), journal::Error> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.flush()
    }
    fn wants_compaction(&self) -> bool {
        self.0.wants_compaction()
    }
    fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) -> Result<(), journal::Error> {
        self.0.compact(entries)
    }
}

#[tokio::test]
async fn transactions_that_wait_in_the_queue_share_one_flush() {
    let folder = tempfile::tempdir().unwrap();
    let flushes = Arc::new(AtomicUsize::new(0));
    let journal = FileJournal::open(folder.path().join("journal")).unwrap();
    let running =
        Running::start(Options::default().journal(Counting(journal, Arc::clone(&flushes))));
    let commits = (0..32)
        .map(|number| running.engine.commit(set(&format!("thing/{number}"), number).durable(true)));
    let done = futures_util::future::join_all(commits).await;
    assert!(done.iter().all(Result::is_ok));
    let shared = flushes.load(Ordering::SeqCst);
    assert!((1..=4).contains(&shared), "{shared} flushes");
    // One that waits alone has a flush of its own.
    running.engine.commit(set("thing/last", 1).durable(true)).await.unwrap();
    assert_eq!(flushes.load(Ordering::SeqCst), shared + 1);
    // Derived values cannot be retrieved: their plan is flushed before the first operation.
    let mut base = Thing::new(1);
    base.parts.insert("x".into(), Vec::new());
    running.engine.commit(Transaction::new().set_typed("thing/base", base)).await.unwrap();
    assert!(flushes.load(Ordering::SeqCst) >= shared + 2);
    running.stop().await;
}

#[tokio::test]
async fn a_slow_operation_does_not_delay_the_flush_of_earlier_transactions() {
    let folder = tempfile::tempdir().unwrap();
    let journal = FileJournal::open(folder.path().join("journal")).unwrap();
    let running = Running::start(Options::default().journal(journal));
    let held = Arc::new(tokio::sync::Notify::new());
    running.south.with(|south| south.held.insert("thing/slow".into(), Arc::clone(&held)));
    let quick = running.engine.commit(set("thing/quick", 1).durable(true));
    let slow = running.engine.commit(set("thing/slow", 2).durable(true));
    let slow = async {
        let done = slow.await;
        (done, "slow")
    };
    let quick = async {
        quick.await.unwrap();
        held.notify_one();
    };
    let ((), (done, _)) = tokio::join!(quick, slow);
    done.unwrap();
    running.stop().await;
}
