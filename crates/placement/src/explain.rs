//! Explains the decision about one replica, candidate by candidate.
//!
//! The decision records only numbers; text is produced when it is read. So an explanation costs about as
//! much as the decision, for any number of candidates.

use mainstay_clock::bytes;
use serde::Serialize;

use crate::eligible::Slot;
use crate::pass::{
    ALL_OR_NOTHING, LVG_NOT_READY, NO_CAPACITY, NODE_MISMATCH, NODE_NOT_READY, NODE_OCCUPIED, Pass,
    Scores, ZONE_TRANS_ZONAL, ZONE_ZONAL,
};
use crate::pipeline::{Candidate, Entry, Name, Pipeline, Record, Step};
use crate::topology::Topology;

/// The needed and the available bytes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Room {
    /// The bytes that the replica needs, overhead included.
    pub needed: u64,
    /// The bytes that the group can still promise.
    pub available: u64,
}

/// The space of each group at the time of the decision, by group number; `None` if unknown.
pub type Rooms<'r> = &'r dyn Fn(usize) -> Option<Room>;

/// The recorded decision about one replica.
#[derive(Debug)]
pub struct Explanation<'v> {
    pass: &'v Pass<'v>,
    replica: usize,
    pipeline: Pipeline<Slot, Record<Slot>>,
    chosen: Option<Entry<Slot>>,
}

/// The points that a step gave to a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Points {
    /// The step that gave them.
    pub step: Name,
    /// The number of points.
    pub points: i64,
}

/// The result for one candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// The node.
    pub node: String,
    /// Its zone.
    pub zone: String,
    /// The volume group; empty when only the node matters.
    pub lvg: String,
    /// The thin pool.
    pub thin_pool: String,
    /// Whether it was chosen.
    pub chosen: bool,
    /// The step that excluded it.
    pub excluded_by: Option<Name>,
    /// Its score, unless it was excluded.
    pub score: Option<i64>,
    /// The points that make up the score.
    pub points: Vec<Points>,
    /// The space of its group, if the extender was asked.
    pub room: Option<Room>,
    /// Why it was excluded.
    pub because: String,
    /// The change that would make it a candidate.
    pub change: String,
}

impl<'v> Pass<'v> {
    /// Decides about one replica in the present state of the pass, and records every step. `scores` is not
    /// called for candidates that were excluded before, nor for TieBreakers. With AllOrNothing all
    /// replicas get the scores of this one.
    #[must_use]
    pub fn explain(&'v self, replica: usize, scores: Scores<'_>) -> Explanation<'v> {
        if let Some(joint) = self.joint().filter(|joint| joint.members.contains(&replica)) {
            let record = Record::default();
            let (pipeline, chosen) = self.explain_together(joint, replica, scores, record);
            return Explanation { pass: self, replica, pipeline, chosen };
        }
        let pipeline = if self.volume().replicas[replica].kind.has_disk() {
            let shortlist = self.shortlist(replica, Record::default());
            self.finish(replica, shortlist, scores)
        } else {
            self.tie_breaker(replica, Record::default())
        };
        let chosen = pipeline.select_best();
        Explanation { pass: self, replica, pipeline, chosen }
    }
}

impl Explanation<'_> {
    /// The summary, as in the condition if no candidate fits.
    #[must_use]
    pub fn summary(&self) -> String {
        self.pipeline.summary()
    }

    /// The steps, with the number of candidates that each excluded.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        self.pipeline.steps()
    }

    /// The choice.
    #[must_use]
    pub fn chosen(&self) -> Option<Entry<Slot>> {
        self.chosen
    }

    /// The remaining candidates with their scores.
    #[must_use]
    pub fn entries(&self) -> &[Entry<Slot>] {
        self.pipeline.entries()
    }

    /// The excluded candidates, each with the index of its step in [`Explanation::steps`].
    #[must_use]
    pub fn excluded(&self) -> &[(Slot, usize)] {
        &self.pipeline.recorder().excluded
    }

    /// Every candidate: the remaining ones, best first, then the excluded ones, the latest step first.
    #[must_use]
    pub fn candidates(&self, rooms: Rooms<'_>) -> Vec<Explained> {
        let record = self.pipeline.recorder();
        let mut points = record.points.clone();
        points.sort_by_key(|(slot, step, _)| (*slot, *step));
        let mut left = self.pipeline.entries().to_vec();
        left.sort_by_key(|entry| (std::cmp::Reverse(entry.score), entry.candidate));
        let mut explained: Vec<Explained> = left
            .iter()
            .map(|entry| {
                let mut row = self.row(entry.candidate);
                row.room = entry.candidate.group().and_then(rooms);
                row.score = Some(entry.score);
                row.chosen = self.chosen.is_some_and(|it| it.candidate == entry.candidate);
                row.points = self.points(&points, entry.candidate);
                row
            })
            .collect();
        let mut excluded = record.excluded.clone();
        excluded.sort_by_key(|(slot, step)| (std::cmp::Reverse(*step), *slot));
        explained.extend(excluded.iter().map(|(slot, step)| {
            let mut row = self.row(*slot);
            row.room = slot.group().and_then(rooms);
            let name = self.pipeline.steps()[*step].name.clone();
            (row.because, row.change) = self.reason(*slot, &name, rooms);
            row.excluded_by = Some(name);
            row
        }));
        explained
    }

    fn points(&self, points: &[(Slot, usize, i64)], slot: Slot) -> Vec<Points> {
        let from = points.partition_point(|(other, _, _)| *other < slot);
        let of_slot = points[from..].iter().take_while(|(other, _, _)| *other == slot);
        of_slot
            .map(|(_, step, points)| Points {
                step: self.pipeline.steps()[*step].name.clone(),
                points: *points,
            })
            .collect()
    }

    fn row(&self, slot: Slot) -> Explained {
        let eligible = self.pass.eligible();
        let (node, group) = (eligible.node(slot), eligible.lvg(slot));
        Explained {
            node: node.node_name.clone(),
            zone: node.zone_name.clone(),
            lvg: group.map(|group| group.name.clone()).unwrap_or_default(),
            thin_pool: group.map(|group| group.thin_pool_name.clone()).unwrap_or_default(),
            chosen: false,
            excluded_by: None,
            score: None,
            points: Vec::new(),
            room: None,
            because: String::new(),
            change: String::new(),
        }
    }

    /// Why a step excluded a slot, and which change would help.
    fn reason(&self, slot: Slot, step: &str, rooms: Rooms<'_>) -> (String, String) {
        let eligible = self.pass.eligible();
        let node = eligible.node(slot);
        let name = &node.node_name;
        match step {
            NODE_NOT_READY if node.unschedulable => {
                (format!("node {name} is cordoned"), format!("uncordon {name}"))
            }
            NODE_NOT_READY if !node.node_ready => {
                (format!("node {name} is not ready"), format!("{name} becomes ready"))
            }
            NODE_NOT_READY => (
                format!("the agent on {name} is not ready"),
                format!("the agent on {name} becomes ready"),
            ),
            LVG_NOT_READY => {
                let group = eligible.lvg(slot).map_or("", |group| group.name.as_str());
                match eligible.lvg(slot) {
                    Some(found) if found.unschedulable => (
                        format!("volume group {group} is closed for new replicas"),
                        format!("remove the unschedulable annotation from {group}"),
                    ),
                    _ => (
                        format!("volume group {group} is not ready"),
                        format!("{group} becomes ready"),
                    ),
                }
            }
            NODE_OCCUPIED => {
                let id = self.pass.occupant(slot.node());
                let who = id.map_or_else(String::new, |id| format!(" (replica {id})"));
                (
                    format!("{name} already holds a replica of this volume{who}"),
                    format!("that replica leaves {name}"),
                )
            }
            NODE_MISMATCH => {
                let assigned = &self.pass.volume().replicas[self.replica].node_name;
                (format!("the replica is assigned to {assigned}"), String::new())
            }
            ZONE_ZONAL | ZONE_TRANS_ZONAL => self.zone_reason(slot),
            NO_CAPACITY => match slot.group().and_then(rooms) {
                Some(Room { needed, available }) if available < needed => (
                    format!(
                        "needs {}, {} are available",
                        bytes::format(needed),
                        bytes::format(available)
                    ),
                    format!("{} more become available", bytes::format(needed - available)),
                ),
                _ => ("the extender did not score it".to_owned(), String::new()),
            },
            _ if step.starts_with(ALL_OR_NOTHING) => (
                "it fits, but not all replicas of the volume can be placed".to_owned(),
                "the other replicas can be placed too, or set placementStrategy: Greedy".to_owned(),
            ),
            _ => (String::new(), String::new()),
        }
    }

    fn zone_reason(&self, slot: Slot) -> (String, String) {
        let loads = self.pass.loads(Some(self.replica));
        let zones = self.pass.eligible().zones();
        let zone = zone_name(&zones[slot.zone()]);
        if self.pass.volume().topology == Topology::Zonal {
            let most = (0..zones.len()).max_by_key(|zone| loads[*zone].diskful);
            let home = most.map_or("", |home| zones[home].as_str());
            return (
                format!(
                    "the volume is in {}, and {zone} holds {} of its Diskful replicas",
                    zone_name(home),
                    loads[slot.zone()].diskful
                ),
                String::new(),
            );
        }
        let of = |zone: usize| loads[zone].total();
        let least = (0..zones.len()).map(of).min().unwrap_or_default();
        (
            format!("{zone} holds {} replicas, the least loaded zone {least}", of(slot.zone())),
            "the least loaded zones become usable, or set zoneFallback: WhenUnusable".to_owned(),
        )
    }

    /// Obstacles that concern all candidates: zones that must take the next replica and cannot.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let zonal = self.steps().iter().any(|step| {
            step.excluded > 0 && (step.name == ZONE_TRANS_ZONAL || step.name == ZONE_ZONAL)
        });
        if self.chosen.is_some() || !zonal {
            return Vec::new();
        }
        let eligible = self.pass.eligible();
        let dropped_by_zone: std::collections::BTreeSet<usize> = self
            .excluded()
            .iter()
            .filter(|(_, step)| {
                let name = &self.steps()[*step].name;
                name == ZONE_TRANS_ZONAL || name == ZONE_ZONAL
            })
            .map(|(slot, _)| slot.zone())
            .collect();
        (0..eligible.zones().len())
            .filter(|zone| !dropped_by_zone.contains(zone))
            .map(|zone| {
                let mut reasons: Vec<&str> = self
                    .excluded()
                    .iter()
                    .filter(|(slot, _)| slot.zone() == zone)
                    .map(|(_, step)| &*self.steps()[*step].name)
                    .collect();
                reasons.sort_unstable();
                reasons.dedup();
                let name = zone_name(&eligible.zones()[zone]);
                let why = match reasons.as_slice() {
                    [] => "no volume group".to_owned(),
                    reasons => format!("no usable candidate ({})", reasons.join(", ")),
                };
                format!("{name} must take the next replica, but has {why}")
            })
            .collect()
    }
}

fn zone_name(name: &str) -> String {
    if name.is_empty() { "the unknown zone".to_owned() } else { name.to_owned() }
}
