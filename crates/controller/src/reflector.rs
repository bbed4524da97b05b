//! A typed copy of one collection, kept up to date: what reconcilers read.
//!
//! A reflector lists its collection once, then watches it from the revision of that list. With
//! [`Builder::field`], [`Builder::label`] and [`Builder::namespace`] it lists and watches only some
//! objects: a store elsewhere sends no others, and an object that no longer matches is deleted. When the
//! history it needs is gone, it lists again and works out the difference, deletions included. Any
//! number of controllers share one reflector: each receives every change, in order, beginning with
//! all existing objects.
//!
//! Always true:
//! * The copy is the collection at [`Reflector::revision`], never a mixture of two revisions.
//! * A change is in the copy before subscribers are called: a reconciler woken by a change reads at
//!   least that state.
//! * Indexes are exact: they change in the same step as the objects.
//! * An object that cannot be read as `T` keeps its last readable state. Reporting it as
//!   deleted would be worse: controllers would clean up after it.
//!
//! Enter at [`Reflector::of`]. The module `mirror` is the pure half.

mod mirror;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainstay_clock::{Backoff, Clock, Retries};
use mainstay_store::cache::Collection;
use mainstay_store::object::{Action, Event, Key, Record, Resource, Revision};
use mainstay_store::objects::{self, Objects, Scope};
use mainstay_store::registry::{Kind, Typed};
use mainstay_store::resources::Resources;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::mirror::{Index, Mirror};
use crate::meter::{Meter, NoMeter};
use crate::task::Owned;

/// How long to wait before a collection is watched again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));

/// Why a reflector could not be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has stopped, or its store has closed. Do not retry.
    #[error("the reflector has stopped")]
    Stopped,
}

/// How one object changed. `old` is absent when it is new, `new` when it is gone.
#[derive(Debug)]
pub struct Change<T> {
    /// Which.
    pub key: Key,
    /// The object before the change.
    pub old: Option<Arc<T>>,
    /// The object after the change.
    pub new: Option<Arc<T>>,
}

/// A step for one object: its new state, or `None` if it is gone.
type Step<T> = (Key, Option<(Revision, Arc<T>)>);

/// How far a reflector has come.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    synced: bool,
    revision: Revision,
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

struct Subscribers<T> {
    handlers: BTreeMap<u64, Handler<T>>,
    next: u64,
}

/// The state that readers and the feeding task share.
struct Shared<T> {
    scope: Scope,
    copy: RwLock<Mirror<T>>,
    /// Held while the copy changes and while subscribers are called, so that a new subscriber sees each
    /// change either in the copy or as a change, never both or neither.
    subscribers: Mutex<Subscribers<T>>,
    progress: watch::Sender<Progress>,
    clock: Arc<dyn Clock>,
    meter: Arc<dyn Meter>,
}

impl<T: Typed> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, Mirror<T>> {
        self.copy.read()
    }

    /// Moves the copy to `revision` in one step, then calls every subscriber.
    fn advance(&self, steps: Vec<Step<T>>, revision: Revision) {
        let subscribers = self.subscribers.lock();
        let mut changes = Vec::with_capacity(steps.len());
        {
            let mut copy = self.copy.write();
            for (key, new) in steps {
                changes.extend(copy.set(&key, new));
            }
            copy.revision = revision;
        }
        for change in &changes {
            for handler in subscribers.handlers.values() {
                self.tell(handler, change);
            }
        }
        drop(subscribers);
        let synced = true;
        self.progress.send_replace(Progress { synced, revision });
    }

    fn tell(&self, handler: &Handler<T>, change: &Change<T>) {
        if catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
            let key = &change.key;
            tracing::error!(%key, "a subscriber panicked; the change was not processed");
        }
    }

    fn decode(&self, record: &Record) -> Option<Arc<T>> {
        match mainstay_store::resources::decode(record) {
            Ok(object) => Some(Arc::new(object)),
            Err(error) => {
                tracing::error!(%error, "decoding an object failed; its last state is kept");
                None
            }
        }
    }

    /// The steps from the copy to a collection that was listed.
    async fn difference(&self, collection: &Collection) -> Vec<Step<T>> {
        let listed: Vec<&Arc<Record>> = collection.range(None, None).collect();
        let mut steps: Vec<Step<T>> = {
            let there: BTreeSet<&Key> = listed.iter().map(|record| record.key()).collect();
            let copy = self.read();
            let gone = copy.objects.keys().filter(|key| !there.contains(key));
            gone.map(|key| (key.clone(), None)).collect()
        };
        for (count, record) in listed.into_iter().enumerate() {
            if count % 256 == 255 {
                tokio::task::yield_now().await;
            }
            if self.read().holds(record) {
                continue;
            }
            if let Some(object) = self.decode(record) {
                steps.push((record.key().clone(), Some((record.revision(), object))));
            }
        }
        steps
    }

    /// The steps of changes that were watched.
    fn steps(&self, events: &[Arc<Event>]) -> Vec<Step<T>> {
        let step = |event: &Arc<Event>| {
            let key = event.record.key().clone();
            if event.action == Action::Deleted {
                return Some((key, None));
            }
            let object = self.decode(&event.record)?;
            Some((key, Some((event.revision(), object))))
        };
        events.iter().filter_map(step).collect()
    }
}

/// The one task that changes a copy.
struct Feed<T: Typed> {
    shared: Arc<Shared<T>>,
    objects: Arc<dyn Objects>,
    retries: Retries,
}

impl<T: Typed> Feed<T> {
    async fn run(mut self) {
        loop {
            let listed = self.objects.select(&self.shared.scope).await;
            let error = match listed {
                Ok(collection) => {
                    let steps = self.shared.difference(&collection).await;
                    self.shared.advance(steps, collection.revision());
                    self.follow(collection.revision()).await
                }
                Err(error) => error,
            };
            match error {
                objects::Error::Closed => return,
                objects::Error::Expired { .. } => {
                    self.shared.meter.relisted(self.shared.scope.resource.as_str());
                }
                error => self.pause(&error).await,
            }
        }
    }

    /// Watches for as long as the history reaches, through failures that pass.
    async fn follow(&mut self, mut from: Revision) -> objects::Error {
        loop {
            let watched = self.objects.watch(self.shared.scope.clone(), from).await;
            let error = match watched {
                Ok(mut watch) => loop {
                    self.retries.reset();
                    match watch.next().await {
                        Ok(events) => {
                            from = watch.position();
                            self.shared.advance(self.shared.steps(&events), from);
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match error {
                objects::Error::Unavailable { .. } | objects::Error::Busy { .. } => {
                    self.pause(&error).await;
                }
                error => return error,
            }
        }
    }

    async fn pause(&mut self, error: &objects::Error) {
        let wait = self.retries.failed();
        let collection = &self.shared.scope.resource;
        tracing::warn!(%collection, %error, ?wait, "watching a collection failed; retrying");
        self.shared.clock.sleep(wait).await;
    }
}

/// Describes a reflector before it starts.
pub struct Builder<T> {
    kind: Option<Arc<Kind>>,
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    meter: Arc<dyn Meter>,
    scope: Scope,
    indexes: Vec<Index<T>>,
}

impl<T> Debug for Builder<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let indexes = self.indexes.iter().map(|index| index.name);
        f.debug_struct("Builder")
            .field("scope", &self.scope)
            .field("indexes", &indexes.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<T: Typed> Builder<T> {
    /// Only the objects of one namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.scope.namespace = Some(namespace.to_owned());
        self
    }

    /// Only objects whose field has this value: `spec.nodeName`, `n1`. Called again, both must hold.
    ///
    /// # Panics
    /// If objects of the kind cannot be selected by this field: a mistake in the program, which would
    /// otherwise show as a list that the server refuses for ever.
    #[must_use]
    pub fn field(mut self, field: &str, value: &str) -> Self {
        let fields = &mut self.scope.selection.fields;
        fields.require(field, value);
        if let Some(Err(error)) = self.kind.as_ref().map(|kind| fields.check(kind)) {
            panic!("the reflector of {}: {error}", self.scope.resource);
        }
        self
    }

    /// Only objects whose label has this value. Called again, both must hold.
    #[must_use]
    pub fn label(mut self, label: &str, value: &str) -> Self {
        self.scope.selection.labels.require(label, value);
        self
    }

    /// Declares an index: objects can then be found by any of the values `values` gives for them.
    #[must_use]
    pub fn index<I, V>(
        mut self,
        name: &'static str,
        values: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self
    where
        I: IntoIterator<Item = V>,
        V: Into<String>,
    {
        self.indexes.push(Index {
            name,
            values: Arc::new(move |object| values(object).into_iter().map(Into::into).collect()),
            keys: BTreeSet::new(),
        });
        self
    }

    /// Reports to `meter`.
    #[must_use]
    pub fn meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = meter;
        self
    }

    /// Begins to follow the collection. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(self) -> Reflector<T> {
        let progress = watch::Sender::new(Progress::default());
        let receiver = progress.subscribe();
        let shared = Arc::new(Shared {
            scope: self.scope,
            copy: RwLock::new(Mirror {
                objects: BTreeMap::new(),
                indexes: self.indexes,
                revision: Revision::ZERO,
            }),
            subscribers: Mutex::new(Subscribers { handlers: BTreeMap::new(), next: 0 }),
            progress,
            clock: self.clock,
            meter: self.meter,
        });
        let feed = Feed { shared: shared.clone(), objects: self.objects, retries: RETRY.retries() };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = async move {
            // However it ends, waiting callers must be woken.
            let _end = stopped.clone().drop_guard();
            let _ = stopped.run_until_cancelled(feed.run()).await;
        };
        let task = Owned::spawn(task);
        Reflector { shared, progress: receiver, stop, task }
    }
}

/// A copy of a collection that is kept up to date. Clones are the same copy; it ends with the
/// last of them, or with [`Reflector::shutdown`].
pub struct Reflector<T> {
    shared: Arc<Shared<T>>,
    progress: watch::Receiver<Progress>,
    stop: CancellationToken,
    task: Owned<()>,
}

impl<T> Clone for Reflector<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            progress: self.progress.clone(),
            stop: self.stop.clone(),
            task: self.task.clone(),
        }
    }
}

impl<T> Debug for Reflector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reflector")
            .field("scope", &self.shared.scope)
            .field("progress", &*self.progress.borrow())
            .finish_non_exhaustive()
    }
}

impl<T: Typed> Reflector<T> {
    /// A reflector of every object of kind `T`, to be described further and started.
    #[must_use]
    pub fn of(resources: &Resources) -> Builder<T> {
        Builder {
            kind: resources.kind_of::<T>().ok().cloned(),
            objects: resources.objects().clone(),
            clock: resources.clock().clone(),
            meter: Arc::new(NoMeter),
            scope: Scope::all(&Resource::new(T::GROUP, T::PLURAL)),
            indexes: Vec::new(),
        }
    }

    /// One object, by its key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        let copy = self.shared.read();
        copy.objects.get(key).map(|held| held.1.clone())
    }

    /// One object, by its name.
    #[must_use]
    pub fn find(&self, namespace: Option<&str>, name: &str) -> Option<Arc<T>> {
        self.get(&Key::new(&self.shared.scope.resource, namespace, name))
    }

    /// Every object, in the order of their keys.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<T>> {
        let copy = self.shared.read();
        copy.objects.values().map(|held| held.1.clone()).collect()
    }

    /// Every object of a namespace, in the order of their keys.
    #[must_use]
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<T>> {
        let first = Key::new(&self.shared.scope.resource, Some(namespace), "");
        let copy = self.shared.read();
        let rest = copy.objects.range(first..);
        rest.take_while(|(key, _)| key.namespace() == Some(namespace))
            .map(|(_, held)| held.1.clone())
            .collect()
    }

    /// The objects that an index gave this value, in the order of their keys.
    ///
    /// # Panics
    /// If the index was not declared: a mistake in the program, which must not look like "none".
    #[must_use]
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<T>> {
        self.first_by_index(index, value, usize::MAX)
    }

    /// The same, but only the first of them.
    ///
    /// # Panics
    /// As [`Reflector::by_index`].
    #[must_use]
    pub fn first_by_index(&self, index: &str, value: &str, most: usize) -> Vec<Arc<T>> {
        let copy = self.shared.read();
        let Some(declared) = copy.indexes.iter().find(|known| known.name == index) else {
            let collection = &self.shared.scope.resource;
            drop(copy);
            panic!("the reflector of {collection} has no index \"{index}\"");
        };
        let first = Key::new(&self.shared.scope.resource, None, "");
        let rest = declared.keys.range((Arc::from(value), first)..);
        let keys = rest.take_while(|(other, _)| **other == *value).take(most);
        keys.filter_map(|(_, key)| copy.objects.get(key)).map(|held| held.1.clone()).collect()
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.read().objects.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision the copy shows.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.read().revision
    }

    /// Waits until the collection has been read once.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn wait_until_synced(&self) -> Result<(), Error> {
        self.wait_for(|progress| progress.synced).await
    }

    /// Waits until the copy shows a change of this collection, for the caller that made it: a
    /// reconciler that writes and then reads its reflector would otherwise read the past.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn wait_until_at(&self, revision: Revision) -> Result<(), Error> {
        let there = |progress: &Progress| progress.synced && progress.revision >= revision;
        self.wait_for(there).await
    }

    async fn wait_for(&self, there: impl FnMut(&Progress) -> bool) -> Result<(), Error> {
        let mut progress = self.progress.clone();
        tokio::select! {
            biased;
            reached = progress.wait_for(there) => reached.map(drop).map_err(|_| Error::Stopped),
            () = self.stop.cancelled() => Err(Error::Stopped),
        }
    }

    /// Calls `handler` for every object there is, as if it were new, and from then on for every
    /// change, in order, until the returned guard is dropped.
    ///
    /// The handler must be quick, and must not subscribe to this reflector itself.
    #[must_use]
    pub fn subscribe(&self, handler: impl Fn(&Change<T>) + Send + Sync + 'static) -> Subscription {
        let handler: Handler<T> = Box::new(handler);
        let mut subscribers = self.shared.subscribers.lock();
        let present: Vec<_> = {
            let copy = self.shared.read();
            let pairs = copy.objects.iter();
            pairs.map(|(key, held)| (key.clone(), held.1.clone())).collect()
        };
        for (key, object) in present {
            let new = Some(object);
            self.shared.tell(&handler, &Change { key, old: None, new });
        }
        let id = subscribers.next;
        subscribers.next += 1;
        subscribers.handlers.insert(id, handler);
        let shared: Weak<Shared<T>> = Arc::downgrade(&self.shared);
        Subscription(Some(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                let mut subscribers = shared.subscribers.lock();
                subscribers.handlers.remove(&id);
            }
        })))
    }

    /// Waits until the reflector has stopped: its store has closed, or [`Reflector::shutdown`] was called.
    pub async fn ended(&self) {
        self.stop.cancelled().await;
    }

    /// Stops following and waits until that is done; the copy stays as it is. Calling it again is
    /// harmless.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.task.end().await;
    }
}

/// Drop it to receive no more changes.
pub struct Subscription(Option<Box<dyn FnOnce() + Send>>);

impl Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subscription")
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

#[cfg(test)]
mod tests;
