//! Values that cannot be seen: their descriptor has never been able to retrieve.
//!
//! Such a value may exist or not. It is not created, because it may be there already; values that
//! exist and depend on it stay, because it may be there; values that do not exist wait for it. A
//! value on which an unseen one may depend is not deleted.
//!
//! A derived value is visible through its base, so it is unseen if its base is, whichever descriptor
//! it has itself.

use std::sync::Arc;

use super::{Edge, EdgeTarget, Failure, Graph};
use crate::hash::HashMap;
use crate::key::KeyId;
use crate::registry::{DescriptorId, Registry};

/// The descriptors whose values cannot be seen, each with the error that their values show.
#[derive(Debug, Clone)]
pub(crate) struct Veil {
    pub(crate) registry: Arc<Registry>,
    pub(crate) descriptors: HashMap<DescriptorId, Arc<Failure>>,
}

impl Graph {
    /// Replaces the veil; none if all descriptors can retrieve.
    pub(crate) fn set_veil(&mut self, veil: Option<Veil>) {
        self.veil = veil;
        self.version += 1;
    }

    /// Why a value that does not exist, as far as known, may exist all the same.
    pub(crate) fn unseen(&self, id: KeyId) -> Option<&Arc<Failure>> {
        let veil = self.veil.as_ref()?;
        self.node(id).filter(|node| !node.available)?;
        let base = self.node(self.base_of(id)).filter(|base| !base.available)?;
        veil.descriptors.get(&base.descriptor?)
    }

    /// Whether an unmet edge may be met by a value that cannot be seen.
    pub(super) fn may_be_met(&self, edge: &Edge) -> bool {
        self.veil.as_ref().is_some_and(|veil| match &edge.target {
            EdgeTarget::Key(key, _) => veil
                .registry
                .for_key(key)
                .is_some_and(|descriptor| veil.descriptors.contains_key(&descriptor)),
            EdgeTarget::AnyOf { witness, .. } => witness.is_none(),
        })
    }

    /// Whether an existing value cannot be deleted: a value that cannot be seen may depend on it or
    /// on a value derived from it.
    pub(crate) fn is_needed_by_unseen(&self, id: KeyId) -> bool {
        self.veil.is_some()
            && self.family(id).any(|member| {
                self.sources(member).into_iter().any(|source| self.unseen(source).is_some())
            })
    }

    /// Whether an existing value cannot be deleted and created again: it cannot be deleted, or it
    /// would have to wait for a dependency that cannot be seen.
    pub(crate) fn is_bound_to_unseen(&self, id: KeyId) -> bool {
        let waits = |member: KeyId| {
            let edges = self.node(member).map(|node| &*node.edges).unwrap_or_default();
            edges.iter().any(|edge| !self.is_met(edge) && self.may_be_met(edge))
        };
        self.veil.is_some() && (self.family(id).any(waits) || self.is_needed_by_unseen(id))
    }

    /// A value and its derived values.
    fn family(&self, id: KeyId) -> impl Iterator<Item = KeyId> {
        let derived = self.node(id).map(|node| &*node.derived).unwrap_or_default();
        std::iter::once(id).chain(derived.iter().copied())
    }
}
