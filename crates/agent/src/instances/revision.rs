//! The node's revision: a number that grows by one with every reported change, and never goes
//! back, also when the agent is killed.
//!
//! It is one line of fixed length, overwritten in place by one call: a killed agent leaves the old
//! number or the new one, and a full disk does not matter since the file never grows. It is not
//! synced: after a loss of power all instances are gone anyway, and a node that begins at one again
//! is taken for new.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The counter.
#[derive(Debug)]
pub struct Revision {
    file: File,
    newest: u64,
}

impl Revision {
    /// Continues from the file `revision` in `folder`; without one, or with one that cannot
    /// be read, at zero.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn open(folder: &Path) -> io::Result<Self> {
        crate::private::folder(folder)?;
        let place = folder.join("revision");
        let said = std::fs::read_to_string(&place).unwrap_or_default();
        let newest = said.trim().parse().unwrap_or(0);
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(crate::private::FILE);
        let file = options.open(place)?;
        let revision = Self { file, newest };
        // Written once now, so that later writes need no more disk space.
        revision.write(newest)?;
        Ok(revision)
    }

    fn write(&self, number: u64) -> io::Result<()> {
        self.file.write_all_at(format!("{number:020}\n").as_bytes(), 0)
    }

    /// The newest one given.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The next one, never given before.
    ///
    /// # Errors
    /// It cannot be written; it was not given out then.
    pub fn give(&mut self) -> io::Result<u64> {
        let next = self.newest + 1;
        self.write(next)?;
        self.newest = next;
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_where_it_stood() {
        let folder = tempfile::tempdir().unwrap();
        let mut revision = Revision::open(folder.path()).unwrap();
        assert_eq!((revision.newest(), revision.give().unwrap()), (0, 1));
        for expected in 2..=12 {
            assert_eq!(revision.give().unwrap(), expected);
        }
        drop(revision);
        assert_eq!(Revision::open(folder.path()).unwrap().give().unwrap(), 13);
        std::fs::write(folder.path().join("revision"), "garbage").unwrap();
        assert_eq!(Revision::open(folder.path()).unwrap().newest(), 0);
    }
}
