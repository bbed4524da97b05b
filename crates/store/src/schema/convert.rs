//! Converts the schema that schemars makes of a Rust type to a structural schema.
//!
//! References are inlined; a type that contains itself is cut off there and keeps whatever it is
//! given. `Option` means that a field may be missing, not that null is a value of its own. Enums
//! become lists of allowed values, or the union of their variants' fields.

use std::sync::Arc;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{Error, Fields, Identity, List, Node, Pattern, Range, Shape, Text};

pub(super) fn node_of<T: JsonSchema>() -> Result<Node, Error> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    let definitions = schema.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut converter = Converter { definitions, open: Vec::new() };
    converter.node(&schema, "")
}

struct Converter {
    definitions: Map<String, Value>,
    /// The references being followed.
    open: Vec<String>,
}

impl Converter {
    fn node(&mut self, schema: &Value, path: &str) -> Result<Node, Error> {
        let Value::Object(schema) = schema else {
            return Ok(anything());
        };
        let mut node = self.bare(schema, path)?;
        decorate(&mut node, schema);
        Ok(node)
    }

    fn bare(&mut self, schema: &Map<String, Value>, path: &str) -> Result<Node, Error> {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, path);
        }
        if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
            let quantity = schema.get("format").and_then(Value::as_str) == Some("quantity");
            return Ok(Node::new(Shape::IntOrString { quantity }));
        }
        for word in ["anyOf", "oneOf", "allOf"] {
            if let Some(Value::Array(choices)) = schema.get(word)
                && !schema.contains_key("properties")
            {
                return self.choice(choices, path);
            }
        }
        let mut allowed: Vec<Value> = match (schema.get("const"), schema.get("enum")) {
            (Some(constant), _) => vec![constant.clone()],
            (None, Some(Value::Array(values))) => values.clone(),
            _ => Vec::new(),
        };
        allowed.retain(|value| !value.is_null());
        let kind = type_of(schema, &allowed);
        let shape = match kind {
            Some("boolean") => Shape::Boolean,
            Some("integer") => Shape::Integer(range(schema, true)),
            Some("number") => Shape::Number(range(schema, false)),
            Some("string") => Shape::String(text(schema)?),
            Some("array") => self.list(schema, path)?,
            Some("object") => self.object(schema, path)?,
            Some(other) => {
                return Err(Error::Unsupported {
                    path: path.to_owned(),
                    what: format!("values of type {other}"),
                });
            }
            None => return Ok(anything()),
        };
        let mut node = Node::new(shape);
        node.allowed = allowed;
        Ok(node)
    }

    fn reference(&mut self, reference: &str, path: &str) -> Result<Node, Error> {
        let name = reference.trim_start_matches("#/$defs/");
        if name == "#" || self.open.iter().any(|open| open == name) {
            return Ok(anything());
        }
        let definition = self.definitions.get(name).cloned();
        self.open.push(name.to_owned());
        let node = self.node(&definition.unwrap_or(Value::Null), path);
        self.open.pop();
        node
    }

    fn list(&mut self, schema: &Map<String, Value>, path: &str) -> Result<Shape, Error> {
        let items = self.node(schema.get("items").unwrap_or(&Value::Null), &format!("{path}[]"))?;
        let unique = schema.get("uniqueItems") == Some(&Value::Bool(true));
        let identity = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("map") => {
                let keys = schema.get("x-kubernetes-list-map-keys");
                let keys = keys.and_then(Value::as_array).map(|keys| {
                    let texts = keys.iter().filter_map(Value::as_str);
                    texts.map(str::to_owned).collect()
                });
                Identity::Map(keys.unwrap_or_default())
            }
            Some("set") => Identity::Set,
            None if unique => Identity::Set,
            _ => Identity::Atomic,
        };
        Ok(Shape::List(List {
            items: Arc::new(items),
            min_items: count(schema, "minItems"),
            max_items: count(schema, "maxItems"),
            identity,
        }))
    }

    fn object(&mut self, schema: &Map<String, Value>, path: &str) -> Result<Shape, Error> {
        let mut fields = Fields {
            min_properties: count(schema, "minProperties"),
            max_properties: count(schema, "maxProperties"),
            ..Fields::default()
        };
        if let Some(Value::Object(properties)) = schema.get("properties") {
            for (name, property) in properties {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let node = self.node(property, &below)?;
                fields.put(name, Arc::new(node));
            }
        }
        if let Some(Value::Array(required)) = schema.get("required") {
            let names = required.iter().filter_map(Value::as_str);
            fields.required = names.map(str::to_owned).collect();
            fields.required.sort_unstable();
        }
        // A flattened enum stands beside the object's own fields.
        for word in ["anyOf", "oneOf"] {
            if let Some(Value::Array(choices)) = schema.get(word) {
                let union = self.choice(choices, path)?;
                if let Shape::Object(more) = union.shape {
                    for (name, node) in more.properties {
                        fields.put(&name, node);
                    }
                }
            }
        }
        match schema.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            Some(more) => fields.additional = Some(Arc::new(self.node(more, path)?)),
        }
        Ok(Shape::Object(fields))
    }

    /// One of several: null and something, texts, or objects whose fields are put together.
    fn choice(&mut self, choices: &[Value], path: &str) -> Result<Node, Error> {
        let mut nodes = Vec::new();
        for choice in choices.iter().filter(|choice| !is_null(choice)) {
            nodes.push(self.node(choice, path)?);
        }
        if nodes.len() <= 1 {
            return Ok(nodes.pop().unwrap_or_else(anything));
        }
        let listed =
            |node: &Node| matches!(node.shape, Shape::String(_)) && !node.allowed.is_empty();
        if nodes.iter().all(listed) {
            let mut union = Node::new(Shape::String(Text::default()));
            union.allowed = nodes.into_iter().flat_map(|node| node.allowed).collect();
            return Ok(union);
        }
        let integer = |node: &Node| matches!(node.shape, Shape::Integer(_));
        let string = |node: &Node| matches!(node.shape, Shape::String(_));
        if nodes.len() == 2 && nodes.iter().any(integer) && nodes.iter().any(string) {
            return Ok(Node::new(Shape::IntOrString { quantity: false }));
        }
        let mut union: Option<Fields> = None;
        for node in nodes {
            let Shape::Object(fields) = node.shape else {
                return Err(Error::Unsupported {
                    path: path.to_owned(),
                    what: "a choice between values of different types".to_owned(),
                });
            };
            union = Some(match union {
                None => fields,
                Some(union) => unite(union, fields),
            });
        }
        Ok(Node::new(Shape::Object(union.unwrap_or_default())))
    }
}

/// The fields of either; what both require stays required, tags take the values of both.
fn unite(mut union: Fields, other: Fields) -> Fields {
    union.required.retain(|name| other.required.contains(name));
    for (name, node) in other.properties {
        let tag = union
            .get(&name)
            .filter(|known| !known.allowed.is_empty() && !node.allowed.is_empty())
            .map(|known| {
                let mut tag = Node::new(Shape::String(Text::default()));
                tag.description.clone_from(&known.description);
                tag.allowed = known.allowed.iter().chain(&node.allowed).cloned().collect();
                tag
            });
        union.put(&name, tag.map_or(node, Arc::new));
    }
    union
}

fn anything() -> Node {
    let mut node = Node::new(Shape::Any);
    node.preserve_unknown = true;
    node
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
        || schema.get("const") == Some(&Value::Null)
}

fn type_of<'a>(schema: &'a Map<String, Value>, allowed: &[Value]) -> Option<&'a str> {
    match schema.get("type") {
        Some(Value::String(kind)) => Some(kind),
        Some(Value::Array(kinds)) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str);
            kinds.find(|kind| *kind != "null")
        }
        _ if !allowed.is_empty() && allowed.iter().all(Value::is_string) => Some("string"),
        _ if schema.contains_key("properties") => Some("object"),
        _ => None,
    }
}

fn count(schema: &Map<String, Value>, name: &str) -> Option<usize> {
    let number = schema.get(name)?.as_u64()?;
    usize::try_from(number).ok()
}

fn range(schema: &Map<String, Value>, whole: bool) -> Range {
    let number = |name: &str| schema.get(name).and_then(Value::as_f64);
    let mut range = Range {
        minimum: number("minimum"),
        maximum: number("maximum"),
        above: number("exclusiveMinimum"),
        below: number("exclusiveMaximum"),
        multiple_of: number("multipleOf"),
        format: None,
    };
    let format = schema.get("format").and_then(Value::as_str);
    let bounds = match format {
        Some("int8") => Some((i8::MIN.into(), i8::MAX.into())),
        Some("int16") => Some((i16::MIN.into(), i16::MAX.into())),
        Some("uint8") => Some((0.0, u8::MAX.into())),
        Some("uint16") => Some((0.0, u16::MAX.into())),
        Some("uint32") => Some((0.0, u32::MAX.into())),
        Some("uint" | "uint64") => Some((0.0, f64::INFINITY)),
        _ => None,
    };
    if let Some((least, greatest)) = bounds {
        range.minimum = Some(range.minimum.map_or(least, |minimum| minimum.max(least)));
        if greatest.is_finite() {
            range.maximum = Some(range.maximum.map_or(greatest, |maximum| maximum.min(greatest)));
        }
    }
    range.format = match format {
        Some("int32" | "int16" | "int8" | "uint16" | "uint8") => Some("int32".to_owned()),
        Some("double" | "float") => format.map(str::to_owned),
        _ if whole => Some("int64".to_owned()),
        _ => None,
    };
    range
}

fn text(schema: &Map<String, Value>) -> Result<Text, Error> {
    let pattern = schema.get("pattern").and_then(Value::as_str);
    Ok(Text {
        min_length: count(schema, "minLength"),
        max_length: count(schema, "maxLength"),
        pattern: pattern.map(Pattern::new).transpose()?,
        format: schema.get("format").and_then(Value::as_str).map(str::to_owned),
    })
}

/// Description, default and extensions of this very place win over those of what it refers to.
fn decorate(node: &mut Node, schema: &Map<String, Value>) {
    if let Some(Value::String(description)) = schema.get("description") {
        node.description = Some(unwrapped(description));
    }
    node.default = schema.get("default").and_then(shown_default).or(node.default.take());
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        node.nullable = true;
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        node.preserve_unknown = true;
    }
    for (name, value) in schema {
        if name.starts_with("x-kubernetes-") && node.extension(name).is_none() {
            node.extensions.push((name.clone(), value.clone()));
        }
    }
    node.has_defaults = node.default.is_some()
        || match &node.shape {
            Shape::List(list) => list.items.has_defaults,
            Shape::Object(fields) => {
                fields.iter().any(|(_, field)| field.has_defaults)
                    || fields.additional.as_ref().is_some_and(|more| more.has_defaults)
            }
            _ => false,
        };
}

/// A default that is worth showing. Rust has a default for everything; empty ones are left out.
fn shown_default(default: &Value) -> Option<Value> {
    match default {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(fields) => {
            let told: Map<String, Value> = fields
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), shown_default(value)?)))
                .collect();
            (!told.is_empty()).then_some(Value::Object(told))
        }
        other => Some(other.clone()),
    }
}

/// Lines of a paragraph joined, paragraphs kept.
fn unwrapped(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        lines.join(" ")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
