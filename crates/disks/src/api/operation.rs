//! The token of an operation, and what is remembered of the past.

use mainstay_store::meta::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The operation that owns a disk. It is written together with the lock phase, before anything is
/// done, and what was done counts only while it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStatus {
    /// Which: no two operations share it.
    pub id: String,
    /// Format, Wipe, Mount, Unmount, Register or Deregister.
    pub kind: String,
    /// The disk it is bound to.
    #[serde(default)]
    pub device: DeviceRef,
    /// The boot of the machine it began in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// How often it was begun: 1 unless the agent was interrupted.
    #[serde(default)]
    pub attempt: u32,
    /// When it was first begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The UUID the new filesystem gets: how a format is recognised as done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target_fs_uuid: String,
    /// The mount point it is about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_point: String,
    /// The signatures that may be overwritten, as spec.acknowledgeDataLoss named them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub acknowledged: Vec<String>,
    /// The value of spec.fileSystem.formatRequest that asked for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format_request: String,
    /// Set when the operation was given up but could not be ended: the disk stays in quarantine.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub lease_held: bool,
}

/// Which disk, as the kernel and as its hardware say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRef {
    /// major:minor; comparable within one boot only.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub number: String,
    /// The kernel's count of disks attached so far; comparable within one boot only.
    #[serde(default)]
    pub diskseq: u64,
    /// Where it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// How large it was.
    #[serde(default)]
    pub size_bytes: u64,
    /// The identity of the disk.
    #[serde(default)]
    pub identity: Identity,
}

/// The identity of a disk, over reboots and changes of path.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The UUID of the filesystem or physical volume on it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// Its world wide name; empty if it has none that is worth the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn: String,
    /// Its vendor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// Its model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Its serial number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Its place on the bus.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bus_path: String,
}

/// A format that was done, or a filesystem that was adopted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormatRecord {
    /// The UUID of the filesystem or physical volume.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// The value of spec.fileSystem.formatRequest it answered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Whether it was there already, and only taken over.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub adopted: bool,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Why a disk failed, and what its spec said then: what differs now may be a reason to try again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Why, in one word.
    pub reason: String,
    /// Why, and what to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The phase it failed in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from_phase: String,
    /// The generation of the spec at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// spec.retry at that time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retry: String,
    /// spec.fileSystem.repaired at that time.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub repaired: bool,
    /// spec.fileSystem.forceFormatted at that time.
    #[serde(default, skip_serializing_if = "crate::text::is_false")]
    pub force_formatted: bool,
    /// spec.fileSystem.formatRequest at that time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub format_request: String,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// The decision about a spec that was only rehearsed, with the verdict of the safety gate rule by rule
/// if the decision depends on it: the answer to the annotation storage.mainstay.dev/dry-run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The value of the annotation it answers.
    pub request: String,
    /// Whether everything that was asked for would be done.
    pub passes: bool,
    /// The operation that would be done, or the reason why none would.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub decision: String,
    /// The finding of each rule; none if the gate is not asked.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<RuleStatus>,
}

/// The finding of one rule of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// Its number.
    pub rule: u8,
    /// The requirement.
    pub asks: String,
    /// Why it refuses; not set if it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
