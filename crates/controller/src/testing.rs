//! Helpers of the tests of this crate.

#[path = "../../store/tests/it/yielding.rs"]
mod yielding;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use mainstay_clock::{Clock, ManualClock};
use mainstay_store::builtin::{self, ConfigMap, Namespace};
use mainstay_store::cache::{Collection, Retention, Watch};
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::{Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Error, Objects, Scope, Write};
use mainstay_store::registry::Registry;
use mainstay_store::resources::{CountingIdentities, DeleteOptions, Resources, WriteOptions};
use mainstay_store::snapshot::{Medium, Snapshot};
use tokio::sync::watch;

pub(crate) use self::yielding::{settle, until};

/// A clock that shows the beginning of 2026.
pub(crate) fn clock() -> Arc<ManualClock> {
    ManualClock::new(Timestamp::from_second(1_767_225_600).unwrap())
}

/// An empty store in memory.
pub(crate) fn store(clock: Arc<dyn Clock>) -> Arc<dyn Objects> {
    Arc::new(MemoryStore::new(0, Retention::default(), 1 << 20, clock))
}

/// How a store behaves towards one of its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// As it should.
    Up,
    /// It answers that it is unavailable, and does nothing.
    Down,
    /// It does as asked, but the answer is lost.
    Deaf,
    /// It does not answer until the line changes.
    Silent,
}

/// A store behind a line that can be cut.
#[derive(Debug)]
pub(crate) struct Remote {
    store: Arc<dyn Objects>,
    line: watch::Sender<Line>,
}

impl Remote {
    pub(crate) fn new(store: Arc<dyn Objects>) -> Arc<Self> {
        let line = watch::Sender::new(Line::Up);
        Arc::new(Self { store, line })
    }

    pub(crate) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    async fn pass<T>(&self, call: BoxFuture<'_, Result<T, Error>>) -> Result<T, Error> {
        let lost = || Error::Unavailable { reason: "the line is cut".to_owned() };
        let mut line = self.line.subscribe();
        let now = line.wait_for(|line| *line != Line::Silent).await;
        let now = *now.map_err(|_| lost())?;
        match now {
            Line::Down | Line::Silent => Err(lost()),
            Line::Deaf => call.await.and(Err(lost())),
            Line::Up => call.await,
        }
    }
}

impl Objects for Remote {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        self.pass(async { self.store.write(write).await }.boxed()).boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        let key = key.clone();
        self.pass(async move { self.store.get(&key).await }.boxed()).boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        self.pass(self.store.collection(resource, at)).boxed()
    }

    fn select(&self, scope: &Scope) -> BoxFuture<'_, Result<Collection, Error>> {
        self.pass(self.store.select(scope)).boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.pass(self.store.watch(scope, from)).boxed()
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.store.revision(resource)
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.compact(through)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.pass(self.store.snapshot()).boxed()
    }

    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.advance(to)
    }

    fn medium(&self) -> Medium {
        self.store.medium()
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.store.verify()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

/// The built-in kinds in `store`.
pub(crate) fn resources(store: Arc<dyn Objects>, clock: Arc<dyn Clock>) -> Resources {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let identities = Arc::new(CountingIdentities::default());
    Resources::new(store, Arc::new(registry), clock, identities)
}

/// A world with one namespace, `default`.
pub(crate) async fn world() -> (Resources, Arc<ManualClock>) {
    let clock = clock();
    let resources = resources(store(clock.clone()), clock.clone());
    let mut namespace = Namespace::default();
    namespace.metadata.name = "default".to_owned();
    let options = WriteOptions::default();
    resources.create_as(&namespace, &options).await.unwrap();
    (resources, clock)
}

/// A ConfigMap in `default`. The pool it has in its data is also its label.
pub(crate) fn config(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut config = ConfigMap::default();
    config.metadata.name = name.to_owned();
    config.metadata.namespace = Some("default".to_owned());
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    config.data = data.iter().map(own).collect();
    let pool = config.data.get_key_value("pool");
    config.metadata.labels.extend(pool.map(|(key, value)| (key.clone(), value.clone())));
    config
}

/// Creates or changes a ConfigMap in `default`.
pub(crate) async fn put(resources: &Resources, name: &str, data: &[(&str, &str)]) {
    let config = config(name, data);
    let options = WriteOptions::default();
    match resources.create_as(&config, &options).await {
        Err(error) if error.is_already_exists() => {
            resources.replace_as(&config, &options).await.unwrap();
        }
        created => drop(created.unwrap()),
    }
}

/// Deletes a ConfigMap in `default`.
pub(crate) async fn remove(resources: &Resources, name: &str) {
    let (delete, write) = (DeleteOptions::default(), WriteOptions::default());
    let deleted = resources.delete_as::<ConfigMap>(Some("default"), name, &delete, &write);
    deleted.await.unwrap();
}
