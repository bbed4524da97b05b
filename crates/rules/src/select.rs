//! Chooses RSEs among the targets for the copies of a file, a dataset or a whole container.
//!
//! A [`Selector`] is built once per rule from the resolved targets, the weight attribute and the
//! remaining quota of the account; every [`Selector::pick`] subtracts from it, so a series of picks
//! never exceeds a quota. An RSE with coverage (bytes already there) is preferred to one without;
//! equal coverage is decided by weight; randomness is an argument.
//!
//! The RSEs of a pick are distinct, all of them targets, and each had room for the size.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_placement::pipeline::{self, Pipeline, Record, Recorder, Silent, Source};
use rand::{Rng, RngExt};

use crate::error::{Class, Refusal};
use crate::expression::Rse;

/// The remaining quota of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Quotas do not apply: an administrator, or a setting of the rule.
    pub unlimited: bool,
    /// RSE → bytes left. Missing means nothing, `None` means infinite.
    pub local: BTreeMap<i64, Option<i64>>,
    /// Limits over several RSEs, each with its remaining bytes (`None` means infinite).
    pub global: Vec<(BTreeSet<i64>, Option<i64>)>,
}

/// One RSE that may take a copy.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    rse: i64,
    weight: f64,
    /// Quotas do not apply here.
    exempt: bool,
    local: Option<i64>,
    space: Option<i64>,
}

/// Chooses RSEs for one rule.
#[derive(Clone, Debug)]
pub struct Selector {
    candidates: Vec<Candidate>,
    global: Vec<(BTreeSet<i64>, Option<i64>)>,
    copies: usize,
}

/// The parameters of one pick.
#[derive(Clone, Debug, Default)]
pub struct Wish<'a> {
    /// Bytes to be placed on each RSE.
    pub size: i64,
    /// Bytes already there: more is better.
    pub coverage: &'a [(i64, i64)],
    /// RSEs to keep, regardless of coverage (the evaluator follows earlier choices).
    pub follow: &'a [i64],
    /// RSEs that must not be chosen.
    pub blocked: &'a [i64],
    /// How many RSEs.
    pub copies: usize,
}

fn refusal(class: Class, message: impl Into<String>) -> Refusal {
    Refusal { class, message: message.into() }
}

fn over_quota() -> Refusal {
    refusal(
        Class::InsufficientAccountLimit,
        "There is insufficient quota on any of the target RSE's to fulfill the operation.",
    )
}

fn too_few(copies: usize, found: usize) -> Refusal {
    refusal(
        Class::InsufficientTargetRSEs,
        format!(
            "Target RSE set not sufficient for number of copies. ({copies} copies requested, RSE \
             set size {found})"
        ),
    )
}

impl Selector {
    /// A selector over `targets`. `space` has the remaining bytes of RSEs with their own limit.
    pub fn new(
        targets: &[&Rse],
        weight: Option<&str>,
        copies: usize,
        allowance: &Allowance,
        space: &BTreeMap<i64, i64>,
    ) -> Result<Self, Refusal> {
        let mut candidates = Vec::with_capacity(targets.len());
        for rse in targets {
            let weight = match weight {
                None => 1.0,
                Some(key) => match rse.attribute(key) {
                    None => continue,
                    Some(text) => parse_weight(text)?,
                },
            };
            let exempt = allowance.unlimited || rse.is_mock();
            let local = allowance.local.get(&rse.id).copied().unwrap_or(Some(0));
            let space = space.get(&rse.id).copied();
            candidates.push(Candidate { rse: rse.id, weight, exempt, local, space });
        }
        if candidates.len() < copies {
            return Err(too_few(copies, candidates.len()));
        }
        Ok(Self { candidates, global: allowance.global.clone(), copies })
    }

    /// Fails unless enough RSEs have quota left; called once, before anything is placed.
    pub fn check_quota(&self) -> Result<(), Refusal> {
        let left = self.candidates.iter().filter(|candidate| self.allows(candidate, 1)).count();
        if left < self.copies { Err(over_quota()) } else { Ok(()) }
    }

    /// How many RSEs have quota left.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.candidates.iter().filter(|candidate| self.allows(candidate, 1)).count()
    }

    /// Whether `size` bytes still fit the quota on `rse`; called before an earlier choice is kept.
    #[must_use]
    pub fn fits(&self, rse: i64, size: i64) -> bool {
        self.candidates.iter().any(|candidate| candidate.rse == rse && self.allows(candidate, size))
    }

    /// Subtracts `size` bytes from the remaining quota of `rse`.
    pub fn take(&mut self, rse: i64, size: i64) {
        for candidate in self.candidates.iter_mut().filter(|candidate| candidate.rse == rse) {
            candidate.local = candidate.local.map(|left| left.saturating_sub(size));
            candidate.space = candidate.space.map(|left| left.saturating_sub(size));
        }
        for (_, left) in self.global.iter_mut().filter(|(rses, _)| rses.contains(&rse)) {
            *left = left.map(|left| left.saturating_sub(size));
        }
    }

    fn allows(&self, candidate: &Candidate, size: i64) -> bool {
        if candidate.exempt || size == 0 {
            return true;
        }
        let fits = |left: Option<i64>| left.is_none_or(|left| left >= size);
        fits(candidate.local)
            && self
                .global
                .iter()
                .filter(|(rses, _)| rses.contains(&candidate.rse))
                .all(|(_, left)| fits(*left))
    }

    /// Chooses `wish.copies` distinct RSEs, best first, and subtracts the size from their quota. On
    /// an error the quota is unchanged.
    pub fn pick(&mut self, wish: &Wish<'_>, rng: &mut dyn Rng) -> Result<Vec<i64>, Refusal> {
        let coverage: BTreeMap<i64, i64> = wish.coverage.iter().copied().collect();
        let covered = |rse: i64| coverage.get(&rse).copied().unwrap_or(0);
        let mut next = self.clone();
        let mut picked = Vec::with_capacity(wish.copies);
        while picked.len() < wish.copies {
            let left = wish.copies - picked.len();
            let pipeline = next.pipeline(wish, &coverage, &picked, Silent);
            check_steps(&pipeline, wish.copies, left)?;
            let most = pipeline.entries().iter().map(|entry| entry.score).max();
            let best: Vec<usize> = pipeline
                .entries()
                .iter()
                .filter(|entry| Some(entry.score) == most)
                .map(|entry| entry.candidate.0)
                .collect();
            let chosen = next.candidates[weighted(&next.candidates, &best, rng)].rse;
            next.take(chosen, wish.size);
            picked.push(chosen);
        }
        // Existing bytes take no new space.
        for rse in &picked {
            let there = covered(*rse).min(wish.size);
            for candidate in next.candidates.iter_mut().filter(|candidate| candidate.rse == *rse) {
                candidate.space = candidate.space.map(|left| left + there);
            }
        }
        *self = next;
        Ok(picked)
    }
}

/// The index of a candidate in the selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At(usize);

impl pipeline::Candidate for At {
    fn node(&self) -> usize {
        self.0
    }

    fn zone(&self) -> usize {
        0
    }
}

/// The result of a pick for one RSE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be chosen, with this rank (bytes already there, or an earlier choice).
    Fits(i64),
    /// It may not be chosen, for this reason.
    Excluded(String),
}

const FOLLOWED: i64 = i64::MAX / 2;

impl Selector {
    /// Candidates → filters → scores, in the order of the design.
    fn pipeline<R: Recorder<At>>(
        &self,
        wish: &Wish<'_>,
        coverage: &BTreeMap<i64, i64>,
        picked: &[i64],
        recorder: R,
    ) -> Pipeline<At, R> {
        let covered = |at: &At| coverage.get(&self.candidates[at.0].rse).copied().unwrap_or(0);
        let source = Source { unit: "RSEs", nodes: self.candidates.len(), zones: 1 };
        Pipeline::recorded(source, (0..self.candidates.len()).map(At), recorder)
            .with_predicate("already holds a copy of this rule", |at| {
                let rse = &self.candidates[at.0].rse;
                !wish.blocked.contains(rse) && !picked.contains(rse)
            })
            .with_predicate("has too little space", |at| {
                self.candidates[at.0].space.is_none_or(|left| left >= wish.size - covered(at))
            })
            .with_predicate("is over the account's quota", |at| {
                self.allows(&self.candidates[at.0], wish.size)
            })
            .with_score("holds the files beside these", |at| {
                if wish.follow.contains(&self.candidates[at.0].rse) { FOLLOWED } else { 0 }
            })
            .with_score("bytes already there", |at| {
                if wish.follow.contains(&self.candidates[at.0].rse) { 0 } else { covered(at) }
            })
    }

    /// The result a pick would have for every candidate.
    #[must_use]
    pub fn explain(&self, wish: &Wish<'_>) -> BTreeMap<i64, Verdict> {
        let coverage: BTreeMap<i64, i64> = wish.coverage.iter().copied().collect();
        let pipeline = self.pipeline(wish, &coverage, &[], Record::default());
        let fits =
            pipeline.entries().iter().map(|entry| (entry.candidate, Verdict::Fits(entry.score)));
        let out =
            pipeline.recorder().excluded.iter().map(|(at, step)| {
                (*at, Verdict::Excluded(pipeline.steps()[*step].name.to_string()))
            });
        fits.chain(out).map(|(at, verdict)| (self.candidates[at.0].rse, verdict)).collect()
    }
}

/// Each step must leave enough candidates: the first that does not determines the error.
fn check_steps(pipeline: &Pipeline<At>, copies: usize, left: usize) -> Result<(), Refusal> {
    let mut open = pipeline.total();
    for (at, step) in pipeline.steps().iter().enumerate() {
        open -= step.excluded;
        if open < left {
            return Err(match at {
                0 => too_few(copies, open),
                1 => refusal(
                    Class::RSEOverQuota,
                    "There is insufficient space on any of the target RSE's to fulfill the operation.",
                ),
                _ => over_quota(),
            });
        }
    }
    Ok(())
}

fn parse_weight(text: &str) -> Result<f64, Refusal> {
    text.parse::<f64>().ok().filter(|weight| weight.is_finite()).ok_or_else(|| {
        refusal(Class::InvalidRuleWeight, "The RSE has an invalid value for the weight attribute.")
    })
}

/// One of `among`, by weight; uniform when no weight is positive.
fn weighted(open: &[Candidate], among: &[usize], rng: &mut dyn Rng) -> usize {
    let weight = |index: usize| open[index].weight.max(0.0);
    let total: f64 = among.iter().map(|index| weight(*index)).sum();
    if total <= 0.0 {
        return among[rng.random_range(0..among.len())];
    }
    let mut point = rng.random_range(0.0..total);
    for index in among {
        point -= weight(*index);
        if point < 0.0 {
            return *index;
        }
    }
    among.iter().rev().copied().find(|index| weight(*index) > 0.0).unwrap_or(among[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn rses(count: i64) -> Vec<Rse> {
        (1..=count).map(|id| Rse { id, ..Rse::default() }).collect()
    }

    proptest! {
        #[test]
        fn picks_are_distinct_and_never_exceed_a_quota(
            limits in prop::collection::vec(prop::option::of(0_i64..500), 1..8),
            global in 0_i64..1000,
            sizes in prop::collection::vec((0_i64..120, 1_usize..4), 1..30),
            seed in any::<u64>(),
        ) {
            let rses = rses(limits.len() as i64);
            let targets: Vec<&Rse> = rses.iter().collect();
            let local: BTreeMap<i64, Option<i64>> =
                limits.iter().enumerate().map(|(at, left)| (at as i64 + 1, *left)).collect();
            let all: BTreeSet<i64> = local.keys().copied().collect();
            let allowance = Allowance { unlimited: false, local, global: vec![(all, Some(global))] };
            let mut selector =
                Selector::new(&targets, None, 1, &allowance, &BTreeMap::new()).unwrap();
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut used: BTreeMap<i64, i64> = BTreeMap::new();
            for (size, copies) in sizes {
                let wish = Wish { size, copies, ..Wish::default() };
                let Ok(picked) = selector.pick(&wish, &mut rng) else { continue };
                prop_assert_eq!(picked.iter().collect::<BTreeSet<_>>().len(), copies);
                for rse in picked {
                    *used.entry(rse).or_default() += size;
                }
            }
            for (at, limit) in limits.iter().enumerate() {
                if let Some(limit) = limit {
                    prop_assert!(used.get(&(at as i64 + 1)).copied().unwrap_or(0) <= *limit);
                }
            }
            prop_assert!(used.values().sum::<i64>() <= global);
        }
    }
}
