//! What must outlive the process: what is wanted, what happened, what is still to be retried, and
//! which operations were under way.
//!
//! The engine appends [`Entry`]s to a [`Journal`] and, after a restart, [`replay`]s them. A
//! transaction leaves `Begin` before anything is done and `Commit` when all is done; around every
//! operation there is a `Start` and an `End`. From that follows what a restart must know:
//!
//! * an operation with a start and no end is *uncertain*: nobody knows what it did;
//! * a transaction with a begin and no commit was interrupted. If it was to be reverted on failure
//!   it never happened: what was wanted before is wanted again. Otherwise it counts, and a resync
//!   carries it on.
//!
//! [`FileJournal`] keeps entries in one file, each with its length and a checksum; a torn tail is
//! cut off when the file is opened.

mod file;

use std::collections::BTreeMap;
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
    },
    /// An operation is about to be started.
    Start {
        /// On which value.
        key: Key,
        /// Which.
        operation: Operation,
    },
    /// An operation is over, well or badly.
    End {
        /// On which value.
        key: Key,
    },
    /// A transaction is over.
    Commit {
        /// Its number.
        seq: u64,
        /// What is wanted now, of what it touched.
        changes: Vec<(Key, Option<Desired>)>,
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
    let mut open: Option<(u64, bool, Changes)> = None;
    for entry in entries {
        match entry {
            Entry::Snapshot(snapshot) => {
                state = *snapshot;
                open = None;
            }
            Entry::Begin { seq, reverts, changes } => {
                state.next_seq = seq + 1;
                open = Some((seq, reverts, changes));
            }
            Entry::Start { key, operation } => {
                state.uncertain.insert(key, operation);
            }
            Entry::End { key } => {
                state.uncertain.remove(&key);
            }
            Entry::Commit { seq, changes, retries, record } => {
                state.next_seq = seq + 1;
                state.retries = retries;
                state.history.extend(record);
                state.uncertain.clear();
                state.interrupted = None;
                adopt(&mut state.desired, changes);
                open = None;
            }
        }
    }
    if let Some((seq, reverts, changes)) = open {
        state.interrupted = Some(seq);
        if !reverts {
            adopt(&mut state.desired, changes);
        }
    }
    state
}

fn adopt(desired: &mut BTreeMap<Key, Desired>, changes: Changes) {
    for (key, change) in changes {
        match change {
            Some(value) => desired.insert(key, value),
            None => desired.remove(&key),
        };
    }
}
