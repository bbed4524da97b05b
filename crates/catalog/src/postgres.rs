//! The catalog in PostgreSQL, shared by several servers.
//!
//! A connection is driven by the thread that uses it: each has a small runtime of its own, so that
//! an answer wakes no other thread. Transactions are `READ COMMITTED` with explicit row locks.
//! Statements whose answer is not needed at once (the begin of a transaction, deferred statements)
//! are sent together with the next one, so that they take no round trip of their own.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, SimpleQueryMessage, Statement};

use super::address::Address;
use super::engine::{Column, Engine, Mode, Value, database, with_arrays, with_lateral_lookups};
use super::pipeline::Query;
use super::row::Row;
use crate::error::{Error, Result};

/// Work tables are emptied row by row until this many dead rows have gathered in them.
const DEAD_ROWS: u64 = 500;

/// Cached plans are discarded after so many transactions, because the tables have grown since.
const PLAN_LIFETIME: u32 = 2_000;

/// The most deferred statements that are sent together with the next one.
const MOST_DEFERRED: usize = 16;

pub(crate) struct Postgres {
    client: Client,
    statements: HashMap<Arc<str>, Statement>,
    /// Rows put into each work table since it was last truncated.
    dirty: HashMap<String, u64>,
    /// The statement that begins the transaction, until it is sent.
    begin: Option<&'static str>,
    /// Deferred statements, until they are sent.
    deferred: Vec<Deferred>,
    /// The transaction's number, to find out after a lost connection whether it was committed.
    transaction: Option<String>,
    /// Transactions since plans were last made.
    transactions: u32,
    /// Identifies this run of the database server.
    run: String,
    // Dropped last: it drives the connection of the client above.
    runtime: Option<Runtime>,
}

struct Deferred {
    statement: Statement,
    params: Vec<Value>,
    /// The work table it inserts rows into.
    table: Option<String>,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An error of the driver, with its cause.
pub(crate) fn with_cause(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    let text = error.as_db_error().map_or_else(
        || with_cause(error),
        |error| format!("{} ({})", error.message(), error.code().code()),
    );
    let Some(code) = error.code() else {
        return if error.is_closed()
            || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
        {
            Error::Unavailable(text)
        } else {
            Error::Database(text)
        };
    };
    let again = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
    ];
    if again.contains(code) || code.code().starts_with("08") {
        Error::Unavailable(text)
    } else if *code == SqlState::DISK_FULL {
        Error::Full { place: String::new() }
    } else if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code) {
        Error::Damaged { place: String::new(), what: text }
    } else if *code == SqlState::NUMERIC_VALUE_OUT_OF_RANGE {
        Error::Overflow
    } else {
        Error::Database(text)
    }
}

/// Classifies a failed connection attempt. Network failures can be retried; an invalid certificate
/// or a wrong password cannot.
fn connection_error(error: &tokio_postgres::Error) -> Error {
    let invalid_certificate = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|source| source.kind() == std::io::ErrorKind::InvalidData);
    match failed(error) {
        Error::Database(text) if error.code().is_none() && !invalid_certificate => {
            Error::Unavailable(text)
        }
        Error::Unavailable(text) if invalid_certificate => Error::Database(text),
        other => other,
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(value) if *ty == Type::INT4 => i32::try_from(*value)?.to_sql(ty, out),
            Self::Int(value) if *ty == Type::FLOAT8 => (*value as f64).to_sql(ty, out),
            Self::Int(value) if *ty == Type::INT8 => value.to_sql(ty, out),
            Self::Int(value) if *ty == Type::TEXT => value.to_string().to_sql(ty, out),
            Self::Real(value) => value.to_sql(ty, out),
            Self::Text(value) => value.as_str().to_sql(ty, out),
            Self::Ints(values) => values.to_sql(ty, out),
            Self::Texts(values) => values.to_sql(ty, out),
            Self::Int(_) => Err(format!("a number does not fit {ty}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// `?1` becomes `$1`, `LOCK ROWS` becomes `FOR UPDATE`.
fn rewrite(sql: &str) -> String {
    with_arrays(&with_lateral_lookups(sql), "= ANY (", "::bigint[])")
        .replace('?', "$")
        .replace("LOCK ROWS", "FOR UPDATE")
}

fn read(row: &tokio_postgres::Row, sql: &Arc<str>) -> Result<Row> {
    let values = (0..row.len()).map(|column| value(row, column)).collect::<Result<_>>()?;
    Ok(Row::new(values, sql))
}

fn value(row: &tokio_postgres::Row, column: usize) -> Result<Value> {
    let ty = row.columns()[column].type_();
    let read = match *ty {
        Type::INT8 => row.try_get::<_, Option<i64>>(column).map(|value| value.map(Value::Int)),
        Type::INT4 => row
            .try_get::<_, Option<i32>>(column)
            .map(|value| value.map(|value| Value::Int(i64::from(value)))),
        Type::BOOL => row
            .try_get::<_, Option<bool>>(column)
            .map(|value| value.map(|value| Value::Int(i64::from(value)))),
        Type::FLOAT8 => row.try_get::<_, Option<f64>>(column).map(|value| value.map(Value::Real)),
        _ => row.try_get::<_, Option<String>>(column).map(|value| value.map(Value::Text)),
    };
    read.map(|value| value.unwrap_or(Value::Null)).map_err(database)
}

impl Postgres {
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(database)?;
        let client = runtime.block_on(async {
            let (client, connection) =
                address.connect().await.map_err(|error| connection_error(&error))?;
            // Ends when the client is dropped; an error of the connection shows in the next
            // statement.
            tokio::spawn(async move { drop(connection.await) });
            Ok::<_, Error>(client)
        })?;
        let mut engine = Self {
            client,
            statements: HashMap::new(),
            dirty: HashMap::new(),
            begin: None,
            deferred: Vec::new(),
            transaction: None,
            transactions: 0,
            run: String::new(),
            runtime: Some(runtime),
        };
        engine.run = engine.read_run()?;
        engine.batch(
            "SET jit = off; SET random_page_cost = 1.1; SET plan_cache_mode = force_generic_plan; \
             SET enable_mergejoin = off; SET enable_seqscan = off; SET temp_buffers = '64MB'; SET application_name = 'mainstay'; \
             SET idle_in_transaction_session_timeout = '10min'",
        )?;
        Ok(engine)
    }

    /// Reads a value that identifies this run of the database server. PostgreSQL resets its
    /// statistics when it recovers from a crash, even if its main process survives.
    fn read_run(&mut self) -> Result<String> {
        let sql =
            "SELECT concat(pg_postmaster_start_time(), ' ', stats_reset) FROM pg_stat_bgwriter";
        Ok(self.first_text(sql)?.unwrap_or_default())
    }

    /// The run of the database server that this connection belongs to.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Whether a transaction was committed, if the connection was lost during its commit; `run` is
    /// the run of the database server in which it began.
    pub(crate) fn committed(&mut self, transaction: &str, run: &str) -> Result<CommitOutcome> {
        let sql = format!("SELECT pg_xact_status('{transaction}'::xid8)");
        let status = self.first_text(&sql)?;
        Ok(outcome_of(status.as_deref(), self.run == run))
    }

    fn first_text(&mut self, sql: &str) -> Result<Option<String>> {
        for message in self.simple(sql)? {
            if let SimpleQueryMessage::Row(row) = message {
                return Ok(row.get(0).map(str::to_owned));
            }
        }
        Ok(None)
    }

    pub(crate) fn transaction(&self) -> Option<String> {
        self.transaction.clone()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime is taken only when the connection is dropped")
    }

    fn count_rows(&mut self, table: &str, rows: u64) {
        match self.dirty.get_mut(table) {
            Some(dirty) => *dirty += rows,
            None => drop(self.dirty.insert(table.to_owned(), rows)),
        }
    }

    fn simple(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>> {
        self.runtime().block_on(self.client.simple_query(sql)).map_err(|error| failed(&error))
    }

    fn statement(&mut self, sql: &str) -> Result<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self
            .runtime()
            .block_on(self.client.prepare(&rewrite(sql)))
            .map_err(|error| with_statement(failed(&error), sql))?;
        self.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// A prepared statement's text, for the rows of its answers.
    fn written(&self, sql: &str) -> Arc<str> {
        self.statements.get_key_value(sql).map_or_else(|| sql.into(), |(sql, _)| Arc::clone(sql))
    }
}

fn with_statement(error: Error, sql: &str) -> Error {
    match error {
        Error::Database(text) => Error::Database(format!("{text} in {}", sql.trim())),
        other => other,
    }
}

/// Sends the begin and the deferred statements, then `last`, and waits for all answers.
async fn send<T>(
    client: &Client,
    begin: Option<&'static str>,
    deferred: &[Deferred],
    last: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> Result<(Option<String>, Vec<u64>, T)> {
    let begun = async {
        match begin {
            Some(sql) => client.simple_query(sql).await,
            None => Ok(Vec::new()),
        }
    };
    let along = join_all(
        deferred.iter().map(|one| client.execute_raw(&one.statement, one.params.as_slice())),
    );
    // Each is sent when it is first polled, so they are sent in this order.
    let (begun, along, last) = futures_util::join!(begun, along, last);
    let mut transaction = None;
    for message in begun.map_err(|error| failed(&error))? {
        if let SimpleQueryMessage::Row(row) = message {
            transaction = row.get(0).map(str::to_owned);
        }
    }
    let changed = along.into_iter().collect::<std::result::Result<Vec<u64>, _>>();
    let changed = changed.map_err(|error| failed(&error))?;
    Ok((transaction, changed, last.map_err(|error| failed(&error))?))
}

impl Postgres {
    /// Sends the begin, the deferred statements, and the request that `last` makes.
    fn flush<T>(
        &mut self,
        last: impl AsyncFnOnce(&Client) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let (begin, deferred) = (self.begin.take(), std::mem::take(&mut self.deferred));
        let client = &self.client;
        let (transaction, changed, done) =
            self.runtime().block_on(send(client, begin, &deferred, last(client)))?;
        for (one, changed) in deferred.iter().zip(changed) {
            if let Some(table) = &one.table {
                self.count_rows(table, changed);
            }
        }
        if begin.is_some() {
            self.transaction = transaction;
        }
        Ok(done)
    }
}

/// Whether a transaction was committed, if the connection was lost during its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    Committed,
    NotCommitted,
    InProgress,
    /// A transaction of that number is committed, but it may be another one: a crash forgets the
    /// numbers of transactions that were not durable, and they are given out again.
    Unknown,
}

/// Decides the outcome from the status that the database reports for the transaction's number.
fn outcome_of(status: Option<&str>, same_run: bool) -> CommitOutcome {
    match status {
        Some("committed") if same_run => CommitOutcome::Committed,
        Some("committed") => CommitOutcome::Unknown,
        Some("in progress") => CommitOutcome::InProgress,
        _ => CommitOutcome::NotCommitted,
    }
}

/// The work table that a statement inserts into or updates.
fn work_table(sql: &str) -> Option<&str> {
    let mut words = sql.split_whitespace();
    let table = match words.next() {
        Some("INSERT") => words.nth(1),
        Some("UPDATE") => words.next(),
        _ => None,
    };
    table.filter(|table| table.starts_with("w_"))
}

/// The number of rows of a long answer that are read at a time.
const ROWS_TOGETHER: usize = 256;

impl Engine for Postgres {
    fn begin(&mut self, mode: Mode) -> Result<()> {
        self.transaction = None;
        self.deferred.clear();
        self.transactions += 1;
        if self.transactions > PLAN_LIFETIME {
            self.transactions = 0;
            self.batch("DISCARD PLANS")?;
        }
        self.begin = Some(match mode {
            // Reports may scan large tables; writing transactions must not.
            Mode::Read => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = on; \
                 SET LOCAL enable_mergejoin = on"
            }
            // Waits while a backup pauses writers.
            Mode::Write => {
                "BEGIN; SELECT pg_current_xact_id(), pg_advisory_xact_lock_shared(7238113200515)"
            }
        });
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if self.begin.is_some() {
            if self.deferred.is_empty() {
                // No statement was sent.
                self.begin = None;
                return Ok(());
            }
            // The transaction's number must be known before it is committed.
            self.batch("")?;
        }
        self.flush(async |client| client.batch_execute("COMMIT").await)
    }

    fn rollback(&mut self) {
        self.deferred.clear();
        if self.begin.take().is_none() {
            // A connection that cannot roll back is not used again.
            let _ = self.batch("ROLLBACK");
        }
        // The rollback restored rows that this transaction had cleared.
        self.dirty.values_mut().for_each(|rows| *rows = DEAD_ROWS + 1);
    }

    fn query(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        let statement = self.statement(sql)?;
        let written = self.written(sql);
        let rows = self
            .flush(async |client| client.query_raw(&statement, params).await)
            .map_err(|error| with_statement(error, sql))?;
        let mut rows = Box::pin(rows);
        let mut some = Vec::new();
        loop {
            // `each` may block, so it is called outside of the runtime.
            let more = self.runtime().block_on(async {
                while some.len() < ROWS_TOGETHER {
                    let next = rows.try_next().await;
                    match next.map_err(|error| with_statement(failed(&error), sql))? {
                        Some(row) => some.push(read(&row, &written)?),
                        None => return Ok(false),
                    }
                }
                Ok::<_, Error>(true)
            })?;
            some.drain(..).try_for_each(&mut *each)?;
            if !more {
                return Ok(());
            }
        }
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        let statement = self.statement(sql)?;
        let changed = self
            .flush(async |client| client.execute_raw(&statement, params).await)
            .map_err(|error| with_statement(error, sql))?;
        if let Some(table) = work_table(sql) {
            self.count_rows(table, changed);
        }
        Ok(changed)
    }

    fn later(&mut self, sql: &str, params: &[Value]) -> Result<()> {
        if self.deferred.len() >= MOST_DEFERRED {
            return self.execute(sql, params).map(drop);
        }
        let statement = self.statement(sql)?;
        let table = work_table(sql).map(str::to_owned);
        self.deferred.push(Deferred { statement, params: params.to_vec(), table });
        Ok(())
    }

    fn pipeline(&mut self, queries: &[Query]) -> Result<Vec<Vec<Row>>> {
        if queries.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked = Vec::with_capacity(queries.len());
        for query in queries {
            asked.push((self.statement(&query.sql)?, query.params.as_slice()));
        }
        let answers = self.flush(async |client| {
            let answer = async |(statement, params): &(Statement, &[Value])| {
                let rows = client.query_raw(statement, *params).await?;
                rows.try_collect::<Vec<tokio_postgres::Row>>().await
            };
            // Each is sent when it is first polled, so they are sent in this order.
            let answers = join_all(asked.iter().map(answer)).await;
            answers.into_iter().collect::<std::result::Result<Vec<_>, _>>()
        });
        let all = || queries.iter().map(|query| query.sql.trim()).collect::<Vec<_>>().join("; ");
        let answers = answers.map_err(|error| with_statement(error, &all()))?;
        let mut read_all = Vec::with_capacity(answers.len());
        for (query, answer) in queries.iter().zip(answers) {
            let written = self.written(&query.sql);
            read_all.push(answer.iter().map(|row| read(row, &written)).collect::<Result<_>>()?);
        }
        Ok(read_all)
    }

    fn batch(&mut self, sql: &str) -> Result<()> {
        self.flush(async |client| client.batch_execute(sql).await)
    }

    fn load(&mut self, table: &str, columns: &[(&str, Column)]) -> Result<()> {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let arrays: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(at, (_, column))| match column {
                Column::Int(_) => format!("?{}::bigint[]", at + 1),
                Column::Text(_) => format!("?{}::text[]", at + 1),
            })
            .collect();
        let sql = format!(
            "INSERT INTO {table} ({}) SELECT * FROM unnest({})",
            names.join(", "),
            arrays.join(", ")
        );
        let statement = self.statement(&sql)?;
        let params: Vec<&(dyn ToSql + Sync)> = columns
            .iter()
            .map(|(_, column)| match column {
                Column::Int(values) => values as &(dyn ToSql + Sync),
                Column::Text(values) => values as &(dyn ToSql + Sync),
            })
            .collect();
        let changed = self
            .flush(async |client| client.execute(&statement, &params).await)
            .map_err(|error| with_statement(error, &sql))?;
        self.count_rows(table, changed);
        Ok(())
    }

    fn clear(&mut self, tables: &[&str]) -> Result<()> {
        for table in tables {
            let Some(rows) = self.dirty.get_mut(*table).filter(|rows| **rows > 0) else { continue };
            let verb = if *rows > DEAD_ROWS { "TRUNCATE" } else { "DELETE FROM" };
            if *rows > DEAD_ROWS {
                *rows = 0;
            }
            self.later(&format!("{verb} {table}"), &[])?;
        }
        Ok(())
    }

    fn is_postgres(&self) -> bool {
        true
    }

    fn is_usable(&self) -> bool {
        !self.client.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_confirmed_only_within_one_run_of_the_database_server() {
        let cases = [
            (Some("committed"), true, CommitOutcome::Committed),
            // After a crash the number may belong to another transaction.
            (Some("committed"), false, CommitOutcome::Unknown),
            (Some("aborted"), true, CommitOutcome::NotCommitted),
            (Some("aborted"), false, CommitOutcome::NotCommitted),
            (Some("in progress"), true, CommitOutcome::InProgress),
            (Some("in progress"), false, CommitOutcome::InProgress),
            (None, true, CommitOutcome::NotCommitted),
            (None, false, CommitOutcome::NotCommitted),
        ];
        for (status, same_run, expected) in cases {
            assert_eq!(outcome_of(status, same_run), expected, "{status:?}, same run: {same_run}");
        }
    }
}
