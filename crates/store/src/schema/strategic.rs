//! Strategic merge: the patch that stock clients send for built-in kinds.
//!
//! Like a merge patch, but lists that the schema calls mergeable are merged item by item,
//! identified by their merge key, and directives (`$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList`, `$setElementOrder`) say what a value alone cannot.

use serde_json::{Map, Value};

use super::{Node, Shape};
use crate::status::Error;

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

type Object = Map<String, Value>;

/// Merges a patch into an object. `node` may be `None` where the schema knows nothing.
///
/// # Errors
/// 400 if a directive makes no sense.
pub(super) fn merge(node: Option<&Node>, object: &mut Object, patch: &Object) -> Result<(), Error> {
    match patch.get(PATCH).map(|directive| directive.as_str()) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            *object = plain(patch);
            return Ok(());
        }
        Some(Some("delete")) => {
            object.clear();
            return Ok(());
        }
        Some(_) => return Err(unknown(&patch[PATCH])),
    }
    if let Some(retained) = patch.get(RETAIN) {
        let Value::Array(retained) = retained else {
            return Err(Error::bad_request("invalid patch format of retainKeys"));
        };
        object.retain(|name, _| retained.iter().any(|kept| kept == name));
    }
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix(DELETE_FROM) {
            remove_items(object, field, value)?;
        } else if !name.starts_with('$') {
            merge_field(child(node, name), object, name, value)?;
        }
    }
    for (name, order) in patch {
        if let Some(field) = name.strip_prefix(ORDER) {
            set_order(child(node, field), object, field, order)?;
        }
    }
    Ok(())
}

fn merge_field(
    node: Option<&Node>,
    object: &mut Object,
    name: &str,
    value: &Value,
) -> Result<(), Error> {
    match (value, object.get_mut(name)) {
        (Value::Null, _) => {
            object.remove(name);
        }
        (Value::Object(patch), Some(Value::Object(current))) => merge(node, current, patch)?,
        (Value::Object(patch), _) => {
            let mut fresh = Map::new();
            merge(node, &mut fresh, patch)?;
            // A patch that deletes what is not there leaves nothing behind.
            if !fresh.is_empty() || !patch.contains_key(PATCH) {
                object.insert(name.to_owned(), Value::Object(fresh));
            }
        }
        (Value::Array(patch), current) => {
            let kept = match current {
                Some(Value::Array(current)) => std::mem::take(current),
                _ => Vec::new(),
            };
            let merged = merge_list(node, kept, patch)?;
            object.insert(name.to_owned(), Value::Array(merged));
        }
        (scalar, _) => {
            object.insert(name.to_owned(), scalar.clone());
        }
    }
    Ok(())
}

fn merge_list(
    node: Option<&Node>,
    mut current: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>, Error> {
    let replaces = |item: &Value| item.get(PATCH).is_some_and(|directive| directive == "replace");
    let Some(node) = node.filter(|node| is_mergeable(node)) else {
        return Ok(patch.iter().map(plain_value).collect());
    };
    if patch.iter().any(replaces) {
        let items = patch.iter().filter(|item| !is_directive(item));
        return Ok(items.map(plain_value).collect());
    }
    let items = match &node.shape {
        Shape::List(list) => Some(&*list.items),
        _ => None,
    };
    let Some(key) = node.extension("x-kubernetes-patch-merge-key").and_then(Value::as_str) else {
        for item in patch {
            if !current.contains(item) {
                current.push(item.clone());
            }
        }
        return Ok(current);
    };
    for item in patch {
        let Value::Object(fields) = item else {
            return Err(Error::bad_request(format!(
                "expected an object with the merge key {key}, found {item}"
            )));
        };
        // A merge key that the merge itself removes or changes cannot identify an item.
        let simple = |value: &&Value| !(value.is_null() || value.is_object() || value.is_array());
        let Some(identity) = fields.get(key).filter(simple) else {
            return Err(Error::bad_request(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        };
        let at = current.iter().position(|known| known.get(key) == Some(identity));
        let deletes = fields.get(PATCH).is_some_and(|directive| directive == "delete");
        match at.and_then(|at| current.get_mut(at)) {
            Some(_) if deletes => current.retain(|known| known.get(key) != Some(identity)),
            Some(Value::Object(known)) => merge(items, known, fields)?,
            _ if deletes => {}
            _ => {
                let mut fresh = Map::new();
                merge(items, &mut fresh, fields)?;
                current.push(Value::Object(fresh));
            }
        }
    }
    Ok(current)
}

fn remove_items(object: &mut Object, field: &str, gone: &Value) -> Result<(), Error> {
    let Value::Array(gone) = gone else {
        return Err(Error::bad_request("invalid patch format of delete primitive list"));
    };
    if let Some(Value::Array(items)) = object.get_mut(field) {
        items.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// Puts the items that are named in the given order; others stay behind those they followed.
fn set_order(
    node: Option<&Node>,
    object: &mut Object,
    field: &str,
    order: &Value,
) -> Result<(), Error> {
    let Value::Array(order) = order else {
        return Err(Error::bad_request("invalid patch format of setElementOrder list"));
    };
    let Some(Value::Array(items)) = object.get_mut(field) else {
        return Ok(());
    };
    let key = node.and_then(|node| node.extension("x-kubernetes-patch-merge-key"));
    let key = key.and_then(Value::as_str);
    let place = |item: &Value| {
        order.iter().position(|named| match key {
            Some(key) => named.get(key).is_some() && named.get(key) == item.get(key),
            None => named == item,
        })
    };
    let mut last = None;
    let mut placed: Vec<(Option<usize>, Value)> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        last = place(&item).or(last);
        placed.push((last, item));
    }
    placed.sort_by_key(|(place, _)| *place);
    items.extend(placed.into_iter().map(|(_, item)| item));
    Ok(())
}

fn child<'n>(node: Option<&'n Node>, name: &str) -> Option<&'n Node> {
    match &node?.shape {
        Shape::Object(fields) => {
            fields.get(name).or(fields.additional.as_ref()).map(|node| &**node)
        }
        _ => None,
    }
}

fn is_mergeable(node: &Node) -> bool {
    let strategy = node.extension("x-kubernetes-patch-strategy").and_then(Value::as_str);
    strategy.is_some_and(|strategy| strategy.split(',').any(|word| word == "merge"))
}

/// Whether an item of a list says nothing but what to do with the list.
fn is_directive(item: &Value) -> bool {
    item.as_object().is_some_and(|fields| fields.len() == 1 && fields.contains_key(PATCH))
}

/// An object without directives.
fn plain(object: &Object) -> Object {
    let fields = object.iter().filter(|(name, value)| !name.starts_with('$') && !value.is_null());
    fields.map(|(name, value)| (name.clone(), plain_value(value))).collect()
}

fn plain_value(value: &Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(plain(object)),
        Value::Array(items) => items.iter().map(plain_value).collect(),
        other => other.clone(),
    }
}

fn unknown(directive: &Value) -> Error {
    Error::bad_request(format!("unknown patch type found: {directive}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin::Node as BuiltinNode;
    use crate::schema::Schema;

    fn merged(current: Value, patch: Value) -> Result<Value, Error> {
        let schema = Schema::of::<BuiltinNode>().unwrap();
        let mut object = current.as_object().unwrap().clone();
        schema.merge_strategic(&mut object, patch.as_object().unwrap())?;
        Ok(Value::Object(object))
    }

    #[test]
    fn patches_merge_lists_by_their_schema() {
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "Up"}, {"type": "Full", "status": "False"}]);
        let current = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x/a", "x/b"]},
            "spec": {"taints": [{"key": "a", "effect": "NoExecute"}], "unschedulable": true},
            "status": {"conditions": conditions},
        });
        for (pointer, patch, expected) in [
            (
                "/metadata/labels",
                json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
                json!({"b": "2", "c": "3"}),
            ),
            (
                "/metadata/labels",
                json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
                json!({"c": "3"}),
            ),
            (
                "/metadata/labels",
                json!({"metadata": {"labels": {"$retainKeys": ["b"], "b": "3"}}}),
                json!({"b": "3"}),
            ),
            (
                "/metadata/finalizers",
                json!({"metadata": {"finalizers": ["x/c", "x/a"]}}),
                json!(["x/a", "x/b", "x/c"]),
            ),
            (
                "/metadata/finalizers",
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}}),
                json!(["x/b"]),
            ),
            (
                "/metadata/finalizers",
                json!({"metadata": {"$setElementOrder/finalizers": ["x/b", "x/a"]}}),
                json!(["x/b", "x/a"]),
            ),
            (
                "/spec/taints",
                json!({"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}),
                json!([{"key": "b", "effect": "NoSchedule"}]),
            ),
            ("/spec", json!({"spec": {"unschedulable": null, "taints": null}}), json!({})),
            (
                "/status/conditions",
                json!({"status": {"conditions": [{"type": "Full", "status": "True"}, {"type": "New", "status": "True"}]}}),
                json!([
                    {"type": "Ready", "status": "True", "reason": "Up"},
                    {"type": "Full", "status": "True"},
                    {"type": "New", "status": "True"},
                ]),
            ),
            (
                "/status/conditions",
                json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}),
                json!([{"type": "Full", "status": "False"}]),
            ),
            (
                "/status/conditions",
                json!({"status": {"conditions": [{"$patch": "replace"}, {"type": "Ready", "status": "False"}]}}),
                json!([{"type": "Ready", "status": "False"}]),
            ),
            (
                "/status/conditions/0/type",
                json!({"status": {"$setElementOrder/conditions": [{"type": "Full"}, {"type": "Ready"}]}}),
                json!("Full"),
            ),
        ] {
            let result = merged(current.clone(), patch.clone()).unwrap();
            assert_eq!(result.pointer(pointer), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn invalid_patches_are_refused() {
        for patch in [
            json!({"spec": {"$patch": "perhaps"}}),
            json!({"status": {"conditions": [{"status": "True"}]}}),
            json!({"status": {"conditions": [{"type": null}]}}),
            json!({"status": {"conditions": [{"type": {"a": null}}]}}),
            json!({"status": {"conditions": ["Ready"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}),
            json!({"metadata": {"$setElementOrder/finalizers": "x"}}),
            json!({"metadata": {"$retainKeys": "x"}}),
        ] {
            let current = json!({"spec": {}, "status": {"conditions": []}, "metadata": {"finalizers": ["x/a"]}});
            assert_eq!(merged(current, patch).unwrap_err().reason.code(), 400);
        }
    }
}
