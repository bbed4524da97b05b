//! Writing how an operation ended, for as long as it takes and only while its token stands; and
//! quarantine, for what could not be ended.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use mainstay_controller::events::Severity;
use mainstay_controller::write;
use mainstay_store::resources::Error as StoreError;

use super::end::{End, Hold};
use super::reconcile::View;
use super::resume::is_held;
use super::{MANAGER, Shell};
use crate::api::{BlockDevice, OperationStatus};
use crate::phase::{Ending, Facts, Input, Operation, Phase};
use crate::report::{self, Account};
use crate::{retry, table};

impl Shell {
    /// Changes the status of an object, reading it afresh as often as somebody else is faster.
    /// Nothing if it is gone.
    pub(super) async fn write_status(
        &self,
        name: &str,
        edit: impl FnMut(&mut BlockDevice) + Send,
    ) -> Result<Option<BlockDevice>, StoreError> {
        let written = write::set_status(&self.parts.resources, None, name, MANAGER, edit).await?;
        if let Some(device) = &written {
            self.wrote(device);
        }
        Ok(written)
    }

    /// Tries to write until it is written, or until the store says no. Says whether it was written.
    async fn insist<F>(&self, name: &str, what: &str, mut write: impl FnMut() -> F) -> bool
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut failures = 0;
        loop {
            match write().await {
                Ok(()) => return true,
                Err(error) if retry::is_final(&error) => {
                    tracing::error!(name, %error, "{what} may not be written; the next start takes it up");
                    return false;
                }
                Err(error) => {
                    failures += 1;
                    let wait = retry::pause(name, failures);
                    tracing::warn!(name, %error, ?wait, "{what} cannot be written yet");
                    self.clock().sleep(wait).await;
                }
            }
        }
    }

    /// Writes how an operation ended, if its token still stands.
    pub(super) async fn complete(
        self: &Arc<Self>,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        end: End,
        hold: Option<Hold>,
        mut view: View,
    ) {
        let End { ending, account, disk, stuck } = end;
        let name = &device.metadata.name;
        // Only what the operation itself changed is looked at anew; the next look sees the rest.
        view.disk = disk.or(view.disk);
        if let Ok(mounts) = self.parts.host.mounts().await {
            view.mounts = mounts;
        }
        // These say what they made of the disk, or leave it as it was.
        let told = matches!(operation, Operation::Format | Operation::Mount | Operation::Register);
        if let (Ending::Ok, true, Some(disk)) = (ending, told, &view.disk) {
            self.saw(name, disk.clone());
        }
        let write = || self.write_end(device, operation, token, ending, &account, &view);
        let written = self.insist(name, "an outcome", write).await;
        // The token of an outcome that may not be written stays ours: nothing is done twice for it.
        if let Some(token) = token.filter(|_| written) {
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
        view: &View,
    ) -> Result<(), StoreError> {
        let looked = self.facts(device, view).await;
        let now = self.clock().now();
        let mut counted = None;
        let stands = |next: &BlockDevice| match token {
            Some(token) => is_held(next, device, token),
            None => next.metadata.uid == device.metadata.uid && next.phase() == operation.lock(),
        };
        let name = &device.metadata.name;
        self.write_status(name, |next| {
            if !stands(next) || next.is_deleting() {
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
            if let Some(disk) = &view.disk {
                report::describe(next, disk, &view.mounts);
            }
            report::settle(next, &decision, &facts, account, now);
            counted = Some(next.clone());
        })
        .await?;
        match counted {
            Some(after) => self.say_end(device, operation, &after, account),
            None => {
                tracing::info!(name, %operation, "the result is discarded: its token no longer stands");
            }
        }
        Ok(())
    }

    fn say_end(
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
        reaped: BoxFuture<'static, ()>,
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
            let write = || async {
                let let_go = |next: &mut BlockDevice| {
                    next.status.operation.take_if(|token| token.lease_held);
                };
                shell.write_status(&name, let_go).await.map(drop)
            };
            let written = shell.insist(&name, "the end of quarantine", write);
            if shell.stop.run_until_cancelled(written).await.is_some() {
                shell.wake(&name);
            }
        });
    }
}
