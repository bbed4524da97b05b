//! Reserves disk space beside a SQLite catalog, so that rows can still be deleted on a full disk.
//!
//! Deleting needs space too: for the write-ahead log, and for moving it into the file. So a file
//! beside the catalog takes some space while there is some. It is removed when SQLite finds none,
//! and created again as soon as it fits.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// The largest reserve.
const MOST: u64 = 48 << 20;
/// The smallest reserve.
const LEAST: u64 = 256 << 10;
/// With less than this free, an I/O error of SQLite is caused by the full disk.
const NONE: u64 = 64 << 10;

/// The reserved space of one catalog.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    size: u64,
}

impl Reserve {
    /// The reserve of a catalog: a sixteenth of its file system, within bounds.
    pub(super) fn of(catalog: &Path) -> Self {
        let path = super::opening::beside(catalog, ".reserve");
        let total = rustix::fs::statvfs(folder(&path)).map_or(0, |fs| fs.f_blocks * fs.f_frsize);
        Self { path, size: (total / 16).clamp(LEAST, MOST) }
    }

    /// The size of the whole reserve in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes must be free before a full disk counts as usable again: the reserve, and half
    /// as much for everything else.
    pub(super) fn enough(&self) -> u64 {
        self.size + self.size / 2
    }

    /// How many bytes are free on the file system.
    pub(super) fn free(&self) -> io::Result<u64> {
        let fs = rustix::fs::statvfs(folder(&self.path))?;
        Ok(fs.f_bavail * fs.f_frsize)
    }

    /// Whether the file system has practically no space left.
    pub(super) fn is_used_up(&self) -> bool {
        self.free().is_ok_and(|free| free < NONE)
    }

    /// Allocates the reserve, unless it is there. Fails if less than [`Reserve::enough`] is free.
    pub(super) fn take(&self) -> io::Result<()> {
        if std::fs::metadata(&self.path).is_ok_and(|there| there.len() >= self.size) {
            return Ok(());
        }
        if self.free()? < self.enough() {
            return Err(Errno::NOSPC.into());
        }
        let taken = self.allocate();
        if taken.is_err() {
            self.release();
        }
        taken
    }

    fn allocate(&self) -> io::Result<()> {
        let file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(&self.path)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.size) {
            // The file system cannot allocate without writing.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; 1 << 16];
                (0..self.size).step_by(zeros.len()).try_for_each(|at| file.write_all_at(&zeros, at))
            }
            allocated => Ok(allocated?),
        }
    }

    /// Frees the reserve. Does nothing if it was freed before.
    pub(super) fn release(&self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "releasing the disk space reserved for the catalog failed");
            }
            _ => {}
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
