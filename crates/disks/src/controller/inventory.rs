//! Which disk belongs to which object, as the last scan found it, shared by all parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::Clock;
use mainstay_host::Disk;
use parking_lot::{Mutex, MutexGuard};

use super::world::World;

/// For how long a disk read at the end of an operation need not be read again.
const FRESH: Duration = Duration::from_millis(500);

/// The disks of the node and their objects.
#[derive(Debug)]
pub(super) struct Inventory {
    clock: Arc<dyn Clock>,
    world: Mutex<World>,
    /// Disks as they were at the end of an operation, and when that was, by object.
    fresh: Mutex<BTreeMap<String, (Duration, Disk)>>,
}

impl Inventory {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, world: Mutex::default(), fresh: Mutex::default() }
    }

    /// The result of the last scan. Must not be held across an await.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// The disk of an object.
    pub(super) fn disk_of(&self, object: &str) -> Option<Disk> {
        self.world().disk_of(object).map(|disk| (**disk).clone())
    }

    /// Keeps a disk as an operation left it, for the reconciliation that follows.
    pub(super) fn keep_fresh(&self, object: &str, disk: Disk) {
        let now = self.clock.elapsed();
        let mut fresh = self.fresh.lock();
        fresh.retain(|_, (at, _)| now.saturating_sub(*at) < FRESH);
        fresh.insert(object.to_owned(), (now, disk));
    }

    /// Takes the disk that an operation left a moment ago. Good for deciding only: an operation reads
    /// its disk again, under its lease.
    pub(super) fn take_fresh(&self, object: &str) -> Option<Disk> {
        let now = self.clock.elapsed();
        let (at, disk) = self.fresh.lock().remove(object)?;
        (now.saturating_sub(at) < FRESH).then_some(disk)
    }
}
