//! The registered descriptors: which one serves a key, and in which order they retrieve.
//!
//! Always holds: no two prefixes overlap, no two patterns overlap, and [`Registry::for_key`] orders
//! patterns, functions and prefixes, so a key has at most one descriptor; the retrieve order has no
//! cycle. All is checked when registering: a mistake is an error at start, never later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::erased::ErasedDescriptor;
use crate::selector::{KeyFunction, KeyPattern, Rule};

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
    /// A pattern of keys is not valid.
    #[error("pattern {pattern:?} of descriptor {name} is not valid: {reason}")]
    BadPattern {
        /// The descriptor that was refused.
        name: String,
        /// Its pattern.
        pattern: String,
        /// The mistake.
        reason: &'static str,
    },
    /// Another descriptor serves some of its keys.
    #[error("{keys} of descriptor {name} overlaps {other_keys} of descriptor {other}")]
    Overlap {
        /// The descriptor that was refused.
        name: String,
        /// Its prefix or pattern.
        keys: String,
        /// The descriptor that has the keys already.
        other: String,
        /// Its prefix or pattern.
        other_keys: String,
    },
    /// Another descriptor has applied a value that this one would serve.
    #[error(
        "descriptor {name} would take over {key}, which descriptor {other} has applied; register it \
         before the first transaction"
    )]
    Taken {
        /// The descriptor that was refused.
        name: String,
        /// The key of the value.
        key: String,
        /// The descriptor that has applied it.
        other: String,
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
    /// In order.
    prefixes: Vec<(String, DescriptorId)>,
    patterns: Vec<(KeyPattern, DescriptorId)>,
    functions: Vec<(KeyFunction, DescriptorId)>,
    /// The beginnings of the keys of each descriptor, in order; none begins another.
    starts: Vec<Vec<Arc<str>>>,
    order: Vec<DescriptorId>,
}

impl Registry {
    /// Adds a descriptor; a refused one changes nothing.
    pub(crate) fn register(
        &mut self,
        descriptor: Arc<dyn ErasedDescriptor>,
    ) -> Result<DescriptorId, Error> {
        let name = descriptor.name().to_owned();
        if self.by_name(&name).is_some() {
            return Err(Error::Exists(name));
        }
        let keys = descriptor.keys();
        let empty = |rule: &Rule| matches!(rule, Rule::Prefix(prefix) if prefix.is_empty());
        if keys.rules.is_empty() || keys.rules.iter().any(empty) {
            return Err(Error::NoPrefix(name));
        }
        let id =
            u16::try_from(self.descriptors.len()).map(DescriptorId).map_err(|_| Error::TooMany)?;
        let mut next = self.clone();
        let prefixes = keys.rules.iter().filter(|rule| matches!(rule, Rule::Prefix(_)));
        for prefix in outermost(prefixes) {
            next.add_prefix(&name, id, &prefix)?;
        }
        for rule in &keys.rules {
            match rule {
                Rule::Prefix(_) => {}
                Rule::Pattern(pattern) => next.add_pattern(&name, id, pattern)?,
                Rule::Function(function) => next.functions.push((function.clone(), id)),
            }
        }
        next.starts.push(outermost(keys.rules.iter()));
        next.descriptors.push(descriptor);
        next.order = next.sort()?;
        *self = next;
        Ok(id)
    }

    fn add_prefix(&mut self, name: &str, id: DescriptorId, prefix: &str) -> Result<(), Error> {
        if let Some((other_keys, other)) = self.overlapping(prefix) {
            let (name, other) = (name.to_owned(), self.get(other).name().to_owned());
            return Err(Error::Overlap {
                name,
                keys: format!("prefix {prefix}"),
                other,
                other_keys,
            });
        }
        let at = self.prefixes.partition_point(|(other, _)| other.as_str() < prefix);
        self.prefixes.insert(at, (prefix.to_owned(), id));
        Ok(())
    }

    fn add_pattern(
        &mut self,
        name: &str,
        id: DescriptorId,
        pattern: &KeyPattern,
    ) -> Result<(), Error> {
        let (name, text) = (name.to_owned(), pattern.text().to_owned());
        if let Some(reason) = pattern.problem() {
            return Err(Error::BadPattern { name, pattern: text, reason });
        }
        let mut others = self.patterns.iter().filter(|(_, owner)| *owner != id);
        if let Some((other_keys, other)) = others.find(|(other, _)| other.overlaps(pattern)) {
            let other = self.get(*other).name().to_owned();
            let (keys, other_keys) = (format!("pattern {text}"), other_keys.text().to_owned());
            return Err(Error::Overlap { name, keys, other, other_keys });
        }
        self.patterns.push((pattern.clone(), id));
        Ok(())
    }

    fn overlapping(&self, prefix: &str) -> Option<(String, DescriptorId)> {
        let at = self.prefixes.partition_point(|(other, _)| other.as_str() < prefix);
        let longer = self.prefixes.get(at).filter(|(other, _)| other.starts_with(prefix));
        longer.or_else(|| self.prefix_of(prefix)).cloned()
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

    /// The descriptor that serves a key: the one whose pattern fits, else the first whose function
    /// accepts it, else the one whose prefix begins it.
    pub(crate) fn for_key(&self, key: &str) -> Option<DescriptorId> {
        if let Some((_, id)) = self.patterns.iter().find(|(pattern, _)| pattern.accepts(key)) {
            return Some(*id);
        }
        if let Some((_, id)) = self.functions.iter().find(|(function, _)| function.accepts(key)) {
            return Some(*id);
        }
        self.prefix_of(key).map(|(_, id)| *id)
    }

    /// The prefix that begins a key. No prefix begins another, so only the greatest that is not
    /// after the key can.
    fn prefix_of(&self, key: &str) -> Option<&(String, DescriptorId)> {
        let after = self.prefixes.partition_point(|(prefix, _)| prefix.as_str() <= key);
        let last = self.prefixes.get(after.checked_sub(1)?)?;
        key.starts_with(last.0.as_str()).then_some(last)
    }

    /// Whether the descriptor serves a key that begins with one of its [`Self::starts_of`].
    pub(crate) fn serves(&self, id: DescriptorId, key: &str) -> bool {
        (self.patterns.is_empty() && self.functions.is_empty()) || self.for_key(key) == Some(id)
    }

    pub(crate) fn in_retrieve_order(&self) -> impl Iterator<Item = DescriptorId> {
        self.order.iter().copied()
    }

    /// The beginnings of the keys of a descriptor, in order; none begins another.
    pub(crate) fn starts_of(&self, id: DescriptorId) -> impl Iterator<Item = &str> {
        self.starts[usize::from(id.0)].iter().map(|start| &**start)
    }

    /// Every prefix and pattern, with its descriptor.
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = (&str, DescriptorId)> {
        let prefixes = self.prefixes.iter().map(|(prefix, id)| (prefix.as_str(), *id));
        prefixes.chain(self.patterns.iter().map(|(pattern, id)| (pattern.text(), *id)))
    }
}

/// The beginnings of the keys of some rules, in order, without those that another one begins.
fn outermost<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<Arc<str>> {
    let mut all: Vec<&str> = rules.map(Rule::start).collect();
    all.sort_unstable();
    let mut starts: Vec<Arc<str>> = Vec::new();
    for start in all {
        if starts.last().is_none_or(|last| !start.starts_with(&**last)) {
            starts.push(start.into());
        }
    }
    starts
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
