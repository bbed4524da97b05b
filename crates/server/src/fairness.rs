//! How bounded places are shared among classes, users and connections. Pure: counts in, verdict out.
//!
//! Two rules, after Kubernetes' API priority and fairness, but without queues:
//!
//! * **A reserve for each class.** Every class owns a few places that no other class can take; the
//!   rest goes to the first to ask. Administrators and the system (servers and agents)
//!   therefore get in however many viewers and editors there are, and the other way round.
//! * **A dynamic threshold for each user.** A user may hold at most as many places as are still free
//!   for the class. One user alone gets half of them, two get a third each, `n` get
//!   `1/(n+1)` each, and as much stays free for the next one who comes. No list of active users is
//!   needed: the number of free places tells how crowded it is. (It is the scheme that switches use
//!   to share packet buffers.) One connection gets a third at most, so that a user with
//!   several connections is not shut out by one of them.
//!
//! Invariants: the places held never exceed the total, a class below its reserve always has a free
//! place, and a refusal changes no count.

use std::time::Duration;

/// How many classes share a pool.
pub(crate) const CLASSES: usize = 3;

/// A group of users with a reserve of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) index: usize,
    pub(crate) name: &'static str,
}

impl Class {
    pub(crate) const ADMINISTRATORS: Self = Self { index: 0, name: "administrators" };
    /// Servers of the cluster, and agents.
    pub(crate) const SYSTEM: Self = Self { index: 1, name: "system" };
    pub(crate) const USERS: Self = Self { index: 2, name: "users" };
    pub(crate) const SHARED: [Self; CLASSES] = [Self::ADMINISTRATORS, Self::SYSTEM, Self::USERS];
    /// Not known to this server, but with a token that a dialect may know.
    pub(crate) const TOKEN: Self = Self { index: 0, name: "token" };
    pub(crate) const ANONYMOUS: Self = Self { index: 1, name: "anonymous" };
    pub(crate) const LOOPBACK: Self = Self { index: 0, name: "loopback" };
    pub(crate) const REMOTE: Self = Self { index: 1, name: "remote" };
}

/// How many places there are, and how many of them each class has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) total: usize,
    pub(crate) reserve: [usize; CLASSES],
    /// The most that one user, or one address, may hold whatever is free.
    pub(crate) each: usize,
}

/// Which bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Met {
    /// All places that the class can have are taken.
    All,
    /// The user, or the address, holds its share.
    Share,
    /// The connection holds its share.
    Connection,
}

impl Met {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Share => "share",
            Self::Connection => "connection",
        }
    }
}

impl Bounds {
    /// `total` places, of which each class has so many sixteenths for itself.
    pub(crate) fn new(total: usize, sixteenths: [usize; CLASSES]) -> Self {
        Self { total, reserve: sixteenths.map(|part| total / 16 * part), each: usize::MAX }
    }

    /// How many places a class can still have.
    pub(crate) fn free(&self, held: [usize; CLASSES], class: Class) -> usize {
        let shared = self.total.saturating_sub(self.reserve.iter().sum());
        let borrowed: usize =
            held.iter().zip(self.reserve).map(|(held, reserve)| held.saturating_sub(reserve)).sum();
        let own = self.reserve[class.index].saturating_sub(held[class.index]);
        own + shared.saturating_sub(borrowed)
    }

    /// Decides whether somebody who holds `by_flow` places, `by_connection` of them on this
    /// connection, may have `more`, given what all classes hold.
    pub(crate) fn admit(
        &self,
        held: [usize; CLASSES],
        class: Class,
        by_flow: usize,
        by_connection: usize,
        more: usize,
    ) -> Result<(), Met> {
        let free = self.free(held, class);
        if more > free {
            Err(Met::All)
        } else if by_flow.saturating_add(more) > free.min(self.each) {
            Err(Met::Share)
        } else if by_connection.saturating_mul(2).saturating_add(more) > free {
            Err(Met::Connection)
        } else {
            Ok(())
        }
    }
}

/// How fast the body of a request must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// How long it may take in any case.
    pub(crate) grace: Duration,
    /// Bytes a second that are expected beyond.
    pub(crate) rate: u32,
}

impl Pace {
    /// Until when the next byte must be here if `received` have arrived, counted from the beginning.
    pub(crate) fn deadline(self, received: usize) -> Duration {
        let rate = f64::from(self.rate.max(1));
        self.grace + Duration::from_secs_f64(received as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { total: 1024, reserve: [64, 128, 64], each: usize::MAX };

    /// Lets one user of a class take what it can on one connection after the other.
    fn fill(held: &mut [usize; CLASSES], class: Class) -> usize {
        let mut own = 0;
        while BOUNDS.admit(*held, class, own, 0, 1).is_ok() {
            own += 1;
            held[class.index] += 1;
        }
        own
    }

    #[test]
    fn one_user_gets_half_and_the_next_half_of_the_rest() {
        let mut held = [0; CLASSES];
        // The class can have 1024 - 64 - 128.
        assert_eq!(fill(&mut held, Class::USERS), 416);
        assert_eq!(fill(&mut held, Class::USERS), 208);
        assert_eq!(fill(&mut held, Class::USERS), 104);
        assert!(BOUNDS.free(held, Class::USERS) > 0, "there is room for the next");
    }

    #[test]
    fn a_class_that_takes_all_it_can_leaves_the_others_their_reserve() {
        let mut held = [0; CLASSES];
        while BOUNDS.free(held, Class::USERS) > 0 {
            held[Class::USERS.index] += 1;
        }
        assert_eq!(held, [0, 0, 832]);
        assert_eq!(BOUNDS.free(held, Class::ADMINISTRATORS), 64);
        assert_eq!(BOUNDS.free(held, Class::SYSTEM), 128);
        assert_eq!(BOUNDS.admit(held, Class::USERS, 0, 0, 1), Err(Met::All));
    }

    #[test]
    fn the_bound_that_was_met_is_named() {
        let none = [0; CLASSES];
        let small = Bounds { total: 8, reserve: [0; CLASSES], each: 3 };
        let cases = [
            (none, 0, 0, 1, Ok(())),
            (none, 3, 0, 1, Err(Met::Share)),
            (none, 0, 0, 9, Err(Met::All)),
            ([0, 0, 5], 2, 2, 1, Err(Met::Connection)),
            ([0, 0, 8], 0, 0, 1, Err(Met::All)),
            ([8, 0, 0], 0, 0, 1, Err(Met::All)),
        ];
        for (held, flow, connection, more, expected) in cases {
            let verdict = small.admit(held, Class::USERS, flow, connection, more);
            assert_eq!(verdict, expected, "{held:?} {flow} {connection} {more}");
        }
        let one = Bounds::new(1, [1, 2, 1]);
        assert_eq!(one.admit(none, Class::USERS, 0, 0, 1), Ok(()), "one place can be had");
    }

    #[test]
    fn a_body_may_take_longer_the_more_of_it_has_arrived() {
        let pace = Pace { grace: Duration::from_secs(10), rate: 64 << 10 };
        assert_eq!(pace.deadline(0), Duration::from_secs(10));
        assert_eq!(pace.deadline(3 << 20), Duration::from_secs(58));
    }

    proptest! {
        #[test]
        fn no_class_is_kept_from_its_reserve_and_the_total_is_kept(
            total in 0_usize..200,
            sixteenths in proptest::array::uniform3(0_usize..6),
            steps in proptest::collection::vec((0_usize..CLASSES, 0_usize..4, any::<bool>()), 0..400),
        ) {
            let bounds = Bounds::new(total, sixteenths);
            let mut flows = [[0_usize; 4]; CLASSES];
            for (class, flow, enters) in steps {
                let held = flows.map(|flows| flows.iter().sum());
                let class = Class::SHARED[class];
                let own = &mut flows[class.index][flow];
                if !enters {
                    *own = own.saturating_sub(1);
                } else {
                    let verdict = bounds.admit(held, class, *own, 0, 1);
                    if held[class.index] < bounds.reserve[class.index] && *own == 0 {
                        prop_assert_eq!(verdict, Ok(()));
                    }
                    *own += usize::from(verdict.is_ok());
                }
                prop_assert!(flows.as_flattened().iter().sum::<usize>() <= total);
            }
        }
    }
}
