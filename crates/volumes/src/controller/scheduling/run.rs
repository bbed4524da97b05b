//! One run of scheduling over one volume: decide everything, confirm what was promised, then
//! write.
//!
//! The ledger of this process decides about all replicas of a volume at one moment. What follows
//! from it is written replica by replica, but for all replicas at once, so that a volume costs the
//! store a few rounds however many replicas it has: reservations, then placements, then
//! conditions.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use mainstay_controller::events::{Severity, reference};
use mainstay_controller::runtime::Context;
use mainstay_placement::{Narrowing, Next, Pass, Slot, Unavailable, Verdict, Volume};
use mainstay_store::object::Record;
use mainstay_store::resources::{Error, encode};
use serde::Deserialize;

use super::super::{Shared, options, or_gone, set_status};
use crate::api::{ReplicatedVolume, ReplicatedVolumeReplica};
use crate::candidates::{Candidates, FromLedger};
use crate::conditions::{self, Statement};
use crate::extender::{self, Client, Extender, Request};
use crate::ledger;
use crate::reserve::{self, Reserve};
use crate::schedule::{self, SCHEDULED};

const MANAGER: &str = "mainstay-scheduling";

/// What became of each replica, by its place in [`Volume::replicas`].
type Verdicts = Vec<(usize, Verdict)>;

/// Why a run ended early, though nothing went wrong: what it saw is no longer so.
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

/// One run: the replicas as they were read, and what came of it.
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

    /// Whether a replica was left without a place, and why the extender gave no answer.
    pub(super) fn finish(self) -> (bool, Option<extender::Error>) {
        (self.failed, self.unavailable)
    }

    /// Decides about all replicas and writes what follows.
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
        let verdicts = match &self.shared.extender {
            Extender::Ledger(ledger) => self.promise(ledger, volume, candidates, pass).await?,
            Extender::Client(client) => self.ask(client, volume, candidates, pass).await,
        };
        let unplaced = |verdict: &Verdict| {
            matches!(verdict, Verdict::Failed(_) | Verdict::ExtenderUnavailable(_))
        };
        self.failed = verdicts.iter().any(|(_, verdict)| unplaced(verdict));
        let written = verdicts
            .iter()
            .map(|(replica, verdict)| self.settle(&self.replicas[*replica], verdict, candidates));
        join_all(written).await.into_iter().collect()
    }

    /// Lets the ledger decide, and confirms what it promised.
    async fn promise(
        &mut self,
        ledger: &Reserve,
        volume: &ReplicatedVolume,
        candidates: &Candidates,
        pass: Pass<'_>,
    ) -> Result<Verdicts, Interrupted> {
        let replicas = self.replicas.iter();
        let claims: Vec<_> =
            replicas.map(|replica| schedule::claim(volume, &replica.metadata.name)).collect();
        let claims = &claims;
        let mut verdicts = ledger
            .decide(|ledger, now| pass.run(&mut FromLedger { ledger, candidates, claims, now }));
        let resources = &self.context.resources;
        let promised: Vec<(&str, &str)> = verdicts
            .iter()
            .filter_map(|(replica, verdict)| match verdict {
                Verdict::Placed(entry) => {
                    let target = candidates.target(entry.candidate)?;
                    Some((claims[*replica].holder.as_str(), target.name.as_str()))
                }
                _ => None,
            })
            .collect();
        let confirmed =
            promised.iter().map(|(holder, group)| ledger.confirm(resources, holder, group));
        let failed = join_all(confirmed).await.into_iter().find_map(Result::err);
        let Some(error) = failed else { return Ok(verdicts) };
        // All or none: what was confirmed beside it is given back. Should that fail too, it
        // expires.
        for (holder, _) in promised {
            let _ = ledger.release(resources, holder).await;
        }
        if matches!(error, reserve::Error::Ledger(ledger::Error::Full)) {
            return Err(Interrupted::Outdated);
        }
        self.unavailable = Some(extender::Error::Ledger(error));
        let has_disk = |replica: usize| self.replicas[replica].spec.kind.has_disk();
        verdicts.retain(|(replica, verdict)| {
            !matches!(verdict, Verdict::Placed(_)) || has_disk(*replica)
        });
        for (_, verdict) in &mut verdicts {
            if matches!(verdict, Verdict::Placed(_)) {
                *verdict = Verdict::ExtenderUnavailable(Unavailable::Narrowing);
            }
        }
        Ok(verdicts)
    }

    /// Asks an extender elsewhere, question by question.
    async fn ask(
        &mut self,
        client: &Client,
        volume: &ReplicatedVolume,
        candidates: &Candidates,
        mut pass: Pass<'_>,
    ) -> Verdicts {
        let mut verdicts = Verdicts::new();
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
                // An extender elsewhere lets what is not used expire.
                Next::Release(_) | Next::Place(_) => {}
                Next::Report { replica, verdict } => verdicts.push((replica, verdict)),
                Next::Done => return verdicts,
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

    /// Writes what became of one replica: its place, then its condition.
    async fn settle(
        &self,
        replica: &ReplicatedVolumeReplica,
        verdict: &Verdict,
        candidates: &Candidates,
    ) -> Result<(), Interrupted> {
        let placed;
        let replica = match verdict {
            Verdict::Placed(entry) => {
                match self.place(replica, candidates, entry.candidate).await? {
                    Some(written) => placed = written,
                    None => return Ok(()),
                }
                &placed
            }
            _ => replica,
        };
        let statement = schedule::statement(verdict);
        let changed = self.say(replica, statement.as_ref()).await?;
        let recorder = &self.shared.recorder;
        match (verdict, statement) {
            (Verdict::Placed(_), _) => {
                let spec = &replica.spec;
                let mut place = format!("placed on {}", spec.node_name);
                if !spec.lvm_volume_group_name.is_empty() {
                    place += &format!(" in {}", spec.lvm_volume_group_name);
                }
                recorder.event(&reference(replica), Severity::Normal, "Scheduled", &place);
            }
            (Verdict::Failed(_) | Verdict::ExtenderUnavailable(_), Some(said)) if changed => {
                let mut message = said.message;
                if let (Verdict::ExtenderUnavailable(_), Some(error)) = (verdict, &self.unavailable)
                {
                    message += &format!(" ({})", chain(error));
                }
                recorder.event(&reference(replica), Severity::Warning, said.reason, &message);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a placement, unless the replica's spec has changed since it was read. `None` when
    /// the replica is gone.
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

    /// Says the same to every replica.
    pub(super) async fn say_to_all(&self, statement: &Statement) -> Result<(), Interrupted> {
        let said = self.replicas.iter().map(|replica| self.say(replica, Some(statement)));
        join_all(said).await.into_iter().try_for_each(|said| said.map(drop))
    }

    /// Sets or removes the condition. Says whether that changed anything.
    async fn say(
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
        set_status(resources, name, MANAGER, edit).await?;
        Ok(true)
    }
}

/// The generation of an object that was just written; nothing else of it is read.
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
