//! Applies changes before their turn where that saves operations.
//!
//! * A dependent that moves from one dependency to another is changed in place before the old one
//!   is deleted, once the new one exists.
//! * A dependent on any key of a set stays if a new key of the set is applied before the old one is
//!   deleted (see [`super::replace`]).
//! * A value that waits and is changed by the same transaction is created once, with its new value.
//! * A value that waits and is deleted by the same transaction is not created at all.

use super::{Item, Walk};
use crate::descriptor::{Dependency, Derived, Target};
use crate::graph::Graph;
use crate::hash::HashSet;
use crate::key::KeyId;
use crate::value::Value;

/// The decision about a value that waited.
pub(super) enum Wake {
    /// Create it.
    Go,
    /// Its turn comes later.
    Leave,
    /// Apply its item of the transaction.
    Instead(Item),
}

impl Walk {
    /// Decides about a waiting value that the transaction may still change.
    pub(super) fn wake_early(&mut self, graph: &mut Graph, id: KeyId) -> Wake {
        let root = graph.base_of(id);
        let Some(item) = self.coming(root) else {
            return Wake::Go;
        };
        let Some(new) = item.value.clone() else {
            return Wake::Leave;
        };
        if root != id {
            let stays = self.derived_from(graph, root, &new).into_iter().any(|one| {
                one.key == *graph.key(id)
                    && graph.node(id).and_then(|node| node.value.as_ref()) == Some(&one.value)
            });
            return if stays { Wake::Go } else { Wake::Leave };
        }
        let dependencies = self.dependencies_of(graph, id, &new);
        if !dependencies.iter().all(|dependency| is_met(graph, dependency, None)) {
            return Wake::Leave;
        }
        match self.reach(graph, id) {
            Some(item) => Wake::Instead(item),
            None => Wake::Leave,
        }
    }

    /// The items to apply before `going` is deleted: dependents that an update moves to another
    /// dependency, each after the new values that it needs, and replacements for the others.
    pub(super) fn early_changes(&mut self, graph: &Graph, going: KeyId) -> Vec<KeyId> {
        if self.undone == 0 || self.reverting() {
            return Vec::new();
        }
        let sources = graph.sources(going);
        let mut order = Vec::new();
        let mut seen = [going].into_iter().collect::<HashSet<_>>();
        for source in sources.iter().copied() {
            let root = graph.base_of(source);
            if graph.is_available(source) && self.moves_away(graph, source, root, going) {
                self.collect_needed(graph, root, going, &mut seen, &mut order);
            }
        }
        order.extend(self.replacements(graph, &sources, going));
        order
    }

    /// To be called when the items of [`Self::early_changes`] are done, before `going` is touched.
    /// A revert then restores the item that deletes it first, as if it had come after them.
    pub(super) fn revert_before_early(&mut self, graph: &Graph, going: KeyId) {
        let frames = self.stack.iter().rev().map(|(frame, _)| frame.id());
        let under_way = std::iter::once(going).chain(frames).map(|id| graph.base_of(id));
        let own = under_way.into_iter().find_map(|root| {
            self.list.place(root)?;
            self.reached.iter().rposition(|previous| previous.is_of(root))
        });
        if let Some(own) = own {
            self.reached[own..].rotate_left(1);
        }
    }

    fn moves_away(&self, graph: &Graph, source: KeyId, root: KeyId, going: KeyId) -> bool {
        let Some(new) = self.coming(root).and_then(|item| item.value.clone()) else {
            return false;
        };
        if !self.changes_in_place(graph, root, &new) {
            return false;
        }
        let new = if source == root {
            Some(new)
        } else {
            let key = graph.key(source);
            let derived = self.derived_from(graph, root, &new);
            derived.into_iter().find(|one| one.key == *key).map(|one| one.value)
        };
        let Some(new) = new else { return false };
        self.changes_in_place(graph, source, &new)
            && !self.dependencies_of(graph, source, &new).iter().any(|one| match &one.target {
                Target::Key(key) => key == graph.key(going),
                Target::AnyOf(set) => set.accepts(graph.key(going)),
            })
    }

    pub(super) fn changes_in_place(&self, graph: &Graph, id: KeyId, new: &Value) -> bool {
        let Some(node) = graph.node(id) else {
            return false;
        };
        let (Some(descriptor), Some(old)) = (node.descriptor, &node.value) else {
            return false;
        };
        let descriptor = self.settings.registry.get(descriptor);
        let key = graph.key(id);
        descriptor.equivalent(key, old, new)
            || descriptor.abilities().update
                && !descriptor.recreate(key, old, new, node.metadata.as_ref())
    }

    /// Adds an item after the later items that it depends on.
    fn collect_needed(
        &mut self,
        graph: &Graph,
        root: KeyId,
        going: KeyId,
        seen: &mut HashSet<KeyId>,
        order: &mut Vec<KeyId>,
    ) {
        let mut stack = vec![(root, false)];
        while let Some((id, expanded)) = stack.pop() {
            if expanded {
                order.push(id);
                continue;
            }
            let coming = self.coming(id).and_then(|item| item.value.clone());
            let Some(new) = coming.filter(|_| seen.insert(id)) else {
                continue;
            };
            stack.push((id, true));
            let mut needed = self.dependencies_of(graph, id, &new);
            for Derived { key, value, property } in self.derived_from(graph, id, &new) {
                let descriptor = self.settings.registry.for_key(&key).filter(|_| !property);
                if let Some(descriptor) = descriptor {
                    needed
                        .extend(self.settings.registry.get(descriptor).dependencies(&key, &value));
                }
            }
            for dependency in needed {
                let target = match &dependency.target {
                    Target::Key(key) => self.offering(graph, key),
                    Target::AnyOf(_) if is_met(graph, &dependency, Some(going)) => None,
                    Target::AnyOf(set) => self.offering_any(graph, set),
                };
                stack.extend(target.map(|target| (target, false)));
            }
        }
    }

    pub(super) fn dependencies_of(
        &self,
        graph: &Graph,
        id: KeyId,
        value: &Value,
    ) -> Vec<Dependency> {
        let key = graph.key(id);
        let descriptor = self.settings.registry.for_key(key);
        descriptor
            .map(|id| self.settings.registry.get(id).dependencies(key, value))
            .unwrap_or_default()
    }

    /// The values that would be derived from a value.
    pub(super) fn derived_from(&self, graph: &Graph, id: KeyId, value: &Value) -> Vec<Derived> {
        let key = graph.key(id);
        let descriptor = self.settings.registry.for_key(key);
        descriptor.map(|id| self.settings.registry.get(id).derived(key, value)).unwrap_or_default()
    }
}

/// Whether a dependency would be met if a value had it now, and `without` did not exist.
pub(super) fn is_met(graph: &Graph, dependency: &Dependency, without: Option<KeyId>) -> bool {
    let fits = |value: Option<&Value>| {
        dependency.test.as_ref().is_none_or(|test| value.is_some_and(|value| test(value)))
    };
    match &dependency.target {
        Target::Key(key) => graph.find(key).is_some_and(|(id, node)| {
            node.available && without != Some(id) && fits(node.value.as_ref())
        }),
        Target::AnyOf(set) => set.all_prefixes().flat_map(|prefix| graph.with_prefix(prefix)).any(
            |(key, id, node)| {
                node.available
                    && without != Some(id)
                    && set.accepts(key)
                    && fits(node.value.as_ref())
            },
        ),
    }
}
