//! Checkpoints: move the write-ahead log into the main file without delaying commits.
//!
//! A checkpoint on the commit path stalls every writer behind tens of milliseconds of I/O; one
//! that runs beside the commits never quite catches up, and the log grows for as long as they
//! go on. So the two share the work: this thread moves the bulk whenever the log has grown by
//! a stride, and when it has just finished, the committer moves the small rest itself between
//! two batches, after which SQLite starts the log from the beginning. If that never succeeds
//! (a reader from outside holds the log), the committer insists once the log passes [`LIMIT`].

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::OpenError;
use super::disk::{self, Disk};

/// How many pages it may have before the committer blocks for a checkpoint: 256 MiB.
const LIMIT: u32 = 65_536;

/// The committer's view of the checkpoint thread.
#[derive(Debug)]
pub(super) struct Checkpoints {
    requests: SyncSender<()>,
    moved: Arc<AtomicBool>,
    /// How many pages the log may grow by before its bulk is moved.
    stride: u32,
    /// How many pages the log may have before the next request.
    next: u32,
}

/// Starts the thread; it ends when the [`Checkpoints`] are dropped.
/// The counter of acknowledged revisions is synced here, where it delays no commit.
pub(super) fn start(
    path: &Path,
    counter: Option<File>,
    stride: u32,
) -> Result<(JoinHandle<()>, Checkpoints), OpenError> {
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
                    tracing::warn!(%error, "background checkpoint failed; retrying");
                }
                if let Some(Err(error)) = counter.as_ref().map(File::sync_data) {
                    tracing::warn!(%error, "syncing the counter of acknowledged revisions failed");
                }
                done.store(true, Ordering::Release);
            }
        })
        .map_err(|source| OpenError::Io { path: path.into(), source })?;
    Ok((thread, Checkpoints { requests, moved, stride, next: stride }))
}

impl Checkpoints {
    /// Called by the committer after a batch: decides which thread moves the log.
    pub(super) fn after_batch(&mut self, disk: &Disk) {
        let pages = disk.log_pages();
        if self.moved.swap(false, Ordering::Acquire) && rest(disk, pages) {
            self.next = self.stride;
            return;
        }
        if pages < self.next {
            return;
        }
        self.next = pages + self.stride;
        match self.requests.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => self.moved.store(true, Ordering::Release),
        }
    }
}

/// The committer's share. True once the log starts over.
fn rest(disk: &Disk, pages: u32) -> bool {
    let mode = if pages > LIMIT { "TRUNCATE" } else { "PASSIVE" };
    disk.checkpoint(mode).unwrap_or_else(|error| {
        tracing::warn!(%error, "checkpoint between two commits failed; retrying");
        false
    })
}
