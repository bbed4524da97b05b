use mainstay_store::builtin::ConfigMap;
use mainstay_store::object::Body;
use mainstay_store::objects::{Change as Write, Write as Request};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::{Line, Remote, clock, put, remove, resources, settle, store, until, world};

fn pool(config: &ConfigMap) -> Option<String> {
    config.data.get("pool").cloned()
}

fn names(found: &[Arc<ConfigMap>]) -> Vec<&str> {
    found.iter().map(|config| config.metadata.name.as_str()).collect()
}

fn start(resources: &Resources) -> Reflector<ConfigMap> {
    Reflector::of(resources).index("data.pool", pool).start()
}

#[tokio::test]
async fn the_copy_is_read_once_and_then_followed() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    let copy = start(&resources);
    copy.wait_until_synced().await.unwrap();
    assert_eq!(names(&copy.list()), ["a"]);
    put(&resources, "b", &[("pool", "x")]).await;
    put(&resources, "a", &[("pool", "y")]).await;
    let revision = resources.objects().revision(&Resource::new("", "configmaps"));
    copy.wait_until_at(revision).await.unwrap();
    assert_eq!(copy.revision(), revision);
    assert_eq!(names(&copy.by_index("data.pool", "x")), ["b"]);
    assert_eq!(names(&copy.by_index("data.pool", "y")), ["a"]);
    assert_eq!(names(&copy.list_in("default")), ["a", "b"]);
    assert!(copy.list_in("defaul").is_empty());
    assert!(copy.find(Some("default"), "a").is_some());
    remove(&resources, "a").await;
    until("a is gone", || copy.len() == 1).await;
    assert!(copy.by_index("data.pool", "y").is_empty());
}

#[tokio::test]
async fn an_object_that_no_longer_matches_the_selectors_is_deleted() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    put(&resources, "b", &[("pool", "y")]).await;
    let copy = Reflector::<ConfigMap>::of(&resources).label("pool", "x").start();
    let (heard, _subscription) = listen(&copy);
    copy.wait_until_synced().await.unwrap();
    assert_eq!(names(&copy.list()), ["a"]);
    put(&resources, "b", &[("pool", "x")]).await;
    until("b has come", || names(&copy.list()) == ["a", "b"]).await;
    put(&resources, "a", &[("pool", "y")]).await;
    until("a has left", || names(&copy.list()) == ["b"]).await;
    assert_eq!(heard.lock().keys().collect::<Vec<_>>(), ["default/b"]);
}

#[tokio::test]
async fn selectors_and_the_namespace_must_all_hold() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    put(&resources, "b", &[("pool", "x")]).await;
    let of = || Reflector::<ConfigMap>::of(&resources).label("pool", "x");
    let both = of().field("metadata.name", "b").namespace("default").start();
    let elsewhere = of().field("metadata.name", "b").namespace("other").start();
    both.wait_until_synced().await.unwrap();
    elsewhere.wait_until_synced().await.unwrap();
    assert_eq!((names(&both.list()), elsewhere.len()), (vec!["b"], 0));
}

#[tokio::test]
#[should_panic(expected = "field label not supported: data.pool")]
async fn selecting_by_an_undeclared_field_is_a_mistake() {
    let (resources, _) = world().await;
    let _ = Reflector::<ConfigMap>::of(&resources).field("data.pool", "x");
}

#[tokio::test]
#[should_panic(expected = "has no index \"data.pol\"")]
async fn an_undeclared_index_is_a_mistake_and_not_an_empty_answer() {
    let (resources, _) = world().await;
    let _ = start(&resources).by_index("data.pol", "x");
}

#[tokio::test]
async fn it_waits_out_a_store_that_is_away() {
    let clock = clock();
    let remote = Remote::new(store(clock.clone()));
    remote.set(Line::Down);
    let copy = start(&resources(remote.clone(), clock.clone()));
    for _ in 0..5 {
        until("it backs off", || clock.sleepers() == 1).await;
        clock.advance(Duration::from_secs(10));
    }
    assert!(!copy.progress.borrow().synced);
    remote.set(Line::Up);
    copy.wait_until_synced().await.unwrap();
}

#[tokio::test]
async fn an_object_that_cannot_be_read_keeps_its_last_state() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    let copy = start(&resources);
    copy.wait_until_synced().await.unwrap();
    let key = Key::new(&Resource::new("", "configmaps"), Some("default"), "a");
    let record = resources.objects().get(&key).await.unwrap().unwrap();
    let mut object = record.object();
    object.insert("data".to_owned(), json!(["not", "a", "map"]));
    let change = Write::Update(record.revision(), Body::new(&object));
    let (fence, objects) = (None, resources.objects());
    let written = objects.write(Request { key, change, fence }).await.unwrap();
    copy.wait_until_at(written.revision()).await.unwrap();
    assert_eq!(names(&copy.by_index("data.pool", "x")), ["a"]);
}

#[tokio::test]
async fn it_ends_when_its_store_closes_or_it_is_stopped() {
    let (resources, _) = world().await;
    let (closed, stopped) = (start(&resources), start(&resources));
    closed.wait_until_synced().await.unwrap();
    stopped.shutdown().await;
    stopped.shutdown().await;
    let far = Revision(1_000_000);
    assert_eq!(stopped.wait_until_at(far).await, Err(Error::Stopped));
    resources.objects().close().await;
    assert_eq!(closed.wait_until_at(far).await, Err(Error::Stopped));
    closed.shutdown().await;
}

#[tokio::test]
async fn a_panicking_subscriber_or_index_affects_no_other() {
    let (resources, _) = world().await;
    let fragile = |config: &ConfigMap| {
        assert_ne!(config.metadata.name, "bad");
        ["all"]
    };
    let copy: Reflector<ConfigMap> = Reflector::of(&resources).index("all", fragile).start();
    let _panics = copy.subscribe(|_| panic!("as asked"));
    put(&resources, "bad", &[]).await;
    put(&resources, "good", &[]).await;
    until("both are there", || copy.len() == 2).await;
    assert_eq!(names(&copy.by_index("all", "all")), ["good"]);
}

/// The state that a subscriber builds from changes.
type Heard = Arc<Mutex<BTreeMap<String, Arc<ConfigMap>>>>;

fn listen(copy: &Reflector<ConfigMap>) -> (Heard, Subscription) {
    let heard = Heard::default();
    let ear = heard.clone();
    let subscription = copy.subscribe(move |change| {
        let mut heard = ear.lock();
        let name = change.key.path().to_owned();
        let known = match &change.new {
            Some(new) => heard.insert(name, new.clone()),
            None => heard.remove(&name),
        };
        assert_eq!(known, change.old, "every change follows on the last");
    });
    (heard, subscription)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u8, u8),
    Remove(u8),
    /// Forgets history: a reflector that is behind must list again.
    Compact,
    /// Lets the reflector run.
    Settle,
    Subscribe,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0_u8..5, 0_u8..3).prop_map(|(name, pool)| Step::Put(name, pool)),
        3 => (0_u8..5).prop_map(Step::Remove),
        2 => Just(Step::Compact),
        2 => Just(Step::Settle),
        1 => Just(Step::Subscribe),
    ];
    prop::collection::vec(step, 1..60)
}

async fn check(
    resources: &Resources,
    copy: &Reflector<ConfigMap>,
    selecting: &Reflector<ConfigMap>,
    ears: &[(Heard, Subscription)],
) {
    settle().await;
    let stored: Vec<ConfigMap> = resources.list_as(None).await.unwrap();
    let matching: Vec<_> = stored.iter().filter(|c| pool(c).as_deref() == Some("1")).collect();
    let selected = selecting.list();
    assert_eq!(selected.iter().map(|c| &**c).collect::<Vec<_>>(), matching, "selectors are exact");
    let copied: Vec<ConfigMap> = copy.list().iter().map(|held| ConfigMap::clone(held)).collect();
    assert_eq!(copied, stored, "the copy is the collection");
    for value in 0..3 {
        let value = value.to_string();
        let found = copy.by_index("data.pool", &value);
        let expected = stored.iter().filter(|config| pool(config).as_ref() == Some(&value));
        let expected: Vec<_> = expected.map(|config| config.metadata.name.as_str()).collect();
        assert_eq!(names(&found), expected, "indexes are exact");
    }
    for (heard, _) in ears {
        let heard: Vec<_> = heard.lock().values().map(|c| ConfigMap::clone(c)).collect();
        assert_eq!(heard, stored, "who listens knows everything");
    }
}

async fn live(steps: Vec<Step>) {
    let (resources, _) = world().await;
    let copy = start(&resources);
    let selecting = Reflector::<ConfigMap>::of(&resources).label("pool", "1").start();
    let mut ears = vec![listen(&copy)];
    for step in steps {
        match step {
            Step::Put(name, pool) => {
                put(&resources, &format!("c{name}"), &[("pool", &pool.to_string())]).await;
            }
            Step::Remove(name) => remove(&resources, &format!("c{name}")).await,
            Step::Compact => {
                let objects = resources.objects();
                let now = objects.revision(&Resource::new("", "configmaps"));
                objects.compact(now).await.unwrap();
            }
            Step::Settle => check(&resources, &copy, &selecting, &ears).await,
            Step::Subscribe => ears.push(listen(&copy)),
        }
    }
    check(&resources, &copy, &selecting, &ears).await;
    copy.shutdown().await;
    selecting.shutdown().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_copy_equals_the_store_after_any_history(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(live(steps));
    }
}

#[derive(Debug, Default)]
struct Relists(Mutex<u32>);

impl Meter for Relists {
    fn relisted(&self, _collection: &str) {
        *self.0.lock() += 1;
    }
}

#[tokio::test]
async fn history_that_is_gone_is_made_up_for_by_listing_again() {
    let (resources, _) = world().await;
    let relists = Arc::new(Relists::default());
    let copy: Reflector<ConfigMap> = Reflector::of(&resources).meter(relists.clone()).start();
    put(&resources, "a", &[]).await;
    until("a is there", || copy.len() == 1).await;
    let (heard, _subscription) = listen(&copy);
    // The reflector does not run between these: nothing here waits.
    put(&resources, "b", &[]).await;
    remove(&resources, "a").await;
    let objects = resources.objects();
    let now = objects.revision(&Resource::new("", "configmaps"));
    objects.compact(now).await.unwrap();
    until("b is there", || names(&copy.list()) == ["b"]).await;
    assert_eq!(*relists.0.lock(), 1);
    let heard: Vec<_> = heard.lock().keys().cloned().collect();
    assert_eq!(heard, ["default/b"]);
}
