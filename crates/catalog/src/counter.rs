//! The number of the last acknowledged commit, kept outside the catalog's file.
//!
//! SQLite replays its write-ahead log up to the first frame that is not as it was written, and
//! takes that for the end: a flipped byte in the middle silently undoes every commit behind it. So
//! each commit that changes something has a number, a row of the catalog, and the number is also
//! written to a small file beside the catalog, after the commit is durable and before it is
//! acknowledged. A catalog with a lower number than this file has lost acknowledged commits.
//!
//! The write is not synced: `kill -9` does not undo it. After a power cut the file may be behind
//! the catalog, so that some lost commits go unnoticed; an intact catalog is never reported as
//! damaged. Even and odd numbers have an entry each, so that one torn or damaged entry leaves the
//! other. Several processes may write: each only numbers that are durable.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The offsets of the two entries, in different sectors.
const PLACES: [u64; 2] = [0, 512];
/// The length of an entry: twenty digits, a space, the checksum, a line feed.
const ENTRY: usize = 30;

/// The content of the counter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// There is no file, or it has never been written to.
    Absent,
    /// The commit of this number was acknowledged.
    Acknowledged(u64),
    /// The file has content, but no valid entry.
    Damaged,
}

/// The file, open for writing.
#[derive(Debug)]
pub(super) struct Counter {
    file: File,
    failing: bool,
}

/// The path of a catalog's counter file.
pub(super) fn path(catalog: &Path) -> PathBuf {
    super::opening::beside(catalog, ".acknowledged")
}

/// Reads the counter of a catalog.
pub(super) fn read(catalog: &Path) -> io::Result<Reading> {
    let bytes = match std::fs::read(path(catalog)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Reading::Absent),
        Err(error) => return Err(error),
    };
    let place = |at: &u64| bytes.get(usize::try_from(*at).ok()?..)?.get(..ENTRY).and_then(parse);
    Ok(match PLACES.iter().filter_map(place).max() {
        Some(number) => Reading::Acknowledged(number),
        None if bytes.iter().all(|byte| *byte == 0) => Reading::Absent,
        None => Reading::Damaged,
    })
}

/// Removes the counter of a catalog that is about to be restored.
pub(super) fn remove(catalog: &Path) -> io::Result<()> {
    match std::fs::remove_file(path(catalog)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Counter {
    /// Opens the counter of a catalog without changing it.
    pub(super) fn open(catalog: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        Ok(Self { file: options.open(path(catalog))?, failing: false })
    }

    /// Opens the counter of a catalog and sets it to `number`, durably.
    pub(super) fn start(catalog: &Path, number: u64) -> io::Result<Self> {
        let counter = Self::open(catalog)?;
        for place in PLACES {
            counter.file.write_all_at(entry(number).as_bytes(), place)?;
        }
        counter.file.sync_all()?;
        let folder = catalog.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(counter)
    }

    /// Records a commit that is durable and about to be acknowledged.
    pub(super) fn note(&mut self, number: u64) {
        let place = PLACES[usize::from(number % 2 == 1)];
        match self.file.write_all_at(entry(number).as_bytes(), place) {
            Ok(()) => self.failing = false,
            // The counter then lags behind, so that fewer lost commits can be detected.
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(%error, "writing the catalog's counter of acknowledged commits failed");
            }
            Err(_) => {}
        }
    }
}

fn entry(number: u64) -> String {
    let digits = format!("{number:020}");
    format!("{digits} {:08x}\n", crc32fast::hash(digits.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number = text.get(..20)?.parse().ok()?;
    (entry(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_read_back_even_if_one_entry_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let catalog = folder.path().join("catalog.db");
        assert_eq!(read(&catalog).unwrap(), Reading::Absent);
        let mut counter = Counter::start(&catalog, 7).unwrap();
        assert_eq!(read(&catalog).unwrap(), Reading::Acknowledged(7));
        counter.note(8);
        counter.note(9);
        drop(Counter::open(&catalog).unwrap());
        assert_eq!(read(&catalog).unwrap(), Reading::Acknowledged(9));
        let whole = std::fs::read(path(&catalog)).unwrap();
        for at in 0..whole.len() {
            let mut harmed = whole.clone();
            harmed[at] ^= 4;
            std::fs::write(path(&catalog), &harmed).unwrap();
            let Reading::Acknowledged(read) = read(&catalog).unwrap() else { panic!("byte {at}") };
            assert!(read == 8 || read == 9, "byte {at}: {read}");
        }
        std::fs::write(path(&catalog), "nonsense").unwrap();
        assert_eq!(read(&catalog).unwrap(), Reading::Damaged);
        remove(&catalog).unwrap();
        remove(&catalog).unwrap();
        assert_eq!(read(&catalog).unwrap(), Reading::Absent);
    }
}
