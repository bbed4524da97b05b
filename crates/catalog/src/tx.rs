//! One transaction: its statements and queries, and the effects to apply once it is committed.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::engine::{Column, Engine, Value};
use super::pipeline::{Answers, Pipeline};
use super::row::Row;
use super::{Daemon, Known, RSES_VERSION};
use crate::error::{Error, Result, TxError};

/// One transaction.
#[derive(Debug)]
pub struct Tx<'a> {
    pub(super) engine: &'a mut dyn Engine,
    pub(super) rses: Option<Known>,
    /// The version of the storage elements, if a pipeline has queried it.
    pub(super) rses_version: Option<i64>,
    pub(super) shared: &'a Mutex<Option<Known>>,
    pub(super) wakes: Vec<Daemon>,
    pub(super) moves: bool,
    pub(super) statements: u64,
    pub(super) unlocked_dids: bool,
}

impl Tx<'_> {
    /// All rows of an answer.
    pub fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        self.statements += 1;
        self.engine.query(sql, params, &mut |row| {
            rows.push(row);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Calls `each` for every row of an answer, without collecting them.
    pub fn for_each<E: TxError>(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        self.statements += 1;
        let mut failed = None;
        let done = self.engine.query(sql, params, &mut |row| {
            each(row).map_err(|error| {
                failed = Some(error);
                Error::Stopped
            })
        });
        match failed {
            Some(error) => Err(error),
            None => done.map_err(E::from),
        }
    }

    /// The first row of an answer.
    pub fn first(&mut self, sql: &str, params: &[Value]) -> Result<Option<Row>> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    /// The number in the first row of an answer, 0 without one.
    pub fn number(&mut self, sql: &str, params: &[Value]) -> Result<i64> {
        self.first(sql, params)?.map_or(Ok(0), |row| row.int(0))
    }

    /// Runs a statement and counts the rows it changed.
    pub fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        self.statements += 1;
        self.engine.execute(sql, params)
    }

    /// Deferred: sent with the next statement or the commit, which reports its error. Takes no
    /// round trip of its own.
    pub fn later(&mut self, sql: &str, params: &[Value]) -> Result<()> {
        self.statements += 1;
        self.engine.later(sql, params)
    }

    /// Runs the queries of a pipeline, in order and in one round trip.
    pub fn run(&mut self, pipeline: Pipeline) -> Result<Answers> {
        self.statements += pipeline.queries.len() as u64;
        let mut answers = Answers(self.engine.pipeline(&pipeline.queries)?);
        if let Some(version) = pipeline.rses {
            self.rses_version = Some(answers.number(version)?);
        }
        Ok(answers)
    }

    /// Inserts rows into a work table; no columns, or empty ones, insert none.
    pub fn load(&mut self, table: &str, columns: &[(&str, Column)]) -> Result<()> {
        if columns.first().is_some_and(|(_, column)| column.len() > 0) {
            self.statements += 1;
            self.engine.load(table, columns)?;
        }
        Ok(())
    }

    /// Empties work tables.
    pub fn clear(&mut self, tables: &[&str]) -> Result<()> {
        self.engine.clear(tables)
    }

    /// The storage elements as this transaction sees them. `load` reads them, and its answer is
    /// shared by all transactions until [`Tx::rses_changed`].
    pub fn rses<T: Send + Sync + 'static, E: TxError>(
        &mut self,
        load: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let own = self.rses.as_ref().map(|(_, rses)| Arc::clone(rses));
        if let Some(Ok(rses)) = own.map(Arc::downcast) {
            return Ok(rses);
        }
        let version = match self.rses_version {
            Some(version) => version,
            None => self.number(RSES_VERSION, &[])?,
        };
        let shared = self.shared.lock().clone().filter(|(known, _)| *known == version);
        let rses = match shared.map(|(_, rses)| rses.downcast()) {
            Some(Ok(rses)) => rses,
            _ => Arc::new(load(self)?),
        };
        self.rses = Some((version, Arc::clone(&rses) as Arc<dyn Any + Send + Sync>));
        Ok(rses)
    }

    /// Call this after a change of RSEs: later transactions, on every server, read them again.
    pub fn rses_changed(&mut self) -> Result<()> {
        (self.rses, self.rses_version) = (None, None);
        self.execute("UPDATE versions SET value = value + 1 WHERE name = 'rses'", &[]).map(drop)
    }

    /// Wakes a daemon once this transaction is committed.
    pub fn wake(&mut self, daemon: Daemon) {
        if !self.wakes.contains(&daemon) {
            self.wakes.push(daemon);
        }
    }

    /// Wakes workers once this transaction is committed.
    pub fn wake_workers(&mut self) {
        self.moves = true;
    }

    /// Whether this is PostgreSQL, where rows are locked one by one.
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
