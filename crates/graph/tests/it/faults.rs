//! Every operation of a transaction fails in turn, in every way.

use mainstay_graph::{Key, KeyError, OnFailure, Operation, Options, Transaction, ValueState};

use crate::south::{Running, Thing};

fn before() -> Transaction {
    Transaction::new()
        .set_typed("thing/a", Thing::new(1))
        .set_typed("thing/b", Thing::needing(2, &["thing/a"]))
        .set_typed("thing/c", parts(3, &["x", "y"]))
        .set_typed("thing/d", Thing::needing(4, &["thing/c/x"]))
        .set_typed("thing/e", Thing::needing(5, &["thing/b"]))
}

fn after() -> Transaction {
    Transaction::new()
        .set_typed("thing/a", Thing::new(9))
        .set_typed("thing/c", parts(13, &["y", "z"]))
        .set_typed("thing/d", Thing::needing(14, &["thing/c/z"]))
        .set_typed("thing/f", Thing::needing(6, &["thing/a"]))
        .delete("thing/e")
}

fn parts(number: u32, names: &[&str]) -> Thing {
    let mut thing = Thing::new(number);
    thing.parts = names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
    thing
}

async fn operations() -> usize {
    let running = Running::start(Options::default());
    running.engine.commit(before()).await.unwrap();
    let first = running.south.with(|south| south.count);
    running.engine.commit(after()).await.unwrap();
    let all = running.south.with(|south| south.count);
    running.stop().await;
    all - first
}

#[tokio::test]
async fn a_revert_restores_the_previous_state_whichever_operation_fails() {
    for parallel in [1, 4] {
        for failing in 1..=operations().await {
            for works in [false, true] {
                let running = Running::start(Options::default().parallel(parallel));
                running.engine.commit(before()).await.unwrap();
                let (south, states) = (running.south.values(), running.engine.states());
                running.south.with(|south| {
                    let number = south.count + failing;
                    south.fail.insert(number, works);
                });
                let record = running.engine.apply(after()).await.unwrap();
                let what =
                    format!("operation {failing}, works {works}, parallel {parallel}: {record:#?}");
                // A dependent of an older transaction that is not restored does not revert it.
                let foreign =
                    |error: &KeyError| error.op == Operation::Create && &*error.key == "thing/b";
                if record.errors.iter().any(foreign) {
                    assert!(!record.reverted, "{what}");
                    running.stop().await;
                    continue;
                }
                assert!(record.reverted, "{what}");
                assert_eq!(running.south.values(), south, "{what}");
                // A dependent that failed to be deleted has an error; everything else is as before.
                let failed = |key: &Key| record.errors.iter().any(|error| error.key == *key);
                let now = running.engine.states();
                for (before, after) in states.iter().zip(&now) {
                    assert!(before == after || failed(&after.0), "{before:?} {after:?} {what}");
                }
                assert_eq!(states.len(), now.len(), "{what}");
                running.engine.commit(Transaction::downstream_resync()).await.unwrap();
                assert_eq!(running.engine.states(), states, "{what}");
                running.stop().await;
            }
        }
    }
}

#[tokio::test]
async fn best_effort_and_a_resync_converge_whichever_operation_fails() {
    let running = Running::start(Options::default());
    running.engine.commit(before()).await.unwrap();
    running.engine.commit(after()).await.unwrap();
    let wanted = running.south.values();
    running.stop().await;
    for failing in 1..=operations().await {
        for works in [false, true] {
            let running = Running::start(Options::default());
            running.engine.commit(before()).await.unwrap();
            running.south.with(|south| {
                let number = south.count + failing;
                south.fail.insert(number, works);
            });
            let record =
                running.engine.apply(after().on_failure(OnFailure::BestEffort)).await.unwrap();
            assert!(!record.errors.is_empty());
            running.engine.commit(Transaction::downstream_resync()).await.unwrap();
            let second = running.engine.commit(Transaction::downstream_resync()).await.unwrap();
            assert!(second.executed.is_empty(), "{second:#?}");
            assert_eq!(running.south.values(), wanted, "operation {failing}, works {works}");
            let states = running.engine.states();
            assert!(states.iter().all(|(_, state)| *state == ValueState::Configured), "{states:?}");
            running.stop().await;
        }
    }
}

#[tokio::test]
async fn verification_detects_operations_that_had_no_effect() {
    let one = |number| Transaction::new().set_typed("thing/a", Thing::new(number));
    for (change, problem) in [
        (one(2), "value is not equivalent"),
        (Transaction::new().delete("thing/a"), "value is not removed"),
        (Transaction::new().set_typed("thing/b", Thing::new(3)), "value is not configured"),
    ] {
        let running = Running::start(Options::default().verify(true));
        let record = running.engine.apply(one(1)).await.unwrap();
        assert!(record.errors.is_empty(), "{record:?}");
        running.south.with(|south| {
            let number = south.count + 1;
            south.claims.insert(number);
        });
        let record = running.engine.apply(change).await.unwrap();
        let problems: Vec<&str> = record.errors.iter().map(|one| one.error.as_str()).collect();
        assert_eq!(problems, [problem]);
        // The next resync repairs the difference.
        running.engine.commit(Transaction::downstream_resync()).await.unwrap();
        let resync = running.engine.commit(Transaction::downstream_resync()).await.unwrap();
        assert!(resync.executed.is_empty(), "{resync:?}");
        running.stop().await;
    }
}
