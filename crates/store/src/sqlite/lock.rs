//! Locks that keep a second process away from a database.
//!
//! Two locks are taken: one on a file beside the database, which older versions look at too, and
//! one on the database itself, so that removing the lock file does not let a second process in.
//! Both are `flock`s: they end with the process however it ends, and SQLite's own locks, which are
//! of another kind, do not conflict with them. The database must stay open here for as long as
//! SQLite has it open: closing any handle of a file drops every lock of SQLite's kind that the
//! process holds on it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{OpenError, beside};

/// Held for as long as the database is open.
#[derive(Debug)]
pub struct Lock {
    files: Vec<File>,
}

impl Lock {
    /// Locks the database, making an empty one for its owner alone if there is none: it holds the
    /// key of the certificate authority. SQLite gives the files beside it the same mode.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let files =
            vec![held(path, beside(path, ".lock"), 0o600)?, held(path, path.into(), 0o600)?];
        name_holder(&files[0]);
        Ok(Self { files })
    }

    /// Locks a database by itself, making an empty one if there is none.
    ///
    /// # Errors
    /// [`OpenError::InUse`], [`OpenError::Io`].
    pub fn on_file(path: &Path) -> Result<Self, OpenError> {
        Ok(Self { files: vec![held(path, path.into(), 0o600)?] })
    }

    /// Locks an existing database to look at it, without creating or changing a file.
    pub(super) fn to_look(path: &Path) -> Result<Self, OpenError> {
        let mut files = Vec::new();
        let beside = beside(path, ".lock");
        if beside.exists() {
            files.push(locked(path, beside.clone(), File::options().read(true).open(beside))?);
        }
        files.push(locked(path, path.into(), File::options().read(true).open(path))?);
        Ok(Self { files })
    }

    /// Ends both locks at once, since a child process that is just being started may still share
    /// the files and would keep them a moment longer.
    pub(super) fn release(&self) {
        for file in &self.files {
            if let Err(error) = file.unlock() {
                tracing::warn!(%error, "unlocking the database failed");
            }
        }
    }
}

/// Writes the process id of the holder, for messages; without it they name no process.
fn name_holder(mut file: &File) {
    use std::io::Write;
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::debug!(%error, "the process id was not written into the lock file");
    }
}

/// The process that holds the lock of a database, as far as its lock file tells. Meaningful only
/// while the database is locked.
#[must_use]
pub fn holder(path: &Path) -> Option<u32> {
    std::fs::read_to_string(beside(path, ".lock")).ok()?.trim().parse().ok()
}

fn held(database: &Path, path: PathBuf, mode: u32) -> Result<File, OpenError> {
    let opened =
        File::options().create(true).truncate(false).read(true).write(true).mode(mode).open(&path);
    locked(database, path, opened)
}

fn locked(database: &Path, path: PathBuf, opened: io::Result<File>) -> Result<File, OpenError> {
    let file = opened.map_err(|source| OpenError::Io { path: path.clone(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: database.into() }),
        Err(TryLockError::Error(source)) => Err(OpenError::Io { path, source }),
    }
}
