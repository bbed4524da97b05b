//! The single writer of a SQLite catalog, and group commit.
//!
//! A commit waits for the disk, whatever its size. Transactions use the writer in the order of
//! their requests. One that sees another waiting leaves its changes uncommitted and passes the
//! writer on, and the last one commits for all of them. [`Writer::run`] returns only after that
//! commit: either the whole batch is committed, or each of its transactions is retried. A commit
//! that changes the catalog has a number, which is written to a file outside of it before any call
//! returns (see [`super::counter`]): one small write for the whole batch. On a full disk, changes
//! that need no space go on (see [`super::space`]).

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::counter::Counter;
use super::engine::{Engine, Mode};
use super::space::Space;
use super::sqlite::Sqlite;
use crate::error::{Error, Result, TxError};

/// The most transactions that are committed together.
const MOST: usize = 64;

/// How many waiting transactions can be woken one by one; of more, some are woken needlessly.
const WAKERS: usize = 64;

pub(super) struct Writer {
    turns: Mutex<Turns>,
    /// The transaction with turn `n` waits on number `n` modulo their count, so that a turn that
    /// ends wakes the next one alone.
    next: [Condvar; WAKERS],
    state: Mutex<State>,
}

/// The queue for the writer: how many turns were requested, and how many are over.
#[derive(Default)]
struct Turns {
    requested: u64,
    ended: u64,
}

struct State {
    engine: Sqlite,
    counter: Option<Counter>,
    space: Option<Space>,
    /// The transactions since the last commit.
    batch: Option<(Arc<Batch>, usize)>,
}

/// The outcome of the transactions that are committed together.
#[derive(Default)]
struct Batch {
    outcome: Mutex<Option<std::result::Result<(), Failure>>>,
    completed: Condvar,
}

/// An error of a commit, in a form that can be cloned for every transaction of the batch.
#[derive(Clone, Debug)]
enum Failure {
    Passing(String),
    Full,
    Disk(String),
    Damaged(String),
    Other(String),
}

impl Failure {
    fn of(error: &Error) -> Self {
        match error {
            Error::Unavailable(text) => Self::Passing(text.clone()),
            Error::Database(text) => Self::Other(text.clone()),
            Error::Full { .. } => Self::Full,
            Error::Disk { what, .. } => Self::Disk(what.clone()),
            Error::Damaged { what, .. } => Self::Damaged(what.clone()),
            other if other.is_retryable() => Self::Passing(other.to_string()),
            other => Self::Other(other.to_string()),
        }
    }

    fn error(&self) -> Error {
        let place = String::new();
        match self.clone() {
            Self::Passing(text) => Error::Unavailable(text),
            Self::Full => Error::Full { place },
            Self::Disk(what) => Error::Disk { place, what },
            Self::Damaged(what) => Error::Damaged { place, what },
            Self::Other(text) => Error::Database(text),
        }
    }
}

impl Batch {
    fn complete(&self, outcome: std::result::Result<(), Failure>) {
        *self.outcome.lock() = Some(outcome);
        self.completed.notify_all();
    }

    fn wait(&self) -> Result<()> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => return Err(failure.error()),
                None => {}
            }
            self.completed.wait(&mut outcome);
        }
    }
}

/// A turn to use the writer; passes it on when dropped.
struct Turn<'a> {
    writer: &'a Writer,
    mine: u64,
}

impl Turn<'_> {
    fn is_last(&self) -> bool {
        self.writer.turns.lock().requested == self.mine + 1
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.writer.turns.lock().ended += 1;
        self.writer.waker(self.mine + 1).notify_all();
    }
}

impl Writer {
    pub(super) fn new(engine: Sqlite, counter: Option<Counter>, space: Option<Space>) -> Self {
        let state = Mutex::new(State { engine, counter, space, batch: None });
        let next = [const { Condvar::new() }; WAKERS];
        Self { turns: Mutex::new(Turns::default()), next, state }
    }

    fn waker(&self, turn: u64) -> &Condvar {
        let number = usize::try_from(turn % WAKERS as u64).unwrap_or_default();
        &self.next[number]
    }

    fn turn(&self) -> Turn<'_> {
        let mut turns = self.turns.lock();
        let mine = turns.requested;
        turns.requested += 1;
        while turns.ended != mine {
            self.waker(mine).wait(&mut turns);
        }
        Turn { writer: self, mine }
    }

    /// Runs `work` as one transaction and returns once it is committed. After an error, of the work
    /// or of the commit, none of its changes were made.
    pub(super) fn run<R, E: TxError>(
        &self,
        work: impl FnOnce(&mut Sqlite) -> Result<R, E>,
    ) -> Result<R, E> {
        let turn = self.turn();
        let mut state = self.state.lock();
        let done = state.run_in_batch(work);
        let Some((batch, number)) = state.batch.clone() else { return done };
        if number >= MOST || turn.is_last() {
            state.commit();
        }
        drop(state);
        drop(turn);
        // An error of `work` too may be caused by uncommitted changes of the batch.
        batch.wait().map_err(E::from).and(done)
    }
}

impl Writer {
    /// Runs `work` between transactions, if disk space is reserved for this writer.
    fn with_space<T>(&self, work: impl FnOnce(&mut Space, &mut Sqlite) -> T) -> Option<T> {
        let _turn = self.turn();
        let mut state = self.state.lock();
        state.commit();
        let State { engine, space, .. } = &mut *state;
        space.as_mut().map(|space| work(space, engine))
    }

    /// Whether a failed transaction found no disk space.
    pub(super) fn has_no_space(&self, error: &Error) -> bool {
        match error {
            Error::Full { .. } => true,
            Error::Disk { .. } => {
                self.with_space(|space, _| space.is_used_up()).unwrap_or_default()
            }
            _ => false,
        }
    }

    /// Releases the reserve of a full disk, so that changes that need little space can go on.
    pub(super) fn make_space(&self) {
        self.with_space(Space::make);
    }

    /// Whether a full disk has enough space again.
    pub(super) fn recover(&self) -> bool {
        self.with_space(Space::recover).unwrap_or(true)
    }
}

impl State {
    fn run_in_batch<R, E: TxError>(
        &mut self,
        work: impl FnOnce(&mut Sqlite) -> Result<R, E>,
    ) -> Result<R, E> {
        let first = self.batch.is_none();
        if first {
            self.engine.begin(Mode::Write)?;
            self.batch = Some((Arc::default(), 0));
        } else {
            self.engine.batch("SAVEPOINT one")?;
        }
        let done = match catch_unwind(AssertUnwindSafe(|| work(&mut self.engine))) {
            Ok(done) => done,
            Err(panic) => {
                self.abandon(&Error::Unavailable("another transaction panicked".to_owned()));
                resume_unwind(panic);
            }
        };
        if first && done.is_err() {
            self.engine.rollback();
            self.batch = None;
            return done;
        }
        let kept = match (first, &done) {
            (true, _) => Ok(()),
            (false, Ok(_)) => self.engine.batch("RELEASE one"),
            (false, Err(_)) => self.engine.batch("ROLLBACK TO one; RELEASE one"),
        };
        if let Err(error) = kept {
            // Some failures, like a full disk, undo the whole transaction.
            self.abandon(&error);
            return done.and(Err(error.into()));
        }
        if let Some((_, number)) = &mut self.batch {
            *number += 1;
        }
        done
    }

    fn commit(&mut self) {
        let Some((batch, _)) = self.batch.take() else { return };
        let numbered = match self.engine.has_changed() {
            true => self.engine.number().map(Some),
            false => Ok(None),
        };
        let committed = numbered.and_then(|number| self.engine.commit().map(|()| number));
        match (&committed, &mut self.counter) {
            (Ok(Some(number)), Some(counter)) => counter.note(*number),
            (Ok(_), _) => {}
            (Err(_), _) => self.engine.rollback(),
        }
        if let (Ok(_), Some(space)) = (&committed, &mut self.space) {
            space.after_commit(&mut self.engine);
        }
        batch.complete(committed.map(drop).map_err(|error| Failure::of(&error)));
    }

    /// Rolls back every transaction since the last commit.
    fn abandon(&mut self, why: &Error) {
        self.engine.rollback();
        if let Some((batch, _)) = self.batch.take() {
            batch.complete(Err(match Failure::of(why) {
                Failure::Other(text) => Failure::Passing(text),
                failure => failure,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values;

    fn writer(folder: &tempfile::TempDir) -> Writer {
        let mut engine = Sqlite::open(&folder.path().join("test.db")).unwrap();
        let tables = "CREATE TABLE seen (at INTEGER PRIMARY KEY);
            CREATE TABLE versions (name TEXT PRIMARY KEY, value BIGINT NOT NULL)";
        engine.batch(tables).unwrap();
        Writer::new(engine, None, None)
    }

    fn insert(engine: &mut Sqlite, at: i64) -> Result<()> {
        engine.execute("INSERT INTO seen (at) VALUES (?1)", values![at]).map(drop)
    }

    fn seen(writer: &Writer) -> Vec<i64> {
        let mut found = Vec::new();
        writer
            .run(|engine| {
                engine.query("SELECT at FROM seen ORDER BY at", &[], &mut |row| {
                    found.push(row.int(0)?);
                    Ok(())
                })
            })
            .unwrap();
        found
    }

    /// Waits until this many turns were requested.
    fn wait_until_requested(writer: &Writer, number: u64) {
        while writer.turns.lock().requested < number {
            std::thread::yield_now();
        }
    }

    /// Writes 1 once another transaction waits.
    fn followed(writer: &Writer) -> Result<()> {
        writer.run(|engine| {
            wait_until_requested(writer, 2);
            insert(engine, 1)
        })
    }

    #[test]
    fn waiting_transactions_are_committed_together_and_a_failed_one_is_rolled_back_alone() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| followed(&writer));
            wait_until_requested(&writer, 1);
            let second = scope.spawn(|| {
                writer.run(|engine| {
                    wait_until_requested(&writer, 3);
                    insert(engine, 2)?;
                    Err::<(), _>(Error::Overflow)
                })
            });
            wait_until_requested(&writer, 2);
            let third = scope.spawn(|| writer.run(|engine| insert(engine, 3)));
            assert!(first.join().unwrap().is_ok());
            assert!(matches!(second.join().unwrap(), Err(Error::Overflow)));
            assert!(third.join().unwrap().is_ok());
        });
        assert_eq!(seen(&writer), [1, 3]);
    }

    #[test]
    fn a_panic_rolls_back_the_batch_and_the_others_are_retried() {
        let folder = tempfile::tempdir().unwrap();
        let writer = writer(&folder);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| followed(&writer));
            wait_until_requested(&writer, 1);
            let second = scope.spawn(|| writer.run(|_| -> Result<()> { panic!("for the test") }));
            assert!(first.join().unwrap().unwrap_err().is_retryable());
            assert!(second.join().is_err());
        });
        assert!(writer.run(|engine| insert(engine, 4)).is_ok());
        assert_eq!(seen(&writer), [4]);
    }
}
