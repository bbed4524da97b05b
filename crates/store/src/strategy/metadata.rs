//! Names, identities, versions and times: the part of an object that the server maintains.

use serde_json::{Map, Value};

use super::{DeleteOptions, Error, Object, Stamp};
use crate::meta::Time;
use crate::names;
use crate::object::Key;
use crate::registry::Kind;
use crate::status::Violation;

/// The longest name that is generated, and what remains of it for the given beginning.
const GENERATED: usize = 63;

/// The object's metadata; an object without gets one.
pub(super) fn of(object: &mut Object) -> &mut Object {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(metadata) => metadata,
        _ => unreachable!("it was just made an object"),
    }
}

/// Drops empty texts, lists and maps, which count as missing.
pub(super) fn tidy(metadata: &mut Object) {
    let says_nothing = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if metadata.values().any(says_nothing) {
        metadata.retain(|_, value| !says_nothing(value));
    }
}

/// A text of the metadata; empty if it is missing.
pub(super) fn text<'a>(metadata: &'a Object, name: &str) -> &'a str {
    metadata.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A number of the metadata.
pub(super) fn integer(metadata: &Object, name: &str) -> Option<i64> {
    metadata.get(name).and_then(Value::as_i64)
}

/// Gives a new object its place, name, identity and time. Says whether the name was generated.
pub(super) fn stamp_new(
    kind: &Kind,
    namespace: Option<&str>,
    metadata: &mut Object,
    stamp: &Stamp,
) -> Result<bool, Error> {
    if !matches!(text(metadata, "resourceVersion"), "" | "0") {
        return Err(Error::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    for name in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        metadata.remove(name);
    }
    match namespace.filter(|_| kind.namespaced) {
        None => drop(metadata.remove("namespace")),
        Some(namespace) => match text(metadata, "namespace") {
            "" => drop(metadata.insert("namespace".to_owned(), Value::from(namespace))),
            given if given != namespace => {
                return Err(Error::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            _ => {}
        },
    }
    let prefix = text(metadata, "generateName");
    let generate = text(metadata, "name").is_empty() && !prefix.is_empty();
    if generate {
        let room = GENERATED - stamp.name_suffix.len().min(GENERATED);
        let end = (0..=prefix.len().min(room))
            .rev()
            .find(|end| prefix.is_char_boundary(*end))
            .unwrap_or(0);
        let name = format!("{}{}", &prefix[..end], stamp.name_suffix);
        metadata.insert("name".to_owned(), Value::from(name));
    }
    metadata.insert("uid".to_owned(), Value::from(stamp.uid.as_str()));
    let moment = Time::new(stamp.now).to_string();
    metadata.insert("creationTimestamp".to_owned(), Value::from(moment));
    if kind.has_generation {
        metadata.insert("generation".to_owned(), Value::from(1));
    }
    Ok(generate)
}

/// Checks the name, the prefix it was generated from, and the namespace.
pub(super) fn check_names(
    kind: &Kind,
    metadata: &Object,
    generated: bool,
    found: &mut Vec<Violation>,
) {
    let mut note = |field: &str, value: &str, problems: Vec<String>| {
        let value = Value::from(value);
        let violations = problems.iter().map(|problem| Violation::invalid(field, &value, problem));
        found.extend(violations);
    };
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        let problems = names::prefix_problems(kind.names, prefix);
        note("metadata.generateName", prefix, problems);
    }
    let name = text(metadata, "name");
    if !name.is_empty() && !generated {
        note("metadata.name", name, names::name_problems(kind.names, name));
    }
    let namespace = text(metadata, "namespace");
    if !namespace.is_empty() {
        note("metadata.namespace", namespace, names::label_problems(namespace));
    } else if kind.namespaced {
        found.push(Violation::required("metadata.namespace", ""));
    }
    if name.is_empty() {
        found.push(Violation::required("metadata.name", "name or generateName is required"));
    }
}

/// Checks that an update is sent to where its object lives.
pub(super) fn check_place(key: &Key, object: &mut Object) -> Result<(), Error> {
    let metadata = of(object);
    let name = text(metadata, "name");
    if name.is_empty() {
        return Err(Error::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            key.name(),
        )));
    }
    if name != key.name() {
        return Err(Error::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name(),
        )));
    }
    match (text(metadata, "namespace"), key.namespace()) {
        ("", Some(namespace)) => {
            metadata.insert("namespace".to_owned(), Value::from(namespace));
        }
        (given, Some(namespace)) if given != namespace => {
            return Err(Error::bad_request(format!(
                "the namespace of the object ({given}) does not match the namespace on the URL ({namespace})"
            )));
        }
        (_, None) => drop(metadata.remove("namespace")),
        _ => {}
    }
    Ok(())
}

/// Checks that an update was made from the object as it is, if it says what it was made from.
pub(super) fn check_version(
    kind: &Kind,
    key: &Key,
    old: &Object,
    new: &Object,
) -> Result<(), Error> {
    let none = Map::new();
    let metadata = |object: &'_ Object, name: &str| {
        let metadata = object.get("metadata").and_then(Value::as_object);
        text(metadata.unwrap_or(&none), name).to_owned()
    };
    let uid = metadata(new, "uid");
    let actual = metadata(old, "uid");
    if !uid.is_empty() && uid != actual {
        return Err(uid_mismatch(kind, key, &uid, &actual));
    }
    let version = metadata(new, "resourceVersion");
    if !version.is_empty() && version != "0" && version != metadata(old, "resourceVersion") {
        if version.parse::<u64>().is_err() {
            let violation = Violation::invalid(
                "metadata.resourceVersion",
                &Value::from(version),
                "must be a version that the server gave",
            );
            return Err(Error::invalid(kind, key.name(), vec![violation]));
        }
        return Err(Error::stale(kind, key.name()));
    }
    Ok(())
}

fn uid_mismatch(kind: &Kind, key: &Key, expected: &str, actual: &str) -> Error {
    let why = format!(
        "Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
    );
    Error::conflict(kind, key.name(), &why)
}

/// Checks what a deletion asked of the object.
pub(super) fn check_preconditions(
    kind: &Kind,
    key: &Key,
    old: &Object,
    options: &DeleteOptions,
) -> Result<(), Error> {
    let none = Map::new();
    let metadata = old.get("metadata").and_then(Value::as_object);
    let metadata = metadata.unwrap_or(&none);
    let actual = text(metadata, "uid");
    if let Some(uid) = &options.uid
        && uid != actual
    {
        return Err(uid_mismatch(kind, key, uid, actual));
    }
    let actual = text(metadata, "resourceVersion");
    if let Some(version) = &options.resource_version
        && version != actual
    {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {actual}"
        );
        return Err(Error::conflict(kind, key.name(), &why));
    }
    Ok(())
}

/// Keeps fields that a client may not change, and returns a violation where it tried to.
pub(super) fn carry_over(old: &Object, new: &mut Object, found: &mut Vec<Violation>) {
    if !old.contains_key("deletionTimestamp") {
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            if let Some(value) = new.get(name) {
                let field = format!("metadata.{name}");
                found.push(Violation::immutable(field, value));
            }
        }
    }
    for name in [
        "uid",
        "creationTimestamp",
        "selfLink",
        "generation",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        match old.get(name) {
            Some(value) if new.get(name) == Some(value) => {}
            Some(value) => drop(new.insert(name.to_owned(), value.clone())),
            None => drop(new.remove(name)),
        }
    }
    if old.contains_key("deletionTimestamp") {
        let list = |metadata: &Object| {
            let finalizers = metadata.get("finalizers").and_then(Value::as_array);
            finalizers.cloned().unwrap_or_default()
        };
        let known = list(old);
        let added: Vec<String> = list(new)
            .iter()
            .filter(|finalizer| !known.contains(finalizer))
            .map(ToString::to_string)
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            found.push(Violation::forbidden("metadata.finalizers", &detail));
        }
    }
}
