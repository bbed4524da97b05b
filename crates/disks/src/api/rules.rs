//! The validation of BlockDevices beyond their schema, and the one computed column.

use jiff::Timestamp;
use mainstay_store::registry::Violation;
use serde_json::{Map, Value};

use super::BlockDevice;
use crate::phase::Phase;

/// A size as people say it.
pub(super) fn size(object: &Map<String, Value>, _: Timestamp) -> Value {
    let capacity = object.get("status").and_then(|status| status.get("deviceStatus"));
    let bytes = capacity
        .and_then(|device| device.get("capacity"))
        .and_then(|capacity| capacity.get("sizeBytes"))
        .and_then(Value::as_u64);
    bytes.map_or(Value::Null, |bytes| Value::from(crate::text::size(bytes)))
}

pub(super) fn check(new: &BlockDevice, old: Option<&BlockDevice>) -> Vec<Violation> {
    let mut found = Vec::new();
    let spec = &new.spec;
    if spec.node_name.is_empty() {
        found.push(Violation::required("spec.nodeName", "name the node that has the disk"));
    }
    if spec.dev_path.is_empty() {
        found.push(Violation::required("spec.devPath", "say where the disk was found"));
    }
    if let Some(provisioner) = &spec.provisioner {
        match (&provisioner.filesystem, &provisioner.lvm) {
            (Some(_), Some(_)) | (None, None) => found.push(Violation::invalid(
                "spec.provisioner",
                &Value::from("filesystem, lvm"),
                "must have exactly one of filesystem and lvm",
            )),
            (None, Some(lvm)) => check_group(&lvm.vg_name, &lvm.parameters, &mut found),
            (Some(_), None) => {}
        }
    }
    if let Some(old) = old {
        check_change(new, old, &mut found);
    }
    found
}

/// LVM's own rule for names, and no argument that could point at something else.
fn check_group(name: &str, parameters: &[String], found: &mut Vec<Violation>) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    if name.is_empty()
        || name.len() > 127
        || name.starts_with(['-', '.'])
        || !name.chars().all(allowed)
    {
        found.push(Violation::invalid(
            "spec.provisioner.lvm.vgName",
            &Value::from(name),
            "must be 1 to 127 letters, digits, '+', '_', '.' or '-', not beginning with '-' or '.'",
        ));
    }
    for (index, parameter) in parameters.iter().enumerate() {
        let forces = ["--force", "-f", "--yes", "-y"];
        let plain = parameter.starts_with("--") && parameter.contains('=');
        if !plain || forces.iter().any(|word| parameter.starts_with(&format!("{word}="))) {
            found.push(Violation::invalid(
                format!("spec.provisioner.lvm.parameters[{index}]"),
                &Value::from(parameter.as_str()),
                "must be of the form --name=value, as --physicalextentsize=8m",
            ));
        }
    }
}

fn check_change(new: &BlockDevice, old: &BlockDevice, found: &mut Vec<Violation>) {
    if new.spec.node_name != old.spec.node_name {
        let value = Value::from(new.spec.node_name.as_str());
        found.push(Violation::immutable("spec.nodeName", &value));
    }
    let at_rest = matches!(old.phase(), Some(Phase::Unprovisioned | Phase::Failed) | None);
    if new.makes() != old.makes() && !at_rest {
        found.push(Violation::forbidden(
            "spec.provisioner",
            &format!(
                "cannot change while the disk is {}; set spec.provision to false and wait until it is out of use",
                old.status.provision_phase
            ),
        ));
    }
}
