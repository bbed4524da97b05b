//! What the tests of this crate share.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use mainstay_store::cache::{Collection, Retention, Watch};
use mainstay_store::clock::{Clock, ManualClock};
use mainstay_store::memory::MemoryStore;
use mainstay_store::object::{Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Error, Objects, Scope, Write};
use tokio::sync::watch;

/// A clock that shows the beginning of 2026.
pub(crate) fn clock() -> Arc<ManualClock> {
    ManualClock::new(Timestamp::from_second(1_767_225_600).unwrap())
}

/// Lets the other tasks run until `condition` holds; fails if they cannot make it hold.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never happened: {what}");
}

/// Lets the other tasks run until they all wait for something.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
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

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.pass(self.store.watch(scope, from)).boxed()
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.store.revision(resource)
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.compact(through)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
