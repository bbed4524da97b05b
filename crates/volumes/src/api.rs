//! The kinds of storage: classes, pools, volume groups, volumes, replicas, attachments.
//!
//! `kubectl explain` prints the doc comments of fields. Each kind has a module with its type and
//! validation; [`kinds`] is the list that a server registers.

mod attachment;
mod class;
mod group;
mod pool;
mod replica;
mod volume;

pub use mainstay_store::meta::Quantity;
use mainstay_store::registry::Kind;

pub use attachment::{
    AttachmentPhase, ReplicatedVolumeAttachment, ReplicatedVolumeAttachmentSpec,
    ReplicatedVolumeAttachmentStatus,
};
pub use class::{
    ConfigurationRolloutStrategy, ConflictResolution, ConflictResolutionStrategy, MaxParallel,
    ReclaimPolicy, ReplicatedStorageClass, ReplicatedStorageClassSpec,
    ReplicatedStorageClassStatus, Replication, Rollout, Storage, VolumeCounts,
};
pub use group::{
    LVMVolumeGroup, LVMVolumeGroupSpec, LVMVolumeGroupStatus, Local, ThinPool, ThinPoolStatus,
};
pub use pool::{
    EligibleNodesPolicy, LabelRequirement, LabelSelector, ReplicatedStoragePool,
    ReplicatedStoragePoolSpec, ReplicatedStoragePoolStatus, UsedBy, VolumeGroupReference,
};
pub use replica::{
    Backing, ReplicaPhase, ReplicatedVolumeReplica, ReplicatedVolumeReplicaSpec,
    ReplicatedVolumeReplicaStatus, replica_id, replica_name,
};
pub use volume::{
    Configuration, ReplicaCounts, ReplicatedVolume, ReplicatedVolumeSpec, ReplicatedVolumeStatus,
    VolumePhase,
};

/// The API group of storage.
pub const GROUP: &str = "storage.mainstay.dev";
/// The version of the group.
pub const VERSION: &str = "v1";
/// The annotation with the id under which an external extender reserves space for a volume.
pub const RESERVATION_ANNOTATION: &str = "storage.mainstay.dev/scheduling-reservation-id";
/// The annotation that closes a volume group for new replicas, with any value.
pub const UNSCHEDULABLE_ANNOTATION: &str = "storage.mainstay.dev/unschedulable";
/// The annotation that asks for a volume group to be emptied, with any value: it takes no new replicas,
/// and its replicas count as misplaced.
pub const EVICT_ANNOTATION: &str = "storage.mainstay.dev/evict";
/// The finalizer that keeps volumes and replicas until they are deleted in order.
pub const FINALIZER: &str = "storage.mainstay.dev/volumes";
/// The label with a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The kinds of this crate, described for a registry.
#[must_use]
pub fn kinds() -> Vec<Kind> {
    vec![
        class::kind(),
        pool::kind(),
        group::kind(),
        volume::kind(),
        replica::kind(),
        attachment::kind(),
    ]
}

/// Whether a flag is off and can be left out of the output.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
