//! The description of a disk in its BlockDevice.

use mainstay_store::meta::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a disk is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum State {
    /// It is.
    Active,
    /// It is not: it was taken out, or has another path and is not inspected yet.
    Inactive,
    /// Not scanned yet.
    #[default]
    Unknown,
}

/// The description of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// Where it is now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dev_path: String,
    /// The disk a partition is on; always empty, for partitions have no objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parent_device: String,
    /// Whether it has a partition table.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub partitioned: bool,
    /// How large it is.
    #[serde(default)]
    pub capacity: Capacity,
    /// Its hardware.
    #[serde(default)]
    pub details: Details,
    /// The filesystem on it.
    #[serde(default)]
    pub file_system: FileSystemStatus,
}

/// How large a disk is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// In bytes.
    #[serde(default)]
    pub size_bytes: u64,
    /// The size of a physical block.
    #[serde(default)]
    pub physical_block_size_bytes: u64,
}

/// The hardware of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// disk or part.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device_type: String,
    /// HDD, SSD, FDD, ODD or Unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drive_type: String,
    /// The UUID of the filesystem, swap space or physical volume on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// The UUID of its partition table.
    #[serde(default, rename = "ptUUID", skip_serializing_if = "String::is_empty")]
    pub pt_uuid: String,
    /// The UUID of a partition; always empty.
    #[serde(default, rename = "partUUID", skip_serializing_if = "String::is_empty")]
    pub part_uuid: String,
    /// Whether it can be taken out.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub is_removable: bool,
    /// SCSI, IDE, virtio, MMC, NVMe, loop or Unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage_controller: String,
    /// Its place on the bus.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bus_path: String,
    /// Its model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Its vendor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// Its serial number; of a loop device, its backing file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial_number: String,
    /// The memory node it is attached to.
    #[serde(default, rename = "numaNodeID", skip_serializing_if = "Option::is_none")]
    pub numa_node_id: Option<i64>,
    /// Its world wide name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn: String,
    /// The label of the filesystem on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// The filesystem on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileSystemStatus {
    /// Its type.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Where it is mounted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_point: String,
    /// Whether it is mounted for reading only.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub is_read_only: bool,
    /// Whether it could not be mounted because it is damaged.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub corrupted: bool,
    /// Written by older versions only; taken over into the condition Formatted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_formatted_at: Option<Time>,
}

/// A signature that was found on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FoundSignature {
    /// Its name, as ext4, gpt, LVM2_member. spec.acknowledgeDataLoss needs it as NAME:UUID.
    pub name: String,
    /// Its UUID, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// Where it is on the disk, in bytes.
    #[serde(default)]
    pub offset: u64,
}
