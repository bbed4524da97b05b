//! A client tells a refusal from a server that cannot answer just now.

use std::sync::Arc;

use http::Method;
use mainstay_client::{Address, Client};
use mainstay_store::cache::Retention;
use mainstay_store::kubernetes::KubernetesStore;
use mainstay_store::object::Body;
use mainstay_store::objects::{Change, Error, Objects, Write};
use mainstay_store::status::Reason;
use serde_json::json;

use crate::{Backend, Stage, access, block_on, create, key, update};

#[test]
fn a_no_is_typed_and_a_server_that_is_away_is_not_a_no() {
    block_on(async {
        let stage = Stage::new(Backend, Retention::default()).await;
        let apple = key("apples", "a", "x");
        let reason = |outcome: Result<_, Error>| match outcome {
            Err(Error::Refused { reason, message }) => Some((reason, message)),
            _ => None,
        };
        // Invalid: data of this kind is text.
        let Some(body) = json!({"data": {"value": 7}}).as_object().cloned() else { unreachable!() };
        let change = Change::Create(Body::new(&body));
        let wrong = Write { key: apple.clone(), change, fence: None };
        let (found, message) = reason(stage.store.write(wrong).await).unwrap();
        assert!(matches!(found, Reason::Invalid | Reason::BadRequest), "{found:?}: {message}");
        assert!(message.contains("data"), "it names the field: {message}");
        let made = stage.store.write(create(&apple, 1)).await.unwrap();
        let conflict = stage.store.write(update(&apple, made.revision(), 2)).await.unwrap();
        let stale = stage.store.write(update(&apple, made.revision(), 3)).await.unwrap_err();
        let Error::Conflict { expected, actual, .. } = stale else { panic!("{stale}") };
        assert_eq!((expected, actual), (made.revision(), conflict.revision()));
        // Forbidden: a viewer reads this kind and does not write it.
        let settings = key("configmaps", "a", "x");
        let made = stage.store.write(create(&settings, 1)).await.unwrap();
        let access = access(&stage.running, Some(viewer(&stage).await));
        let servers = vec![Address::parse(stage.running.url()).unwrap()];
        let client = Arc::new(Client::new(servers, access));
        let looking = KubernetesStore::new(
            client,
            stage.registry.clone(),
            stage.clock.clone(),
            "conformance",
        );
        assert!(looking.get(&settings).await.unwrap().is_some(), "reading is allowed");
        let (found, message) =
            reason(looking.write(update(&settings, made.revision(), 4)).await).unwrap();
        assert_eq!(found, Reason::Forbidden, "{message}");
        looking.close().await;
        let (handle, store) = (stage.running.handle(), stage.store.clone());
        handle.shut_down();
        stage.running.wait().await;
        let away = store.get(&apple).await.unwrap_err();
        assert!(matches!(away, Error::Unavailable { .. }), "{away}");
        store.close().await;
    });
}

/// A token of somebody who may only look.
async fn viewer(stage: &Stage) -> String {
    let servers = vec![Address::parse(stage.running.url()).unwrap()];
    let client = Client::new(servers, stage.access.clone());
    let wish = json!({"role": "viewer"}).to_string().into_bytes();
    let answer = client.call(Method::POST, "/mainstay/v1/tokens", Some(wish)).await.unwrap();
    let created: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    created["token"].as_str().unwrap().to_owned()
}
