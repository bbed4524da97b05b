use mainstay_store::meta::ConditionStatus;
use mainstay_store::registry::Registry;
use serde_json::json;

use super::*;

fn device(value: serde_json::Value) -> BlockDevice {
    serde_json::from_value(value).unwrap()
}

#[test]
fn the_kind_can_be_registered() {
    let registry = Registry::new(kinds()).unwrap();
    assert!(registry.find(GROUP, VERSION, "blockdevices").is_some());
}

#[test]
fn rules_name_the_field_that_is_wrong() {
    let good = json!({"nodeName": "n1", "devPath": "/dev/sda"});
    let with = |extra: serde_json::Value| {
        let mut spec = good.as_object().unwrap().clone();
        spec.extend(extra.as_object().unwrap().clone());
        device(json!({"spec": spec}))
    };
    let cases = [
        (json!({}), None),
        (json!({"nodeName": ""}), Some("spec.nodeName")),
        (json!({"devPath": ""}), Some("spec.devPath")),
        (json!({"provisioner": {}}), Some("spec.provisioner")),
        (
            json!({"provisioner": {"filesystem": {}, "lvm": {"vgName": "a"}}}),
            Some("spec.provisioner"),
        ),
        (json!({"provisioner": {"lvm": {"vgName": "vg-1"}}}), None),
        (json!({"provisioner": {"lvm": {"vgName": "-a"}}}), Some("spec.provisioner.lvm.vgName")),
        (
            json!({"provisioner": {"lvm": {"vgName": "a", "parameters": ["-f"]}}}),
            Some("spec.provisioner.lvm.parameters[0]"),
        ),
        (
            json!({"provisioner": {"lvm": {"vgName": "a", "parameters": ["--physicalextentsize=8m"]}}}),
            None,
        ),
    ];
    for (extra, expected) in cases {
        let found = rules::check(&with(extra.clone()), None);
        let fields: Vec<_> = found.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, expected.into_iter().collect::<Vec<_>>(), "{extra}");
    }
}

#[test]
fn the_provisioner_cannot_change_while_a_disk_is_in_use() {
    let spec = |provisioner: serde_json::Value| json!({"nodeName": "n", "devPath": "/dev/a", "provisioner": provisioner});
    let lvm = device(json!({"spec": spec(json!({"lvm": {"vgName": "a"}}))}));
    for (phase, refused) in
        [("Unprovisioned", 0), ("Failed", 0), ("Mounted", 1), ("Provisioned", 1)]
    {
        let old = device(json!({
            "spec": spec(json!({"filesystem": {}})), "status": {"provisionPhase": phase},
        }));
        assert_eq!(rules::check(&lvm, Some(&old)).len(), refused, "{phase}");
    }
}

#[test]
fn objects_of_an_older_version_are_read_and_converted() {
    let written = json!({
        "spec": {"nodeName": "n", "devPath": "/dev/a", "fileSystem":
            {"provisioned": true, "forceFormatted": true, "mountPoint": "/var/extra"}},
        "status": {
            "state": "Active", "provisionPhase": "Provisioned",
            "deviceStatus": {"details": {"uuid": "u1"},
                "fileSystem": {"type": "ext4", "lastFormattedAt": "2024-05-01T00:00:00Z"}},
            "conditions": [{"type": "AddedToNode", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2024-05-01T00:00:00Z"}],
        },
    });
    assert!(convert::is_old(written.as_object().unwrap()));
    let mut old = device(written);
    convert::current(&mut old);
    assert!(!convert::is_old(serde_json::to_value(&old).unwrap().as_object().unwrap()));
    let once = old.clone();
    convert::current(&mut old);
    assert_eq!(old, once);
    assert!(old.wanted() && old.latched());
    assert_eq!(old.recorded_uuid(), "u1");
    let kinds: Vec<_> = old.status.conditions.iter().map(|c| (c.kind.as_str(), c.status)).collect();
    let expected = [("Provisioned", ConditionStatus::True), ("Formatted", ConditionStatus::True)];
    assert_eq!(kinds, expected);
    assert_eq!(old.status.device_status.file_system.last_formatted_at, None);
}
