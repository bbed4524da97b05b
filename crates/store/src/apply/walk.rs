//! Walks values along their schema: lists their fields, compares, merges, and removes fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{Element, FieldSet};
use crate::schema::{Identity, Node, Shape};

/// The parts of a value that can have different holders.
enum Grain<'a> {
    /// None: the value is a unit.
    Atom,
    /// Fields by name.
    Fields,
    /// Items by value.
    Set,
    /// Items by these fields.
    Keyed(&'a [String]),
}

fn grain<'a>(node: Option<&'a Node>, value: &Value) -> Grain<'a> {
    let atomic = |node: &Node| {
        node.extension("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic")
    };
    match (value, node.map(|node| (&node.shape, node))) {
        (Value::Object(_), Some((_, node))) if atomic(node) => Grain::Atom,
        (Value::Object(_), _) => Grain::Fields,
        (Value::Array(_), Some((Shape::List(list), _))) => match &list.identity {
            Identity::Atomic => Grain::Atom,
            Identity::Set => Grain::Set,
            Identity::Map(keys) => Grain::Keyed(keys),
        },
        _ => Grain::Atom,
    }
}

/// The schema of a field, and whether it is declared by name.
fn field<'a>(node: Option<&'a Node>, name: &str) -> (Option<&'a Node>, bool) {
    let Some(Shape::Object(fields)) = node.map(|node| &node.shape) else { return (None, false) };
    match fields.get(name) {
        Some(node) => (Some(node), true),
        None => (fields.additional.as_deref(), false),
    }
}

fn item(node: Option<&Node>) -> Option<&Node> {
    match node.map(|node| &node.shape) {
        Some(Shape::List(list)) => Some(&list.items),
        _ => None,
    }
}

/// The identity of a list item; a key field it lacks counts with its default, if it has one.
fn identity(item_node: Option<&Node>, keys: &[String], item: &Value) -> Element {
    let key = |name: &String| {
        let default = || field(item_node, name).0.and_then(|node| node.default.as_ref());
        let value = item.get(name).or_else(default).unwrap_or(&Value::Null);
        (name.clone(), value.to_string())
    };
    let mut keys: Vec<_> = keys.iter().map(key).collect();
    keys.sort();
    Element::Key(keys)
}

/// A part of a value: its path element, its schema, whether it is declared by name, itself.
type Part<'a> = (Element, Option<&'a Node>, bool, &'a Value);

/// The parts of a value that can have different holders, in their order.
fn parts<'a>(node: Option<&'a Node>, value: &'a Value) -> Option<Vec<Part<'a>>> {
    match (grain(node, value), value) {
        (Grain::Fields, Value::Object(fields)) => Some(parts_of_object(node, fields)),
        (Grain::Set, Value::Array(items)) => {
            let node = item(node);
            Some(items.iter().map(|v| (Element::Value(v.to_string()), node, false, v)).collect())
        }
        (Grain::Keyed(keys), Value::Array(items)) => {
            let node = item(node);
            Some(items.iter().map(|v| (identity(node, keys, v), node, false, v)).collect())
        }
        _ => None,
    }
}

fn parts_of_object<'a>(node: Option<&'a Node>, object: &'a Map<String, Value>) -> Vec<Part<'a>> {
    let part = |(name, value): (&String, &'a Value)| {
        let (node, declared) = field(node, name);
        (Element::Field(name.clone()), node, declared, value)
    };
    object.iter().map(part).collect()
}

/// The fields a value sets: its leaves, and the items and map entries that hold them.
pub(crate) fn fields_of(node: Option<&Node>, value: &Value) -> FieldSet {
    let Some(parts) = parts(node, value) else { return FieldSet::leaf() };
    fields_of_parts(parts)
}

/// The fields an object sets; the root of an object is never one piece.
pub(crate) fn fields_of_object(node: Option<&Node>, object: &Map<String, Value>) -> FieldSet {
    fields_of_parts(parts_of_object(node, object))
}

fn fields_of_parts(parts: Vec<Part<'_>>) -> FieldSet {
    let mut set = FieldSet::default();
    for (element, node, declared, value) in parts {
        let mut below = fields_of(node, value);
        let hollow = value.as_object().is_some_and(Map::is_empty);
        below.member |= !declared || hollow;
        set.put(element, below);
    }
    set
}

/// How two values differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Only the second has these.
    pub(crate) added: FieldSet,
    /// Both have these, with other values.
    pub(crate) modified: FieldSet,
    /// Only the first has these.
    pub(crate) removed: FieldSet,
}

/// Compares two values that stand at the same place.
pub(crate) fn compare(node: Option<&Node>, old: Option<&Value>, new: Option<&Value>) -> Difference {
    match (old, new) {
        (None, None) => Difference::default(),
        (None, Some(new)) => Difference { added: whole(node, new), ..Difference::default() },
        (Some(old), None) => Difference { removed: whole(node, old), ..Difference::default() },
        (Some(old), Some(new)) if old == new => Difference::default(),
        (Some(old), Some(new)) => match (parts(node, old), parts(node, new)) {
            (Some(old), Some(new)) => compare_parts(old, new),
            _ => Difference { modified: FieldSet::leaf(), ..Difference::default() },
        },
    }
}

/// Compares two objects field by field, skipping the fields that do not `count`; of `metadata`, its
/// fields are asked about in turn.
pub(crate) fn compare_fields(
    node: Option<&Node>,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    counts: &impl Fn(&[&str]) -> bool,
    path: &[&str],
) -> Difference {
    let none = Map::new();
    let mut difference = Difference::default();
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        let path = [path, &[name.as_str()]].concat();
        if !counts(&path) {
            continue;
        }
        let (node, _) = field(node, name);
        let (before, after) = (old.get(name), new.get(name));
        let below = if path == ["metadata"] {
            let before = before.and_then(Value::as_object).unwrap_or(&none);
            let after = after.and_then(Value::as_object).unwrap_or(&none);
            compare_fields(node, before, after, counts, &path)
        } else {
            compare(node, before, after)
        };
        difference.put(Element::Field(name.clone()), below);
    }
    difference
}

impl Difference {
    fn put(&mut self, element: Element, below: Self) {
        self.added.put(element.clone(), below.added);
        self.modified.put(element.clone(), below.modified);
        self.removed.put(element, below.removed);
    }
}

/// One place in two values: its schema, and what stands there in the first and in the second.
type Side<'a> = (Option<&'a Node>, Option<&'a Value>, Option<&'a Value>);

fn compare_parts(old: Vec<Part<'_>>, new: Vec<Part<'_>>) -> Difference {
    let mut sides: BTreeMap<Element, Side<'_>> = BTreeMap::new();
    for (element, node, _, value) in old {
        sides.insert(element, (node, Some(value), None));
    }
    for (element, node, _, value) in new {
        sides.entry(element).or_insert((node, None, None)).2 = Some(value);
    }
    let mut difference = Difference::default();
    for (element, (node, old, new)) in sides {
        let is_item = !matches!(element, Element::Field(_));
        let mut change = compare(node, old, new);
        change.added.member |= is_item && old.is_none();
        change.removed.member |= is_item && new.is_none();
        difference.put(element, change);
    }
    difference
}

/// Everything in a value: its leaves, and the maps and lists on the way, but not objects whose
/// fields are declared, which are there as soon as one of their fields is.
pub(crate) fn whole(node: Option<&Node>, value: &Value) -> FieldSet {
    let Some(parts) = parts(node, value) else { return FieldSet::leaf() };
    let mut set =
        FieldSet { member: parts.is_empty() || !is_structure(node), ..FieldSet::default() };
    for (element, node, _, value) in parts {
        let is_item = !matches!(element, Element::Field(_));
        let mut below = whole(node, value);
        below.member |= is_item;
        set.put(element, below);
    }
    set
}

fn is_structure(node: Option<&Node>) -> bool {
    let Some(Shape::Object(fields)) = node.map(|node| &node.shape) else { return false };
    fields.additional.is_none() && fields.iter().next().is_some()
}

/// Merges `config` into an object: its values win, fields it does not name stay.
pub(crate) fn lay_over(
    node: Option<&Node>,
    object: &mut Map<String, Value>,
    config: &Map<String, Value>,
) {
    for (name, value) in config {
        match object.get_mut(name) {
            Some(there) => merge(field(node, name).0, there, value),
            None => drop(object.insert(name.clone(), value.clone())),
        }
    }
}

fn merge(node: Option<&Node>, live: &mut Value, config: &Value) {
    match (grain(node, config), live, config) {
        (Grain::Fields, Value::Object(live), Value::Object(config)) => {
            lay_over(node, live, config);
        }
        (Grain::Set | Grain::Keyed(_), live @ Value::Array(_), Value::Array(_)) => {
            *live = merge_lists(node, live, config);
        }
        (_, live, config) => {
            if live != config {
                live.clone_from(config);
            }
        }
    }
}

/// Items of both stay; those of `config` in its order, the others where they stood between them.
fn merge_lists(node: Option<&Node>, live: &Value, config: &Value) -> Value {
    let (Some(live), Some(config)) = (parts(node, live), parts(node, config)) else {
        return config.clone();
    };
    let known: BTreeMap<&Element, &Value> = live.iter().map(|part| (&part.0, part.3)).collect();
    let wanted: BTreeMap<&Element, ()> = config.iter().map(|part| (&part.0, ())).collect();
    let mut merged = Vec::with_capacity(live.len() + config.len());
    let mut rest = live.iter().peekable();
    for (element, node, _, value) in &config {
        let before_it = known.contains_key(element);
        while let Some((other, _, _, left)) = rest.peek() {
            if other == element || !before_it {
                break;
            }
            if !wanted.contains_key(other) {
                merged.push((*left).clone());
            }
            rest.next();
        }
        if rest.peek().is_some_and(|(other, ..)| other == element) {
            rest.next();
        }
        merged.push(match known.get(element) {
            Some(live) => {
                let mut item = (*live).clone();
                merge(*node, &mut item, value);
                item
            }
            None => (*value).clone(),
        });
    }
    let left = rest.filter(|(element, ..)| !wanted.contains_key(element));
    merged.extend(left.map(|part| part.3.clone()));
    Value::Array(merged)
}

/// Removes the fields that `last` had and `kept` has not: the fields an applier no longer sends and
/// no other party holds.
pub(crate) fn prune(node: Option<&Node>, value: &Value, last: &FieldSet, kept: &FieldSet) -> Value {
    let nothing = FieldSet::default();
    match (grain(node, value), value) {
        (Grain::Fields, Value::Object(fields)) => {
            let survives = |(name, value): (&String, &Value)| {
                let element = Element::Field(name.clone());
                let Some(last) = last.child(&element) else {
                    return Some((name.clone(), value.clone()));
                };
                let holds = kept.child(&element);
                let left = prune_part(field(node, name).0, value, last, holds.unwrap_or(&nothing))?;
                Some((name.clone(), left))
            };
            Value::Object(fields.iter().filter_map(survives).collect())
        }
        (Grain::Set | Grain::Keyed(_), Value::Array(_)) => {
            let survives = |(element, node, _, value): Part<'_>| {
                let Some(last) = last.child(&element) else { return Some(value.clone()) };
                let holds = kept.child(&element)?;
                let mut left = prune(node, value, last, holds);
                if let (Element::Key(keys), Some(left)) = (&element, left.as_object_mut()) {
                    restore(keys, value, left);
                }
                Some(left)
            };
            let parts = parts(node, value).unwrap_or_default();
            Value::Array(parts.into_iter().filter_map(survives).collect())
        }
        _ => value.clone(),
    }
}

/// One field: removed if it was a leaf without a holder, or if only defaults are left in it.
fn prune_part(
    node: Option<&Node>,
    value: &Value,
    last: &FieldSet,
    kept: &FieldSet,
) -> Option<Value> {
    if !kept.is_empty() {
        return Some(prune(node, value, last, kept));
    }
    if last.children.is_empty() || matches!(grain(node, value), Grain::Atom) {
        return None;
    }
    let left = prune(node, value, last, kept);
    (!is_hollow(node, &left)).then_some(left)
}

/// Whether a value without holders is removed with its parent: it consists of defaults only. Fields
/// of a structure count as defaults; items of lists and entries of maps only if they are part of a
/// default.
fn is_hollow(node: Option<&Node>, value: &Value) -> bool {
    let is_default = || node.and_then(|node| node.default.as_ref()) == Some(value);
    match parts(node, value) {
        None => true,
        Some(parts) => {
            is_default()
                || parts
                    .into_iter()
                    .all(|(_, node, declared, value)| declared && is_hollow(node, value))
        }
    }
}

/// The fields that defaulting will add to an object.
pub(crate) fn defaults_missing(node: &Node, object: &Map<String, Value>) -> FieldSet {
    let mut set = FieldSet::default();
    let Shape::Object(fields) = &node.shape else { return set };
    for (name, field) in fields.iter().filter(|(_, field)| field.has_defaults) {
        let below = match (object.get(name), &field.default) {
            (Some(value), _) => defaults_missing_in(field, value),
            (None, Some(default)) => {
                let mut filled = Map::new();
                filled.insert(name.to_owned(), default.clone());
                crate::schema::fill(node, &mut filled);
                filled.get(name).map(|value| whole(Some(field), value)).unwrap_or_default()
            }
            (None, None) => FieldSet::default(),
        };
        set.put(Element::Field(name.to_owned()), below);
    }
    if let Some(more) = fields.additional.as_ref().filter(|more| more.has_defaults) {
        for (name, value) in object.iter().filter(|(name, _)| fields.get(name).is_none()) {
            set.put(Element::Field(name.clone()), defaults_missing_in(more, value));
        }
    }
    set
}

fn defaults_missing_in(node: &Node, value: &Value) -> FieldSet {
    match (grain(Some(node), value), value) {
        (Grain::Fields, Value::Object(object)) => defaults_missing(node, object),
        (Grain::Keyed(_), Value::Array(_)) => {
            let mut set = FieldSet::default();
            for (element, node, _, value) in parts(Some(node), value).unwrap_or_default() {
                let below = node.filter(|node| node.has_defaults);
                let below = below.map(|node| defaults_missing_in(node, value));
                set.put(element, below.unwrap_or_default());
            }
            set
        }
        _ => FieldSet::default(),
    }
}

/// The fields of an object that are as defaulting would make them.
pub(crate) fn defaults_present(node: &Node, object: &Map<String, Value>) -> FieldSet {
    let mut set = FieldSet::default();
    for (element, node, _, value) in parts_of_object(Some(node), object) {
        set.put(element, defaults_present_in(node, value));
    }
    set
}

fn defaults_present_in(node: Option<&Node>, value: &Value) -> FieldSet {
    let Some(known) = node.filter(|node| node.has_defaults) else { return FieldSet::default() };
    if known.default.as_ref() == Some(value) {
        return whole(node, value);
    }
    let mut set = FieldSet::default();
    for (element, node, _, value) in parts(node, value).unwrap_or_default() {
        set.put(element, defaults_present_in(node, value));
    }
    set
}

/// An item that stays keeps its key fields.
fn restore(keys: &[(String, String)], from: &Value, to: &mut Map<String, Value>) {
    for (name, _) in keys {
        if let Some(value) = from.get(name) {
            to.insert(name.clone(), value.clone());
        }
    }
}
