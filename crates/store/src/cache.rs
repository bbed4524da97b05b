//! The readable side of every backend: an immutable state that readers share with the writer.
//!
//! The single writer of a backend builds the next [`State`] from the last one (persistent maps:
//! unchanged parts are shared), makes it durable, and publishes it in one step. Readers load the
//! published state and work on it for as long as they like; nobody waits for anybody.
//!
//! Each collection keeps a log of its recent changes. A [`Watch`] is a cursor into that log: a
//! watcher that falls behind costs nothing, and finds [`Error::Expired`] once the log no longer
//! reaches back to where it was. The same log, walked backwards, gives a collection as it was at
//! an earlier revision.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::{OrdMap, OrdSet, Vector};
use jiff::Timestamp;
use tokio::sync::watch;

use crate::object::{Action, Entry, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Scope, Write};
use crate::snapshot::Snapshot;

/// How much history is kept. Whatever is reached first trims it.
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

/// The most events [`Watch::next`] returns at once.
const BATCH: usize = 256;

/// One collection: its objects and its recent past.
#[derive(Clone, Debug, Default)]
struct Shelf {
    objects: OrdSet<Entry>,
    log: Vector<Arc<Event>>,
    /// Everything after this revision is still in `log`.
    floor: Revision,
}

impl Shelf {
    /// The position in `log` of the first change after `from`.
    fn first_after(&self, from: Revision) -> usize {
        // Whoever asks is seldom far behind: from the end in growing steps, then between two of them.
        let (end, mut step) = (self.log.len(), 1);
        while step <= end && self.log[end - step].revision() > from {
            step *= 2;
        }
        let (mut low, mut high) = (end.saturating_sub(step), end - step / 2);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.log[middle].revision() <= from { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn at(&self, revision: Revision) -> OrdSet<Entry> {
        let mut objects = self.objects.clone();
        let since = self.log.focus().narrow(self.first_after(revision)..);
        for event in since.into_iter().rev() {
            match &event.previous {
                Some(previous) => drop(objects.insert(Entry(previous.clone()))),
                None => drop(objects.remove(event.record.key().path())),
            }
        }
        objects
    }
}

/// Everything a backend knows at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    shelves: OrdMap<Resource, Shelf>,
    /// How many changes were made to it. Revisions may leave gaps.
    changes: u64,
    /// Objects whose stored value is not as it was written, and what is wrong with each.
    damaged: OrdMap<Key, Arc<str>>,
    /// Objects whose stored value was rewritten without a change of the object, and the revision
    /// of etcd that did it.
    rewritten: OrdMap<Key, i64>,
    /// History before this is gone whichever collection it belonged to.
    floor: Revision,
}

impl State {
    /// A state without history, as it is after loading: changes up to `floor` cannot be watched.
    pub(crate) fn new(revision: Revision, floor: Revision) -> Self {
        Self { revision, floor, ..Self::default() }
    }

    /// Puts an object in place without a trace in the log: for loading.
    pub(crate) fn load(&mut self, record: Arc<Record>) {
        self.shelf(record.key().resource().clone()).objects.insert(Entry(record));
    }

    /// Puts a change at the end of the log without touching the objects: for loading.
    pub(crate) fn load_event(&mut self, event: Arc<Event>) {
        self.shelf(event.record.key().resource().clone()).log.push_back(event);
    }

    fn shelf(&mut self, resource: Resource) -> &mut Shelf {
        let floor = self.floor;
        self.shelves.entry(resource).or_insert_with(|| Shelf { floor, ..Shelf::default() })
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Record>> {
        self.shelves.get(key.resource())?.objects.get(key.path()).map(|entry| &entry.0)
    }

    /// The objects of one collection.
    pub(crate) fn members(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Record>> {
        let shelf = self.shelves.get(resource);
        shelf.into_iter().flat_map(|shelf| shelf.objects.iter().map(|entry| &entry.0))
    }

    /// Whether an object is there, and no other of its collection.
    pub(crate) fn holds_only(&self, key: &Key) -> bool {
        self.all_served(key.resource()).is_ok()
            && self.shelves.get(key.resource()).is_some_and(|shelf| {
                shelf.objects.len() == 1 && shelf.objects.get(key.path()).is_some()
            })
    }

    /// Notes that the stored value of an object is not as it was written. What it was before stays,
    /// for the change that mends it; it is not to be served meanwhile.
    pub(crate) fn damage(&mut self, key: Key, problem: String) {
        self.damaged.insert(key, problem.into());
    }

    /// Notes that an object's value is as it was written, or gone.
    pub(crate) fn mend(&mut self, key: &Key) {
        self.damaged.remove(key);
    }

    /// Notes the revision of etcd that rewrote an object's stored value without changing the
    /// object; `None` if the value was last written by a change.
    pub(crate) fn note_rewritten(&mut self, key: &Key, at: Option<i64>) {
        match at {
            Some(at) => drop(self.rewritten.insert(key.clone(), at)),
            None if self.rewritten.is_empty() => {}
            None => drop(self.rewritten.remove(key)),
        }
    }

    /// The revision of etcd that rewrote an object's stored value since its last change.
    pub(crate) fn rewritten(&self, key: &Key) -> Option<i64> {
        self.rewritten.get(key).copied()
    }

    /// The damaged objects, and what is wrong with each.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.damaged.iter().map(|(key, problem)| (key, &**problem))
    }

    /// Says what is wrong with an object that must not be served.
    pub(crate) fn served(&self, key: &Key) -> Result<(), Error> {
        match self.damaged.get(key) {
            Some(problem) => Err(Error::Unavailable { reason: problem.to_string() }),
            None => Ok(()),
        }
    }

    /// Says what is wrong with a collection that cannot be served whole.
    pub(crate) fn all_served(&self, resource: &Resource) -> Result<(), Error> {
        let damaged = self.damaged.keys().find(|key| key.resource() == resource);
        damaged.map_or(Ok(()), |key| self.served(key))
    }

    /// Checks a write against this state and says what it would do at `revision`.
    pub(crate) fn judge(&self, write: &Write, revision: Revision) -> Result<Event, Error> {
        if let Some(fence) = &write.fence {
            let holds = self.get(&fence.key).is_some_and(|record| record.revision() == fence.token);
            if !holds {
                let lease = fence.key.name().to_owned();
                return Err(Error::Fenced { lease, token: fence.token });
            }
        }
        let key = &write.key;
        let current = self.get(key).cloned();
        let expect = |expected: Revision| match &current {
            None => Err(Error::NotFound { key: key.clone() }),
            Some(record) if record.revision() != expected => {
                let actual = record.revision();
                Err(Error::Conflict { key: key.clone(), expected, actual })
            }
            Some(record) => Ok(record.clone()),
        };
        match &write.change {
            Change::Create(_) if current.is_some() => {
                Err(Error::AlreadyExists { key: key.clone() })
            }
            Change::Create(body) => Ok(Event::new(
                Action::Added,
                Arc::new(body.at(key.clone(), revision, revision)),
                None,
            )),
            Change::Update(expected, body) => {
                let previous = expect(*expected)?;
                let record =
                    Arc::new(body.at(previous.key().clone(), previous.created(), revision));
                Ok(Event::new(Action::Modified, record, Some(previous)))
            }
            Change::Delete(expected) => {
                let previous = expect(*expected)?;
                let record = Arc::new(previous.at(revision));
                Ok(Event::new(Action::Deleted, record, Some(previous)))
            }
        }
    }

    /// Carries out a change that [`State::judge`] allowed.
    pub(crate) fn apply(&mut self, event: Arc<Event>) {
        assert!(event.revision() > self.revision, "each change has a later revision");
        self.revision = event.revision();
        self.replace(&event);
        self.shelf(event.record.key().resource().clone()).log.push_back(event);
    }

    /// Carries out a change without a trace in the log, at whichever version: its history must be
    /// cut afterwards.
    pub(crate) fn replace(&mut self, event: &Event) {
        self.changes += 1;
        let shelf = self.shelf(event.record.key().resource().clone());
        match event.action {
            Action::Deleted => drop(shelf.objects.remove(event.record.key().path())),
            Action::Added | Action::Modified => {
                shelf.objects.insert(Entry(event.record.clone()));
            }
        }
    }

    /// Forgets the oldest change of a collection.
    fn forget_first(&mut self, resource: &Resource) {
        if let Some(shelf) = self.shelves.get_mut(resource)
            && let Some(event) = shelf.log.pop_front()
        {
            shelf.floor = event.revision();
        }
    }

    /// Raises every floor to `through`: asked-for compaction expires quiet collections too.
    fn raise_floor(&mut self, through: Revision) {
        let resources: Vec<_> = self.shelves.keys().cloned().collect();
        for resource in resources {
            if let Some(shelf) = self.shelves.get_mut(&resource) {
                shelf.floor = shelf.floor.max(through);
            }
        }
        self.floor = self.floor.max(through);
    }

    /// Moves on to `to` without a change, and forgets what was before. Only ever forwards.
    pub(crate) fn advance(&mut self, to: Revision) {
        self.revision = self.revision.max(to);
    }

    /// Everything there is.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (revision, changes) = (self.revision, self.changes);
        let collection =
            |shelf: &Shelf| Collection { revision, changes, objects: shelf.objects.clone() };
        let oldest = self.shelves.values().map(|shelf| shelf.floor).max().unwrap_or_default();
        Snapshot {
            revision,
            oldest: oldest.max(self.floor),
            collections: self
                .shelves
                .iter()
                .filter(|(_, shelf)| !shelf.objects.is_empty())
                .map(|(resource, shelf)| (resource.clone(), collection(shelf)))
                .collect(),
        }
    }

    /// Everything but the objects whose stored value is damaged.
    pub(crate) fn readable(&self) -> Snapshot {
        let mut snapshot = self.snapshot();
        for key in self.damaged.keys() {
            let of = snapshot.collections.iter_mut().find(|(it, _)| it == key.resource());
            if let Some((_, collection)) = of {
                collection.objects.remove(key.path());
            }
        }
        snapshot
    }

    pub(crate) fn collection(&self, resource: &Resource, at: At) -> Result<Collection, Error> {
        let current = self.revision;
        let (At::Exactly(wanted) | At::NotOlderThan(wanted)) = at else {
            let objects =
                self.shelves.get(resource).map(|shelf| shelf.objects.clone()).unwrap_or_default();
            return Ok(Collection { revision: current, changes: self.changes, objects });
        };
        if wanted > current {
            return Err(Error::TooNew { requested: wanted, current });
        }
        if matches!(at, At::NotOlderThan(_)) {
            return self.collection(resource, At::Latest);
        }
        self.reaches_back_to(resource, wanted)?;
        let Some(shelf) = self.shelves.get(resource) else {
            let objects = OrdSet::default();
            return Ok(Collection { revision: wanted, changes: self.changes, objects });
        };
        let since = shelf.log.len() - shelf.first_after(wanted);
        let changes = self.changes.saturating_sub(u64::try_from(since).unwrap_or_default());
        Ok(Collection { revision: wanted, changes, objects: shelf.at(wanted) })
    }

    fn reaches_back_to(&self, resource: &Resource, requested: Revision) -> Result<(), Error> {
        let oldest = self.shelves.get(resource).map_or(self.floor, |shelf| shelf.floor);
        if requested < oldest { Err(Error::Expired { requested, oldest }) } else { Ok(()) }
    }
}

/// An immutable view of one collection at one revision.
#[derive(Clone, Debug)]
pub struct Collection {
    revision: Revision,
    changes: u64,
    objects: OrdSet<Entry>,
}

impl Collection {
    /// A collection put together from records, for backends that fetch rather than cache. It counts
    /// as many changes as its revision.
    #[must_use]
    pub fn new(revision: Revision, records: impl IntoIterator<Item = Arc<Record>>) -> Self {
        let objects = records.into_iter().map(Entry).collect();
        Self { revision, changes: revision.0, objects }
    }

    /// The revision it shows.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many changes its store had seen: two views of one store differ by at most the changes
    /// between them.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The objects of a scope, at the same revision.
    #[must_use]
    pub fn narrowed(self, scope: &Scope) -> Self {
        if *scope == Scope::all(&scope.resource) {
            return self;
        }
        let objects = self
            .range(scope.namespace.as_deref(), None)
            .filter(|record| scope.contains(record.key()) && scope.selection.matches(record))
            .map(|record| Entry(record.clone()))
            .collect();
        Self { objects, ..self }
    }

    /// The objects of both, at the newer of their revisions.
    pub(crate) fn united(self, other: Self) -> Self {
        Self {
            revision: self.revision.max(other.revision),
            changes: self.changes.max(other.changes),
            objects: self.objects.union(other.objects),
        }
    }

    /// How many objects it has, whatever their namespace.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// One object of it.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Arc<Record>> {
        self.objects.get(key.path()).map(|entry| &entry.0)
    }

    /// Its objects in order of their paths, of one namespace or of all, beginning behind the path
    /// `after` (of an object that need not exist any more).
    pub fn range<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Record>> + use<'a> {
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let start = match after {
            Some(after) if after >= prefix.as_str() => Bound::Excluded(after),
            _ => Bound::Included(prefix.as_str()),
        };
        let records = self.objects.range::<_, str>((start, Bound::Unbounded)).map(|entry| &entry.0);
        records.take_while(move |record| record.key().path().starts_with(&prefix))
    }
}

/// The published state, and the bells that tell watchers to look again.
#[derive(Debug)]
pub(crate) struct Cache {
    state: ArcSwap<State>,
    bells: Mutex<Bells>,
    pins: Mutex<VecDeque<Pin>>,
    retention: Retention,
}

/// A past state of a collection that was worked out and may be asked for again: the later pages
/// of a long list all read the revision of the first.
#[derive(Debug)]
struct Pin {
    resource: Resource,
    collection: Collection,
}

/// How many past states are kept at hand.
const PINS: usize = 64;

#[derive(Debug, Default)]
struct Bells {
    /// Rings at every publication.
    any: watch::Sender<()>,
    by_resource: std::collections::BTreeMap<Resource, watch::Sender<()>>,
    closed: bool,
}

/// The writer's private half: the order in which history is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    order: VecDeque<Kept>,
    counted: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    revision: Revision,
    resource: Resource,
    counted: bool,
    weight: usize,
    at: Timestamp,
}

impl Ledger {
    /// Notes that `event` is now part of the history.
    pub(crate) fn note(&mut self, event: &Event, at: Timestamp) {
        self.push(event, at, true);
    }

    /// The same for what a store writes for itself, however often: it does not count against the
    /// number of changes that are kept.
    pub(crate) fn note_aside(&mut self, event: &Event, at: Timestamp) {
        self.push(event, at, false);
    }

    fn push(&mut self, event: &Event, at: Timestamp, counted: bool) {
        let (revision, weight) = (event.revision(), event.weight());
        let resource = event.record.key().resource().clone();
        self.counted += usize::from(counted);
        self.bytes += weight;
        self.order.push_back(Kept { revision, resource, counted, weight, at });
    }

    /// Forgets what is too much or too old, and says up to which revision everything is forgotten.
    pub(crate) fn trim(
        &mut self,
        state: &mut State,
        retention: &Retention,
        now: Timestamp,
    ) -> Option<Revision> {
        let oldest = now.checked_sub(retention.age).unwrap_or(Timestamp::MIN);
        self.forget_while(state, |ledger, first| {
            ledger.counted > retention.events || ledger.bytes > retention.bytes || first.at < oldest
        })
    }

    /// Forgets everything up to and including `through`.
    pub(crate) fn compact(&mut self, state: &mut State, through: Revision) {
        self.forget_while(state, |_, first| first.revision <= through);
        state.raise_floor(through.min(state.revision));
    }

    fn forget_while(
        &mut self,
        state: &mut State,
        condition: impl Fn(&Self, &Kept) -> bool,
    ) -> Option<Revision> {
        let mut last = None;
        while self.order.front().is_some_and(|first| condition(self, first)) {
            let Some(kept) = self.order.pop_front() else {
                break;
            };
            self.counted -= usize::from(kept.counted);
            self.bytes -= kept.weight;
            state.forget_first(&kept.resource);
            last = Some(kept.revision);
        }
        last
    }
}

impl Cache {
    pub(crate) fn new(state: State, retention: Retention) -> Self {
        Self {
            state: ArcSwap::from_pointee(state),
            bells: Mutex::default(),
            pins: Mutex::default(),
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
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = |pin: &&Pin| pin.resource == *resource && pin.collection.revision == wanted;
        if let Some(pin) = pins.iter().find(pinned) {
            return Ok(pin.collection.clone());
        }
        let collection = state.collection(resource, at)?;
        pins.retain(|pin| state.reaches_back_to(&pin.resource, pin.collection.revision).is_ok());
        if pins.len() == PINS {
            pins.pop_front();
        }
        pins.push_back(Pin { resource: resource.clone(), collection: collection.clone() });
        Ok(collection)
    }

    /// Shows readers the next state, and wakes those who watch a collection that changed.
    pub(crate) fn publish<'a>(
        &self,
        state: State,
        changed: impl IntoIterator<Item = &'a Resource>,
    ) {
        self.state.store(Arc::new(state));
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.any.send_replace(());
        for resource in changed {
            if let Some(bell) = bells.by_resource.get(resource) {
                bell.send_replace(());
            }
        }
    }

    /// Shows readers a state that has nothing to do with the last one.
    pub(crate) fn publish_all(&self, state: State) {
        self.publish(state, []);
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in bells.by_resource.values() {
            bell.send_replace(());
        }
    }

    /// Waits until the state has come to `revision`.
    pub(crate) async fn reached(&self, revision: Revision) {
        let mut bell = {
            let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
            bells.any.subscribe()
        };
        while self.revision() < revision && bell.changed().await.is_ok() {}
    }

    /// The change that `key` underwent at `revision`, if it is still remembered.
    pub(crate) fn event_at(&self, key: &Key, revision: Revision) -> Option<Arc<Event>> {
        let state = self.state.load();
        let shelf = state.shelves.get(key.resource())?;
        let first = shelf.first_after(Revision(revision.0.checked_sub(1)?));
        let candidates = shelf.log.focus().narrow(first..).into_iter();
        let mut candidates = candidates.take_while(|event| event.revision() == revision);
        candidates.find(|event| event.record.key() == key).cloned()
    }

    /// Ends every watch once it has seen everything.
    pub(crate) fn close(&self) {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.closed = true;
        bells.any = watch::Sender::default();
        bells.by_resource.clear();
    }

    pub(crate) fn watch(self: &Arc<Self>, scope: Scope, from: Revision) -> Result<Watch, Error> {
        let bell = {
            let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
            if bells.closed {
                return Err(Error::Closed);
            }
            let sender = bells.by_resource.entry(scope.resource.clone());
            sender.or_insert_with(|| watch::Sender::new(())).subscribe()
        };
        let state = self.state.load();
        if from > state.revision {
            return Err(Error::TooNew { requested: from, current: state.revision });
        }
        state.reaches_back_to(&scope.resource, from)?;
        Ok(Watch { cache: self.clone(), scope, position: from, bell })
    }
}

/// A cursor over the changes of a scope.
#[derive(Debug)]
pub struct Watch {
    cache: Arc<Cache>,
    scope: Scope,
    position: Revision,
    bell: watch::Receiver<()>,
}

impl Watch {
    /// Waits for changes and returns them in order, at least one and at most a few hundred.
    ///
    /// Safe to cancel: what was not returned will be returned by the next call.
    ///
    /// # Errors
    /// [`Error::Expired`] if the watcher was too slow: list again. [`Error::Closed`] at shutdown.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        loop {
            self.bell.mark_unchanged();
            let events = self.ready()?;
            if !events.is_empty() {
                return Ok(events);
            }
            if self.bell.changed().await.is_err() {
                let rest = self.ready()?;
                return if rest.is_empty() { Err(Error::Closed) } else { Ok(rest) };
            }
        }
    }

    /// The changes that are there already, possibly none. Same promises as [`Watch::next`].
    ///
    /// # Errors
    /// [`Error::Expired`] if the watcher was too slow.
    pub fn ready(&mut self) -> Result<Vec<Arc<Event>>, Error> {
        let state = self.cache.state.load();
        if self.position >= state.revision {
            return Ok(Vec::new());
        }
        state.reaches_back_to(&self.scope.resource, self.position)?;
        let mut events = Vec::new();
        let mut seen = Revision::ZERO;
        if let Some(shelf) = state.shelves.get(&self.scope.resource) {
            for event in shelf.log.focus().narrow(shelf.first_after(self.position)..) {
                if events.len() == BATCH {
                    break;
                }
                seen = event.revision();
                events.extend(self.seen(event));
            }
        }
        self.position = if events.len() < BATCH { state.revision } else { seen };
        Ok(events)
    }

    /// A change as this watch reports it, if it does.
    fn seen(&self, event: &Arc<Event>) -> Option<Arc<Event>> {
        if !self.scope.contains(event.record.key()) {
            return None;
        }
        if self.scope.selection.is_everything() {
            return Some(event.clone());
        }
        let action = self.scope.selection.action(event)?;
        if action == event.action {
            return Some(event.clone());
        }
        let record = match (action, &event.previous) {
            (Action::Deleted, Some(previous)) => Arc::new(previous.at(event.revision())),
            _ => event.record.clone(),
        };
        Some(Arc::new(Event::new(action, record, event.previous.clone())))
    }

    /// The revision up to which this watch has returned everything: what a bookmark says.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }
}
