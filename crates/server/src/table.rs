//! Objects as rows of a table: what `kubectl get` prints.
//!
//! Pure functions of a kind, an object and the time. The cells follow from the kind's columns,
//! with the name before them; ages are texts, as kubectl writes them.

use jiff::Timestamp;
use mainstay_store::registry::Kind;
use serde_json::{Map, Value, json};

/// The part of an object that its row carries along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    /// No part.
    None,
    /// Its metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

const NAME: &str =
    "What the object is called. No other of its kind in the same namespace has the same name.";

/// The definitions of a kind's columns.
#[must_use]
pub fn columns(kind: &Kind) -> Value {
    let name = kind.name_column.then(|| definition("Name", "string", "name", NAME, 0));
    let others = kind.columns.iter().map(|column| {
        let (kind, format) = (column.kind.as_str(), column.format);
        definition(column.name, kind, format, column.description, column.priority)
    });
    name.into_iter().chain(others).collect()
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i32) -> Value {
    json!({
        "name": name,
        "type": kind,
        "format": format,
        "description": description,
        "priority": priority,
    })
}

/// One row. `version` is that of the table, as `v1`.
#[must_use]
pub fn row(
    kind: &Kind,
    object: &Map<String, Value>,
    include: Include,
    version: &str,
    now: Timestamp,
) -> Value {
    let mut row = Map::new();
    row.insert("cells".to_owned(), cells(kind, object, now));
    let carried = match include {
        Include::None => None,
        Include::Metadata => Some(metadata_only(object, version)),
        Include::Object => Some(Value::Object(object.clone())),
    };
    if let Some(carried) = carried {
        row.insert("object".to_owned(), carried);
    }
    Value::Object(row)
}

fn cells(kind: &Kind, object: &Map<String, Value>, now: Timestamp) -> Value {
    let mut cells = Vec::with_capacity(kind.columns.len() + 1);
    if kind.name_column {
        let name = object.get("metadata").and_then(|metadata| metadata.get("name"));
        cells.push(name.cloned().unwrap_or_default());
    }
    cells.extend(kind.columns.iter().map(|column| column.value(object, now)));
    Value::Array(cells)
}

/// The metadata of an object, as an object of its own.
#[must_use]
pub fn metadata_only(object: &Map<String, Value>, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

#[cfg(test)]
mod tests;
