//! Places very many items over the same candidates, in time proportional to candidates plus items.
//!
//! A [`Pipeline`](crate::pipeline::Pipeline) examines every candidate for every item. When a
//! thousand items are placed in a row, almost nothing changes between two of them: one candidate
//! gets a little fuller. A [`Batch`] therefore keeps the candidates ranked: by score, and among
//! equals by order. Taking the best and giving one candidate a new score both take a handful of
//! steps, whatever the number of candidates.
//!
//! Invariant: [`Batch::best`] is the candidate that
//! [`select_best`](crate::pipeline::Pipeline::select_best) would choose among the allowed
//! candidates with the same scores.

use std::collections::BTreeMap;

/// Candidates ranked by score, then by their index.
#[derive(Clone, Debug)]
pub struct Batch {
    scores: Vec<Option<i64>>,
    ranks: BTreeMap<i64, Places>,
}

impl Batch {
    /// Ranks candidates 0..n by these scores; one without a score is excluded.
    #[must_use]
    pub fn new(scores: impl IntoIterator<Item = Option<i64>>) -> Self {
        let scores: Vec<Option<i64>> = scores.into_iter().collect();
        let mut batch = Self { scores: Vec::new(), ranks: BTreeMap::new() };
        for (place, score) in scores.iter().enumerate() {
            if let Some(score) = score {
                let size = scores.len();
                batch.ranks.entry(*score).or_insert_with(|| Places::new(size)).insert(place);
            }
        }
        batch.scores = scores;
        batch
    }

    /// The score of a candidate.
    #[must_use]
    pub fn score(&self, place: usize) -> Option<i64> {
        self.scores[place]
    }

    /// Gives a candidate a new score, or excludes it.
    pub fn rescore(&mut self, place: usize, score: Option<i64>) {
        let before = std::mem::replace(&mut self.scores[place], score);
        if before == score {
            return;
        }
        if let Some(before) = before
            && let Some(places) = self.ranks.get_mut(&before)
        {
            places.remove(place);
            if places.is_empty() {
                self.ranks.remove(&before);
            }
        }
        if let Some(score) = score {
            let size = self.scores.len();
            self.ranks.entry(score).or_insert_with(|| Places::new(size)).insert(place);
        }
    }

    /// The best allowed candidate. Fast as long as few of the best are not allowed.
    #[must_use]
    pub fn best(&self, mut allowed: impl FnMut(usize) -> bool) -> Option<usize> {
        for places in self.ranks.values().rev() {
            let mut next = places.first_from(0);
            while let Some(place) = next {
                if allowed(place) {
                    return Some(place);
                }
                next = places.first_from(place + 1);
            }
        }
        None
    }
}

/// A set of indexes that finds its first member after a given one in a few steps: a bit set, and a
/// second one over its words.
#[derive(Clone, Debug)]
struct Places {
    levels: Vec<Vec<u64>>,
}

impl Places {
    fn new(size: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = size.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    fn insert(&mut self, mut place: usize) {
        for level in &mut self.levels {
            level[place / 64] |= 1 << (place % 64);
            place /= 64;
        }
    }

    fn remove(&mut self, mut place: usize) {
        for level in &mut self.levels {
            let word = &mut level[place / 64];
            *word &= !(1 << (place % 64));
            if *word != 0 {
                return;
            }
            place /= 64;
        }
    }

    fn is_empty(&self) -> bool {
        self.levels.last().is_none_or(|top| top[0] == 0)
    }

    fn first_from(&self, mut place: usize) -> Option<usize> {
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(place / 64)? & (u64::MAX << (place % 64));
            if word != 0 {
                let mut found = place / 64 * 64 + word.trailing_zeros() as usize;
                for level in self.levels[..height].iter().rev() {
                    found = found * 64 + level[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            place = place / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_best_is_the_first_candidate_with_the_highest_score(
            scores in proptest::collection::vec(proptest::option::of(-5_i64..5), 1..700),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), proptest::option::of(-5_i64..5)), 0..30),
            banned in any::<prop::sample::Index>(),
        ) {
            let mut scores = scores;
            let mut batch = Batch::new(scores.clone());
            for (place, score) in changes {
                let place = place.index(scores.len());
                scores[place] = score;
                batch.rescore(place, score);
                let banned = banned.index(scores.len());
                let expected = (0..scores.len())
                    .filter(|place| *place != banned && scores[*place].is_some())
                    .max_by_key(|place| (scores[*place], std::cmp::Reverse(*place)));
                prop_assert_eq!(batch.best(|place| place != banned), expected);
            }
        }
    }
}
