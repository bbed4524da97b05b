//! Patches, applied purely and within bounds: JSON Patch (RFC 6902), merge patch (RFC 7386), and
//! strategic merge, which asks the schema how lists are merged.
//!
//! A small JSON Patch can ask for a huge object (by copying it into itself), or a very deep one;
//! both are refused before they are made, so that what comes out can always be stored and read.

use json_patch::PatchOperation;
use mainstay_store::schema::Schema;
use mainstay_store::status::{Error, Reason};
use serde_json::{Map, Value};

use crate::negotiate::Format;

/// The most operations of one JSON Patch.
const OPERATIONS: usize = 10_000;
/// Operations that are cheap together.
const FEW: usize = 500;
/// How deep an object may be nested: what every JSON parser takes, with room for an envelope.
pub(crate) const DEPTH: usize = 100;

/// A patch that was read.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    Json(Vec<PatchOperation>),
    Merge(Value),
    Strategic(Map<String, Value>, Schema),
}

impl Patch {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// 400 if it is no patch, 413 if it has too many operations.
    pub(crate) fn read(format: Format, body: &[u8], schema: &Schema) -> Result<Self, Error> {
        let wrong =
            |error: serde_json::Error| Error::bad_request(format!("error decoding patch: {error}"));
        if format != Format::JsonPatch {
            let patch: Value = serde_json::from_slice(body).map_err(wrong)?;
            return match patch {
                Value::Object(patch) if format == Format::StrategicMergePatch => {
                    Ok(Self::Strategic(patch, schema.clone()))
                }
                Value::Object(_) => Ok(Self::Merge(patch)),
                _ => Err(Error::bad_request("error decoding patch: it is not a JSON object")),
            };
        }
        let operations: Vec<PatchOperation> = serde_json::from_slice(body).map_err(wrong)?;
        if operations.len() > OPERATIONS {
            let message = format!(
                "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
                operations.len()
            );
            return Err(Error::new(Reason::RequestEntityTooLarge, message));
        }
        Ok(Self::Json(operations))
    }

    /// Whether it may cost much more than its size: it has many operations, or copies of copies.
    pub(crate) fn is_heavy(&self) -> bool {
        let Self::Json(operations) = self else { return false };
        let copies = operations.iter().filter(|one| matches!(one, PatchOperation::Copy(_)));
        operations.len() > FEW || copies.count() > 1
    }

    /// Applies the patch to `object`, of which at most `limit` bytes may be copied.
    ///
    /// # Errors
    /// 400 if a directive makes no sense, 422 if an operation cannot be carried out or what came
    /// out is no object, 413 if it is too large.
    pub(crate) fn apply(
        &self,
        object: &Map<String, Value>,
        limit: usize,
    ) -> Result<Map<String, Value>, Error> {
        let mut patched = Value::Object(object.clone());
        match self {
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Strategic(patch, schema) => {
                if let Value::Object(object) = &mut patched {
                    schema.merge_strategic(object, patch)?;
                }
            }
            Self::Json(operations) => {
                let mut copied = 0;
                for operation in operations {
                    if let PatchOperation::Copy(copy) = operation {
                        copied += patched.pointer(copy.from.as_str()).map_or(0, size);
                        if copied > limit {
                            let message = "the patch copies more than an object may hold";
                            return Err(Error::new(Reason::RequestEntityTooLarge, message));
                        }
                    }
                    let one = std::slice::from_ref(operation);
                    json_patch::patch_unsafe(&mut patched, one).map_err(|error| {
                        let path = operation.path();
                        unprocessable(format!(
                            "the patch cannot be applied at \"{path}\": {}",
                            error.kind
                        ))
                    })?;
                }
            }
        }
        if !shallow(&patched, DEPTH) {
            return Err(unprocessable(format!("the result is nested deeper than {DEPTH} levels")));
        }
        match patched {
            Value::Object(object) => Ok(object),
            _ => Err(unprocessable("the result of the patch is not an object".to_owned())),
        }
    }
}

fn unprocessable(why: String) -> Error {
    let message = format!("the server rejected our request due to an error in our request: {why}");
    Error::new(Reason::Invalid, message)
}

/// About how many bytes a value takes.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => 8 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => {
            8 + fields.iter().map(|(name, value)| name.len() + 8 + size(value)).sum::<usize>()
        }
    }
}

/// Whether a value is nested no deeper than `levels`.
pub(crate) fn shallow(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| shallow(item, levels - 1)),
        Value::Object(fields) => {
            levels > 0 && fields.values().all(|field| shallow(field, levels - 1))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(format: Format, patch: &Value, object: &Value) -> Result<Value, Error> {
        let patch = patch.to_string();
        let patch = Patch::read(format, patch.as_bytes(), &Schema::anything())?;
        patch.apply(object.as_object().unwrap(), 1 << 20).map(Value::Object)
    }

    #[test]
    fn patches_do_what_their_standards_say() {
        let object = json!({"a": {"b": 1, "c": [1, 2]}});
        let cases = [
            (
                Format::MergePatch,
                json!({"a": {"b": null, "d": 2}}),
                json!({"a": {"c": [1, 2], "d": 2}}),
            ),
            (Format::MergePatch, json!({"a": {"c": [3]}}), json!({"a": {"b": 1, "c": [3]}})),
            (
                Format::JsonPatch,
                json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "add", "path": "/a/c/-", "value": 3}]),
                json!({"a": {"b": 1, "c": [1, 2, 3]}}),
            ),
            (
                Format::JsonPatch,
                json!([{"op": "move", "from": "/a/b", "path": "/b"}, {"op": "remove", "path": "/a/c/0"}]),
                json!({"a": {"c": [2]}, "b": 1}),
            ),
        ];
        for (format, patch, expected) in cases {
            assert_eq!(apply(format, &patch, &object).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn invalid_configurations_are_refused_with_a_reason() {
        let object = json!({"a": {"b": 1}});
        let doubling: Vec<Value> = (0..60)
            .map(|at| json!({"op": "copy", "from": "", "path": format!("/x{at}")}))
            .collect();
        let many: Vec<Value> =
            (0..=OPERATIONS).map(|_| json!({"op": "remove", "path": "/x"})).collect();
        let deep = (0..90).fold(json!(1), |inner, _| json!([inner]));
        let deeper = json!([
            {"op": "add", "path": "/x", "value": deep},
            {"op": "move", "from": "/x", "path": "/y"},
            {"op": "add", "path": "/z", "value": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": {"j": 1}}}}}}}}}}},
            {"op": "move", "from": "/y", "path": "/z/a/b/c/d/e/f/g/h/i/j"},
        ]);
        let cases = [
            (
                Format::JsonPatch,
                json!([{"op": "test", "path": "/a/b", "value": 2}]),
                Reason::Invalid,
            ),
            (Format::JsonPatch, json!([{"op": "remove", "path": "/q"}]), Reason::Invalid),
            (
                Format::JsonPatch,
                json!([{"op": "replace", "path": "", "value": 5}]),
                Reason::Invalid,
            ),
            (Format::JsonPatch, json!({"op": "remove"}), Reason::BadRequest),
            (Format::JsonPatch, json!([{"op": "explode", "path": "/a"}]), Reason::BadRequest),
            (Format::JsonPatch, Value::Array(doubling), Reason::RequestEntityTooLarge),
            (Format::JsonPatch, Value::Array(many), Reason::RequestEntityTooLarge),
            (Format::JsonPatch, deeper, Reason::Invalid),
            (Format::MergePatch, json!([1]), Reason::BadRequest),
            (Format::MergePatch, json!("x"), Reason::BadRequest),
        ];
        for (format, patch, reason) in cases {
            let refused = apply(format, &patch, &object).unwrap_err();
            assert_eq!(refused.reason, reason, "{}", refused.message);
        }
    }
}
