//! Objects by kind over a server elsewhere: what is handed over as it is ends as it should, also
//! where what is at hand is old.

use std::sync::Arc;
use std::time::Duration;

use mainstay_client::{Address, Client};
use mainstay_controller::Reflector;
use mainstay_store::builtin::Node;
use mainstay_store::kubernetes::KubernetesStore;
use mainstay_store::objects::Objects;
use mainstay_store::resources::{
    CountingIdentities, DeleteOptions, Effect, Reason, Resources, WriteOptions,
};

use super::{Apple, Backend, Stage, open};
use crate::words::block_on;

/// A client's objects by kind. It follows nothing: what it knows is what it was last told.
async fn blind(stage: &Stage) -> Resources {
    let Stage { running, access, registry, clock, .. } = stage;
    let address = Address::parse(running.url()).unwrap();
    let client = Client::new(vec![address], access.clone());
    let store = KubernetesStore::new(client.into(), registry.clone(), clock.clone(), "blind");
    resources(stage, Arc::new(store))
}

fn resources(stage: &Stage, store: Arc<dyn Objects>) -> Resources {
    let identities = Arc::new(CountingIdentities::default());
    Resources::new(store, stage.registry.clone(), stage.clock.clone(), identities)
}

fn apple(name: &str) -> Apple {
    let mut apple = Apple::default();
    apple.metadata.name = name.to_owned();
    apple.metadata.namespace = Some("a".to_owned());
    apple
}

fn set(apple: &mut Apple, key: &str, value: &str) {
    apple.data.insert(key.to_owned(), value.to_owned());
}

#[test]
fn a_stale_copy_is_tried_first_and_the_server_decides() {
    block_on(async {
        let stage = Stage::new(Backend, crate::conformance::short()).await;
        let (there, options) = (stage.running.resources(), WriteOptions::default());
        for follows in [false, true] {
            let here = if follows {
                resources(&stage, open_store(&stage).await)
            } else {
                blind(&stage).await
            };
            let name = if follows { "followed" } else { "blind" };
            here.create_as(&apple(name), &options).await.unwrap();
            // Somebody else is faster, and this client was not told.
            let change = |apple: &mut Apple| set(apple, "there", "1");
            there.modify_as(Some("a"), name, None, &options, change).await.unwrap();
            let seen = |apple: &mut Apple| {
                if apple.data.contains_key("there") {
                    set(apple, "here", "2");
                }
            };
            let (now, effect) =
                here.modify_as(Some("a"), name, None, &options, seen).await.unwrap();
            assert_eq!(effect, Effect::Changed, "{name}");
            assert_eq!((now.data["there"].as_str(), now.data["here"].as_str()), ("1", "2"));
            let (_, effect) = here.modify_as(Some("a"), name, None, &options, seen).await.unwrap();
            assert_eq!(effect, Effect::Unchanged, "{name}");
            // An object that the server deleted is gone, though the copy still has it.
            let delete = DeleteOptions::default();
            there.delete_as::<Apple>(Some("a"), name, &delete, &options).await.unwrap();
            let gone = here.modify_as(Some("a"), name, None, &options, seen).await.unwrap_err();
            assert_eq!(gone.reason, Reason::NotFound, "{name}");
        }
    });
}

async fn open_store(stage: &Stage) -> Arc<dyn Objects> {
    open(&stage.running, &stage.access, &stage.registry, stage.retention, &stage.clock).await
}

#[test]
fn a_version_that_is_not_the_newest_is_refused() {
    block_on(async {
        let stage = Stage::new(Backend, crate::conformance::short()).await;
        let (here, options) = (blind(&stage).await, WriteOptions::default());
        let first = here.create_as(&apple("x"), &options).await.unwrap();
        assert!(!first.metadata.uid.is_empty());
        let mut second = first.clone();
        set(&mut second, "k", "v");
        let (second, effect) = here.replace_as(&second, &options).await.unwrap();
        assert_eq!((second.data["k"].as_str(), effect), ("v", Effect::Changed));
        assert_eq!(here.replace_as(&second, &options).await.unwrap().1, Effect::Unchanged);
        let mut stale = first;
        set(&mut stale, "k", "w");
        let refused = here.replace_as(&stale, &options).await.unwrap_err();
        assert!(refused.is_conflict(), "{refused}");
        // Without a version whatever is there is replaced.
        stale.metadata.resource_version.clear();
        let (now, _) = here.replace_as(&stale, &options).await.unwrap();
        assert_eq!(now.data["k"], "w");
    });
}

#[test]
fn names_are_generated_and_refusals_have_reasons() {
    block_on(async {
        let stage = Stage::new(Backend, crate::conformance::short()).await;
        let (here, options) = (blind(&stage).await, WriteOptions::default());
        let mut nameless = apple("");
        nameless.metadata.generate_name = "apple-".to_owned();
        let made = here.create_as(&nameless, &options).await.unwrap();
        assert!(made.metadata.name.len() > "apple-".len(), "{:?}", made.metadata.name);
        let found = here.get_as::<Apple>(Some("a"), &made.metadata.name).await.unwrap();
        assert_eq!(found.unwrap().metadata.uid, made.metadata.uid);
        let again = here.create_as(&apple(&made.metadata.name), &options).await.unwrap_err();
        assert_eq!(again.reason, Reason::AlreadyExists);
        let mut nowhere = apple("x");
        nowhere.metadata.namespace = Some("nowhere".to_owned());
        let refused = here.create_as(&nowhere, &options).await.unwrap_err();
        assert_eq!(refused.reason, Reason::NotFound);
        let refused = here.create_as(&apple("Not A Name"), &options).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Invalid);
        assert!(refused.message.contains("Not A Name"), "{refused}");
    });
}

#[test]
fn a_status_write_changes_the_status_and_the_last_finalizer_removes() {
    block_on(async {
        let stage = Stage::new(Backend, crate::conformance::short()).await;
        let (there, options) = (stage.running.resources(), WriteOptions::default());
        let here = resources(&stage, open_store(&stage).await);
        let mut node = Node::default();
        node.metadata.name = "n".to_owned();
        let mut node = here.create_as(&node, &options).await.unwrap();
        node.status.capacity.insert("cpu".to_owned(), "2".parse().unwrap());
        node.spec.unschedulable = Some(true);
        let (node, effect) = here.replace_status_as(&node, &options).await.unwrap();
        assert_eq!((effect, node.status.capacity.len()), (Effect::Changed, 1));
        assert_eq!(node.spec.unschedulable, None, "only the status is meant");

        let mut held = apple("held");
        held.metadata.finalizers = vec!["fruit.dev/test".to_owned()];
        here.create_as(&held, &options).await.unwrap();
        let delete = DeleteOptions::default();
        there.delete_as::<Apple>(Some("a"), "held", &delete, &options).await.unwrap();
        let free = |apple: &mut Apple| apple.metadata.finalizers.clear();
        let (_, effect) = here.modify_as(Some("a"), "held", None, &options, free).await.unwrap();
        assert_eq!(effect, Effect::Removed);
        assert!(here.list_as::<Apple>(Some("a")).await.unwrap().is_empty(), "the copy shows it");
        assert!(there.get_as::<Apple>(Some("a"), "held").await.unwrap().is_none());
    });
}

/// Waits until a copy shows what is asked for.
async fn until(copy: &Reflector<Apple>, there: impl Fn() -> bool) {
    let changed = Arc::new(tokio::sync::Notify::new());
    let bell = changed.clone();
    let _subscription = copy.subscribe(move |_| bell.notify_one());
    let wait = async {
        while !there() {
            changed.notified().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
}

#[test]
fn a_reflector_with_selectors_is_sent_nothing_else() {
    block_on(async {
        let stage = Stage::new(Backend, crate::conformance::short()).await;
        let (there, options) = (stage.running.resources(), WriteOptions::default());
        for (namespace, name) in [("a", "red"), ("a", "green"), ("b", "red")] {
            let mut apple = apple(name);
            apple.metadata.namespace = Some(namespace.to_owned());
            there.create_as(&apple, &options).await.unwrap();
        }
        let Stage { running, access, registry, clock, .. } = &stage;
        let address = Address::parse(running.url()).unwrap();
        let client = Client::new(vec![address], access.clone());
        let store = KubernetesStore::new(client.into(), registry.clone(), clock.clone(), "few");
        let here = resources(&stage, Arc::new(store));
        let few =
            Reflector::<Apple>::of(&here).namespace("a").field("metadata.name", "red").start();
        let ripe = Reflector::<Apple>::of(&here).label("ripe", "yes").start();
        few.wait_until_synced().await.unwrap();
        ripe.wait_until_synced().await.unwrap();
        assert_eq!((few.len(), ripe.len()), (1, 0));
        // A snapshot of the client's store holds everything that the server has sent it.
        let sent = async || {
            let snapshot = here.objects().snapshot().await.unwrap();
            let records = snapshot.collections.iter().flat_map(|(_, held)| held.range(None, None));
            records.map(|record| record.key().path().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(sent().await, ["a/red"]);
        let ripen = |ripe: &'static str| {
            move |apple: &mut Apple| {
                apple.metadata.labels.insert("ripe".to_owned(), ripe.to_owned());
            }
        };
        there.create_as(&apple("blue"), &options).await.unwrap();
        there.modify_as(Some("b"), "red", None, &options, ripen("yes")).await.unwrap();
        there.modify_as(Some("a"), "red", None, &options, ripen("no")).await.unwrap();
        until(&few, || few.list().iter().any(|a| a.metadata.labels.contains_key("ripe"))).await;
        until(&ripe, || ripe.len() == 1).await;
        assert_eq!(sent().await, ["a/red", "b/red"], "one for each reflector, of four");
        there.modify_as(Some("b"), "red", None, &options, ripen("no")).await.unwrap();
        until(&ripe, || ripe.is_empty()).await;
        assert_eq!(sent().await, ["a/red"]);
        let delete = DeleteOptions::default();
        here.delete_as::<Apple>(Some("a"), "red", &delete, &options).await.unwrap();
        until(&few, || few.is_empty()).await;
        here.objects().close().await;
    });
}
