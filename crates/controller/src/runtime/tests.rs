use std::collections::BTreeMap;

use mainstay_clock::ManualClock;
use mainstay_store::builtin::ConfigMap;
use mainstay_store::objects::Objects;
use mainstay_store::resources::WriteOptions;
use tokio::sync::Semaphore;

use super::*;
use crate::election::Election;
use crate::testing::{self, Line, Remote, config, put, remove, settle, until, world};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Notes every run: the key, and how often it failed before.
#[derive(Clone, Debug)]
struct Log {
    runs: Arc<Mutex<Vec<String>>>,
    /// How many runs of each key are under way, and the most there ever were in all.
    running: Arc<Mutex<(BTreeMap<String, usize>, usize)>>,
    gate: Arc<Semaphore>,
}

impl Log {
    fn new(permits: usize) -> Self {
        let gate = Arc::new(Semaphore::new(permits));
        Self { runs: Arc::default(), running: Arc::default(), gate }
    }

    fn runs(&self) -> Vec<String> {
        self.runs.lock().clone()
    }

    fn clear(&self) {
        self.runs.lock().clear();
    }

    async fn run(&self, key: &str) {
        self.runs.lock().push(key.to_owned());
        {
            let mut running = self.running.lock();
            let count = running.0.entry(key.to_owned()).or_default();
            *count += 1;
            assert_eq!(*count, 1, "never two workers on one key");
            let total = running.0.values().sum();
            running.1 = running.1.max(total);
        }
        self.gate.acquire().await.unwrap().forget();
        *self.running.lock().0.get_mut(key).unwrap() -= 1;
    }
}

fn name(config: &ConfigMap) -> [String; 1] {
    [config.metadata.name.clone()]
}

fn pool(config: &ConfigMap) -> Option<String> {
    config.data.get("pool").cloned()
}

fn options() -> Options {
    Options::new("test")
}

fn logging(controller: Controller<String>, log: &Log) -> Handle<String> {
    let log = log.clone();
    controller.run(move |_, key: String| {
        let log = log.clone();
        async move {
            log.run(&key).await;
            Ok::<_, BoxError>(Outcome::Done)
        }
    })
}

const OPEN: usize = 1_000;

#[tokio::test]
async fn everything_is_looked_at_once_and_then_whenever_it_changes() {
    let (resources, _) = world().await;
    put(&resources, "a", &[]).await;
    put(&resources, "b", &[]).await;
    let (configs, log) = (Reflector::of(&resources).start(), Log::new(OPEN));
    let controller = Controller::new(options(), &resources).watch(&configs, name);
    let handle = logging(controller, &log);
    until("both were reconciled", || log.runs() == ["a", "b"]).await;
    put(&resources, "b", &[("x", "1")]).await;
    until("b is reconciled again", || log.runs().len() == 3).await;
    remove(&resources, "a").await;
    until("a is reconciled again", || log.runs()[2..] == ["b", "a"]).await;
    assert!(handle.add("c".to_owned()));
    until("c is reconciled", || log.runs().len() == 5).await;
    assert_eq!(handle.shutdown().await, 0);
    assert!(!handle.add("d".to_owned()));
}

#[tokio::test]
async fn an_object_that_moves_wakes_its_old_and_its_new_owner() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    let (configs, log) = (Reflector::of(&resources).start(), Log::new(OPEN));
    let _handle = logging(Controller::new(options(), &resources).watch(&configs, pool), &log);
    until("x is reconciled", || log.runs() == ["x"]).await;
    put(&resources, "a", &[("pool", "y")]).await;
    until("both are reconciled", || log.runs() == ["x", "x", "y"]).await;
}

#[tokio::test]
async fn a_predicate_sees_both_states_and_filters_changes() {
    let (resources, _) = world().await;
    put(&resources, "a", &[("pool", "x")]).await;
    let (configs, log) = (Reflector::of(&resources).start(), Log::new(OPEN));
    let moved = |old: Option<&ConfigMap>, new: Option<&ConfigMap>| {
        old.is_some() && old.and_then(pool) != new.and_then(pool)
    };
    let controller = Controller::new(options(), &resources).watch_if(&configs, moved, name);
    let _handle = logging(controller, &log);
    put(&resources, "a", &[("pool", "x"), ("other", "1")]).await;
    settle().await;
    assert!(log.runs().is_empty());
    put(&resources, "a", &[("pool", "y")]).await;
    until("a is reconciled", || log.runs() == ["a"]).await;
}

#[tokio::test]
async fn controllers_share_a_reflector() {
    let (resources, _) = world().await;
    let configs = Reflector::of(&resources).start();
    let (first, second) = (Log::new(OPEN), Log::new(OPEN));
    let _first = logging(Controller::new(options(), &resources).watch(&configs, name), &first);
    put(&resources, "a", &[]).await;
    until("the first sees a", || first.runs() == ["a"]).await;
    let _second = logging(Controller::new(options(), &resources).watch(&configs, name), &second);
    until("the second sees a", || second.runs() == ["a"]).await;
    put(&resources, "b", &[]).await;
    until("both see b", || first.runs().len() == 2 && second.runs().len() == 2).await;
}

#[tokio::test]
async fn workers_are_bounded_and_one_key_has_one_worker() {
    let (resources, _) = world().await;
    let log = Log::new(0);
    let options = Options { workers: 2, ..options() };
    let handle = logging(Controller::new(options, &resources), &log);
    for key in ["a", "b", "c", "a"] {
        handle.add(key.to_owned());
    }
    settle().await;
    assert_eq!(log.runs(), ["a", "b"]);
    handle.add("a".to_owned());
    for _ in 0..4 {
        log.gate.add_permits(1);
        settle().await;
    }
    assert_eq!(log.runs(), ["a", "b", "c", "a"]);
    assert_eq!(log.running.lock().1, 2);
    assert_eq!(handle.depth(), Depth::default());
}

#[tokio::test]
async fn no_run_starts_before_every_source_was_read() {
    let clock = testing::clock();
    let store = testing::store(clock.clone());
    let remote = Remote::new(store.clone());
    let near = testing::resources(store, clock.clone());
    let far = testing::resources(remote.clone(), clock);
    remote.set(Line::Silent);
    let (here, there) = (Reflector::of(&near).start(), Reflector::of(&far).start());
    let log = Log::new(OPEN);
    let controller = Controller::new(options(), &near).watch(&here, name).watch(&there, pool);
    let handle = logging(controller, &log);
    handle.add("a".to_owned());
    settle().await;
    assert!(log.runs().is_empty());
    remote.set(Line::Up);
    until("a is reconciled", || log.runs() == ["a"]).await;
}

#[derive(Debug, Default)]
struct Endings(Mutex<Vec<Ending>>);

impl Meter for Endings {
    fn reconciled(&self, _controller: &str, ending: Ending, _took: Duration) {
        self.0.lock().push(ending);
    }
}

#[tokio::test]
async fn failures_and_panics_are_counted_and_backed_off_until_a_success() {
    let (resources, clock) = world().await;
    let endings = Arc::new(Endings::default());
    let options = Options { workers: 1, meter: endings.clone(), ..options() };
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = failures.clone();
    let handle = Controller::new(options, &resources).run(move |context, _: u8| {
        let run = {
            let mut seen = seen.lock();
            seen.push(context.failures);
            seen.len()
        };
        async move {
            match run {
                1 => Err("no luck".into()),
                2 => panic!("as asked"),
                3 => Ok(Outcome::Retry),
                4 => Ok(Outcome::After(ms(100))),
                _ => Ok::<_, BoxError>(Outcome::Done),
            }
        }
    });
    handle.add(7);
    for (runs, wait) in [(1, 5), (2, 10), (3, 20), (4, 100)] {
        until("it runs", || failures.lock().len() == runs).await;
        until("it waits", || clock.sleepers() == 1).await;
        clock.advance(ms(wait - 1));
        settle().await;
        assert_eq!(failures.lock().len(), runs, "it waits {wait} ms");
        clock.advance(ms(1));
    }
    until("it is done", || failures.lock().len() == 5).await;
    settle().await;
    assert_eq!(*failures.lock(), [0, 1, 2, 3, 0]);
    let expected = [Ending::Failed, Ending::Panicked, Ending::Retry, Ending::Later, Ending::Done];
    assert_eq!(*endings.0.lock(), expected);
    assert_eq!(handle.depth(), Depth::default());
}

#[tokio::test]
async fn shutdown_waits_for_runs_and_aborts_them_after_the_grace() {
    let (resources, clock) = world().await;
    let log = Log::new(0);
    let options = Options { workers: 2, ..options() };
    let handle = logging(Controller::new(options, &resources), &log);
    for key in ["a", "b", "c"] {
        handle.add(key.to_owned());
    }
    until("two run", || log.runs().len() == 2).await;
    let ending = tokio::spawn({
        let handle = handle.clone();
        async move { handle.shutdown().await }
    });
    until("the deadline is set", || clock.sleepers() == 1).await;
    log.gate.add_permits(1);
    settle().await;
    assert!(!ending.is_finished(), "the other is given its time");
    clock.advance(Duration::from_secs(10));
    assert_eq!(ending.await.unwrap(), 1);
    assert_eq!(log.runs(), ["a", "b"], "no new key was taken");
    assert_eq!(handle.shutdown().await, 1, "asking again is harmless");
}

struct Server {
    clock: Arc<ManualClock>,
    election: election::Handle,
    handle: Handle<String>,
    log: Log,
}

/// A server whose controller writes `KEY-SERVER` for each ConfigMap `KEY`.
async fn server(name: &'static str, store: &Arc<dyn Objects>) -> Server {
    let (clock, log) = (testing::clock(), Log::new(OPEN));
    let resources = testing::resources(store.clone(), clock.clone());
    let election =
        Election::run(election::Options::new("primary", name), store.clone(), clock.clone());
    let configs = Reflector::of(&resources).start();
    let own = |config: &ConfigMap| {
        (!config.metadata.name.contains('-')).then(|| config.metadata.name.clone())
    };
    let writing = log.clone();
    let handle = Controller::new(options(), &resources).watch(&configs, own).led_by(&election).run(
        move |context: Context, key| {
            let log = writing.clone();
            async move {
                log.run(&key).await;
                let config = config(&format!("{key}-{name}"), &[]);
                context.resources.create_as(&config, &WriteOptions::default()).await?;
                Ok::<_, BoxError>(Outcome::Done)
            }
        },
    );
    Server { clock, election, handle, log }
}

#[tokio::test]
async fn only_the_leader_works_and_a_new_leader_begins_with_everything() {
    let (resources, _) = world().await;
    put(&resources, "x", &[]).await;
    let store = resources.objects();
    let a = server("a", store).await;
    until("a works", || a.log.runs() == ["x"]).await;
    let b = server("b", store).await;
    settle().await;
    assert!(b.log.runs().is_empty());
    assert!(!b.handle.add("y".to_owned()), "it takes no keys");
    a.election.shutdown().await;
    until("b works", || b.log.runs() == ["x"]).await;
    put(&resources, "z", &[]).await;
    until("b works on", || b.log.runs() == ["x", "z"]).await;
    assert_eq!(a.log.runs(), ["x"]);
    a.handle.shutdown().await;
    b.handle.shutdown().await;
}

#[tokio::test]
async fn a_former_leader_cannot_write_and_works_again_when_it_is_elected_again() {
    let (resources, _) = world().await;
    let store = resources.objects();
    let a = server("a", store).await;
    a.election.leading().await.unwrap();
    // A run of its first term is delayed while another server takes over.
    a.log.gate.forget_permits(OPEN);
    put(&resources, "x", &[]).await;
    until("a works", || a.log.runs() == ["x"]).await;
    let b = server("b", store).await;
    settle().await;
    b.clock.advance(Duration::from_secs(15));
    until("b works", || b.log.runs() == ["x"]).await;
    a.log.gate.add_permits(1);
    settle().await;
    let written: Vec<ConfigMap> = resources.list_as(None).await.unwrap();
    let names: Vec<_> = written.iter().map(|config| config.metadata.name.as_str()).collect();
    assert_eq!(names, ["x", "x-b"], "what a wrote in its old term was refused");
    a.clock.advance(Duration::from_secs(5));
    until("a knows", || a.election.fence().is_none()).await;
    until("a has stopped", || !a.handle.add("x".to_owned())).await;
    a.log.clear();
    a.log.gate.add_permits(OPEN);
    b.election.shutdown().await;
    until("a works again", || a.log.runs() == ["x"]).await;
    settle().await;
    assert_eq!(resources.list_as::<ConfigMap>(None).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_dropped_election_does_not_lead() {
    let (resources, clock) = world().await;
    let store = resources.objects().clone();
    let election = Election::run(election::Options::new("primary", "a"), store, clock);
    election.leading().await.unwrap();
    let log = Log::new(OPEN);
    let handle = logging(Controller::new(options(), &resources).led_by(&election), &log);
    until("it works", || handle.add("x".to_owned())).await;
    drop(election);
    until("it has stopped", || !handle.add("x".to_owned())).await;
    handle.shutdown().await;
}
