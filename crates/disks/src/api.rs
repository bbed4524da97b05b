//! BlockDevice: a disk of a node, what shall become of it, and how far that got.
//!
//! The doc comments of fields are what `kubectl explain` prints. Users write the spec; only the
//! agent of the node writes the status.

mod convert;
mod device;
mod operation;
mod rules;

use mainstay_host::FsType;
use mainstay_store::meta::{Condition, ObjectMeta};
use mainstay_store::registry::{Column, Kind};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use device::{Capacity, Details, DeviceStatus, FileSystemStatus, FoundSignature, State};
pub use operation::{
    DeviceRef, DryRun, Failure, FormatRecord, Identity, OperationStatus, RuleStatus,
};

use crate::phase::Phase;

/// The API group of storage.
pub const GROUP: &str = "storage.mainstay.dev";
/// Its version.
pub const VERSION: &str = "v1";
/// Holds a BlockDevice back until no operation owns its disk.
pub const FINALIZER: &str = "storage.mainstay.dev/disks";
/// Any new value asks what would be done to the disk; status.dryRun answers. `WORD:SPEC` rehearses a
/// spec, in JSON; any other value rehearses a new format request.
pub const DRY_RUN_ANNOTATION: &str = "storage.mainstay.dev/dry-run";
/// Tells the node a BlockDevice belongs to.
pub const NODE_LABEL: &str = "kubernetes.io/hostname";
/// Tells disks from partitions (of which there are none today).
pub const TYPE_LABEL: &str = "storage.mainstay.dev/device-type";

/// BlockDevice is a disk of a node. The node's agent finds it and reports it; its spec says what
/// shall become of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The wanted state of the disk.
    pub spec: BlockDeviceSpec,
    /// How far it got, and what the disk is.
    #[serde(default)]
    pub status: BlockDeviceStatus,
}

/// The wanted state of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceSpec {
    /// The node that has the disk.
    pub node_name: String,
    /// Where the disk was when it was first seen. Where it is now is in the status.
    pub dev_path: String,
    /// True makes the disk a pool that volumes can use; false takes it back out of use. No disk is
    /// ever erased because of this field alone.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub provision: bool,
    /// How the disk is provisioned: as a filesystem or an LVM volume group, exactly one. If not set, a
    /// filesystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<Provisioner>,
    /// About the filesystem on the disk.
    #[serde(default, skip_serializing_if = "FileSystem::is_default")]
    pub file_system: FileSystem,
    /// Words that go with the disk to whatever uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub tags: Vec<String>,
    /// Any new value tries again after a failure. A disk that failed is not touched before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
    /// The signatures on the disk whose data may be lost, each as NAME:UUID (NAME if it has no UUID).
    /// Erasing needs exactly those that are found, neither more nor fewer. Set it together with a
    /// format request: it counts for that one operation, which removes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub acknowledge_data_loss: Vec<String>,
}

/// How a disk is provisioned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provisioner {
    /// A filesystem on the whole disk, mounted under the agent's root; becomes a pool of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemProvisioner>,
    /// A physical volume and a volume group; becomes an LVM pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lvm: Option<LvmProvisioner>,
}

/// How a disk becomes a filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemProvisioner {
    /// ext4 or xfs. If not set, ext4.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["", "ext4", "xfs"]))]
    pub kind: String,
}

/// How a disk becomes a volume group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LvmProvisioner {
    /// The name of the volume group. It must be new: groups of several disks are not made.
    pub vg_name: String,
    /// Further arguments for vgcreate, as --physicalextentsize=8m.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub parameters: Vec<String>,
}

/// The wanted state of the filesystem on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileSystem {
    /// Asks once for the disk to be formatted (or wiped, for LVM). It may stay true: a disk is not
    /// formatted again because of it.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub force_formatted: bool,
    /// Any new value, together with forceFormatted, asks for formatting once more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format_request: String,
    /// Names a filesystem that another program has mounted, as NAME:UUID: it is unmounted there, and
    /// becomes a pool with its data. Without it such a disk is left alone. Counts once: mounting the
    /// filesystem removes it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub adopt: String,
    /// Says that a corrupted filesystem has been repaired by hand: it is mounted once more, which removes
    /// this word.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub repaired: bool,
    /// The old name of spec.provision; either of them set makes the disk wanted.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub provisioned: bool,
    /// Has no effect: the mount point follows from the name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_point: String,
    /// ext4 or xfs, if spec.provisioner does not say.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["", "ext4", "xfs"]))]
    pub kind: String,
}

impl FileSystem {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How far a disk got, and what it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceStatus {
    /// Whether the disk is there: Active, Inactive or Unknown.
    #[serde(default)]
    pub state: State,
    /// How far it got. The phases that end in -ing are locks: one operation owns the disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provision_phase: String,
    /// The generation of the spec that was last acted upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The description of the disk.
    #[serde(default)]
    pub device_status: DeviceStatus,
    /// The signatures on the disk that would be lost by formatting it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub signatures: Vec<FoundSignature>,
    /// The tags that what uses the disk knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub tags: Vec<String>,
    /// The operation that owns the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationStatus>,
    /// The last time it was formatted by us, or adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatted: Option<FormatRecord>,
    /// Why it failed, and what was seen then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The decision that would be made, if a dry run was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<DryRun>,
    /// Formatted, Mounted, Provisioned, Failed, AutoProvisionDetected, Corrupted, NeedsFormat,
    /// Duplicate, Refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

typed!(BlockDevice, group: GROUP, version: VERSION, plural: "blockdevices", namespaced: false);

/// How a disk is provisioned, with the defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Makes {
    /// A filesystem of this type.
    Filesystem(FsType),
    /// A volume group.
    Lvm(LvmProvisioner),
}

impl BlockDevice {
    /// Whether it shall be a pool.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.spec.provision || self.spec.file_system.provisioned
    }

    /// How it is provisioned.
    #[must_use]
    pub fn makes(&self) -> Makes {
        let provisioner = self.spec.provisioner.clone().unwrap_or_default();
        if let Some(lvm) = provisioner.lvm {
            return Makes::Lvm(lvm);
        }
        let named = provisioner.filesystem.unwrap_or_default().kind;
        let named = if named.is_empty() { &self.spec.file_system.kind } else { &named };
        Makes::Filesystem(if named == "xfs" { FsType::Xfs } else { FsType::Ext4 })
    }

    /// Its phase; `None` if the status has an unknown one.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        match self.status.provision_phase.as_str() {
            "" => Some(Phase::Unprovisioned),
            named => Phase::named(named),
        }
    }

    /// Whether the format that is asked for was done already.
    #[must_use]
    pub fn latched(&self) -> bool {
        let asked = &self.spec.file_system.format_request;
        self.status.formatted.as_ref().is_some_and(|done| !done.adopted && done.request == *asked)
    }

    /// The UUID of the filesystem or physical volume we know to be on it.
    #[must_use]
    pub fn recorded_uuid(&self) -> &str {
        self.status.formatted.as_ref().map_or("", |done| done.uuid.as_str())
    }

    /// Whether it is on its way out.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// The kinds of this crate, described for a registry.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    vec![kind()]
}

fn kind() -> Kind {
    Kind::of::<BlockDevice>()
        .short("bd")
        .category("storage")
        .status()
        .column(Column::string("Node", ".spec.nodeName"))
        .column(Column::string("Path", ".status.deviceStatus.devPath"))
        .column(Column::computed("Size", mainstay_store::column::ColumnType::String, rules::size))
        .column(Column::string("Type", ".status.deviceStatus.details.driveType"))
        .column(Column::string("Filesystem", ".status.deviceStatus.fileSystem.type"))
        .column(Column::string("Phase", ".status.provisionPhase"))
        .column(Column::string("State", ".status.state").wide())
        .column(Column::string("Serial", ".status.deviceStatus.details.serialNumber").wide())
        .column(Column::string("Mount", ".status.deviceStatus.fileSystem.mountPoint").wide())
        .column(Column::age())
        .selectable("spec.nodeName")
        .selectable("status.provisionPhase")
        .default_with(convert::is_old, convert::current)
        .validate(rules::check)
        .build()
}

#[cfg(test)]
mod tests;
