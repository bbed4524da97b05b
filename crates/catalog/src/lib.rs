//! The catalog: the SQL database of files, replicas, rules and locks.
//!
//! [`Catalog::write`] runs a function in one transaction. When the database asks for a retry or the
//! connection is lost, it runs the function again from the start: such functions keep no state
//! between runs. On SQLite there is one writer at a time; on PostgreSQL transactions take row locks
//! in one global order
//!
//! 1. data identifiers that are collections, by number,
//! 2. rules, by number,
//! 3. files, by number: the row of a file stands for all its replicas, locks and requests,
//! 4. counters (usage of accounts, then of RSEs), by number,
//!
//! so that no two transactions deadlock. The functions in [`order`] take these locks.

mod address;
mod counter;
pub mod dump;
mod engine;
pub mod error;
mod health;
pub mod ledger;
pub mod load;
mod notifications;
pub mod opening;
pub mod order;
mod pipeline;
mod pool;
mod postgres;
pub mod private_postgres;
mod reserve;
mod row;
mod schema;
mod space;
mod sqlite;
pub mod state;
mod tx;
mod writer;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use address::Address;
pub use engine::{Column, Value};
use engine::{Engine, Mode};
pub use error::{Error, Result, TxError};
use health::Health;
use parking_lot::Mutex;
pub use pipeline::{Answers, Pending, Pipeline};
use pool::Pool;
use postgres::{CommitOutcome, Postgres};
pub use row::{Row, Stored};
use sqlite::Sqlite;
use tokio::sync::Notify;
pub use tx::Tx;
use writer::Writer;

/// Moments are microseconds since 1970, UTC.
pub type Micros = i64;

/// How often a transaction is retried when rows change under it or the database is unavailable.
const TRIES: u32 = 40;

/// How often it is retried while the database cannot be reached, for about two seconds in all: a
/// client gets its error soon, and a restart of the database that takes no longer is not noticed.
const TRIES_TO_REACH: u32 = 20;

/// How many connections one process opens to PostgreSQL.
const CONNECTIONS: usize = 16;

/// How many readers one process has on SQLite.
const READERS: usize = 4;

/// Daemons that may have new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the daemons")]
pub enum Daemon {
    Evaluator,
    Repairer,
    Cleaner,
    Injector,
    Finisher,
    Reaper,
}

impl Daemon {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Evaluator,
        Self::Repairer,
        Self::Cleaner,
        Self::Injector,
        Self::Finisher,
        Self::Reaper,
    ];
}

/// The catalog. Cheap to clone.
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Catalog").field("backend", &self.backend()).finish()
    }
}

struct Inner {
    backend: Backend,
    rses: Mutex<Option<Known>>,
    wakes: [Notify; 6],
    /// Identifies this process among the servers that share the catalog.
    origin: String,
    /// Daemons and workers that other servers have not been notified about yet, as bits.
    unsent: AtomicU8,
    /// Notified when `unsent` changes.
    unsent_changed: Notify,
    /// Notified when there may be files to move.
    moves: Notify,
    retries: AtomicU64,
    deadlocks: AtomicU64,
    statements: AtomicU64,
    health: Health,
}

enum Backend {
    Sqlite { writer: Box<Writer>, readers: Pool<Sqlite>, path: PathBuf },
    Postgres { pool: Pool<Postgres>, address: Box<Address> },
}

/// The version at which the storage elements were read, and the value the caller made of them.
type Known = (i64, Arc<dyn Any + Send + Sync>);

const RSES_VERSION: &str = "SELECT value FROM versions WHERE name = 'rses'";

/// Effects to apply once a transaction is committed.
struct After {
    rses: Option<Known>,
    wakes: Vec<Daemon>,
    moves: bool,
    statements: u64,
}

impl Catalog {
    /// Opens a catalog: the path of a SQLite file, or `postgres://…`. Migrates it if need be.
    ///
    /// # Errors
    /// Among others if a file lost commits, or is missing although it existed. No file is changed
    /// then.
    pub async fn open(address: &str) -> Result<Self> {
        let address = address.to_owned();
        blocking(move || Self::open_blocking(&address)).await
    }

    /// As [`Catalog::open`], but creates a new file if the one that existed is missing.
    pub async fn open_fresh(address: &str) -> Result<Self> {
        let address = address.to_owned();
        blocking(move || Self::open_as(&address, true)).await
    }

    /// [`Catalog::open`] for callers without a runtime.
    pub fn open_blocking(address: &str) -> Result<Self> {
        Self::open_as(address, false)
    }

    fn open_as(address: &str, fresh: bool) -> Result<Self> {
        let mut full = false;
        let backend = if Address::is_postgres(address) {
            let address = Box::new(Address::parse(address)?);
            let engine = retry_connecting(|| {
                let mut engine = Postgres::connect(&address)?;
                schema::migrate(&mut engine)?;
                schema::prepare(&mut engine)?;
                Ok(engine)
            })?;
            let pool = Pool::new(CONNECTIONS);
            drop(pool.lend(|| Ok(engine))?);
            Backend::Postgres { pool, address }
        } else {
            let path = address.strip_prefix("sqlite://").unwrap_or(address);
            if path.is_empty() || path.contains("://") {
                return Err(Error::Address(address.to_owned()));
            }
            let path = PathBuf::from(path);
            let (engine, counter, space) = opening::open_file(&path, fresh)?;
            full = space.full_at_start;
            let writer = Box::new(Writer::new(engine, Some(counter), Some(space)));
            Backend::Sqlite { writer, readers: Pool::new(READERS), path }
        };
        let place = match &backend {
            Backend::Sqlite { path, .. } => path.display().to_string(),
            Backend::Postgres { .. } => "in PostgreSQL".to_owned(),
        };
        let file = match &backend {
            Backend::Sqlite { path, .. } => Some(path.as_path()),
            Backend::Postgres { .. } => None,
        };
        let health = Health::new(place, full, file);
        let inner = Inner {
            backend,
            health,
            rses: Mutex::new(None),
            wakes: Default::default(),
            origin: format!("{:016x}", rand::random::<u64>()),
            unsent: AtomicU8::new(0),
            unsent_changed: Notify::new(),
            moves: Notify::new(),
            retries: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
            statements: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The path of the SQLite file, if the address names one.
    #[must_use]
    pub fn file(address: &str) -> Option<PathBuf> {
        let path = address.strip_prefix("sqlite://").unwrap_or(address);
        let is_file = !Address::is_postgres(address) && !path.is_empty() && !path.contains("://");
        is_file.then(|| path.into())
    }

    /// `sqlite` or `postgres`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        match self.inner.backend {
            Backend::Sqlite { .. } => "sqlite",
            Backend::Postgres { .. } => "postgres",
        }
    }

    /// The number of retries, and how many of them were caused by a deadlock (expected: none).
    #[must_use]
    pub fn retries(&self) -> (u64, u64) {
        (self.inner.retries.load(Ordering::Relaxed), self.inner.deadlocks.load(Ordering::Relaxed))
    }

    /// How many statements committed transactions have run.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.inner.statements.load(Ordering::Relaxed)
    }

    /// Identifies this process among the servers that share the catalog.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.inner.origin
    }

    /// Completes when a daemon may have new work.
    pub async fn woken(&self, daemon: Daemon) {
        self.inner.wakes[daemon as usize].notified().await;
    }

    /// Completes when there may be files to move.
    pub async fn transfers_woken(&self) {
        self.inner.moves.notified().await;
    }

    /// Runs `work` in one transaction that may write. A retry runs `work` again from the start.
    pub async fn write<T: Send + 'static, E: TxError + Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let catalog = self.clone();
        blocking(move || catalog.write_blocking(work)).await
    }

    /// Runs `work` over one consistent state.
    pub async fn read<T: Send + 'static, E: TxError + Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let catalog = self.clone();
        blocking(move || catalog.read_blocking(work)).await
    }

    /// [`Catalog::write`] for callers that may block.
    pub fn write_blocking<T, E: TxError>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.inner.health.undamaged()?;
        let done = match &self.inner.backend {
            Backend::Sqlite { writer, .. } => self.write_to_file(writer, &work),
            Backend::Postgres { pool, .. } => {
                self.retried(|| self.once_on_postgres(pool, Mode::Write, &work))
            }
        };
        self.inner.health.note(true, done)
    }

    /// Runs `work` in a transaction on SQLite; if the disk is full, makes space and runs it again.
    fn write_to_file<T, E: TxError>(
        &self,
        writer: &Writer,
        work: &impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let once = || {
            let (value, after) = writer.run(|engine| self.run(engine, work))?;
            self.committed(after);
            Ok(value)
        };
        let has_no_space = |done: &Result<T, E>| {
            let failed = done.as_ref().err().and_then(TxError::catalog);
            failed.is_some_and(|error| writer.has_no_space(error))
        };
        let done = self.retried(once);
        if !has_no_space(&done) {
            return done;
        }
        self.inner.health.note_full();
        writer.make_space();
        let done = self.retried(once);
        match has_no_space(&done) {
            true => Err(Error::Full { place: String::new() }.into()),
            false => done,
        }
    }

    /// [`Catalog::read`] for callers that may block.
    pub fn read_blocking<T, E: TxError>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = self.retried(|| match &self.inner.backend {
            Backend::Sqlite { readers, path, .. } => {
                let mut lent = readers.lend(|| {
                    self.inner.health.same_file(path)?;
                    let mut engine = Sqlite::open_reader(path)?;
                    schema::prepare(&mut engine)?;
                    Ok(engine)
                })?;
                let engine = lent.value.as_mut().expect("a lent connection is there until dropped");
                engine.begin(Mode::Read)?;
                let done = self.run(engine, &work);
                engine.rollback();
                let (value, after) = done?;
                self.committed(after);
                Ok(value)
            }
            Backend::Postgres { pool, .. } => self.once_on_postgres(pool, Mode::Read, &work),
        });
        self.inner.health.note(false, done)
    }

    /// How often a transaction is retried after this error. Others that change the same rows are over
    /// soon; a database that cannot be reached may stay away.
    fn most_tries(&self, error: &Error) -> u32 {
        match (&self.inner.backend, error) {
            // Class 40: the database asks for a retry.
            (Backend::Postgres { .. }, Error::Unavailable(text)) if !text.contains("(40") => {
                TRIES_TO_REACH
            }
            _ => TRIES,
        }
    }

    fn retried<T, E: TxError>(&self, run: impl Fn() -> Result<T, E>) -> Result<T, E> {
        let mut tries = 0;
        loop {
            let done = run();
            let passing = match &done {
                Err(error) => error.catalog().filter(|error| error.is_retryable()),
                Ok(_) => None,
            };
            match passing {
                Some(error) if tries < self.most_tries(error) => {
                    tries += 1;
                    self.inner.retries.fetch_add(1, Ordering::Relaxed);
                    if let Error::Unavailable(text) = error {
                        tracing::debug!(tries, text, "retrying catalog transaction");
                        if text.contains("(40P01)") {
                            self.inner.deadlocks.fetch_add(1, Ordering::Relaxed);
                        }
                        std::thread::sleep(pause(tries));
                    }
                }
                _ => return done,
            }
        }
    }

    /// Runs `work` in the transaction that is open on `engine`.
    fn run<T, E>(
        &self,
        engine: &mut dyn Engine,
        work: &impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(T, After), E> {
        let mut tx = Tx {
            engine,
            rses: None,
            rses_version: None,
            shared: &self.inner.rses,
            wakes: Vec::new(),
            moves: false,
            statements: 0,
            unlocked_dids: false,
        };
        let value = work(&mut tx)?;
        let Tx { rses, wakes, moves, statements, .. } = tx;
        Ok((value, After { rses, wakes, moves, statements }))
    }

    /// Applies the effects of a committed transaction: shares the storage elements it read, and
    /// wakes the daemons that have new work.
    fn committed(&self, after: After) {
        if let Some((version, rses)) = after.rses {
            let mut known = self.inner.rses.lock();
            if known.as_ref().is_none_or(|known| known.0 < version) {
                *known = Some((version, rses));
            }
        }
        self.inner.statements.fetch_add(after.statements, Ordering::Relaxed);
        if after.moves {
            self.inner.moves.notify_one();
            self.inner.unsent.fetch_or(notifications::WORKERS, Ordering::AcqRel);
            self.inner.unsent_changed.notify_one();
        }
        self.wake(&after.wakes);
    }

    /// Wakes daemons of this process now, and those of other servers with the next notification.
    pub fn wake(&self, daemons: &[Daemon]) {
        for daemon in daemons {
            self.inner.wakes[*daemon as usize].notify_one();
            self.inner.unsent.fetch_or(1 << *daemon as u8, Ordering::AcqRel);
        }
        if !daemons.is_empty() {
            self.inner.unsent_changed.notify_one();
        }
    }

    fn once_on_postgres<T, E: TxError>(
        &self,
        pool: &Pool<Postgres>,
        mode: Mode,
        work: &impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Backend::Postgres { address, .. } = &self.inner.backend else {
            return Err(Error::Address("not PostgreSQL".to_owned()).into());
        };
        let connect = || -> Result<Postgres> {
            let mut engine = Postgres::connect(address)?;
            schema::prepare(&mut engine)?;
            Ok(engine)
        };
        let mut lent = pool.lend(connect)?;
        let engine = lent.value.as_mut().expect("a lent connection is there until dropped");
        if !engine.is_usable() {
            // The idle connection was lost; replace it.
            *engine = connect()?;
        }
        engine.begin(mode)?;
        let done = self.run(engine, work);
        let done = match done {
            Ok(value) => match engine.commit() {
                Ok(()) => Ok(value),
                Err(lost @ Error::Unavailable(_)) => match engine.transaction() {
                    Some(transaction) if mode == Mode::Write => self
                        .commit_outcome(&transaction, engine.run(), connect)
                        .and_then(|committed| if committed { Ok(value) } else { Err(lost) })
                        .map_err(E::from),
                    _ => Err(lost.into()),
                },
                Err(other) => Err(other.into()),
            },
            Err(error) => {
                engine.rollback();
                Err(error)
            }
        };
        if !engine.is_usable() {
            lent.value = None;
        }
        let (value, after) = done?;
        self.committed(after);
        Ok(value)
    }

    /// Finds out whether a transaction was committed after the connection was lost during its
    /// commit.
    fn commit_outcome(
        &self,
        transaction: &str,
        run: &str,
        connect: impl Fn() -> Result<Postgres>,
    ) -> Result<bool> {
        let mut last = Error::Moved;
        for tries in 0..TRIES {
            match connect().and_then(|mut engine| engine.committed(transaction, run)) {
                Ok(CommitOutcome::Committed) => return Ok(true),
                Ok(CommitOutcome::NotCommitted) => return Ok(false),
                Ok(CommitOutcome::Unknown) => return Err(Error::Unknown),
                Ok(CommitOutcome::InProgress) => {}
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(u64::from(20 * tries).min(500)));
        }
        Err(Error::Database(format!(
            "cannot find out whether transaction {transaction} was committed: {last}"
        )))
    }
}

/// The wait before a retry.
fn pause(tries: u32) -> Duration {
    Duration::from_millis(u64::from(10 * tries).min(500))
}

/// Retries for five seconds, for a database that is just starting.
fn retry_connecting<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match open() {
            Err(error) if error.is_retryable() && tries < 20 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(250));
            }
            other => return other,
        }
    }
}

/// Runs blocking work on a thread of its own and waits for it.
async fn blocking<T: Send + 'static, E: TxError + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::Database(error.to_string()).into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_less_than_three_seconds_for_a_database_that_cannot_be_reached() {
        let waits: Duration = (1..=TRIES_TO_REACH).map(pause).sum();
        assert!(waits < Duration::from_millis(2500), "{waits:?}");
        assert!(waits > Duration::from_millis(1500), "a quick restart is bridged: {waits:?}");
    }
}
