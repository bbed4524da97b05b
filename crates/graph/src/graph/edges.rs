//! Edges: sets them, finds witnesses, and follows targets that are created or deleted.

use std::sync::Arc;

use super::{Edge, EdgeTarget, Graph, Test, Undo};
use crate::descriptor::{AnyOf, Dependency, Target};
use crate::key::KeyId;

impl Edge {
    /// The edge of a revision that is no longer part of a graph.
    pub(crate) fn remembered(dependency: Dependency) -> Self {
        let Dependency { label, target, test } = dependency;
        let target = match target {
            Target::Key(key) => EdgeTarget::Key(key, KeyId::NOWHERE),
            Target::AnyOf(set) => EdgeTarget::AnyOf { set, witness: None },
        };
        Self { label, target, test: test.map(Test) }
    }
}

impl Graph {
    /// Replaces the dependencies of a node.
    pub(crate) fn set_edges(&mut self, id: KeyId, dependencies: Vec<Dependency>) {
        let Some(node) = self.node(id) else { return };
        if dependencies.is_empty() && node.edges.is_empty() {
            return;
        }
        let old = Arc::clone(&node.edges);
        self.note(Undo::Counted { tests: self.tests, any_of: self.any_of });
        for edge in &*old {
            self.detach(id, edge);
        }
        let edges: Arc<[Edge]> = dependencies.into_iter().map(|one| self.attach(id, one)).collect();
        self.write(id).edges = edges;
        self.unsettle(id);
    }

    fn attach(&mut self, source: KeyId, dependency: Dependency) -> Edge {
        let Dependency { label, target, test } = dependency;
        let mut edge = match target {
            Target::Key(key) => {
                let target = self.intern(&key);
                self.add_source(target, source);
                // Most labels are the key itself: share its text.
                let label = if *label == *key { key.shared() } else { label };
                Edge { label, target: EdgeTarget::Key(key, target), test: test.map(Test) }
            }
            Target::AnyOf(set) => {
                self.any_of += 1;
                Edge {
                    label,
                    target: EdgeTarget::AnyOf { set, witness: None },
                    test: test.map(Test),
                }
            }
        };
        self.tests += usize::from(edge.test.is_some());
        if let EdgeTarget::AnyOf { set, .. } = &edge.target {
            let set = Arc::clone(set);
            let witness = self.find_witness(&set, &edge);
            self.hold(source, &set, witness);
            edge.target = EdgeTarget::AnyOf { set, witness };
        }
        edge
    }

    fn detach(&mut self, source: KeyId, edge: &Edge) {
        self.tests -= usize::from(edge.test.is_some());
        match &edge.target {
            EdgeTarget::Key(_, target) => self.drop_source(*target, source),
            EdgeTarget::AnyOf { set, witness } => {
                self.any_of -= 1;
                self.release(source, set, *witness);
            }
        }
    }

    /// Registers a source with its witness, or lets it wait for one.
    fn hold(&mut self, source: KeyId, set: &AnyOf, witness: Option<KeyId>) {
        match witness {
            Some(target) => self.add_source(target, source),
            None => {
                for prefix in prefixes(set) {
                    if self.start_waiting(&prefix, source) {
                        self.note(Undo::WaitAdded(prefix, source));
                    }
                }
            }
        }
    }

    fn release(&mut self, source: KeyId, set: &AnyOf, witness: Option<KeyId>) {
        match witness {
            Some(target) => self.drop_source(target, source),
            None => {
                for prefix in prefixes(set) {
                    if self.stop_waiting(&prefix, source) {
                        self.note(Undo::WaitRemoved(prefix, source));
                    }
                }
            }
        }
    }

    fn find_witness(&self, set: &AnyOf, edge: &Edge) -> Option<KeyId> {
        prefixes(set).iter().find_map(|prefix| {
            self.with_prefix(prefix)
                .find(|(key, _, node)| {
                    node.available && set.accepts(key) && edge.accepts(node.value.as_ref())
                })
                .map(|(_, id, _)| id)
        })
    }

    fn add_source(&mut self, target: KeyId, source: KeyId) {
        if self.slots[target.index()].sources.add(source) {
            self.note(Undo::SourceAdded(target, source));
        }
    }

    fn drop_source(&mut self, target: KeyId, source: KeyId) {
        if self.slots[target.index()].sources.remove(&source) {
            self.note(Undo::SourceRemoved(target, source));
            self.hollow.push(target);
        }
    }

    pub(super) fn start_waiting(&mut self, prefix: &Arc<str>, source: KeyId) -> bool {
        let waiting = self.waiting.entry(Arc::clone(prefix)).or_default();
        if waiting.is_empty() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        waiting.add(source)
    }

    pub(super) fn stop_waiting(&mut self, prefix: &Arc<str>, source: KeyId) -> bool {
        let Some(waiting) = self.waiting.get_mut(prefix) else {
            return false;
        };
        let changed = waiting.remove(&source);
        if waiting.is_empty() {
            self.waiting.remove(prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
        changed
    }

    /// Marks a node as available or not, and updates any-of edges.
    pub(crate) fn set_available(&mut self, id: KeyId, available: bool) {
        if self.is_available(id) == available {
            return;
        }
        self.write(id).available = available;
        self.unsettle(id);
        self.follow(id);
    }

    /// To be called when the value of an available node changed: edges may have a condition on it.
    pub(crate) fn value_changed(&mut self, id: KeyId) {
        if self.tests > 0 {
            self.unsettle(id);
            self.follow(id);
        }
    }

    /// Whether any edge has a condition on the value of its target.
    pub(crate) fn has_tests(&self) -> bool {
        self.tests > 0
    }

    fn follow(&mut self, target: KeyId) {
        if self.any_of == 0 {
            return;
        }
        let mut affected: Vec<KeyId> = self.slots[target.index()].sources.iter().copied().collect();
        affected.extend(self.waiting_for(target));
        for source in affected {
            self.choose_witnesses(source, target);
        }
    }

    /// Nodes with an unmet any-of edge that the key might satisfy.
    pub(super) fn waiting_for(&self, target: KeyId) -> Vec<KeyId> {
        let key = self.key(target);
        let mut found = Vec::new();
        for length in self.lengths.keys().copied().take_while(|length| *length <= key.len()) {
            let waiting = key.get(..length).and_then(|prefix| self.waiting.get(prefix));
            found.extend(waiting.into_iter().flat_map(|waiting| waiting.iter().copied()));
        }
        found
    }

    /// Updates the any-of edges of `source` that `target` satisfies or satisfied.
    fn choose_witnesses(&mut self, source: KeyId, target: KeyId) {
        let Some(node) = self.node(source) else {
            return;
        };
        let edges = Arc::clone(&node.edges);
        for (position, edge) in edges.iter().enumerate() {
            let EdgeTarget::AnyOf { set, witness } = &edge.target else {
                continue;
            };
            if !witness.map_or_else(|| set.accepts(self.key(target)), |witness| witness == target) {
                continue;
            }
            let fits = self
                .node(target)
                .is_some_and(|node| node.available && edge.accepts(node.value.as_ref()));
            let next = if fits { Some(target) } else { self.find_witness(set, edge) };
            if next == *witness {
                continue;
            }
            self.release(source, set, *witness);
            let set = Arc::clone(set);
            if let Some(edge) = Arc::make_mut(&mut self.write(source).edges).get_mut(position) {
                edge.target = EdgeTarget::AnyOf { set: Arc::clone(&set), witness: next };
            }
            // Releasing one edge may have dropped a target that another edge still needs.
            let again = self.node(source).map(|node| Arc::clone(&node.edges)).unwrap_or_default();
            for edge in &*again {
                match &edge.target {
                    EdgeTarget::Key(_, target) => self.add_source(*target, source),
                    EdgeTarget::AnyOf { set, witness } => self.hold(source, set, *witness),
                }
            }
        }
    }

    /// Whether any node has an edge to this key.
    pub(crate) fn has_sources(&self, id: KeyId) -> bool {
        !self.slots[id.index()].sources.is_empty()
    }

    /// The nodes with an edge to this key, in key order.
    pub(crate) fn sources(&self, id: KeyId) -> Vec<KeyId> {
        let mut sources: Vec<KeyId> = self.slots[id.index()].sources.iter().copied().collect();
        if sources.len() > 1 {
            sources.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
        }
        sources
    }
}

fn prefixes(set: &AnyOf) -> Vec<Arc<str>> {
    if set.prefixes.is_empty() { vec!["".into()] } else { set.prefixes.clone() }
}
