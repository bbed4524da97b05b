//! Collects the values that a transaction applies.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Service;
use super::process::{Source, Work};
use crate::descriptor::{ErasedKnown, ErasedRetrieved};
use crate::engine::Shared;
use crate::execute::Surroundings;
use crate::graph::Graph;
use crate::hash::HashSet;
use crate::key::{Key, KeyId};
use crate::record::InputValue;
use crate::refresh::{self, Findings, Refresh};
use crate::registry::{DescriptorId, Registry};
use crate::state::{Origin, ValueState};
use crate::transaction::{Resync, Wanted};
use crate::value::Value;
use crate::walk::Item;

/// The values that one descriptor retrieved.
pub(super) struct Look {
    pub(super) descriptor: DescriptorId,
    pub(super) known: Vec<ErasedKnown>,
    pub(super) found: Vec<ErasedRetrieved>,
}

impl Service {
    /// Retrieves the values of one descriptor. None if it cannot retrieve, or fails to.
    pub(super) async fn look(
        &mut self,
        surroundings: &Surroundings,
        descriptor: DescriptorId,
        first: Option<&BTreeMap<Key, Wanted>>,
        warnings: &mut Vec<String>,
    ) -> Option<Look> {
        let erased = Arc::clone(surroundings.registry.get(descriptor));
        if !erased.abilities().retrieve {
            return None;
        }
        let known = {
            let shared = self.inside.lock();
            refresh::known(&shared.graph, &surroundings.registry, descriptor, first)
        };
        self.flush();
        let context = surroundings.context(None, false);
        let name = erased.name().to_owned();
        let job = erased.retrieve(context.clone(), known.clone());
        match surroundings.run(context, job).await {
            Ok(found) => Some(Look { descriptor, known, found }),
            Err(error) => {
                warnings.push(format!("{name} failed to retrieve: {}", error.chain()));
                None
            }
        }
    }

    /// Retrieves the whole south, uncertain values first.
    pub(super) async fn refresh_all(
        &mut self,
        surroundings: &Surroundings,
        work: &Work,
        findings: &mut Findings,
    ) {
        let registry = Arc::clone(&surroundings.registry);
        let doubtful: HashSet<DescriptorId> = {
            let shared = self.inside.lock();
            let uncertain = shared.graph.nodes().filter(|(_, _, node)| node.uncertain);
            uncertain.filter_map(|(key, _, _)| registry.for_key(key)).collect()
        };
        let (first, rest): (Vec<_>, Vec<_>) =
            registry.in_retrieve_order().partition(|id| doubtful.contains(id));
        let first_look = !self.looked || !self.unseen.is_empty();
        let wanted = first_look.then(|| match (&work.source, work.resync) {
            (Source::North(values), Resync::FullResync) => values.clone(),
            _ => remembered_wishes(&self.inside.lock().graph),
        });
        for descriptor in first.into_iter().chain(rest) {
            let mut warnings = Vec::new();
            let new = !self.looked || self.unseen.contains_key(&descriptor);
            let wanted = wanted.as_ref().filter(|_| new);
            match self.look(surroundings, descriptor, wanted, &mut warnings).await {
                Some(look) => {
                    self.saw(descriptor);
                    self.take_in(surroundings, look, None, findings);
                }
                None if warnings.is_empty() => {}
                None => self.could_not_see(surroundings, descriptor, &warnings.join("; ")),
            }
            findings.warnings.append(&mut warnings);
        }
        findings.settle(&mut self.inside.lock().graph);
        self.looked = true;
    }

    /// Retrieves some base values only.
    pub(super) async fn refresh_some(
        &mut self,
        surroundings: &Surroundings,
        ids: &HashSet<KeyId>,
        findings: &mut Findings,
    ) {
        let descriptors: HashSet<DescriptorId> = {
            let shared = self.inside.lock();
            ids.iter()
                .filter_map(|id| surroundings.registry.for_key(shared.graph.key(*id)))
                .collect()
        };
        let registry = Arc::clone(&surroundings.registry);
        for descriptor in registry.in_retrieve_order().filter(|id| descriptors.contains(id)) {
            let mut warnings = Vec::new();
            let look = self.look(surroundings, descriptor, None, &mut warnings).await;
            findings.warnings.append(&mut warnings);
            if let Some(look) = look {
                self.take_in(surroundings, look, Some(ids), findings);
            }
        }
        findings.settle(&mut self.inside.lock().graph);
    }

    fn take_in(
        &self,
        surroundings: &Surroundings,
        look: Look,
        only: Option<&HashSet<KeyId>>,
        findings: &mut Findings,
    ) {
        let mut shared = self.inside.lock();
        let Shared { graph, history, .. } = &mut *shared;
        let remembered = |key: &Key| history.origin(key);
        let mut refresh = Refresh {
            graph,
            registry: &surroundings.registry,
            indexes: Some(&surroundings.indexes),
            remembered: &remembered,
            findings,
        };
        refresh.apply(look.descriptor, look.found, &look.known, only);
    }
}

/// The wanted values, as remembered.
pub(super) fn remembered_wishes(graph: &Graph) -> BTreeMap<Key, Wanted> {
    graph
        .nodes()
        .filter(|(_, _, node)| node.base.is_none() && !node.is_obtained())
        .map(|(key, _, node)| {
            (
                key.clone(),
                Wanted { value: node.last.requested.clone(), labels: node.labels.clone() },
            )
        })
        .collect()
}

/// The values to apply, in key order, and the list for the record.
pub(super) fn items(shared: &mut Shared, work: &Work) -> (Vec<Item>, Vec<InputValue>) {
    let registry = Arc::clone(&shared.registry);
    let graph = &mut shared.graph;
    match &work.source {
        Source::South(values) => {
            let mut items = Vec::new();
            for (key, (value, metadata)) in values {
                let Some(descriptor) = registry.for_key(key) else {
                    continue;
                };
                let node = graph.find(key).map(|(_, node)| node);
                let ours = node.is_some_and(|node| {
                    node.base.is_some()
                        || !matches!(node.state, ValueState::Obtained | ValueState::Nonexistent)
                        || node.last.requested.is_some()
                });
                if ours || (value.is_none() && node.is_none()) {
                    continue;
                }
                let value = value.as_ref().map(|value| {
                    registry.get(descriptor).read(value).unwrap_or_else(|| value.clone())
                });
                items.push(Item {
                    id: graph.intern(key),
                    value,
                    labels: None,
                    metadata: metadata.clone(),
                    origin: Origin::South,
                });
            }
            let inputs = values
                .iter()
                .map(|(key, (value, _))| InputValue {
                    key: key.clone(),
                    value: value.clone(),
                    origin: Origin::South,
                })
                .collect();
            (items, inputs)
        }
        Source::Again(keys) => {
            let items: Vec<Item> = keys
                .iter()
                .filter_map(|key| {
                    let (id, node) = graph.find(key)?;
                    let (requested, labels) = (node.last.requested.clone(), node.labels.clone());
                    let descriptor = node.descriptor.or_else(|| registry.for_key(key));
                    Some(north(&registry, descriptor, id, requested, labels))
                })
                .collect();
            let inputs = inputs(graph, &items);
            (items, inputs)
        }
        Source::North(values) => north_items(graph, &registry, values, work.resync),
    }
}

fn north_items(
    graph: &mut Graph,
    registry: &Registry,
    values: &BTreeMap<Key, Wanted>,
    resync: Resync,
) -> (Vec<Item>, Vec<InputValue>) {
    let item = |graph: &Graph, (key, wanted): (&Key, &Wanted), id: KeyId| {
        let known = graph.node(id).and_then(|node| node.descriptor);
        let descriptor = known.or_else(|| registry.for_key(key));
        north(registry, descriptor, id, wanted.value.clone(), wanted.labels.clone())
    };
    if resync == Resync::NotResync {
        let ids = graph.intern_all(values.keys());
        let items: Vec<Item> =
            values.iter().zip(ids).map(|(wish, id)| item(graph, wish, id)).collect();
        let inputs = inputs(graph, &items);
        return (items, inputs);
    }
    let mut inputs: Vec<InputValue> = Vec::new();
    let mut wanted: Vec<(Key, Wanted)> = Vec::new();
    let mut values = values.iter().peekable();
    // Both are in key order.
    for (key, _, node) in graph.nodes().filter(|(_, _, node)| node.base.is_none()) {
        while let Some((earlier, wish)) = values.next_if(|(other, _)| *other < key) {
            wanted.push((earlier.clone(), wish.clone()));
        }
        let given = values.next_if(|(other, _)| *other == key).map(|(_, wish)| wish.clone());
        let wish = match (given, resync) {
            (Some(given), _) => given,
            (None, _) if node.is_obtained() => {
                let (key, value) = (key.clone(), node.value.clone());
                inputs.push(InputValue { key, value, origin: Origin::South });
                continue;
            }
            (None, Resync::DownstreamResync) => {
                Wanted { value: node.last.requested.clone(), labels: node.labels.clone() }
            }
            (None, _) => Wanted { value: None, labels: node.labels.clone() },
        };
        wanted.push((key.clone(), wish));
    }
    wanted.extend(values.map(|(key, wish)| (key.clone(), wish.clone())));
    let ids = graph.intern_all(wanted.iter().map(|(key, _)| key));
    let items: Vec<Item> =
        wanted.iter().zip(ids).map(|((key, wish), id)| item(graph, (key, wish), id)).collect();
    if resync == Resync::DownstreamResync {
        return (items, Vec::new());
    }
    inputs.extend(self::inputs(graph, &items));
    inputs.sort_by(|a, b| a.key.cmp(&b.key));
    (items, inputs)
}

fn north(
    registry: &Registry,
    descriptor: Option<DescriptorId>,
    id: KeyId,
    value: Option<Value>,
    labels: Option<Arc<crate::descriptor::UserLabels>>,
) -> Item {
    let read = |value: Value| {
        let read = descriptor.and_then(|descriptor| registry.get(descriptor).read(&value));
        read.unwrap_or(value)
    };
    Item { id, value: value.map(read), labels, metadata: None, origin: Origin::North }
}

fn inputs(graph: &Graph, items: &[Item]) -> Vec<InputValue> {
    items
        .iter()
        .map(|item| InputValue {
            key: graph.key(item.id).clone(),
            value: item.value.clone(),
            origin: item.origin,
        })
        .collect()
}
