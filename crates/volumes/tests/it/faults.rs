//! Writes that fail: somebody else was faster, or the replica is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_store::cache::{Collection, Watch};
use mainstay_store::clock::{Clock, SystemClock};
use mainstay_store::object::{Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Change, Error, Objects, Scope, Write};
use mainstay_store::snapshot::{Medium, Snapshot};
use mainstay_volumes::api::ReplicatedVolumeReplica;
use mainstay_volumes::conditions;
use serde_json::Value;

use crate::cluster::{Cluster, class, pool, resources, store, volume};

/// What is done to a write before it is let through, if anything.
type Fault = Box<dyn Fn(&Write) -> Option<Error> + Send + Sync>;

/// A store whose writes can be made to fail.
pub(crate) struct Faulty {
    store: Arc<dyn Objects>,
    fault: Mutex<Option<Fault>>,
    hits: AtomicUsize,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub(crate) fn new(store: Arc<dyn Objects>) -> Arc<Self> {
        Arc::new(Self { store, fault: Mutex::default(), hits: AtomicUsize::new(0) })
    }

    pub(crate) fn set(&self, fault: impl Fn(&Write) -> Option<Error> + Send + Sync + 'static) {
        *self.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn heal(&self) {
        *self.fault.lock().unwrap() = None;
    }

    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

impl Objects for Faulty {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        let error = self.fault.lock().unwrap().as_ref().and_then(|fault| fault(&write));
        match error {
            Some(error) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                async { Err(error) }.boxed()
            }
            None => self.store.write(write),
        }
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        self.store.get(key)
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        self.store.collection(resource, at)
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.store.watch(scope, from)
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.store.revision(resource)
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.compact(through)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.store.snapshot()
    }

    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.advance(to)
    }

    fn medium(&self) -> Medium {
        self.store.medium()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.store.verify()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

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
    let tried = faulty.hits();
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(faulty.hits(), tried, "it is not tried again and again");
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
