//! `graph journal check` and `graph journal repair`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{Output, print};
use crate::journal::Error;
use crate::journal::inspect::{self, Repair, Report, Way};

/// The subcommands of `graph journal`.
#[derive(Debug, Clone, Subcommand)]
#[non_exhaustive]
pub enum JournalCommand {
    /// Print what a journal holds; exits with 1 if a part cannot be read
    Check {
        /// The journal, or its folder
        path: PathBuf,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Repair a damaged journal that no engine uses
    #[command(after_help = "Examples:
  mainstay graph journal repair /var/lib/graph               show what each way would lose
  mainstay graph journal repair /var/lib/graph --skip        show what leaving out the damage loses
  mainstay graph journal repair /var/lib/graph --skip --yes   do it

A copy of the journal is better. Without --yes nothing is changed (exit code 1); with it, the file is
kept beside the repaired one. Values that are lost are no longer wanted: the next start deletes them.")]
    Repair {
        /// The journal, or its folder
        path: PathBuf,
        /// Leave out what cannot be read, and keep everything after it
        #[arg(long, conflicts_with = "cut")]
        skip: bool,
        /// Go back to the state before the damage
        #[arg(long)]
        cut: bool,
        /// Change the file
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(command: JournalCommand) -> Result<i32, String> {
    match command {
        JournalCommand::Check { path, output } => {
            let report = inspect::check(&path).map_err(|error| described(&error))?;
            match output {
                Output::Text => print(&text(&report)),
                Output::Json => {
                    let json = serde_json::to_string_pretty(&report);
                    print(&json.map_err(|error| error.to_string())?);
                }
            }
            Ok(i32::from(!report.findings.is_empty()))
        }
        JournalCommand::Repair { path, skip, cut, yes } => {
            let way = match (skip, cut) {
                (true, _) => Some(Way::Skip),
                (_, true) => Some(Way::Cut),
                _ => None,
            };
            repair(&path, way, yes)
        }
    }
}

fn repair(path: &std::path::Path, way: Option<Way>, yes: bool) -> Result<i32, String> {
    let plan = |way: Way| inspect::plan(path, way).map_err(|error| described(&error));
    let Some(way) = way else {
        if yes {
            return Err("choose --skip or --cut".to_owned());
        }
        let (skip, cut) = (plan(Way::Skip)?, plan(Way::Cut)?);
        if skip.losses.is_empty() {
            return Ok(nothing(path));
        }
        print(&format!("with --skip:\n{}with --cut:\n{}", listed(&skip), listed(&cut)));
        eprintln!("nothing was changed; choose --skip or --cut, and add --yes");
        return Ok(1);
    };
    if !yes {
        let planned = plan(way)?;
        if planned.losses.is_empty() {
            return Ok(nothing(path));
        }
        print(&listed(&planned));
        eprintln!("nothing was changed; add --yes to accept this");
        return Ok(1);
    }
    let repaired = inspect::repair(path, way).map_err(|error| described(&error))?;
    let Some(copy) = &repaired.copy else {
        return Ok(nothing(path));
    };
    print(&listed(&repaired));
    eprintln!("the original journal was saved as {}", copy.display());
    eprintln!("{} is repaired", path.display());
    Ok(0)
}

fn nothing(path: &std::path::Path) -> i32 {
    eprintln!("{}: nothing to repair", path.display());
    0
}

fn listed(repair: &Repair) -> String {
    repair.losses.iter().map(|line| format!("  {line}\n")).collect()
}

fn text(report: &Report) -> String {
    let Report { path, bytes, entries, next_transaction, wanted, history, .. } = report;
    let mut text = format!(
        "{}: {bytes} bytes, {entries} entries, {wanted} wanted values, {history} transactions in \
         the history, next transaction {next_transaction}\n",
        path.display()
    );
    if report.in_use {
        text.push_str("a process uses it\n");
    }
    for finding in &report.findings {
        text.push_str(&format!("{finding}\n"));
    }
    if report.findings.is_empty() {
        text.push_str("no damage found\n");
    }
    text
}

/// An error with all its causes.
fn described(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, FileJournal, Journal};

    fn begin(seq: u64) -> Entry {
        Entry::Begin { seq, reverts: false, changes: Vec::new(), parts: Vec::new() }
    }

    #[test]
    fn exit_codes_tell_damage_from_bad_usage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let check = || run(JournalCommand::Check { path: path.clone(), output: Output::Json });
        let repair =
            |skip, cut, yes| run(JournalCommand::Repair { path: path.clone(), skip, cut, yes });
        assert!(check().unwrap_err().contains("cannot open"), "there is no journal yet");
        let mut journal = FileJournal::open(&path).unwrap();
        for seq in 0..3 {
            journal.append(&begin(seq), true).unwrap();
        }
        drop(journal);
        assert_eq!((check(), repair(true, false, true)), (Ok(0), Ok(0)), "nothing to repair");
        let file = path.join("journal");
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(check(), Ok(1));
        assert_eq!(repair(false, false, false), Ok(1), "shows both ways");
        assert_eq!(repair(false, true, false), Ok(1), "shows one way");
        assert!(repair(false, false, true).is_err(), "the way must be chosen");
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "nothing was changed");
        assert_eq!(repair(false, true, true), Ok(0));
        assert_eq!(check(), Ok(0));
        assert!(path.join("journal.before-repair-1").is_file());
    }
}
