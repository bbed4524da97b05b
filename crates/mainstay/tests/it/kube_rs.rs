//! kube-rs: its watcher in every mode, optimistic locking, server-side apply, and an election.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Config};

use crate::process::TestServer;

/// A kube-rs client that is the administrator of `server`.
pub(crate) async fn client(server: &TestServer) -> Client {
    let file = Kubeconfig::read_from(server.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(file, &options).await.expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

fn configmap(name: &str, colour: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name},
        "data": {"colour": colour},
    }))
    .unwrap()
}

type Seen = BTreeMap<String, String>;

fn pair(object: &ConfigMap) -> (String, String) {
    let colour = object.data.as_ref().and_then(|data| data.get("colour").cloned());
    (object.metadata.name.clone().unwrap_or_default(), colour.unwrap_or_default())
}

/// Follows a watcher's events until what it has seen is `expected`.
async fn until<S>(events: &mut S, seen: &mut Seen, expected: &[(&str, &str)])
where
    S: Stream<Item = Result<watcher::Event<ConfigMap>, watcher::Error>> + Unpin,
{
    let expected: Seen =
        expected.iter().map(|(name, colour)| ((*name).to_owned(), (*colour).to_owned())).collect();
    let mut complete = false;
    loop {
        match events.next().await.expect("a watcher never ends").expect("no error") {
            watcher::Event::Init => seen.clear(),
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                let (name, colour) = pair(&object);
                seen.insert(name, colour);
            }
            watcher::Event::Delete(object) => {
                seen.remove(&pair(&object).0);
            }
            watcher::Event::InitDone => complete = true,
        }
        if *seen == expected && (complete || !expected.is_empty()) {
            return;
        }
    }
}

async fn a_watcher_sees_every_change(config: watcher::Config) {
    let server = TestServer::start();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    let post = PostParams::default();
    api.create(&post, &configmap("a", "blue")).await.unwrap();
    api.create(&post, &configmap("b", "blue")).await.unwrap();
    let mut events = pin!(watcher(api.clone(), config));
    let mut seen = Seen::new();
    until(&mut events, &mut seen, &[("a", "blue"), ("b", "blue")]).await;
    api.create(&post, &configmap("c", "red")).await.unwrap();
    until(&mut events, &mut seen, &[("a", "blue"), ("b", "blue"), ("c", "red")]).await;
    let patch = serde_json::json!({"data": {"colour": "green"}});
    api.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    until(&mut events, &mut seen, &[("a", "green"), ("b", "blue"), ("c", "red")]).await;
    api.delete("b", &DeleteParams::default()).await.unwrap();
    until(&mut events, &mut seen, &[("a", "green"), ("c", "red")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_watch_watcher_sees_every_change() {
    a_watcher_sees_every_change(watcher::Config::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_watcher_sees_every_change() {
    a_watcher_sees_every_change(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_replace_is_a_conflict() {
    let server = TestServer::start();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    let post = PostParams::default();
    let first = api.create(&post, &configmap("a", "blue")).await.unwrap();
    let mut second = first.clone();
    second.data = configmap("a", "green").data;
    api.replace("a", &post, &second).await.unwrap();
    let error = api.replace("a", &post, &first).await.unwrap_err();
    match error {
        kube::Error::Api(status) => {
            assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"), "{status:?}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(pair(&api.get("a").await.unwrap()).1, "green");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_survive_writes() {
    let server = TestServer::start();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    let post = PostParams::default();
    for number in 0..25 {
        api.create(&post, &configmap(&format!("c{number:02}"), "blue")).await.unwrap();
    }
    let mut names = Vec::new();
    let mut pages = 0;
    let mut params = ListParams::default().limit(10);
    loop {
        let page = api.list(&params).await.unwrap();
        assert!(page.items.len() <= 10);
        names.extend(page.items.iter().map(|object| pair(object).0));
        // Changes between pages must not show.
        let doomed = format!("c{:02}", 24 - pages);
        api.delete(&doomed, &DeleteParams::default()).await.unwrap();
        pages += 1;
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|number| format!("c{number:02}")).collect();
    assert_eq!(names, expected);
}

/// The refusal in an answer.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> Box<kube::core::Status> {
    match answer {
        Err(kube::Error::Api(status)) => status,
        other => panic!("this must be refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appliers_conflict_force_and_let_go() {
    let server = TestServer::start();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    let config = |data: serde_json::Value| serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data});
    let apply = async |params: &PatchParams, data| {
        api.patch("a", params, &Patch::Apply(config(data))).await
    };
    let (one, two) = (PatchParams::apply("one"), PatchParams::apply("two"));
    apply(&one, serde_json::json!({"colour": "blue", "size": "large"})).await.unwrap();
    let red = serde_json::json!({"colour": "red"});
    let refused = refusal(apply(&two, red.clone()).await);
    assert_eq!((refused.code, refused.reason.as_str()), (409, "Conflict"));
    let cause = &refused.details.as_ref().unwrap().causes[0];
    assert_eq!(cause.field, ".data.colour");
    assert!(cause.message.contains("\"one\""), "{cause:?}");
    let forced = apply(&two.clone().force(), red).await.unwrap();
    assert_eq!(pair(&forced).1, "red");
    let left = apply(&one, serde_json::json!({})).await.unwrap();
    let data: Vec<_> = left.data.unwrap().into_iter().collect();
    assert_eq!(data, [("colour".to_owned(), "red".to_owned())], "size went with its only holder");
    let again = apply(&one, serde_json::json!({})).await.unwrap();
    assert_eq!(again.metadata.resource_version, left.metadata.resource_version, "idempotent");
}

/// One try to take or keep a lease, as leader election does it: read, decide, write at that
/// version. Gives whether the lease is ours.
async fn try_to_lead(api: &Api<Lease>, me: &str, now: Timestamp) -> bool {
    let spec = |transitions: i32, acquired: Timestamp| {
        serde_json::json!({
            "holderIdentity": me, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
            "acquireTime": micros(acquired), "renewTime": micros(now),
        })
    };
    let make = |metadata: serde_json::Value, spec: serde_json::Value| -> Lease {
        serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let post = PostParams::default();
    let name = serde_json::json!({"name": "leader"});
    let Some(there) = api.get_opt("leader").await.unwrap() else {
        return api.create(&post, &make(name, spec(0, now))).await.is_ok();
    };
    let held = there.spec.unwrap_or_default();
    let mine = held.holder_identity.as_deref() == Some(me);
    let ends = held.renew_time.unwrap().0 + SignedDuration::from_secs(15);
    if !mine && now < ends {
        return false;
    }
    let transitions = held.lease_transitions.unwrap_or(0);
    let next = if mine {
        spec(transitions, held.acquire_time.unwrap().0)
    } else {
        spec(transitions + 1, now)
    };
    let metadata = serde_json::to_value(there.metadata).unwrap();
    match api.replace("leader", &post, &make(metadata, next)).await {
        Ok(_) => true,
        other => {
            assert_eq!(refusal(other).code, 409);
            false
        }
    }
}

fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_contenders_leads_at_a_time() {
    let server = TestServer::start();
    let api: Api<Lease> = Api::namespaced(client(&server).await, "default");
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let at = |seconds: i64| start + SignedDuration::from_secs(seconds);
    let contend = async |now: Timestamp, names: &[&'static str]| {
        let tries = names.iter().map(|name| {
            let (api, name) = (api.clone(), *name);
            tokio::spawn(async move { (name, try_to_lead(&api, name, now).await) })
        });
        let mut leaders = Vec::new();
        for one in tries.collect::<Vec<_>>() {
            let (name, leads) = one.await.unwrap();
            leaders.extend(leads.then_some(name));
        }
        leaders
    };
    let all = ["ada", "bob", "cid", "dan"];
    let first = contend(at(0), &all).await;
    assert_eq!(first.len(), 1, "exactly one takes a free lease: {first:?}");
    assert_eq!(contend(at(10), &all).await, first, "who holds it keeps it");
    let others: Vec<_> = all.into_iter().filter(|name| *name != first[0]).collect();
    assert_eq!(contend(at(20), &others).await, Vec::<&str>::new(), "it was renewed meanwhile");
    let second = contend(at(26), &others).await;
    assert_eq!(second.len(), 1, "exactly one takes a lease that ran out: {second:?}");
    assert_eq!(contend(at(27), &first).await, Vec::<&str>::new(), "the former leader stays out");
    let lease = api.get("leader").await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some(second[0]));
    assert_eq!(lease.lease_transitions, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_watcher_sees_every_change_and_no_data() {
    let server = TestServer::start();
    let client = client(&server).await;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let only_metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, "default");
    let post = PostParams::default();
    api.create(&post, &configmap("a", "blue")).await.unwrap();
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut events = pin!(watcher(only_metadata.clone(), config));
        let mut next = async || loop {
            match events.next().await.expect("a watcher never ends").expect("no error") {
                watcher::Event::Init | watcher::Event::InitDone => {}
                watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                    return ("applied", object);
                }
                watcher::Event::Delete(object) => return ("deleted", object),
            }
        };
        let name = |object: &PartialObjectMeta<ConfigMap>| object.metadata.name.clone().unwrap();
        let (what, object) = next().await;
        assert_eq!((what, name(&object)), ("applied", "a".to_owned()));
        let kind = object.types.as_ref().map(|types| types.kind.as_str());
        assert_eq!(kind, Some("PartialObjectMetadata"));
        api.create(&post, &configmap("b", "red")).await.unwrap();
        let (what, object) = next().await;
        assert_eq!((what, name(&object)), ("applied", "b".to_owned()));
        let patch = serde_json::json!({"metadata": {"labels": {"x": "y"}}});
        api.patch_metadata("b", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        let (what, object) = next().await;
        assert_eq!((what, object.metadata.labels.unwrap()["x"].as_str()), ("applied", "y"));
        api.delete("b", &DeleteParams::default()).await.unwrap();
        let (what, object) = next().await;
        assert_eq!((what, name(&object)), ("deleted", "b".to_owned()));
    }
}
