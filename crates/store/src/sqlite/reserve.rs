//! A reserve of disk space, so that objects can still be deleted on a full disk.
//!
//! Deleting needs space too: for the write-ahead log, and for moving it into the database. So a
//! file beside the database takes some space while there is some, and gives it back when SQLite
//! finds none. It is built again as soon as it fits.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// The most that is set aside.
const MOST: u64 = 48 << 20;
/// The least that is worth it.
const LEAST: u64 = 256 << 10;

/// The file.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    size: u64,
}

impl Reserve {
    /// The reserve of a database: a sixteenth of its file system, within bounds.
    pub(super) fn of(database: &Path) -> Self {
        let path = super::beside(database, ".reserve");
        let total = rustix::fs::statvfs(folder(&path)).map_or(0, |fs| fs.f_blocks * fs.f_frsize);
        Self { path, size: (total / 16).clamp(LEAST, MOST) }
    }

    /// How many bytes are set aside when all is well.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// How many bytes must be free for all to be well again: the reserve, and half as much for
    /// everything else.
    pub(super) fn enough(&self) -> u64 {
        self.size + self.size / 2
    }

    /// How many bytes are free to us on the file system.
    pub(super) fn free(&self) -> io::Result<u64> {
        let fs = rustix::fs::statvfs(folder(&self.path))?;
        Ok(fs.f_bavail * fs.f_frsize)
    }

    /// Sets the space aside, unless it is already. Fails if there is not [`Reserve::enough`].
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
            // The file system cannot promise space: what is written takes some at least.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; 1 << 16];
                (0..self.size).step_by(zeros.len()).try_for_each(|at| file.write_all_at(&zeros, at))
            }
            allocated => Ok(allocated?),
        }
    }

    /// Gives the space back. Does nothing if it was given back before.
    pub(super) fn release(&self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "releasing the reserved disk space failed");
            }
            _ => {}
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
