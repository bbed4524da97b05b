//! A store on a full disk: nothing acknowledged is lost, deletions work, and it recovers.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::objects::{Error, Objects};
use mainstay_store::sqlite::SqliteStore;

use crate::{block_on, create, delete, key, update};

/// A small file system of its own.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "mainstay-test"]);
        mount.arg(folder.path()).status().ok()?.success().then_some(Self(folder))
    }

    /// Takes all the space there is; give it back by removing the file.
    fn fill(&self) -> std::path::PathBuf {
        use std::io::Write;
        let path = self.0.path().join("something-else");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

fn open(folder: &Path) -> Arc<dyn Objects> {
    let path = folder.join("objects.db");
    Arc::new(SqliteStore::open(&path, Retention::default(), 1 << 20, SystemClock::new()).unwrap())
}

fn text() -> String {
    "x".repeat(50_000)
}

/// Creates objects until one is refused; says how many there are.
async fn create_until_full(store: &dyn Objects, name: &str) -> usize {
    for n in 0..10_000 {
        match store.write(create(&key("apples", "a", &format!("{name}{n:04}")), text())).await {
            Ok(_) => {}
            Err(Error::Full { reason }) => {
                assert!(reason.contains("the disk is full"), "{reason}");
                return n;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the disk is never full");
}

async fn count(store: &dyn Objects) -> usize {
    store.snapshot().await.unwrap().len()
}

#[test]
fn a_full_disk_takes_deletions_and_a_restart_and_recovers() {
    let Some(disk) = SmallDisk::mount(24 << 20) else {
        eprintln!("skipped: a file system cannot be mounted here");
        return;
    };
    block_on(async {
        let store = open(disk.0.path());
        let first = key("apples", "a", "first");
        let mut at = store.write(create(&first, text())).await.unwrap().revision();
        for _ in 0..40 {
            at = store.write(update(&first, at, text())).await.unwrap().revision();
        }
        store.ready().await.unwrap();
        let filler = disk.fill();
        let created = create_until_full(&*store, "n").await;
        assert!(matches!(store.ready().await, Err(Error::Full { .. })));
        let refused = store.write(update(&first, at, text())).await;
        assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        assert_eq!(count(&*store).await, created + 1, "what was refused is not there");

        // A restart on the full disk serves reads, and deletions go on.
        store.close().await;
        let store = open(disk.0.path());
        assert!(matches!(store.ready().await, Err(Error::Full { .. })));
        assert_eq!(count(&*store).await, created + 1);
        store.write(delete(&first, at)).await.unwrap();
        let revision = store.snapshot().await.unwrap().revision;
        store.compact(revision).await.unwrap();

        // Deleting alone makes room for others.
        let snapshot = store.snapshot().await.unwrap();
        for record in snapshot.collections[0].1.range(None, None) {
            store.write(delete(record.key(), record.revision())).await.unwrap();
        }
        assert_eq!(count(&*store).await, 0);
        store.ready().await.unwrap();
        let again = create_until_full(&*store, "m").await;
        assert!(again > 0, "there is room inside the database");

        // And so does space on the disk, without a restart.
        std::fs::remove_file(filler).unwrap();
        store.ready().await.unwrap();
        store.write(create(&first, text())).await.unwrap();
        assert_eq!(count(&*store).await, again + 1);
        store.close().await;
        let store = open(disk.0.path());
        assert_eq!(count(&*store).await, again + 1);
        assert_eq!(store.verify().await.unwrap(), [""; 0]);
        store.close().await;
    });
}

#[test]
fn a_store_whose_commits_fail_is_not_ready_until_they_work_again() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(folder.path());
        let [first, second] = ["first", "second"].map(|name| key("apples", "a", name));
        store.write(create(&first, 1)).await.unwrap();
        store.ready().await.unwrap();
        let beside = rusqlite::Connection::open(folder.path().join("objects.db")).unwrap();
        beside
            .execute_batch(
                "CREATE TRIGGER broken BEFORE UPDATE ON history
                 BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END",
            )
            .unwrap();
        store.ready().await.unwrap();
        let refused = store.write(create(&second, 1)).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
        for _ in 0..3 {
            let told = store.ready().await.unwrap_err().to_string();
            assert!(told.contains("the last commit failed: disk I/O error"), "{told}");
        }
        // A write that is refused for another reason commits nothing and tells nothing.
        store.write(create(&first, 1)).await.unwrap_err();
        store.ready().await.unwrap_err();
        beside.execute_batch("DROP TRIGGER broken").unwrap();
        let before = store.snapshot().await.unwrap().revision;
        store.ready().await.unwrap();
        assert_eq!(store.snapshot().await.unwrap().revision, before, "a probe changes nothing");
        store.write(create(&second, 1)).await.unwrap();
        drop(beside);
        store.close().await;
    });
}
