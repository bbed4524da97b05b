use mainstay_store::cache::Retention;
use mainstay_store::clock::SystemClock;
use mainstay_store::memory::MemoryStore;
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::CountingIdentities;
use serde_json::json;

use super::*;

#[test]
fn an_object_goes_when_its_last_owner_is_gone() {
    use Owner::{Absent, Leaving, Present};
    use Propagation::{Background, Foreground, Orphan};
    let cases: [(&[Owner], &[&str], bool, Judgement); 8] = [
        (&[Present], &[], false, Judgement::Keep),
        (&[Absent], &[], false, Judgement::Delete(Background)),
        (&[Absent, Absent], &[], true, Judgement::Delete(Background)),
        (&[Present, Absent], &[], false, Judgement::LetGo(vec!["1".into()])),
        (&[Leaving, Present], &[], false, Judgement::LetGo(vec!["0".into()])),
        (&[Leaving], &[], true, Judgement::Delete(Foreground)),
        (&[Leaving], &[], false, Judgement::Delete(Background)),
        (&[Absent], &[ORPHAN], true, Judgement::Delete(Orphan)),
    ];
    for (owners, finalizers, has_dependents, expected) in cases {
        let owners: Vec<_> =
            owners.iter().enumerate().map(|(n, owner)| (n.to_string(), *owner)).collect();
        let finalizers: Vec<_> = finalizers.iter().map(ToString::to_string).collect();
        assert_eq!(judge(&owners, &finalizers, has_dependents), expected, "{owners:?}");
    }
}

struct Stage {
    resources: Resources,
    kind: Arc<Kind>,
}

impl Stage {
    async fn new() -> Self {
        let clock = SystemClock::new();
        let store = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
        let registry = Arc::new(Registry::new(builtin()).unwrap());
        let identities = Arc::new(CountingIdentities::default());
        let resources = Resources::new(Arc::new(store), registry, clock, identities);
        crate::namespaces::ensure(&resources).await.unwrap();
        let kind = resources.registry().find("", "v1", "configmaps").cloned().unwrap();
        Self { resources, kind }
    }

    fn key(&self, name: &str) -> Key {
        self.kind.key(Some("default"), name)
    }

    /// Makes a config map owned by others, and returns its identity.
    async fn make(&self, name: &str, owners: &[(&str, &str)]) -> String {
        let owners: Vec<_> = owners
            .iter()
            .map(|(name, uid)| {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
                       "blockOwnerDeletion": true})
            })
            .collect();
        let object = json!({"metadata": {"name": name, "ownerReferences": owners}});
        let object = object.as_object().cloned().unwrap();
        let options = WriteOptions::default();
        let written = self.resources.create(&self.kind, Some("default"), object, &options).await;
        head(&written.unwrap().record).uid
    }

    async fn delete(&self, name: &str, propagation: Propagation) {
        let delete = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let options = WriteOptions::default();
        self.resources.delete(&self.kind, &self.key(name), &delete, &options).await.unwrap();
    }

    /// Waits until `holds` of the names that are left.
    async fn until(&self, holds: impl Fn(&BTreeMap<String, ObjectMeta>) -> bool) {
        loop {
            let all = self.resources.list(&self.kind, At::Latest).await.unwrap();
            let left: BTreeMap<_, _> = all
                .range(Some("default"), None)
                .map(|record| (record.key().name().to_owned(), head(record)))
                .collect();
            if holds(&left) {
                return;
            }
            let watch = self.resources.watch(&self.kind, None, None, all.revision()).await;
            watch.unwrap().next().await.unwrap();
        }
    }
}

/// Runs `story` while the collector works.
fn while_collecting(story: impl AsyncFnOnce(&Stage)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stage = Stage::new().await;
        tokio::select! {
            outcome = run(&stage.resources) => panic!("the collector ended: {outcome:?}"),
            () = story(&stage) => {}
        }
    });
}

#[test]
fn in_the_background_dependents_follow_their_owner_all_the_way_down() {
    while_collecting(async |stage| {
        let root = stage.make("root", &[]).await;
        let child = stage.make("child", &[("root", &root)]).await;
        stage.make("grandchild", &[("child", &child)]).await;
        stage.make("stranger", &[]).await;
        stage.delete("root", Propagation::Background).await;
        stage.until(|left| left.keys().eq(["stranger"])).await;
    });
}

#[test]
fn in_the_foreground_the_owner_waits_for_its_dependents() {
    while_collecting(async |stage| {
        let root = stage.make("root", &[]).await;
        stage.make("child", &[("root", &root)]).await;
        let hold = |old: &Map<String, Value>| {
            let mut new = old.clone();
            new["metadata"]["finalizers"] = json!(["example.com/hold"]);
            Ok(new)
        };
        let (key, options) = (stage.key("child"), WriteOptions::default());
        stage.resources.modify(&stage.kind, &key, None, &options, hold).await.unwrap();
        stage.delete("root", Propagation::Foreground).await;
        stage.until(|left| left["child"].deletion_timestamp.is_some()).await;
        stage.until(|left| left["root"].finalizers == [FOREGROUND]).await;
        let release = |old: &Map<String, Value>| {
            let mut new = old.clone();
            new["metadata"]["finalizers"] = json!([]);
            Ok(new)
        };
        stage.resources.modify(&stage.kind, &key, None, &options, release).await.unwrap();
        stage.until(BTreeMap::is_empty).await;
    });
}

#[test]
fn orphans_are_let_go_of_and_stay() {
    while_collecting(async |stage| {
        let root = stage.make("root", &[]).await;
        stage.make("child", &[("root", &root)]).await;
        stage.delete("root", Propagation::Orphan).await;
        stage.until(|left| !left.contains_key("root")).await;
        stage.until(|left| left["child"].owner_references.is_empty()).await;
    });
}

#[test]
fn a_shared_dependent_stays_and_a_namesake_is_no_owner() {
    while_collecting(async |stage| {
        let one = stage.make("one", &[]).await;
        let two = stage.make("two", &[]).await;
        stage.make("shared", &[("one", &one), ("two", &two)]).await;
        stage.make("mistaken", &[("two", "some-other-identity")]).await;
        stage.until(|left| !left.contains_key("mistaken")).await;
        stage.delete("one", Propagation::Background).await;
        stage.until(|left| left["shared"].owner_references.len() == 1).await;
    });
}
