//! Tests that need a file: it is in use, damaged, of a newer version, or full.

use std::os::unix::fs::FileExt;
use std::path::Path;

use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::objects::Error;
use mainstay_store::sqlite::{OpenError, SqliteStore};
use mainstay_store::tiered::next_epoch;
use rusqlite::Connection;

use crate::{Backend, Stage, block_on, create, delete, key, update};

fn try_open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(path, Retention::default(), 1 << 20, SystemClock::new())
}

/// A closed database with a few objects and some history.
fn sample() -> Stage {
    block_on(async {
        let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        for n in 0..20 {
            let key = key("apples", "a", &format!("n{n}"));
            let at = stage.store.write(create(&key, n)).await.unwrap().revision();
            let at = stage.store.write(update(&key, at, n + 1)).await.unwrap().revision();
            if n % 3 == 0 {
                stage.store.write(delete(&key, at)).await.unwrap();
            }
        }
        stage.store.close().await;
        stage
    })
}

#[test]
fn a_second_process_cannot_open_the_database() {
    let stage = block_on(Stage::new(Backend::Sqlite, Retention::default()));
    assert!(matches!(try_open(&stage.path()), Err(OpenError::InUse { .. })));
}

#[test]
fn a_database_that_was_deleted_or_replaced_while_open_is_not_ready() {
    block_on(async {
        let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        let (path, aside) = (stage.path(), stage.path().with_extension("aside"));
        let not_ready = async || stage.store.ready().await.unwrap_err().to_string();
        stage.store.ready().await.unwrap();
        std::fs::rename(&path, &aside).unwrap();
        assert!(not_ready().await.contains("was deleted while the server was using it"));
        std::fs::copy(&aside, &path).unwrap();
        assert!(not_ready().await.contains("was replaced by another file"));
        std::fs::rename(&aside, &path).unwrap();
        stage.store.ready().await.unwrap();
        stage.store.close().await;
    });
}

#[test]
fn a_database_whose_log_is_gone_or_that_was_cut_short_while_open_is_not_ready() {
    type Harm = fn(&Path);
    let log = |path: &Path| path.with_extension("db-wal");
    let cases: [(Harm, &str); 3] = [
        (|path| std::fs::remove_file(path.with_extension("db-wal")).unwrap(), "was deleted"),
        (
            |path| {
                let log = path.with_extension("db-wal");
                std::fs::rename(&log, log.with_extension("aside")).unwrap();
                std::fs::write(log, "").unwrap();
            },
            "was replaced by another file",
        ),
        (|path| std::fs::write(path, "").unwrap(), "became shorter"),
    ];
    for (harm, named) in cases {
        block_on(async {
            let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
            stage.store.write(create(&key("apples", "a", "x"), 1)).await.unwrap();
            stage.store.ready().await.unwrap();
            assert!(log(&stage.path()).exists());
            harm(&stage.path());
            let not_ready = stage.store.ready().await.unwrap_err().to_string();
            assert!(not_ready.contains(named), "{not_ready}");
            let found = stage.store.verify().await.unwrap();
            assert_eq!(found, [not_ready], "the check of a running store names it too");
        });
    }
}

#[test]
fn a_check_of_a_running_store_creates_no_database_in_place_of_one_that_was_moved_away() {
    block_on(async {
        let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        stage.store.write(create(&key("apples", "a", "x"), 1)).await.unwrap();
        let (path, aside) = (stage.path(), stage.path().with_extension("aside"));
        let log = std::fs::read(path.with_extension("db-wal")).unwrap();
        std::fs::rename(&path, &aside).unwrap();
        let found = stage.store.verify().await.unwrap();
        assert!(found.len() == 1 && found[0].contains("was deleted"), "{found:?}");
        assert!(!path.exists());
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(std::fs::read(path.with_extension("db-wal")).unwrap(), log);
        stage.store.ready().await.unwrap();
        assert_eq!(stage.store.verify().await.unwrap(), [""; 0]);
        stage.store.close().await;
    });
}

#[test]
fn a_newer_a_foreign_and_a_broken_file_are_refused_and_left_alone() {
    let newer = sample();
    Connection::open(newer.path()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let outcome = try_open(&newer.path()).unwrap_err();
    assert!(matches!(outcome, OpenError::Newer { found: 99, .. }), "{outcome}");

    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("music.db");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE songs (name)").unwrap();
    let outcome = try_open(&foreign).unwrap_err();
    assert!(matches!(outcome, OpenError::Foreign { .. }), "{outcome}");

    let text = folder.path().join("notes.db");
    std::fs::write(&text, "not a database at all, but long enough to look at".repeat(20)).unwrap();
    let before = std::fs::read(&text).unwrap();
    let outcome = try_open(&text).unwrap_err();
    assert!(matches!(outcome, OpenError::Damaged { .. }), "{outcome}");
    assert_eq!(std::fs::read(&text).unwrap(), before);
}

#[test]
fn a_damaged_row_is_named() {
    let cases = [
        ("UPDATE objects SET body = x'7b7d' WHERE path = 'a/n1'", "a/n1"),
        ("UPDATE objects SET revision = 10000 WHERE path = 'a/n1'", "a/n1"),
        ("UPDATE objects SET path = 'a/n2' WHERE path = 'a/n1'", "a/n2"),
        ("UPDATE log SET action = 7 WHERE revision = 2", "revision 2"),
        (
            "UPDATE log SET previous = NULL, previous_revision = NULL WHERE revision = 2",
            "revision 2",
        ),
        ("DELETE FROM history", "revision"),
    ];
    for (harm, named) in cases {
        let stage = sample();
        Connection::open(stage.path()).unwrap().execute_batch(harm).unwrap();
        let OpenError::Damaged { what, .. } = try_open(&stage.path()).unwrap_err() else {
            panic!("{harm} went unnoticed");
        };
        assert!(what.contains(named), "{harm}: {what}");
    }
}

#[test]
fn overwritten_pages_never_panic() {
    let pristine = sample();
    let size = std::fs::metadata(pristine.path()).unwrap().len();
    for page in 0..size / 4096 {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("objects.db");
        std::fs::copy(pristine.path(), &copy).unwrap();
        let file = std::fs::File::options().write(true).open(&copy).unwrap();
        file.write_all_at(&[0xa5; 2048], page * 4096 + 100).unwrap();
        // Whether it opens depends on what was hit; what matters is a clean answer.
        let _ = try_open(&copy);
    }
}

#[test]
fn every_start_has_an_epoch_of_its_own() {
    block_on(async {
        let mut stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        let mut last = 0;
        for _ in 0..3 {
            let epoch = next_epoch(&*stage.store).await.unwrap();
            assert!(epoch > last);
            last = epoch;
            stage.reopen().await;
        }
    });
}

/// Writes that wait together are committed together, and each is judged in turn.
#[test]
fn writes_of_one_batch_are_judged_in_order() {
    block_on(async {
        let stage = Stage::new(Backend::Sqlite, Retention::default()).await;
        let apple = key("apples", "a", "x");
        let all =
            futures_util::future::join_all((0..50).map(|n| stage.store.write(create(&apple, n))))
                .await;
        let won: Vec<_> = all.iter().filter(|outcome| outcome.is_ok()).collect();
        assert_eq!(won.len(), 1, "one create wins");
        let lost = all.iter().filter(|o| matches!(o, Err(Error::AlreadyExists { .. }))).count();
        assert_eq!(lost, 49);
    });
}
