//! Reduces an object, its disk and its mounts to the [`Facts`] that the phase table decides on. Pure.

use mainstay_host::{Class, Contents, Disk, MountLine};

use crate::api::{BlockDevice, Makes, State};
use crate::gate;
use crate::phase::{Content, Facts, Fault, Input, Mount, Phase, Provisioner, Record, Retrigger};

/// The state of a disk besides its object.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// The node of the agent.
    pub node: &'a str,
    /// The disk, if it is there.
    pub disk: Option<&'a Disk>,
    /// Where it shall be mounted.
    pub point: &'a str,
    /// The mount table.
    pub mounts: &'a [MountLine],
    /// Its filesystem can be read only.
    pub read_only: bool,
    /// Its record at the backend.
    pub record: Record,
    /// A replica is on it.
    pub replicas: bool,
    /// It is closed for new replicas there.
    pub closed: bool,
    /// Its lease is free.
    pub lease_free: bool,
}

/// The facts, with the gate refusing: the caller sets its verdict.
#[must_use]
pub fn facts(device: &BlockDevice, sight: &Sight<'_>) -> Facts {
    let filesystem = &device.spec.file_system;
    let corrupted = device.status.device_status.file_system.corrupted;
    let active = sight.disk.is_some() && device.status.state != State::Inactive;
    Facts {
        input: Input::Look,
        not_ours: device.spec.node_name != sight.node || device.is_deleting(),
        active,
        want: device.wanted(),
        request: requests(device),
        auto: is_auto(device),
        gate: false,
        provisioner: match device.makes() {
            Makes::Filesystem(_) => Provisioner::Filesystem,
            Makes::Lvm(_) => Provisioner::Lvm,
        },
        content: sight.disk.map_or(Content::Blank, |disk| content(device, disk)),
        mount: mount(sight.disk, sight.point, sight.mounts),
        fault: sight.disk.and_then(|disk| fault(device, disk, sight.read_only)),
        adopt: sight.disk.is_some_and(|disk| adopts(device, disk)),
        corrupted,
        repaired: filesystem.repaired,
        record: sight.record,
        replicas: sight.replicas,
        closed: sight.closed,
        retrigger: retrigger(device),
        lease_free: sight.lease_free,
    }
}

/// Whether formatting is asked for and not done yet. A disk that was corrupted is formatted again
/// only if that was asked for after it failed.
#[must_use]
pub fn requests(device: &BlockDevice) -> bool {
    let forced = device.spec.file_system.force_formatted;
    forced && (!device.latched() || retrigger(device) == Retrigger::Force)
}

/// Whether an object acknowledges data loss without a format request that is still to be answered. Such
/// an acknowledgement has no effect, and is removed, so that no later request can use it.
#[must_use]
pub fn has_stray_acknowledgement(device: &BlockDevice) -> bool {
    !device.spec.acknowledge_data_loss.is_empty() && !requests(device)
}

/// Whether an object names exactly the filesystem on its disk as one to adopt.
fn adopts(device: &BlockDevice, disk: &Disk) -> bool {
    let adopt = &device.spec.file_system.adopt;
    let found = disk.contents.only();
    found.is_some_and(|found| !adopt.is_empty() && *adopt == gate::entry(&found.name, &found.uuid))
}

/// Whether an object names a filesystem to adopt though its disk is mounted where it should be. Then
/// the name is removed, so that it cannot count later.
#[must_use]
pub fn has_stray_adoption(device: &BlockDevice) -> bool {
    let mounted = matches!(device.phase(), Some(Phase::Mounted | Phase::Provisioned));
    mounted && !device.spec.file_system.adopt.is_empty()
}

/// Whether auto-provisioning asked for the disk, not a person.
#[must_use]
pub fn is_auto(device: &BlockDevice) -> bool {
    let by_hand = !device.spec.file_system.format_request.is_empty()
        || !device.spec.acknowledge_data_loss.is_empty();
    let conditions = &device.status.conditions;
    !by_hand && mainstay_controller::conditions::is_true(conditions, "AutoProvisionDetected", None)
}

/// A person's reason to try again: what the spec says now and did not say when it failed.
#[must_use]
pub fn retrigger(device: &BlockDevice) -> Retrigger {
    let Some(failure) = &device.status.failure else { return Retrigger::None };
    let (spec, filesystem) = (&device.spec, &device.spec.file_system);
    let corrupted = device.status.device_status.file_system.corrupted;
    let asks = filesystem.force_formatted
        && (!failure.force_formatted || filesystem.format_request != failure.format_request);
    if corrupted && asks {
        Retrigger::Force
    } else if corrupted && filesystem.repaired && !failure.repaired {
        Retrigger::Repaired
    } else if spec.retry != failure.retry {
        Retrigger::Retry
    } else {
        Retrigger::None
    }
}

/// The contents of a disk, compared with the record in its object.
#[must_use]
pub fn content(device: &BlockDevice, disk: &Disk) -> Content {
    let recorded = device.recorded_uuid();
    let contents = &disk.contents;
    if let Makes::Lvm(_) = device.makes() {
        let ours = match (contents.only(), device.status.formatted.is_some()) {
            (Some(found), _) => {
                found.class == Class::Lvm && !recorded.is_empty() && found.uuid == recorded
            }
            (None, wiped) => contents.is_blank() && wiped && recorded.is_empty(),
        };
        if ours {
            return Content::Ours;
        }
    } else if let Some(found) = contents.only()
        && found.class == Class::Filesystem
        && matches!(found.name.as_str(), "ext4" | "xfs")
        && disk.partitions.is_empty()
    {
        return match recorded {
            "" => Content::Adoptable,
            uuid if uuid == found.uuid => Content::Ours,
            _ => Content::Foreign,
        };
    }
    if disk.is_partitioned() {
        Content::Partitioned
    } else if contents.is_blank() {
        Content::Blank
    } else {
        Content::Other
    }
}

/// Why a disk cannot be used as the pool that its object records. The recorded UUID is a part of the
/// pool's identity; a disk that cannot be read now shows nothing.
#[must_use]
pub fn fault(device: &BlockDevice, disk: &Disk, read_only: bool) -> Option<Fault> {
    let recorded = device.recorded_uuid();
    let Contents { signatures, unreadable, .. } = &disk.contents;
    if unreadable.is_some() {
        return None;
    }
    if recorded.is_empty() || signatures.iter().any(|found| found.uuid == recorded) {
        return read_only.then_some(Fault::ReadOnly);
    }
    Some(match signatures.is_empty() {
        true => Fault::FilesystemMissing,
        false => Fault::FilesystemChanged,
    })
}

/// Where a disk is mounted, compared with where it shall be.
#[must_use]
pub fn mount(disk: Option<&Disk>, point: &str, mounts: &[MountLine]) -> Mount {
    let is_ours = |line: &MountLine| disk.is_some_and(|disk| disk.number == line.number);
    let here: Vec<_> = mounts.iter().filter(|line| line.point == point).collect();
    match here.as_slice() {
        [] if mounts.iter().any(is_ours) => Mount::Elsewhere,
        [] => Mount::Nowhere,
        [only] if is_ours(only) => Mount::Right,
        all if all.iter().any(|line| is_ours(line)) => Mount::Stacked,
        _ => Mount::WrongSource,
    }
}

#[cfg(test)]
mod tests;
