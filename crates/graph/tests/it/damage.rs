//! Damaged journals, journals that fail, and processes that are killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay_graph::journal::inspect::{self, Problem, Way};
use mainstay_graph::journal::{self, Entry, Journal, replay};
use mainstay_graph::{
    Builder, Context, Descriptor, Engine, Error, FileJournal, Key, Known, OnFailure,
    OperationError, Options, PrefixModel, Retrieved, Transaction, ValueState,
};
use tokio_util::sync::CancellationToken;

use crate::south::{Running, South, Thing};

fn journalled(path: &Path) -> Options {
    Options::default().journal(FileJournal::open(path).unwrap())
}

/// A journal of five transactions; returns its bytes and the south.
async fn written(path: &Path) -> (Vec<u8>, South) {
    let running = Running::start(journalled(path));
    for number in 0..5_u32 {
        let mut thing = Thing::new(number);
        thing.parts.insert("x".into(), Vec::new());
        let change = Transaction::new().set_typed(format!("thing/{number}"), thing);
        running.engine.commit(change).await.unwrap();
    }
    let south = running.south.clone();
    running.stop().await;
    (std::fs::read(path).unwrap(), south)
}

#[tokio::test]
async fn a_changed_byte_refuses_to_open_and_leaves_the_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, _) = written(&folder.path().join("journal")).await;
    let damaged = folder.path().join("damaged");
    for position in (0..bytes.len()).step_by(7).chain(bytes.len() - 20..bytes.len()) {
        let mut changed = bytes.clone();
        changed[position] ^= 0x21;
        // A new file each time: a child process of another test may inherit the lock of the last.
        let _ = std::fs::remove_file(&damaged);
        std::fs::write(&damaged, &changed).unwrap();
        let error = FileJournal::open(&damaged).unwrap_err();
        assert!(matches!(error, journal::Error::Damaged { .. }), "byte {position}: {error}");
        let text = error.to_string();
        let path = damaged.display().to_string();
        for told in [path.as_str(), "byte ", "graph journal check", "graph journal repair"] {
            assert!(text.contains(told), "{text}");
        }
        assert_eq!(std::fs::read(&damaged).unwrap(), changed, "the file was changed");
        let report = inspect::check(&damaged).unwrap();
        let found = report.findings.first().unwrap();
        assert_eq!(found.problem, Problem::Damaged);
        assert!((found.offset..found.offset + found.bytes).contains(&position), "{report:?}");
    }
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let (bytes, south) = written(&path).await;
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    assert!(matches!(inspect::check(&path).unwrap().findings[0].problem, Problem::Torn));
    let running = Running::over(south, journalled(&path));
    running.engine.barrier().await.unwrap();
    let health = running.engine.health();
    assert!(health.accepts && health.notices.len() == 1, "{health:?}");
    assert!(health.notices[0].contains("incomplete entry at byte"), "{health:?}");
    running.stop().await;
}

#[test]
fn an_entry_of_a_newer_version_refuses_to_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    // "Later" as length, checksum and entry.
    let body = br#"{"Later":{"seq":7}}"#;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(0x47FA_925F_u32.to_le_bytes());
    bytes.extend(body);
    std::fs::write(&path, &bytes).unwrap();
    let error = FileJournal::open(&path).unwrap_err().to_string();
    assert!(error.contains("\"Later\" at byte 0") && error.contains("version"), "{error}");
}

#[tokio::test]
async fn a_second_opener_is_refused_also_after_compaction() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut first = FileJournal::open(&path).unwrap();
    let refused = || matches!(FileJournal::open(&path), Err(journal::Error::Locked { .. }));
    assert!(refused());
    let state = replay(first.load().unwrap());
    first.compact(&mut std::iter::once(Entry::Snapshot(Box::new(state)))).unwrap();
    assert!(refused());
    assert!(inspect::check(&path).unwrap().in_use);
    assert!(matches!(inspect::repair(&path, Way::Skip), Err(journal::Error::Locked { .. })));
    drop(first);
    drop(FileJournal::open(folder.path()).unwrap());
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "only the journal is left");
}

/// A journal that fails from some call on, counted from 1.
struct Failing {
    inner: FileJournal,
    calls: Arc<AtomicUsize>,
    from: usize,
}

impl Failing {
    fn call(&self) -> Result<(), journal::Error> {
        match self.calls.fetch_add(1, Ordering::SeqCst) + 1 >= self.from {
            true => Err(journal::Error::Io {
                action: "write",
                path: self.inner.path().to_owned(),
                source: std::io::Error::other("the disk is full"),
            }),
            false => Ok(()),
        }
    }
}

impl Journal for Failing {
    fn load(&mut self) -> Result<Vec<Entry>, journal::Error> {
        self.inner.load()
    }
    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), journal::Error> {
        self.call()?;
        self.inner.append(entry, durable)
    }
    fn flush(&mut self) -> Result<(), journal::Error> {
        self.call()?;
        self.inner.flush()
    }
    fn wants_compaction(&self) -> bool {
        self.inner.wants_compaction()
    }
    fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) -> Result<(), journal::Error> {
        self.inner.compact(entries)
    }
}

#[tokio::test]
async fn a_journal_that_fails_at_any_call_stops_the_engine_and_loses_nothing() {
    for parallel in [1, 4] {
        for from in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("journal");
            let calls = Arc::new(AtomicUsize::new(0));
            let inner = FileJournal::open(&path).unwrap();
            let journal = Failing { inner, calls: Arc::clone(&calls), from };
            let running = Running::start(Options::default().journal(journal).parallel(parallel));
            let engine = &running.engine;
            let mut thing = Thing::new(1);
            thing.parts.insert("x".into(), Vec::new());
            let change = Transaction::new()
                .set_typed("thing/a", thing.clone())
                .set_typed("thing/b", Thing::new(2))
                .on_failure(OnFailure::BestEffort)
                .durable(true);
            let done = engine.apply(change).await;
            if calls.load(Ordering::SeqCst) < from {
                done.unwrap();
                running.stop().await;
                break;
            }
            assert!(matches!(done, Err(Error::Halted(_))), "call {from}: {done:?}");
            let count = running.south.with(|south| south.count);
            let later = Transaction::new().set_typed("thing/c", Thing::new(3));
            let refused = engine.commit(later).await.unwrap_err().to_string();
            assert!(refused.contains("the disk is full"), "{refused}");
            assert!(refused.contains("restart"), "{refused}");
            assert!(engine.register(crate::south::Things(South::default())).await.is_err());
            assert_eq!(running.south.with(|south| south.count), count, "work went on");
            let health = engine.health();
            assert!(!health.accepts && health.reason.is_some());
            // Reads are answered.
            engine.barrier().await.unwrap();
            let _ = engine.statuses(|_| true);
            engine.plan(Transaction::new().delete("thing/a")).await.unwrap();
            let south = running.south.clone();
            running.stop().await;
            // The restart finds a sound journal, and brings the south in line with it.
            let running = Running::over(south.clone(), journalled(&path));
            running.engine.barrier().await.unwrap();
            let wanted: Vec<String> = running
                .engine
                .states()
                .into_iter()
                .filter(|(_, state)| *state == ValueState::Configured)
                .map(|(key, _)| key.to_string())
                .collect();
            let there: Vec<String> = south.values().into_keys().collect();
            assert_eq!(wanted, there, "call {from}");
            running.stop().await;
        }
    }
}

/// A small file system in memory; none without the right to mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder.path());
        let mounted = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !mounted {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must be able to mount");
            eprintln!("!!! NOT TESTED on a full file system: cannot mount one !!!");
        }
        mounted.then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn a_full_disk_stops_the_engine_and_a_restart_with_room_goes_on() {
    let Some(small) = Small::mount() else { return };
    let path = small.0.path().join("journal");
    let ballast = small.0.path().join("ballast");
    std::fs::write(&ballast, vec![0_u8; 128 << 10]).unwrap();
    let running = Running::start(journalled(&path));
    let mut done = Vec::new();
    let refused = loop {
        let number = u32::try_from(done.len()).unwrap();
        let key = format!("thing/{number:04}");
        let change = Transaction::new().set_typed(key.as_str(), Thing::new(number)).durable(true);
        match running.engine.commit(change).await {
            Ok(_) => done.push(key),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refused.contains("No space left on device"), "{refused}");
    assert!(!running.engine.health().accepts);
    assert!(running.engine.statuses(|_| true).len() >= done.len(), "reads are answered");
    let south = running.south.clone();
    running.stop().await;
    std::fs::remove_file(&ballast).unwrap();
    let running = Running::over(south.clone(), journalled(&path));
    running.engine.barrier().await.unwrap();
    for key in &done {
        assert!(south.values().contains_key(key), "{key} was committed");
        assert_eq!(running.engine.status(key).state, ValueState::Configured);
    }
    let more = Transaction::new().set_typed("thing/more", Thing::new(1));
    running.engine.commit(more).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn a_journal_that_cannot_be_compacted_stays_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    // A folder stands where the successor would be written.
    let running = Running::start(journalled(&path));
    std::fs::create_dir_all(folder.path().join("journal.next/in-the-way")).unwrap();
    let mut big = Thing::new(0);
    big.parts = (0..2_000).map(|number| (format!("part-{number}"), Vec::new())).collect();
    for number in 0..4 {
        big.number = number * 10;
        running.engine.commit(Transaction::new().set_typed("thing/a", big.clone())).await.unwrap();
    }
    let health = running.engine.health();
    assert!(health.accepts && health.notices[0].contains("cannot be compacted"), "{health:?}");
    running.stop().await;
    let recovered = replay(FileJournal::open(&path).unwrap().load().unwrap());
    assert_eq!(recovered.next_seq, 4);
}

/// Repairs a journal damaged at each of its entries; the values of all transactions must stay.
#[tokio::test]
async fn a_repair_that_skips_keeps_the_values_of_transactions_whose_end_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, south) = written(&folder.path().join("journal")).await;
    let offsets = offsets(&bytes);
    let path = folder.path().join("damaged");
    for (position, offset) in offsets.iter().enumerate() {
        let mut changed = bytes.clone();
        changed[offset + 12] ^= 0xFF;
        std::fs::write(&path, &changed).unwrap();
        let planned = inspect::plan(&path, Way::Skip).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), changed, "a plan changes nothing");
        let repaired = inspect::repair(&path, Way::Skip).unwrap();
        assert_eq!(repaired.losses, planned.losses);
        let copy = repaired.copy.unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), changed);
        std::fs::remove_file(copy).unwrap();
        assert!(inspect::check(&path).unwrap().findings.is_empty());
        let running = Running::over(south.clone(), journalled(&path));
        running.engine.barrier().await.unwrap();
        assert_eq!(south.values().len(), 10, "entry {position}: {:?}", repaired.losses);
        running.stop().await;
        assert_eq!(inspect::repair(&path, Way::Cut).unwrap(), Default::default());
    }
}

#[tokio::test]
async fn a_repair_that_cuts_goes_back_and_names_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, _) = written(&folder.path().join("journal")).await;
    let path = folder.path().join("damaged");
    let mut changed = bytes.clone();
    let third = bytes.windows(9).position(|text| text == b"\"thing/2\"").unwrap();
    changed[third + 1] = b'?';
    std::fs::write(&path, &changed).unwrap();
    let repaired = inspect::repair(&path, Way::Cut).unwrap();
    let text = repaired.losses.join("\n");
    for told in ["damaged", "transactions 2 to 4", "thing/3 is no longer wanted"] {
        assert!(text.contains(told), "{text}");
    }
    let recovered = replay(FileJournal::open(&path).unwrap().load().unwrap());
    let keys: Vec<&str> = recovered.desired.keys().map(Key::as_str).collect();
    assert_eq!(keys, ["thing/0", "thing/1"]);
}

/// A cut names every value that the restart after it changes, whichever entry is damaged.
#[tokio::test]
async fn a_repair_that_cuts_names_every_value_that_the_next_start_deletes() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, south) = written(&folder.path().join("journal")).await;
    let all = south.values();
    let path = folder.path().join("damaged");
    for (position, offset) in offsets(&bytes).into_iter().enumerate() {
        let mut changed = bytes.clone();
        changed[offset + 12] ^= 0xFF;
        std::fs::write(&path, &changed).unwrap();
        let planned = inspect::plan(&path, Way::Cut).unwrap();
        let repaired = inspect::repair(&path, Way::Cut).unwrap();
        assert_eq!(repaired.losses, planned.losses);
        std::fs::remove_file(repaired.copy.unwrap()).unwrap();
        let south = South::default();
        south.with(|south| south.values = all.clone());
        let running = Running::over(south.clone(), journalled(&path));
        running.engine.barrier().await.unwrap();
        let text = repaired.losses.join("\n");
        // The values of a transaction whose begin is lost too cannot be read.
        let begin_lost = text.contains("transactions at the end may be lost");
        let left = south.values();
        for key in all.keys().filter(|key| !left.contains_key(*key)) {
            let named = text
                .contains(&format!("{key} is no longer wanted: the next start deletes"))
                || text.contains(&format!("{key}, derived from "));
            let readable = changed.windows(key.len()).any(|text| text == key.as_bytes());
            let lost = position > 0 && begin_lost;
            assert!(named || lost || !readable, "entry {position}, {key}:\n{text}");
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn a_journal_without_any_entry_refuses_to_open() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, _) = written(&folder.path().join("journal")).await;
    let path = folder.path().join("damaged");
    for content in [Vec::new(), vec![0], vec![0; 4096], vec![0; bytes.len()]] {
        std::fs::write(&path, &content).unwrap();
        let error = FileJournal::open(&path).unwrap_err();
        assert!(matches!(error, journal::Error::Empty { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "the file was changed");
        assert_eq!(inspect::check(&path).unwrap().findings.len(), 1);
        inspect::repair(&path, Way::Cut).unwrap();
        assert!(replay(FileJournal::open(&path).unwrap().load().unwrap()).desired.is_empty());
    }
    // A new journal is never empty.
    let new = folder.path().join("new");
    drop(FileJournal::open(&new).unwrap());
    assert!(!std::fs::read(&new).unwrap().is_empty());
    drop(FileJournal::open(&new).unwrap());
}

#[tokio::test]
async fn lost_repeated_and_swapped_entries_refuse_to_open_and_are_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, _) = written(&folder.path().join("journal")).await;
    let starts = offsets(&bytes);
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    let entries: Vec<&[u8]> =
        starts.iter().zip(ends).map(|(start, end)| &bytes[*start..end]).collect();
    let last = entries.len() - 1;
    let mut swapped = entries.clone();
    swapped.swap(2, 3);
    let mut reversed = entries.clone();
    reversed.reverse();
    let path = folder.path().join("damaged");
    for (name, order) in [
        ("lost", [&entries[..3], &entries[4..]].concat()),
        ("first lost", entries[1..].to_vec()),
        ("repeated", [&entries[..4], &entries[3..]].concat()),
        ("old one repeated at the end", [&entries[..], &entries[2..3]].concat()),
        ("whole file twice", [&entries[..], &entries[..]].concat()),
        ("swapped", swapped),
        ("reversed", reversed),
        ("last two swapped", [&entries[..last - 1], &[entries[last], entries[last - 1]]].concat()),
    ] {
        let content = order.concat();
        std::fs::write(&path, &content).unwrap();
        let error = FileJournal::open(&path).unwrap_err();
        assert!(matches!(error, journal::Error::Disordered { .. }), "{name}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "the file was changed");
        assert!(!inspect::check(&path).unwrap().findings.is_empty(), "{name}");
        assert!(inspect::repair(&path, Way::Skip).unwrap().copy.is_some());
        FileJournal::open(&path).unwrap();
    }
}

/// Where the entries of a sound journal begin.
fn offsets(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut offset = 0;
    while offset < bytes.len() {
        offsets.push(offset);
        let length: [u8; 4] = bytes[offset..offset + 4].try_into().unwrap();
        offset += 8 + u32::from_le_bytes(length) as usize;
    }
    offsets
}

/// Values are files in a folder, so that they outlive the process.
struct Files {
    folder: PathBuf,
    model: PrefixModel<u32>,
}

impl Descriptor for Files {
    type Model = PrefixModel<u32>;
    type Metadata = ();

    fn name(&self) -> &str {
        "file"
    }

    fn model(&self) -> &PrefixModel<u32> {
        &self.model
    }

    async fn create(&self, _: &Context, key: &Key, value: &u32) -> Result<(), OperationError> {
        std::fs::write(self.folder.join(key.trim_start_matches("file/")), value.to_string())
            .map_err(|error| OperationError::new(error.to_string()))
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &u32,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        std::fs::remove_file(self.folder.join(key.trim_start_matches("file/")))
            .map_err(|error| OperationError::new(error.to_string()))
    }

    async fn retrieve(
        &self,
        _: &Context,
        _: &[Known<'_, u32, ()>],
    ) -> Result<Vec<Retrieved<u32, ()>>, OperationError> {
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.ok()?.path();
            let value = std::fs::read_to_string(&path).ok()?.parse().unwrap_or(u32::MAX);
            let name = path.file_name()?.to_str()?.to_owned();
            Some(Retrieved::new(format!("file/{name}"), value))
        };
        Ok(std::fs::read_dir(&self.folder).unwrap().filter_map(read).collect())
    }
}

fn over_files(folder: &Path) -> (Engine, CancellationToken, tokio::task::JoinHandle<()>) {
    let model = PrefixModel::new("file/", |number: &u32| Some(number.to_string()));
    let files = Files { folder: folder.join("files"), model };
    let options = journalled(&folder.join("journal"));
    let (engine, service) = Builder::new(options).register(files).unwrap().build().unwrap();
    let stop = CancellationToken::new();
    let worker = tokio::spawn(service.run(stop.clone()));
    (engine, stop, worker)
}

/// Runs this test again in a child process that commits until it is killed.
#[tokio::test]
async fn a_killed_process_keeps_every_acknowledged_transaction() {
    if let Some(folder) = std::env::var_os("MAINSTAY_TEST_FOLDER") {
        let (engine, _, _) = over_files(Path::new(&folder));
        for number in engine.statuses(|_| true).len().. {
            let number = u32::try_from(number).unwrap();
            let change = Transaction::new().set_typed(format!("file/{number}"), number);
            engine.commit(change).await.unwrap();
            println!("committed file/{number}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    for round in 1..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["damage::a_killed_process_keeps_every_acknowledged_transaction"])
            .args(["--exact", "--nocapture"])
            .env("MAINSTAY_TEST_FOLDER", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut committed =
            lines.filter_map(|line| Some(line.split_once("committed ")?.1.to_owned()));
        let last = committed.nth(round * 13).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let last = committed.last().unwrap_or(last);
        let (engine, stop, worker) = over_files(folder.path());
        engine.barrier().await.unwrap();
        let last: u32 = last.trim_start_matches("file/").parse().unwrap();
        for number in 0..=last {
            let status = engine.status(&format!("file/{number}"));
            assert_eq!(status.state, ValueState::Configured, "{status:?}");
        }
        let there = std::fs::read_dir(folder.path().join("files")).unwrap().count();
        assert_eq!(there, engine.statuses(|_| true).len());
        stop.cancel();
        worker.await.unwrap();
    }
}
