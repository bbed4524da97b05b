//! Watches: what they begin with, what they show, and how they end.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use serde_json::{Value, json};

use crate::client::{Host, Lines, MAPS, labelled, map, one};

const STREAMING: &str =
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

async fn watch(host: &Host, query: &str) -> Lines {
    host.client().await.watch(&format!("{MAPS}?{query}")).await
}

#[tokio::test]
async fn a_watch_resumes_without_gap_or_repetition() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let empty = client.get(MAPS).await.ok();
    let start = empty["metadata"]["resourceVersion"].as_str().unwrap();
    client.post(MAPS, &map("a")).await.ok();
    client.merge(&one("a"), &json!({"data": {"x": "1"}})).await.ok();
    client.delete(&one("a")).await.ok();
    let mut lines = watch(&host, &format!("watch=true&resourceVersion={start}")).await;
    let mut versions = vec![start.parse::<u64>().unwrap()];
    for expected in ["ADDED", "MODIFIED", "DELETED"] {
        let (kind, name, version) = lines.seen().await;
        assert_eq!((kind.as_str(), name.as_str()), (expected, "a"));
        versions.push(version.parse().unwrap());
    }
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    client.post(MAPS, &map("b")).await.ok();
    assert_eq!(lines.brief().await, "ADDED b");
    let mut resumed = watch(&host, &format!("watch=true&resourceVersion={}", versions[2])).await;
    assert_eq!(resumed.brief().await, "DELETED a");
    assert_eq!(resumed.brief().await, "ADDED b");
    host.stop().await;
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let host = Host::start().await;
    let mut client = host.client().await;
    for name in ["a", "b"] {
        client.post(MAPS, &map(name)).await.ok();
    }
    for query in ["watch", "watch=1&resourceVersion=0"] {
        let mut lines = watch(&host, query).await;
        assert_eq!(lines.brief().await, "ADDED a");
        assert_eq!(lines.brief().await, "ADDED b");
        client.merge(&one("b"), &json!({"data": {"x": query}})).await.ok();
        assert_eq!(lines.brief().await, "MODIFIED b");
    }
    let path = format!("{}?watch=1", one("b"));
    let mut single = host.client().await.watch(&path).await;
    assert_eq!(single.brief().await, "ADDED b");
    client.delete(&one("a")).await.ok();
    client.delete(&one("b")).await.ok();
    assert_eq!(single.brief().await, "DELETED b");
    host.stop().await;
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let host = Host::start().await;
    let mut client = host.client().await;
    for number in 0..600 {
        client.post(MAPS, &map(&format!("m-{number:03}"))).await.ok();
    }
    let newest =
        client.get(&format!("{MAPS}?limit=1")).await.ok()["metadata"]["resourceVersion"].clone();
    for more in ["", "&resourceVersion=0", "&resourceVersion=3", "&resourceVersion="] {
        let mut lines = watch(&host, &format!("{STREAMING}{more}")).await;
        for number in 0..600 {
            assert_eq!(lines.brief().await, format!("ADDED m-{number:03}"));
        }
        let end = lines.next().await.unwrap();
        let object = &end["object"];
        assert_eq!(end["type"], "BOOKMARK");
        assert_eq!(
            (object["kind"].as_str(), object["apiVersion"].as_str()),
            (Some("ConfigMap"), Some("v1"))
        );
        assert_eq!(object["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
        assert_eq!(object["metadata"]["resourceVersion"], newest);
    }
    let mut lines = watch(&host, &format!("{STREAMING}&labelSelector=no%3Dbody")).await;
    assert_eq!(lines.brief().await, "BOOKMARK");
    let query = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut silent = watch(&host, query).await;
    client.post(MAPS, &labelled("z", "red")).await.ok();
    assert_eq!(silent.brief().await, "ADDED z");
    for wrong in [
        "watch=1&sendInitialEvents=true",
        "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
        "watch=1&resourceVersionMatch=NotOlderThan",
    ] {
        let refused = client.get(&format!("{MAPS}?{wrong}")).await;
        let message = refused.refused(422, "Invalid");
        assert!(message.starts_with("ListOptions.meta.k8s.io \"\" is invalid: "), "{message}");
    }
    host.stop().await;
}

#[tokio::test]
async fn objects_come_and_go_with_their_labels() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(MAPS, &labelled("a", "blue")).await.ok();
    let mut red = watch(&host, "watch=1&labelSelector=color%3Dred").await;
    let paint = |color: &str| json!({"metadata": {"labels": {"color": color}}});
    client.merge(&one("a"), &paint("red")).await.ok();
    assert_eq!(red.brief().await, "ADDED a");
    client.merge(&one("a"), &json!({"data": {"x": "1"}})).await.ok();
    assert_eq!(red.brief().await, "MODIFIED a");
    let left = client.merge(&one("a"), &paint("blue")).await.ok();
    let event = red.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["labels"]["color"], "red");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
    client.merge(&one("a"), &json!({"data": {"x": "2"}})).await.ok();
    client.merge(&one("a"), &paint("red")).await.ok();
    assert_eq!(red.brief().await, "ADDED a");
    client.delete(&one("a")).await.ok();
    assert_eq!(red.brief().await, "DELETED a");
    host.stop().await;
}

/// Moves the clock until the next line arrives.
async fn after(clock: &Arc<ManualClock>, step: Duration, lines: &mut Lines) -> Option<Value> {
    let mut next = std::pin::pin!(lines.next());
    loop {
        tokio::select! {
            biased;
            line = &mut next => return line,
            () = tokio::task::yield_now() => clock.advance(step),
        }
    }
}

#[tokio::test]
async fn bookmarks_come_about_once_a_minute_and_before_the_end() {
    let (host, clock) = Host::start_manual(|_| {}).await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let version = client.get(MAPS).await.ok()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap();
    let query =
        format!("watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds=90");
    let mut lines = watch(&host, &query).await;
    // A change elsewhere moves the bookmark, though the watch does not show it.
    client.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.ok();
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await.ok();
    let newest = client.get(MAPS).await.ok()["metadata"]["resourceVersion"].clone();
    assert_ne!(newest, version);
    let second = Duration::from_secs(1);
    let start = mainstay_store::clock::Clock::elapsed(&*clock);
    let first = after(&clock, second, &mut lines).await.unwrap();
    let waited = mainstay_store::clock::Clock::elapsed(&*clock) - start;
    assert!(waited >= Duration::from_secs(50), "{waited:?}");
    assert_eq!(first["type"], "BOOKMARK");
    assert_eq!(first["object"]["metadata"]["resourceVersion"], newest);
    assert!(first["object"]["metadata"].get("annotations").is_none());
    let mut last = None;
    while let Some(line) = after(&clock, second, &mut lines).await {
        last = Some(line);
    }
    assert_eq!(last.unwrap()["type"], "BOOKMARK");

    let mut quiet =
        watch(&host, &format!("watch=1&resourceVersion={version}&timeoutSeconds=5")).await;
    assert_eq!(after(&clock, second, &mut quiet).await, None);
    host.stop().await;
}

#[tokio::test]
async fn too_old_is_an_error_event_and_too_new_a_refusal() {
    let host = Host::start_with(mainstay_store::clock::SystemClock::new(), |options| {
        options.settings.retention = Retention { events: 4, ..Retention::default() };
    })
    .await;
    let mut client = host.client().await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        client.post(MAPS, &map(name)).await.ok();
    }
    let mut lines = watch(&host, "watch=1&resourceVersion=1").await;
    let event = lines.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(
        (event["object"]["code"].as_u64(), event["object"]["reason"].as_str()),
        (Some(410), Some("Expired"))
    );
    assert_eq!(lines.next().await, None);
    let too_new = client.get(&format!("{MAPS}?watch=1&resourceVersion=999999")).await;
    too_new.refused(504, "Timeout");
    host.stop().await;
}

#[tokio::test]
async fn watches_come_as_tables_and_as_metadata() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let path = format!("{MAPS}?{STREAMING}");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut tables = host.client().await.watch_as(&path, table).await;
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut metas = host.client().await.watch_as(&path, metadata).await;
    let first = tables.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(
        tables.next().await.unwrap()["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let first = metas.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(first["object"]["metadata"]["name"], "a");
    assert!(first["object"].get("data").is_none());
    assert_eq!(metas.next().await.unwrap()["type"], "BOOKMARK");
    client.delete(&one("a")).await.ok();
    let gone = tables.next().await.unwrap();
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["columnDefinitions"], Value::Null);
    assert_eq!(metas.brief().await, "DELETED a");
    host.stop().await;
}

#[tokio::test]
async fn shutting_down_ends_watches_cleanly() {
    let host = Host::start().await;
    let mut lines = watch(&host, "watch=1").await;
    host.client().await.post(MAPS, &map("a")).await.ok();
    assert_eq!(lines.brief().await, "ADDED a");
    host.stop().await;
    assert_eq!(lines.next().await, None);
}
