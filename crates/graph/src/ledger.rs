//! The journal of a running engine: writes entries, flushes them in groups, and stops at an error.
//!
//! An entry survives the process as soon as it is written; it survives a crash of the machine once it
//! is flushed. Transactions that wait in the queue share one flush: the ledger keeps the replies of
//! those whose clients asked for durability, and sends them with the flush.
//!
//! Always holds: after an error no entry is written any more, and the health of the engine has the
//! reason. The engine then behaves as if it had crashed: no operation is started whose beginning is
//! not in the journal.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::{Error, Reply};
use crate::health::Health;
use crate::journal::{self, Entry, Journal};
use crate::record::TransactionRecord;

/// The most transactions that share one flush.
const GROUP: usize = 256;

/// Where the result of a commit goes.
pub(crate) type CommitReply = Reply<Arc<TransactionRecord>>;

pub(crate) struct Ledger {
    journal: Box<dyn Journal>,
    health: Arc<Mutex<Health>>,
    /// The number of transactions since the last flush.
    unflushed: usize,
    /// The clients that wait for durability.
    waiting: Vec<(CommitReply, Arc<TransactionRecord>)>,
}

impl Ledger {
    pub(crate) fn new(journal: Box<dyn Journal>, health: Arc<Mutex<Health>>) -> Self {
        Self { journal, health, unflushed: 0, waiting: Vec::new() }
    }

    /// Fails once the journal has failed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.health.lock().reason {
            Some(reason) => Err(Error::Halted(reason.clone())),
            None => Ok(()),
        }
    }

    /// Writes an entry; with `durable`, flushes it and everything before it.
    pub(crate) fn append(&mut self, entry: &Entry, durable: bool) -> Result<(), Error> {
        self.check()?;
        self.journal.append(entry, false).map_err(|error| self.halt(&error))?;
        if durable { self.flush() } else { Ok(()) }
    }

    /// Takes a transaction whose entries are written. Its reply is sent now or, if its client waits
    /// for durability, with the next flush.
    pub(crate) fn committed(
        &mut self,
        record: Arc<TransactionRecord>,
        durable: bool,
        reply: Option<CommitReply>,
    ) {
        self.unflushed += 1;
        match reply {
            Some(reply) if durable => self.waiting.push((reply, record)),
            // The caller may have stopped waiting; the transaction stands all the same.
            Some(reply) => drop(reply.send(Ok(record))),
            None => {}
        }
    }

    /// Whether no other transaction should join the next flush.
    pub(crate) fn is_full(&self) -> bool {
        self.unflushed >= GROUP
    }

    /// Flushes the transactions since the last flush, if there are any, before the engine waits.
    pub(crate) fn settle(&mut self) {
        if self.unflushed > 0 {
            // The health has the error, and the next transaction is refused.
            let _ = self.flush();
        }
    }

    /// Flushes everything written so far, and answers the clients that wait for it.
    fn flush(&mut self) -> Result<(), Error> {
        self.unflushed = 0;
        let failed = self.journal.flush().err().map(|error| self.halt(&error));
        for (reply, record) in self.waiting.drain(..) {
            let answer = match &failed {
                Some(_) => {
                    let reason = self.health.lock().reason.clone().unwrap_or_default();
                    let seq = record.seq;
                    Err(Error::Halted(format!("transaction {seq} may not be durable: {reason}")))
                }
                None => Ok(record),
            };
            let _ = reply.send(answer);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether the journal has grown enough to be worth compacting.
    pub(crate) fn wants_compaction(&self) -> bool {
        self.journal.wants_compaction()
    }

    /// Replaces the journal by these entries. A journal that cannot be compacted stays as it is.
    pub(crate) fn compact(&mut self, entries: &mut dyn Iterator<Item = Entry>) {
        self.settle();
        let failed = self.journal.compact(entries).err();
        let notice = failed.map(|error| format!("{COMPACTION}: {}", described(&error)));
        let mut health = self.health.lock();
        health.notices.retain(|known| !known.starts_with(COMPACTION));
        health.notices.extend(notice);
    }

    /// Accepts no more entries.
    fn halt(&self, error: &journal::Error) -> Error {
        let reason = format!("{}; mend the cause and restart", described(error));
        let mut health = self.health.lock();
        health.accepts = false;
        Error::Halted(health.reason.get_or_insert(reason).clone())
    }
}

/// How notices about compaction begin.
const COMPACTION: &str = "the journal cannot be compacted";

/// An error with all its causes.
fn described(error: &journal::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
