//! Files written by earlier versions open in this one, with everything in them.
//!
//! `golden/objects-v1.db` and `golden/backup-v1` were written once, by the first version that had
//! the format, and stay as they are for as long as Mainstay exists. A new format gets files of its
//! own beside them, written by
//! `cargo test -p mainstay-store --test it -- --ignored write_the_golden_files`
//! (which refuses to touch files that are there).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_store::backup::{Chunks, restore, verify};
use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::{Action, Key, Resource, Revision};
use mainstay_store::objects::{Error, Objects, Scope};
use mainstay_store::snapshot::Snapshot;
use mainstay_store::sqlite::SqliteStore;
use serde_json::json;

use crate::{block_on, create, delete, key, update};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn clock() -> Arc<ManualClock> {
    ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap())
}

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, Retention::default(), 1 << 20, clock()).unwrap()
}

#[test]
#[ignore = "writes the golden files of a new format"]
fn write_the_golden_files() {
    let (database, backup) = (golden("objects-v1.db"), golden("backup-v1"));
    assert!(!database.exists() && !backup.exists(), "golden files are written once");
    block_on(async {
        let store = open(&database);
        let forgotten = key("configmaps", "default", "forgotten");
        let at = store.write(create(&forgotten, 1)).await.unwrap().revision();
        let at = store.write(delete(&forgotten, at)).await.unwrap().revision();
        store.compact(at).await.unwrap();
        let plain = key("configmaps", "default", "plain");
        let at = store.write(create(&plain, "first")).await.unwrap().revision();
        store.write(create(&key("configmaps", "default", "gr\u{fc}n"), "\u{1f9ca}")).await.unwrap();
        let at = store.write(update(&plain, at, "second")).await.unwrap().revision();
        let gone = key("configmaps", "other", "gone");
        let born =
            store.write(create(&gone, json!({"a": [1, 2.5, null]}))).await.unwrap().revision();
        store.write(update(&plain, at, json!({"quoted": "\"\\\n"}))).await.unwrap();
        store.write(delete(&gone, born)).await.unwrap();
        let volume = Resource::new("storage.mainstay.dev", "replicatedvolumes");
        store.write(create(&Key::new(&volume, None, "v1"), true)).await.unwrap();
        let token = Resource::new("internal.mainstay.dev", "tokens");
        store.write(create(&Key::new(&token, None, "t"), "00ff")).await.unwrap();
        let time = "2026-11-16T00:00:00Z".parse().unwrap();
        let text = Chunks::new(store.snapshot().await.unwrap(), time).collect::<Vec<_>>().concat();
        std::fs::write(backup, text).unwrap();
        store.close().await;
        // The lock beside it is no part of the database.
        std::fs::remove_file(golden("objects-v1.db.lock")).unwrap();
    });
}

/// The objects in both golden files; where `VERSION` stands, their versions differ.
const OBJECTS: [&str; 4] = [
    "configmaps \"default/gr\u{fc}n\" {\"data\":\"\u{1f9ca}\",\"metadata\":{\"resourceVersion\":\"VERSION\"}}",
    "configmaps \"default/plain\" {\"data\":{\"quoted\":\"\\\"\\\\\\n\"},\"metadata\":{\"resourceVersion\":\"VERSION\"}}",
    "replicatedvolumes.storage.mainstay.dev \"v1\" {\"data\":true,\"metadata\":{\"resourceVersion\":\"VERSION\"}}",
    "tokens.internal.mainstay.dev \"t\" {\"data\":\"00ff\",\"metadata\":{\"resourceVersion\":\"VERSION\"}}",
];

fn shown(snapshot: &Snapshot) -> Vec<(String, u64)> {
    let records = snapshot.collections.iter().flat_map(|(_, objects)| objects.range(None, None));
    let show = |record: &Arc<mainstay_store::object::Record>| {
        let version = format!("\"resourceVersion\":\"{}\"", record.revision());
        let json = std::str::from_utf8(record.json()).unwrap();
        let json = json.replace(&version, "\"resourceVersion\":\"VERSION\"");
        (format!("{} {json}", record.key()), record.revision().0)
    };
    records.map(show).collect()
}

fn texts(shown: Vec<(String, u64)>) -> Vec<String> {
    shown.into_iter().map(|(text, _)| text).collect()
}

#[test]
fn the_first_database_opens_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("objects.db");
    std::fs::copy(golden("objects-v1.db"), &copy).unwrap();
    block_on(async {
        let store = open(&copy);
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!((snapshot.revision, snapshot.oldest), (Revision(10), Revision(2)));
        let revisions: Vec<_> = shown(&snapshot).into_iter().map(|(_, at)| at).collect();
        assert_eq!(texts(shown(&snapshot)), OBJECTS);
        assert_eq!(revisions, [4, 7, 9, 10]);
        assert_eq!(store.verify().await.unwrap(), [""; 0]);

        let configmaps = Resource::new("", "configmaps");
        let scope = Scope::all(&configmaps);
        let lost = store.watch(scope.clone(), Revision(1)).await;
        assert!(matches!(lost, Err(Error::Expired { oldest: Revision(2), .. })), "{lost:?}");
        let all = [
            (Action::Added, "default/plain", None, 3),
            (Action::Added, "default/gr\u{fc}n", None, 4),
            (Action::Modified, "default/plain", Some(3), 5),
            (Action::Added, "other/gone", None, 6),
            (Action::Modified, "default/plain", Some(5), 7),
            (Action::Deleted, "other/gone", Some(6), 8),
        ];
        for from in 2..8 {
            let mut watch = store.watch(scope.clone(), Revision(from)).await.unwrap();
            let events = watch.next().await.unwrap();
            let seen: Vec<_> = events
                .iter()
                .map(|event| {
                    let previous = event.previous.as_ref().map(|record| record.revision().0);
                    (event.action, event.record.key().path(), previous, event.revision().0)
                })
                .collect();
            let expected: Vec<_> = all.iter().filter(|event| event.3 > from).copied().collect();
            assert_eq!(seen, expected, "from {from}");
        }

        let next = store.write(create(&key("configmaps", "default", "new"), 1)).await.unwrap();
        assert_eq!(next.revision(), Revision(11), "revisions go on");
        store.close().await;
        let store = open(&copy);
        assert_eq!(store.snapshot().await.unwrap().len(), 5);
        store.close().await;
    });
}

#[test]
fn the_first_backup_restores_with_everything_in_it() {
    block_on(async {
        let store = Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, clock()));
        let summary = verify(&golden("backup-v1")).unwrap();
        assert_eq!((summary.objects, summary.head.revision), (4, 10));
        assert_eq!(restore(&golden("backup-v1"), store.clone()).await.unwrap(), summary);
        assert_eq!(texts(shown(&store.snapshot().await.unwrap())), OBJECTS);
    });
}
