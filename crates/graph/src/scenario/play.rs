//! Plays a scenario against a real engine.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::ManualClock;
use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use super::clock::ScenarioClock;
use super::compare::differences;
use super::file::{NotifySpec, ResyncSpec, RetrySpec, Scenario, Step, TxnSpec};
use super::report::{Report, StepReport, TransactionReport};
use super::south::{MadeUp, South};
use crate::engine::{Builder, Engine, Options};
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::status::ValueStatus;
use crate::time::{Clock, later};
use crate::transaction::{Notification, Resync, Retry, Transaction};
use crate::value::{Metadata, Value};

/// A scenario that was played, with its engine still running.
#[derive(Debug)]
#[non_exhaustive]
pub struct Played {
    /// The result.
    pub report: Report,
    /// The engine.
    pub engine: Engine,
    clock: Arc<ScenarioClock>,
    stop: CancellationToken,
    worker: tokio::task::JoinHandle<()>,
}

impl Played {
    /// Stops the engine.
    pub async fn stop(self) {
        self.stop.cancel();
        // A worker that panicked has stopped already.
        let _ = self.worker.await;
    }

    /// Lets the engine run on with the machine's clock: retries happen by themselves from now on.
    /// Returns its handle, the token that stops it, and its worker.
    pub fn go_live(self) -> (Engine, CancellationToken, tokio::task::JoinHandle<()>) {
        self.clock.go_live();
        (self.engine, self.stop, self.worker)
    }
}

/// Plays a scenario from beginning to end.
pub async fn play(scenario: &Scenario) -> Result<Played, super::Error> {
    let clock = ManualClock::new(Timestamp::from_second(1_600_000_000).unwrap_or_default());
    let live = ScenarioClock::new(Arc::clone(&clock));
    let south = South::new(scenario, Arc::clone(&live) as _);
    let options = Options {
        clock: Arc::clone(&live) as _,
        parallel: scenario.parallel.unwrap_or(1),
        verify: scenario.verify,
        ..Options::default()
    };
    let mut builder = Builder::new(options);
    for spec in scenario.descriptors.iter().filter(|spec| !spec.late) {
        builder = builder.register(MadeUp::new(spec.clone(), south.clone()))?;
    }
    let (engine, service) = builder.build()?;
    let stop = CancellationToken::new();
    let worker: Worker = Box::pin(service.run(stop.clone()));
    let slept = Duration::ZERO;
    let engine_of_stage = engine.clone();
    let mut stage =
        Stage { scenario, south, clock, engine: engine_of_stage, worker, seen: 0, slept };
    let mut report = Report::default();
    for (index, step) in scenario.steps.iter().enumerate() {
        let got = stage.step(step).await?;
        report.differences.extend(differences(index + 1, step, &got));
        report.steps.push(got);
    }
    report.slept = stage.slept;
    let worker = tokio::spawn(stage.worker);
    Ok(Played { report, engine, clock: live, stop, worker })
}

/// The engine's worker. The steps poll it themselves, so that the order of events never depends on
/// the scheduling of threads.
type Worker = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Stage<'a> {
    scenario: &'a Scenario,
    south: South,
    clock: Arc<ManualClock>,
    engine: Engine,
    worker: Worker,
    /// How many transactions earlier steps caused.
    seen: usize,
    /// How much time operations took.
    slept: Duration,
}

impl Stage<'_> {
    async fn step(&mut self, step: &Step) -> Result<StepReport, super::Error> {
        // Every step has its own timestamp, so that reads by time are unambiguous.
        self.clock.advance(Duration::from_micros(1));
        let mut error = None;
        if let Some(drift) = &step.drift {
            self.south.drift(&drift.set, &drift.delete);
        }
        if let Some(txn) = &step.txn
            && let Err(refused) = self.apply(transaction(txn)).await
        {
            error = Some(refused.to_string());
        }
        if let Some(notify) = &step.notify
            && let Err(refused) = self.engine.notify(notification(notify))
        {
            error = Some(refused.to_string());
        }
        if let Some(name) = &step.register {
            let spec = self.scenario.descriptors.iter().find(|spec| spec.name == *name);
            let done = match spec {
                Some(spec) => {
                    let descriptor = MadeUp::new(spec.clone(), self.south.clone());
                    let engine = self.engine.clone();
                    let done = self.wait(engine.register(descriptor)).await;
                    done.map_err(|error| error.to_string())
                }
                None => Err(format!("there is no descriptor {name}")),
            };
            error = error.or(done.err());
        }
        self.barrier().await?;
        if let Some(by) = step.advance {
            self.advance(later(self.clock.now(), by)).await?;
        }
        Ok(self.report(error))
    }

    /// Moves the clock from one retry to the next, so that none is skipped. The time that
    /// operations take comes on top.
    async fn advance(&mut self, end: Timestamp) -> Result<(), super::Error> {
        let before = self.slept;
        loop {
            let end = later(end, self.slept - before);
            let due = self.engine.next_retry().filter(|due| *due <= end);
            self.clock.set(due.unwrap_or(end));
            self.barrier().await?;
            if due.is_none() {
                return Ok(());
            }
        }
    }

    async fn apply(&mut self, transaction: Transaction) -> Result<(), crate::engine::Error> {
        let engine = self.engine.clone();
        self.wait(engine.apply(transaction)).await.map(drop)
    }

    async fn barrier(&mut self) -> Result<(), crate::engine::Error> {
        let engine = self.engine.clone();
        self.wait(engine.barrier()).await
    }

    /// Waits for the engine. While it only waits for operations that take time, the clock moves to
    /// the end of the next one.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                // It only ends with the last handle.
                () = &mut self.worker => {}
                end = self.south.idle() => {
                    let left = end.duration_since(self.clock.now());
                    self.slept += Duration::try_from(left).unwrap_or_default();
                    self.clock.set(end);
                }
            }
        }
    }

    fn report(&mut self, error: Option<String>) -> StepReport {
        let history = self.engine.history(None, None);
        let new = history.iter().skip(self.seen);
        let transactions =
            new.map(|record: &Arc<TransactionRecord>| TransactionReport::new(record)).collect();
        self.seen = history.len();
        let mut all = Vec::new();
        for one in self.engine.statuses(|_| true) {
            flatten(one, &mut all);
        }
        let known = |key: &Key| all.iter().any(|one: &ValueStatus| one.key == *key);
        let states = self.engine.states();
        // Derived values that their base no longer lists have a status of their own.
        let rest: Vec<ValueStatus> = states
            .iter()
            .filter(|(key, _)| !known(key))
            .map(|(key, _)| self.engine.status(key))
            .collect();
        all.extend(rest);
        let waiting = |one: &&ValueStatus| one.state == crate::state::ValueState::Pending;
        StepReport {
            transactions,
            states: states
                .into_iter()
                .map(|(key, state)| (key.to_string(), json!(state)))
                .collect(),
            south: self.south.values(),
            calls: self.south.take_calls(),
            pending: all
                .iter()
                .filter(waiting)
                .map(|one| (one.key.to_string(), json!(one.details)))
                .collect(),
            metadata: self
                .engine
                .metadata()
                .into_iter()
                .map(|(key, metadata)| (key.to_string(), metadata.json()))
                .collect(),
            status: all.iter().map(|one| (one.key.to_string(), brief(one))).collect(),
            correlate: self
                .south
                .take_correlate()
                .into_iter()
                .map(|(name, told)| (name, json!(told)))
                .collect(),
            error,
        }
    }
}

fn flatten(mut status: ValueStatus, all: &mut Vec<ValueStatus>) {
    let derived = std::mem::take(&mut status.derived);
    all.push(status);
    for one in derived {
        flatten(one, all);
    }
}

fn brief(status: &ValueStatus) -> Json {
    let mut brief = json!({
        "state": status.state,
        "last": status.last_operation,
        "error": status.error,
        "cycle": status.cycle,
    });
    if !status.details.is_empty() {
        brief["details"] = json!(status.details);
    }
    brief
}

fn transaction(spec: &TxnSpec) -> Transaction {
    let mut transaction = Transaction::new().description(spec.description.clone());
    for (key, value) in &spec.set {
        transaction = transaction.set(key.as_str(), Value::new(value.clone()));
    }
    for key in &spec.delete {
        transaction = transaction.delete(key.as_str());
    }
    if let Some(resync) = spec.resync {
        transaction = transaction.resync(match resync {
            ResyncSpec::Full => Resync::FullResync,
            ResyncSpec::Upstream => Resync::UpstreamResync,
            ResyncSpec::Downstream => Resync::DownstreamResync,
        });
    }
    if let Some(on_failure) = spec.on_failure {
        transaction = transaction.on_failure(on_failure);
    }
    match &spec.retry {
        Some(retry) => transaction.retry(retry_of(retry)),
        None => transaction,
    }
}

fn retry_of(spec: &RetrySpec) -> Retry {
    let usual = Retry::default();
    Retry {
        period: spec.period.unwrap_or(usual.period),
        max: spec.max.unwrap_or(usual.max),
        backoff: spec.backoff.unwrap_or(usual.backoff),
    }
}

fn notification(spec: &NotifySpec) -> Notification {
    let metadata: &BTreeMap<String, i64> = &spec.metadata;
    let mut notification = Notification::new();
    for (key, value) in &spec.set {
        let metadata = metadata.get(key).map(|number| Metadata::new(*number));
        notification = notification.set(key.as_str(), Value::new(value.clone()), metadata);
    }
    for key in &spec.delete {
        notification = notification.delete(key.as_str());
    }
    notification
}
