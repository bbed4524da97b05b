//! What operations tell whoever uses disks: a pool is there, is emptied, is gone.

use std::time::Duration;

use mainstay_controller::conditions::{self, Report};
use mainstay_controller::events::Severity;
use mainstay_controller::jobs::Slot;
use mainstay_store::meta::ConditionStatus;

use super::end::{End, Hold};
use super::reconcile::path_of;
use super::resume::is_held;
use super::{Error, Shell};
use crate::api::{BlockDevice, Makes};
use crate::backend::{self, Pool};
use crate::host::{Act, Class, Disk, Lock, Trouble};
use crate::phase::{Ending, Operation, Phase, Record};
use crate::retry;

/// How long a forced unmount of a lost disk may take.
const FORCED: Duration = Duration::from_secs(30);
/// How long one waits at most before looking again whether replicas are gone.
const EVICTION: Duration = Duration::from_secs(60);

impl Shell {
    /// Tells what uses disks about one; for LVM, makes the group first.
    pub(super) async fn register(
        &self,
        device: &BlockDevice,
        hold: &Hold,
        slot: &Slot<String>,
    ) -> Result<End, Trouble> {
        let limit = self.options.limit(Operation::Register, 0);
        let work = self.register_now(device, hold, slot, limit);
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
        slot: &Slot<String>,
        limit: Duration,
    ) -> Result<End, Trouble> {
        let host = &self.parts.host;
        let mut made = None;
        if let Makes::Lvm(lvm) = device.makes() {
            if device.recorded_uuid().is_empty() {
                let (name, parameters) = (lvm.vg_name, lvm.parameters);
                let act = Act::MakeGroup { name, parameters };
                host.operate(&hold.disk, &act, &hold.lock, limit).await?;
            }
            let after = self.same_after(&hold.disk).await?;
            let uuid = after.contents.of_class(Class::Lvm).map(|found| found.uuid.clone());
            let uuid = uuid.ok_or_else(|| {
                Trouble::Failed(format!("no physical volume is found on {}", hold.disk.path))
            })?;
            made = Some((uuid, after));
        }
        let pool = self.pool(device, None);
        let space = host.space(&pool.place, &hold.disk.path).await?;
        // From here on one waits for others.
        slot.release();
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
                    let wait = retry::pause(&pool.device, failures);
                    tracing::warn!(why, ?wait, "a pool cannot be registered yet");
                    self.clock().sleep(wait).await;
                }
            }
        }
        let message = format!("registered with {} free", crate::text::size(space.free));
        Ok(match made {
            Some((uuid, after)) => End::made(message, uuid).seen(after),
            None => End::well(message),
        })
    }

    /// Has the pool emptied, waits (without a slot) until it is, and removes it.
    pub(super) async fn deregister(
        &self,
        device: &BlockDevice,
        hold: Option<&Hold>,
        slot: &mut Slot<String>,
    ) -> Result<End, Trouble> {
        let pool = self.pool(device, None);
        let lost = hold.is_none() || device.status.device_status.file_system.corrupted;
        let mut failures = 0;
        loop {
            match self.empty(&pool, lost).await {
                Ok(left) if left.is_empty() => break,
                Ok(left) => {
                    self.progress(device, &left).await;
                    let sleep = self.clock().sleep(EVICTION);
                    let changed = self.parts.backend.changed(&pool);
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
                    tracing::warn!(%error, ?wait, "a pool cannot be taken out of use yet");
                    slot.release_while(self.clock().sleep(wait)).await;
                }
            }
        }
        self.give_back(device, hold).await?;
        Ok(End::well("out of use"))
    }

    /// One step towards a pool that is gone: asks for it to be emptied, and removes it if it is.
    /// Says which replicas are still there.
    async fn empty(&self, pool: &Pool, lost: bool) -> Result<Vec<String>, backend::Error> {
        let backend = &self.parts.backend;
        let known = backend.look(pool).await?;
        if matches!(known.record, Record::Missing | Record::NoNode) {
            return Ok(Vec::new());
        }
        backend.evict(pool).await?;
        // Nothing can be moved off a lost disk; its replicas are made anew from others.
        if known.replicas.is_empty() || lost {
            backend.remove(pool, lost).await?;
            return Ok(Vec::new());
        }
        Ok(known.replicas)
    }

    /// Takes away what stands on the disk of a pool that is gone.
    async fn give_back(&self, device: &BlockDevice, hold: Option<&Hold>) -> Result<(), Trouble> {
        match (device.makes(), hold) {
            (Makes::Lvm(lvm), Some(hold)) if hold.disk.contents.of_class(Class::Lvm).is_some() => {
                let limit = self.options.limit(Operation::Register, 0);
                let act = Act::RemoveGroup { name: lvm.vg_name };
                self.parts.host.operate(&hold.disk, &act, &hold.lock, limit).await
            }
            (Makes::Filesystem(_), None) => {
                // The disk is lost: what is left of its mount is taken away as well as can be.
                let point = self.point(&device.metadata.name);
                let (disk, lock) = (Disk::default(), Lock { file: None, guard: None });
                let act = Act::Unmount { point, vanished: true };
                if let Err(trouble) = self.parts.host.operate(&disk, &act, &lock, FORCED).await {
                    tracing::warn!(%trouble, "a lost disk could not be unmounted");
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Says which replicas are still there.
    async fn progress(&self, device: &BlockDevice, replicas: &[String]) {
        let message = waiting_for(replicas);
        self.tell(device, Severity::Normal, "Evicting", &message);
        let now = self.clock().now();
        let token = device.status.operation.clone().unwrap_or_default();
        let written = self
            .write_status(&device.metadata.name, |next| {
                if is_held(next, device, &token) {
                    let report = Report::new("Provisioned", ConditionStatus::True, "Evicting");
                    conditions::set(&mut next.status.conditions, &report.message(&message), now);
                }
            })
            .await;
        if let Err(error) = written {
            tracing::debug!(%error, "progress could not be reported");
        }
    }

    /// Brings the tags of a provisioned disk up to date, while its lease is held.
    pub(super) async fn synchronise(&self, device: &BlockDevice, held: bool) -> Result<(), Error> {
        let wanted = device.phase() == Some(Phase::Provisioned) && device.wanted();
        let pool = self.pool(device, None);
        if !held || !wanted || self.parts.backend.look(&pool).await?.record != Record::OtherTags {
            return Ok(());
        }
        let space = self.parts.host.space(&pool.place, path_of(device)).await?;
        match self.parts.backend.register(&pool, space).await {
            Ok(()) | Err(backend::Error::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
        self.write_status(&device.metadata.name, |next| next.status.tags.clone_from(&pool.tags))
            .await?;
        Ok(())
    }
}

/// What an eviction waits for: the first few by name.
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
    fn replicas_that_are_waited_for_are_named() {
        let names = |count: usize| (0..count).map(|n| format!("rv-{n}")).collect::<Vec<_>>();
        assert!(waiting_for(&names(1)).contains("replica rv-0 has"));
        assert!(waiting_for(&names(5)).ends_with("rv-0, rv-1, rv-2, rv-3, rv-4"));
        assert!(waiting_for(&names(7)).ends_with("rv-4 and 2 more"));
    }
}
