//! The operations on the pool of a disk: register it, empty it, remove it.

use std::time::Duration;

use mainstay_controller::conditions::{self, Report};
use mainstay_controller::events::Severity;
use mainstay_controller::jobs::Slot;
use mainstay_host::{Act, Class, Disk, Lock, Trouble};
use mainstay_store::meta::ConditionStatus;

use super::Error;
use super::end::{End, LockedDisk};
use super::reconcile::path_of;
use super::resume::is_held;
use super::worker::Worker;
use crate::api::{BlockDevice, Makes};
use crate::backend::{self, Pool};
use crate::phase::{Ending, Operation, Phase, Record};
use crate::retry;

/// How long a forced unmount of a lost disk may take.
const FORCED: Duration = Duration::from_secs(30);
/// How long to wait at most before checking again whether the replicas are gone.
const EVICTION: Duration = Duration::from_secs(60);

impl Worker {
    /// Registers the pool of a disk; for LVM, creates the volume group first.
    pub(super) async fn register(
        &self,
        device: &BlockDevice,
        locked: &LockedDisk,
        slot: &Slot<String>,
    ) -> Result<End, Trouble> {
        let limit = self.machine.options.limit(Operation::Register, 0);
        let work = self.register_now(device, locked, slot, limit);
        tokio::select! {
            biased;
            ended = work => ended,
            () = self.machine.clock.sleep(limit) => {
                Err(Trouble::TimedOut("the pool was not registered in time".to_owned()))
            }
        }
    }

    async fn register_now(
        &self,
        device: &BlockDevice,
        locked: &LockedDisk,
        slot: &Slot<String>,
        limit: Duration,
    ) -> Result<End, Trouble> {
        let host = &self.machine.host;
        let mut made = None;
        if let Makes::Lvm(lvm) = device.makes() {
            if device.recorded_uuid().is_empty() {
                let (name, parameters) = (lvm.vg_name, lvm.parameters);
                let act = Act::MakeGroup { name, parameters };
                host.operate(&locked.disk, &act, &locked.lock, limit).await?;
            }
            let after = self.same_after(&locked.disk).await?;
            let uuid = after.contents.of_class(Class::Lvm).map(|found| found.uuid.clone());
            let uuid = uuid.ok_or_else(|| {
                Trouble::Failed(format!("no physical volume is found on {}", locked.disk.path))
            })?;
            made = Some((uuid, after));
        }
        let pool = self.machine.pool(device, None);
        let space = host.space(&pool.place, &locked.disk.path).await?;
        // The rest only waits for the server.
        slot.release();
        let mut failures = 0;
        loop {
            match self.machine.backend.register(&pool, space).await {
                Ok(()) => break,
                Err(backend::Error::Conflict) => {}
                Err(backend::Error::NoNode) => {
                    return Ok(End::badly(Ending::NodeGone, None, "the node is not known yet"));
                }
                Err(backend::Error::Refused(why)) => return Err(Trouble::Failed(why)),
                Err(backend::Error::Unavailable(why)) => {
                    failures += 1;
                    let wait = retry::pause(&pool.device, failures);
                    tracing::warn!(
                        device = pool.device,
                        why,
                        ?wait,
                        "registering a pool failed; retrying"
                    );
                    self.machine.clock.sleep(wait).await;
                }
            }
        }
        let message = format!("registered with {} free", crate::text::size(space.free));
        Ok(match made {
            Some((uuid, after)) => End::made(message, uuid).seen(after),
            None => End::well(message),
        })
    }

    /// Asks for the pool to be emptied, waits (without a slot) until it is, and removes it.
    pub(super) async fn deregister(
        &self,
        device: &BlockDevice,
        locked: Option<&LockedDisk>,
        slot: &mut Slot<String>,
    ) -> Result<End, Trouble> {
        let pool = self.machine.pool(device, None);
        let lost = locked.is_none() || device.status.device_status.file_system.corrupted;
        let mut failures = 0;
        loop {
            match self.empty(&pool, lost).await {
                Ok(left) if left.is_empty() => break,
                Ok(left) => {
                    self.report_progress(device, &left).await;
                    let sleep = self.machine.clock.sleep(EVICTION);
                    let changed = self.machine.backend.changed(&pool);
                    let wait = async {
                        tokio::select! { () = changed => {}, () = sleep => {} }
                    };
                    slot.release_while(wait).await;
                }
                Err(backend::Error::Conflict) => {}
                Err(backend::Error::Refused(why)) => return Err(Trouble::Failed(why)),
                Err(error) => {
                    failures += 1;
                    let wait = retry::pause(&pool.device, failures);
                    tracing::warn!(device = pool.device, %error, ?wait, "removing a pool failed; retrying");
                    slot.release_while(self.machine.clock.sleep(wait)).await;
                }
            }
        }
        self.clean_up(device, locked).await?;
        Ok(End::well("out of use"))
    }

    /// Asks for a pool to be emptied, and removes it if it is empty. Returns the replicas still on it.
    async fn empty(&self, pool: &Pool, lost: bool) -> Result<Vec<String>, backend::Error> {
        let backend = &self.machine.backend;
        let known = backend.look(pool).await?;
        if !known.record.exists() && (known.replicas.is_empty() || lost) {
            return Ok(Vec::new());
        }
        if known.record == Record::Missing {
            // No record is left to mark, but the replicas still have to leave.
            return Ok(known.replicas);
        }
        backend.evict(pool).await?;
        // Replicas of a lost disk cannot be moved; they are made again from their peers.
        if known.replicas.is_empty() || lost {
            backend.remove(pool, lost).await?;
            return Ok(Vec::new());
        }
        Ok(known.replicas)
    }

    /// Removes the volume group, or the mount of a lost disk, after the pool is gone.
    async fn clean_up(
        &self,
        device: &BlockDevice,
        locked: Option<&LockedDisk>,
    ) -> Result<(), Trouble> {
        match (device.makes(), locked) {
            (Makes::Lvm(lvm), Some(locked)) if is_recorded(device, &locked.disk) => {
                let limit = self.machine.options.limit(Operation::Register, 0);
                let act = Act::RemoveGroup { name: lvm.vg_name };
                self.machine.host.operate(&locked.disk, &act, &locked.lock, limit).await
            }
            (Makes::Filesystem(_), None) => {
                // The disk is lost: a mount that is left over is removed if that is possible.
                let point = self.machine.point(&device.metadata.name);
                let (disk, lock) = (Disk::default(), Lock { file: None, guard: None });
                let act = Act::Unmount { point, vanished: true };
                if let Err(trouble) = self.machine.host.operate(&disk, &act, &lock, FORCED).await {
                    let device = &device.metadata.name;
                    tracing::warn!(device, %trouble, "unmounting a lost disk failed");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reports which replicas are still on the pool.
    async fn report_progress(&self, device: &BlockDevice, replicas: &[String]) {
        let message = waiting_for(replicas);
        self.machine.event(device, Severity::Normal, "Evicting", &message);
        let now = self.machine.clock.now();
        let token = device.status.operation.clone().unwrap_or_default();
        let written = self
            .devices
            .set_status(&device.metadata.name, |next| {
                if is_held(next, device, &token) {
                    let report = Report::new("Provisioned", ConditionStatus::True, "Evicting");
                    conditions::set(&mut next.status.conditions, &report.message(&message), now);
                }
            })
            .await;
        if let Err(error) = written {
            let device = &device.metadata.name;
            tracing::debug!(device, %error, "writing eviction progress failed");
        }
    }

    /// Updates the tags of a provisioned disk, if its lease is held.
    pub(super) async fn update_tags(&self, device: &BlockDevice, held: bool) -> Result<(), Error> {
        let wanted = device.phase() == Some(Phase::Provisioned) && device.wanted();
        let pool = self.machine.pool(device, None);
        if !held || !wanted || self.machine.backend.look(&pool).await?.record != Record::OtherTags {
            return Ok(());
        }
        let space = self.machine.host.space(&pool.place, path_of(device)).await?;
        match self.machine.backend.register(&pool, space).await {
            Ok(()) | Err(backend::Error::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
        self.devices
            .set_status(&device.metadata.name, |next| next.status.tags.clone_from(&pool.tags))
            .await?;
        Ok(())
    }
}

/// Whether the physical volume on a disk is the recorded one. Another one is left alone.
fn is_recorded(device: &BlockDevice, disk: &Disk) -> bool {
    let volume = disk.contents.of_class(Class::Lvm);
    volume.is_some_and(|volume| volume.uuid == device.recorded_uuid())
}

/// A message with the replicas that an eviction waits for: the first few by name.
fn waiting_for(replicas: &[String]) -> String {
    const NAMED: usize = 5;
    let names = replicas.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match replicas.len() {
        1 => format!("waiting until replica {names} has moved elsewhere"),
        count if count <= NAMED => {
            format!("waiting until {count} replicas have moved elsewhere: {names}")
        }
        count => {
            let more = count - NAMED;
            format!("waiting until {count} replicas have moved elsewhere: {names} and {more} more")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_names_the_replicas_it_waits_for() {
        let names = |count: usize| (0..count).map(|n| format!("rv-{n}")).collect::<Vec<_>>();
        assert!(waiting_for(&names(1)).contains("replica rv-0 has"));
        assert!(waiting_for(&names(5)).ends_with("rv-0, rv-1, rv-2, rv-3, rv-4"));
        assert!(waiting_for(&names(7)).ends_with("rv-4 and 2 more"));
    }
}
