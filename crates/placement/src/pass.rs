//! One pass over the replicas of one volume.
//!
//! A [`Pass`] decides and performs nothing: [`Pass::advance`] says what to do next (ask the extender
//! for scores, narrow a reservation, write a placement), and the caller answers with
//! [`Pass::scored`] and [`Pass::narrowed`]. The same decisions therefore run against a live
//! server, in a plan, and in tests.
//!
//! What always holds:
//! * no two replicas of a volume share a node, deleting and partly placed ones included;
//! * Diskful replicas come before ShadowDiskful, those before TieBreakers, each by ascending id;
//! * a replica never counts itself when zones are compared;
//! * a replica that is deleting is not placed, but its node stays occupied;
//! * when the extender fails all replicas with disks are still tried, and TieBreakers are left
//!   alone.

use std::collections::VecDeque;

use crate::eligible::{EligibleNodes, Slot};
use crate::joint;
use crate::pipeline::{Candidate, Entry, Pipeline, Recorder, Silent};
use crate::topology::{self, Load, Topology};
use crate::volume::{IdSet, ReplicaType, Strategy, Volume, VolumeAccess, ZoneFallback};

/// Which call to the extender failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// FilterAndScore.
    Scoring,
    /// NarrowReservation.
    Narrowing,
}

/// What became of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An Access replica: it carries no Scheduled condition.
    Access,
    /// It was placed before this pass.
    AlreadyScheduled,
    /// This pass placed it.
    Placed(Entry<Slot>),
    /// Nothing fits; the pipeline's summary.
    Failed(String),
    /// The extender did not answer.
    ExtenderUnavailable(Unavailable),
}

/// A reservation to be narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// The replica's place in [`Volume::replicas`].
    pub replica: usize,
    /// Where it goes.
    pub slot: Slot,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask the extender about these slots, then call [`Pass::scored`].
    Score {
        /// The replica's place in [`Volume::replicas`].
        replica: usize,
        /// The candidates.
        slots: Vec<Slot>,
    },
    /// Narrow the reservation, then call [`Pass::narrowed`].
    Narrow(Narrowing),
    /// Give a narrowed reservation back: the volume cannot be placed as a whole.
    Release(Narrowing),
    /// Write the placement. A caller that cannot abandons the pass.
    Place(Narrowing),
    /// Write the verdict.
    Report {
        /// The replica's place in [`Volume::replicas`].
        replica: usize,
        /// What became of it.
        verdict: Verdict,
    },
    /// Nothing is left to do.
    Done,
}

/// Whoever knows about capacity, when it answers at once. Slots tell groups apart.
pub trait Extender {
    /// A score for each slot, in their order; 0 or less excludes. `None` is no answer.
    fn filter_and_score(&mut self, replica: usize, slots: &[Slot]) -> Option<Vec<i64>>;
    /// Keeps the reservation on this slot only. False when that failed.
    fn narrow_reservation(&mut self, narrowing: Narrowing) -> bool;
    /// Gives a narrowed reservation back.
    fn release(&mut self, narrowing: Narrowing);
}

/// How candidates were scored: by group number. Missing and 0 mean excluded.
pub type Scores<'s> = &'s dyn Fn(usize) -> Option<i64>;

pub(crate) const NODE_NOT_READY: &str = "node not ready";
pub(crate) const LVG_NOT_READY: &str = "LVG not ready";
pub(crate) const NODE_OCCUPIED: &str = "node occupied";
pub(crate) const NODE_MISMATCH: &str = "node mismatch (assigned)";
pub(crate) const ZONE_ZONAL: &str = "zone (zonal majority)";
pub(crate) const ZONE_TRANS_ZONAL: &str = "zone (transZonal min replicas)";
pub(crate) const NO_CAPACITY: &str = "scoring (no capacity)";
pub(crate) const ATTACH_BONUS: &str = "attach-to bonus";
pub(crate) const MULTI_LVG_BONUS: &str = "multi-LVG bonus";
pub(crate) const ZONE_PENALTY: &str = "zone capacity penalty";
pub(crate) const DISKLESS_FIRST: &str = "node without volume groups";

/// Points for a node that wants to attach the volume.
pub const ATTACH_POINTS: i64 = 1000;
/// Points for a node with more than one usable group.
pub const MULTI_LVG_POINTS: i64 = 2;
/// Points against a zone that cannot hold all Diskful replicas.
pub const ZONE_PENALTY_POINTS: i64 = -800;

enum State {
    Ready,
    Scoring { replica: usize, pipeline: Pipeline<Slot> },
    Narrowing { replica: usize, entry: Entry<Slot> },
    Joint(Joint),
}

#[derive(Default)]
struct Joint {
    members: Vec<usize>,
    asked: usize,
    scores: Vec<Vec<Entry<Slot>>>,
    chosen: Vec<(usize, Entry<Slot>)>,
    narrowed: usize,
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
    /// Looks at the volume and the eligible nodes of its pool.
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
            let verdict = if replica.kind == ReplicaType::Access {
                Verdict::Access
            } else if pass.scheduled.contains(replica.id) {
                Verdict::AlreadyScheduled
            } else {
                continue;
            };
            pass.ready.push_back(Next::Report { replica: *index, verdict });
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

    /// The replicas this pass will try to place, by their place in [`Volume::replicas`].
    #[must_use]
    pub fn pending(&self) -> Vec<usize> {
        match &self.state {
            State::Joint(joint) => joint.members.clone(),
            _ => self.queue.iter().copied().collect(),
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

    /// The choice for one replica as the pass stands; nothing changes.
    #[must_use]
    pub fn decide(&self, replica: usize, scores: Scores<'_>) -> Option<Entry<Slot>> {
        if self.volume.replicas[replica].kind.has_disk() {
            self.finish(replica, self.shortlist(replica, Silent), scores).select_best()
        } else {
            self.tie_breaker(replica, Silent).select_best()
        }
    }

    /// The zones tied for the most Diskful replicas of a Zonal volume that was torn apart.
    #[must_use]
    pub fn torn_zones(&self) -> Vec<&'v str> {
        if self.volume.topology != Topology::Zonal {
            return Vec::new();
        }
        let zones = topology::torn(&self.loads(None));
        zones.into_iter().map(|zone| self.eligible.zones()[zone].as_str()).collect()
    }

    /// What to do next. After [`Next::Score`] and [`Next::Narrow`] the answer is due first.
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
                // Unanswered questions are asked again.
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

    /// Runs the pass to its end against an extender that answers at once, and returns what
    /// became of each replica that the pass touched.
    pub fn run(mut self, extender: &mut impl Extender) -> Vec<(usize, Verdict)> {
        let mut verdicts = Vec::new();
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
                Next::Report { replica, verdict } => verdicts.push((replica, verdict)),
                Next::Done => return verdicts,
            }
        }
    }

    fn begin(&mut self, replica: usize) {
        if self.volume.replicas[replica].kind.has_disk() {
            let pipeline = self.shortlist(replica, Silent);
            if pipeline.entries().is_empty() {
                self.report(replica, Verdict::Failed(pipeline.summary()));
            } else {
                self.state = State::Scoring { replica, pipeline };
            }
        } else if !self.failed {
            let pipeline = self.tie_breaker(replica, Silent);
            match pipeline.select_best() {
                Some(entry) => self.placed(replica, entry),
                None => self.report(replica, Verdict::Failed(pipeline.summary())),
            }
        }
    }

    /// The extender's answer to [`Next::Score`]; `None` when it did not answer.
    pub fn scored(&mut self, scores: Option<Scores<'_>>) {
        match std::mem::replace(&mut self.state, State::Ready) {
            State::Scoring { replica, pipeline } => {
                let Some(scores) = scores else {
                    self.failed = true;
                    let verdict = Verdict::ExtenderUnavailable(Unavailable::Scoring);
                    return self.report(replica, verdict);
                };
                let pipeline = self.finish(replica, pipeline, scores);
                match pipeline.select_best() {
                    Some(entry) => self.state = State::Narrowing { replica, entry },
                    None => self.report(replica, Verdict::Failed(pipeline.summary())),
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
                    let verdict = Verdict::ExtenderUnavailable(Unavailable::Narrowing);
                    self.report(replica, verdict);
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
                    self.report(replica, Verdict::ExtenderUnavailable(Unavailable::Narrowing));
                }
            }
            other => self.state = other,
        }
    }

    fn report(&mut self, replica: usize, verdict: Verdict) {
        self.ready.push_back(Next::Report { replica, verdict });
    }

    fn placed(&mut self, replica: usize, entry: Entry<Slot>) {
        let node = entry.candidate.node();
        self.occupied[node] = true;
        self.node_of[replica] = Some(node);
        self.scheduled.insert(self.volume.replicas[replica].id);
        self.ready.push_back(Next::Place(Narrowing { replica, slot: entry.candidate }));
        self.report(replica, Verdict::Placed(entry));
    }

    /// What each zone holds, one replica left out.
    pub(crate) fn loads(&self, except: Option<usize>) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.eligible.zones().len()];
        for (index, replica) in self.volume.replicas.iter().enumerate() {
            let Some(node) = self.node_of[index].filter(|_| Some(index) != except) else {
                continue;
            };
            let load = &mut loads[self.eligible.zone_of(node)];
            match replica.kind {
                ReplicaType::Diskful => load.diskful += 1,
                ReplicaType::TieBreaker => load.tie_breakers += 1,
                ReplicaType::ShadowDiskful | ReplicaType::Access => {}
            }
        }
        loads
    }

    /// Steps 1 to 4: everything that does not depend on zones.
    pub(crate) fn filtered<R: Recorder<Slot>>(
        &self,
        replica: usize,
        recorder: R,
    ) -> Pipeline<Slot, R> {
        let has_disk = self.volume.replicas[replica].kind.has_disk();
        let mut pipeline = if has_disk {
            self.eligible
                .take_lvgs_from_eligible_nodes(recorder)
                .with_predicate(NODE_NOT_READY, Slot::node_usable)
                .with_predicate(LVG_NOT_READY, Slot::group_usable)
        } else {
            self.eligible
                .take_only_nodes_from_eligible_nodes(recorder)
                .with_predicate(NODE_NOT_READY, Slot::node_usable)
        };
        let assigned = &self.volume.replicas[replica].node_name;
        pipeline = if assigned.is_empty() {
            pipeline.with_predicate(NODE_OCCUPIED, |slot| !self.occupied[slot.node()])
        } else {
            let node = self.node_of[replica];
            pipeline.with_predicate(NODE_MISMATCH, |slot| Some(slot.node()) == node)
        };
        pipeline
    }

    /// Steps 1 to 5, as far as the extender must be asked. With a zone fallback the zones are
    /// compared afterwards, when it is known which of them have room.
    pub(crate) fn shortlist<R: Recorder<Slot>>(
        &self,
        replica: usize,
        recorder: R,
    ) -> Pipeline<Slot, R> {
        let pipeline = self.filtered(replica, recorder);
        if self.compares_zones_late() { pipeline } else { self.zones(replica, pipeline, |_| true) }
    }

    fn compares_zones_late(&self) -> bool {
        self.volume.topology == Topology::TransZonal
            && self.volume.zone_fallback == ZoneFallback::WhenUnusable
    }

    /// Steps 5 (with a zone fallback) to 9.
    pub(crate) fn finish<R: Recorder<Slot>>(
        &self,
        replica: usize,
        mut pipeline: Pipeline<Slot, R>,
        scores: Scores<'_>,
    ) -> Pipeline<Slot, R> {
        if self.compares_zones_late() {
            let mut usable = vec![false; self.eligible.zones().len()];
            for entry in pipeline.entries() {
                let slot = entry.candidate;
                if slot.group().and_then(scores).is_some_and(|score| score > 0) {
                    usable[slot.zone()] = true;
                }
            }
            pipeline = self.zones(replica, pipeline, |zone| usable[zone]);
        }
        self.bonuses(self.scored_by(pipeline, scores))
    }

    fn scored_by<R: Recorder<Slot>>(
        &self,
        pipeline: Pipeline<Slot, R>,
        scores: Scores<'_>,
    ) -> Pipeline<Slot, R> {
        pipeline.filtered_and_scored_by_scheduler_extender(NO_CAPACITY, |slot| {
            slot.group().and_then(scores)
        })
    }

    /// Step 5: the zone filter, added only when it excludes a zone.
    fn zones<R: Recorder<Slot>>(
        &self,
        replica: usize,
        pipeline: Pipeline<Slot, R>,
        counts: impl Fn(usize) -> bool,
    ) -> Pipeline<Slot, R> {
        let loads = self.loads(Some(replica));
        let tie_breaker = self.volume.replicas[replica].kind == ReplicaType::TieBreaker;
        let (name, preferred) = match self.volume.topology {
            Topology::Ignored => return pipeline,
            Topology::Zonal => (ZONE_ZONAL, topology::zonal_majority(&loads)),
            Topology::TransZonal if tie_breaker => {
                (ZONE_TRANS_ZONAL, topology::trans_zonal_tie_breaker(&loads, counts))
            }
            Topology::TransZonal => {
                (ZONE_TRANS_ZONAL, topology::trans_zonal_diskful(&loads, counts))
            }
        };
        if preferred.iter().all(|preferred| *preferred) {
            return pipeline;
        }
        pipeline.with_predicate(name, |slot| preferred[slot.zone()])
    }

    /// Steps 7 to 9: what makes one candidate better than another besides its capacity.
    fn bonuses<R: Recorder<Slot>>(&self, mut pipeline: Pipeline<Slot, R>) -> Pipeline<Slot, R> {
        if !self.volume.attach_to.is_empty() {
            let mut wanted = vec![false; self.eligible.nodes().len()];
            for node in self.volume.attach_to.iter().filter_map(|name| self.eligible.find(name)) {
                wanted[node] = true;
            }
            pipeline = pipeline.with_score(ATTACH_BONUS, |slot| {
                if wanted[slot.node()] { ATTACH_POINTS } else { 0 }
            });
        }
        if self.volume.volume_access != VolumeAccess::Any {
            pipeline = pipeline.with_node_score(MULTI_LVG_BONUS, |candidates| {
                if candidates > 1 { MULTI_LVG_POINTS } else { 0 }
            });
        }
        let demand = self.remaining_demand();
        // A joint choice looks at whole sets, so no zone needs a warning against it.
        let greedy = self.volume.strategy == Strategy::Greedy;
        if greedy && self.volume.topology == Topology::Zonal && demand > 0 {
            pipeline = pipeline.with_zone_score(ZONE_PENALTY, |nodes| {
                if nodes < demand { ZONE_PENALTY_POINTS } else { 0 }
            });
        }
        pipeline
    }

    /// How many Diskful replicas still lack a place.
    pub(crate) fn remaining_demand(&self) -> usize {
        let placed = self
            .volume
            .replicas
            .iter()
            .filter(|replica| replica.kind == ReplicaType::Diskful)
            .filter(|replica| self.scheduled.contains(replica.id))
            .count();
        self.volume.required_diskful.saturating_sub(placed)
    }

    /// The whole pipeline of a TieBreaker: no scores, but among equals a node without groups.
    pub(crate) fn tie_breaker<R: Recorder<Slot>>(
        &self,
        replica: usize,
        recorder: R,
    ) -> Pipeline<Slot, R> {
        let pipeline = self.filtered(replica, recorder);
        let mut usable = vec![!self.compares_zones_late(); self.eligible.zones().len()];
        for entry in pipeline.entries() {
            usable[entry.candidate.zone()] = true;
        }
        self.zones(replica, pipeline, |zone| usable[zone])
            .with_score(DISKLESS_FIRST, |slot| i64::from(!slot.has_groups()))
    }

    fn with_disks(&self, members: &[usize]) -> Vec<usize> {
        let has_disk = |replica: &usize| self.volume.replicas[*replica].kind.has_disk();
        members.iter().copied().filter(has_disk).collect()
    }

    fn joint_unavailable(&mut self, joint: Joint) {
        self.failed = true;
        for replica in self.with_disks(&joint.members) {
            self.report(replica, Verdict::ExtenderUnavailable(Unavailable::Scoring));
        }
    }

    fn next_joint(&mut self, mut joint: Joint) -> Option<Next> {
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

    /// A place for every member, disks first; otherwise how many would fit.
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
        // Every replica must be welcome: the extender may have answered them differently.
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

    /// Fails every member: by its own pipeline if that alone excludes everything, else because
    /// the volume as a whole does not fit.
    fn refuse(&mut self, joint: &Joint, disks: &[usize], fit: usize) {
        for (index, replica) in joint.members.iter().enumerate() {
            let mut pipeline = self.filtered(*replica, Silent);
            if index < disks.len() {
                let welcome = &joint.scores[index];
                pipeline = pipeline.with_predicate(NO_CAPACITY, |slot| {
                    welcome.binary_search_by_key(slot, |entry| entry.candidate).is_ok()
                });
            }
            let left = pipeline.entries().len();
            let mut summary = pipeline.summary();
            if left > 0 {
                let wanted = joint.members.len();
                summary +=
                    &format!("; {left} excluded: all or nothing ({fit} of {wanted} replicas fit)");
            }
            self.report(*replica, Verdict::Failed(summary));
        }
    }
}

fn slots(pipeline: &Pipeline<Slot>) -> Vec<Slot> {
    pipeline.entries().iter().map(|entry| entry.candidate).collect()
}
