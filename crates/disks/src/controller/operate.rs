//! What a lock phase stands for, run from the job queue under the device lease.
//!
//! A job takes the key, reads the object when its turn comes, and does what the token says. It never
//! reports success it has not seen, and never reports at all once the token no longer stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_controller::events::Severity;
use mainstay_controller::jobs::Slot;
use mainstay_controller::rate::Backoff;
use mainstay_store::resources::{Error as StoreError, Subresource};

use super::reconcile::View;
use super::{Error, Shell};
use crate::api::{BlockDevice, Makes, OperationStatus};
use crate::backend;
use crate::gate;
use crate::host::{Act, Class, Disk, Lock, Trouble};
use crate::lease::{Device, Lease};
use crate::phase::{Content, Ending, Facts, Input, Mount, Operation, Phase, Record};
use crate::recover::{self, Action, Interrupted};
use crate::report::{self, Account};
use crate::{facts, table};

/// How long one waits before looking again whether another process let go of a disk.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a forced unmount of a lost disk may take.
const FORCED: Duration = Duration::from_secs(30);
/// How long one waits at most before looking again whether replicas are gone.
const EVICTION: Duration = Duration::from_secs(60);

/// How an operation ended, and what is to be said about it.
struct End {
    ending: Ending,
    account: Account,
    stuck: Option<futures_util::future::BoxFuture<'static, ()>>,
}

impl End {
    fn well(message: impl Into<String>) -> Self {
        let account = Account { message: message.into(), ..Account::default() };
        Self { ending: Ending::Ok, account, stuck: None }
    }

    fn made(message: impl Into<String>, uuid: String) -> Self {
        let mut end = Self::well(message);
        end.account.uuid = Some(uuid);
        end
    }

    fn badly(ending: Ending, reason: Option<&str>, message: impl Into<String>) -> Self {
        let reason = reason.map(str::to_owned);
        let account = Account { message: message.into(), reason, ..Account::default() };
        Self { ending, account, stuck: None }
    }
}

impl From<Trouble> for End {
    fn from(trouble: Trouble) -> Self {
        let message = trouble.message().to_owned();
        match trouble {
            Trouble::Failed(_) => Self::badly(Ending::Error, None, message),
            Trouble::BadSuperblock(_) => Self::badly(Ending::BadSuperblock, None, message),
            Trouble::Busy(_) => Self::badly(Ending::Busy, Some("Busy"), message),
            Trouble::Gone(_) => Self::badly(Ending::Error, Some("DeviceGone"), message),
            Trouble::TimedOut(_) => Self::badly(Ending::Timeout, Some("OperationTimeout"), message),
            Trouble::Stuck(_, reaped) => {
                let mut end = Self::badly(Ending::Timeout, Some("OperationTimeout"), message);
                end.account.lease_held = true;
                end.stuck = Some(reaped);
                end
            }
        }
    }
}

/// What holds a disk while an operation runs.
struct Hold {
    disk: Disk,
    lock: Lock,
    _lease: Lease,
}

impl Hold {
    /// The same, over the disk as it is now; nothing if it is another.
    fn over(self, disk: &Disk) -> Option<Self> {
        let same = Device::of(disk) == Device::of(&self.disk);
        same.then(|| Self { disk: disk.clone(), ..self })
    }
}

impl Shell {
    /// One turn of an object in the queue.
    pub(super) async fn run_job(self: &Arc<Self>, mut slot: Slot<String>) {
        let name = slot.key().clone();
        let stopping = slot.stopping().clone();
        let acting = AtomicBool::new(false);
        {
            let mut turn = std::pin::pin!(self.turn(&name, &mut slot, &acting));
            tokio::select! {
                biased;
                () = &mut turn => {}
                // What is under way is finished; what only waits is taken up by the next start.
                () = stopping.cancelled() => if acting.load(Ordering::SeqCst) {
                    turn.await;
                }
            }
        }
        self.busy().remove(&name);
        self.wake(&name);
    }

    async fn turn(self: &Arc<Self>, name: &str, slot: &mut Slot<String>, acting: &AtomicBool) {
        let mut failures = 0;
        loop {
            match self.attempt(name, slot, acting).await {
                Ok(()) => return,
                Err(error) => {
                    failures += 1;
                    let wait = Backoff::default().after(failures);
                    tracing::warn!(name, %error, ?wait, "an operation could not begin; will try again");
                    let sleep = self.clock().sleep(wait);
                    slot.release_while(sleep).await;
                }
            }
        }
    }

    /// Reads the object and does what its token says.
    async fn attempt(
        self: &Arc<Self>,
        name: &str,
        slot: &mut Slot<String>,
        acting: &AtomicBool,
    ) -> Result<(), Error> {
        let device = self.parts.resources.get_as::<BlockDevice>(None, name).await?;
        let Some(device) = device.filter(|device| device.spec.node_name == self.options.node)
        else {
            return Ok(());
        };
        if device.is_deleting() {
            // Nothing is begun for an object on its way out; what was begun is discarded.
            return Ok(());
        }
        let Some(operation) = device.phase().and_then(Operation::of) else {
            return self.synchronise(&device).await;
        };
        let token = device.status.operation.clone();
        let queued = token.as_ref().and_then(|token| self.mine().get(&token.id).copied());
        let begun = self.clock().elapsed();
        if let Some(queued) = queued {
            self.parts.metrics.waited(begun.saturating_sub(queued));
        }
        let view = self.view(&device).await?;
        let hold = self.hold(&view, slot).await?;
        // What was seen before the wait for the lock may be long past, and the operation with it.
        let now = self.parts.resources.get_as::<BlockDevice>(None, name).await?;
        let stands = now.as_ref().is_some_and(|now| match &token {
            Some(token) => is_held(now, &device, token),
            None => now.phase() == device.phase(),
        });
        if !stands {
            return Ok(());
        }
        let view = self.view(&device).await?;
        let hold = hold.and_then(|hold| hold.over(view.disk.as_ref()?));
        // Emptying a pool waits for others; everything else is brought to its end.
        acting.store(operation != Operation::Deregister, Ordering::SeqCst);
        let (end, token) = match (queued, token) {
            (Some(_), Some(token)) => (
                self.perform(&device, operation, &token, hold.as_ref(), &view, slot).await,
                Some(token),
            ),
            (_, token) => {
                let Some(action) =
                    self.recover(&device, operation, token.as_ref(), &view, slot).await
                else {
                    return Ok(());
                };
                match (action, token) {
                    (Action::Run, Some(token)) => {
                        let Some(token) = self.begin_again(&device, token, &view).await? else {
                            return Ok(());
                        };
                        let device = self.parts.resources.get_as::<BlockDevice>(None, name).await?;
                        let Some(device) = device else { return Ok(()) };
                        let end = self
                            .perform(&device, operation, &token, hold.as_ref(), &view, slot)
                            .await;
                        (end, Some(token))
                    }
                    (Action::Accept, token) => {
                        (self.accepted(operation, token.as_ref(), &view), token)
                    }
                    (Action::Fail { reason, message }, token) => {
                        (End::badly(Ending::Error, Some(reason), message), token)
                    }
                    (Action::Run | Action::Wait, token) => {
                        let message = "nobody knows what was begun";
                        (End::badly(Ending::Error, Some("NoToken"), message), token)
                    }
                }
            }
        };
        acting.store(true, Ordering::SeqCst);
        let took = self.clock().elapsed().saturating_sub(begun);
        self.parts.metrics.ended(operation, outcome(&end), took);
        self.complete(&device, operation, token.as_ref(), end, hold).await;
        Ok(())
    }

    /// Takes the lease and the lock of a disk, waiting without a slot; nothing if it is not there.
    async fn hold(&self, view: &View, slot: &mut Slot<String>) -> Result<Option<Hold>, Error> {
        let Some(disk) = &view.disk else { return Ok(None) };
        let device = Device::of(disk);
        let lease = match self.leases.try_take(&device) {
            Some(lease) => lease,
            None => slot.release_while(self.leases.take(&device)).await,
        };
        loop {
            match self.parts.host.lock(disk).await {
                Ok(lock) => return Ok(Some(Hold { disk: disk.clone(), lock, _lease: lease })),
                Err(Trouble::Busy(why)) => {
                    tracing::info!(path = disk.path, why, "waiting for another process");
                    slot.release_while(self.clock().sleep(PATIENCE)).await;
                }
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// What to do about an operation that this process did not begin; nothing if it was settled.
    async fn recover(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        view: &View,
        slot: &mut Slot<String>,
    ) -> Option<Action> {
        let boot_id = self.parts.host.boot_id();
        let point = self.point(&device.metadata.name);
        loop {
            let disk = match &view.disk {
                Some(disk) => self.parts.host.look(&disk.name).await.ok().flatten(),
                None => None,
            };
            let destructive = operation == Operation::Format;
            let busy = match &disk {
                Some(disk) if destructive => self.parts.host.is_busy(disk).await,
                _ => false,
            };
            let mounts = self.parts.host.mounts().await.unwrap_or_default();
            let action = recover::recover(&Interrupted {
                phase: operation.lock()?,
                token,
                boot_id: &boot_id,
                disk: disk.as_ref(),
                busy,
                mount: facts::mount(disk.as_ref(), &point, &mounts),
                record: view.known.record,
            });
            let name = &device.metadata.name;
            tracing::info!(name, %operation, ?action, "taking up an interrupted operation");
            if action != Action::Wait {
                return Some(action);
            }
            slot.release_while(self.clock().sleep(PATIENCE)).await;
        }
    }

    /// Counts one more beginning, and binds the operation to the disk as it is called in this boot.
    /// Nothing if the token no longer stands.
    async fn begin_again(
        &self,
        device: &BlockDevice,
        token: OperationStatus,
        view: &View,
    ) -> Result<Option<OperationStatus>, Error> {
        let mut next = token.clone();
        next.attempt += 1;
        next.boot_id = self.parts.host.boot_id();
        if let Some(disk) = &view.disk {
            next.device = report::bind(disk);
        }
        let mut stands = false;
        let (name, options) = (&device.metadata.name, Self::write_options());
        let written = self
            .parts
            .resources
            .modify_as(None, name, Some(Subresource::Status), &options, |now: &mut BlockDevice| {
                stands = is_held(now, device, &token);
                if stands {
                    now.status.operation = Some(next.clone());
                }
            })
            .await;
        match written {
            Ok(_) if stands => {
                self.mine().insert(next.id.clone(), self.clock().elapsed());
                Ok(Some(next))
            }
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn accepted(&self, operation: Operation, token: Option<&OperationStatus>, view: &View) -> End {
        let message = format!("{operation} had been done before the agent was interrupted");
        let found = view.disk.as_ref().and_then(|disk| disk.contents.only());
        match (operation, token, found) {
            (Operation::Format, Some(token), _) => End::made(message, token.target_fs_uuid.clone()),
            (Operation::Register, _, Some(found)) if found.class == Class::Lvm => {
                End::made(message, found.uuid.clone())
            }
            _ => End::well(message),
        }
    }

    /// Does what an operation is.
    async fn perform(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: &OperationStatus,
        hold: Option<&Hold>,
        view: &View,
        slot: &mut Slot<String>,
    ) -> End {
        let seen = Interrupted {
            phase: operation.lock().unwrap_or(Phase::Failed),
            token: Some(token),
            boot_id: &token.boot_id,
            disk: view.disk.as_ref(),
            busy: false,
            mount: Mount::Nowhere,
            record: Record::Missing,
        };
        let bound = matches!(operation, Operation::Format | Operation::Mount | Operation::Register);
        if bound && let Some((reason, message)) = recover::differs(&seen, token) {
            return End::badly(Ending::Error, Some(reason), message);
        }
        let ended = match (operation, hold) {
            (Operation::Format, Some(hold)) => self.format(device, token, hold, view).await,
            (Operation::Mount, Some(hold)) => self.mount(device, hold).await,
            (Operation::Unmount, hold) => self.unmount(token, hold).await,
            (Operation::Register, Some(hold)) => self.register(device, hold).await,
            (Operation::Deregister, hold) => self.deregister(device, hold, slot).await,
            (Operation::Format | Operation::Mount | Operation::Register, None) => {
                Err(Trouble::Gone(format!("{} is not there", token.device.path)))
            }
            (Operation::Sync, _) => Ok(End::well("nothing to do")),
        };
        ended.unwrap_or_else(End::from)
    }

    /// Formats a disk (or wipes it, for LVM), once the gate has passed under the lease.
    async fn format(
        &self,
        device: &BlockDevice,
        token: &OperationStatus,
        hold: &Hold,
        view: &View,
    ) -> Result<End, Trouble> {
        let host = &self.parts.host;
        let disk = &hold.disk;
        let auto = facts::is_auto(device);
        let mut scene = self.scene(device, view, disk, auto, &token.target_fs_uuid);
        scene.acknowledged.clone_from(&token.acknowledged);
        scene.lock = Some("held by this operation".to_owned());
        let mut scene = host.inspect(disk, scene).await;
        let resumed = token.attempt > 1;
        if resumed {
            let target = &token.target_fs_uuid;
            scene.contents.signatures.retain(|found| found.uuid != *target);
            scene.acknowledged.retain(|name| scene.contents.names().contains(name));
        }
        let verdict = gate::judge(&scene);
        if !verdict.passes() {
            return Ok(End::badly(Ending::Error, Some("Refused"), verdict.reasons()));
        }
        let found = scene.contents.names();
        let who = if auto { "an auto-provision rule" } else { "spec.fileSystem.forceFormatted" };
        let line = format!(
            "operation={} device={} path={} number={} diskseq={} size={} identity={:?} signatures={found:?} acknowledged={:?} why={who} attempt={}",
            token.id,
            device.metadata.name,
            disk.path,
            disk.number,
            disk.diskseq,
            disk.size,
            token.device.identity,
            token.acknowledged,
            token.attempt,
        );
        host.audit(&line)
            .map_err(|why| Trouble::Failed(format!("no audit line, no write: {why}")))?;
        let limit = self.options.limit(Operation::Format, disk.size);
        if !found.is_empty() {
            host.operate(disk, &Act::Wipe { names: found }, &hold.lock, limit).await?;
        }
        let Makes::Filesystem(kind) = device.makes() else {
            let after = self.same_after(disk).await?;
            if !after.contents.is_blank() {
                let left = after.contents.names().join(", ");
                return Err(Trouble::Failed(format!("{left} is still there after wiping")));
            }
            return Ok(End::made(format!("{} was wiped", disk.path), String::new()));
        };
        let uuid = token.target_fs_uuid.clone();
        let act = Act::MakeFilesystem { kind, uuid: uuid.clone() };
        host.operate(disk, &act, &hold.lock, limit).await?;
        let after = self.same_after(disk).await?;
        let made = after.contents.only().is_some_and(|found| found.uuid == uuid);
        if !made {
            let path = &disk.path;
            return Err(Trouble::Failed(format!("the new filesystem is not found on {path}")));
        }
        Ok(End::made(format!("{} was formatted with {}", disk.path, kind.as_str()), uuid))
    }

    /// The disk after something destructive; it must still be the same.
    async fn same_after(&self, disk: &Disk) -> Result<Disk, Trouble> {
        let after = self.parts.host.look(&disk.name).await?;
        let same =
            after.filter(|after| Device::of(after) == Device::of(disk) && after.size == disk.size);
        same.ok_or_else(|| Trouble::Gone(format!("{} changed while it was worked on", disk.path)))
    }

    async fn mount(&self, device: &BlockDevice, hold: &Hold) -> Result<End, Trouble> {
        let host = &self.parts.host;
        let disk = &hold.disk;
        let point = self.point(&device.metadata.name);
        if facts::content(device, disk) == Content::Foreign {
            let message = format!("{} holds another filesystem than recorded", disk.path);
            return Ok(End::badly(Ending::Error, Some("IdentityChanged"), message));
        }
        match facts::mount(Some(disk), &point, &host.mounts().await?) {
            Mount::Right => return Ok(End::well(format!("{} is mounted at {point}", disk.path))),
            Mount::Stacked | Mount::WrongSource => {
                return Err(Trouble::Busy(format!("something is mounted at {point} already")));
            }
            Mount::Nowhere | Mount::Elsewhere => {}
        }
        let recorded = match device.makes() {
            Makes::Filesystem(kind) => kind.as_str().to_owned(),
            Makes::Lvm(_) => {
                return Err(Trouble::Failed("a volume group is not mounted".to_owned()));
            }
        };
        let found = disk.contents.of_class(Class::Filesystem).map(|found| found.name.clone());
        let act = Act::Mount { kind: found.unwrap_or(recorded), point: point.clone() };
        let limit = self.options.limit(Operation::Mount, disk.size);
        host.operate(disk, &act, &hold.lock, limit).await?;
        match facts::mount(Some(disk), &point, &host.mounts().await?) {
            Mount::Right => Ok(End::well(format!("{} is mounted at {point}", disk.path))),
            other => Err(Trouble::Failed(format!("after mounting at {point}: {other:?}"))),
        }
    }

    /// Unmounts everything at the point the operation is about.
    async fn unmount(&self, token: &OperationStatus, hold: Option<&Hold>) -> Result<End, Trouble> {
        let host = &self.parts.host;
        let point = &token.mount_point;
        let limit = self.options.limit(Operation::Unmount, 0);
        let nowhere = Lock { file: None, guard: None };
        let absent = Disk { path: token.device.path.clone(), ..Disk::default() };
        let (disk, lock) = hold.map_or((&absent, &nowhere), |hold| (&hold.disk, &hold.lock));
        for _ in 0..8 {
            if !host.mounts().await?.iter().any(|line| line.point == *point) {
                return Ok(End::well(format!("nothing is mounted at {point}")));
            }
            let act = Act::Unmount { point: point.clone(), vanished: hold.is_none() };
            host.operate(disk, &act, lock, limit).await?;
        }
        Err(Trouble::Busy(format!("{point} is mounted again and again")))
    }

    /// Tells what uses disks about one; for LVM, makes the group first.
    async fn register(&self, device: &BlockDevice, hold: &Hold) -> Result<End, Trouble> {
        let limit = self.options.limit(Operation::Register, 0);
        let work = self.register_now(device, hold, limit);
        tokio::select! {
            biased;
            ended = work => ended,
            () = self.clock().sleep(limit) => {
                Err(Trouble::TimedOut("what uses disks did not take it in time".to_owned()))
            }
        }
    }

    async fn register_now(
        &self,
        device: &BlockDevice,
        hold: &Hold,
        limit: Duration,
    ) -> Result<End, Trouble> {
        let host = &self.parts.host;
        let mut uuid = None;
        if let Makes::Lvm(lvm) = device.makes() {
            if device.recorded_uuid().is_empty() {
                let (name, parameters) = (lvm.vg_name, lvm.parameters);
                let act = Act::MakeGroup { name, parameters };
                host.operate(&hold.disk, &act, &hold.lock, limit).await?;
            }
            let after = self.same_after(&hold.disk).await?;
            let made = after.contents.of_class(Class::Lvm).map(|found| found.uuid.clone());
            uuid = Some(made.ok_or_else(|| {
                Trouble::Failed(format!("no physical volume is found on {}", hold.disk.path))
            })?);
        }
        let pool = self.pool(device, None);
        let space = host.space(&pool.place).await?;
        let mut failures = 0;
        loop {
            match self.parts.backend.register(&pool, space).await {
                Ok(()) => break,
                Err(backend::Error::Conflict) => {}
                Err(backend::Error::NoNode) => {
                    return Ok(End::badly(Ending::NodeGone, None, "the node is not known yet"));
                }
                Err(backend::Error::Refused(why)) => return Err(Trouble::Failed(why)),
                Err(backend::Error::Unavailable(why)) => {
                    failures += 1;
                    let wait = Backoff::default().after(failures);
                    tracing::warn!(why, ?wait, "a pool cannot be registered yet");
                    self.clock().sleep(wait).await;
                }
            }
        }
        let message = format!("registered with {} free", crate::text::size(space.free));
        Ok(match uuid {
            Some(uuid) => End::made(message, uuid),
            None => End::well(message),
        })
    }

    /// Closes the pool, waits (without a slot) until it is empty, and removes it.
    async fn deregister(
        &self,
        device: &BlockDevice,
        hold: Option<&Hold>,
        slot: &mut Slot<String>,
    ) -> Result<End, Trouble> {
        let (backend, pool) = (&self.parts.backend, self.pool(device, None));
        let lost = hold.is_none() || device.status.device_status.file_system.corrupted;
        let mut failures = 0;
        loop {
            let step = async {
                let known = backend.look(&pool).await?;
                if known.record == Record::Missing || known.record == Record::NoNode {
                    return Ok(Some(0));
                }
                backend.close(&pool).await?;
                if known.replicas == 0 || (lost && known.closed) {
                    backend.remove(&pool, lost).await?;
                    return Ok(Some(0));
                }
                Ok::<_, backend::Error>(Some(known.replicas).filter(|_| !lost))
            };
            match step.await {
                Ok(Some(0)) => break,
                Ok(Some(replicas)) => {
                    self.progress(device, replicas).await;
                    let sleep = self.clock().sleep(EVICTION);
                    let changed = backend.changed(&pool);
                    let wait = async {
                        tokio::select! { () = changed => {}, () = sleep => {} }
                    };
                    slot.release_while(wait).await;
                }
                Ok(None) | Err(backend::Error::Conflict) => {}
                Err(backend::Error::Refused(why)) => return Err(Trouble::Failed(why)),
                Err(error) => {
                    failures += 1;
                    let wait = Backoff::default().after(failures);
                    tracing::warn!(%error, ?wait, "a pool cannot be taken out of use yet");
                    slot.release_while(self.clock().sleep(wait)).await;
                }
            }
        }
        match (device.makes(), hold) {
            (Makes::Lvm(lvm), Some(hold)) if hold.disk.contents.of_class(Class::Lvm).is_some() => {
                let limit = self.options.limit(Operation::Register, 0);
                let act = Act::RemoveGroup { name: lvm.vg_name };
                self.parts.host.operate(&hold.disk, &act, &hold.lock, limit).await?;
            }
            (Makes::Filesystem(_), None) => {
                // The disk is lost: what is left of its mount is taken away as well as can be.
                let point = self.point(&device.metadata.name);
                let (disk, lock) = (Disk::default(), Lock { file: None, guard: None });
                let act = Act::Unmount { point, vanished: true };
                if let Err(trouble) = self.parts.host.operate(&disk, &act, &lock, FORCED).await {
                    tracing::warn!(%trouble, "a lost disk could not be unmounted");
                }
            }
            _ => {}
        }
        Ok(End::well("out of use"))
    }

    /// Says how many replicas are still there.
    async fn progress(&self, device: &BlockDevice, replicas: usize) {
        let message = format!("waiting until {replicas} replicas have moved elsewhere");
        self.tell(device, Severity::Normal, "Evicting", &message);
        let now = self.clock().now();
        let name = &device.metadata.name;
        let token = device.status.operation.clone().unwrap_or_default();
        let written = self
            .parts
            .resources
            .modify_as(
                None,
                name,
                Some(Subresource::Status),
                &Self::write_options(),
                |next: &mut BlockDevice| {
                    if is_held(next, device, &token) {
                        use mainstay_controller::conditions::{Report, set};
                        use mainstay_store::meta::ConditionStatus::True;
                        let report = Report::new("Provisioned", True, "Evicting").message(&message);
                        set(&mut next.status.conditions, &report, now);
                    }
                },
            )
            .await;
        if let Err(error) = written {
            tracing::debug!(%error, "progress could not be reported");
        }
    }

    /// Brings the tags of a provisioned disk up to date.
    async fn synchronise(&self, device: &BlockDevice) -> Result<(), Error> {
        let view = self.view(device).await?;
        let wanted = device.phase() == Some(Phase::Provisioned) && device.wanted();
        if !wanted || view.known.record != Record::OtherTags {
            return Ok(());
        }
        let Some(disk) = &view.disk else { return Ok(()) };
        let Some(_lease) = self.leases.try_take(&Device::of(disk)) else { return Ok(()) };
        let pool = self.pool(device, None);
        let space = self.parts.host.space(&pool.place).await?;
        match self.parts.backend.register(&pool, space).await {
            Ok(()) | Err(backend::Error::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
        let (name, tags) = (&device.metadata.name, device.spec.tags.clone());
        let written = self
            .parts
            .resources
            .modify_as(
                None,
                name,
                Some(Subresource::Status),
                &Self::write_options(),
                |next: &mut BlockDevice| {
                    next.status.tags.clone_from(&tags);
                },
            )
            .await;
        match written {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Writes how an operation ended, for as long as it takes, if its token still stands.
    async fn complete(
        self: &Arc<Self>,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        end: End,
        hold: Option<Hold>,
    ) {
        let End { ending, account, stuck } = end;
        let mut failures = 0;
        loop {
            match self.write_end(device, operation, token, ending, &account).await {
                Ok(()) => break,
                Err(error) => {
                    failures += 1;
                    let wait = Backoff::default().after(failures);
                    let name = &device.metadata.name;
                    tracing::warn!(name, %error, ?wait, "an outcome cannot be written yet");
                    self.clock().sleep(wait).await;
                }
            }
        }
        if let Some(token) = token {
            self.mine().remove(&token.id);
        }
        if let Some(reaped) = stuck {
            self.quarantine(device, reaped, hold);
        }
    }

    async fn write_end(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        ending: Ending,
        account: &Account,
    ) -> Result<(), StoreError> {
        let view = match self.view(device).await {
            Ok(view) => Some(view),
            Err(Error::Store(error)) => return Err(error),
            Err(_) => None,
        };
        let looked = match &view {
            Some(view) => self.facts(device, view).await,
            None => Facts::blank(),
        };
        let name = &device.metadata.name;
        let now = self.clock().now();
        let mut counted = None;
        let written = self
            .parts
            .resources
            .modify_as(
                None,
                name,
                Some(Subresource::Status),
                &Self::write_options(),
                |next: &mut BlockDevice| {
                    let stands = match token {
                        Some(token) => is_held(next, device, token),
                        None => {
                            next.metadata.uid == device.metadata.uid
                                && next.phase() == operation.lock()
                        }
                    };
                    if !stands || next.is_deleting() {
                        return;
                    }
                    let facts = Facts {
                        input: Input::Ended(ending),
                        want: next.wanted(),
                        // Taking a pool out of use begins with closing it.
                        closed: looked.closed || operation == Operation::Deregister,
                        ..looked
                    };
                    let decision = table::decide(next.phase(), &facts);
                    if let Some(View { disk: Some(disk), mounts, .. }) = &view {
                        report::describe(next, disk, mounts);
                    }
                    report::settle(next, &decision, &facts, account, now);
                    counted = Some(next.clone());
                },
            )
            .await;
        match written {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        }
        match counted {
            Some(after) => self.finish(device, operation, &after, account),
            None => {
                tracing::info!(name, %operation, "the result is discarded: its token no longer stands")
            }
        }
        Ok(())
    }

    fn finish(
        &self,
        before: &BlockDevice,
        operation: Operation,
        after: &BlockDevice,
        account: &Account,
    ) {
        let (old, new) = (&before.status.provision_phase, &after.status.provision_phase);
        let failed = after.phase() == Some(Phase::Failed);
        let (severity, message) = match &after.status.failure {
            Some(failure) if failed => (Severity::Warning, failure.message.as_str()),
            _ => (Severity::Normal, account.message.as_str()),
        };
        self.tell(after, severity, new, &format!("{old} → {new}: {message}"));
        let name = &after.metadata.name;
        tracing::info!(name, %operation, from = old, to = new, message, "an operation ended");
    }

    /// Keeps the lease of what could not be ended until it ends by itself.
    fn quarantine(
        self: &Arc<Self>,
        device: &BlockDevice,
        reaped: futures_util::future::BoxFuture<'static, ()>,
        hold: Option<Hold>,
    ) {
        let (shell, name) = (self.clone(), device.metadata.name.clone());
        let message = "an operation cannot be ended; the disk stays locked until it ends by itself";
        self.tell(device, Severity::Warning, "Quarantined", message);
        self.tasks.spawn(async move {
            // At shutdown the children keep the lock themselves.
            if shell.stop.run_until_cancelled(reaped).await.is_none() {
                return;
            }
            drop(hold);
            let options = Self::write_options();
            let mut failures = 0;
            loop {
                let written = shell
                    .parts
                    .resources
                    .modify_as(None, &name, Some(Subresource::Status), &options, |next: &mut BlockDevice| {
                        next.status.operation.take_if(|token| token.lease_held);
                    })
                    .await;
                match written {
                    Err(error) if !error.is_not_found() => {
                        failures += 1;
                        let wait = Backoff::default().after(failures);
                        tracing::warn!(name, %error, ?wait, "the end of quarantine cannot be written yet");
                        let sleep = shell.clock().sleep(wait);
                        if shell.stop.run_until_cancelled(sleep).await.is_none() {
                            return;
                        }
                    }
                    _ => break,
                }
            }
            shell.wake(&name);
        });
    }
}

/// Whether an operation still owns the disk of an object.
fn is_held(now: &BlockDevice, then: &BlockDevice, token: &OperationStatus) -> bool {
    now.metadata.uid == then.metadata.uid
        && now.phase().is_some_and(Phase::is_lock)
        && now.phase() == then.phase()
        && now.status.operation.as_ref().is_some_and(|held| held.id == token.id)
}

fn outcome(end: &End) -> &'static str {
    match (end.ending, end.stuck.is_some()) {
        (Ending::Ok, _) => "ok",
        (Ending::Timeout, true) => "stuck",
        (Ending::Timeout, false) => "timeout",
        _ => "error",
    }
}
