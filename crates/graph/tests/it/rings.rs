//! Rings of values that depend on each other, exactly or on any key of a set.
//!
//! The law: after any transactions, the values that exist are the largest set of wanted values in
//! which every dependency is met from inside the set. It does not depend on the order of keys, nor
//! on how the values are spread over transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use mainstay_graph::scenario::{parse, play};
use proptest::prelude::*;

/// The number of values.
const VALUES: usize = 6;

/// The dependencies of each value: each is met by any of its targets. Target [`VALUES`] never exists.
type Needs = Vec<Vec<BTreeSet<usize>>>;

fn needs() -> impl Strategy<Value = Needs> {
    let one = prop_oneof![
        3 => (0..VALUES).prop_map(|target| BTreeSet::from([target])),
        3 => prop::collection::btree_set(0..VALUES, 2..4),
        1 => Just(BTreeSet::from([VALUES])),
    ];
    prop::collection::vec(prop::collection::vec(one, 0..3), VALUES)
}

/// The largest set of wanted values in which every dependency is met.
fn expected(needs: &Needs, wanted: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut set = wanted.clone();
    loop {
        let before = set.clone();
        set.retain(|value| needs[*value].iter().all(|targets| !targets.is_disjoint(&before)));
        if set == before {
            return set;
        }
    }
}

/// A scenario in which value `n` has the key `/v/names[n]`.
fn scenario(needs: &Needs, names: &[usize], steps: &[(bool, BTreeSet<usize>)]) -> String {
    let key = |value: &usize| format!("/v/{}", names.get(*value).copied().unwrap_or(VALUES));
    let mut text = "descriptors:\n  - {name: v, prefix: /v/, items: none, depends: {".to_owned();
    for (value, needs) in needs.iter().enumerate() {
        let dependency = |(number, targets): (usize, &BTreeSet<usize>)| {
            let keys: Vec<String> = targets.iter().map(key).collect();
            match keys.as_slice() {
                [only] => format!("{{key: {only}, label: n{number}}}"),
                many => {
                    format!("{{label: n{number}, any-of: {{prefixes: [{}]}}}}", many.join(", "))
                }
            }
        };
        let list: Vec<String> = needs.iter().enumerate().map(dependency).collect();
        let _ = write!(text, "{}: [{}], ", key(&value), list.join(", "));
    }
    text += "}}\nsteps:\n";
    for (set, values) in steps {
        let keys: Vec<String> = values.iter().map(key).collect();
        let _ = match set {
            true => writeln!(text, "  - txn: {{set: {{{}: {{}}}}}}", keys.join(": {}, ")),
            false => writeln!(text, "  - txn: {{delete: [{}]}}", keys.join(", ")),
        };
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_one_value_whatever_its_edges_and_the_order_of_its_keys(
        needs in needs(),
        names in Just((0..VALUES).collect::<Vec<_>>()).prop_shuffle(),
        steps in prop::collection::vec(
            (prop::bool::weighted(0.8), prop::collection::btree_set(0..VALUES, 1..5)), 1..6),
    ) {
        let text = scenario(&needs, &names, &steps);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let played = runtime.block_on(async {
            let played = play(&parse(&text).unwrap()).await.unwrap();
            let report = played.report.clone();
            played.stop().await;
            report
        });
        let mut wanted = BTreeSet::new();
        for ((set, values), step) in steps.iter().zip(&played.steps) {
            match set {
                true => wanted.extend(values.iter().copied()),
                false => wanted.retain(|value| !values.contains(value)),
            }
            let there = expected(&needs, &wanted);
            let states: BTreeMap<String, serde_json::Value> = wanted
                .iter()
                .map(|value| {
                    let state = if there.contains(value) { "CONFIGURED" } else { "PENDING" };
                    (format!("/v/{}", names[*value]), state.into())
                })
                .collect();
            prop_assert_eq!(&step.states, &states, "{}\n{:#?}", text, step.transactions);
            let south: BTreeSet<String> = step.south.keys().cloned().collect();
            let known: BTreeSet<String> =
                there.iter().map(|value| format!("/v/{}", names[*value])).collect();
            prop_assert_eq!(south, known, "{}", text);
        }
    }
}
