//! Writes that fail: somebody else was faster, or the replica is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay_store::clock::{Clock, SystemClock};
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

/// C89: a conflict on the placement is no error; the volume is looked at again.
#[tokio::test]
async fn a_conflict_on_a_placement_means_again() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = pair(&faulty, clock).await;
    // Whatever reads and writes afresh finds the same conflict a hundred times.
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
    cluster.until("both are placed after all", || both_scheduled(&cluster)).await;
    assert!(faulty.hits() > 64, "more often than one write is tried: {}", faulty.hits());
    // What the failed tries had reserved does not stand in the way.
    let nodes: std::collections::BTreeSet<String> =
        cluster.replicas("data").await.into_iter().map(|it| it.spec.node_name).collect();
    assert_eq!(nodes.len(), 2);
    cluster.volumes.shutdown().await;
}

/// C88: a replica that is gone when its condition is written is nobody's error.
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
    // What else had to be said about the volume may have it looked at once more.
    let settled = async || {
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        faulty.hits()
    };
    let tried = settled().await;
    assert_eq!(settled().await, tried, "it is not tried again and again");
    faulty.heal();
    cluster.delete::<ReplicatedVolumeReplica>("data-0").await;
    cluster.until("it is made anew and placed", || both_scheduled(&cluster)).await;
    cluster.volumes.shutdown().await;
}

/// A reservation that cannot be stored is said to be unconfirmed, and nothing is placed.
#[tokio::test]
async fn nothing_is_placed_without_a_reservation_that_is_stored() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let faulty = Faulty::new(store(clock.clone()));
    let cluster = pair(&faulty, clock).await;
    faulty.set(|write| {
        let reservation = write.key.resource().as_str().contains("volumegroupreservations");
        reservation.then(|| Error::Unavailable { reason: "the disk is full".to_owned() })
    });
    cluster.apply(volume("data", "pair", "1Gi")).await;
    let said = || async {
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
    cluster.until("both say so", said).await;
    assert!(cluster.replicas("data").await.iter().all(|it| it.spec.node_name.is_empty()));
    faulty.heal();
    cluster.until("both are placed", || both_scheduled(&cluster)).await;
    cluster.volumes.shutdown().await;
}
