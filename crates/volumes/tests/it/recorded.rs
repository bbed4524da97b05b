//! The recorded cases: the objects of each, and the expected place of each replica.

use mainstay_clock::{Clock as _, SystemClock};
use mainstay_store::meta::Time;
use serde_json::{Value, json};

use crate::fake::{Answers, Mode};

pub(crate) const GROUP: &str = "storage.mainstay.dev/v1";

/// The volume of every case.
pub(crate) const VOLUME: &str = "rv-test";

pub(crate) fn cases() -> Vec<Value> {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../cases/volumes.json")).unwrap();
    assert_eq!(cases.len(), 71);
    cases
}

/// How the extender of a case answers.
pub(crate) fn answers(case: &Value) -> Answers {
    let mode = |error: &str| if case[error] == true { Mode::Down } else { Mode::Right };
    Answers {
        scores: serde_json::from_value(case["scores"].clone()).unwrap(),
        default: case["defaultScore"].as_i64(),
        scoring: mode("extenderError"),
        narrowing: mode("narrowError"),
    }
}

pub(crate) fn node(name: &str, zone: &str, ready: bool, agent: bool, cordoned: bool) -> Value {
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        json!({"type": kind, "status": status, "lastTransitionTime": now()})
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [condition("Ready", ready), condition("AgentReady", agent)]},
    })
}

/// The current time in the format of objects.
fn now() -> String {
    Time::new(SystemClock::new().now()).to_string()
}

fn guarantees(diskful: u64) -> (u8, u8) {
    match diskful {
        1 => (0, 0),
        2 => (0, 1),
        3 => (1, 1),
        4 => (1, 2),
        _ => (2, 2),
    }
}

/// The objects of a case: nodes, groups, pool, replicas, volume.
pub(crate) fn objects(case: &Value) -> Vec<Value> {
    let mut objects = Vec::new();
    let mut references = Vec::new();
    let flag = |value: &Value, name: &str, default| value[name].as_bool().unwrap_or(default);
    for it in case["nodes"].as_array().unwrap() {
        let name = it["name"].as_str().unwrap();
        objects.push(node(
            name,
            it["zone"].as_str().unwrap(),
            flag(it, "nodeReady", true),
            flag(it, "agentReady", true),
            flag(it, "unschedulable", false),
        ));
        for group in it["lvgs"].as_array().unwrap() {
            let thin = group["thinPoolName"].as_str().unwrap_or_default();
            let ready = flag(group, "ready", true);
            let mut annotations = json!({});
            if flag(group, "unschedulable", false) {
                annotations["storage.mainstay.dev/unschedulable"] = "".into();
            }
            let mut object = json!({
                "apiVersion": GROUP, "kind": "LVMVolumeGroup",
                "metadata": {"name": group["name"], "annotations": annotations},
                "spec": {"local": {"nodeName": name}},
                "status": {"phase": if ready { "Ready" } else { "NotReady" }, "vgSize": "1Ti", "vgFree": "1Ti"},
            });
            let mut reference = json!({"name": group["name"]});
            if !thin.is_empty() {
                object["status"]["thinPools"] =
                    json!([{"name": thin, "ready": true, "actualSize": "1Ti"}]);
                reference["thinPoolName"] = thin.into();
            }
            objects.push(object);
            references.push(reference);
        }
    }
    objects.push(json!({
        "apiVersion": GROUP, "kind": "ReplicatedStoragePool", "metadata": {"name": "pool"},
        "spec": {"type": case["poolType"], "lvmVolumeGroups": references},
    }));
    for replica in case["rvrs"].as_array().unwrap() {
        let deleting = flag(replica, "deleting", false);
        let mut object = json!({
            "apiVersion": GROUP, "kind": "ReplicatedVolumeReplica",
            "metadata": {"name": name(replica)},
            "spec": {"replicatedVolumeName": VOLUME, "type": replica["type"],
                "nodeName": replica["nodeName"], "lvmVolumeGroupName": replica["lvg"],
                "lvmVolumeGroupThinPoolName": replica["thinPool"]},
        });
        if deleting {
            object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        objects.push(object);
    }
    let (failures, redundancy) = guarantees(case["requiredDiskful"].as_u64().unwrap());
    objects.push(json!({
        "apiVersion": GROUP, "kind": "ReplicatedVolume", "metadata": {"name": VOLUME},
        "spec": {"size": "1Gi", "replicatedStorageClassName": "none"},
        "status": {
            "configuration": {"topology": case["topology"], "failuresToTolerate": failures,
                "guaranteedMinimumDataRedundancy": redundancy, "volumeAccess": case["volumeAccess"],
                "storagePoolName": "pool"},
            "configurationGeneration": 1,
            "desiredAttachTo": case["attachTo"],
        },
    }));
    objects
}

pub(crate) fn label(replica: &Value) -> String {
    let prefix = match replica["type"].as_str().unwrap() {
        "Diskful" => "D",
        "TieBreaker" => "TB",
        _ => "A",
    };
    format!("{prefix}{}", replica["id"])
}

/// The name of a replica of a case.
pub(crate) fn name(replica: &Value) -> String {
    format!("{VOLUME}-{}", replica["id"])
}

/// The replicas that are being deleted while the others are placed.
pub(crate) fn leaving(case: &Value) -> impl Iterator<Item = String> {
    let replicas = case["rvrs"].as_array().unwrap().iter();
    replicas.filter(|replica| replica["deleting"] == true).map(name)
}

/// The difference between a replica and the case's expectation, if there is one. A wrong message fails at
/// once, because it cannot become right later.
pub(crate) fn missing(case: &Value, replica: &Value, object: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &object["spec"];
    let parts = ["nodeName", "lvmVolumeGroupName", "lvmVolumeGroupThinPoolName"];
    let parts: Vec<String> =
        parts.iter().map(|part| text(&spec[*part])).filter(|part| !part.is_empty()).collect();
    let place = parts.join("/");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let scheduled = conditions.iter().find(|condition| condition["type"] == "Scheduled");
    let (reason, message) = scheduled
        .map(|condition| (text(&condition["reason"]), text(&condition["message"])))
        .unwrap_or_default();
    let label = label(replica);
    let expected = case["expect"][&label].as_str().unwrap();
    let right = match expected {
        "FAIL" => reason == "SchedulingFailed",
        "EXT" => reason == "ExtenderUnavailable",
        // A guard set it before the volume existed, and it was not changed since.
        "-" => reason.is_empty() || reason == "WaitingForReplicatedVolume",
        _ => place == expected && reason == "Scheduled",
    };
    let what = format!("{} {label}", case["id"]);
    if !right {
        return Some(format!("{what} should be {expected}, is at {place:?}: {reason} {message}"));
    }
    if let Some(expected) = case["messages"][&label].as_str() {
        assert_eq!(message, expected, "{what}");
    }
    if reason == "ExtenderUnavailable" {
        let expected = if case["narrowError"] == true {
            "Scheduling is temporarily unavailable: failed to confirm capacity reservation"
        } else {
            "Scheduling is temporarily unavailable: capacity scoring service is unreachable"
        };
        assert_eq!(message, expected, "{what}");
    }
    None
}
