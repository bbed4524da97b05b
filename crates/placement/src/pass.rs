//! One pass over the replicas of one volume.
//!
//! A [`Pass`] decides and performs no I/O: [`Pass::advance`] returns the next action (ask the extender
//! for scores, narrow a reservation, write a placement), and the caller answers with
//! [`Pass::scored`] and [`Pass::narrowed`]. The same decisions therefore run against a live
//! server, in a plan, and in tests.
//!
//! Invariants:
//! * no two replicas of a volume share a node, deleting and partly placed ones included;
//! * Diskful replicas come before ShadowDiskful, those before TieBreakers, each by ascending id;
//! * a replica never counts itself when zones are compared;
//! * a replica that is deleting is not placed, but its node stays occupied;
//! * when the extender fails, all replicas with disks are still tried, and TieBreakers are not.
//!
//! This file has the course of a pass; [`steps`] has the pipeline of one replica, [`together`] the
//! differences of AllOrNothing.

mod steps;
mod together;

use std::collections::VecDeque;

use crate::eligible::{EligibleNodes, Slot};
use crate::pipeline::{Candidate, Entry, Pipeline, Silent};
use crate::topology::{self, Topology};
use crate::volume::{IdSet, ReplicaType, Strategy, Volume};
pub(crate) use steps::{
    ALL_OR_NOTHING, LVG_NOT_READY, NO_CAPACITY, NODE_MISMATCH, NODE_NOT_READY, NODE_OCCUPIED,
    ZONE_TRANS_ZONAL, ZONE_ZONAL,
};
pub use steps::{ATTACH_POINTS, MULTI_LVG_POINTS, ZONE_PENALTY_POINTS};
use together::Joint;

/// Which call to the extender failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// FilterAndScore.
    Scoring,
    /// NarrowReservation.
    Narrowing,
}

/// The decision about a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaDecision {
    /// An Access replica: it carries no Scheduled condition.
    Access,
    /// It was placed before this pass.
    AlreadyScheduled,
    /// This pass placed it.
    Placed(Entry<Slot>),
    /// No candidate fits; with the pipeline's summary.
    Failed(String),
    /// The extender did not answer.
    ExtenderUnavailable(Unavailable),
}

/// A reservation to narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// The replica's index in [`Volume::replicas`].
    pub replica: usize,
    /// Its slot.
    pub slot: Slot,
}

/// The next action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask the extender about these slots, then call [`Pass::scored`].
    Score {
        /// The replica's index in [`Volume::replicas`].
        replica: usize,
        /// The candidates.
        slots: Vec<Slot>,
    },
    /// Narrow the reservation, then call [`Pass::narrowed`].
    Narrow(Narrowing),
    /// Release a narrowed reservation: the volume cannot be placed as a whole.
    Release(Narrowing),
    /// Write the placement. A caller that fails to do so abandons the pass.
    Place(Narrowing),
    /// Write the decision.
    Report {
        /// The replica's index in [`Volume::replicas`].
        replica: usize,
        /// The decision about it.
        decision: ReplicaDecision,
    },
    /// The pass is complete.
    Done,
}

/// A source of free space that answers at once. Slots identify groups.
pub trait Extender {
    /// A score for each slot, in their order; 0 or less excludes. `None` if it could not answer.
    fn filter_and_score(&mut self, replica: usize, slots: &[Slot]) -> Option<Vec<i64>>;
    /// Keeps the reservation on this slot only. `false` if that failed.
    fn narrow_reservation(&mut self, narrowing: Narrowing) -> bool;
    /// Releases a narrowed reservation.
    fn release(&mut self, narrowing: Narrowing);
}

/// The scores by group number. Missing and 0 mean excluded.
pub type Scores<'s> = &'s dyn Fn(usize) -> Option<i64>;

enum State {
    Ready,
    Scoring { replica: usize, pipeline: Pipeline<Slot> },
    Narrowing { replica: usize, entry: Entry<Slot> },
    Joint(Joint),
}

/// The state of a pass.
pub struct Pass<'v> {
    eligible: &'v EligibleNodes,
    volume: &'v Volume,
    node_of: Vec<Option<usize>>,
    occupied: Vec<bool>,
    scheduled: IdSet,
    queue: VecDeque<usize>,
    ready: VecDeque<Next>,
    state: State,
    failed: bool,
}

impl std::fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("queue", &self.queue).field("failed", &self.failed).finish()
    }
}

impl<'v> Pass<'v> {
    /// Starts a pass over a volume and the eligible nodes of its pool.
    #[must_use]
    pub fn new(eligible: &'v EligibleNodes, volume: &'v Volume) -> Self {
        let mut order: Vec<usize> = (0..volume.replicas.len()).collect();
        order.sort_by_key(|replica| volume.replicas[*replica].id);
        let mut pass = Self {
            eligible,
            volume,
            node_of: Vec::with_capacity(order.len()),
            occupied: vec![false; eligible.nodes().len()],
            scheduled: IdSet::default(),
            queue: VecDeque::new(),
            ready: VecDeque::new(),
            state: State::Ready,
            failed: false,
        };
        for replica in &volume.replicas {
            let node = eligible.find(&replica.node_name);
            if let Some(node) = node {
                pass.occupied[node] = true;
            }
            if replica.scheduled(volume.pool_type) {
                pass.scheduled.insert(replica.id);
            }
            pass.node_of.push(node);
        }
        for index in &order {
            let replica = &volume.replicas[*index];
            let decision = if replica.kind == ReplicaType::Access {
                ReplicaDecision::Access
            } else if pass.scheduled.contains(replica.id) {
                ReplicaDecision::AlreadyScheduled
            } else {
                continue;
            };
            pass.ready.push_back(Next::Report { replica: *index, decision });
        }
        for kind in [ReplicaType::Diskful, ReplicaType::ShadowDiskful, ReplicaType::TieBreaker] {
            pass.queue.extend(order.iter().copied().filter(|index| {
                let replica = &volume.replicas[*index];
                replica.kind == kind && !replica.deleting && !pass.scheduled.contains(replica.id)
            }));
        }
        if volume.strategy == Strategy::AllOrNothing && !pass.queue.is_empty() {
            let members = std::mem::take(&mut pass.queue).into();
            pass.state = State::Joint(Joint { members, ..Joint::default() });
        }
        pass
    }

    /// The replicas that this pass will try to place, by their index in [`Volume::replicas`].
    #[must_use]
    pub fn pending(&self) -> Vec<usize> {
        match self.joint() {
            Some(joint) => joint.members.clone(),
            None => self.queue.iter().copied().collect(),
        }
    }

    pub(crate) fn volume(&self) -> &'v Volume {
        self.volume
    }

    pub(crate) fn eligible(&self) -> &'v EligibleNodes {
        self.eligible
    }

    /// The id of the replica on a node.
    pub(crate) fn occupant(&self, node: usize) -> Option<u8> {
        let replica = self.node_of.iter().position(|other| *other == Some(node))?;
        Some(self.volume.replicas[replica].id)
    }

    /// Whether the extender failed for any replica.
    #[must_use]
    pub fn extender_failed(&self) -> bool {
        self.failed
    }

    /// The slots that the extender would be asked about for one replica in the present state.
    #[must_use]
    pub fn asks(&self, replica: usize) -> Vec<Slot> {
        if !self.volume.replicas[replica].kind.has_disk() {
            return Vec::new();
        }
        match self.joint() {
            Some(_) => slots(&self.filtered(replica, Silent)),
            None => slots(&self.shortlist(replica, Silent)),
        }
    }

    /// The state of a joint placement, if the strategy is AllOrNothing.
    pub(crate) fn joint(&self) -> Option<&Joint> {
        match &self.state {
            State::Joint(joint) => Some(joint),
            _ => None,
        }
    }

    /// The choice for one replica in the present state; the pass does not change.
    #[must_use]
    pub fn decide(&self, replica: usize, scores: Scores<'_>) -> Option<Entry<Slot>> {
        if self.volume.replicas[replica].kind.has_disk() {
            self.finish(replica, self.shortlist(replica, Silent), scores).select_best()
        } else {
            self.tie_breaker(replica, Silent).select_best()
        }
    }

    /// The zones that tie for the most Diskful replicas of a Zonal volume that is split between zones.
    #[must_use]
    pub fn torn_zones(&self) -> Vec<&'v str> {
        if self.volume.topology != Topology::Zonal {
            return Vec::new();
        }
        let zones = topology::torn(&self.loads(None));
        zones.into_iter().map(|zone| self.eligible.zones()[zone].as_str()).collect()
    }

    /// The next action. After [`Next::Score`] and [`Next::Narrow`], answer before calling it again.
    pub fn advance(&mut self) -> Next {
        loop {
            if let Some(next) = self.ready.pop_front() {
                return next;
            }
            match std::mem::replace(&mut self.state, State::Ready) {
                State::Joint(joint) => {
                    if let Some(next) = self.next_joint(joint) {
                        return next;
                    }
                }
                // A request without an answer is returned again.
                State::Scoring { replica, pipeline } => {
                    let slots = slots(&pipeline);
                    self.state = State::Scoring { replica, pipeline };
                    return Next::Score { replica, slots };
                }
                State::Narrowing { replica, entry } => {
                    self.state = State::Narrowing { replica, entry };
                    return Next::Narrow(Narrowing { replica, slot: entry.candidate });
                }
                State::Ready => {
                    let Some(replica) = self.queue.pop_front() else { return Next::Done };
                    self.begin(replica);
                }
            }
        }
    }

    /// Runs the pass to its end with an extender that answers at once, and returns the decision about each
    /// replica.
    pub fn run(mut self, extender: &mut impl Extender) -> Vec<(usize, ReplicaDecision)> {
        let mut decisions = Vec::new();
        loop {
            match self.advance() {
                Next::Score { replica, slots } => {
                    let Some(answers) = extender.filter_and_score(replica, &slots) else {
                        self.scored(None);
                        continue;
                    };
                    let mut by_group = vec![0; self.eligible.lvgs().len()];
                    for (slot, score) in slots.iter().zip(answers) {
                        if let Some(group) = slot.group() {
                            by_group[group] = score;
                        }
                    }
                    self.scored(Some(&|group| by_group.get(group).copied()));
                }
                Next::Narrow(narrowing) => {
                    let held = extender.narrow_reservation(narrowing);
                    self.narrowed(held);
                }
                Next::Release(narrowing) => extender.release(narrowing),
                Next::Place(_) => {}
                Next::Report { replica, decision } => decisions.push((replica, decision)),
                Next::Done => return decisions,
            }
        }
    }

    fn begin(&mut self, replica: usize) {
        if self.volume.replicas[replica].kind.has_disk() {
            let pipeline = self.shortlist(replica, Silent);
            if pipeline.entries().is_empty() {
                self.report(replica, ReplicaDecision::Failed(pipeline.summary()));
            } else {
                self.state = State::Scoring { replica, pipeline };
            }
        } else if !self.failed {
            let pipeline = self.tie_breaker(replica, Silent);
            match pipeline.select_best() {
                Some(entry) => self.placed(replica, entry),
                None => self.report(replica, ReplicaDecision::Failed(pipeline.summary())),
            }
        }
    }

    /// The extender's answer to [`Next::Score`]; `None` if it could not answer.
    pub fn scored(&mut self, scores: Option<Scores<'_>>) {
        match std::mem::replace(&mut self.state, State::Ready) {
            State::Scoring { replica, pipeline } => {
                let Some(scores) = scores else {
                    self.failed = true;
                    let decision = ReplicaDecision::ExtenderUnavailable(Unavailable::Scoring);
                    return self.report(replica, decision);
                };
                let pipeline = self.finish(replica, pipeline, scores);
                match pipeline.select_best() {
                    Some(entry) => self.state = State::Narrowing { replica, entry },
                    None => self.report(replica, ReplicaDecision::Failed(pipeline.summary())),
                }
            }
            State::Joint(mut joint) => {
                let Some(scores) = scores else { return self.joint_unavailable(joint) };
                let replica = joint.members[joint.asked];
                let pipeline = self.filtered(replica, Silent);
                let pipeline = self.scored_by(pipeline, scores);
                joint.scores.push(self.bonuses(pipeline).entries().to_vec());
                joint.asked += 1;
                self.state = State::Joint(joint);
            }
            other => self.state = other,
        }
    }

    /// The extender's answer to [`Next::Narrow`]: whether the reservation holds.
    pub fn narrowed(&mut self, held: bool) {
        match std::mem::replace(&mut self.state, State::Ready) {
            State::Narrowing { replica, entry } => {
                if held {
                    self.placed(replica, entry);
                } else {
                    self.failed = true;
                    let decision = ReplicaDecision::ExtenderUnavailable(Unavailable::Narrowing);
                    self.report(replica, decision);
                }
            }
            State::Joint(mut joint) if held => {
                joint.narrowed += 1;
                self.state = State::Joint(joint);
            }
            State::Joint(joint) => {
                for (replica, entry) in &joint.chosen[..joint.narrowed] {
                    let slot = entry.candidate;
                    self.ready.push_back(Next::Release(Narrowing { replica: *replica, slot }));
                }
                self.failed = true;
                for replica in self.with_disks(&joint.members) {
                    self.report(
                        replica,
                        ReplicaDecision::ExtenderUnavailable(Unavailable::Narrowing),
                    );
                }
            }
            other => self.state = other,
        }
    }

    fn report(&mut self, replica: usize, decision: ReplicaDecision) {
        self.ready.push_back(Next::Report { replica, decision });
    }

    fn placed(&mut self, replica: usize, entry: Entry<Slot>) {
        let node = entry.candidate.node();
        self.occupied[node] = true;
        self.node_of[replica] = Some(node);
        self.scheduled.insert(self.volume.replicas[replica].id);
        self.ready.push_back(Next::Place(Narrowing { replica, slot: entry.candidate }));
        self.report(replica, ReplicaDecision::Placed(entry));
    }
}

fn slots(pipeline: &Pipeline<Slot>) -> Vec<Slot> {
    pipeline.entries().iter().map(|entry| entry.candidate).collect()
}
