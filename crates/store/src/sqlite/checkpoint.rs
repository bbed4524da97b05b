//! Moving the write-ahead log into the main file without holding up commits.
//!
//! A checkpoint on the commit path stalls every writer behind tens of milliseconds of I/O; one
//! that runs beside the commits never quite catches up, and the log grows for as long as they
//! go on. So the two share the work: this thread moves the bulk whenever the log has grown by
//! [`STRIDE`], and when it has just finished, the committer moves the small rest itself between
//! two batches, after which SQLite starts the log from the beginning. If that never succeeds
//! (a reader from outside holds the log), the committer insists once the log passes [`LIMIT`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::OpenError;
use super::disk::{self, Disk};

/// How many pages the log may grow by before its bulk is moved: 16 MiB.
const STRIDE: u32 = 4096;
/// How many pages it has when the committer stops being patient: 256 MiB.
const LIMIT: u32 = 65_536;

/// The committer's view of the checkpoint thread.
#[derive(Debug)]
pub(super) struct Checkpoints {
    requests: SyncSender<()>,
    moved: Arc<AtomicBool>,
    /// How many pages the log may have before the next request.
    next: u32,
}

/// Starts the thread; it ends when the [`Checkpoints`] are dropped.
pub(super) fn start(path: &Path) -> Result<(JoinHandle<()>, Checkpoints), OpenError> {
    let connection =
        disk::connect(path).map_err(|source| OpenError::Sqlite { path: path.into(), source })?;
    let (requests, queue): (_, Receiver<()>) = sync_channel(1);
    let moved = Arc::new(AtomicBool::new(false));
    let done = moved.clone();
    let thread = std::thread::Builder::new()
        .name("store-checkpoint".into())
        .spawn(move || {
            while queue.recv().is_ok() {
                if let Err(error) = disk::checkpoint(&connection, "PASSIVE") {
                    tracing::warn!(%error, "checkpoint failed; it will be tried again");
                }
                done.store(true, Ordering::Release);
            }
        })
        .map_err(|source| OpenError::Io { path: path.into(), source })?;
    Ok((thread, Checkpoints { requests, moved, next: STRIDE }))
}

impl Checkpoints {
    /// Called by the committer after a batch: decides who has to move what.
    pub(super) fn after_batch(&mut self, disk: &Disk) {
        let pages = disk.log_pages();
        if self.moved.swap(false, Ordering::Acquire) && rest(disk, pages) {
            self.next = STRIDE;
            return;
        }
        if pages < self.next {
            return;
        }
        self.next = pages + STRIDE;
        match self.requests.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => self.moved.store(true, Ordering::Release),
        }
    }
}

/// The committer's share. True once the log begins anew.
fn rest(disk: &Disk, pages: u32) -> bool {
    let mode = if pages > LIMIT { "TRUNCATE" } else { "PASSIVE" };
    disk.checkpoint(mode).unwrap_or_else(|error| {
        tracing::warn!(%error, "checkpoint failed; it will be tried again");
        false
    })
}
