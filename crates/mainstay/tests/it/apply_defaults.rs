//! Server-side apply and defaults, on every kind there is: a field that defaulting filled in goes
//! with its parent.

use std::process::Stdio;

use mainstay_store::apply::{Writer, apply};
use mainstay_store::registry::{Kind, Registry, builtin};
use mainstay_store::schema::{Identity, Node, Shape};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::kubectl::kubectl_minor;
use crate::process::{MAINSTAY, TestServer, cannot_test, folder, text_of};

type Object = Map<String, Value>;

fn registry() -> Registry {
    let kinds = builtin()
        .into_iter()
        .chain(mainstay_volumes::kinds())
        .chain(mainstay_disks::kinds())
        .chain(mainstay_sessions::kinds());
    Registry::new(kinds).unwrap()
}

/// A value with everything its schema knows; `n` tells values of the same shape apart.
fn sample(node: &Node, n: usize) -> Value {
    if let Some(value) = node.allowed.get(n % node.allowed.len().max(1)) {
        return value.clone();
    }
    match &node.shape {
        Shape::Any => json!({"any": n}),
        Shape::Boolean => json!(n.is_multiple_of(2)),
        Shape::Integer(_) | Shape::Number(_) => json!(n),
        Shape::String(_) | Shape::IntOrString { .. } => json!(format!("{n}")),
        Shape::List(list) => {
            let (one, two) = (sample(&list.items, 2 * n + 1), sample(&list.items, 2 * n + 2));
            if one == two { json!([one]) } else { json!([one, two]) }
        }
        Shape::Object(fields) => {
            let mut object = Object::new();
            for (name, field) in fields.iter() {
                object.insert(name.to_owned(), sample(field, n));
            }
            for (at, more) in fields.additional.iter().cycle().take(2).enumerate() {
                object.insert(format!("key{at}"), sample(more, 2 * n + at));
            }
            Value::Object(object)
        }
    }
}

/// The largest configuration of a kind; it need not be valid, only of the right shape.
fn everything(kind: &Kind) -> Value {
    let mut object = sample(kind.schema.root(), 1);
    object["apiVersion"] = json!(kind.api_version());
    object["kind"] = json!(kind.kind);
    object["metadata"] =
        json!({"name": "x", "labels": {"a": "1", "b": "2"}, "finalizers": ["a.b/c", "a.b/d"]});
    if kind.has_status
        && let Value::Object(object) = &mut object
    {
        object.remove("status");
    }
    object
}

/// Applies a configuration as the only manager, and fills in what the schema says.
fn applied(kind: &Kind, live: Option<&Object>, config: &Value) -> Object {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let writer = Writer { manager: "a", subresource: None, now };
    let config = config.as_object().unwrap();
    let mut object = apply(kind, live, config, writer, false).unwrap();
    kind.schema.default(&mut object);
    object
}

/// Every configuration with one part left out, and the name of that part. The keys of items
/// stay.
fn smaller(node: Option<&Node>, value: &Value, keys: &[String]) -> Vec<(Value, String)> {
    let mut found = Vec::new();
    match (node.map(|node| &node.shape), value) {
        (Some(Shape::Object(declared)), Value::Object(fields)) => {
            for (name, value) in fields.iter().filter(|(name, _)| !keys.contains(name)) {
                let mut without = fields.clone();
                without.remove(name);
                found.push((Value::Object(without), format!(".{name}")));
                let below = declared.get(name).or(declared.additional.as_ref());
                for (less, what) in smaller(below.map(|node| &**node), value, &[]) {
                    let mut with = fields.clone();
                    with.insert(name.clone(), less);
                    found.push((Value::Object(with), format!(".{name}{what}")));
                }
            }
        }
        (Some(Shape::List(list)), Value::Array(items)) if items.len() > 1 => {
            let keys = match &list.identity {
                Identity::Map(keys) => keys.as_slice(),
                Identity::Atomic | Identity::Set => &[],
            };
            for (at, value) in items.iter().enumerate() {
                let mut without = items.clone();
                without.remove(at);
                found.push((Value::Array(without), format!("[{at}]")));
                for (less, what) in smaller(Some(&list.items), value, keys) {
                    let mut with = items.clone();
                    with[at] = less;
                    found.push((Value::Array(with), format!("[{at}]{what}")));
                }
            }
        }
        _ => {}
    }
    found
}

fn without_identity(mut config: Value) -> Value {
    let object = config.as_object_mut().unwrap();
    object.retain(|name, _| name != "apiVersion" && name != "kind");
    config
}

#[test]
fn fields_left_out_of_an_applied_object_are_removed_on_every_kind() {
    for kind in registry().iter() {
        let first = everything(kind);
        let live = applied(kind, None, &first);
        let parts = smaller(Some(kind.schema.root()), &without_identity(first), &[]);
        assert!(parts.len() > 3, "{kind:?}: {parts:?}");
        for (second, what) in parts {
            if second["metadata"].get("name").is_none() {
                continue;
            }
            let alone = applied(kind, None, &second);
            let mut again = applied(kind, Some(&live), &second);
            again.retain(|name, _| {
                alone.contains_key(name) || (name != "apiVersion" && name != "kind")
            });
            assert_eq!(again, alone, "{}: without {what}", kind.kind);
        }
    }
}

/// Leaves out parts of a value as the bits of `choice` say.
fn thinned(node: Option<&Node>, value: &Value, keys: &[String], choice: &mut u64) -> Value {
    let mut stays = || {
        *choice =
            choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *choice >> 62 != 0
    };
    match (node.map(|node| &node.shape), value) {
        (Some(Shape::Object(declared)), Value::Object(fields)) => {
            let mut left = Object::new();
            for (name, value) in fields {
                if keys.contains(name) || stays() {
                    left.insert(name.clone(), value.clone());
                }
            }
            for (name, value) in &mut left {
                let below = declared.get(name).or(declared.additional.as_ref());
                *value = thinned(below.map(|node| &**node), value, &[], choice);
            }
            // An empty list and none at all are the same.
            left.retain(|_, value| value.as_array().is_none_or(|items| !items.is_empty()));
            Value::Object(left)
        }
        (Some(Shape::List(list)), Value::Array(items)) => {
            let keys = match &list.identity {
                Identity::Map(keys) => keys.as_slice(),
                Identity::Atomic | Identity::Set => &[],
            };
            let items: Vec<Value> = items.iter().filter(|_| stays()).cloned().collect();
            items.iter().map(|item| thinned(Some(&list.items), item, keys, choice)).collect()
        }
        _ => value.clone(),
    }
}

proptest! {
    /// With one manager, the object is what was applied last, whatever was applied before.
    #[test]
    fn the_last_configuration_decides(at in any::<prop::sample::Index>(), mut seed in any::<u64>()) {
        let registry = registry();
        let kinds: Vec<_> = registry.iter().collect();
        let kind = kinds[at.index(kinds.len())];
        let full = everything(kind);
        let mut draw = || {
            let mut config = thinned(Some(kind.schema.root()), &full, &[], &mut seed);
            config["metadata"] = full["metadata"].clone();
            config["apiVersion"] = full["apiVersion"].clone();
            config["kind"] = full["kind"].clone();
            config
        };
        let (first, second) = (draw(), draw());
        let live = applied(kind, None, &first);
        let alone = applied(kind, None, &second);
        prop_assert_eq!(applied(kind, Some(&live), &second), alone, "{} then {}", first, second);
    }
}

/// An application whose readiness has a default in it, and the same without readiness.
fn manifests() -> [String; 2] {
    let application = |readiness: Value| {
        let mut object = json!({
            "apiVersion": format!("{}/v1", mainstay_sessions::api::GROUP),
            "kind": "Application", "metadata": {"name": "game"},
            "spec": {"command": ["/bin/true"], "ports": [{"name": "play"}],
                     "scalingPolicy": {"maximumInstance": 1,
                         "idleSessionNumThreshold": {"low": 0, "high": 1}}},
        });
        if !readiness.is_null() {
            object["spec"]["readiness"] = readiness;
        }
        object.to_string()
    };
    [application(json!({"port": "play"})), application(Value::Null)]
}

#[test]
fn a_readiness_that_is_no_longer_applied_is_gone() {
    let server = TestServer::start();
    let folder = folder();
    let file = folder.path().join("game.json");
    let read = || {
        let output = server.mainstay(&["get", "applications", "game", "-o", "json"]);
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", text_of(&output)))
    };
    let mut clients = vec![(MAINSTAY, vec!["apply", "-f"])];
    match kubectl_minor() {
        Some(_) => clients.push(("kubectl", vec!["apply", "--server-side", "-f"])),
        None => cannot_test("kubectl apply --server-side: there is no kubectl"),
    }
    for (client, arguments) in clients {
        for (manifest, there) in manifests().into_iter().zip([true, false]) {
            std::fs::write(&file, manifest).unwrap();
            let mut command = server.client(client);
            let output = command.args(&arguments).arg(&file).stdin(Stdio::null()).output().unwrap();
            assert!(output.status.success(), "{client}: {}", text_of(&output));
            let object = read();
            let timeout = &object["spec"]["readiness"]["timeoutSeconds"];
            assert_eq!(timeout.is_number(), there, "{client}: {object}");
        }
        server.mainstay(&["delete", "application", "game"]);
    }
}
