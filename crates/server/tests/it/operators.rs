//! The operators' requests: back up, restore, look after the store.

use std::sync::Arc;

use mainstay_server::{Options, Server};
use mainstay_store::Location;
use mainstay_store::backup::{Reader, restore};
use mainstay_store::clock::SystemClock;
use mainstay_store::object::{Body, Key, Resource};
use mainstay_store::objects::{Change, Objects, Write};
use serde_json::{Value, json};

use crate::client::{Host, MAPS, map, one, registry};

const BACKUP: &str = "/mainstay/v1/backup";
const STATS: &str = "/mainstay/v1/store/stats";
const CHECK: &str = "/mainstay/v1/store/check";
const COMPACT: &str = "/mainstay/v1/store/compact";

fn sqlite(options: &mut Options) {
    options.store = Location::Sqlite(options.data_dir.join("objects.db"));
}

async fn store(dir: &std::path::Path) -> Arc<dyn Objects> {
    let location = Location::Sqlite(dir.join("objects.db"));
    let settings = mainstay_store::Settings::default();
    mainstay_store::open(&location, &settings, SystemClock::new()).await.unwrap()
}

#[tokio::test]
async fn only_admins_look_after_the_store() {
    let host = Host::start().await;
    for role in ["viewer", "editor"] {
        let token = host.token(json!({"role": role})).await;
        let mut client = host.client_with(Some(token)).await;
        for path in [BACKUP, STATS, CHECK] {
            client.get(path).await.refused(403, "Forbidden");
        }
        client.post(COMPACT, &json!({})).await.refused(403, "Forbidden");
    }
    let mut nobody = host.client_with(None).await;
    nobody.get(BACKUP).await.refused(401, "Unauthorized");
    let mut admin = host.client().await;
    for path in [BACKUP, STATS, CHECK] {
        admin.post(path, &json!({})).await.refused(405, "MethodNotAllowed");
    }
    admin.get(COMPACT).await.refused(405, "MethodNotAllowed");
    admin.get("/mainstay/v1/store/frobnicate").await.refused(404, "NotFound");
    assert_eq!(admin.get(BACKUP).await.code, 200);
    let dir = host.stop().await;
    let audit = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let taken: Vec<_> = audit
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["name"] == "backup" && line["verb"] == "get")
        .map(|line| (line["user"] == "admin", line["code"].as_u64().unwrap()))
        .collect();
    let expected = [(false, 403), (false, 403), (false, 401), (true, 200)];
    assert_eq!(taken, expected, "who asked is on record");
}

#[tokio::test]
async fn a_server_restored_elsewhere_is_the_same_to_its_clients() {
    let host = Host::start_with(SystemClock::new(), sqlite).await;
    let mut client = host.client().await;
    for number in 0..300 {
        client.post(MAPS, &map(&format!("m{number}"))).await.ok();
    }
    let before = client.get(&one("m7")).await.ok();
    let viewer = host.token(json!({"role": "viewer"})).await;
    let backup = client.get(BACKUP).await;
    assert_eq!(
        (backup.code, &backup.headers["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    let summary = Reader::new(&backup.bytes[..]).unwrap().finish().unwrap();
    assert!(summary.objects > 300, "{summary:?}");
    client.delete(&one("m7")).await.ok();
    let authority = std::fs::read(host.dir.path().join("ca.crt")).unwrap();
    host.stop().await;

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    std::fs::write(&file, &backup.bytes).unwrap();
    let target = store(dir.path()).await;
    assert_eq!(restore(&file, target.clone()).await.unwrap(), summary);
    target.close().await;
    let host = Host::start_in(dir, SystemClock::new(), sqlite).await;
    assert_eq!(std::fs::read(host.dir.path().join("ca.crt")).unwrap(), authority);
    let mut client = host.client_with(Some(viewer)).await;
    let mut after = client.get(&one("m7")).await.ok();
    let (old, new) =
        (&before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"].take());
    assert_ne!(*old, new);
    after["metadata"]["resourceVersion"] = old.clone();
    assert_eq!(after, before);
    let path = format!("{MAPS}?watch=1&resourceVersion={}", old.as_str().unwrap());
    let mut lines = host.client().await.watch(&path).await;
    let event = lines.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410)),
        "{event}"
    );
    host.stop().await;
}

#[tokio::test]
async fn a_half_restored_store_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let half = store(dir.path()).await;
    let key = Key::new(&Resource::new("internal.mainstay.dev", "restores"), None, "unfinished");
    let change = Change::Create(Body::new(&serde_json::Map::new()));
    half.write(Write { key, change, fence: None }).await.unwrap();
    half.close().await;
    for _ in 0..2 {
        let listen = "127.0.0.1:0".parse().unwrap();
        let options = Options::new(listen, dir.path().to_owned(), registry(), SystemClock::new());
        let refused = Server::start(options).await.unwrap_err();
        assert!(refused.to_string().contains("mainstay restore"), "{refused}");
    }
}

#[tokio::test]
async fn stats_count_objects_and_bytes() {
    let host = Host::start_with(SystemClock::new(), sqlite).await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let text = client.get(&one("a")).await.bytes;
    let stats = client.get(STATS).await.ok();
    assert_eq!(stats["backend"], "sqlite");
    let collections = stats["collections"].as_array().unwrap();
    let maps = collections.iter().find(|share| share["resource"] == "configmaps").unwrap();
    assert_eq!(*maps, json!({"resource": "configmaps", "objects": 1, "bytes": text.len()}));
    let names: Vec<_> =
        stats["files"].as_array().unwrap().iter().map(|file| file["name"].clone()).collect();
    assert_eq!(names, ["objects.db", "objects.db-wal"]);
    assert!(stats["files"][1]["bytes"].as_u64() > Some(0));
    let sum =
        |field: &str| collections.iter().map(|share| share[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (&stats["objects"], &stats["bytes"]),
        (&json!(sum("objects")), &json!(sum("bytes")))
    );
    assert_eq!(stats["oldestRevision"], 0);

    let compacted = client.call("POST", COMPACT, "application/json", "").await.ok();
    assert_eq!(compacted["compactedThrough"], stats["revision"]);
    let stats = client.get(STATS).await.ok();
    assert_eq!(stats["oldestRevision"], compacted["compactedThrough"]);
    host.stop().await;
}

#[tokio::test]
async fn the_store_check_passes_and_names_objects_that_are_invalid() {
    let host = Host::start_with(SystemClock::new(), sqlite).await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    client.merge(&one("a"), &json!({"metadata": {"labels": {"x": "y"}}})).await.ok();
    client.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.ok();
    let report = client.get(CHECK).await.ok();
    assert_eq!(report["findings"], json!([]), "{report}");
    assert_eq!((&report["medium"], &report["unknown"]), (&json!([]), &json!([])), "{report}");
    assert!(report["objects"].as_u64() > Some(5));

    let bad: Value = json!({"metadata": {"name": "other"}, "data": {"a": 1}});
    let key = Key::new(&Resource::new("", "configmaps"), Some("default"), "bad");
    let change = Change::Create(Body::new(bad.as_object().unwrap()));
    let objects = host.running.resources().objects().clone();
    objects.write(Write { key, change, fence: None }).await.unwrap();
    let report = client.get(CHECK).await.ok();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["path"] == "default/bad"), "{report}");
    for problem in ["metadata.name", "metadata.namespace", "apiVersion", "kind", "data.a"] {
        let named = |finding: &&Value| finding["problem"].as_str().unwrap().starts_with(problem);
        assert!(findings.iter().any(|finding| named(&finding)), "no {problem} in {report}");
    }
    host.stop().await;
}
