//! `cargo xtask chaos`: rounds of real faults against the real program.
//!
//! A round starts servers, workers and, if asked for, a PostgreSQL of its own; registers real files
//! in folders; and then runs user commands while processes are killed and frozen, and disks vanish,
//! fill up and become read-only. The steps follow from a seed ([`plan`], pure). After the faults it
//! waits until transfers and rules have settled ([`calm`]); then the catalog, the folders and the
//! commands given must agree ([`verify`]). A shell cleans up processes, mounts and folders even if
//! this process is killed ([`keeper`]).

mod act;
mod calm;
mod faults;
mod furnish;
mod keeper;
mod plan;
mod process;
mod step;
mod verify;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run_to_end};
use plan::{Backend, Plan, Size};
use world::{Counts, World};

/// The seed of the rounds that the tests run.
const REHEARSED: u64 = 1;

/// How many rounds there are without `--rounds` or `--minutes`.
const ROUNDS: u64 = 4;

/// The rounds to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chaos {
    rounds: u64,
    minutes: Option<u64>,
    seed: Option<u64>,
    backends: Vec<Backend>,
    binary: Option<PathBuf>,
    size: Size,
}

impl Chaos {
    /// One short round on each catalog, the same each time.
    pub(crate) fn rehearsed(with_postgres: bool) -> Self {
        let mut backends = vec![Backend::Sqlite, Backend::Postgres];
        backends.truncate(if with_postgres { 2 } else { 1 });
        let (seed, size) = (Some(REHEARSED), Size::Rehearsal);
        let rounds = backends.len() as u64;
        Self { rounds, minutes: None, seed, backends, binary: None, size }
    }

    /// Reads `[--rounds N] [--minutes M] [--seed S] [--catalog sqlite|postgres|both] [--binary PATH]
    /// [--short]`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut chaos =
            Self { rounds: ROUNDS, seed: None, size: Size::Whole, ..Self::rehearsed(true) };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if *word == "--short" {
                chaos.size = Size::Rehearsal;
                continue;
            }
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{word} needs a number"));
            match *word {
                "--rounds" => chaos.rounds = number()?,
                "--minutes" => chaos.minutes = Some(number()?),
                "--seed" => chaos.seed = Some(number()?),
                "--binary" => chaos.binary = Some(PathBuf::from(value)),
                "--catalog" => {
                    chaos.backends = match *value {
                        "sqlite" => vec![Backend::Sqlite],
                        "postgres" => vec![Backend::Postgres],
                        "both" => vec![Backend::Sqlite, Backend::Postgres],
                        other => bail!("there is no catalog {other}: sqlite, postgres or both"),
                    }
                }
                option => bail!("chaos has no option {option}"),
            }
        }
        Ok(chaos)
    }

    /// Runs the rounds; fails at the first one in which something is wrong.
    pub(crate) fn run(&self) -> Result<()> {
        let binary = match &self.binary {
            Some(binary) => binary.canonicalize().context("--binary names no program")?,
            None => build()?,
        };
        let first = self.seed.unwrap_or_else(|| u64::from(std::process::id()) * 1_000);
        let until = self.minutes.map(|minutes| now() + Duration::from_secs(minutes * 60));
        let mut all = Counts::default();
        for round in 0.. {
            let enough = until.map_or(round >= self.rounds, |until| now() >= until);
            if enough {
                break;
            }
            let backend = self.backends[(round as usize) % self.backends.len()];
            let plan = Plan::of(first + round, backend, self.size);
            let counts = one_round(plan, &binary)?;
            all.add(counts);
        }
        println!(
            "chaos: {} commands ({} refused), {} kills, {} freezes, {} folder faults, {} restarts, {} files, {} bytes",
            all.commands,
            all.refused,
            all.kills,
            all.freezes,
            all.folder_faults,
            all.restarts,
            all.files,
            all.bytes
        );
        println!("chaos: {} rounds, seed {first}: clean", all.rounds);
        Ok(())
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.commands += other.commands;
        self.refused += other.refused;
        self.kills += other.kills;
        self.freezes += other.freezes;
        self.restarts += other.restarts;
        self.folder_faults += other.folder_faults;
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

/// Builds the program from the tree.
fn build() -> Result<PathBuf> {
    run_to_end(cargo().args(["build", "-p", "mainstay"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or_else(|| root().join("target")).join("debug/mainstay"))
}

/// Runs one round to its end.
fn one_round(plan: Plan, binary: &std::path::Path) -> Result<Counts> {
    let begun = now();
    let (seed, backend) = (plan.seed, plan.backend.name());
    let name = format!("mainstay-chaos-{}-{seed}-{backend}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let steps = plan.steps.clone();
    let mut world = World::start(plan, binary, &folder)?;
    println!("chaos: seed {seed}: {}", world.size());
    let done = disturb(&mut world, &steps);
    let mut wrong = world.verify();
    if let Err(error) = done {
        wrong.push(format!("the round ended early: {error:#}"));
    }
    if wrong.is_empty() {
        let mut counts = world.counts;
        counts.rounds = 1;
        println!("chaos: seed {seed}: clean after {:.1} s", begun.elapsed().as_secs_f32());
        return Ok(counts);
    }
    world.keep();
    for (at, (pause, step)) in steps.iter().enumerate() {
        eprintln!("  step {at} after {} ms: {step}", pause.as_millis());
    }
    for one in &wrong {
        eprintln!("chaos: WRONG: {one}");
    }
    bail!(
        "chaos: seed {seed} on {backend}: {} things are wrong; see {} (steps.log, the logs, sites-kept), \
         and try it again with --seed {seed} --rounds 1 --catalog {backend}",
        wrong.len(),
        folder.display()
    )
}

fn disturb(world: &mut World, steps: &[(Duration, step::Step)]) -> Result<()> {
    for (at, (pause, step)) in steps.iter().enumerate() {
        let until = now() + *pause;
        while now() < until {
            world.tick()?;
            short_pause();
        }
        world.tick()?;
        world.note(&format!("step {at}: {step}"));
        world.act(step)?;
    }
    world.note("the faults end");
    world.end_faults()?;
    world.become_calm()
}

/// The monotonic time.
#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
fn now() -> Instant {
    Instant::now()
}

/// Sleeps briefly between two looks at another process.
fn short_pause() {
    std::thread::sleep(Duration::from_millis(20));
}

#[expect(clippy::disallowed_methods, reason = "servers are given the time of day")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The time of day, as logs have it.
fn time_of_day() -> String {
    let day = since_epoch().as_millis() % 86_400_000;
    let (seconds, millis) = (day / 1_000, day % 1_000);
    format!("{:02}:{:02}:{:02}.{millis:03}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The time some hours from now, as the judge's flag takes it.
fn hours_ahead(hours: u64) -> Result<String> {
    let at = format!("@{}", since_epoch().as_secs() + hours * 3_600);
    let mut date = std::process::Command::new("date");
    let said = date.args(["-u", "-d", &at, "+%Y-%m-%dT%H:%M:%SZ"]).output()?;
    Ok(String::from_utf8(said.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_select_rounds_seed_and_catalog() {
        let chaos =
            Chaos::parse(&["--rounds", "3", "--seed", "9", "--catalog", "postgres"]).unwrap();
        assert_eq!((chaos.rounds, chaos.seed), (3, Some(9)));
        assert_eq!(chaos.backends, [Backend::Postgres]);
        assert_eq!(Chaos::parse(&[]).unwrap().backends.len(), 2);
        for wrong in
            [&["--rounds"][..], &["--rounds", "x"], &["--catalog", "oracle"], &["--hours", "1"]]
        {
            assert!(Chaos::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
