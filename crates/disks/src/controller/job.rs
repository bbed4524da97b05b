//! One job of the queue: lock the disk, read the object, and run the operation of its token.
//!
//! The disk is locked first, so that everything is read once, and under the lease. A job reports
//! success only after it has verified it, and reports nothing once its token is no longer in the object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_controller::jobs::Slot;
use mainstay_host::{Device, Trouble};

use super::Error;
use super::end::{End, LockedDisk};
use super::observe::View;
use super::worker::Worker;
use crate::api::{BlockDevice, OperationStatus};
use crate::phase::{Ending, Operation};
use crate::recover::Action;
use crate::retry;

/// How soon a disk that another process has locked is tried again.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// For how long an object that this process wrote need not be read from the store.
const MOMENT: Duration = Duration::from_secs(2);

impl Worker {
    /// Runs the job of one object.
    pub(super) async fn run_job(self: &Arc<Self>, mut slot: Slot<String>) {
        let name = slot.key().clone();
        let stopping = slot.stopping().clone();
        let acting = AtomicBool::new(false);
        {
            let mut turn = std::pin::pin!(self.retry(&name, &mut slot, &acting));
            tokio::select! {
                biased;
                () = &mut turn => {}
                // A running operation is finished; one that only waits is resumed by the next start.
                () = stopping.cancelled() => if acting.load(Ordering::SeqCst) {
                    turn.await;
                }
            }
        }
        self.operations.finished(&name);
        self.signals.reconcile(&name);
    }

    /// Tries until an attempt succeeds, with back-off.
    async fn retry(self: &Arc<Self>, name: &str, slot: &mut Slot<String>, acting: &AtomicBool) {
        let mut failures = 0;
        loop {
            match self.attempt(name, slot, acting).await {
                Ok(()) => return,
                Err(Error::Store(error)) if retry::is_final(&error) => {
                    tracing::error!(
                        device = name,
                        %error,
                        "the store refused an operation; it is resumed at the next start"
                    );
                    return;
                }
                Err(error) => {
                    failures += 1;
                    let wait = retry::pause(name, failures);
                    tracing::warn!(device = name, %error, ?wait, "starting an operation failed; retrying");
                    let sleep = self.machine.clock.sleep(wait);
                    slot.release_while(sleep).await;
                }
            }
        }
    }

    /// Locks the disk, reads the object, and runs the operation of its token.
    async fn attempt(
        self: &Arc<Self>,
        name: &str,
        slot: &mut Slot<String>,
        acting: &AtomicBool,
    ) -> Result<(), Error> {
        let begun = self.machine.clock.elapsed();
        let locked = self.lock(name, slot).await?;
        let device = self.object(name).await?;
        // No operation starts for an object that is being deleted.
        let ours = |device: &BlockDevice| {
            device.spec.node_name == self.machine.options.node && !device.is_deleting()
        };
        let Some(device) = device.filter(ours) else { return Ok(()) };
        let Some(operation) = device.phase().and_then(Operation::of) else {
            return self.update_tags(&device, locked.is_some()).await;
        };
        let token = device.status.operation.clone();
        let queued = token.as_ref().and_then(|token| self.operations.queued_at(&token.id));
        if let Some(queued) = queued {
            self.machine.metrics.waited(begun.saturating_sub(queued));
        }
        let view = self.observer.view(&device, None).await?;
        let locked = locked.and_then(|locked| locked.over(view.disk.as_ref()?));
        // Emptying a pool may wait for long; every other operation is finished before a shutdown.
        acting.store(operation != Operation::Deregister, Ordering::SeqCst);
        let ended = match (queued, token) {
            (Some(_), Some(token)) => {
                let end =
                    self.perform(&device, operation, &token, locked.as_ref(), &view, slot).await;
                Some((end, Some(token)))
            }
            (_, token) => {
                self.resume(&device, operation, token, locked.as_ref(), &view, slot).await?
            }
        };
        let Some((end, token)) = ended else { return Ok(()) };
        acting.store(true, Ordering::SeqCst);
        // The disk is done; writing the result needs its lease, but no slot.
        slot.release();
        let took = self.machine.clock.elapsed().saturating_sub(begun);
        self.machine.metrics.ended(operation, end.outcome(), took);
        self.complete(&device, operation, token.as_ref(), end, locked, view).await;
        Ok(())
    }

    /// The object as it is now. If this process wrote its token a moment ago, the copy is current;
    /// otherwise the store is read.
    async fn object(&self, name: &str) -> Result<Option<BlockDevice>, Error> {
        let now = self.machine.clock.elapsed();
        let is_ours = |device: &BlockDevice| {
            let token = device.status.operation.as_ref();
            let queued = token.and_then(|token| self.operations.queued_at(&token.id));
            queued.is_some_and(|queued| now.saturating_sub(queued) < MOMENT)
        };
        match self.devices.find(name).filter(|device| is_ours(device)) {
            Some(device) => Ok(Some((*device).clone())),
            None => Ok(self.devices.read(name).await?),
        }
    }

    /// Finishes an operation that another process began. `None` if its token is no longer in the object.
    async fn resume(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: Option<OperationStatus>,
        locked: Option<&LockedDisk>,
        view: &View,
        slot: &mut Slot<String>,
    ) -> Result<Option<(End, Option<OperationStatus>)>, Error> {
        let action = self.recover(device, operation, token.as_ref(), view, slot).await;
        Ok(match (action, token) {
            (None, _) => None,
            (Some(Action::Run), Some(token)) => {
                let Some((device, token)) = self.begin_again(device, token, view).await? else {
                    return Ok(None);
                };
                let end = self.perform(&device, operation, &token, locked, view, slot).await;
                Some((end, Some(token)))
            }
            (Some(Action::Accept), token) => {
                Some((self.accepted(operation, token.as_ref(), view), token))
            }
            (Some(Action::Fail { reason, message }), token) => {
                Some((End::badly(Ending::Error, Some(reason), message), token))
            }
            (Some(Action::Run | Action::Wait), token) => {
                let message = "the object has no token: the interrupted operation is unknown";
                Some((End::badly(Ending::Error, Some("NoToken"), message), token))
            }
        })
    }

    /// Takes the lease and the lock of an object's disk, and waits for them without a slot. `None` if
    /// the disk is gone.
    async fn lock(&self, name: &str, slot: &mut Slot<String>) -> Result<Option<LockedDisk>, Error> {
        let Some(disk) = self.observer.inventory.disk_of(name) else { return Ok(None) };
        let device = Device::of(&disk);
        let lease = match self.operations.leases.try_take(&device) {
            Some(lease) => lease,
            None => slot.release_while(self.operations.leases.take(&device)).await,
        };
        loop {
            match self.machine.host.lock(&disk).await {
                Ok(lock) => return Ok(Some(LockedDisk { disk, lock, _lease: lease })),
                Err(Trouble::Busy(why)) => {
                    tracing::info!(
                        path = disk.path,
                        why,
                        "disk is locked by another process; waiting"
                    );
                    slot.release_while(self.machine.clock.sleep(PATIENCE)).await;
                }
                Err(Trouble::Gone(_)) => return Ok(None),
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }
}
