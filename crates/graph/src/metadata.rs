//! Named indexes from label to metadata, one per descriptor that keeps any.
//!
//! Only the engine writes. A reader may hold a clone for as long as it likes and always sees the
//! present state.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::value::{Metadata, ValueType};

type Indexes = BTreeMap<String, BTreeMap<String, Metadata>>;

/// All metadata of an engine. Cheap to clone.
///
/// ```
/// # use mainstay_graph::{Builder, Options};
/// # fn main() -> Result<(), mainstay_graph::Error> {
/// let (engine, _service) = Builder::new(Options::default()).build()?;
/// let number: Option<u32> = engine.indexes().get("interface-numbers", "eth0");
/// assert_eq!(number, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct MetadataIndexes(Arc<RwLock<Indexes>>);

impl MetadataIndexes {
    /// The metadata of one label, if it is of the type asked for.
    pub fn get<M: ValueType + Clone>(&self, index: &str, label: &str) -> Option<M> {
        self.read(|indexes| indexes.get(index)?.get(label)?.get().cloned())
    }

    /// The metadata of one label, as it is.
    pub fn lookup(&self, index: &str, label: &str) -> Option<Metadata> {
        self.read(|indexes| indexes.get(index)?.get(label).cloned())
    }

    /// A whole index; none if no descriptor has an index of that name.
    pub fn list(&self, index: &str) -> Option<BTreeMap<String, Metadata>> {
        self.read(|indexes| indexes.get(index).cloned())
    }

    /// The labels whose metadata a test accepts: a secondary index, computed on each call.
    pub fn labels_where<M: ValueType>(
        &self,
        index: &str,
        test: impl Fn(&M) -> bool,
    ) -> Vec<String> {
        self.read(|indexes| {
            let accepted = |(label, metadata): (&String, &Metadata)| {
                metadata.get::<M>().is_some_and(&test).then(|| label.clone())
            };
            indexes.get(index).into_iter().flatten().filter_map(accepted).collect()
        })
    }

    pub(crate) fn declare(&self, index: &str) {
        self.write(|indexes| {
            indexes.entry(index.to_owned()).or_default();
        });
    }

    pub(crate) fn put(&self, index: &str, label: String, metadata: Metadata) {
        self.write(|indexes| match indexes.get_mut(index) {
            Some(known) => {
                known.insert(label, metadata);
            }
            None => {
                indexes.insert(index.to_owned(), BTreeMap::from([(label, metadata)]));
            }
        });
    }

    pub(crate) fn remove(&self, index: &str, label: &str) {
        self.write(|indexes| {
            if let Some(index) = indexes.get_mut(index) {
                index.remove(label);
            }
        });
    }

    fn read<T>(&self, read: impl FnOnce(&Indexes) -> T) -> T {
        read(&self.0.read())
    }

    fn write(&self, write: impl FnOnce(&mut Indexes)) {
        write(&mut self.0.write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secondary_index_follows_every_change() {
        let indexes = MetadataIndexes::default();
        assert!(indexes.list("a").is_none(), "an unknown index is not an empty one");
        indexes.declare("a");
        assert_eq!(indexes.list("a").map(|index| index.len()), Some(0));
        for (label, number) in [("A1", 1_u32), ("A2", 2), ("A3", 3)] {
            indexes.put("a", label.to_owned(), Metadata::new(number));
        }
        indexes.remove("a", "A1");
        indexes.put("a", "A2".to_owned(), Metadata::new(4_u32));
        let holding = |number: u32| indexes.labels_where("a", move |found: &u32| *found == number);
        assert!(holding(1).is_empty() && holding(2).is_empty());
        assert_eq!(holding(4), ["A2"]);
        assert_eq!(indexes.get::<u32>("a", "A3"), Some(3));
        assert_eq!(indexes.get::<u64>("a", "A3"), None);
    }
}
