//! `cargo xtask fuzz`: runs each target of `fuzz/` for a few seconds, on the installed toolchain.
//!
//! `cargo fuzz run -s none TARGET` does the same for as long as one likes, but builds everything
//! anew for it. Here only our own crates are instrumented: this program wraps rustc (see
//! [`compile`]) and adds the flags to those alone, so that all else is shared with other builds.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::{cargo, root};

/// The environment variable that tells this program to act as rustc's wrapper.
pub(crate) const IN_PLACE_OF_RUSTC: &str = "MAINSTAY_XTASK_RUSTC";

/// How long each target runs without `--seconds`.
const SECONDS: u64 = 10;

/// How many inputs each target tries in the tests. They start from one seed and an empty corpus, so
/// that two runs of the tests give the same result.
const RUNS: u64 = 10_000;

/// Compiler flags that show libFuzzer which code ran.
const INSTRUMENTED: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Copt-level=1",
    "-Cdebug-assertions=on",
];

/// When a target stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// After so many seconds, from a new seed and the corpus of earlier runs.
    Seconds(u64),
    /// After so many inputs, the same ones each time.
    Runs(u64),
}

/// Which targets, and for how long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hunt {
    until: Until,
    targets: Vec<String>,
}

impl Hunt {
    /// All targets, briefly, with the same inputs each time.
    pub(crate) fn rehearsed() -> Self {
        Self { until: Until::Runs(RUNS), targets: Vec::new() }
    }

    /// Reads `[--seconds N] [TARGET…]`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut hunt = Self { until: Until::Seconds(SECONDS), targets: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--seconds" => {
                    let seconds = words.next().context("--seconds needs a number")?;
                    hunt.until =
                        Until::Seconds(seconds.parse().context("--seconds needs a number")?);
                }
                option if option.starts_with('-') => bail!("fuzz has no option {option}"),
                target => hunt.targets.push(target.to_owned()),
            }
        }
        Ok(hunt)
    }

    /// Builds the targets and runs them, two at a time.
    pub(crate) fn run(&self) -> Result<()> {
        let known = known()?;
        if let Some(wrong) = self.targets.iter().find(|target| !known.contains(target)) {
            bail!("there is no fuzz target {wrong}; there is: {}", known.join(", "));
        }
        let targets = if self.targets.is_empty() { &known } else { &self.targets };
        let folder = build(targets)?;
        let each = match self.until {
            Until::Seconds(seconds) => format!("for {seconds} s each"),
            Until::Runs(runs) => format!("with {runs} inputs each"),
        };
        println!("xtask: fuzzing {} {each}", targets.join(", "));
        let mut failed = Vec::new();
        for pair in targets.chunks(2) {
            let running: Vec<_> = pair
                .iter()
                .map(|target| {
                    let (target, program) = (target.clone(), folder.join(target));
                    let until = self.until;
                    thread::spawn(move || (hunt(&target, program, until), target))
                })
                .collect();
            for one in running {
                match one.join() {
                    Ok((Ok(line), target)) => println!("xtask: {target}: {line}"),
                    Ok((Err(error), target)) => {
                        eprintln!("xtask: {target}: {error:#}");
                        failed.push(target);
                    }
                    Err(_) => bail!("a fuzzing thread panicked"),
                }
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        bail!("fuzzing found something in {}: see fuzz/artifacts", failed.join(", "))
    }
}

/// The names of all targets.
fn known() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the targets; returns their folder.
fn build(targets: &[String]) -> Result<PathBuf> {
    let manifest = root().join("fuzz/Cargo.toml");
    let target_dir = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => root().join("target"),
    };
    let mut command = cargo();
    command.arg("build").arg("--manifest-path").arg(manifest);
    command.arg("--target-dir").arg(&target_dir);
    for target in targets {
        command.args(["--bin", target]);
    }
    command.env("RUSTC_WRAPPER", std::env::current_exe()?).env(IN_PLACE_OF_RUSTC, "1");
    crate::run_to_end(&mut command)?;
    Ok(target_dir.join("debug"))
}

/// Runs one target; returns its last line.
fn hunt(target: &str, program: PathBuf, until: Until) -> Result<String> {
    let folder = root().join("fuzz");
    let artifacts = folder.join("artifacts").join(target);
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(program);
    match until {
        Until::Seconds(seconds) => {
            let corpus = folder.join("corpus").join(target);
            fs::create_dir_all(&corpus)?;
            command.arg(corpus).arg(format!("-max_total_time={seconds}"));
        }
        Until::Runs(runs) => {
            command.arg("-seed=1").arg(format!("-runs={runs}"));
        }
    }
    let output = command
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=1024", "-print_final_stats=0"])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let tail: Vec<&str> = said.lines().rev().take(60).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{}\n{}", output.status, tail.join("\n"));
    }
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// Wraps rustc: `arguments` are the compiler, then its arguments.
pub(crate) fn compile(arguments: &[OsString]) -> Result<()> {
    let (rustc, rest) = arguments.split_first().context("cargo named no compiler")?;
    let mut command = Command::new(rustc);
    command.args(rest);
    if is_ours(rest) {
        command.args(INSTRUMENTED);
    }
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Whether the crate to compile is one of ours: they lie in this repository.
fn is_ours(arguments: &[OsString]) -> bool {
    let texts: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let name =
        texts.iter().position(|text| *text == "--crate-name").and_then(|at| texts.get(at + 1));
    let builds = name.is_some_and(|name| *name == "build_script_build");
    let source = texts.iter().find(|text| text.ends_with(".rs"));
    !builds && source.is_some_and(|path| !path.contains("/registry/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_select_targets_and_seconds() {
        let hunt = |seconds, targets: &[&str]| Hunt {
            until: Until::Seconds(seconds),
            targets: targets.iter().map(|target| (*target).to_owned()).collect(),
        };
        assert_eq!(Hunt::parse(&[]).unwrap(), hunt(SECONDS, &[]));
        assert_eq!(Hunt::parse(&["--seconds", "3", "protobuf"]).unwrap(), hunt(3, &["protobuf"]));
        assert!(Hunt::parse(&["--seconds"]).is_err());
        assert!(Hunt::parse(&["--minutes", "3"]).is_err());
    }

    #[test]
    fn every_target_has_its_file_and_its_row() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        for target in known().unwrap() {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
        }
    }

    #[test]
    fn only_our_own_crates_are_instrumented() {
        let of = |name: &str, path: &str| {
            ["--crate-name", name, "--edition=2024", path].map(OsString::from)
        };
        assert!(is_ours(&of("mainstay_store", "/x/crates/store/src/lib.rs")));
        assert!(is_ours(&of("protobuf", "fuzz_targets/protobuf.rs")));
        assert!(!is_ours(&of("serde", "/home/x/.cargo/registry/src/y/serde/src/lib.rs")));
        assert!(!is_ours(&of("build_script_build", "/x/crates/store/build.rs")));
        assert!(!is_ours(&["-vV"].map(OsString::from)));
    }
}
