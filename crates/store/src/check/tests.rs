use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::builtin;
use crate::cache::Collection;
use crate::object::{Body, Resource, Revision};

fn snapshot(resource: &str, path: &str, object: &Value) -> Snapshot {
    let resource = Resource::from_stored(resource);
    let key = Key::from_stored(resource.clone(), path);
    let body = Body::new(object.as_object().unwrap());
    let record = Arc::new(body.at(key, Revision(1), Revision(1)));
    let collection = Collection::new(Revision(1), [record]);
    Snapshot {
        revision: Revision(1),
        oldest: Revision(0),
        collections: vec![(resource, collection)],
        damaged: Vec::new(),
    }
}

fn good() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
        "metadata": {"name": "x", "namespace": "n", "uid": "1"},
    })
}

#[test]
fn a_valid_object_has_no_findings() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let report = check(&snapshot("configmaps", "n/x", &good()), &registry);
    assert_eq!(report, Report { objects: 1, ..Report::default() });
    assert!(report.is_clean());
}

#[test]
fn each_finding_names_its_object() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut object = good();
        *object.pointer_mut(pointer).unwrap() = value;
        object
    };
    let cases = [
        ("n/x", with("/metadata/name", json!("y")), "metadata.name is \"y\", not \"x\""),
        ("n/x", with("/metadata/namespace", json!("m")), "metadata.namespace is \"m\""),
        ("n/x", with("/metadata/uid", json!("")), "metadata.uid is missing"),
        ("n/x", with("/kind", json!("Node")), "kind is \"Node\", not \"ConfigMap\""),
        ("n/x", with("/apiVersion", json!("v2")), "apiVersion is \"v2\", not \"v1\""),
        ("n/x", with("/data/a", json!(7)), "data.a"),
        ("n/x", with("/data", json!({"b c": "d"})), "data"),
        ("x", good(), "objects of its kind live in a namespace"),
    ];
    for (path, object, expected) in cases {
        let report = check(&snapshot("configmaps", path, &object), &registry);
        let named = |finding: &Finding| {
            (finding.resource.as_str(), finding.path.as_str()) == ("configmaps", path)
                && finding.problem.contains(expected)
        };
        assert!(report.findings.iter().any(named), "{expected}: {report:?}");
    }
}

#[test]
fn collections_without_a_kind_are_listed_unless_they_are_our_own() {
    let registry = Registry::new(builtin::kinds()).unwrap();
    let report = check(&snapshot("pears.example.dev", "x", &json!({})), &registry);
    assert_eq!(report.unknown, ["pears.example.dev"]);
    assert!(report.is_clean());
    let report = check(&snapshot("tokens.internal.mainstay.dev", "x", &json!({})), &registry);
    assert!(report.unknown.is_empty() && report.is_clean(), "{report:?}");
}
