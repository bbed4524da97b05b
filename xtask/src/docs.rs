//! The generated pages: `docs/cli.md`, and the table of crates in `ARCHITECTURE.md`.
//!
//! `cargo xtask docs` writes them, `cargo xtask docs --check` fails if one is out of date. Both
//! take the names of pages, because `docs/cli.md` needs a build of the whole program.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::layering::{self, crates};
use crate::{cargo, root, run_to_end};

/// A page, and how its text is made from the text it has now.
struct Page {
    path: &'static str,
    make: fn(&str) -> Result<String>,
}

const PAGES: &[Page] = &[
    Page { path: "ARCHITECTURE.md", make: architecture },
    Page { path: "docs/cli.md", make: |_| reference() },
];

const BEGIN: &str =
    "<!-- begin: crates, written by `cargo xtask docs` from xtask/src/layering/crates.rs -->\n";
const END: &str = "<!-- end: crates -->\n";

/// Writes the named pages, or all of them.
pub(crate) fn write(names: &[&str]) -> Result<()> {
    for page in chosen(names)? {
        let path = root().join(page.path);
        let now = fs::read_to_string(&path).unwrap_or_default();
        let text = (page.make)(&now).with_context(|| page.path)?;
        fs::write(path, text)?;
        println!("xtask: wrote {}", page.path);
    }
    Ok(())
}

/// Fails if one of the named pages, or of all of them, is out of date.
pub(crate) fn check(names: &[&str]) -> Result<()> {
    for page in chosen(names)? {
        let now = fs::read_to_string(root().join(page.path)).unwrap_or_default();
        if now != (page.make)(&now).with_context(|| page.path)? {
            bail!("{0} is out of date; run `cargo xtask docs {0}`", page.path);
        }
        println!("xtask: {} is current", page.path);
    }
    Ok(())
}

fn chosen(names: &[&str]) -> Result<Vec<&'static Page>> {
    if let Some(unknown) = names.iter().find(|name| PAGES.iter().all(|page| page.path != **name)) {
        let known: Vec<&str> = PAGES.iter().map(|page| page.path).collect();
        bail!("{unknown} is not a generated page; there are {}", known.join(" and "));
    }
    Ok(PAGES.iter().filter(|page| names.is_empty() || names.contains(&page.path)).collect())
}

/// ARCHITECTURE.md with the table of the crates that exist now.
fn architecture(now: &str) -> Result<String> {
    let packages = layering::packages()?;
    replace_table(now, &crates::table(|name| packages.iter().any(|package| package == name)))
}

/// The page with `table` between its two markers.
fn replace_table(page: &str, table: &str) -> Result<String> {
    let (before, rest) =
        page.split_once(BEGIN).context("the marker before the table is missing")?;
    let (_, after) = rest.split_once(END).context("the marker after the table is missing")?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

/// The reference of the command line, as `mainstay reference` prints it.
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

/// Fails if rustdoc has a warning, such as a link that leads nowhere.
pub(crate) fn rustdoc() -> Result<()> {
    let mut command = cargo();
    command.args(["doc", "--workspace", "--no-deps", "--quiet"]);
    // Module headers name private modules too, for readers of the source.
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    run_to_end(&mut command)?;
    println!("xtask: rustdoc gives no warnings");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let page = format!("above\n{BEGIN}old{END}below\n");
        let new = replace_table(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("above\n{BEGIN}\n| new |\n\n{END}below\n"));
        assert_eq!(replace_table(&new, "| new |\n").unwrap(), new);
        assert!(replace_table("no markers", "").is_err());
    }

    #[test]
    fn an_unknown_page_is_refused() {
        assert!(chosen(&["docs/store.md"]).is_err());
        assert_eq!(chosen(&["ARCHITECTURE.md"]).unwrap().len(), 1);
        assert_eq!(chosen(&[]).unwrap().len(), PAGES.len());
    }
}
