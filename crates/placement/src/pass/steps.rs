//! The pipeline of one replica, step by step, in the order of its summary.

use super::{Pass, Scores};
use crate::eligible::Slot;
use crate::pipeline::{Candidate, Pipeline, Recorder};
use crate::topology::{self, Load, Topology};
use crate::volume::{ReplicaType, Strategy, VolumeAccess, ZoneFallback};

pub(crate) const NODE_NOT_READY: &str = "node not ready";
pub(crate) const LVG_NOT_READY: &str = "LVG not ready";
pub(crate) const NODE_OCCUPIED: &str = "node occupied";
pub(crate) const NODE_MISMATCH: &str = "node mismatch (assigned)";
pub(crate) const ZONE_ZONAL: &str = "zone (zonal majority)";
pub(crate) const ZONE_TRANS_ZONAL: &str = "zone (transZonal min replicas)";
pub(crate) const NO_CAPACITY: &str = "scoring (no capacity)";
pub(crate) const ALL_OR_NOTHING: &str = "all or nothing";
const ATTACH_BONUS: &str = "attach-to bonus";
const MULTI_LVG_BONUS: &str = "multi-LVG bonus";
const ZONE_PENALTY: &str = "zone capacity penalty";
const DISKLESS_FIRST: &str = "node without volume groups";

/// Points for a node that wants to attach the volume.
pub const ATTACH_POINTS: i64 = 1000;
/// Points for a node with more than one usable group.
pub const MULTI_LVG_POINTS: i64 = 2;
/// Points against a zone that cannot hold all Diskful replicas.
pub const ZONE_PENALTY_POINTS: i64 = -800;

impl Pass<'_> {
    /// The load of each zone, without one replica.
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

    /// Steps 1 to 5, before the extender is asked. With a zone fallback, zones are compared after scoring,
    /// when it is known which of them have space.
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

    pub(super) fn scored_by<R: Recorder<Slot>>(
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

    /// Steps 7 to 9: scores other than capacity.
    pub(super) fn bonuses<R: Recorder<Slot>>(
        &self,
        mut pipeline: Pipeline<Slot, R>,
    ) -> Pipeline<Slot, R> {
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
        // A joint choice compares whole sets, so zones need no penalty.
        let greedy = self.volume.strategy == Strategy::Greedy;
        if greedy && self.volume.topology == Topology::Zonal && demand > 0 {
            pipeline = pipeline.with_zone_score(ZONE_PENALTY, |nodes| {
                if nodes < demand { ZONE_PENALTY_POINTS } else { 0 }
            });
        }
        pipeline
    }

    /// The number of Diskful replicas without a place.
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
}
