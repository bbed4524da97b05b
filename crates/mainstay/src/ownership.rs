//! Migrates field ownership from client-side apply to server-side apply.
//!
//! Client-side apply (ours of earlier versions, and plain `kubectl apply`) is an update for the
//! server, which therefore records its fields as owned by a manager that *updates*. Without migration
//! these fields would conflict with our own server-side apply, and would stay for ever after they are
//! removed from the manifest. [`taken_over`] makes a manager that *applies* their owner. Pure.

use serde_json::{Map, Value, json};

/// The annotation in which client-side apply stores the last applied configuration.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager name of `kubectl apply` without `--server-side`.
const CLIENT_SIDE: &str = "kubectl-client-side-apply";

/// Which part of an object a party writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
        }
    }
}

/// The names of the managers whose fields `manager` should take over.
pub(crate) fn predecessors(object: &Value, manager: &str, part: Part) -> Vec<String> {
    let entries = entries(object).iter();
    let earlier = entries.filter(|entry| is_predecessor(entry, manager, part));
    earlier.map(|entry| text(entry, "manager").to_owned()).collect()
}

/// The object's `managedFields` after `manager` took over the fields of its predecessors; `None` if
/// they own none.
pub(crate) fn taken_over(object: &Value, manager: &str, part: Part) -> Option<Value> {
    let (mut theirs, mut rest) = (Vec::new(), Vec::new());
    for entry in entries(object) {
        let own = text(entry, "manager") == manager
            && text(entry, "operation") == "Apply"
            && text(entry, "subresource") == part.name();
        if own || is_predecessor(entry, manager, part) {
            theirs.push(entry);
        } else {
            rest.push(entry.clone());
        }
    }
    if !theirs.iter().any(|entry| is_predecessor(entry, manager, part)) {
        return None;
    }
    let fields = theirs.iter().fold(json!({}), |all, entry| union(&all, &entry["fieldsV1"]));
    let mut ours = (*theirs.last()?).clone();
    ours["manager"] = manager.into();
    ours["operation"] = "Apply".into();
    ours["fieldsV1"] = fields;
    rest.insert(0, ours);
    Some(Value::Array(rest))
}

fn entries(object: &Value) -> &[Value] {
    object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(entry: &'a Value, name: &str) -> &'a str {
    entry[name].as_str().unwrap_or_default()
}

fn is_predecessor(entry: &Value, manager: &str, part: Part) -> bool {
    let same = text(entry, "operation") == "Update" && text(entry, "subresource") == part.name();
    same && match part {
        Part::Main => {
            let remembers = &entry["fieldsV1"]["f:metadata"]["f:annotations"];
            let remembers = remembers.get(format!("f:{LAST_APPLIED}")).is_some();
            remembers || text(entry, "manager") == CLIENT_SIDE
        }
        Part::Status => text(entry, "manager") == manager,
    }
}

/// The fields of both, as `FieldsV1` writes them: an empty map is a field itself, marked
/// with `.` if it has fields below it too.
fn union(one: &Value, other: &Value) -> Value {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return if one.is_object() { one.clone() } else { other.clone() };
    };
    let mut both = one.clone();
    for (name, below) in other {
        let below = match one.get(name) {
            Some(mine) => union_below(mine, below),
            None => below.clone(),
        };
        both.insert(name.clone(), below);
    }
    Value::Object(both)
}

fn union_below(one: &Value, other: &Value) -> Value {
    let empty = |value: &Value| value.as_object().is_none_or(Map::is_empty);
    let mut both = union(one, other);
    if empty(one) != empty(other) {
        both["."] = json!({});
    }
    both
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(manager: &str, operation: &str, subresource: &str, fields: Value) -> Value {
        let mut entry = json!({
            "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": manager,
            "operation": operation, "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
        });
        if !subresource.is_empty() {
            entry["subresource"] = subresource.into();
        }
        entry
    }

    fn memory() -> Value {
        let mut annotations = json!({".": {}});
        annotations[format!("f:{LAST_APPLIED}")] = json!({});
        json!({"f:annotations": annotations})
    }

    fn object(entries: &[Value]) -> Value {
        json!({"metadata": {"managedFields": entries}})
    }

    #[test]
    fn fields_of_client_side_apply_are_taken_over() {
        let earlier = entry(
            "mainstay",
            "Update",
            "",
            json!({"f:data": {".": {}, "f:a": {}}, "f:metadata": memory()}),
        );
        let other = entry("edit", "Update", "", json!({"f:data": {"f:b": {}}}));
        let there = object(&[earlier, other.clone()]);
        assert_eq!(predecessors(&there, "mainstay", Part::Main), ["mainstay"]);
        let after = taken_over(&there, "mainstay", Part::Main).unwrap();
        let fields = json!({"f:data": {".": {}, "f:a": {}}, "f:metadata": memory()});
        assert_eq!(after, json!([entry("mainstay", "Apply", "", fields), other]));
        let there = object(after.as_array().unwrap());
        assert_eq!(taken_over(&there, "mainstay", Part::Main), None, "only once");
    }

    #[test]
    fn only_predecessors_are_taken_over() {
        let cases = [
            (entry("kubectl-client-side-apply", "Update", "", json!({"f:data": {}})), true, false),
            (entry("someone", "Update", "", json!({"f:metadata": memory()})), true, false),
            (entry("mainstay", "Update", "", json!({"f:data": {}})), false, false),
            (entry("mainstay", "Update", "status", json!({"f:status": {}})), false, true),
            (entry("someone", "Update", "status", json!({"f:status": {}})), false, false),
            (
                entry("kubectl-last-applied", "Apply", "", json!({"f:metadata": memory()})),
                false,
                false,
            ),
        ];
        for (entry, main, status) in cases {
            let there = object(std::slice::from_ref(&entry));
            let found = |part| taken_over(&there, "mainstay", part).is_some();
            assert_eq!((found(Part::Main), found(Part::Status)), (main, status), "{entry}");
        }
        assert_eq!(taken_over(&json!({}), "mainstay", Part::Main), None);
    }

    #[test]
    fn fields_that_were_applied_already_stay_owned() {
        let ours = entry("mainstay", "Apply", "", json!({"f:data": {"f:a": {}, "f:m": {}}}));
        let theirs = entry(
            "kubectl-client-side-apply",
            "Update",
            "",
            json!({"f:data": {"f:m": {"f:x": {}}}}),
        );
        let after = taken_over(&object(&[ours, theirs]), "mainstay", Part::Main).unwrap();
        let fields = json!({"f:data": {"f:a": {}, "f:m": {".": {}, "f:x": {}}}});
        assert_eq!(after[0]["fieldsV1"], fields);
        assert_eq!(after.as_array().map(Vec::len), Some(1));
    }

    /// The paths of a set, which is what its JSON means.
    fn paths(fields: &Value, here: &str, found: &mut Vec<String>) {
        let Some(object) = fields.as_object() else { return };
        if object.is_empty() {
            found.push(here.to_owned());
        }
        for (name, below) in object {
            match name.as_str() {
                "." => found.push(here.to_owned()),
                name => paths(below, &format!("{here}/{name}"), found),
            }
        }
    }

    fn fields() -> impl Strategy<Value = Value> {
        let inner = Just(json!({})).prop_recursive(3, 16, 3, |inner| {
            (prop::collection::btree_map("f:[a-c]", inner, 1..3), any::<bool>()).prop_map(
                |(below, own)| {
                    let mut object: Map<String, Value> = below.into_iter().collect();
                    if own {
                        object.insert(".".to_owned(), json!({}));
                    }
                    Value::Object(object)
                },
            )
        });
        prop::collection::btree_map("f:[a-c]", inner, 1..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn a_union_has_the_paths_of_both(one in fields(), other in fields()) {
            let all = |sets: &[&Value]| {
                let mut found = Vec::new();
                sets.iter().for_each(|set| paths(set, "", &mut found));
                found.sort();
                found.dedup();
                found
            };
            prop_assert_eq!(all(&[&union(&one, &other)]), all(&[&one, &other]));
        }
    }
}
