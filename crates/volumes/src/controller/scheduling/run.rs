//! One run of scheduling over one volume: decide for all replicas, confirm reservations, then write.
//!
//! The ledger of this process decides about all replicas of a volume under one lock. The writes for all
//! replicas go out together, so that a volume costs the store a few rounds for any number of replicas:
//! reservations, then placements, then conditions.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use mainstay_controller::events::{Severity, reference};
use mainstay_controller::runtime::Context;
use mainstay_controller::write::{options, or_gone, set_status};
use mainstay_placement::{Narrowing, Next, Pass, ReplicaDecision, Slot, Unavailable, Volume};
use mainstay_store::object::Record;
use mainstay_store::resources::{Error, encode};
use serde::Deserialize;

use super::super::Shared;
use crate::api::{ReplicatedVolume, ReplicatedVolumeReplica};
use crate::candidates::{Candidates, FromLedger};
use crate::conditions::{self, Statement};
use crate::extender::{self, Client, Extender, Request};
use crate::ledger;
use crate::reserve::{self, ReservationStore};
use crate::schedule::{self, SCHEDULED};

const MANAGER: &str = "mainstay-scheduling";

/// The decision about each replica, by its index in [`Volume::replicas`].
type Decisions = Vec<(usize, ReplicaDecision)>;

/// Why a run ended early without a failure: the objects it read have changed.
#[derive(Debug)]
pub(super) enum Interrupted {
    Outdated,
    Failed(Error),
}

impl From<Error> for Interrupted {
    fn from(error: Error) -> Self {
        if error.is_conflict() { Self::Outdated } else { Self::Failed(error) }
    }
}

/// One run: the replicas as they were read, and its results.
pub(super) struct Run<'r> {
    shared: &'r Shared,
    context: &'r Context,
    replicas: Vec<ReplicatedVolumeReplica>,
    failed: bool,
    unavailable: Option<extender::Error>,
}

impl<'r> Run<'r> {
    pub(super) fn new(
        shared: &'r Shared,
        context: &'r Context,
        replicas: Vec<ReplicatedVolumeReplica>,
    ) -> Self {
        Self { shared, context, replicas, failed: false, unavailable: None }
    }

    pub(super) fn replicas(&self) -> &[ReplicatedVolumeReplica] {
        &self.replicas
    }

    /// Whether a replica was left without a place, and the error of the extender.
    pub(super) fn finish(self) -> (bool, Option<extender::Error>) {
        (self.failed, self.unavailable)
    }

    /// Decides about all replicas and writes the results.
    pub(super) async fn pass(
        &mut self,
        volume: &ReplicatedVolume,
        candidates: &Candidates,
        seen: &Volume,
    ) -> Result<(), Interrupted> {
        let pass = Pass::new(&candidates.eligible, seen);
        if let Some(warning) = schedule::warning(&pass) {
            let about = reference(volume);
            let recorder = &self.shared.recorder;
            recorder.event(&about, Severity::Warning, "SpreadAcrossZones", &warning);
        }
        let decisions = match &self.shared.extender {
            Extender::Ledger(ledger) => self.promise(ledger, volume, candidates, pass).await?,
            Extender::Client(client) => self.ask(client, volume, candidates, pass).await,
        };
        let unplaced = |decision: &ReplicaDecision| {
            matches!(decision, ReplicaDecision::Failed(_) | ReplicaDecision::ExtenderUnavailable(_))
        };
        self.failed = decisions.iter().any(|(_, decision)| unplaced(decision));
        let written = decisions
            .iter()
            .map(|(replica, decision)| self.settle(&self.replicas[*replica], decision, candidates));
        join_all(written).await.into_iter().collect()
    }

    /// Decides with the ledger, and confirms its reservations.
    async fn promise(
        &mut self,
        ledger: &ReservationStore,
        volume: &ReplicatedVolume,
        candidates: &Candidates,
        pass: Pass<'_>,
    ) -> Result<Decisions, Interrupted> {
        let replicas = self.replicas.iter();
        let claims: Vec<_> =
            replicas.map(|replica| schedule::claim(volume, &replica.metadata.name)).collect();
        let claims = &claims;
        let mut decisions = ledger
            .decide(|ledger, now| pass.run(&mut FromLedger { ledger, candidates, claims, now }));
        let resources = &self.context.resources;
        let promised: Vec<(&str, &str)> = decisions
            .iter()
            .filter_map(|(replica, decision)| match decision {
                ReplicaDecision::Placed(entry) => {
                    let target = candidates.target(entry.candidate)?;
                    Some((claims[*replica].holder.as_str(), target.name.as_str()))
                }
                _ => None,
            })
            .collect();
        let confirmed =
            promised.iter().map(|(holder, group)| ledger.confirm(resources, holder, group));
        let failed = join_all(confirmed).await.into_iter().find_map(Result::err);
        let Some(error) = failed else { return Ok(decisions) };
        // All or none: the other reservations are released. If that fails too, they
        // expire.
        for (holder, _) in promised {
            let _ = ledger.release(resources, holder).await;
        }
        if matches!(error, reserve::Error::Ledger(ledger::Error::Full)) {
            return Err(Interrupted::Outdated);
        }
        self.unavailable = Some(extender::Error::Ledger(error));
        let has_disk = |replica: usize| self.replicas[replica].spec.kind.has_disk();
        decisions.retain(|(replica, decision)| {
            !matches!(decision, ReplicaDecision::Placed(_)) || has_disk(*replica)
        });
        for (_, decision) in &mut decisions {
            if matches!(decision, ReplicaDecision::Placed(_)) {
                *decision = ReplicaDecision::ExtenderUnavailable(Unavailable::Narrowing);
            }
        }
        Ok(decisions)
    }

    /// Asks an external extender, request by request.
    async fn ask(
        &mut self,
        client: &Client,
        volume: &ReplicatedVolume,
        candidates: &Candidates,
        mut pass: Pass<'_>,
    ) -> Decisions {
        let mut decisions = Decisions::new();
        loop {
            match pass.advance() {
                Next::Score { replica, slots } => {
                    let request = self.request(volume, replica);
                    let targets = candidates.targets_of(&slots);
                    match client.filter_and_score(&request, &targets).await {
                        Ok(scores) => {
                            let numbers = slots.iter().filter_map(Slot::group);
                            let by_group: BTreeMap<usize, i64> = numbers.zip(scores).collect();
                            pass.scored(Some(&|group| by_group.get(&group).copied()));
                        }
                        Err(error) => {
                            self.unavailable = Some(error.into());
                            pass.scored(None);
                        }
                    }
                }
                Next::Narrow(Narrowing { replica, slot }) => {
                    let request = self.request(volume, replica);
                    let narrowed = match candidates.target(slot) {
                        Some(target) => client.narrow_reservation(&request, target).await,
                        None => Ok(()),
                    };
                    pass.narrowed(narrowed.is_ok());
                    if let Err(error) = narrowed {
                        self.unavailable = Some(error.into());
                    }
                }
                // Unused reservations of an external extender expire by themselves.
                Next::Release(_) | Next::Place(_) => {}
                Next::Report { replica, decision } => decisions.push((replica, decision)),
                Next::Done => return decisions,
            }
        }
    }

    fn request(&self, volume: &ReplicatedVolume, replica: usize) -> Request {
        let replica = &self.replicas[replica];
        Request {
            claim: schedule::claim(volume, &replica.metadata.name),
            reservation_id: schedule::reservation_id(volume, replica),
        }
    }

    /// Writes the result for one replica: its place, then its condition.
    async fn settle(
        &self,
        replica: &ReplicatedVolumeReplica,
        decision: &ReplicaDecision,
        candidates: &Candidates,
    ) -> Result<(), Interrupted> {
        let placed;
        let replica = match decision {
            ReplicaDecision::Placed(entry) => {
                match self.place(replica, candidates, entry.candidate).await? {
                    Some(written) => placed = written,
                    None => return Ok(()),
                }
                &placed
            }
            _ => replica,
        };
        let statement = schedule::statement(decision);
        let changed = self.set_condition(replica, statement.as_ref()).await?;
        let recorder = &self.shared.recorder;
        match (decision, statement) {
            (ReplicaDecision::Placed(_), _) => {
                let spec = &replica.spec;
                let mut place = format!("placed on {}", spec.node_name);
                if !spec.lvm_volume_group_name.is_empty() {
                    place += &format!(" in {}", spec.lvm_volume_group_name);
                }
                recorder.event(&reference(replica), Severity::Normal, "Scheduled", &place);
            }
            (
                ReplicaDecision::Failed(_) | ReplicaDecision::ExtenderUnavailable(_),
                Some(statement),
            ) if changed => {
                let mut message = statement.message;
                if let (ReplicaDecision::ExtenderUnavailable(_), Some(error)) =
                    (decision, &self.unavailable)
                {
                    message += &format!(" ({})", chain(error));
                }
                recorder.event(&reference(replica), Severity::Warning, statement.reason, &message);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a placement, unless the replica's spec has changed since it was read. `None` if the replica
    /// is gone.
    async fn place(
        &self,
        seen: &ReplicatedVolumeReplica,
        candidates: &Candidates,
        slot: Slot,
    ) -> Result<Option<ReplicatedVolumeReplica>, Interrupted> {
        let resources = &self.context.resources;
        let kind = resources.kind_of::<ReplicatedVolumeReplica>()?;
        let key = kind.key(None, &seen.metadata.name);
        let place = |replica: &mut ReplicatedVolumeReplica| {
            replica.spec.node_name.clone_from(&candidates.eligible.node(slot).node_name);
            if let Some(target) = candidates.target(slot) {
                replica.spec.lvm_volume_group_name.clone_from(&target.name);
                let thin_pool = &mut replica.spec.lvm_volume_group_thin_pool_name;
                thin_pool.clone_from(&target.thin_pool_name);
            }
        };
        let written = resources
            .modify(kind, &key, None, &options(MANAGER), |old| {
                let mut typed: ReplicatedVolumeReplica =
                    Deserialize::deserialize(old).map_err(Error::internal)?;
                if typed.metadata.uid != seen.metadata.uid || typed.spec != seen.spec {
                    return Err(Error::conflict(kind, &seen.metadata.name, "the spec changed"));
                }
                place(&mut typed);
                encode(kind, &typed)
            })
            .await;
        let Some(written) = or_gone(written)? else { return Ok(None) };
        let mut placed = seen.clone();
        place(&mut placed);
        placed.metadata.generation = generation(&written.record)?;
        Ok(Some(placed))
    }

    /// Sets the same condition on every replica.
    pub(super) async fn set_on_all(&self, statement: &Statement) -> Result<(), Interrupted> {
        let statement =
            self.replicas.iter().map(|replica| self.set_condition(replica, Some(statement)));
        join_all(statement).await.into_iter().try_for_each(|statement| statement.map(drop))
    }

    /// Sets or removes the condition. Returns whether that changed anything.
    async fn set_condition(
        &self,
        replica: &ReplicatedVolumeReplica,
        statement: Option<&Statement>,
    ) -> Result<bool, Interrupted> {
        let now = self.context.resources.clock().now();
        let generation = replica.metadata.generation;
        let settle = |it: &mut ReplicatedVolumeReplica| match statement {
            Some(statement) => {
                conditions::set(&mut it.status.conditions, statement, generation, now)
            }
            None => conditions::remove(&mut it.status.conditions, SCHEDULED),
        };
        if !settle(&mut replica.clone()) {
            return Ok(false);
        }
        let (name, resources) = (&replica.metadata.name, &self.context.resources);
        let edit = |it: &mut _| {
            settle(it);
        };
        set_status(resources, None, name, MANAGER, edit).await?;
        Ok(true)
    }
}

/// The generation of a written object; no other field is decoded.
fn generation(record: &Record) -> Result<Option<i64>, Error> {
    #[derive(Deserialize)]
    struct Metadata {
        generation: Option<i64>,
    }
    #[derive(Deserialize)]
    struct Head {
        metadata: Metadata,
    }
    let head: Head = serde_json::from_slice(record.json()).map_err(Error::internal)?;
    Ok(head.metadata.generation)
}

/// An error and its causes in one line.
fn chain(error: &extender::Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |it| it.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
