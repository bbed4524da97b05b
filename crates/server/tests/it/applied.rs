//! Server-side apply, protobuf bodies, reviews and garbage collection, over the wire.

use serde_json::{Value, json};

use crate::client::{Client, Host};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn apply(client: &mut Client, query: &str, data: Value) -> crate::client::Answer {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},
                      "data": data});
    let path = format!("{MAPS}/m?{query}");
    client.call("PATCH", &path, "application/apply-patch+yaml", body.to_string()).await
}

#[tokio::test]
async fn appliers_share_an_object_and_conflicts_name_the_field() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let refused = apply(&mut client, "", json!({"a": "1"})).await;
    let why = refused.refused(422, "Invalid");
    assert!(why.contains("fieldManager: Required value"), "{why}");

    let created = apply(&mut client, "fieldManager=one", json!({"a": "1", "b": "1"})).await;
    assert_eq!(created.code, 201);
    let version = created.ok()["metadata"]["resourceVersion"].clone();
    let again = apply(&mut client, "fieldManager=one", json!({"a": "1", "b": "1"})).await;
    assert_eq!(again.code, 200);
    assert_eq!(again.ok()["metadata"]["resourceVersion"], version, "nothing was written");

    let refused = apply(&mut client, "fieldManager=two", json!({"a": "2"})).await;
    let why = refused.refused(409, "Conflict");
    assert_eq!(why, "Apply failed with 1 conflict: conflict with \"one\": .data.a");
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "FieldManagerConflict");
    let forced = apply(&mut client, "fieldManager=two&force=true", json!({"a": "2"})).await.ok();
    assert_eq!(forced["data"], json!({"a": "2", "b": "1"}));
    let pruned = apply(&mut client, "fieldManager=one", json!({})).await.ok();
    assert_eq!(pruned["data"], json!({"a": "2"}), "what one no longer sends is gone");

    let path = format!("{MAPS}/m?force=true");
    let merged = client.merge(&path, &json!({"data": {"c": "3"}})).await;
    assert!(merged.refused(422, "Invalid").contains("force"));
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  d: \"4\"\n";
    let path = format!("{MAPS}/m?fieldManager=yaml");
    let applied = client.call("PATCH", &path, "application/apply-patch+yaml", yaml).await.ok();
    assert_eq!(applied["data"]["d"], "4");
}

#[tokio::test]
async fn configurations_that_cannot_be_meant_are_refused() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let cases = [
        (json!({"uid": "abc"}), 409, "no existing object was found"),
        (json!({"resourceVersion": "1"}), 400, "resourceVersion"),
        (json!({"managedFields": []}), 400, "metadata.managedFields"),
        (json!({"finalizers": ["a.b/c", "a.b/d", "a.b/c"]}), 422, "metadata.finalizers[2]"),
        (json!({"name": "other"}), 400, "does not match"),
        (json!({"labels": 5}), 400, "labels"),
    ];
    for (metadata, code, named) in cases {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        let path = format!("{MAPS}/m?fieldManager=one");
        let answer = client.call("PATCH", &path, "application/apply-patch+yaml", body.to_string());
        let answer = answer.await;
        let said = answer.body["message"].as_str().unwrap_or_default();
        assert!(answer.code == code && said.contains(named), "{metadata}: {} {said}", answer.code);
    }
    client.get(&format!("{MAPS}/m")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn updated_fields_belong_to_their_manager() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let object = json!({"metadata": {"name": "m"}, "data": {"a": "1"}});
    let request = client.request("POST", MAPS).header("user-agent", "tool/v1 (linux)");
    let request = request.header("content-type", "application/json");
    let body = http_body_util::Full::new(object.to_string().into());
    let created = client.send(request.body(body).unwrap()).await.ok();
    assert_eq!(created["metadata"]["managedFields"][0]["manager"], "tool");
    let refused = apply(&mut client, "fieldManager=one", json!({"a": "2"})).await;
    assert!(refused.refused(409, "Conflict").contains("conflict with \"tool\" using v1 at "));
}

#[tokio::test]
async fn self_reviews_name_the_user_and_its_rights() {
    let host = Host::start().await;
    let token = host.token(json!({"role": "viewer", "name": "eve"})).await;
    let mut viewer = host.client_with(Some(token)).await;
    let who = viewer.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await;
    let who = who.ok();
    assert_eq!(who["status"]["userInfo"]["groups"], json!(["viewer", "system:authenticated"]));
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (verb, allowed) in [("list", true), ("delete", false)] {
        let asked = json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "nodes"}}});
        assert_eq!(viewer.post(path, &asked).await.ok()["status"]["allowed"], allowed, "{verb}");
    }
    let rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = viewer.post(rules, &json!({"spec": {"namespace": "default"}})).await.ok();
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["get", "list", "watch"]));
    let paths = rules["status"]["nonResourceRules"].as_array().unwrap();
    let rucio: Vec<_> =
        paths.iter().filter(|it| it["nonResourceURLs"] == json!(["/rucio/*"])).collect();
    assert_eq!(rucio, [&json!({"verbs": ["get", "post"], "nonResourceURLs": ["/rucio/*"]})]);
    viewer.get(path).await.refused(405, "MethodNotAllowed");
    // The table has a list of pods and no watch.
    assert_eq!(viewer.get("/api/v1/pods").await.code, 200);
    assert_eq!(viewer.get("/api/v1/pods?watch=true").await.code, 403);
    assert_eq!(host.client().await.get("/api/v1/pods?watch=true").await.code, 405);
}

#[tokio::test]
async fn a_namespace_may_be_sent_as_protobuf() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let metadata = b"\x0a\x06\x0a\x04team";
    let kind = b"\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x08";
    let body = [b"k8s\0".as_slice(), kind, metadata].concat();
    let sent = client
        .call("POST", "/api/v1/namespaces", "application/vnd.kubernetes.protobuf", body)
        .await
        .ok();
    assert_eq!(sent["metadata"]["name"], "team");
}

#[tokio::test]
async fn dependents_go_with_their_owner_unless_orphaned() {
    let host = Host::start().await;
    let mut client = host.client().await;
    for (policy, stays) in [("Background", false), ("Foreground", false), ("Orphan", true)] {
        let owner = json!({"metadata": {"name": "owner"}});
        let uid = client.post(MAPS, &owner).await.ok()["metadata"]["uid"].clone();
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
                             "uid": uid, "blockOwnerDeletion": true}]);
        let child = json!({"metadata": {"name": "child", "ownerReferences": owners}});
        let child = client.post(MAPS, &child).await.ok();
        let version = child["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let path = format!("{MAPS}?watch=true&resourceVersion={version}");
        let mut events = host.client().await.watch(&path).await;
        let options = json!({"propagationPolicy": policy});
        client
            .call("DELETE", &format!("{MAPS}/owner"), "application/json", options.to_string())
            .await
            .ok();
        let mut gone = Vec::new();
        let wanted = if stays { 1 } else { 2 };
        while gone.len() < wanted {
            let event = events.next().await.unwrap();
            if event["type"] == "DELETED" {
                gone.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
            }
        }
        match policy {
            "Foreground" => assert_eq!(gone, ["child", "owner"]),
            "Background" => assert_eq!(gone, ["owner", "child"]),
            _ => {
                let child = client.get(&format!("{MAPS}/child")).await.ok();
                assert!(child["metadata"].get("ownerReferences").is_none());
            }
        }
    }
}

#[tokio::test]
async fn documents_are_tagged_and_large_answers_compressed() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let plain = "application/json";
    let mut tags = Vec::new();
    for (path, accept) in [
        ("/api", plain),
        ("/api", aggregated),
        ("/apis", plain),
        ("/apis", aggregated),
        ("/api/v1", plain),
        ("/apis/coordination.k8s.io", plain),
        ("/apis/coordination.k8s.io/v1", plain),
        ("/openapi/v3", plain),
        ("/openapi/v3/api/v1", plain),
        ("/openapi/v2", plain),
        ("/openapi/v2", "application/com.github.proto-openapi.spec.v2.v1+protobuf"),
    ] {
        let first = client.get_as(path, accept).await;
        assert_eq!(
            (first.code, first.headers["content-type"].as_bytes()),
            (200, accept.as_bytes())
        );
        let tag = first.headers["etag"].clone();
        let again = client.request("GET", path).header("if-none-match", &tag);
        let again = again.header("accept", accept).body(http_body_util::Full::default()).unwrap();
        let again = client.send(again).await;
        assert_eq!((again.code, again.bytes.len()), (304, 0), "{path} {accept}");
        assert_eq!(again.headers["etag"], tag);
        assert!(!tags.contains(&tag), "{path} {accept}: every document has a tag of its own");
        tags.push(tag);
    }

    let text = "compress me ".repeat(20_000);
    let object = json!({"metadata": {"name": "big"}, "data": {"text": text}});
    client.post(MAPS, &object).await.ok();
    let packed = client.request("GET", &format!("{MAPS}/big")).header("accept-encoding", "gzip");
    let packed = client.send(packed.body(http_body_util::Full::default()).unwrap()).await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    let plain = client.get(&format!("{MAPS}/big")).await;
    assert!(packed.bytes.len() * 10 < plain.bytes.len());
    let mut unpacked = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(&packed.bytes[..]);
    std::io::Read::read_to_end(&mut decoder, &mut unpacked).unwrap();
    assert_eq!(unpacked, plain.bytes, "the same object either way");
}
