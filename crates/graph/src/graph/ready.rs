//! Readiness: decides whether a value may be applied now.
//!
//! A value is ready when each of its dependencies is met. Values that depend on each other in a
//! cycle would wait for ever, so a cycle counts as one value, whatever its edges are: it is ready
//! once no dependency outside it is missing. An any-of edge belongs to a cycle if one of the keys it
//! accepts does.
//!
//! Whether a value closes such a cycle is decided in two steps. The first follows exact edges only:
//! it ends at the first missing key, and remembers which nodes led there until one of them changes,
//! so that long chains of waiting values stay cheap. The second computes the largest set of waiting
//! values around the value that lead to each other and need nothing else. The result does not depend
//! on the order of keys.

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
        self.unseen(id).is_none() && (self.is_plainly_ready(id) || self.closes_circle(id))
    }

    fn is_plainly_ready(&self, id: KeyId) -> bool {
        self.node(id).is_some_and(|node| {
            let stays = |edge: &Edge| node.available && self.may_be_met(edge);
            node.edges.iter().all(|edge| self.is_met(edge) || stays(edge))
        })
    }

    /// The labels of the dependencies that are not met.
    pub(crate) fn unmet(&self, id: KeyId) -> Vec<String> {
        let edges = self.node(id).map(|node| &*node.edges).unwrap_or_default();
        edges.iter().filter(|edge| !self.is_met(edge)).map(|edge| edge.label.to_string()).collect()
    }

    fn closes_circle(&mut self, id: KeyId) -> bool {
        // It has no dependents, so no cycle leads back.
        if self.slots[id.index()].sources.is_empty() && !self.is_awaited(id) {
            return false;
        }
        if self.state(id) != ValueState::Pending {
            // It waits from now on: values that its absence blocked may now form a cycle with it.
            self.unsettle(id);
        }
        !self.is_blocked(id) && self.in_closed_circle(id)
    }

    /// Whether an unmet any-of edge, perhaps its own, accepts the key.
    fn is_awaited(&self, id: KeyId) -> bool {
        let key = self.key(id);
        let awaits = |source: KeyId| {
            let edges = self.node(source).map(|node| &*node.edges).unwrap_or_default();
            edges.iter().any(|edge| match &edge.target {
                EdgeTarget::Key(..) => false,
                EdgeTarget::AnyOf { set, witness } => witness.is_none() && set.accepts(key),
            })
        };
        self.waiting_for(id).into_iter().any(awaits)
    }

    /// A value that waits and could be applied together with `start`.
    fn is_candidate(&self, id: KeyId, start: KeyId) -> bool {
        id == start || (self.state(id) == ValueState::Pending && self.unseen(id).is_none())
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
                let keys = set.all_prefixes().flat_map(|prefix| self.with_prefix(prefix));
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

    /// Whether `start` is in a set of waiting values that lead to each other and whose unmet
    /// dependencies can all be met from inside the set.
    ///
    /// Shrinks the set of values that `start` leads to: first to those that can be met from inside
    /// it, then to those that lead back to `start`, until neither removes any.
    fn in_closed_circle(&self, start: KeyId) -> bool {
        let circle = Circle::around(self, start);
        let mut set: HashSet<KeyId> = circle.needs.keys().copied().collect();
        loop {
            let size = set.len();
            circle.drop_unsupported(&mut set);
            if !set.contains(&start) {
                return false;
            }
            circle.keep_leading_to(start, &mut set);
            if set.len() == size {
                return true;
            }
        }
    }
}

/// The waiting values that a value leads to.
#[derive(Default)]
struct Circle {
    /// For each value, the waiting values that could meet each of its unmet edges.
    needs: HashMap<KeyId, Vec<Vec<KeyId>>>,
    /// For each value, the values that it could help to meet an edge.
    back: HashMap<KeyId, Vec<KeyId>>,
}

impl Circle {
    fn around(graph: &Graph, start: KeyId) -> Self {
        let mut circle = Self::default();
        let mut queue = vec![start];
        while let Some(member) = queue.pop() {
            if circle.needs.contains_key(&member) {
                continue;
            }
            let edges = graph.node(member).map(|node| &*node.edges).unwrap_or_default();
            let unmet = edges.iter().filter(|edge| !graph.is_met(edge));
            let needs: Vec<Vec<KeyId>> = unmet.map(|edge| graph.candidates(edge, start)).collect();
            let met = needs.iter().all(|candidates| !candidates.is_empty());
            // A value that cannot be met ends the search there; at the start it ends it altogether.
            if met {
                for target in needs.iter().flatten().copied() {
                    circle.back.entry(target).or_default().push(member);
                    queue.push(target);
                }
            }
            circle.needs.insert(member, needs);
        }
        circle
    }

    /// Removes values with an unmet edge that no member of the set can meet.
    fn drop_unsupported(&self, set: &mut HashSet<KeyId>) {
        let mut queue: Vec<KeyId> = set.iter().copied().collect();
        while let Some(id) = queue.pop().filter(|_| !set.is_empty()) {
            let needs = self.needs.get(&id).map(Vec::as_slice).unwrap_or_default();
            let lacks = |edge: &Vec<KeyId>| !edge.iter().any(|candidate| set.contains(candidate));
            if needs.iter().any(lacks) && set.remove(&id) {
                queue.extend(self.back.get(&id).into_iter().flatten());
            }
        }
    }

    /// Keeps the members that lead to `start` through members of the set.
    fn keep_leading_to(&self, start: KeyId, set: &mut HashSet<KeyId>) {
        let mut leading = HashSet::default();
        let mut queue = vec![start];
        while let Some(id) = queue.pop() {
            for member in self.back.get(&id).into_iter().flatten() {
                if set.contains(member) && leading.insert(*member) {
                    queue.push(*member);
                }
            }
        }
        *set = leading;
    }
}
