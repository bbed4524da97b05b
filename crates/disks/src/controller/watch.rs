//! Watches the pools of the node: their free space, whether they can be written, and whether the recorded
//! filesystem is still there. No kernel event reports these, so they are read every few seconds.
//!
//! It only queues the objects whose pool changed; the reconciler decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use mainstay_host::Space;
use tokio_util::sync::CancellationToken;

use super::devices::Devices;
use super::observe::Observer;
use super::signals::Signals;
use crate::api::BlockDevice;
use crate::facts;
use crate::phase::{Fault, Phase};

/// The state of a pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PoolState {
    space: Option<Result<Space, String>>,
    fault: Option<Fault>,
    unreadable: bool,
}

impl PoolState {
    /// Whether a change is worth a write. Free space must change by a thousandth of the pool: a busy pool
    /// does not cause a write every few seconds.
    fn differs(&self, reported: &Self) -> bool {
        match (&self.space, &reported.space) {
            (Some(Ok(now)), Some(Ok(then))) => {
                let same = PoolState { space: reported.space.clone(), ..self.clone() };
                same != *reported
                    || (now.size, now.read_only) != (then.size, then.read_only)
                    || now.free.abs_diff(then.free) > now.size / 1_000
            }
            _ => self != reported,
        }
    }
}

/// Watches pools.
#[derive(Debug)]
pub(super) struct PoolWatch {
    pub(super) devices: Arc<Devices>,
    pub(super) observer: Arc<Observer>,
    pub(super) signals: Arc<Signals>,
}

impl PoolWatch {
    /// Reads all pools at every interval until `stop` is cancelled, and queues those that changed.
    pub(super) async fn run(self, stop: CancellationToken) {
        let machine = self.observer.machine.clone();
        let mut reported: BTreeMap<String, PoolState> = BTreeMap::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = machine.clock.sleep(machine.options.watch) => {}
            }
            let pools = self.devices.list();
            let pools = pools.iter().filter(|device| device.phase() == Some(Phase::Provisioned));
            let read = join_all(pools.map(|device| self.read(device)));
            let Some(read) = stop.run_until_cancelled(read).await else { return };
            let mut next = BTreeMap::new();
            for (name, state) in read.into_iter().flatten() {
                let before = reported.remove(&name);
                let same = before.filter(|before| !state.differs(before));
                if same.is_none() {
                    self.signals.reconcile(&name);
                }
                next.insert(name, same.unwrap_or(state));
            }
            reported = next;
        }
    }

    /// Reads the pool of an object; `None` if its disk is gone, which the scanner reports.
    async fn read(&self, device: &BlockDevice) -> Option<(String, PoolState)> {
        let name = device.metadata.name.clone();
        let host = &self.observer.machine.host;
        let known = self.observer.inventory.disk_of(&name)?;
        let disk = host.look(&known.name).await.ok().flatten()?;
        let mounts = host.mounts().await.ok()?;
        let space = self.observer.space(device, &disk, &mounts).await;
        let read_only = space.as_ref().is_some_and(|s| s.as_ref().is_ok_and(|s| s.read_only));
        let fault = facts::fault(device, &disk, read_only);
        let unreadable = disk.contents.unreadable.is_some();
        Some((name, PoolState { space, fault, unreadable }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_of_free_space_are_not_reported_and_all_others_are() {
        let space = |free| Space { size: 1_000_000, free, extent: 1, read_only: false };
        let state = |space| PoolState { space: Some(Ok(space)), fault: None, unreadable: false };
        let then = state(space(500_000));
        assert!(!state(space(499_100)).differs(&then));
        assert!(state(space(498_000)).differs(&then));
        assert!(state(Space { read_only: true, ..space(500_000) }).differs(&then));
        assert!(PoolState { fault: Some(Fault::FilesystemChanged), ..then.clone() }.differs(&then));
        assert!(PoolState { space: Some(Err("I/O".to_owned())), ..then.clone() }.differs(&then));
    }
}
