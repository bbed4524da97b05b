//! Equal groups fill evenly, with every strategy.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_placement::{
    EligibleGroup, EligibleNode, Pass, Replica, ReplicaDecision, ReplicaType, Strategy, Topology,
    Volume, ZoneFallback,
};
use mainstay_volumes::api::LVMVolumeGroup;
use mainstay_volumes::candidates::{Candidates, FromLedger};
use mainstay_volumes::ledger::{CapacityLedger, Claim, PlacedReplica, VolumeSize};
use serde_json::json;

use crate::cluster::{Cluster, class, pool, volume};

const NAMES: [&str; 3] = ["a", "b", "c"];
const GIB: u64 = 1 << 30;

fn candidates() -> Candidates {
    Candidates::new(NAMES.map(|name| EligibleNode {
        node_name: name.to_owned(),
        zone_name: format!("zone-{name}"),
        node_ready: true,
        agent_ready: true,
        lvm_volume_groups: vec![EligibleGroup {
            name: format!("vg-{name}"),
            ready: true,
            ..EligibleGroup::default()
        }],
        ..EligibleNode::default()
    }))
}

fn ledger(gib: u64) -> CapacityLedger {
    let mut ledger = CapacityLedger::default();
    for name in NAMES {
        let size = mainstay_store::meta::Quantity::bytes(gib * GIB);
        let mut group = LVMVolumeGroup::default();
        group.status.phase = "Ready".to_owned();
        group.status.vg_size = Some(size);
        group.status.vg_free = Some(size);
        ledger.set_group(&format!("vg-{name}"), Some(&group));
    }
    ledger
}

/// D8, X6: pools of 1,000 GiB filled to the last with volumes of 1 GiB and of 10 GiB.
#[test]
fn d8_equal_pools_never_differ_by_more_than_one_volume() {
    let candidates = candidates();
    let strategies = [Strategy::Greedy, Strategy::AllOrNothing];
    let fallbacks = [ZoneFallback::Never, ZoneFallback::WhenUnusable];
    let topologies = [Topology::Ignored, Topology::Zonal, Topology::TransZonal];
    for (size, strategy) in [1, 10].into_iter().flat_map(|size| strategies.map(|it| (size, it))) {
        for (fallback, topology) in fallbacks.into_iter().flat_map(|it| topologies.map(|t| (it, t)))
        {
            let mut ledger = ledger(1000);
            let mut used: BTreeMap<String, u64> = BTreeMap::new();
            let volume = Volume {
                topology,
                required_diskful: 1,
                strategy,
                zone_fallback: fallback,
                replicas: vec![Replica {
                    id: 0,
                    kind: ReplicaType::Diskful,
                    node_name: String::new(),
                    lvg: String::new(),
                    thin_pool: String::new(),
                    deleting: false,
                }],
                ..Volume::default()
            };
            let whole = 3 * 1000 / size;
            for index in 0..whole {
                let (name, holder) = (format!("v{index}"), format!("v{index}-0"));
                let size_of = VolumeSize { size: size * GIB, replicated: false };
                let claim = Claim {
                    holder: holder.clone(),
                    volume: name.clone(),
                    size: size * GIB,
                    replicated: false,
                };
                let claims = [claim];
                let now = Timestamp::UNIX_EPOCH;
                let mut answers = FromLedger {
                    ledger: &mut ledger,
                    candidates: &candidates,
                    claims: &claims,
                    now,
                };
                let decisions = Pass::new(&candidates.eligible, &volume).run(&mut answers);
                let ReplicaDecision::Placed(entry) = &decisions[0].1 else {
                    panic!(
                        "{strategy:?} {fallback:?} {topology:?}: {index} of {whole} found a place"
                    );
                };
                let target = candidates.target(entry.candidate).unwrap().clone();
                *used.entry(target.name.clone()).or_default() += 1;
                ledger.set_volume(&name, Some(size_of));
                ledger.set_replica(
                    &holder,
                    Some(PlacedReplica { volume: name, target, reported: false }),
                );
                let most = used.values().max().unwrap();
                let least = if used.len() < 3 { 0 } else { *used.values().min().unwrap() };
                assert!(
                    most - least <= 1,
                    "{strategy:?} {fallback:?} {topology:?}, {size} GiB: {used:?}"
                );
            }
        }
    }
}

/// The same with the controllers and many volumes at once.
#[tokio::test]
async fn d8_controllers_fill_groups_evenly_with_many_volumes_at_once() {
    for strategy in ["Greedy", "AllOrNothing"] {
        let cluster = Cluster::new(None).await;
        for name in NAMES {
            cluster.node(name, &format!("zone-{name}"), true).await;
            cluster.group(&format!("vg-{name}"), name, "1000Gi").await;
        }
        cluster.apply(pool("pool", &["vg-a", "vg-b", "vg-c"])).await;
        let mut single = class("single", "None", "pool");
        single["spec"]["placementStrategy"] = json!(strategy);
        cluster.apply(single).await;
        let mut made = 0;
        for batch in [20, 31, 40] {
            for index in made..made + batch {
                cluster.apply(volume(&format!("v{index}"), "single", "10Gi")).await;
            }
            made += batch;
            let views = cluster.volumes.views().clone();
            let used = || {
                let mut used: BTreeMap<String, usize> = BTreeMap::new();
                for replica in views.replicas.list() {
                    *used.entry(replica.spec.lvm_volume_group_name.clone()).or_default() += 1;
                }
                used
            };
            let placed = || async {
                let used = used();
                used.values().sum::<usize>() == made && !used.contains_key("")
            };
            cluster.until("all are placed", placed).await;
            let used = used();
            let (most, least) = (used.values().max().unwrap(), used.values().min().unwrap());
            assert!(used.len() == 3 && most - least <= 1, "{strategy}, {made} volumes: {used:?}");
        }
        cluster.volumes.shutdown().await;
    }
}
