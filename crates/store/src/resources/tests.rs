use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::builtin::{self, ConfigMap, Namespace, Node};
use crate::cache::Retention;
use crate::memory::MemoryStore;
use crate::object::Action;
use mainstay_clock::ManualClock;

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn options() -> WriteOptions {
    WriteOptions { validation: Validation::Strict, ..WriteOptions::default() }
}

async fn house() -> Resources {
    let clock = ManualClock::new("2026-03-01T12:00:00Z".parse().unwrap());
    let registry = Arc::new(Registry::new(builtin::kinds()).unwrap());
    let objects = MemoryStore::new(0, Retention::default(), 3 << 20, clock.clone());
    let identities = Arc::new(CountingIdentities::default());
    let resources = Resources::new(Arc::new(objects), registry, clock, identities);
    let default = json!({"metadata": {"name": "default"}});
    let kind = resources.kind_of::<Namespace>().unwrap().clone();
    resources.create(&kind, None, map(default), &options()).await.unwrap();
    resources
}

fn config(name: &str, value: &str) -> Map<String, Value> {
    map(json!({"metadata": {"name": name}, "data": {"x": value}}))
}

#[tokio::test]
async fn objects_are_created_replaced_and_deleted() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let created = house.create(&kind, Some("default"), config("a", "1"), &options()).await.unwrap();
    assert_eq!(created.effect, Effect::Created);
    let error = house.create(&kind, Some("default"), config("a", "1"), &options()).await;
    assert_eq!(error.unwrap_err().message, "configmaps \"a\" already exists");
    let key = created.record.key();
    let same = house.replace(&kind, key, config("a", "1"), None, &options()).await.unwrap();
    assert_eq!(
        (same.effect, same.record.revision()),
        (Effect::Unchanged, created.record.revision())
    );
    let changed = house.replace(&kind, key, config("a", "2"), None, &options()).await.unwrap();
    assert_eq!(changed.effect, Effect::Changed);
    assert!(changed.record.revision() > created.record.revision());
    let mut stale = created.record.object();
    stale.insert("data".to_owned(), json!({"x": "3"}));
    let error = house.replace(&kind, key, stale, None, &options()).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let deleted = house.delete(&kind, key, &DeleteOptions::default(), &options()).await.unwrap();
    assert!(matches!(deleted, Deleted::Removed(_)));
    let error = house.delete(&kind, key, &DeleteOptions::default(), &options()).await.unwrap_err();
    assert_eq!(error.message, "configmaps \"a\" not found");
    let error = house.replace(&kind, key, config("a", "1"), None, &options()).await.unwrap_err();
    assert!(error.is_not_found());
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_and_writes_nothing() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let dry = WriteOptions { dry_run: true, ..options() };
    house.create(&kind, Some("default"), config("a", "1"), &dry).await.unwrap();
    house.create(&kind, Some("default"), config("a", "1"), &options()).await.unwrap();
    let before = house.objects().revision(kind.resource());
    let error = house.create(&kind, Some("default"), config("a", "1"), &dry).await.unwrap_err();
    assert!(error.is_already_exists());
    let key = kind.key(Some("default"), "a");
    let replaced = house.replace(&kind, &key, config("a", "2"), None, &dry).await.unwrap();
    assert_eq!(replaced.record.object()["data"]["x"], "2");
    let deleted = house.delete(&kind, &key, &DeleteOptions::default(), &dry).await.unwrap();
    assert!(matches!(deleted, Deleted::Removed(_)));
    assert_eq!(house.objects().revision(kind.resource()), before);
    assert_eq!(house.get(&kind, &key).await.unwrap().object()["data"]["x"], "1");
}

#[tokio::test]
async fn namespaces_must_be_there_and_not_on_their_way_out() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let error = house.create(&kind, Some("other"), config("a", "1"), &options()).await.unwrap_err();
    assert_eq!(
        (error.reason, &*error.message),
        (Reason::NotFound, "namespaces \"other\" not found")
    );
    let spaces = house.kind_of::<Namespace>().unwrap().clone();
    let other = map(json!({"metadata": {"name": "other"}}));
    let created = house.create(&spaces, None, other, &options()).await.unwrap();
    house.create(&kind, Some("other"), config("a", "1"), &options()).await.unwrap();
    let deleted =
        house.delete(&spaces, created.record.key(), &DeleteOptions::default(), &options()).await;
    assert!(matches!(deleted.unwrap(), Deleted::Marked(_)));
    let error = house.create(&kind, Some("other"), config("b", "1"), &options()).await.unwrap_err();
    assert_eq!(
        (error.reason, &*error.message),
        (
            Reason::Forbidden,
            "configmaps \"b\" is forbidden: unable to create new content in namespace other because it is being terminated"
        )
    );
    assert_eq!(error.details.causes[0].reason, "NamespaceTerminating");
    let finalized = house
        .modify(&spaces, created.record.key(), Some(Subresource::Finalize), &options(), |old| {
            let mut new = old.clone();
            new.insert("spec".to_owned(), json!({}));
            Ok(new)
        })
        .await
        .unwrap();
    assert_eq!(finalized.effect, Effect::Removed);
    assert!(house.get(&spaces, created.record.key()).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn generated_names_are_tried_until_one_is_free() {
    /// Says the same suffix a few times before it says another.
    #[derive(Debug, Default)]
    struct Stubborn(AtomicUsize);
    impl Identities for Stubborn {
        fn uid(&self) -> String {
            "u".to_owned()
        }
        fn name_suffix(&self) -> String {
            let asked = self.0.fetch_add(1, Ordering::Relaxed);
            if asked < 4 { "aaaaa".to_owned() } else { format!("{:05}", asked / 8) }
        }
    }
    let house = Resources { identities: Arc::new(Stubborn::default()), ..house().await };
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let body = || map(json!({"metadata": {"generateName": "web-"}}));
    let name = |written: Written| written.record.key().name().to_owned();
    let first = house.create(&kind, Some("default"), body(), &options()).await.unwrap();
    assert_eq!(name(first), "web-aaaaa");
    let second = house.create(&kind, Some("default"), body(), &options()).await.unwrap();
    assert_eq!(name(second), "web-00000");
    house.create(&kind, Some("default"), body(), &options()).await.unwrap();
    let taken = map(json!({"metadata": {"name": "web-00002"}}));
    house.create(&kind, Some("default"), taken, &options()).await.unwrap();
    let mut refused = 0;
    for _ in 0..3 {
        if let Err(error) = house.create(&kind, Some("default"), body(), &options()).await {
            assert!(error.message.ends_with(
                "already exists, the server was not able to generate a unique name for the object"
            ));
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn edits_are_repeated_until_nobody_else_was_faster() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    house.create(&kind, Some("default"), config("a", "0"), &options()).await.unwrap();
    let key = kind.key(Some("default"), "a");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (house, kind, key) = (house.clone(), kind.clone(), key.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                house
                    .modify(&kind, &key, None, &options(), |old| {
                        let mut new = old.clone();
                        let count: u32 = old["data"]["x"].as_str().unwrap().parse().unwrap();
                        new.insert("data".to_owned(), json!({"x": (count + 1).to_string()}));
                        Ok(new)
                    })
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(house.get(&kind, &key).await.unwrap().object()["data"]["x"], "80");
}

#[tokio::test]
async fn typed_objects_go_in_and_out_and_an_equal_status_is_not_written() {
    let house = house().await;
    let mut node = Node::default();
    node.metadata.name = "n".to_owned();
    let mut node = house.create_as(&node, &options()).await.unwrap();
    assert_eq!(node.metadata.generation, Some(1));
    let (_, effect) = house.replace_as(&node, &options()).await.unwrap();
    assert_eq!(effect, Effect::Unchanged);
    node.status.capacity.insert("cpu".to_owned(), "2".parse().unwrap());
    node.spec.unschedulable = Some(true);
    let (node, effect) = house.replace_status_as(&node, &options()).await.unwrap();
    assert_eq!((effect, node.spec.unschedulable), (Effect::Changed, None));
    let (_, effect) = house.replace_status_as(&node, &options()).await.unwrap();
    assert_eq!(effect, Effect::Unchanged);
    let (node, _) = house
        .modify_as::<Node>(None, "n", None, &options(), |node| node.spec.unschedulable = Some(true))
        .await
        .unwrap();
    assert_eq!(node.metadata.generation, Some(2));
    assert_eq!(house.list_as::<Node>(None).await.unwrap(), [node]);
    assert!(house.get_as::<Node>(None, "other").await.unwrap().is_none());
    let gone = DeleteOptions::default();
    assert!(house.delete_as::<Node>(None, "n", &gone, &options()).await.unwrap().is_some());
    assert!(house.delete_as::<Node>(None, "n", &gone, &options()).await.unwrap().is_none());
}

#[tokio::test]
async fn the_last_finalizer_takes_the_object_with_it() {
    let house = house().await;
    let kind = house.kind_of::<Node>().unwrap().clone();
    let body = map(json!({"metadata": {"name": "n", "finalizers": ["a.b/c"]}}));
    let created = house.create(&kind, None, body, &options()).await.unwrap();
    let key = created.record.key();
    let mut watch = house.watch(&kind, None, None, created.record.revision()).await.unwrap();
    let deleted = house.delete(&kind, key, &DeleteOptions::default(), &options()).await.unwrap();
    assert!(matches!(deleted, Deleted::Marked(_)));
    let gone = house
        .modify_as::<Node>(None, "n", None, &options(), |node| node.metadata.finalizers.clear())
        .await
        .unwrap();
    assert_eq!(gone.1, Effect::Removed);
    assert!(gone.0.metadata.finalizers.is_empty());
    let actions: Vec<Action> =
        watch.next().await.unwrap().iter().map(|event| event.action).collect();
    assert_eq!(actions, [Action::Modified, Action::Deleted]);
}

#[tokio::test]
async fn a_fenced_writer_out_of_office_writes_nothing() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let created = house.create(&kind, Some("default"), config("a", "1"), &options()).await.unwrap();
    let key = created.record.key().clone();
    let fence = Fence { key: key.clone(), token: created.record.revision() };
    let fenced = house.fenced(fence);
    fenced.create(&kind, Some("default"), config("b", "1"), &options()).await.unwrap();
    house.replace(&kind, &key, config("a", "2"), None, &options()).await.unwrap();
    let error = fenced.create(&kind, Some("default"), config("c", "1"), &options()).await;
    assert_eq!(error.unwrap_err().reason, Reason::Conflict);
    assert!(house.get_as::<ConfigMap>(Some("default"), "c").await.unwrap().is_none());
}

/// Notes what it is asked, and refuses objects that say so.
#[derive(Debug, Default)]
struct Guard {
    asked: std::sync::Mutex<Vec<String>>,
}

impl Guard {
    fn says(object: Option<&Map<String, Value>>) -> String {
        let value = |object: &Map<String, Value>| {
            let data = object.get("data").and_then(|data| data.get("x"));
            data.and_then(Value::as_str).unwrap_or("-").to_owned()
        };
        object.map_or_else(|| "none".to_owned(), value)
    }

    fn note(&self, line: String) {
        self.asked.lock().unwrap().push(line);
    }

    fn judge(&self, object: Option<&Map<String, Value>>) -> Result<(), Error> {
        match Self::says(object).as_str() {
            "secret" => Err(Error::new(Reason::Forbidden, "no")),
            _ => Ok(()),
        }
    }
}

impl Admission for Guard {
    fn touch<'a>(
        &'a self,
        stored: &'a Map<String, Value>,
    ) -> futures_util::future::BoxFuture<'a, Result<(), Error>> {
        self.note(format!("touch {}", Self::says(Some(stored))));
        Box::pin(std::future::ready(self.judge(Some(stored))))
    }

    fn admit<'a>(
        &'a self,
        proposed: Proposed<'a>,
    ) -> futures_util::future::BoxFuture<'a, Result<(), Error>> {
        let Proposed { old, new } = proposed;
        assert!(new.is_none_or(|new| !new.contains_key("spec")), "judged before it was pruned");
        self.note(format!("{} -> {}", Self::says(old), Self::says(new)));
        Box::pin(std::future::ready(self.judge(new)))
    }
}

#[tokio::test]
async fn every_way_to_write_is_judged_on_the_object_as_it_would_be_stored() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    let guard = Arc::new(Guard::default());
    let admission: Option<Arc<dyn Admission>> = Some(guard.clone());
    let plain = WriteOptions { manager: "m".to_owned(), admission, ..WriteOptions::default() };
    let dry = WriteOptions { dry_run: true, ..plain.clone() };
    let asked = || std::mem::take(&mut *guard.asked.lock().unwrap()).join(", ");
    let key = kind.key(Some("default"), "a");
    let with_bogus = |value: &str| {
        let mut object = config("a", value);
        object.insert("spec".to_owned(), json!({"nodeName": "n1"}));
        object
    };
    let delete = DeleteOptions::default();
    for options in [&dry, &plain] {
        let refused = house.create(&kind, Some("default"), with_bogus("secret"), options).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Forbidden);
        let refused = house.apply(&kind, &key, with_bogus("secret"), None, options).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Forbidden);
        assert_eq!(asked(), "none -> secret, none -> secret");
    }
    assert!(house.get(&kind, &key).await.unwrap_err().is_not_found(), "a refusal writes nothing");
    house.create(&kind, Some("default"), with_bogus("1"), &plain).await.unwrap();
    assert_eq!(asked(), "none -> 1");
    for options in [&dry, &plain] {
        let refused = house.replace(&kind, &key, with_bogus("secret"), None, options).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Forbidden);
        assert_eq!(asked(), "touch 1, 1 -> secret");
        let force = WriteOptions { force: true, ..options.clone() };
        let refused = house.apply(&kind, &key, with_bogus("secret"), None, &force).await;
        assert_eq!(refused.unwrap_err().reason, Reason::Forbidden);
        assert_eq!(asked(), "touch 1, 1 -> secret");
    }
    let same = house.replace(&kind, &key, config("a", "1"), None, &plain).await.unwrap();
    assert_eq!((same.effect, asked().as_str()), (Effect::Unchanged, "touch 1, 1 -> 1"));
    house.delete(&kind, &key, &delete, &dry).await.unwrap();
    assert_eq!(asked(), "touch 1, 1 -> none");
    house.delete(&kind, &key, &delete, &plain).await.unwrap();
    assert_eq!(asked(), "touch 1, 1 -> none");
}

#[tokio::test]
async fn a_stored_object_that_may_not_be_touched_is_judged_before_it_is_looked_at() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    house.create(&kind, Some("default"), config("a", "secret"), &options()).await.unwrap();
    let admission: Option<Arc<dyn Admission>> = Some(Arc::new(Guard::default()));
    let judged = WriteOptions { admission, ..WriteOptions::default() };
    let key = kind.key(Some("default"), "a");
    let edit = |_: &Map<String, Value>| panic!("it was looked at");
    let refused = house.modify(&kind, &key, None, &judged, edit).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Forbidden);
    // A precondition that does not hold would tell the object's identity.
    let delete = DeleteOptions { uid: Some("other".to_owned()), ..DeleteOptions::default() };
    let refused = house.delete(&kind, &key, &delete, &judged).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Forbidden);
}

#[tokio::test]
async fn a_write_that_lost_a_race_is_judged_again() {
    let house = house().await;
    let kind = house.kind_of::<ConfigMap>().unwrap().clone();
    house.create(&kind, Some("default"), config("a", "1"), &options()).await.unwrap();
    let guard = Arc::new(Guard::default());
    let admission: Option<Arc<dyn Admission>> = Some(guard.clone());
    let judged = WriteOptions { admission, ..WriteOptions::default() };
    let key = kind.key(Some("default"), "a");
    let mut first = true;
    let edit = |old: &Map<String, Value>| {
        if std::mem::take(&mut first) {
            let (house, kind, key) = (house.clone(), kind.clone(), key.clone());
            let other = async move {
                house.replace(&kind, &key, config("a", "secret"), None, &options()).await.unwrap();
            };
            // The store in memory answers at once.
            futures_util::FutureExt::now_or_never(other).unwrap();
        }
        let mut new = old.clone();
        new.insert("data".to_owned(), json!({"x": "2"}));
        Ok(new)
    };
    let refused = house.modify(&kind, &key, None, &judged, edit).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Forbidden);
    let asked = guard.asked.lock().unwrap().join(", ");
    assert_eq!(asked, "touch 1, 1 -> 2, touch secret");
}
