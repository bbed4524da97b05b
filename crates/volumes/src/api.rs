//! The resources of storage: classes, pools, volume groups, volumes, replicas, attachments.
//!
//! The doc comments of fields are what `kubectl explain` prints. Each kind has a module with its
//! type and the rules its objects obey; [`kinds`] is the list a server registers.

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
/// Its version.
pub const VERSION: &str = "v1";
/// Names the reservation that an external extender keeps for a volume.
pub const RESERVATION_ANNOTATION: &str = "storage.mainstay.dev/scheduling-reservation-id";
/// Closes a volume group for new replicas, whatever its value.
pub const UNSCHEDULABLE_ANNOTATION: &str = "storage.mainstay.dev/unschedulable";
/// Asks for a volume group to be emptied, whatever its value: it takes no replicas, and those on it
/// are in the wrong place.
pub const EVICT_ANNOTATION: &str = "storage.mainstay.dev/evict";
/// Holds volumes and replicas back until they are deleted in order.
pub const FINALIZER: &str = "storage.mainstay.dev/volumes";
/// The label that tells a node's zone.
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

/// Whether a flag is off, hence need not be written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
