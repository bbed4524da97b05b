//! Checks that every relative link of a Markdown page leads to a file or folder that exists.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::root;

/// Folders that hold no pages of ours.
const SKIPPED: &[&str] = &[".git", "target", "corpus", "artifacts", "golden"];

pub(crate) fn check() -> Result<()> {
    let mut pages = Vec::new();
    collect(&root(), &mut pages)?;
    let mut dead = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        let folder = page.parent().unwrap_or(page);
        let missing =
            targets(&text).into_iter().filter(|(_, target)| !folder.join(target).exists());
        let shown = page.strip_prefix(root()).unwrap_or(page).display();
        dead.extend(
            missing.map(|(line, target)| format!("{shown}:{line}: {target} does not exist")),
        );
    }
    if !dead.is_empty() {
        bail!("links:\n  {}", dead.join("\n  "));
    }
    println!("xtask: every link of {} pages leads to a file", pages.len());
    Ok(())
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|one| name == *one));
        if path.is_dir() && !skipped {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(())
}

/// The relative targets of a page's links, each with its line, without anchors.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        for rest in line.split("](").skip(1).filter(|_| !fenced) {
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains(':') {
                found.push((index + 1, target));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_are_found_without_their_anchors() {
        let text =
            "[a](docs/a.md#part) and [b](https://x.y/z)\n```\n[c](no)\n```\n[d](#here) [e](../e)";
        assert_eq!(targets(text), [(1, "docs/a.md"), (5, "../e")]);
    }
}
