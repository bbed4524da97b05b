//! The rules of names, labels and annotations, with Kubernetes' error messages.
//!
//! Written out by hand: they are checked on every write, and a regular expression would cost more
//! than the rest of the write together.

use serde_json::{Map, Value};

use crate::registry::NameRule;
use crate::status::Violation;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// All annotations of an object together may take this many bytes.
pub const ANNOTATIONS_LIMIT: usize = 256 << 10;

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if lower(*first) && lower(*last))
        && bytes.iter().all(|byte| lower(*byte) || *byte == b'-')
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// The problem of a DNS-1123 subdomain, if it has one.
#[must_use]
pub fn subdomain_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    if !text.split('.').all(is_label) {
        problems.push(SUBDOMAIN.to_owned());
    }
    problems
}

/// The problem of a DNS-1123 label, if it has one.
#[must_use]
pub fn label_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !is_label(text) {
        problems.push(LABEL.to_owned());
    }
    problems
}

/// The problem of the name of an object, if it has one.
#[must_use]
pub fn name_problems(rule: NameRule, name: &str) -> Vec<String> {
    match rule {
        NameRule::Subdomain => subdomain_problems(name),
        NameRule::Label => label_problems(name),
    }
}

/// The problem of a prefix that names are generated from, which may end in a dash or a dot.
#[must_use]
pub fn prefix_problems(rule: NameRule, prefix: &str) -> Vec<String> {
    let masked = match prefix.strip_suffix('-') {
        Some(head) if !head.is_empty() => format!("{head}a"),
        _ => prefix.to_owned(),
    };
    name_problems(rule, &masked)
}

/// The problem of a key of a label or annotation: `name` or `prefix.example.com/name`.
#[must_use]
pub fn qualified_name_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) if !name.contains('/') => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                let prefixed = subdomain_problems(prefix);
                problems.extend(prefixed.iter().map(|problem| format!("prefix part {problem}")));
            }
            name
        }
        Some(_) => {
            return vec![format!(
                "a qualified name {NAME_PART} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 characters".to_owned());
    }
    if !is_name_part(name) {
        problems.push(format!("name part {NAME_PART}"));
    }
    problems
}

/// The problem of the value of a label, if it has one.
#[must_use]
pub fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 characters".to_owned());
    }
    if !value.is_empty() && !is_name_part(value) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// The problem of a key of a ConfigMap, if it has one.
#[must_use]
pub fn config_key_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if key.len() > 253 {
        problems.push("must be no more than 253 characters".to_owned());
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(fits) {
        problems.push(CONFIG_KEY.to_owned());
    } else if key == "." {
        problems.push("must not be '.'".to_owned());
    } else if key == ".." {
        problems.push("must not be '..'".to_owned());
    } else if key.starts_with("..") {
        problems.push("must not start with '..'".to_owned());
    }
    problems
}

fn note(found: &mut Vec<Violation>, field: &str, value: &str, problems: Vec<String>) {
    let value = Value::from(value);
    found.extend(problems.iter().map(|problem| Violation::invalid(field, &value, problem)));
}

fn texts<'a>(
    metadata: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a str)> {
    let map = metadata.get(name).and_then(Value::as_object);
    map.into_iter().flatten().map(|(key, value)| (key, value.as_str().unwrap_or_default()))
}

/// Checks labels, annotations, finalizers and owners. Names are checked by code that knows the kind.
pub(crate) fn check_metadata(metadata: &Map<String, Value>, found: &mut Vec<Violation>) {
    for (key, value) in texts(metadata, "labels") {
        note(found, "metadata.labels", key, qualified_name_problems(key));
        note(found, "metadata.labels", value, label_value_problems(value));
    }
    let mut size = 0;
    for (key, value) in texts(metadata, "annotations") {
        size += key.len() + value.len();
        let problems = if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
            qualified_name_problems(&key.to_lowercase())
        } else {
            qualified_name_problems(key)
        };
        note(found, "metadata.annotations", key, problems);
    }
    if size > ANNOTATIONS_LIMIT {
        found.push(Violation::too_long("metadata.annotations", ANNOTATIONS_LIMIT));
    }
    check_finalizers(metadata, found);
    check_owners(metadata, found);
}

fn check_finalizers(metadata: &Map<String, Value>, found: &mut Vec<Violation>) {
    let Some(Value::Array(finalizers)) = metadata.get("finalizers") else {
        return;
    };
    let names = || finalizers.iter().filter_map(Value::as_str);
    for finalizer in names() {
        let problems = qualified_name_problems(finalizer);
        note(found, "metadata.finalizers", finalizer, problems);
    }
    let has = |wanted: &str| names().any(|name| name == wanted);
    if has("orphan") && has("foregroundDeletion") {
        found.push(Violation::invalid(
            "metadata.finalizers",
            &Value::Array(finalizers.clone()),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

fn check_owners(metadata: &Map<String, Value>, found: &mut Vec<Violation>) {
    const FIELD: &str = "metadata.ownerReferences";
    let Some(Value::Array(owners)) = metadata.get("ownerReferences") else {
        return;
    };
    let mut controllers: Vec<&str> = Vec::new();
    for owner in owners {
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion").is_empty() {
            found.push(Violation::invalid(
                format!("{FIELD}.apiVersion"),
                &Value::from(""),
                "version must not be empty",
            ));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                let field = format!("{FIELD}.{name}");
                found.push(Violation::invalid(field, &Value::from(""), "must not be empty"));
            }
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(text("name"));
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        found.push(Violation::invalid(FIELD, &Value::Array(owners.clone()), &detail));
    }
}

/// Warnings about finalizers that are allowed.
pub(crate) fn finalizer_warnings(metadata: &Map<String, Value>) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let Some(Value::Array(finalizers)) = metadata.get("finalizers") else {
        return Vec::new();
    };
    let names = finalizers.iter().filter_map(Value::as_str);
    names
        .filter(|name| !name.contains('/') && !STANDARD.contains(name))
        .map(|name| {
            format!("metadata.finalizers: \"{name}\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_names() {
        for name in ["a", "a-b", "a.b", "0", "a1.b2-c3", &"a".repeat(253)] {
            assert!(subdomain_problems(name).is_empty(), "{name}");
        }
        for name in ["", "A", "-a", "a-", ".", "a..b", "../a", "a/b", "a_b", "ä", &"a".repeat(254)]
        {
            assert!(!subdomain_problems(name).is_empty(), "{name}");
        }
        assert!(label_problems("a.b")[0].contains("RFC 1123 label"));
        assert!(prefix_problems(NameRule::Subdomain, "web-").is_empty());
        assert!(!prefix_problems(NameRule::Subdomain, "-").is_empty());
    }

    #[test]
    fn label_keys_are_qualified_names() {
        for key in ["a", "A.b_c-d", "example.com/name", "topology.kubernetes.io/zone"] {
            assert!(qualified_name_problems(key).is_empty(), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "Ex.com/a", "a b", "-a", &"a".repeat(64)] {
            assert!(!qualified_name_problems(key).is_empty(), "{key}");
        }
    }

    #[test]
    fn config_keys_are_file_names_without_parent_folders() {
        for key in ["a", ".a", "a.b", "A_B-c", "..."] {
            assert_eq!(config_key_problems(key).is_empty(), key != "...", "{key}");
        }
        for key in ["", ".", "..", "..a", "a/b", "a b"] {
            assert!(!config_key_problems(key).is_empty(), "{key}");
        }
    }
}
