//! The one thread that writes.
//!
//! A batch is judged against the state as it will be, written in one transaction, and published
//! only when it is durable; then the writers are answered, the refused ones too, since what
//! refused them may have been part of the same batch. If the transaction fails, the new state is
//! dropped, everybody in the batch is told why, and the next batch starts from the old state.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::cache::{Cache, Ledger, State};
use crate::clock::Clock;
use crate::object::{Event, Resource, Revision};
use crate::objects::{Error, Write};

use super::checkpoint::Checkpoints;
use super::disk::Disk;

/// The most writes one transaction takes.
const BATCH: usize = 1024;

/// What the committer can be asked to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Commit one change.
    Write { write: Write, reply: oneshot::Sender<Result<Arc<Event>, Error>> },
    /// Forget history.
    Compact { through: Revision, reply: oneshot::Sender<Result<(), Error>> },
    /// Move on to a later revision, without history.
    Advance { to: Revision, reply: oneshot::Sender<Result<(), Error>> },
    /// Finish what was asked before, then stop.
    Close { reply: oneshot::Sender<()> },
}

type Pending = (Write, oneshot::Sender<Result<Arc<Event>, Error>>);

#[derive(Debug)]
pub(super) struct Committer {
    disk: Disk,
    cache: Arc<Cache>,
    ledger: Ledger,
    checkpoints: Checkpoints,
    clock: Arc<dyn Clock>,
    queue: mpsc::Receiver<Job>,
    /// Forgotten in memory, not yet on disk: goes with the next transaction.
    forgotten: Option<Revision>,
}

impl Committer {
    pub(super) fn new(
        disk: Disk,
        cache: Arc<Cache>,
        ledger: Ledger,
        checkpoints: Checkpoints,
        clock: Arc<dyn Clock>,
        queue: mpsc::Receiver<Job>,
    ) -> Self {
        Self { disk, cache, ledger, checkpoints, clock, queue, forgotten: None }
    }

    pub(super) fn run(mut self) {
        let mut batch: Vec<Pending> = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            let mut next = Some(first);
            let mut other = None;
            while let Some(job) = next.take() {
                match job {
                    Job::Write { write, reply } => batch.push((write, reply)),
                    job => {
                        other = Some(job);
                        break;
                    }
                }
                if batch.len() < BATCH {
                    next = self.queue.try_recv().ok();
                }
            }
            self.commit(&mut batch);
            match other {
                Some(Job::Compact { through, reply }) => {
                    // Whoever asked may have gone away; it is done all the same.
                    let _ = reply.send(self.compact(through));
                }
                Some(Job::Advance { to, reply }) => {
                    let _ = reply.send(self.advance(to));
                }
                Some(Job::Close { reply }) => {
                    self.close();
                    let _ = reply.send(());
                    return;
                }
                Some(Job::Write { .. }) | None => {}
            }
        }
        self.close();
    }

    fn commit(&mut self, batch: &mut Vec<Pending>) {
        if batch.is_empty() {
            return;
        }
        let now = self.clock.now();
        let before = self.cache.load();
        let mut state = State::clone(&before);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut changed: Vec<Resource> = Vec::new();
        for (write, _) in batch.iter() {
            let outcome = state.judge(write, state.revision.next()).map(Arc::new);
            if let Ok(event) = &outcome {
                state.apply(event.clone());
                if !changed.contains(write.key.resource()) {
                    changed.push(write.key.resource().clone());
                }
            }
            outcomes.push(outcome);
        }
        match self.persist(&outcomes, state.revision, now) {
            Ok(()) => {
                for event in outcomes.iter().flatten() {
                    self.ledger.note(event, now);
                }
                let trimmed = self.ledger.trim(&mut state, self.cache.retention(), now);
                self.forgotten = trimmed.or(self.forgotten);
                self.cache.publish(state, &changed);
            }
            Err(error) => {
                tracing::error!(%error, "a commit failed; its writers were told");
                let reason = error.to_string();
                outcomes.fill_with(|| Err(Error::Unavailable { reason: reason.clone() }));
            }
        }
        for ((_, reply), outcome) in batch.drain(..).zip(outcomes) {
            // A writer that gave up waiting finds out by reading.
            let _ = reply.send(outcome);
        }
    }

    fn persist(
        &mut self,
        outcomes: &[Result<Arc<Event>, Error>],
        revision: Revision,
        now: jiff::Timestamp,
    ) -> rusqlite::Result<()> {
        if outcomes.iter().all(Result::is_err) {
            return Ok(());
        }
        let forgotten = self.forgotten;
        self.disk.commit(|batch| {
            for event in outcomes.iter().flatten() {
                batch.apply(event, now)?;
            }
            if let Some(through) = forgotten {
                batch.forget(through)?;
            }
            batch.reach(revision)
        })?;
        self.forgotten = None;
        self.checkpoints.after_batch(&self.disk);
        Ok(())
    }

    fn compact(&mut self, through: Revision) -> Result<(), Error> {
        let mut state = State::clone(&self.cache.load());
        let through = through.min(state.revision);
        self.disk
            .commit(|batch| batch.forget(through))
            .map_err(|error| Error::Unavailable { reason: error.to_string() })?;
        self.ledger.compact(&mut state, through);
        self.cache.publish(state, []);
        Ok(())
    }

    fn advance(&mut self, to: Revision) -> Result<(), Error> {
        let mut state = State::clone(&self.cache.load());
        if to <= state.revision {
            return Ok(());
        }
        let advanced = self.disk.commit(|batch| {
            batch.forget(to)?;
            batch.reach(to)
        });
        advanced.map_err(|error| Error::Unavailable { reason: error.to_string() })?;
        state.advance(to);
        self.ledger.compact(&mut state, to);
        self.cache.publish(state, []);
        Ok(())
    }

    fn close(&mut self) {
        if let Err(error) = self.disk.checkpoint("TRUNCATE") {
            tracing::warn!(%error, "the last checkpoint failed; the next start will catch up");
        }
    }
}
