//! Objects in memory: for kinds that need not survive a restart, and for tests.
//!
//! Revisions carry the epoch of the store in their high bits, so that a version handed out by
//! another store of the same kind (before a restart, or on another server) is recognised as
//! foreign and answered with [`Error::Expired`] instead of with the history of another process.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;

use crate::cache::{Cache, Collection, Retention, RetentionQueue, State, Watch};
use crate::object::{Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Objects, Scope, Write};
use crate::snapshot::{Medium, Snapshot};
use mainstay_clock::Clock;

/// How many low bits of a revision count the changes of one epoch.
const EPOCH_SHIFT: u32 = 40;

/// A store that forgets everything when it is dropped.
#[derive(Debug)]
pub struct MemoryStore {
    cache: Arc<Cache>,
    writer: Mutex<Writer>,
    clock: Arc<dyn Clock>,
    epoch: u64,
    largest: usize,
}

#[derive(Debug, Default)]
struct Writer {
    retained: RetentionQueue,
    closed: bool,
}

impl MemoryStore {
    /// An empty store whose revisions belong to `epoch` (0 counts from 1, as a test expects).
    #[must_use]
    pub fn new(epoch: u64, retention: Retention, largest: usize, clock: Arc<dyn Clock>) -> Self {
        let start = Revision((epoch << EPOCH_SHIFT) & (u64::MAX >> 1));
        let cache = Arc::new(Cache::new(State::new(start, start), retention));
        Self { cache, writer: Mutex::default(), clock, epoch, largest }
    }

    fn commit(&self, write: &Write) -> Result<Arc<Event>, Error> {
        check_size(write, self.largest)?;
        let mut writer = self.writer.lock();
        if writer.closed {
            return Err(Error::Closed);
        }
        let mut state = State::clone(&self.cache.load());
        let event = Arc::new(state.judge(write, state.revision.next())?);
        let now = self.clock.now();
        state.apply(event.clone());
        writer.retained.note(&event, now);
        writer.retained.trim(&mut state, self.cache.retention(), now);
        self.cache.publish(state, [write.key.resource()]);
        Ok(event)
    }

    /// A revision of another epoch means nothing here: its reader must list again.
    fn ours(&self, revision: Revision) -> Result<(), Error> {
        if revision.0 >> EPOCH_SHIFT == self.epoch {
            return Ok(());
        }
        let oldest = Revision(self.epoch << EPOCH_SHIFT);
        Err(Error::Expired { requested: revision, oldest })
    }
}

/// Refuses an object larger than `largest` bytes.
pub(crate) fn check_size(write: &Write, largest: usize) -> Result<(), Error> {
    let (Change::Create(body) | Change::Update(_, body)) = &write.change else {
        return Ok(());
    };
    if body.len() <= largest {
        return Ok(());
    }
    Err(Error::TooLarge { key: write.key.clone(), size: body.len(), limit: largest })
}

impl Objects for MemoryStore {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Event>, Error>> {
        ready(self.commit(&write)).boxed()
    }

    fn get(&self, key: &Key) -> BoxFuture<'_, Result<Option<Arc<Record>>, Error>> {
        ready(Ok(self.cache.get(key))).boxed()
    }

    fn collection(&self, resource: &Resource, at: At) -> BoxFuture<'_, Result<Collection, Error>> {
        let ours = match at {
            At::Latest => Ok(()),
            At::NotOlderThan(revision) | At::Exactly(revision) => self.ours(revision),
        };
        ready(ours.and_then(|()| self.cache.collection(resource, at))).boxed()
    }

    fn watch(&self, scope: Scope, from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        ready(self.ours(from).and_then(|()| self.cache.watch(scope, from))).boxed()
    }

    fn revision(&self, _resource: &Resource) -> Revision {
        self.cache.revision()
    }

    fn compact(&self, through: Revision) -> BoxFuture<'_, Result<(), Error>> {
        let mut writer = self.writer.lock();
        let mut state = State::clone(&self.cache.load());
        writer.retained.compact(&mut state, through);
        self.cache.publish(state, []);
        ready(Ok(())).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        ready(Ok(self.cache.load().snapshot())).boxed()
    }

    /// Stays within its epoch, whose revisions are its own anyway.
    fn advance(&self, to: Revision) -> BoxFuture<'_, Result<(), Error>> {
        if self.ours(to).is_ok() {
            let mut writer = self.writer.lock();
            let mut state = State::clone(&self.cache.load());
            state.advance(to);
            writer.retained.compact(&mut state, to);
            self.cache.publish(state, []);
        }
        ready(Ok(())).boxed()
    }

    fn medium(&self) -> Medium {
        Medium::Memory
    }

    fn verify(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.writer.lock().closed = true;
        self.cache.close();
        ready(()).boxed()
    }
}
