//! Server-side apply: many parties write one object, and each knows which fields are its own.
//!
//! An object carries in `metadata.managedFields` who holds which fields. A party that *applies*
//! sends everything it wants; it becomes the holder of exactly those fields, what it sent before
//! and no longer sends is removed unless somebody else holds it, and a field that another party
//! holds with another value is a conflict unless the applier insists. A party that *updates*
//! becomes the holder of what it changed, and nobody may object.
//!
//! Enter at [`apply`] and [`track`]; both are pure. What always holds: what an applier sent is in
//! the object afterwards, no field it did not send and did not hold has changed, and applying the
//! same again changes nothing.

mod fields;
mod managers;
#[cfg(test)]
mod tests;
mod walk;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::registry::Kind;
use crate::status::{Cause, Error, Reason};
use crate::strategy::Subresource;
use fields::{Element, FieldSet};
use managers::{Managers, Party};
use walk::Difference;

type Object = Map<String, Value>;

/// The annotation in which `kubectl apply` without `--server-side` remembers what it sent.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Who holds what was there before anybody was written down.
const BEFORE: &str = "before-first-apply";
/// Metadata that the server decides about, and so nobody holds.
const UNHELD_METADATA: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
    "generateName",
    "selfLink",
];

/// Who writes, and how.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The name it gives itself.
    pub manager: &'a str,
    /// The part it writes.
    pub subresource: Option<Subresource>,
    /// The time.
    pub now: Timestamp,
}

impl Writer<'_> {
    fn party(&self, kind: &Kind, applies: bool) -> Party {
        let subresource = match self.subresource {
            None => "",
            Some(Subresource::Status) => "status",
            Some(Subresource::Finalize) => "finalize",
        };
        Party {
            manager: self.manager.to_owned(),
            applies,
            subresource: subresource.to_owned(),
            api_version: kind.api_version().to_owned(),
        }
    }
}

/// What an object becomes when `config` is applied to it; `live` is `None` if there is none yet.
///
/// # Errors
/// 409 naming every field that another party holds with another value, unless `force`.
pub fn apply(
    kind: &Kind,
    live: Option<&Object>,
    config: &Object,
    writer: Writer<'_>,
    force: bool,
) -> Result<Object, Error> {
    let nothing = Object::new();
    let live = live.unwrap_or(&nothing);
    let config = meant(kind, config, writer.subresource);
    match try_apply(kind, live, &config, writer, force) {
        Err(conflicts) if writer.manager == "kubectl" && conflicts.excused_by(kind, live) => {
            try_apply(kind, live, &config, writer, true).map_err(|conflicts| conflicts.error())
        }
        outcome => outcome.map_err(|conflicts| conflicts.error()),
    }
}

/// Notes in `new` what `writer` changed since `old`: for every write that is not an apply.
///
/// A write that itself says who holds what is believed, and an empty first entry clears it all.
pub fn track(kind: &Kind, old: Option<&Object>, new: &mut Object, writer: Writer<'_>) {
    let nothing = Object::new();
    let old_entries = old.and_then(|old| entries(old));
    let given = entries(new).filter(|_| writer.subresource.is_none());
    let reset = given
        .and_then(Value::as_array)
        .is_some_and(|given| given.len() == 1 && given[0].as_object().is_some_and(Map::is_empty));
    let stated = given.filter(|given| given.as_array().is_some_and(|given| !given.is_empty()));
    let mut managers = match stated.and_then(|given| Managers::parse(Some(given))) {
        _ if reset => Managers::default(),
        Some(managers) => managers,
        None => Managers::parse(old_entries).unwrap_or_default(),
    };
    let untracked = old.is_some() && managers.0.is_empty();
    if !untracked && !reset && !writer.manager.is_empty() {
        let party = writer.party(kind, false);
        let change = compare(kind, old.unwrap_or(&nothing), new);
        let changed = held(change.added.union(&change.modified));
        managers.forget(&change.removed);
        managers.take_from_others(&party, &changed);
        let mine = managers.0.get(&party).map(|holding| holding.fields.clone()).unwrap_or_default();
        managers.set(party, mine.union(&changed), writer.now);
    }
    write_entries(new, &managers);
}

/// How two objects differ, apart from what nobody holds.
fn compare(kind: &Kind, old: &Object, new: &Object) -> Difference {
    let counts = |path: &[&str]| match path {
        ["apiVersion" | "kind"] => false,
        ["metadata", name] => !UNHELD_METADATA.contains(name),
        _ => true,
    };
    walk::compare_fields(Some(kind.schema.root()), old, new, &counts, &[])
}

/// Fields that others hold with other values.
#[derive(Debug)]
struct Conflicts(Vec<(Party, String, FieldSet)>);

fn try_apply(
    kind: &Kind,
    live: &Object,
    config: &Object,
    writer: Writer<'_>,
    force: bool,
) -> Result<Object, Conflicts> {
    let root = Some(kind.schema.root());
    let (before, wanted) = (bare(live), bare(config));
    let mut managers = known(kind, live, &before);
    let party = writer.party(kind, true);
    let last = managers.0.get(&party).map(|holding| holding.fields.clone()).unwrap_or_default();
    let mine = held(walk::fields_of(root, &wanted));
    managers.set(party.clone(), mine, writer.now);
    let merged = walk::merge(root, &before, &wanted);
    let after = walk::prune(root, &merged, &last, &managers.all());
    let change = walk::compare(root, Some(&before), Some(&after));
    let changed = held(change.added.union(&change.modified));

    let mut conflicts = Vec::new();
    for (other, holding) in managers.0.iter().filter(|(other, _)| **other != party) {
        let contested = holding.fields.intersection(&changed);
        if !contested.is_empty() {
            conflicts.push((other.clone(), holding.time.clone(), contested));
        }
    }
    if !conflicts.is_empty() && !force {
        return Err(Conflicts(conflicts));
    }
    managers.take_from_others(&party, &changed);
    managers.forget(&change.removed);
    let Value::Object(mut object) = after else { return Ok(live.clone()) };
    restore_unheld(live, config, &mut object);
    write_entries(&mut object, &managers);
    Ok(object)
}

/// Who holds what of a live object; what was never written down is held by a party of its own, so
/// that the first applier does not silently take it.
fn known(kind: &Kind, live: &Object, before: &Value) -> Managers {
    let managers = Managers::parse(entries(live)).unwrap_or_default();
    if !managers.0.is_empty() || live.is_empty() {
        return managers;
    }
    let mut managers = Managers::default();
    let party = Party {
        manager: BEFORE.to_owned(),
        applies: false,
        subresource: String::new(),
        api_version: kind.api_version().to_owned(),
    };
    let created = live.get("metadata").and_then(|metadata| metadata.get("creationTimestamp"));
    let created = created.and_then(Value::as_str).and_then(|time| time.parse().ok());
    let everything = held(walk::fields_of(Some(kind.schema.root()), before));
    managers.set(party, everything, created.unwrap_or(Timestamp::UNIX_EPOCH));
    managers
}

/// The part of a configuration that this write may touch.
fn meant(kind: &Kind, config: &Object, subresource: Option<Subresource>) -> Object {
    let mut meant = config.clone();
    match subresource {
        None if kind.has_status => drop(meant.remove("status")),
        None => {}
        Some(_) => meant.retain(|name, _| name == "status"),
    }
    meant
}

/// An object without what nobody holds.
fn bare(object: &Object) -> Value {
    let mut bare = object.clone();
    bare.remove("apiVersion");
    bare.remove("kind");
    if let Some(Value::Object(metadata)) = bare.get_mut("metadata") {
        metadata.retain(|name, _| !UNHELD_METADATA.contains(&name.as_str()));
        if metadata.is_empty() {
            bare.remove("metadata");
        }
    }
    Value::Object(bare)
}

/// Puts back what [`bare`] took away: from the live object, or from the configuration of a new one.
fn restore_unheld(live: &Object, config: &Object, object: &mut Object) {
    for name in ["apiVersion", "kind"] {
        if let Some(value) = config.get(name).or_else(|| live.get(name)) {
            object.insert(name.to_owned(), value.clone());
        }
    }
    let of = |object: &Object, name: &str| object.get("metadata")?.get(name).cloned();
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else { return };
    for name in UNHELD_METADATA {
        // A version in the configuration is a condition, and checked as such.
        let value = of(config, name).filter(|_| name == "resourceVersion");
        if let Some(value) = value.or_else(|| of(live, name)).or_else(|| of(config, name)) {
            metadata.insert(name.to_owned(), value);
        }
    }
}

/// A set without `metadata` itself and the root, which are nobody's.
fn held(mut fields: FieldSet) -> FieldSet {
    fields.member = false;
    if let Some(metadata) = fields.children.get_mut(&Element::Field("metadata".into())) {
        metadata.member = false;
    }
    fields
}

fn entries(object: &Object) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

fn write_entries(object: &mut Object, managers: &Managers) {
    let entries = managers.encode();
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

impl Conflicts {
    /// Whether all of it was last written by `kubectl apply` without `--server-side`, which the
    /// same person now does with it: then it is theirs to take over.
    fn excused_by(&self, kind: &Kind, live: &Object) -> bool {
        let annotations = live.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let last = annotations.and_then(|annotations| annotations.get(LAST_APPLIED)?.as_str());
        let Some(last) = last.and_then(|text| serde_json::from_str::<Object>(text).ok()) else {
            return false;
        };
        let root = Some(kind.schema.root());
        let last = bare(&last);
        let differs = walk::compare(root, Some(&last), Some(&bare(live)));
        let excused = walk::fields_of(root, &last).without(&differs.modified);
        self.0.iter().all(|(_, _, fields)| fields.clone().without(&excused).is_empty())
    }

    fn error(&self) -> Error {
        let mut causes = Vec::new();
        let mut by_party: Vec<(String, Vec<String>)> = Vec::new();
        for (party, time, fields) in &self.0 {
            let name = describe(party, time);
            for path in fields.paths() {
                causes.push(Cause {
                    reason: "FieldManagerConflict",
                    message: format!("conflict with {name}"),
                    field: path,
                });
            }
            by_party.push((name, fields.paths()));
        }
        by_party.sort();
        let message = match causes.as_slice() {
            [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
            many => {
                let list: Vec<String> = by_party
                    .iter()
                    .map(|(name, paths)| {
                        let paths: Vec<_> =
                            paths.iter().map(|path| format!("\n- {path}")).collect();
                        format!("conflicts with {name}:{}", paths.concat())
                    })
                    .collect();
                format!("Apply failed with {} conflicts: {}", many.len(), list.join("\n"))
            }
        };
        let mut error = Error::new(Reason::Conflict, message);
        error.details.causes = causes;
        error
    }
}

/// A party as a conflict names it.
fn describe(party: &Party, time: &str) -> String {
    let mut name = format!("{:?}", party.manager);
    if !party.subresource.is_empty() {
        name.push_str(&format!(" with subresource {:?}", party.subresource));
    }
    if !party.applies {
        name.push_str(&format!(" using {}", party.api_version));
        if !time.is_empty() {
            name.push_str(&format!(" at {time}"));
        }
    }
    name
}
