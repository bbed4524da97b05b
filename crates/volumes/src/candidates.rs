//! The candidates of a pool: its eligible nodes, and the ledger's target of each of their groups.
//!
//! Built once for each revision of a pool and shared by all decisions over it, so that a decision about
//! a replica allocates no strings.

use jiff::Timestamp;
use mainstay_placement::{EligibleNode, EligibleNodes, Extender, Narrowing, Slot};

use crate::extender::{BROAD, NARROW};
use crate::ledger::{CapacityLedger, Claim, Target};

/// Eligible nodes, and the target of each group number.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The nodes.
    pub eligible: EligibleNodes,
    targets: Vec<Target>,
}

impl Candidates {
    /// Builds the candidates of these nodes.
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

    /// The ledger's target of a slot; `None` when only the node matters.
    #[must_use]
    pub fn target(&self, slot: Slot) -> Option<&Target> {
        slot.group().and_then(|group| self.targets.get(group))
    }

    /// The targets of all groups, by group number.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The targets of slots that all have a group.
    #[must_use]
    pub fn targets_of(&self, slots: &[Slot]) -> Vec<&Target> {
        slots.iter().filter_map(|slot| self.target(*slot)).collect()
    }
}

/// Answers a placement pass from the locked ledger: no other decision takes space between a score and
/// its reservation.
#[derive(Debug)]
pub struct FromLedger<'a> {
    /// The ledger.
    pub ledger: &'a mut CapacityLedger,
    /// The candidates that the slots of the pass refer to.
    pub candidates: &'a Candidates,
    /// The claim of each replica.
    pub claims: &'a [Claim],
    /// The current time.
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
