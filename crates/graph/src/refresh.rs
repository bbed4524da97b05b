//! Updates the graph with the values retrieved from the south.
//!
//! The worker calls the descriptors; this module computes their argument ([`known`]) and applies
//! their answer ([`Refresh::apply`]).
//!
//! A base value counts as it was found. A derived value is only visible through its base, so the
//! graph decides: one that waits still waits, one whose creation failed still does not exist, and
//! after a failed operation on the base its derived values are as they were, whatever the base
//! implies.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::descriptor::{Derived, ErasedKnown, ErasedRetrieved};
use crate::graph::{Failure, Graph, Node};
use crate::hash::HashSet;
use crate::key::{Key, KeyId};
use crate::metadata::MetadataIndexes;
use crate::record::OperationRecord;
use crate::registry::{DescriptorId, Registry};
use crate::state::{Operation, Origin, ValueState};
use crate::transaction::Wanted;
use crate::value::{Metadata, Value};

/// The known values of a descriptor. Before the first retrieval these are the wanted values;
/// afterwards the available ones, with their metadata.
pub(crate) fn known(
    graph: &Graph,
    registry: &Registry,
    descriptor: DescriptorId,
    first: Option<&BTreeMap<Key, Wanted>>,
) -> Vec<ErasedKnown> {
    if let Some(wanted) = first {
        let near = registry.starts_of(descriptor).flat_map(|start| {
            let from = wanted.range::<str, _>((Bound::Included(start), Bound::Unbounded));
            from.take_while(move |(key, _)| key.starts_with(start))
        });
        return near
            .filter(|(key, _)| registry.serves(descriptor, key))
            .filter_map(|(key, wanted)| {
                let value = registry.get(descriptor).read(wanted.value.as_ref()?)?;
                Some(ErasedKnown { key: key.clone(), value, metadata: None, origin: Origin::North })
            })
            .collect();
    }
    base_values(graph, registry, descriptor)
        .into_iter()
        .filter_map(|id| {
            let node = graph.node(id).filter(|node| node.available)?;
            Some(ErasedKnown {
                key: graph.key(id).clone(),
                value: node.value.clone()?,
                metadata: node.metadata.clone(),
                origin: node.state.origin(),
            })
        })
        .collect()
}

/// The base values of a descriptor, in key order.
pub(crate) fn base_values(
    graph: &Graph,
    registry: &Registry,
    descriptor: DescriptorId,
) -> Vec<KeyId> {
    registry
        .starts_of(descriptor)
        .flat_map(|start| graph.with_prefix(start))
        .filter(|(key, _, node)| node.base.is_none() && registry.serves(descriptor, key))
        .map(|(_, id, _)| id)
        .collect()
}

/// One retrieval.
pub(crate) struct Refresh<'a> {
    pub(crate) graph: &'a mut Graph,
    pub(crate) registry: &'a Registry,
    pub(crate) indexes: Option<&'a MetadataIndexes>,
    /// The origin of a value when it was last retrieved.
    pub(crate) remembered: &'a dyn Fn(&Key) -> Option<Origin>,
    pub(crate) findings: &'a mut Findings,
}

/// The combined result of several retrievals.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Mistakes in the answers of descriptors.
    pub(crate) warnings: Vec<String>,
    /// Derived values found for the first time, each after its base.
    fresh: Vec<(KeyId, KeyId)>,
    /// Operations that ran ahead of a failure and were undone.
    pub(crate) ahead: Vec<OperationRecord>,
    /// Values already recorded as touched.
    pub(crate) touched: Vec<KeyId>,
}

impl Findings {
    /// To be called after all retrievals: a derived value found for the first time can only exist if
    /// its dependencies do.
    pub(crate) fn settle(&mut self, graph: &mut Graph) {
        for (base, id) in std::mem::take(&mut self.fresh) {
            if graph.node(id).is_some() && !graph.is_ready(id) {
                graph.remove(id);
                let node = graph.write(base);
                node.derived =
                    node.derived.iter().copied().filter(|derived| *derived != id).collect();
            }
        }
    }
}

impl Refresh<'_> {
    /// Applies the answer of a descriptor; with `only`, to those values alone.
    pub(crate) fn apply(
        &mut self,
        descriptor: DescriptorId,
        found: Vec<ErasedRetrieved>,
        known: &[ErasedKnown],
        only: Option<&HashSet<KeyId>>,
    ) {
        let asked = found.iter().any(|one| one.origin == Origin::Unknown);
        let believed: BTreeMap<&Key, Origin> =
            known.iter().filter(|_| asked).map(|one| (&one.key, one.origin)).collect();
        let mut seen = HashSet::with_capacity_and_hasher(found.len(), Default::default());
        for found in found {
            let name = self.registry.get(descriptor).name();
            let known = self.graph.find(&found.key).and_then(|(_, node)| node.descriptor);
            let owner = known.or_else(|| self.registry.for_key(&found.key));
            if found.key.is_empty() || owner != Some(descriptor) {
                self.findings
                    .warnings
                    .push(format!("{name} retrieved {:?}, which is not its own", found.key));
                continue;
            }
            let id = self.graph.intern(&found.key);
            if self.graph.node(id).is_some_and(|node| node.base.is_some()) {
                self.findings
                    .warnings
                    .push(format!("{name} retrieved {}, a derived value", found.key));
                continue;
            }
            if !seen.insert(id) {
                self.findings.warnings.push(format!("{name} retrieved {} twice", found.key));
                continue;
            }
            if only.is_some_and(|only| !only.contains(&id)) {
                continue;
            }
            let origin = match found.origin {
                Origin::Unknown => believed
                    .get(&found.key)
                    .copied()
                    .or_else(|| (self.remembered)(&found.key))
                    .unwrap_or(Origin::South),
                origin => origin,
            };
            self.seen(id, descriptor, found, origin);
        }
        for id in base_values(self.graph, self.registry, descriptor) {
            if !seen.contains(&id) && only.is_none_or(|only| only.contains(&id)) {
                self.not_seen(id);
            }
        }
    }

    fn seen(
        &mut self,
        id: KeyId,
        descriptor: DescriptorId,
        found: ErasedRetrieved,
        origin: Origin,
    ) {
        let node = self.graph.node(id);
        let settled = node.is_some_and(|node| {
            node.available
                && !node.uncertain
                && node.value.as_ref() == Some(&found.value)
                && node.metadata == found.metadata
                && !node
                    .derived
                    .iter()
                    .any(|id| self.graph.node(*id).is_some_and(|derived| derived.uncertain))
        });
        if settled {
            return;
        }
        self.set_metadata(id, descriptor, found.metadata);
        let node = self.graph.write(id);
        node.descriptor = Some(descriptor);
        node.value = Some(found.value.clone());
        node.uncertain = false;
        node.state = match node.state {
            ValueState::Nonexistent | ValueState::Removed | ValueState::Unimplemented => {
                match origin {
                    Origin::South => ValueState::Obtained,
                    _ => ValueState::Discovered,
                }
            }
            ValueState::Pending | ValueState::Missing => ValueState::Configured,
            state => state,
        };
        let obtained = node.is_obtained();
        self.graph.set_available(id, true);
        self.graph.value_changed(id);
        self.set_edges(id, obtained, &found.value);
        self.seen_derived(id, descriptor, &found.value, obtained);
    }

    fn set_edges(&mut self, id: KeyId, obtained: bool, value: &Value) {
        let key = self.graph.key(id).clone();
        let descriptor = self.graph.node(id).and_then(|node| node.descriptor);
        let dependencies = match descriptor.filter(|_| !obtained) {
            Some(descriptor) => self.registry.get(descriptor).dependencies(&key, value),
            None => Vec::new(),
        };
        self.graph.set_edges(id, dependencies);
    }

    fn seen_derived(
        &mut self,
        base: KeyId,
        descriptor: DescriptorId,
        value: &Value,
        obtained: bool,
    ) {
        let key = self.graph.key(base).clone();
        let state = self.graph.state(base);
        let mut all: Vec<KeyId> =
            self.graph.node(base).map(|node| node.derived.to_vec()).unwrap_or_default();
        let mut listed: HashSet<KeyId> = all.iter().copied().collect();
        let mut current = HashSet::default();
        for derived in self.registry.get(descriptor).derived(&key, value) {
            let Derived { key: derived_key, value: derived_value, property } = derived;
            let id = self.graph.intern(&derived_key);
            if self.graph.node(id).is_some_and(|node| node.base != Some(base)) {
                self.findings
                    .warnings
                    .push(format!("{derived_key}, derived from {key}, is a value of its own"));
                self.graph.claim(&derived_key, &key);
                continue;
            }
            let reader = self.registry.for_key(&derived_key).filter(|_| !property);
            let read = reader.and_then(|reader| self.registry.get(reader).read(&derived_value));
            let derived_value = read.unwrap_or(derived_value);
            if listed.insert(id) {
                all.push(id);
            }
            current.insert(id);
            self.seen_one_derived(base, id, reader, derived_value, state, obtained);
        }
        // After an update or a deletion that was not finished, the base does not show whether its
        // derived values exist.
        let leftover = state == ValueState::Configured
            && self.graph.node(base).is_some_and(|node| node.last.requested.is_none());
        let interrupted = state.is_failure() || leftover;
        for id in all.iter().copied().filter(|id| !current.contains(id)) {
            let doubtful = self.graph.node(id).filter(|node| {
                interrupted
                    && matches!(node.state, ValueState::Missing | ValueState::Configured)
                    && node.descriptor.is_some()
            });
            match doubtful.and_then(|node| node.value.clone()) {
                Some(value) => self.doubt(id, value),
                None => self.lost(id),
            }
        }
        let graph = &*self.graph;
        all.retain(|id| graph.node(*id).is_some());
        all.sort_unstable_by(|a, b| graph.key(*a).cmp(graph.key(*b)));
        self.graph.write(base).derived = all.into();
    }

    fn seen_one_derived(
        &mut self,
        base: KeyId,
        id: KeyId,
        descriptor: Option<DescriptorId>,
        value: Value,
        base_state: ValueState,
        obtained: bool,
    ) {
        // A value that was out of sight with its base counts as found for the first time.
        let known = self.graph.node(id).filter(|node| !node.is_out_of_sight());
        // An operation on the base was interrupted before its derived values were touched.
        if base_state.is_failure() && descriptor.is_some() {
            if known.is_some_and(|node| node.state == ValueState::Missing) {
                self.doubt(id, value);
            }
            return;
        }
        let still_absent = known.is_some_and(|node| {
            let failed_create = node.state.is_failure()
                && node.error.as_ref().is_some_and(|error| error.operation == Operation::Create);
            descriptor.is_some()
                && !node.available
                && (node.state == ValueState::Pending || failed_create)
        });
        if still_absent {
            return;
        }
        if known.is_none() && descriptor.is_some() && !obtained {
            self.findings.fresh.push((base, id));
        }
        let node = self.graph.write(id);
        if node.is_out_of_sight() {
            *node = Node::default();
        }
        node.base = Some(base);
        node.descriptor = descriptor;
        node.value = Some(value.clone());
        // The base does not show how far a failed operation on a derived value got.
        node.uncertain = node.uncertain && node.state.is_failure();
        node.state = match node.state {
            ValueState::Nonexistent | ValueState::Removed => match (obtained, base_state) {
                (true, _) => ValueState::Obtained,
                (false, _) => ValueState::Discovered,
            },
            ValueState::Pending | ValueState::Missing => ValueState::Configured,
            state => state,
        };
        self.graph.set_available(id, true);
        self.set_edges(id, obtained, &value);
    }

    /// A derived value counted as missing because its base did; now the base exists after all, and
    /// it is unknown whether the derived value had to be created again.
    fn doubt(&mut self, id: KeyId, value: Value) {
        let node = self.graph.write(id);
        node.value = Some(value);
        node.uncertain = true;
        node.state = ValueState::Failed;
        node.error = Some(Arc::new(Failure {
            operation: Operation::Create,
            message: "was out of sight with its base; whether it is there is not known".to_owned(),
            retriable: true,
            fields: Vec::new(),
        }));
    }

    fn not_seen(&mut self, id: KeyId) {
        let Some(node) = self.graph.node(id) else {
            return;
        };
        let descriptor = node.descriptor;
        let derived = Arc::clone(&node.derived);
        let gone = matches!(node.state, ValueState::Obtained | ValueState::Discovered)
            || (node.last.requested.is_none() && node.state != ValueState::Nonexistent);
        if let Some(descriptor) = descriptor {
            self.set_metadata(id, descriptor, None);
        }
        for derived in derived.iter().copied() {
            if gone {
                self.graph.remove(derived);
                continue;
            }
            // The effect of its last operation stays unknown, even if its base seems to be gone.
            self.lost(derived);
        }
        if gone { self.graph.remove(id) } else { self.lost(id) }
    }

    /// The value does not exist.
    fn lost(&mut self, id: KeyId) {
        let Some(node) = self.graph.node(id) else {
            return;
        };
        if !node.available && !node.uncertain && node.state != ValueState::Configured {
            return;
        }
        // A value without a descriptor cannot be deleted.
        let nameless = node.value.is_none();
        if node.base.is_some()
            && (nameless || matches!(node.state, ValueState::Obtained | ValueState::Discovered))
        {
            self.graph.remove(id);
            return;
        }
        self.graph.set_available(id, false);
        let node = self.graph.write(id);
        node.uncertain = node.uncertain && node.base.is_some() && node.state.is_failure();
        if node.state == ValueState::Configured {
            node.state = ValueState::Missing;
        }
    }

    fn set_metadata(&mut self, id: KeyId, descriptor: DescriptorId, metadata: Option<Metadata>) {
        if self.graph.node(id).is_some_and(|node| node.metadata == metadata) {
            return;
        }
        let descriptor = self.registry.get(descriptor);
        if let (Some(indexes), Some(index)) = (self.indexes, descriptor.metadata_index()) {
            let label = descriptor.label(self.graph.key(id));
            match &metadata {
                Some(metadata) => indexes.put(index, label, metadata.clone()),
                None => indexes.remove(index, &label),
            }
        }
        self.graph.write(id).metadata = metadata;
    }
}
