//! One kind, fully described.

use std::fmt;

use serde_json::{Map, Value};

use super::{Column, Durability, Error, KindBuilder, Typed, Violation};
use crate::object::{Key, Resource};
use crate::schema::Schema;

pub(super) type Defaulter =
    Box<dyn Fn(&mut Map<String, Value>) -> Result<(), serde_json::Error> + Send + Sync>;
pub(super) type Judge = Box<
    dyn Fn(
            &Map<String, Value>,
            Option<&Map<String, Value>>,
        ) -> Result<Vec<Violation>, serde_json::Error>
        + Send
        + Sync,
>;
pub(super) type PlainDefaulter = fn(&mut Map<String, Value>);
pub(super) type PlainJudge = fn(&Map<String, Value>, Option<&Map<String, Value>>) -> Vec<Violation>;

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
    pub(super) resource: Resource,
    pub(super) api_version: String,
    pub(super) beginnings: Vec<PlainDefaulter>,
    pub(super) defaulters: Vec<Defaulter>,
    pub(super) plain_defaulters: Vec<PlainDefaulter>,
    pub(super) judge: Judge,
    pub(super) plain_judges: Vec<PlainJudge>,
    pub(super) problem: Option<Error>,
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

    /// Whether the kind is built into stock clients, which patch its objects strategically.
    #[must_use]
    pub fn is_well_known(&self) -> bool {
        self.group.is_empty() || self.group.ends_with(".k8s.io")
    }

    /// Sets the fields of a new object that its kind prescribes.
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

    /// The violations of the type's own rules by an object; an error if the object does not decode.
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
