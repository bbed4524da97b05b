//! Laws that hold for any graph and any transactions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mainstay_graph::journal::{self, Entry, Journal};
use mainstay_graph::{OnFailure, Options, Transaction, ValueState};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::histories::{Change, KEYS, expected, history, key, transaction, wanted_after};
use crate::south::{Lie, Running, South, Thing};

fn change(acyclic: bool) -> impl Strategy<Value = Change> {
    let needs = || prop::collection::vec((0..KEYS, any::<bool>()), 0..3);
    let value = (0_u32..20, needs(), prop::collection::btree_map("[xy]", needs(), 0..3));
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

/// Ninety-six cases each, or as many as `PROPTEST_CASES` asks for.
fn cases() -> ProptestConfig {
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default().cases,
        None => 96,
    };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn lines(record: &[mainstay_graph::OperationRecord]) -> Vec<String> {
    record.iter().map(ToString::to_string).collect()
}

/// After any transactions, everything is deleted.
async fn leaves_nothing(all: &[Vec<Change>]) -> TestCaseResult {
    let running = Running::start(Options::default());
    for changes in all {
        running.engine.commit(transaction(changes)).await.unwrap();
    }
    let nothing = (0..KEYS).fold(Transaction::new(), |nothing, number| nothing.delete(key(number)));
    running.engine.commit(nothing).await.unwrap();
    prop_assert!(running.south.values().is_empty());
    prop_assert!(running.engine.states().is_empty());
    running.stop().await;
    Ok(())
}

/// The last of the transactions fails at an operation, and is reverted.
async fn reverts(all: &[Vec<Change>], failing: usize, works: bool) -> TestCaseResult {
    let running = Running::start(Options::default());
    let (last, first) = all.split_last().unwrap();
    for changes in first {
        running.engine.commit(transaction(changes)).await.unwrap();
    }
    let (south, states) = (running.south.values(), running.engine.states());
    running.south.with(|south| {
        let number = south.count + failing;
        south.fail.insert(number, works);
    });
    let record = running.engine.apply(transaction(last)).await.unwrap();
    if record.reverted {
        prop_assert_eq!(running.south.values(), south, "{:#?}", lines(&record.executed));
        running.engine.commit(Transaction::downstream_resync()).await.unwrap();
        prop_assert_eq!(running.engine.states(), states, "{:#?}", lines(&record.executed));
    }
    running.stop().await;
    Ok(())
}

/// Operations fail, and afterwards the south loses and changes values without a notification.
async fn converges(
    all: &[Vec<Change>],
    fail: BTreeMap<usize, bool>,
    lost: &[usize],
    changed: &[usize],
) -> TestCaseResult {
    let running = Running::start(Options::default());
    running.south.with(|south| south.fail = fail);
    let mut told = Vec::new();
    for changes in all {
        let best_effort = transaction(changes).on_failure(OnFailure::BestEffort);
        told.push(lines(&running.engine.apply(best_effort).await.unwrap().executed));
    }
    running.south.with(|south| {
        south.fail.clear();
        for number in lost {
            let (name, parts) = (key(*number), format!("{}/", key(*number)));
            south.values.retain(|other, _| *other != name && !other.starts_with(&parts));
        }
        for number in changed {
            if let Some(value) = south.values.get_mut(&key(*number)) {
                value.number += 100;
            }
        }
    });
    for _ in 0..3 {
        let record = running.engine.apply(Transaction::downstream_resync()).await.unwrap();
        told.push(lines(&record.executed));
    }
    prop_assert_eq!(running.south.values(), expected(&wanted_after(all)), "{:#?}", told);
    let states = running.engine.states();
    let settled = |state: ValueState| matches!(state, ValueState::Configured | ValueState::Pending);
    prop_assert!(states.iter().all(|(_, state)| settled(*state)), "{:?} {:#?}", states, told);
    running.stop().await;
    Ok(())
}

fn lie() -> impl Strategy<Value = Lie> {
    (0..KEYS, 0..5).prop_map(|(number, kind)| match kind {
        0 => Lie::Hidden(key(number)),
        1 => Lie::WithoutParts(key(number)),
        2 => Lie::WithPart(key(number), "x"),
        3 => Lie::Changed(key(number)),
        _ => Lie::Invented(key(number)),
    })
}

/// Operations fail and retrievals return wrong values; then they return the right ones again.
async fn converges_after_lies(
    all: &[Vec<Change>],
    fail: BTreeMap<usize, bool>,
    lies: BTreeMap<usize, Lie>,
) -> TestCaseResult {
    let running = Running::start(Options::default());
    running.south.with(|south| (south.fail, south.lies) = (fail, lies));
    let mut told = Vec::new();
    for changes in all {
        let best_effort = transaction(changes).on_failure(OnFailure::BestEffort);
        told.push(lines(&running.engine.apply(best_effort).await.unwrap().executed));
        let record = running.engine.apply(Transaction::downstream_resync()).await.unwrap();
        told.push(lines(&record.executed));
    }
    running.south.with(|south| {
        south.fail.clear();
        south.lies.clear();
    });
    for _ in 0..3 {
        let record = running.engine.apply(Transaction::downstream_resync()).await.unwrap();
        told.push(lines(&record.executed));
    }
    prop_assert_eq!(running.south.values(), expected(&wanted_after(all)), "{:#?}", told);
    running.stop().await;
    Ok(())
}

/// The same transactions with one, two and eight operations at once, some of them failing.
async fn parallel_is_sequential(
    all: &[Vec<Change>],
    fail: &[(usize, bool, usize)],
    reverting: &[bool],
) -> TestCaseResult {
    let mut outcomes = Vec::new();
    for parallel in [1, 2, 8] {
        let south = South::default();
        south.with(|south| {
            south.yields = true;
            for (number, part, operation) in fail {
                let name = if *part { format!("{}/x", key(*number)) } else { key(*number) };
                south.fail_on.insert((["create", "update", "delete"][*operation], name));
            }
        });
        let running = Running::over(south, Options::default().parallel(parallel));
        let mut records = Vec::new();
        for (changes, reverts) in all.iter().zip(reverting) {
            let mode = if *reverts { OnFailure::Revert } else { OnFailure::BestEffort };
            let record = running.engine.apply(transaction(changes).on_failure(mode)).await.unwrap();
            records.push((
                lines(&record.planned),
                lines(&record.executed),
                record.errors.clone(),
                running.south.values(),
            ));
        }
        let offences = running.south.with(|south| south.offences.clone());
        let statuses = running.engine.statuses(|_| true);
        let statuses: Vec<_> = statuses.iter().map(|one| format!("{one:?}")).collect();
        outcomes.push((records, offences, statuses));
        running.stop().await;
    }
    for outcome in &outcomes[1..] {
        for (alone, beside) in outcomes[0].0.iter().zip(&outcome.0) {
            prop_assert_eq!(alone, beside);
        }
        prop_assert_eq!(&outcomes[0].1, &outcome.1);
        prop_assert_eq!(&outcomes[0].2, &outcome.2);
    }
    Ok(())
}

/// The process dies in the middle of an operation, and perhaps the tail of its journal is lost.
async fn survives_a_kill(
    all: &[Vec<Change>],
    fail: BTreeMap<usize, bool>,
    halt: (usize, bool),
    reverting: bool,
    cut: usize,
) -> TestCaseResult {
    let journal = Remembered::default();
    let running = Running::start(journal.options());
    let south = running.south.clone();
    let halted = south.with(|south| {
        south.fail = fail;
        south.halt = Some(halt);
        Arc::clone(&south.halted)
    });
    let mode = if reverting { OnFailure::Revert } else { OnFailure::BestEffort };
    let mut done: Vec<Vec<Change>> = Vec::new();
    let mut told = Vec::new();
    let mut interrupted = false;
    for changes in all {
        let applied = running.engine.apply(transaction(changes).on_failure(mode));
        tokio::select! {
            record = applied => {
                let record = record.unwrap();
                told.push(lines(&record.executed));
                if !record.reverted {
                    done.push(changes.clone());
                }
            }
            () = halted.notified() => {
                interrupted = true;
                if !reverting {
                    done.push(changes.clone());
                }
                break;
            }
        }
    }
    running.kill().await;
    if journal.lose(cut) && interrupted && !reverting {
        // Without its plan the transaction never happened.
        done.pop();
    }
    south.with(|south| {
        south.fail.clear();
        south.halt = None;
    });
    let running = Running::over(south.clone(), journal.options());
    running.engine.barrier().await.unwrap();
    for _ in 0..2 {
        let record = running.engine.apply(Transaction::downstream_resync()).await.unwrap();
        told.push(lines(&record.executed));
    }
    prop_assert_eq!(south.values(), expected(&wanted_after(&done)), "{:#?}", told);
    let states = running.engine.states();
    let settled = |state: ValueState| matches!(state, ValueState::Configured | ValueState::Pending);
    prop_assert!(states.iter().all(|(_, state)| settled(*state)), "{:?} {:#?}", states, told);
    running.stop().await;
    Ok(())
}

/// A journal that a restart finds again, without waiting for a disk.
#[derive(Clone, Default)]
struct Remembered(Arc<Mutex<Vec<(String, bool)>>>);

impl Remembered {
    fn options(&self) -> Options {
        Options::default().journal(self.clone())
    }

    /// Loses the last entries that were not flushed; returns whether the plan of the last
    /// transaction was one of them.
    fn lose(&self, entries: usize) -> bool {
        let mut kept = self.0.lock().unwrap();
        let mut lost = (0..entries).map_while(|_| kept.pop_if(|(_, flushed)| !*flushed));
        lost.any(|(entry, _)| entry.starts_with("{\"Begin\""))
    }
}

impl Journal for Remembered {
    fn load(&mut self) -> Result<Vec<Entry>, journal::Error> {
        let kept = self.0.lock().unwrap();
        Ok(kept.iter().map(|(entry, _)| serde_json::from_str(entry).unwrap()).collect())
    }

    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), journal::Error> {
        self.0.lock().unwrap().push((serde_json::to_string(entry).unwrap(), false));
        if durable { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), journal::Error> {
        self.0.lock().unwrap().iter_mut().for_each(|(_, flushed)| *flushed = true);
        Ok(())
    }

    fn wants_compaction(&self) -> bool {
        self.0.lock().unwrap().len() > 40
    }

    fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) -> Result<(), journal::Error> {
        let entry = |entry| (serde_json::to_string(&entry).unwrap(), true);
        let entries = entries.map(entry).collect();
        *self.0.lock().unwrap() = entries;
        Ok(())
    }
}

/// Histories that failed once.
#[test]
fn regression_histories_converge() {
    let none: &[usize] = &[];
    for (text, fail, lost, changed) in [
        ("3 4 0 / 5{x:4} 3{x} / -4", &[(8, false)][..], none, none),
        ("1{x} 4{x} 2{x} / 3(1) / -1", &[(8, false)], &[1], none),
        ("2{x:1} / 1{x} 3{x} / -3 4 / -1", &[(4, false), (10, false)], none, none),
        ("2{x} 1{x} / 0{x} 3(2) / 4(0x) -2 / -0 4#9", &[(12, false)], none, none),
        ("3 4 0 / 5{x:4} 3{x} / -4 -5", &[(8, false)], &[4], none),
        ("3(2x){y} / 1 0{x} 4 2{x} / 3 -2", &[(9, false)], none, none),
    ] {
        let fail = fail.iter().copied().collect();
        let result = run(converges(&history(text), fail, lost, changed));
        assert!(result.is_ok(), "{text}: {result:?}");
    }
}

#[test]
fn regression_histories_converge_after_wrong_retrievals() {
    for (text, fail, lies) in [
        ("0 / 0#9 2{x} / -2 / 1(0){x}", (11, false), vec![(4, Lie::WithPart(key(0), "x"))]),
        ("0 7#9 1 / 2", (5, true), vec![(1, Lie::WithPart(key(7), "x"))]),
        ("0 7#9 1 / 2", (5, false), vec![(1, Lie::WithPart(key(7), "x"))]),
        ("-0 / 0#2{x} 1 2 / 0{y} / -0", (8, false), vec![(3, Lie::Hidden(key(0)))]),
        ("-0 / 0{x} / 1 0", (4, false), vec![(2, Lie::Hidden(key(0)))]),
        ("4{y} / -0 / -4", (4, false), vec![(2, Lie::Hidden(key(4)))]),
        ("-5 / 0{y} 1 / 0 2", (5, false), vec![(4, Lie::Hidden(key(0)))]),
        (
            "0#5{y} 6{x} / 0{x} / -6",
            (8, false),
            vec![(2, Lie::Hidden(key(6))), (3, Lie::WithoutParts(key(6)))],
        ),
        ("1{x;y} 0 / 2 / -0 / -1", (7, false), vec![(5, Lie::WithoutParts(key(1)))]),
    ] {
        let lies = lies.into_iter().collect();
        let result = run(converges_after_lies(&history(text), [fail].into(), lies));
        assert!(result.is_ok(), "{text}: {result:?}");
    }
}

#[test]
fn regression_histories_survive_a_kill() {
    let none: &[(usize, bool)] = &[];
    for (text, fail, halt, reverting, cut) in [
        ("0{x}", none, (2, true), true, 0),
        ("4 0 / 1 0{x}", &[(4, true)], (5, false), false, 0),
        ("1{x} / 0{x}", &[(3, true)], (4, false), false, 0),
        ("2 0{x}", none, (3, false), true, 2),
        ("1{x:0}", none, (2, false), false, 0),
        ("0{x} 6{x} / 0#1{x} / 0{y}", none, (8, true), false, 2),
        ("0{x} 1 / 2{x} 1{y} / 1{x}", &[(10, false), (11, true)], (12, false), true, 0),
        ("3{y:0} / 7 / 3{y} 7{x}", &[(5, false)], (6, true), true, 0),
        ("2{x} / 2 3{x:2x}", &[(7, false)], (9, true), true, 1),
        ("0 5{x:2} / 5(0) 2 -0", &[(5, false)], (6, true), true, 1),
        ("3{x} 0 / 4(3x){x} -0 / 3{x:0}", &[(8, false)], (9, false), false, 0),
    ] {
        let fail = fail.iter().copied().collect();
        let result = run(survives_a_kill(&history(text), fail, halt, reverting, cut));
        assert!(result.is_ok(), "{text}: {result:?}");
    }
}

#[test]
fn regression_cycles_are_deleted_completely() {
    let result = run(leaves_nothing(&history("6(2) 5(6){x:0} / 0 1 / 2(1) 1(5x)")));
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn regression_histories_are_reverted() {
    for (text, failing, works) in [
        ("3(2){x} 2 / -2", 2, false),
        ("3(2){x} 2 / -2", 2, true),
        ("6(0){x} / 0{x} / 4(0x) 5(4){x} / -0 6(4)", 6, false),
        ("4(0){x} 1(0){x} 0{x} / -0 4#9(2)", 5, false),
        ("4(0x){x} 1(0){x} 0{x} / -0 4(0x,1)", 5, false),
        ("3{x;y} / 3", 2, false),
    ] {
        let result = run(reverts(&history(text), failing, works));
        assert!(result.is_ok(), "{text}: {result:?}");
    }
}

proptest! {
    #![proptest_config(cases())]

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
        run(leaves_nothing(&all))?;
    }

    #[test]
    fn a_revert_restores_what_was(all in transactions(true), failing in 1_usize..12, works in any::<bool>()) {
        run(reverts(&all, failing, works))?;
    }

    #[test]
    fn a_resync_converges_after_failures_and_lies(
        all in transactions(true),
        fail in prop::collection::btree_map(1_usize..30, any::<bool>(), 0..8),
        lost in prop::collection::vec(0..KEYS, 0..3),
        changed in prop::collection::vec(0..KEYS, 0..3),
    ) {
        run(converges(&all, fail, &lost, &changed))?;
    }

    #[test]
    fn side_by_side_comes_to_the_same_as_one_by_one(
        all in transactions(true),
        fail in prop::collection::vec((0..KEYS, any::<bool>(), 0..3_usize), 0..4),
        reverting in prop::collection::vec(any::<bool>(), 6),
    ) {
        run(parallel_is_sequential(&all, &fail, &reverting))?;
    }

    #[test]
    fn a_resync_converges_once_the_south_stops_lying(
        all in transactions(true),
        fail in prop::collection::btree_map(1_usize..30, any::<bool>(), 0..4),
        lies in prop::collection::btree_map(1_usize..8, lie(), 0..4),
    ) {
        run(converges_after_lies(&all, fail, lies))?;
    }

    #[test]
    fn whatever_a_kill_interrupts_a_restart_carries_on(
        all in transactions(true),
        fail in prop::collection::btree_map(1_usize..20, any::<bool>(), 0..3),
        halt in 1_usize..25,
        works in any::<bool>(),
        reverting in any::<bool>(),
        cut in 0_usize..6,
    ) {
        run(survives_a_kill(&all, fail, (halt, works), reverting, cut))?;
    }
}
