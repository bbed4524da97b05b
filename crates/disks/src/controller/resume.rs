//! An operation that this process did not begin: what to do about it, and beginning it once more.

use mainstay_controller::jobs::Slot;

use super::end::End;
use super::job::PATIENCE;
use super::reconcile::View;
use super::{Error, Shell};
use crate::api::{BlockDevice, OperationStatus};
use crate::facts;
use crate::host::Class;
use crate::phase::Operation;
use crate::recover::{self, Action, Interrupted};
use crate::report;

impl Shell {
    /// What to do about an operation that this process did not begin; nothing if it was settled.
    pub(super) async fn recover(
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
    pub(super) async fn begin_again(
        &self,
        device: &BlockDevice,
        token: OperationStatus,
        view: &View,
    ) -> Result<Option<(BlockDevice, OperationStatus)>, Error> {
        let mut next = token.clone();
        next.attempt += 1;
        next.boot_id = self.parts.host.boot_id();
        if let Some(disk) = &view.disk {
            next.device = report::bind(disk);
        }
        let mut stands = false;
        let written = self
            .write_status(&device.metadata.name, |now| {
                stands = is_held(now, device, &token);
                if stands {
                    now.status.operation = Some(next.clone());
                }
            })
            .await?;
        let Some(written) = written.filter(|_| stands) else { return Ok(None) };
        self.mine().insert(next.id.clone(), self.clock().elapsed());
        Ok(Some((written, next)))
    }

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

/// Whether an operation still owns the disk of an object.
pub(super) fn is_held(now: &BlockDevice, then: &BlockDevice, token: &OperationStatus) -> bool {
    now.metadata.uid == then.metadata.uid
        && now.phase().is_some_and(crate::phase::Phase::is_lock)
        && now.phase() == then.phase()
        && now.status.operation.as_ref().is_some_and(|held| held.id == token.id)
}
