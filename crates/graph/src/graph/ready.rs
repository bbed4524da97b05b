//! Readiness: decides whether a value may be applied now.
//!
//! A value is ready when each of its dependencies is met. Values that depend on each other in a
//! cycle would wait for ever, so a cycle counts as one value: it is ready once no dependency outside
//! it is missing. Whether a value closes such a cycle is decided by following unmet edges; the search
//! ends at the first missing key outside the cycle, and remembers which nodes led there until one of
//! them changes, so that long chains of waiting values stay cheap.

use super::{Edge, EdgeTarget, Graph, Verdict};
use crate::hash::{HashMap, HashSet};
use crate::key::KeyId;
use crate::state::ValueState;

impl Graph {
    pub(crate) fn is_met(&self, edge: &Edge) -> bool {
        match &edge.target {
            EdgeTarget::Key(_, target) => self
                .node(*target)
                .is_some_and(|node| node.available && edge.accepts(node.value.as_ref())),
            EdgeTarget::AnyOf { witness, .. } => witness.is_some(),
        }
    }

    /// Whether each dependency is met, or the value only waits for itself through a cycle.
    pub(crate) fn is_ready(&mut self, id: KeyId) -> bool {
        self.is_plainly_ready(id) || self.closes_circle(id)
    }

    fn is_plainly_ready(&self, id: KeyId) -> bool {
        self.node(id).is_some_and(|node| node.edges.iter().all(|edge| self.is_met(edge)))
    }

    /// The labels of the dependencies that are not met.
    pub(crate) fn unmet(&self, id: KeyId) -> Vec<String> {
        let edges = self.node(id).map(|node| &*node.edges).unwrap_or_default();
        edges.iter().filter(|edge| !self.is_met(edge)).map(|edge| edge.label.to_string()).collect()
    }

    fn closes_circle(&mut self, id: KeyId) -> bool {
        // It has no dependents, so no cycle leads back.
        if self.slots[id.index()].sources.is_empty() && !self.may_satisfy_itself(id) {
            return false;
        }
        if self.state(id) != ValueState::Pending {
            // It waits from now on: values that its absence blocked may now form a cycle with it.
            self.unsettle(id);
        }
        if self.is_blocked(id) {
            return false;
        }
        let circle = self.circle(id, id);
        let closed = circle.iter().all(|member| {
            let edges = self.node(*member).map(|node| &*node.edges).unwrap_or_default();
            edges.iter().all(|edge| {
                self.is_met(edge)
                    || self.candidates(edge, id).iter().any(|target| circle.contains(target))
            })
        });
        closed && !circle.is_empty()
    }

    fn may_satisfy_itself(&self, id: KeyId) -> bool {
        let key = self.key(id);
        let edges = self.node(id).map(|node| &*node.edges).unwrap_or_default();
        edges.iter().any(|edge| match &edge.target {
            EdgeTarget::Key(_, target) => *target == id,
            EdgeTarget::AnyOf { set, witness } => witness.is_none() && set.accepts(key),
        })
    }

    /// A value that waits and could be applied together with `start`.
    fn is_candidate(&self, id: KeyId, start: KeyId) -> bool {
        id == start || self.state(id) == ValueState::Pending
    }

    /// The keys that might meet an unmet edge from inside a cycle.
    pub(super) fn candidates(&self, edge: &Edge, start: KeyId) -> Vec<KeyId> {
        let fits = |id: KeyId| {
            self.is_candidate(id, start)
                && self.node(id).is_some_and(|node| {
                    edge.accepts(node.last.requested.as_ref().or(node.value.as_ref()))
                })
        };
        match &edge.target {
            EdgeTarget::Key(_, target) => {
                Some(*target).filter(|target| fits(*target)).into_iter().collect()
            }
            EdgeTarget::AnyOf { set, .. } => {
                let prefixes: Vec<&str> = match set.prefixes.len() {
                    0 => vec![""],
                    _ => set.prefixes.iter().map(|prefix| &**prefix).collect(),
                };
                let keys = prefixes.into_iter().flat_map(|prefix| self.with_prefix(prefix));
                keys.filter(|(key, id, _)| set.accepts(key) && fits(*id))
                    .map(|(_, id, _)| id)
                    .collect()
            }
        }
    }

    /// Whether some exact dependency, direct or not, is a key that is not waiting itself.
    fn is_blocked(&mut self, start: KeyId) -> bool {
        let version = self.version;
        let mut seen = [start].into_iter().collect::<HashSet<_>>();
        let mut path = vec![(start, 0_usize)];
        while let Some((id, position)) = path.pop() {
            let edges = self.node(id).map(|node| &*node.edges).unwrap_or_default();
            let Some(edge) = edges.get(position) else {
                continue;
            };
            path.push((id, position + 1));
            let EdgeTarget::Key(_, target) = edge.target else {
                continue;
            };
            if self.is_met(edge) || target == start {
                continue;
            }
            let known = self.slots[target.index()].verdict == Verdict::Blocked(version);
            if known || self.candidates(edge, start).is_empty() {
                if !known {
                    self.slots[target.index()].verdict = Verdict::Missing(version);
                }
                for (member, _) in path {
                    self.slots[member.index()].verdict = Verdict::Blocked(version);
                }
                return true;
            }
            if seen.insert(target) {
                path.push((target, 0));
            }
        }
        false
    }

    /// The waiting values that `id` leads to and that lead back to it.
    fn circle(&self, id: KeyId, start: KeyId) -> HashSet<KeyId> {
        let mut back: HashMap<KeyId, Vec<KeyId>> = HashMap::default();
        let mut seen = [id].into_iter().collect::<HashSet<_>>();
        let mut queue = vec![id];
        while let Some(member) = queue.pop() {
            let edges = self.node(member).map(|node| &*node.edges).unwrap_or_default();
            for edge in edges.iter().filter(|edge| !self.is_met(edge)) {
                for target in self.candidates(edge, start) {
                    back.entry(target).or_default().push(member);
                    if seen.insert(target) {
                        queue.push(target);
                    }
                }
            }
        }
        let mut circle = HashSet::default();
        let mut queue: Vec<KeyId> = back.get(&id).cloned().unwrap_or_default();
        while let Some(member) = queue.pop() {
            if circle.insert(member) {
                queue.extend(back.get(&member).into_iter().flatten());
            }
        }
        circle
    }
}
