//! Laws that hold for any graph and any transactions.

use std::collections::BTreeMap;

use mainstay_graph::{OnFailure, Options, Transaction, ValueState};
use proptest::prelude::*;

use crate::south::{Running, South, Thing};

const KEYS: usize = 8;

fn key(number: usize) -> String {
    format!("thing/{number}")
}

/// A change of one key: gone, or a value that needs others and has parts that need others.
#[derive(Debug, Clone)]
struct Change {
    key: usize,
    value: Option<Thing>,
}

fn change(acyclic: bool) -> impl Strategy<Value = Change> {
    let needs = || prop::collection::vec((0..KEYS, any::<bool>()), 0..3);
    let value = (0_u32..20, needs(), prop::collection::btree_map("[xy]", needs(), 0..2));
    (0..KEYS, prop::option::weighted(0.75, value)).prop_map(move |(own, value)| {
        let named = |needs: Vec<(usize, bool)>| {
            let allowed = needs.into_iter().filter(|(other, _)| !acyclic || *other < own);
            let name = |(other, part): (usize, bool)| {
                if part { format!("{}/x", key(other)) } else { key(other) }
            };
            allowed.map(name).collect::<Vec<_>>()
        };
        let value = value.map(|(number, needs, parts)| Thing {
            number,
            needs: named(needs),
            parts: parts.into_iter().map(|(name, needs)| (name, named(needs))).collect(),
        });
        Change { key: own, value }
    })
}

fn transactions(acyclic: bool) -> impl Strategy<Value = Vec<Vec<Change>>> {
    prop::collection::vec(prop::collection::vec(change(acyclic), 1..5), 1..6)
}

fn transaction(changes: &[Change]) -> Transaction {
    changes.iter().fold(Transaction::new(), |transaction, change| match &change.value {
        Some(value) => transaction.set_typed(key(change.key), value.clone()),
        None => transaction.delete(key(change.key)),
    })
}

/// What should be there in the end: every wanted value whose needs are there too.
fn expected(wanted: &BTreeMap<usize, Thing>) -> BTreeMap<String, Thing> {
    let mut there: BTreeMap<String, Thing> = BTreeMap::new();
    loop {
        let mut more = Vec::new();
        for (number, value) in wanted {
            let name = key(*number);
            let ready = |needs: &[String]| needs.iter().all(|need| there.contains_key(need));
            if !there.contains_key(&name) {
                if ready(&value.needs) {
                    more.push((name, value.clone()));
                }
                continue;
            }
            for (part, needs) in &value.parts {
                let part_name = format!("{name}/{part}");
                if !there.contains_key(&part_name) && ready(needs) {
                    let part = Thing {
                        number: value.number,
                        needs: needs.clone(),
                        parts: BTreeMap::new(),
                    };
                    more.push((part_name, part));
                }
            }
        }
        if more.is_empty() {
            return there;
        }
        there.extend(more);
    }
}

fn wanted_after(all: &[Vec<Change>]) -> BTreeMap<usize, Thing> {
    let mut wanted = BTreeMap::new();
    for change in all.iter().flatten() {
        match &change.value {
            Some(value) => wanted.insert(change.key, value.clone()),
            None => wanted.remove(&change.key),
        };
    }
    wanted
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn lines(record: &[mainstay_graph::OperationRecord]) -> Vec<String> {
    record.iter().map(ToString::to_string).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_failures_plans_hold_and_everything_that_can_be_there_is(all in transactions(true)) {
        run(async {
            let running = Running::start(Options::default());
            for changes in &all {
                let plan = running.engine.plan(transaction(changes)).await.unwrap();
                let record = running.engine.commit(transaction(changes)).await.unwrap();
                prop_assert_eq!(lines(&plan), lines(&record.executed));
                prop_assert_eq!(lines(&record.planned), lines(&record.executed));
            }
            prop_assert_eq!(running.south.values(), expected(&wanted_after(&all)));
            let offences = running.south.with(|south| south.offences.clone());
            prop_assert!(offences.is_empty(), "{:?}", offences);
            let resync = running.engine.commit(Transaction::downstream_resync()).await.unwrap();
            let worked: Vec<_> = lines(&resync.executed).into_iter().filter(|line| !line.contains("NOOP")).collect();
            prop_assert!(worked.is_empty(), "{:?}", worked);
            running.stop().await;
            Ok(())
        })?;
    }

    #[test]
    fn circles_neither_hang_nor_leave_anything_behind(all in transactions(false)) {
        run(async {
            let running = Running::start(Options::default());
            for changes in &all {
                running.engine.commit(transaction(changes)).await.unwrap();
            }
            let everything = (0..KEYS).fold(Transaction::new(), |transaction, number| transaction.delete(key(number)));
            running.engine.commit(everything).await.unwrap();
            prop_assert!(running.south.values().is_empty());
            prop_assert!(running.engine.states().is_empty());
            running.stop().await;
            Ok(())
        })?;
    }

    #[test]
    fn a_revert_restores_what_was(all in transactions(true), failing in 1_usize..12, works in any::<bool>()) {
        run(async {
            let running = Running::start(Options::default());
            let (last, first) = all.split_last().unwrap();
            for changes in first {
                running.engine.commit(transaction(changes)).await.unwrap();
            }
            let (south, states) = (running.south.values(), running.engine.states());
            running.south.with(|south| { let number = south.count + failing; south.fail.insert(number, works); });
            let record = running.engine.apply(transaction(last)).await.unwrap();
            if record.reverted {
                prop_assert_eq!(running.south.values(), south, "{:#?}", lines(&record.executed));
                running.engine.commit(Transaction::downstream_resync()).await.unwrap();
                prop_assert_eq!(running.engine.states(), states, "{:#?}", lines(&record.executed));
            }
            running.stop().await;
            Ok(())
        })?;
    }

    #[test]
    fn a_resync_converges_after_failures_and_lies(
        all in transactions(true),
        fail in prop::collection::btree_map(1_usize..30, any::<bool>(), 0..8),
        lost in prop::collection::vec(0..KEYS, 0..3),
        changed in prop::collection::vec(0..KEYS, 0..3),
    ) {
        run(async {
            let running = Running::start(Options::default());
            running.south.with(|south| south.fail = fail);
            for changes in &all {
                running.engine.apply(transaction(changes).on_failure(OnFailure::BestEffort)).await.unwrap();
            }
            running.south.with(|south| {
                south.fail.clear();
                for number in lost {
                    south.values.retain(|name, _| *name != key(number) && !name.starts_with(&format!("{}/", key(number))));
                }
                for number in changed {
                    if let Some(value) = south.values.get_mut(&key(number)) { value.number += 100; }
                }
            });
            for _ in 0..3 {
                running.engine.apply(Transaction::downstream_resync()).await.unwrap();
            }
            prop_assert_eq!(running.south.values(), expected(&wanted_after(&all)));
            let states = running.engine.states();
            let settled = |state: ValueState| matches!(state, ValueState::Configured | ValueState::Pending);
            prop_assert!(states.iter().all(|(_, state)| settled(*state)), "{:?}", states);
            running.stop().await;
            Ok(())
        })?;
    }

    #[test]
    fn side_by_side_comes_to_the_same_as_one_by_one(
        all in transactions(true),
        fail in prop::collection::btree_set(0..KEYS, 0..3),
    ) {
        run(async {
            let mut outcomes = Vec::new();
            for parallel in [1, 2, 8] {
                let south = South::default();
                south.with(|south| south.yields = true);
                let running = Running::over(south, Options { parallel, ..Options::default() });
                let mut records = Vec::new();
                for (index, changes) in all.iter().enumerate() {
                    // A value of the wrong shape fails the same way whatever runs beside it.
                    let mut transaction = transaction(changes).on_failure(OnFailure::BestEffort);
                    if index % 2 == 1 {
                        for number in &fail {
                            transaction = transaction.set(key(*number), serde_json::json!("wrong"));
                        }
                    }
                    let record = running.engine.apply(transaction).await.unwrap();
                    records.push((lines(&record.planned), lines(&record.executed)));
                }
                let offences = running.south.with(|south| south.offences.clone());
                prop_assert!(offences.is_empty(), "{:?}", offences);
                outcomes.push((records, running.south.values(), running.engine.states()));
                running.stop().await;
            }
            prop_assert_eq!(&outcomes[0], &outcomes[1]);
            prop_assert_eq!(&outcomes[0], &outcomes[2]);
            Ok(())
        })?;
    }
}
