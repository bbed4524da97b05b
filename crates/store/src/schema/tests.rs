use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::meta::{Condition, Quantity};
use crate::typed;

/// A thing with one of everything.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Thing {
    #[serde(default)]
    metadata: ObjectMeta,
    /// The desired state.
    spec: ThingSpec,
    #[serde(default)]
    status: ThingStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ThingSpec {
    size: Quantity,
    #[schemars(range(min = 1, max = 5))]
    replicas: u32,
    #[serde(default = "three")]
    retries: i64,
    #[serde(default)]
    mode: Mode,
    #[schemars(length(min = 2, max = 5), regex(pattern = "^[a-z]+$"))]
    code: Option<String>,
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    zones: Vec<String>,
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    parts: Vec<Part>,
    #[serde(default)]
    limits: BTreeMap<String, Part>,
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    #[schemars(with = "Option<Map<String, Value>>")]
    anything: Option<Value>,
    provisioner: Option<Provisioner>,
    ratio: Option<f64>,
    inner: Option<Box<ThingSpec>>,
}

fn three() -> i64 {
    3
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
enum Mode {
    /// Slow and safe.
    #[default]
    Safe,
    /// Fast.
    Fast,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum Provisioner {
    Filesystem { kind: String },
    Lvm { group: String },
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Part {
    name: String,
    #[serde(default = "three")]
    weight: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct ThingStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

typed!(Thing, group: "test.mainstay.dev", version: "v1", plural: "things", namespaced: true);

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| Schema::of::<Thing>().unwrap());
    &SCHEMA
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn good() -> Value {
    json!({"spec": {"size": "1Gi", "replicas": 3}})
}

fn complaints(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut thing = good();
    change(&mut thing);
    schema().validate(&object(thing)).iter().map(ToString::to_string).collect()
}

#[test]
fn types_become_structural_schemas() {
    let openapi = schema().openapi();
    let spec = &openapi["properties"]["spec"];
    assert_eq!(spec["description"], "The desired state.");
    assert_eq!(spec["required"], json!(["replicas", "size"]));
    let field = |name: &str| &spec["properties"][name];
    assert_eq!(field("replicas")["minimum"], 1);
    assert_eq!(field("replicas")["maximum"], 5);
    assert_eq!(field("mode")["enum"], json!(["Safe", "Fast"]));
    assert_eq!(field("mode")["default"], "Safe");
    assert_eq!(field("retries")["default"], 3);
    assert_eq!(field("zones").get("default"), None);
    assert_eq!(field("code")["pattern"], "^[a-z]+$");
    assert_eq!(field("code").get("nullable"), None);
    assert_eq!(field("size")["x-kubernetes-int-or-string"], true);
    assert_eq!(field("parts")["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(field("anything")["x-kubernetes-preserve-unknown-fields"], true);
    assert!(field("provisioner")["properties"]["lvm"]["properties"]["group"].is_object());
    let within = &field("inner")["properties"]["inner"];
    assert_eq!(within["x-kubernetes-preserve-unknown-fields"], true, "recursion ends");
}

#[test]
fn violations_have_the_messages_of_custom_resources() {
    assert!(complaints(|_| {}).is_empty());
    for (pointer, value, expected) in [
        (
            "size",
            json!("big"),
            "spec.size: Invalid value: \"big\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "size",
            json!(true),
            "spec.size: Invalid value: \"boolean\": spec.size in body must be of type integer,string: \"boolean\"",
        ),
        (
            "replicas",
            json!("3"),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        ),
        (
            "replicas",
            json!(0),
            "spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
        ),
        (
            "replicas",
            json!(9),
            "spec.replicas: Invalid value: 9: spec.replicas in body should be less than or equal to 5",
        ),
        (
            "mode",
            json!("Slow"),
            "spec.mode: Unsupported value: \"Slow\": supported values: \"Safe\", \"Fast\"",
        ),
        (
            "code",
            json!("a"),
            "spec.code: Invalid value: \"a\": spec.code in body should be at least 2 chars long",
        ),
        ("code", json!("abcdef"), "spec.code: Too long: may not be more than 5 bytes"),
        (
            "code",
            json!("AB"),
            "spec.code: Invalid value: \"AB\": spec.code in body should match '^[a-z]+$'",
        ),
        ("zones", json!(["a", "b", "a"]), "spec.zones[2]: Duplicate value: \"a\""),
        (
            "zones",
            json!(["a", null]),
            "spec.zones[1]: Invalid value: \"null\": spec.zones[1] in body must be of type string: \"null\"",
        ),
        (
            "parts",
            json!([{"name": "a"}, {"name": "a"}]),
            "spec.parts[1]: Duplicate value: {\"name\":\"a\"}",
        ),
        ("parts", json!([{}]), "spec.parts[0].name: Required value"),
        (
            "limits",
            json!({"x": 1}),
            "spec.limits.x: Invalid value: \"integer\": spec.limits.x in body must be of type object: \"integer\"",
        ),
    ] {
        let found = complaints(|thing| thing["spec"][pointer] = value);
        assert_eq!(found, [expected]);
    }
    assert_eq!(complaints(|thing| *thing = json!({})), ["spec: Required value"]);
}

#[test]
fn unknown_fields_are_found_with_their_paths_and_dropped() {
    let mut thing = object(json!({
        "spec": {
            "size": 1000, "replicas": 1, "sise": 2, "code": null,
            "parts": [{"name": "a"}, {"name": "b", "wieght": 1}],
            "limits": {"x": {"name": "a", "nmae": "b"}},
            "anything": {"goes": {"here": null}},
            "inner": {"inner": {"also": "here"}},
        },
        "extra": {},
        "metadata": {"labels": {"any": "label"}, "lables": {}},
    }));
    let unknown = schema().prune(&mut thing);
    assert_eq!(
        unknown,
        ["extra", "metadata.lables", "spec.limits.x.nmae", "spec.parts[1].wieght", "spec.sise"]
    );
    assert_eq!(
        Value::Object(thing),
        json!({
            "spec": {
                "size": "1k", "replicas": 1,
                "parts": [{"name": "a"}, {"name": "b"}],
                "limits": {"x": {"name": "a"}},
                "anything": {"goes": {"here": null}},
                "inner": {"inner": {"also": "here"}},
            },
            "metadata": {"labels": {"any": "label"}},
        })
    );
}

#[test]
fn defaults_are_filled_in_wherever_they_are_missing() {
    let mut thing = object(json!({
        "spec": {"size": 1, "replicas": 1, "parts": [{"name": "a"}, {"name": "b", "weight": 1}],
            "limits": {"x": {"name": "a"}}},
    }));
    schema().default(&mut thing);
    assert_eq!(
        Value::Object(thing),
        json!({
            "spec": {
                "size": 1, "replicas": 1, "retries": 3, "mode": "Safe",
                "parts": [{"name": "a", "weight": 3}, {"name": "b", "weight": 1}],
                "limits": {"x": {"name": "a", "weight": 3}},
            },
        })
    );
}

fn any_spec() -> impl Strategy<Value = Value> {
    let word = || prop_oneof![Just(Value::Null), "[a-z]{0,7}".prop_map(Value::from)];
    let number = || prop_oneof![Just(Value::Null), (-1_i64..8).prop_map(Value::from)];
    let part = (word(), number(), word())
        .prop_map(|(name, weight, junk)| json!({"name": name, "weight": weight, "junk": junk}));
    let parts = prop::collection::vec(part.clone(), 0..4).prop_map(Value::from);
    let limits = prop::collection::btree_map("[a-c]", part, 0..3);
    (
        (prop_oneof![word(), number()], number(), number()),
        prop_oneof![word(), Just(json!("Fast"))],
        word(),
        prop_oneof![parts, word()],
        limits,
        word(),
    )
        .prop_map(|((size, replicas, retries), mode, code, parts, limits, junk)| {
            json!({"spec": {
                "size": size, "replicas": replicas, "retries": retries, "mode": mode,
                "code": code, "parts": parts, "limits": limits, "junk": junk,
                "anything": {"x": junk},
            }})
        })
}

proptest! {
    #[test]
    fn pruning_twice_is_pruning_once(thing in any_spec()) {
        let mut once = object(thing);
        schema().prune(&mut once);
        let mut twice = once.clone();
        prop_assert!(schema().prune(&mut twice).is_empty());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn defaulting_twice_is_defaulting_once(thing in any_spec()) {
        let mut once = object(thing);
        schema().default(&mut once);
        let mut twice = once.clone();
        schema().default(&mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn valid_objects_stay_valid_after_defaulting_and_decode(thing in any_spec()) {
        let mut thing = object(thing);
        schema().prune(&mut thing);
        if schema().validate(&thing).is_empty() {
            schema().default(&mut thing);
            prop_assert_eq!(schema().validate(&thing), vec![]);
            let decoded = Thing::deserialize(&thing);
            prop_assert!(decoded.is_ok(), "{:?}", decoded);
        }
    }

    #[test]
    fn decoding_agrees_with_a_plain_parser(thing in any_spec()) {
        let decoded = decode(thing.to_string().as_bytes()).unwrap();
        prop_assert_eq!(Value::Object(decoded.object), thing);
        prop_assert!(decoded.duplicates.is_empty());
    }
}
