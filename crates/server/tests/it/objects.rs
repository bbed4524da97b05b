//! One object at a time: create, read, replace, patch, delete, and how each is refused.

use http_body_util::Full;
use mainstay_store::Location;
use mainstay_store::clock::SystemClock;
use serde_json::json;

use crate::client::{Client, Host, MAPS, map, one};

const NODES: &str = "/api/v1/nodes";

/// The whole life of an object, on a store of either sort.
async fn life(client: &mut Client) {
    let created = client.post(MAPS, &map("a")).await;
    assert_eq!(created.code, 201);
    assert_eq!(created.headers["content-type"], "application/json");
    let created = created.body;
    let version = created["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert!(!created["metadata"]["uid"].as_str().unwrap().is_empty());
    assert_eq!(client.get(&one("a")).await.ok(), created);
    client.post(MAPS, &map("a")).await.refused(409, "AlreadyExists");

    let unchanged = client.put(&one("a"), &created).await.ok();
    assert_eq!(unchanged["metadata"]["resourceVersion"], version.as_str());
    let mut next = created.clone();
    next["data"]["key"] = "other".into();
    let replaced = client.put(&one("a"), &next).await.ok();
    assert_ne!(replaced["metadata"]["resourceVersion"], version.as_str());
    client.put(&one("a"), &next).await.refused(409, "Conflict");

    let merged = client.merge(&one("a"), &json!({"data": {"more": "x"}})).await.ok();
    assert_eq!(merged["data"], json!({"key": "other", "more": "x"}));
    let operations = json!([{"op": "test", "path": "/data/more", "value": "x"}, {"op": "remove", "path": "/data/more"}]);
    let kind = "application/json-patch+json";
    let patched = client.call("PATCH", &one("a"), kind, operations.to_string()).await;
    assert_eq!(patched.ok()["data"], json!({"key": "other"}));
    let again = client.call("PATCH", &one("a"), kind, operations.to_string()).await;
    again.refused(422, "Invalid");

    let deleted = client.delete(&one("a")).await;
    assert_eq!(deleted.code, 200);
    assert_eq!(deleted.body["status"], "Success");
    assert_eq!(deleted.body["details"]["name"], "a");
    assert_eq!(deleted.body["details"]["uid"], created["metadata"]["uid"]);
    let gone = client.get(&one("a")).await;
    assert_eq!(gone.refused(404, "NotFound"), "configmaps \"a\" not found");
    assert_eq!(gone.body["details"], json!({"name": "a", "kind": "configmaps"}));
    client.delete(&one("a")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn an_object_lives_on_every_store() {
    for sqlite in [false, true] {
        let host = Host::start_with(SystemClock::new(), |options| {
            if sqlite {
                options.store = Location::Sqlite(options.data_dir.join("objects.db"));
            }
        })
        .await;
        life(&mut host.client().await).await;
        host.stop().await;
    }
}

#[tokio::test]
async fn dry_runs_and_warnings_change_nothing_but_the_answer() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let dry = client.post(&format!("{MAPS}?dryRun=All"), &map("a")).await;
    assert_eq!(dry.code, 201);
    assert_eq!(dry.body["metadata"]["name"], "a");
    assert!(dry.body["metadata"].get("resourceVersion").is_none(), "it was never written");
    for form in ["Table", "PartialObjectMetadata"] {
        let accept = format!("application/json;as={form};g=meta.k8s.io;v=v1");
        let path = format!("{MAPS}?dryRun=All");
        let request = client.request("POST", &path).header("accept", accept);
        let request = request.header("content-type", "application/json");
        let dry = client.send(request.body(map("a").to_string().into()).unwrap()).await;
        assert_eq!((dry.code, &dry.body["kind"]), (201, &json!(form)));
        assert!(!dry.body.to_string().contains("resourceVersion"), "{}", dry.body);
    }
    client.get(&one("a")).await.refused(404, "NotFound");

    let mut odd = map("a");
    odd["nonsense"] = 1.into();
    let warned = client.post(MAPS, &odd).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"nonsense\\\"\"");
    let silent = client.put(&format!("{}?fieldValidation=Ignore", one("a")), &odd).await;
    assert!(silent.code == 200 && !silent.headers.contains_key("warning"));

    let dry = format!("{}?dryRun=All", one("a"));
    let merged = client.merge(&dry, &json!({"data": {"x": "y"}})).await;
    assert_eq!(merged.ok()["data"]["x"], "y");
    assert_eq!(client.get(&one("a")).await.ok()["data"], json!({"key": "value"}));
    let dry = client.delete(&format!("{}?dryRun=All", one("a"))).await;
    assert_eq!(dry.body["status"], "Success");
    assert_eq!(client.get(&one("a")).await.code, 200);
    host.stop().await;
}

#[tokio::test]
async fn yaml_bodies_and_generated_names_work() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let yaml = "metadata:\n  generateName: made-\ndata:\n  a: b\n";
    let created = client.call("POST", MAPS, "application/yaml", yaml).await.ok();
    let name = created["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("made-") && name.len() > 5, "{name}");
    host.stop().await;
}

#[tokio::test]
async fn status_is_written_on_its_own() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let node = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
    client.post(NODES, &node).await.ok();
    let status = "/api/v1/nodes/n/status";
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"unschedulable": false}});
    let patched = client.merge(status, &conditions).await.ok();
    assert_eq!(patched["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(patched["spec"]["unschedulable"], true);
    assert_eq!(patched["metadata"]["generation"], 1);
    assert_eq!(client.get(status).await.ok(), patched);
    let main = client
        .merge("/api/v1/nodes/n", &json!({"status": null, "spec": {"unschedulable": null}}))
        .await
        .ok();
    assert_eq!(main["status"], patched["status"]);
    assert_eq!(main["metadata"]["generation"], 2);
    let mut put = main.clone();
    put["status"]["conditions"] = json!([]);
    assert_eq!(client.put(status, &put).await.ok()["status"]["conditions"], json!([]));
    client.call("DELETE", status, "application/json", "").await.refused(405, "MethodNotAllowed");
    host.stop().await;
}

#[tokio::test]
async fn a_finalizer_holds_an_object_until_it_is_gone() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let mut held = map("held");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    client.post(MAPS, &held).await.ok();
    let marked = client.delete(&one("held")).await.ok();
    assert_eq!(marked["kind"], "ConfigMap");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(client.delete(&one("held")).await.ok(), marked);
    client.merge(&one("held"), &json!({"metadata": {"finalizers": null}})).await.ok();
    client.get(&one("held")).await.refused(404, "NotFound");
    host.stop().await;
}

#[tokio::test]
async fn one_of_two_who_replace_the_same_version_is_refused() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let created = client.post(MAPS, &map("a")).await.ok();
    let mut racers = Vec::new();
    for racer in 0..8 {
        let mut client = host.client().await;
        let mut next = created.clone();
        next["data"]["key"] = racer.to_string().into();
        racers.push(tokio::spawn(async move { client.put(&one("a"), &next).await.code }));
    }
    let mut codes = Vec::new();
    for racer in racers {
        codes.push(racer.await.unwrap());
    }
    codes.sort_unstable();
    assert_eq!(codes, [200, 409, 409, 409, 409, 409, 409, 409]);
    host.stop().await;
}

#[tokio::test]
async fn answers_come_in_the_form_that_was_asked_for() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let body = client.get_as(&one("a"), table).await.ok();
    assert_eq!(
        (body["kind"].as_str(), body["apiVersion"].as_str()),
        (Some("Table"), Some("meta.k8s.io/v1"))
    );
    assert_eq!(body["columnDefinitions"][0]["name"], "Name");
    assert_eq!(body["rows"][0]["cells"][0], "a");
    assert_eq!(body["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let body = client.get_as(&format!("{MAPS}?includeObject=None"), table).await.ok();
    assert!(body["rows"][0].get("object").is_none());
    let body = client.get_as(&format!("{MAPS}?includeObject=Object"), table).await.ok();
    assert_eq!(body["rows"][0]["object"]["data"]["key"], "value");
    client.get_as(&format!("{MAPS}?includeObject=Some"), table).await.refused(400, "BadRequest");
    let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let body = client.get_as(MAPS, metadata).await.ok();
    assert_eq!(body["kind"], "PartialObjectMetadataList");
    assert_eq!(body["items"][0]["kind"], "PartialObjectMetadata");
    assert!(body["items"][0].get("data").is_none());
    client.get_as(MAPS, "application/vnd.kubernetes.protobuf").await.refused(406, "NotAcceptable");
    client.get_as(MAPS, "text/html").await.refused(406, "NotAcceptable");
    assert_eq!(client.get_as(MAPS, "text/html,*/*;q=0.8").await.code, 200);
    let pretty = client.get(&format!("{}?pretty=true", one("a"))).await;
    assert!(pretty.bytes.starts_with(b"{\n  \""));
    host.stop().await;
}

#[tokio::test]
async fn every_verb_of_discovery_works() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let listed = client.get("/api/v1").await.ok();
    for kind in listed["resources"].as_array().unwrap() {
        let name = kind["name"].as_str().unwrap();
        if name.contains('/') {
            continue;
        }
        let verbs: Vec<&str> =
            kind["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect();
        let path = match kind["namespaced"] == true {
            true => format!("/api/v1/namespaces/default/{name}"),
            false => format!("/api/v1/{name}"),
        };
        let deleted = client.delete(&path).await;
        if name == "namespaces" {
            assert!(!verbs.contains(&"deletecollection"));
            deleted.refused(405, "MethodNotAllowed");
        } else {
            assert_eq!(verbs, all, "{name}");
            assert_eq!(deleted.ok()["kind"], format!("{}List", kind["kind"].as_str().unwrap()));
        }
        // None of them has a number of replicas.
        for part in ["scale", "eviction", "nonsense"] {
            let scale = client.get(&format!("{path}/x/{part}")).await;
            scale.refused(404, "NotFound");
            assert_eq!(scale.body["kind"], "Status");
        }
    }
    host.stop().await;
}

#[tokio::test]
async fn other_dialects_have_their_paths_and_unknown_ones_answer_a_status() {
    let route = axum::routing::get(async || "here");
    let host = Host::start_with(SystemClock::new(), |options| {
        options.routes = Some(axum::Router::new().route("/site", route));
    })
    .await;
    let mut client = host.client().await;
    assert_eq!(client.get("/site").await.bytes, "here");
    for path in ["/", "/version"] {
        assert_eq!(client.get(path).await.code, 200, "{path}");
    }
    for path in ["/nowhere", "/site/nowhere", "//api/v1", "/api/v1/namespaces/a/b/../../c/d"] {
        let refused = client.get(path).await;
        refused.refused(404, "NotFound");
        assert_eq!(refused.body["kind"], "Status", "{path}");
    }
    host.stop().await;
}

#[tokio::test]
async fn the_api_describes_itself() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    for (path, kind) in [("/api", "APIVersions"), ("/apis", "APIGroupList")] {
        assert_eq!(client.get(path).await.ok()["kind"], kind);
        let both = client.get_as(path, aggregated).await;
        assert_eq!(
            both.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        assert_eq!(both.ok()["kind"], "APIGroupDiscoveryList");
    }
    assert_eq!(client.get("/api/v1").await.ok()["kind"], "APIResourceList");
    assert_eq!(client.get("/apis/coordination.k8s.io").await.ok()["kind"], "APIGroup");
    assert_eq!(client.get("/apis/coordination.k8s.io/v1").await.ok()["kind"], "APIResourceList");
    let index = client.get("/openapi/v3").await.ok();
    let address = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert_eq!(client.get(&address).await.ok()["openapi"], "3.0.0");
    client.get("/openapi/v3/api/v9").await.refused(404, "NotFound");
    assert!(client.get("/").await.ok()["paths"].is_array());
    assert_eq!(client.get("/version").await.ok()["major"], "1");
    assert_eq!(client.get("/api/v1/pods").await.ok()["items"], json!([]));
    host.stop().await;
}

#[tokio::test]
async fn requests_of_a_head_and_of_several_on_one_connection_are_answered() {
    let host = Host::start().await;
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let head = client.request("HEAD", &one("a")).body(Full::default()).unwrap();
    let head = client.send(head).await;
    assert_eq!((head.code, head.bytes.len()), (200, 0));
    for _ in 0..50 {
        assert_eq!(client.get(&one("a")).await.code, 200);
    }
    host.stop().await;
}
