//! The account of one target: replicas placed there, and reservations.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::space::Space;

/// The space, replicas and reservations of one target.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) space: Option<Space>,
    /// Bytes of replicas placed here, and of those not reported yet.
    pub(super) placed: BTreeMap<String, (u64, bool)>,
    pub(super) placed_bytes: u64,
    pub(super) unreported_bytes: u64,
    /// Narrow reservations by holder, then by writer; only of holders that are not placed here.
    pub(super) narrow: BTreeMap<String, BTreeMap<String, (u64, Timestamp)>>,
    /// Their bytes: of each holder the largest reservation, since it is placed only once.
    pub(super) narrow_bytes: u64,
    /// The earliest time at which one of them expires.
    pub(super) narrow_until: Timestamp,
    /// Bytes of broad reservations.
    pub(super) held_bytes: u64,
}

/// The bytes that the reservations of one holder count together.
pub(super) fn largest(entries: &BTreeMap<String, (u64, Timestamp)>) -> u64 {
    entries.values().map(|(bytes, _)| *bytes).max().unwrap_or(0)
}

impl Account {
    pub(super) fn reserve(&mut self, holder: &str, writer: &str, bytes: u64, until: Timestamp) {
        if self.narrow.is_empty() || until < self.narrow_until {
            self.narrow_until = until;
        }
        let entries = self.narrow.entry(holder.to_owned()).or_default();
        self.narrow_bytes -= largest(entries);
        entries.insert(writer.to_owned(), (bytes, until));
        self.narrow_bytes += largest(entries);
    }

    pub(super) fn give_back(&mut self, holder: &str, writer: &str) {
        let Some(entries) = self.narrow.get_mut(holder) else { return };
        self.narrow_bytes -= largest(entries);
        entries.remove(writer);
        self.narrow_bytes += largest(entries);
        if entries.is_empty() {
            self.narrow.remove(holder);
        }
    }

    /// Bytes of valid narrow reservations of other holders.
    pub(super) fn reserved(&self, holder: &str, now: Timestamp) -> u64 {
        if self.narrow.is_empty() {
            return 0;
        }
        if self.narrow_until > now {
            return self.narrow_bytes - self.narrow.get(holder).map_or(0, largest);
        }
        let live = |entries: &BTreeMap<String, (u64, Timestamp)>| {
            let live = entries.values().filter(|(_, until)| *until > now);
            live.map(|(bytes, _)| *bytes).max().unwrap_or(0)
        };
        let others = self.narrow.iter().filter(|(other, _)| *other != holder);
        others.map(|(_, entries)| live(entries)).sum()
    }

    /// The narrow reservations that have not expired.
    pub(super) fn live(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&str, &str, u64, Timestamp)> {
        let all = self.narrow.iter().flat_map(|(holder, entries)| {
            entries.iter().map(move |(writer, (bytes, until))| {
                (holder.as_str(), writer.as_str(), *bytes, *until)
            })
        });
        all.filter(move |(_, _, _, until)| *until > now)
    }
}
