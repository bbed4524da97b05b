//! The reconciler: one object at a time, it observes the disk, decides by the phase table, and writes.

use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::conditions::{self, Report};
use mainstay_controller::events::Severity;
use mainstay_controller::runtime::Outcome;
use mainstay_host::Disk;
use mainstay_store::meta::{ConditionStatus, Time};

use super::Error;
use super::devices::Devices;
use super::machine::Machine;
use super::observe::{Observer, View};
use super::operations::Operations;
use super::signals::Signals;
use crate::api::{BlockDevice, FINALIZER, OperationStatus, State};
use crate::backend;
use crate::facts;
use crate::gate::Verdict;
use crate::identity;
use crate::memory;
use crate::phase::{Facts, Fault, Mount, Operation, Phase, Record};
use crate::report::{self, Account, Readiness};
use crate::table::{self, Decision, Effect};

/// How soon a disk that could not be read is read again.
const UNREADABLE: Duration = Duration::from_secs(5);
/// How soon an object is reconciled again whose copy does not show the last write yet.
const BEHIND: Duration = Duration::from_secs(1);
/// How soon a pool is registered again whose Node does not exist yet.
const NO_NODE: Duration = Duration::from_secs(5);

/// Whether an auto-provision rule asked for a disk.
enum AutoProvisioned {
    /// No rule applies.
    No,
    /// A rule does, and this is the object now.
    Yes(Box<BlockDevice>),
    /// A rule does, but the object changed meanwhile; that change queues the object again.
    Conflict,
}

/// Decides about objects, and writes the decisions.
#[derive(Debug)]
pub(super) struct Reconciler {
    pub(super) machine: Arc<Machine>,
    pub(super) devices: Arc<Devices>,
    pub(super) observer: Arc<Observer>,
    pub(super) operations: Arc<Operations>,
    pub(super) signals: Arc<Signals>,
}

impl Reconciler {
    /// Reconciles one object. Its steps: observe, remember what is wanted, apply auto-provision rules,
    /// decide by the table, write, and queue the operation that the new phase stands for.
    pub(super) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let Some(device) = self.devices.find(name) else {
            return Ok(Outcome::Done);
        };
        let mut device = (*device).clone();
        if self.devices.is_stale(&device) {
            // The copy catches up and queues the object, or this delay does.
            return Ok(Outcome::After(BEHIND));
        }
        if device.is_deleting() {
            return self.release(&device).await;
        }
        if device.phase().is_some_and(Phase::is_lock) {
            let token = device.status.operation.as_ref().map_or("", |token| token.id.as_str());
            if self.operations.queued_at(token).is_none() && !self.operations.is_busy(name) {
                self.operations.enqueue(name);
            }
            return Ok(Outcome::Done);
        }
        if facts::has_stray_acknowledgement(&self.observer.recalled(&device)) {
            return self.remove_acknowledgement(&device).await;
        }
        if facts::has_stray_adoption(&device) {
            device.spec.file_system.adopt.clear();
            self.devices.replace(&device).await?;
            return Ok(Outcome::Done);
        }
        let mut view =
            self.observer.view(&device, self.observer.inventory.take_fresh(name)).await?;
        if view.assigned.is_none() && device.phase() == Some(Phase::Unprovisioned) {
            // The disk is gone: the scan deletes the object.
            self.signals.rematch();
        }
        let unreadable = view.disk.as_ref().is_some_and(|disk| disk.contents.unreadable.is_some());
        if unreadable && matches!(device.phase(), Some(Phase::Formatted | Phase::Failed)) {
            // A disk that cannot be read now is not gone: decide when it can be read.
            self.refresh_record(&device, &view).await?;
            return Ok(Outcome::After(UNREADABLE));
        }
        self.remember(&device, &view).await?;
        match self.auto_provision(&device, &view).await? {
            AutoProvisioned::No => {}
            AutoProvisioned::Conflict => return Ok(Outcome::Done),
            AutoProvisioned::Yes(asked) => {
                device = *asked;
                view.known = self.observer.known(&device).await?;
                self.remember(&device, &view).await?;
            }
        }
        let facts = self.observer.facts(&device, &view).await;
        let (mut next, decision, _) = self.decide(&device, &view, facts).await;
        self.answer_dry_run(&mut next, &device, &view).await;
        if next.status != device.status {
            if self.devices.replace_status(&next).await?.is_none() {
                return Ok(Outcome::Done);
            }
            self.report_phase(&device, &next);
        }
        if let Some(operation) = decision.operation() {
            if let Some(token) =
                next.status.operation.as_ref().filter(|_| operation.lock().is_some())
            {
                self.operations.own(&token.id, self.machine.clock.elapsed());
            }
            self.operations.enqueue(name);
        }
        self.refresh_record(&next, &view).await
    }

    /// Removes the finalizer of an object that is being deleted, once no operation owns its disk.
    async fn release(&self, device: &BlockDevice) -> Result<Outcome, Error> {
        let name = &device.metadata.name;
        let ours = device.metadata.finalizers.iter().any(|entry| entry == FINALIZER);
        if !ours || self.operations.is_busy(name) {
            return Ok(Outcome::Done);
        }
        let held = device.status.operation.as_ref().is_some_and(|token| token.lease_held);
        let disk = self.observer.inventory.disk_of(name);
        if held && !self.observer.lease_free(device, disk.as_ref()).await {
            return Ok(Outcome::Done);
        }
        self.devices.remove_finalizer(name).await?;
        Ok(Outcome::Done)
    }

    /// Removes an acknowledgement of data loss that belongs to no format request. The write queues the
    /// object again.
    async fn remove_acknowledgement(&self, device: &BlockDevice) -> Result<Outcome, Error> {
        let mut next = device.clone();
        let entries = std::mem::take(&mut next.spec.acknowledge_data_loss).join(", ");
        if self.devices.replace(&next).await?.is_some() {
            let message = format!(
                "spec.acknowledgeDataLoss [{entries}] was removed: no format request is open. Set it together with spec.fileSystem.forceFormatted and a new formatRequest"
            );
            self.machine.event(device, Severity::Warning, "AcknowledgementRemoved", &message);
        }
        Ok(Outcome::Done)
    }

    /// Remembers durably what is wanted of a disk, before anything is done about it.
    async fn remember(&self, device: &BlockDevice, view: &View) -> Result<(), Error> {
        let Some(disk) = &view.disk else { return Ok(()) };
        let device = self.observer.recalled(device);
        let worth = memory::worth(&device, &identity::of(disk));
        self.machine.memory.set(&device.metadata.name, worth).await.map_err(Error::Memory)
    }

    /// Asks for a blank disk to be provisioned if an auto-provision rule matches it.
    async fn auto_provision(
        &self,
        device: &BlockDevice,
        view: &View,
    ) -> Result<AutoProvisioned, Error> {
        let Some(disk) = view.disk.as_ref().filter(|_| self.is_untouched(device)) else {
            return Ok(AutoProvisioned::No);
        };
        let configuration = &self.observer.configuration;
        let duplicate = view.assigned.as_ref().is_some_and(|place| !place.duplicates.is_empty());
        let excluded = duplicate || configuration.excludes(disk, &view.mounts).is_some();
        if excluded || !disk.contents.is_blank() {
            return Ok(AutoProvisioned::No);
        }
        let rule = configuration.current().takes(&self.machine.options.node, disk).cloned();
        let Some(rule) = rule else { return Ok(AutoProvisioned::No) };
        let message = "an auto-provision rule takes this blank disk";
        let mut noted = device.clone();
        let report = Report::new("AutoProvisionDetected", ConditionStatus::True, "RuleMatched")
            .message(message)
            .timed();
        conditions::set(&mut noted.status.conditions, &report, self.machine.clock.now());
        let Some(mut wanted) = self.devices.replace_status(&noted).await? else {
            return Ok(AutoProvisioned::Conflict);
        };
        wanted.spec.provision = true;
        wanted.spec.file_system.force_formatted = true;
        wanted.spec.provisioner = rule.provisioner;
        if !rule.tags.is_empty() {
            wanted.spec.tags = rule.tags;
        }
        let Some(written) = self.devices.replace(&wanted).await? else {
            return Ok(AutoProvisioned::Conflict);
        };
        self.machine.event(device, Severity::Normal, "AutoProvisionDetected", message);
        let device = &device.metadata.name;
        tracing::info!(device, path = disk.path, "auto-provisioning a blank disk");
        Ok(AutoProvisioned::Yes(Box::new(written)))
    }

    /// Whether a disk was never used and no person asked for anything.
    fn is_untouched(&self, device: &BlockDevice) -> bool {
        device.phase() == Some(Phase::Unprovisioned)
            && !device.wanted()
            && !device.spec.file_system.force_formatted
            && self.observer.recalled(device).status.formatted.is_none()
    }

    /// Asks the gate if the table depends on its verdict.
    async fn ask_gate(
        &self,
        device: &BlockDevice,
        view: &View,
        facts: Facts,
    ) -> (Facts, Option<Verdict>) {
        let phase = device.phase();
        let concerned = matches!(phase, Some(Phase::Unprovisioned | Phase::Formatted));
        let asked = facts.request && facts.active && concerned;
        match (&view.disk, asked) {
            (Some(disk), true) => {
                let verdict = self.observer.judge(device, view, disk, &facts).await;
                (Facts { gate: verdict.passes(), ..facts }, Some(verdict))
            }
            _ => (facts, None),
        }
    }

    /// Decides about an object, and returns it with its next status. Changes nothing.
    pub(super) async fn decide(
        &self,
        device: &BlockDevice,
        view: &View,
        facts: Facts,
    ) -> (BlockDevice, Decision, Option<Verdict>) {
        let (facts, verdict) = self.ask_gate(device, view, facts).await;
        let decision = table::decide(device.phase(), &facts);
        let next = self.next(device, view, &facts, &decision, verdict.as_ref());
        (next, decision, verdict)
    }

    /// The object with its next status.
    fn next(
        &self,
        device: &BlockDevice,
        view: &View,
        facts: &Facts,
        decision: &Decision,
        verdict: Option<&Verdict>,
    ) -> BlockDevice {
        let now = self.machine.clock.now();
        let mut next = self.observer.recalled(device);
        match &view.disk {
            Some(disk) => report::describe(&mut next, disk, &view.mounts),
            None if view.assigned.is_none() => next.status.state = State::Inactive,
            None => {}
        }
        let others = view.assigned.as_ref().map_or(&[][..], |a| a.duplicates.as_slice());
        report::duplicates(&mut next, others, now);
        let refusal = verdict.filter(|verdict| !verdict.passes()).map(Verdict::reasons);
        let adopted = view.disk.as_ref().and_then(|disk| disk.contents.only());
        let account = Account {
            message: describe(decision, facts, device, view),
            reason: fault_of(decision, facts).map(|fault| fault.reason().to_owned()),
            uuid: adopted.map(|found| found.uuid.clone()),
            refusal,
            ..Account::default()
        };
        report::settle(&mut next, decision, facts, &account, now);
        if let (Some(operation), Some(disk)) = (decision.operation(), &view.disk) {
            self.lock_for(&mut next, operation, disk, facts, view);
        } else if decision.operation().is_some_and(|operation| operation.lock().is_some()) {
            self.lock_absent(&mut next, decision, view);
        }
        next
    }

    /// Puts the token of an operation into the object that is about to be locked.
    fn lock_for(
        &self,
        next: &mut BlockDevice,
        operation: Operation,
        disk: &Disk,
        facts: &Facts,
        view: &View,
    ) {
        if operation.lock().is_none() {
            return;
        }
        let point = self.target(&next.metadata.name, facts.mount, disk, view);
        let token = OperationStatus {
            device: report::bind(disk),
            target_fs_uuid: match operation {
                Operation::Format => self.machine.identities.uid(),
                _ => String::new(),
            },
            mount_point: point,
            acknowledged: if facts.auto {
                Vec::new()
            } else {
                next.spec.acknowledge_data_loss.clone()
            },
            format_request: next.spec.file_system.format_request.clone(),
            ..self.token(operation, disk.size)
        };
        next.status.operation = Some(token);
    }

    /// Puts in the token of an operation on a disk that is gone: it cannot be bound to a device.
    fn lock_absent(&self, next: &mut BlockDevice, decision: &Decision, view: &View) {
        let Some(operation) = decision.operation() else { return };
        let mut token = self.token(operation, 0);
        token.device.path.clone_from(&next.status.device_status.dev_path);
        let point = self.machine.point(&next.metadata.name);
        if view.mounts.iter().any(|line| line.point == point) {
            token.mount_point = point;
        }
        next.status.operation = Some(token);
    }

    fn token(&self, operation: Operation, size: u64) -> OperationStatus {
        let now = self.machine.clock.now();
        let deadline = report::limit(operation, size).and_then(|limit| now.checked_add(limit).ok());
        OperationStatus {
            id: self.machine.identities.uid(),
            kind: operation.as_str().to_owned(),
            boot_id: self.machine.host.boot_id(),
            attempt: 1,
            started_at: Some(Time::new(now)),
            deadline: deadline.map(Time::new),
            ..OperationStatus::default()
        }
    }

    /// The mount point an operation is about.
    fn target(&self, name: &str, mount: Mount, disk: &Disk, view: &View) -> String {
        let elsewhere = view.mounts.iter().find(|line| line.number == disk.number);
        match (mount, elsewhere) {
            (Mount::Elsewhere, Some(line)) => line.point.clone(),
            _ => self.machine.point(name),
        }
    }

    /// Logs a change of phase, and records an Event about it.
    fn report_phase(&self, before: &BlockDevice, after: &BlockDevice) {
        let (old, new) = (&before.status.provision_phase, &after.status.provision_phase);
        if old == new {
            return;
        }
        let failure = after.status.failure.as_ref();
        let severity = if failure.is_some() { Severity::Warning } else { Severity::Normal };
        let old = if old.is_empty() { "new" } else { old };
        let mut message = format!("{old} → {new}");
        if let Some(failure) = failure {
            message = format!("{message}: {}", failure.message);
        }
        self.machine.event(after, severity, new, &message);
        let device = &after.metadata.name;
        tracing::info!(device, from = old, to = new, "phase changed");
    }

    /// Writes the free space and the readiness of the pool of a disk into its record.
    async fn refresh_record(&self, device: &BlockDevice, view: &View) -> Result<Outcome, Error> {
        if device.phase() == Some(Phase::Mounted) && view.known.record == Record::NoNode {
            return Ok(Outcome::After(NO_NODE));
        }
        if !view.known.record.exists() {
            return Ok(Outcome::Done);
        }
        let backend = &self.machine.backend;
        let mut space = view.space.clone();
        let unready = match report::unready(device, view.disk.as_ref(), space.as_ref()) {
            Readiness::Unknown => return Ok(Outcome::Done),
            Readiness::Unready(why) => Some(why),
            Readiness::Ready if space.is_none() => {
                let place = self.machine.pool(device, None).place;
                let read = self.machine.host.space(&place, path_of(device)).await;
                space = Some(read.map_err(|trouble| trouble.message().to_owned()));
                space.as_ref().and_then(report::unreadable)
            }
            Readiness::Ready => None,
        };
        let pool = self.machine.pool(device, unready);
        let done = match (&pool.unready, space) {
            (None, Some(Ok(space))) if view.known.record == Record::Equal => {
                backend.register(&pool, space).await
            }
            (None, _) => Ok(()),
            (Some(_), _) => backend.report_unready(&pool).await,
        };
        match done {
            Ok(()) | Err(backend::Error::Conflict) => {
                Ok(Outcome::After(self.machine.options.refresh))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The path of an object's disk.
pub(super) fn path_of(device: &BlockDevice) -> &str {
    &device.status.device_status.dev_path
}

/// The fault that a decision is about.
fn fault_of(decision: &Decision, facts: &Facts) -> Option<Fault> {
    facts.fault.filter(|_| decision.row.effects.contains(&Effect::Faulty))
}

/// A decision in words, for conditions and events.
fn describe(decision: &Decision, facts: &Facts, device: &BlockDevice, view: &View) -> String {
    let path = view.disk.as_ref().map_or("the disk", |disk| disk.path.as_str());
    if let (Some(fault), Some(disk)) = (fault_of(decision, facts), &view.disk) {
        return report::fault(fault, device, disk);
    }
    match decision.operation() {
        Some(operation) => format!("{operation} of {path} is queued ({})", decision.row.id),
        None => format!("{path}: {} ({})", decision.row.guard, decision.row.id),
    }
}
