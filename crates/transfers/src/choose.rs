//! Decides which requests are transferred next, and from which source. Pure functions.

use std::collections::BTreeMap;

/// A replica from which a file can be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The RSE's number.
    pub rse: i64,
    /// The distance from it to the destination, if one is configured.
    pub distance: Option<i64>,
    /// Whether it is on tape.
    pub tape: bool,
    /// The number of transfers that read from it now.
    pub busy: i64,
    /// Whether the last attempt read from it and failed.
    pub failed: bool,
    /// Whether its file was found to differ from the catalog.
    pub suspect: bool,
}

/// The best source: preferably not suspect, not just failed, on disk, near and not busy, in this
/// order.
#[must_use]
pub fn source(from: &[Source]) -> Option<&Source> {
    let far = |one: &Source| one.distance.unwrap_or(i64::MAX);
    from.iter().min_by_key(|one| (one.suspect, one.failed, one.tape, far(one), one.busy, one.rse))
}

/// The transfers that are running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// (source, destination, activity) → number of transfers.
    running: BTreeMap<(i64, i64, String), i64>,
}

impl Load {
    /// Adds running transfers.
    pub fn add(&mut self, source: i64, destination: i64, activity: &str, number: i64) {
        *self.running.entry((source, destination, activity.to_owned())).or_default() += number;
    }

    fn sum(&self, taken: impl Fn(i64, i64, &str) -> bool) -> i64 {
        let taken = self.running.iter().filter(|((from, to, why), _)| taken(*from, *to, why));
        taken.map(|(_, number)| *number).sum()
    }

    /// The number of transfers that read from an RSE.
    #[must_use]
    pub fn from(&self, rse: i64) -> i64 {
        self.sum(|from, _, _| from == rse)
    }
}

/// A limit on the transfers that run to, or from, a set of RSEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in messages.
    pub name: String,
    /// The RSEs.
    pub rses: std::collections::BTreeSet<i64>,
    /// The activity it applies to; empty for all.
    pub activity: String,
    /// Whether it limits transfers from the RSEs (true) or to them (false).
    pub reads: bool,
    /// The most transfers at the same time.
    pub most: i64,
}

impl Limit {
    fn concerns(&self, from: i64, to: i64, activity: &str) -> bool {
        self.rses.contains(if self.reads { &from } else { &to })
            && (self.activity.is_empty() || self.activity == activity)
    }
}

/// All limits that apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The limits of RSEs.
    pub rses: Vec<Limit>,
    /// The most transfers from one RSE to another.
    pub link: i64,
}

impl Limits {
    /// Whether a limit forbids every further transfer to an RSE now, from any source.
    #[must_use]
    pub fn closes(&self, load: &Load, to: i64, activity: &str) -> bool {
        let of_writes = self.rses.iter().filter(|limit| !limit.reads);
        of_writes
            .filter(|limit| limit.concerns(to, to, activity))
            .any(|limit| load.sum(|from, to, why| limit.concerns(from, to, why)) >= limit.most)
    }

    /// The reason why one more transfer cannot run now, if there is one.
    #[must_use]
    pub fn refuses(&self, load: &Load, from: i64, to: i64, activity: &str) -> Option<String> {
        for limit in self.rses.iter().filter(|limit| limit.concerns(from, to, activity)) {
            if load.sum(|from, to, why| limit.concerns(from, to, why)) >= limit.most {
                let way = if limit.reads { "from" } else { "to" };
                return Some(format!("{} transfers {way} {} run already", limit.most, limit.name));
            }
        }
        let on_link = load.sum(|one, other, _| one == from && other == to);
        (on_link >= self.link).then(|| format!("{on_link} transfers run on this link already"))
    }
}

/// Divides `most` places among activities in proportion to their weights; places that an activity
/// does not need go to the others. `waiting` is the number of requests of each activity.
#[must_use]
pub fn share(
    most: usize,
    waiting: &BTreeMap<String, usize>,
    weights: &BTreeMap<String, u32>,
) -> BTreeMap<String, usize> {
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..most {
        // The activity with the smallest part of its share so far is next.
        let next = waiting
            .iter()
            .filter(|(activity, waiting)| given.get(*activity).copied().unwrap_or(0) < **waiting)
            .min_by(|(left, _), (right, _)| {
                let due = |activity: &String| {
                    let weight = weights.get(activity).copied().unwrap_or(1).max(1);
                    (given.get(activity).copied().unwrap_or(0) as u64 + 1, u64::from(weight))
                };
                let ((left_given, left_weight), (right_given, right_weight)) =
                    (due(left), due(right));
                (left_given * right_weight).cmp(&(right_given * left_weight))
            })
            .map(|(activity, _)| activity.clone());
        match next {
            Some(activity) => *given.entry(activity).or_default() += 1,
            None => break,
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(rse: i64, distance: Option<i64>, busy: i64) -> Source {
        Source { rse, distance, tape: false, busy, failed: false, suspect: false }
    }

    #[test]
    fn the_nearest_source_is_chosen_and_among_equals_the_least_busy() {
        for (from, best) in [
            (vec![], None),
            (vec![at(1, None, 0), at(2, Some(9), 5)], Some(2)),
            (vec![at(1, Some(2), 0), at(2, Some(1), 50)], Some(2)),
            (vec![at(1, Some(1), 3), at(2, Some(1), 1)], Some(2)),
            (vec![at(2, Some(1), 1), at(1, Some(1), 1)], Some(1)),
            (vec![Source { tape: true, ..at(1, Some(1), 0) }, at(2, Some(9), 9)], Some(2)),
            (vec![Source { failed: true, ..at(1, Some(1), 0) }, at(2, None, 9)], Some(2)),
            (vec![Source { failed: true, ..at(1, Some(1), 0) }], Some(1)),
            (vec![Source { suspect: true, ..at(1, Some(1), 0) }, at(2, None, 9)], Some(2)),
            (vec![Source { suspect: true, ..at(1, Some(1), 0) }], Some(1)),
        ] {
            assert_eq!(source(&from).map(|one| one.rse), best, "{from:?}");
        }
    }

    #[test]
    fn a_limit_applies_only_to_its_rses_and_activity() {
        let limit = Limit {
            name: "SITE-B".to_owned(),
            rses: BTreeSet::from([2]),
            activity: "Express".to_owned(),
            reads: false,
            most: 2,
        };
        let limits = Limits { rses: vec![limit], link: 3 };
        let mut load = Load::default();
        load.add(1, 2, "Express", 1);
        assert_eq!(limits.refuses(&load, 1, 2, "Express"), None);
        load.add(3, 2, "Express", 1);
        assert!(limits.refuses(&load, 1, 2, "Express").is_some_and(|why| why.contains("SITE-B")));
        assert_eq!(limits.refuses(&load, 1, 2, "Debug"), None);
        assert_eq!(limits.refuses(&load, 1, 4, "Express"), None);
        load.add(1, 2, "Debug", 2);
        assert!(limits.refuses(&load, 1, 2, "Debug").is_some_and(|why| why.contains("link")));
        assert_eq!(load.from(1), 3);
    }

    proptest! {
        #[test]
        fn places_are_shared_by_weight_and_none_stays_empty_while_requests_wait(
            most in 0_usize..40, waiting in prop::collection::btree_map("[a-c]", 0_usize..30, 0..4),
            weights in prop::collection::btree_map("[a-c]", 1_u32..5, 0..4)
        ) {
            let given = share(most, &waiting, &weights);
            let wanted: usize = waiting.values().sum();
            prop_assert_eq!(given.values().sum::<usize>(), most.min(wanted));
            for (activity, number) in &given {
                prop_assert!(number <= &waiting[activity]);
            }
            // No waiting activity gets less than its share.
            let all: u32 = waiting.iter().filter(|one| *one.1 > 0).map(|one| weights.get(one.0).copied().unwrap_or(1)).sum();
            for (activity, waits) in waiting.iter().filter(|one| *one.1 > 0) {
                let weight = weights.get(activity).copied().unwrap_or(1);
                let due = most * weight as usize / all.max(1) as usize;
                let has = given.get(activity).copied().unwrap_or(0);
                prop_assert!(has >= due.min(*waits), "{} has {} of {}", activity, has, due);
            }
        }
    }
}
