//! Explains the placement of each replica of a volume: every candidate, and why it was chosen or excluded.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_placement::explain::{Explained, Room};
use mainstay_placement::pipeline::Name;
use mainstay_placement::{Pass, ReplicaType, Slot};
use serde::Serialize;

use crate::candidates::Candidates;
use crate::ledger::{self, CapacityLedger, Target};
use crate::plan;
use crate::schedule::{self, guard};
use crate::text::Table;
use crate::world::World;

/// Why a volume cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Check the name.
    #[error("ReplicatedVolume {0:?} not found")]
    NoVolume(String),
    /// Check the replica's id.
    #[error("ReplicatedVolume {0:?} has no replica {1}")]
    NoReplica(String, u8),
}

/// The explanation of a volume's placement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeExplanation {
    /// The volume.
    pub volume: String,
    /// The object that scheduling waits for, if one is missing.
    pub waiting: String,
    /// Its replicas, by id.
    pub replicas: Vec<ReplicaExplanation>,
}

/// The explanation of a replica's placement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaExplanation {
    /// The replica.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ReplicaType,
    /// Its node; empty if it has none.
    pub node: String,
    /// The pipeline in one line.
    pub summary: String,
    /// Obstacles that concern all candidates.
    pub notes: Vec<String>,
    /// The steps.
    pub steps: Vec<Step>,
    /// Every candidate, the best first.
    pub candidates: Vec<Explained>,
}

/// A step of the pipeline.
#[derive(Debug, Serialize)]
pub struct Step {
    /// Its name.
    pub name: Name,
    /// The number of candidates it excluded.
    pub excluded: usize,
}

/// Explains a volume, or one replica of it. A placed replica is explained as if it were placed now, with
/// the others in their places.
///
/// # Errors
/// If there is no such volume or replica.
pub fn explain(
    mut world: World,
    name: &str,
    only: Option<u8>,
    now: Timestamp,
) -> Result<VolumeExplanation, Error> {
    world.complete(now);
    let (volume, replicas) = plan::formed(&world, name);
    if volume.is_none() && replicas.is_empty() {
        return Err(Error::NoVolume(name.to_owned()));
    }
    if let Some(id) = only
        && replicas.iter().all(|replica| replica.id() != id)
    {
        return Err(Error::NoReplica(name.to_owned(), id));
    }
    let mut explanation =
        VolumeExplanation { volume: name.to_owned(), waiting: String::new(), replicas: Vec::new() };
    let pool = |name: &str| world.pools.get(name).filter(|_| !name.is_empty());
    let (volume, configuration, pool) = match guard(volume.as_ref(), pool) {
        Ok(found) => found,
        Err(guard) => {
            explanation.waiting = guard.statement().message;
            return Ok(explanation);
        }
    };
    let candidates = Candidates::new(pool.status.eligible_nodes.iter().cloned());
    let all = || replicas.iter().map(Arc::as_ref);
    for (index, replica) in all().enumerate() {
        let wanted = only.is_none_or(|id| id == replica.id());
        if !wanted || replica.spec.kind == ReplicaType::Access {
            continue;
        }
        let mut seen = schedule::volume(configuration, pool, all(), world.wanted_nodes(volume));
        if seen.replicas[index].scheduled(seen.pool_type) {
            let moved = &mut seen.replicas[index];
            moved.node_name.clear();
            moved.lvg.clear();
            moved.thin_pool.clear();
        }
        let mut ledger = world.ledger();
        ledger.set_replica(&replica.metadata.name, None);
        let claim = schedule::claim(volume, &replica.metadata.name);
        let pass = Pass::new(&candidates.eligible, &seen);
        let asked = scores(&candidates, &pass.asks(index), &mut ledger, &claim, now);
        let explained = pass.explain(index, &|group| asked.get(&group).map(|(score, _)| *score));
        explanation.replicas.push(ReplicaExplanation {
            name: replica.metadata.name.clone(),
            kind: replica.spec.kind,
            node: replica.spec.node_name.clone(),
            summary: explained.summary(),
            notes: explained.notes(),
            steps: explained
                .steps()
                .iter()
                .map(|step| Step { name: step.name.clone(), excluded: step.excluded })
                .collect(),
            candidates: explained
                .candidates(&|group| asked.get(&group).and_then(|(_, room)| *room)),
        });
    }
    Ok(explanation)
}

/// The scores of the ledger for these slots at this moment.
fn scores(
    candidates: &Candidates,
    slots: &[Slot],
    ledger: &mut CapacityLedger,
    claim: &ledger::Claim,
    now: Timestamp,
) -> BTreeMap<usize, (i64, Option<Room>)> {
    let targets: Vec<&Target> = candidates.targets_of(slots);
    let rooms: Vec<Option<Room>> = targets
        .iter()
        .map(|target| {
            let balance = ledger.balance(target, claim, now)?;
            let needed = ledger::backing_size(claim.size, claim.replicated, balance.extent);
            Some(Room { needed, available: balance.available })
        })
        .collect();
    let scores = ledger.filter_and_score(claim, &targets, (now, now), false);
    slots.iter().filter_map(Slot::group).zip(scores.into_iter().zip(rooms)).collect()
}

impl VolumeExplanation {
    /// The explanation for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        if !self.waiting.is_empty() {
            out += &format!("{}: {}\n", self.volume, self.waiting);
        }
        for replica in &self.replicas {
            let place = match replica.node.as_str() {
                "" => "not placed".to_owned(),
                node => format!("on {node}"),
            };
            out += &format!("{} ({:?}), {place}\n", replica.name, replica.kind);
            out += &format!("  {}\n", replica.summary);
            for note in &replica.notes {
                out += &format!("  {note}\n");
            }
            let mut table = Table::new(&["  ", "NODE", "ZONE", "GROUP", "SCORE", "WHY", "CHANGE"]);
            for row in &replica.candidates {
                let group = match row.thin_pool.as_str() {
                    "" => row.lvg.clone(),
                    thin => format!("{}/{thin}", row.lvg),
                };
                let score = row.score.map(|score| score.to_string()).unwrap_or_default();
                let why = match &row.excluded_by {
                    Some(step) => format!("{step}: {}", row.because),
                    None => row
                        .points
                        .iter()
                        .map(|points| {
                            // The step is named after the candidates it excludes; the others have enough space.
                            let step = match &*points.step {
                                "scoring (no capacity)" => "free space",
                                step => step,
                            };
                            format!("{:+} {step}", points.points)
                        })
                        .collect::<Vec<_>>()
                        .join(", "),
                };
                let chosen = if row.chosen { "=>" } else { "  " };
                let cells = [chosen, &row.node, &row.zone, &group, &score, &why, &row.change];
                table.row(cells);
            }
            out += &table.to_string();
            out.push('\n');
        }
        out
    }
}
