//! Property tests: invariants of the catalog that hold after any history.

use mainstay_catalog::Daemon;
use mainstay_rules::api::{DidType, Grouping, NewRule};
use mainstay_rules::did::{self, Child};
use mainstay_rules::replica;
use mainstay_rules::rule::transfer;
use proptest::prelude::*;

use crate::world::World;

#[derive(Clone, Debug)]
enum Step {
    Add(usize, i64, Grouping),
    Delete(usize),
    Attach(usize, usize),
    Detach(usize, usize),
    Succeed(usize, usize),
    Fail(usize, usize),
    Judge(usize),
}

const RSES: [&str; 4] = ["R1", "R2", "R3", "R4"];
const DIDS: [&str; 4] = ["d0", "d1", "c0", "c1"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let grouping = prop_oneof![Just(Grouping::All), Just(Grouping::Dataset), Just(Grouping::None)];
    let step = prop_oneof![
        (0..4_usize, 1..3_i64, grouping)
            .prop_map(|(did, copies, grouping)| Step::Add(did, copies, grouping)),
        (0..6_usize).prop_map(Step::Delete),
        (0..4_usize, 0..10_usize).prop_map(|(parent, child)| Step::Attach(parent, child)),
        (0..4_usize, 0..10_usize).prop_map(|(parent, child)| Step::Detach(parent, child)),
        (0..8_usize, 0..4_usize).prop_map(|(file, rse)| Step::Succeed(file, rse)),
        (0..8_usize, 0..4_usize).prop_map(|(file, rse)| Step::Fail(file, rse)),
        (0..3_usize).prop_map(Step::Judge),
    ];
    prop::collection::vec(step, 1..40)
}

fn child(parent: usize, child: usize) -> String {
    if parent < 2 { format!("f{}", child % 8) } else { DIDS[child % 2].to_owned() }
}

/// Takes a step; refused steps change nothing.
fn take(world: &World, step: &Step, rules: &mut Vec<String>) {
    let now = world.now();
    match step {
        Step::Add(did, copies, grouping) => {
            let rule =
                NewRule { grouping: *grouping, ..World::new_rule(DIDS[*did], *copies, "T1|T2") };
            rules.extend(world.try_add(&rule));
        }
        Step::Delete(at) => {
            if !rules.is_empty() {
                let uuid = rules.remove(at % rules.len());
                world.delete(&uuid);
            }
        }
        Step::Attach(parent, at) => {
            let children = [Child::named(World::did(&child(*parent, *at)))];
            let parent = World::did(DIDS[*parent]);
            let _ = world
                .catalog
                .write_blocking(|tx| did::attach_identifier(tx, &parent, &children, true, now));
        }
        Step::Detach(parent, at) => {
            let children = [World::did(&child(*parent, *at))];
            let parent = World::did(DIDS[*parent]);
            let _ = world
                .catalog
                .write_blocking(|tx| did::detach_identifier(tx, &parent, &children, now));
        }
        Step::Succeed(file, rse) | Step::Fail(file, rse) => {
            let file = World::did(&format!("f{file}"));
            let _ = world.catalog.write_blocking(|tx| {
                let unit = replica::unit(tx, &file, RSES[*rse])?;
                let waits = "SELECT COUNT(*) FROM requests WHERE did_id = ?1 AND dest_rse_id = ?2";
                if tx.number(waits, &[unit.0.into(), unit.1.into()])? == 0 {
                    return Ok(());
                }
                match step {
                    Step::Succeed(..) => transfer::successful_transfer(tx, &[unit], now),
                    _ => transfer::failed_transfer(tx, &[unit], "no luck", None, now),
                }
            });
        }
        Step::Judge(0) => drop(world.judge(Daemon::Evaluator)),
        Step::Judge(1) => {
            world.advance(9 * 3600);
            world.judge(Daemon::Repairer);
        }
        Step::Judge(_) => drop(world.judge(Daemon::Cleaner)),
    }
}

/// The number of histories to try; `PROPTEST_CASES` overrides it.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), failure_persistence: None, ..ProptestConfig::default() })]

    /// Usage is the sum of locks, copies are on distinct RSEs, counters are right, no lock is
    /// outside its tree: the checker is clean after every history, and again once judged.
    #[test]
    fn any_history_keeps_the_catalog_consistent(steps in steps()) {
        let world = World::sqlite();
        world.f4();
        for at in 0..8 {
            world.files(&[format!("f{at}")], 10 + at, RSES[at as usize % 4]);
        }
        for (at, name) in DIDS.iter().enumerate() {
            world.collection(name, if at < 2 { DidType::Dataset } else { DidType::Container });
        }
        let mut rules = Vec::new();
        for step in &steps {
            take(&world, step, &mut rules);
            world.check();
        }
        while world.judge(Daemon::Evaluator).more {}
        world.check();
    }
}

#[test]
fn a_file_reachable_by_two_paths_keeps_its_locks_until_both_are_gone() {
    for world in World::each() {
        world.f4();
        world.collection("c", DidType::Container);
        world.dataset("d0", 2, 1, "R1");
        world.collection("d1", DidType::Dataset);
        world.attach("d1", &["d0-0".to_owned()]);
        world.attach("c", &["d0".to_owned(), "d1".to_owned()]);
        let uuid = world.rule("c", 1, "R1", Grouping::Dataset);
        world.judge(Daemon::Evaluator);
        world.detach("c", &["d0"]);
        world.judge(Daemon::Evaluator);
        assert_eq!(world.locks(&uuid).into_keys().collect::<Vec<_>>(), ["d0-0"]);
        world.detach("d1", &["d0-0"]);
        world.judge(Daemon::Evaluator);
        assert!(world.locks(&uuid).is_empty());
        world.check();
    }
}
