//! Lists and their pages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use serde_json::{Value, json};

use crate::client::{Client, Host, MAPS, labelled, map, one};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn fill(client: &mut Client, count: usize) {
    for number in 0..count {
        client.post(MAPS, &map(&format!("m-{number:03}"))).await.ok();
    }
}

#[tokio::test]
async fn pages_show_one_revision_while_writes_go_on() {
    let host = Host::start().await;
    let mut client = host.client().await;
    fill(&mut client, 25).await;
    let first = client.get(&format!("{MAPS}?limit=10")).await.ok();
    assert_eq!(first["metadata"]["remainingItemCount"], 15);
    let version = first["metadata"]["resourceVersion"].clone();
    let mut seen = names(&first);
    let mut token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    for (page, remaining) in [(1, Some(5)), (2, None)] {
        client.delete(&one(&format!("m-{:03}", 10 * page + 3))).await.ok();
        client.post(MAPS, &map(&format!("m-{:03}-late", 10 * page + 3))).await.ok();
        client
            .merge(&one(&format!("m-{:03}", 10 * page + 4)), &json!({"data": {"late": "1"}}))
            .await
            .ok();
        let next = client.get(&format!("{MAPS}?limit=10&continue={token}")).await.ok();
        assert_eq!(next["metadata"]["resourceVersion"], version);
        assert_eq!(next["metadata"]["remainingItemCount"].as_u64(), remaining);
        assert!(
            next["items"].as_array().unwrap().iter().all(|item| item["data"].get("late").is_none())
        );
        seen.extend(names(&next));
        token = next["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    }
    assert!(token.is_empty());
    let expected: Vec<String> = (0..25).map(|number| format!("m-{number:03}")).collect();
    assert_eq!(seen, expected);
    host.stop().await;
}

#[tokio::test]
async fn forged_and_foreign_tokens_are_refused() {
    let host = Host::start().await;
    let mut client = host.client().await;
    fill(&mut client, 5).await;
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "secret"}})).await.ok();
    let first = client.get(&format!("{MAPS}?limit=2")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let mut forged = token.clone().into_bytes();
    let middle = forged.len() / 2;
    forged[middle] = if forged[middle] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    for (place, token) in [
        (MAPS, forged.as_str()),
        (MAPS, "nonsense"),
        (MAPS, "eyJydiI6MSwic3RhcnQiOiJhIn0"),
        ("/api/v1/namespaces/secret/configmaps", &token),
        ("/api/v1/configmaps", &token),
        ("/api/v1/nodes", &token),
    ] {
        let refused = client.get(&format!("{place}?limit=2&continue={token}")).await;
        assert!(refused.refused(400, "BadRequest").contains("continue"), "{place} {token}");
    }
    let with_version = format!("{MAPS}?limit=2&continue={token}&resourceVersion=5");
    client.get(&with_version).await.refused(400, "BadRequest");
    host.stop().await;
}

#[tokio::test]
async fn an_expired_continue_token_answers_410_with_a_new_token() {
    let (host, clock) = Host::start_manual(|options| {
        options.settings.retention = Retention { events: 4, ..Retention::default() };
    })
    .await;
    let mut client = host.client().await;
    fill(&mut client, 10).await;
    let first = client.get(&format!("{MAPS}?limit=4")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    client.delete(&one("m-007")).await.ok();
    fill_more(&mut client, 8).await;
    clock.advance(Duration::from_secs(301));
    let mut client = host.client().await;
    let expired = client.get(&format!("{MAPS}?limit=4&continue={token}")).await;
    expired.refused(410, "Expired");
    let next = expired.body["metadata"]["continue"].as_str().unwrap();
    let rest = client.get(&format!("{MAPS}?limit=100&continue={next}")).await.ok();
    let rest = names(&rest);
    assert_eq!(&rest[..3], ["m-004", "m-005", "m-006"]);
    assert_eq!(rest[3], "m-008");
    host.stop().await;
}

async fn fill_more(client: &mut Client, count: usize) {
    for number in 0..count {
        client.post(MAPS, &map(&format!("z-{number:03}"))).await.ok();
    }
}

#[tokio::test]
async fn a_list_shows_the_state_that_was_asked_for() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.settings.retention = Retention { events: 6, ..Retention::default() };
    })
    .await;
    let mut client = host.client().await;
    let first = client.post(MAPS, &map("a")).await.ok();
    let early = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    client.post(MAPS, &map("b")).await.ok();
    let newest = client.get(MAPS).await.ok()["metadata"]["resourceVersion"].clone();
    let newest: u64 = newest.as_str().unwrap().parse().unwrap();
    let both = ["a", "b"].as_slice();
    let exact = format!("resourceVersion={early}&resourceVersionMatch=Exact");
    let cases = [
        (String::new(), both),
        ("resourceVersion=0".to_owned(), both),
        (format!("resourceVersion={early}"), both),
        (format!("resourceVersion={early}&resourceVersionMatch=NotOlderThan"), both),
        (exact.clone(), &["a"]),
        (format!("resourceVersion={early}&limit=10"), &["a"]),
    ];
    for (query, expected) in cases {
        let list = client.get(&format!("{MAPS}?{query}")).await.ok();
        assert_eq!(names(&list), expected, "{query}");
    }
    for query in [
        format!("resourceVersion={}", newest + 100),
        format!("resourceVersion={}&resourceVersionMatch=Exact", newest + 100),
    ] {
        let too_new = client.get(&format!("{MAPS}?{query}")).await;
        too_new.refused(504, "Timeout");
        assert_eq!(too_new.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert_eq!(too_new.headers["retry-after"], "1");
    }
    for (query, code, reason) in [
        ("resourceVersion=x", 400, "BadRequest"),
        ("limit=x", 400, "BadRequest"),
        ("limit=-1", 400, "BadRequest"),
        ("resourceVersionMatch=Exact", 422, "Invalid"),
        ("resourceVersion=5&resourceVersionMatch=Roughly", 422, "Invalid"),
        ("sendInitialEvents=true", 422, "Invalid"),
    ] {
        client.get(&format!("{MAPS}?{query}")).await.refused(code, reason);
    }
    fill(&mut client, 10).await;
    client.get(&format!("{MAPS}?{exact}")).await.refused(410, "Expired");
    host.stop().await;
}

#[tokio::test]
async fn selectors_choose() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await.ok();
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        client.post(MAPS, &labelled(name, color)).await.ok();
    }
    client.post("/api/v1/namespaces/other/configmaps", &labelled("a", "red")).await.ok();
    let cases = [
        (MAPS, "labelSelector=color%3Dred", vec!["a", "c"]),
        (MAPS, "labelSelector=color+in+(blue)", vec!["b"]),
        (MAPS, "labelSelector=!color", vec![]),
        (MAPS, "fieldSelector=metadata.name%3Db", vec!["b"]),
        (MAPS, "fieldSelector=metadata.name%3Dnone", vec![]),
        (MAPS, "fieldSelector=metadata.name!%3Db", vec!["a", "c"]),
        (MAPS, "fieldSelector=metadata.name%3Db&labelSelector=color%3Dred", vec![]),
        ("/api/v1/configmaps", "fieldSelector=metadata.name%3Da", vec!["a", "a"]),
        ("/api/v1/configmaps", "fieldSelector=metadata.namespace%3Dother", vec!["a"]),
        ("/api/v1/namespaces", "fieldSelector=metadata.name%3Dother", vec!["other"]),
    ];
    for (place, query, expected) in cases {
        let list = client.get(&format!("{place}?{query}")).await.ok();
        assert_eq!(names(&list), expected, "{place} {query}");
    }
    let paged = client.get(&format!("{MAPS}?labelSelector=color%3Dred&limit=1")).await.ok();
    assert!(paged["metadata"].get("remainingItemCount").is_none());
    let token = paged["metadata"]["continue"].as_str().unwrap();
    let rest = format!("{MAPS}?labelSelector=color%3Dred&limit=1&continue={token}");
    assert_eq!(names(&client.get(&rest).await.ok()), ["c"]);

    let gone = client.delete(&format!("{MAPS}?labelSelector=color%3Dred")).await.ok();
    assert_eq!(gone["kind"], "ConfigMapList");
    assert_eq!(names(&gone), ["a", "c"]);
    assert_eq!(names(&client.get(MAPS).await.ok()), ["b"]);
    host.stop().await;
}

#[tokio::test]
async fn a_large_list_comes_whole_whatever_its_form() {
    let host = Host::start().await;
    let resources = host.running.resources();
    let kind = resources.registry().find("", "v1", "configmaps").unwrap();
    for number in 0..2500 {
        let object = map(&format!("m-{number:05}")).as_object().unwrap().clone();
        let options = mainstay_store::resources::WriteOptions::default();
        resources.create(kind, Some("default"), object, &options).await.unwrap();
    }
    let mut client = host.client().await;
    let all: BTreeSet<String> = (0..2500).map(|number| format!("m-{number:05}")).collect();
    for place in [MAPS, "/api/v1/configmaps"] {
        let list = client.get(place).await.ok();
        assert_eq!(names(&list).into_iter().collect::<BTreeSet<_>>(), all);
    }
    let some = client.get(&format!("{MAPS}?fieldSelector=metadata.name!%3Dm-00000")).await.ok();
    assert_eq!(names(&some).len(), 2499);
    let table = client.get_as(MAPS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.ok();
    assert_eq!(table["rows"].as_array().unwrap().len(), 2500);
    let page = client.get(&format!("{MAPS}?limit=2000")).await.ok();
    assert_eq!(page["metadata"]["remainingItemCount"], 500);
    host.stop().await;
}

#[tokio::test]
async fn a_node_finds_its_own_among_many_while_they_change() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.registry = Arc::new(mainstay_server::engines::registry().unwrap());
    })
    .await;
    let mut admin = host.client().await;
    const DEVICES: &str = "/apis/storage.mainstay.dev/v1/blockdevices";
    let device = |name: &str, node: &str| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "devPath": "/dev/x"}});
    // More than are looked at without an index.
    for number in 0..600 {
        let node = if number % 200 == 0 { "n1" } else { "n2" };
        admin.post(DEVICES, &device(&format!("d-{number:03}"), node)).await.ok();
    }
    let mut n1 = host.joined("n1").await;
    let own = format!("{DEVICES}?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(names(&n1.get(&own).await.ok()), ["d-000", "d-200", "d-400"]);
    n1.get(DEVICES).await.refused(403, "Forbidden");
    n1.get(&format!("{DEVICES}?fieldSelector=spec.nodeName%3Dn2")).await.refused(403, "Forbidden");
    admin.delete(&format!("{DEVICES}/d-200")).await;
    admin.post(DEVICES, &device("d-600", "n1")).await.ok();
    admin.post(DEVICES, &device("d-601", "n2")).await.ok();
    assert_eq!(names(&n1.get(&own).await.ok()), ["d-000", "d-400", "d-600"]);
    // Pages, of which the second is of the state of the first.
    let first = n1.get(&format!("{own}&limit=2")).await.ok();
    assert_eq!(names(&first), ["d-000", "d-400"]);
    admin.delete(&format!("{DEVICES}/d-600")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = n1.get(&format!("{own}&limit=2&continue={token}")).await.ok();
    assert_eq!(names(&second), ["d-600"]);
    let mut watch = n1.watch(&format!("{own}&watch=true")).await;
    assert_eq!(watch.brief().await, "ADDED d-000");
    assert_eq!(watch.brief().await, "ADDED d-400");
    admin.post(DEVICES, &device("d-602", "n2")).await.ok();
    admin.post(DEVICES, &device("d-603", "n1")).await.ok();
    assert_eq!(watch.brief().await, "ADDED d-603");
    host.stop().await;
}
