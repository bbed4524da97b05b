//! The registered descriptors: which one serves a key, and in which order they retrieve.
//!
//! Always holds: no two prefixes overlap, so a key has at most one descriptor; the retrieve order
//! has no cycle. Both are checked when registering: a mistake is an error at start, never later.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::erased::ErasedDescriptor;

/// The number of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DescriptorId(u16);

/// Why a descriptor was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is taken.
    #[error("descriptor {0} already exists")]
    Exists(String),
    /// It has no key prefix.
    #[error("descriptor {0} has no key prefix, or an empty one")]
    NoPrefix(String),
    /// Another descriptor serves some of its keys.
    #[error("prefix {prefix} of descriptor {name} overlaps {other_prefix} of descriptor {other}")]
    Overlap {
        /// The descriptor that was refused.
        name: String,
        /// Its prefix.
        prefix: String,
        /// The descriptor that has the prefix already.
        other: String,
        /// Its prefix.
        other_prefix: String,
    },
    /// The order of retrieval has a cycle.
    #[error("retrieve order has a cycle: {}", .0.join(" after "))]
    Cycle(Vec<String>),
    /// There are more than 65,535 descriptors.
    #[error("there are too many descriptors")]
    TooMany,
}

/// The registered descriptors. Copied when one is added, so that readers never wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    descriptors: Vec<Arc<dyn ErasedDescriptor>>,
    prefixes: BTreeMap<String, DescriptorId>,
    order: Vec<DescriptorId>,
}

impl Registry {
    pub(crate) fn register(
        &mut self,
        descriptor: Arc<dyn ErasedDescriptor>,
    ) -> Result<DescriptorId, Error> {
        let name = descriptor.name().to_owned();
        if self.by_name(&name).is_some() {
            return Err(Error::Exists(name));
        }
        let prefixes: BTreeSet<String> = descriptor.prefixes().into_iter().collect();
        if prefixes.is_empty() || prefixes.contains("") {
            return Err(Error::NoPrefix(name));
        }
        for prefix in &prefixes {
            if let Some((other_prefix, other)) = self.overlapping(prefix) {
                let other = self.get(other).name().to_owned();
                return Err(Error::Overlap { name, prefix: prefix.clone(), other, other_prefix });
            }
        }
        let id =
            u16::try_from(self.descriptors.len()).map(DescriptorId).map_err(|_| Error::TooMany)?;
        let mut next = self.clone();
        next.descriptors.push(descriptor);
        next.prefixes.extend(prefixes.into_iter().map(|prefix| (prefix, id)));
        next.order = next.sort()?;
        *self = next;
        Ok(id)
    }

    fn overlapping(&self, prefix: &str) -> Option<(String, DescriptorId)> {
        let longer =
            self.prefixes.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).next();
        let shorter =
            self.prefixes.range::<str, _>((Bound::Unbounded, Bound::Included(prefix))).next_back();
        longer
            .filter(|(other, _)| other.starts_with(prefix))
            .or(shorter.filter(|(other, _)| prefix.starts_with(other.as_str())))
            .map(|(other, id)| (other.clone(), *id))
    }

    /// Topological, ties by name; names nobody has are ignored.
    fn sort(&self) -> Result<Vec<DescriptorId>, Error> {
        let mut waiting: BTreeMap<&str, (DescriptorId, BTreeSet<String>)> = self
            .descriptors
            .iter()
            .zip(0..)
            .map(|(descriptor, id)| {
                let mut after: BTreeSet<String> = descriptor.retrieve_after().into_iter().collect();
                after.retain(|name| self.by_name(name).is_some());
                (descriptor.name(), (DescriptorId(id), after))
            })
            .collect();
        let mut order = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let ready = waiting.iter().find(|(_, (_, after))| after.is_empty());
            let Some((&name, &(id, _))) = ready else {
                return Err(Error::Cycle(circle(&waiting)));
            };
            waiting.remove(name);
            for (_, after) in waiting.values_mut() {
                after.remove(name);
            }
            order.push(id);
        }
        Ok(order)
    }

    pub(crate) fn get(&self, id: DescriptorId) -> &Arc<dyn ErasedDescriptor> {
        &self.descriptors[usize::from(id.0)]
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<DescriptorId> {
        let position = self.descriptors.iter().position(|descriptor| descriptor.name() == name)?;
        u16::try_from(position).ok().map(DescriptorId)
    }

    /// The descriptor that answers for a key. No prefix begins another, so the greatest prefix that
    /// is not after the key is the only one that can begin it.
    pub(crate) fn for_key(&self, key: &str) -> Option<DescriptorId> {
        let range = (Bound::Unbounded, Bound::Included(key));
        let (prefix, id) = self.prefixes.range::<str, _>(range).next_back()?;
        key.starts_with(prefix.as_str()).then_some(*id)
    }

    pub(crate) fn in_retrieve_order(&self) -> impl Iterator<Item = DescriptorId> {
        self.order.iter().copied()
    }

    pub(crate) fn prefixes_of(&self, id: DescriptorId) -> impl Iterator<Item = &str> {
        self.prefixes
            .iter()
            .filter(move |(_, owner)| **owner == id)
            .map(|(prefix, _)| prefix.as_str())
    }

    pub(crate) fn all_prefixes(&self) -> impl Iterator<Item = (&str, DescriptorId)> {
        self.prefixes.iter().map(|(prefix, id)| (prefix.as_str(), *id))
    }
}

fn circle(waiting: &BTreeMap<&str, (DescriptorId, BTreeSet<String>)>) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    let mut name = waiting.keys().next().map(|name| (*name).to_owned()).unwrap_or_default();
    while !path.contains(&name) {
        let next = waiting.get(name.as_str()).and_then(|(_, after)| after.first().cloned());
        path.push(name);
        name = next.unwrap_or_default();
    }
    let start = path.iter().position(|seen| *seen == name).unwrap_or(0);
    path.drain(..start);
    path.push(name);
    path
}

#[cfg(test)]
mod tests;
