//! The catalog in PostgreSQL, shared by several servers.
//!
//! A connection is driven by the thread that uses it: each has a small runtime of its own, so that
//! an answer wakes nobody else. Transactions are `READ COMMITTED` with explicit row locks.

use std::collections::HashMap;

use futures_util::{TryStreamExt, pin_mut};
use tokio::runtime::Runtime;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, Statement};

use super::engine::{Column, Engine, Mode, Row, Value, database, with_arrays};
use crate::error::{Error, Result};

/// Work tables are emptied row by row until this many dead rows have gathered in them.
const DEAD_ROWS: u64 = 1_000;

pub(crate) struct Postgres {
    client: Client,
    statements: HashMap<String, Statement>,
    /// Rows put into each work table since it was last truncated.
    dirty: HashMap<String, u64>,
    /// The transaction's number, by which its fate can be asked after a lost connection.
    transaction: Option<String>,
    // Dropped last: it drives the connection that the client above speaks through.
    runtime: Option<Runtime>,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    let text = error.as_db_error().map_or_else(
        || error.to_string(),
        |error| format!("{} ({})", error.message(), error.code().code()),
    );
    let Some(code) = error.code() else {
        return if error.is_closed()
            || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
        {
            Error::Unavailable(text)
        } else {
            Error::Database(match std::error::Error::source(error) {
                Some(source) => format!("{text}: {source}"),
                None => text,
            })
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
    } else {
        Error::Database(text)
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
    with_arrays(sql, "= ANY (", "::bigint[])").replace('?', "$").replace("LOCK ROWS", "FOR UPDATE")
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
    pub(crate) fn connect(url: &str) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(database)?;
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(url, NoTls).await.map_err(|error| {
                    match failed(&error) {
                        // Whatever keeps us from connecting may pass.
                        Error::Database(text) if error.code().is_none() => Error::Unavailable(text),
                        other => other,
                    }
                })?;
            // Ends by itself when the client is dropped; what broke it shows in the next statement.
            tokio::spawn(async move { drop(connection.await) });
            Ok::<_, Error>(client)
        })?;
        let mut engine = Self {
            client,
            statements: HashMap::new(),
            dirty: HashMap::new(),
            transaction: None,
            runtime: Some(runtime),
        };
        engine.batch(
            "SET jit = off; SET random_page_cost = 1.1; SET plan_cache_mode = force_generic_plan; \
             SET enable_mergejoin = off; SET enable_hashjoin = off; SET enable_seqscan = off; SET temp_buffers = '64MB'; SET application_name = 'mainstay'; \
             SET idle_in_transaction_session_timeout = '10min'",
        )?;
        Ok(engine)
    }

    /// Whether a transaction whose commit was not answered took place.
    pub(crate) fn committed(&mut self, transaction: &str) -> Result<Option<bool>> {
        let sql = format!("SELECT pg_xact_status('{transaction}'::xid8)");
        for message in self.simple(&sql)? {
            if let SimpleQueryMessage::Row(row) = message {
                return Ok(match row.get(0) {
                    Some("committed") => Some(true),
                    Some("in progress") => None,
                    _ => Some(false),
                });
            }
        }
        Ok(Some(false))
    }

    pub(crate) fn transaction(&self) -> Option<String> {
        self.transaction.clone()
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime is taken only when the connection is dropped")
    }

    fn put(&mut self, table: &str, rows: u64) {
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
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn with_statement(error: Error, sql: &str) -> Error {
    match error {
        Error::Database(text) => Error::Database(format!("{text} in {}", sql.trim())),
        other => other,
    }
}

impl Engine for Postgres {
    fn begin(&mut self, mode: Mode) -> Result<()> {
        self.transaction = None;
        if mode == Mode::Read {
            // Reports read much of large tables; transactions that write never should.
            return self.batch(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = on; \
                 SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on",
            );
        }
        for message in self.simple("BEGIN; SELECT pg_current_xact_id()")? {
            if let SimpleQueryMessage::Row(row) = message {
                self.transaction = row.get(0).map(str::to_owned);
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.batch("COMMIT")
    }

    fn rollback(&mut self) {
        // A connection that cannot roll back is not used again.
        let _ = self.batch("ROLLBACK");
        // Rows that were cleared in this transaction are back.
        self.dirty.values_mut().for_each(|rows| *rows = DEAD_ROWS + 1);
    }

    fn query(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        let statement = self.statement(sql)?;
        let client = &self.client;
        self.runtime().block_on(async {
            let rows = client
                .query_raw(&statement, params)
                .await
                .map_err(|error| with_statement(failed(&error), sql))?;
            pin_mut!(rows);
            while let Some(row) =
                rows.try_next().await.map_err(|error| with_statement(failed(&error), sql))?
            {
                let values = (0..row.len()).map(|column| value(&row, column));
                each(Row(values.collect::<Result<_>>()?))?;
            }
            Ok(())
        })
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        let statement = self.statement(sql)?;
        let changed = self
            .runtime()
            .block_on(self.client.execute_raw(&statement, params))
            .map_err(|error| with_statement(failed(&error), sql))?;
        let mut words = sql.split_whitespace();
        let table = match words.next() {
            Some("INSERT") => words.nth(1),
            Some("UPDATE") => words.next(),
            _ => None,
        };
        if let Some(table) = table.filter(|table| table.starts_with("w_")) {
            self.put(table, changed);
        }
        Ok(changed)
    }

    fn batch(&mut self, sql: &str) -> Result<()> {
        self.runtime().block_on(self.client.batch_execute(sql)).map_err(|error| failed(&error))
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
            .runtime()
            .block_on(self.client.execute(&statement, &params))
            .map_err(|error| with_statement(failed(&error), &sql))?;
        self.put(table, changed);
        Ok(())
    }

    fn clear(&mut self, tables: &[&str]) -> Result<()> {
        let mut sql = String::new();
        for table in tables {
            let Some(rows) = self.dirty.get_mut(*table).filter(|rows| **rows > 0) else { continue };
            if *rows > DEAD_ROWS {
                *rows = 0;
                sql.push_str("TRUNCATE ");
            } else {
                sql.push_str("DELETE FROM ");
            }
            sql.push_str(table);
            sql.push(';');
        }
        if sql.is_empty() { Ok(()) } else { self.batch(&sql) }
    }

    fn is_postgres(&self) -> bool {
        true
    }

    fn is_usable(&self) -> bool {
        !self.client.is_closed()
    }
}
