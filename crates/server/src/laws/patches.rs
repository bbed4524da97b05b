//! Patches: what comes out is bounded, patching twice is patching once where that can be, and a
//! merge is the one of RFC 7386.

use std::sync::LazyLock;

use mainstay_store::registry::builtin;
use mainstay_store::schema::Schema;
use serde_json::{Map, Value, json};

use super::Draw;
use crate::negotiate::Format;
use crate::patch::{DEPTH, Patch, shallow};

/// As much as a patch may copy here: little, so that the bound is met.
const LIMIT: usize = 4096;

const NAMES: [&str; 24] = [
    "metadata",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "uid",
    "name",
    "spec",
    "taints",
    "key",
    "value",
    "effect",
    "status",
    "conditions",
    "type",
    "reason",
    "addresses",
    "address",
    "$patch",
    "$retainKeys",
    "delete",
    "replace",
    "$setElementOrder/conditions",
    "$deleteFromPrimitiveList/finalizers",
];

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let mut kinds = builtin().into_iter();
    kinds.find(|kind| kind.plural == "nodes").expect("nodes are built in").schema
});

fn read(format: Format, body: &[u8]) -> Option<Patch> {
    Patch::read(format, body, &SCHEMA).ok()
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Merges a value, word for word after RFC 7386.
fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut object = target.as_object().cloned().unwrap_or_default();
    for (name, value) in patch {
        if value.is_null() {
            object.remove(name);
        } else {
            let there = object.get(name).cloned().unwrap_or(Value::Null);
            object.insert(name.clone(), merged(&there, value));
        }
    }
    Value::Object(object)
}

/// Merge patches.
///
/// # Panics
/// If a law is broken.
pub fn merge_patch(data: &[u8]) {
    if let Some(patch) = read(Format::MergePatch, data) {
        let _ = patch.apply(&Map::new(), LIMIT);
    }
    let mut draw = Draw::new(data);
    let object = draw.object(&NAMES, 3);
    let change = Value::Object(draw.object(&NAMES, 3));
    let patch = read(Format::MergePatch, &bytes(&change)).expect("an object is a merge patch");
    let once = patch.apply(&object, LIMIT).expect("what is shallow stays shallow");
    assert_eq!(Value::Object(once.clone()), merged(&Value::Object(object), &change));
    assert_eq!(patch.apply(&once, LIMIT).expect("once more"), once, "twice is once");
}

/// Strategic merge patches.
///
/// # Panics
/// If a law is broken.
pub fn strategic_patch(data: &[u8]) {
    if let Some(patch) = read(Format::StrategicMergePatch, data) {
        let _ = patch.apply(&Map::new(), LIMIT);
    }
    let mut draw = Draw::new(data);
    let object = draw.object(&NAMES, 4);
    let change = Value::Object(draw.object(&NAMES, 4));
    let patch = read(Format::StrategicMergePatch, &bytes(&change)).expect("an object is a patch");
    let Ok(once) = patch.apply(&object, LIMIT) else { return };
    assert!(shallow(&Value::Object(once.clone()), DEPTH + 1));
    let text = change.to_string();
    if !text.contains('$') {
        let twice = patch.apply(&once, LIMIT);
        assert_eq!(twice.expect("once more"), once, "twice is once: {text}");
    }
}

fn pointer(draw: &mut Draw<'_>) -> String {
    let mut pointer = String::new();
    for _ in 0..draw.below(4) {
        let part = match draw.below(4) {
            0 => draw.below(3).to_string(),
            1 => "-".to_owned(),
            _ => (*draw.pick(&NAMES)).to_owned(),
        };
        pointer.push('/');
        pointer.push_str(&part.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

/// JSON patches.
///
/// # Panics
/// If a law is broken.
pub fn json_patch(data: &[u8]) {
    if let Some(patch) = read(Format::JsonPatch, data) {
        let _ = patch.apply(&Map::new(), LIMIT);
    }
    let mut draw = Draw::new(data);
    let object = draw.object(&NAMES, 3);
    let mut operations = Vec::new();
    while !draw.is_over() && operations.len() < 40 {
        let (path, from) = (pointer(&mut draw), pointer(&mut draw));
        operations.push(match draw.below(6) {
            0 => json!({"op": "add", "path": path, "value": draw.value(&NAMES, 3)}),
            1 => json!({"op": "replace", "path": path, "value": draw.value(&NAMES, 3)}),
            2 => json!({"op": "remove", "path": path}),
            3 => json!({"op": "copy", "from": from, "path": path}),
            4 => json!({"op": "move", "from": from, "path": path}),
            _ => json!({"op": "test", "path": path, "value": draw.value(&NAMES, 1)}),
        });
    }
    let operations = Value::Array(operations);
    let given = object.clone();
    let patch = read(Format::JsonPatch, &bytes(&operations)).expect("these are operations");
    let outcome = patch.apply(&object, LIMIT);
    assert_eq!(object, given, "the object itself is left alone");
    let Ok(after) = outcome else { return };
    assert!(shallow(&Value::Object(after.clone()), DEPTH), "deeper than allowed");
    let most = 8 * (bytes(&Value::Object(given)).len() + bytes(&operations).len() + LIMIT);
    assert!(bytes(&Value::Object(after.clone())).len() <= most, "larger than what went in");
    let last = json!([{"op": "test", "path": "", "value": after.clone()}]);
    let last = read(Format::JsonPatch, &bytes(&last)).expect("a test");
    assert_eq!(last.apply(&after, LIMIT).expect("an object equals itself"), after);
}
