//! Decides which nodes may use a volume, and which Access replicas that needs.

use std::collections::BTreeSet;

use mainstay_placement::{ReplicaType, VolumeAccess};

use crate::api::{AttachmentPhase, ReplicatedVolumeAttachment, ReplicatedVolumeReplica};

/// The largest number of nodes that may use a volume at once.
pub const MOST: usize = 2;

/// The nodes that may use a volume: nodes that use it already stay, others follow in the order in which
/// their attachments were created, up to `most`. With Local access only nodes with its data count.
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

/// The nodes of all attachments of a volume, deleting ones included: data is preferred there.
pub fn wanted_nodes<'a>(
    desired: &[String],
    attachments: impl IntoIterator<Item = &'a ReplicatedVolumeAttachment>,
) -> BTreeSet<String> {
    let attached = attachments.into_iter().map(|attachment| attachment.spec.node_name.clone());
    desired.iter().cloned().chain(attached).collect()
}

/// Access replicas to create (by node) and to delete (by name).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessChanges {
    /// Nodes that need one.
    pub create: Vec<String>,
    /// Replicas that no node needs.
    pub delete: Vec<String>,
}

/// Every node that may use a volume and has no replica of it gets an Access replica, unless the volume
/// may be used only on nodes with its data.
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
            // A Diskful replica may still be placed on that node.
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

/// The phase of an attachment, and the reason for which it waits.
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
        let message = format!(
            "{name} is in use by the largest allowed number of nodes: {}",
            desired.join(", ")
        );
        return (AttachmentPhase::Pending, message);
    }
    match replica {
        None => (AttachmentPhase::Pending, format!("{name} has no replica on {node} yet")),
        Some(_) => (AttachmentPhase::Attaching, format!("waiting for the agent on {node}")),
    }
}
