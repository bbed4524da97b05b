//! Writes that fail: another writer was first, or the replica is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay_clock::{Clock, SystemClock};
use mainstay_store::object::Revision;
use mainstay_store::objects::{Change, Error, Write};
use mainstay_volumes::api::ReplicatedVolumeReplica;
use mainstay_volumes::conditions;
use serde_json::Value;

use crate::cluster::{Cluster, class, pool, resources, store, volume};
use crate::faulty::Faulty;

async fn pair(faulty: &Arc<Faulty>, clock: Arc<dyn Clock>) -> Cluster {
    let cluster = Cluster::over(resources(faulty.clone(), clock), "server-a", None).await;
    for name in ["a", "b"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b"])).await;
    cluster.apply(class("pair", "Consistency", "pool")).await;
    cluster
}

fn updated(write: &Write) -> Option<Value> {
    let Change::Update(_, body) = &write.change else { return None };
    let replica = write.key.resource().as_str().contains("replicatedvolumereplicas");
    replica.then(|| serde_json::from_slice(body.json()).unwrap())
}

async fn both_scheduled(cluster: &Cluster) -> bool {
    let replicas = cluster.replicas("data").await;
    replicas.len() == 2
        && replicas.iter().all(|it| {
            let condition = conditions::find(&it.status.conditions, "Scheduled");
            condition.is_some_and(|it| it.reason == "Scheduled")
        })
}

/// C89: a conflict on the placement is no error; the volume is scheduled again.
#[tokio::test]
async fn a_conflict_on_a_placement_is_retried() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = pair(&faulty, clock).await;
    // The first hundred writes conflict.
    let left = AtomicUsize::new(100);
    faulty.set(move |write| {
        let spec = updated(write)?;
        let condition = spec["status"]["conditions"][0]["type"] == "Scheduled";
        if spec["spec"]["nodeName"].is_null() || condition {
            return None;
        }
        let more = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        more.ok().map(|_| Error::Conflict {
            key: write.key.clone(),
            expected: Revision::ZERO,
            actual: Revision::ZERO,
        })
    });
    cluster.apply(volume("data", "pair", "6Gi")).await;
    cluster.until("both are placed", || both_scheduled(&cluster)).await;
    assert!(faulty.hits() > 64, "more often than the retries of one write: {}", faulty.hits());
    // Reservations of the failed attempts do not block the others.
    let nodes: std::collections::BTreeSet<String> =
        cluster.replicas("data").await.into_iter().map(|it| it.spec.node_name).collect();
    assert_eq!(nodes.len(), 2);
    cluster.volumes.shutdown().await;
}

/// C88: it is no error if a replica is gone when its condition is written.
#[tokio::test]
async fn a_replica_that_is_gone_is_no_error() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = pair(&faulty, clock).await;
    faulty.set(|write| {
        let replica = updated(write)?;
        let condition = &replica["status"]["conditions"][0];
        let gone = replica["metadata"]["name"] == "data-0" && condition["type"] == "Scheduled";
        gone.then(|| Error::NotFound { key: write.key.clone() })
    });
    cluster.apply(volume("data", "pair", "1Gi")).await;
    let other = || async {
        let replica = cluster.replica("data-1").await;
        replica.is_some_and(|it| mainstay_volumes::satisfy::is_scheduled(&it))
    };
    cluster.until("the other is placed", other).await;
    cluster.until("it was tried", || async { faulty.hits() > 0 }).await;
    // Other status changes of the volume may trigger one more run.
    let settled = async || {
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        faulty.hits()
    };
    let tried = settled().await;
    assert_eq!(settled().await, tried, "the write is not repeated");
    faulty.heal();
    cluster.delete::<ReplicatedVolumeReplica>("data-0").await;
    cluster.until("it is created again and placed", || both_scheduled(&cluster)).await;
    cluster.volumes.shutdown().await;
}

/// If a reservation cannot be stored, the condition reports it, and no replica is placed.
#[tokio::test]
async fn no_replica_is_placed_without_a_stored_reservation() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = pair(&faulty, clock).await;
    faulty.set(|write| {
        let reservation = write.key.resource().as_str().contains("volumegroupreservations");
        reservation.then(|| Error::Unavailable { reason: "the disk is full".to_owned() })
    });
    cluster.apply(volume("data", "pair", "1Gi")).await;
    let reported = || async {
        let replicas = cluster.replicas("data").await;
        replicas.len() == 2
            && replicas.iter().all(|it| {
                let condition = conditions::find(&it.status.conditions, "Scheduled");
                condition.is_some_and(|it| {
                    it.reason == "ExtenderUnavailable"
                        && it.message
                            == "Scheduling is temporarily unavailable: failed to confirm capacity \
                                reservation"
                })
            })
    };
    cluster.until("both have the condition", reported).await;
    assert!(cluster.replicas("data").await.iter().all(|it| it.spec.node_name.is_empty()));
    faulty.heal();
    cluster.until("both are placed", || both_scheduled(&cluster)).await;
    cluster.volumes.shutdown().await;
}
