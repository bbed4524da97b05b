//! What must outlive the process: what is wanted, what happened, what is still to be retried, and
//! which operations were under way.
//!
//! The engine appends [`Entry`]s to a [`Journal`] and, after a restart, [`replay`]s them. A
//! transaction leaves `Begin` before anything is done and `Commit` when all is done; around every
//! operation there is a `Start` and an `End`. From that follows what a restart must know:
//!
//! * an operation with a start and no end is *uncertain*: nobody knows what it did;
//! * a derived value that an interrupted transaction was to change, or one that failed earlier, is
//!   not, or perhaps not, what its base says: it is done again. Starts and ends are not flushed one
//!   by one, so the last of them may be lost; what they would have said follows from the plan in
//!   `Begin`, up to the moment at which the transaction leaves the plan, and that is flushed;
//! * a transaction with a begin and no commit was interrupted. If it was to be reverted on failure
//!   it never happened: what was wanted before is wanted again. Otherwise it counts, and a resync
//!   carries it on.
//!
//! [`FileJournal`] keeps entries in one file, each with its length and a checksum; a torn tail is
//! cut off when the file is opened.

mod file;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::file::FileJournal;
use crate::descriptor::UserLabels;
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::state::Operation;
use crate::transaction::Retry;
use crate::value::Value;

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system refused.
    #[error("cannot {action} the journal")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// An entry cannot be written down, or what was written is not an entry.
    #[error("a journal entry cannot be encoded")]
    Encoding(#[source] serde_json::Error),
}

/// A value somebody wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    /// The value.
    pub value: Value,
    /// What the user wrote on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<UserLabels>,
    /// How its failures are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
}

/// What a value's base does not tell about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doubt {
    /// It is not there, although its base is.
    Absent,
    /// Its creation was planned or under way, and may have been done or not.
    Unfinished,
    /// It was there, and may have been changed or taken away, or not.
    Uncertain,
}

/// A derived value that is not, or perhaps not, as its base says. The south shows derived values
/// only through their bases, so this must be remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it is derived from.
    pub base: Key,
    /// What is not plain.
    pub doubt: Doubt,
    /// The value, to take it away with if nothing wants it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// An operation on a derived value that is about to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedPart {
    /// On which value.
    pub key: Key,
    /// What it is derived from.
    pub base: Key,
    /// Which.
    pub operation: Operation,
    /// The value before it, or the new one if there was none.
    pub value: Option<Value>,
}

/// Operations that will be tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledRetry {
    /// When.
    pub due: Timestamp,
    /// The transaction that first failed.
    pub retry_for: u64,
    /// The last transaction that tried; a value changed later is left out.
    pub failed_in: u64,
    /// Which retry it will be.
    pub attempt: u32,
    /// On which base values.
    pub keys: Vec<Key>,
}

/// One line of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Entry {
    /// Everything so far, in one piece.
    Snapshot(Box<Recovered>),
    /// A transaction is about to be executed.
    Begin {
        /// Its number.
        seq: u64,
        /// Whether it is taken back on failure.
        reverts: bool,
        /// What it wants; none for what it wants gone.
        changes: Vec<(Key, Option<Desired>)>,
        /// What it will do to derived values.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<PlannedPart>,
    },
    /// An operation is about to be started.
    Start {
        /// On which value.
        key: Key,
        /// What it is derived from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<Key>,
        /// Which.
        operation: Operation,
        /// Whether it takes something back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        revert: bool,
    },
    /// An operation is over.
    End {
        /// On which value.
        key: Key,
        /// Whether it failed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        failed: bool,
    },
    /// A transaction is over.
    Commit {
        /// Its number.
        seq: u64,
        /// What is wanted now, of what it touched.
        changes: Vec<(Key, Option<Desired>)>,
        /// Derived values that are no longer, or not any more, as their bases say.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<(Key, Option<Part>)>,
        /// All retries that are now planned.
        retries: Vec<ScheduledRetry>,
        /// What happened, if history is kept.
        record: Option<Arc<TransactionRecord>>,
    },
}

/// What is known after a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Recovered {
    /// The number of the next transaction.
    pub next_seq: u64,
    /// What is wanted.
    pub desired: BTreeMap<Key, Desired>,
    /// What is to be retried.
    pub retries: Vec<ScheduledRetry>,
    /// What happened.
    pub history: Vec<Arc<TransactionRecord>>,
    /// Derived values that are not as their bases say.
    #[serde(default)]
    pub parts: BTreeMap<Key, Part>,
    /// Operations that were under way.
    pub uncertain: BTreeMap<Key, Operation>,
    /// The transaction that was interrupted.
    pub interrupted: Option<u64>,
}

/// Keeps entries where a restart finds them.
pub trait Journal: Send {
    /// Every entry that was kept, oldest first.
    fn load(&mut self) -> Result<Vec<Entry>, Error>;
    /// Keeps an entry; with `durable`, returns only once a crash of the machine cannot lose it.
    fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), Error>;
    /// Whether it has grown enough to be worth compacting.
    fn wants_compaction(&self) -> bool;
    /// Replaces everything by one snapshot; either all of it or nothing.
    fn compact(&mut self, snapshot: &Entry) -> Result<(), Error>;
}

/// Wishes by key; none for what nobody wants any more.
type Changes = Vec<(Key, Option<Desired>)>;

/// What a sequence of entries amounts to.
pub fn replay(entries: impl IntoIterator<Item = Entry>) -> Recovered {
    let mut state = Recovered::default();
    let mut open: Option<Open> = None;
    for entry in entries {
        match entry {
            Entry::Snapshot(snapshot) => {
                state = *snapshot;
                open = None;
            }
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
            Entry::Commit { seq, changes, parts, retries, record } => {
                state.next_seq = seq + 1;
                state.retries = retries;
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
    /// Whether it has left its plan: what it did last may be anything.
    astray: bool,
}

/// Whether an operation that ends so is followed by others that were not planned: what cannot be
/// taken away has what was taken away before it put back.
pub(crate) fn leaves_the_plan(operation: Operation, failed: bool) -> bool {
    failed && operation == Operation::Delete
}

/// A derived value that a transaction changes.
struct OpenPart {
    base: Key,
    value: Option<Value>,
    /// What is still to be done, as far as known.
    planned: VecDeque<Operation>,
    last: Option<Last>,
}

/// The last that is known about a derived value of an interrupted transaction.
enum Last {
    UnderWay(Operation),
    /// It was done; or failed.
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

    /// An operation that may not have been done is done again.
    fn doubt(&self, astray: bool) -> Option<Doubt> {
        use Operation::{Create, Delete, Update};
        let over = !astray && self.planned.is_empty();
        match (&self.last, self.planned.front()) {
            (Some(Last::Done(Create | Update, false)), _) if over => None,
            (Some(Last::Done(Delete, false)), _) if over => Some(Doubt::Absent),
            // Nothing more is tried on what failed, unless something is taken back.
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
        // What comes first says what was there before.
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
