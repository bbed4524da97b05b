//! AllOrNothing: every replica is scored first, then a set is chosen, then all of it is reserved, and only
//! then are replicas placed.

use super::steps::{ALL_OR_NOTHING, NO_CAPACITY};
use super::{Narrowing, Next, Pass, ReplicaDecision, Scores, State, Unavailable, slots};
use crate::eligible::Slot;
use crate::joint;
use crate::pipeline::{Candidate, Entry, Pipeline, Recorder, Silent};
use crate::volume::ZoneFallback;

/// The state of a joint placement.
#[derive(Default)]
pub(crate) struct Joint {
    pub(crate) members: Vec<usize>,
    pub(super) asked: usize,
    pub(super) scores: Vec<Vec<Entry<Slot>>>,
    pub(super) chosen: Vec<(usize, Entry<Slot>)>,
    pub(super) narrowed: usize,
}

impl Pass<'_> {
    pub(super) fn with_disks(&self, members: &[usize]) -> Vec<usize> {
        let has_disk = |replica: &usize| self.volume.replicas[*replica].kind.has_disk();
        members.iter().copied().filter(has_disk).collect()
    }

    pub(super) fn joint_unavailable(&mut self, joint: Joint) {
        self.failed = true;
        for replica in self.with_disks(&joint.members) {
            self.report(replica, ReplicaDecision::ExtenderUnavailable(Unavailable::Scoring));
        }
    }

    pub(super) fn next_joint(&mut self, mut joint: Joint) -> Option<Next> {
        let disks = self.with_disks(&joint.members);
        if let Some(replica) = disks.get(joint.asked).copied() {
            let slots = slots(&self.filtered(replica, Silent));
            if slots.is_empty() {
                joint.scores.push(Vec::new());
                joint.asked += 1;
                self.state = State::Joint(joint);
                return None;
            }
            self.state = State::Joint(joint);
            return Some(Next::Score { replica, slots });
        }
        if joint.chosen.is_empty() {
            match self.choose(&joint, &disks) {
                Ok(chosen) => joint.chosen = chosen,
                Err(fit) => {
                    self.refuse(&joint, &disks, fit);
                    return None;
                }
            }
        }
        if let Some((replica, entry)) = joint.chosen.get(joint.narrowed).copied()
            && self.volume.replicas[replica].kind.has_disk()
        {
            self.state = State::Joint(joint);
            return Some(Next::Narrow(Narrowing { replica, slot: entry.candidate }));
        }
        for (replica, entry) in std::mem::take(&mut joint.chosen) {
            self.placed(replica, entry);
        }
        None
    }

    /// A place for every member, disks first; the error is the number that would fit.
    fn choose(&self, joint: &Joint, disks: &[usize]) -> Result<Vec<(usize, Entry<Slot>)>, usize> {
        let mut chosen = Vec::new();
        let mut used = self.occupied.clone();
        let mut free = Vec::new();
        for (index, replica) in disks.iter().enumerate() {
            if self.volume.replicas[*replica].node_name.is_empty() {
                free.push(index);
                continue;
            }
            let best = joint.scores[index]
                .iter()
                .max_by_key(|entry| (entry.score, std::cmp::Reverse(entry.candidate)));
            let entry = *best.ok_or(0_usize)?;
            used[entry.candidate.node()] = true;
            chosen.push((*replica, entry));
        }
        // A slot must have a score for every replica: the extender may have scored them differently.
        let mut common: Vec<Entry<Slot>> =
            free.first().map(|first| joint.scores[*first].clone()).unwrap_or_default();
        for other in free.iter().skip(1) {
            common.retain_mut(|entry| {
                let scores = &joint.scores[*other];
                let found = scores.binary_search_by_key(&entry.candidate, |other| other.candidate);
                if let Ok(found) = found {
                    entry.score = entry.score.min(scores[found].score);
                }
                found.is_ok()
            });
        }
        common.retain(|entry| !used[entry.candidate.node()]);
        let usable = |slot: &&Slot| slot.node_usable() && !used[slot.node()];
        let problem = joint::Problem {
            disks: common,
            nodes: self.eligible.only_nodes().iter().filter(usable).copied().collect(),
            diskful: free.len(),
            tie_breakers: joint.members.len() - disks.len(),
            topology: self.volume.topology,
            loads: self.loads(None),
            skip_unusable: self.volume.zone_fallback == ZoneFallback::WhenUnusable,
        };
        let Some(solution) = joint::solve(&problem) else {
            return Err(chosen.len() + joint::most(&problem));
        };
        chosen.extend(free.iter().map(|index| disks[*index]).zip(solution.disks));
        let ties = joint.members.iter().skip(disks.len()).copied();
        let nodes = solution.tie_breakers.into_iter();
        chosen.extend(ties.zip(nodes.map(|candidate| Entry { candidate, score: 0 })));
        Ok(chosen)
    }

    /// Fails every member: by its own pipeline if that alone excludes all candidates, else because the
    /// volume as a whole does not fit.
    fn refuse(&mut self, joint: &Joint, disks: &[usize], fit: usize) {
        for (index, replica) in joint.members.iter().enumerate() {
            let mut pipeline = self.filtered(*replica, Silent);
            if index < disks.len() {
                let welcome = &joint.scores[index];
                pipeline = pipeline.with_predicate(NO_CAPACITY, |slot| {
                    welcome.binary_search_by_key(slot, |entry| entry.candidate).is_ok()
                });
            }
            let pipeline = without_the_others(pipeline, fit, joint.members.len());
            self.report(*replica, ReplicaDecision::Failed(pipeline.summary()));
        }
    }

    /// The effect of a joint decision on the candidates of one replica, and its choice for it, if every
    /// replica gets these scores.
    pub(crate) fn explain_together<R: Recorder<Slot>>(
        &self,
        joint: &Joint,
        replica: usize,
        scores: Scores<'_>,
        recorder: R,
    ) -> (Pipeline<Slot, R>, Option<Entry<Slot>>) {
        let disks = self.with_disks(&joint.members);
        let scored = |replica: &usize| {
            let pipeline = self.scored_by(self.filtered(*replica, Silent), scores);
            self.bonuses(pipeline).entries().to_vec()
        };
        let asked = Joint {
            members: joint.members.clone(),
            scores: disks.iter().map(scored).collect(),
            ..Joint::default()
        };
        let mut pipeline = self.filtered(replica, recorder);
        if disks.contains(&replica) {
            pipeline = self.scored_by(pipeline, scores);
        }
        match self.choose(&asked, &disks) {
            Ok(chosen) => {
                let chosen = chosen.into_iter().find(|(member, _)| *member == replica);
                if disks.contains(&replica) {
                    pipeline = self.bonuses(pipeline);
                }
                (pipeline, chosen.map(|(_, entry)| entry))
            }
            Err(fit) => (without_the_others(pipeline, fit, joint.members.len()), None),
        }
    }
}

/// Excludes the remaining candidates, because not all replicas of the volume fit.
fn without_the_others<R: Recorder<Slot>>(
    pipeline: Pipeline<Slot, R>,
    fit: usize,
    wanted: usize,
) -> Pipeline<Slot, R> {
    let name = format!("{ALL_OR_NOTHING} ({fit} of {wanted} replicas fit)");
    pipeline.with_predicate(name, |_| false)
}
