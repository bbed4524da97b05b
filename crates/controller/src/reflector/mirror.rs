//! The objects of a collection and their indexes, as plain data. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mainstay_store::object::{Key, Record, Revision};

use super::Change;

pub(super) type Values<T> = Arc<dyn Fn(&T) -> Vec<String> + Send + Sync>;

pub(super) struct Index<T> {
    pub(super) name: &'static str,
    pub(super) values: Values<T>,
    /// Each value with the key of each object that has it: most values belong to one object alone.
    pub(super) keys: BTreeSet<(Arc<str>, Key)>,
}

impl<T> Index<T> {
    fn values(&self, object: &T) -> Vec<String> {
        catch_unwind(AssertUnwindSafe(|| (self.values)(object))).unwrap_or_else(|_| {
            tracing::error!(
                index = self.name,
                "an index function panicked; the object is not indexed"
            );
            Vec::new()
        })
    }

    fn remove(&mut self, key: &Key, object: &T) {
        for value in self.values(object) {
            self.keys.remove(&(value.into(), key.clone()));
        }
    }

    fn insert(&mut self, key: &Key, object: &T) {
        for value in self.values(object) {
            self.keys.insert((value.into(), key.clone()));
        }
    }
}

/// The objects of a collection and their indexes, as plain data.
pub(super) struct Mirror<T> {
    pub(super) objects: BTreeMap<Key, (Revision, Arc<T>)>,
    pub(super) indexes: Vec<Index<T>>,
    pub(super) revision: Revision,
}

impl<T> Mirror<T> {
    /// Inserts, replaces or removes an object; returns the change.
    pub(super) fn set(&mut self, key: &Key, new: Option<(Revision, Arc<T>)>) -> Option<Change<T>> {
        let old = match &new {
            Some(held) => self.objects.insert(key.clone(), held.clone()),
            None => self.objects.remove(key),
        };
        let (old, new) = (old.map(|held| held.1), new.map(|held| held.1));
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(key, old);
            }
            if let Some(new) = &new {
                index.insert(key, new);
            }
        }
        let changed = old.is_some() || new.is_some();
        changed.then(|| Change { key: key.clone(), old, new })
    }

    pub(super) fn holds(&self, record: &Record) -> bool {
        let held = self.objects.get(record.key());
        held.is_some_and(|(revision, _)| *revision == record.revision())
    }
}
