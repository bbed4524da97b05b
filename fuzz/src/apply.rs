//! Server-side apply: a history of several parties who apply, insist and update.
//!
//! After every apply what was sent is in the object, sending it again changes nothing, a conflict
//! can always be forced, and nobody who did not insist changed what another party applied. In the
//! end each party lets go, and nothing of it is left.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_server::laws::Draw;
use mainstay_store::apply::{Filled, Writer, apply, track};
use mainstay_store::registry::Kind;
use mainstay_store::strategy::{Strictness, Subresource, prepare_apply};
use serde_json::{Map, Value, json};

use crate::kind;

type Object = Map<String, Value>;

const PARTIES: [&str; 3] = ["ada", "bob", "kubectl"];
const NAMES: [&str; 4] = ["a", "b", "c", "example.com/d"];

fn texts(draw: &mut Draw<'_>) -> Value {
    (0..draw.below(3))
        .map(|_| ((*draw.pick(&NAMES)).to_owned(), Value::from(*draw.pick(&["v", "w", ""]))))
        .collect::<Object>()
        .into()
}

/// A list in which every item has another key.
fn keyed(draw: &mut Draw<'_>, key: &str, more: &str) -> Value {
    let mut items: BTreeMap<&str, Value> = BTreeMap::new();
    for _ in 0..draw.below(4) {
        let name = *draw.pick(&["x", "y", "z"]);
        let mut item = json!({key: name});
        if draw.below(3) > 0 {
            item[more] = (*draw.pick(&["1", "2"])).into();
        }
        items.insert(name, item);
    }
    let mut items: Vec<Value> = items.into_values().collect();
    if draw.below(2) == 1 {
        items.reverse();
    }
    items.into()
}

/// A configuration that a party applies.
fn config(draw: &mut Draw<'_>, kind: &Kind) -> Object {
    let mut metadata = json!({"name": "n"});
    if kind.namespaced {
        metadata["namespace"] = "default".into();
    }
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.kind});
    if draw.below(2) == 1 {
        metadata["labels"] = texts(draw);
    }
    if draw.below(3) == 1 {
        metadata["annotations"] = texts(draw);
    }
    if draw.below(3) == 1 {
        let all = ["example.com/a", "example.com/b", "example.com/c"];
        let some: Vec<_> = all.into_iter().filter(|_| draw.below(2) == 1).collect();
        metadata["finalizers"] = json!(some);
    }
    object["metadata"] = metadata;
    match kind.plural {
        "configmaps" => {
            if draw.below(4) > 0 {
                object["data"] = texts(draw);
            }
            if draw.below(4) == 1 {
                object["immutable"] = false.into();
            }
        }
        "nodes" => {
            if draw.below(2) == 1 {
                object["spec"]["unschedulable"] = (draw.below(2) == 1).into();
            }
            if draw.below(2) == 1 {
                object["spec"]["taints"] = keyed(draw, "key", "effect");
            }
            if draw.below(2) == 1 {
                object["status"]["conditions"] = keyed(draw, "type", "reason");
            }
            if draw.below(2) == 1 {
                object["status"]["capacity"] = json!({"cpu": draw.below(3).to_string()});
            }
        }
        _ => {}
    }
    let Value::Object(object) = object else { return Object::new() };
    object
}

/// Whether everything in `config` is so in `object`. An empty list has no owner, and is removed
/// when others take their items out of it.
fn says(object: &Value, config: &Value) -> bool {
    match (object, config) {
        (Value::Object(object), Value::Object(config)) => {
            config.iter().all(|(name, wanted)| match object.get(name) {
                Some(value) => says(value, wanted),
                None => is_hollow(wanted),
            })
        }
        (Value::Array(items), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| items.iter().any(|item| says(item, wanted)))
        }
        (value, wanted) => value == wanted,
    }
}

/// Whether there is nothing in a value but empty lists.
fn is_hollow(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => !fields.is_empty() && fields.values().all(is_hollow),
        _ => false,
    }
}

/// The part of a configuration that a write touches.
fn part(kind: &Kind, config: &Object, subresource: Option<Subresource>) -> Value {
    let mut part = config.clone();
    match subresource {
        None if kind.has_status => drop(part.remove("status")),
        None => {}
        Some(_) => part.retain(|name, _| name == "status"),
    }
    Value::Object(part)
}

fn entries<'a>(object: &'a Object, manager: &str, applies: bool) -> Vec<&'a Value> {
    let all = object.get("metadata").and_then(|metadata| metadata.get("managedFields"));
    let all = all.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let operation = if applies { "Apply" } else { "Update" };
    let of = |entry: &&Value| entry["manager"] == manager && entry["operation"] == operation;
    all.iter().filter(of).collect()
}

/// Histories of applies and updates.
pub fn apply_merge(data: &[u8]) {
    let mut draw = Draw::new(data);
    let kind = kind(["configmaps", "nodes"][draw.below(2)]);
    let key = kind.key(kind.namespaced.then_some("default"), "n");
    let now = Timestamp::UNIX_EPOCH;
    let mut live: Option<Object> = None;
    // The last configuration of each party, while no other party could have removed it.
    let mut stands: BTreeMap<(&str, bool), Value> = BTreeMap::new();
    for _ in 0..8 {
        if draw.is_over() {
            break;
        }
        let manager = *draw.pick(&PARTIES);
        let status = live.is_some() && kind.has_status && draw.below(3) == 1;
        let subresource = status.then_some(Subresource::Status);
        let writer = Writer { manager, subresource, now };
        let mut config = config(&mut draw, kind);
        prepare_apply(kind, &key, &mut config, Strictness::default()).expect("it is of this kind");
        let wanted = part(kind, &config, subresource);
        let next = match draw.below(4) {
            0 => {
                let mut next = live.clone().unwrap_or_else(|| config.clone());
                if let Value::Object(wanted) = wanted {
                    next.extend(wanted);
                }
                track(kind, live.as_ref(), &mut next, &Filled::default(), writer);
                stands.clear();
                next
            }
            1 => {
                let forced = apply(kind, live.as_ref(), &config, writer, true);
                let forced = forced.expect("who insists meets no conflict");
                assert!(
                    says(&Value::Object(forced.clone()), &wanted),
                    "{wanted} not in {forced:?}"
                );
                stands.clear();
                stands.insert((manager, status), wanted);
                forced
            }
            _ => match apply(kind, live.as_ref(), &config, writer, false) {
                Err(conflict) => {
                    assert_eq!(conflict.reason.code(), 409);
                    assert!(!conflict.details.causes.is_empty(), "a conflict names its fields");
                    continue;
                }
                Ok(next) => {
                    stands.insert((manager, status), wanted);
                    for (party, wanted) in &stands {
                        // kubectl may take over what it applied from the client's side.
                        let there = says(&Value::Object(next.clone()), wanted);
                        assert!(there, "{party:?} applied {wanted}, but there is {next:?}");
                    }
                    next
                }
            },
        };
        if stands.contains_key(&(manager, status)) {
            let again = apply(kind, Some(&next), &config, writer, false);
            assert_eq!(again.expect("no conflict with oneself"), next, "twice is once");
        }
        live = Some(next);
    }
    let Some(mut object) = live else { return };
    for manager in PARTIES {
        for subresource in [None, Some(Subresource::Status)] {
            let mut nothing = Object::new();
            prepare_apply(kind, &key, &mut nothing, Strictness::default()).expect("an empty one");
            let writer = Writer { manager, subresource, now };
            object = apply(kind, Some(&object), &nothing, writer, false).expect("letting go");
        }
        assert_eq!(entries(&object, manager, true), Vec::<&Value>::new(), "{manager} let go");
    }
}
