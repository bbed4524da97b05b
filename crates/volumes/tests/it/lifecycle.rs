//! From nodes and groups to a placed volume and back, with the ledger of the process.

use std::collections::BTreeSet;

use mainstay_store::builtin::{Event, Node};
use mainstay_store::resources::{Subresource, WriteOptions};
use mainstay_volumes::api::{
    LVMVolumeGroup, ReplicatedStorageClass, ReplicatedVolume, ReplicatedVolumeAttachment,
    ReplicatedVolumeReplica, VolumePhase,
};
use mainstay_volumes::conditions;
use serde_json::json;

use crate::cluster::{Cluster, class, pool, volume};
use crate::recorded::GROUP;

async fn three_zones(cluster: &Cluster, replication: &str, size: &str) {
    for name in ["a", "b", "c"] {
        cluster.node(name, &format!("zone-{name}"), true).await;
        cluster.group(&format!("vg-{name}"), name, size).await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b", "vg-c"])).await;
    cluster.apply(class("class", replication, "pool")).await;
}

async fn phase(cluster: &Cluster, name: &str) -> Option<VolumePhase> {
    cluster.volume(name).await.and_then(|volume| volume.status.phase)
}

async fn ready(cluster: &Cluster, name: &str) {
    let ready = || async { phase(cluster, name).await == Some(VolumePhase::Ready) };
    cluster.until(&format!("{name} is ready"), ready).await;
}

#[tokio::test]
async fn a_volume_is_formed_placed_and_deleted_in_order() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "Availability", "10Gi").await;
    cluster.apply(volume("data", "class", "1Gi")).await;
    ready(&cluster, "data").await;
    let replicas = cluster.replicas("data").await;
    let kinds: Vec<String> =
        replicas.iter().map(|it| format!("{} {:?}", it.metadata.name, it.spec.kind)).collect();
    assert_eq!(kinds, ["data-0 Diskful", "data-1 Diskful", "data-2 TieBreaker"]);
    let nodes: BTreeSet<&str> = replicas.iter().map(|it| it.spec.node_name.as_str()).collect();
    assert_eq!(nodes.len(), 3);
    let volume = cluster.volume("data").await.unwrap();
    assert_eq!(volume.status.replicas.unwrap().summary, "3/3");
    assert_eq!(volume.status.message, "");
    cluster
        .until("placements are recorded as Events", || async {
            let events: Vec<Event> = cluster.resources.list_as(Some("default")).await.unwrap();
            events.iter().filter(|it| it.reason.as_deref() == Some("Scheduled")).count() == 3
        })
        .await;
    cluster.delete::<ReplicatedVolume>("data").await;
    let gone = || async {
        cluster.volume("data").await.is_none() && cluster.replicas("data").await.is_empty()
    };
    cluster.until("everything is gone", gone).await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn a_settled_volume_is_not_written_again() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "Availability", "10Gi").await;
    cluster.apply(volume("data", "class", "1Gi")).await;
    ready(&cluster, "data").await;
    let versions = || async {
        let replicas = cluster.replicas("data").await;
        let zones = replicas.iter().all(|it| !it.status.zone_name.is_empty());
        let phases = replicas.iter().all(|it| it.status.message.is_empty());
        let versions: Vec<String> =
            replicas.iter().map(|it| it.metadata.resource_version.clone()).collect();
        (versions, zones && phases)
    };
    cluster.until("replicas have settled", || async { versions().await.1 }).await;
    // A node that joins triggers every volume of the pool, and changes none.
    let before = loop {
        let (first, _) = versions().await;
        for _ in 0..500 {
            tokio::task::yield_now().await;
        }
        let (second, _) = versions().await;
        if first == second {
            break second;
        }
    };
    cluster.node("d", "zone-d", true).await;
    let views = cluster.volumes.views().clone();
    cluster
        .until("the pool has seen the node", || async {
            views.pools.find(None, "pool").is_some_and(|it| it.status.eligible_nodes.len() == 4)
        })
        .await;
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(versions().await.0, before);
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn an_unplaced_volume_is_placed_when_space_is_free() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "Consistency", "1Gi").await;
    cluster.apply(volume("large", "class", "5Gi")).await;
    let message = || async {
        let replica = cluster.replica("large-0").await?;
        let condition = conditions::find(&replica.status.conditions, "Scheduled")?.clone();
        Some(condition.message)
    };
    let full = "3 candidates (node×LVG) from 3 eligible nodes; 3 excluded: scoring (no capacity)";
    let waits = || async { message().await.as_deref() == Some(full) };
    cluster.until("the condition has the reason", waits).await;
    let reported = || async {
        let volume = cluster.volume("large").await.unwrap();
        volume.status.message == format!("2 of 2 replicas wait for a place: {full}")
    };
    cluster.until("the volume has the message", reported).await;
    for group in ["vg-a", "vg-b"] {
        let options = WriteOptions::default();
        cluster
            .resources
            .modify_as(
                None,
                group,
                Some(Subresource::Status),
                &options,
                |it: &mut LVMVolumeGroup| {
                    it.status.vg_size = Some("20Gi".parse().unwrap());
                    it.status.vg_free = Some("20Gi".parse().unwrap());
                },
            )
            .await
            .unwrap();
    }
    ready(&cluster, "large").await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn space_of_a_deleted_volume_is_given_to_waiting_volumes() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "ConsistencyAndAvailability", "10Gi").await;
    cluster.apply(volume("first", "class", "6Gi")).await;
    ready(&cluster, "first").await;
    cluster.apply(volume("second", "class", "6Gi")).await;
    let failed = || async {
        let replica = cluster.replica("second-2").await;
        replica.is_some_and(|it| {
            conditions::find(&it.status.conditions, "Scheduled")
                .is_some_and(|it| it.reason == "SchedulingFailed")
        })
    };
    cluster.until("the second finds no room", failed).await;
    cluster.delete::<ReplicatedVolume>("first").await;
    ready(&cluster, "second").await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn guards_set_conditions_on_all_replicas_except_access_replicas() {
    let cluster = Cluster::new(None).await;
    cluster.apply(replica(0, "Diskful", "")).await;
    cluster.apply(replica(1, "Access", "a")).await;
    let message = |id: u8| {
        let cluster = &cluster;
        async move {
            let replica = cluster.replica(&format!("rv-{id}")).await.unwrap();
            let condition = conditions::find(&replica.status.conditions, "Scheduled").cloned();
            condition.map(|it| (it.reason, it.message))
        }
    };
    let says = |text: &'static str| {
        let expected = Some(("WaitingForReplicatedVolume".to_owned(), text.to_owned()));
        let message = &message;
        async move { message(0).await == expected && message(1).await == expected }
    };
    let missing = "ReplicatedVolume not found; waiting for it to be present";
    cluster.until("no volume", || says(missing)).await;
    cluster.apply(volume("rv", "none", "1Gi")).await;
    let empty = "ReplicatedVolume has no configuration yet; waiting for it to appear";
    cluster.until("no configuration", || says(empty)).await;
    let mut configured = volume("rv", "none", "1Gi");
    configured["status"] = json!({
        "configuration": {"storagePoolName": "pool", "replication": "None"},
        "configurationGeneration": 1,
    });
    cluster.apply(configured).await;
    let no_pool = "ReplicatedStoragePool not found; waiting for it to be present";
    cluster.until("no pool", || says(no_pool)).await;
    cluster.node("a", "z", true).await;
    cluster.node("b", "z", true).await;
    cluster.group("vg-b", "b", "10Gi").await;
    cluster.apply(pool("pool", &["vg-b"])).await;
    let placed = || async {
        message(0).await.is_some_and(|it| it.0 == "Scheduled") && message(1).await.is_none()
    };
    cluster.until("placed, and the Access replica has no condition", placed).await;
    assert_eq!(cluster.replica("rv-1").await.unwrap().spec.node_name, "a");
    cluster.volumes.shutdown().await;
}

fn replica(id: u8, kind: &str, node: &str) -> serde_json::Value {
    json!({
        "apiVersion": GROUP, "kind": "ReplicatedVolumeReplica",
        "metadata": {"name": format!("rv-{id}")},
        "spec": {"replicatedVolumeName": "rv", "type": kind, "nodeName": node},
    })
}

/// C04: a volume whose configuration has no pool waits for one, partly placed or not.
#[tokio::test]
async fn a_configuration_without_a_pool_waits() {
    let cluster = Cluster::new(None).await;
    cluster.node("a", "z", true).await;
    cluster.apply(replica(0, "Diskful", "a")).await;
    cluster.apply(replica(1, "Diskful", "")).await;
    let mut configured = volume("rv", "none", "1Gi");
    configured["status"] = json!({"configuration": {"storagePoolName": ""},
        "configurationGeneration": 1});
    cluster.apply(configured).await;
    let waits = || async {
        let replicas = cluster.replicas("rv").await;
        replicas.iter().all(|it| {
            conditions::find(&it.status.conditions, "Scheduled").is_some_and(|it| {
                it.reason == "WaitingForReplicatedVolume"
                    && it.message == "ReplicatedStoragePool not found; waiting for it to be present"
            })
        })
    };
    cluster.until("both wait", waits).await;
    cluster.volumes.shutdown().await;
}

/// C06, C10, C12: a Scheduled condition is removed from Access replicas; they do not change otherwise.
#[tokio::test]
async fn access_replicas_are_not_scheduled() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "None", "10Gi").await;
    let stale = json!({"conditions": [{"type": "Scheduled", "status": "True",
        "reason": "Scheduled", "message": "Replica scheduled successfully"}]});
    let mut before =
        [replica(0, "Access", "a"), replica(1, "Access", ""), replica(2, "Access", "b")];
    before[0]["status"] = stale.clone();
    before[2]["status"] = stale;
    for replica in before {
        cluster.apply(replica).await;
    }
    let mut configured = volume("rv", "none", "1Gi");
    configured["status"] = json!({"configuration": {"storagePoolName": "pool",
        "replication": "None"}, "configurationGeneration": 1});
    cluster.apply(configured).await;
    let clean = || async {
        let replicas = cluster.replicas("rv").await;
        replicas.len() == 3
            && replicas
                .iter()
                .all(|it| conditions::find(&it.status.conditions, "Scheduled").is_none())
    };
    cluster.until("no condition is left", clean).await;
    let nodes: Vec<String> =
        cluster.replicas("rv").await.into_iter().map(|it| it.spec.node_name).collect();
    assert_eq!(nodes, ["a", "", "b"]);
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn an_attachment_creates_an_access_replica_and_deletes_it_again() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "None", "10Gi").await;
    cluster.apply(volume("data", "class", "1Gi")).await;
    ready(&cluster, "data").await;
    let home = cluster.replica("data-0").await.unwrap().spec.node_name;
    let other = ["a", "b", "c"].into_iter().find(|node| *node != home).unwrap();
    cluster
        .apply(json!({
            "apiVersion": GROUP, "kind": "ReplicatedVolumeAttachment",
            "metadata": {"name": "use"},
            "spec": {"replicatedVolumeName": "data", "nodeName": other},
        }))
        .await;
    let reached = || async {
        let replica = cluster.replica("data-1").await;
        let desired = cluster.volume("data").await.unwrap().status.desired_attach_to;
        replica.is_some_and(|it| it.spec.node_name == other) && desired == [other]
    };
    cluster.until("an Access replica exists", reached).await;
    cluster.delete::<ReplicatedVolumeAttachment>("use").await;
    let left = || async { cluster.replica("data-1").await.is_none() };
    cluster.until("it left", left).await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn a_replica_on_a_lost_node_is_deleted_after_its_replacement_is_placed() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "Consistency", "10Gi").await;
    cluster.apply(volume("data", "class", "1Gi")).await;
    ready(&cluster, "data").await;
    let lost = cluster.replica("data-0").await.unwrap().spec.node_name;
    cluster.delete::<Node>(&lost).await;
    let repaired = || async {
        let replicas = cluster.replicas("data").await;
        replicas.len() == 2
            && replicas.iter().all(|it| it.spec.node_name != lost && !it.spec.node_name.is_empty())
            && phase(&cluster, "data").await == Some(VolumePhase::Ready)
    };
    cluster.until("it was repaired", repaired).await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn volumes_follow_their_class() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "Consistency", "10Gi").await;
    cluster.apply(volume("data", "class", "1Gi")).await;
    ready(&cluster, "data").await;
    let options = WriteOptions::default();
    cluster
        .resources
        .modify_as(None, "class", None, &options, |class: &mut ReplicatedStorageClass| {
            class.spec.replication =
                Some(mainstay_volumes::api::Replication::ConsistencyAndAvailability);
        })
        .await
        .unwrap();
    let grown = || async {
        let replicas = cluster.replicas("data").await;
        replicas.len() == 3 && replicas.iter().all(|it| !it.spec.node_name.is_empty())
    };
    cluster.until("it has three replicas", grown).await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn only_the_placement_and_one_condition_are_written_by_scheduling() {
    let cluster = Cluster::new(None).await;
    three_zones(&cluster, "None", "10Gi").await;
    let replica = |it: &ReplicatedVolumeReplica| {
        let mut bare = it.clone();
        bare.spec.node_name.clear();
        bare.spec.lvm_volume_group_name.clear();
        bare.status = Default::default();
        bare.metadata.resource_version.clear();
        bare.metadata.generation = None;
        bare.metadata.managed_fields.clear();
        bare
    };
    cluster.apply(volume("data", "class", "1Gi")).await;
    cluster.until("it exists", || async { cluster.replica("data-0").await.is_some() }).await;
    let before = replica(&cluster.replica("data-0").await.unwrap());
    ready(&cluster, "data").await;
    let after = cluster.replica("data-0").await.unwrap();
    assert_eq!(replica(&after), before);
    let kinds: BTreeSet<&str> = after.status.conditions.iter().map(|it| it.kind.as_str()).collect();
    assert!(kinds.is_subset(&["Scheduled", "SatisfyEligibleNodes"].into()), "{kinds:?}");
    cluster.volumes.shutdown().await;
}
