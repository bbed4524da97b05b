//! One disk for people.

use serde_json::Value;

use super::{name, path_of, phase, said};
use crate::output::Table;

/// One disk in words.
pub(super) fn describe(disk: &Value) -> String {
    let (spec, status) = (&disk["spec"], &disk["status"]);
    let device = &status["deviceStatus"];
    let details = &device["details"];
    let size = mainstay_disks::size(device["capacity"]["sizeBytes"].as_u64().unwrap_or(0));
    let mut table = Table::new(&[]);
    let mut add = |key: &str, value: String| {
        if !value.is_empty() {
            table.rows.push(vec![format!("{key}:"), value]);
        }
    };
    add("Name", name(disk));
    add("Node", said(&spec["nodeName"]));
    add("Path", path_of(disk));
    add("State", said(&status["state"]));
    add("Phase", phase(disk).to_owned());
    add("Wanted", said(&spec["provision"]));
    add("Size", size);
    add("Type", said(&details["driveType"]));
    add("Vendor", said(&details["vendor"]));
    add("Model", said(&details["model"]));
    add("Serial", said(&details["serialNumber"]));
    add("WWN", said(&details["wwn"]));
    add("Bus", said(&details["busPath"]));
    add("Filesystem", said(&device["fileSystem"]["type"]));
    add("UUID", said(&details["uuid"]));
    add("Mounted at", said(&device["fileSystem"]["mountPoint"]));
    let signatures = status["signatures"].as_array().into_iter().flatten();
    let signatures: Vec<_> = signatures.map(|found| said(&found["name"])).collect();
    add("Holds", signatures.join(", "));
    add("Operation", said(&status["operation"]["kind"]));
    add("Failure", said(&status["failure"]["message"]));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions {
        let text = ["status", "reason", "message"].map(|field| said(&condition[field])).join(" ");
        add(&said(&condition["type"]), text.trim().to_owned());
    }
    table.render(false, &mut Vec::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_is_described_with_what_matters() {
        let disk = json!({
            "metadata": {"name": "d1"},
            "spec": {"nodeName": "n1", "devPath": "/dev/sda"},
            "status": {"provisionPhase": "Failed", "failure": {"reason": "Refused", "message": "rule 4: found gpt"},
                "signatures": [{"name": "gpt"}], "deviceStatus": {"capacity": {"sizeBytes": 1_073_741_824_u64}}},
        });
        let text = describe(&disk);
        for part in ["d1", "n1", "/dev/sda", "1Gi", "gpt", "rule 4"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
