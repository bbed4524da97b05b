//! The one thread that writes to the database.
//!
//! A batch is judged against the state as it will be, written in one transaction, and published
//! only when it is durable; then the writers are answered, the refused ones too, since the change
//! that refused them may be part of the same batch. If the transaction fails, the new state is
//! dropped, every writer of the batch gets the error, and the next batch starts from the old state.
//! A full disk gets a second try: see [`super::fullness`].

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::cache::{Cache, RetentionQueue, State};
use crate::object::{Event, Resource, Revision};
use crate::objects::{Error, Write};
use mainstay_clock::Clock;

use super::checkpoint::Checkpoints;
use super::disk::Disk;
use super::fullness::{self, Fullness};
use super::lock::Lock;
use super::rekey::{Column, Rewritten};

/// The most writes one transaction takes.
const BATCH: usize = 1024;

/// A request to the committer.
#[derive(Debug)]
pub(super) enum Job {
    /// Commit one change.
    Write { write: Write, reply: oneshot::Sender<Result<Arc<Event>, Error>> },
    /// Forget history.
    Compact { through: Revision, reply: oneshot::Sender<Result<(), Error>> },
    /// Move on to a later revision, without history.
    Advance { to: Revision, reply: oneshot::Sender<Result<(), Error>> },
    /// Rewrite the values of one column in the next rows after a number.
    Rewrite { column: Column, after: i64, reply: oneshot::Sender<Result<Rewritten, Error>> },
    /// See whether a full disk has space again, and whether commits work again that failed.
    Recover { reply: oneshot::Sender<Result<(), Error>> },
    /// Finish what was asked before, then stop.
    Close { reply: oneshot::Sender<()> },
}

type Pending = (Write, oneshot::Sender<Result<Arc<Event>, Error>>);

type Outcome = Result<Arc<Event>, Error>;

/// The thread's own.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) disk: Disk,
    pub(super) cache: Arc<Cache>,
    pub(super) retained: RetentionQueue,
    pub(super) checkpoints: Checkpoints,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) queue: mpsc::Receiver<Job>,
    pub(super) fullness: Arc<Fullness>,
    /// Forgotten in memory, not yet on disk: goes with the next transaction.
    pub(super) forgotten: Option<Revision>,
    /// Held until the connection is closed, so it comes last.
    pub(super) _lock: Arc<Lock>,
}

impl Committer {
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
                    // The caller may have gone away; the history is forgotten all the same.
                    let _ = reply.send(self.compact(through));
                }
                Some(Job::Advance { to, reply }) => {
                    let _ = reply.send(self.advance(to));
                }
                Some(Job::Rewrite { column, after, reply }) => {
                    let rewritten = self.with_space(|it| it.disk.rewrite_batch(column, after));
                    self.checkpoints.after_batch(&self.disk);
                    let _ = reply.send(rewritten);
                }
                Some(Job::Recover { reply }) => {
                    let _ = reply.send(self.probe());
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
        self.fullness.recover(&self.disk);
        let outcomes = self.with_space(|committer| committer.attempt(batch));
        let outcomes = outcomes.unwrap_or_else(|error| vec![Err(error); batch.len()]);
        for ((_, reply), outcome) in batch.drain(..).zip(outcomes) {
            // A writer that gave up waiting finds out by reading.
            let _ = reply.send(outcome);
        }
    }

    /// Whether writes are taken. If the last commit failed, a commit without changes is tried.
    fn probe(&mut self) -> Result<(), Error> {
        self.fullness.recover(&self.disk);
        if self.fullness.is_full() {
            return Err(self.fullness.refusal());
        }
        let failure = self.disk.failure();
        if failure.is_failing() {
            let revision = self.cache.load().revision;
            // `failure` notes the outcome.
            drop(self.disk.commit(revision, |_| Ok(())));
        }
        failure.as_result()
    }

    /// Runs `work`; if the disk is full, makes space and runs it once more.
    fn with_space<T>(
        &mut self,
        mut work: impl FnMut(&mut Self) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let mut done = work(self);
        if done.as_ref().is_err_and(|error| self.fullness.explains(error)) {
            self.make_space();
            done = work(self);
        }
        if done.as_ref().is_err_and(|error| self.fullness.explains(error)) {
            self.fullness.give_way();
        }
        done.map_err(|error| {
            if self.fullness.explains(&error) {
                return self.fullness.refusal();
            }
            tracing::error!(%error, "commit failed; its writers get an error");
            Error::Unavailable { reason: error.to_string() }
        })
    }

    /// Gives up the reserve and the history to make space.
    fn make_space(&mut self) {
        self.fullness.give_way();
        let revision = self.cache.load().revision;
        let forgotten = self.disk.commit(revision, |batch| batch.forget_all(revision));
        if let Err(error) = forgotten {
            tracing::warn!(%error, "dropping history on a full disk failed");
        }
        self.disk.may_grow(false);
        self.fullness.recover(&self.disk);
    }

    /// Judges and writes a batch. On an error nothing was changed.
    fn attempt(&mut self, batch: &[Pending]) -> rusqlite::Result<Vec<Outcome>> {
        let now = self.clock.now();
        let before = self.cache.load();
        let mut state = State::clone(&before);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut changed: Vec<Resource> = Vec::new();
        let full = self.fullness.is_full();
        for (write, _) in batch {
            let outcome = match state.judge(write, state.revision.next()) {
                Ok(_) if full && !fullness::is_taken(write) => Err(self.fullness.refusal()),
                judged => judged.map(Arc::new),
            };
            if let Ok(event) = &outcome {
                state.apply(event.clone());
                if !changed.contains(write.key.resource()) {
                    changed.push(write.key.resource().clone());
                }
            }
            outcomes.push(outcome);
        }
        self.persist(&outcomes, state.revision, now, full)?;
        for event in outcomes.iter().flatten() {
            self.retained.note(event, now);
        }
        let trimmed = self.retained.trim(&mut state, self.cache.retention(), now);
        self.forgotten = trimmed.or(self.forgotten);
        self.cache.publish(state, &changed);
        Ok(outcomes)
    }

    fn persist(
        &mut self,
        outcomes: &[Outcome],
        revision: Revision,
        now: jiff::Timestamp,
        full: bool,
    ) -> rusqlite::Result<()> {
        if outcomes.iter().all(Result::is_err) {
            return Ok(());
        }
        let forgotten = self.forgotten;
        let mut events = outcomes.iter().flatten();
        self.disk.commit(revision, |batch| {
            if full {
                events.try_for_each(|event| batch.change(event))?;
                return batch.forget_all(revision);
            }
            events.try_for_each(|event| batch.apply(event, now))?;
            forgotten.map_or(Ok(()), |through| batch.forget(through))
        })?;
        if self.fullness.is_tight() {
            self.keep_log_small();
        } else {
            self.checkpoints.after_batch(&self.disk);
        }
        self.forgotten = None;
        Ok(())
    }

    /// Moves the whole log, so that the next commit overwrites it.
    fn keep_log_small(&self) {
        if let Err(error) = self.disk.checkpoint("PASSIVE") {
            tracing::warn!(%error, "checkpoint on a full disk failed; retrying");
        }
        self.fullness.set_aside(&self.disk);
    }

    fn compact(&mut self, through: Revision) -> Result<(), Error> {
        let mut state = State::clone(&self.cache.load());
        let (current, through) = (state.revision, through.min(state.revision));
        self.with_space(|committer| {
            committer.disk.commit(current, |batch| match through == current {
                true => batch.forget_all(current),
                false => batch.forget(through),
            })
        })?;
        self.retained.compact(&mut state, through);
        self.cache.publish(state, []);
        Ok(())
    }

    fn advance(&mut self, to: Revision) -> Result<(), Error> {
        let mut state = State::clone(&self.cache.load());
        if to <= state.revision {
            return Ok(());
        }
        self.with_space(|committer| committer.disk.commit(to, |batch| batch.forget_all(to)))?;
        state.advance(to);
        self.retained.compact(&mut state, to);
        self.cache.publish(state, []);
        Ok(())
    }

    fn close(&mut self) {
        // On a full disk the log's files stay: there may be no space to make them again.
        let mode = if self.fullness.is_tight() { "PASSIVE" } else { "TRUNCATE" };
        match self.disk.checkpoint(mode) {
            Ok(true) if mode == "TRUNCATE" => {
                if let Err(error) = self.disk.tidy_on_close() {
                    tracing::warn!(%error, "the write-ahead log is left behind");
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the last checkpoint failed; the next start will catch up");
            }
        }
    }
}
