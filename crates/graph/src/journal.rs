//! The journal: the state that survives a restart. It holds the wanted values, the history, the
//! scheduled retries, and the operations that were under way.
//!
//! The engine appends [`Entry`]s to a [`Journal`] and, after a restart, [`replay`]s them. A
//! transaction writes `Begin` before its first operation and `Commit` after its last; every operation
//! has a `Start` and an `End`. A restart concludes from them:
//!
//! * an operation with a start and no end is *uncertain*: its outcome is unknown;
//! * a derived value that an interrupted transaction was about to change, or one that failed earlier,
//!   may differ from what its base implies: the operation is repeated. Starts and ends are not
//!   flushed one by one, so the last of them may be lost; they follow from the plan in `Begin`, up to
//!   the moment at which the transaction leaves the plan, and that moment is flushed;
//! * a transaction with a begin and no commit was interrupted. If it reverts on failure it never
//!   happened: the values wanted before are wanted again. Otherwise it counts, and a resync finishes
//!   it.
//!
//! With every transaction the revisions of the values it changed are written, as far as history is
//! kept, so that a restart knows the past: rolling back, snapshots and timelines go on.
//!
//! [`FileJournal`] keeps entries in one file, each with its length, a checksum and a running number.
//! An incomplete entry at the end is cut off when the file is opened; any other damage refuses to
//! open, because the engine would delete the values of lost entries. [`inspect`](mod@inspect) checks and repairs a file.
//!
//! ```
//! use mainstay_graph::journal::{Journal, replay};
//! use mainstay_graph::{FileJournal, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("journal");
//! let mut journal = FileJournal::open(path)?;
//! assert!(replay(journal.load()?).desired.is_empty());
//! let options = Options::default().journal(journal);
//! # drop(options);
//! # Ok(())
//! # }
//! ```

mod file;
mod format;
pub mod inspect;
mod past;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::file::FileJournal;
pub use self::past::{Gap, PastError, PastNode, PastRevision, RevisionChange, Rollup};
use crate::descriptor::UserLabels;
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::state::Operation;
use crate::transaction::Retry;
use crate::value::Value;

/// Why the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system returned an error.
    #[error("cannot {action} the journal {}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the file open.
    #[error("the journal {} is used by another process; stop that process first", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// An entry cannot be read, and a crash does not explain it.
    #[error(
        "the journal {} is damaged at byte {offset}: {bytes} bytes hold no entry that fits its \
         checksum, and {follow} valid entries follow; the engine does not start, because it would \
         delete the values of lost entries. Run `mainstay graph journal check {0}`, then restore a \
         copy or run `mainstay graph journal repair {0}`",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first byte that cannot be read.
        offset: u64,
        /// The number of bytes that hold no entry.
        bytes: usize,
        /// The number of valid entries after them.
        follow: usize,
    },
    /// Whole entries are missing, repeated or in the wrong order.
    #[error(
        "the journal {} is damaged at byte {offset}: {problem}; the engine does not start, because \
         it would delete or bring back values. Run `mainstay graph journal check {0}`, then restore \
         a copy or run `mainstay graph journal repair {0}`",
        path.display()
    )]
    Disordered {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        offset: u64,
        /// The disorder.
        problem: inspect::Problem,
    },
    /// The file holds no entry at all.
    #[error(
        "the journal {} holds no entry in {bytes} bytes, although a journal is created with one; the \
         engine does not start, because it would forget every value. Restore a copy. If the journal \
         was never used, delete the file",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
    /// An entry was written by a newer version.
    #[error(
        "the journal {} holds an entry of the kind {kind:?} at byte {offset}, which this version \
         cannot read ({reason}); start the version that wrote it, or see `mainstay graph journal \
         check {0}`",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The first byte of the entry.
        offset: u64,
        /// The kind of the entry.
        kind: String,
        /// Why it cannot be decoded.
        reason: String,
    },
    /// An earlier error of the file system; entries may be lost.
    #[error("the journal {} failed earlier; mend the cause and restart", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
    },
    /// An entry does not fit the format.
    #[error("a journal entry of {length} bytes is larger than 4 GiB")]
    TooLarge {
        /// Its size.
        length: usize,
    },
    /// An entry cannot be encoded as JSON.
    #[error("a journal entry cannot be encoded")]
    Encoding(#[source] serde_json::Error),
}

/// A wanted value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Desired {
    /// The value.
    pub value: Value,
    /// The labels of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<UserLabels>,
    /// How its failures are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// How a derived value may differ from what its base implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Doubt {
    /// It does not exist, although its base does.
    Absent,
    /// Its creation was planned or under way; the outcome is unknown.
    Unfinished,
    /// It existed, and may have been changed or deleted.
    Uncertain,
}

/// A derived value that differs, or may differ, from what its base implies. A retrieval returns only
/// bases, so this must be remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Part {
    /// The key of its base.
    pub base: Key,
    /// How it may differ.
    pub doubt: Doubt,
    /// The value, needed to delete it once it is no longer wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// A planned operation on a derived value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedPart {
    /// The key of the value.
    pub key: Key,
    /// The key of its base.
    pub base: Key,
    /// The kind of operation.
    pub operation: Operation,
    /// The value before it, or the new one if there was none.
    pub value: Option<Value>,
}

/// Operations that will be retried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduledRetry {
    /// The time of the retry.
    pub due: Timestamp,
    /// The transaction that first failed.
    pub retry_for: u64,
    /// The last transaction that tried them; a value changed later is left out.
    pub failed_in: u64,
    /// The number of the retry.
    pub attempt: u32,
    /// The keys of the base values.
    pub keys: Vec<Key>,
    /// Those of the keys whose failed operation reverted another; absent in older journals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reverts: Vec<Key>,
}

/// An entry of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Entry {
    /// The state so far; replaces all earlier entries.
    Snapshot(Box<Recovered>),
    /// A share of the history that belongs to the snapshot before it.
    Past(Box<Rollup>),
    /// A transaction is about to be executed.
    Begin {
        /// Its sequence number.
        seq: u64,
        /// Whether it is reverted on failure.
        reverts: bool,
        /// The values it sets; none for those it deletes.
        changes: Vec<(Key, Option<Desired>)>,
        /// The planned operations on derived values.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<PlannedPart>,
    },
    /// An operation is about to be started.
    Start {
        /// The key of the value.
        key: Key,
        /// The key of its base, if it is derived.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<Key>,
        /// The kind of operation.
        operation: Operation,
        /// Whether it reverts another one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        revert: bool,
    },
    /// An operation has ended.
    End {
        /// The key of the value.
        key: Key,
        /// Whether it failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        failed: bool,
    },
    /// A transaction has ended.
    Commit {
        /// Its sequence number.
        seq: u64,
        /// The values that it changed, as they are wanted now.
        changes: Vec<(Key, Option<Desired>)>,
        /// Derived values that began or ceased to differ from what their bases imply.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<(Key, Option<Part>)>,
        /// All scheduled retries.
        retries: Vec<ScheduledRetry>,
        /// The record, if history is kept.
        record: Option<Arc<TransactionRecord>>,
        /// The revisions that it made. None if no history was kept, and in entries of the first
        /// version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revisions: Option<Vec<RevisionChange>>,
    },
}

/// The state after a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovered {
    /// The sequence number of the next transaction.
    pub next_seq: u64,
    /// The wanted values.
    pub desired: BTreeMap<Key, Desired>,
    /// The scheduled retries.
    pub retries: Vec<ScheduledRetry>,
    /// The history.
    pub history: Vec<Arc<TransactionRecord>>,
    /// The revisions of every value, oldest first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revisions: BTreeMap<Key, Vec<PastRevision>>,
    /// The parts of the past that are not known, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// When the first engine with this journal started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Derived values that may differ from what their bases imply.
    #[serde(default)]
    pub parts: BTreeMap<Key, Part>,
    /// Operations that were under way.
    pub uncertain: BTreeMap<Key, Operation>,
    /// The transaction that was interrupted.
    pub interrupted: Option<u64>,
}

/// Stores entries so that a restart finds them.
pub trait Journal: Send {
    /// Returns every stored entry, oldest first.
    fn load(&mut self) -> Result<Vec<Entry>, Error>;
    /// Stores an entry, so that it survives the process; with `durable`, flushes it too.
    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), Error>;
    /// Returns only once a crash of the machine cannot lose any entry stored so far.
    fn flush(&mut self) -> Result<(), Error>;
    /// Whether it has grown enough to be worth compacting.
    fn wants_compaction(&self) -> bool;
    /// Replaces all entries by these, atomically. On an error the old entries stand.
    fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) -> Result<(), Error>;
    /// Changes made when it was opened, for the operator.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Wanted values by key; none for those that are no longer wanted.
type Changes = Vec<(Key, Option<Desired>)>;

/// The state that follows from a sequence of entries.
pub fn replay(entries: impl IntoIterator<Item = Entry>) -> Recovered {
    let mut state = Recovered::default();
    let mut open: Option<Open> = None;
    for entry in entries {
        match entry {
            Entry::Snapshot(snapshot) => {
                state = *snapshot;
                open = None;
            }
            Entry::Past(past) => past.add_to(&mut state),
            Entry::Begin { seq, reverts, changes, parts } => {
                state.next_seq = seq + 1;
                let parts = open_parts(parts);
                open = Some(Open { seq, reverts, changes, parts, astray: false });
            }
            Entry::Start { key, base, operation, revert } => {
                if let Some(open) = &mut open {
                    open.astray |= revert;
                    if let Some(base) = base {
                        let part = open.parts.entry(key.clone());
                        part.or_insert_with(|| OpenPart::new(base, None)).start(operation);
                    }
                }
                state.uncertain.insert(key, operation);
            }
            Entry::End { key, failed } => {
                let operation = state.uncertain.remove(&key);
                if let (Some(open), Some(operation)) = (&mut open, operation) {
                    open.astray |= leaves_the_plan(operation, failed);
                    if let Some(part) = open.parts.get_mut(&key) {
                        part.last = Some(Last::Done(operation, failed));
                    }
                }
            }
            Entry::Commit { seq, changes, parts, retries, record, revisions } => {
                state.next_seq = seq + 1;
                state.retries = retries;
                past::revise(&mut state, seq, record.as_deref(), revisions);
                state.history.extend(record);
                state.uncertain.clear();
                state.interrupted = None;
                adopt(&mut state.desired, changes);
                adopt(&mut state.parts, parts);
                open = None;
            }
        }
    }
    if let Some(Open { seq, reverts, changes, parts, astray }) = open {
        state.interrupted = Some(seq);
        if !reverts {
            adopt(&mut state.desired, changes);
        }
        let judged = parts.into_iter().map(|(key, part)| {
            let doubt = part.doubt(astray);
            let OpenPart { base, value, .. } = part;
            (key, doubt.map(|doubt| Part { base, doubt, value }))
        });
        adopt(&mut state.parts, judged);
    }
    state
}

/// A transaction that has begun.
struct Open {
    seq: u64,
    reverts: bool,
    changes: Changes,
    parts: BTreeMap<Key, OpenPart>,
    /// Whether it has left its plan, so that its last operations cannot be predicted.
    astray: bool,
}

/// Whether an operation that ends so is followed by others that were not planned: after a failed
/// deletion the values that were deleted before it are created again.
pub(crate) fn leaves_the_plan(operation: Operation, failed: bool) -> bool {
    failed && operation == Operation::Delete
}

/// A derived value that a transaction changes.
struct OpenPart {
    base: Key,
    value: Option<Value>,
    /// The operations that remain, as far as known.
    planned: VecDeque<Operation>,
    last: Option<Last>,
}

/// The last known operation on a derived value of an interrupted transaction.
enum Last {
    UnderWay(Operation),
    /// It ended; the flag is whether it failed.
    Done(Operation, bool),
}

impl OpenPart {
    fn new(base: Key, value: Option<Value>) -> Self {
        Self { base, value, planned: VecDeque::new(), last: None }
    }

    fn start(&mut self, operation: Operation) {
        self.planned.pop_front_if(|planned| *planned == operation);
        self.last = Some(Last::UnderWay(operation));
    }

    /// The doubt that remains; an operation of unknown outcome is repeated.
    fn doubt(&self, astray: bool) -> Option<Doubt> {
        use Operation::{Create, Delete, Update};
        let over = !astray && self.planned.is_empty();
        match (&self.last, self.planned.front()) {
            (Some(Last::Done(Create | Update, false)), _) if over => None,
            (Some(Last::Done(Delete, false)), _) if over => Some(Doubt::Absent),
            // A failed value is left alone, unless the transaction is reverted.
            (Some(Last::Done(Create, true)), _) if !astray => Some(Doubt::Absent),
            (Some(Last::Done(Delete, false) | Last::Done(Create, true)), _)
            | (Some(Last::UnderWay(Create)), _)
            | (None, Some(Create)) => Some(Doubt::Unfinished),
            _ => Some(Doubt::Uncertain),
        }
    }
}

fn open_parts(planned: Vec<PlannedPart>) -> BTreeMap<Key, OpenPart> {
    let mut parts = BTreeMap::new();
    for PlannedPart { key, base, operation, value } in planned {
        // The first operation has the value from before the transaction.
        let part = parts.entry(key).or_insert_with(|| OpenPart::new(base, value));
        part.planned.push_back(operation);
    }
    parts
}

fn adopt<T>(known: &mut BTreeMap<Key, T>, changes: impl IntoIterator<Item = (Key, Option<T>)>) {
    for (key, change) in changes {
        match change {
            Some(value) => known.insert(key, value),
            None => known.remove(&key),
        };
    }
}
