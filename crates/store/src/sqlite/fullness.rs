//! Full disks: which writes are still taken, and how space is made.
//!
//! When SQLite finds no space, the reserve is given back, the history is dropped (its pages are
//! used again) and the write-ahead log is moved into the database. From then on the store is
//! *tight*: the database may not grow, and every commit moves its log, so that neither needs space
//! that may not be there. If too little is left it is *full*: it takes deletions, changes that
//! complete a deletion, and its own bookkeeping, and refuses everything else with the reason. These
//! are written without history, so they need next to no space. It is no longer full once enough is
//! free inside the database and on the disk together, and no longer tight once the reserve fits on
//! the disk again.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::ErrorCode;
use serde_json::{Map, Value};

use crate::check::INTERNAL;
use crate::object::Body;
use crate::objects::{Change, Error, Write};

use super::disk::{self, Disk};
use super::reserve::Reserve;

/// Whether the disk is full: written by the committer, read by readiness checks.
#[derive(Debug)]
pub(super) struct Fullness {
    reserve: Reserve,
    folder: String,
    full: AtomicBool,
    reserved: AtomicBool,
}

impl Fullness {
    /// Sets the reserve aside; where it does not fit, the disk counts as full from the start.
    pub(super) fn new(database: &Path) -> Self {
        let reserve = Reserve::of(database);
        let folder = database.parent().unwrap_or(Path::new(".")).display().to_string();
        let (full, reserved) = match reserve.take() {
            Ok(()) => (false, true),
            Err(error) => {
                tracing::warn!(%error, "disk space could not be reserved for deletions");
                let full =
                    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
                (full, false)
            }
        };
        let (full, reserved) = (AtomicBool::new(full), AtomicBool::new(reserved));
        Self { reserve, folder, full, reserved }
    }

    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    pub(super) fn is_tight(&self) -> bool {
        !self.reserved.load(Ordering::Acquire)
    }

    /// How many pages the write-ahead log may grow by before it is moved into the database: 16 MiB
    /// on all but small disks. All of the log must fit into the reserve, and it grows on while it
    /// is moved.
    pub(super) fn stride(&self) -> u32 {
        u32::try_from(self.reserve.size() / 3 / 4096).unwrap_or(u32::MAX)
    }

    /// Whether a full disk is why SQLite failed.
    pub(super) fn explains(&self, error: &rusqlite::Error) -> bool {
        let no_space = || self.reserve.free().is_ok_and(|free| free < 64 << 10);
        disk::is_full(error)
            || matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen)
            ) && no_space()
    }

    /// Gives the reserve back and counts the disk as full.
    pub(super) fn give_way(&self) {
        self.reserve.release();
        self.reserved.store(false, Ordering::Release);
        if !self.full.swap(true, Ordering::AcqRel) {
            tracing::error!(
                folder = self.folder,
                "the disk is full; only deletions are accepted until there is space"
            );
        }
    }

    /// Leaves the full state if there is space again, on the disk or inside the database.
    pub(super) fn recover(&self, disk: &Disk) {
        if !self.is_full() {
            return;
        }
        self.set_aside(disk);
        // Space counts only if the log can start over; otherwise the log itself needs space.
        let space = || match disk.checkpoint("PASSIVE") {
            Ok(true) => {
                let inside = disk.free_inside().unwrap_or_default();
                inside + self.reserve.free().unwrap_or_default()
            }
            Ok(false) | Err(_) => 0,
        };
        if !self.is_tight() || space() >= self.reserve.enough() {
            self.full.store(false, Ordering::Release);
            tracing::info!(folder = self.folder, "there is disk space again; writes are accepted");
        }
    }

    /// Sets the reserve aside again if it was given back and fits.
    pub(super) fn set_aside(&self, disk: &Disk) {
        if self.is_tight() && self.reserve.take().is_ok() {
            self.reserved.store(true, Ordering::Release);
            disk.may_grow(true);
        }
    }

    /// The error for writes that are not taken.
    pub(super) fn refusal(&self) -> Error {
        let (folder, free) = (&self.folder, self.reserve.free().unwrap_or_default());
        let reason = format!(
            "the disk is full: {folder} has {free} bytes free; creating and changing objects is \
             refused, deleting works: free disk space or delete objects, then try again"
        );
        Error::Full { reason }
    }
}

/// Changes that a full store takes: deletions, changes of objects that are being deleted, and
/// changes of the server's own objects, whose number is bounded.
pub(super) fn is_taken(write: &Write) -> bool {
    let resource = write.key.resource().as_str();
    let internal = resource.strip_suffix(INTERNAL).is_some_and(|plural| plural.ends_with('.'));
    match &write.change {
        Change::Delete(_) => true,
        Change::Update(_, body) => {
            internal || resource == "leases.coordination.k8s.io" || is_being_deleted(body)
        }
        // The event about the full disk.
        Change::Create(_) => {
            resource == "events"
                && write.key.namespace() == Some("mainstay-system")
                && write.key.name().starts_with("store.")
        }
    }
}

fn is_being_deleted(body: &Body) -> bool {
    let object: Map<String, Value> = serde_json::from_slice(body.json()).unwrap_or_default();
    object.get("metadata").is_some_and(|metadata| metadata.get("deletionTimestamp").is_some())
}
