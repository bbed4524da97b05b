//! Sends several queries together, so that all of them take one round trip.
//!
//! A caller adds queries to a [`Pipeline`], runs it ([`Tx::run`](crate::Tx::run)) and takes each
//! answer with the [`Pending`] that was returned for the query. The database runs the queries in
//! the order in which they were added: one that locks rows is done before the next one reads.

use super::engine::Value;
use super::row::Row;
use crate::error::Result;

/// One query of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) params: Vec<Value>,
}

/// Queries that are sent together.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub(crate) queries: Vec<Query>,
    /// The query for the version of the storage elements.
    pub(crate) rses: Option<Pending>,
}

/// Identifies the answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending(usize);

impl Pipeline {
    /// Adds a query, or a statement that returns rows.
    pub fn query(&mut self, sql: impl Into<String>, params: &[Value]) -> Pending {
        self.queries.push(Query { sql: sql.into(), params: params.to_vec() });
        Pending(self.queries.len() - 1)
    }

    /// Adds the query that [`Tx::rses`](crate::Tx::rses) begins with.
    pub fn rses(&mut self) {
        self.rses = Some(self.query(crate::RSES_VERSION, &[]));
    }
}

/// The answers to a pipeline.
#[derive(Debug, Default)]
pub struct Answers(pub(crate) Vec<Vec<Row>>);

impl Answers {
    /// The rows of an answer. Taken a second time it is empty.
    pub fn take(&mut self, pending: Pending) -> Vec<Row> {
        self.0.get_mut(pending.0).map(std::mem::take).unwrap_or_default()
    }

    /// The first row of an answer.
    pub fn first(&mut self, pending: Pending) -> Option<Row> {
        self.take(pending).into_iter().next()
    }

    /// The number in the first row of an answer, 0 without one.
    pub fn number(&mut self, pending: Pending) -> Result<i64> {
        self.first(pending).map_or(Ok(0), |row| row.int(0))
    }
}
