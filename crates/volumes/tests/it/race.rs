//! Several servers on one store: they compete for the last space, and take over from each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_clock::{Clock, SystemClock};
use mainstay_controller::election::{self, Election};
use mainstay_store::location::Settings;
use mainstay_store::object::Resource;
use mainstay_store::objects::{At, Objects};
use mainstay_store::resources::Resources;
use mainstay_store::{Location, etcd};
use mainstay_volumes::api::ReplicatedVolumeReplica;
use mainstay_volumes::conditions;
use mainstay_volumes::controller::{Options, Volumes};
use mainstay_volumes::ledger::{Claim, Target};

use crate::cluster::{Cluster, class, pool, resources, store, volume};
use crate::etcd::Cluster as Etcd;

/// Groups of 10 GiB on three nodes, and a class of single replicas.
async fn three_groups(cluster: &Cluster) {
    for name in ["a", "b", "c"] {
        cluster.node(name, "z", true).await;
        cluster.group(&format!("vg-{name}"), name, "10Gi").await;
    }
    cluster.apply(pool("pool", &["vg-a", "vg-b", "vg-c"])).await;
    cluster.apply(class("single", "None", "pool")).await;
}

/// Waits until every volume `v0..` has a decision, and `expected` are placed. Checks every time that no
/// group holds more than fits.
async fn decided(cluster: &Cluster, volumes: usize, expected: usize) {
    let decided = || async {
        let all: Vec<ReplicatedVolumeReplica> = cluster.resources.list_as(None).await.unwrap();
        for group in ["vg-a", "vg-b", "vg-c"] {
            let inside = all.iter().filter(|it| it.spec.lvm_volume_group_name == group).count();
            assert!(inside * 3 <= 10, "{group} holds {inside} volumes of 3 GiB");
        }
        let with = |reason: &str| {
            let conditions = all.iter().map(|it| &it.status.conditions);
            let found = conditions.filter_map(|it| conditions::find(it, "Scheduled"));
            found.filter(|it| it.reason == reason).count()
        };
        let (placed, failed) = (with("Scheduled"), with("SchedulingFailed"));
        placed == expected && placed + failed == volumes && all.len() == volumes
    };
    cluster.until(&format!("{expected} of {volumes} are placed"), decided).await;
}

/// Two servers schedule at once without an election: the worst case.
async fn race(first: Resources, second: Resources) {
    let first = Cluster::over(first, "server-a", None).await;
    // The second server has its own controllers and ledger on the same store.
    let rival = Volumes::start(&second, Options::new("server-b"), None).await.unwrap();
    three_groups(&first).await;
    for index in 0..20 {
        first.apply(volume(&format!("v{index}"), "single", "3Gi")).await;
    }
    // Three groups of 10 GiB hold nine volumes of 3 GiB.
    decided(&first, 20, 9).await;
    rival.shutdown().await;
    first.volumes.shutdown().await;
}

#[tokio::test]
async fn two_servers_never_promise_the_same_space() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let objects = store(clock.clone());
    race(resources(objects.clone(), clock.clone()), resources(objects, clock)).await;
}

async fn open(address: &etcd::Address, clock: &Arc<dyn Clock>) -> Arc<dyn Objects> {
    let location = Location::Etcd(address.clone());
    mainstay_store::open(&location, &Settings::default(), clock.clone()).await.unwrap()
}

#[tokio::test]
async fn two_servers_on_one_etcd_never_promise_the_same_space() {
    let etcd = Etcd::start(1);
    let address = etcd.address();
    let clock: Arc<dyn Clock> = SystemClock::new();
    let (one, two) = (open(&address, &clock).await, open(&address, &clock).await);
    race(resources(one.clone(), clock.clone()), resources(two.clone(), clock)).await;
    one.close().await;
    two.close().await;
}

/// The writers of the stored reservations.
async fn writers(resources: &Resources) -> BTreeSet<String> {
    let kept = Resource::new("internal.storage.mainstay.dev", "volumegroupreservations");
    let kept = resources.objects().collection(&kept, At::Latest).await.unwrap();
    let writer = |object: serde_json::Map<String, serde_json::Value>| {
        object["spec"]["writer"].as_str().unwrap().to_owned()
    };
    kept.range(None, None).map(|record| writer(record.object())).collect()
}

#[tokio::test]
async fn only_the_leader_schedules_and_the_next_leader_continues() {
    let etcd = Etcd::start(1);
    let address = etcd.address();
    let clock: Arc<dyn Clock> = SystemClock::new();
    let mut servers = Vec::new();
    for name in ["server-a", "server-b"] {
        let objects = open(&address, &clock).await;
        let stand = election::Options::new("servers", name);
        let election = Election::run(stand, objects.clone(), clock.clone());
        if name == "server-a" {
            election.leading().await.unwrap();
        }
        let resources = resources(objects, clock.clone());
        let volumes =
            Volumes::start(&resources, Options::new(name), Some(&election)).await.unwrap();
        servers.push((Cluster::with(resources, volumes).await, election));
    }
    let (second, next) = servers.pop().unwrap();
    let (first, leader) = servers.pop().unwrap();
    three_groups(&second).await;
    for index in 0..5 {
        second.apply(volume(&format!("v{index}"), "single", "3Gi")).await;
    }
    decided(&second, 5, 5).await;
    assert_eq!(writers(&second.resources).await, BTreeSet::from(["server-a".to_owned()]));
    first.volumes.shutdown().await;
    leader.shutdown().await;
    next.leading().await.unwrap();
    for index in 5..12 {
        second.apply(volume(&format!("v{index}"), "single", "3Gi")).await;
    }
    decided(&second, 12, 9).await;
    assert!(writers(&second.resources).await.contains("server-b"));
    second.volumes.shutdown().await;
    next.shutdown().await;
    first.resources.objects().close().await;
    second.resources.objects().close().await;
}

/// Six gibibytes for a holder.
fn claim(holder: &str) -> Claim {
    let holder = holder.to_owned();
    Claim { holder, volume: String::new(), size: 6 << 30, replicated: false }
}

/// Waits until a server has seen the group.
async fn knows_the_group(cluster: &Cluster) {
    let views = cluster.volumes.views().clone();
    cluster
        .until("the group is known", || async {
            views.groups.find(None, "vg-a").is_some_and(|it| it.is_ready(""))
        })
        .await;
}

#[tokio::test]
async fn a_server_does_not_release_the_reservation_of_another() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let objects = store(clock.clone());
    let server = |name| Cluster::over(resources(objects.clone(), clock.clone()), name, None);
    let (first, second) = (server("server-a").await, server("server-b").await);
    first.group("vg-a", "a", "10Gi").await;
    knows_the_group(&first).await;
    knows_the_group(&second).await;
    let target = Target::new("vg-a", "");
    let minute = std::time::Duration::from_secs(60);
    // Both reserve for the same replica; the first has confirmed it and is about to place it.
    for server in [&first, &second] {
        let ledger = server.volumes.reserve();
        assert!(ledger.filter_and_score(&claim("one"), &[&target], minute, false)[0] > 0);
    }
    let narrowed = |server: &Cluster, holder: &'static str| {
        let (ledger, resources) = (server.volumes.reserve().clone(), server.resources.clone());
        let target = target.clone();
        async move { ledger.narrow(&resources, holder, &target, minute).await }
    };
    narrowed(&first, "one").await.unwrap();
    // When the second releases its reservation, that of the first stays.
    drop(narrowed(&second, "one").await);
    second.volumes.reserve().release(&second.resources, "one").await.unwrap();
    let ledger = second.volumes.reserve();
    assert_eq!(ledger.filter_and_score(&claim("two"), &[&target], minute, false), [0]);
    assert!(narrowed(&second, "two").await.is_err());
    first.volumes.reserve().release(&first.resources, "one").await.unwrap();
    first.volumes.shutdown().await;
    second.volumes.shutdown().await;
}

#[tokio::test]
async fn a_narrow_reservation_survives_its_server() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let objects = store(clock.clone());
    let first = Cluster::over(resources(objects.clone(), clock.clone()), "server-a", None).await;
    first.group("vg-a", "a", "10Gi").await;
    let target = Target::new("vg-a", "");
    let ledger = first.volumes.reserve().clone();
    knows_the_group(&first).await;
    let minute = std::time::Duration::from_secs(60);
    let scores = ledger.filter_and_score(&claim("one"), &[&target], minute, false);
    assert!(scores[0] > 0);
    ledger.narrow(&first.resources, "one", &target, minute).await.unwrap();
    first.volumes.shutdown().await;

    let second = Cluster::over(resources(objects, clock), "server-b", None).await;
    let views = second.volumes.views().clone();
    second
        .until("the group is known again", || async { views.groups.find(None, "vg-a").is_some() })
        .await;
    let ledger = second.volumes.reserve().clone();
    let target = [&target];
    assert_eq!(ledger.filter_and_score(&claim("two"), &target, minute, false), [0]);
    assert!(ledger.filter_and_score(&claim("one"), &target, minute, false)[0] > 0, "its own");
    second.volumes.shutdown().await;
}
