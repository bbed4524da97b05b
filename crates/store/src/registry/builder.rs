//! Describing a kind step by step.

use std::fmt;
use std::marker::PhantomData;

use serde_json::{Map, Value};

use super::kind::{Defaulter, Judge, PlainDefaulter, PlainJudge};
use super::{Column, Durability, Error, Kind, NameRule, Typed, Violation};
use crate::object::Resource;
use crate::schema::Schema;

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
    pub(super) fn new() -> Self {
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

    /// Sets fields of every new object, whatever the client sent.
    #[must_use]
    pub fn begin_with(mut self, begin: fn(&mut Map<String, Value>)) -> Self {
        self.beginnings.push(begin);
        self
    }

    /// Fills in defaults that a schema cannot express, in objects that need them. Called twice it
    /// must change nothing more.
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

    /// The finished kind. [`Registry::new`](super::Registry::new) returns its problem, if it has one.
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
