//! Operations that another process began: whether they are done, must run again, or failed.

use mainstay_controller::jobs::Slot;
use mainstay_host::Class;

use super::Error;
use super::end::End;
use super::job::PATIENCE;
use super::observe::View;
use super::worker::Worker;
use crate::api::{BlockDevice, OperationStatus};
use crate::facts;
use crate::phase::Operation;
use crate::recover::{self, Action, Interrupted};
use crate::report;

impl Worker {
    /// Decides about an operation that another process began; `None` if it has no lock phase.
    pub(super) async fn recover(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        view: &View,
        slot: &mut Slot<String>,
    ) -> Option<Action> {
        let boot_id = self.machine.host.boot_id();
        let point = self.machine.point(&device.metadata.name);
        loop {
            let disk = match &view.disk {
                Some(disk) => self.machine.host.look(&disk.name).await.ok().flatten(),
                None => None,
            };
            let destructive = operation == Operation::Format;
            let busy = match &disk {
                Some(disk) if destructive => self.machine.host.is_busy(disk).await,
                _ => false,
            };
            let mounts = self.machine.host.mounts().await.unwrap_or_default();
            let action = recover::recover(&Interrupted {
                phase: operation.lock()?,
                token,
                boot_id: &boot_id,
                disk: disk.as_ref(),
                busy,
                mount: facts::mount(disk.as_ref(), &point, &mounts),
                record: view.known.record,
            });
            let device = &device.metadata.name;
            tracing::info!(device, %operation, ?action, "resuming an interrupted operation");
            if action != Action::Wait {
                return Some(action);
            }
            slot.release_while(self.machine.clock.sleep(PATIENCE)).await;
        }
    }

    /// Counts one more attempt, and binds the operation to the disk by its device number of this boot.
    /// `None` if the token is no longer in the object.
    pub(super) async fn begin_again(
        &self,
        device: &BlockDevice,
        token: OperationStatus,
        view: &View,
    ) -> Result<Option<(BlockDevice, OperationStatus)>, Error> {
        let mut next = token.clone();
        next.attempt += 1;
        next.boot_id = self.machine.host.boot_id();
        if let Some(disk) = &view.disk {
            next.device = report::bind(disk);
        }
        let mut current = false;
        let written = self
            .devices
            .set_status(&device.metadata.name, |now| {
                current = is_held(now, device, &token);
                if current {
                    now.status.operation = Some(next.clone());
                }
            })
            .await?;
        let Some(written) = written.filter(|_| current) else { return Ok(None) };
        self.operations.own(&next.id, self.machine.clock.elapsed());
        Ok(Some((written, next)))
    }

    /// The end of an operation that was done before the agent was interrupted.
    pub(super) fn accepted(
        &self,
        operation: Operation,
        token: Option<&OperationStatus>,
        view: &View,
    ) -> End {
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
}

/// Whether a token still owns the disk of an object.
pub(super) fn is_held(now: &BlockDevice, then: &BlockDevice, token: &OperationStatus) -> bool {
    now.metadata.uid == then.metadata.uid
        && now.phase().is_some_and(crate::phase::Phase::is_lock)
        && now.phase() == then.phase()
        && now.status.operation.as_ref().is_some_and(|held| held.id == token.id)
}
