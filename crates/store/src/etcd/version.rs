//! Versions of objects on etcd: every change has its own, also when many share a transaction.
//!
//! etcd counts transactions. A version is etcd's revision times [`PLACES`] plus the change's place
//! in its transaction, so versions grow as changes follow each other, and a watch can be resumed
//! between two changes of one transaction. The place of a write stands beside the object in its
//! value, since a list must know it too. A deletion leaves no value behind; its place follows from
//! the order in which etcd reports a transaction's changes, which is the order they were made in.
//!
//! A state of the whole store is at the *end* of a revision: after its last possible place. A cache
//! never stands inside a transaction.
//!
//! Transactions of another program, or of a version of Mainstay that wrote no places, may hold
//! several changes without an order. [`places`] detects this, and history is cut there: a watch
//! from before has expired, and no change is skipped.

use crate::object::Revision;

/// How many places one revision has. etcd takes 128 operations in a transaction by default; we send
/// fewer.
const PLACES: u64 = 1 << 8;

/// The version of the change at `place` of etcd's `revision`.
pub(super) fn version(revision: i64, place: u8) -> Revision {
    Revision(u64::try_from(revision).unwrap_or_default() * PLACES + u64::from(place))
}

/// After every change of etcd's `revision`, before any of the next.
pub(super) fn end(revision: i64) -> Revision {
    version(revision, u8::MAX)
}

/// The revision of etcd in which the change of this version was made.
pub(super) fn number(version: Revision) -> i64 {
    // Fewer than 64 bits are left, so it always fits.
    i64::try_from(version.0 / PLACES).unwrap_or(i64::MAX)
}

/// The places of the changes that one transaction made, in their order: as written in the value,
/// or after the one before where nothing is written. The second part says whether each change has
/// a place of its own, in order.
pub(super) fn places(stored: impl IntoIterator<Item = Option<u8>>) -> (Vec<u8>, bool) {
    let mut places: Vec<u8> = Vec::new();
    let mut ordered = true;
    for stored in stored {
        let last = places.last().copied();
        let following = last.map_or(Some(0), |last| last.checked_add(1));
        let place = stored.or(following).unwrap_or(u8::MAX);
        ordered &= last.is_none_or(|last| last < place);
        places.push(place);
    }
    (places, ordered)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn versions_are_ordered_as_changes_are(
            a in (0..i64::MAX >> 9, any::<u8>()),
            b in (0..i64::MAX >> 9, any::<u8>()),
        ) {
            prop_assert_eq!(version(a.0, a.1).cmp(&version(b.0, b.1)), a.cmp(&b));
            prop_assert_eq!(number(version(a.0, a.1)), a.0);
            prop_assert!(version(a.0, a.1) <= end(a.0) && end(a.0) < version(a.0 + 1, 0));
            prop_assert!(end(a.0).0 < 1 << 63);
        }
    }

    #[test]
    fn changes_of_one_transaction_have_places_in_order_or_are_reported_unordered() {
        type Case = (&'static [Option<u8>], &'static [u8], bool);
        let cases: [Case; 7] = [
            (&[], &[], true),
            (&[Some(0)], &[0], true),
            (&[None], &[0], true),
            (&[Some(0), None, Some(2), None, None], &[0, 1, 2, 3, 4], true),
            // Written by an older version, which knew no places.
            (&[Some(0), Some(0)], &[0, 0], false),
            // Copied by hand from other transactions.
            (&[Some(7), None, Some(3)], &[7, 8, 3], false),
            (&[Some(255), None], &[255, 255], false),
        ];
        for (stored, expected, ordered) in cases {
            let found = places(stored.iter().copied());
            assert_eq!(found, (expected.to_vec(), ordered), "{stored:?}");
        }
        let (_, ordered) = places(std::iter::repeat_n(None, 256));
        assert!(ordered);
        let (_, ordered) = places(std::iter::repeat_n(None, 257));
        assert!(!ordered, "more removed at once than there are places");
    }
}
