//! An immutable view of one collection.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdSet;

use crate::object::{Entry, Key, Record, Revision};
use crate::objects::Scope;

/// An immutable view of one collection at one revision.
#[derive(Clone, Debug)]
pub struct Collection {
    pub(super) revision: Revision,
    pub(super) changes: u64,
    pub(super) objects: OrdSet<Entry>,
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
