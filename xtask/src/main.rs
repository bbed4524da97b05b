//! `cargo xtask`: the chores of the house.
//!
//! `test` runs everything there is to run; the other commands are parts of it that are useful
//! alone. Nothing here is needed to build or use Mainstay.

mod chaos;
mod docs;
mod fuzz;
mod layering;
mod needs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask test [ARGS…]     every test there is; installs what they need (ARGS go to cargo test)
cargo xtask fuzz [--seconds N] [TARGET…]
                             the fuzz targets, a few seconds each
cargo xtask chaos [--rounds N | --minutes M] [--seed S] [--catalog sqlite|postgres|both]
                  [--binary PATH] [--short]
                             rules and transfers while processes are killed and disks vanish
cargo xtask layering         does every crate depend only on what it may?
cargo xtask docs [--check]   write docs/cli.md from the program itself, or see that it is current
cargo xtask needs            what the tests need on this machine, and whether it is there";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if std::env::var_os(fuzz::IN_PLACE_OF_RUSTC).is_some() {
        return fuzz::compile(&std::env::args_os().skip(1).collect::<Vec<_>>());
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", rest @ ..] => test(rest),
        ["fuzz", rest @ ..] => fuzz::Hunt::parse(rest)?.run(),
        ["chaos", rest @ ..] => chaos::Chaos::parse(rest)?.run(),
        ["layering"] => layering::check(),
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
        ["needs"] => needs::show(),
        _ => bail!("say what to do:\n{USAGE}"),
    }
}

/// Where the property tests begin.
const SEED: &str = "PROPTEST_RNG_SEED";

fn test(arguments: &[&str]) -> Result<()> {
    let missing = needs::provide()?;
    layering::check()?;
    docs::check()?;
    let mut command = cargo();
    command.args(["test", "--workspace"]).args(arguments);
    command.env("MAINSTAY_TEST_PYTHON", needs::python());
    // The same run twice gives the same answer; other seeds are tried by naming one.
    if std::env::var_os(SEED).is_none() {
        command.env(SEED, "1");
    }
    run_to_end(&mut command)?;
    // Narrowed down to some tests, there is no time for others.
    if arguments.is_empty() && !missing.contains(&needs::CPP) {
        fuzz::Hunt::rehearsed().run()?;
    }
    if arguments.is_empty() {
        chaos::Chaos::rehearsed(!missing.contains(&needs::POSTGRES)).run()?;
    }
    match missing.as_slice() {
        [] => println!("xtask: every part of the tests has run"),
        names => println!("xtask: NOT TESTED, because it could not be had: {}", names.join(", ")),
    }
    Ok(())
}

/// The root of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

fn run_to_end(command: &mut Command) -> Result<()> {
    let text = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot run {text}"))?;
    if !status.success() {
        bail!("{text} failed ({status})");
    }
    Ok(())
}
