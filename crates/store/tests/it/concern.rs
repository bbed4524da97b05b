//! Watches that select one value of a field see exactly the changes that concern them, and look at no
//! others.

use mainstay_clock::ManualClock;
use mainstay_store::cache::{Retention, Watch};
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::{Action, Body, Event, Key, Resource, Revision};
use mainstay_store::objects::{Change, Objects, Scope, Write};
use mainstay_store::select::{FieldSelector, Selection};
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

use crate::words::block_on;

const FIELD: &str = "spec.nodeName";

fn disks() -> Resource {
    Resource::new("storage.dev", "disks")
}

fn store(retention: Retention) -> MemoryStore {
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    MemoryStore::new(0, retention, 64 << 10, clock)
}

fn of_node(node: &str) -> Scope {
    let mut fields = FieldSelector::default();
    fields.require(FIELD, node);
    let selection = Selection { fields, ..Selection::default() };
    Scope { selection, ..Scope::all(&disks()) }
}

fn named(name: &str) -> Scope {
    Scope { name: Some(name.to_owned()), ..Scope::all(&disks()) }
}

fn disk(node: &str) -> Body {
    Body::new(json!({"spec": {"nodeName": node}}).as_object().unwrap())
}

/// Makes, moves or removes a disk, whichever its state allows.
async fn put(store: &MemoryStore, name: &str, node: Option<&str>) {
    let key = Key::new(&disks(), None, name);
    let known = store.get(&key).await.unwrap().map(|record| record.revision());
    let change = match (known, node) {
        (None, None) => return,
        (None, Some(node)) => Change::Create(disk(node)),
        (Some(at), Some(node)) => Change::Update(at, disk(node)),
        (Some(at), None) => Change::Delete(at),
    };
    store.write(Write { key, change, fence: None }).await.unwrap();
}

type Seen = (Action, String, Revision);

fn seen(action: Action, event: &Event) -> Seen {
    (action, event.record.key().name().to_owned(), event.revision())
}

/// Takes the changes that are there.
fn take(watch: &mut Watch, into: &mut Vec<Seen>) {
    loop {
        let events = watch.ready().unwrap();
        if events.is_empty() {
            return;
        }
        into.extend(events.iter().map(|event| seen(event.action, event)));
    }
}

#[test]
fn a_change_costs_the_watches_that_it_concerns_and_no_others() {
    block_on(async {
        const NODES: usize = 1000;
        let store = store(Retention::default());
        let mut watches = Vec::new();
        for node in 0..NODES {
            let from = store.revision(&disks());
            watches.push(store.watch(of_node(&format!("n{node}")), from).await.unwrap());
        }
        for node in 0..NODES {
            put(&store, &format!("disk-{node}"), Some(&format!("n{node}"))).await;
        }
        for (node, watch) in watches.iter_mut().enumerate() {
            let events = watch.next().await.unwrap();
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].record.key().name(), format!("disk-{node}"));
            assert_eq!(watch.position(), store.revision(&disks()), "it has seen all there is");
        }
        let examined: u64 = watches.iter().map(Watch::examined).sum();
        assert_eq!(examined, NODES as u64, "each change was compared once");
    });
}

#[test]
fn a_quiet_watch_does_not_expire_because_others_change() {
    block_on(async {
        let store = store(Retention { events: 10, ..Retention::default() });
        let mut quiet = store.watch(of_node("n1"), store.revision(&disks())).await.unwrap();
        for round in 0..100 {
            put(&store, &format!("disk-{round}"), Some("n2")).await;
        }
        put(&store, "own", Some("n1")).await;
        assert_eq!(quiet.next().await.unwrap()[0].record.key().name(), "own");
        for round in 0..100 {
            put(&store, &format!("own-{round}"), Some("n1")).await;
        }
        assert!(quiet.ready().is_err(), "but it does if its own changes are forgotten");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_watch_by_value_sees_what_a_walk_through_all_changes_finds(
        steps in proptest::collection::vec((0_u8..6, 0_u8..4, any::<[bool; 4]>()), 1..120),
    ) {
        block_on(async {
            let store = store(Retention::default());
            let scopes = [of_node("n1"), of_node("n2"), of_node("n1"), named("disk-3")];
            let mut all = store.watch(Scope::all(&disks()), Revision::ZERO).await.unwrap();
            let mut watches = Vec::new();
            for scope in &scopes {
                watches.push((store.watch(scope.clone(), Revision::ZERO).await.unwrap(), Vec::new()));
            }
            for (name, node, polled) in steps {
                let node = ["n1", "n2", "n3"].get(usize::from(node)).copied();
                put(&store, &format!("disk-{name}"), node).await;
                for ((watch, seen), _) in watches.iter_mut().zip(polled).filter(|(_, polled)| *polled) {
                    take(watch, seen);
                }
            }
            let mut events = Vec::new();
            loop {
                let more: Vec<Arc<Event>> = all.ready().unwrap();
                if more.is_empty() {
                    break;
                }
                events.extend(more);
            }
            for ((watch, found), scope) in watches.iter_mut().zip(&scopes) {
                take(watch, found);
                let expected: Vec<Seen> = events
                    .iter()
                    .filter(|event| scope.contains(event.record.key()))
                    .filter_map(|event| Some(seen(scope.selection.action(event)?, event)))
                    .collect();
                assert_eq!(*found, expected);
            }
        });
    }
}
