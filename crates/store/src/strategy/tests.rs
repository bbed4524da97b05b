mod laws;

use std::sync::LazyLock;

use serde_json::json;

use super::*;
use crate::builtin;
use crate::registry::{Registry, Typed};
use crate::status::Reason;

fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> =
        LazyLock::new(|| Registry::new(builtin::kinds()).unwrap());
    &REGISTRY
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

fn stamp() -> Stamp {
    Stamp {
        now: "2026-03-01T12:00:00.5Z".parse().unwrap(),
        uid: "u-1".to_owned(),
        name_suffix: "x7k2p".to_owned(),
    }
}

fn create_in(kind: &Kind, namespace: Option<&str>, value: Value) -> Result<Prepared, Error> {
    let strictness = Strictness { validation: Validation::Strict, duplicates: &[] };
    prepare_create(kind, namespace, object(value), &stamp(), strictness)
}

fn create<T: Typed>(value: Value) -> Result<Value, Error> {
    let registry = registry();
    let kind = registry.of::<T>().unwrap();
    let namespace = T::NAMESPACED.then_some("default");
    create_in(kind, namespace, value).map(|prepared| Value::Object(prepared.object))
}

/// An object as it would come back from the store.
fn stored<T: Typed>(value: Value) -> Value {
    let mut created = create::<T>(value).unwrap();
    created["metadata"]["resourceVersion"] = json!("7");
    created
}

fn update_part<T: Typed>(
    old: &Value,
    new: Value,
    part: Option<Subresource>,
) -> Result<Outcome, Error> {
    let registry = registry();
    let kind = registry.of::<T>().unwrap();
    let namespace = T::NAMESPACED.then_some("default");
    let name = old["metadata"]["name"].as_str().unwrap();
    let key = kind.key(namespace, name);
    let strictness = Strictness { validation: Validation::Strict, duplicates: &[] };
    let update = prepare_update(kind, &key, &object(old.clone()), object(new), part, strictness)?;
    Ok(update.outcome)
}

fn update<T: Typed>(old: &Value, change: impl FnOnce(&mut Value)) -> Result<Outcome, Error> {
    let mut new = old.clone();
    change(&mut new);
    update_part::<T>(old, new, None)
}

fn written(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Write(object) => Value::Object(object),
        other => panic!("{other:?} is no write"),
    }
}

use builtin::{ConfigMap, Event, Lease, Namespace, Node};

#[test]
fn a_new_object_gets_its_place_identity_and_time() {
    let created = create::<ConfigMap>(json!({
        "metadata": {"name": "a", "creationTimestamp": null, "uid": "mine", "generation": 9,
            "deletionTimestamp": "2020-01-01T00:00:00Z", "labels": {}},
        "data": {"x": "1"},
    }))
    .unwrap();
    assert_eq!(
        created,
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default", "uid": "u-1",
                "creationTimestamp": "2026-03-01T12:00:00Z"},
            "data": {"x": "1"},
        })
    );
}

#[test]
fn kinds_with_a_spec_count_generations_and_status_is_not_created() {
    let namespace = create::<Namespace>(json!({
        "metadata": {"name": "a"}, "status": {"phase": "Terminating"},
    }))
    .unwrap();
    assert_eq!(namespace["metadata"]["generation"], 1);
    assert_eq!(namespace["status"], json!({"phase": "Active"}));
    assert_eq!(namespace["spec"], json!({"finalizers": ["kubernetes"]}));
    assert_eq!(namespace["metadata"]["labels"], json!({"kubernetes.io/metadata.name": "a"}));
    let node = create::<Node>(json!({
        "metadata": {"name": "n"}, "status": {"capacity": {"cpu": 2, "memory": "4Gi"}},
    }))
    .unwrap();
    let capacity = &node["status"]["capacity"];
    assert_eq!(*capacity, json!({"cpu": "2", "memory": "4Gi"}), "a node registers its status");
}

#[test]
fn names_are_generated_from_a_prefix() {
    let named = |meta: Value| create::<ConfigMap>(json!({"metadata": meta}));
    let name = |meta| named(meta).unwrap()["metadata"]["name"].clone();
    assert_eq!(name(json!({"generateName": "web-"})), "web-x7k2p");
    assert_eq!(name(json!({"generateName": "web-", "name": "a"})), "a");
    let long = name(json!({"generateName": "a".repeat(80)}));
    assert_eq!(long.as_str().unwrap().len(), 63);
    let error = named(json!({"generateName": "Web_"})).unwrap_err();
    assert_eq!(error.details.causes[0].field, "metadata.generateName");
    let error = named(json!({})).unwrap_err();
    assert_eq!(
        error.message,
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
}

#[test]
fn bad_objects_get_kubernetes_messages() {
    let long_label = "a".repeat(64);
    for (body, code, message) in [
        (
            json!({"kind": "Pod", "metadata": {"name": "a"}}),
            400,
            "Pod in version \"v1\" cannot be handled as a ConfigMap: the kind in the data (Pod) does not match the expected kind (ConfigMap)",
        ),
        (
            json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "a"}}),
            400,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            json!({"metadata": {"name": "a", "namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"metadata": {"name": "a", "resourceVersion": "5"}}),
            400,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            json!({"metadata": {"name": "a", "labels": {"a": 1}}}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            json!({"metadata": {"name": "a", "annotations": {"a": null}}}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: metadata.annotations: null is not allowed here",
        ),
        (
            json!({"metadata": ["a"]}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal array into Go struct field ObjectMeta.metadata of type v1.ObjectMeta",
        ),
        (
            json!({"metadata": {"name": "a", "nmae": "b"}, "dta": {}, "spec": 1}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dta\", unknown field \"metadata.nmae\", unknown field \"spec\"",
        ),
        (
            json!({"metadata": {"name": "a"}, "data": {"x": 1}}),
            422,
            "ConfigMap \"a\" is invalid: data.x: Invalid value: \"integer\": data.x in body must be of type string: \"integer\"",
        ),
        (
            json!({"metadata": {"name": "a"}, "data": []}),
            422,
            "ConfigMap \"a\" is invalid: data: Invalid value: \"array\": data in body must be of type object: \"array\"",
        ),
        (
            json!({"metadata": {"name": "a"}, "binaryData": {"x": "not base64"}}),
            422,
            "ConfigMap \"a\" is invalid: binaryData.x: Invalid value: \"not base64\": binaryData.x in body must be of type byte: \"not base64\"",
        ),
        (
            json!({"metadata": {"name": "a", "labels": {"a": long_label}}}),
            422,
            &format!(
                "ConfigMap \"a\" is invalid: metadata.labels: Invalid value: \"{long_label}\": must be no more than 63 characters"
            ),
        ),
        (
            json!({"metadata": {"name": "a", "finalizers": ["a b"]}}),
            422,
            "ConfigMap \"a\" is invalid: metadata.finalizers: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            json!({"metadata": {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]}}),
            422,
            "ConfigMap \"a\" is invalid: metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ),
        (
            json!({"metadata": {"name": "a"}, "data": {"..": ""}, "binaryData": {"..": ""}}),
            422,
            "ConfigMap \"a\" is invalid: [data[..]: Invalid value: \"..\": must not be '..', binaryData[..]: Invalid value: \"..\": must not be '..', data[..]: Invalid value: \"..\": duplicate of key present in binaryData]",
        ),
        (
            json!({"metadata": {"name": "a"}, "data": {"x": "y".repeat(1 << 20), "z": "1"}}),
            422,
            "ConfigMap \"a\" is invalid: data: Too long: may not be more than 1048576 bytes",
        ),
        (
            json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(256 << 10)}}}),
            422,
            "ConfigMap \"a\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
    ] {
        let error = create::<ConfigMap>(body).unwrap_err();
        assert_eq!((error.reason.code(), error.message.as_str()), (code, message));
        assert_eq!(error.reason == Reason::Invalid, !error.details.causes.is_empty());
    }
}

#[test]
fn names_of_another_object_or_namespace_are_refused() {
    for name in ["../a", "a/b", "..", "A", "a_b", "%2e", "a\u{0}", &"a".repeat(254)] {
        let error = create::<ConfigMap>(json!({"metadata": {"name": name}})).unwrap_err();
        assert_eq!(error.details.causes[0].field, "metadata.name", "{name}");
    }
    let error = create::<Namespace>(json!({"metadata": {"name": "a.b"}})).unwrap_err();
    assert!(error.message.contains("RFC 1123 label"));
}

#[test]
fn unknown_fields_are_dropped_with_a_warning_unless_strictness_is_asked_for() {
    let registry = registry();
    let kind = registry.of::<ConfigMap>().unwrap();
    let body = object(json!({"metadata": {"name": "a"}, "dta": {"x": "1"}}));
    let duplicates = ["metadata.name".to_owned()];
    for (validation, warnings) in [
        (Validation::Warn, vec!["duplicate field \"metadata.name\"", "unknown field \"dta\""]),
        (Validation::Ignore, vec![]),
    ] {
        let strictness = Strictness { validation, duplicates: &duplicates };
        let prepared =
            prepare_create(kind, Some("default"), body.clone(), &stamp(), strictness).unwrap();
        assert_eq!(prepared.warnings, warnings);
        assert!(!prepared.object.contains_key("dta"));
    }
    let strictness = Strictness { validation: Validation::Strict, duplicates: &duplicates };
    let error = prepare_create(kind, Some("default"), body, &stamp(), strictness).unwrap_err();
    assert!(error.message.ends_with(
        "strict decoding error: duplicate field \"metadata.name\", unknown field \"dta\""
    ));
}

#[test]
fn kinds_have_rules_of_their_own() {
    let lease = |spec: Value| create::<Lease>(json!({"metadata": {"name": "l"}, "spec": spec}));
    assert!(
        lease(json!({"leaseDurationSeconds": 15, "renewTime": "2026-03-01T12:00:00.000000Z"}))
            .is_ok()
    );
    for (spec, message) in [
        (
            json!({"leaseDurationSeconds": 0}),
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            json!({"leaseTransitions": -1}),
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"renewTime": "noon"}),
            "spec.renewTime: Invalid value: \"noon\": spec.renewTime in body must be of type date-time: \"noon\"",
        ),
        (
            json!({"leaseDurationSeconds": 3_000_000_000_u64}),
            "spec.leaseDurationSeconds: Invalid value: 3000000000: spec.leaseDurationSeconds in body should be a number that fits int32",
        ),
        (
            json!({"leaseDurationSeconds": 1.5}),
            "spec.leaseDurationSeconds: Invalid value: \"number\": spec.leaseDurationSeconds in body must be of type integer: \"number\"",
        ),
    ] {
        let error = lease(spec).unwrap_err();
        let expected = format!("Lease.coordination.k8s.io \"l\" is invalid: {message}");
        assert_eq!(error.message, expected);
        assert_eq!(error.details.kind, "Lease");
        assert_eq!(error.details.group, "coordination.k8s.io");
    }
    let event = |namespace: &str| {
        create::<Event>(json!({
            "metadata": {"name": "e"},
            "involvedObject": {"kind": "Node", "name": "n", "namespace": namespace},
        }))
    };
    assert!(event("").is_ok() && event("default").is_ok());
    assert_eq!(event("other").unwrap_err().details.causes[0].field, "involvedObject.namespace");
    let error = create::<Event>(json!({"metadata": {"name": "e"}})).unwrap_err();
    assert_eq!(error.message, "Event \"e\" is invalid: involvedObject: Required value");
    let error = create::<Node>(json!({
        "metadata": {"name": "n"},
        "spec": {"taints": [{"key": "a", "effect": "Never"}]},
    }))
    .unwrap_err();
    assert_eq!(
        error.message,
        "Node \"n\" is invalid: spec.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""
    );
}

#[test]
fn an_update_that_changes_nothing_is_not_written() {
    let old = stored::<ConfigMap>(json!({"metadata": {"name": "a"}, "data": {"x": "1"}}));
    for change in [
        (|_| {}) as fn(&mut Value),
        |new| new["metadata"] = json!({"name": "a"}),
        |new| new["metadata"]["labels"] = json!({}),
        |new| new["metadata"]["creationTimestamp"] = Value::Null,
        |new| new["metadata"]["generation"] = json!(77),
        |new| drop(new.as_object_mut().unwrap().remove("kind")),
    ] {
        assert_eq!(update::<ConfigMap>(&old, change).unwrap(), Outcome::Unchanged);
    }
    let old = stored::<Node>(json!({"metadata": {"name": "n"}}));
    let same = update::<Node>(&old, |new| {
        new["spec"] = json!({});
        new["status"] = json!({});
    });
    assert_eq!(same.unwrap(), Outcome::Unchanged);
}

#[test]
fn the_generation_grows_with_the_spec_alone() {
    let old = stored::<Node>(json!({"metadata": {"name": "n"}}));
    let generation = |outcome| written(outcome)["metadata"]["generation"].clone();
    let spec = update::<Node>(&old, |new| new["spec"] = json!({"unschedulable": true}));
    assert_eq!(generation(spec.unwrap()), 2);
    let labels = update::<Node>(&old, |new| new["metadata"]["labels"] = json!({"a": "b"}));
    assert_eq!(generation(labels.unwrap()), 1);
    let mut new = old.clone();
    new["status"] = json!({"capacity": {"cpu": "2"}});
    new["spec"] = json!({"unschedulable": true});
    new["metadata"]["labels"] = json!({"a": "b"});
    let status = update_part::<Node>(&old, new.clone(), Some(Subresource::Status)).unwrap();
    let status = written(status);
    assert_eq!(status["metadata"], old["metadata"], "status writes touch nothing else");
    assert_eq!(status["status"]["capacity"]["cpu"], "2");
    assert_eq!(status.get("spec"), None);
    let main = written(update_part::<Node>(&old, new, None).unwrap());
    assert_eq!(main.get("status"), None, "other writes leave the status alone");
}

#[test]
fn updates_from_another_version_or_of_another_object_conflict() {
    let old = stored::<ConfigMap>(json!({"metadata": {"name": "a"}}));
    let error = update::<ConfigMap>(&old, |new| new["metadata"]["resourceVersion"] = json!("6"));
    let error = error.unwrap_err();
    assert_eq!(error.reason.code(), 409);
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let error = update::<ConfigMap>(&old, |new| new["metadata"]["uid"] = json!("u-2"));
    assert_eq!(
        error.unwrap_err().message,
        "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: UID in precondition: u-2, UID in object meta: u-1"
    );
    let unpinned = update::<ConfigMap>(&old, |new| {
        new["metadata"] = json!({"name": "a"});
        new["data"] = json!({"x": "1"});
    });
    assert_eq!(written(unpinned.unwrap())["metadata"], old["metadata"]);
    for (change, message) in [
        (
            (|new| new["metadata"]["name"] = json!("b")) as fn(&mut Value),
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            |new| new["metadata"]["namespace"] = json!("b"),
            "the namespace of the object (b) does not match the namespace on the URL (default)",
        ),
        (
            |new| new["metadata"] = json!({}),
            "the name of the object (a based on URL) was undeterminable: name must be provided",
        ),
    ] {
        let error = update::<ConfigMap>(&old, change).unwrap_err();
        assert_eq!((error.reason.code(), error.message.as_str()), (400, message));
    }
}

#[test]
fn immutable_config_maps_stay_as_they_are() {
    let old = stored::<ConfigMap>(
        json!({"metadata": {"name": "a"}, "data": {"x": "1"}, "immutable": true}),
    );
    let error = update::<ConfigMap>(&old, |new| {
        new["data"] = json!({"x": "2"});
        new["immutable"] = json!(false);
    });
    assert_eq!(
        error.unwrap_err().message,
        "ConfigMap \"a\" is invalid: [immutable: Forbidden: field is immutable when `immutable` is set, data: Forbidden: field is immutable when `immutable` is set]"
    );
    assert!(update::<ConfigMap>(&old, |new| new["metadata"]["labels"] = json!({"a": "b"})).is_ok());
}

fn delete<T: Typed>(old: &Value, options: &DeleteOptions) -> Result<Deletion, Error> {
    let registry = registry();
    let kind = registry.of::<T>().unwrap();
    let key = kind.key(None, old["metadata"]["name"].as_str().unwrap());
    prepare_delete(kind, &key, &object(old.clone()), options, stamp().now)
}

#[test]
fn finalizers_hold_an_object_back_until_they_are_gone() {
    let old = stored::<Node>(json!({"metadata": {"name": "n", "finalizers": ["a.b/c", "a.b/d"]}}));
    let Deletion::Mark(marked) = delete::<Node>(&old, &DeleteOptions::default()).unwrap() else {
        panic!("it is not marked");
    };
    let marked = Value::Object(marked);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-03-01T12:00:00Z");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(marked["metadata"]["generation"], 2);
    let again = delete::<Node>(&marked, &DeleteOptions::default()).unwrap();
    assert_eq!(again, Deletion::AlreadyMarked);
    let error = update::<Node>(&marked, |new| {
        new["metadata"]["finalizers"] = json!(["a.b/c", "a.b/e"]);
    });
    assert_eq!(
        error.unwrap_err().message,
        "Node \"n\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a.b/e\"}"
    );
    let kept = update::<Node>(&marked, |new| {
        new["metadata"]["finalizers"] = json!(["a.b/c"]);
        new["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
    });
    assert_eq!(written(kept.unwrap())["metadata"]["deletionTimestamp"], "2026-03-01T12:00:00Z");
    let gone = update::<Node>(&marked, |new| new["metadata"]["finalizers"] = json!([]));
    assert!(matches!(gone.unwrap(), Outcome::Remove(_)));
    let error = update::<Node>(&old, |new| {
        new["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
    });
    assert_eq!(error.unwrap_err().details.causes[0].field, "metadata.deletionTimestamp");
}

#[test]
fn deletions_have_preconditions() {
    let old = stored::<Node>(json!({"metadata": {"name": "n"}}));
    let options = |uid: Option<&str>, version: Option<&str>| DeleteOptions {
        uid: uid.map(str::to_owned),
        resource_version: version.map(str::to_owned),
        ..DeleteOptions::default()
    };
    assert_eq!(delete::<Node>(&old, &options(Some("u-1"), Some("7"))).unwrap(), Deletion::Remove);
    let error = delete::<Node>(&old, &options(Some("u-2"), None)).unwrap_err();
    assert!(error.is_conflict());
    let error = delete::<Node>(&old, &options(None, Some("6"))).unwrap_err();
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on nodes \"n\": Precondition failed: ResourceVersion in precondition: 6, ResourceVersion in object meta: 7"
    );
}

#[test]
fn a_namespace_goes_when_it_is_finalized() {
    let old = stored::<Namespace>(json!({"metadata": {"name": "a"}}));
    let Deletion::Mark(marked) = delete::<Namespace>(&old, &DeleteOptions::default()).unwrap()
    else {
        panic!("it is not marked");
    };
    let marked = Value::Object(marked);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let mut new = marked.clone();
    new["spec"] = json!({});
    let main = update_part::<Namespace>(&marked, new.clone(), None).unwrap();
    assert_eq!(main, Outcome::Unchanged, "only /finalize touches spec.finalizers");
    let finalized = update_part::<Namespace>(&marked, new, Some(Subresource::Finalize)).unwrap();
    assert!(matches!(finalized, Outcome::Remove(_)));
    let default = stored::<Namespace>(json!({"metadata": {"name": "default"}}));
    let error = delete::<Namespace>(&default, &DeleteOptions::default()).unwrap_err();
    assert_eq!(
        error.message,
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}
