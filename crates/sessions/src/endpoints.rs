//! Allocates the gateway's ports: a bit vector with one bit per port, and a pointer to the next one.
//!
//! Ports are allocated from blocks that were reserved durably beforehand, so that no request waits
//! for a write. A block that an earlier run had reserved may contain ports of sessions that their
//! nodes have not reported yet; it rests until [`Endpoints::settle`], when all nodes have had time to
//! report.
//!
//! Invariants: a port has at most one session, a session at most one port; a port is allocated only
//! from a block that this run has reserved.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The number of ports that are reserved at once.
pub const BLOCK: u16 = 64;

/// The number of free reserved ports below which the next block is reserved.
const AHEAD: usize = 256;

/// Why no port can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Every port of the range has a session. Try again when one is closed.
    #[error("all {0} ports of the gateway are taken")]
    Exhausted(usize),
    /// The next ports are about to be reserved. Try again in a moment.
    #[error("the gateway's next ports are being reserved")]
    Reserving,
}

/// The ports and their sessions.
#[derive(Clone, Debug)]
pub struct Endpoints {
    first: u16,
    /// One bit a port, 1 for free.
    bits: Vec<u64>,
    size: usize,
    next: usize,
    allocated: usize,
    reserved: BTreeSet<usize>,
    resting: BTreeSet<usize>,
    mapping: HashMap<Arc<str>, u16>,
}

impl Endpoints {
    /// The ports from `first` to `last`, none of them reserved.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Self {
        let size = usize::from(last.saturating_sub(first)) + 1;
        let mut bits = vec![u64::MAX; size.div_ceil(64)];
        if let (Some(end), 1..) = (bits.last_mut(), size % 64) {
            *end = (1 << (size % 64)) - 1;
        }
        Self {
            first,
            bits,
            size,
            next: 0,
            allocated: 0,
            reserved: BTreeSet::new(),
            resting: BTreeSet::new(),
            mapping: HashMap::new(),
        }
    }

    /// Allocates a port for a session; returns its port if it has one already.
    ///
    /// # Errors
    /// [`Error`]: no port is left, or none is reserved yet.
    pub fn allocate(&mut self, session: &Arc<str>) -> Result<u16, Error> {
        if let Some(port) = self.mapping.get(session) {
            return Ok(*port);
        }
        if self.allocated == self.size {
            return Err(Error::Exhausted(self.size));
        }
        let place = self.free_from(self.next).ok_or(Error::Reserving)?;
        self.take(session, place);
        self.next = (place + 1) % self.size;
        Ok(self.port(place))
    }

    /// Restores the port that a session already has. `false` if another session has it.
    pub fn restore(&mut self, session: &Arc<str>, port: u16) -> bool {
        if let Some(known) = self.mapping.get(session) {
            return *known == port;
        }
        let place = usize::from(port.wrapping_sub(self.first));
        if port < self.first || place >= self.size || !self.is_free(place) {
            return false;
        }
        self.take(session, place);
        true
    }

    /// Frees a session's port. Does nothing if it has none.
    pub fn free(&mut self, session: &str) -> Option<u16> {
        let port = self.mapping.remove(session)?;
        let place = usize::from(port - self.first);
        self.bits[place / 64] |= 1 << (place % 64);
        self.allocated -= 1;
        Some(port)
    }

    /// Allocates another port for a session whose port is used by another program. The old port is not
    /// allocated again.
    ///
    /// # Errors
    /// As [`Endpoints::allocate`].
    pub fn replace(&mut self, session: &Arc<str>) -> Result<u16, Error> {
        // The bit stays 0: another program uses the port.
        self.mapping.remove(session);
        self.allocate(session)
    }

    /// A session's port.
    #[must_use]
    pub fn of(&self, session: &str) -> Option<u16> {
        self.mapping.get(session).copied()
    }

    /// The first port of the range.
    #[must_use]
    pub fn first(&self) -> u16 {
        self.first
    }

    /// The number of sessions with a port.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.mapping.len()
    }

    /// Every session and its port.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u16)> {
        self.mapping.iter().map(|(session, port)| (session, *port))
    }

    /// Adds blocks that an earlier run had reserved; they rest.
    pub fn rest(&mut self, blocks: impl IntoIterator<Item = usize>) {
        let known = blocks.into_iter().filter(|block| block * usize::from(BLOCK) < self.size);
        self.resting.extend(known.filter(|block| !self.reserved.contains(block)));
    }

    /// All nodes have reported: resting blocks can be used.
    pub fn settle(&mut self) {
        self.reserved.append(&mut self.resting);
    }

    /// A block was reserved durably.
    pub fn reserved(&mut self, block: usize) {
        self.resting.remove(&block);
        self.reserved.insert(block);
    }

    /// All blocks that are reserved, by this run or an earlier one.
    #[must_use]
    pub fn blocks(&self) -> Vec<usize> {
        self.reserved.union(&self.resting).copied().collect()
    }

    /// The block to reserve next, if few reserved ports are free.
    #[must_use]
    pub fn wanted(&self) -> Option<usize> {
        let mut left = 0;
        let mut place = 0;
        while let Some(free) = self.free_between(place, self.size) {
            left += 1;
            if left > AHEAD {
                return None;
            }
            place = free + 1;
        }
        let blocks = self.size.div_ceil(usize::from(BLOCK));
        (0..blocks).find(|block| !self.reserved.contains(block) && !self.resting.contains(block))
    }

    fn port(&self, place: usize) -> u16 {
        self.first + u16::try_from(place).unwrap_or(u16::MAX)
    }

    fn is_free(&self, place: usize) -> bool {
        self.bits[place / 64] & (1 << (place % 64)) != 0
    }

    fn take(&mut self, session: &Arc<str>, place: usize) {
        self.bits[place / 64] &= !(1 << (place % 64));
        self.allocated += 1;
        self.mapping.insert(session.clone(), self.port(place));
    }

    /// The first free port of a reserved block at or after `place`, around the end.
    fn free_from(&self, place: usize) -> Option<usize> {
        self.free_between(place, self.size).or_else(|| self.free_between(0, place))
    }

    fn free_between(&self, mut place: usize, end: usize) -> Option<usize> {
        while place < end {
            let word = self.bits[place / 64] & (u64::MAX << (place % 64));
            if word == 0 || !self.reserved.contains(&(place / usize::from(BLOCK))) {
                place = (place / 64 + 1) * 64;
                continue;
            }
            let found = place / 64 * 64 + word.trailing_zeros() as usize;
            return (found < end).then_some(found);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn all_reserved(first: u16, last: u16) -> Endpoints {
        let mut endpoints = Endpoints::new(first, last);
        while let Some(block) = endpoints.wanted() {
            endpoints.reserved(block);
        }
        (0..1024).for_each(|block| {
            if block * usize::from(BLOCK) < endpoints.size {
                endpoints.reserved(block);
            }
        });
        endpoints
    }

    #[test]
    fn a_port_used_by_another_program_is_not_allocated_again() {
        let mut endpoints = all_reserved(30000, 30002);
        let s1: Arc<str> = "s1".into();
        assert_eq!(endpoints.allocate(&s1), Ok(30000));
        assert_eq!(endpoints.replace(&s1), Ok(30001));
        assert_eq!(endpoints.allocate(&"s2".into()), Ok(30002));
        assert_eq!(endpoints.free("s1"), Some(30001));
        assert_eq!(endpoints.allocate(&"s3".into()), Ok(30001));
        assert_eq!(endpoints.allocate(&"s4".into()), Err(Error::Exhausted(3)));
    }

    #[test]
    fn blocks_of_an_earlier_run_rest_until_all_nodes_have_reported() {
        let mut endpoints = Endpoints::new(30000, 30127);
        endpoints.rest([0]);
        assert_eq!(endpoints.wanted(), Some(1));
        assert_eq!(endpoints.allocate(&"s".into()), Err(Error::Reserving));
        endpoints.reserved(1);
        assert_eq!(endpoints.allocate(&"s".into()), Ok(30064));
        assert!(endpoints.restore(&"old".into(), 30003));
        assert!(!endpoints.restore(&"other".into(), 30003));
        endpoints.settle();
        for count in 0..126 {
            assert!(endpoints.allocate(&format!("n{count}").into()).is_ok(), "{count}");
        }
        assert_eq!(endpoints.allocate(&"more".into()), Err(Error::Exhausted(128)));
        assert_eq!(endpoints.blocks(), [0, 1]);
    }

    proptest! {
        #[test]
        fn no_port_is_allocated_twice_and_none_is_lost(
            size in 1_u16..200,
            steps in proptest::collection::vec((0_u8..40, any::<bool>()), 1..300),
        ) {
            let mut endpoints = all_reserved(30000, 30000 + size - 1);
            let mut model: BTreeMap<u8, u16> = BTreeMap::new();
            for (who, allocate) in steps {
                let session: Arc<str> = format!("s{who}").into();
                if allocate {
                    match endpoints.allocate(&session) {
                        Ok(port) => {
                            prop_assert!((30000..30000 + size).contains(&port));
                            let others = model.iter().any(|(other, taken)| *other != who && *taken == port);
                            prop_assert!(!others, "{} twice", port);
                            let known = model.insert(who, port);
                            prop_assert!(known.is_none_or(|known| known == port));
                        }
                        Err(error) => {
                            prop_assert_eq!(error, Error::Exhausted(usize::from(size)));
                            prop_assert_eq!(model.len(), usize::from(size));
                        }
                    }
                } else {
                    prop_assert_eq!(endpoints.free(&session), model.remove(&who));
                }
                prop_assert_eq!(endpoints.allocated(), model.len());
            }
        }
    }
}
