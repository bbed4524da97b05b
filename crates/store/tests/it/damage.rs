//! A damaged database is never served: whatever byte is hit, it opens with everything that was
//! acknowledged, or it is refused with the reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::object::Revision;
use mainstay_store::objects::Objects;
use mainstay_store::sqlite::repair::{Findings, examine, inspect, repair};
use mainstay_store::sqlite::{OpenError, SqliteStore};
use mainstay_store::value::Codec;
use rusqlite::Connection;

use crate::{Backend, Stage, block_on, create, delete, key, update};

fn try_open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(path, Retention::default(), 1 << 20, SystemClock::new())
}

/// Everything a store gives out: its revision, and each object with its version.
async fn given_out(store: &dyn Objects) -> (Revision, Vec<String>) {
    let snapshot = store.snapshot().await.unwrap();
    let records = snapshot.collections.iter().flat_map(|(_, objects)| objects.range(None, None));
    let text = |json: &[u8]| String::from_utf8_lossy(json).into_owned();
    let objects = records.map(|record| format!("{} {}", record.key(), text(record.json())));
    (snapshot.revision, objects.collect())
}

/// Files as they are at a moment, to be put somewhere else with one byte changed.
struct Copy {
    files: Vec<(&'static str, Vec<u8>)>,
    expected: (Revision, Vec<String>),
}

impl Copy {
    fn of(path: &Path, expected: (Revision, Vec<String>)) -> Self {
        let read = |ending| {
            let file = PathBuf::from(format!("{}{ending}", path.display()));
            Some((ending, std::fs::read(file).ok()?))
        };
        Self {
            files: ["", "-wal", ".acknowledged"].into_iter().filter_map(read).collect(),
            expected,
        }
    }

    fn size(&self, ending: &str) -> usize {
        self.files.iter().find(|(name, _)| *name == ending).map_or(0, |(_, bytes)| bytes.len())
    }

    /// Whether it was refused after `bit` of one file was flipped; if not, nothing is missing.
    fn refused_after_flipping(&self, ending: &str, bit: usize) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects.db");
        for (name, bytes) in &self.files {
            let mut bytes = bytes.clone();
            if *name == ending {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            std::fs::write(format!("{}{name}", path.display()), bytes).unwrap();
        }
        block_on(async {
            let Ok(store) = try_open(&path) else { return true };
            let found = given_out(&store).await;
            store.close().await;
            assert_eq!(found, self.expected, "bit {bit} of objects.db{ending} was served");
            false
        })
    }
}

/// Bits all over a file, the same ones at every run.
fn some_bits(count: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (size * 8))
}

/// A store with objects of many sizes and some history.
async fn filled() -> Stage {
    let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
    for n in 0..60_usize {
        let key = key("apples", "a", &format!("n{n}"));
        let text = "x".repeat(n * n);
        let at = stage.store.write(create(&key, text)).await.unwrap().revision();
        let at = stage.store.write(update(&key, at, n)).await.unwrap().revision();
        if n % 5 == 0 {
            stage.store.write(delete(&key, at)).await.unwrap();
        }
    }
    stage
}

#[test]
fn no_flipped_bit_of_the_database_is_served() {
    let copy = block_on(async {
        let stage = filled().await;
        let expected = given_out(&*stage.store).await;
        stage.store.close().await;
        Copy::of(&stage.path(), expected)
    });
    let size = copy.size("");
    let refused = some_bits(600, size).filter(|bit| copy.refused_after_flipping("", *bit)).count();
    assert!(refused > 100, "only {refused} of 600 flipped bits were noticed");
}

#[test]
fn a_write_ahead_log_that_ends_early_is_refused_with_what_is_missing() {
    let copy = block_on(async {
        let stage = filled().await;
        // As `kill -9` leaves it.
        let copy = Copy::of(&stage.path(), given_out(&*stage.store).await);
        stage.store.close().await;
        copy
    });
    let size = copy.size("-wal");
    assert!(size > 100_000, "everything is in the log: {size}");
    let refused =
        some_bits(300, size).filter(|bit| copy.refused_after_flipping("-wal", *bit)).count();
    assert!(refused > 250, "only {refused} of 300 flipped bits were noticed");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.db");
    for (name, bytes) in &copy.files {
        let cut = if *name == "-wal" { &bytes[..bytes.len() / 2] } else { bytes };
        std::fs::write(format!("{}{name}", path.display()), cut).unwrap();
    }
    let log = folder.path().join("objects.db-wal");
    let before = std::fs::read(&log).unwrap();
    for _ in 0..2 {
        let error = try_open(&path).unwrap_err();
        let OpenError::EndsEarly { acknowledged, recovered, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(acknowledged, copy.expected.0);
        assert!(recovered < acknowledged);
        let missing = format!("{} changes are missing", acknowledged.0 - recovered.0);
        assert!(error.to_string().contains(&missing), "{error}");
        assert_eq!(std::fs::read(&log).unwrap(), before, "the log is left as it was found");
    }
}

#[test]
fn damage_is_refused_and_named() {
    let cases = [
        (
            "UPDATE objects SET body = CAST(replace(CAST(body AS TEXT), 'data', 'date') AS BLOB)
             WHERE path = 'a/n7'",
            "apples \"a/n7\": checksum is ",
        ),
        (
            "UPDATE objects SET body = (SELECT body FROM objects WHERE path = 'a/n8'),
                 hole = (SELECT hole FROM objects WHERE path = 'a/n8'),
                 revision = (SELECT revision FROM objects WHERE path = 'a/n8')
             WHERE path = 'a/n7'",
            "apples \"a/n7\": checksum is ",
        ),
        ("DELETE FROM objects WHERE path = 'a/n7'", "it has 47 objects, expected 48"),
        ("UPDATE objects SET created = 100000 WHERE path = 'a/n7'", "are not the ones"),
        ("DELETE FROM log WHERE revision = 9", "the log entry of revision 9 is missing"),
        ("UPDATE history SET revision = revision + 1", "is missing"),
        ("UPDATE history SET digest = NULL", "the number of its objects"),
    ];
    for (harm, named) in cases {
        let path = block_on(async {
            let stage = filled().await;
            stage.store.close().await;
            stage
        });
        let database = Connection::open(path.path()).unwrap();
        assert!(database.execute(harm, []).unwrap() > 0, "{harm}");
        drop(database);
        let error = try_open(&path.path()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{harm}: {error}");
        assert!(error.to_string().contains(named), "{harm}: {error}");
        assert!(error.to_string().contains("mainstay store repair"), "{error}");
    }
}

#[test]
fn a_check_of_a_damaged_database_names_every_finding_and_reads_the_rest() {
    let stage = block_on(async {
        let stage = filled().await;
        stage.store.close().await;
        stage
    });
    let (path, codec) = (stage.path(), Codec::default());
    let sound = examine(&path, &codec).unwrap();
    assert_eq!((sound.findings.len(), sound.readable.len()), (0, 48));
    let database = Connection::open(&path).unwrap();
    for harm in [
        "UPDATE objects SET body = x'7b7d' WHERE path IN ('a/n7', 'a/n8')",
        "UPDATE objects SET body = CAST(replace(CAST(body AS TEXT), 'data', 'date') AS BLOB)
         WHERE path = 'a/n9'",
        "UPDATE log SET previous = x'00' WHERE revision =
             (SELECT max(revision) FROM log WHERE previous IS NOT NULL)",
    ] {
        assert!(database.execute(harm, []).unwrap() > 0, "{harm}");
    }
    drop(database);
    let examined = examine(&path, &codec).unwrap();
    let expected =
        ["\"a/n7\" has no", "\"a/n8\" has no", "\"a/n9\": checksum", "the log entry of revision"];
    assert_eq!(examined.findings.len(), expected.len(), "{:?}", examined.findings);
    for (found, expected) in examined.findings.iter().zip(expected) {
        assert!(found.contains(expected), "{found}");
    }
    assert_eq!(examined.readable.len(), 45, "the other objects are read");

    let mut bytes = std::fs::read(&path).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let examined = examine(&path, &codec).unwrap();
    assert!(examined.findings.len() > 1, "{:?}", examined.findings);
    assert!(examined.findings.iter().all(|line| !line.contains('\n')), "one line each");
}

#[test]
fn a_running_store_finds_damage_on_its_disk() {
    block_on(async {
        let stage = filled().await;
        assert_eq!(stage.store.verify().await.unwrap(), [""; 0]);
        let harm = "UPDATE objects SET body = x'7b7d' WHERE path = 'a/n7'";
        Connection::open(stage.path()).unwrap().execute(harm, []).unwrap();
        let found = stage.store.verify().await.unwrap();
        assert_eq!(found, ["apples \"a/n7\" has no valid version"]);
        stage.store.close().await;
    });
}

#[test]
fn a_missing_or_emptied_database_is_refused_unless_a_new_one_is_asked_for() {
    for empty in [false, true] {
        let stage = block_on(async {
            let stage = filled().await;
            stage.store.close().await;
            stage
        });
        std::fs::remove_file(stage.path()).unwrap();
        if empty {
            std::fs::write(stage.path(), "").unwrap();
        }
        let error = try_open(&stage.path()).unwrap_err();
        assert!(matches!(error, OpenError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("--new-cluster"), "{error}");
        let settings = mainstay_store::Settings { new_database: true, ..Default::default() };
        let store = SqliteStore::open_with(&stage.path(), &settings, SystemClock::new()).unwrap();
        block_on(store.close());
        block_on(try_open(&stage.path()).unwrap().close());
    }
}

/// Every file of a folder with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn checks_and_refused_starts_change_no_byte_of_the_folder() {
    let copy = block_on(async {
        let stage = filled().await;
        let copy = Copy::of(&stage.path(), given_out(&*stage.store).await);
        stage.store.close().await;
        copy
    });
    assert!(copy.size("-wal") > 100_000, "everything is in the log");
    // Per file: as `kill -9` leaves it, empty, or missing.
    let states = [Some(true), Some(false), None];
    for database in states {
        for log in states {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("objects 100%?#.db");
            for (name, bytes) in &copy.files {
                let state = match *name {
                    "" => database,
                    "-wal" => log,
                    _ => Some(true),
                };
                if let Some(whole) = state {
                    let bytes: &[u8] = if whole { bytes } else { &[] };
                    std::fs::write(format!("{}{name}", path.display()), bytes).unwrap();
                }
            }
            let (before, case) = (files(folder.path()), format!("{database:?} {log:?}"));
            let codec = Codec::default();
            let examined = examine(&path, &codec);
            assert_eq!(files(folder.path()), before, "check: {case}");
            let inspected = inspect(&path, &codec);
            assert_eq!(files(folder.path()), before, "repair: {case}");
            let whole = (database, log) == (Some(true), Some(true));
            let sound = examined.is_ok_and(|examined| {
                examined.findings.is_empty() && examined.readable.len() == 48
            });
            assert_eq!(sound, whole, "{case}");
            assert_eq!(inspected.is_ok_and(|found| found.lines.is_empty()), whole, "{case}");
            if database != Some(true) && log == Some(true) {
                assert!(matches!(try_open(&path), Err(OpenError::LogAlone { .. })), "{case}");
                assert!(repair(&path, &codec, "00000000").is_err(), "{case}");
                assert_eq!(files(folder.path()), before, "start: {case}");
            }
        }
    }
}

#[test]
fn removing_the_lock_file_does_not_admit_a_second_process() {
    block_on(async {
        let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        let lock = stage.folder.path().join("objects.db.lock");
        for _ in 0..2 {
            std::fs::remove_file(&lock).unwrap();
            assert!(matches!(try_open(&stage.path()), Err(OpenError::InUse { .. })));
        }
        let apple = key("apples", "a", "x");
        stage.store.write(create(&apple, 1)).await.unwrap();
        stage.store.close().await;
        try_open(&stage.path()).unwrap().close().await;
    });
}

#[test]
fn a_repair_drops_only_the_objects_that_were_shown() {
    let stage = block_on(async {
        let stage = filled().await;
        stage.store.close().await;
        stage
    });
    let (path, codec) = (stage.path(), Codec::default());
    assert_eq!(inspect(&path, &codec).unwrap(), Findings::default());
    let harm = "UPDATE objects SET body = x'7b7d' WHERE path IN ('a/n7', 'a/n8')";
    Connection::open(&path).unwrap().execute(harm, []).unwrap();
    let found = inspect(&path, &codec).unwrap();
    assert_eq!(
        found.lines,
        [
            "apples \"a/n7\" has no valid version; the object will be removed",
            "apples \"a/n8\" has no valid version; the object will be removed"
        ]
    );
    assert!(repair(&path, &codec, "00000000").is_err(), "another name");
    let more = "UPDATE objects SET body = x'7b7d' WHERE path = 'a/n9'";
    Connection::open(&path).unwrap().execute(more, []).unwrap();
    assert!(repair(&path, &codec, &found.name).is_err(), "more is wrong than was shown");
    let found = inspect(&path, &codec).unwrap();
    let copies = repair(&path, &codec, &found.name).unwrap();
    assert!(copies[0].is_file());
    assert_eq!(inspect(&path, &codec).unwrap(), Findings::default());
    block_on(async {
        let store = try_open(&path).unwrap();
        assert_eq!(given_out(&store).await.1.len(), 45);
        store.close().await;
    });
}

#[test]
fn accepting_a_loss_never_hands_out_a_lost_revision_again() {
    let (stage, acknowledged) = block_on(async {
        let stage = filled().await;
        stage.store.close().await;
        let before = std::fs::read(stage.path()).unwrap();
        let store = try_open(&stage.path()).unwrap();
        let late = key("apples", "a", "late");
        let acknowledged = store.write(create(&late, 1)).await.unwrap().revision();
        store.close().await;
        // An older copy of the file takes its place.
        std::fs::write(stage.path(), before).unwrap();
        (stage, acknowledged)
    });
    let (path, codec) = (stage.path(), Codec::default());
    assert!(matches!(try_open(&path), Err(OpenError::EndsEarly { .. })));
    let found = inspect(&path, &codec).unwrap();
    let line =
        format!("revisions {acknowledged} to {acknowledged} were acknowledged and are missing");
    assert_eq!(found.lines, [line]);
    repair(&path, &codec, &found.name).unwrap();
    block_on(async {
        let store = try_open(&path).unwrap();
        let next = store.write(create(&key("apples", "a", "next"), 1)).await.unwrap();
        assert!(next.revision() > acknowledged);
        store.close().await;
    });
}

#[test]
fn a_missing_counter_is_a_finding_and_does_not_prevent_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.db");
    let counter = folder.path().join("objects.db.acknowledged");
    let open = || SqliteStore::open(&path, Retention::default(), 1 << 20, SystemClock::new());
    block_on(async {
        let store = open().unwrap();
        store.write(create(&key("apples", "a", "x"), 1)).await.unwrap();
        assert_eq!(store.verify().await.unwrap(), [""; 0]);
        std::fs::remove_file(&counter).unwrap();
        let said = store.verify().await.unwrap();
        assert!(said.len() == 1 && said[0].contains("is missing"), "{said:?}");
        store.close().await;
        for harm in [None, Some([0; 542])] {
            drop(std::fs::remove_file(&counter));
            harm.map_or(Ok(()), |zeros| std::fs::write(&counter, zeros)).unwrap();
            let store = open().unwrap();
            let said = store.verify().await.unwrap();
            assert!(said.len() == 1 && said[0].contains("was missing when"), "{said:?}");
            store.close().await;
        }
        let store = open().unwrap();
        assert_eq!(store.verify().await.unwrap(), [""; 0]);
        store.close().await;
    });
}
