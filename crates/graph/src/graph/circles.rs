//! Finds cycles of waiting values, to name them in a status.
//!
//! A value that waits, directly or through others, for itself is part of a cycle. Cycles are the
//! strongly connected components of the graph of waiting values; one pass over the requested values
//! finds all of theirs.

use std::sync::Arc;

use super::{EdgeTarget, Graph};
use crate::hash::HashMap;
use crate::key::{Key, KeyId};
use crate::state::ValueState;

/// The cycles found so far. Valid while the graph does not change.
#[derive(Debug, Default)]
pub(crate) struct Circles(HashMap<KeyId, Option<Arc<[Key]>>>);

/// A value on the stack, in the order of discovery, with the values it waits for.
struct Visit {
    id: KeyId,
    number: usize,
    /// The earliest value it leads back to.
    low: usize,
    waits_for_itself: bool,
    targets: std::vec::IntoIter<KeyId>,
}

impl Circles {
    /// The cycle of a waiting value, in key order; empty if it is in none.
    pub(crate) fn of(&mut self, graph: &Graph, id: KeyId) -> Vec<Key> {
        if graph.state(id) != ValueState::Pending {
            return Vec::new();
        }
        if !self.0.contains_key(&id) {
            self.search(graph, id);
        }
        self.0.get(&id).cloned().flatten().map(|circle| circle.to_vec()).unwrap_or_default()
    }

    /// Tarjan's algorithm, from one value.
    fn search(&mut self, graph: &Graph, start: KeyId) {
        let mut numbers: HashMap<KeyId, usize> = HashMap::default();
        let mut open: Vec<KeyId> = Vec::new();
        let mut way: Vec<Visit> = Vec::new();
        let mut next = Some(start);
        loop {
            if let Some(id) = next.take() {
                let number = numbers.len();
                numbers.insert(id, number);
                open.push(id);
                let targets = waits_for(graph, id);
                let waits_for_itself = targets.contains(&id);
                let targets = targets.into_iter();
                way.push(Visit { id, number, low: number, waits_for_itself, targets });
            }
            let Some(visit) = way.last_mut() else { return };
            match visit.targets.next() {
                Some(target) if self.0.contains_key(&target) => {}
                Some(target) => match numbers.get(&target) {
                    Some(number) => visit.low = visit.low.min(*number),
                    None => next = Some(target),
                },
                None => {
                    let Some(done) = way.pop() else { return };
                    if let Some(before) = way.last_mut() {
                        before.low = before.low.min(done.low);
                    }
                    if done.low == done.number {
                        self.close(graph, &done, &mut open);
                    }
                }
            }
        }
    }

    /// Everything still open since `done` was found is in its cycle.
    fn close(&mut self, graph: &Graph, done: &Visit, open: &mut Vec<KeyId>) {
        let from = open.iter().rposition(|id| *id == done.id).unwrap_or(0);
        let members = open.split_off(from);
        let circle = (members.len() > 1 || done.waits_for_itself).then(|| {
            let mut keys: Vec<Key> = members.iter().map(|id| graph.key(*id).clone()).collect();
            keys.sort_unstable();
            Arc::from(keys)
        });
        self.0.extend(members.into_iter().map(|id| (id, circle.clone())));
    }
}

/// The waiting values that could meet the dependencies of a waiting value.
fn waits_for(graph: &Graph, id: KeyId) -> Vec<KeyId> {
    let edges = graph.node(id).map(|node| &*node.edges).unwrap_or_default();
    let unmet = edges.iter().filter(|edge| !graph.is_met(edge));
    unmet
        .flat_map(|edge| match edge.target {
            // The common case, without a list of its own.
            EdgeTarget::Key(_, target) if graph.state(target) != ValueState::Pending => Vec::new(),
            _ => graph.candidates(edge, id),
        })
        .collect()
}
