//! Checks every object of a store.
//!
//! Every object is decoded and checked against the schema and the rules of its kind, as if it came
//! from a client today, and its key against its metadata. Internal objects of the server have no
//! kind; collections of kinds that this program does not know are listed and not checked.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::names;
use crate::object::{Key, Record};
use crate::registry::{Kind, Registry};
use crate::snapshot::Snapshot;
use crate::status::Violation;

/// The group of collections that have no kind because they belong to the server itself.
pub const INTERNAL: &str = "internal.mainstay.dev";

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How many objects were looked at.
    pub objects: usize,
    /// Problems of objects.
    pub findings: Vec<Finding>,
    /// Problems of the medium that holds them.
    pub medium: Vec<String>,
    /// Collections of kinds that are not known here: nothing can be said about their objects.
    pub unknown: Vec<String>,
}

/// One thing that is wrong with one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The object's collection.
    pub resource: String,
    /// Its namespace and name, or its name.
    pub path: String,
    /// The problem.
    pub problem: String,
}

impl Report {
    /// Whether all is well.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.medium.is_empty()
    }
}

/// Looks at every object of a snapshot. Takes a while for many.
#[must_use]
pub fn check(snapshot: &Snapshot, registry: &Registry) -> Report {
    let mut report = Report::default();
    for (resource, collection) in &snapshot.collections {
        let kind = registry.by_resource(resource);
        let internal = resource.as_str().strip_suffix(INTERNAL).is_some_and(|r| r.ends_with('.'));
        if kind.is_none() && !internal {
            report.unknown.push(resource.to_string());
        }
        for record in collection.range(None, None) {
            report.objects += 1;
            let finding = |problem| Finding {
                resource: resource.to_string(),
                path: record.key().path().to_owned(),
                problem,
            };
            report.findings.extend(problems(kind.map(|kind| &**kind), record).map(finding));
        }
    }
    report
}

fn problems(kind: Option<&Kind>, record: &Record) -> impl Iterator<Item = String> + use<> {
    let mut found = Vec::new();
    match serde_json::from_slice::<Map<String, Value>>(record.json()) {
        Err(error) => found.push(format!("not a JSON object: {error}")),
        Ok(object) => {
            if let Some(kind) = kind {
                misplaced(kind, record.key(), &object, &mut found);
                let broken = broken_rules(kind, &object);
                found.extend(broken.into_iter().map(|v| format!("{}: {}", v.field, v.message)));
            }
        }
    }
    found.into_iter()
}

fn broken_rules(kind: &Kind, object: &Map<String, Value>) -> Vec<Violation> {
    let mut found = kind.schema.validate(object);
    if !found.is_empty() {
        return found;
    }
    if let Some(metadata) = object.get("metadata").and_then(Value::as_object) {
        names::check_metadata(metadata, &mut found);
    }
    match kind.judge(object, None) {
        Ok(violations) => found.extend(violations),
        Err(error) => {
            let detail = format!("it does not decode: {error}");
            found.push(Violation::invalid("", &Value::Null, &detail));
        }
    }
    found
}

/// Where the object says it belongs, against where it is.
fn misplaced(kind: &Kind, key: &Key, object: &Map<String, Value>, found: &mut Vec<String>) {
    let metadata = object.get("metadata").and_then(Value::as_object);
    let named = |name| metadata.and_then(|metadata| metadata.get(name)).and_then(Value::as_str);
    let mut compare = |field: &str, says: Option<&str>, should: Option<&str>| {
        if says != should {
            let show = |text: Option<&str>| text.map_or("nothing".to_owned(), |t| format!("{t:?}"));
            found.push(format!("{field} is {}, not {}", show(says), show(should)));
        }
    };
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    compare("apiVersion", text("apiVersion"), Some(kind.api_version()));
    compare("kind", text("kind"), Some(kind.kind));
    compare("metadata.name", named("name"), Some(key.name()));
    compare("metadata.namespace", named("namespace"), key.namespace());
    if named("uid").is_none_or(str::is_empty) {
        found.push("metadata.uid is missing".to_owned());
    }
    if kind.namespaced != key.namespace().is_some() {
        let scope = if kind.namespaced { "in a namespace" } else { "outside namespaces" };
        found.push(format!("objects of its kind live {scope}, but its key does not"));
    }
}

#[cfg(test)]
mod tests;
