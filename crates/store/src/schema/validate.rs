//! Validation, with the error messages of Kubernetes for custom resources.

use serde_json::{Map, Number, Value};

use super::walk::Path;
use super::{Fields, Identity, List, Mistyped, Node, Range, Shape, Text};
use crate::meta::Quantity;
use crate::status::Violation;

/// The most violations that are reported.
const REPORTED: usize = 100;

pub(super) fn validate(root: &Node, object: &Map<String, Value>) -> Vec<Violation> {
    let mut found = Vec::new();
    if let Shape::Object(fields) = &root.shape {
        check_fields(root, fields, object, Path::Root, &mut found);
    }
    found
}

/// The JSON type of a value.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if is_whole(number) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The type of a value as Go's decoder names it.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(number: &Number) -> bool {
    number.is_i64() || number.is_u64()
}

fn check(node: &Node, value: &Value, path: Path<'_>, found: &mut Vec<Violation>) {
    if found.len() >= REPORTED || (value.is_null() && node.nullable) {
        return;
    }
    match (&node.shape, value) {
        (Shape::Any, _) | (Shape::Boolean, Value::Bool(_)) => {}
        (Shape::Integer(range), Value::Number(number)) if is_whole(number) => {
            check_number(range, number, value, path, found);
        }
        (Shape::Number(range), Value::Number(number)) => {
            check_number(range, number, value, path, found);
        }
        (Shape::String(text), Value::String(string)) => check_text(text, string, path, found),
        (Shape::IntOrString { quantity }, Value::String(text)) => {
            if *quantity && let Err(error) = text.parse::<Quantity>() {
                found.push(Violation::invalid(path.to_string(), value, &error.to_string()));
            }
        }
        (Shape::IntOrString { quantity }, Value::Number(number))
            if *quantity || is_whole(number) => {}
        (Shape::List(list), Value::Array(items)) => check_list(list, items, path, found),
        (Shape::Object(fields), Value::Object(object)) => {
            check_fields(node, fields, object, path, found);
        }
        (shape, _) => {
            found.push(mistype(shape, value, path));
            return;
        }
    }
    if !node.allowed.is_empty() && !node.allowed.contains(value) {
        let supported: Vec<String> = node.allowed.iter().map(plain).collect();
        found.push(Violation::not_supported(path.to_string(), value, &supported));
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn mistype(shape: &Shape, value: &Value, path: Path<'_>) -> Violation {
    let expected = match shape {
        Shape::Any => "any",
        Shape::Boolean => "boolean",
        Shape::Integer(_) => "integer",
        Shape::Number(_) => "number",
        Shape::String(_) => "string",
        Shape::IntOrString { .. } => "integer,string",
        Shape::List(_) => "array",
        Shape::Object(_) => "object",
    };
    let actual = type_name(value);
    let field = path.to_string();
    let detail = format!("{field} in body must be of type {expected}: \"{actual}\"");
    Violation::type_invalid(field, actual, &detail)
}

fn check_number(
    range: &Range,
    number: &Number,
    value: &Value,
    path: Path<'_>,
    found: &mut Vec<Violation>,
) {
    let Some(amount) = number.as_f64() else {
        return;
    };
    let mut complain = |rule: String| {
        let field = path.to_string();
        let detail = format!("{field} in body should be {rule}");
        found.push(Violation::invalid(field, value, &detail));
    };
    if let Some(bound) = range.minimum.filter(|bound| amount < *bound) {
        complain(format!("greater than or equal to {bound}"));
    }
    if let Some(bound) = range.maximum.filter(|bound| amount > *bound) {
        complain(format!("less than or equal to {bound}"));
    }
    if let Some(bound) = range.above.filter(|bound| amount <= *bound) {
        complain(format!("greater than {bound}"));
    }
    if let Some(bound) = range.below.filter(|bound| amount >= *bound) {
        complain(format!("less than {bound}"));
    }
    if let Some(step) = range.multiple_of.filter(|step| amount % step != 0.0) {
        complain(format!("a multiple of {step}"));
    }
    let fits = match range.format.as_deref() {
        Some("int32") => amount >= f64::from(i32::MIN) && amount <= f64::from(i32::MAX),
        Some("int64") if range.minimum.is_none() => number.is_i64(),
        _ => true,
    };
    if !fits {
        let format = range.format.as_deref().unwrap_or_default();
        complain(format!("a number that fits {format}"));
    }
}

fn check_text(text: &Text, string: &str, path: Path<'_>, found: &mut Vec<Violation>) {
    let mut complain = |rule: String| {
        let field = path.to_string();
        let detail = format!("{field} in body {rule}");
        found.push(Violation::invalid(field, &Value::from(string), &detail));
    };
    // Only texts that could break a bound on characters are counted.
    if let Some(least) = text.min_length
        && (string.len() < least || string.chars().count() < least)
    {
        complain(format!("should be at least {least} chars long"));
    }
    if let Some(pattern) = &text.pattern
        && !pattern.regex.is_match(string)
    {
        complain(format!("should match '{}'", pattern.text));
    }
    let well_formed = match text.format.as_deref() {
        Some("date-time") => string.parse::<jiff::Timestamp>().is_ok(),
        Some("byte") => is_base64(string),
        Some("uuid") => uuid::Uuid::try_parse(string).is_ok(),
        _ => true,
    };
    if !well_formed {
        let format = text.format.as_deref().unwrap_or_default();
        complain(format!("must be of type {format}: \"{string}\""));
    }
    if let Some(most) = text.max_length
        && string.len() > most
        && string.chars().count() > most
    {
        found.push(Violation::too_long(path.to_string(), most));
    }
}

/// Whether a text is standard base64 with padding.
pub(crate) fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    text.len().is_multiple_of(4)
        && padding <= 2
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

fn check_list(list: &List, items: &[Value], path: Path<'_>, found: &mut Vec<Violation>) {
    if let Some(least) = list.min_items.filter(|least| items.len() < *least) {
        let field = path.to_string();
        let detail = format!("{field} in body should have at least {least} items");
        let value = Value::from(items.len());
        found.push(Violation::invalid(field, &value, &detail));
    }
    if let Some(most) = list.max_items.filter(|most| items.len() > *most) {
        found.push(Violation::too_many(path.to_string(), items.len(), most));
        return;
    }
    for (index, item) in items.iter().enumerate() {
        check(&list.items, item, Path::Index(&path, index), found);
    }
    match &list.identity {
        Identity::Atomic => {}
        Identity::Set => check_unique(items.iter().map(Value::to_string), items, path, found),
        Identity::Map(keys) => {
            let identities: Vec<Value> = items
                .iter()
                .map(|item| {
                    let values = keys
                        .iter()
                        .map(|key| (key.clone(), item.get(key).cloned().unwrap_or_default()));
                    Value::Object(values.collect())
                })
                .collect();
            check_unique(identities.iter().map(Value::to_string), &identities, path, found);
        }
    }
}

fn check_unique(
    identities: impl Iterator<Item = String>,
    values: &[Value],
    path: Path<'_>,
    found: &mut Vec<Violation>,
) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, identity) in identities.enumerate() {
        if !seen.insert(identity) {
            let field = Path::Index(&path, index).to_string();
            found.push(Violation::duplicate(field, &values[index]));
        }
    }
}

fn check_fields(
    node: &Node,
    fields: &Fields,
    object: &Map<String, Value>,
    path: Path<'_>,
    found: &mut Vec<Violation>,
) {
    let at_root = matches!(path, Path::Root);
    for name in &fields.required {
        if !object.contains_key(name) {
            let field = Path::Field(&path, name).to_string();
            found.push(Violation::required(field, ""));
        }
    }
    for (name, value) in object {
        // Metadata has rules of its own.
        if at_root && name == "metadata" {
            continue;
        }
        if let Some(field) = fields.get(name).or(fields.additional.as_ref()) {
            check(field, value, Path::Field(&path, name), found);
        } else if !node.preserve_unknown && at_root {
            let field = Path::Field(&path, name).to_string();
            found.push(Violation::forbidden(field, "unknown field"));
        }
    }
    let count = object.len();
    if let Some(least) = fields.min_properties.filter(|least| count < *least) {
        let field = path.to_string();
        let detail = format!("{field} in body should have at least {least} properties");
        found.push(Violation::invalid(field, &Value::from(count), &detail));
    }
    if let Some(most) = fields.max_properties.filter(|most| count > *most) {
        found.push(Violation::too_many(path.to_string(), count, most));
    }
}

/// The first value whose type is wrong, in the words of a decoder of typed objects.
pub(super) fn mistyped(node: &Node, value: &Value) -> Option<Mistyped> {
    misfit(node, value, Path::Field(&Path::Root, "metadata"))
}

fn misfit(node: &Node, value: &Value, path: Path<'_>) -> Option<Mistyped> {
    let wrong = |expected: &str| {
        Some(Mistyped(format!(
            "json: cannot unmarshal {} into Go struct field ObjectMeta.{path} of type {expected}",
            go_type(value)
        )))
    };
    match (&node.shape, value) {
        (_, Value::Null) | (Shape::Any, _) | (Shape::Boolean, Value::Bool(_)) => None,
        (Shape::String(text), Value::String(string)) => {
            let timed = text.format.as_deref() == Some("date-time");
            (timed && string.parse::<jiff::Timestamp>().is_err()).then(|| {
                Mistyped(format!(
                    "{path}: parsing time {} as \"2006-01-02T15:04:05Z07:00\": cannot parse it",
                    Value::from(string.as_str())
                ))
            })
        }
        (Shape::Integer(_), Value::Number(number)) if number.is_i64() => None,
        (Shape::List(list), Value::Array(items)) => {
            items.iter().find_map(|item| misfit_within(&list.items, item, path))
        }
        (Shape::Object(fields), Value::Object(object)) => {
            object.iter().find_map(|(name, value)| {
                if let Some(field) = fields.get(name) {
                    misfit(field, value, Path::Field(&path, name))
                } else {
                    misfit_within(fields.additional.as_deref()?, value, path)
                }
            })
        }
        (Shape::Boolean, _) => wrong("bool"),
        (Shape::Integer(_), _) => wrong("int64"),
        (Shape::Object(fields), _) if fields.additional.is_some() => wrong("map[string]string"),
        (Shape::Object(_), _) => wrong("v1.ObjectMeta"),
        (Shape::List(_), _) => wrong("[]string"),
        (_, _) => wrong("string"),
    }
}

/// As [`misfit`], for an item of a list or map, where null is no way to say nothing.
fn misfit_within(node: &Node, value: &Value, path: Path<'_>) -> Option<Mistyped> {
    if value.is_null() {
        return Some(Mistyped(format!("{path}: null is not allowed here")));
    }
    misfit(node, value, path)
}
