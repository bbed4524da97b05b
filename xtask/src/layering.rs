//! The layering check: a crate may depend only on the crates its row names.
//!
//! The table is the one in ARCHITECTURE.md. Tests are held to it too, so that no crate is
//! understood only through another that stands above it.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// Each crate of ours, and those it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("mainstay-placement", &[]),
    ("mainstay-graph", &[]),
    ("mainstay-store", &[]),
    ("mainstay-controller", &["mainstay-store"]),
    ("mainstay-volumes", &["mainstay-placement", "mainstay-store", "mainstay-controller"]),
    ("mainstay-disks", &["mainstay-store", "mainstay-controller"]),
    ("mainstay-rules", &["mainstay-placement"]),
    (
        "mainstay-sessions",
        &["mainstay-placement", "mainstay-store", "mainstay-controller", "mainstay-volumes"],
    ),
    (
        "mainstay-server",
        &[
            "mainstay-store",
            "mainstay-controller",
            "mainstay-volumes",
            "mainstay-disks",
            "mainstay-rules",
            "mainstay-sessions",
            "mainstay-graph",
        ],
    ),
    (
        "mainstay-agent",
        &[
            "mainstay-store",
            "mainstay-graph",
            "mainstay-disks",
            "mainstay-volumes",
            "mainstay-rules",
            "mainstay-sessions",
        ],
    ),
    // The binary mounts the command trees that the engines bring along.
    (
        "mainstay",
        &[
            "mainstay-server",
            "mainstay-agent",
            "mainstay-store",
            "mainstay-graph",
            "mainstay-placement",
            "mainstay-volumes",
            "mainstay-disks",
            "mainstay-rules",
            "mainstay-sessions",
        ],
    ),
    ("xtask", &[]),
];

/// Crates too costly to build for everybody; only tests may use them.
const ONLY_IN_TESTS: &[&str] = &["k8s-openapi", "kube", "kube-core"];

pub(crate) fn check() -> Result<()> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let wrong = violations(&metadata);
    if !wrong.is_empty() {
        bail!("layering:\n  {}", wrong.join("\n  "));
    }
    println!("xtask: every crate depends only on what it may");
    Ok(())
}

/// Every dependency that the table does not allow, as a sentence.
fn violations(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in array(&metadata["packages"]) {
        let name = text(&package["name"]);
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("{name} is not in the table of xtask/src/layering.rs"));
            continue;
        };
        for dependency in array(&package["dependencies"]) {
            let other = text(&dependency["name"]);
            let ours = MAY_USE.iter().any(|(known, _)| *known == other);
            if ours && !allowed.contains(&other) {
                wrong.push(format!("{name} depends on {other}"));
            }
            if ONLY_IN_TESTS.contains(&other) && text(&dependency["kind"]) != "dev" {
                wrong.push(format!("{name} depends on {other}, which only tests may"));
            }
        }
    }
    wrong
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_table_does_not_allow_is_found() {
        let package = |name: &str, dependency: &str, kind: Value| json!({"packages": [{"name": name, "dependencies": [{"name": dependency, "kind": kind}]}]});
        let cases = [
            (package("mainstay-server", "mainstay-store", Value::Null), true),
            (package("mainstay-store", "mainstay-server", Value::Null), false),
            (package("mainstay-store", "mainstay-server", json!("dev")), false),
            (package("mainstay-store", "serde", Value::Null), true),
            (package("mainstay-store", "kube", Value::Null), false),
            (package("mainstay", "kube", json!("dev")), true),
            (package("newcomer", "serde", Value::Null), false),
        ];
        for (metadata, fine) in cases {
            assert_eq!(violations(&metadata).is_empty(), fine, "{metadata}");
        }
    }
}
