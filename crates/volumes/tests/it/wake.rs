//! A volume without a place is scheduled again when a relevant object changes, and only then: on a stopped
//! clock every request to the extender has a cause.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_clock::{Clock, ManualClock};
use mainstay_store::builtin::Node;
use mainstay_store::resources::{Subresource, WriteOptions};
use mainstay_volumes::api::{
    LVMVolumeGroup, ReplicatedStorageClass, ReplicatedStoragePool, ReplicatedVolume,
    ReplicatedVolumeAttachment, ReplicatedVolumeReplica,
};
use mainstay_volumes::conditions;
use serde_json::json;

use crate::cluster::{Cluster, class, pool, resources, store, volume};
use crate::fake::{Answers, Fake};
use crate::recorded::GROUP;

/// A volume that waits in a full pool, and an extender that counts requests.
struct WaitingVolume {
    cluster: Cluster,
    fake: Fake,
}

impl WaitingVolume {
    async fn start() -> Self {
        let clock: Arc<dyn Clock> = ManualClock::new(Timestamp::UNIX_EPOCH);
        let fake = Fake::start(Answers::default()).await;
        let resources = resources(store(clock.clone()), clock);
        let cluster = Cluster::over(resources, "server-a", Some(&fake)).await;
        for name in ["a", "b"] {
            cluster.node(name, &format!("zone-{name}"), true).await;
            cluster.group(&format!("vg-{name}"), name, "10Gi").await;
        }
        cluster.apply(pool("pool", &["vg-a", "vg-b"])).await;
        cluster.apply(class("single", "None", "pool")).await;
        cluster
            .until("the pool has eligible nodes", || async {
                let views = cluster.volumes.views();
                views.pools.find(None, "pool").is_some_and(|pool| {
                    let nodes = &pool.status.eligible_nodes;
                    nodes.len() == 2 && nodes.iter().all(|node| node.lvm_volume_groups[0].ready)
                })
            })
            .await;
        cluster.apply(volume("data", "single", "1Gi")).await;
        let this = Self { cluster, fake };
        this.cluster.until("it waits", || async { this.failed().await }).await;
        this
    }

    async fn failed(&self) -> bool {
        let replica = self.cluster.replica("data-0").await;
        replica.is_some_and(|it| {
            let condition = conditions::find(&it.status.conditions, "Scheduled");
            condition.is_some_and(|it| it.reason == "SchedulingFailed")
        })
    }

    fn asked(&self) -> usize {
        self.fake.requests().iter().filter(|(what, _)| what == "score").count()
    }

    /// Waits until the controllers are idle; returns the number of requests to the extender so far.
    async fn settled(&self) -> usize {
        let mut before = self.asked();
        loop {
            for _ in 0..2000 {
                tokio::task::yield_now().await;
            }
            let now = self.asked();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    async fn wakes(&self, what: &str, before: usize) {
        self.cluster.until(what, || async { self.asked() > before }).await;
    }

    async fn node(&self, edit: impl FnMut(&mut Node) + Send, part: Option<Subresource>) {
        let options = WriteOptions::default();
        self.cluster.resources.modify_as(None, "a", part, &options, edit).await.unwrap();
    }

    async fn group(&self, edit: impl FnMut(&mut LVMVolumeGroup) + Send, part: Option<Subresource>) {
        let options = WriteOptions::default();
        self.cluster.resources.modify_as(None, "vg-a", part, &options, edit).await.unwrap();
    }
}

#[tokio::test]
async fn irrelevant_changes_do_not_trigger_scheduling() {
    let waiting = WaitingVolume::start().await;
    let before = waiting.settled().await;
    // Changes that do not concern placement trigger no run.
    waiting.node(|node| drop(node.metadata.annotations.insert("a".into(), "b".into())), None).await;
    assert_eq!(waiting.settled().await, before);
    waiting.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn more_free_space_triggers_scheduling() {
    let waiting = WaitingVolume::start().await;
    let before = waiting.settled().await;
    let more = |it: &mut LVMVolumeGroup| it.status.vg_free = Some("11Gi".parse().unwrap());
    waiting.group(more, Some(Subresource::Status)).await;
    waiting.wakes("more space", before).await;
    // Less space than a replica needs triggers no run.
    let before = waiting.settled().await;
    let less = |it: &mut LVMVolumeGroup| it.status.vg_free = Some("1Mi".parse().unwrap());
    waiting.group(less, Some(Subresource::Status)).await;
    assert_eq!(waiting.settled().await, before);
    waiting.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn readiness_triggers_scheduling() {
    let waiting = WaitingVolume::start().await;
    let before = waiting.settled().await;
    waiting.node(|node| node.spec.unschedulable = Some(true), None).await;
    waiting.wakes("a node is cordoned", before).await;
    let before = waiting.settled().await;
    waiting.node(|node| node.spec.unschedulable = Some(false), None).await;
    waiting.wakes("the cordon is lifted", before).await;

    let before = waiting.settled().await;
    let not_ready = |it: &mut LVMVolumeGroup| it.status.phase = "NotReady".to_owned();
    waiting.group(not_ready, Some(Subresource::Status)).await;
    waiting.wakes("a group is not ready", before).await;
    let before = waiting.settled().await;
    let ready = |it: &mut LVMVolumeGroup| it.status.phase = "Ready".to_owned();
    waiting.group(ready, Some(Subresource::Status)).await;
    waiting.wakes("the group is ready again", before).await;
    waiting.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn zones_nodes_and_groups_trigger_scheduling() {
    let waiting = WaitingVolume::start().await;
    let cluster = &waiting.cluster;
    let before = waiting.settled().await;
    let zone = "topology.kubernetes.io/zone";
    waiting
        .node(|node| drop(node.metadata.labels.insert(zone.into(), "elsewhere".into())), None)
        .await;
    waiting.wakes("a node changes its zone", before).await;

    let before = waiting.settled().await;
    cluster.node("c", "zone-c", true).await;
    waiting.wakes("a node joins", before).await;

    cluster.group("vg-c", "c", "10Gi").await;
    let before = waiting.settled().await;
    let options = WriteOptions::default();
    let grow = |it: &mut ReplicatedStoragePool| {
        it.spec.lvm_volume_groups.push(mainstay_volumes::api::VolumeGroupReference {
            name: "vg-c".to_owned(),
            thin_pool_name: String::new(),
        });
    };
    cluster.resources.modify_as(None, "pool", None, &options, grow).await.unwrap();
    waiting.wakes("a group joins the pool", before).await;
    waiting.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn attachments_trigger_scheduling() {
    let waiting = WaitingVolume::start().await;
    let cluster = &waiting.cluster;
    let before = waiting.settled().await;
    cluster
        .apply(json!({
            "apiVersion": GROUP, "kind": "ReplicatedVolumeAttachment", "metadata": {"name": "use"},
            "spec": {"replicatedVolumeName": "data", "nodeName": "b"},
        }))
        .await;
    waiting.wakes("an attachment is created", before).await;
    let before = waiting.settled().await;
    cluster.delete::<ReplicatedVolumeAttachment>("use").await;
    waiting.wakes("the attachment is deleted", before).await;
    waiting.cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn size_class_and_replicas_trigger_scheduling() {
    let waiting = WaitingVolume::start().await;
    let cluster = &waiting.cluster;
    let options = WriteOptions::default();
    let before = waiting.settled().await;
    let grow = |it: &mut ReplicatedVolume| it.spec.size = "2Gi".parse().unwrap();
    cluster.resources.modify_as(None, "data", None, &options, grow).await.unwrap();
    waiting.wakes("the volume grows", before).await;

    let before = waiting.settled().await;
    let spread = |it: &mut ReplicatedStorageClass| {
        it.spec.replication = Some(mainstay_volumes::api::Replication::Consistency);
    };
    cluster.resources.modify_as(None, "single", None, &options, spread).await.unwrap();
    waiting.wakes("the class wants more replicas", before).await;

    let before = waiting.settled().await;
    cluster.delete::<ReplicatedVolumeReplica>("data-1").await;
    waiting.wakes("a replica is gone", before).await;
    waiting.cluster.volumes.shutdown().await;
}
