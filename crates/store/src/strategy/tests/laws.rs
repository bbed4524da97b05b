//! Laws of the strategy that hold for any object.

use proptest::prelude::*;

use super::*;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z./ ]{0,6}".prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "metadata",
        "name",
        "namespace",
        "labels",
        "finalizers",
        "ownerReferences",
        "spec",
        "status",
        "taints",
        "key",
        "effect",
        "unschedulable",
        "conditions",
        "type",
        "capacity",
        "generation",
        "resourceVersion",
        "uid",
        "deletionTimestamp",
        "other",
    ]);
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_node() -> impl Strategy<Value = Value> {
    let label = prop::collection::btree_map("[a-c]", "[a-z]{0,3}", 0..3);
    let taint = ("[a-c]", prop::sample::select(vec!["NoSchedule", "NoExecute"]));
    let taints = prop::collection::btree_set(taint, 0..3);
    (label, taints, any::<Option<bool>>(), 0_u8..3, any_json()).prop_map(
        |(labels, taints, unschedulable, cpus, junk)| {
            let taints: Vec<Value> = taints
                .into_iter()
                .map(|(key, effect)| json!({"key": key, "effect": effect}))
                .collect();
            json!({
                "metadata": {"name": "n", "labels": labels},
                "spec": {"taints": taints, "unschedulable": unschedulable, "junk": junk},
                "status": {"capacity": {"cpu": cpus}},
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_body_makes_it_panic(body in any_json()) {
        let registry = registry();
        if let Value::Object(body) = body {
            for kind in registry.iter() {
                let namespace = kind.namespaced.then_some("default");
                let lenient = Strictness::default();
                let _ = prepare_create(kind, namespace, body.clone(), &stamp(), lenient);
                let key = kind.key(namespace, "a");
                let _ = prepare_update(kind, &key, &body, body.clone(), None, lenient);
                let part = Some(Subresource::Status);
                let _ = prepare_update(kind, &key, &body, body.clone(), part, lenient);
            }
        }
    }

    #[test]
    fn accepted_objects_are_accepted_again_unchanged(node in any_node()) {
        let registry = registry();
        let kind = registry.of::<Node>().unwrap();
        let lenient = Strictness::default();
        let prepared = prepare_create(kind, None, object(node), &stamp(), lenient).unwrap();
        let key = kind.key(None, "n");
        let again =
            prepare_update(kind, &key, &prepared.object, prepared.object.clone(), None, lenient);
        prop_assert_eq!(again.unwrap().outcome, Outcome::Unchanged);
    }

    #[test]
    fn the_generation_never_decreases(
        first in any_node(),
        changes in prop::collection::vec((any_node(), any::<bool>()), 1..8),
    ) {
        let registry = registry();
        let kind = registry.of::<Node>().unwrap();
        let key = kind.key(None, "n");
        let lenient = Strictness::default();
        let mut current =
            prepare_create(kind, None, object(first), &stamp(), lenient).unwrap().object;
        for (new, through_status) in changes {
            let part = through_status.then_some(Subresource::Status);
            let update =
                prepare_update(kind, &key, &current, object(new), part, lenient).unwrap();
            if let Outcome::Write(next) = update.outcome {
                let generation =
                    |object: &Object| object["metadata"]["generation"].as_i64().unwrap();
                let grown = generation(&next) - generation(&current);
                let differs = next.get("spec") != current.get("spec");
                prop_assert_eq!(grown, i64::from(differs));
                current = next;
            }
        }
    }
}
