use parking_lot::Mutex;

use mainstay_clock::Clock;
use mainstay_store::builtin::Node;
use mainstay_store::resources::DeleteOptions;

use super::*;
use crate::testing::{Line, Remote, clock, config, resources, settle, store, until, world};

async fn events(resources: &Resources) -> Vec<Event> {
    resources.list_as(None).await.unwrap()
}

fn about(name: &str) -> ObjectReference {
    reference(&config(name, &[]))
}

/// A text and a count for each event, in the order of their names.
async fn written(resources: &Resources) -> Vec<(String, i32)> {
    let events = events(resources).await.into_iter();
    events.map(|event| (event.message.unwrap(), event.count.unwrap())).collect()
}

#[derive(Debug, Default)]
struct Dropped(Mutex<usize>);

impl Meter for Dropped {
    fn event_dropped(&self, _recorder: &str) {
        *self.0.lock() += 1;
    }
}

#[tokio::test]
async fn the_same_again_is_one_event_that_counts() {
    let (resources, clock) = world().await;
    let options = Options { instance: "node-1".to_owned(), ..Options::new("tester") };
    let recorder = Recorder::run(options, &resources);
    for _ in 0..3 {
        recorder.event(&about("a"), Severity::Warning, "Failed", "no room");
    }
    settle().await;
    clock.advance(Duration::from_secs(60));
    recorder.event(&about("a"), Severity::Warning, "Failed", "no room");
    recorder.event(&about("a"), Severity::Normal, "Failed", "no room");
    recorder.event(&about("b"), Severity::Warning, "Failed", "no room");
    recorder.shutdown().await;
    let events = events(&resources).await;
    assert_eq!(events.len(), 3);
    let first = events.iter().find(|event| event.count == Some(4)).unwrap();
    let start = clock.now() - Duration::from_secs(60);
    assert_eq!(first.first_timestamp, Some(Time::new(start)));
    assert_eq!(first.last_timestamp, Some(Time::new(clock.now())));
    assert_eq!(first.involved_object.name.as_deref(), Some("a"));
    assert_eq!(first.involved_object.api_version.as_deref(), Some("v1"));
    assert_eq!(first.kind.as_deref(), Some("Warning"));
    assert_eq!(first.source.as_ref().unwrap().host.as_deref(), Some("node-1"));
    assert!(first.metadata.name.starts_with("a-"));
}

#[tokio::test]
async fn events_about_objects_without_namespace_are_in_default() {
    let (resources, _) = world().await;
    let recorder = Recorder::run(Options::new("tester"), &resources);
    let mut node = Node::default();
    node.metadata.name = "n1".to_owned();
    recorder.event(&reference(&node), Severity::Normal, "Ready", "it is there");
    recorder.shutdown().await;
    let events = events(&resources).await;
    assert_eq!(events[0].metadata.namespace.as_deref(), Some("default"));
    assert_eq!(events[0].involved_object.kind.as_deref(), Some("Node"));
}

#[tokio::test]
async fn an_expired_event_is_created_again() {
    let (resources, _) = world().await;
    let recorder = Recorder::run(Options::new("tester"), &resources);
    recorder.event(&about("a"), Severity::Normal, "Done", "well");
    settle().await;
    let name = events(&resources).await.remove(0).metadata.name;
    let (delete, write) = (DeleteOptions::default(), WriteOptions::default());
    let deleted = resources.delete_as::<Event>(Some("default"), &name, &delete, &write);
    deleted.await.unwrap();
    recorder.event(&about("a"), Severity::Normal, "Done", "well");
    recorder.shutdown().await;
    assert_eq!(written(&resources).await, [("well".to_owned(), 1)]);
}

#[tokio::test]
async fn an_object_talked_about_too_much_is_written_about_less_often_and_loses_no_count() {
    let (resources, clock) = world().await;
    let dropped = Arc::new(Dropped::default());
    let per_object = Flow { interval: Duration::from_secs(300), burst: 2 };
    let options = Options { per_object, meter: dropped.clone(), ..Options::new("tester") };
    let recorder = Recorder::run(options, &resources);
    for _ in 0..5 {
        recorder.event(&about("a"), Severity::Normal, "Done", "well");
        settle().await;
    }
    recorder.event(&about("b"), Severity::Normal, "Done", "also");
    settle().await;
    let mut now = written(&resources).await;
    now.sort();
    assert_eq!(now, [("also".to_owned(), 1), ("well".to_owned(), 2)]);
    assert_eq!(*dropped.0.lock(), 3);
    clock.advance(Duration::from_secs(300));
    recorder.event(&about("a"), Severity::Normal, "Done", "well");
    recorder.shutdown().await;
    let mut now = written(&resources).await;
    now.sort();
    assert_eq!(now, [("also".to_owned(), 1), ("well".to_owned(), 6)]);
}

#[tokio::test]
async fn recording_never_waits_and_queued_events_are_written_when_the_store_is_back() {
    let clock = clock();
    let remote = Remote::new(store(clock.clone()));
    let resources = resources(remote.clone(), clock.clone());
    let namespace = serde_json::json!({"metadata": {"name": "default"}});
    let namespace: mainstay_store::builtin::Namespace = serde_json::from_value(namespace).unwrap();
    resources.create_as(&namespace, &WriteOptions::default()).await.unwrap();
    remote.set(Line::Down);
    let dropped = Arc::new(Dropped::default());
    let options = Options { waiting: 3, meter: dropped.clone(), ..Options::new("tester") };
    let recorder = Recorder::run(options, &resources);
    recorder.event(&about("a"), Severity::Normal, "Done", "first");
    until("it waits for the store", || clock.sleepers() == 1).await;
    for text in ["1", "2", "3", "4", "5"] {
        recorder.event(&about("a"), Severity::Normal, "Done", text);
    }
    assert_eq!(*dropped.0.lock(), 2);
    remote.set(Line::Up);
    clock.advance(Duration::from_millis(100));
    recorder.shutdown().await;
    recorder.shutdown().await;
    let mut now = written(&resources).await;
    now.sort();
    let texts: Vec<_> = now.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["1", "2", "3", "first"]);
    recorder.event(&about("a"), Severity::Normal, "Done", "late");
    assert_eq!(*dropped.0.lock(), 3, "after the end everything is dropped");
}

#[tokio::test]
async fn events_wait_for_their_pace_except_at_shutdown() {
    let (resources, clock) = world().await;
    let pace = Some(Flow { interval: Duration::from_millis(20), burst: 2 });
    let options = Options { pace, at_once: 1, ..Options::new("tester") };
    let recorder = Recorder::run(options, &resources);
    for name in ["a", "b", "c", "d", "e"] {
        recorder.event(&about(name), Severity::Normal, "Done", "well");
    }
    for written in 2..=4 {
        until("the next waits for its turn", || clock.sleepers() == 1).await;
        assert_eq!(events(&resources).await.len(), written);
        if written < 4 {
            clock.advance(Duration::from_millis(20));
            settle().await;
        }
    }
    recorder.shutdown().await;
    assert_eq!(events(&resources).await.len(), 5);
}

#[test]
fn the_least_recently_used_entry_is_evicted() {
    let mut recent = Recent::new(2);
    *recent.use_or(&"a", || 0) += 1;
    *recent.use_or(&"b", || 0) += 1;
    *recent.use_or(&"a", || 0) += 1;
    *recent.use_or(&"c", || 0) += 1;
    assert_eq!(*recent.use_or(&"a", || 0), 2);
    assert_eq!(*recent.use_or(&"b", || 0), 0, "b was forgotten");
    assert_eq!(recent.entries.len(), 2);
    assert_eq!(recent.order.len(), 2);
}

#[test]
fn long_messages_are_cut_between_characters() {
    let long = "ä".repeat(600);
    assert_eq!(shortened(&long).len(), 1024);
    assert_eq!(shortened(&format!("x{long}")).len(), 1023);
    assert_eq!(shortened("short"), "short");
}
