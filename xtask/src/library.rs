//! Checks that `graph` builds as a library for others: without its optional features, and without
//! the crates that only those need.

use anyhow::{Context, Result, bail};

use crate::{cargo, run_to_end};

const PACKAGE: &str = "mainstay-graph";

/// Crates that only the optional features need.
const OPTIONAL: &[&str] = &["axum", "clap", "hyper", "prost", "serde-saphyr", "tonic"];

pub(crate) fn check() -> Result<()> {
    let output = cargo()
        .args(["tree", "--package", PACKAGE, "--no-default-features", "--edges", "normal"])
        .args(["--prefix", "none", "--offline"])
        .output()
        .context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let found = optional(&tree);
    if !found.is_empty() {
        bail!("{PACKAGE} without features still needs {}", found.join(", "));
    }
    run_to_end(cargo().args(["check", "--quiet", "--package", PACKAGE, "--no-default-features"]))?;
    println!("xtask: {PACKAGE} builds without its optional features");
    Ok(())
}

/// The optional crates in the output of `cargo tree`.
fn optional(tree: &str) -> Vec<&'static str> {
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    OPTIONAL.iter().filter(|name| names.contains(name)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_crates_are_found_by_whole_name() {
        assert_eq!(optional("mainstay-graph v0.1.0\nhyper-util v0.1\nserde v1"), [""; 0]);
        assert_eq!(optional("mainstay-graph v0.1.0\ntonic v0.14\naxum v0.8"), ["axum", "tonic"]);
    }
}
