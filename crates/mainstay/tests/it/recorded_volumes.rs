//! Every recorded case of volumes on a running server: its objects arrive over HTTPS from kube-rs,
//! its controllers place them, and its extender is another server.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch};
use kube::api::{PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::fake::Fake;
use crate::kube_rs::client;
use crate::process::{TestServer, folder};
use crate::recorded::{GROUP, VOLUME, answers, cases, leaving, missing, name, objects};

/// How many cases run beside one another.
const BESIDES: usize = 4;

fn api(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, &format!("{}s", kind.to_lowercase()));
    Api::all_with(client.clone(), &resource)
}

/// That a node wants to use the volume.
fn attachment(node: &Value) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "ReplicatedVolumeAttachment",
        "metadata": {"name": format!("on-{}", node.as_str().unwrap())},
        "spec": {"replicatedVolumeName": VOLUME, "nodeName": node},
    })
}

/// Creates an object, then reports its status, as agents do.
async fn apply(client: &Client, object: &Value) {
    let text = |name: &str| object[name].as_str().unwrap();
    let api = api(client, text("apiVersion"), text("kind"));
    let name = object["metadata"]["name"].as_str().unwrap();
    let created: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &created).await.unwrap();
    if let Some(status) = object.get("status") {
        let status = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }
}

/// Waits until an object is as it should be.
async fn until(
    what: &str,
    api: &Api<DynamicObject>,
    name: &str,
    missing: impl Fn(&Value) -> Option<String>,
) {
    let last = Mutex::new(None);
    let holds = |object: Option<&DynamicObject>| {
        let object = object.map(|object| serde_json::to_value(object).unwrap());
        let missing = missing(&object.unwrap_or_default());
        let done = missing.is_none();
        *last.lock().unwrap() = missing;
        done
    };
    let waited =
        tokio::time::timeout(Duration::from_secs(30), await_condition(api.clone(), name, holds));
    match waited.await {
        Ok(seen) => drop(seen.unwrap()),
        Err(_) => panic!("{what} {name}: {last:?}"),
    }
}

async fn run(case: Value) {
    let fake = Fake::start(answers(&case)).await;
    let folder = folder();
    let (place, url) = (folder.path().to_owned(), fake.url());
    let start = move || {
        let parts = ["--only", "api,volumes", "--store", "memory:", "--extender-url", &url];
        TestServer::start_in(&place, &parts)
    };
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let client = client(&server).await;
    let what = case["id"].to_string();
    let objects = objects(&case);
    let (volume, before) = objects.split_last().unwrap();
    for object in before {
        apply(&client, object).await;
    }
    let replicas = api(&client, GROUP, "ReplicatedVolumeReplica");
    for name in leaving(&case) {
        drop(replicas.delete(&name, &DeleteParams::default()).await.unwrap());
    }
    let wanted = case["nodes"].as_array().unwrap().len();
    let pools = api(&client, GROUP, "ReplicatedStoragePool");
    until(&what, &pools, "pool", |pool| {
        let status = &pool["status"];
        let known = status["eligibleNodes"].as_array().map_or(0, Vec::len);
        let told = status["eligibleNodesRevision"].as_u64().unwrap_or_default() > 0;
        (known != wanted || !told).then(|| status.to_string())
    })
    .await;
    for node in case["attachTo"].as_array().unwrap() {
        apply(&client, &attachment(node)).await;
    }
    apply(&client, volume).await;
    for replica in case["rvrs"].as_array().unwrap() {
        until(&what, &replicas, &name(replica), |object| missing(&case, replica, object)).await;
    }
    // A test server is waited for when it is dropped.
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_case_is_placed_by_a_running_server_as_recorded() {
    stream::iter(cases()).for_each_concurrent(BESIDES, run).await;
}
