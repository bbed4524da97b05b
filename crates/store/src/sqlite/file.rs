//! Detects that the file of an open database was deleted or replaced.
//!
//! SQLite continues with the file it has opened, whatever its path names now: every later change is
//! lost when the process ends. So the readiness check compares device and inode.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::objects::Error;

/// Device and inode of the file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenedFile(Option<(u64, u64)>);

impl OpenedFile {
    /// The file that `path` names now.
    pub(super) fn at(path: &Path) -> Self {
        Self(std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino())))
    }

    /// Fails if `path` names another file, or none.
    pub(super) fn is_still_at(self, path: &Path) -> Result<(), Error> {
        let found = Self::at(path);
        if self == found {
            return Ok(());
        }
        let (shown, what) = match found.0 {
            None => (path.display(), "was deleted"),
            Some(_) => (path.display(), "was replaced by another file"),
        };
        let reason = format!(
            "{shown} {what} while the server was using it, and changes are lost when the server \
             stops: make a backup with `mainstay backup`, stop the server, and restore it with \
             `mainstay restore`"
        );
        Err(Error::Unavailable { reason })
    }
}
