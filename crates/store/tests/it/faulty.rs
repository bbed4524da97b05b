//! A store whose writes can be made to fail, for tests of writers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mainstay_store::cache::{Collection, Watch};
use mainstay_store::object::{Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{At, Error, Objects, Scope, Write};
use mainstay_store::snapshot::{Medium, Snapshot};

/// Called before each write; may fail it.
type Fault = Box<dyn Fn(&Write) -> Option<Error> + Send + Sync>;

/// A store whose writes can be made to fail.
pub(crate) struct Faulty {
    store: Arc<dyn Objects>,
    fault: Mutex<Option<Fault>>,
    hits: AtomicUsize,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub(crate) fn new(store: Arc<dyn Objects>) -> Arc<Self> {
        Arc::new(Self { store, fault: Mutex::default(), hits: AtomicUsize::new(0) })
    }

    pub(crate) fn set(&self, fault: impl Fn(&Write) -> Option<Error> + Send + Sync + 'static) {
        *self.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn heal(&self) {
        *self.fault.lock().unwrap() = None;
    }

    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

impl Objects for Faulty {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        let error = self.fault.lock().unwrap().as_ref().and_then(|fault| fault(&write));
        match error {
            Some(error) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                async { Err(error) }.boxed()
            }
            None => self.store.write(write),
        }
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        self.store.get(key)
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        self.store.collection(resource, at)
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.store.watch(scope, from)
    }

    fn revision(&self, resource: &Resource) -> Revision {
        self.store.revision(resource)
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.store.compact(through)
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        self.store.snapshot()
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
