//! Keeps denials of unknown users from filling the log: of those that are alike, the first of a
//! while leaves a line of its own, and the others are counted in one line at the end of it.
//!
//! Alike are denials with the same code from the same address at the same part of the API, whatever
//! name they claim and whatever path they ask for. The number of addresses that are told apart is
//! bounded; beyond it all others count as one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use super::Surface;

/// How long denials that are alike are counted before they are written.
pub(crate) const WHILE: Duration = Duration::from_secs(10);

/// How many kinds of denials are told apart at once.
const KINDS: usize = 1024;

/// The properties by which denials are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Alike {
    /// None for all addresses beyond the bound.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) surface: Surface,
    pub(crate) code: u16,
}

/// Denials that were counted instead of written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Folded {
    pub(crate) alike: Alike,
    pub(crate) count: u64,
}

/// The denials of the last while.
#[derive(Debug, Default)]
pub(crate) struct Folds {
    open: BTreeMap<Alike, (Timestamp, u64)>,
}

impl Folds {
    /// Whether a denial gets a line of its own; otherwise it is counted.
    pub(crate) fn admit(&mut self, alike: Alike, now: Timestamp) -> bool {
        let full = self.open.len() >= KINDS;
        let alike = match self.open.contains_key(&alike) || !full {
            true => alike,
            false => Alike { remote: None, ..alike },
        };
        match self.open.get_mut(&alike) {
            Some((_, count)) => {
                *count += 1;
                false
            }
            None => {
                self.open.insert(alike, (now, 0));
                true
            }
        }
    }

    /// Those whose while is over, or all of them.
    pub(crate) fn due(&mut self, now: Timestamp, all: bool) -> Vec<Folded> {
        let mut due = Vec::new();
        self.open.retain(|alike, (begun, count)| {
            let age = now.duration_since(*begun);
            let over = all || age.unsigned_abs() >= WHILE;
            if over && *count > 0 {
                due.push(Folded { alike: *alike, count: *count });
            }
            !over
        });
        due
    }

    /// Whether anything is counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn from(remote: [u8; 4]) -> Alike {
        Alike { remote: Some(remote.into()), surface: Surface::Rucio, code: 401 }
    }

    #[test]
    fn the_first_of_a_while_is_written_and_the_others_are_counted() {
        let mut folds = Folds::default();
        let (one, two) = (from([10, 0, 0, 1]), from([10, 0, 0, 2]));
        assert!(folds.admit(one, at(0)));
        assert!(folds.admit(two, at(5)));
        for _ in 0..1000 {
            assert!(!folds.admit(one, at(6)));
        }
        assert!(folds.admit(Alike { code: 403, ..one }, at(6)), "another code is not alike");
        assert_eq!(folds.due(at(9), false), []);
        assert_eq!(folds.due(at(10), false), [Folded { alike: one, count: 1000 }]);
        assert!(folds.admit(one, at(11)), "a new while begins");
        assert!(!folds.admit(two, at(12)));
        assert_eq!(folds.due(at(12), true), [Folded { alike: two, count: 1 }]);
        assert!(folds.is_empty());
    }

    #[test]
    fn any_number_of_addresses_costs_no_more_than_the_bound() {
        let mut folds = Folds::default();
        let written = (0..=255u8)
            .flat_map(|a| (0..=255u8).map(move |b| from([10, 0, a, b])))
            .filter(|alike| folds.admit(*alike, at(0)))
            .count();
        assert_eq!(written, KINDS + 1);
        let counted: u64 = folds.due(at(60), false).iter().map(|folded| folded.count).sum();
        assert_eq!(counted + written as u64, 65_536, "none is forgotten");
    }
}
