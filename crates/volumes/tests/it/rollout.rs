//! Changes of a few volumes at a time, and changes after a grace period.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_clock::{Clock, ManualClock};
use mainstay_store::builtin::Node;
use mainstay_store::meta::{ConditionStatus, Time};
use mainstay_store::resources::{Subresource, WriteOptions};
use mainstay_volumes::api::{
    EVICT_ANNOTATION, LVMVolumeGroup, ReplicatedStorageClass, ReplicatedVolume,
    ReplicatedVolumeReplica, Replication, VolumePhase,
};
use mainstay_volumes::satisfy::is_misplaced;
use serde_json::{Value, json};

use crate::cluster::{Cluster, class, pool, resources, store, volume};
use crate::fake::{Answers, Fake};

const VOLUMES: usize = 7;

/// Nodes a to d with free space, and ready volumes of one replica each.
async fn settled(cluster: &Cluster, spec: Value) {
    let mut groups = Vec::new();
    for name in ["a", "b", "c", "d"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "1000Gi").await;
        groups.push(format!("vg-{name}"));
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    cluster.apply(pool("pool", &groups)).await;
    let mut class = class("class", "None", "pool");
    for (field, value) in spec.as_object().unwrap() {
        class["spec"][field] = value.clone();
    }
    cluster.apply(class).await;
    for index in 0..VOLUMES {
        cluster.apply(volume(&format!("v{index}"), "class", "1Gi")).await;
    }
    let views = cluster.volumes.views().clone();
    let all = || async {
        let volumes = views.volumes.list();
        volumes.len() == VOLUMES
            && volumes.iter().all(|it| it.status.phase == Some(VolumePhase::Ready))
    };
    cluster.until("all are ready", all).await;
}

async fn grow(cluster: &Cluster) {
    let options = WriteOptions::default();
    let grow =
        |it: &mut ReplicatedStorageClass| it.spec.replication = Some(Replication::Consistency);
    cluster.resources.modify_as(None, "class", None, &options, grow).await.unwrap();
}

/// The largest number of volumes that changed at once, from their history in the store.
fn watch_volumes(
    cluster: &Cluster,
    counts: impl Fn(&ReplicatedVolume) -> bool + Send + Sync + 'static,
) -> (Arc<std::sync::atomic::AtomicUsize>, mainstay_controller::reflector::Subscription) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let under_way = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let subscription = cluster.volumes.views().volumes.subscribe(move |change| {
        let mut under_way = under_way.lock().unwrap();
        let name = change.key.name().to_owned();
        if change.new.as_deref().is_some_and(&counts) {
            under_way.insert(name);
        } else {
            under_way.remove(&name);
        }
        seen.fetch_max(under_way.len(), Ordering::Relaxed);
    });
    (most, subscription)
}

#[tokio::test]
async fn volumes_follow_their_class_a_few_at_a_time() {
    for most in [1, 2] {
        let cluster = Cluster::new(None).await;
        let strategy = json!({"configurationRolloutStrategy":
            {"type": "RollingUpdate", "rollingUpdate": {"maxParallel": most}}});
        settled(&cluster, strategy).await;
        let (at_once, subscription) =
            watch_volumes(&cluster, |volume| volume.status.phase == Some(VolumePhase::Degraded));
        grow(&cluster).await;
        let views = cluster.volumes.views().clone();
        let all = || async {
            views.volumes.list().iter().all(|it| {
                it.status.replicas.as_ref().is_some_and(|it| it.summary == "2/2")
                    && it.status.phase == Some(VolumePhase::Ready)
            })
        };
        cluster.until("all have followed", all).await;
        drop(subscription);
        let at_once = at_once.load(std::sync::atomic::Ordering::Relaxed);
        assert!((1..=most).contains(&at_once), "{at_once} at once, {most} allowed");
        cluster.volumes.shutdown().await;
    }
}

#[tokio::test]
async fn existing_volumes_do_not_follow_with_new_volumes_only() {
    let cluster = Cluster::new(None).await;
    settled(&cluster, json!({"configurationRolloutStrategy": {"type": "NewVolumesOnly"}})).await;
    grow(&cluster).await;
    let views = cluster.volumes.views().clone();
    let resolved = || async {
        views.classes.find(None, "class").unwrap().status.configuration_generation == Some(2)
    };
    cluster.until("the class has its new configuration", resolved).await;
    cluster.apply(volume("new", "class", "1Gi")).await;
    let done = || async {
        let volumes = views.volumes.list();
        volumes.iter().all(|it| it.status.configuration_observed_generation == Some(2))
            && volumes.iter().any(|it| it.metadata.name == "new" && it.status.replicas.is_some())
    };
    cluster.until("all have seen the change", done).await;
    let ready = || async {
        views.volumes.find(None, "new").unwrap().status.phase == Some(VolumePhase::Ready)
    };
    cluster.until("the new one is ready", ready).await;
    for volume in views.volumes.list() {
        let expected = if volume.metadata.name == "new" { "2/2" } else { "1/1" };
        assert_eq!(volume.status.replicas.as_ref().unwrap().summary, expected);
    }
    cluster
        .until("the class counts stale volumes", || async {
            let class = views.classes.find(None, "class").unwrap();
            class.status.volumes.is_some_and(|it| {
                it.total as usize == VOLUMES + 1 && it.stale_configuration as usize == VOLUMES
            })
        })
        .await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn misplaced_replicas_are_replaced_a_few_volumes_at_a_time() {
    let cluster = Cluster::new(None).await;
    let strategy = json!({"eligibleNodesConflictResolutionStrategy":
        {"type": "RollingRepair", "rollingRepair": {"maxParallel": 1}}});
    settled(&cluster, strategy).await;
    let replicas = cluster.volumes.views().replicas.clone();
    // A volume is being repaired while it has a second replica.
    let under_way = std::sync::Mutex::new(std::collections::BTreeMap::<String, usize>::new());
    let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = most.clone();
    let subscription = replicas.subscribe(move |change| {
        let mut under_way = under_way.lock().unwrap();
        let of = |it: &Arc<ReplicatedVolumeReplica>| it.spec.replicated_volume_name.clone();
        if change.old.is_none() {
            *under_way.entry(change.new.as_ref().map(of).unwrap()).or_default() += 1;
        } else if change.new.is_none() {
            *under_way.entry(change.old.as_ref().map(of).unwrap()).or_default() -= 1;
        }
        let repaired = under_way.values().filter(|count| **count > 1).count();
        seen.fetch_max(repaired, std::sync::atomic::Ordering::Relaxed);
    });
    for lost in ["a", "b"] {
        cluster.delete::<Node>(lost).await;
    }
    let done = || async {
        let replicas = replicas.list();
        replicas.len() == VOLUMES
            && replicas
                .iter()
                .all(|it| ["c", "d"].contains(&it.spec.node_name.as_str()) && !is_misplaced(it))
    };
    cluster.until("all are repaired", done).await;
    drop(subscription);
    assert_eq!(most.load(std::sync::atomic::Ordering::Relaxed), 1);
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn replicas_of_a_group_that_is_being_emptied_move_to_others() {
    let cluster = Cluster::new(None).await;
    let strategy = json!({"eligibleNodesConflictResolutionStrategy":
        {"type": "RollingRepair", "rollingRepair": {"maxParallel": 2}}});
    settled(&cluster, strategy).await;
    let replicas = cluster.volumes.views().replicas.clone();
    let on = |group: &str| {
        let all = replicas.list();
        all.iter().filter(|it| it.spec.lvm_volume_group_name == group).count()
    };
    let emptied = ["vg-a", "vg-b", "vg-c", "vg-d"].into_iter().find(|name| on(name) > 0).unwrap();
    let options = WriteOptions::default();
    let evict = |group: &mut LVMVolumeGroup| {
        group.metadata.annotations.insert(EVICT_ANNOTATION.to_owned(), String::new());
    };
    cluster.resources.modify_as(None, emptied, None, &options, evict).await.unwrap();
    let done = || async {
        let all = replicas.list();
        on(emptied) == 0 && all.len() == VOLUMES && !all.iter().any(|it| is_misplaced(it))
    };
    cluster.until("it is empty", done).await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn misplaced_replicas_stay_with_manual_resolution() {
    let cluster = Cluster::new(None).await;
    let strategy = json!({"eligibleNodesConflictResolutionStrategy": {"type": "Manual"}});
    settled(&cluster, strategy).await;
    cluster.delete::<Node>("a").await;
    let views = cluster.volumes.views().clone();
    let reported = || async {
        let misplaced = views.replicas.list().iter().filter(|it| is_misplaced(it)).count();
        let degraded = views.volumes.list().into_iter().filter(|it| {
            it.status.phase == Some(VolumePhase::Degraded)
                && it.status.message.starts_with("on nodes that are no longer eligible: ")
        });
        misplaced > 0 && degraded.count() == misplaced
    };
    cluster.until("it is reported", reported).await;
    assert_eq!(views.replicas.len(), VOLUMES, "no replica is replaced");
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn a_node_that_is_not_ready_stays_eligible_for_the_grace_period() {
    let clock = ManualClock::new("2026-03-01T12:00:00Z".parse::<Timestamp>().unwrap());
    let fake = Fake::start(Answers { default: Some(5), ..Answers::default() }).await;
    let shared: Arc<dyn Clock> = clock.clone();
    let resources = resources(store(shared.clone()), shared);
    let cluster = Cluster::over(resources, "server-a", Some(&fake)).await;
    for name in ["a", "b"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    let mut pool = pool("pool", &["vg-a", "vg-b"]);
    pool["spec"]["eligibleNodesPolicy"] = json!({"notReadyGracePeriod": "5m"});
    cluster.apply(pool).await;
    let views = cluster.volumes.views().clone();
    // The eligible nodes, each with whether it is ready; and how often they changed.
    let pool = || {
        let pool = views.pools.find(None, "pool").map(|pool| pool.status.clone());
        let status = pool.unwrap_or_default();
        let nodes = status.eligible_nodes.iter();
        let nodes: Vec<(String, bool)> =
            nodes.map(|node| (node.node_name.clone(), node.node_ready)).collect();
        (nodes, status.eligible_nodes_revision)
    };
    let both = |a_ready| vec![("a".to_owned(), a_ready), ("b".to_owned(), true)];
    cluster.until("both are ready", || async { pool().0 == both(true) }).await;
    let say = async |status: ConditionStatus| {
        let since = Time::new(clock.now());
        let edit = |node: &mut Node| {
            let ready = node.status.conditions.iter_mut().find(|it| it.kind == "Ready").unwrap();
            ready.status = status;
            ready.last_transition_time = Some(since);
        };
        let options = WriteOptions::default();
        let part = Some(Subresource::Status);
        cluster.resources.modify_as(None, "a", part, &options, edit).await.unwrap();
    };
    let revision = pool().1;
    say(ConditionStatus::False).await;
    cluster.until("a is not ready", || async { pool().0 == both(false) }).await;
    assert_eq!(pool().1, revision + 1);
    cluster.until("the grace period has started", || async { clock.sleepers() > 0 }).await;
    clock.advance(Duration::from_secs(299));
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool(), (both(false), revision + 1), "within the grace period it stays");
    clock.advance(Duration::from_secs(2));
    let alone = vec![("b".to_owned(), true)];
    cluster.until("a is gone", || async { pool().0 == alone }).await;
    assert_eq!(pool().1, revision + 2);
    say(ConditionStatus::True).await;
    cluster.until("a is back", || async { pool().0 == both(true) }).await;
    assert_eq!(pool().1, revision + 3);
    cluster.volumes.shutdown().await;
}
