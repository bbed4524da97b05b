//! Reads the current state of an object's disk: the disk, its mounts, its pool, and the gate's verdict.

use std::sync::Arc;

use mainstay_host::{Act, Device, Disk, FsType, Inspection, MountLine, Place, Space};

use super::Error;
use super::configuration::Configuration;
use super::inventory::Inventory;
use super::machine::Machine;
use super::operations::Operations;
use super::world::Assigned;
use crate::api::{BlockDevice, Makes, State};
use crate::backend;
use crate::facts::{self, Sight};
use crate::gate::{self, Resolved, Scene, Verdict};
use crate::identity;
use crate::phase::{Facts, Mount, Phase};

/// An object's disk at one moment.
pub(super) struct View {
    pub(super) disk: Option<Disk>,
    pub(super) mounts: Arc<[MountLine]>,
    pub(super) known: backend::Known,
    /// The space of its mounted filesystem, or why that cannot be read; `None` if it is not mounted.
    pub(super) space: Option<Result<Space, String>>,
    pub(super) assigned: Option<Assigned>,
}

/// Reads everything that decisions need to know. It changes nothing.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) machine: Arc<Machine>,
    pub(super) inventory: Arc<Inventory>,
    pub(super) configuration: Arc<Configuration>,
    pub(super) operations: Arc<Operations>,
}

impl Observer {
    /// Reads the mount table and the record of an object, and its disk unless it was `seen` a
    /// moment ago.
    pub(super) async fn view(
        &self,
        device: &BlockDevice,
        seen: Option<Disk>,
    ) -> Result<View, Error> {
        let name = &device.metadata.name;
        let assigned = self.inventory.world().assigned.get(name).cloned();
        let host = &self.machine.host;
        let disk = match (&assigned, seen) {
            (Some(_), Some(seen)) => Some(seen),
            (Some(assigned), None) => host.look(&assigned.disk).await?,
            (None, _) => None,
        };
        // A disk that took the place of the assigned one since the last scan is another disk.
        let expected = self.inventory.disk_of(name);
        let disk = disk.filter(|disk| {
            expected.is_some_and(|expected| Device::of(&expected) == Device::of(disk))
        });
        let mounts = host.mounts().await?;
        let known = self.known(device).await?;
        let space = match &disk {
            Some(disk) => self.space(device, disk, &mounts).await,
            None => None,
        };
        Ok(View { disk, mounts, known, space, assigned })
    }

    /// The space of an object's filesystem if it is mounted at its point.
    pub(super) async fn space(
        &self,
        device: &BlockDevice,
        disk: &Disk,
        mounts: &[MountLine],
    ) -> Option<Result<Space, String>> {
        let place = self.machine.pool(device, None).place;
        let Place::Filesystem { point } = &place else { return None };
        let used = matches!(device.phase(), Some(Phase::Mounted | Phase::Provisioned));
        if !used || facts::mount(Some(disk), point, mounts) != Mount::Right {
            return None;
        }
        let space = self.machine.host.space(&place, &disk.path).await;
        Some(space.map_err(|trouble| trouble.message().to_owned()))
    }

    /// The backend's record of the pool of an object.
    pub(super) async fn known(&self, device: &BlockDevice) -> Result<backend::Known, Error> {
        Ok(self.machine.backend.look(&self.machine.pool(device, None)).await?)
    }

    /// The facts that the phase table decides on.
    pub(super) async fn facts(&self, device: &BlockDevice, view: &View) -> Facts {
        let point = self.machine.point(&device.metadata.name);
        let lease_free = self.lease_free(device, view.disk.as_ref()).await;
        let sight = Sight {
            node: &self.machine.options.node,
            disk: view.disk.as_ref(),
            point: &point,
            mounts: &view.mounts,
            read_only: matches!(view.space, Some(Ok(Space { read_only: true, .. }))),
            record: view.known.record,
            replicas: !view.known.replicas.is_empty(),
            closed: view.known.closed,
            lease_free,
        };
        let mut device = device.clone();
        if view.disk.is_some() {
            // The scan found it; the status is about to be written as Active.
            device.status.state = State::Active;
        }
        facts::facts(&self.recalled(&device), &sight)
    }

    /// The object with the remembered record of its formatting, if its status has lost it.
    pub(super) fn recalled(&self, device: &BlockDevice) -> BlockDevice {
        let mut device = device.clone();
        if device.status.formatted.is_none()
            && device.phase() == Some(Phase::Unprovisioned)
            && let Some(remembered) = self.machine.memory.of(&device.metadata.name)
        {
            device.status.formatted = remembered.formatted;
        }
        device
    }

    /// Whether no operation holds the disk, in this process or another.
    pub(super) async fn lease_free(&self, device: &BlockDevice, disk: Option<&Disk>) -> bool {
        let Some(disk) = disk else { return true };
        if !self.operations.leases.is_free(&Device::of(disk)) {
            return false;
        }
        let held = device.status.operation.as_ref().is_some_and(|token| token.lease_held);
        !held || self.machine.host.lock(disk).await.is_ok()
    }

    /// The gate's verdict about formatting a disk.
    pub(super) async fn judge(
        &self,
        device: &BlockDevice,
        view: &View,
        disk: &Disk,
        facts: &Facts,
    ) -> Verdict {
        let uuid = self.machine.identities.uid();
        let mut inspection = self.inspect(device, disk, false).await;
        if inspection.lock.is_none() && !self.operations.leases.is_free(&Device::of(disk)) {
            inspection.lock = Some("an operation of this agent holds the disk".to_owned());
        }
        gate::judge(&self.scene(device, view, disk, facts.auto, &uuid, inspection))
    }

    /// Inspects a disk; before a volume group is made, also all groups of the machine.
    pub(super) async fn inspect(
        &self,
        device: &BlockDevice,
        disk: &Disk,
        locked: bool,
    ) -> Inspection {
        let host = &self.machine.host;
        let mut inspection = host.inspect(disk, locked).await;
        if let Makes::Lvm(_) = device.makes() {
            match host.groups().await {
                Ok(groups) => inspection.groups = groups,
                Err(trouble) => inspection.silent = Some(trouble.message().to_owned()),
            }
        }
        inspection
    }

    /// The gate's input.
    pub(super) fn scene(
        &self,
        device: &BlockDevice,
        view: &View,
        disk: &Disk,
        auto: bool,
        uuid: &str,
        inspection: Inspection,
    ) -> Scene {
        let point = self.machine.point(&device.metadata.name);
        let group_taken = match device.makes() {
            Makes::Lvm(lvm) => gate::name_in_use(&lvm.vg_name, &disk.path, &inspection.groups),
            Makes::Filesystem(_) => None,
        };
        let (minimum, act) = match device.makes() {
            Makes::Filesystem(kind) => {
                let minimum = if kind == FsType::Xfs { gate::XFS_MINIMUM } else { gate::MINIMUM };
                (minimum, Act::MakeFilesystem { kind, uuid: uuid.to_owned() })
            }
            Makes::Lvm(lvm) => {
                let act = Act::MakeGroup { name: lvm.vg_name, parameters: lvm.parameters };
                (gate::MINIMUM, act)
            }
        };
        let occupied = view.mounts.iter().find(|line| line.point == point);
        Scene {
            resolved: resolved(disk, view),
            excluded: self.configuration.excludes(disk, &view.mounts),
            on_this_node: device.spec.node_name == self.machine.options.node,
            inspection,
            acknowledged: device.spec.acknowledge_data_loss.clone(),
            auto,
            read_only: disk.read_only,
            size: disk.size,
            minimum,
            sector: disk.logical_block,
            commands: self.machine.host.commands(disk, &act),
            target_uuid: uuid.to_owned(),
            uuid_taken: self.holder_of(uuid, disk),
            group_taken,
            point_taken: occupied.map(ToString::to_string),
            pool: gate::pool_in_use(&view.known),
        }
    }

    /// The path of another disk that holds a filesystem with this UUID.
    fn holder_of(&self, uuid: &str, disk: &Disk) -> Option<String> {
        let world = self.inventory.world();
        let mut others = world.disks().values().filter(|other| other.name != disk.name);
        let holder = others.find(|o| o.contents.signatures.iter().any(|found| found.uuid == uuid));
        holder.map(|other| other.path.clone())
    }
}

/// Whether a disk is distinguished from all others.
fn resolved(disk: &Disk, view: &View) -> Resolved {
    let duplicates = view.assigned.as_ref().map_or(&[][..], |a| a.duplicates.as_slice());
    if !duplicates.is_empty() {
        let mut paths = vec![disk.path.clone()];
        paths.extend_from_slice(duplicates);
        Resolved::Duplicate(paths)
    } else if identity::resolved(&identity::of(disk)) {
        Resolved::Single
    } else {
        Resolved::Not
    }
}
