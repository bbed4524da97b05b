//! Space as the controllers count it: promised once, used once, and released.

use std::sync::Arc;

use mainstay_clock::{Clock, SystemClock};
use mainstay_store::objects::{Change, Error};
use mainstay_store::resources::{Subresource, WriteOptions};
use mainstay_volumes::api::{Backing, LVMVolumeGroup, ReplicatedVolumeReplica, VolumePhase};
use mainstay_volumes::conditions;
use serde_json::{Value, json};

use crate::cluster::{Cluster, class, group, pool, resources, store, volume};
use crate::faulty::Faulty;
use crate::recorded::GROUP;

async fn ready(cluster: &Cluster, name: &str) {
    let ready = || async {
        let volume = cluster.volume(name).await;
        volume.and_then(|it| it.status.phase) == Some(VolumePhase::Ready)
    };
    cluster.until(&format!("{name} is ready"), ready).await;
}

async fn refused(cluster: &Cluster, replica: &str) {
    let refused = || async {
        let replica = cluster.replica(replica).await;
        replica.is_some_and(|it| {
            let condition = conditions::find(&it.status.conditions, "Scheduled");
            condition.is_some_and(|it| it.message.ends_with("excluded: scoring (no capacity)"))
        })
    };
    cluster.until(&format!("{replica} has no place"), refused).await;
}

/// D5, D6: even if all replicas share a reservation id, each has its own reservation, which ends with the
/// placement, not a minute later.
#[tokio::test]
async fn d5_d6_every_replica_has_its_own_reservation_until_it_is_placed() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = Cluster::over(resources(faulty.clone(), clock), "server-a", None).await;
    for name in ["a", "b"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b"])).await;
    cluster.apply(class("pair", "Consistency", "pool")).await;
    // Writes of placements fail for now.
    faulty.set(|write| {
        let Change::Update(_, body) = &write.change else { return None };
        let object: Value = serde_json::from_slice(body.json()).unwrap();
        let placed = object["spec"]["nodeName"].is_string() && object["kind"] != "Node";
        let reason = "not yet".to_owned();
        placed.then_some(Error::Unavailable { reason })
    });
    let mut data = volume("data", "pair", "6Gi");
    data["metadata"]["annotations"] =
        json!({"storage.mainstay.dev/scheduling-reservation-id": "ns/pvc"});
    cluster.apply(data).await;
    let ledger = cluster.volumes.reserve().clone();
    let holders = || {
        let held = ledger.held();
        held.into_iter().map(|it| (it.holder, it.lvg.name)).collect::<Vec<_>>()
    };
    let both = || async {
        let mut holders = holders();
        holders.sort();
        holders == [("data-0", "vg-a"), ("data-1", "vg-b")].map(|(a, b)| (a.into(), b.into()))
    };
    cluster.until("both have reserved", both).await;
    // No other volume gets that space meanwhile.
    cluster.apply(volume("other", "pair", "6Gi")).await;
    refused(&cluster, "other-0").await;
    faulty.heal();
    ready(&cluster, "data").await;
    cluster.until("no reservation is left", || async { holders().is_empty() }).await;
    cluster.volumes.shutdown().await;
}

/// A replica's space counts once: as placed until the group reports it used, then as used.
#[tokio::test]
async fn space_that_a_group_reports_used_counts_once() {
    let cluster = Cluster::new(None).await;
    cluster.node("a", "z", true).await;
    cluster.group("vg-a", "a", "10Gi").await;
    cluster.apply(pool("pool", &["vg-a"])).await;
    cluster.apply(class("single", "None", "pool")).await;
    cluster.apply(volume("first", "single", "6Gi")).await;
    ready(&cluster, "first").await;
    let options = WriteOptions::default();
    let part = Some(Subresource::Status);
    let used = |it: &mut LVMVolumeGroup| it.status.vg_free = Some("4Gi".parse().unwrap());
    cluster.resources.modify_as(None, "vg-a", part, &options, used).await.unwrap();
    let there = |it: &mut ReplicatedVolumeReplica| {
        it.status.backing_volume = Some(Backing {
            size: Some("6Gi".parse().unwrap()),
            lvm_volume_group_name: "vg-a".to_owned(),
            ..Backing::default()
        });
    };
    cluster.resources.modify_as(None, "first-0", part, &options, there).await.unwrap();
    cluster.apply(volume("second", "single", "3Gi")).await;
    ready(&cluster, "second").await;
    cluster.apply(volume("third", "single", "2Gi")).await;
    refused(&cluster, "third-0").await;
    cluster.volumes.shutdown().await;
}

/// A thin pool promises more than it has, up to its limit.
#[tokio::test]
async fn a_thin_pool_is_over_committed_up_to_its_limit() {
    let cluster = Cluster::new(None).await;
    cluster.node("a", "z", true).await;
    let mut thin = group("vg-a", "a", "100Gi");
    thin["status"]["thinPools"] = json!([{"name": "thin", "ready": true, "actualSize": "10Gi"}]);
    cluster.apply(thin).await;
    cluster
        .apply(json!({
            "apiVersion": GROUP, "kind": "ReplicatedStoragePool", "metadata": {"name": "pool"},
            "spec": {"type": "LVMThin",
                "lvmVolumeGroups": [{"name": "vg-a", "thinPoolName": "thin"}]},
        }))
        .await;
    cluster.apply(class("single", "None", "pool")).await;
    // The default limit is 150 % of 10 GiB.
    for name in ["one", "two"] {
        cluster.apply(volume(name, "single", "7Gi")).await;
        ready(&cluster, name).await;
        let spec = cluster.replica(&format!("{name}-0")).await.unwrap().spec;
        assert_eq!(spec.lvm_volume_group_thin_pool_name, "thin");
    }
    cluster.apply(volume("three", "single", "2Gi")).await;
    refused(&cluster, "three-0").await;
    let options = WriteOptions::default();
    let more = |it: &mut LVMVolumeGroup| {
        it.status.thin_pools[0].allocation_limit = Some("160%".to_owned());
    };
    let part = Some(Subresource::Status);
    cluster.resources.modify_as(None, "vg-a", part, &options, more).await.unwrap();
    ready(&cluster, "three").await;
    cluster.volumes.shutdown().await;
}

/// D9: a size that exactly fits without metadata and whole extents does not fit with them.
#[tokio::test]
async fn d9_a_replica_needs_space_for_metadata_and_whole_extents() {
    let cluster = Cluster::new(None).await;
    for name in ["a", "b"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b"])).await;
    cluster.apply(class("pair", "Consistency", "pool")).await;
    cluster.apply(class("single", "None", "pool")).await;
    cluster.apply(volume("exact", "pair", "10Gi")).await;
    refused(&cluster, "exact-0").await;
    cluster.apply(volume("alone", "single", "10Gi")).await;
    ready(&cluster, "alone").await;
    cluster.volumes.shutdown().await;
}
