//! `cargo xtask`: runs the tests and the checks of the source tree.
//!
//! `test` runs all of them; the other commands are parts of it that are useful alone. Building and
//! using Mainstay does not need this crate.

mod chaos;
mod docs;
mod fuzz;
mod layering;
mod library;
mod links;
mod needs;
mod wording;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask test [ARGS…]     runs every test and check; installs what they need (ARGS go to cargo test)
cargo xtask fuzz [--seconds N] [TARGET…]
                             runs the fuzz targets, a few seconds each
cargo xtask chaos [--rounds N | --minutes M] [--seed S] [--catalog sqlite|postgres|both]
                  [--binary PATH] [--short]
                             runs rules and transfers while processes are killed and disks vanish
cargo xtask layering         checks that every crate depends only on crates that its row allows
cargo xtask library          checks that mainstay-graph builds without axum, tonic and clap
cargo xtask wording [PATH…]  checks log messages, comments and file lengths
cargo xtask links            checks that the links of all pages lead to files
cargo xtask rustdoc          checks that cargo doc gives no warnings
cargo xtask docs [--check] [PAGE…]
                             writes the generated pages (ARCHITECTURE.md, docs/cli.md), or checks them
cargo xtask needs            lists what the tests need on this machine, and whether it is there";

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
        ["library"] => library::check(),
        ["wording", paths @ ..] => wording::check(paths),
        ["links"] => links::check(),
        ["rustdoc"] => docs::rustdoc(),
        ["docs", "--check", pages @ ..] => docs::check(pages),
        ["docs", pages @ ..] => docs::write(pages),
        ["needs"] => needs::show(),
        _ => bail!("unknown command; usage:\n{USAGE}"),
    }
}

/// The environment variable with the seed of the property tests.
const SEED: &str = "PROPTEST_RNG_SEED";

fn test(arguments: &[&str]) -> Result<()> {
    let missing = needs::provide()?;
    layering::check()?;
    wording::check(&[])?;
    links::check()?;
    library::check()?;
    docs::check(&[])?;
    docs::rustdoc()?;
    let mut command = cargo();
    command.args(["test", "--workspace"]).args(arguments);
    command.env("MAINSTAY_TEST_PYTHON", needs::python());
    // A fixed seed makes two runs equal; set the variable to try another.
    if std::env::var_os(SEED).is_none() {
        command.env(SEED, "1");
    }
    run_to_end(&mut command)?;
    // Arguments narrow the run down to some tests; the long ones are left out then.
    if arguments.is_empty() && !missing.contains(&needs::CPP) {
        fuzz::Hunt::rehearsed().run()?;
    }
    if arguments.is_empty() {
        chaos::Chaos::rehearsed(!missing.contains(&needs::POSTGRES)).run()?;
    }
    match missing.as_slice() {
        [] => println!("xtask: every part of the tests has run"),
        names => println!("xtask: NOT TESTED, because a program is missing: {}", names.join(", ")),
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
