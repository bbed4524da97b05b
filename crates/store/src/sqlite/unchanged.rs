//! Opens a database for a check that changes no byte of its folder.
//!
//! SQLite creates and deletes files when it opens a database: it deletes the write-ahead log of an
//! empty database, creates a log that is missing, and maps a file of shared memory beside it. So a
//! log without a database is refused before SQLite sees it. Without a log the file is read as one
//! that cannot change. With a log this process is the only user, which needs no shared memory, and
//! closing moves nothing into the database.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::{OpenError, beside};

/// The length of a file; zero if there is none.
pub(super) fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}

/// Whether a write-ahead log has content while its database is missing or empty. SQLite would
/// delete the log, and every change that only the log has.
#[must_use]
pub fn is_log_alone(path: &Path) -> bool {
    length(path) == 0 && length(&beside(path, "-wal")) > 0
}

/// Refuses a write-ahead log without its database.
pub(super) fn refuse_log_alone(path: &Path) -> Result<(), OpenError> {
    match is_log_alone(path) {
        true => Err(OpenError::LogAlone { path: path.into(), log: beside(path, "-wal") }),
        false => Ok(()),
    }
}

/// Opens a database that this process has locked.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let common = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if length(&beside(path, "-wal")) == 0 {
        let flags = common | OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        return Connection::open_with_flags(immutable(path), flags);
    }
    let connection = Connection::open_with_flags(path, common | OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
    Ok(connection)
}

/// The URI of a file that no process changes.
fn immutable(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            // Writing to a string does not fail.
            byte => drop(write!(uri, "%{byte:02x}")),
        }
    }
    uri.push_str("?immutable=1");
    uri
}
