//! Disks on which wipefs found nothing, for as long as that is known to hold.
//!
//! The gate is asked twice within moments: before an operation is queued, and under the lease before
//! the first byte. Where the kernel has counted no write in between, wipefs would read the same
//! zeros again; it is then not run a second time.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Device, Disk};

/// How long a disk is taken to be as it was, though nothing was counted: another machine that
/// reaches the same disk is not counted here.
const LASTS: Duration = Duration::from_secs(10);

/// The disks that were found blank.
#[derive(Debug, Default)]
pub(super) struct Blanks {
    found: Mutex<BTreeMap<String, Found>>,
}

#[derive(Debug)]
struct Found {
    device: Device,
    size: u64,
    written: u64,
    at: Instant,
}

impl Blanks {
    /// Notes that nothing was found on a disk of which `written` was counted before; what is not
    /// counted cannot be noted.
    pub(super) fn note(&self, disk: &Disk, written: Option<u64>, now: Instant) {
        let Some(written) = written else { return };
        let found = Found { device: Device::of(disk), size: disk.size, written, at: now };
        let mut all = self.found.lock();
        all.retain(|_, found| now.duration_since(found.at) < LASTS);
        all.insert(disk.name.clone(), found);
    }

    /// Whether a disk is certainly unchanged since it was found blank. True at most once per note.
    pub(super) fn holds(&self, disk: &Disk, written: Option<u64>, now: Instant) -> bool {
        let mut all = self.found.lock();
        all.remove(&disk.name).is_some_and(|found| {
            found.device == Device::of(disk)
                && found.size == disk.size
                && Some(found.written) == written
                && now.duration_since(found.at) < LASTS
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    fn a_blank_disk_stays_blank_until_a_write_is_counted_or_the_disk_is_replaced() {
        let disk = Disk { name: "sda".to_owned(), diskseq: 7, size: 9, ..Disk::default() };
        let other = Disk { diskseq: 8, ..disk.clone() };
        let grown = Disk { size: 10, ..disk.clone() };
        let now = Instant::now();
        let cases = [
            (&disk, Some(3), LASTS / 2, true),
            (&disk, Some(3), LASTS, false),
            (&disk, Some(4), Duration::ZERO, false),
            (&disk, None, Duration::ZERO, false),
            (&other, Some(3), Duration::ZERO, false),
            (&grown, Some(3), Duration::ZERO, false),
        ];
        for (then, written, later, expected) in cases {
            let blanks = Blanks::default();
            blanks.note(&disk, Some(3), now);
            assert_eq!(blanks.holds(then, written, now + later), expected, "{then:?} {written:?}");
            assert!(!blanks.holds(&disk, Some(3), now), "only once");
        }
        let blanks = Blanks::default();
        blanks.note(&disk, None, now);
        assert!(!blanks.holds(&disk, None, now), "what is not counted is never known");
    }
}
