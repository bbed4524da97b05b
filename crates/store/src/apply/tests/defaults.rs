//! Fields that defaulting filled in are held by no party and go with their parent.

use super::*;
use crate::object::Key;
use crate::strategy::{Stamp, Strictness, prepare_apply, prepare_create, prepare_update};

/// A kind with defaults in every place where one can stand.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Gadget {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: GadgetSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct GadgetSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    doors: Vec<Door>,
    steps: Vec<Door>,
    rooms: BTreeMap<String, Probe>,
}

/// No field of it is required, so that a field left behind would be accepted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Probe {
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<i64>,
    #[serde(default = "thirty")]
    timeout: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Retry {
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<i64>,
    #[serde(default = "thirty")]
    pause: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Door {
    name: String,
    #[serde(default = "thirty")]
    number: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
}

fn thirty() -> i64 {
    30
}

typed!(Gadget, group: "test.mainstay.dev", version: "v1", plural: "gadgets", namespaced: true);

fn kind() -> &'static Kind {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::of::<Gadget>().build());
    &KIND
}

fn gadget(spec: &Value) -> Object {
    let Value::Object(object) = json!({"metadata": {"name": "g"}, "spec": spec}) else {
        unreachable!()
    };
    object
}

fn key() -> Key {
    kind().key(Some("default"), "g")
}

/// Applies as the store does: the configuration is pruned, merged, defaulted and validated.
fn apply_whole(live: Option<&Object>, manager: &str, spec: &Value, force: bool) -> Object {
    let mut config = gadget(spec);
    prepare_apply(kind(), &key(), &mut config, Strictness::default()).unwrap();
    let object = apply(kind(), live, &config, by(manager), force).unwrap();
    store(live, object).0
}

/// Updates as the store does.
fn update_whole(live: Option<&Object>, manager: &str, spec: &Value) -> Object {
    let mut object = live.cloned().unwrap_or_else(|| gadget(&json!({})));
    object.insert("spec".to_owned(), spec.clone());
    let (mut object, filled) = store(live, object);
    track(kind(), live, &mut object, &filled, by(manager));
    object
}

fn store(live: Option<&Object>, object: Object) -> (Object, Filled) {
    let stamp = Stamp { now: by("").now, uid: "1".into(), name_suffix: String::new() };
    let Some(live) = live else {
        let made = prepare_create(kind(), Some("default"), object, &stamp, Strictness::default());
        let made = made.unwrap();
        return (made.object, made.filled);
    };
    let next = prepare_update(kind(), &key(), live, object, None, Strictness::default()).unwrap();
    let object = match next.outcome {
        crate::strategy::Outcome::Write(object) => object,
        _ => live.clone(),
    };
    (object, next.filled)
}

fn spec_of(object: &Object) -> Value {
    object.get("spec").cloned().unwrap_or_else(|| json!({}))
}

#[test]
fn a_default_is_removed_with_its_parent() {
    let cases = [
        json!({"probe": {"port": 1}}),
        json!({"probe": {"retry": {"times": 1}}}),
        json!({"probe": {"port": 1, "retry": {"times": 1}}}),
        json!({"doors": [{"name": "a"}, {"name": "b", "probe": {"port": 1}}]}),
        json!({"steps": [{"name": "a", "probe": {"port": 1}}]}),
        json!({"rooms": {"x": {"port": 1}, "y": {"retry": {"times": 1}}}}),
    ];
    for first in cases {
        for (second, what) in smaller(&first) {
            let live = apply_whole(None, "a", &first, false);
            let again = apply_whole(Some(&live), "a", &second, false);
            let alone = apply_whole(None, "a", &second, false);
            assert_eq!(spec_of(&again), spec_of(&alone), "{first} without {what}");
        }
    }
}

/// Every value with one of its parts left out.
fn smaller(value: &Value) -> Vec<(Value, String)> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let mut without = fields.clone();
                without.remove(name);
                if name != "name" {
                    found.push((Value::Object(without), name.clone()));
                }
                for (less, what) in smaller(value) {
                    let mut with = fields.clone();
                    with.insert(name.clone(), less);
                    found.push((Value::Object(with), format!("{name}.{what}")));
                }
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                let mut without = items.clone();
                without.remove(at);
                found.push((Value::Array(without), format!("[{at}]")));
                for (less, what) in smaller(value) {
                    let mut with = items.clone();
                    with[at] = less;
                    found.push((Value::Array(with), format!("[{at}].{what}")));
                }
            }
        }
        _ => {}
    }
    found
}

#[test]
fn a_default_is_held_by_no_manager_and_never_a_conflict() {
    let created = update_whole(None, "creator", &json!({"probe": {"port": 1}}));
    assert_eq!(spec_of(&created), json!({"probe": {"port": 1, "timeout": 30}}));
    assert_eq!(holds(&created, "creator"), json!({"f:spec": {"f:probe": {"f:port": {}}}}));
    let applied = apply_whole(Some(&created), "a", &json!({"probe": {"timeout": 5}}), false);
    assert_eq!(spec_of(&applied), json!({"probe": {"port": 1, "timeout": 5}}));

    // A list that is one value is the same value with its defaults filled in.
    let steps = json!({"steps": [{"name": "x"}]});
    let live = apply_whole(None, "a", &steps, false);
    let live = apply_whole(Some(&live), "b", &steps, false);
    assert_eq!(holds(&live, "a"), holds(&live, "b"));
    assert_eq!(apply_whole(Some(&live), "a", &steps, false), live);
}

#[test]
fn a_default_is_removed_with_its_parent_after_the_parent_changed_holders() {
    let live = update_whole(None, "creator", &json!({"probe": {"port": 1}}));
    let live = apply_whole(Some(&live), "a", &json!({"probe": {"port": 2}}), true);
    let live = apply_whole(Some(&live), "a", &json!({}), false);
    assert_eq!(spec_of(&live), json!({}));

    // The same where the first writer was never noted.
    let live = store(None, gadget(&json!({"probe": {"port": 1}}))).0;
    let live = apply_whole(Some(&live), "a", &json!({"probe": {"port": 2}}), true);
    let live = apply_whole(Some(&live), "a", &json!({}), false);
    assert_eq!(spec_of(&live), json!({}));
}

#[test]
fn values_that_a_manager_set_stay_though_they_equal_the_default() {
    let probe = json!({"probe": {"port": 1}});
    // Another manager changed the default.
    let live = apply_whole(None, "a", &probe, false);
    let live = update_whole(Some(&live), "editor", &json!({"probe": {"port": 1, "timeout": 7}}));
    let live = apply_whole(Some(&live), "a", &json!({}), false);
    assert_eq!(spec_of(&live), json!({"probe": {"timeout": 7}}));

    // Another manager applied the value that is the default.
    let live = apply_whole(None, "a", &probe, false);
    let live = apply_whole(Some(&live), "b", &json!({"probe": {"timeout": 30}}), false);
    let live = apply_whole(Some(&live), "a", &json!({}), false);
    assert_eq!(spec_of(&live), json!({"probe": {"timeout": 30}}));
    let live = apply_whole(Some(&live), "b", &json!({}), false);
    assert_eq!(spec_of(&live), json!({}));

    // An applied value is replaced by the default when it is no longer applied.
    let live = apply_whole(None, "a", &json!({"probe": {"port": 1, "timeout": 5}}), false);
    let live = apply_whole(Some(&live), "a", &probe, false);
    assert_eq!(spec_of(&live), json!({"probe": {"port": 1, "timeout": 30}}));
}

#[test]
fn entries_without_a_holder_stay_when_their_list_loses_its_holder() {
    let mut live = apply_whole(None, "a", &json!({"doors": [{"name": "a"}]}), false);
    live["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    live["spec"]["doors"] = json!([{"name": "a", "number": 30}, {"name": "b", "number": 30}]);
    let mut config = gadget(&json!({}));
    config["metadata"]["finalizers"] = json!(["test.dev/other"]);
    let live = apply(kind(), Some(&live), &config, by("a"), false).unwrap();
    assert_eq!(live["spec"]["doors"], json!([{"name": "b", "number": 30}]));
    let live = apply(kind(), Some(&live), &gadget(&json!({})), by("a"), false).unwrap();
    assert_eq!(live["metadata"]["finalizers"], json!(["test.dev/hold"]));
}
