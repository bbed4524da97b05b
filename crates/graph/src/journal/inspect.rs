//! Checks a journal file for damage, and repairs it at the price of what cannot be read.
//!
//! [`check`] reads a file without changing it. [`plan`] computes what a repair would keep and lose,
//! [`repair`] does it: it keeps a copy of the file beside it. Two ways are offered, because neither
//! is always right: [`Way::Skip`] leaves out only what cannot be read, [`Way::Cut`] goes back to the
//! state before the damage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::file::{empty, file_of, io, open_locked, replace, sync_folder};
use super::format::{self, Content, Piece};
use super::{Changes, Doubt, Entry, Error, Part, PlannedPart, Recovered, replay};
use crate::key::Key;
use crate::state::Operation;

/// The content of a journal file.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: usize,
    /// The number of entries that can be read.
    pub entries: usize,
    /// The number of the next transaction.
    pub next_transaction: u64,
    /// The number of wanted values.
    pub wanted: usize,
    /// The number of transactions in the history.
    pub history: usize,
    /// Whether a process uses the file; its end may then be incomplete.
    pub in_use: bool,
    /// The parts that cannot be read.
    pub findings: Vec<Finding>,
}

/// A part of a journal file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Its first byte.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// Why it cannot be read.
    pub problem: Problem,
}

/// Why a part of a journal file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Problem {
    /// The last entry is incomplete, as a crash leaves it. Opening the journal cuts it off.
    Torn,
    /// No entry fits its checksum, or the file is empty.
    Damaged,
    /// Entries that were here are gone.
    Missing {
        /// The number of the first one.
        first: u64,
        /// The number of the last one.
        last: u64,
    },
    /// The entry is repeated or in the wrong place.
    Misplaced {
        /// The number of the entry; none for entries of older versions.
        number: Option<u64>,
    },
    /// The entry is sound, but this version cannot decode it.
    Unknown {
        /// The kind of the entry.
        kind: String,
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, bytes, problem } = self;
        write!(f, "byte {offset}: ")?;
        match problem {
            Problem::Torn => {
                write!(f, "{bytes} bytes of an incomplete entry; the next start cuts them off")
            }
            Problem::Damaged if *bytes == 0 => write!(f, "the file is empty"),
            Problem::Damaged => write!(f, "{bytes} bytes are damaged"),
            other => write!(f, "{other}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => write!(f, "the last entry is incomplete"),
            Self::Damaged => write!(f, "no entry fits its checksum"),
            Self::Missing { first, last } => write!(f, "the entries {first} to {last} are missing"),
            Self::Misplaced { number: Some(number) } => {
                write!(f, "entry {number} is repeated or in the wrong place")
            }
            Self::Misplaced { number: None } => {
                write!(f, "an entry of an older version is repeated or in the wrong place")
            }
            Self::Unknown { kind, reason } => {
                write!(f, "this version cannot read an entry of the kind {kind:?}: {reason}")
            }
        }
    }
}

/// How a damaged journal is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// Leaves out what cannot be read, and keeps everything after it.
    Skip,
    /// Cuts the file off at the first part that cannot be read.
    Cut,
}

/// The result of a repair, or what it would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The losses, one line each. Empty if there is nothing to repair.
    pub losses: Vec<String>,
    /// The copy of the file as it was.
    pub copy: Option<PathBuf>,
}

/// Reads a journal, or the one in a folder, without changing it.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn check(path: &Path) -> Result<Report, Error> {
    let path = file_of(path.to_owned());
    let mut file = File::open(&path).map_err(io("open", &path))?;
    let in_use = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io("read", &path))?;
    let pieces = format::pieces(&bytes);
    let findings =
        findings(&pieces).filter(|finding| !(in_use && finding.problem == Problem::Torn)).collect();
    let sound = sound(&pieces);
    let entries = sound.len();
    let state = replay(sound);
    Ok(Report {
        path,
        bytes: bytes.len(),
        entries,
        next_transaction: state.next_seq,
        wanted: state.desired.len(),
        history: state.history.len(),
        in_use,
        findings,
    })
}

/// The losses that a repair would cause.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn plan(path: &Path, way: Way) -> Result<Repair, Error> {
    let path = file_of(path.to_owned());
    let bytes = std::fs::read(&path).map_err(io("read", &path))?;
    let (_, losses) = mend(&format::pieces(&bytes), way);
    Ok(Repair { losses, copy: None })
}

/// Repairs a journal that no process uses; a copy of the file is kept. A sound file stays as it is.
///
/// # Errors
/// Fails if another process uses the file, and if it cannot be read or written; then it is as it was.
pub fn repair(path: &Path, way: Way) -> Result<Repair, Error> {
    let path = file_of(path.to_owned());
    let mut file = open_locked(&path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io("read", &path))?;
    let (kept, losses) = mend(&format::pieces(&bytes), way);
    if losses.is_empty() {
        return Ok(Repair::default());
    }
    let copy = keep_copy(&path)?;
    replace(&path, &mut kept.into_iter())?.folder?;
    Ok(Repair { losses, copy: Some(copy) })
}

/// Copies a file beside itself under a name that is free.
fn keep_copy(path: &Path) -> Result<PathBuf, Error> {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".before-repair-{number}"));
        PathBuf::from(name)
    };
    let copy = (1..).map(name).find(|name| !name.exists()).unwrap_or_else(|| name(0));
    std::fs::copy(path, &copy).map_err(io("copy", path))?;
    let copied = File::open(&copy).map_err(io("copy", path))?;
    copied.sync_all().map_err(io("copy", path))?;
    sync_folder(&copy)?;
    Ok(copy)
}

fn findings(pieces: &[Piece]) -> impl Iterator<Item = Finding> {
    pieces.iter().filter_map(|piece| {
        let problem = problem(&piece.content)?;
        Some(Finding { offset: piece.offset, bytes: piece.length, problem })
    })
}

/// Why a part of a file cannot be used; none for an entry.
pub(super) fn problem(content: &Content) -> Option<Problem> {
    Some(match content {
        Content::Entry(_) => return None,
        Content::Unknown { kind, error } => {
            Problem::Unknown { kind: kind.clone(), reason: error.clone() }
        }
        Content::Damaged => Problem::Damaged,
        Content::Missing { from, to } => {
            Problem::Missing { first: *from, last: to.saturating_sub(1) }
        }
        Content::Misplaced { number } => Problem::Misplaced { number: *number },
        Content::Torn => Problem::Torn,
    })
}

fn sound(pieces: &[Piece]) -> Vec<Entry> {
    let entry = |piece: &Piece| match &piece.content {
        Content::Entry(entry) => Some(Entry::clone(entry)),
        _ => None,
    };
    pieces.iter().filter_map(entry).collect()
}

/// The entries that remain, and what is lost.
fn mend(pieces: &[Piece], way: Way) -> (Vec<Entry>, Vec<String>) {
    let bad = pieces.iter().position(|piece| !matches!(piece.content, Content::Entry(_)));
    let Some(bad) = bad else {
        return (sound(pieces), Vec::new());
    };
    let mut losses: Vec<String> = findings(pieces).map(|finding| finding.to_string()).collect();
    let mut mended = Mended::default();
    for piece in pieces {
        mended.take(piece);
    }
    mended.damage_ends();
    let mut kept = match way {
        Way::Cut => {
            let kept = sound(&pieces[..bad]);
            let first = first_undone(&kept);
            // A transaction whose end cannot be read counts as done, as far as its begin can be.
            losses.extend(mended.losses.iter().filter(|line| *line == AT_THE_END).cloned());
            losses.extend(differences(first, &replay(mended.kept.clone()), &replay(kept.clone())));
            losses.extend(parts_undone(first, &mended.kept));
            kept
        }
        Way::Skip => {
            losses.extend(mended.losses);
            mended.kept
        }
    };
    if kept.is_empty() {
        kept.push(empty());
    }
    (kept, losses)
}

/// The first transaction that does not count after a restart with these entries.
fn first_undone(kept: &[Entry]) -> u64 {
    let last = kept.iter().rev().find_map(|entry| match entry {
        Entry::Begin { seq, reverts: true, .. } => Some(*seq),
        Entry::Begin { seq, .. } | Entry::Commit { seq, .. } => Some(seq + 1),
        Entry::Snapshot(snapshot) => Some(snapshot.next_seq),
        Entry::Past(_) | Entry::Start { .. } | Entry::End { .. } => None,
    });
    last.unwrap_or_default()
}

/// The derived values that transactions from `first` on created or deleted.
fn parts_undone(first: u64, entries: &[Entry]) -> Vec<String> {
    let mut parts: BTreeMap<&Key, (Operation, Operation, &Key)> = BTreeMap::new();
    for entry in entries {
        let Entry::Begin { seq, parts: planned, .. } = entry else { continue };
        for part in planned.iter().filter(|_| *seq >= first) {
            let operation = part.operation;
            parts.entry(&part.key).or_insert((operation, operation, &part.base)).1 = operation;
        }
    }
    let line = |(key, (first, last, base)): (&Key, (Operation, Operation, &Key))| match (
        first == Operation::Create,
        last == Operation::Delete,
    ) {
        (true, false) => Some(format!("{key}, derived from {base}: the next start deletes it")),
        (false, true) => Some(format!("{key}, derived from {base}: the next start creates it")),
        _ => None,
    };
    parts.into_iter().filter_map(line).collect()
}

/// The changes of the wanted values that a cut undoes; `first` is the first transaction undone.
fn differences(first: u64, before: &Recovered, after: &Recovered) -> Vec<String> {
    let mut lines = Vec::new();
    match before.next_seq.checked_sub(1).filter(|last| first <= *last) {
        Some(last) if last == first => {
            lines.push(format!("transaction {first} is undone in the journal"));
        }
        Some(last) => {
            lines.push(format!("transactions {first} to {last} are undone in the journal"));
        }
        None => {}
    }
    let keys: BTreeSet<_> = before.desired.keys().chain(after.desired.keys()).collect();
    for key in keys {
        match (before.desired.get(key), after.desired.get(key)) {
            (Some(_), None) => {
                lines.push(format!("{key} is no longer wanted: the next start deletes it"));
            }
            (None, Some(_)) => {
                lines.push(format!("{key} is wanted again: the next start creates it"))
            }
            (Some(old), Some(new)) if old.value.json() != new.value.json() => {
                lines.push(format!("{key} goes back to an earlier value"));
            }
            _ => {}
        }
    }
    lines
}

/// The loss if the damage reaches to the end of the file.
const AT_THE_END: &str = "transactions at the end may be lost";

/// A journal without the parts that cannot be read.
#[derive(Default)]
struct Mended {
    kept: Vec<Entry>,
    losses: Vec<String>,
    /// The number of the next transaction, as far as known.
    next: Option<u64>,
    /// The transaction that has begun: its number, changes and planned operations.
    open: Option<(u64, Changes, Vec<PlannedPart>)>,
    /// Whether bytes were left out since the last entry with a number.
    damaged: bool,
}

impl Mended {
    fn take(&mut self, piece: &Piece) {
        let Content::Entry(entry) = &piece.content else {
            let harmless = matches!(piece.content, Content::Torn | Content::Misplaced { .. });
            self.damaged |= !harmless;
            return;
        };
        match &**entry {
            Entry::Snapshot(snapshot) => {
                // It replaces everything before it, also what is lost.
                self.next = Some(snapshot.next_seq);
                self.open = None;
                self.damaged = false;
            }
            Entry::Begin { seq, changes, parts, .. } => {
                self.reach(*seq);
                self.open = Some((*seq, changes.clone(), parts.clone()));
            }
            Entry::Commit { seq, .. } => {
                let own = self.open.take_if(|(open, _, _)| open == seq).is_some();
                if own {
                    self.damaged = false;
                } else {
                    self.reach(*seq);
                }
                self.next = Some(seq + 1);
            }
            Entry::Start { .. } | Entry::End { .. } | Entry::Past(_) => {}
        }
        self.kept.push(Entry::clone(entry));
    }

    /// A transaction comes next: those between it and the last one are lost.
    fn reach(&mut self, seq: u64) {
        self.damage_ends();
        match self.next {
            Some(next) if next < seq => {
                self.losses.push(format!("transactions {next} to {} are lost", seq - 1));
            }
            None if seq > 0 => {
                self.losses.push(format!("everything before transaction {seq} is lost"));
            }
            _ => {}
        }
        self.next = Some(seq);
    }

    /// The end of the transaction under way is lost: its values count as wanted, so that no object
    /// of it is deleted.
    fn damage_ends(&mut self) {
        let open = self.open.take();
        if !std::mem::take(&mut self.damaged) {
            return;
        }
        let Some((seq, changes, planned)) = open else {
            self.losses.push(AT_THE_END.to_owned());
            return;
        };
        let keys: Vec<&str> = changes.iter().map(|(key, _)| key.as_str()).collect();
        self.losses.push(format!(
            "the end of transaction {seq} is lost; it counts as done: {}",
            keys.join(", ")
        ));
        let parts = planned.into_iter().map(|PlannedPart { key, base, value, .. }| {
            (key, Some(Part { base, doubt: Doubt::Uncertain, value }))
        });
        self.kept.push(Entry::Commit {
            seq,
            parts: parts.collect(),
            changes,
            retries: Vec::new(),
            record: None,
            revisions: None,
        });
        self.next = Some(seq + 1);
    }
}
