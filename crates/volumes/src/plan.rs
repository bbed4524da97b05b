//! Dry run of scheduling over manifests: the same decisions, without writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use mainstay_placement::{Extender, Narrowing, Pass, ReplicaDecision, ReplicaType, Slot};
use mainstay_store::meta::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use crate::api::{ReplicatedVolume, ReplicatedVolumeReplica, ReplicatedVolumeReplicaSpec};
use crate::candidates::{Candidates, FromLedger};
use crate::conditions::Statement;
use crate::ledger::{CapacityLedger, Claim, PlacedReplica, Target};
use crate::schedule::{self, guard};
use crate::text::Table;
use crate::world::{Error, World};
use crate::{configure, form};

/// The scores of groups.
#[derive(Clone, Debug, Default)]
pub enum Scores {
    /// Computed from the groups' reports.
    #[default]
    Ledger,
    /// From a table of `group` or `group/thinPool`.
    Table(BTreeMap<String, i64>),
    /// Scoring fails.
    ScoringFails,
    /// Narrowing fails.
    NarrowingFails,
}

impl Scores {
    /// Parses a scores file: YAML or JSON.
    ///
    /// # Errors
    /// If it is neither a map of numbers, nor `error` or `narrowError`.
    pub fn read(text: &str) -> Result<Self, Error> {
        let wrong = |detail: &str| {
            Error::Syntax(format!(
                "the scores must be a map from groups to whole numbers, or the text error or \
                 narrowError: {detail}"
            ))
        };
        let document: Value =
            serde_saphyr::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        match document {
            Value::String(text) if text == "error" => Ok(Self::ScoringFails),
            Value::String(text) if text == "narrowError" => Ok(Self::NarrowingFails),
            Value::Null => Ok(Self::Table(BTreeMap::new())),
            Value::Object(map) => {
                let mut table = BTreeMap::new();
                for (group, score) in map {
                    let number = score.as_i64().ok_or_else(|| wrong(&group))?;
                    table.insert(group, number);
                }
                Ok(Self::Table(table))
            }
            other => Err(wrong(&other.to_string())),
        }
    }
}

/// The plan of all volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The volumes, by name.
    pub volumes: Vec<PlannedVolume>,
}

/// The plan of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlannedVolume {
    /// The volume.
    pub name: String,
    /// The error of the extender; empty if there is none.
    pub error: String,
    /// Its replicas, by id.
    pub replicas: Vec<PlannedReplica>,
}

/// The plan of a replica.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedReplica {
    /// The replica.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ReplicaType,
    /// Its node.
    pub node: String,
    /// Its volume group.
    pub lvg: String,
    /// Its thin pool.
    pub thin_pool: String,
    /// Its Scheduled condition; `None` if it has none or would not change.
    pub scheduled: Option<Scheduled>,
    /// It should have a place and has none.
    #[serde(skip)]
    pub unplaced: bool,
}

/// A Scheduled condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scheduled {
    /// True, False or Unknown.
    pub status: &'static str,
    /// The reason, as one word.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

impl From<Statement> for Scheduled {
    fn from(statement: Statement) -> Self {
        let Statement { status, reason, message, .. } = statement;
        Self { status: status.as_str(), reason, message }
    }
}

impl Plan {
    /// Whether a replica would stay unplaced.
    #[must_use]
    pub fn incomplete(&self) -> bool {
        self.volumes.iter().flat_map(|volume| &volume.replicas).any(|replica| replica.unplaced)
    }

    /// The plan as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let header = ["REPLICA", "TYPE", "NODE", "GROUP", "THIN POOL", "SCHEDULED", "MESSAGE"];
        let mut table = Table::new(&header);
        for replica in self.volumes.iter().flat_map(|volume| &volume.replicas) {
            let (status, message) = match &replica.scheduled {
                Some(scheduled) => (scheduled.status, scheduled.message.as_str()),
                None => ("", ""),
            };
            let kind = format!("{:?}", replica.kind);
            let cells = [&replica.name, &kind, &replica.node, &replica.lvg, &replica.thin_pool];
            table.row(cells.map(String::as_str).into_iter().chain([status, message]));
        }
        table.to_string()
    }
}

/// Answers a placement pass from a scores file.
struct FromScores<'a> {
    scores: &'a Scores,
    ledger: FromLedger<'a>,
}

impl Extender for FromScores<'_> {
    fn filter_and_score(&mut self, replica: usize, slots: &[Slot]) -> Option<Vec<i64>> {
        match self.scores {
            Scores::ScoringFails => None,
            Scores::NarrowingFails => Some(vec![1; slots.len()]),
            Scores::Table(table) => {
                let score = |target: &&Target| {
                    let exact = format!("{}/{}", target.name, target.thin_pool_name);
                    let score = table.get(&exact).or_else(|| table.get(&target.name));
                    score.copied().unwrap_or_default()
                };
                Some(self.ledger.candidates.targets_of(slots).iter().map(score).collect())
            }
            Scores::Ledger => self.ledger.filter_and_score(replica, slots),
        }
    }

    fn narrow_reservation(&mut self, narrowing: Narrowing) -> bool {
        match self.scores {
            Scores::NarrowingFails => false,
            Scores::Ledger => self.ledger.narrow_reservation(narrowing),
            Scores::Table(_) | Scores::ScoringFails => true,
        }
    }

    fn release(&mut self, narrowing: Narrowing) {
        self.ledger.release(narrowing);
    }
}

/// Plans every volume, one after another by name.
#[must_use]
pub fn plan(mut world: World, scores: &Scores, now: Timestamp) -> Plan {
    world.complete(now);
    let mut ledger = world.ledger();
    let mut plan = Plan::default();
    for name in world.volume_names() {
        plan.volumes.push(plan_volume(&world, &name, scores, &mut ledger, now));
    }
    plan
}

/// A volume with the replicas that its controller would create.
pub(crate) fn formed(
    world: &World,
    name: &str,
) -> (Option<ReplicatedVolume>, Vec<Arc<ReplicatedVolumeReplica>>) {
    let mut volume = world.volumes.get(name).cloned();
    let mut replicas = world.replicas_of(name);
    if let Some(volume) = &mut volume
        && replicas.is_empty()
        && let Some(class) = world.classes.get(&volume.spec.replicated_storage_class_name)
    {
        let configuration =
            volume.status.configuration.get_or_insert_with(|| configure::configuration(class));
        let wanted = configure::wanted(configuration.guarantees());
        let none: [Arc<ReplicatedVolumeReplica>; 0] = [];
        let new = form::changes(name, wanted, &none, false).create;
        replicas.extend(new.into_iter().map(|new| Arc::new(unplaced(name, new))));
    }
    (volume, replicas)
}

fn unplaced(volume: &str, new: form::NewReplica) -> ReplicatedVolumeReplica {
    ReplicatedVolumeReplica {
        metadata: ObjectMeta { name: new.name, ..ObjectMeta::default() },
        spec: ReplicatedVolumeReplicaSpec {
            replicated_volume_name: volume.to_owned(),
            kind: new.kind,
            node_name: String::new(),
            lvm_volume_group_name: String::new(),
            lvm_volume_group_thin_pool_name: String::new(),
        },
        status: Default::default(),
    }
}

fn plan_volume(
    world: &World,
    name: &str,
    scores: &Scores,
    ledger: &mut CapacityLedger,
    now: Timestamp,
) -> PlannedVolume {
    let (volume, replicas) = formed(world, name);
    let mut planned = PlannedVolume {
        name: name.to_owned(),
        error: String::new(),
        replicas: replicas
            .iter()
            .map(|replica| PlannedReplica {
                name: replica.metadata.name.clone(),
                kind: replica.spec.kind,
                node: replica.spec.node_name.clone(),
                lvg: replica.spec.lvm_volume_group_name.clone(),
                thin_pool: replica.spec.lvm_volume_group_thin_pool_name.clone(),
                scheduled: None,
                unplaced: replica.spec.kind != ReplicaType::Access && !replica.deleting(),
            })
            .collect(),
    };
    let pool = |name: &str| world.pools.get(name).filter(|_| !name.is_empty());
    let (volume, configuration, pool) = match guard(volume.as_ref(), pool) {
        Ok(found) => found,
        Err(guard) => {
            for replica in &mut planned.replicas {
                replica.scheduled = Some(guard.statement().into());
            }
            return planned;
        }
    };
    let candidates = Candidates::new(pool.status.eligible_nodes.iter().cloned());
    let eligible = &candidates.eligible;
    let seen = schedule::volume(
        configuration,
        pool,
        replicas.iter().map(Arc::as_ref),
        world.wanted_nodes(volume),
    );
    let claims: Vec<Claim> =
        replicas.iter().map(|it| schedule::claim(volume, &it.metadata.name)).collect();
    ledger.set_volume(name, Some(crate::reserve::size(volume)));
    let ledger = FromLedger { ledger, candidates: &candidates, claims: &claims, now };
    let mut answers = FromScores { scores, ledger };
    for (index, decision) in Pass::new(eligible, &seen).run(&mut answers) {
        let replica = &mut planned.replicas[index];
        replica.scheduled = schedule::statement(&decision).map(Scheduled::from);
        match decision {
            ReplicaDecision::Placed(entry) => {
                replica.unplaced = false;
                replica.node.clone_from(&eligible.node(entry.candidate).node_name);
                if let Some(target) = candidates.target(entry.candidate) {
                    replica.lvg.clone_from(&target.name);
                    replica.thin_pool.clone_from(&target.thin_pool_name);
                    let (volume, target) = (name.to_owned(), target.clone());
                    let placed = PlacedReplica { volume, target, reported: false };
                    answers.ledger.ledger.set_replica(&replica.name, Some(placed));
                }
            }
            ReplicaDecision::AlreadyScheduled | ReplicaDecision::Access => replica.unplaced = false,
            ReplicaDecision::ExtenderUnavailable(call) => {
                schedule::unavailable(call).clone_into(&mut planned.error);
            }
            ReplicaDecision::Failed(_) => {}
        }
    }
    planned
}
