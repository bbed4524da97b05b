//! Tracks whether the database of a catalog works, for `/readyz` and for later writes.
//!
//! Damage is remembered as long as the process runs: after the first damaged page every write is
//! refused, because writing could spread the damage. A full disk is remembered until enough space
//! could be allocated: a commit that needs no space does not end it, so that the state does not
//! alternate. A failing disk is forgotten as soon as a commit works again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::engine::Mode;
use super::opening::beside;
use super::{Backend, Catalog, blocking};
use crate::error::{Error, Result, TxError};
use crate::values;

/// Allocates a mebibyte on PostgreSQL's disk until the end of the transaction.
const ALLOCATE: &str = "CREATE TEMPORARY TABLE w_space ON COMMIT DROP AS \
    SELECT repeat(md5(CAST(n AS TEXT)), 32) AS filler FROM generate_series(1, 1024) AS n";

/// The known trouble with the database of a catalog.
#[derive(Debug)]
pub(super) struct Health {
    /// The name of the database in messages, without users and hosts.
    place: String,
    trouble: Mutex<Trouble>,
    /// Device and inode of the file when it was opened; `None` for PostgreSQL.
    file: Option<(u64, u64)>,
    /// The same of its write-ahead log.
    log: Option<(u64, u64)>,
    /// The greatest length of the file that a check has seen: it never becomes shorter.
    known_length: AtomicU64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Trouble {
    #[default]
    None,
    /// The disk failed during the last commit.
    Failing,
    /// A commit found no space, and there is not enough yet.
    Full,
    Damaged(String),
}

impl Health {
    /// The health of a database that was just opened: on a full disk, if `full` is set.
    pub(super) fn new(place: String, full: bool, file: Option<&Path>) -> Self {
        let log = file.and_then(|path| inode(&beside(path, "-wal")));
        let (file, known_length) = (file.and_then(inode), AtomicU64::new(1));
        let health = Self { place, trouble: Mutex::default(), file, log, known_length };
        if full {
            health.note_full();
        }
        health
    }

    fn trouble(&self) -> Trouble {
        self.trouble.lock().clone()
    }

    fn full(&self) -> Error {
        Error::Full { place: self.place.clone() }
    }

    /// Fails if the database is known to be damaged.
    pub(super) fn undamaged(&self) -> Result<()> {
        match self.trouble() {
            Trouble::Damaged(what) => Err(Error::Damaged { place: self.place.clone(), what }),
            _ => Ok(()),
        }
    }

    /// Fails if the file at `path` or its write-ahead log is not the one that was opened, or if the
    /// file is shorter than it was.
    pub(super) fn same_file(&self, path: &Path) -> Result<()> {
        for (ending, opened) in [("", self.file), ("-wal", self.log)] {
            let place = format!("{}{ending}", self.place);
            match (opened, inode(&beside(path, ending))) {
                (Some(_), None) => return Err(Error::Deleted { place }),
                (Some(opened), Some(found)) if opened != found => {
                    return Err(Error::Replaced { place });
                }
                _ => {}
            }
        }
        let length = std::fs::metadata(path).map_or(0, |found| found.len());
        if length < self.known_length.fetch_max(length, Ordering::Relaxed) {
            let what = "it became shorter while the server was using it".to_owned();
            return Err(Error::Damaged { place: self.place.clone(), what });
        }
        Ok(())
    }

    /// Records that the disk is full.
    pub(super) fn note_full(&self) {
        self.enter(&self.full(), Trouble::Full);
    }

    fn enter(&self, error: &Error, trouble: Trouble) {
        let mut known = self.trouble.lock();
        if *known != trouble && !matches!(*known, Trouble::Damaged(_)) {
            tracing::error!(%error, "rule catalog failed");
            *known = trouble;
        }
    }

    /// Records the outcome of a transaction, and adds the place to its error.
    pub(super) fn note<T, E: TxError>(&self, writes: bool, done: Result<T, E>) -> Result<T, E> {
        let place = || self.place.clone();
        let failed = match &done {
            Ok(_) if writes => {
                self.leave(&Trouble::Failing);
                None
            }
            Ok(_) => None,
            Err(error) => error.catalog(),
        };
        let (error, trouble) = match failed {
            Some(Error::Damaged { what, .. }) => {
                let error = Error::Damaged { place: place(), what: what.clone() };
                (error, Trouble::Damaged(what.clone()))
            }
            Some(Error::Full { .. }) => (self.full(), Trouble::Full),
            Some(Error::Disk { what, .. }) => {
                (Error::Disk { place: place(), what: what.clone() }, Trouble::Failing)
            }
            _ => return done,
        };
        self.enter(&error, trouble);
        Err(error.into())
    }

    /// Records that this trouble is over.
    fn leave(&self, over: &Trouble) {
        let mut known = self.trouble.lock();
        if *known == *over {
            *known = Trouble::None;
            tracing::info!(catalog = self.place, "commits to the rule catalog work again");
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Catalog {
    /// Checks that the database answers and, as far as is known, accepts writes. After a failed
    /// commit, this tries one that changes no data; on a full disk, it tries to allocate space.
    ///
    /// # Errors
    /// The reason why the database cannot be used.
    pub async fn ready(&self) -> Result<()> {
        let health = &self.inner.health;
        health.undamaged()?;
        if let Backend::Sqlite { path, .. } = &self.inner.backend {
            health.same_file(path)?;
        }
        match health.trouble() {
            Trouble::Full => {
                let catalog = self.clone();
                blocking(move || catalog.find_space()).await
            }
            Trouble::Failing => {
                let same = "UPDATE versions SET value = value WHERE name = ?1";
                self.write(|tx| tx.execute(same, values!["rses"]).map(drop)).await
            }
            _ => self.ping().await,
        }
    }

    /// Ends the state of a full disk if enough space can be allocated.
    fn find_space(&self) -> Result<()> {
        let health = &self.inner.health;
        match &self.inner.backend {
            Backend::Sqlite { writer, .. } if writer.recover() => {}
            Backend::Sqlite { .. } => return Err(health.full()),
            Backend::Postgres { pool, .. } => {
                let allocate = |tx: &mut crate::Tx<'_>| tx.execute(ALLOCATE, &[]).map(drop);
                let done = self.once_on_postgres(pool, Mode::Write, &allocate);
                health.note(true, done)?;
            }
        }
        health.leave(&Trouble::Full);
        Ok(())
    }

    /// Queries one row, without retries.
    async fn ping(&self) -> Result<()> {
        let catalog = self.clone();
        blocking(move || match &catalog.inner.backend {
            Backend::Sqlite { .. } => catalog.read_blocking(|tx| tx.number("SELECT 1", &[])),
            Backend::Postgres { pool, .. } => {
                catalog.once_on_postgres(pool, Mode::Read, &|tx| tx.number("SELECT 1", &[]))
            }
        })
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_disk_is_forgotten_by_the_next_commit_and_damage_and_fullness_are_not() {
        let health = Health::new("c.db".to_owned(), false, None);
        let failed = || Err(Error::Disk { place: String::new(), what: "I/O".to_owned() });
        assert!(health.note::<(), Error>(true, failed()).is_err());
        assert_eq!(health.trouble(), Trouble::Failing);
        health.note::<(), Error>(false, Ok(())).unwrap();
        assert_eq!(health.trouble(), Trouble::Failing, "a read does not prove that writes work");
        health.note::<(), Error>(true, Ok(())).unwrap();
        assert_eq!(health.trouble(), Trouble::None);
        let full = health.note::<(), Error>(true, Err(Error::Full { place: String::new() }));
        assert!(full.unwrap_err().to_string().contains("c.db"));
        health.note::<(), Error>(true, Ok(())).unwrap();
        assert_eq!(health.trouble(), Trouble::Full, "a commit may need no space");
        health.leave(&Trouble::Full);
        assert_eq!(health.trouble(), Trouble::None);
        let damaged = || Err(Error::Damaged { place: String::new(), what: "page 7".to_owned() });
        let message = health.note::<(), Error>(false, damaged()).unwrap_err().to_string();
        assert!(message.contains("c.db") && message.contains("page 7"), "{message}");
        health.note::<(), Error>(true, Ok(())).unwrap();
        assert!(health.undamaged().is_err());
    }

    #[test]
    fn on_postgresql_a_full_disk_is_over_when_space_can_be_allocated() {
        let server = match crate::private_postgres::PrivatePostgres::start(&["fsync=off"]) {
            Ok(server) => server,
            Err(why) => {
                assert!(std::env::var_os("CI").is_none(), "PostgreSQL is needed: {why}");
                return;
            }
        };
        server.make_schema("filled").unwrap();
        let catalog = Catalog::open_blocking(&server.url("filled")).unwrap();
        catalog.inner.health.note_full();
        let same = "UPDATE versions SET value = value";
        let changed = catalog.write_blocking::<_, Error>(|tx| tx.execute(same, &[]));
        assert!(changed.unwrap() > 0);
        for _ in 0..2 {
            assert_eq!(catalog.inner.health.trouble(), Trouble::Full, "a commit may need no space");
            catalog.find_space().unwrap();
            assert_eq!(catalog.inner.health.trouble(), Trouble::None);
            catalog.inner.health.note_full();
        }
    }

    #[tokio::test]
    async fn a_catalog_whose_file_was_deleted_or_replaced_is_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.db");
        let catalog = Catalog::open_blocking(&path.display().to_string()).unwrap();
        catalog.ready().await.unwrap();
        let aside = folder.path().join("aside.db");
        std::fs::rename(&path, &aside).unwrap();
        for _ in 0..2 {
            let refused = catalog.ready().await.unwrap_err().to_string();
            assert!(refused.contains("catalog.db was deleted"), "{refused}");
        }
        assert!(!path.exists(), "a check or a reader created a new file");
        std::fs::copy(&aside, &path).unwrap();
        let refused = catalog.ready().await.unwrap_err().to_string();
        assert!(refused.contains("catalog.db was replaced"), "{refused}");
        let found = catalog.verify().await.unwrap();
        assert_eq!(found, [refused], "the check of a running catalog names it too");
        std::fs::rename(&aside, &path).unwrap();
        catalog.ready().await.unwrap();
        let log = folder.path().join("catalog.db-wal");
        std::fs::rename(&log, &aside).unwrap();
        let refused = catalog.ready().await.unwrap_err().to_string();
        assert!(refused.contains("catalog.db-wal was deleted"), "{refused}");
        std::fs::rename(&aside, &log).unwrap();
        catalog.ready().await.unwrap();
        std::fs::write(&path, "").unwrap();
        let refused = catalog.ready().await.unwrap_err().to_string();
        assert!(refused.contains("became shorter"), "{refused}");
    }
}
