//! One object at a time: what is seen, what follows from it, and the write that makes it so.

use std::sync::Arc;

use mainstay_controller::conditions::{self, Report};
use mainstay_controller::events::Severity;
use mainstay_controller::runtime::Outcome;
use mainstay_controller::write;
use mainstay_store::meta::{ConditionStatus, Time};

use super::world::Assigned;
use super::{Error, MANAGER, Shell};
use crate::api::{
    BlockDevice, DRY_RUN_ANNOTATION, FINALIZER, FsType, Makes, OperationStatus, State,
};
use crate::backend;
use crate::facts::{self, Sight};
use crate::gate::{self, Resolved, Scene, Verdict};
use crate::host::{Act, Contents, Disk, MountLine};
use crate::identity;
use crate::lease::Device;
use crate::memory;
use crate::phase::{Facts, Mount, Operation, Phase, Record};
use crate::report::{self, Account};
use crate::table::{self, Decision};

/// How soon a disk that could not be read is looked at again.
const UNREADABLE: std::time::Duration = std::time::Duration::from_secs(5);

/// How soon an object is looked at again whose copy does not show what was written last.
const BEHIND: std::time::Duration = std::time::Duration::from_secs(1);

/// What is seen of an object's disk at one moment.
pub(super) struct View {
    pub(super) disk: Option<Disk>,
    pub(super) mounts: Arc<[MountLine]>,
    pub(super) known: backend::Known,
    pub(super) assigned: Option<Assigned>,
}

/// Whether a rule took a disk.
enum Taking {
    /// None did.
    Not,
    /// One did, and this is the object now.
    Done(Box<BlockDevice>),
    /// One would have; somebody else was faster, and their change brings the object back.
    Lost,
}

impl Shell {
    /// Looks at one object and does what follows.
    pub(super) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let Some(device) = self.objects.find(None, name) else {
            return Ok(Outcome::Done);
        };
        let mut device = (*device).clone();
        if device.spec.node_name != self.options.node {
            return Ok(Outcome::Done);
        }
        if self.is_stale(&device) {
            // What was written last brings the object back, or the look after this one.
            return Ok(Outcome::After(BEHIND));
        }
        if device.is_deleting() {
            return self.let_go(&device).await;
        }
        if device.phase().is_some_and(Phase::is_lock) {
            let token = device.status.operation.as_ref().map_or("", |token| token.id.as_str());
            if !self.mine().contains_key(token) && !self.busy().contains(name) {
                self.enqueue(name);
            }
            return Ok(Outcome::Done);
        }
        let mut view = self.view(&device, self.seen_just_now(name)).await?;
        if view.assigned.is_none() && device.phase() == Some(Phase::Unprovisioned) {
            // Nothing is left of its disk: the scan lets the object go.
            self.rematch.notify_one();
        }
        let unreadable = view.disk.as_ref().is_some_and(|disk| disk.contents.unreadable.is_some());
        if unreadable && matches!(device.phase(), Some(Phase::Formatted | Phase::Failed)) {
            // What cannot be read now is not gone: nothing follows from it.
            return Ok(Outcome::After(UNREADABLE));
        }
        self.remember(&device, &view).await?;
        match self.take_unasked(&device, &view).await? {
            Taking::Not => {}
            Taking::Lost => return Ok(Outcome::Done),
            Taking::Done(taken) => {
                device = *taken;
                view.known = self.known(&device).await?;
                self.remember(&device, &view).await?;
            }
        }
        let facts = self.facts(&device, &view).await;
        let (facts, verdict) = self.ask_gate(&device, &view, facts).await;
        let decision = table::decide(device.phase(), &facts);
        let next = self.next(&device, &view, &facts, &decision, verdict.as_ref()).await;
        if next.status != device.status {
            let options = Self::write_options();
            let written = self.parts.resources.replace_status_as(&next, &options).await;
            match written {
                Ok((written, _)) => self.wrote(&written),
                // Somebody else was faster; their change brings the object back.
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    return Ok(Outcome::Done);
                }
                Err(error) => return Err(error.into()),
            }
            self.announce(&device, &next);
        }
        if let Some(operation) = decision.operation() {
            if let Some(token) =
                next.status.operation.as_ref().filter(|_| operation.lock().is_some())
            {
                self.mine().insert(token.id.clone(), self.clock().elapsed());
            }
            self.enqueue(name);
        }
        self.keep_current(&next, &view).await
    }

    /// Lets an object go that is being deleted, once no operation owns its disk.
    async fn let_go(&self, device: &BlockDevice) -> Result<Outcome, Error> {
        let name = &device.metadata.name;
        if self.busy().contains(name) || !device.metadata.finalizers.iter().any(|f| f == FINALIZER)
        {
            return Ok(Outcome::Done);
        }
        let held = device.status.operation.as_ref().is_some_and(|token| token.lease_held);
        if held && !self.lease_free(device, self.assigned_disk(name).as_ref()).await {
            return Ok(Outcome::Done);
        }
        let resources = &self.parts.resources;
        write::remove_finalizer::<BlockDevice>(resources, None, name, MANAGER, FINALIZER).await?;
        Ok(Outcome::Done)
    }

    pub(super) fn assigned_disk(&self, name: &str) -> Option<Disk> {
        self.world().disk_of(name).map(|disk| (**disk).clone())
    }

    /// Reads the mount table and the record of an object, now, and its disk unless it was `seen` a
    /// moment ago.
    pub(super) async fn view(
        &self,
        device: &BlockDevice,
        seen: Option<Disk>,
    ) -> Result<View, Error> {
        let assigned = self.world().assigned.get(&device.metadata.name).cloned();
        let host = &self.parts.host;
        let disk = match (&assigned, seen) {
            (Some(_), Some(seen)) => Some(seen),
            (Some(assigned), None) => host.look(&assigned.disk).await?,
            (None, _) => None,
        };
        // What took the place of the disk since the last scan is not its disk.
        let expected = self.assigned_disk(&device.metadata.name);
        let disk = disk.filter(|disk| {
            expected.is_some_and(|expected| Device::of(&expected) == Device::of(disk))
        });
        let mounts = host.mounts().await?;
        let known = self.known(device).await?;
        Ok(View { disk, mounts, known, assigned })
    }

    /// What is known of the pool an object's disk is, if it may be one.
    async fn known(&self, device: &BlockDevice) -> Result<backend::Known, Error> {
        let used = device.wanted()
            || matches!(device.phase(), Some(Phase::Mounted | Phase::Provisioned | Phase::Failed))
            || device.phase().is_some_and(Phase::is_lock);
        if used {
            return Ok(self.parts.backend.look(&self.pool(device, None)).await?);
        }
        let record = Record::Missing;
        Ok(backend::Known { record, closed: false, ready: false, replicas: Vec::new() })
    }

    pub(super) async fn facts(&self, device: &BlockDevice, view: &View) -> Facts {
        let name = &device.metadata.name;
        let point = self.point(name);
        let lease_free = self.lease_free(device, view.disk.as_ref()).await;
        let sight = Sight {
            node: &self.options.node,
            disk: view.disk.as_ref(),
            point: &point,
            mounts: &view.mounts,
            record: view.known.record,
            closed: view.known.closed,
            lease_free,
        };
        let mut device = device.clone();
        if view.disk.is_some() {
            // The scan found it; the status is about to say so.
            device.status.state = State::Active;
        }
        facts::facts(&self.recalled(&device), &sight)
    }

    /// The object with what is remembered of its formatting, if its status has forgotten it.
    pub(super) fn recalled(&self, device: &BlockDevice) -> BlockDevice {
        let mut device = device.clone();
        if device.status.formatted.is_none()
            && device.phase() == Some(Phase::Unprovisioned)
            && let Some(remembered) = self.parts.memory.of(&device.metadata.name)
        {
            device.status.formatted = remembered.formatted;
        }
        device
    }

    async fn lease_free(&self, device: &BlockDevice, disk: Option<&Disk>) -> bool {
        let Some(disk) = disk else { return true };
        if !self.leases.is_free(&Device::of(disk)) {
            return false;
        }
        let held = device.status.operation.as_ref().is_some_and(|token| token.lease_held);
        !held || self.parts.host.lock(disk).await.is_ok()
    }

    /// Remembers what is wanted, before anything is done about it.
    async fn remember(&self, device: &BlockDevice, view: &View) -> Result<(), Error> {
        let Some(disk) = &view.disk else { return Ok(()) };
        let device = self.recalled(device);
        let worth = memory::worth(&device, &disk.identity());
        self.parts.memory.set(&device.metadata.name, worth).await.map_err(Error::Memory)
    }

    /// Asks for a blank disk that a rule takes.
    async fn take_unasked(&self, device: &BlockDevice, view: &View) -> Result<Taking, Error> {
        let Some(disk) = &view.disk else { return Ok(Taking::Not) };
        let recalled = self.recalled(device);
        let untouched = device.phase() == Some(Phase::Unprovisioned)
            && !device.wanted()
            && !device.spec.file_system.force_formatted
            && recalled.status.formatted.is_none();
        let duplicate = view.assigned.as_ref().is_some_and(|place| !place.duplicates.is_empty());
        let excluded = duplicate || self.excluded(disk, &view.mounts).is_some();
        if !untouched || excluded || !disk.contents.is_blank() {
            return Ok(Taking::Not);
        }
        let rule = {
            let world = self.world();
            world.config.takes(&self.options.node, disk).cloned()
        };
        let Some(rule) = rule else { return Ok(Taking::Not) };
        let (name, options) = (&device.metadata.name, Self::write_options());
        let resources = &self.parts.resources;
        let now = self.clock().now();
        let mut said = device.clone();
        let report = Report::new("AutoProvisionDetected", ConditionStatus::True, "RuleMatched")
            .message("an auto-provision rule takes this blank disk")
            .timed();
        conditions::set(&mut said.status.conditions, &report, now);
        let written = match resources.replace_status_as(&said, &options).await {
            Ok((written, _)) => written,
            Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Taking::Lost),
            Err(error) => return Err(error.into()),
        };
        let mut wanted = written;
        wanted.spec.provision = true;
        wanted.spec.file_system.force_formatted = true;
        wanted.spec.provisioner = rule.provisioner;
        if !rule.tags.is_empty() {
            wanted.spec.tags = rule.tags;
        }
        match resources.replace_as(&wanted, &options).await {
            Ok((written, _)) => {
                self.wrote(&written);
                let message = "an auto-provision rule takes this blank disk";
                self.tell(device, Severity::Normal, "AutoProvisionDetected", message);
                tracing::info!(name, path = disk.path, "auto-provisioning a blank disk");
                Ok(Taking::Done(Box::new(written)))
            }
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(Taking::Lost),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks the gate, where the table needs to know.
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
                let verdict = self.judge(device, view, disk, &facts).await;
                (Facts { gate: verdict.passes(), ..facts }, Some(verdict))
            }
            _ => (facts, None),
        }
    }

    /// What the gate says about formatting a disk.
    pub(super) async fn judge(
        &self,
        device: &BlockDevice,
        view: &View,
        disk: &Disk,
        facts: &Facts,
    ) -> Verdict {
        let uuid = self.parts.identities.uid();
        let scene = self.scene(device, view, disk, facts.auto, &uuid);
        let mut scene = self.parts.host.inspect(disk, scene).await;
        if scene.lock.is_none() && !self.leases.is_free(&Device::of(disk)) {
            scene.lock = Some("an operation of this agent holds the disk".to_owned());
        }
        gate::judge(&scene)
    }

    /// The scene as far as the shell knows it; the host fills in the rest.
    pub(super) fn scene(
        &self,
        device: &BlockDevice,
        view: &View,
        disk: &Disk,
        auto: bool,
        uuid: &str,
    ) -> Scene {
        let duplicates = view.assigned.as_ref().map_or(&[][..], |a| a.duplicates.as_slice());
        let resolved = if !duplicates.is_empty() {
            let mut paths = vec![disk.path.clone()];
            paths.extend_from_slice(duplicates);
            Resolved::Duplicate(paths)
        } else if identity::resolved(&disk.identity()) {
            Resolved::Single
        } else {
            Resolved::Not
        };
        let point = self.point(&device.metadata.name);
        let taken = {
            let world = self.world();
            let other = world.disks().values().find(|other| {
                other.name != disk.name && other.contents.signatures.iter().any(|s| s.uuid == uuid)
            });
            other.map(|other| other.path.clone())
        };
        let (minimum, acts) = match device.makes() {
            Makes::Filesystem(kind) => {
                let minimum = if kind == FsType::Xfs { gate::XFS_MINIMUM } else { gate::MINIMUM };
                (minimum, vec![Act::MakeFilesystem { kind, uuid: uuid.to_owned() }])
            }
            Makes::Lvm(lvm) => {
                let act = Act::MakeGroup { name: lvm.vg_name, parameters: lvm.parameters };
                (gate::MINIMUM, vec![act])
            }
        };
        let commands = acts.iter().flat_map(|act| self.parts.host.commands(disk, act)).collect();
        Scene {
            resolved,
            excluded: self.excluded(disk, &view.mounts),
            on_this_node: device.spec.node_name == self.options.node,
            system: None,
            mounts: Vec::new(),
            exclusive: None,
            holders: disk.holders.clone(),
            loops: Vec::new(),
            multipath_member: false,
            contents: Contents::default(),
            acknowledged: device.spec.acknowledge_data_loss.clone(),
            auto,
            read_only: disk.read_only,
            size: disk.size,
            minimum,
            sector: disk.logical_block,
            lock: None,
            changed: None,
            commands,
            target_uuid: uuid.to_owned(),
            uuid_taken: taken,
            point_taken: view
                .mounts
                .iter()
                .find(|line| line.point == point)
                .map(ToString::to_string),
            silent: None,
            audit: None,
        }
    }

    /// The object as it shall be written.
    async fn next(
        &self,
        device: &BlockDevice,
        view: &View,
        facts: &Facts,
        decision: &Decision,
        verdict: Option<&Verdict>,
    ) -> BlockDevice {
        let now = self.clock().now();
        let mut next = self.recalled(device);
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
            message: self.words(decision, view),
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
        self.answer_dry_run(&mut next, view, facts).await;
        next
    }

    /// Writes the token of an operation into the object that is about to be locked.
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
                Operation::Format => self.parts.identities.uid(),
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

    /// The token of an operation on a disk that is not there: it cannot be bound.
    fn lock_absent(&self, next: &mut BlockDevice, decision: &Decision, view: &View) {
        let Some(operation) = decision.operation() else { return };
        let mut token = self.token(operation, 0);
        token.device.path.clone_from(&next.status.device_status.dev_path);
        let point = self.point(&next.metadata.name);
        if view.mounts.iter().any(|line| line.point == point) {
            token.mount_point = point;
        }
        next.status.operation = Some(token);
    }

    fn token(&self, operation: Operation, size: u64) -> OperationStatus {
        let now = self.clock().now();
        let deadline = report::limit(operation, size).and_then(|limit| now.checked_add(limit).ok());
        OperationStatus {
            id: self.parts.identities.uid(),
            kind: operation.as_str().to_owned(),
            boot_id: self.parts.host.boot_id(),
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
            _ => self.point(name),
        }
    }

    fn words(&self, decision: &Decision, view: &View) -> String {
        let path = view.disk.as_ref().map_or("the disk", |disk| disk.path.as_str());
        match decision.operation() {
            Some(operation) => format!("{operation} of {path} is queued ({})", decision.row.id),
            None => format!("{path}: {} ({})", decision.row.guard, decision.row.id),
        }
    }

    /// Answers whoever asked what the gate would say.
    async fn answer_dry_run(&self, next: &mut BlockDevice, view: &View, facts: &Facts) {
        let Some(request) = next.metadata.annotations.get(DRY_RUN_ANNOTATION).cloned() else {
            return;
        };
        let answered = next.status.dry_run.as_ref().is_some_and(|said| said.request == request);
        let Some(disk) = view.disk.as_ref().filter(|_| !answered) else { return };
        let mut asked = next.clone();
        // The request may name what would be acknowledged: `NONCE:ext4,gpt`.
        if let Some((_, names)) = request.split_once(':') {
            let names = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
            asked.spec.acknowledge_data_loss = names.collect();
        }
        let facts = Facts { auto: false, ..*facts };
        let verdict = self.judge(&asked, view, disk, &facts).await;
        next.status.dry_run = Some(report::dry_run(&request, &verdict));
    }

    fn announce(&self, before: &BlockDevice, after: &BlockDevice) {
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
        self.tell(after, severity, new, &message);
        let name = &after.metadata.name;
        tracing::info!(name, from = old, to = new, "phase");
    }

    /// Keeps the record of a provisioned disk current.
    async fn keep_current(&self, device: &BlockDevice, view: &View) -> Result<Outcome, Error> {
        if device.phase() == Some(Phase::Mounted) && view.known.record == Record::NoNode {
            return Ok(Outcome::After(std::time::Duration::from_secs(5)));
        }
        let settled = device.phase() == Some(Phase::Provisioned) && device.wanted();
        if !settled || view.known.record != Record::Equal {
            return Ok(Outcome::Done);
        }
        let unready = match (device.status.state, view.disk.is_some()) {
            (State::Inactive, _) | (_, false) => Some("the disk is not there".to_owned()),
            _ => None,
        };
        let pool = self.pool(device, unready);
        let space = match &pool.unready {
            None => self.parts.host.space(&pool.place, path_of(device)).await?,
            Some(_) => crate::host::Space::default(),
        };
        match self.parts.backend.register(&pool, space).await {
            Ok(()) | Err(backend::Error::Conflict) => Ok(Outcome::After(self.options.refresh)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Where the disk of an object is.
pub(super) fn path_of(device: &BlockDevice) -> &str {
    &device.status.device_status.dev_path
}
