//! The generated pages: `docs/cli.md` is what the program says about itself.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{cargo, root};

const PAGE: &str = "docs/cli.md";

pub(crate) fn write() -> Result<()> {
    fs::write(root().join(PAGE), reference()?)?;
    println!("xtask: wrote {PAGE}");
    Ok(())
}

pub(crate) fn check() -> Result<()> {
    let written = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    if written != reference()? {
        bail!("{PAGE} is not current; run `cargo xtask docs`");
    }
    println!("xtask: {PAGE} is current");
    Ok(())
}

fn reference() -> Result<String> {
    let output = cargo()
        .args(["run", "--quiet", "--package", "mainstay", "--", "reference"])
        .output()
        .context("cannot run mainstay")?;
    if !output.status.success() {
        bail!("`mainstay reference` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
