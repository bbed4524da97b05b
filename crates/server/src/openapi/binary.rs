//! OpenAPI v2 as protobuf, in the encoding that clients before v3 insist on: kubectl up to 1.26
//! checks manifests and explains kinds with it, and takes nothing else.
//!
//! It is made from the JSON document, whose models it holds; of a model it holds what such clients
//! look at. A choice of types (`anyOf`) has no place in it, and becomes a model of any type.

use serde_json::{Map, Value};

use crate::protobuf::write::Message;

/// Its media type.
pub(crate) const MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1+protobuf";
/// How older clients call it in a request, who choke on that name in an answer.
pub(crate) const OLD_MEDIA: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The document.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut document = Message::default();
    document.bytes(1, text(json, "swagger"));
    let mut info = Message::default();
    info.bytes(1, text(&json["info"], "title"));
    info.bytes(2, text(&json["info"], "version"));
    document.message(2, info);
    document.message(8, paths(json.get("paths")));
    document.message(9, named(json.get("definitions"), model));
    document.into_bytes()
}

/// The paths; of each, how its objects are patched.
fn paths(map: Option<&Value>) -> Message {
    let mut all = Message::default();
    for (name, value) in map.and_then(Value::as_object).into_iter().flatten() {
        let mut item = Message::default();
        item.message(8, operation(&value["patch"]));
        all.message(2, pair(name, item));
    }
    all
}

fn operation(value: &Value) -> Message {
    let mut operation = Message::default();
    operation.bytes(5, text(value, "operationId"));
    for parameter in value["parameters"].as_array().into_iter().flatten() {
        let mut query = Message::default();
        query.bytes(2, text(parameter, "in"));
        query.bytes(4, text(parameter, "name"));
        query.bytes(6, text(parameter, "type"));
        // A query parameter is one of those without a body, which is one of those in place.
        let nested = [3, 2, 1].into_iter().fold(query, |inner, field| {
            let mut outer = Message::default();
            outer.message(field, inner);
            outer
        });
        operation.message(8, nested);
    }
    let extensions = value.as_object().into_iter().flatten();
    for (name, value) in extensions.filter(|(name, _)| name.starts_with("x-")) {
        operation.message(13, pair(name, any(value)));
    }
    operation
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// A map from names to whatever `write` writes.
fn named(map: Option<&Value>, write: fn(&Value) -> Message) -> Message {
    let mut all = Message::default();
    for (name, value) in map.and_then(Value::as_object).into_iter().flatten() {
        all.message(1, pair(name, write(value)));
    }
    all
}

fn pair(name: &str, value: Message) -> Message {
    let mut pair = Message::default();
    pair.bytes(1, name);
    pair.message(2, value);
    pair
}

/// Any value: as YAML, which JSON is.
fn any(value: &Value) -> Message {
    let mut any = Message::default();
    any.bytes(2, value.to_string());
    any
}

fn model(value: &Value) -> Message {
    let mut model = Message::default();
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    let mut texts = |field: u32, name: &str| {
        if let Some(text) = object.get(name).and_then(Value::as_str) {
            model.bytes(field, text);
        }
    };
    texts(1, "$ref");
    texts(2, "format");
    texts(3, "title");
    texts(4, "description");
    texts(13, "pattern");
    if let Some(default) = object.get("default") {
        model.message(5, any(default));
    }
    for (field, name) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        if let Some(number) = object.get(name).and_then(Value::as_f64) {
            model.double(field, number);
        }
    }
    for (field, name) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems")] {
        if let Some(flag) = object.get(name).and_then(Value::as_bool) {
            model.flag(field, flag);
        }
    }
    let lengths = [
        "maxLength",
        "minLength",
        "",
        "maxItems",
        "minItems",
        "",
        "maxProperties",
        "minProperties",
    ];
    for (field, name) in (11..).zip(lengths) {
        if let Some(number) = object.get(name).and_then(Value::as_i64) {
            model.number(field, number);
        }
    }
    let list = |name: &str| object.get(name).and_then(Value::as_array).into_iter().flatten();
    for name in list("required").filter_map(Value::as_str) {
        model.bytes(19, name);
    }
    for value in list("enum") {
        model.message(20, any(value));
    }
    match object.get("additionalProperties") {
        None => {}
        Some(Value::Bool(flag)) => {
            let mut item = Message::default();
            item.flag(2, *flag);
            model.message(21, item);
        }
        Some(below) => model.message(21, within(below)),
    }
    if let Some(kind) = object.get("type").and_then(Value::as_str) {
        let mut item = Message::default();
        item.bytes(1, kind);
        model.message(22, item);
    }
    if let Some(items) = object.get("items") {
        model.message(23, within(items));
    }
    for part in list("allOf") {
        model.message(24, self::model(part));
    }
    if let Some(properties) = object.get("properties") {
        model.message(25, named(Some(properties), self::model));
    }
    for (name, value) in object.iter().filter(|(name, _)| name.starts_with("x-")) {
        model.message(31, pair(name, any(value)));
    }
    model
}

/// A message whose first field is a model.
fn within(value: &Value) -> Message {
    let mut message = Message::default();
    message.message(1, model(value));
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_written_field_by_field() {
        let json = json!({
            "swagger": "2.0",
            "info": {"title": "T", "version": "1"},
            "definitions": {"M": {
                "type": "object",
                "properties": {"a": {"$ref": "#/definitions/N"}},
                "x-k": ["v"],
            }},
        });
        let bytes = |parts: &[&[u8]]| parts.concat();
        let reference = bytes(&[b"\x0a\x0f", b"#/definitions/N"]);
        let property = bytes(&[b"\x0a\x01a\x12\x11", &reference]);
        let properties = bytes(&[b"\x0a\x16", &property]);
        let extension = bytes(&[b"\x0a\x03x-k\x12\x07\x12\x05", b"[\"v\"]"]);
        let model = bytes(&[
            b"\xb2\x01\x08\x0a\x06object",
            b"\xca\x01\x18",
            &properties,
            b"\xfa\x01\x0e",
            &extension,
        ]);
        let length = u8::try_from(model.len()).unwrap();
        let definition = bytes(&[b"\x0a\x01M\x12", &[length], &model]);
        let definitions = bytes(&[b"\x0a", &[length + 5], &definition]);
        let expected = bytes(&[
            b"\x0a\x032.0",
            b"\x12\x06\x0a\x01T\x12\x011",
            b"\x42\x00",
            b"\x4a",
            &[length + 7],
            &definitions,
        ]);
        assert_eq!(document(&json), expected);
    }
}
