//! The rules of writes: every decision between a decoded body and the store, as pure functions.
//!
//! Enter at [`prepare_create`], [`prepare_update`] and [`prepare_delete`]. Invariants of an object
//! they accept: it obeys its schema and its kind's rules, decodes as its Rust type, has a name, a
//! uid and a creation time that never change, and its generation grows only when its desired state
//! does.

mod metadata;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::apply::Filled;
use crate::meta::Time;
use crate::names;
use crate::object::Key;
use crate::registry::Kind;
use crate::status::quoted;
pub use crate::status::{Error, Violation};

type Object = Map<String, Value>;

/// How fields are treated that the schema does not know, or that occur twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// The write is refused.
    Strict,
    /// The client is warned.
    #[default]
    Warn,
    /// They are dropped in silence.
    Ignore,
}

/// A part of an object that is written on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// `status`.
    Status,
    /// `spec.finalizers` of a namespace.
    Finalize,
}

/// The time and the identities that a new object gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The time of day.
    pub now: Timestamp,
    /// A new identity.
    pub uid: String,
    /// A random ending for a generated name.
    pub name_suffix: String,
}

/// How strictly a body is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strictness<'a> {
    /// How unknown fields are treated.
    pub validation: Validation,
    /// Paths of fields that occurred twice in the body.
    pub duplicates: &'a [String],
}

/// A new object, ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The object.
    pub object: Object,
    /// Its name.
    pub name: String,
    /// Whether the name was generated, so that another may be tried.
    pub generated: bool,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The fields that defaulting added.
    pub filled: Filled,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// No write: the object is the same already.
    Unchanged,
    /// The object is to be written.
    Write(Object),
    /// The last finalizer went from an object that was being deleted: it is to be removed.
    Remove(Object),
}

/// An update, ready to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The result.
    pub outcome: Outcome,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// The fields that defaulting added.
    pub filled: Filled,
}

/// The fate of the objects that a deleted object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay.
    Orphan,
    /// They go afterwards.
    Background,
    /// They go first.
    Foreground,
}

/// The finalizer of an object that waits for its dependents to go first.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to be let go of first.
pub const ORPHAN: &str = "orphan";

/// Under which conditions and how an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The identity it must have.
    pub uid: Option<String>,
    /// The version it must have.
    pub resource_version: Option<String>,
    /// How long it may take; everything here stops at once.
    pub grace_period_seconds: Option<i64>,
    /// The fate of the objects it owns.
    pub propagation: Option<Propagation>,
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// The object is to be removed now.
    Remove,
    /// It has finalizers: it is to be written like this, and goes when they are gone.
    Mark(Object),
    /// It was marked before.
    AlreadyMarked,
}

/// Makes a new object of what a client sent.
///
/// # Errors
/// 400 if the body is not of this kind or place, 422 if it breaks a rule.
pub fn prepare_create(
    kind: &Kind,
    namespace: Option<&str>,
    mut object: Object,
    stamp: &Stamp,
    strictness: Strictness<'_>,
) -> Result<Prepared, Error> {
    identify(kind, &mut object)?;
    let mut warnings = clean(kind, &mut object, strictness)?;
    if kind.has_status && !kind.status_on_create {
        object.remove("status");
    }
    kind.begin(&mut object);
    let metadata = metadata::of(&mut object);
    let generated = metadata::stamp_new(kind, namespace, metadata, stamp)?;
    let name = metadata::text(metadata, "name").to_owned();
    let mut found = Vec::new();
    metadata::check_names(kind, metadata, generated, &mut found);
    names::check_metadata(metadata, &mut found);
    warnings.extend(names::finalizer_warnings(metadata));
    let filled = complete(kind, &name, &mut object, None, found)?;
    Ok(Prepared { object, name, generated, warnings, filled })
}

/// Makes the next state of an object of what a client sent; `old` carries its `resourceVersion`.
///
/// # Errors
/// 400 if the body is not of this kind or place, 409 if it was made from another version, 422 if
/// it breaks a rule.
pub fn prepare_update(
    kind: &Kind,
    key: &Key,
    old: &Object,
    mut new: Object,
    subresource: Option<Subresource>,
    strictness: Strictness<'_>,
) -> Result<Update, Error> {
    identify(kind, &mut new)?;
    metadata::check_place(key, &mut new)?;
    let mut warnings = clean(kind, &mut new, strictness)?;
    metadata::check_version(kind, key, old, &new)?;
    let mut new = keep_what_is_not_meant(kind, old, new, subresource);
    let none = Map::new();
    let old_metadata = old.get("metadata").and_then(Value::as_object).unwrap_or(&none);
    let metadata = metadata::of(&mut new);
    let mut found = Vec::new();
    metadata::carry_over(old_metadata, metadata, &mut found);
    names::check_metadata(metadata, &mut found);
    if metadata.get("finalizers") != old_metadata.get("finalizers") {
        warnings.extend(names::finalizer_warnings(metadata));
    }
    let filled = complete(kind, key.name(), &mut new, Some(old), found)?;
    align_empty(old, &mut new);
    if kind.has_generation && desires_differ(kind, old, &new) {
        let metadata = metadata::of(&mut new);
        let generation = metadata::integer(metadata, "generation").unwrap_or(0);
        metadata.insert("generation".to_owned(), Value::from(generation + 1));
    }
    let outcome = if is_marked(&new) && !is_held(kind, &new) {
        Outcome::Remove(new)
    } else if new == *old {
        Outcome::Unchanged
    } else {
        Outcome::Write(new)
    };
    Ok(Update { outcome, warnings, filled })
}

/// Makes a configuration fit to be applied: of this kind and place, and without fields the schema
/// does not know. Returns warnings for the client.
///
/// # Errors
/// 400 if it is not of this kind or place, or says who holds its fields; 422 if it names a
/// finalizer twice.
pub fn prepare_apply(
    kind: &Kind,
    key: &Key,
    config: &mut Object,
    strictness: Strictness<'_>,
) -> Result<Vec<String>, Error> {
    identify(kind, config)?;
    if config.get("metadata").and_then(|metadata| metadata.get("managedFields")).is_some() {
        return Err(Error::bad_request("metadata.managedFields must be nil"));
    }
    let metadata = metadata::of(config);
    if metadata::text(metadata, "name").is_empty() {
        metadata.insert("name".to_owned(), Value::from(key.name()));
    }
    metadata::check_place(key, config)?;
    let warnings = clean(kind, config, strictness)?;
    match repeated_finalizer(config) {
        Some(repeated) => Err(Error::invalid(kind, key.name(), vec![repeated])),
        None => Ok(warnings),
    }
}

/// Finalizers are a set, of which an applier holds members: each can be held only once.
fn repeated_finalizer(config: &Object) -> Option<Violation> {
    let finalizers = config.get("metadata")?.get("finalizers")?.as_array()?;
    let at = (1..finalizers.len()).find(|at| finalizers[..*at].contains(&finalizers[*at]))?;
    Some(Violation::duplicate(format!("metadata.finalizers[{at}]"), &finalizers[at]))
}

/// Decides how an object goes; `old` carries its `resourceVersion`.
///
/// # Errors
/// 403 if it may never go, 409 if a precondition does not hold.
pub fn prepare_delete(
    kind: &Kind,
    key: &Key,
    old: &Object,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<Deletion, Error> {
    if kind.undeletable.contains(&key.name()) {
        let why = format!("this {} may not be deleted", kind.singular);
        return Err(Error::forbidden(kind, key.name(), &why));
    }
    metadata::check_preconditions(kind, key, old, options)?;
    let mut marked = old.clone();
    let awaited = set_propagation(metadata::of(&mut marked), options.propagation);
    if !is_held(kind, &marked) {
        return Ok(Deletion::Remove);
    }
    if is_marked(old) {
        let changed = awaited && marked != *old;
        return Ok(if changed { Deletion::Mark(marked) } else { Deletion::AlreadyMarked });
    }
    let metadata = metadata::of(&mut marked);
    let moment = Time::new(now).to_string();
    metadata.insert("deletionTimestamp".to_owned(), Value::from(moment));
    metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(0));
    if let Some(generation) = metadata::integer(metadata, "generation") {
        metadata.insert("generation".to_owned(), Value::from(generation + 1));
    }
    if kind.has_finalize {
        let status = marked.entry("status").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(status) = status {
            status.insert("phase".to_owned(), Value::from("Terminating"));
        }
    }
    Ok(Deletion::Mark(marked))
}

/// Sets the finalizer for dependents that the options ask for; without an option the finalizers
/// stay. Returns whether there was an option.
fn set_propagation(metadata: &mut Object, propagation: Option<Propagation>) -> bool {
    let Some(propagation) = propagation else { return false };
    let finalizers = metadata.get("finalizers").and_then(Value::as_array);
    let mut finalizers = finalizers.cloned().unwrap_or_default();
    let wanted = match propagation {
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
        Propagation::Background => None,
    };
    finalizers.retain(|finalizer| {
        ![FOREGROUND, ORPHAN].iter().any(|ours| finalizer == ours && wanted != Some(*ours))
    });
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|finalizer| finalizer == wanted)
    {
        finalizers.push(Value::from(wanted));
    }
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), Value::Array(finalizers));
    }
    true
}

/// Whether an object is on its way out.
#[must_use]
pub fn is_marked(object: &Object) -> bool {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get("deletionTimestamp"))
        .is_some_and(|moment| !moment.is_null())
}

/// Whether finalizers hold an object back.
fn is_held(kind: &Kind, object: &Object) -> bool {
    let held = |part: &str| {
        let finalizers = object.get(part).and_then(|part| part.get("finalizers"));
        let finalizers = finalizers.and_then(Value::as_array);
        finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    };
    held("metadata") || (kind.has_finalize && held("spec"))
}

/// Checks that a body is of this kind, and sets `apiVersion` and `kind` where they are missing.
fn identify(kind: &Kind, object: &mut Object) -> Result<(), Error> {
    let given = |name: &str| match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        Some(_) => Err(unreadable(kind, &format!("{name} must be a string"))),
    };
    let (api_version, name) = (given("apiVersion")?, given("kind")?);
    if let Some(name) = name
        && name != kind.kind
    {
        let version = api_version.unwrap_or(kind.api_version());
        let version = version.rsplit('/').next().unwrap_or(version);
        return Err(Error::bad_request(format!(
            "{name} in version {} cannot be handled as a {}: the kind in the data ({name}) does not match the expected kind ({})",
            quoted(version),
            kind.kind,
            kind.kind,
        )));
    }
    if let Some(api_version) = api_version
        && api_version != kind.api_version()
    {
        return Err(Error::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            kind.api_version(),
        )));
    }
    if api_version.is_none() {
        object.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
    }
    if !object.contains_key("kind") || object["kind"] != kind.kind {
        object.insert("kind".to_owned(), Value::from(kind.kind));
    }
    if let Some(mistyped) = kind.schema.mistyped_metadata(object) {
        return Err(unreadable(kind, &mistyped.0));
    }
    Ok(())
}

fn unreadable(kind: &Kind, why: &str) -> Error {
    Error::bad_request(format!(
        "{} in version {} cannot be handled as a {}: {why}",
        kind.kind,
        quoted(kind.version),
        kind.kind,
    ))
}

/// Drops fields that the schema does not know, and refuses them or warns of them if asked to.
fn clean(
    kind: &Kind,
    object: &mut Object,
    strictness: Strictness<'_>,
) -> Result<Vec<String>, Error> {
    let unknown = kind.schema.prune(object);
    metadata::tidy(metadata::of(object));
    if strictness.validation == Validation::Ignore
        || (unknown.is_empty() && strictness.duplicates.is_empty())
    {
        return Ok(Vec::new());
    }
    let twice = strictness.duplicates.iter();
    let complaints: Vec<String> = twice
        .map(|path| format!("duplicate field {}", quoted(path)))
        .chain(unknown.iter().map(|path| format!("unknown field {}", quoted(path))))
        .collect();
    if strictness.validation == Validation::Strict {
        let all = complaints.join(", ");
        let why = format!("strict decoding error: {all}");
        return Err(unreadable(kind, &why));
    }
    Ok(complaints)
}

/// Fills in defaults, then checks every rule. Returns what was filled in.
fn complete(
    kind: &Kind,
    name: &str,
    object: &mut Object,
    old: Option<&Object>,
    mut found: Vec<Violation>,
) -> Result<Filled, Error> {
    let mut filled = Filled::missing_from(kind, object);
    kind.schema.default(object);
    found.extend(kind.schema.validate(object));
    if !found.is_empty() {
        return Err(Error::invalid(kind, name, found));
    }
    let undecodable = |error: serde_json::Error| unreadable(kind, &error.to_string());
    let before = kind.fills_in().then(|| object.clone());
    kind.fill_in(object).map_err(undecodable)?;
    if let Some(before) = before {
        filled.note(kind, &before, object);
    }
    let found = kind.judge(object, old).map_err(undecodable)?;
    if found.is_empty() { Ok(filled) } else { Err(Error::invalid(kind, name, found)) }
}

/// Takes from the new object only what this write may touch, and the rest from the old one.
fn keep_what_is_not_meant(
    kind: &Kind,
    old: &Object,
    mut new: Object,
    subresource: Option<Subresource>,
) -> Object {
    match subresource {
        None => {
            if kind.has_status {
                carry(old, &mut new, "status");
            }
            if kind.has_finalize {
                carry_finalizers(old, &mut new);
            }
            new
        }
        Some(Subresource::Status) => {
            let mut kept = old.clone();
            carry(&new, &mut kept, "status");
            let managed = new.get_mut("metadata").and_then(|metadata| {
                metadata.as_object_mut().and_then(|metadata| metadata.remove("managedFields"))
            });
            if let Some(managed) = managed {
                metadata::of(&mut kept).insert("managedFields".to_owned(), managed);
            }
            kept
        }
        Some(Subresource::Finalize) => {
            let mut kept = old.clone();
            carry_finalizers(&new, &mut kept);
            kept
        }
    }
}

fn carry(from: &Object, to: &mut Object, name: &str) {
    match from.get(name) {
        Some(value) => drop(to.insert(name.to_owned(), value.clone())),
        None => drop(to.remove(name)),
    }
}

fn carry_finalizers(from: &Object, to: &mut Object) {
    let finalizers = from.get("spec").and_then(|spec| spec.get("finalizers"));
    let spec = to.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(spec) = spec {
        match finalizers {
            Some(finalizers) => drop(spec.insert("finalizers".to_owned(), finalizers.clone())),
            None => drop(spec.remove("finalizers")),
        }
    }
}

/// Lets an empty part and a missing one count as the same: Rust types do not tell them apart.
fn align_empty(old: &Object, new: &mut Object) {
    let empty =
        |part: Option<&Value>| part.is_none_or(|part| part.as_object().is_some_and(Map::is_empty));
    for part in ["spec", "status"] {
        if empty(old.get(part)) && empty(new.get(part)) {
            carry(old, new, part);
        }
    }
}

/// Whether the desired state differs: everything but metadata, and status where it stands apart.
fn desires_differ(kind: &Kind, old: &Object, new: &Object) -> bool {
    let counts = |name: &str| name != "metadata" && !(name == "status" && kind.has_status);
    let count = |object: &Object| object.keys().filter(|name| counts(name)).count();
    count(old) != count(new)
        || new.iter().any(|(name, value)| counts(name) && old.get(name) != Some(value))
}
