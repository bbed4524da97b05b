//! The trait that both databases implement, and the dialect in which statements are written.
//!
//! Statements are written once. Parameters are `?1`, `?2`, …; the words `LOCK ROWS` at the end of a
//! `SELECT` ask for row locks where the database has them. Every number is a 64-bit integer and
//! every moment one in microseconds, so that both databases hold the same values. A list of numbers
//! is one parameter, written as `IN ARRAY(?1)`. `LOOKUP JOIN table name ON (…)` and `LEFT LOOKUP
//! JOIN table name ON (…)` are nested-loop joins: for each row of the left side they look rows up
//! in the table, whatever sizes the planner assumes.

use crate::error::{Error, Result};
use crate::pipeline::Query;
use crate::row::Row;

/// One value of a row or parameter.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the six kinds of values")]
pub enum Value {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl From<Vec<i64>> for Value {
    fn from(value: Vec<i64>) -> Self {
        Self::Ints(value)
    }
}

impl From<Vec<String>> for Value {
    fn from(value: Vec<String>) -> Self {
        Self::Texts(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Makes the parameters of a statement: a slice of [`Value`]s.
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::Value::from($value)),*][..] };
}

/// A column of many rows, to be put into a work table at once.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the two kinds of columns")]
pub enum Column {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<String>>),
}

impl Column {
    /// A column of numbers.
    pub fn ints(values: impl IntoIterator<Item = i64>) -> Self {
        Self::Int(values.into_iter().map(Some).collect())
    }

    /// A column of texts.
    pub fn texts(values: impl IntoIterator<Item = String>) -> Self {
        Self::Text(values.into_iter().map(Some).collect())
    }

    /// The numbers of the column; a text has none.
    #[must_use]
    pub fn into_ints(self) -> Vec<i64> {
        match self {
            Self::Int(values) => values.into_iter().map(Option::unwrap_or_default).collect(),
            Self::Text(_) => Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }
}

/// Whether a transaction may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Read one consistent state.
    Read,
    /// Read and write.
    Write,
}

/// One connection to a database.
pub(crate) trait Engine: Send {
    fn begin(&mut self, mode: Mode) -> Result<()>;
    fn commit(&mut self) -> Result<()>;
    fn rollback(&mut self);
    /// Runs a statement and hands over each row.
    fn query(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()>;
    /// Runs a statement and counts the rows it changed.
    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64>;
    /// Deferred: runs a statement at the latest with the next one or the commit, which then reports
    /// its error.
    fn later(&mut self, sql: &str, params: &[Value]) -> Result<()>;
    /// Runs queries in order and returns their rows, in one round trip if the database is remote.
    fn pipeline(&mut self, queries: &[Query]) -> Result<Vec<Vec<Row>>> {
        let one = |query: &Query| {
            let mut rows = Vec::new();
            self.query(&query.sql, &query.params, &mut |row| {
                rows.push(row);
                Ok(())
            })?;
            Ok(rows)
        };
        queries.iter().map(one).collect()
    }
    /// Runs several statements without parameters.
    fn batch(&mut self, sql: &str) -> Result<()>;
    /// Inserts rows into a work table, in the fastest way the database has.
    fn load(&mut self, table: &str, columns: &[(&str, Column)]) -> Result<()>;
    /// Empties work tables.
    fn clear(&mut self, tables: &[&str]) -> Result<()>;
    fn is_postgres(&self) -> bool;
    /// Whether the connection may serve another transaction.
    fn is_usable(&self) -> bool;
}

impl std::fmt::Debug for dyn Engine + '_ {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.is_postgres() { "PostgreSQL" } else { "SQLite" })
    }
}

pub(crate) fn database(error: impl std::fmt::Display) -> Error {
    Error::Database(error.to_string())
}

/// Replaces every `IN ARRAY(?n)` by `before`, the parameter and `after`.
pub(crate) fn with_arrays(sql: &str, before: &str, after: &str) -> String {
    let mut parts = sql.split("IN ARRAY(");
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (parameter, rest) = part.split_once(')').unwrap_or((part, ""));
        out.push_str(before);
        out.push_str(parameter);
        out.push_str(after);
        out.push_str(rest);
    }
    out
}

/// Writes every `LOOKUP JOIN` so that PostgreSQL's planner cannot turn it around: as a lateral
/// subquery that is not flattened.
pub(crate) fn with_lateral_lookups(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some(at) = rest.find("LOOKUP JOIN ") {
        let (before, after) = (&rest[..at], &rest[at + "LOOKUP JOIN ".len()..]);
        out.push_str(before);
        let Some((table, name, condition, tail)) = lookup(after) else {
            out.push_str("JOIN ");
            rest = after;
            continue;
        };
        let left = before.ends_with("LEFT ");
        out.push_str(if left { "JOIN " } else { "CROSS JOIN " });
        out.push_str(&format!(
            "LATERAL (SELECT * FROM {table} {name} WHERE {condition} OFFSET 0) {name}"
        ));
        out.push_str(if left { " ON TRUE" } else { "" });
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Writes every `LOOKUP JOIN` for SQLite, whose planner leaves the order of a `CROSS JOIN` and of a
/// `LEFT JOIN` alone.
pub(crate) fn with_ordered_lookups(sql: &str) -> String {
    sql.replace("LEFT LOOKUP JOIN", "LEFT JOIN").replace("LOOKUP JOIN", "CROSS JOIN")
}

/// Splits `table name ON (condition)` from the text after it.
fn lookup(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (table, rest) = text.split_once(' ')?;
    let (name, rest) = rest.split_once(' ')?;
    let rest = rest.strip_prefix("ON (")?;
    let mut depth = 1;
    let end = rest.find(|letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    })?;
    Some((table, name, &rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_joins_keep_their_order_on_both_databases() {
        for (written, postgres, sqlite) in [
            (
                "FROM w n LOOKUP JOIN dids d ON (d.id = (n.id)) ORDER BY 1",
                "FROM w n CROSS JOIN LATERAL (SELECT * FROM dids d WHERE d.id = (n.id) OFFSET 0) d ORDER BY 1",
                "FROM w n CROSS JOIN dids d ON (d.id = (n.id)) ORDER BY 1",
            ),
            (
                "FROM w LEFT LOOKUP JOIN dids d ON (d.id = w.id) WHERE TRUE",
                "FROM w LEFT JOIN LATERAL (SELECT * FROM dids d WHERE d.id = w.id OFFSET 0) d ON TRUE WHERE TRUE",
                "FROM w LEFT JOIN dids d ON (d.id = w.id) WHERE TRUE",
            ),
            (
                "FROM w LEFT JOIN dids d ON (d.id = w.id)",
                "FROM w LEFT JOIN dids d ON (d.id = w.id)",
                "FROM w LEFT JOIN dids d ON (d.id = w.id)",
            ),
        ] {
            assert_eq!(with_lateral_lookups(written), postgres);
            assert_eq!(with_ordered_lookups(written), sqlite);
        }
    }
}
