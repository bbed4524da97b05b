//! Tests of rules with more files than fit one step or one work table.

use mainstay_catalog::Daemon;
use mainstay_rules::api::{DidType, Grouping, NewRule};

use crate::world::World;

#[test]
fn a_large_rule_is_applied_in_steps_and_deleted_in_steps() {
    for mut world in World::each() {
        world.settings.bulk = 1_000;
        world.settings.step = 300;
        world.f4();
        world.collection("c", DidType::Container);
        let datasets: Vec<String> = (0..3).map(|at| format!("d{at}")).collect();
        for dataset in &datasets {
            world.dataset(dataset, 700, 1, "R3");
        }
        world.attach("c", &datasets);
        world.judge(Daemon::Evaluator);
        for grouping in [Grouping::All, Grouping::Dataset, Grouping::None] {
            let uuid = world.rule("c", 1, "T1", grouping);
            assert_eq!(world.state(&uuid), "INJECT 0/0/0");
            while world.judge(Daemon::Injector).more {}
            assert_eq!(world.state(&uuid), "REPLICATING 0/2100/0");
            if grouping == Grouping::All {
                let locks = world.locks(&uuid);
                assert!(locks.values().all(|rses| *rses == locks["d0-0"]));
            }
            world.check();
            world.delete(&uuid);
            world.check();
        }
        assert_eq!(world.sql("SELECT COUNT(*) FROM locks"), 0);
    }
}

#[test]
fn a_small_rule_does_not_wait_until_a_large_one_is_injected() {
    for mut world in World::each() {
        world.settings.bulk = 100;
        world.settings.step = 100;
        world.f4();
        world.dataset("large", 450, 1, "R3");
        world.dataset("small", 50, 1, "R3");
        let large = world.rule("large", 1, "T1", Grouping::None);
        let small = world.add(&NewRule { asynchronous: true, ..World::new_rule("small", 1, "T1") });
        assert!(world.judge(Daemon::Injector).more);
        assert_eq!(world.state(&small), "REPLICATING 0/50/0");
        assert_eq!(world.state(&large), "INJECT 0/100/0");
        while world.judge(Daemon::Injector).more {}
        assert_eq!(world.state(&large), "REPLICATING 0/450/0");
        world.judge(Daemon::Evaluator);
        world.check();
    }
}

#[test]
fn a_rule_of_thousands_of_files_is_applied_at_once() {
    for world in World::each() {
        world.f4();
        world.dataset("ds", 4_000, 1, "R3");
        for grouping in [Grouping::Dataset, Grouping::None] {
            let uuid = world.rule("ds", 2, "T1", grouping);
            assert_eq!(world.state(&uuid), "REPLICATING 0/8000/0");
            world.check();
            world.delete(&uuid);
            world.check();
        }
    }
}

#[test]
fn a_split_container_becomes_a_rule_for_each_dataset() {
    for world in World::each() {
        world.f4();
        world.collection("c", DidType::Container);
        for dataset in ["d0", "d1"] {
            world.dataset(dataset, 2, 1, "R1");
        }
        world.attach("c", &["d0".to_owned(), "d1".to_owned()]);
        world.add(&NewRule { split_container: true, ..World::new_rule("c", 1, "R1") });
        while world.judge(Daemon::Injector).more {}
        assert_eq!(world.sql("SELECT COUNT(*) FROM rules WHERE did_type = 'D' AND state = 'O'"), 2);
        assert_eq!(world.sql("SELECT COUNT(*) FROM rules"), 2);
        world.judge(Daemon::Evaluator);
        world.check();
    }
}
