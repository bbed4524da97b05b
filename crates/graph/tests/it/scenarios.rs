//! Plays every scenario file in `tests/scenarios`, sequentially and in parallel; each must meet its
//! expectations.

use std::time::Duration;

use mainstay_graph::scenario::{DelaySpec, Report, Scenario, parse, play};

/// All scenarios, by name.
fn scenarios() -> Vec<(String, Scenario)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 15, "the scenarios are missing");
    let read = |file: std::path::PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let scenario = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, scenario)
    };
    files.into_iter().map(read).collect()
}

async fn report(name: &str, scenario: &Scenario) -> Report {
    let played = play(scenario).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = played.report.clone();
    played.stop().await;
    report
}

#[tokio::test]
async fn every_scenario_meets_its_expectations() {
    let mut problems = String::new();
    for (name, scenario) in scenarios() {
        for parallel in [1, 8] {
            let mut scenario = scenario.clone();
            scenario.parallel.get_or_insert(parallel);
            for difference in &report(&name, &scenario).await.differences {
                problems += &format!("{name} (parallel {parallel}): {difference}\n");
            }
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

/// Every operation takes time, so that operations overlap as far as their plan allows.
#[tokio::test]
async fn scenarios_end_the_same_whether_one_two_or_eight_operations_overlap() {
    let mut saved = Duration::ZERO;
    for (name, mut scenario) in scenarios() {
        scenario.delay = vec![DelaySpec::all(Duration::from_millis(10))];
        let mut reports = Vec::new();
        for parallel in [1, 2, 8] {
            scenario.parallel = Some(parallel);
            reports.push(report(&name, &scenario).await);
        }
        let (alone, beside) = reports.split_first().unwrap();
        for (other, limit) in beside.iter().zip([2, 8]) {
            let steps = alone.steps.iter().zip(&other.steps);
            for (number, (one, other)) in steps.enumerate() {
                let place = format!("{name}, limit {limit}, step {}", number + 1);
                assert_eq!(one.states, other.states, "{place}");
                assert_eq!(one.south, other.south, "{place}");
                assert_eq!(one.pending, other.pending, "{place}");
                assert_eq!(one.error, other.error, "{place}");
                for (one, other) in one.transactions.iter().zip(&other.transactions) {
                    assert_eq!(one.planned, other.planned, "{place}");
                    assert_eq!(one.executed, other.executed, "{place}");
                    assert_eq!(one.errors, other.errors, "{place}");
                }
                assert_eq!(one.transactions.len(), other.transactions.len(), "{place}");
            }
        }
        saved += alone.slept.saturating_sub(beside[1].slept);
    }
    assert!(saved > Duration::ZERO, "no operations overlapped");
}
