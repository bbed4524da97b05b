//! The layering check: a crate may depend only on the crates that its row names.
//!
//! The rows are in [`crates`], the only place to edit. Tests are held to them too, so that no crate can be
//! understood only through one that stands above it.

pub(crate) mod crates;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// Crates too costly to build for everybody; only tests may use them.
const ONLY_IN_TESTS: &[&str] = &["k8s-openapi", "kube", "kube-core"];

/// Database drivers, which only these crates may use: an agent moves files without them.
const DRIVERS: &[&str] = &["rusqlite", "tokio-postgres"];
const MAY_USE_DRIVERS: &[&str] = &["mainstay-store", "mainstay-catalog"];

pub(crate) fn check() -> Result<()> {
    let wrong = violations(&metadata()?);
    if !wrong.is_empty() {
        bail!("layering:\n  {}", wrong.join("\n  "));
    }
    println!("xtask: every crate depends only on crates that its row allows");
    Ok(())
}

/// The names of the packages of the workspace.
pub(crate) fn packages() -> Result<Vec<String>> {
    let metadata = metadata()?;
    Ok(array(&metadata["packages"]).iter().map(|one| text(&one["name"]).to_owned()).collect())
}

/// The answer of `cargo metadata` about the workspace.
fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Every dependency that the rows do not allow, as a sentence.
fn violations(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in array(&metadata["packages"]) {
        let name = text(&package["name"]);
        let Some(row) = crates::of_package(name) else {
            wrong.push(format!("{name} has no row in xtask/src/layering/crates.rs"));
            continue;
        };
        for dependency in array(&package["dependencies"]) {
            let other = text(&dependency["name"]);
            // A crate's tests may name the crate itself, to turn on features.
            let used = crates::of_package(other).filter(|_| other != name);
            if used.is_some_and(|used| !row.may_use(used.name)) {
                wrong.push(format!("{name} depends on {other}"));
            }
            let driver = DRIVERS.contains(&other) && !MAY_USE_DRIVERS.contains(&name);
            if driver && text(&dependency["kind"]) != "dev" {
                wrong.push(format!("{name} depends on the database driver {other}"));
            }
            if ONLY_IN_TESTS.contains(&other) && text(&dependency["kind"]) != "dev" {
                wrong.push(format!("{name} depends on {other}, which only tests may use"));
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
    fn dependencies_that_no_row_allows_are_reported() {
        let package = |name: &str, dependency: &str, kind: Value| json!({"packages": [{"name": name, "dependencies": [{"name": dependency, "kind": kind}]}]});
        let cases = [
            (package("mainstay-server", "mainstay-store", Value::Null), true),
            (package("mainstay-store", "mainstay-server", Value::Null), false),
            (package("mainstay-store", "mainstay-server", json!("dev")), false),
            (package("mainstay-placement", "mainstay-clock", Value::Null), true),
            (package("mainstay-store", "serde", Value::Null), true),
            (package("mainstay-store", "kube", Value::Null), false),
            (package("mainstay", "kube", json!("dev")), true),
            (package("mainstay-transfers", "rusqlite", Value::Null), false),
            (package("mainstay-catalog", "rusqlite", Value::Null), true),
            (package("mainstay-rucio", "tokio-postgres", json!("dev")), true),
            (package("newcomer", "serde", Value::Null), false),
        ];
        for (metadata, allowed) in cases {
            assert_eq!(violations(&metadata).is_empty(), allowed, "{metadata}");
        }
    }
}
