mod defaults;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::meta::ObjectMeta;
use crate::typed;

/// A kind with every sort of list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Widget {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Spec {
    size: Option<i64>,
    color: Option<String>,
    inner: Option<Inner>,
    labels: BTreeMap<String, String>,
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    tags: Vec<String>,
    args: Vec<String>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct Inner {
    a: Option<i64>,
    b: Option<i64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct Port {
    name: String,
    number: Option<i64>,
    note: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct Status {
    phase: Option<String>,
}

typed!(Widget, group: "test.mainstay.dev", version: "v1", plural: "widgets", namespaced: true);

fn kind() -> &'static Kind {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::of::<Widget>().status().build());
    &KIND
}

fn by(manager: &str) -> Writer<'_> {
    Writer { manager, subresource: None, now: "2026-01-01T00:00:00Z".parse().unwrap() }
}

fn widget(spec: Value) -> Object {
    let Value::Object(object) = json!({
        "apiVersion": "test.mainstay.dev/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": "default"},
        "spec": spec,
    }) else {
        unreachable!()
    };
    object
}

fn applied(live: Option<&Object>, manager: &str, spec: Value) -> Object {
    apply(kind(), live, &widget(spec), by(manager), false).unwrap()
}

fn forced(live: &Object, manager: &str, spec: Value) -> Object {
    apply(kind(), Some(live), &widget(spec), by(manager), true).unwrap()
}

fn updated(live: Option<&Object>, manager: &str, spec: Value) -> Object {
    let mut new = live.cloned().unwrap_or_else(|| widget(json!({})));
    new.insert("spec".into(), spec);
    track(kind(), live, &mut new, &Filled::default(), by(manager));
    new
}

fn refusal(live: &Object, manager: &str, spec: Value) -> Error {
    apply(kind(), Some(live), &widget(spec), by(manager), false).unwrap_err()
}

fn holds(object: &Object, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let mine = entries.iter().find(|entry| entry["manager"] == manager);
    mine.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

#[test]
fn an_applier_holds_exactly_what_it_sent() {
    let object = applied(
        None,
        "a",
        json!({"size": 1, "inner": {"a": 1}, "labels": {"x": "y"}, "tags": ["t"], "args": ["-v"],
               "ports": [{"name": "http", "number": 80}]}),
    );
    assert_eq!(
        holds(&object, "a"),
        json!({"f:spec": {
            "f:size": {},
            "f:inner": {"f:a": {}},
            "f:labels": {"f:x": {}},
            "f:tags": {"v:\"t\"": {}},
            "f:args": {},
            "f:ports": {"k:{\"name\":\"http\"}": {".": {}, "f:name": {}, "f:number": {}}},
        }})
    );
}

#[test]
fn fields_no_longer_sent_are_removed_unless_another_party_holds_them() {
    let cases = [
        // what a applied, then b applied, then a applies; what is left
        (json!({"size": 1, "color": "red"}), json!({}), json!({"size": 1}), json!({"size": 1})),
        (json!({"color": "red"}), json!({"color": "red"}), json!({}), json!({"color": "red"})),
        (json!({"inner": {"a": 1}}), json!({}), json!({}), json!({})),
        (
            json!({"inner": {"a": 1}}),
            json!({"inner": {"b": 2}}),
            json!({}),
            json!({"inner": {"b": 2}}),
        ),
        (
            json!({"labels": {"x": "1", "y": "2"}}),
            json!({}),
            json!({"labels": {"y": "2"}}),
            json!({"labels": {"y": "2"}}),
        ),
        (
            json!({"tags": ["a", "b"]}),
            json!({"tags": ["b"]}),
            json!({"tags": []}),
            json!({"tags": ["b"]}),
        ),
        (
            json!({"ports": [{"name": "http", "number": 80}, {"name": "ssh", "number": 22}]}),
            json!({"ports": [{"name": "http", "note": "mine"}]}),
            json!({"ports": []}),
            json!({"ports": [{"name": "http", "note": "mine"}]}),
        ),
    ];
    for (first, second, third, left) in cases {
        let object = applied(None, "a", first.clone());
        let object = applied(Some(&object), "b", second.clone());
        let object = applied(Some(&object), "a", third.clone());
        assert_eq!(object["spec"], left, "{first} then {second} then {third}");
    }
}

#[test]
fn another_value_for_a_held_field_is_a_conflict_that_names_it() {
    let object = applied(None, "a", json!({"size": 1, "ports": [{"name": "http", "number": 80}]}));
    let one = refusal(&object, "b", json!({"size": 2}));
    assert_eq!(one.reason, Reason::Conflict);
    assert_eq!(one.message, "Apply failed with 1 conflict: conflict with \"a\": .spec.size");
    assert_eq!(one.details.causes[0].field, ".spec.size");
    let two =
        refusal(&object, "b", json!({"size": 2, "ports": [{"name": "http", "number": 8080}]}));
    assert_eq!(
        two.message,
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.ports[name=\"http\"].number\n- .spec.size"
    );
    let same = applied(Some(&object), "b", json!({"size": 1}));
    assert_eq!(holds(&same, "b"), json!({"f:spec": {"f:size": {}}}), "the same value is shared");
}

#[test]
fn an_updater_is_named_with_its_version_and_time() {
    let object = updated(None, "kubectl-edit", json!({"size": 1}));
    let error = refusal(&object, "b", json!({"size": 2}));
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using test.mainstay.dev/v1 at 2026-01-01T00:00:00Z: .spec.size"
    );
}

#[test]
fn force_takes_the_field_over() {
    let object = applied(None, "a", json!({"size": 1, "color": "red"}));
    let object = forced(&object, "b", json!({"size": 2}));
    assert_eq!(object["spec"], json!({"size": 2, "color": "red"}));
    assert_eq!(holds(&object, "a"), json!({"f:spec": {"f:color": {}}}));
    assert_eq!(holds(&object, "b"), json!({"f:spec": {"f:size": {}}}));
}

#[test]
fn an_update_takes_the_fields_it_changes_without_conflicts() {
    let object = applied(None, "a", json!({"size": 1, "color": "red"}));
    let object = updated(Some(&object), "editor", json!({"size": 5, "color": "red"}));
    assert_eq!(holds(&object, "a"), json!({"f:spec": {"f:color": {}}}));
    assert_eq!(holds(&object, "editor"), json!({"f:spec": {"f:size": {}}}));
    let gone = updated(Some(&object), "editor", json!({"color": "red"}));
    assert_eq!(holds(&gone, "editor"), Value::Null, "a removed field has no holder");
}

#[test]
fn fields_without_a_recorded_holder_are_not_taken_silently() {
    let live = widget(json!({"size": 1}));
    let error = refusal(&live, "a", json!({"size": 2}));
    assert!(error.message.contains("\"before-first-apply\""), "{}", error.message);
    let object = applied(Some(&live), "a", json!({"color": "red"}));
    assert_eq!(object["spec"], json!({"size": 1, "color": "red"}));
}

#[test]
fn kubectl_takes_over_fields_it_applied_client_side() {
    let mut live = updated(None, "kubectl-client-side-apply", json!({"size": 1, "color": "red"}));
    let last = serde_json::to_string(&widget(json!({"size": 1, "color": "red"}))).unwrap();
    live["metadata"]["annotations"] = json!({LAST_APPLIED: last});
    let object = applied(Some(&live), "kubectl", json!({"size": 2, "color": "red"}));
    assert_eq!(object["spec"], json!({"size": 2, "color": "red"}));
    assert_eq!(refusal(&live, "other", json!({"size": 2})).reason, Reason::Conflict);

    // Fields that another writer changed since are not overwritten by kubectl.
    let edited = updated(Some(&live), "kubectl-edit", json!({"size": 7, "color": "red"}));
    assert_eq!(refusal(&edited, "kubectl", json!({"size": 2})).reason, Reason::Conflict);
}

#[test]
fn status_and_spec_have_separate_holders() {
    let object = applied(None, "a", json!({"size": 1}));
    let mut config = widget(json!({"size": 99}));
    config.insert("status".into(), json!({"phase": "Ready"}));
    let writer = Writer { subresource: Some(Subresource::Status), ..by("a") };
    let object = apply(kind(), Some(&object), &config, writer, false).unwrap();
    assert_eq!(object["spec"], json!({"size": 1}), "a status write leaves the rest alone");
    assert_eq!(object["status"], json!({"phase": "Ready"}));
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().any(|entry| entry["subresource"] == "status"));
    let again = applied(Some(&object), "a", json!({"size": 1}));
    assert_eq!(again["status"], json!({"phase": "Ready"}), "and the other way round");
}

#[test]
fn a_write_may_state_holders_and_an_empty_entry_clears_them() {
    let object = applied(None, "a", json!({"size": 1}));
    let mut handed = object.clone();
    handed["metadata"]["managedFields"][0]["manager"] = json!("b");
    track(kind(), Some(&object), &mut handed, &Filled::default(), by("kubectl"));
    assert_eq!(holds(&handed, "b"), json!({"f:spec": {"f:size": {}}}));
    assert_eq!(holds(&handed, "a"), Value::Null);
    let mut cleared = object.clone();
    cleared["metadata"]["managedFields"] = json!([{}]);
    track(kind(), Some(&object), &mut cleared, &Filled::default(), by("kubectl"));
    assert!(cleared["metadata"].get("managedFields").is_none());
}

#[test]
fn lists_merge_in_the_order_of_the_configuration() {
    let cases = [
        (json!(["a", "b"]), json!(["c"]), json!(["c", "a", "b"])),
        (json!(["a", "b", "c"]), json!(["c", "a"]), json!(["b", "c", "a"])),
        (json!(["a", "b"]), json!(["a", "x", "b"]), json!(["a", "x", "b"])),
        (json!([]), json!(["b", "a"]), json!(["b", "a"])),
    ];
    for (live, config, merged) in cases {
        let live = widget(json!({"tags": live}));
        let object = applied(Some(&live), "a", json!({"tags": config}));
        assert_eq!(object["spec"]["tags"], merged);
    }
}

fn specs() -> impl Strategy<Value = Value> {
    let ports = prop::collection::btree_map("[xyz]", (0..3i64, prop::option::of("[a-c]")), 0..3);
    let tags = prop::collection::btree_set("[a-d]", 0..3);
    let labels = prop::collection::btree_map("[kl]", "[vw]", 0..3);
    (prop::option::of(0..3i64), prop::option::of(0..3i64), labels, tags, ports).prop_map(
        |(size, a, labels, tags, ports)| {
            let mut spec = Map::new();
            if let Some(size) = size {
                spec.insert("size".into(), json!(size));
            }
            if let Some(a) = a {
                spec.insert("inner".into(), json!({"a": a}));
            }
            if !labels.is_empty() {
                spec.insert("labels".into(), json!(labels));
            }
            if !tags.is_empty() {
                spec.insert("tags".into(), json!(tags));
            }
            if !ports.is_empty() {
                let ports: Vec<_> = ports
                    .into_iter()
                    .map(|(name, (number, note))| {
                        let mut port = Map::new();
                        port.insert("name".into(), json!(name));
                        port.insert("number".into(), json!(number));
                        if let Some(note) = note {
                            port.insert("note".into(), json!(note));
                        }
                        Value::Object(port)
                    })
                    .collect();
                spec.insert("ports".into(), json!(ports));
            }
            Value::Object(spec)
        },
    )
}

/// Whether everything in `config` is so in `object`.
fn says(object: &Value, config: &Value) -> bool {
    match (object, config) {
        (Value::Object(object), Value::Object(config)) => config
            .iter()
            .all(|(name, wanted)| object.get(name).is_some_and(|value| says(value, wanted))),
        (Value::Array(items), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| items.iter().any(|item| says(item, wanted)))
        }
        (value, wanted) => value == wanted,
    }
}

/// The fields of one configuration with the number of another.
fn sized_as(fields: &Value, other: &Value) -> Value {
    let mut spec = fields.clone();
    if let (Some(size), Some(number)) = (spec.get_mut("size"), other.get("size")) {
        size.clone_from(number);
    }
    spec
}

/// Everything in an object that can be held.
fn all_of(object: &Object) -> Value {
    Value::Object(bare(object, |_| true))
}

proptest! {
    /// The short way, where it can be gone, leads to where the long one does.
    #[test]
    fn the_fast_path_of_an_unchanged_apply_equals_the_full_apply(
        history in prop::collection::vec((0..4usize, any::<bool>(), specs()), 1..8)
    ) {
        let managers = ["a", "b", "c", "editor"];
        let mut live = Object::new();
        let mut last = json!({});
        for (who, again, spec) in history {
            // Often with the fields of before, perhaps with other values.
            let spec = if again { sized_as(&last, &spec) } else { spec };
            let (manager, config) = (managers[who], widget(spec.clone()));
            let wanted = bare(&config, |_| true);
            let short = steady(kind(), &live, &config, &wanted, by(manager));
            let long = try_apply(kind(), &live, &config, &wanted, by(manager), false);
            match (short, long) {
                (Some(short), Ok(long)) => prop_assert_eq!(short, long),
                (Some(short), Err(_)) => prop_assert!(false, "a conflict is missed: {short:?}"),
                (None, _) => {}
            }
            live = if manager == "editor" {
                updated(Some(&live).filter(|live| !live.is_empty()), manager, spec.clone())
            } else {
                apply(kind(), Some(&live), &config, by(manager), true).unwrap()
            };
            last = spec;
        }
    }

    /// After any history of forced applies and updates: what was applied last is in the object,
    /// applying it again changes nothing, every field has a holder, and every held field exists.
    #[test]
    fn applied_values_are_in_the_object_and_reapplying_changes_nothing(
        history in prop::collection::vec((0..4usize, specs()), 1..8)
    ) {
        let managers = ["a", "b", "c", "editor"];
        let mut live: Option<Object> = None;
        for (who, spec) in history {
            let manager = managers[who];
            let next = if manager == "editor" {
                updated(live.as_ref(), manager, spec.clone())
            } else {
                apply(kind(), live.as_ref(), &widget(spec.clone()), by(manager), true).unwrap()
            };
            prop_assert!(says(&next["spec"], &spec), "{spec} is not in {:?}", next["spec"]);
            if manager != "editor" {
                let again = applied(Some(&next), manager, spec);
                prop_assert_eq!(&again, &next, "applying it again changed something");
            }
            let entries = next["metadata"].get("managedFields");
            let entries = entries.and_then(Value::as_array).cloned().unwrap_or_default();
            let held = Managers::parse(&entries).unwrap().all();
            let there = walk::whole(Some(kind().schema.root()), &all_of(&next));
            // An object that was once applied empty is still held, though it has fields now.
            let structures = [".spec", ".spec.inner"];
            let stale = held.clone().without(&there).paths();
            let stale: Vec<_> =
                stale.iter().filter(|path| !structures.contains(&path.as_str())).collect();
            prop_assert!(stale.is_empty(), "held but not there: {stale:?}");
            let leaves = walk::fields_of(Some(kind().schema.root()), &all_of(&next));
            for path in leaves.without(&held).paths() {
                // An object without holders is no longer kept track of.
                prop_assert!(held.is_empty() || path != ".spec.size", "{path} has no holder");
            }
            live = Some(next);
        }
    }

    /// A set survives being written and read.
    #[test]
    fn fields_are_read_as_they_are_written(spec in specs()) {
        let set = walk::whole(Some(kind().schema.root()), &all_of(&widget(spec)));
        prop_assert_eq!(FieldSet::parse(&set.encode()).unwrap(), FieldSet { member: false, ..set });
    }
}
