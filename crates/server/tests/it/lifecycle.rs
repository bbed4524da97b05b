//! The background work of a server: namespaces are emptied, Events expire, requests are counted.

use std::time::Duration;

use mainstay_store::clock::SystemClock;
use serde_json::json;

use crate::client::{Host, MAPS, map, one};

const NAMESPACES: &str = "/api/v1/namespaces";

#[tokio::test]
async fn the_usual_namespaces_are_there() {
    let host = Host::start().await;
    let list = host.client().await.get(NAMESPACES).await.ok();
    let names: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-system", "mainstay-system"]);
    host.stop().await;
}

#[tokio::test]
async fn a_deleted_namespace_empties_itself_and_goes() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(NAMESPACES, &json!({"metadata": {"name": "team"}})).await.ok();
    let maps = "/api/v1/namespaces/team/configmaps";
    for number in 0..20 {
        client.post(maps, &map(&format!("m{number}"))).await.ok();
    }
    let mut held = map("held");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    client.post(maps, &held).await.ok();
    client.post(MAPS, &map("stays")).await.ok();
    let path = format!("{NAMESPACES}?watch=1&fieldSelector=metadata.name%3Dteam");
    let mut lines = host.client().await.watch(&path).await;
    assert_eq!(lines.brief().await, "ADDED team");
    let mut inside = host
        .client()
        .await
        .watch(&format!("{maps}?watch=1&fieldSelector=metadata.name%3Dheld"))
        .await;
    assert_eq!(inside.brief().await, "ADDED held");
    let marked = client.delete(&format!("{NAMESPACES}/team")).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(lines.brief().await, "MODIFIED team");
    client.post(maps, &map("late")).await.refused(403, "Forbidden");
    assert_eq!(inside.brief().await, "MODIFIED held");
    client.merge(&format!("{maps}/held"), &json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(lines.brief().await, "DELETED team");
    client.get(&format!("{NAMESPACES}/team")).await.refused(404, "NotFound");
    assert_eq!(client.get("/api/v1/configmaps").await.ok()["items"].as_array().unwrap().len(), 1);
    client.post(maps, &map("late")).await.refused(404, "NotFound");
    host.stop().await;
}

fn event(name: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": "default"},
        "reason": "Testing", "message": "a test", "type": "Normal",
    })
}

#[tokio::test]
async fn events_go_when_they_are_old_or_too_many() {
    let (host, clock) = Host::start_manual(|options| options.limits.events = 3).await;
    let mut client = host.client().await;
    let events = "/api/v1/namespaces/default/events";
    let mut lines =
        host.client().await.watch(&format!("{events}?watch=1&timeoutSeconds=86400")).await;
    for number in 0..5 {
        client.post(events, &event(&format!("e{number}"))).await.ok();
        clock.advance(Duration::from_millis(1));
    }
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let line = lines.brief().await;
        if let Some(name) = line.strip_prefix("DELETED ") {
            gone.push(name.to_owned());
        }
    }
    assert_eq!(gone, ["e0", "e1"]);
    let mut next = std::pin::pin!(async {
        let mut all = Vec::new();
        while all.len() < 3 {
            all.push(lines.brief().await);
        }
        all
    });
    let all = loop {
        tokio::select! {
            biased;
            all = &mut next => break all,
            () = tokio::task::yield_now() => clock.advance(Duration::from_secs(30)),
        }
    };
    assert_eq!(all, ["DELETED e2", "DELETED e3", "DELETED e4"]);
    host.stop().await;
}

#[tokio::test]
async fn every_change_leaves_a_line_in_the_audit_log() {
    let host = Host::start_with(SystemClock::new(), |_| {}).await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    client.get(&one("a")).await.ok();
    client.merge(&one("a"), &json!({"data": {"x": "y"}})).await.ok();
    client.delete(&one("nobody")).await.refused(404, "NotFound");
    host.token(json!({"role": "viewer"})).await;
    let dir = host.stop().await;
    let text = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let lines: Vec<(String, String, String, u64)> = text
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["user"], "admin");
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            (text("verb"), text("resource"), text("name"), line["code"].as_u64().unwrap())
        })
        .collect();
    let line = |verb: &str, resource: &str, name: &str, code| {
        (verb.to_owned(), resource.to_owned(), name.to_owned(), code)
    };
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0], line("create", "configmaps", "a", 201));
    assert_eq!(lines[1], line("patch", "configmaps", "a", 200));
    assert_eq!(lines[2], line("delete", "configmaps", "nobody", 404));
    assert_eq!((lines[3].0.as_str(), lines[3].1.as_str(), lines[3].3), ("create", "tokens", 201));
}

#[tokio::test]
async fn metrics_count_requests() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    client.get(&one("a")).await.ok();
    let _watch = host.client().await.watch(&format!("{MAPS}?watch=1")).await;
    let metrics = client.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for line in [
        "mainstay_http_requests_total{verb=\"get\",resource=\"configmaps\",code=\"200\"} 1",
        "mainstay_http_requests_total{verb=\"create\",resource=\"configmaps\",code=\"201\"} 1",
        "mainstay_http_request_duration_seconds_count{verb=\"create\",resource=\"configmaps\"} 1",
        "mainstay_watches{resource=\"configmaps\"} 1",
        "mainstay_http_requests_in_flight 1",
        "mainstay_store_revision ",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    host.stop().await;
}
