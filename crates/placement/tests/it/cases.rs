//! Every recorded case, through the pure pipeline.

use std::collections::BTreeMap;

use mainstay_placement::{
    EligibleGroup, EligibleNode, EligibleNodes, PoolType, Replica, ReplicaType, Topology, Volume,
    VolumeAccess,
};
use serde_json::Value;

use crate::world::{Table, settle};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn eligible(case: &Value) -> EligibleNodes {
    let flag = |value: &Value, name: &str, default| value[name].as_bool().unwrap_or(default);
    EligibleNodes::new(case["nodes"].as_array().unwrap().iter().map(|node| {
        EligibleNode {
            node_name: text(&node["name"]),
            zone_name: text(&node["zone"]),
            unschedulable: flag(node, "unschedulable", false),
            node_ready: flag(node, "nodeReady", true),
            agent_ready: flag(node, "agentReady", true),
            lvm_volume_groups: node["lvgs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|group| EligibleGroup {
                    name: text(&group["name"]),
                    thin_pool_name: text(&group["thinPoolName"]),
                    unschedulable: flag(group, "unschedulable", false),
                    ready: flag(group, "ready", true),
                })
                .collect(),
        }
    }))
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn volume(case: &Value) -> Volume {
    Volume {
        topology: parse::<Topology>(&case["topology"]),
        required_diskful: parse(&case["requiredDiskful"]),
        volume_access: parse::<VolumeAccess>(&case["volumeAccess"]),
        pool_type: parse::<PoolType>(&case["poolType"]),
        attach_to: parse(&case["attachTo"]),
        replicas: case["rvrs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|replica| Replica {
                id: parse(&replica["id"]),
                kind: parse::<ReplicaType>(&replica["type"]),
                node_name: text(&replica["nodeName"]),
                lvg: text(&replica["lvg"]),
                thin_pool: text(&replica["thinPool"]),
                deleting: parse(&replica["deleting"]),
            })
            .collect(),
        ..Volume::default()
    }
}

fn label(replica: &Replica) -> String {
    let prefix = match replica.kind {
        ReplicaType::Diskful | ReplicaType::ShadowDiskful => "D",
        ReplicaType::TieBreaker => "TB",
        ReplicaType::Access => "A",
    };
    format!("{prefix}{}", replica.id)
}

#[test]
fn every_recorded_case_places_as_recorded() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../cases/volumes.json")).unwrap();
    assert_eq!(cases.len(), 71);
    for case in &cases {
        let eligible = eligible(case);
        let mut volume = volume(case);
        let table = Table {
            scores: parse::<BTreeMap<String, i64>>(&case["scores"]),
            default: case["defaultScore"].as_i64(),
            scoring_fails: parse(&case["extenderError"]),
            narrowing_fails: parse(&case["narrowError"]),
        };
        let before = volume.clone();
        let results = settle(&eligible, &mut volume, &table);
        let labelled: BTreeMap<String, &String> =
            before.replicas.iter().map(label).zip(&results).collect();
        for (label, expected) in case["expect"].as_object().unwrap() {
            let (id, expected) = (&case["id"], expected.as_str().unwrap());
            let actual = labelled[label];
            let matches = match expected {
                "FAIL" | "EXT" => actual.starts_with(expected),
                _ => actual == expected,
            };
            assert!(matches, "{id} {label}: expected {expected}, got {actual}");
            if let Some(message) = case["messages"][label].as_str() {
                assert_eq!(actual, &format!("FAIL {message}"), "{id} {label}");
            }
        }
        let failed = results.iter().any(|text| text.starts_with("EXT"));
        assert_eq!(case["outcome"] == "error", failed, "{}", case["id"]);
        // Placed replicas stay, with any answer of the extender.
        if !failed {
            let again = settle(&eligible, &mut volume, &table);
            assert_eq!(again, results, "{}: a second pass changes nothing", case["id"]);
        }
    }
}

#[test]
fn a_replica_is_scheduled_when_it_has_all_it_needs() {
    use PoolType::{File, LVM, LVMThin};
    use ReplicaType::{Access, Diskful, ShadowDiskful, TieBreaker};
    let table = [
        (TieBreaker, "n", "", "", LVM, true),
        (TieBreaker, "n", "", "", LVMThin, true),
        (TieBreaker, "", "", "", LVM, false),
        (Access, "n", "", "", LVM, false),
        (Diskful, "n", "", "", LVM, false),
        (Diskful, "n", "vg", "", LVM, true),
        (Diskful, "n", "vg", "", File, true),
        (Diskful, "n", "vg", "thin", LVM, false),
        (Diskful, "n", "vg", "thin", File, false),
        (Diskful, "n", "vg", "", LVMThin, false),
        (Diskful, "n", "vg", "thin", LVMThin, true),
        (ShadowDiskful, "n", "vg", "", LVM, true),
        (ShadowDiskful, "n", "", "", LVM, false),
    ];
    for (kind, node, lvg, thin, pool, expected) in table {
        let replica = Replica {
            id: 0,
            kind,
            node_name: node.to_owned(),
            lvg: lvg.to_owned(),
            thin_pool: thin.to_owned(),
            deleting: false,
        };
        assert_eq!(replica.scheduled(pool), expected, "{kind:?} {node} {lvg} {thin} {pool:?}");
    }
}
