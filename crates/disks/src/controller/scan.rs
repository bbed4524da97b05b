//! The scan: which disks there are, and which object is which disk.
//!
//! One task owns it. What changes while it works is told afterwards, so nothing is lost; an event
//! about one disk reads that disk and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_controller::reflector::{Reflector, Subscription};
use mainstay_controller::write;
use mainstay_store::builtin::ConfigMap;
use mainstay_store::resources::DeleteOptions;

use super::world::{self, Assigned};
use super::{BY_LINK, Error, MANAGER, Shell};
use crate::api::{
    BlockDevice, BlockDeviceSpec, FINALIZER, Identity, Makes, NODE_LABEL, State, TYPE_LABEL,
};
use crate::config::{self, Config};
use crate::glob;
use crate::host::{Disk, MountLine, Wake};
use crate::identity::{self, Known, Step};
use crate::phase::Phase;

/// How soon a scan that went wrong is tried again.
const RETRY: Duration = Duration::from_secs(2);

impl Shell {
    /// Looks at everything, twice: a disk that moved is taken up by the second look.
    pub(super) async fn first_scan(&self) {
        for _ in 0..2 {
            self.look_at(vec![Wake::Everything]).await;
        }
    }

    /// Queues what was interrupted.
    pub(super) fn take_up(&self) {
        for device in self.objects.list() {
            if device.phase().is_some_and(Phase::is_lock) {
                self.enqueue(&device.metadata.name);
            }
        }
    }

    /// Takes over the configuration as it is now.
    pub(super) fn configure(&self, maps: &Reflector<ConfigMap>) {
        let map = maps.find(Some(config::NAMESPACE), config::NAME);
        let data = map.map(|map| map.data.clone()).unwrap_or_default();
        let (next, errors) = Config::read(&data, &self.options.defaults);
        for error in errors {
            tracing::warn!(%error, "the configuration of disks; the default counts");
        }
        self.world().config = next;
    }

    /// Wakes the scan when the configuration changes or an object goes.
    pub(super) fn listen(
        self: &Arc<Self>,
        objects: &Reflector<BlockDevice>,
        config: &Reflector<ConfigMap>,
    ) -> Vec<Subscription> {
        let (shell, maps) = (self.clone(), config.clone());
        let configured = config.subscribe(move |change| {
            if change.key.name() == config::NAME {
                let weak = maps.find(Some(config::NAMESPACE), config::NAME);
                let data = weak.map(|map| map.data.clone()).unwrap_or_default();
                let (next, _) = Config::read(&data, &shell.options.defaults);
                let changed = std::mem::replace(&mut shell.world().config, next);
                if changed != shell.world().config {
                    let all = shell.objects.list();
                    all.iter().for_each(|device| shell.wake(&device.metadata.name));
                }
                shell.rematch.notify_one();
            }
        });
        let shell = self.clone();
        let gone = objects.subscribe(move |change| {
            if change.new.is_none() {
                shell.rematch.notify_one();
            }
        });
        vec![configured, gone]
    }

    /// Waits for changes and looks at them, until the shell stops.
    pub(super) async fn scan_for_ever(self: Arc<Self>) {
        let host = self.parts.host.clone();
        let mut again = false;
        loop {
            let wait = if again { RETRY } else { self.options.safety_scan };
            let safety = self.clock().sleep(wait);
            let wakes = tokio::select! {
                () = self.stop.cancelled() => return,
                wakes = host.changed() => wakes,
                () = self.rematch.notified() => Vec::new(),
                () = safety => vec![Wake::Everything],
            };
            again = self.look_at(wakes).await;
        }
    }

    /// Looks at what may have changed, and brings objects in line. Says whether that must be tried
    /// again later.
    async fn look_at(&self, wakes: Vec<Wake>) -> bool {
        let everything = wakes.contains(&Wake::Everything);
        let named: BTreeSet<&String> = wakes
            .iter()
            .filter_map(|wake| match wake {
                Wake::Disk(name) => Some(name),
                Wake::Everything | Wake::Mounts => None,
            })
            .collect();
        let before: BTreeMap<String, Arc<Disk>> = {
            let world = self.world();
            if everything {
                world.disks().clone()
            } else {
                let known = named.iter().filter_map(|name| world.disks().get_key_value(*name));
                known.map(|(name, disk)| (name.clone(), disk.clone())).collect()
            }
        };
        let unread = self.read(&wakes).await.is_err_and(|error| {
            tracing::warn!(%error, "the machine's disks cannot be read; will look again");
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
                    tracing::warn!(%error, "disks could not be reported; will try again");
                    return true;
                }
            }
        }
        unread
    }

    /// Reads disks and mounts anew.
    async fn read(&self, wakes: &[Wake]) -> Result<(), Error> {
        let host = &self.parts.host;
        let everything = wakes.contains(&Wake::Everything);
        if everything || wakes.contains(&Wake::Mounts) {
            self.read_mounts(host.mounts().await?, wakes.contains(&Wake::Mounts));
        }
        let names: Vec<String> = if everything {
            let names = host.list().await?;
            self.world().keep(&names.iter().cloned().collect());
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
            self.world().set(&name, disk);
        }
        Ok(())
    }

    /// Takes over the mount table, and wakes the objects it may concern.
    fn read_mounts(&self, mounts: Arc<[MountLine]>, told: bool) {
        let mut world = self.world();
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
        // A mount that came and went between two looks leaves no difference in the table.
        let all = if told { self.objects.list() } else { Vec::new() };
        for device in all {
            let name = &device.metadata.name;
            let mounted = matches!(device.phase(), Some(Phase::Mounted | Phase::Provisioned))
                && matches!(device.makes(), Makes::Filesystem(_));
            if mounted && !points.contains(&self.point(name)) {
                woken.push(name.clone());
            }
        }
        woken.iter().for_each(|name| self.wake(name));
    }

    fn allows(&self, path: &str) -> bool {
        let patterns = &self.options.devices;
        patterns.is_empty() || patterns.iter().any(|pattern| glob::matches(pattern, path))
    }

    /// The disks that are not as they were.
    fn moved(
        &self,
        before: &BTreeMap<String, Arc<Disk>>,
        named: &BTreeSet<&String>,
        everything: bool,
    ) -> BTreeSet<String> {
        let world = self.world();
        let all = world.disks().keys().filter(|_| everything);
        let names = before.keys().chain(named.iter().copied()).chain(all);
        names.filter(|name| before.get(*name) != world.disks().get(*name)).cloned().collect()
    }

    /// The objects and disks to be matched: all, or only those that have to do with the disks that
    /// were touched, as they were `before` and as they are now.
    fn concerned(
        &self,
        touched: &BTreeSet<String>,
        before: Option<&BTreeMap<String, Arc<Disk>>>,
    ) -> (Vec<Known>, Vec<Arc<Disk>>) {
        let Some(before) = before else {
            let objects = self.objects.list();
            let objects = objects.iter().map(|device| known(device)).collect();
            return (objects, self.world().disks().values().cloned().collect());
        };
        let world = self.world();
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
            for device in self.objects.by_index(BY_LINK, link) {
                if device.spec.node_name == self.options.node {
                    let known = known(&device);
                    links.extend(known.links());
                    objects.insert(known.name.clone(), known);
                }
            }
            links
        });
        (objects.into_values().collect(), disks.into_values().collect())
    }

    /// Matches disks and objects, and does what follows. Says whether to look once more.
    async fn match_up(
        &self,
        touched: &BTreeSet<String>,
        before: Option<&BTreeMap<String, Arc<Disk>>>,
    ) -> Result<bool, Error> {
        let (known, disks) = self.concerned(touched, before);
        let mounts = self.world().mounts.clone();
        let excluded = |disk: &Disk| self.excluded(disk, &mounts);
        let mut again = false;
        let mut assigned = BTreeMap::new();
        for step in identity::reconcile(&known, &disks) {
            match step {
                Step::Create { disk, duplicates } => {
                    if let Some(why) = excluded(&disks[disk]) {
                        tracing::debug!(path = disks[disk].path, why, "a disk is left alone");
                        continue;
                    }
                    let named = disks[disk].name.clone();
                    let place = Assigned { disk: named, duplicates };
                    let name = self.create(&disks[disk], place.clone()).await?;
                    assigned.insert(name, place);
                }
                Step::Refresh { name, disk, duplicates } => {
                    if self.is_idle(&name) && excluded(&disks[disk]).is_some() {
                        self.remove(&name).await?;
                        continue;
                    }
                    let disk = disks[disk].name.clone();
                    assigned.insert(name, Assigned { disk, duplicates });
                }
                Step::Deactivate { name, moved } => {
                    self.deactivate(&name).await?;
                    again |= moved;
                }
                Step::Delete { name } => self.remove(&name).await?,
            }
        }
        let before = self.assign(assigned.clone(), before.is_some().then_some(&known));
        let names: BTreeSet<_> = before.keys().chain(assigned.keys()).cloned().collect();
        for name in names {
            let moved = before.get(&name) != assigned.get(&name);
            let changed = assigned.get(&name).is_some_and(|now| touched.contains(&now.disk));
            if moved || changed {
                self.wake(&name);
            }
        }
        Ok(again)
    }

    /// Takes over which disk is which object's: for all objects, or for `some` of them. Gives what
    /// was before.
    fn assign(
        &self,
        next: BTreeMap<String, Assigned>,
        some: Option<&Vec<Known>>,
    ) -> BTreeMap<String, Assigned> {
        let mut world = self.world();
        let Some(some) = some else { return std::mem::replace(&mut world.assigned, next) };
        let names = some.iter().map(|known| &known.name).chain(next.keys());
        let names: BTreeSet<String> = names.cloned().collect();
        let before = names.iter().filter_map(|name| world.assigned.remove_entry(name)).collect();
        world.assigned.extend(next);
        before
    }

    /// Why a disk is left alone as things are now; `None` if it is not.
    pub(super) fn excluded(&self, disk: &Disk, mounts: &[MountLine]) -> Option<String> {
        let points: Vec<_> = mounts
            .iter()
            .filter(|line| disk.has_number(&line.number))
            .map(|line| line.point.clone())
            .collect();
        self.world().config.excludes(&self.options.node, disk, &points)
    }

    /// Whether nobody wants anything of an object.
    fn is_idle(&self, name: &str) -> bool {
        self.objects.find(None, name).is_some_and(|device| {
            let spec = &device.spec;
            let wanted = device.wanted() || spec.file_system.force_formatted;
            device.phase() == Some(Phase::Unprovisioned) && !wanted
        })
    }

    /// Makes the object of a disk, as it is remembered if it was here before.
    async fn create(&self, disk: &Disk, place: Assigned) -> Result<String, Error> {
        let node = &self.options.node;
        // A copy is not the disk it was made of.
        let remembered = match place.duplicates.as_slice() {
            [] => self.parts.memory.recall(&disk.identity()),
            _ => None,
        };
        let taken = |name: &String| self.objects.find(None, name).is_some();
        let (name, mut spec) = match remembered {
            Some((name, remembered)) if !taken(&name) => (name, remembered.spec),
            _ => (self.parts.identities.uid(), BlockDeviceSpec::default()),
        };
        spec.node_name.clone_from(node);
        spec.dev_path.clone_from(&disk.path);
        let mut device = BlockDevice { spec, ..BlockDevice::default() };
        device.metadata.name.clone_from(&name);
        device.metadata.finalizers = vec![FINALIZER.to_owned()];
        device.metadata.labels.insert(NODE_LABEL.to_owned(), node.clone());
        device.metadata.labels.insert(TYPE_LABEL.to_owned(), "disk".to_owned());
        // Whoever hears of the object first must find its disk.
        self.world().assigned.insert(name.clone(), place);
        let resources = &self.parts.resources;
        let created = resources.create_as(&device, &Self::write_options()).await;
        match created {
            Ok(created) => self.seen(&created).await?,
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(name)
    }

    /// Waits until the copy of the objects shows what was written.
    async fn seen(&self, device: &BlockDevice) -> Result<(), Error> {
        Ok(self.objects.wait_until_at(write::revision(device)).await?)
    }

    async fn deactivate(&self, name: &str) -> Result<(), Error> {
        let there = self.objects.find(None, name);
        if there.is_none_or(|device| device.status.state == State::Inactive) {
            return Ok(());
        }
        let written = self.write_status(name, |device| device.status.state = State::Inactive);
        match written.await? {
            Some(device) => self.seen(&device).await,
            None => Ok(()),
        }
    }

    /// Deletes an object whose disk is gone or left alone.
    async fn remove(&self, name: &str) -> Result<(), Error> {
        let resources = &self.parts.resources;
        write::remove_finalizer::<BlockDevice>(resources, None, name, MANAGER, FINALIZER).await?;
        let (delete, options) = (DeleteOptions::default(), Self::write_options());
        resources.delete_as::<BlockDevice>(None, name, &delete, &options).await?;
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
