//! Objects of older versions, read and made current.
//!
//! An older agent wrote the condition AddedToNode for Provisioned, kept the time of formatting in
//! the filesystem's status, and took its mount point from the spec. [`current`] changes nothing the
//! second time.

use mainstay_store::meta::{Condition, ConditionStatus};
use serde_json::{Map, Value};

use super::{BlockDevice, FormatRecord};

/// Whether an object bears a trace of an older version.
pub(super) fn is_old(object: &Map<String, Value>) -> bool {
    let Some(status) = object.get("status") else { return false };
    let conditions = status["conditions"].as_array();
    let added = |condition: &Value| condition["type"] == "AddedToNode";
    !status["deviceStatus"]["fileSystem"]["lastFormattedAt"].is_null()
        || conditions.is_some_and(|conditions| conditions.iter().any(added))
}

pub(super) fn current(device: &mut BlockDevice) {
    let status = &mut device.status;
    let known = |conditions: &[Condition], kind: &str| conditions.iter().any(|c| c.kind == kind);
    if known(&status.conditions, "Provisioned") {
        status.conditions.retain(|condition| condition.kind != "AddedToNode");
    }
    for condition in &mut status.conditions {
        if condition.kind == "AddedToNode" {
            "Provisioned".clone_into(&mut condition.kind);
        }
    }
    if let Some(at) = status.device_status.file_system.last_formatted_at.take() {
        if !known(&status.conditions, "Formatted") {
            status.conditions.push(Condition {
                kind: "Formatted".to_owned(),
                status: ConditionStatus::True,
                reason: "Formatted".to_owned(),
                message: "formatted by an earlier version".to_owned(),
                observed_generation: None,
                last_transition_time: Some(at),
                last_update_time: Some(at),
            });
        }
        status.formatted.get_or_insert_with(|| FormatRecord {
            uuid: status.device_status.details.uuid.clone(),
            request: device.spec.file_system.format_request.clone(),
            adopted: false,
            at: Some(at),
        });
    }
}
