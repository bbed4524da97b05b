//! Places all replicas of a volume together, or none: finds the set with the best total score.
//!
//! Replicas of a volume need the same space and never share a node, so within a zone the best nodes for
//! `n` of them are its `n` best. The search is only over the number of replicas in each zone, and the
//! topology leaves few ways: one when zones are ignored, one for each zone when all must share one, and
//! for an even spread the choice of the zones that take one more than the others. The search is exact,
//! and polynomial for the one TieBreaker a volume has; only with more of them is it cut off at
//! [`BUDGET`] steps.

use std::cmp::Reverse;

use crate::eligible::Slot;
use crate::pipeline::{Candidate, Entry};
use crate::topology::{Load, Topology, zonal_majority};

/// The largest number of steps of the search over TieBreaker zones.
pub const BUDGET: usize = 200_000;

/// The replicas to place together, and their candidates.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Where a disk may go, with its score. Several slots of a node are alternatives.
    pub disks: Vec<Entry<Slot>>,
    /// Where a TieBreaker may go: every usable free node, those of `disks` included.
    pub nodes: Vec<Slot>,
    /// The number of replicas with a disk.
    pub diskful: usize,
    /// The number of TieBreakers.
    pub tie_breakers: usize,
    /// How they relate to zones.
    pub topology: Topology,
    /// The replicas that each zone holds already.
    pub loads: Vec<Load>,
    /// Zones without a usable candidate do not count in the balance.
    pub skip_unusable: bool,
}

/// A place for every replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// One slot for each disk, best first.
    pub disks: Vec<Entry<Slot>>,
    /// One node for each TieBreaker.
    pub tie_breakers: Vec<Slot>,
    /// The sum of the scores.
    pub score: i64,
}

#[derive(Clone, Debug, Default)]
struct Zone {
    disks: Vec<Entry<Slot>>,
    nodes: Vec<Slot>,
}

/// The numbers of replicas of each kind that go to a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    disks: usize,
    tie_breakers: usize,
}

impl Zone {
    fn fits(&self, share: Share) -> bool {
        share.disks <= self.disks.len() && share.disks + share.tie_breakers <= self.nodes.len()
    }

    /// Whether it can take a disk beyond `disks`.
    fn takes(&self, disks: usize) -> bool {
        disks < self.disks.len() && disks < self.nodes.len()
    }

    fn score(&self, disks: usize) -> i64 {
        self.disks[..disks].iter().map(|entry| entry.score).sum()
    }
}

/// The best set, or `None` when there is none.
#[must_use]
pub fn solve(problem: &Problem) -> Option<Solution> {
    let zones = zones(problem);
    let whole = Share { disks: problem.diskful, tie_breakers: problem.tie_breakers };
    let shares = match problem.topology {
        Topology::Ignored => zones[0].fits(whole).then(|| vec![whole]),
        Topology::Zonal => {
            let allowed = zonal_majority(&problem.loads);
            (0..zones.len())
                .filter(|zone| allowed[*zone] && zones[*zone].fits(whole))
                .max_by_key(|zone| (zones[*zone].score(whole.disks), Reverse(*zone)))
                .map(|chosen| {
                    let mut shares = vec![Share::default(); zones.len()];
                    shares[chosen] = whole;
                    shares
                })
        }
        Topology::TransZonal => spread(problem, &zones),
    }?;
    Some(fill(&zones, &shares))
}

/// The largest number of replicas that could be placed together, for the message if not all can.
#[must_use]
pub fn most(problem: &Problem) -> usize {
    let mut smaller = problem.clone();
    for diskful in (0..=problem.diskful).rev() {
        smaller.diskful = diskful;
        for tie_breakers in (0..=problem.tie_breakers).rev() {
            smaller.tie_breakers = tie_breakers;
            if solve(&smaller).is_some() {
                return diskful + tie_breakers;
            }
        }
    }
    0
}

/// Sorts candidates into zones, best first, one for each node. Without zones all share one.
fn zones(problem: &Problem) -> Vec<Zone> {
    let merged = problem.topology == Topology::Ignored;
    let mut zones = vec![Zone::default(); if merged { 1 } else { problem.loads.len() }];
    let mut best: Vec<Entry<Slot>> = problem.disks.clone();
    best.sort_by_key(|entry| (entry.candidate.node(), Reverse(entry.score), entry.candidate));
    best.dedup_by_key(|entry| entry.candidate.node());
    for entry in best {
        zones[if merged { 0 } else { entry.candidate.zone() }].disks.push(entry);
    }
    for slot in &problem.nodes {
        zones[if merged { 0 } else { slot.zone() }].nodes.push(*slot);
    }
    for zone in &mut zones {
        zone.disks.sort_by_key(|entry| (Reverse(entry.score), entry.candidate));
        zone.nodes.sort_by_key(|slot| (slot.has_groups(), *slot));
    }
    zones
}

fn fill(zones: &[Zone], shares: &[Share]) -> Solution {
    let mut solution = Solution::default();
    for (zone, share) in zones.iter().zip(shares) {
        let disks = &zone.disks[..share.disks];
        solution.score += zone.score(share.disks);
        let taken = |slot: &&Slot| disks.iter().any(|disk| disk.candidate.node() == slot.node());
        let free = zone.nodes.iter().filter(|slot| !taken(slot));
        solution.tie_breakers.extend(free.take(share.tie_breakers));
        solution.disks.extend_from_slice(disks);
    }
    solution.disks.sort_by_key(|entry| (Reverse(entry.score), entry.candidate));
    solution.tie_breakers.sort_by_key(|slot| (slot.has_groups(), *slot));
    solution
}

/// Whether a zone takes one more disk than its level asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    /// Not decided yet.
    Open,
    Takes,
    TakesNot,
}

/// Fills zones level by level; the last level may be partial, and its zones are searched.
fn spread(problem: &Problem, zones: &[Zone]) -> Option<Vec<Share>> {
    let mut shares = vec![Share::default(); zones.len()];
    let mut left = problem.diskful;
    let mut last = Vec::new();
    while left > 0 {
        let level = |zone: usize| problem.loads[zone].diskful + shares[zone].disks;
        let counts =
            |zone: &usize| !problem.skip_unusable || zones[*zone].takes(shares[*zone].disks);
        let least = (0..zones.len()).filter(counts).map(level).min()?;
        let lowest: Vec<usize> =
            (0..zones.len()).filter(counts).filter(|zone| level(*zone) == least).collect();
        if left < lowest.len() {
            last = lowest;
            break;
        }
        if lowest.iter().any(|zone| !zones[*zone].takes(shares[*zone].disks)) {
            return None;
        }
        left -= lowest.len();
        for zone in lowest {
            shares[zone].disks += 1;
        }
    }
    let mut extras = vec![Extra::TakesNot; zones.len()];
    for zone in last {
        if zones[zone].takes(shares[zone].disks) {
            extras[zone] = Extra::Open;
        }
    }
    let mut search = Search { problem, zones, extra: left, best: None, steps: 0 };
    search.tie_breakers(shares, extras, problem.tie_breakers);
    search.best.map(|(_, shares)| shares)
}

struct Search<'p> {
    problem: &'p Problem,
    zones: &'p [Zone],
    extra: usize,
    best: Option<(i64, Vec<Share>)>,
    steps: usize,
}

impl Search<'_> {
    /// Places the remaining TieBreakers zone by zone, each in a zone that the rule allows.
    fn tie_breakers(&mut self, shares: Vec<Share>, extras: Vec<Extra>, left: usize) {
        self.steps += 1;
        if self.steps > BUDGET {
            return;
        }
        if left == 0 {
            self.finish(shares, &extras);
            return;
        }
        for zone in 0..self.zones.len() {
            let options: &[Extra] = match extras[zone] {
                Extra::Open => &[Extra::Takes, Extra::TakesNot],
                Extra::Takes => &[Extra::Takes],
                Extra::TakesNot => &[Extra::TakesNot],
            };
            for option in options {
                let mut extras = extras.clone();
                extras[zone] = *option;
                if self.free(&shares, zone, *option) && self.narrow(&shares, &mut extras, zone) {
                    let mut shares = shares.clone();
                    shares[zone].tie_breakers += 1;
                    self.tie_breakers(shares, extras, left - 1);
                }
            }
        }
    }

    fn free(&self, shares: &[Share], zone: usize, extra: Extra) -> bool {
        let used = shares[zone].disks + shares[zone].tie_breakers;
        used + usize::from(extra == Extra::Takes) < self.zones[zone].nodes.len()
    }

    fn rank(&self, shares: &[Share], zone: usize, extra: Extra) -> (usize, usize) {
        let load = self.problem.loads[zone];
        let tie_breakers = load.tie_breakers + shares[zone].tie_breakers;
        let disks = load.diskful + shares[zone].disks + usize::from(extra == Extra::Takes);
        (disks + tie_breakers, tie_breakers)
    }

    /// Decides extras as far as `chosen` must be among the least loaded zones. `false` if it cannot be.
    fn narrow(&self, shares: &[Share], extras: &mut [Extra], chosen: usize) -> bool {
        let rank = self.rank(shares, chosen, extras[chosen]);
        for (zone, decision) in extras.iter_mut().enumerate() {
            let allows = |extra| {
                (self.problem.skip_unusable && !self.free(shares, zone, extra))
                    || self.rank(shares, zone, extra) >= rank
            };
            match *decision {
                Extra::Open => match (allows(Extra::Takes), allows(Extra::TakesNot)) {
                    (true, true) => {}
                    (true, false) => *decision = Extra::Takes,
                    (false, true) => *decision = Extra::TakesNot,
                    (false, false) => return false,
                },
                decided if !allows(decided) => return false,
                Extra::Takes | Extra::TakesNot => {}
            }
        }
        true
    }

    fn finish(&mut self, mut shares: Vec<Share>, extras: &[Extra]) {
        let marginal = |zone: usize| self.zones[zone].disks[shares[zone].disks].score;
        let with = |wanted| (0..extras.len()).filter(move |zone| extras[*zone] == wanted);
        let mut chosen: Vec<usize> = with(Extra::Takes).collect();
        let Some(more) = self.extra.checked_sub(chosen.len()) else { return };
        let mut open: Vec<usize> = with(Extra::Open)
            .filter(|zone| {
                let share = shares[*zone];
                self.zones[*zone].fits(Share { disks: share.disks + 1, ..share })
            })
            .collect();
        if open.len() < more {
            return;
        }
        open.sort_by_key(|zone| (Reverse(marginal(*zone)), *zone));
        chosen.extend(&open[..more]);
        for zone in chosen {
            shares[zone].disks += 1;
        }
        let fits = self.zones.iter().zip(&shares).all(|(zone, share)| zone.fits(*share));
        if !fits {
            return;
        }
        let score =
            self.zones.iter().zip(&shares).map(|(zone, share)| zone.score(share.disks)).sum();
        if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
            self.best = Some((score, shares));
        }
    }
}
