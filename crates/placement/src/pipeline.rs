//! The pipeline: a source of candidates, steps that exclude or score them, and the best one.
//!
//! A chain reads like the algorithm it implements, and every step counts the candidates it excludes, so
//! that the summary explains a failure:
//!
//! ```
//! use mainstay_placement::pipeline::{Candidate, Pipeline, Source};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
//! struct Machine(u32, bool);
//! impl Candidate for Machine {
//!     fn node(&self) -> usize { self.0 as usize }
//!     fn zone(&self) -> usize { 0 }
//! }
//!
//! let source = Source { unit: "candidates", nodes: 2, zones: 1 };
//! let pipeline = Pipeline::new(source, [Machine(0, false), Machine(1, false)])
//!     .with_predicate("node not ready", |machine| machine.1);
//! assert_eq!(pipeline.select_best(), None);
//! assert_eq!(
//!     pipeline.summary(),
//!     "2 candidates from 2 eligible nodes; 2 excluded: node not ready"
//! );
//! ```
//!
//! Invariants: candidates keep their order; a candidate that a step excluded is never
//! chosen; the counts of the summary and of the candidates left add up to the source; the choice
//! is the highest score, then the smallest candidate.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// A candidate. Its order breaks ties: the smallest wins.
pub trait Candidate: Copy + Ord {
    /// The node it is on, counted from 0. [`Pipeline::with_node_score`] groups by it.
    fn node(&self) -> usize;
    /// The zone it is in, counted from 0. [`Pipeline::with_zone_score`] groups by it.
    fn zone(&self) -> usize;
}

/// The source of the candidates, for the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Their name in the summary: `candidates (node×LVG)`.
    pub unit: &'static str,
    /// The number of nodes, with or without a candidate.
    pub nodes: usize,
    /// The number of zones.
    pub zones: usize,
}

/// A candidate and its score so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<C> {
    /// The candidate.
    pub candidate: C,
    /// Its score so far; candidates begin at 0.
    pub score: i64,
}

/// The name of a step, usually a constant.
pub type Name = Cow<'static, str>;

/// One step: its name, and the number of candidates it excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The name in the summary.
    pub name: Name,
    /// The number of candidates it excluded.
    pub excluded: usize,
}

/// Records exclusions and points of candidates. [`Silent`] has no cost.
pub trait Recorder<C> {
    /// `step` excluded `candidate`.
    fn excluded(&mut self, candidate: C, step: usize);
    /// `step` added `points` to `candidate`.
    fn scored(&mut self, candidate: C, step: usize, points: i64);
}

/// Does not record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl<C> Recorder<C> for Silent {
    fn excluded(&mut self, _: C, _: usize) {}
    fn scored(&mut self, _: C, _: usize, _: i64) {}
}

/// Records every exclusion and every point given.
#[derive(Clone, Debug)]
pub struct Record<C> {
    /// Excluded candidates, with the index of the step.
    pub excluded: Vec<(C, usize)>,
    /// Candidates with points, and the index of the step.
    pub points: Vec<(C, usize, i64)>,
}

impl<C> Default for Record<C> {
    fn default() -> Self {
        Self { excluded: Vec::new(), points: Vec::new() }
    }
}

impl<C> Recorder<C> for Record<C> {
    fn excluded(&mut self, candidate: C, step: usize) {
        self.excluded.push((candidate, step));
    }

    fn scored(&mut self, candidate: C, step: usize, points: i64) {
        self.points.push((candidate, step, points));
    }
}

/// Candidates between the source and the choice.
#[derive(Clone, Debug)]
pub struct Pipeline<C, R = Silent> {
    source: Source,
    total: usize,
    entries: Vec<Entry<C>>,
    steps: Vec<Step>,
    recorder: R,
}

impl<C: Candidate> Pipeline<C> {
    /// Starts with these candidates, all at score 0.
    #[must_use]
    pub fn new(source: Source, candidates: impl IntoIterator<Item = C>) -> Self {
        Self::recorded(source, candidates, Silent)
    }
}

impl<C: Candidate, R: Recorder<C>> Pipeline<C, R> {
    /// Starts with these candidates, and records with `recorder`.
    #[must_use]
    pub fn recorded(source: Source, candidates: impl IntoIterator<Item = C>, recorder: R) -> Self {
        let entries: Vec<_> =
            candidates.into_iter().map(|candidate| Entry { candidate, score: 0 }).collect();
        Self { source, total: entries.len(), entries, steps: Vec::with_capacity(8), recorder }
    }

    /// `WithPredicate`: excludes the candidates that do not match.
    #[must_use]
    pub fn with_predicate(
        mut self,
        name: impl Into<Name>,
        mut keep: impl FnMut(&C) -> bool,
    ) -> Self {
        let step = self.steps.len();
        let before = self.entries.len();
        let recorder = &mut self.recorder;
        self.entries.retain(|entry| {
            let kept = keep(&entry.candidate);
            if !kept {
                recorder.excluded(entry.candidate, step);
            }
            kept
        });
        self.steps.push(Step { name: name.into(), excluded: before - self.entries.len() });
        self
    }

    /// `FilteredAndScoredBySchedulerExtender`: the extender's answer becomes the score; candidates without a
    /// score, or with 0 or less, are excluded.
    #[must_use]
    pub fn filtered_and_scored_by_scheduler_extender(
        mut self,
        name: impl Into<Name>,
        mut score: impl FnMut(&C) -> Option<i64>,
    ) -> Self {
        let step = self.steps.len();
        let before = self.entries.len();
        let recorder = &mut self.recorder;
        self.entries.retain_mut(|entry| match score(&entry.candidate) {
            Some(points) if points > 0 => {
                entry.score += points;
                recorder.scored(entry.candidate, step, points);
                true
            }
            _ => {
                recorder.excluded(entry.candidate, step);
                false
            }
        });
        self.steps.push(Step { name: name.into(), excluded: before - self.entries.len() });
        self
    }

    /// Adds points to each candidate by itself.
    #[must_use]
    pub fn with_score(mut self, name: impl Into<Name>, mut points: impl FnMut(&C) -> i64) -> Self {
        let step = self.steps.len();
        for entry in &mut self.entries {
            let points = points(&entry.candidate);
            if points != 0 {
                entry.score = entry.score.saturating_add(points);
                self.recorder.scored(entry.candidate, step, points);
            }
        }
        self.steps.push(Step { name: name.into(), excluded: 0 });
        self
    }

    /// `WithNodeScore`: groups by node, and adds the same points to all candidates of a node.
    /// The argument of `points` is the number of remaining candidates of the node.
    #[must_use]
    pub fn with_node_score(self, name: impl Into<Name>, points: impl Fn(usize) -> i64) -> Self {
        let mut left = vec![0_usize; self.source.nodes];
        for entry in &self.entries {
            left[entry.candidate.node()] += 1;
        }
        self.with_score(name, |candidate| points(left[candidate.node()]))
    }

    /// `WithZoneScore`: groups by zone, and adds the same points to all candidates of a zone.
    /// The argument of `points` is the number of nodes of the zone with a remaining candidate.
    #[must_use]
    pub fn with_zone_score(self, name: impl Into<Name>, points: impl Fn(usize) -> i64) -> Self {
        let mut seen = vec![false; self.source.nodes];
        let mut nodes = vec![0_usize; self.source.zones];
        for entry in &self.entries {
            let (node, zone) = (entry.candidate.node(), entry.candidate.zone());
            if !std::mem::replace(&mut seen[node], true) {
                nodes[zone] += 1;
            }
        }
        self.with_score(name, |candidate| points(nodes[candidate.zone()]))
    }

    /// `SelectBest`: the highest score; among equals the smallest candidate.
    #[must_use]
    pub fn select_best(&self) -> Option<Entry<C>> {
        self.entries.iter().max_by_key(|entry| (entry.score, Reverse(entry.candidate))).copied()
    }

    /// The remaining candidates, in the order of the source.
    #[must_use]
    pub fn entries(&self) -> &[Entry<C>] {
        &self.entries
    }

    /// The steps so far.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The number of candidates of the source.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// The recorder.
    #[must_use]
    pub fn recorder(&self) -> &R {
        &self.recorder
    }

    /// `4 candidates (node×LVG) from 2 eligible nodes; 4 excluded: node not ready`
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{} {} from {} eligible nodes",
            self.total, self.source.unit, self.source.nodes
        );
        for step in self.steps.iter().filter(|step| step.excluded > 0) {
            // Writing to a string cannot fail.
            let _ = write!(text, "; {} excluded: {}", step.excluded, step.name);
        }
        text
    }
}
