//! Why some rows are not word for word the document's.

/// The rows that differ, by their number.
const NOTES: [(&str, &str); 29] = [
    ("A4", "added: the document discards such a result, but has no row for it"),
    ("A5", "added: the recorded UUID is a part of a pool's identity"),
    ("U3", "two rows: a person is answered with Failed, a rule with a condition"),
    (
        "U10",
        "added: a mount of another program is taken over only if a person names the filesystem",
    ),
    ("U4", "only a disk that is wanted is adopted"),
    ("U6", "stands before U5, whose guard holds for partitioned disks too"),
    ("U8", "added: a disk is not Unprovisioned while it is registered"),
    ("U9", "added: a disk that is not wanted may be reformatted by others"),
    ("F9", "added: a disk that is not wanted does not stay registered"),
    ("L1", "the document's sentence on LVM below its table"),
    ("F4", "what was repaired is mounted (re-trigger c); what is foreign never is (F7)"),
    ("F10", "added: no disk is unmounted while it is registered or a replica is on it"),
    ("F11", "added: as U10"),
    ("M2", "a mount at another point is not unmounted: another program made it"),
    ("M4", "a disk that is not there is not registered"),
    ("M6", "added: a pool that cannot be used is not registered"),
    ("M7", "added: nothing is unmounted while it is registered"),
    ("M8", "added: as F10"),
    ("M9", "added: as U10"),
    ("PG3", "two rows: LVM is never Mounted"),
    ("P3", "something else at our point is as good as no mount: F3 clears it away"),
    ("P4", "two rows: LVM is never Mounted"),
    ("P8", "added: the document has no row for a disk with which all is well"),
    ("P9", "added: a pool that cannot be used does not stay Provisioned"),
    ("P10", "added: no disk is formatted while it is registered or a replica is on it"),
    ("UG2", "two rows: the document's sentence on LVM below its table"),
    ("UG3", "stands before UG1: nothing can be moved off a lost disk"),
    ("UG5", "added: the document does not say what follows when this goes wrong"),
    ("X2", "X3 and X2 stand before X1, whose guard is the rest"),
];

/// Why the rows of a number differ; nothing if they do not.
pub(super) fn of(id: &str) -> Option<&'static str> {
    NOTES.iter().find(|(row, _)| *row == id).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ROWS;

    #[test]
    fn every_note_is_about_a_row_that_is_there() {
        for (id, _) in NOTES {
            assert!(ROWS.iter().any(|row| row.id == id), "{id}");
        }
    }
}
