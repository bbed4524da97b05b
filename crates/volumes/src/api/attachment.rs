//! ReplicatedVolumeAttachment: a request to use a volume on a node.

use mainstay_store::meta::{Condition, ObjectMeta};
use mainstay_store::registry::{Column, Kind, Violation};
use mainstay_store::typed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GROUP, VERSION};

/// ReplicatedVolumeAttachment requests that a volume is usable on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeAttachment {
    /// Standard object's metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The volume and the node. It cannot change.
    pub spec: ReplicatedVolumeAttachmentSpec,
    /// Its phase.
    #[serde(default)]
    pub status: ReplicatedVolumeAttachmentStatus,
}

/// The volume and the node of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeAttachmentSpec {
    /// The volume.
    #[schemars(length(min = 1))]
    pub replicated_volume_name: String,
    /// The node.
    #[schemars(length(min = 1))]
    pub node_name: String,
}

/// The phase of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedVolumeAttachmentStatus {
    /// Pending, Attaching, Attached, Detaching or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<AttachmentPhase>,
    /// The reason for which it waits, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The phase of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AttachmentPhase {
    /// The volume is missing or not ready, or in use by the largest allowed number of nodes.
    Pending,
    /// The node is attaching the volume.
    Attaching,
    /// The node uses it.
    Attached,
    /// The node is detaching the volume.
    Detaching,
    /// It is being deleted.
    Terminating,
}

typed!(ReplicatedVolumeAttachment, group: GROUP, version: VERSION, plural: "replicatedvolumeattachments", namespaced: false);

pub(super) fn kind() -> Kind {
    Kind::of::<ReplicatedVolumeAttachment>()
        .short("rva")
        .category("storage")
        .status()
        .column(Column::string("Volume", ".spec.replicatedVolumeName"))
        .column(Column::string("Node", ".spec.nodeName"))
        .column(Column::string("Phase", ".status.phase"))
        .column(Column::string("Message", ".status.message").wide())
        .column(Column::age())
        .selectable("spec.replicatedVolumeName")
        .selectable("spec.nodeName")
        .validate(check)
        .build()
}

fn check(
    new: &ReplicatedVolumeAttachment,
    old: Option<&ReplicatedVolumeAttachment>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    if let Some(old) = old {
        let fields = [
            (
                "spec.replicatedVolumeName",
                &old.spec.replicated_volume_name,
                &new.spec.replicated_volume_name,
            ),
            ("spec.nodeName", &old.spec.node_name, &new.spec.node_name),
        ];
        for (field, before, after) in fields {
            if before != after {
                found.push(Violation::immutable(field, &Value::from(after.as_str())));
            }
        }
    }
    found
}
