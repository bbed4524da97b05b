//! Writes the result of an operation, retrying for as long as its token is in the object, and holds the
//! lease of an operation whose processes could not be killed.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use mainstay_controller::events::Severity;
use mainstay_store::resources::Error as StoreError;

use super::end::{End, LockedDisk};
use super::observe::View;
use super::resume::is_held;
use super::worker::Worker;
use crate::api::{BlockDevice, OperationStatus};
use crate::phase::{Ending, Facts, Input, Operation, Phase};
use crate::report::{self, Account};
use crate::{identity, memory, retry, table};

impl Worker {
    /// Writes until that succeeds or the store refuses. Returns whether it succeeded.
    pub(super) async fn write_until_done<F>(&self, name: &str, mut write: impl FnMut() -> F) -> bool
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut failures = 0;
        loop {
            match write().await {
                Ok(()) => return true,
                Err(error) if retry::is_final(&error) => {
                    tracing::error!(
                        device = name,
                        %error,
                        "the store refused the result of an operation; the next start resumes it"
                    );
                    return false;
                }
                Err(error) => {
                    failures += 1;
                    let wait = retry::pause(name, failures);
                    tracing::warn!(
                        device = name,
                        %error,
                        ?wait,
                        "writing the result of an operation failed; retrying"
                    );
                    self.machine.clock.sleep(wait).await;
                }
            }
        }
    }

    /// Writes how an operation ended, if its token is still in the object.
    pub(super) async fn complete(
        self: &Arc<Self>,
        device: &BlockDevice,
        operation: Operation,
        token: Option<&OperationStatus>,
        end: End,
        locked: Option<LockedDisk>,
        mut view: View,
    ) {
        let End { ending, account, disk, stuck } = end;
        let name = &device.metadata.name;
        // Only the parts that the operation changed are read again; the next reconciliation reads all.
        view.disk = disk.or(view.disk);
        if let Ok(mounts) = self.machine.host.mounts().await {
            view.mounts = mounts;
        }
        // These return the disk as they left it, or do not change it.
        let certain =
            matches!(operation, Operation::Format | Operation::Mount | Operation::Register);
        if let (Ending::Ok, true, Some(disk)) = (ending, certain, &view.disk) {
            self.observer.inventory.keep_fresh(name, disk.clone());
        }
        let write = || self.write_end(device, operation, token, ending, &account, &view);
        let written = self.write_until_done(name, write).await;
        // The token of a result that was refused stays ours, so that the operation does not run twice.
        if let Some(token) = token.filter(|_| written) {
            self.operations.disown(&token.id);
        }
        if let Some(reaped) = stuck {
            self.quarantine(device, reaped, locked);
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
        let observed = self.observer.facts(device, view).await;
        let now = self.machine.clock.now();
        let (mut counted, mut deleted) = (None, None);
        let is_current = |next: &BlockDevice| match token {
            Some(token) => is_held(next, device, token),
            None => next.metadata.uid == device.metadata.uid && next.phase() == operation.lock(),
        };
        let name = &device.metadata.name;
        self.devices
            .set_status(name, |next| {
                if !is_current(next) {
                    return;
                }
                let facts = Facts {
                    input: Input::Ended(ending),
                    want: next.wanted(),
                    // Removing a pool begins with closing it.
                    closed: observed.closed || operation == Operation::Deregister,
                    ..observed
                };
                let decision = table::decide(next.phase(), &facts);
                let mut after = next.clone();
                if let Some(disk) = &view.disk {
                    report::describe(&mut after, disk, &view.mounts);
                }
                report::settle(&mut after, &decision, &facts, account, now);
                if next.is_deleting() {
                    deleted = Some(after);
                } else {
                    next.clone_from(&after);
                    counted = Some(after);
                }
            })
            .await?;
        if let Some(after) = deleted {
            self.remember_result(&after, operation, view).await;
            return Ok(());
        }
        match counted {
            Some(after) => self.report_end(device, operation, &after, account),
            None => {
                tracing::info!(
                    device = name,
                    %operation,
                    "result discarded: its token is no longer in the object"
                );
            }
        }
        Ok(())
    }

    /// Keeps the result of an operation on an object that is being deleted: the object that is created
    /// again for the same disk takes it over.
    async fn remember_result(&self, after: &BlockDevice, operation: Operation, view: &View) {
        let Some(disk) = &view.disk else { return };
        let device = &after.metadata.name;
        let worth = memory::worth(after, &identity::of(disk));
        match self.machine.memory.set(device, worth).await {
            Ok(()) => tracing::info!(device, %operation, "result of a deleted object remembered"),
            Err(error) => {
                tracing::warn!(device, %operation, %error, "result of a deleted object is lost");
            }
        }
    }

    /// Logs the end of an operation, and records an Event about it.
    fn report_end(
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
        self.machine.event(after, severity, new, &format!("{old} → {new}: {message}"));
        let device = &after.metadata.name;
        tracing::info!(device, %operation, from = old, to = new, detail = message, "operation ended");
    }

    /// Keeps the lease of an operation whose processes could not be killed until they end.
    fn quarantine(
        self: &Arc<Self>,
        device: &BlockDevice,
        reaped: BoxFuture<'static, ()>,
        locked: Option<LockedDisk>,
    ) {
        let (worker, name) = (self.clone(), device.metadata.name.clone());
        let message =
            "an operation could not be ended; the disk stays locked until it ends by itself";
        self.machine.event(device, Severity::Warning, "Quarantined", message);
        self.tasks.spawn(async move {
            // At shutdown the processes keep the lock themselves.
            if worker.stop.run_until_cancelled(reaped).await.is_none() {
                return;
            }
            drop(locked);
            let write = || async {
                let release = |next: &mut BlockDevice| {
                    next.status.operation.take_if(|token| token.lease_held);
                };
                worker.devices.set_status(&name, release).await.map(drop)
            };
            let written = worker.write_until_done(&name, write);
            if worker.stop.run_until_cancelled(written).await.is_some() {
                worker.signals.reconcile(&name);
            }
        });
    }
}
