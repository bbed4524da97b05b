//! One turn of an object in the job queue: take the disk, read the object, do what its token says.
//!
//! The disk is taken first, so that everything is read once, and under the lease. A job never
//! reports success it has not seen, and never reports at all once its token no longer stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_controller::jobs::Slot;

use super::end::{End, Hold};
use super::reconcile::View;
use super::{Error, Shell};
use crate::api::{BlockDevice, OperationStatus};
use crate::host::Trouble;
use crate::lease::Device;
use crate::phase::{Ending, Operation};
use crate::recover::Action;
use crate::retry;

/// How long one waits before looking again whether another process let go of a disk.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long what this process wrote itself need not be read.
const MOMENT: Duration = Duration::from_secs(2);

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
                Err(Error::Store(error)) if retry::is_final(&error) => {
                    tracing::error!(name, %error, "an operation may not begin; it is taken up at the next start");
                    return;
                }
                Err(error) => {
                    failures += 1;
                    let wait = retry::pause(name, failures);
                    tracing::warn!(name, %error, ?wait, "an operation could not begin; will try again");
                    let sleep = self.clock().sleep(wait);
                    slot.release_while(sleep).await;
                }
            }
        }
    }

    /// Takes the disk, reads the object, and does what its token says.
    async fn attempt(
        self: &Arc<Self>,
        name: &str,
        slot: &mut Slot<String>,
        acting: &AtomicBool,
    ) -> Result<(), Error> {
        let begun = self.clock().elapsed();
        let hold = self.hold(name, slot).await?;
        let device = self.object(name).await?;
        // Nothing is begun for an object on its way out; what was begun is discarded.
        let ours = |device: &BlockDevice| {
            device.spec.node_name == self.options.node && !device.is_deleting()
        };
        let Some(device) = device.filter(ours) else { return Ok(()) };
        let Some(operation) = device.phase().and_then(Operation::of) else {
            return self.synchronise(&device, hold.is_some()).await;
        };
        let token = device.status.operation.clone();
        let queued = token.as_ref().and_then(|token| self.mine().get(&token.id).copied());
        if let Some(queued) = queued {
            self.parts.metrics.waited(begun.saturating_sub(queued));
        }
        let view = self.view(&device, None).await?;
        let hold = hold.and_then(|hold| hold.over(view.disk.as_ref()?));
        // Emptying a pool waits for others; everything else is brought to its end.
        acting.store(operation != Operation::Deregister, Ordering::SeqCst);
        let ended = match (queued, token) {
            (Some(_), Some(token)) => {
                let end =
                    self.perform(&device, operation, &token, hold.as_ref(), &view, slot).await;
                Some((end, Some(token)))
            }
            (_, token) => {
                self.take_up_again(&device, operation, token, hold.as_ref(), &view, slot).await?
            }
        };
        let Some((end, token)) = ended else { return Ok(()) };
        acting.store(true, Ordering::SeqCst);
        // The disk is done with; telling so holds up nobody but its own lease.
        slot.release();
        let took = self.clock().elapsed().saturating_sub(begun);
        self.parts.metrics.ended(operation, end.outcome(), took);
        self.complete(&device, operation, token.as_ref(), end, hold, view).await;
        Ok(())
    }

    /// The object as it is now. One that bears a token this process wrote a moment ago is as the
    /// copy shows it; any other is read.
    async fn object(&self, name: &str) -> Result<Option<BlockDevice>, Error> {
        let now = self.clock().elapsed();
        let is_ours = |device: &BlockDevice| {
            let token = device.status.operation.as_ref();
            let queued = token.and_then(|token| self.mine().get(&token.id).copied());
            queued.is_some_and(|queued| now.saturating_sub(queued) < MOMENT)
        };
        match self.objects.find(None, name).filter(|device| is_ours(device)) {
            Some(device) => Ok(Some((*device).clone())),
            None => Ok(self.parts.resources.get_as(None, name).await?),
        }
    }

    /// Does what is left of an operation that this process did not begin. Nothing if the token no
    /// longer stands.
    async fn take_up_again(
        &self,
        device: &BlockDevice,
        operation: Operation,
        token: Option<OperationStatus>,
        hold: Option<&Hold>,
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
                let end = self.perform(&device, operation, &token, hold, view, slot).await;
                Some((end, Some(token)))
            }
            (Some(Action::Accept), token) => {
                Some((self.accepted(operation, token.as_ref(), view), token))
            }
            (Some(Action::Fail { reason, message }), token) => {
                Some((End::badly(Ending::Error, Some(reason), message), token))
            }
            (Some(Action::Run | Action::Wait), token) => {
                let message = "nobody knows what was begun";
                Some((End::badly(Ending::Error, Some("NoToken"), message), token))
            }
        })
    }

    /// Takes the lease and the lock of an object's disk, waiting without a slot; nothing if the disk
    /// is not there any more.
    async fn hold(&self, name: &str, slot: &mut Slot<String>) -> Result<Option<Hold>, Error> {
        let Some(disk) = self.assigned_disk(name) else { return Ok(None) };
        let device = Device::of(&disk);
        let lease = match self.leases.try_take(&device) {
            Some(lease) => lease,
            None => slot.release_while(self.leases.take(&device)).await,
        };
        loop {
            match self.parts.host.lock(&disk).await {
                Ok(lock) => return Ok(Some(Hold { disk, lock, _lease: lease })),
                Err(Trouble::Busy(why)) => {
                    tracing::info!(path = disk.path, why, "waiting for another process");
                    slot.release_while(self.clock().sleep(PATIENCE)).await;
                }
                Err(Trouble::Gone(_)) => return Ok(None),
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }
}
