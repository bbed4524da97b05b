//! `mainstay bench api` runs, and its rows have the promised shape. How fast is not judged here.

use std::process::Command;

use crate::process::{MAINSTAY, text_of};

#[test]
fn the_benchmark_gives_every_row() {
    let output = Command::new(MAINSTAY)
        .args(["bench", "api", "-o", "json", "--objects", "700", "--watchers", "20"])
        .args(["--connections", "4", "--time", "200ms"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).expect("a list of rows");
    let cases: Vec<String> = rows
        .iter()
        .map(|row| {
            format!("{} {}", row["backend"].as_str().unwrap(), row["case"].as_str().unwrap())
        })
        .collect();
    // Memory has nothing to restart from.
    let names = ["create", "memory", "get", "list", "update", "apply", "mixed", "watch", "restart"];
    let expected: Vec<String> = [("sqlite", 9), ("memory", 8)]
        .iter()
        .flat_map(|(backend, count)| {
            names[..*count].iter().map(move |name| format!("{backend} {name}"))
        })
        .collect();
    assert_eq!(cases, expected);
    for row in &rows {
        let fields: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            ["backend", "case", "p50_ms", "p99_ms", "rate", "rss_mb", "size", "unit"]
        );
        let measured = match row["case"].as_str() {
            Some("memory") => "rss_mb",
            Some("restart") => "p50_ms",
            _ => "rate",
        };
        assert!(row[measured].as_f64().unwrap() > 0.0, "{row}");
    }
}
