//! The scanner: finds the disks of the node, matches them with objects, and creates and deletes objects.
//!
//! One task owns it. A change that comes during a scan is handled by the next one, so none is lost; an
//! event about one disk reads that disk and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_host::{Disk, MountLine, Wake, glob};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::devices::Devices;
use super::machine::Machine;
use super::observe::Observer;
use super::signals::Signals;
use super::world::{self, Assigned};
use crate::api::{
    BlockDevice, BlockDeviceSpec, FINALIZER, Identity, Makes, NODE_LABEL, State, TYPE_LABEL,
};
use crate::identity::{self, Known, Step};
use crate::phase::Phase;

/// How soon a scan that failed is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Keeps the inventory current.
#[derive(Debug)]
pub(super) struct Scanner {
    pub(super) machine: Arc<Machine>,
    pub(super) devices: Arc<Devices>,
    pub(super) observer: Arc<Observer>,
    pub(super) signals: Arc<Signals>,
}

impl Scanner {
    /// Scans everything, twice: a disk that moved is matched by the second scan.
    pub(super) async fn first_scan(&self) {
        for _ in 0..2 {
            self.scan(vec![Wake::Everything]).await;
        }
    }

    /// Waits for changes and scans them, until `stop` is cancelled.
    pub(super) async fn run(self, stop: CancellationToken) {
        let host = self.machine.host.clone();
        let mut again = false;
        loop {
            let wait = if again { RETRY } else { self.machine.options.safety_scan };
            let safety = self.machine.clock.sleep(wait);
            let wakes = tokio::select! {
                () = stop.cancelled() => return,
                wakes = host.changed() => wakes,
                () = self.signals.rematch_asked() => Vec::new(),
                () = safety => vec![Wake::Everything],
            };
            again = self.scan(wakes).await;
        }
    }

    /// Reads the disks that may have changed, and matches them with objects. Returns whether that must
    /// be tried again later.
    async fn scan(&self, wakes: Vec<Wake>) -> bool {
        let everything = wakes.contains(&Wake::Everything);
        let named: BTreeSet<&String> = wakes
            .iter()
            .filter_map(|wake| match wake {
                Wake::Disk(name) => Some(name),
                Wake::Everything | Wake::Mounts => None,
            })
            .collect();
        let before: BTreeMap<String, Arc<Disk>> = {
            let world = self.observer.inventory.world();
            if everything {
                world.disks().clone()
            } else {
                let known = named.iter().filter_map(|name| world.disks().get_key_value(*name));
                known.map(|(name, disk)| (name.clone(), disk.clone())).collect()
            }
        };
        let unread = self.read(&wakes).await.is_err_and(|error| {
            tracing::warn!(%error, "reading the disks failed; scanning again");
            true
        });
        let touched = self.moved(&before, &named, everything);
        let all = everything || wakes.is_empty();
        if touched.is_empty() && !all {
            return unread;
        }
        for _ in 0..3 {
            let scope = (!all).then_some(&before);
            match self.match_up(&touched, scope).await {
                Ok(false) => return unread,
                Ok(true) => {}
                Err(error) => {
                    tracing::warn!(%error, "writing BlockDevices failed; scanning again");
                    return true;
                }
            }
        }
        unread
    }

    /// Reads disks and mounts.
    async fn read(&self, wakes: &[Wake]) -> Result<(), Error> {
        let host = &self.machine.host;
        let everything = wakes.contains(&Wake::Everything);
        if everything || wakes.contains(&Wake::Mounts) {
            self.read_mounts(host.mounts().await?, wakes.contains(&Wake::Mounts));
        }
        let names: Vec<String> = if everything {
            let names = host.list().await?;
            self.observer.inventory.world().keep(&names.iter().cloned().collect());
            names
        } else {
            let named = wakes.iter().filter_map(|wake| match wake {
                Wake::Disk(name) => Some(name.clone()),
                Wake::Everything | Wake::Mounts => None,
            });
            named.collect()
        };
        for name in names {
            let disk = host.look(&name).await?.filter(|disk| self.allows(&disk.path));
            self.observer.inventory.world().set(&name, disk);
        }
        Ok(())
    }

    /// Stores the mount table, and queues the objects it may concern. `notified`: the kernel reported a
    /// change of the table.
    fn read_mounts(&self, mounts: Arc<[MountLine]>, notified: bool) {
        let mut world = self.observer.inventory.world();
        let changed: BTreeSet<String> = mounts
            .iter()
            .filter(|line| !world.mounts.contains(line))
            .chain(world.mounts.iter().filter(|line| !mounts.contains(line)))
            .map(|line| line.number.clone())
            .collect();
        world.mounts = mounts;
        let mut woken: Vec<String> = Vec::new();
        if !changed.is_empty() {
            let concerned = |object: &&String| {
                let disk = world.disk_of(object);
                disk.is_some_and(|disk| changed.iter().any(|number| disk.has_number(number)))
            };
            woken.extend(world.assigned.keys().filter(concerned).cloned());
        }
        let points: BTreeSet<String> = world.mounts.iter().map(|line| line.point.clone()).collect();
        drop(world);
        // A mount that came and went between two reads leaves no difference in the table.
        let all = if notified { self.devices.list() } else { Vec::new() };
        for device in all {
            let name = &device.metadata.name;
            let mounted = matches!(device.phase(), Some(Phase::Mounted | Phase::Provisioned))
                && matches!(device.makes(), Makes::Filesystem(_));
            if mounted && !points.contains(&self.machine.point(name)) {
                woken.push(name.clone());
            }
        }
        woken.iter().for_each(|name| self.signals.reconcile(name));
    }

    /// Whether the options let a disk be managed.
    fn allows(&self, path: &str) -> bool {
        let patterns = &self.machine.options.devices;
        patterns.is_empty() || patterns.iter().any(|pattern| glob::matches(pattern, path))
    }

    /// The disks that changed.
    fn moved(
        &self,
        before: &BTreeMap<String, Arc<Disk>>,
        named: &BTreeSet<&String>,
        everything: bool,
    ) -> BTreeSet<String> {
        let world = self.observer.inventory.world();
        let all = world.disks().keys().filter(|_| everything);
        let names = before.keys().chain(named.iter().copied()).chain(all);
        names.filter(|name| before.get(*name) != world.disks().get(*name)).cloned().collect()
    }

    /// The objects and disks to match: all, or only those linked with the touched disks, as they were
    /// `before` and as they are now.
    fn concerned(
        &self,
        touched: &BTreeSet<String>,
        before: Option<&BTreeMap<String, Arc<Disk>>>,
    ) -> (Vec<Known>, Vec<Arc<Disk>>) {
        let Some(before) = before else {
            let objects = self.devices.list().iter().map(|device| known(device)).collect();
            let disks = self.observer.inventory.world().disks().values().cloned().collect();
            return (objects, disks);
        };
        let world = self.observer.inventory.world();
        let then = touched.iter().filter_map(|name| before.get(name));
        let now = touched.iter().filter_map(|name| world.disks().get(name));
        let start: Vec<String> = then.chain(now).flat_map(|disk| world::of(disk)).collect();
        let mut objects: BTreeMap<String, Known> = BTreeMap::new();
        let mut disks: BTreeMap<String, Arc<Disk>> = BTreeMap::new();
        identity::reachable(start, |link| {
            let mut links = Vec::new();
            for disk in world.linked(link) {
                links.extend(world::of(disk));
                disks.insert(disk.name.clone(), disk.clone());
            }
            for device in self.devices.linked(link) {
                let known = known(&device);
                links.extend(known.links());
                objects.insert(known.name.clone(), known);
            }
            links
        });
        (objects.into_values().collect(), disks.into_values().collect())
    }

    /// Matches disks and objects, and writes the result. Returns whether to match once more.
    async fn match_up(
        &self,
        touched: &BTreeSet<String>,
        before: Option<&BTreeMap<String, Arc<Disk>>>,
    ) -> Result<bool, Error> {
        let (known, disks) = self.concerned(touched, before);
        let mounts = self.observer.inventory.world().mounts.clone();
        let excluded = |disk: &Disk| self.observer.configuration.excludes(disk, &mounts);
        let mut again = false;
        let mut assigned = BTreeMap::new();
        for step in identity::reconcile(&known, &disks) {
            match step {
                Step::Create { disk, duplicates } => {
                    if let Some(why) = excluded(&disks[disk]) {
                        tracing::debug!(path = disks[disk].path, why, "a disk is excluded");
                        continue;
                    }
                    let named = disks[disk].name.clone();
                    let place = Assigned { disk: named, duplicates };
                    let name = self.create(&disks[disk], place.clone()).await?;
                    assigned.insert(name, place);
                }
                Step::Refresh { name, disk, duplicates } => {
                    if self.is_idle(&name) && excluded(&disks[disk]).is_some() {
                        self.devices.delete(&name).await?;
                        continue;
                    }
                    let disk = disks[disk].name.clone();
                    assigned.insert(name, Assigned { disk, duplicates });
                }
                Step::Deactivate { name, moved } => {
                    self.deactivate(&name).await?;
                    again |= moved;
                }
                Step::Delete { name } => self.devices.delete(&name).await?,
            }
        }
        let before = self.assign(assigned.clone(), before.is_some().then_some(&known));
        let names: BTreeSet<_> = before.keys().chain(assigned.keys()).cloned().collect();
        for name in names {
            let moved = before.get(&name) != assigned.get(&name);
            let changed = assigned.get(&name).is_some_and(|now| touched.contains(&now.disk));
            if moved || changed {
                self.signals.reconcile(&name);
            }
        }
        Ok(again)
    }

    /// Stores which disk belongs to which object: for all objects, or for `some` of them. Returns the
    /// previous assignments.
    fn assign(
        &self,
        next: BTreeMap<String, Assigned>,
        some: Option<&Vec<Known>>,
    ) -> BTreeMap<String, Assigned> {
        let mut world = self.observer.inventory.world();
        let Some(some) = some else { return std::mem::replace(&mut world.assigned, next) };
        let names = some.iter().map(|known| &known.name).chain(next.keys());
        let names: BTreeSet<String> = names.cloned().collect();
        let before = names.iter().filter_map(|name| world.assigned.remove_entry(name)).collect();
        world.assigned.extend(next);
        before
    }

    /// Whether an object is unprovisioned and stays so.
    fn is_idle(&self, name: &str) -> bool {
        self.devices.find(name).is_some_and(|device| {
            let spec = &device.spec;
            let wanted = device.wanted() || spec.file_system.force_formatted;
            device.phase() == Some(Phase::Unprovisioned) && !wanted
        })
    }

    /// Creates the object of a disk, with the remembered spec if there was one before.
    async fn create(&self, disk: &Disk, place: Assigned) -> Result<String, Error> {
        let node = &self.machine.options.node;
        // A duplicate must not take over the spec of the original.
        let remembered = match place.duplicates.as_slice() {
            [] => self.machine.memory.recall(&identity::of(disk)),
            _ => None,
        };
        let taken = |name: &String| self.devices.find(name).is_some();
        let (name, mut spec) = match remembered {
            Some((name, remembered)) if !taken(&name) => (name, remembered.spec),
            _ => (self.machine.identities.uid(), BlockDeviceSpec::default()),
        };
        spec.node_name.clone_from(node);
        spec.dev_path.clone_from(&disk.path);
        let mut device = BlockDevice { spec, ..BlockDevice::default() };
        device.metadata.name.clone_from(&name);
        device.metadata.finalizers = vec![FINALIZER.to_owned()];
        device.metadata.labels.insert(NODE_LABEL.to_owned(), node.clone());
        device.metadata.labels.insert(TYPE_LABEL.to_owned(), "disk".to_owned());
        // The reconciler may run before this returns, and must find the disk.
        self.observer.inventory.world().assigned.insert(name.clone(), place);
        self.devices.create(&device).await?;
        Ok(name)
    }

    /// Marks an object whose disk is gone.
    async fn deactivate(&self, name: &str) -> Result<(), Error> {
        let there = self.devices.find(name);
        if there.is_none_or(|device| device.status.state == State::Inactive) {
            return Ok(());
        }
        let mark = |device: &mut BlockDevice| device.status.state = State::Inactive;
        if let Some(device) = self.devices.set_status(name, mark).await? {
            self.devices.wait_for(&device).await?;
        }
        Ok(())
    }
}

/// An object, as far as matching needs it.
pub(super) fn known(device: &BlockDevice) -> Known {
    let details = &device.status.device_status.details;
    let recorded = device.recorded_uuid();
    let uuid = if recorded.is_empty() { &details.uuid } else { recorded };
    let path = &device.status.device_status.dev_path;
    Known {
        name: device.metadata.name.clone(),
        active: device.status.state == State::Active,
        path: if path.is_empty() { device.spec.dev_path.clone() } else { path.clone() },
        phase: device.phase(),
        identity: Identity {
            uuid: uuid.to_owned(),
            wwn: details.wwn.clone(),
            vendor: details.vendor.clone(),
            model: details.model.clone(),
            serial: details.serial_number.clone(),
            bus_path: details.bus_path.clone(),
        },
    }
}
