//! Detects that a file of an open database was deleted, replaced or cut short.
//!
//! SQLite continues with the files it has opened, whatever their paths name now: every later change
//! is lost when the process ends. So the readiness check compares device and inode of the database
//! and of its write-ahead log, and the length of the database, which never becomes shorter.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::beside;
use super::unchanged::length;
use crate::objects::Error;

/// The files of a database that was opened.
#[derive(Debug)]
pub(super) struct OpenedFile {
    database: Option<Inode>,
    log: Option<Inode>,
    /// The greatest length of the database that a check has seen.
    known_length: AtomicU64,
}

/// Device and inode.
type Inode = (u64, u64);

fn inode(path: &Path) -> Option<Inode> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl OpenedFile {
    /// The files that `path` names now. The database has content, and its log is open.
    pub(super) fn at(path: &Path) -> Self {
        let log = inode(&beside(path, "-wal"));
        Self { database: inode(path), log, known_length: AtomicU64::new(1) }
    }

    /// Fails if `path` names another file, or none, if the file is shorter than it was, or if its
    /// write-ahead log is another one.
    pub(super) fn is_still_at(&self, path: &Path) -> Result<(), Error> {
        let log = beside(path, "-wal");
        same(path, self.database)?;
        same(&log, self.log)?;
        let found = length(path);
        if found < self.known_length.fetch_max(found, Ordering::Relaxed) {
            return Err(lost(path, "became shorter"));
        }
        Ok(())
    }
}

fn same(path: &Path, opened: Option<Inode>) -> Result<(), Error> {
    match inode(path) {
        found if found == opened => Ok(()),
        None => Err(lost(path, "was deleted")),
        Some(_) => Err(lost(path, "was replaced by another file")),
    }
}

fn lost(path: &Path, what: &str) -> Error {
    let shown = path.display();
    let reason = format!(
        "{shown} {what} while the server was using it, and changes are lost when the server stops: \
         make a backup with `mainstay backup`, stop the server, and restore it with `mainstay \
         restore`"
    );
    Error::Unavailable { reason }
}
