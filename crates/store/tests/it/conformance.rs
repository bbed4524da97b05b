//! The promises of `Objects`, checked against the model by random histories, and one by one where
//! a single story says more.

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::cache::{Collection, Retention, Watch};
use mainstay_store::object::{Action, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Error, Objects, Scope, Write};
use mainstay_store::status::Reason;
use proptest::prelude::*;
use serde_json::Value;

use crate::model::{Entry, Model};
use crate::{BACKENDS, Stage, block_on, create, delete, key, object, update, value};

/// Further ahead than any test gets, also when others write to the same etcd.
const FAR: u64 = 100_000_000;

/// How much history the random stores keep: little, so that it runs out.
const KEPT: usize = 12;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create {
        key: Key,
        value: u8,
    },
    /// `stale` updates from one revision too early.
    Update {
        key: Key,
        value: u8,
        stale: bool,
    },
    Delete {
        key: Key,
        stale: bool,
    },
    Get {
        key: Key,
    },
    List {
        resource: Resource,
        back: usize,
    },
    Page {
        resource: Resource,
        namespace: Option<String>,
        size: usize,
    },
    Watch {
        scope: Scope,
        back: usize,
    },
    Drain {
        watch: usize,
    },
    Compact {
        back: usize,
    },
    Reopen,
}

/// Two collections with one history.
pub(crate) fn both() -> Vec<Resource> {
    vec![Resource::new("", "apples"), Resource::new("fruit.dev", "pears")]
}

type Collections = Vec<Resource>;

fn resources(of: &Collections) -> impl Strategy<Value = Resource> + use<> {
    prop::sample::select(of.clone())
}

fn namespaces() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a".to_owned(), "a-b".to_owned(), "b".to_owned()])
}

fn keys(of: &Collections) -> impl Strategy<Value = Key> + use<> {
    let names = prop::sample::select(vec!["x", "y", "z"]);
    (resources(of), namespaces(), names).prop_map(|(r, ns, name)| Key::new(&r, Some(&ns), name))
}

fn scopes(of: &Collections) -> impl Strategy<Value = Scope> + use<> {
    let name = prop::option::of(prop::sample::select(vec!["x".to_owned(), "y".to_owned()]));
    (resources(of), prop::option::of(namespaces()), name)
        .prop_map(|(resource, namespace, name)| Scope { namespace, name, ..Scope::all(&resource) })
}

/// Anything that can be done to these collections, in any order.
pub(crate) fn steps(of: Collections) -> impl Strategy<Value = Vec<Step>> {
    let stale = || prop::bool::weighted(0.2);
    let step = prop_oneof![
        6 => (keys(&of), any::<u8>()).prop_map(|(key, value)| Step::Create { key, value }),
        6 => (keys(&of), any::<u8>(), stale())
            .prop_map(|(key, value, stale)| Step::Update { key, value, stale }),
        4 => (keys(&of), stale()).prop_map(|(key, stale)| Step::Delete { key, stale }),
        2 => keys(&of).prop_map(|key| Step::Get { key }),
        3 => (resources(&of), 0..20usize).prop_map(|(resource, back)| Step::List { resource, back }),
        2 => (resources(&of), prop::option::of(namespaces()), 1..4usize)
            .prop_map(|(resource, namespace, size)| Step::Page { resource, namespace, size }),
        3 => (scopes(&of), 0..20usize).prop_map(|(scope, back)| Step::Watch { scope, back }),
        5 => (0..4usize).prop_map(|watch| Step::Drain { watch }),
        1 => (0..20usize).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..80)
}

/// A watch, and how far the model says it must have come.
struct Watcher {
    scope: Scope,
    seen: Revision,
    watch: Watch,
}

struct Run {
    stage: Stage,
    model: Model,
    watchers: Vec<Watcher>,
}

impl Run {
    fn new(stage: Stage) -> Self {
        let mut run = Self { stage, model: Model::default(), watchers: Vec::new() };
        run.opened();
        run
    }

    /// A store that was just opened may know nothing of what was before.
    fn opened(&mut self) {
        let revision = self.stage.store.revision(&Resource::new("", "apples"));
        if !self.stage.survives() {
            self.model.forget_everything();
        }
        assert!(revision >= self.model.revision(), "the revision went back");
        if self.stage.forgets() {
            self.model.forget_history(revision);
        } else if self.stage.survives() {
            assert_eq!(revision, self.model.revision());
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Create { key, value } => {
                let outcome = self.write(create(&key, value), Action::Added, value.into()).await;
                if let Err(error) = outcome {
                    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
                    assert!(self.model.get(&key).is_some(), "{key} was refused but is not there");
                }
            }
            Step::Update { key, value, stale } => {
                let at = self.expected(&key, stale);
                let write = update(&key, at, value);
                let outcome = self.write(write, Action::Modified, value.into()).await;
                self.check_swap(&key, at, outcome);
            }
            Step::Delete { key, stale } => {
                let at = self.expected(&key, stale);
                let value = self.model.get(&key).map_or(Value::Null, |(value, _)| value);
                let outcome = self.write(delete(&key, at), Action::Deleted, value).await;
                self.check_swap(&key, at, outcome);
            }
            Step::Get { key } => {
                let found = self.stage.store.get(&key).await.unwrap();
                let found = found.map(|record| (value_of(&record), record.revision()));
                assert_eq!(found, self.model.get(&key));
            }
            Step::List { resource, back } => self.list(&resource, back).await,
            Step::Page { resource, namespace, size } => {
                self.page(&resource, namespace.as_deref(), size).await;
            }
            Step::Watch { scope, back } => self.watch(scope, back).await,
            Step::Drain { watch } => self.drain(watch).await,
            Step::Compact { .. } if !self.stage.compacts() => {}
            Step::Compact { back } => {
                let through = self.model.revision_back(back);
                self.stage.store.compact(through).await.unwrap();
                self.model.compact(through);
            }
            Step::Reopen => {
                self.watchers.clear();
                self.stage.reopen().await;
                self.opened();
            }
        }
    }

    fn expected(&self, key: &Key, stale: bool) -> Revision {
        let current = self.model.get(key).map_or(Revision(1), |(_, revision)| revision);
        if stale { Revision(current.0 - 1) } else { current }
    }

    async fn write(&mut self, write: Write, action: Action, value: Value) -> Result<(), Error> {
        let key = write.key.clone();
        let event = self.stage.store.write(write).await?;
        let revision = event.revision();
        let before = self.model.get(&key);
        let unchanged = before.as_ref().is_some_and(|(stored, _)| *stored == value);
        if action == Action::Modified && unchanged && self.stage.ignores_unchanged() {
            assert_eq!(before, Some((value, revision)), "nothing changed, so the revision stays");
            return Ok(());
        }
        assert_eq!(event.action, action);
        self.model.record(Entry { revision, action, key, value });
        Ok(())
    }

    fn check_swap(&self, key: &Key, at: Revision, outcome: Result<(), Error>) {
        let Err(error) = outcome else { return };
        match (&error, self.model.get(key)) {
            (Error::NotFound { .. }, None) => {}
            (Error::Conflict { expected, actual, .. }, Some((_, revision))) => {
                assert_eq!((*expected, *actual), (at, revision));
                assert_ne!(at, revision, "{key} was at the expected revision");
            }
            (_, state) => panic!("{key} is {state:?}, but the store says: {error}"),
        }
    }

    async fn list(&self, resource: &Resource, back: usize) {
        let revision = self.model.revision_back(back);
        match self.stage.store.collection(resource, At::Exactly(revision)).await {
            Ok(collection) => {
                assert!(!self.model.is_compacted(revision), "{revision} was compacted away");
                assert_eq!(collection.revision(), revision);
                assert_eq!(contents(&collection, None), self.model.of(resource, revision));
            }
            Err(Error::Expired { requested, oldest }) => {
                assert!(self.model.may_expire(revision, KEPT), "{revision} was still kept");
                assert!(requested < oldest);
            }
            Err(error) => panic!("{error}"),
        }
        let far = At::NotOlderThan(Revision(self.model.revision().0 + FAR));
        let outcome = self.stage.store.collection(resource, far).await;
        assert!(matches!(outcome, Err(Error::TooNew { .. })));
    }

    /// Pages together are the collection, whatever their size.
    async fn page(&self, resource: &Resource, namespace: Option<&str>, size: usize) {
        let collection = self.stage.store.collection(resource, At::Latest).await.unwrap();
        let mut paged = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page: Vec<_> = collection.range(namespace, after.as_deref()).take(size).collect();
            let Some(last) = page.last() else { break };
            after = Some(last.key().path().to_owned());
            paged.extend(page.iter().map(|record| record.key().clone()));
        }
        let of_namespace = |key: &Key| namespace.is_none() || key.namespace() == namespace;
        let all = self.model.of(resource, self.model.revision()).into_iter();
        let all: Vec<_> = all.map(|(key, _, _)| key).filter(of_namespace).collect();
        assert_eq!(paged, all);
    }

    async fn watch(&mut self, scope: Scope, back: usize) {
        let from = self.model.revision_back(back);
        match self.stage.store.watch(scope.clone(), from).await {
            Ok(watch) => {
                assert!(!self.model.is_compacted(from), "{from} was compacted away");
                self.watchers.push(Watcher { scope, seen: from, watch });
            }
            Err(Error::Expired { .. }) => assert!(self.model.may_expire(from, KEPT)),
            Err(error) => panic!("{error}"),
        }
        let far = Revision(self.model.revision().0 + FAR);
        let outcome = self.stage.store.watch(Scope::all(&Resource::new("", "apples")), far).await;
        assert!(matches!(outcome, Err(Error::TooNew { .. })));
    }

    async fn drain(&mut self, index: usize) {
        if self.watchers.is_empty() {
            return;
        }
        self.stage.caught_up().await;
        let index = index % self.watchers.len();
        let watcher = &mut self.watchers[index];
        let expected = self.model.since(&watcher.scope, watcher.seen);
        match watcher.watch.ready() {
            Ok(events) => {
                let events: Vec<_> = events.iter().map(|event| entry(event)).collect();
                assert_eq!(events, expected, "watching {:?} from {}", watcher.scope, watcher.seen);
                assert!(watcher.watch.position() >= self.model.revision());
                watcher.seen = self.model.revision();
            }
            Err(Error::Expired { .. }) => {
                assert!(self.model.may_expire(watcher.seen, KEPT), "cut off without need");
                self.watchers.remove(index);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn value_of(record: &Record) -> Value {
    let object = record.object();
    let version = object["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, record.revision().to_string(), "the object must carry its revision");
    value(record)
}

pub(crate) fn entry(event: &Event) -> Entry {
    let (revision, action) = (event.revision(), event.action);
    let line: Value = serde_json::from_slice(event.line()).unwrap();
    assert_eq!(line["object"], Value::Object(event.record.object()));
    assert_eq!(event.previous.is_none(), action == Action::Added);
    Entry { revision, action, key: event.record.key().clone(), value: value_of(&event.record) }
}

pub(crate) fn contents(
    collection: &Collection,
    namespace: Option<&str>,
) -> Vec<(Key, Value, Revision)> {
    let records = collection.range(namespace, None);
    records.map(|record| (record.key().clone(), value_of(record), record.revision())).collect()
}

/// How much history the stores of random tests keep.
pub(crate) fn short() -> Retention {
    Retention { events: KEPT, ..Retention::default() }
}

/// Does the steps on a store and on the model, and compares.
pub(crate) async fn replay(stage: Stage, steps: Vec<Step>, of: Vec<Resource>) {
    let mut run = Run::new(stage);
    for step in steps {
        run.step(step).await;
    }
    for index in 0..run.watchers.len() {
        if index < run.watchers.len() {
            run.drain(index).await;
        }
    }
    run.step(Step::Reopen).await;
    for (back, resource) in of.iter().enumerate() {
        run.list(resource, back * 3).await;
    }
}

/// Runs `story` on a fresh store of every backend.
pub(crate) fn on_every_backend<F: Future<Output = ()>>(
    retention: Retention,
    story: impl Fn(Stage) -> F,
) {
    for backend in BACKENDS {
        block_on(async { story(Stage::new(backend, retention).await).await });
    }
}

#[test]
fn a_slow_watcher_is_cut_off_and_never_blocks_a_writer() {
    let retention = Retention { events: 4, ..Retention::default() };
    on_every_backend(retention, async |stage| {
        let scope = Scope::all(&Resource::new("", "apples"));
        let mut slow = stage
            .store
            .watch(scope.clone(), stage.store.revision(&Resource::new("", "apples")))
            .await
            .unwrap();
        for n in 0..10 {
            stage.store.write(create(&key("apples", "a", &format!("n{n}")), n)).await.unwrap();
        }
        stage.caught_up().await;
        assert!(matches!(slow.next().await, Err(Error::Expired { .. })));
        let newest = stage.store.revision(&scope.resource);
        assert!(stage.store.watch(scope, newest).await.is_ok(), "a new start works");
    });
}

#[test]
fn a_quiet_collection_keeps_its_watchers_while_another_churns() {
    let retention = Retention { events: 4, ..Retention::default() };
    on_every_backend(retention, async |stage| {
        let pears = Resource::new("fruit.dev", "pears");
        let from = stage.store.revision(&pears);
        let mut watch = stage.store.watch(Scope::all(&pears), from).await.unwrap();
        for n in 0..20 {
            stage.store.write(create(&key("apples", "a", &format!("n{n}")), n)).await.unwrap();
        }
        let pear = Key::new(&pears, Some("a"), "one");
        let pear = stage.store.write(create(&pear, 1)).await.unwrap();
        let events = watch.next().await.unwrap();
        assert_eq!(
            events.iter().map(|event| event.revision()).collect::<Vec<_>>(),
            [pear.revision()]
        );
    });
}

#[test]
fn history_is_bounded_by_age_and_by_bytes() {
    let small = Retention { bytes: 4096, ..Retention::default() };
    let young = Retention { age: Duration::from_secs(60), ..Retention::default() };
    for (retention, pause) in [(small, Duration::ZERO), (young, Duration::from_secs(61))] {
        on_every_backend(retention, async |stage| {
            let apples = Resource::new("", "apples");
            let start = stage.store.revision(&apples);
            for n in 0..40 {
                let name = format!("n{n}");
                let big = "x".repeat(200);
                stage.store.write(create(&key("apples", "a", &name), big)).await.unwrap();
            }
            stage.clock.advance(pause);
            stage.store.write(create(&key("apples", "a", "last"), 0)).await.unwrap();
            stage.caught_up().await;
            let first = stage.store.watch(Scope::all(&apples), start).await;
            assert!(matches!(first, Err(Error::Expired { .. })));
            let all = stage.store.collection(&apples, At::Latest).await.unwrap();
            assert_eq!(all.len(), 41, "objects stay whatever is forgotten of their past");
        });
    }
}

#[test]
fn an_object_over_the_limit_is_refused_whole() {
    on_every_backend(Retention::default(), async |stage| {
        let apple = key("apples", "a", "big");
        let outcome = stage.store.write(create(&apple, "x".repeat(70_000))).await;
        let too_large = |error: &Error| match error {
            Error::TooLarge { .. } => true,
            Error::Refused { reason, .. } => *reason == Reason::RequestEntityTooLarge,
            _ => false,
        };
        assert!(outcome.is_err_and(|error| too_large(&error)));
        assert!(stage.store.get(&apple).await.unwrap().is_none());
    });
}

#[test]
fn a_closed_store_refuses_and_ends_its_watches() {
    on_every_backend(Retention::default(), async |stage| {
        let scope = Scope::all(&Resource::new("", "apples"));
        let mut watch = stage
            .store
            .watch(scope, stage.store.revision(&Resource::new("", "apples")))
            .await
            .unwrap();
        stage.store.write(create(&key("apples", "a", "x"), 1)).await.unwrap();
        stage.caught_up().await;
        stage.store.close().await;
        stage.store.close().await;
        assert_eq!(watch.next().await.unwrap().len(), 1, "what was committed is still delivered");
        assert!(matches!(watch.next().await, Err(Error::Closed)));
        let late = stage.store.write(create(&key("apples", "a", "y"), 1)).await;
        assert!(matches!(late, Err(Error::Closed)));
    });
}

/// Many writers swap one counter; each success must count exactly once, and watchers must see
/// every value in order. Without compare-and-swap inside the commit, updates would be lost.
#[test]
fn concurrent_swaps_lose_no_update_and_watchers_miss_none() {
    const WRITERS: i64 = 8;
    const EACH: i64 = 50;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    for backend in BACKENDS {
        runtime.block_on(async {
            let stage = Stage::new(backend, Retention::default()).await;
            let counter = key("apples", "a", "counter");
            let store = stage.store.clone();
            let start = store.write(create(&counter, 0)).await.unwrap().revision();
            let scope = Scope::all(counter.resource());
            let watching = tokio::spawn(see_in_order(store.clone(), scope, start, WRITERS * EACH));
            let writers: Vec<_> = (0..WRITERS)
                .map(|_| tokio::spawn(increments(store.clone(), counter.clone(), EACH)))
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
            watching.await.unwrap();
            let last = store.get(&counter).await.unwrap().unwrap();
            assert_eq!(value(&last), WRITERS * EACH);
        });
    }
}

async fn increments(store: Arc<dyn Objects>, counter: Key, times: i64) {
    let mut done = 0;
    while done < times {
        let record = store.get(&counter).await.unwrap().unwrap();
        let count = value(&record).as_i64().unwrap();
        match store.write(update(&counter, record.revision(), count + 1)).await {
            Ok(_) => done += 1,
            Err(Error::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn see_in_order(store: Arc<dyn Objects>, scope: Scope, from: Revision, last: i64) {
    let mut watch = store.watch(scope, from).await.unwrap();
    let mut seen = 0;
    while seen < last {
        for event in watch.next().await.unwrap() {
            seen += 1;
            assert_eq!(value(&event.record), seen, "each value once and in order");
        }
    }
}

#[test]
fn a_watch_may_begin_at_what_was_just_written() {
    on_every_backend(Retention::default(), async |stage| {
        let pear = key("apples", "a", "pear");
        let mut at = stage.store.write(create(&pear, 0)).await.unwrap().revision();
        for count in 1..=50 {
            at = stage.store.write(update(&pear, at, count)).await.unwrap().revision();
            stage.store.watch(Scope::all(pear.resource()), at).await.unwrap();
        }
    });
}

#[test]
fn written_objects_are_read_back_byte_for_byte() {
    on_every_backend(Retention::default(), async |mut stage| {
        let apple = key("apples", "a", "text");
        let text = "quotes \" and \\ and \u{1f980} and \n and \"resourceVersion\":\"7\"";
        let mut whole = object(text);
        whole.insert("metadata".into(), serde_json::json!({"resourceVersion": "999", "uid": "u"}));
        let change =
            mainstay_store::objects::Change::Create(mainstay_store::object::Body::new(&whole));
        let write = Write { key: apple.clone(), change, fence: None };
        let at = stage.store.write(write).await.unwrap().revision();
        if stage.survives() {
            stage.reopen().await;
        }
        let record = stage.store.get(&apple).await.unwrap().unwrap();
        let back = record.object();
        assert_eq!(value(&record), text);
        if stage.keeps_metadata() {
            assert_eq!(back["metadata"]["uid"], "u");
        }
        assert_eq!(back["metadata"]["resourceVersion"], at.to_string());
    });
}
