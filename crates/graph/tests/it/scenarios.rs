//! Plays every scenario file in `tests/scenarios`, sequentially and in parallel; each must meet its
//! expectations.

use mainstay_graph::scenario::{parse, play};

#[tokio::test]
async fn every_scenario_meets_its_expectations() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 15, "the scenarios are missing");
    let mut problems = String::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        for parallel in [1, 8] {
            let mut scenario = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            scenario.parallel.get_or_insert(parallel);
            let played = play(&scenario).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            for difference in &played.report.differences {
                problems += &format!("{name} (parallel {parallel}): {difference}\n");
            }
            played.stop().await;
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}
