//! The readable side of every backend: an immutable state that readers share with the writer.
//!
//! The single writer of a backend builds the next [`State`] from the last one (persistent maps:
//! unchanged parts are shared), makes it durable, and publishes it in one step. Readers load the
//! published state and work on it for as long as they like, without locks.
//!
//! Each collection keeps a log of its recent changes. A [`Watch`] is a cursor into that log: a
//! watcher that falls behind costs nothing, and finds [`Error::Expired`] once the log no longer
//! reaches back to where it was. The same log, walked backwards, gives a collection as it was at
//! an earlier revision.

mod collection;
mod history;
mod interest;
mod state;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch as channel;

use crate::object::{Event, Key, Record, Resource, Revision};
use crate::objects::{At, Error, Scope};

pub use collection::Collection;
pub(crate) use history::RetentionQueue;
use interest::{Interests, Selected};
pub(crate) use state::State;
use watch::Subscription;
pub use watch::Watch;

/// How much history is kept: older changes are forgotten once any of these limits is reached.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// At most this many changes.
    pub events: usize,
    /// At most about this many bytes, counting what the changes keep alive.
    pub bytes: usize,
    /// At most this old.
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events: 200_000, bytes: 64 << 20, age: Duration::from_secs(600) }
    }
}

/// The published state, and the signals that wake watchers.
#[derive(Debug)]
pub(crate) struct Cache {
    state: ArcSwap<State>,
    signals: Mutex<Signals>,
    past: Mutex<VecDeque<PastCollection>>,
    retention: Retention,
}

/// A past state of a collection that was computed and may be requested again: all pages of a long
/// list read the revision of the first.
#[derive(Debug)]
struct PastCollection {
    resource: Resource,
    collection: Collection,
}

/// How many past states of collections are kept.
const PAST_COLLECTIONS: usize = 64;

#[derive(Debug, Default)]
struct Signals {
    /// Sent at every publication.
    any: channel::Sender<()>,
    by_resource: std::collections::BTreeMap<Resource, channel::Sender<()>>,
    /// Of watches that select one value of a field.
    interests: Interests,
    closed: bool,
}

impl Cache {
    pub(crate) fn new(state: State, retention: Retention) -> Self {
        Self {
            state: ArcSwap::from_pointee(state),
            signals: Mutex::default(),
            past: Mutex::default(),
            retention,
        }
    }

    pub(crate) fn retention(&self) -> &Retention {
        &self.retention
    }

    pub(crate) fn load(&self) -> Arc<State> {
        self.state.load_full()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Record>> {
        self.state.load().get(key).cloned()
    }

    pub(crate) fn revision(&self) -> Revision {
        self.state.load().revision
    }

    pub(crate) fn collection(&self, resource: &Resource, at: At) -> Result<Collection, Error> {
        let state = self.state.load();
        let At::Exactly(wanted) = at else {
            return state.collection(resource, at);
        };
        if wanted >= state.revision {
            return state.collection(resource, at);
        }
        state.reaches_back_to(resource, wanted)?;
        let mut past = self.past.lock();
        let is_wanted =
            |it: &&PastCollection| it.resource == *resource && it.collection.revision == wanted;
        if let Some(it) = past.iter().find(is_wanted) {
            return Ok(it.collection.clone());
        }
        let collection = state.collection(resource, at)?;
        past.retain(|it| state.reaches_back_to(&it.resource, it.collection.revision).is_ok());
        if past.len() == PAST_COLLECTIONS {
            past.pop_front();
        }
        past.push_back(PastCollection {
            resource: resource.clone(),
            collection: collection.clone(),
        });
        Ok(collection)
    }

    /// Publishes the next state, and wakes the watches of collections that changed.
    pub(crate) fn publish<'a>(
        &self,
        state: State,
        changed: impl IntoIterator<Item = &'a Resource>,
    ) {
        let mut signals = self.signals.lock();
        let changed: Vec<&Resource> = changed.into_iter().collect();
        let (before, mut concerned) = (self.state.load().revision, Vec::new());
        for resource in &changed {
            if let Some(collection) = state.collections.get(*resource) {
                signals.interests.note(resource, collection, before, &mut concerned);
            }
        }
        self.state.store(Arc::new(state));
        signals.any.send_replace(());
        for resource in changed {
            if let Some(sender) = signals.by_resource.get(resource) {
                sender.send_replace(());
            }
        }
        signals.interests.wake(&concerned);
    }

    /// Publishes a state that does not follow from the last one, and wakes all watches.
    pub(crate) fn publish_all(&self, state: State) {
        let revision = state.revision;
        self.publish(state, []);
        let mut signals = self.signals.lock();
        for sender in signals.by_resource.values() {
            sender.send_replace(());
        }
        signals.interests.reset(revision);
    }

    /// Waits until the state has come to `revision`.
    pub(crate) async fn reached(&self, revision: Revision) {
        let mut published = self.signals.lock().any.subscribe();
        while self.revision() < revision && published.changed().await.is_ok() {}
    }

    /// The change that `key` underwent at `revision`, if it is still remembered.
    pub(crate) fn event_at(&self, key: &Key, revision: Revision) -> Option<Arc<Event>> {
        let state = self.state.load();
        let collection = state.collections.get(key.resource())?;
        let first = collection.first_after(Revision(revision.0.checked_sub(1)?));
        let candidates = collection.log.focus().narrow(first..).into_iter();
        let mut candidates = candidates.take_while(|event| event.revision() == revision);
        candidates.find(|event| event.record.key() == key).cloned()
    }

    /// Ends every watch once it has seen everything.
    pub(crate) fn close(&self) {
        let mut signals = self.signals.lock();
        signals.closed = true;
        signals.any = channel::Sender::default();
        signals.by_resource.clear();
        signals.interests = Interests::default();
    }

    pub(crate) fn watch(self: &Arc<Self>, scope: Scope, from: Revision) -> Result<Watch, Error> {
        let subscription = {
            let mut signals = self.signals.lock();
            if signals.closed {
                return Err(Error::Closed);
            }
            let selected = Selected::of(&scope);
            let published = match &selected {
                Some(selected) => {
                    let now = self.revision();
                    signals.interests.subscribe(&scope.resource, selected, now)
                }
                None => {
                    let sender = signals.by_resource.entry(scope.resource.clone());
                    sender.or_insert_with(|| channel::Sender::new(())).subscribe()
                }
            };
            Subscription {
                cache: self.clone(),
                resource: scope.resource.clone(),
                selected,
                published,
            }
        };
        let state = self.state.load();
        if from > state.revision {
            return Err(Error::TooNew { requested: from, current: state.revision });
        }
        state.reaches_back_to(&scope.resource, from)?;
        Ok(Watch { subscription, scope, position: from, examined: 0 })
    }
}
