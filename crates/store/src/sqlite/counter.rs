//! The last acknowledged revision, kept outside the database.
//!
//! SQLite replays its write-ahead log up to the first frame that is not as it was written, and
//! takes that for the end: a flipped byte in the middle silently undoes every commit behind it.
//! So the revision of each commit is also written to a small file of its own, after the commit is
//! durable and before it is acknowledged. A database that comes back with a lower revision than
//! this file has lost acknowledged writes.
//!
//! The write is not synced: `kill -9` does not undo it, and after a power cut the file may be
//! behind the database, and then detects fewer losses. It is never ahead of what was synced. The
//! two places are written in turn, so that one torn or damaged place leaves the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::object::Revision;

/// The places stand in different sectors.
const PLACES: [u64; 2] = [0, 512];
/// The length of an entry: twenty digits, a space, the checksum, a line feed.
const ENTRY: usize = 30;

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// There is no file, or it has never been written to.
    Absent,
    /// This revision was acknowledged.
    Acknowledged(Revision),
    /// There is something, and no place of it is as it was written.
    Damaged,
}

/// The file, open for writing.
#[derive(Debug)]
pub(super) struct Counter {
    file: File,
    next: usize,
    failing: bool,
}

/// Reads the file.
pub(super) fn read(path: &Path) -> io::Result<Reading> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Reading::Absent),
        Err(error) => return Err(error),
    };
    let place = |at: &u64| bytes.get(usize::try_from(*at).ok()?..)?.get(..ENTRY).and_then(parse);
    Ok(match PLACES.iter().filter_map(place).max() {
        Some(revision) => Reading::Acknowledged(revision),
        None if bytes.iter().all(|byte| *byte == 0) => Reading::Absent,
        None => Reading::Damaged,
    })
}

impl Counter {
    /// Opens the file, or makes it, and sets it to `revision`, durably.
    pub(super) fn start(path: &Path, revision: Revision) -> io::Result<Self> {
        let file =
            File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        let mut counter = Self { file, next: 0, failing: false };
        for _ in PLACES {
            counter.write(revision)?;
        }
        counter.file.sync_all()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(counter)
    }

    /// Notes a revision that is durable and about to be acknowledged.
    pub(super) fn note(&mut self, revision: Revision) {
        let written = self.write(revision);
        match written {
            Ok(()) => self.failing = false,
            // The counter is behind then, and detects fewer losses.
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(%error, "writing the counter of acknowledged revisions failed");
            }
            Err(_) => {}
        }
    }

    /// A second handle, to sync the file without holding up commits.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn write(&mut self, revision: Revision) -> io::Result<()> {
        self.file.write_all_at(entry(revision).as_bytes(), PLACES[self.next])?;
        self.next = (self.next + 1) % PLACES.len();
        Ok(())
    }
}

fn entry(revision: Revision) -> String {
    let digits = format!("{:020}", revision.0);
    format!("{digits} {:08x}\n", crc32fast::hash(digits.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<Revision> {
    let text = std::str::from_utf8(bytes).ok()?;
    let revision = Revision(text.get(..20)?.parse().ok()?);
    (entry(revision) == text).then_some(revision)
}

/// Where the counter of a database is.
pub(super) fn path(database: &Path) -> PathBuf {
    super::beside(database, ".acknowledged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_revision_noted_is_read_back_and_one_damaged_place_is_survived() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder.path().join("objects.db"));
        assert_eq!(read(&path).unwrap(), Reading::Absent);
        let mut counter = Counter::start(&path, Revision(7)).unwrap();
        assert_eq!(read(&path).unwrap(), Reading::Acknowledged(Revision(7)));
        counter.note(Revision(8));
        counter.note(Revision(12));
        assert_eq!(read(&path).unwrap(), Reading::Acknowledged(Revision(12)));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut harmed = whole.clone();
            harmed[at] ^= 4;
            std::fs::write(&path, &harmed).unwrap();
            let Reading::Acknowledged(read) = read(&path).unwrap() else { panic!("byte {at}") };
            assert!(read == Revision(8) || read == Revision(12), "byte {at}: {read}");
        }
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(read(&path).unwrap(), Reading::Damaged);
    }
}
