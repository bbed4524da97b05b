//! `mainstay disks show`: one disk as text.

use mainstay_terminal::output::Table;

use super::{path_of, phase};
use crate::api::BlockDevice;

/// One disk, a line for each property that is known.
pub(super) fn describe(disk: &BlockDevice) -> String {
    let BlockDevice { metadata, spec, status } = disk;
    let device = &status.device_status;
    let details = &device.details;
    let mut table = Table::new(&[]);
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            table.rows.push(vec![format!("{key}:"), value.to_owned()]);
        }
    };
    add("Name", &metadata.name);
    add("Node", &spec.node_name);
    add("Path", path_of(disk));
    add("State", &format!("{:?}", status.state));
    add("Phase", phase(disk));
    add("Wanted", &spec.provision.to_string());
    add("Size", &crate::size(device.capacity.size_bytes));
    add("Type", &details.drive_type);
    add("Vendor", &details.vendor);
    add("Model", &details.model);
    add("Serial", &details.serial_number);
    add("WWN", &details.wwn);
    add("Bus", &details.bus_path);
    add("Filesystem", &device.file_system.kind);
    add("UUID", &details.uuid);
    add("Mounted at", &device.file_system.mount_point);
    let signatures: Vec<&str> = status.signatures.iter().map(|found| found.name.as_str()).collect();
    add("Holds", &signatures.join(", "));
    add("Operation", status.operation.as_ref().map_or("", |operation| &operation.kind));
    add("Failure", status.failure.as_ref().map_or("", |failure| &failure.message));
    for condition in &status.conditions {
        let (status, reason, message) = (condition.status, &condition.reason, &condition.message);
        add(&condition.kind, format!("{status:?} {reason} {message}").trim());
    }
    table.render(false, &mut Vec::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_has_the_place_size_signatures_and_failure() {
        let disk = json!({
            "metadata": {"name": "d1"},
            "spec": {"nodeName": "n1", "devPath": "/dev/sda"},
            "status": {"provisionPhase": "Failed", "failure": {"reason": "Refused", "message": "rule 4: found gpt"},
                "signatures": [{"name": "gpt"}], "deviceStatus": {"capacity": {"sizeBytes": 1_073_741_824_u64}}},
        });
        let text = describe(&serde_json::from_value(disk).unwrap());
        for part in ["d1", "n1", "/dev/sda", "1Gi", "gpt", "rule 4"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
