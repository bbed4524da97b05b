//! kube-rs: its watcher in both modes, and optimistic locking.

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
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
