//! A structural schema as OpenAPI v3 writes it.

use serde_json::{Map, Value, json};

use super::{Node, Range, Shape, Text};

pub(super) const API_VERSION: &str = "The group and version this object is written in, as v1 or coordination.k8s.io/v1. If not set, it is taken from the path of the request; another one than that is refused.";

pub(super) const KIND: &str = "The kind of this object, as ConfigMap. If not set, it is taken from the path of the request; another one than that is refused.";

/// The node and everything below it.
pub(super) fn write(node: &Node) -> Value {
    let mut schema = Map::new();
    if let Some(description) = &node.description {
        schema.insert("description".to_owned(), json!(description));
    }
    shape(&node.shape, &mut schema);
    if !node.allowed.is_empty() {
        schema.insert("enum".to_owned(), json!(node.allowed));
    }
    if node.nullable {
        schema.insert("nullable".to_owned(), json!(true));
    }
    if let Some(default) = &node.default {
        schema.insert("default".to_owned(), default.clone());
    }
    if node.preserve_unknown {
        schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
    for (name, value) in &node.extensions {
        schema.insert(name.clone(), value.clone());
    }
    Value::Object(schema)
}

fn shape(shape: &Shape, schema: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| schema.insert(name.to_owned(), value);
    match shape {
        Shape::Any => {}
        Shape::Boolean => {
            put("type", json!("boolean"));
        }
        Shape::Integer(bounds) => {
            put("type", json!("integer"));
            range(bounds, schema);
        }
        Shape::Number(bounds) => {
            put("type", json!("number"));
            range(bounds, schema);
        }
        Shape::String(rules) => {
            put("type", json!("string"));
            text(rules, schema);
        }
        Shape::IntOrString { quantity } => {
            put("x-kubernetes-int-or-string", json!(true));
            put("anyOf", json!([{"type": "integer"}, {"type": "string"}]));
            if *quantity {
                put("format", json!("quantity"));
            }
        }
        Shape::List(list) => {
            put("type", json!("array"));
            put("items", write(&list.items));
            if let Some(least) = list.min_items {
                put("minItems", json!(least));
            }
            if let Some(most) = list.max_items {
                put("maxItems", json!(most));
            }
        }
        Shape::Object(fields) => {
            put("type", json!("object"));
            let properties: Map<String, Value> =
                fields.iter().map(|(name, node)| (name.to_owned(), write(node))).collect();
            if !properties.is_empty() {
                put("properties", Value::Object(properties));
            }
            if !fields.required.is_empty() {
                put("required", json!(fields.required));
            }
            if let Some(more) = &fields.additional {
                put("additionalProperties", write(more));
            }
            if let Some(least) = fields.min_properties {
                put("minProperties", json!(least));
            }
            if let Some(most) = fields.max_properties {
                put("maxProperties", json!(most));
            }
        }
    }
}

fn range(range: &Range, schema: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| schema.insert(name.to_owned(), value);
    if let Some(format) = &range.format {
        put("format", json!(format));
    }
    if let Some(bound) = range.minimum.or(range.above) {
        put("minimum", number(bound));
    }
    if range.above.is_some() {
        put("exclusiveMinimum", json!(true));
    }
    if let Some(bound) = range.maximum.or(range.below) {
        put("maximum", number(bound));
    }
    if range.below.is_some() {
        put("exclusiveMaximum", json!(true));
    }
    if let Some(step) = range.multiple_of {
        put("multipleOf", number(step));
    }
}

/// A bound without a needless fraction.
fn number(bound: f64) -> Value {
    if bound.fract() == 0.0 && bound.abs() < 9e15 { json!(bound as i64) } else { json!(bound) }
}

fn text(text: &Text, schema: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| schema.insert(name.to_owned(), value);
    if let Some(format) = &text.format {
        put("format", json!(format));
    }
    if let Some(least) = text.min_length {
        put("minLength", json!(least));
    }
    if let Some(most) = text.max_length {
        put("maxLength", json!(most));
    }
    if let Some(pattern) = &text.pattern {
        put("pattern", json!(pattern.text));
    }
}
