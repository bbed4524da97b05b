//! Server-side apply: several parties write one object, each the fields that it holds.
//!
//! An object carries in `metadata.managedFields` who holds which fields. A party that *applies*
//! sends everything it wants; it becomes the holder of exactly those fields, a field it sent before
//! and no longer sends is removed unless another party holds it, and a field that another party
//! holds with another value is a conflict unless the apply is forced. A party that *updates*
//! becomes the holder of the fields it changed, without conflicts.
//!
//! A field that defaulting filled in is held by no party: it goes with its parent when the last
//! party that holds anything of the parent lets go, and is never a reason for a conflict.
//!
//! Enter at [`apply`] and [`track`]; both are pure. Invariants: everything an applier sent is in
//! the object afterwards, no field it did not send and did not hold has changed apart from
//! defaults, and applying the same again changes nothing.

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
/// The holder of fields that were there before holders were noted.
const BEFORE: &str = "before-first-apply";
/// Metadata that the server decides about, and so has no holder.
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

/// The writer, and how it writes.
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

/// The object that results when `config` is applied to `live`, which is `None` if there is none yet.
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
    let wanted = bare(config, |name| is_meant(kind, name, writer.subresource));
    if let Some(object) = steady(kind, live, config, &wanted, writer) {
        return Ok(object);
    }
    match try_apply(kind, live, config, &wanted, writer, force) {
        Err(conflicts) if writer.manager == "kubectl" && conflicts.excused_by(kind, live) => {
            try_apply(kind, live, config, &wanted, writer, true)
                .map_err(|conflicts| conflicts.error())
        }
        outcome => outcome.map_err(|conflicts| conflicts.error()),
    }
}

/// The usual case, at little cost: a party applies the fields it holds already, and changes only
/// fields that no other party holds. Then the holders stay as they are. `None` in any other case.
fn steady(
    kind: &Kind,
    live: &Object,
    config: &Object,
    wanted: &Object,
    writer: Writer<'_>,
) -> Option<Object> {
    let root = Some(kind.schema.root());
    let all = entries(live)?.as_array()?;
    let party = writer.party(kind, true);
    let own = all.iter().find(|entry| party.is_of(entry))?;
    let mine = held(walk::fields_of_object(root, wanted));
    if own.get("fieldsV1") != Some(&mine.encode()) {
        return None;
    }
    let mut object = without_entries(live);
    walk::lay_over(root, &mut object, wanted);
    kind.schema.default(&mut object);
    let change = compare(kind, live, &object);
    if !change.removed.is_empty() {
        return None;
    }
    let changed = held(change.added.union(&change.modified));
    for other in all.iter().filter(|entry| !changed.is_empty() && !party.is_of(entry)) {
        let theirs = other.get("fieldsV1").map_or(Some(FieldSet::default()), FieldSet::parse)?;
        if !theirs.intersection(&changed).is_empty() {
            return None;
        }
    }
    set_conditions(config, &mut object);
    set_entries(&mut object, all.clone());
    Some(object)
}

/// The fields that defaulting added to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filled(FieldSet);

impl Filled {
    /// The fields that the defaults of the schema will add to `object`.
    #[must_use]
    pub fn missing_from(kind: &Kind, object: &Object) -> Self {
        if !kind.schema.has_defaults() {
            return Self::default();
        }
        Self(walk::defaults_missing(kind.schema.root(), object))
    }

    /// Adds the fields that were added between two states of an object.
    pub fn note(&mut self, kind: &Kind, before: &Object, after: &Object) {
        let added = compare(kind, before, after).added;
        self.0 = std::mem::take(&mut self.0).union(&added);
    }
}

/// Notes in `new` what `writer` changed since `old`: for every write that is not an apply. Fields
/// that defaulting `filled` in have no holder.
///
/// Holders that the write itself states are taken over, and an empty first entry clears them all.
pub fn track(
    kind: &Kind,
    old: Option<&Object>,
    new: &mut Object,
    filled: &Filled,
    writer: Writer<'_>,
) {
    let nothing = Object::new();
    let old_entries = old.and_then(entries);
    // A writer that read the object before sends the holders that are stored already.
    let given = entries(new).filter(|given| {
        writer.subresource.is_none() && Some(*given) != old_entries && given.is_array()
    });
    let given = given.and_then(Value::as_array);
    let reset = given
        .is_some_and(|given| given.len() == 1 && given[0].as_object().is_some_and(Map::is_empty));
    let stated = given.filter(|given| !given.is_empty()).and_then(|given| Managers::parse(given));
    let known = old_entries.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let untracked = old.is_some() && stated.is_none() && known.is_empty();
    if reset || untracked {
        set_entries(new, Vec::new());
        return;
    }
    let parsed = stated.is_none().then(|| Managers::parse(known)).flatten();
    // Unreadable holders are dropped, holders that the client states are taken over; otherwise they
    // stay.
    let mut changes = parsed.is_none();
    let mut managers = stated.or(parsed).unwrap_or_default();
    let begun = old.is_none() || !managers.0.is_empty();
    if begun && !writer.manager.is_empty() {
        let party = writer.party(kind, false);
        let change = compare(kind, old.unwrap_or(&nothing), new);
        let changed = held(change.added.without(&filled.0).union(&change.modified));
        changes |= !managers.would_keep(&party, &changed, &change.removed);
        if changes {
            managers.forget(&change.removed);
            managers.take_from_others(&party, &changed);
            let mine = managers.0.get(&party).map(|holding| holding.fields.clone());
            managers.set(party, mine.unwrap_or_default().union(&changed), writer.now);
        }
    }
    let entries = if changes { managers.encode() } else { known.to_vec() };
    set_entries(new, entries);
}

/// How two objects differ, apart from fields that have no holders.
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
    wanted: &Object,
    writer: Writer<'_>,
    force: bool,
) -> Result<Object, Conflicts> {
    let root = Some(kind.schema.root());
    let before = bare(live, |_| true);
    let mut managers = known(kind, live, &before);
    let party = writer.party(kind, true);
    let last = managers.0.get(&party).map(|holding| holding.fields.clone()).unwrap_or_default();
    managers.set(party.clone(), held(walk::fields_of_object(root, wanted)), writer.now);
    let mut merged = before.clone();
    walk::lay_over(root, &mut merged, wanted);
    let (before, merged) = (Value::Object(before), Value::Object(merged));
    let mut after = walk::prune(root, &merged, &last, &managers.all());
    if let Value::Object(after) = &mut after {
        // The object as it will be stored: a configuration without defaults changes none.
        kind.schema.default(after);
    }
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
    set_entries(&mut object, managers.encode());
    Ok(object)
}

/// The holders of a live object; fields without a recorded holder are held by a party of their own,
/// so that the first applier does not silently take them.
fn known(kind: &Kind, live: &Object, before: &Object) -> Managers {
    let managers = entries(live).and_then(Value::as_array).and_then(|all| Managers::parse(all));
    let managers = managers.unwrap_or_default();
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
    let root = kind.schema.root();
    let everything = held(walk::fields_of_object(Some(root), before));
    let everything = everything.without(&walk::defaults_present(root, before));
    managers.set(party, everything, created.unwrap_or(Timestamp::UNIX_EPOCH));
    managers
}

/// Whether a write may touch a part of an object.
fn is_meant(kind: &Kind, name: &str, subresource: Option<Subresource>) -> bool {
    match subresource {
        None => !(kind.has_status && name == "status"),
        Some(_) => name == "status",
    }
}

/// An object without fields that have no holders, and without the parts that do not `count`.
fn bare(object: &Object, counts: impl Fn(&str) -> bool) -> Object {
    let mut bare = Object::new();
    for (name, value) in object {
        match (name.as_str(), value) {
            ("apiVersion" | "kind", _) => {}
            (name, _) if !counts(name) => {}
            ("metadata", Value::Object(metadata)) => {
                let held = metadata.iter().filter(|(name, _)| !is_unheld(name));
                let held: Object =
                    held.map(|(name, value)| (name.clone(), value.clone())).collect();
                if !held.is_empty() {
                    bare.insert("metadata".to_owned(), Value::Object(held));
                }
            }
            (name, value) => drop(bare.insert(name.to_owned(), value.clone())),
        }
    }
    bare
}

fn is_unheld(name: &str) -> bool {
    UNHELD_METADATA.contains(&name)
}

/// An object without the record of who holds it.
fn without_entries(object: &Object) -> Object {
    let part = |(name, value): (&String, &Value)| match (name.as_str(), value) {
        ("metadata", Value::Object(metadata)) => {
            let kept = metadata.iter().filter(|(name, _)| *name != "managedFields");
            let kept: Object = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            (name.clone(), Value::Object(kept))
        }
        _ => (name.clone(), value.clone()),
    };
    object.iter().map(part).collect()
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
    for name in UNHELD_METADATA.into_iter().filter(|name| *name != "managedFields") {
        if let Some(value) = of(live, name).or_else(|| of(config, name)) {
            metadata.insert(name.to_owned(), value);
        }
    }
    set_conditions(config, object);
}

/// A version or an identity in the configuration is a condition, and will be checked as such.
fn set_conditions(config: &Object, object: &mut Object) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    for name in ["resourceVersion", "uid"] {
        let given = config.get("metadata").and_then(|metadata| metadata.get(name));
        if let Some(value) = given {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
}

/// A set without `metadata` itself and the root, which have no holder.
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

fn set_entries(object: &mut Object, entries: Vec<Value>) {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(metadata) = metadata else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

impl Conflicts {
    /// Whether all fields were last written by `kubectl apply` without `--server-side`, and are now
    /// applied by kubectl with it: then kubectl takes them over.
    fn excused_by(&self, kind: &Kind, live: &Object) -> bool {
        let annotations = live.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let last = annotations.and_then(|annotations| annotations.get(LAST_APPLIED)?.as_str());
        let Some(last) = last.and_then(|text| serde_json::from_str::<Object>(text).ok()) else {
            return false;
        };
        let root = Some(kind.schema.root());
        let last = Value::Object(bare(&last, |_| true));
        let live = Value::Object(bare(live, |_| true));
        let differs = walk::compare(root, Some(&last), Some(&live));
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
