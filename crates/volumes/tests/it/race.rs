//! Two servers over one store race for the last space.

use std::sync::Arc;

use mainstay_store::clock::{Clock, SystemClock};
use mainstay_volumes::controller::{Options, Volumes};
use mainstay_volumes::ledger::{Claim, Target};

use crate::cluster::{Cluster, class, pool, resources, store, volume};

#[tokio::test]
async fn two_servers_never_promise_the_same_space() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let objects = store(clock.clone());
    let first = Cluster::over(resources(objects.clone(), clock.clone()), "server-a", None).await;
    // The second has controllers of its own, with a ledger that sees the same store.
    let second = resources(objects, clock);
    let rival = Volumes::start(&second, Options::new("server-b"), None).await.unwrap();
    let mut groups = Vec::new();
    for name in ["a", "b", "c"] {
        first.node(name, "z", true).await;
        first.group(&format!("vg-{name}"), name, "10Gi").await;
        groups.push(format!("vg-{name}"));
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    first.apply(pool("pool", &groups)).await;
    first.apply(class("single", "None", "pool")).await;
    for index in 0..20 {
        first.apply(volume(&format!("v{index}"), "single", "3Gi")).await;
    }
    // Three groups of 10 GiB hold nine volumes of 3 GiB.
    let decided = || async {
        let mut placed = 0;
        let mut failed = 0;
        for index in 0..20 {
            let Some(replica) = first.replica(&format!("v{index}-0")).await else { return false };
            let conditions = &replica.status.conditions;
            match mainstay_volumes::conditions::find(conditions, "Scheduled") {
                Some(it) if it.reason == "Scheduled" => placed += 1,
                Some(it) if it.reason == "SchedulingFailed" => failed += 1,
                _ => return false,
            }
        }
        assert!(placed <= 9, "{placed} volumes were placed");
        placed == 9 && failed == 11
    };
    first.until("nine are placed and eleven wait", decided).await;
    for group in groups {
        let mut used = 0;
        for index in 0..20 {
            let replica = first.replica(&format!("v{index}-0")).await.unwrap();
            used += u64::from(replica.spec.lvm_volume_group_name == group) * 3;
        }
        assert!(used <= 10, "{group} holds {used} GiB");
    }
    rival.shutdown().await;
    first.volumes.shutdown().await;
}

#[tokio::test]
async fn a_narrow_reservation_outlives_its_server() {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let objects = store(clock.clone());
    let first = Cluster::over(resources(objects.clone(), clock.clone()), "server-a", None).await;
    first.group("vg-a", "a", "10Gi").await;
    let target = Target::new("vg-a", "");
    let claim = |holder: &str| Claim {
        holder: holder.to_owned(),
        volume: String::new(),
        size: 6 << 30,
        replicated: false,
    };
    let ledger = first.volumes.reserve().clone();
    let views = first.volumes.views().clone();
    first
        .until("the group is known", || async {
            views.groups.find(None, "vg-a").is_some_and(|it| it.is_ready(""))
        })
        .await;
    let minute = std::time::Duration::from_secs(60);
    let scores =
        ledger.filter_and_score(&claim("one"), std::slice::from_ref(&target), minute, false);
    assert!(scores[0] > 0);
    ledger.narrow(&first.resources, "one", &target, minute).await.unwrap();
    first.volumes.shutdown().await;

    let second = Cluster::over(resources(objects, clock), "server-b", None).await;
    let views = second.volumes.views().clone();
    second
        .until("the group is known again", || async { views.groups.find(None, "vg-a").is_some() })
        .await;
    let ledger = second.volumes.reserve().clone();
    let target = [target];
    assert_eq!(ledger.filter_and_score(&claim("two"), &target, minute, false), [0]);
    assert!(ledger.filter_and_score(&claim("one"), &target, minute, false)[0] > 0, "its own");
    second.volumes.shutdown().await;
}
