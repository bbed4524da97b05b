//! Finds the objects of one node without looking at all others.
//!
//! Agents list and watch with a field selector on their node ([`crate::authorize`] requires it), and
//! a thousand of them must not look at every disk of the cluster each. For the kinds that agents
//! read, an [`Index`] has the keys of each node's objects. It is built when first needed and follows
//! the changes of its collection from then on. Enter at [`Owners::narrow`].
//!
//! Invariant: a narrowed collection has every object that the selector matches, at the revision of
//! the whole one; the selector itself is still asked about each. Where the index cannot promise that,
//! the whole collection is looked at.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use mainstay_store::cache::{Collection, Watch};
use mainstay_store::object::{Key, Record, Resource, Revision};
use mainstay_store::objects::At;
use mainstay_store::registry::Kind;
use mainstay_store::resources::Resources;
use mainstay_store::select::FieldSelector;
use parking_lot::Mutex as Lock;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::authorize::table;

/// Smaller collections are looked at whole.
const SMALL: usize = 512;
/// How many changes an index remembers, for collections that are older than it.
const REMEMBERED: usize = 4096;

/// The indexes of all collections that agents read.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    followed: Lock<HashMap<Resource, Arc<Mutex<Option<Followed>>>>>,
}

/// An index, and the changes that it follows.
#[derive(Debug)]
struct Followed {
    index: Index,
    changes: Watch,
}

impl Owners {
    /// The objects of a collection that a field selector on a node can match; nothing if the
    /// collection must be looked at whole.
    pub(crate) async fn narrow(
        &self,
        resources: &Resources,
        kind: &Kind,
        fields: Option<&str>,
        whole: &Collection,
    ) -> Option<Collection> {
        let field = table::ownership(kind.group, kind.plural)?.field()?;
        if whole.len() <= SMALL || field == "metadata.name" {
            return None;
        }
        let selector = FieldSelector::parse(fields?).ok()?;
        let node = selector.exactly(field)?;
        let followed = self.followed.lock().entry(kind.resource().clone()).or_default().clone();
        let mut followed = followed.lock().await;
        if followed.is_none() {
            *followed = Some(Followed::start(resources, kind, field).await?);
        }
        let current = followed.as_mut()?;
        if current.catch_up().is_none() {
            // It fell behind the history: the next list builds it anew.
            *followed = None;
            return None;
        }
        let keys = current.index.of(node, whole.revision())?;
        let records = keys.iter().filter_map(|key| whole.get(key).cloned());
        Some(Collection::new(whole.revision(), records))
    }
}

impl Followed {
    async fn start(resources: &Resources, kind: &Kind, field: &'static str) -> Option<Self> {
        let now = resources.list(kind, At::Latest).await.ok()?;
        let changes = resources.watch(kind, None, None, now.revision()).await.ok()?;
        let mut index = Index::new(field, now.revision());
        for record in now.range(None, None) {
            index.insert(record);
        }
        Some(Self { index, changes })
    }

    /// Applies the changes that are there.
    fn catch_up(&mut self) -> Option<()> {
        loop {
            let events = self.changes.ready().ok()?;
            if events.is_empty() {
                self.index.revision = self.index.revision.max(self.changes.position());
                return Some(());
            }
            for event in events {
                let gone = event.action == mainstay_store::object::Action::Deleted;
                let now = (!gone).then_some(&event.record);
                self.index.change(event.previous.as_ref(), now, event.revision());
            }
        }
    }
}

/// The keys of each node's objects. Plain data.
#[derive(Debug)]
struct Index {
    field: &'static str,
    by_node: HashMap<String, BTreeSet<Key>>,
    /// The newest changes: objects that a node had before them.
    before: VecDeque<(Revision, String, Key)>,
    /// Collections from here on can be answered.
    oldest: Revision,
    revision: Revision,
}

impl Index {
    fn new(field: &'static str, revision: Revision) -> Self {
        let (by_node, before) = (HashMap::new(), VecDeque::new());
        Self { field, by_node, before, oldest: revision, revision }
    }

    fn node(&self, record: &Record) -> Option<String> {
        let object = Value::Object(record.object());
        let found = self.field.split('.').try_fold(&object, |value, step| value.get(step));
        found?.as_str().map(str::to_owned)
    }

    fn insert(&mut self, record: &Record) {
        if let Some(node) = self.node(record) {
            self.by_node.entry(node).or_default().insert(record.key().clone());
        }
    }

    /// Applies the change of an object from `old` to `new`.
    fn change(&mut self, old: Option<&Arc<Record>>, new: Option<&Arc<Record>>, revision: Revision) {
        if let Some((old, node)) = old.and_then(|old| Some((old, self.node(old)?))) {
            if let Some(keys) = self.by_node.get_mut(&node) {
                keys.remove(old.key());
                if keys.is_empty() {
                    self.by_node.remove(&node);
                }
            }
            self.before.push_back((revision, node, old.key().clone()));
            if self.before.len() > REMEMBERED
                && let Some((forgotten, ..)) = self.before.pop_front()
            {
                self.oldest = self.oldest.max(forgotten);
            }
        }
        if let Some(new) = new {
            self.insert(new);
        }
        self.revision = self.revision.max(revision);
    }

    /// The keys of objects that a node had at a revision, and perhaps some more; nothing if the index
    /// does not know that revision.
    fn of(&self, node: &str, at: Revision) -> Option<BTreeSet<Key>> {
        if at < self.oldest || at > self.revision {
            return None;
        }
        let mut keys = self.by_node.get(node).cloned().unwrap_or_default();
        let later = self.before.iter().rev().take_while(|(revision, ..)| *revision > at);
        keys.extend(later.filter(|(_, of, _)| of == node).map(|(.., key)| key.clone()));
        Some(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::object::Body;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn record(name: &str, node: Option<u8>, revision: u64) -> Arc<Record> {
        let key = Key::new(&Resource::new("storage.mainstay.dev", "blockdevices"), None, name);
        let spec = node.map_or(json!({}), |node| json!({"nodeName": format!("n{node}")}));
        let Value::Object(object) = json!({"metadata": {"name": name}, "spec": spec}) else {
            unreachable!()
        };
        Arc::new(Body::new(&object).at(key, Revision(revision), Revision(revision)))
    }

    proptest! {
        /// Objects appear, move to other nodes and go; at every revision that is remembered the
        /// index has at least the objects that the node had then.
        #[test]
        fn no_object_of_a_node_is_missing_at_any_remembered_revision(
            steps in proptest::collection::vec((0_u8..8, proptest::option::of(proptest::option::of(0_u8..3))), 1..60),
        ) {
            let mut index = Index::new("spec.nodeName", Revision(1));
            let mut states = vec![BTreeMap::<String, Arc<Record>>::new()];
            for (at, (name, node)) in steps.into_iter().enumerate() {
                let revision = at as u64 + 2;
                let mut state = states.last().unwrap().clone();
                let name = format!("d{name}");
                let new = node.map(|node| record(&name, node, revision));
                let old = match &new {
                    Some(new) => state.insert(name, new.clone()),
                    None => state.remove(&name),
                };
                index.change(old.as_ref(), new.as_ref(), Revision(revision));
                states.push(state);
                for (then, state) in states.iter().enumerate() {
                    for node in ["n0", "n1", "n2"] {
                        let keys = index.of(node, Revision(then as u64 + 1)).unwrap();
                        let own = state.values().filter(|it| index.node(it).as_deref() == Some(node));
                        for own in own {
                            prop_assert!(keys.contains(own.key()), "{node} at {then}");
                        }
                    }
                }
            }
            let newest = states.len() as u64;
            prop_assert!(index.of("n0", Revision(0)).is_none(), "before it was built");
            prop_assert!(index.of("n0", Revision(newest + 1)).is_none(), "not there yet");
        }
    }

    #[test]
    fn the_index_forgets_old_changes_and_refuses_older_revisions() {
        let mut index = Index::new("spec.nodeName", Revision(1));
        let mut old = record("d", Some(0), 1);
        index.insert(&old);
        for revision in 2..(REMEMBERED as u64 + 12) {
            let new = record("d", Some(0), revision);
            index.change(Some(&old), Some(&new), Revision(revision));
            old = new;
        }
        assert_eq!(index.before.len(), REMEMBERED);
        assert!(index.of("n0", Revision(5)).is_none());
        assert_eq!(index.of("n0", index.revision).unwrap().len(), 1);
    }
}
