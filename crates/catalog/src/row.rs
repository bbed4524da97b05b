//! Decodes the rows of query results strictly.
//!
//! A column that is NULL, missing or of another type, and a letter that is not a known state, are
//! errors ([`Error::Column`]) that name the column and its statement. Columns that may be NULL are
//! read with the accessors whose names begin with `opt_`.

use std::sync::Arc;

use super::engine::Value;
use crate::error::{Error, Result};

/// An enumeration that is stored as one letter.
pub trait Stored: Sized {
    /// The name of the enumeration, for errors.
    const NAME: &'static str;

    /// The value that is stored as a letter.
    fn from_letter(letter: &str) -> Option<Self>;
}

/// One row of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    values: Vec<Value>,
    sql: Arc<str>,
}

impl Row {
    /// A row of the answer to a statement.
    #[must_use]
    pub fn new(values: Vec<Value>, sql: &Arc<str>) -> Self {
        Self { values, sql: Arc::clone(sql) }
    }

    /// The values of all columns.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// The number in a column.
    pub fn int(&self, column: usize) -> Result<i64> {
        match self.values.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            other => Err(self.wrong(column, "a number", other)),
        }
    }

    /// The number in a column, if it is not NULL.
    pub fn opt_int(&self, column: usize) -> Result<Option<i64>> {
        match self.values.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.int(column).map(Some),
        }
    }

    /// Whether the number in a column is not 0.
    pub fn flag(&self, column: usize) -> Result<bool> {
        Ok(self.int(column)? != 0)
    }

    /// The text in a column.
    pub fn text(&self, column: usize) -> Result<&str> {
        match self.values.get(column) {
            Some(Value::Text(value)) => Ok(value),
            other => Err(self.wrong(column, "a text", other)),
        }
    }

    /// The text in a column, if it is not NULL.
    pub fn opt_text(&self, column: usize) -> Result<Option<String>> {
        match self.values.get(column) {
            Some(Value::Null) => Ok(None),
            _ => Ok(Some(self.text(column)?.to_owned())),
        }
    }

    /// The state whose letter is in a column.
    pub fn state<T: Stored>(&self, column: usize) -> Result<T> {
        let letter = self.text(column)?;
        let unknown = || self.wrong(column, &format!("a {}", T::NAME), self.values.get(column));
        T::from_letter(letter).ok_or_else(unknown)
    }

    /// The state whose letter is in a column, if it is not NULL.
    pub fn opt_state<T: Stored>(&self, column: usize) -> Result<Option<T>> {
        match self.values.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.state(column).map(Some),
        }
    }

    fn wrong(&self, column: usize, expected: &str, found: Option<&Value>) -> Error {
        let found = match found {
            None => "no such column".to_owned(),
            Some(Value::Null) => "NULL".to_owned(),
            Some(Value::Int(value)) => format!("the number {value}"),
            Some(Value::Real(value)) => format!("the fraction {value}"),
            Some(Value::Text(value)) => format!("the text {value:.40?}"),
            Some(Value::Ints(_) | Value::Texts(_)) => "a list".to_owned(),
        };
        let name = name(&self.sql, column).unwrap_or_else(|| format!("number {column}"));
        let statement = shortened(&self.sql);
        Error::Column { column: name, expected: expected.to_owned(), found, statement }
    }
}

/// A statement as errors show it: without its list of columns, at most 200 characters.
fn shortened(sql: &str) -> String {
    let whole = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    let tables = whole.find(" FROM ").filter(|_| whole.starts_with("SELECT "));
    let shown = tables.map_or_else(|| whole.clone(), |at| format!("SELECT …{}", &whole[at..]));
    shown.chars().take(200).collect()
}

/// The expression of a column, as the statement has it: from the list after its last `RETURNING`,
/// or after the last `SELECT` that is not within parentheses.
fn name(sql: &str, column: usize) -> Option<String> {
    let mut depth = 0_i32;
    let mut list = None;
    for (at, letter) in sql.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        let words = ["SELECT DISTINCT ", "SELECT ", "RETURNING "];
        let word = words.iter().find(|word| depth == 0 && sql[at..].starts_with(**word));
        if let Some(word) = word.filter(|_| list.is_none_or(|from| from <= at)) {
            list = Some(at + word.len());
        }
    }
    let mut parts = vec![String::new()];
    let mut depth = 0_i32;
    for word in sql[list?..].split_inclusive([' ', '\n', ',']) {
        if depth == 0 && ["FROM", "WHERE", "ORDER"].contains(&word.trim()) {
            break;
        }
        depth += word
            .chars()
            .map(|letter| i32::from(letter == '(') - i32::from(letter == ')'))
            .sum::<i32>();
        match word.strip_suffix(',').filter(|_| depth == 0) {
            Some(word) => {
                parts.last_mut()?.push_str(word);
                parts.push(String::new());
            }
            None => parts.last_mut()?.push_str(word),
        }
    }
    let part = parts.get(column)?.split_whitespace().collect::<Vec<_>>().join(" ");
    (!part.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LockState;

    fn row(values: Vec<Value>) -> Row {
        Row::new(values, &Arc::from("SELECT l.did_id, l.state, l.repair_cnt FROM locks l"))
    }

    fn message<T: std::fmt::Debug>(read: Result<T>) -> String {
        read.unwrap_err().to_string()
    }

    #[test]
    fn null_wrong_types_missing_columns_and_unknown_states_are_errors_that_name_the_column() {
        let null = row(vec![Value::Null, Value::Null, Value::Null]);
        let wrong = row(vec![Value::from("x"), Value::from("Z"), Value::Real(0.5)]);
        let cases = [
            (message(null.int(0)), "l.did_id", "NULL"),
            (message(null.text(1)), "l.state", "NULL"),
            (message(null.flag(2)), "l.repair_cnt", "NULL"),
            (message(null.state::<LockState>(1)), "l.state", "NULL"),
            (message(wrong.int(0)), "l.did_id", "the text \"x\""),
            (message(wrong.opt_int(0)), "l.did_id", "the text \"x\""),
            (message(wrong.int(2)), "l.repair_cnt", "the fraction 0.5"),
            (message(wrong.text(2)), "l.repair_cnt", "the fraction 0.5"),
            (message(wrong.opt_text(2)), "l.repair_cnt", "the fraction 0.5"),
            (message(wrong.state::<LockState>(1)), "l.state", "the text \"Z\""),
            (message(wrong.opt_state::<LockState>(1)), "l.state", "the text \"Z\""),
            (message(wrong.int(3)), "number 3", "no such column"),
        ];
        for (message, column, found) in cases {
            assert!(message.contains(&format!("column {column} ")), "{message}");
            assert!(message.contains(&format!("found {found}")), "{message}");
            assert!(message.contains("FROM locks l"), "{message}");
        }
    }

    #[test]
    fn columns_that_may_be_null_are_read_as_options() {
        let null = row(vec![Value::Null, Value::Null, Value::Null]);
        assert_eq!(null.opt_int(0).unwrap(), None);
        assert_eq!(null.opt_text(1).unwrap(), None);
        assert_eq!(null.opt_state::<LockState>(1).unwrap(), None);
        let full = row(vec![Value::Int(7), Value::from("S"), Value::Int(0)]);
        assert_eq!(full.opt_int(0).unwrap(), Some(7));
        assert_eq!(full.opt_text(1).unwrap().as_deref(), Some("S"));
        assert_eq!(full.state::<LockState>(1).unwrap(), LockState::Stuck);
        assert!(!full.flag(2).unwrap());
    }

    #[test]
    fn errors_name_a_column_as_its_statement_does() {
        for (sql, column, expected) in [
            ("SELECT a, COALESCE(b, 0) AS c FROM t", 1, Some("COALESCE(b, 0) AS c")),
            (
                "WITH x(id) AS (SELECT 1) SELECT x.id, (SELECT y FROM z) FROM x",
                1,
                Some("(SELECT y FROM z)"),
            ),
            ("SELECT DISTINCT a FROM t", 0, Some("a")),
            (
                "UPDATE t SET a = 1 WHERE b IN (SELECT c FROM d) RETURNING id,\n attempt",
                1,
                Some("attempt"),
            ),
            ("DELETE FROM t", 0, None),
            ("SELECT a FROM t", 4, None),
        ] {
            assert_eq!(name(sql, column).as_deref(), expected, "{sql}");
        }
    }
}
