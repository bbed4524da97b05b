//! The state of a store at one revision: its objects and their recent changes.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};

use crate::object::{Action, Entry, Event, Key, Record, Resource, Revision};
use crate::objects::{At, Change, Error, Write};
use crate::seal::is_data_keys;
use crate::snapshot::Snapshot;

use super::Collection;

/// One collection: its objects and its recent past.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectionState {
    pub(super) objects: OrdSet<Entry>,
    pub(super) log: Vector<Arc<Event>>,
    /// Everything after this revision is still in `log`.
    floor: Revision,
}

impl CollectionState {
    /// The position in `log` of the first change after `from`.
    pub(super) fn first_after(&self, from: Revision) -> usize {
        // Callers are seldom far behind: search from the end in growing steps, then between two of them.
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

    /// Everything after this revision is still in the log.
    pub(super) fn floor(&self) -> Revision {
        self.floor
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
    pub(super) collections: OrdMap<Resource, CollectionState>,
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
        self.collection_mut(record.key().resource().clone()).objects.insert(Entry(record));
    }

    /// Puts a change at the end of the log without touching the objects: for loading.
    pub(crate) fn load_event(&mut self, event: Arc<Event>) {
        self.collection_mut(event.record.key().resource().clone()).log.push_back(event);
    }

    fn collection_mut(&mut self, resource: Resource) -> &mut CollectionState {
        let floor = self.floor;
        self.collections
            .entry(resource)
            .or_insert_with(|| CollectionState { floor, ..CollectionState::default() })
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Record>> {
        self.collections.get(key.resource())?.objects.get(key.path()).map(|entry| &entry.0)
    }

    /// The objects of one collection.
    pub(crate) fn members(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Record>> {
        let collection = self.collections.get(resource);
        collection
            .into_iter()
            .flat_map(|collection| collection.objects.iter().map(|entry| &entry.0))
    }

    /// Whether an object is there, and no other of its collection.
    pub(crate) fn holds_only(&self, key: &Key) -> bool {
        self.all_served(key.resource()).is_ok()
            && self.collections.get(key.resource()).is_some_and(|collection| {
                collection.objects.len() == 1 && collection.objects.get(key.path()).is_some()
            })
    }

    /// Notes that the stored value of an object is not as it was written. The record from before
    /// stays, for the change that mends it; it is not served meanwhile.
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

    /// Fails with the problem of an object that must not be served.
    pub(crate) fn served(&self, key: &Key) -> Result<(), Error> {
        match self.damaged.get(key) {
            Some(problem) => Err(Error::Unavailable { reason: problem.to_string() }),
            None => Ok(()),
        }
    }

    /// Fails with a problem of a collection that cannot be served completely.
    pub(crate) fn all_served(&self, resource: &Resource) -> Result<(), Error> {
        let damaged = self.damaged.keys().find(|key| key.resource() == resource);
        damaged.map_or(Ok(()), |key| self.served(key))
    }

    /// Checks a write against this state and returns the event that it causes at `revision`.
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
        self.collection_mut(event.record.key().resource().clone()).log.push_back(event);
    }

    /// Carries out a change without a trace in the log, at whichever version: its history must be
    /// cut afterwards.
    pub(crate) fn replace(&mut self, event: &Event) {
        self.changes += 1;
        let collection = self.collection_mut(event.record.key().resource().clone());
        match event.action {
            Action::Deleted => drop(collection.objects.remove(event.record.key().path())),
            Action::Added | Action::Modified => {
                collection.objects.insert(Entry(event.record.clone()));
            }
        }
    }

    /// Forgets the oldest change of a collection.
    pub(super) fn forget_first(&mut self, resource: &Resource) {
        if let Some(collection) = self.collections.get_mut(resource)
            && let Some(event) = collection.log.pop_front()
        {
            collection.floor = event.revision();
        }
    }

    /// Raises every floor to `through`: asked-for compaction expires quiet collections too.
    pub(super) fn raise_floor(&mut self, through: Revision) {
        let resources: Vec<_> = self.collections.keys().cloned().collect();
        for resource in resources {
            if let Some(collection) = self.collections.get_mut(&resource) {
                collection.floor = collection.floor.max(through);
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
        let view = |collection: &CollectionState| {
            let objects = collection.objects.clone();
            Collection { revision, changes, objects }
        };
        let oldest =
            self.collections.values().map(|collection| collection.floor).max().unwrap_or_default();
        Snapshot {
            revision,
            oldest: oldest.max(self.floor),
            collections: self
                .collections
                .iter()
                .filter(|(_, collection)| !collection.objects.is_empty())
                .map(|(resource, collection)| (resource.clone(), view(collection)))
                .collect(),
            damaged: Vec::new(),
        }
    }

    /// Everything but the objects whose stored value is damaged. A data key stays as it was last
    /// read, because the server goes on with that.
    pub(crate) fn readable(&self) -> Snapshot {
        let mut snapshot = self.snapshot();
        for (key, problem) in &self.damaged {
            snapshot.damaged.push(problem.to_string());
            if is_data_keys(key.resource()) {
                continue;
            }
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
            let objects = self
                .collections
                .get(resource)
                .map(|collection| collection.objects.clone())
                .unwrap_or_default();
            return Ok(Collection { revision: current, changes: self.changes, objects });
        };
        if wanted > current {
            return Err(Error::TooNew { requested: wanted, current });
        }
        if matches!(at, At::NotOlderThan(_)) {
            return self.collection(resource, At::Latest);
        }
        self.reaches_back_to(resource, wanted)?;
        let Some(collection) = self.collections.get(resource) else {
            let objects = OrdSet::default();
            return Ok(Collection { revision: wanted, changes: self.changes, objects });
        };
        let since = collection.log.len() - collection.first_after(wanted);
        let changes = self.changes.saturating_sub(u64::try_from(since).unwrap_or_default());
        Ok(Collection { revision: wanted, changes, objects: collection.at(wanted) })
    }

    pub(super) fn reaches_back_to(
        &self,
        resource: &Resource,
        requested: Revision,
    ) -> Result<(), Error> {
        let oldest =
            self.collections.get(resource).map_or(self.floor, |collection| collection.floor);
        if requested < oldest { Err(Error::Expired { requested, oldest }) } else { Ok(()) }
    }
}
