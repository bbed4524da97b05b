//! Watches that are resumed after every event, on every backend.

use std::time::Duration;

use futures_util::future::join_all;
use mainstay_store::cache::Retention;
use mainstay_store::object::{Event, Key, Resource, Revision};
use mainstay_store::objects::{At, Objects, Scope};

use crate::conformance::{contents, entry, on_every_backend};
use crate::model::{Entry, Model};
use crate::{create, delete, key, update};

/// Reads `count` changes, each on a watch of its own that begins at the version of the last one.
/// At each version the collection must show exactly the changes seen so far.
async fn one_change_per_watch(
    store: &dyn Objects,
    scope: &Scope,
    start: Revision,
    count: usize,
) -> Vec<Entry> {
    let mut model = Model::default();
    let mut seen = Vec::new();
    let mut from = start;
    while seen.len() < count {
        let mut watch = store.watch(scope.clone(), from).await.unwrap();
        let next = async { watch.next().await.unwrap() };
        let events = tokio::time::timeout(Duration::from_secs(20), next).await;
        let events = events.unwrap_or_else(|_| panic!("only {} of {count} changes", seen.len()));
        let change = entry(&events[0]);
        from = change.revision;
        model.record(change.clone());
        seen.push(change);
        let then = store.collection(&scope.resource, At::Exactly(from)).await.unwrap();
        assert_eq!(contents(&then, None), model.of(&scope.resource, from), "at {from}");
    }
    seen
}

/// Makes, changes and removes an object; every other one is made again. Returns the events.
async fn live(store: &dyn Objects, key: Key, again: bool) -> Vec<Entry> {
    let mut changes = Vec::new();
    let mut record = |event: &Event| {
        changes.push(entry(event));
        event.revision()
    };
    let made = record(&store.write(create(&key, 0)).await.unwrap());
    let changed = record(&store.write(update(&key, made, 1)).await.unwrap());
    record(&store.write(delete(&key, changed)).await.unwrap());
    if again {
        record(&store.write(create(&key, 2)).await.unwrap());
    }
    changes
}

/// Many write at once, so that their changes share transactions where a store has such.
#[test]
fn a_watch_resumed_after_each_event_misses_none_and_repeats_none() {
    const OBJECTS: usize = 60;
    const CHANGES: usize = OBJECTS / 2 * 7;
    on_every_backend(Retention::default(), async |mut stage| {
        let scope = Scope::all(&Resource::new("", "apples"));
        let start = stage.store.collection(&scope.resource, At::Latest).await.unwrap().revision();
        let name = |n: usize| key("apples", "a", &format!("n{n}"));
        let lives = (0..OBJECTS).map(|n| live(&*stage.store, name(n), n % 2 == 0));
        let reading = one_change_per_watch(&*stage.store, &scope, start, CHANGES);
        let (changes, seen) = tokio::join!(join_all(lives), reading);
        let mut changes: Vec<Entry> = changes.into_iter().flatten().collect();
        changes.sort_by_key(|change| change.revision);
        assert_eq!(seen, changes, "watchers see the changes that writers made");
        stage.caught_up().await;
        let again = one_change_per_watch(&*stage.store, &scope, start, CHANGES).await;
        assert_eq!(again, seen, "the past stays as it was");

        let before = stage.store.collection(&scope.resource, At::Latest).await.unwrap();
        assert_eq!(before.len(), OBJECTS / 2);
        if stage.survives() {
            stage.reopen().await;
            let after = stage.store.collection(&scope.resource, At::Latest).await.unwrap();
            assert_eq!(contents(&after, None), contents(&before, None), "versions stay too");
        }
    });
}
