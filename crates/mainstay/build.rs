//! Passes the commit and the time of the build to the program, for `mainstay version` and `/version`.
//!
//! It runs again only when the checked-out commit or `SOURCE_DATE_EPOCH` changes, not at every build.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rustc-env=MAINSTAY_COMMIT={}", commit().as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=MAINSTAY_BUILD_SECONDS={}", build_seconds());
}

/// The checked-out commit, if this is a git repository and git is installed.
fn commit() -> Option<String> {
    let folder = git(&["rev-parse", "--absolute-git-dir"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    // Cargo would run this script at every build for a file that does not exist.
    for file in [Some("HEAD"), Some("packed-refs"), branch.as_deref()].into_iter().flatten() {
        let file = Path::new(&folder).join(file);
        if file.exists() {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// `SOURCE_DATE_EPOCH` for reproducible builds, else the present time, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the time of the build is what is asked for")]
fn build_seconds() -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    given.unwrap_or_else(now)
}
