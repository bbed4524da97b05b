//! Descriptors that failed to retrieve when nothing was known of their values yet.
//!
//! After a restart the engine knows what is wanted, not what is there. If a descriptor cannot
//! retrieve then, its values are uncertain: creating them would repeat what exists, and deleting
//! others may break them. They are left alone, the retrieval is repeated with growing pauses, and the
//! first one that succeeds is followed by a resync. Other descriptors go on.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Service;
use super::prepare::remembered_wishes;
use super::process::Work;
use crate::descriptor::Derived;
use crate::execute::Surroundings;
use crate::graph::{Failure, Graph, Veil};
use crate::health::Unseen;
use crate::key::KeyId;
use crate::refresh;
use crate::registry::{DescriptorId, Registry};
use crate::state::{Operation, ValueState};
use crate::time::later;
use crate::transaction::Transaction;
use crate::value::Value;

/// The pause after the first attempt; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

fn pause(attempts: u32) -> Duration {
    let factor = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

impl Service {
    /// A retrieval succeeded.
    pub(super) fn saw(&mut self, descriptor: DescriptorId) {
        self.seen.insert(descriptor);
        if self.unseen.remove(&descriptor).is_some() {
            self.draw_veil();
        }
    }

    /// A retrieval failed. The values are uncertain unless some of them are known.
    pub(super) fn could_not_see(
        &mut self,
        surroundings: &Surroundings,
        descriptor: DescriptorId,
        error: &str,
    ) {
        let registry = &surroundings.registry;
        let known = self.seen.contains(&descriptor) || {
            let graph = &self.inside.lock().graph;
            let mut values = refresh::base_values(graph, registry, descriptor).into_iter();
            values.any(|id| graph.is_available(id))
        };
        if known && !self.unseen.contains_key(&descriptor) {
            return;
        }
        let now = self.now();
        let name = registry.get(descriptor).name().to_owned();
        let unseen = self.unseen.entry(descriptor).or_insert_with(|| Unseen {
            descriptor: name,
            error: String::new(),
            attempts: 0,
            next: now,
        });
        error.clone_into(&mut unseen.error);
        unseen.attempts += 1;
        unseen.next = later(now, pause(unseen.attempts));
        self.draw_veil();
        let mut shared = self.inside.lock();
        hide(&mut shared.graph, registry, descriptor);
    }

    /// When the next attempt to retrieve is due.
    pub(super) fn next_look(&self) -> Option<Timestamp> {
        let accepts = self.inside.accepting().is_ok();
        self.unseen.values().map(|unseen| unseen.next).min().filter(|_| accepts)
    }

    /// Repeats the retrievals that are due; after a successful one everything is resynced.
    pub(super) async fn look_again(&mut self) {
        let now = self.now();
        if self.next_look().is_none_or(|next| next > now) {
            return;
        }
        let due = self.unseen.iter().filter(|(_, unseen)| unseen.next <= now);
        let due: Vec<DescriptorId> = due.map(|(descriptor, _)| *descriptor).collect();
        let seq = self.inside.lock().next_seq;
        let surroundings = self.surroundings(&Work::north(Transaction::downstream_resync()), seq);
        let wanted = remembered_wishes(&self.inside.lock().graph);
        for descriptor in due {
            let mut warnings = Vec::new();
            let look = self.look(&surroundings, descriptor, Some(&wanted), &mut warnings).await;
            let name = surroundings.registry.get(descriptor).name().to_owned();
            if look.is_none() {
                self.could_not_see(&surroundings, descriptor, &warnings.join("; "));
                continue;
            }
            self.saw(descriptor);
            // The resync retrieves again; if that fails, still nothing is known.
            self.seen.remove(&descriptor);
            let resync = Transaction::downstream_resync()
                .description(format!("descriptor {name} can retrieve again"));
            self.process_alone(Work::north(resync)).await;
            self.share_flush();
        }
    }

    /// Tells the graph and the readers which values cannot be seen.
    fn draw_veil(&self) {
        let failure = |unseen: &Unseen| {
            Arc::new(Failure {
                operation: Operation::Undefined,
                message: format!(
                    "not known whether it exists, and left alone until it is: {}",
                    unseen.error
                ),
                retriable: true,
                fields: Vec::new(),
            })
        };
        let mut shared = self.inside.lock();
        let descriptors = self.unseen.iter().map(|(id, unseen)| (*id, failure(unseen))).collect();
        let veil = Veil { registry: Arc::clone(&shared.registry), descriptors };
        shared.graph.set_veil(Some(veil).filter(|veil| !veil.descriptors.is_empty()));
        self.inside.health.lock().unseen = self.unseen.values().cloned().collect();
    }
}

/// Marks the wanted values of a descriptor, and the values derived from them, as uncertain.
fn hide(graph: &mut Graph, registry: &Registry, descriptor: DescriptorId) {
    for id in refresh::base_values(graph, registry, descriptor) {
        let node = graph.node(id).filter(|node| !node.available);
        let Some(wanted) = node.and_then(|node| node.last.requested.clone()) else {
            continue;
        };
        let one = registry.get(descriptor);
        let value = one.read(&wanted).unwrap_or(wanted);
        hide_one(graph, registry, id, descriptor, value.clone());
        let key = graph.key(id).clone();
        for Derived { key, value, property } in one.derived(&key, &value) {
            let derived = graph.intern(&key);
            let reader = registry.for_key(&key).filter(|_| !property);
            // A node that is there already has more to tell: the journal recorded it.
            if let (Some(reader), None) = (reader, graph.node(derived)) {
                graph.write(derived).base = Some(id);
                add_derived(graph, id, derived);
                let value = registry.get(reader).read(&value).unwrap_or(value);
                hide_one(graph, registry, derived, reader, value);
            }
        }
    }
}

fn hide_one(
    graph: &mut Graph,
    registry: &Registry,
    id: KeyId,
    descriptor: DescriptorId,
    value: Value,
) {
    let dependencies = registry.get(descriptor).dependencies(graph.key(id), &value);
    let node = graph.write(id);
    node.descriptor = Some(descriptor);
    node.value = Some(value);
    node.state = ValueState::Pending;
    node.uncertain = true;
    graph.set_edges(id, dependencies);
    let error = graph.unseen(id).cloned();
    graph.write(id).error = error;
}

/// Adds a derived value to the list of its base, which is in key order.
fn add_derived(graph: &mut Graph, base: KeyId, id: KeyId) {
    let mut derived = graph.write(base).derived.to_vec();
    let place = derived.partition_point(|other| graph.key(*other) < graph.key(id));
    derived.insert(place, id);
    graph.write(base).derived = derived.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses: Vec<u64> = [1, 2, 3, 6, 7, 8, 100].map(|n| pause(n).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60]);
    }
}
