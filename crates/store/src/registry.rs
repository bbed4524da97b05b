//! The registry of kinds: everything the server needs to know to serve a kind, in a few lines.
//!
//! An engine describes each of its kinds with [`Kind::of`] and hands the list to [`Registry::new`];
//! storage, validation, discovery, OpenAPI and tables follow from it. Invariants: a registered kind
//! has a usable structural schema, and no two kinds share a resource, a kind name in their group,
//! or a path.

mod builder;
mod kind;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::column::{Cell, Column, ColumnType};
use crate::meta::ObjectMeta;
use crate::object::Resource;
use crate::schema;
pub use crate::status::Violation;
pub use builder::KindBuilder;
pub use kind::{Kind, NameRule};

/// A kind as a Rust type. Its serialised form leaves out what is unset; `apiVersion` and `kind`
/// are added by the code that writes it.
pub trait Typed:
    Serialize + DeserializeOwned + JsonSchema + Clone + fmt::Debug + Send + Sync + 'static
{
    /// The API group; empty for the core group.
    const GROUP: &'static str;
    /// The version, as `v1`.
    const VERSION: &'static str;
    /// The kind, as `ConfigMap`.
    const KIND: &'static str;
    /// The name of the collection in paths, as `configmaps`.
    const PLURAL: &'static str;
    /// Whether its objects live in namespaces.
    const NAMESPACED: bool;

    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// The object's metadata, to change.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

/// Implements [`Typed`] for a struct with a field `metadata`.
#[macro_export]
macro_rules! typed {
    ($type:ident, group: $group:expr, version: $version:expr, plural: $plural:expr, namespaced: $namespaced:expr) => {
        impl $crate::registry::Typed for $type {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = stringify!($type);
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $namespaced;

            fn metadata(&self) -> &$crate::meta::ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::meta::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// The kinds every installation has.
#[must_use]
pub fn builtin() -> Vec<Kind> {
    crate::builtin::kinds()
}

/// Whether objects survive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// They are on disk before a write is acknowledged.
    Durable,
    /// They live as long as the process: cheap, and rebuilt from the world after a restart.
    Memory,
}

/// Why a set of kinds cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two kinds want the same place. Register one of them only.
    #[error("{what} is registered twice")]
    Duplicate {
        /// The resource or the kind that both claim.
        what: String,
    },
    /// The Rust type of a kind cannot be described by a structural schema. Change the type.
    #[error("{kind}: {source}")]
    Schema {
        /// The kind.
        kind: &'static str,
        /// The problem of its schema.
        source: schema::Error,
    },
    /// A column's path cannot be read. Correct the path.
    #[error("{kind}: column {column}: {source}")]
    Column {
        /// The kind.
        kind: &'static str,
        /// The column.
        column: &'static str,
        /// The problem of its path.
        source: crate::column::Error,
    },
}

/// One version of a group, and the kinds in it.
#[derive(Clone, Debug)]
pub struct GroupVersion {
    /// The group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// Its kinds, by plural.
    pub kinds: Vec<Arc<Kind>>,
}

/// Every kind that is served.
#[derive(Debug, Default)]
pub struct Registry {
    kinds: Vec<Arc<Kind>>,
    by_resource: BTreeMap<Resource, Arc<Kind>>,
}

impl Registry {
    /// A registry of these kinds.
    ///
    /// # Errors
    /// [`Error::Duplicate`] if two kinds share a resource or a name in a group; the others if a
    /// type has no structural schema or a column's path cannot be read.
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Result<Self, Error> {
        let mut registry = Self::default();
        let mut names = BTreeMap::new();
        for mut kind in kinds {
            if let Some(problem) = kind.problem.take() {
                return Err(problem);
            }
            let kind = Arc::new(kind);
            let resource = kind.resource().clone();
            let known = registry.by_resource.insert(resource, kind.clone());
            if known.is_some() {
                let what = format!("resource {}", kind.resource());
                return Err(Error::Duplicate { what });
            }
            if names.insert((kind.group, kind.kind), ()).is_some() {
                let what = format!("kind {} of {}", kind.kind, kind.api_version());
                return Err(Error::Duplicate { what });
            }
            registry.kinds.push(kind);
        }
        registry.kinds.sort_by_key(|kind| (kind.group, kind.version, kind.plural));
        Ok(registry)
    }

    /// The kind served at `/apis/GROUP/VERSION/PLURAL`.
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let at = self
            .kinds
            .binary_search_by(|kind| {
                (kind.group, kind.version, kind.plural).cmp(&(group, version, plural))
            })
            .ok()?;
        self.kinds.get(at)
    }

    /// The kind an object says it is.
    #[must_use]
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.kinds.iter().find(|known| known.kind == kind && known.api_version() == api_version)
    }

    /// The kind of a collection.
    #[must_use]
    pub fn by_resource(&self, resource: &Resource) -> Option<&Arc<Kind>> {
        self.by_resource.get(resource)
    }

    /// The kind of a Rust type.
    #[must_use]
    pub fn of<T: Typed>(&self) -> Option<&Arc<Kind>> {
        self.find(T::GROUP, T::VERSION, T::PLURAL)
    }

    /// Every kind, by group, version and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.iter()
    }

    /// Every group version with its kinds, the core group first.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupVersion> {
        let same = |a: &Arc<Kind>, b: &Arc<Kind>| (a.group, a.version) == (b.group, b.version);
        self.kinds
            .chunk_by(same)
            .filter_map(|kinds| {
                let first = kinds.first()?;
                Some(GroupVersion {
                    group: first.group,
                    version: first.version,
                    kinds: kinds.to_vec(),
                })
            })
            .collect()
    }
}
