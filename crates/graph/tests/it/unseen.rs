//! Restarts with a descriptor that cannot retrieve.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_graph::{
    Builder, Context, Dependency, Derived, Descriptor, Engine, FileJournal, Key, Known,
    ManualClock, OperationError, Options, Origin, PrefixModel, Retrieved, Transaction, ValueState,
};
use tokio_util::sync::CancellationToken;

/// A value is the list of keys it needs.
type Needs = Vec<String>;

/// The south of one descriptor.
#[derive(Default)]
struct Shelf {
    values: BTreeMap<String, Needs>,
    calls: Vec<String>,
    blind: bool,
    looks: usize,
}

#[derive(Clone, Default)]
struct Shelves(Arc<Mutex<BTreeMap<&'static str, Shelf>>>);

impl Shelves {
    fn with<T>(&self, name: &'static str, act: impl FnOnce(&mut Shelf) -> T) -> T {
        act(self.0.lock().unwrap().entry(name).or_default())
    }

    fn keys(&self, name: &'static str) -> Vec<String> {
        self.with(name, |shelf| shelf.values.keys().cloned().collect())
    }

    fn take_calls(&self, name: &'static str) -> Vec<String> {
        self.with(name, |shelf| std::mem::take(&mut shelf.calls))
    }
}

struct OnShelf {
    name: &'static str,
    shelves: Shelves,
    model: PrefixModel<Needs>,
}

impl Descriptor for OnShelf {
    type Model = PrefixModel<Needs>;
    type Metadata = ();

    fn name(&self) -> &str {
        self.name
    }

    fn model(&self) -> &PrefixModel<Needs> {
        &self.model
    }

    fn dependencies(&self, _: &Key, needs: &Needs) -> Vec<Dependency> {
        let needs = needs.iter().filter(|key| !key.starts_with("derive "));
        needs.map(|key| Dependency::on(key.as_str())).collect()
    }

    /// `derive X` is a derived value that needs X.
    fn derived(&self, key: &Key, needs: &Needs) -> Vec<Derived> {
        let derived = needs.iter().filter_map(|need| need.strip_prefix("derive "));
        let derived =
            derived.map(|need| Derived::new(format!("{key}/{need}"), vec![need.to_owned()]));
        derived.collect()
    }

    async fn create(&self, _: &Context, key: &Key, needs: &Needs) -> Result<(), OperationError> {
        self.shelves.with(self.name, |shelf| {
            shelf.calls.push(format!("create {key}"));
            shelf.values.insert(key.to_string(), needs.clone());
        });
        Ok(())
    }

    async fn delete(
        &self,
        _: &Context,
        key: &Key,
        _: &Needs,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        self.shelves.with(self.name, |shelf| {
            shelf.calls.push(format!("delete {key}"));
            shelf.values.remove(key.as_str());
        });
        Ok(())
    }

    async fn retrieve(
        &self,
        _: &Context,
        _: &[Known<'_, Needs, ()>],
    ) -> Result<Vec<Retrieved<Needs, ()>>, OperationError> {
        self.shelves.with(self.name, |shelf| {
            shelf.looks += 1;
            if shelf.blind {
                return Err(OperationError::new("no answer"));
            }
            // Derived values are visible through their base only.
            let found = shelf.values.iter().filter(|(key, _)| key.matches('/').count() == 1);
            let found = found.map(|(key, needs)| {
                Retrieved::new(key.as_str(), needs.clone()).origin(Origin::North)
            });
            Ok(found.collect())
        })
    }
}

struct Run {
    engine: Engine,
    stop: CancellationToken,
    worker: tokio::task::JoinHandle<()>,
}

impl Run {
    fn start(shelves: &Shelves, path: &std::path::Path, clock: &Arc<ManualClock>) -> Self {
        let journal = FileJournal::open(path).unwrap();
        let mut builder = Builder::new(Options::default().journal(journal).clock(clock.clone()));
        for name in ["a", "b"] {
            let model = PrefixModel::new(format!("{name}/"), |_: &Needs| None);
            let shelves = shelves.clone();
            builder = builder.register(OnShelf { name, shelves, model }).unwrap();
        }
        let (engine, service) = builder.build().unwrap();
        let stop = CancellationToken::new();
        let worker = tokio::spawn(service.run(stop.clone()));
        Self { engine, stop, worker }
    }

    async fn end(self) {
        self.stop.cancel();
        self.worker.await.unwrap();
    }

    async fn wait_until_seen(&self, clock: &ManualClock) {
        for _ in 0..600 {
            self.engine.barrier().await.unwrap();
            if self.engine.health().unseen.is_empty() {
                return;
            }
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        panic!("{:?}", self.engine.health());
    }
}

fn set(key: &str, needs: &[&str]) -> Transaction {
    let needs: Needs = needs.iter().map(|need| (*need).to_owned()).collect();
    Transaction::new().set_typed(key, needs)
}

#[tokio::test]
async fn values_that_cannot_be_seen_after_a_restart_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = Run::start(&shelves, &path, &clock);
    for change in [
        set("a/1", &[]),
        set("a/2", &["b/under"]),
        set("a/gone", &[]),
        set("b/under", &[]),
        set("b/on", &["a/1"]),
        set("b/lost", &[]),
    ] {
        run.engine.commit(change).await.unwrap();
    }
    run.end().await;
    shelves.with("a", |shelf| {
        shelf.blind = true;
        shelf.values.remove("a/gone");
        shelf.values.insert("a/stray".into(), Needs::new());
    });
    shelves.with("b", |shelf| drop(shelf.values.remove("b/lost")));
    let (calls_a, _) = (shelves.take_calls("a"), shelves.take_calls("b"));
    assert_eq!(calls_a.len(), 3);

    let run = Run::start(&shelves, &path, &clock);
    let engine = &run.engine;
    engine.barrier().await.unwrap();
    assert_eq!(shelves.take_calls("a"), [""; 0], "nothing is created or deleted");
    assert_eq!(shelves.take_calls("b"), ["create b/lost"], "others go on");
    for key in ["a/1", "a/2", "a/gone"] {
        let status = engine.status(key);
        assert!(status.uncertain && status.state == ValueState::Pending, "{status:?}");
        assert!(status.error.unwrap().contains("no answer"));
    }
    assert_eq!(engine.status("b/on").state, ValueState::Configured, "its dependency may be there");
    let health = engine.health();
    assert!(health.accepts && health.unseen[0].descriptor == "a", "{health:?}");
    assert_eq!(health.unseen[0].attempts, 1);

    engine.commit(set("a/new", &[])).await.unwrap();
    engine.commit(set("b/new", &["a/new"])).await.unwrap();
    engine.commit(Transaction::new().delete("a/1")).await.unwrap();
    engine.commit(Transaction::new().delete("b/under")).await.unwrap();
    engine.commit(Transaction::downstream_resync()).await.unwrap();
    assert_eq!(shelves.take_calls("a"), [""; 0]);
    assert_eq!(shelves.take_calls("b"), [""; 0], "a/2 may depend on b/under");
    assert!(engine.status("a/new").uncertain);
    assert_eq!(engine.status("b/new").state, ValueState::Pending);

    // A second restart changes nothing.
    run.end().await;
    let run = Run::start(&shelves, &path, &clock);
    let engine = &run.engine;
    engine.barrier().await.unwrap();
    assert_eq!(shelves.take_calls("a"), [""; 0]);
    assert_eq!(shelves.take_calls("b"), [""; 0]);

    shelves.with("a", |shelf| shelf.blind = false);
    run.wait_until_seen(&clock).await;
    engine.barrier().await.unwrap();
    let calls = shelves.take_calls("a");
    for call in ["create a/gone", "create a/new", "delete a/1", "delete a/stray"] {
        assert!(calls.contains(&call.to_owned()), "{call}: {calls:?}");
    }
    assert!(!calls.contains(&"create a/1".to_owned()));
    engine.commit(Transaction::downstream_resync()).await.unwrap();
    assert_eq!(shelves.keys("a"), ["a/gone", "a/new"], "a/2 waits for b/under");
    assert_eq!(shelves.keys("b"), ["b/lost", "b/new"]);
    assert_eq!(engine.status("a/2").state, ValueState::Pending);
    assert!(!engine.status("a/2").uncertain);
    run.end().await;
}

#[tokio::test]
async fn retrievals_that_fail_are_repeated_with_growing_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = Run::start(&shelves, &path, &clock);
    run.engine.commit(set("a/1", &[])).await.unwrap();
    run.end().await;
    shelves.with("a", |shelf| (shelf.blind, shelf.looks) = (true, 0));
    let run = Run::start(&shelves, &path, &clock);
    for attempts in 1..5 {
        while run.engine.health().unseen.first().is_none_or(|one| one.attempts < attempts) {
            run.engine.barrier().await.unwrap();
        }
        let unseen = run.engine.health().unseen.remove(0);
        assert_eq!(unseen.attempts, attempts);
        let pause = unseen.next.duration_since(run.engine.now());
        assert_eq!(pause.as_secs(), 1 << (attempts - 1));
        assert_eq!(shelves.with("a", |shelf| shelf.looks), usize::try_from(attempts).unwrap());
        clock.advance(Duration::from_secs(pause.as_secs().unsigned_abs()));
    }
    let seqs: Vec<u64> = run.engine.history(None, None).iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [0, 1], "attempts are no transactions");
    run.end().await;
}

/// A base `b/bd` in the south, with a derived value that needs `a/tap`.
async fn with_derived(
    shelves: &Shelves,
    path: &std::path::Path,
    clock: &Arc<ManualClock>,
    blind: &'static str,
) -> Run {
    let run = Run::start(shelves, path, clock);
    run.engine.commit(set("a/tap", &[])).await.unwrap();
    run.engine.commit(set("b/bd", &["derive a/tap"])).await.unwrap();
    run.end().await;
    assert_eq!(shelves.keys("b"), ["b/bd", "b/bd/a/tap"]);
    shelves.with(blind, |shelf| shelf.blind = true);
    for name in ["a", "b"] {
        shelves.take_calls(name);
    }
    let run = Run::start(shelves, path, clock);
    run.engine.barrier().await.unwrap();
    run
}

#[tokio::test]
async fn a_derived_value_goes_with_its_base_although_its_dependency_cannot_be_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = with_derived(&shelves, &path, &clock, "a").await;
    assert_eq!(shelves.take_calls("b"), [""; 0]);
    run.engine.commit(Transaction::new().delete("b/bd")).await.unwrap();
    assert_eq!(shelves.take_calls("b"), ["delete b/bd/a/tap", "delete b/bd"]);
    run.end().await;
}

#[tokio::test]
async fn a_base_is_created_again_once_the_dependencies_of_its_derived_values_can_be_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = with_derived(&shelves, &path, &clock, "a").await;
    run.engine.commit(set("b/bd", &["derive a/tap", "a/tap"])).await.unwrap();
    assert_eq!(shelves.take_calls("b"), [""; 0], "its derived value could not be created again");
    shelves.with("a", |shelf| shelf.blind = false);
    run.wait_until_seen(&clock).await;
    run.engine.barrier().await.unwrap();
    assert_eq!(
        shelves.take_calls("b"),
        ["delete b/bd/a/tap", "delete b/bd", "create b/bd", "create b/bd/a/tap"]
    );
    run.end().await;
}

#[tokio::test]
async fn a_dependency_stays_while_a_derived_value_that_needs_it_cannot_be_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = with_derived(&shelves, &path, &clock, "b").await;
    let status = run.engine.status("b/bd");
    assert!(status.uncertain && status.derived[0].uncertain, "{status:?}");
    run.engine.commit(Transaction::new().delete("a/tap")).await.unwrap();
    assert_eq!(shelves.take_calls("a"), [""; 0], "b/bd/a/tap may depend on it");
    run.end().await;

    // Also after a second restart, and if the base is no longer wanted either.
    let run = Run::start(&shelves, &path, &clock);
    run.engine.barrier().await.unwrap();
    run.engine.commit(Transaction::new().delete("b/bd").delete("a/tap")).await.unwrap();
    assert_eq!(shelves.take_calls("a"), [""; 0]);
    assert_eq!(shelves.take_calls("b"), [""; 0]);

    shelves.with("b", |shelf| shelf.blind = false);
    run.wait_until_seen(&clock).await;
    run.engine.barrier().await.unwrap();
    assert_eq!(shelves.take_calls("b"), ["delete b/bd/a/tap", "delete b/bd"]);
    assert_eq!(shelves.take_calls("a"), ["delete a/tap"]);
    run.end().await;
}

#[tokio::test]
async fn derived_values_that_become_visible_again_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = with_derived(&shelves, &path, &clock, "b").await;
    shelves.with("b", |shelf| shelf.blind = false);
    run.wait_until_seen(&clock).await;
    run.engine.barrier().await.unwrap();
    assert_eq!(shelves.take_calls("b"), [""; 0]);
    let status = run.engine.status("b/bd");
    for one in [&status, &status.derived[0]] {
        assert!(one.state == ValueState::Configured && !one.uncertain, "{status:?}");
        assert_eq!(one.error, None);
    }
    run.engine.commit(Transaction::new().delete("a/tap")).await.unwrap();
    assert_eq!(shelves.take_calls("b"), ["delete b/bd/a/tap"]);
    assert_eq!(shelves.take_calls("a"), ["delete a/tap"]);
    run.end().await;
}

#[tokio::test]
async fn a_key_taken_over_by_a_base_stays_with_it_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let clock = ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let shelves = Shelves::default();
    let run = Run::start(&shelves, &path, &clock);
    run.engine.commit(set("a/1", &[])).await.unwrap();
    run.engine.commit(set("b/2/a/1", &[])).await.unwrap();
    run.engine.commit(set("b/2", &["derive a/1"])).await.unwrap();
    run.engine.commit(Transaction::new().delete("b/2/a/1")).await.unwrap();
    let calls = ["create b/2/a/1", "create b/2", "delete b/2/a/1", "create b/2/a/1"];
    assert_eq!(shelves.take_calls("b"), calls);
    run.end().await;
    let run = Run::start(&shelves, &path, &clock);
    run.engine.barrier().await.unwrap();
    assert_eq!(shelves.take_calls("b"), [""; 0]);
    run.engine.commit(Transaction::new().delete("b/2")).await.unwrap();
    assert_eq!(shelves.keys("b"), [""; 0]);
    run.end().await;
}
