//! The plan over manifests: every recorded case, and volumes that have only a class.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_volumes::plan::{Plan, Scores, plan};
use mainstay_volumes::world::{World, documents};
use serde_json::{Value, json};

use crate::cluster::{class, group, pool, volume};
use crate::recorded::{label, node, objects};

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn scores(case: &Value) -> Scores {
    if case["extenderError"] == true {
        return Scores::read("error").unwrap();
    }
    if case["narrowError"] == true {
        return Scores::read("narrowError").unwrap();
    }
    let mut table: BTreeMap<String, Value> =
        serde_json::from_value(case["scores"].clone()).unwrap();
    if let Some(default) = case["defaultScore"].as_i64() {
        let groups = case["nodes"].as_array().unwrap().iter();
        for lvg in groups.flat_map(|node| node["lvgs"].as_array().unwrap()) {
            let name = lvg["name"].as_str().unwrap().to_owned();
            table.entry(name).or_insert_with(|| default.into());
        }
    }
    Scores::read(&json!(table).to_string()).unwrap()
}

#[test]
fn every_recorded_case_is_planned_as_recorded() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../cases/volumes.json")).unwrap();
    for case in &cases {
        let mut objects = objects(case);
        for (object, replica) in objects
            .iter_mut()
            .filter(|object| object["kind"] == "ReplicatedVolumeReplica")
            .zip(case["rvrs"].as_array().unwrap())
        {
            if replica["deleting"] == true {
                object["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z".into();
            }
        }
        for object in &mut objects {
            if object["kind"] == "Node" {
                for condition in object["status"]["conditions"].as_array_mut().unwrap() {
                    condition["lastTransitionTime"] = "2026-03-01T11:59:00Z".into();
                }
            }
        }
        let id = &case["id"];
        let planned = plan(World::read(objects).unwrap(), &scores(case), now());
        let mut unplaced = false;
        for (replica, planned) in
            case["rvrs"].as_array().unwrap().iter().zip(&planned.volumes[0].replicas)
        {
            let label = label(replica);
            let expected = case["expect"][&label].as_str().unwrap();
            let place = [&planned.node, &planned.lvg, &planned.thin_pool];
            let place: Vec<&str> =
                place.into_iter().filter(|it| !it.is_empty()).map(String::as_str).collect();
            let scheduled = planned.scheduled.as_ref();
            let reason = scheduled.map_or("", |scheduled| scheduled.reason);
            match expected {
                "FAIL" => assert_eq!(reason, "SchedulingFailed", "{id} {label}"),
                "EXT" => assert_eq!(reason, "ExtenderUnavailable", "{id} {label}"),
                "-" => assert_eq!(reason, "", "{id} {label}"),
                _ => {
                    assert_eq!((place.join("/").as_str(), reason), (expected, "Scheduled"), "{id}");
                }
            }
            if let Some(message) = case["messages"][&label].as_str() {
                assert_eq!(scheduled.unwrap().message, message, "{id} {label}");
            }
            unplaced |=
                matches!(expected, "FAIL" | "EXT") || (expected == "-" && label.starts_with("TB"));
        }
        assert_eq!(planned.incomplete(), unplaced, "{id}");
        assert_eq!(case["outcome"] == "error", !planned.volumes[0].error.is_empty(), "{id}");
    }
}

fn small(volumes: Vec<Value>) -> Plan {
    let mut objects = vec![pool("pool", &["vg-a", "vg-b"]), class("pair", "Consistency", "pool")];
    for name in ["a", "b"] {
        objects.push(node(name, "z", true, true, false));
        objects.push(group(&format!("vg-{name}"), name, "10Gi"));
    }
    objects.extend(volumes);
    plan(World::read(objects).unwrap(), &Scores::Ledger, now())
}

#[test]
fn a_volume_without_replicas_gets_them_from_its_class() {
    let planned = small(vec![volume("one", "pair", "6Gi"), volume("two", "pair", "6Gi")]);
    let json = serde_json::to_value(&planned).unwrap();
    assert_eq!(
        json["volumes"][0],
        json!({"name": "one", "error": "", "replicas": [
            {"name": "one-0", "type": "Diskful", "node": "a", "lvg": "vg-a", "thinPool": "",
                "scheduled": {"status": "True", "reason": "Scheduled",
                    "message": "Replica scheduled successfully"}},
            {"name": "one-1", "type": "Diskful", "node": "b", "lvg": "vg-b", "thinPool": "",
                "scheduled": {"status": "True", "reason": "Scheduled",
                    "message": "Replica scheduled successfully"}},
        ]})
    );
    let second = &json["volumes"][1]["replicas"][0];
    assert_eq!(
        second["scheduled"]["message"],
        "2 candidates (node×LVG) from 2 eligible nodes; 2 excluded: scoring (no capacity)"
    );
    assert!(planned.incomplete());
}

#[test]
fn an_exact_fit_leaves_no_room_for_metadata() {
    assert!(small(vec![volume("exact", "pair", "10Gi")]).incomplete());
    assert!(!small(vec![volume("less", "pair", "10200Mi")]).incomplete());
}

#[test]
fn guards_are_planned_too() {
    let replica = json!({"kind": "ReplicatedVolumeReplica", "metadata": {"name": "rv-0"},
        "spec": {"replicatedVolumeName": "rv", "type": "Diskful"}});
    let message = |objects: Vec<Value>| {
        let planned = plan(World::read(objects).unwrap(), &Scores::Ledger, now());
        let scheduled = planned.volumes[0].replicas[0].scheduled.clone().unwrap();
        assert_eq!((scheduled.status, scheduled.reason), ("Unknown", "WaitingForReplicatedVolume"));
        scheduled.message
    };
    let mut configured = volume("rv", "none", "1Gi");
    configured["status"]["configuration"] = json!({"storagePoolName": ""});
    assert_eq!(
        message(vec![replica.clone()]),
        "ReplicatedVolume not found; waiting for it to be present"
    );
    assert_eq!(
        message(vec![replica.clone(), volume("rv", "none", "1Gi")]),
        "ReplicatedVolume has no configuration yet; waiting for it to appear"
    );
    assert_eq!(
        message(vec![replica, configured]),
        "ReplicatedStoragePool not found; waiting for it to be present"
    );
}

#[test]
fn manifests_are_read_from_yaml_with_several_documents() {
    let text = "kind: Node\nmetadata: {name: a}\n---\nkind: List\nitems:\n- kind: Node\n  metadata: {name: b}\n---\nkind: ConfigMap\nmetadata: {name: c}\n";
    let world = World::read(documents(text).unwrap()).unwrap();
    assert_eq!(world.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert!(Scores::read("{vg-a: much}").is_err());
}
