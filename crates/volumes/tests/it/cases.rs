//! Every recorded case through the real controllers, with an extender over real HTTP.

use mainstay_volumes::api::{ReplicatedVolumeReplica, replica_name};
use mainstay_volumes::conditions;
use serde_json::{Value, json};

use crate::cluster::{Answers, Cluster, Fake, GROUP, Mode, node};

const VOLUME: &str = "rv-test";

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
        let id = replica["id"].as_u64().unwrap();
        let deleting = flag(replica, "deleting", false);
        let mut object = json!({
            "apiVersion": GROUP, "kind": "ReplicatedVolumeReplica",
            "metadata": {"name": replica_name(VOLUME, id.try_into().unwrap())},
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

fn state(replica: &ReplicatedVolumeReplica) -> (String, String, String) {
    let spec = &replica.spec;
    let parts =
        [&spec.node_name, &spec.lvm_volume_group_name, &spec.lvm_volume_group_thin_pool_name];
    let parts: Vec<&str> = parts.into_iter().map(String::as_str).collect();
    let place = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    match conditions::find(&replica.status.conditions, "Scheduled") {
        Some(condition) => (place, condition.reason.clone(), condition.message.clone()),
        None => (place, String::new(), String::new()),
    }
}

fn as_expected(expected: &str, replica: &ReplicatedVolumeReplica) -> bool {
    let (place, reason, _) = state(replica);
    match expected {
        "FAIL" => reason == "SchedulingFailed",
        "EXT" => reason == "ExtenderUnavailable",
        // Before the volume was there, a guard spoke to all; nobody has touched it since.
        "-" => reason.is_empty() || reason == "WaitingForReplicatedVolume",
        _ => place == expected && reason == "Scheduled",
    }
}

async fn run(case: &Value) {
    let fake = Fake::start(Answers {
        scores: serde_json::from_value(case["scores"].clone()).unwrap(),
        default: case["defaultScore"].as_i64(),
        scoring: if case["extenderError"] == true { Mode::Down } else { Mode::Right },
        narrowing: if case["narrowError"] == true { Mode::Down } else { Mode::Right },
    })
    .await;
    let cluster = Cluster::new(Some(&fake)).await;
    let objects = objects(case);
    let (volume, before) = objects.split_last().unwrap();
    for object in before {
        cluster.apply(object.clone()).await;
    }
    for replica in case["rvrs"].as_array().unwrap() {
        if replica["deleting"] == true {
            let name = format!("{VOLUME}-{}", replica["id"]);
            cluster.delete::<ReplicatedVolumeReplica>(&name).await;
        }
    }
    let views = cluster.volumes.views().clone();
    let wanted = case["nodes"].as_array().unwrap().len();
    cluster
        .until("the pool knows its nodes", || async {
            let pool = views.pools.find(None, "pool");
            pool.is_some_and(|pool| {
                pool.status.eligible_nodes_revision > 0
                    && pool.status.eligible_nodes.len() == wanted
            })
        })
        .await;
    cluster.apply(volume.clone()).await;
    let what = case["id"].to_string();
    cluster
        .until(&what, || async {
            for replica in case["rvrs"].as_array().unwrap() {
                let name = format!("{VOLUME}-{}", replica["id"]);
                let found = cluster.replica(&name).await.unwrap();
                let expected = case["expect"][label(replica)].as_str().unwrap();
                if !as_expected(expected, &found) {
                    return false;
                }
            }
            true
        })
        .await;
    for replica in case["rvrs"].as_array().unwrap() {
        let name = format!("{VOLUME}-{}", replica["id"]);
        let (_, reason, message) = state(&cluster.replica(&name).await.unwrap());
        if let Some(expected) = case["messages"][label(replica)].as_str() {
            assert_eq!(message, expected, "{what} {name}");
        }
        if reason == "ExtenderUnavailable" {
            let expected = if case["narrowError"] == true {
                "Scheduling is temporarily unavailable: failed to confirm capacity reservation"
            } else {
                "Scheduling is temporarily unavailable: capacity scoring service is unreachable"
            };
            assert_eq!(message, expected, "{what} {name}");
        }
    }
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn every_recorded_case_is_placed_by_the_controllers_as_recorded() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../cases/volumes.json")).unwrap();
    assert_eq!(cases.len(), 71);
    for case in &cases {
        run(case).await;
    }
}
