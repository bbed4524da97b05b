//! Finds, in the rest of a transaction, replacements for a value that goes away.
//!
//! A dependency on any key of a set survives the loss of its target if another key of the set is
//! there. When the same transaction deletes the only target and brings another one, the other one
//! is applied first, with everything that it needs: the dependent is left alone.
//!
//! A replacement is an item of the list, a value derived from one, or a waiting value that an item
//! makes ready. If it cannot be brought before the deletion, for instance because it needs the
//! deleted value itself, the order of the list stays.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::early::is_met;
use super::{Child, Walk};
use crate::descriptor::{AnyOf, Dependency, Derived, Target};
use crate::graph::{Edge, EdgeTarget, Graph};
use crate::hash::HashSet;
use crate::key::{Key, KeyId};
use crate::state::ValueState;
use crate::value::Value;

/// A value that an item of the list brings: its own, or one derived from it.
#[derive(Debug)]
pub(super) struct Offer {
    root: KeyId,
    value: Value,
    property: bool,
}

/// The values that the items of a list bring, by key.
pub(super) type Offers = Arc<BTreeMap<Key, Offer>>;

/// A step of the search for the items that make a value exist.
enum Task {
    Need(Key),
    Apply(KeyId),
}

/// How a dependency on any key of a set can be met.
enum Choice {
    Met,
    Bring(Key),
    Impossible,
}

impl Walk {
    /// The items to apply before `going` goes away, so that dependents on any key of a set stay.
    pub(super) fn replacements(
        &mut self,
        graph: &Graph,
        sources: &[KeyId],
        going: KeyId,
    ) -> Vec<KeyId> {
        let mut order: Vec<KeyId> = Vec::new();
        let mut brought: Vec<Key> = Vec::new();
        if self.undone == 0 || self.reverting() {
            return order;
        }
        for source in sources.iter().copied() {
            let edges = graph.node(source).map(|node| Arc::clone(&node.edges)).unwrap_or_default();
            for edge in edges.iter() {
                let Some(set) = bereft(graph, edge, going) else { continue };
                if brought.iter().any(|key| set.accepts(key)) || !self.keeps(graph, source, going) {
                    continue;
                }
                if let Some((key, items)) = self.replacement(graph, set, edge, going) {
                    order.extend(
                        items.into_iter().filter(|id| !order.contains(id)).collect::<Vec<_>>(),
                    );
                    brought.push(key);
                }
            }
        }
        order
    }

    /// Whether a value that is no longer derived from `base` has a dependent that a new derived
    /// value can hold: then it is deleted after the new one exists.
    pub(super) fn is_replaced(
        &self,
        graph: &Graph,
        base: KeyId,
        old: KeyId,
        children: &[Child],
    ) -> bool {
        let holds = |child: &Child, set: &AnyOf, edge: &Edge| {
            !graph.is_available(child.id)
                && set.accepts(graph.key(child.id))
                && edge.accepts(Some(&child.value))
                && (child.property
                    || self
                        .dependencies_of(graph, child.id, &child.value)
                        .iter()
                        .all(|dependency| is_met(graph, dependency, Some(old))))
        };
        graph.sources(old).into_iter().any(|source| {
            let edges = graph.node(source).map(|node| &*node.edges).unwrap_or_default();
            let mut lost = edges.iter().filter_map(|edge| Some((bereft(graph, edge, old)?, edge)));
            graph.base_of(source) != base
                && lost.any(|(set, edge)| children.iter().any(|child| holds(child, set, edge)))
                && self.keeps(graph, source, old)
        })
    }

    /// Lists values among the derived values of a base until they are deleted.
    pub(super) fn still_derives(&self, graph: &mut Graph, base: KeyId, replaced: &[KeyId]) {
        let listed = graph.node(base).map(|node| Arc::clone(&node.derived)).unwrap_or_default();
        let mut all: Vec<KeyId> = listed.iter().chain(replaced).copied().collect();
        all.sort_unstable_by(|a, b| graph.key(*a).cmp(graph.key(*b)));
        graph.write(base).derived = all.into();
    }

    /// Whether a dependent stays if the any-of edges that it loses are met again.
    fn keeps(&self, graph: &Graph, source: KeyId, going: KeyId) -> bool {
        let Some(node) = graph.node(source).filter(|node| node.available && !node.is_obtained())
        else {
            return false;
        };
        let root = graph.base_of(source);
        if self.branch.contains(&source) || self.branch.contains(&root) {
            return false;
        }
        let stays = match self.coming(root).map(|item| item.value.as_ref()) {
            None => true,
            Some(None) => false,
            Some(Some(new)) => self.changes_in_place(graph, root, new),
        };
        stays
            && node.edges.iter().all(|edge| match &edge.target {
                EdgeTarget::Key(_, target) => {
                    graph.is_met(edge) && self.stays(graph, *target, going)
                }
                EdgeTarget::AnyOf { .. } => true,
            })
    }

    /// Whether a value that exists is still there when `going` is gone.
    fn stays(&self, graph: &Graph, id: KeyId, going: KeyId) -> bool {
        id != going
            && !self.branch.contains(&id)
            && self.coming(graph.base_of(id)).is_none_or(|item| item.value.is_some())
    }

    /// The first key of the set that later items can bring, and those items in order.
    fn replacement(
        &mut self,
        graph: &Graph,
        set: &AnyOf,
        edge: &Edge,
        going: KeyId,
    ) -> Option<(Key, Vec<KeyId>)> {
        let offers = self.offers(graph);
        let mut keys: Vec<Key> = Vec::new();
        for prefix in set.all_prefixes() {
            let offered = self.offered(&offers, prefix);
            keys.extend(
                offered
                    .filter(|(key, offer)| set.accepts(key) && edge.accepts(Some(&offer.value)))
                    .map(|(key, _)| key.clone()),
            );
            let waiting = graph.with_prefix(prefix);
            keys.extend(
                waiting
                    .filter(|(key, _, node)| {
                        node.state == ValueState::Pending
                            && set.accepts(key)
                            && edge.accepts(node.value.as_ref())
                    })
                    .map(|(key, _, _)| key.clone()),
            );
        }
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().find_map(|key| {
            let items = self.bring(graph, &offers, &key, going)?;
            (!items.is_empty()).then_some((key, items))
        })
    }

    /// The items that make a value exist, each after the items that it needs; none if something
    /// else is missing.
    fn bring(&self, graph: &Graph, offers: &Offers, key: &Key, going: KeyId) -> Option<Vec<KeyId>> {
        let mut order = Vec::new();
        let mut seen: HashSet<Key> = HashSet::default();
        let mut tasks = vec![Task::Need(key.clone())];
        while let Some(task) = tasks.pop() {
            let key = match task {
                Task::Apply(root) => {
                    order.push(root);
                    continue;
                }
                Task::Need(key) if seen.insert(key.clone()) => key,
                Task::Need(_) => continue,
            };
            let found = graph.find(&key);
            if found.is_some_and(|(id, node)| node.available && self.stays(graph, id, going)) {
                continue;
            }
            if let Some(offer) = offers.get(&key).filter(|offer| self.coming(offer.root).is_some())
            {
                let root = graph.key(offer.root);
                let own = *root == key;
                tasks.push(if own { Task::Apply(offer.root) } else { Task::Need(root.clone()) });
                for needed in self.needs(&key, offer) {
                    tasks.extend(self.task(graph, offers, &needed, going)?);
                }
            } else {
                let (_, node) = found.filter(|(_, node)| node.state == ValueState::Pending)?;
                for edge in node.edges.iter().filter(|edge| !graph.is_met(edge)) {
                    let accepts = |value: Option<&Value>| edge.accepts(value);
                    let choice = match &edge.target {
                        EdgeTarget::Key(key, _) => Choice::Bring(key.clone()),
                        EdgeTarget::AnyOf { set, .. } => {
                            self.choose(graph, offers, set, &accepts, going)
                        }
                    };
                    tasks.extend(choice.task()?);
                }
            }
        }
        Some(order)
    }

    fn needs(&self, key: &Key, offer: &Offer) -> Vec<Dependency> {
        let registry = &self.settings.registry;
        let descriptor = registry.for_key(key).filter(|_| !offer.property);
        descriptor.map(|id| registry.get(id).dependencies(key, &offer.value)).unwrap_or_default()
    }

    /// The task that meets a dependency: none inside if it is met, none at all if it cannot be.
    fn task(
        &self,
        graph: &Graph,
        offers: &Offers,
        dependency: &Dependency,
        going: KeyId,
    ) -> Option<Option<Task>> {
        let accepts = |value: Option<&Value>| {
            dependency.test.as_ref().is_none_or(|test| value.is_some_and(|value| test(value)))
        };
        match &dependency.target {
            Target::Key(key) => Choice::Bring(key.clone()),
            Target::AnyOf(set) => self.choose(graph, offers, set, &accepts, going),
        }
        .task()
    }

    fn choose(
        &self,
        graph: &Graph,
        offers: &Offers,
        set: &AnyOf,
        accepts: &dyn Fn(Option<&Value>) -> bool,
        going: KeyId,
    ) -> Choice {
        let there = |prefix| {
            graph.with_prefix(prefix).any(|(key, id, node)| {
                node.available
                    && set.accepts(key)
                    && accepts(node.value.as_ref())
                    && self.stays(graph, id, going)
            })
        };
        if set.all_prefixes().any(there) {
            return Choice::Met;
        }
        let offered = set.all_prefixes().find_map(|prefix| {
            let mut offered = self.offered(offers, prefix);
            offered.find(|(key, offer)| set.accepts(key) && accepts(Some(&offer.value)))
        });
        offered.map_or(Choice::Impossible, |(key, _)| Choice::Bring(key.clone()))
    }

    /// The offers of items whose turn is still to come, by prefix.
    fn offered<'a>(
        &'a self,
        offers: &'a Offers,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Offer)> {
        offers
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter(|(_, offer)| self.coming(offer.root).is_some())
    }

    /// The item that brings a key, if its turn is still to come.
    pub(super) fn offering(&mut self, graph: &Graph, key: &Key) -> Option<KeyId> {
        let root = self.offers(graph).get(key)?.root;
        self.coming(root).map(|item| item.id)
    }

    /// The first item whose value, or a value derived from it, is in the set.
    pub(super) fn offering_any(&mut self, graph: &Graph, set: &AnyOf) -> Option<KeyId> {
        let offers = self.offers(graph);
        set.all_prefixes().find_map(|prefix| {
            let mut offered = self.offered(&offers, prefix);
            offered.find(|(key, _)| set.accepts(key)).map(|(_, offer)| offer.root)
        })
    }

    /// All values that the list brings; computed once.
    fn offers(&mut self, graph: &Graph) -> Offers {
        if let Some(offers) = &self.offers {
            return Arc::clone(offers);
        }
        let mut offers = BTreeMap::new();
        for item in self.list.items() {
            let Some(value) = &item.value else { continue };
            for Derived { key, value, property } in self.derived_from(graph, item.id, value) {
                offers.insert(key, Offer { root: item.id, value, property });
            }
            let offer = Offer { root: item.id, value: value.clone(), property: false };
            offers.insert(graph.key(item.id).clone(), offer);
        }
        let offers = Arc::new(offers);
        self.offers = Some(Arc::clone(&offers));
        offers
    }
}

impl Choice {
    fn task(self) -> Option<Option<Task>> {
        match self {
            Self::Met => Some(None),
            Self::Bring(key) => Some(Some(Task::Need(key))),
            Self::Impossible => None,
        }
    }
}

/// The set of an any-of edge that nothing but `going` meets.
fn bereft<'a>(graph: &Graph, edge: &'a Edge, going: KeyId) -> Option<&'a AnyOf> {
    let EdgeTarget::AnyOf { set, witness } = &edge.target else {
        return None;
    };
    let other = |prefix| {
        graph.with_prefix(prefix).any(|(key, id, node)| {
            id != going && node.available && set.accepts(key) && edge.accepts(node.value.as_ref())
        })
    };
    let lost = match witness {
        None => true,
        Some(witness) => *witness == going && !set.all_prefixes().any(other),
    };
    lost.then_some(&**set)
}
