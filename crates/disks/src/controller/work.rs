//! The operations on a disk itself: format, mount, unmount.

use std::time::Duration;

use mainstay_controller::jobs::Slot;
use mainstay_host::{Act, Class, Device, Disk, Lock, Trouble};

use super::end::{End, LockedDisk};
use super::observe::View;
use super::resume::is_held;
use super::worker::Worker;
use crate::api::{BlockDevice, BlockDeviceSpec, Makes, OperationStatus};
use crate::facts;
use crate::gate;
use crate::phase::{Content, Ending, Mount, Operation, Phase, Record};
use crate::recover::{self, Interrupted};

impl Worker {
    /// Runs an operation.
    pub(super) async fn perform(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: &OperationStatus,
        locked: Option<&LockedDisk>,
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
        if operation == Operation::Unmount
            && let Some(what) = gate::pool_in_use(&view.known)
            && is_mounted_at(view, &token.mount_point)
        {
            let message = format!("{} was not unmounted: {what}", token.device.path);
            return End::badly(Ending::Busy, Some("InUse"), message);
        }
        let ended = match (operation, locked) {
            (Operation::Format, Some(locked)) => self.format(device, token, locked, view).await,
            (Operation::Mount, Some(locked)) => self.mount(device, token, locked).await,
            (Operation::Unmount, locked) => self.unmount(token, locked).await,
            (Operation::Register, Some(locked)) => self.register(device, locked, slot).await,
            (Operation::Deregister, locked) => self.deregister(device, locked, slot).await,
            (Operation::Format | Operation::Mount | Operation::Register, None) => {
                Err(Trouble::Gone(format!("{} is not attached", token.device.path)))
            }
            (Operation::Sync, _) => Ok(End::well("nothing to do")),
        };
        ended.unwrap_or_else(End::from)
    }

    /// Formats a disk (wipes it, for LVM) if the gate passes under the lease.
    async fn format(
        &self,
        device: &BlockDevice,
        token: &OperationStatus,
        locked: &LockedDisk,
        view: &View,
    ) -> Result<End, Trouble> {
        let host = &self.machine.host;
        let disk = &locked.disk;
        let auto = facts::is_auto(device) && token.acknowledged.is_empty();
        let inspection = self.observer.inspect(device, disk, true).await;
        let target = &token.target_fs_uuid;
        let mut scene = self.observer.scene(device, view, disk, auto, target, inspection);
        scene.acknowledged.clone_from(&token.acknowledged);
        let resumed = token.attempt > 1;
        if resumed {
            let contents = &mut scene.inspection.contents;
            contents.signatures.retain(|found| found.uuid != *target);
            let left = gate::entries(contents);
            scene.acknowledged.retain(|entry| left.contains(entry));
        }
        let verdict = gate::judge(&scene);
        if !verdict.passes() {
            return Ok(End::badly(Ending::Error, Some("Refused"), verdict.reasons()));
        }
        let limit = self.machine.options.limit(Operation::Format, disk.size);
        self.use_up(device, token, limit).await?;
        let signatures = gate::entries(&scene.inspection.contents);
        let who = if auto { "an auto-provision rule" } else { "spec.fileSystem.forceFormatted" };
        let line = format!(
            "operation={} device={} path={} number={} diskseq={} size={} identity={:?} signatures={signatures:?} acknowledged={:?} why={who} attempt={}",
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
            .await
            .map_err(|why| Trouble::Failed(format!("writing the audit line failed: {why}")))?;
        let found = scene.inspection.contents.names();
        if !found.is_empty() {
            host.operate(disk, &Act::Wipe { names: found }, &locked.lock, limit).await?;
        }
        let Makes::Filesystem(kind) = device.makes() else {
            let after = self.same_after(disk).await?;
            if !after.contents.is_blank() {
                let left = after.contents.names().join(", ");
                return Err(Trouble::Failed(format!("{left} is still there after wiping")));
            }
            let message = format!("{} was wiped", disk.path);
            return Ok(End::made(message, String::new()).seen(after));
        };
        let uuid = token.target_fs_uuid.clone();
        let act = Act::MakeFilesystem { kind, uuid: uuid.clone() };
        host.operate(disk, &act, &locked.lock, limit).await?;
        let after = self.same_after(disk).await?;
        let made = after.contents.only().is_some_and(|found| found.uuid == uuid);
        if !made {
            let path = &disk.path;
            return Err(Trouble::Failed(format!("the new filesystem is not found on {path}")));
        }
        let message = format!("{} was formatted with {}", disk.path, kind.as_str());
        Ok(End::made(message, uuid).seen(after))
    }

    /// Removes the acknowledgement that a format uses from the spec, before the first byte is written:
    /// no other operation can use it, whatever becomes of this one.
    async fn use_up(
        &self,
        device: &BlockDevice,
        token: &OperationStatus,
        limit: Duration,
    ) -> Result<(), Trouble> {
        if token.acknowledged.is_empty() {
            return Ok(());
        }
        let remove = |spec: &mut BlockDeviceSpec| {
            if spec.acknowledge_data_loss == token.acknowledged {
                spec.acknowledge_data_loss.clear();
            }
        };
        self.change_spec(device, token, limit, &remove).await
    }

    /// Changes the spec while an operation owns the disk, before the operation has any effect.
    async fn change_spec(
        &self,
        device: &BlockDevice,
        token: &OperationStatus,
        limit: Duration,
        change: &(dyn Fn(&mut BlockDeviceSpec) + Send + Sync),
    ) -> Result<(), Trouble> {
        let name = &device.metadata.name;
        let write = || async move {
            let edit = |now: &mut BlockDevice| {
                if is_held(now, device, token) {
                    change(&mut now.spec);
                }
            };
            self.devices.set_spec(name, edit).await.map(drop)
        };
        tokio::select! {
            biased;
            written = self.write_until_done(name, write) => if written { return Ok(()) },
            () = self.machine.clock.sleep(limit) => {}
        }
        let why = "the word that allowed the operation could not be removed from the spec; nothing was done to the disk";
        Err(Trouble::Failed(why.to_owned()))
    }

    /// The disk after a destructive step; it must still be the same disk.
    pub(super) async fn same_after(&self, disk: &Disk) -> Result<Disk, Trouble> {
        let after = self.machine.host.look(&disk.name).await?;
        let same =
            after.filter(|after| Device::of(after) == Device::of(disk) && after.size == disk.size);
        same.ok_or_else(|| {
            Trouble::Gone(format!(
                "{} was replaced by another disk during the operation",
                disk.path
            ))
        })
    }

    /// Mounts the filesystem of a disk.
    async fn mount(
        &self,
        device: &BlockDevice,
        token: &OperationStatus,
        locked: &LockedDisk,
    ) -> Result<End, Trouble> {
        let host = &self.machine.host;
        let disk = &locked.disk;
        let point = self.machine.point(&device.metadata.name);
        if facts::content(device, disk) == Content::Foreign {
            let message = format!("{} holds another filesystem than recorded", disk.path);
            return Ok(End::badly(Ending::Error, Some("IdentityChanged"), message));
        }
        match facts::mount(Some(disk), &point, &host.mounts().await?) {
            Mount::Right => return Ok(End::well(format!("{} is mounted at {point}", disk.path))),
            Mount::Stacked | Mount::WrongSource => {
                return Err(Trouble::Busy(format!("another filesystem is mounted at {point}")));
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
        let limit = self.machine.options.limit(Operation::Mount, disk.size);
        let filesystem = &device.spec.file_system;
        if filesystem.repaired || !filesystem.adopt.is_empty() {
            let remove = |spec: &mut BlockDeviceSpec| {
                spec.file_system.repaired = false;
                spec.file_system.adopt.clear();
            };
            self.change_spec(device, token, limit, &remove).await?;
        }
        host.operate(disk, &act, &locked.lock, limit).await?;
        match facts::mount(Some(disk), &point, &host.mounts().await?) {
            Mount::Right => Ok(End::well(format!("{} is mounted at {point}", disk.path))),
            other => Err(Trouble::Failed(format!("after mounting at {point}: {other:?}"))),
        }
    }

    /// Unmounts everything at the mount point of the token.
    async fn unmount(
        &self,
        token: &OperationStatus,
        locked: Option<&LockedDisk>,
    ) -> Result<End, Trouble> {
        let host = &self.machine.host;
        let point = &token.mount_point;
        let limit = self.machine.options.limit(Operation::Unmount, 0);
        let nowhere = Lock { file: None, guard: None };
        let absent = Disk { path: token.device.path.clone(), ..Disk::default() };
        let (disk, lock) =
            locked.map_or((&absent, &nowhere), |locked| (&locked.disk, &locked.lock));
        for _ in 0..8 {
            if !host.mounts().await?.iter().any(|line| line.point == *point) {
                return Ok(End::well(format!("nothing is mounted at {point}")));
            }
            let act = Act::Unmount { point: point.clone(), vanished: locked.is_none() };
            host.operate(disk, &act, lock, limit).await?;
        }
        Err(Trouble::Busy(format!("{point} is still mounted after 8 attempts to unmount it")))
    }
}

/// Whether the disk of a view is what is mounted at a point.
fn is_mounted_at(view: &View, point: &str) -> bool {
    let disk = view.disk.as_ref();
    disk.is_some_and(|disk| {
        view.mounts.iter().any(|line| line.point == point && line.number == disk.number)
    })
}
