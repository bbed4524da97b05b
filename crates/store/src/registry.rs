//! The registry of kinds: everything the house needs to know to serve a kind, in a few lines.
//!
//! An engine describes each of its kinds with [`Kind::of`] and hands the list to
//! [`Registry::new`]; storage, validation, discovery, OpenAPI and tables follow from it. What
//! always holds: a registered kind has a usable structural schema, and no two kinds share a
//! resource, a kind name in their group, or a path.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use crate::column::{Cell, Column, ColumnType};
use crate::meta::ObjectMeta;
use crate::object::{Key, Resource};
use crate::schema::{self, Schema};
pub use crate::status::Violation;

/// A kind as a Rust type. Its serialised form leaves out what is unset; `apiVersion` and `kind`
/// are added by whoever writes it.
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
        /// What both claim.
        what: String,
    },
    /// The Rust type of a kind cannot be described by a structural schema. Change the type.
    #[error("{kind}: {source}")]
    Schema {
        /// The kind.
        kind: &'static str,
        /// What is wrong with its schema.
        source: schema::Error,
    },
    /// A column's path cannot be read. Correct the path.
    #[error("{kind}: column {column}: {source}")]
    Column {
        /// The kind.
        kind: &'static str,
        /// The column.
        column: &'static str,
        /// What is wrong with its path.
        source: crate::column::Error,
    },
}

type Defaulter =
    Box<dyn Fn(&mut Map<String, Value>) -> Result<(), serde_json::Error> + Send + Sync>;
type Judge = Box<
    dyn Fn(
            &Map<String, Value>,
            Option<&Map<String, Value>>,
        ) -> Result<Vec<Violation>, serde_json::Error>
        + Send
        + Sync,
>;
type PlainDefaulter = fn(&mut Map<String, Value>);
type PlainJudge = fn(&Map<String, Value>, Option<&Map<String, Value>>) -> Vec<Violation>;

/// How the names of a kind's objects are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS-1123 subdomain: dots allowed, up to 253 characters.
    Subdomain,
    /// A DNS-1123 label: no dots, up to 63 characters.
    Label,
}

/// One kind, fully described.
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The name of the collection in paths.
    pub plural: &'static str,
    /// The lower-case name of one object.
    pub singular: String,
    /// Abbreviations for the command line.
    pub short_names: Vec<&'static str>,
    /// Sets it is listed with, as `all`.
    pub categories: Vec<&'static str>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether its objects survive the process.
    pub durability: Durability,
    /// Whether `status` is written through its own subresource.
    pub has_status: bool,
    /// Whether a status given at creation is kept all the same.
    pub status_on_create: bool,
    /// Whether `spec.finalizers` hold back deletion too, and are written through `/finalize`.
    pub has_finalize: bool,
    /// Whether it counts generations: it does if it has a `spec`.
    pub has_generation: bool,
    /// How its names are formed.
    pub names: NameRule,
    /// Names of objects that are never deleted.
    pub undeletable: &'static [&'static str],
    /// The columns of its table, after the name.
    pub columns: Vec<Column>,
    /// Whether the table begins with a column of names.
    pub name_column: bool,
    /// Fields a field selector may name besides `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<&'static str>,
    /// The structure of its objects.
    pub schema: Schema,
    resource: Resource,
    api_version: String,
    beginnings: Vec<PlainDefaulter>,
    defaulters: Vec<Defaulter>,
    plain_defaulters: Vec<PlainDefaulter>,
    judge: Judge,
    plain_judges: Vec<PlainJudge>,
    problem: Option<Error>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kind")
            .field("group", &self.group)
            .field("version", &self.version)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Kind {
    /// Begins the description of `T`.
    #[must_use]
    pub fn of<T: Typed>() -> KindBuilder<T> {
        KindBuilder::new()
    }

    /// The collection its objects live in.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The key of one of its objects. The namespace is left out for cluster-scoped kinds.
    #[must_use]
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Key {
        let namespace = namespace.filter(|_| self.namespaced);
        Key::new(&self.resource, namespace, name)
    }

    /// `v1`, or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Whether stock clients know the kind by heart: they patch such objects strategically.
    #[must_use]
    pub fn is_well_known(&self) -> bool {
        self.group.is_empty() || self.group.ends_with(".k8s.io")
    }

    /// Gives a new object what its kind says it begins with.
    pub(crate) fn begin(&self, object: &mut Map<String, Value>) {
        for begin in &self.beginnings {
            begin(object);
        }
    }

    /// Whether the kind has defaults beyond those of its schema. Readers of older versions'
    /// objects ([`KindBuilder::default_with`]) rewrite fields rather than add them.
    pub(crate) fn fills_in(&self) -> bool {
        !self.plain_defaulters.is_empty()
    }

    /// Fills in what the type's own defaulting says.
    pub(crate) fn fill_in(&self, object: &mut Map<String, Value>) -> Result<(), serde_json::Error> {
        for defaulter in &self.plain_defaulters {
            defaulter(object);
        }
        self.defaulters.iter().try_for_each(|defaulter| defaulter(object))
    }

    /// What the type's own rules say about an object; an error if it is no such object at all.
    pub(crate) fn judge(
        &self,
        new: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
    ) -> Result<Vec<Violation>, serde_json::Error> {
        let mut violations = (self.judge)(new, old)?;
        for judge in &self.plain_judges {
            violations.extend(judge(new, old));
        }
        Ok(violations)
    }
}

/// A rule a type's objects obey: the new object, and the old one if it is an update.
type Rule<T> = fn(&T, Option<&T>) -> Vec<Violation>;

/// The description of a kind in the making.
pub struct KindBuilder<T> {
    short_names: Vec<&'static str>,
    categories: Vec<&'static str>,
    singular: Option<&'static str>,
    durability: Durability,
    has_status: bool,
    status_on_create: bool,
    has_finalize: bool,
    names: NameRule,
    undeletable: &'static [&'static str],
    columns: Vec<Column>,
    name_column: bool,
    selectable: Vec<&'static str>,
    beginnings: Vec<PlainDefaulter>,
    defaulters: Vec<Defaulter>,
    plain_defaulters: Vec<PlainDefaulter>,
    rules: Vec<Rule<T>>,
    plain_judges: Vec<PlainJudge>,
    typed: PhantomData<fn(T)>,
}

impl<T> fmt::Debug for KindBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KindBuilder").finish_non_exhaustive()
    }
}

impl<T: Typed> KindBuilder<T> {
    fn new() -> Self {
        Self {
            short_names: Vec::new(),
            categories: Vec::new(),
            singular: None,
            durability: Durability::Durable,
            has_status: false,
            status_on_create: false,
            has_finalize: false,
            names: NameRule::Subdomain,
            undeletable: &[],
            columns: Vec::new(),
            name_column: true,
            selectable: Vec::new(),
            beginnings: Vec::new(),
            defaulters: Vec::new(),
            plain_defaulters: Vec::new(),
            rules: Vec::new(),
            plain_judges: Vec::new(),
            typed: PhantomData,
        }
    }

    /// Adds an abbreviation, as `cm`.
    #[must_use]
    pub fn short(mut self, name: &'static str) -> Self {
        self.short_names.push(name);
        self
    }

    /// Lists it with a set, as `all`.
    #[must_use]
    pub fn category(mut self, name: &'static str) -> Self {
        self.categories.push(name);
        self
    }

    /// Sets the singular name, where it is not the kind in lower case.
    #[must_use]
    pub fn singular(mut self, name: &'static str) -> Self {
        self.singular = Some(name);
        self
    }

    /// Gives it a status subresource.
    #[must_use]
    pub fn status(mut self) -> Self {
        self.has_status = true;
        self
    }

    /// Keeps a status that is given at creation.
    #[must_use]
    pub fn status_on_create(mut self) -> Self {
        self.status_on_create = true;
        self
    }

    /// Lets `spec.finalizers` hold back deletion, written through `/finalize` only.
    #[must_use]
    pub fn finalize(mut self) -> Self {
        self.has_finalize = true;
        self
    }

    /// Requires names to be single DNS labels.
    #[must_use]
    pub fn label_names(mut self) -> Self {
        self.names = NameRule::Label;
        self
    }

    /// Refuses to delete objects of these names.
    #[must_use]
    pub fn undeletable(mut self, names: &'static [&'static str]) -> Self {
        self.undeletable = names;
        self
    }

    /// Keeps its objects in memory only.
    #[must_use]
    pub fn memory(mut self) -> Self {
        self.durability = Durability::Memory;
        self
    }

    /// Adds a column to its table.
    #[must_use]
    pub fn column(mut self, column: Column) -> Self {
        self.columns.push(column);
        self
    }

    /// Leaves out the column of names: the kind's own columns are all there is.
    #[must_use]
    pub fn no_name_column(mut self) -> Self {
        self.name_column = false;
        self
    }

    /// Lets field selectors name a field, as `spec.nodeName`.
    #[must_use]
    pub fn selectable(mut self, field: &'static str) -> Self {
        self.selectable.push(field);
        self
    }

    /// Sets what a new object begins with, whatever the client said.
    #[must_use]
    pub fn begin_with(mut self, begin: fn(&mut Map<String, Value>)) -> Self {
        self.beginnings.push(begin);
        self
    }

    /// Fills in what a schema default cannot say, in objects that need it. Called twice it must
    /// change nothing more.
    #[must_use]
    pub fn default_with(
        mut self,
        needs: fn(&Map<String, Value>) -> bool,
        fill_in: fn(&mut T),
    ) -> Self {
        self.defaulters.push(Box::new(move |object| {
            if !needs(object) {
                return Ok(());
            }
            let mut typed = T::deserialize(&*object)?;
            fill_in(&mut typed);
            let Value::Object(mut filled) = serde_json::to_value(&typed)? else {
                return Err(serde::ser::Error::custom("the type is not an object"));
            };
            for name in ["apiVersion", "kind"] {
                if let Some(value) = object.remove(name) {
                    filled.insert(name.to_owned(), value);
                }
            }
            *object = filled;
            Ok(())
        }));
        self
    }

    /// As [`KindBuilder::default_with`], on the JSON itself: for kinds where every microsecond
    /// counts.
    #[must_use]
    pub fn default_json(mut self, fill_in: fn(&mut Map<String, Value>)) -> Self {
        self.plain_defaulters.push(fill_in);
        self
    }

    /// Adds a rule its objects obey beyond their schema.
    #[must_use]
    pub fn validate(mut self, rule: Rule<T>) -> Self {
        self.rules.push(rule);
        self
    }

    /// As [`KindBuilder::validate`], on the JSON itself.
    #[must_use]
    pub fn validate_json(mut self, rule: PlainJudge) -> Self {
        self.plain_judges.push(rule);
        self
    }

    /// The finished kind. What is wrong with it, if anything, [`Registry::new`] will say.
    #[must_use]
    pub fn build(self) -> Kind {
        let mut problem = None;
        let schema = Schema::of::<T>().unwrap_or_else(|source| {
            problem = Some(Error::Schema { kind: T::KIND, source });
            Schema::anything()
        });
        let mut columns = self.columns;
        for column in &mut columns {
            let name = column.name;
            if let Err(source) = column.compile() {
                problem = Some(Error::Column { kind: T::KIND, column: name, source });
            }
        }
        let rules = self.rules;
        let judge: Judge = Box::new(move |new, old| {
            let new = T::deserialize(new)?;
            if rules.is_empty() {
                return Ok(Vec::new());
            }
            let old = old.map(T::deserialize).transpose()?;
            let judged = rules.iter().flat_map(|rule| rule(&new, old.as_ref()));
            Ok(judged.collect())
        });
        let api_version = if T::GROUP.is_empty() {
            T::VERSION.to_owned()
        } else {
            format!("{}/{}", T::GROUP, T::VERSION)
        };
        Kind {
            group: T::GROUP,
            version: T::VERSION,
            kind: T::KIND,
            plural: T::PLURAL,
            singular: self.singular.map_or_else(|| T::KIND.to_lowercase(), str::to_owned),
            short_names: self.short_names,
            categories: self.categories,
            namespaced: T::NAMESPACED,
            durability: self.durability,
            has_status: self.has_status,
            status_on_create: self.status_on_create,
            has_finalize: self.has_finalize,
            has_generation: schema.has_property("spec"),
            names: self.names,
            undeletable: self.undeletable,
            columns,
            name_column: self.name_column,
            selectable: self.selectable,
            schema,
            resource: Resource::new(T::GROUP, T::PLURAL),
            api_version,
            beginnings: self.beginnings,
            defaulters: self.defaulters,
            plain_defaulters: self.plain_defaulters,
            judge,
            plain_judges: self.plain_judges,
            problem,
        }
    }
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
