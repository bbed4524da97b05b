//! The candidates of a pool: its eligible nodes, and what the ledger calls each group of them.
//!
//! Built once for each revision of a pool and shared by every decision over it, so that deciding
//! about a replica makes no text.

use jiff::Timestamp;
use mainstay_placement::{EligibleNode, EligibleNodes, Extender, Narrowing, Slot};

use crate::extender::{BROAD, NARROW};
use crate::ledger::{Claim, Ledger, Target};

/// Eligible nodes, and the target behind each group number.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The nodes.
    pub eligible: EligibleNodes,
    targets: Vec<Target>,
}

impl Candidates {
    /// The candidates of these nodes.
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = EligibleNode>) -> Self {
        let eligible = EligibleNodes::new(nodes);
        let target = |slot: &Slot| {
            let group = eligible.lvg(*slot);
            group.map_or_else(Target::default, |it| Target::new(&it.name, &it.thin_pool_name))
        };
        let targets = eligible.lvgs().iter().map(target).collect();
        Self { eligible, targets }
    }

    /// What the ledger calls the group of a slot; `None` when only its node matters.
    #[must_use]
    pub fn target(&self, slot: Slot) -> Option<&Target> {
        slot.group().and_then(|group| self.targets.get(group))
    }

    /// The targets of all groups, by group number.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// What the ledger calls the groups of slots that all have one.
    #[must_use]
    pub fn targets_of(&self, slots: &[Slot]) -> Vec<&Target> {
        slots.iter().filter_map(|slot| self.target(*slot)).collect()
    }
}

/// Answers a pass from the ledger, at one moment: nobody else takes space between a score and the
/// reservation that follows from it.
#[derive(Debug)]
pub struct FromLedger<'a> {
    /// The account.
    pub ledger: &'a mut Ledger,
    /// What the slots of the pass mean.
    pub candidates: &'a Candidates,
    /// What each replica claims.
    pub claims: &'a [Claim],
    /// The moment.
    pub now: Timestamp,
}

impl FromLedger<'_> {
    fn times(&self, ttl: std::time::Duration) -> (Timestamp, Timestamp) {
        (self.now, self.now.checked_add(ttl).unwrap_or(Timestamp::MAX))
    }
}

impl Extender for FromLedger<'_> {
    fn filter_and_score(&mut self, replica: usize, slots: &[Slot]) -> Option<Vec<i64>> {
        let targets = self.candidates.targets_of(slots);
        let times = self.times(BROAD);
        Some(self.ledger.filter_and_score(&self.claims[replica], &targets, times, false))
    }

    fn narrow_reservation(&mut self, narrowing: Narrowing) -> bool {
        let times = self.times(NARROW);
        let holder = &self.claims[narrowing.replica].holder;
        let target = self.candidates.target(narrowing.slot);
        target.is_some_and(|target| self.ledger.narrow(holder, target, times).is_ok())
    }

    fn release(&mut self, narrowing: Narrowing) {
        self.ledger.release(&self.claims[narrowing.replica].holder);
    }
}
