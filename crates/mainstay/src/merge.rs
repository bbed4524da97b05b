//! The three-way merge behind `apply`: what was applied last, what is wanted, what is there.
//!
//! The patch sets what is wanted and differs, removes what was applied before and is wanted no
//! longer, and leaves alone what others have set.

use serde_json::{Map, Value};

/// The JSON merge patch that turns `current` into what `modified` asks for; empty when it already
/// is. `original` is what was applied last.
pub(crate) fn three_way(
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    current: &Map<String, Value>,
) -> Map<String, Value> {
    let mut patch = Map::new();
    let nothing = Map::new();
    for (key, wanted) in modified {
        let change = match (wanted, current.get(key)) {
            (Value::Null, None) => None,
            (Value::Object(wanted), there) => {
                let before = original.get(key).and_then(Value::as_object);
                let (there, new) = match there {
                    Some(Value::Object(there)) => (there, false),
                    _ => (&nothing, true),
                };
                let inner = three_way(before.unwrap_or(&nothing), wanted, there);
                (new || !inner.is_empty()).then_some(Value::Object(inner))
            }
            (wanted, Some(there)) if wanted == there => None,
            (wanted, _) => Some(wanted.clone()),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    for key in original.keys() {
        if !modified.contains_key(key) && current.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn patched(current: &Map<String, Value>, patch: &Map<String, Value>) -> Map<String, Value> {
        let mut object = current.clone();
        for (key, change) in patch {
            match change {
                Value::Null => {
                    object.remove(key);
                }
                Value::Object(change) => {
                    let there = object.get(key).and_then(Value::as_object).cloned();
                    let inner = patched(&there.unwrap_or_default(), change);
                    object.insert(key.clone(), Value::Object(inner));
                }
                other => {
                    object.insert(key.clone(), other.clone());
                }
            }
        }
        object
    }

    #[test]
    fn the_patch_is_what_differs() {
        let cases = [
            (json!({}), json!({"a": 1}), json!({"a": 1, "b": 2}), json!({})),
            (json!({}), json!({"a": 2}), json!({"a": 1, "b": 2}), json!({"a": 2})),
            (json!({"b": 2}), json!({"a": 1}), json!({"a": 1, "b": 2}), json!({"b": null})),
            (json!({"b": 2}), json!({"a": 1}), json!({"a": 1}), json!({})),
            (
                json!({"s": {"x": 1}}),
                json!({"s": {}}),
                json!({"s": {"x": 1, "y": 2}}),
                json!({"s": {"x": null}}),
            ),
            (json!({}), json!({"l": [1]}), json!({"l": [1, 2]}), json!({"l": [1]})),
            (json!({}), json!({"s": {}}), json!({}), json!({"s": {}})),
            (json!({}), json!({"a": null}), json!({"a": 1}), json!({"a": null})),
        ];
        for (original, modified, current, expected) in cases {
            let patch = three_way(&map(original), &map(modified.clone()), &map(current));
            assert_eq!(Value::Object(patch), expected, "{modified}");
        }
    }

    fn object() -> impl Strategy<Value = Map<String, Value>> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
        let value = leaf.prop_recursive(3, 12, 3, |inner| {
            prop::collection::btree_map("[a-c]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        });
        prop::collection::btree_map("[a-c]", value, 0..4).prop_map(|map| map.into_iter().collect())
    }

    fn holds(object: &Value, wanted: &Value) -> bool {
        match (object, wanted) {
            (Value::Object(object), Value::Object(wanted)) => wanted
                .iter()
                .all(|(key, wanted)| object.get(key).is_some_and(|value| holds(value, wanted))),
            (object, wanted) => object == wanted,
        }
    }

    proptest! {
        #[test]
        fn applying_gives_what_is_wanted_and_a_second_time_changes_nothing(
            original in object(), modified in object(), current in object(),
        ) {
            let after = patched(&current, &three_way(&original, &modified, &current));
            prop_assert!(holds(&Value::Object(after.clone()), &Value::Object(modified.clone())));
            prop_assert!(three_way(&modified, &modified, &after).is_empty());
        }
    }
}
