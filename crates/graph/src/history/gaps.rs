//! The parts of the past that are not known.

use super::Moment;
use crate::journal::Gap;

/// Gaps in the history, in order, none of which touches another.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(super) fn cover(&self, moment: Moment) -> bool {
        self.0.iter().any(|gap| match moment {
            Moment::Time(time) => gap.since <= time && time < gap.until,
            Moment::After(seq) => gap.from <= seq && seq < gap.to,
        })
    }

    pub(super) fn all(&self) -> &[Gap] {
        &self.0
    }

    /// Adds gaps; those that overlap or touch become one.
    pub(super) fn extend(&mut self, gaps: impl IntoIterator<Item = Gap>) {
        let mut all: Vec<Gap> = std::mem::take(&mut self.0);
        all.extend(gaps);
        all.sort_unstable_by_key(|gap| (gap.from, gap.since));
        for gap in all {
            match self.0.last_mut().filter(|last| gap.from <= last.to) {
                Some(last) => {
                    last.to = last.to.max(gap.to);
                    last.since = last.since.min(gap.since);
                    last.until = last.until.max(gap.until);
                }
                None => self.0.push(gap),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn gap(from: u64, to: u64) -> Gap {
        let time = |seq: u64| Timestamp::from_second(i64::try_from(seq).unwrap()).unwrap();
        Gap { from, to, since: time(from), until: time(to) }
    }

    #[test]
    fn gaps_that_touch_become_one() {
        let mut gaps = Gaps::default();
        gaps.extend([gap(8, 9), gap(1, 3)]);
        gaps.extend([gap(3, 5), gap(2, 4), gap(8, 10)]);
        assert_eq!(gaps.all(), [gap(1, 5), gap(8, 10)]);
        let covered: Vec<u64> = (0..12).filter(|seq| gaps.cover(Moment::After(*seq))).collect();
        assert_eq!(covered, [1, 2, 3, 4, 8, 9]);
        assert!(gaps.cover(Moment::Time(Timestamp::from_second(4).unwrap())));
        assert!(!gaps.cover(Moment::Time(Timestamp::from_second(5).unwrap())));
    }
}
