//! A model of a store in a hundred lines: a list of changes, from which everything else follows.

use std::collections::BTreeMap;

use mainstay_store::object::{Action, Key, Resource, Revision};
use mainstay_store::objects::Scope;
use serde_json::Value;

/// One change that was acknowledged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) revision: Revision,
    pub(crate) action: Action,
    pub(crate) key: Key,
    /// The value after the change; for a deletion the value before it.
    pub(crate) value: Value,
}

/// All that ever happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    history: Vec<Entry>,
    compacted: Revision,
    /// Before this the store may have forgotten, but need not.
    forgotten: Revision,
}

impl Model {
    pub(crate) fn record(&mut self, entry: Entry) {
        assert!(entry.revision > self.revision(), "a revision did not grow: {entry:?}");
        self.history.push(entry);
    }

    pub(crate) fn revision(&self) -> Revision {
        self.history.last().map_or(Revision::ZERO, |entry| entry.revision)
    }

    pub(crate) fn compact(&mut self, through: Revision) {
        self.compacted = self.compacted.max(through.min(self.revision()));
    }

    pub(crate) fn forget_everything(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn forget_history(&mut self, before: Revision) {
        self.forgotten = self.forgotten.max(before);
    }

    /// The objects at `revision`: their values and the revisions of their last change.
    pub(crate) fn at(&self, revision: Revision) -> BTreeMap<Key, (Value, Revision)> {
        let mut objects = BTreeMap::new();
        for entry in self.history.iter().filter(|entry| entry.revision <= revision) {
            match entry.action {
                Action::Deleted => drop(objects.remove(&entry.key)),
                Action::Added | Action::Modified => {
                    objects.insert(entry.key.clone(), (entry.value.clone(), entry.revision));
                }
            }
        }
        objects
    }

    pub(crate) fn get(&self, key: &Key) -> Option<(Value, Revision)> {
        self.at(self.revision()).get(key).cloned()
    }

    /// The events that a watch of `scope` from `from` must see.
    pub(crate) fn since(&self, scope: &Scope, from: Revision) -> Vec<Entry> {
        let wanted = |entry: &&Entry| {
            entry.revision > from
                && *entry.key.resource() == scope.resource
                && scope.contains(&entry.key)
        };
        self.history.iter().filter(wanted).cloned().collect()
    }

    /// Whether history from `revision` on was thrown away by request.
    pub(crate) fn is_compacted(&self, revision: Revision) -> bool {
        revision < self.compacted
    }

    /// Whether the store may say that `revision` has expired, if it keeps `kept` changes.
    pub(crate) fn may_expire(&self, revision: Revision, kept: usize) -> bool {
        let since = self.history.iter().filter(|entry| entry.revision > revision).count();
        self.is_compacted(revision) || revision < self.forgotten || since > kept
    }

    /// The revision `back` changes ago.
    pub(crate) fn revision_back(&self, back: usize) -> Revision {
        let index = self.history.len().checked_sub(back + 1);
        index.map_or(Revision::ZERO, |index| self.history[index].revision)
    }

    pub(crate) fn of(
        &self,
        resource: &Resource,
        revision: Revision,
    ) -> Vec<(Key, Value, Revision)> {
        let objects = self.at(revision).into_iter();
        let mine = objects.filter(|(key, _)| key.resource() == resource);
        let mut mine: Vec<_> = mine.map(|(key, (value, at))| (key, value, at)).collect();
        mine.sort_by(|a, b| a.0.path().cmp(b.0.path()));
        mine
    }
}
