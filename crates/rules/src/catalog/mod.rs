//! The catalog: where every file, replica, rule and lock is written down.
//!
//! [`Catalog::write`] runs a function in one transaction and, when the database asks for it or
//! goes away, runs it again from the start: such functions keep nothing between runs. On SQLite
//! there is one writer at a time; on PostgreSQL transactions take row locks in one global order
//!
//! 1. data identifiers that are collections, by number,
//! 2. rules, by number,
//! 3. files, by number: the row of a file stands for all its replicas, locks and requests,
//! 4. counters (usage of accounts, then of RSEs), by number,
//!
//! so that no two can wait for each other. The functions in [`order`] take them.

pub(crate) mod engine;
pub mod order;
mod postgres;
pub(crate) mod schema;
mod sqlite;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use engine::{Column, Row, Value};
use engine::{Engine, Mode};
use postgres::Postgres;
use sqlite::Sqlite;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::expression::Rse;

/// How often a transaction is tried when the catalog moves under it.
const TRIES: u32 = 40;

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
    retries: AtomicU64,
    deadlocks: AtomicU64,
}

enum Backend {
    Sqlite { writer: Turns<Sqlite>, readers: Pool<Sqlite>, path: PathBuf },
    Postgres { pool: Pool<Postgres>, url: String },
}

/// A lock that is taken in the order of asking.
struct Turns<T> {
    turn: Mutex<(u64, u64)>,
    moved: Condvar,
    value: Mutex<T>,
}

fn open_lock<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Turns<T> {
    fn new(value: T) -> Self {
        Self { turn: Mutex::new((0, 0)), moved: Condvar::new(), value: Mutex::new(value) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut turn = open_lock(&self.turn);
        let mine = turn.0;
        turn.0 += 1;
        while turn.1 != mine {
            turn = self.moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        drop(turn);
        let _next = NextTurn(self);
        work(&mut open_lock(&self.value))
    }
}

/// Passes the turn on, also when the work panicked.
struct NextTurn<'a, T>(&'a Turns<T>);

impl<T> Drop for NextTurn<'_, T> {
    fn drop(&mut self) {
        open_lock(&self.0.turn).1 += 1;
        self.0.moved.notify_all();
    }
}

/// A bounded set of connections.
struct Pool<T> {
    state: Mutex<(Vec<T>, usize)>,
    freed: Condvar,
    most: usize,
}

/// One connection of a pool, which gets it back.
struct Lent<'a, T> {
    pool: &'a Pool<T>,
    value: Option<T>,
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut state = open_lock(&self.pool.state);
        match self.value.take() {
            Some(value) => state.0.push(value),
            None => state.1 -= 1,
        }
        self.pool.freed.notify_one();
    }
}

impl<T> Pool<T> {
    fn new(most: usize) -> Self {
        Self { state: Mutex::new((Vec::new(), 0)), freed: Condvar::new(), most }
    }

    /// An idle connection, a new one, or the next that is given back.
    fn lend(&self, make: impl FnOnce() -> Result<T>) -> Result<Lent<'_, T>> {
        let mut state = open_lock(&self.state);
        loop {
            if let Some(value) = state.0.pop() {
                return Ok(Lent { pool: self, value: Some(value) });
            }
            if state.1 < self.most {
                state.1 += 1;
                break;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let mut lent = Lent { pool: self, value: None };
        lent.value = Some(make()?);
        Ok(lent)
    }
}

/// The RSEs, and at which version they were read.
type Known = (i64, Arc<Vec<Rse>>);

/// One transaction.
#[derive(Debug)]
pub struct Tx<'a> {
    engine: &'a mut dyn Engine,
    rses: Option<Arc<Vec<Rse>>>,
    shared: &'a Mutex<Option<Known>>,
    wakes: Vec<Daemon>,
    unlocked_dids: bool,
}

impl Tx<'_> {
    /// All rows of an answer.
    pub fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.engine.query(sql, params, &mut |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Hands over each row of an answer, keeping none.
    pub fn for_each(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        self.engine.query(sql, params, each)
    }

    /// The first row of an answer.
    pub fn first(&mut self, sql: &str, params: &[Value]) -> Result<Option<Row>> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    /// The number in the first row of an answer, 0 without one.
    pub fn number(&mut self, sql: &str, params: &[Value]) -> Result<i64> {
        Ok(self.first(sql, params)?.map_or(0, |row| row.int(0)))
    }

    /// Runs a statement and counts the rows it changed.
    pub fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        self.engine.execute(sql, params)
    }

    pub(crate) fn load(&mut self, table: &str, columns: &[(&str, Column)]) -> Result<()> {
        if columns.first().is_some_and(|(_, column)| column.len() > 0) {
            self.engine.load(table, columns)?;
        }
        Ok(())
    }

    pub(crate) fn clear(&mut self, tables: &[&str]) -> Result<()> {
        self.engine.clear(tables)
    }

    /// The RSEs that exist, by number, as this transaction sees them.
    pub fn rses(&mut self) -> Result<Arc<Vec<Rse>>> {
        if let Some(rses) = &self.rses {
            return Ok(Arc::clone(rses));
        }
        let version = self.number("SELECT value FROM versions WHERE name = 'rses'", &[])?;
        let held = open_lock(self.shared).clone();
        let rses = match held {
            Some((known, rses)) if known == version => rses,
            _ => {
                let rses = Arc::new(crate::rse::load(self)?);
                *open_lock(self.shared) = Some((version, Arc::clone(&rses)));
                rses
            }
        };
        self.rses = Some(Arc::clone(&rses));
        Ok(rses)
    }

    /// RSEs changed: everybody reads them anew.
    pub(crate) fn rses_changed(&mut self) -> Result<()> {
        self.rses = None;
        self.execute("UPDATE versions SET value = value + 1 WHERE name = 'rses'", &[]).map(drop)
    }

    /// Wakes a daemon once this transaction is committed.
    pub(crate) fn wake(&mut self, daemon: Daemon) {
        if !self.wakes.contains(&daemon) {
            self.wakes.push(daemon);
        }
    }

    /// Whether rows are locked one by one here.
    #[must_use]
    pub fn is_postgres(&self) -> bool {
        self.engine.is_postgres()
    }

    /// Leaves out the row locks of data identifiers, to show in a test that they are needed.
    #[doc(hidden)]
    pub fn leave_dids_unlocked(&mut self) {
        self.unlocked_dids = true;
    }
}

impl Catalog {
    /// Opens a catalog: the path of a SQLite file, or `postgres://…`. Migrates it if need be.
    pub async fn open(address: &str) -> Result<Self> {
        let address = address.to_owned();
        blocking(move || Self::open_blocking(&address)).await
    }

    /// The same, for callers without a runtime.
    pub fn open_blocking(address: &str) -> Result<Self> {
        let backend = if address.starts_with("postgres://")
            || address.starts_with("postgresql://")
            || address.starts_with("host=")
        {
            let mut engine = Postgres::connect(address)?;
            schema::migrate(&mut engine)?;
            schema::prepare(&mut engine)?;
            let pool = Pool::new(CONNECTIONS);
            drop(pool.lend(|| Ok(engine))?);
            Backend::Postgres { pool, url: address.to_owned() }
        } else {
            let path = address.strip_prefix("sqlite://").unwrap_or(address);
            if path.is_empty() || path.contains("://") {
                return Err(Error::Address(address.to_owned()));
            }
            let path = PathBuf::from(path);
            let mut engine = Sqlite::open(&path)?;
            schema::migrate(&mut engine)?;
            schema::prepare(&mut engine)?;
            Backend::Sqlite { writer: Turns::new(engine), readers: Pool::new(READERS), path }
        };
        let inner = Inner {
            backend,
            rses: Mutex::new(None),
            wakes: Default::default(),
            retries: AtomicU64::new(0),
            deadlocks: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// `sqlite` or `postgres`.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        match self.inner.backend {
            Backend::Sqlite { .. } => "sqlite",
            Backend::Postgres { .. } => "postgres",
        }
    }

    /// How many transactions were run again, and how many of those for a deadlock (none, ever).
    #[must_use]
    pub fn retries(&self) -> (u64, u64) {
        (self.inner.retries.load(Ordering::Relaxed), self.inner.deadlocks.load(Ordering::Relaxed))
    }

    /// Completes when a daemon may have new work.
    pub async fn woken(&self, daemon: Daemon) {
        self.inner.wakes[daemon as usize].notified().await;
    }

    /// Runs `work` in one transaction that may write, again and whole when it must be.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let catalog = self.clone();
        blocking(move || catalog.write_blocking(work)).await
    }

    /// Runs `work` over one consistent state.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let catalog = self.clone();
        blocking(move || catalog.read_blocking(work)).await
    }

    /// [`Catalog::write`] for callers that may block.
    pub fn write_blocking<T>(&self, work: impl Fn(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        self.retried(|| match &self.inner.backend {
            Backend::Sqlite { writer, .. } => {
                writer.with(|engine| self.once(engine, Mode::Write, &work))
            }
            Backend::Postgres { pool, .. } => self.once_on_postgres(pool, Mode::Write, &work),
        })
    }

    /// [`Catalog::read`] for callers that may block.
    pub fn read_blocking<T>(&self, work: impl Fn(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        self.retried(|| match &self.inner.backend {
            Backend::Sqlite { readers, path, .. } => {
                let mut lent = readers.lend(|| {
                    let mut engine = Sqlite::open(path)?;
                    schema::prepare(&mut engine)?;
                    Ok(engine)
                })?;
                let engine = lent.value.as_mut().expect("a lent connection is there until dropped");
                self.once(engine, Mode::Read, &work)
            }
            Backend::Postgres { pool, .. } => self.once_on_postgres(pool, Mode::Read, &work),
        })
    }

    fn retried<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match run() {
                Err(error) if error.is_retryable() && tries < TRIES => {
                    tries += 1;
                    self.inner.retries.fetch_add(1, Ordering::Relaxed);
                    if let Error::Unavailable(text) = &error {
                        tracing::debug!(tries, text, "running the transaction again");
                        if text.contains("(40P01)") {
                            self.inner.deadlocks.fetch_add(1, Ordering::Relaxed);
                        }
                        // A database that restarts is given some seconds.
                        std::thread::sleep(Duration::from_millis(u64::from(10 * tries).min(500)));
                    }
                }
                other => return other,
            }
        }
    }

    fn once<T>(
        &self,
        engine: &mut dyn Engine,
        mode: Mode,
        work: &impl Fn(&mut Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        engine.begin(mode)?;
        let mut tx = Tx {
            engine,
            rses: None,
            shared: &self.inner.rses,
            wakes: Vec::new(),
            unlocked_dids: false,
        };
        let done = work(&mut tx);
        let wakes = std::mem::take(&mut tx.wakes);
        match done {
            Ok(value) => {
                engine.commit()?;
                self.wake(&wakes);
                Ok(value)
            }
            Err(error) => {
                engine.rollback();
                Err(error)
            }
        }
    }

    /// Wakes daemons now.
    pub fn wake(&self, daemons: &[Daemon]) {
        for daemon in daemons {
            self.inner.wakes[*daemon as usize].notify_one();
        }
    }

    fn once_on_postgres<T>(
        &self,
        pool: &Pool<Postgres>,
        mode: Mode,
        work: &impl Fn(&mut Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        let Backend::Postgres { url, .. } = &self.inner.backend else {
            return Err(Error::Address("not PostgreSQL".to_owned()));
        };
        let connect = || {
            let mut engine = Postgres::connect(url)?;
            schema::prepare(&mut engine)?;
            Ok(engine)
        };
        let mut lent = pool.lend(connect)?;
        let engine = lent.value.as_mut().expect("a lent connection is there until dropped");
        engine.begin(mode).inspect_err(|_| ()).or_else(|error| {
            // The idle connection was lost meanwhile: a fresh one takes its place.
            *engine = connect()?;
            drop(error);
            engine.begin(mode)
        })?;
        let mut tx = Tx {
            engine,
            rses: None,
            shared: &self.inner.rses,
            wakes: Vec::new(),
            unlocked_dids: false,
        };
        let done = work(&mut tx);
        let wakes = std::mem::take(&mut tx.wakes);
        let engine = lent.value.as_mut().expect("a lent connection is there until dropped");
        let done = match done {
            Ok(value) => match engine.commit() {
                Ok(()) => Ok(value),
                Err(lost @ Error::Unavailable(_)) => {
                    let transaction = engine.transaction();
                    match transaction {
                        Some(transaction) if mode == Mode::Write => self
                            .fate(&transaction, connect)
                            .and_then(|committed| if committed { Ok(value) } else { Err(lost) }),
                        _ => Err(lost),
                    }
                }
                Err(other) => Err(other),
            },
            Err(error) => {
                engine.rollback();
                Err(error)
            }
        };
        if !engine.is_usable() {
            lent.value = None;
        }
        if done.is_ok() {
            self.wake(&wakes);
        }
        done
    }

    /// What became of a transaction whose commit was not answered.
    fn fate(&self, transaction: &str, connect: impl Fn() -> Result<Postgres>) -> Result<bool> {
        let mut last = Error::Moved;
        for tries in 0..TRIES {
            match connect().and_then(|mut engine| engine.committed(transaction)) {
                Ok(Some(committed)) => return Ok(committed),
                Ok(None) => {}
                Err(error) => last = error,
            }
            std::thread::sleep(Duration::from_millis(u64::from(20 * tries).min(500)));
        }
        Err(Error::Database(format!("the fate of transaction {transaction} is unknown: {last}")))
    }
}

/// Runs what blocks beside the runtime, and waits for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::Database(error.to_string())),
        },
    }
}

/// Sums by RSE.
pub(crate) type ByRse<T> = BTreeMap<i64, T>;
