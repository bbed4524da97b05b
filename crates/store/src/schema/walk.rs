//! Walks that change an object: pruning what the schema does not know, filling in defaults.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

use super::{Node, Shape};
use crate::meta::Quantity;

/// The way from the root to a place, on the stack: written out only if it is needed.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(name),
            Self::Field(above, name) => write!(f, "{above}.{name}"),
            Self::Index(above, index) => {
                above.fmt(f)?;
                f.write_char('[')?;
                index.fmt(f)?;
                f.write_char(']')
            }
        }
    }
}

/// The most unknown fields that are reported.
const REPORTED: usize = 100;

pub(super) fn prune(root: &Node, object: &mut Map<String, Value>) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_object(root, object, Path::Root, &mut unknown);
    unknown
}

fn prune_object(
    node: &Node,
    object: &mut Map<String, Value>,
    path: Path<'_>,
    unknown: &mut Vec<String>,
) {
    let Shape::Object(fields) = &node.shape else {
        return;
    };
    let mut stays = |name: &String, value: &mut Value| {
        let below = Path::Field(&path, name);
        if let Some(field) = fields.get(name) {
            if value.is_null() && !field.nullable {
                return false;
            }
            prune_value(field, value, below, unknown);
            return true;
        }
        if let Some(more) = &fields.additional {
            prune_value(more, value, below, unknown);
            return true;
        }
        if !node.preserve_unknown && unknown.len() < REPORTED {
            unknown.push(below.to_string());
        }
        node.preserve_unknown
    };
    let mut gone = false;
    for (name, value) in object.iter_mut() {
        if !stays(name, value) {
            gone = true;
            *value = Value::Null;
        }
    }
    if gone {
        object.retain(|name, value| {
            !value.is_null()
                || match fields.get(name) {
                    Some(field) => field.nullable,
                    None => fields.additional.is_some() || node.preserve_unknown,
                }
        });
    }
}

fn prune_value(node: &Node, value: &mut Value, path: Path<'_>, unknown: &mut Vec<String>) {
    match (&node.shape, value) {
        (Shape::Object(_), Value::Object(object)) => prune_object(node, object, path, unknown),
        // Clients may write a quantity as a number, but read it as a text.
        (Shape::IntOrString { quantity: true }, value @ Value::Number(_)) => {
            if let Ok(quantity) = value.to_string().parse::<Quantity>() {
                *value = Value::from(quantity.to_string());
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            // A list of plain values has nothing to prune.
            if matches!(list.items.shape, Shape::Object(_) | Shape::List(_)) {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_value(&list.items, item, Path::Index(&path, index), unknown);
                }
            }
        }
        _ => {}
    }
}

pub(crate) fn default(node: &Node, object: &mut Map<String, Value>) {
    let Shape::Object(fields) = &node.shape else {
        return;
    };
    for (name, field) in fields.iter().filter(|(_, field)| field.has_defaults) {
        match (object.get_mut(name), &field.default) {
            (Some(value), _) => default_value(field, value),
            (None, Some(default)) => {
                let mut value = default.clone();
                default_value(field, &mut value);
                object.insert(name.to_owned(), value);
            }
            (None, None) => {}
        }
    }
    if let Some(more) = fields.additional.as_ref().filter(|more| more.has_defaults) {
        let unnamed = object.iter_mut().filter(|(name, _)| fields.get(name).is_none());
        for (_, value) in unnamed {
            default_value(more, value);
        }
    }
}

fn default_value(node: &Node, value: &mut Value) {
    match (&node.shape, value) {
        (Shape::Object(_), Value::Object(object)) => default(node, object),
        (Shape::List(list), Value::Array(items)) if list.items.has_defaults => {
            for item in items {
                default_value(&list.items, item);
            }
        }
        _ => {}
    }
}
