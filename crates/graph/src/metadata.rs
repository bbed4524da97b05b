//! Metadata: a descriptor's own data about applied values, and named indexes from label to metadata,
//! one per descriptor that keeps any.
//!
//! Metadata is shown but never read back, so it may hold handles: open files, connections, locks. It
//! does not survive the process; after a restart a retrieval gives it back.
//!
//! Only the engine writes an index. A reader may hold a clone for as long as it likes and always sees
//! the present state.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::value::unshowable;

/// The traits that a Rust type needs to be metadata. They are derived; this one is implemented for
/// every type that has them. Parts that cannot be serialised go into a [`Handle`].
pub trait MetadataType: Serialize + PartialEq + fmt::Debug + Send + Sync + 'static {}

impl<T> MetadataType for T where T: Serialize + PartialEq + fmt::Debug + Send + Sync + 'static {}

/// A shared resource in metadata, such as an open file or a connection. Cheap to clone; two handles
/// are equal if one is a clone of the other; it is shown as the name of its type.
///
/// ```
/// use std::sync::Mutex;
///
/// use mainstay_graph::{Handle, Metadata};
/// use serde::Serialize;
///
/// #[derive(Debug, PartialEq, Serialize)]
/// struct Link {
///     number: u32,
///     socket: Handle<Mutex<Vec<u8>>>,
/// }
///
/// let socket = Handle::new(Mutex::new(Vec::new()));
/// let metadata = Metadata::new(Link { number: 7, socket: socket.clone() });
/// metadata.get::<Link>().unwrap().socket.lock().unwrap().push(1);
/// assert_eq!(socket.lock().unwrap().len(), 1);
/// assert_eq!(metadata.json()["number"], 7);
/// ```
pub struct Handle<T: ?Sized>(Arc<T>);

impl<T> Handle<T> {
    /// A handle on a resource.
    pub fn new(resource: T) -> Self {
        Self(Arc::new(resource))
    }
}

impl<T: ?Sized> From<Arc<T>> for Handle<T> {
    fn from(resource: Arc<T>) -> Self {
        Self(resource)
    }
}

impl<T: ?Sized> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> Deref for Handle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: ?Sized> Eq for Handle<T> {}

impl<T: ?Sized> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle<{}>", std::any::type_name::<T>())
    }
}

impl<T: ?Sized> Serialize for Handle<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(std::any::type_name::<T>())
    }
}

trait Erased: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn json(&self) -> serde_json::Value;
    fn same(&self, other: &dyn Erased) -> bool;
}

impl<T: MetadataType> Erased for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_else(|error| unshowable(error.to_string()))
    }

    fn same(&self, other: &dyn Erased) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// A descriptor's data about an applied value: an index, a handle, a name given by the south. Cheap
/// to clone.
///
/// ```
/// use mainstay_graph::Metadata;
///
/// let number = Metadata::new(7_u32);
/// assert_eq!(number.get::<u32>(), Some(&7));
/// assert_eq!(number.json(), serde_json::json!(7));
/// ```
#[derive(Clone)]
pub struct Metadata(Arc<dyn Erased>);

impl Metadata {
    /// Wraps typed metadata.
    pub fn new<M: MetadataType>(metadata: M) -> Self {
        Self(Arc::new(metadata))
    }

    /// The metadata as its type, if it is of that type.
    pub fn get<M: MetadataType>(&self) -> Option<&M> {
        self.0.as_any().downcast_ref()
    }

    /// The metadata as JSON.
    pub fn json(&self) -> serde_json::Value {
        self.0.json()
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.same(&*other.0)
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<serde_json::Value> for Metadata {
    fn from(json: serde_json::Value) -> Self {
        Self::new(json)
    }
}

impl Serialize for Metadata {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(serializer)
    }
}

/// Metadata that was shown is read as JSON.
impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(deserializer).map(Self::new)
    }
}

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
    pub fn get<M: MetadataType + Clone>(&self, index: &str, label: &str) -> Option<M> {
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
    pub fn labels_where<M: MetadataType>(
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
