//! Every recorded case through the real controllers, with an extender over real HTTP.

use mainstay_volumes::api::ReplicatedVolumeReplica;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::fake::Fake;
use crate::recorded::{answers, cases, leaving, missing, name, objects};

async fn run(case: &Value) {
    let fake = Fake::start(answers(case)).await;
    let cluster = Cluster::new(Some(&fake)).await;
    let objects = objects(case);
    let (volume, before) = objects.split_last().unwrap();
    for object in before {
        cluster.apply(object.clone()).await;
    }
    for name in leaving(case) {
        cluster.delete::<ReplicatedVolumeReplica>(&name).await;
    }
    let views = cluster.volumes.views().clone();
    let wanted = case["nodes"].as_array().unwrap().len();
    cluster
        .until("the pool has eligible nodes", || async {
            let pool = views.pools.find(None, "pool");
            pool.is_some_and(|pool| {
                pool.status.eligible_nodes_revision > 0
                    && pool.status.eligible_nodes.len() == wanted
            })
        })
        .await;
    cluster.apply(volume.clone()).await;
    cluster
        .until(&case["id"].to_string(), || async {
            for replica in case["rvrs"].as_array().unwrap() {
                let found = cluster.replica(&name(replica)).await.unwrap();
                let found = serde_json::to_value(&found).unwrap();
                if missing(case, replica, &found).is_some() {
                    return false;
                }
            }
            true
        })
        .await;
    cluster.volumes.shutdown().await;
}

#[tokio::test]
async fn every_recorded_case_is_placed_by_the_controllers_as_recorded() {
    for case in &cases() {
        run(case).await;
    }
}
