//! Where a volume is wanted, and which Access replicas that needs.

use std::collections::BTreeSet;

use mainstay_placement::{ReplicaType, VolumeAccess};

use crate::api::{AttachmentPhase, ReplicatedVolumeAttachment, ReplicatedVolumeReplica};

/// How many nodes may use a volume at once.
pub const MOST: usize = 2;

/// The nodes that shall use a volume: those that do already stay, the others come in the order
/// their attachments were created, up to `most`. With Local access only nodes that hold its data
/// count.
#[must_use]
pub fn desired_attach_to<'a>(
    before: &[String],
    attachments: impl IntoIterator<Item = &'a ReplicatedVolumeAttachment>,
    most: usize,
) -> Vec<String> {
    let mut wanted: Vec<_> = attachments
        .into_iter()
        .filter(|attachment| attachment.metadata.deletion_timestamp.is_none())
        .collect();
    wanted.sort_by_key(|attachment| {
        let stays = before.contains(&attachment.spec.node_name);
        let metadata = &attachment.metadata;
        (!stays, metadata.creation_timestamp, &metadata.name)
    });
    let mut nodes = Vec::new();
    for attachment in wanted {
        let node = &attachment.spec.node_name;
        if !nodes.contains(node) && nodes.len() < most {
            nodes.push(node.clone());
        }
    }
    nodes.sort();
    nodes
}

/// The nodes that attachments of a volume name, deleting ones included: where its data is wanted.
pub fn wanted_nodes<'a>(
    desired: &[String],
    attachments: impl IntoIterator<Item = &'a ReplicatedVolumeAttachment>,
) -> BTreeSet<String> {
    let attached = attachments.into_iter().map(|attachment| attachment.spec.node_name.clone());
    desired.iter().cloned().chain(attached).collect()
}

/// Which Access replicas to create (by node) and which to delete (by name).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessChanges {
    /// Nodes that lack one.
    pub create: Vec<String>,
    /// Replicas nobody needs.
    pub delete: Vec<String>,
}

/// Gives every node that shall use a volume and holds no replica of it an Access replica, unless
/// the volume may be used only where its data is.
#[must_use]
pub fn access_replicas(
    access: VolumeAccess,
    desired: &[String],
    replicas: &[impl AsRef<ReplicatedVolumeReplica>],
) -> AccessChanges {
    let replicas = || replicas.iter().map(AsRef::as_ref);
    let create = desired.iter().filter(|node| {
        access != VolumeAccess::Local
            && replicas().all(|replica| replica.spec.node_name != **node)
            // Data may still come to that node by itself.
            && replicas().all(|replica| !replica.spec.node_name.is_empty() || replica.deleting())
    });
    let superfluous = replicas().filter(|replica| {
        let node = &replica.spec.node_name;
        let doubled = || {
            replicas().any(|other| {
                other.spec.node_name == *node && other.spec.kind != ReplicaType::Access
            })
        };
        replica.spec.kind == ReplicaType::Access
            && !replica.deleting()
            && (!desired.contains(node) || access == VolumeAccess::Local || doubled())
    });
    AccessChanges {
        create: create.cloned().collect(),
        delete: superfluous.map(|replica| replica.metadata.name.clone()).collect(),
    }
}

/// How far an attachment is, and what it waits for.
#[must_use]
pub fn phase(
    attachment: &ReplicatedVolumeAttachment,
    volume: Option<(&[String], &[String])>,
    replica: Option<&ReplicatedVolumeReplica>,
) -> (AttachmentPhase, String) {
    let node = &attachment.spec.node_name;
    let name = &attachment.spec.replicated_volume_name;
    if attachment.metadata.deletion_timestamp.is_some() {
        return (AttachmentPhase::Terminating, String::new());
    }
    let Some((desired, actual)) = volume else {
        return (AttachmentPhase::Pending, format!("ReplicatedVolume {name} not found"));
    };
    if actual.contains(node) && replica.is_some() {
        return (AttachmentPhase::Attached, String::new());
    }
    if !desired.contains(node) {
        let message =
            format!("{name} is used by as many nodes as it may be: {}", desired.join(", "));
        return (AttachmentPhase::Pending, message);
    }
    match replica {
        None => (AttachmentPhase::Pending, format!("{name} has no replica on {node} yet")),
        Some(_) => (AttachmentPhase::Attaching, format!("waiting for the agent on {node}")),
    }
}
