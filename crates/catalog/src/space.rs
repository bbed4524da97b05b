//! Handles a full disk under a SQLite catalog: which changes still work, and when it is over.
//!
//! When SQLite finds no space, the reserve is released and the write-ahead log is moved into the
//! file. From then on the catalog is *tight*: its file may not grow for new rows, and every commit
//! moves its log, so that commits need almost no space. Deletions, updates and the rows that these
//! add (history, work for daemons, tokens of logins) may still let the file grow by a part of the
//! reserve; all other insertions must fit into free pages of the file. The disk counts as full until
//! the reserve could be allocated again, or as much space is free inside the file: small changes of
//! the free space do not end it.

use std::io::ErrorKind;
use std::path::Path;

use super::reserve::Reserve;
use super::sqlite::Sqlite;

/// The tables that deletions, updates and logins insert into.
const BOOKKEEPING: [&str; 13] = [
    "account_usage",
    "contents_history",
    "detached",
    "given_up",
    "judges",
    "messages",
    "requests_history",
    "rse_usage",
    "rules_history",
    "suspicious_replicas",
    "tokens",
    "updated_dids",
    "versions",
];

/// The size of a page. Catalogs are created with SQLite's default.
const PAGE: u64 = 4096;

/// The reserve of a catalog, and whether it was released because the disk is full.
#[derive(Debug)]
pub(super) struct Space {
    reserve: Reserve,
    reserved: bool,
    /// Whether there was too little space when the catalog was opened.
    pub(super) full_at_start: bool,
}

impl Space {
    /// Allocates the reserve of a catalog, if it fits.
    pub(super) fn new(catalog: &Path) -> Self {
        let reserve = Reserve::of(catalog);
        let taken = reserve.take();
        if let Err(error) = &taken {
            tracing::warn!(%error, "disk space could not be reserved for the rule catalog");
        }
        let full_at_start = taken.as_ref().is_err_and(|error| {
            matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        });
        // Without a reserve for another reason, the disk still has space.
        Self { reserve, reserved: !full_at_start, full_at_start }
    }

    /// How many pages the write-ahead log may have before it is moved: it must fit into the reserve.
    pub(super) fn log_pages(&self) -> u64 {
        (self.reserve.size() / 3 * 2 / PAGE).min(8000)
    }

    pub(super) fn is_tight(&self) -> bool {
        !self.reserved
    }

    /// Whether the file system has practically no space left.
    pub(super) fn is_used_up(&self) -> bool {
        self.reserve.is_used_up()
    }

    /// Releases the reserve.
    pub(super) fn release(&mut self) {
        self.reserve.release();
        self.reserved = false;
    }

    /// Makes a catalog tight that found no space; if it is, looks whether there is space now.
    pub(super) fn make(&mut self, engine: &mut Sqlite) {
        if !self.is_tight() {
            self.release();
            self.bound(engine);
        }
        self.after_commit(engine);
    }

    /// Bounds the growth of a tight catalog.
    pub(super) fn bound(&self, engine: &mut Sqlite) {
        let bookkeeping = self.reserve.size() / 3 / PAGE;
        engine.bound_growth(self.is_tight().then_some(bookkeeping));
    }

    /// Moves the log of a tight catalog, and allocates the reserve again if it fits.
    pub(super) fn after_commit(&mut self, engine: &mut Sqlite) {
        if !self.is_tight() {
            return;
        }
        if let Err(error) = engine.move_log() {
            tracing::debug!(%error, "checkpoint of the catalog on a full disk failed; retrying");
        }
        if self.reserve.take().is_ok() {
            self.reserved = true;
            self.bound(engine);
        }
    }

    /// Whether there is enough space again, on the disk or inside the file.
    pub(super) fn recover(&mut self, engine: &mut Sqlite) -> bool {
        self.after_commit(engine);
        if !self.is_tight() {
            return true;
        }
        // Space counts only if the log can start over; otherwise the log itself needs space.
        match engine.move_log() {
            Ok(true) => {
                let inside = engine.free_inside().unwrap_or_default();
                inside + self.reserve.free().unwrap_or_default() >= self.reserve.enough()
            }
            Ok(false) | Err(_) => false,
        }
    }
}

/// Whether a statement only deletes, updates or keeps books, so that it may let a tight catalog
/// grow.
pub(super) fn is_bookkeeping(sql: &str) -> bool {
    let mut words = sql.split_whitespace();
    match words.next() {
        Some("INSERT") => {
            let table = words.nth(1).map(|word| word.split('(').next().unwrap_or(word));
            table.is_some_and(|table| BOOKKEEPING.contains(&table) || table.starts_with("w_"))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests;
