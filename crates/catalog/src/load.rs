//! Reads a dump of the catalog: to check it, and to restore it into an empty catalog.
//!
//! A catalog that is being restored has a schema version that no program opens. The version is set
//! before the first row and removed after the last, in the transaction that also migrates the
//! catalog to the newest schema: so an interrupted restore can be recognised, and the next restore
//! starts again. The catalog also keeps the name of the restore that filled it, for a restore that
//! was interrupted after the catalog was complete and before the rest was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;

use super::address::Address;
use super::counter;
use super::engine::{Column, Engine, Mode};
use super::postgres::Postgres;
use super::schema::{self, NEWEST, UNFINISHED};
use super::sqlite::Sqlite;
use super::{Catalog, opening};
use crate::error::{Error, Result};
use crate::values;

/// The number of rows per INSERT, and per transaction.
const ROWS: usize = 2_000;
const ROWS_TOGETHER: u64 = 50_000;

/// Keeps the name of the last restore into the catalog. It is no part of the schema or of dumps.
const RESTORE: &str = "catalog_restore";

/// The description of a dump that precedes its lines.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    schema: i64,
}

/// The line before the rows of a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    table: String,
    columns: Vec<String>,
    types: Vec<Type>,
    last: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Int,
    Text,
}

impl Type {
    fn column(self) -> Column {
        match self {
            Self::Int => Column::Int(Vec::new()),
            Self::Text => Column::Text(Vec::new()),
        }
    }
}

/// Validates the lines of a dump and counts the rows of each table.
#[derive(Clone, Debug)]
pub struct Lines {
    schema: i64,
    tables: BTreeSet<&'static str>,
    open: Option<Head>,
    /// The rows of each table so far.
    pub rows: BTreeMap<String, u64>,
}

/// A parsed line.
enum Line {
    Table,
    Row(Vec<Json>),
}

fn wrong(what: impl Into<String>) -> Error {
    Error::Backup(what.into())
}

/// Whether a column name is safe to put into a statement unquoted.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl Lines {
    /// Starts to read a dump with this description.
    ///
    /// # Errors
    /// [`Error::NewerSchema`], or [`Error::Backup`] if the description is invalid.
    pub fn new(about: &Json) -> Result<Self> {
        let about: About = serde_json::from_value(about.clone()).map_err(|error| {
            wrong(format!("the description of the catalog is invalid: {error}"))
        })?;
        let schema = about.schema;
        if schema > NEWEST {
            return Err(Error::NewerSchema { found: schema, known: NEWEST });
        }
        if schema < 1 {
            return Err(wrong(format!("the catalog has schema {schema}")));
        }
        let tables = schema::tables(schema);
        Ok(Self { schema, tables, open: None, rows: BTreeMap::new() })
    }

    /// Takes one line.
    ///
    /// # Errors
    /// [`Error::Backup`] if it is neither a table nor a row of the table it is in.
    pub fn take(&mut self, line: &[u8]) -> Result<()> {
        self.parse(line).map(drop)
    }

    /// Call this after the last line.
    ///
    /// # Errors
    /// [`Error::Backup`] if a table is missing.
    pub fn end(&self) -> Result<()> {
        let left_out = |table: &&str| super::dump::LEFT_OUT.contains(table);
        let missing = self.tables.iter().filter(|table| !left_out(table));
        match missing.copied().find(|table| !self.rows.contains_key(*table)) {
            Some(table) => Err(wrong(format!("table {table} of the catalog is missing"))),
            None => Ok(()),
        }
    }

    fn parse(&mut self, line: &[u8]) -> Result<Line> {
        if line.first() != Some(&b'[') {
            return self.table(line);
        }
        let Some(head) = &self.open else { return Err(wrong("a row before any table")) };
        let row: Vec<Json> = serde_json::from_slice(line)
            .map_err(|error| wrong(format!("no row of table {}: {error}", head.table)))?;
        let fits = |(value, sort): (&Json, &Type)| match sort {
            Type::Int => value.is_null() || value.is_i64(),
            Type::Text => value.is_null() || value.is_string(),
        };
        if row.len() != head.types.len() || !row.iter().zip(&head.types).all(fits) {
            return Err(wrong(format!("a row that does not fit table {}", head.table)));
        }
        if let Some(rows) = self.rows.get_mut(&head.table) {
            *rows += 1;
        }
        Ok(Line::Row(row))
    }

    fn table(&mut self, line: &[u8]) -> Result<Line> {
        let head: Head = serde_json::from_slice(line)
            .map_err(|error| wrong(format!("neither a table of the catalog nor a row: {error}")))?;
        if !self.tables.contains(head.table.as_str()) {
            let (table, schema) = (&head.table, self.schema);
            return Err(wrong(format!("schema {schema} of the catalog has no table {table:?}")));
        }
        let fits = head.columns.len() == head.types.len() && !head.columns.is_empty();
        if !fits || !head.columns.iter().all(|name| is_name(name)) {
            return Err(wrong(format!("the columns of table {} are wrong", head.table)));
        }
        if self.rows.insert(head.table.clone(), 0).is_some() {
            return Err(wrong(format!("table {} comes twice", head.table)));
        }
        self.open = Some(head);
        Ok(Line::Table)
    }
}

/// The state of a catalog before a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no rows.
    Empty,
    /// A restore into it was interrupted, or the same restore filled it and did not finish the
    /// rest.
    Unfinished,
    /// This table has rows.
    Used(String),
}

/// Connects without migrating the schema.
fn connect(address: &str) -> Result<Box<dyn Engine>> {
    if Address::is_postgres(address) {
        return Ok(Box::new(Postgres::connect(&Address::parse(address)?)?));
    }
    Ok(Box::new(Sqlite::open(Path::new(path_of(address)?))?))
}

fn path_of(address: &str) -> Result<&str> {
    let path = address.strip_prefix("sqlite://").unwrap_or(address);
    if path.is_empty() || path.contains("://") {
        return Err(Error::Address(address.to_owned()));
    }
    Ok(path)
}

/// The state of the catalog at `address` for the restore of this name. Changes no data and creates
/// no file.
///
/// # Errors
/// [`Error::NewerSchema`], or errors of the database.
pub fn state(address: &str, restore: Option<&str>) -> Result<State> {
    if !Address::is_postgres(address) {
        match std::fs::metadata(path_of(address)?) {
            Ok(found) if found.len() > 0 => {}
            _ => return Ok(State::Empty),
        }
    }
    let mut engine = connect(address)?;
    engine.begin(Mode::Read)?;
    let state = state_of(&mut *engine, restore);
    engine.rollback();
    state
}

fn state_of(engine: &mut dyn Engine, restore: Option<&str>) -> Result<State> {
    if !exists(engine, "catalog_schema")? {
        return Ok(State::Empty);
    }
    let version = schema::version(engine)?;
    if version == UNFINISHED {
        return Ok(State::Unfinished);
    }
    if version > NEWEST {
        return Err(Error::NewerSchema { found: version, known: NEWEST });
    }
    if restore.is_some() && restored_by(engine)?.as_deref() == restore {
        return Ok(State::Unfinished);
    }
    for table in schema::tables(version) {
        // A fresh catalog has a row in `versions`; `judges` come and go with servers.
        if matches!(table, "versions" | "judges") {
            continue;
        }
        let mut used = false;
        engine.query(
            &format!("SELECT CAST(1 AS BIGINT) FROM {table} LIMIT 1"),
            &[],
            &mut |_| {
                used = true;
                Ok(())
            },
        )?;
        if used {
            return Ok(State::Used(table.to_owned()));
        }
    }
    Ok(State::Empty)
}

/// The name of the last restore into the catalog, finished or not.
fn restored_by(engine: &mut dyn Engine) -> Result<Option<String>> {
    let mut name = None;
    if exists(engine, RESTORE)? {
        engine.query(&format!("SELECT name FROM {RESTORE}"), &[], &mut |row| {
            name = Some(row.text(0)?.to_owned());
            Ok(())
        })?;
    }
    Ok(name)
}

pub(super) fn exists(engine: &mut dyn Engine, table: &str) -> Result<bool> {
    let sql = if engine.is_postgres() {
        "SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?1"
    } else {
        "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1"
    };
    let mut found = false;
    engine.query(sql, values![table], &mut |row| {
        found = row.int(0)? > 0;
        Ok(())
    })?;
    Ok(found)
}

/// A restore into the catalog at one address.
#[derive(Debug)]
pub struct Loader {
    /// The catalog, if it is a file.
    file: Option<PathBuf>,
    engine: Box<dyn Engine>,
    lines: Option<Lines>,
    columns: Vec<Column>,
    /// Rows since the last commit.
    uncommitted: u64,
    last: Vec<(String, i64)>,
}

impl Loader {
    /// Marks the catalog as being restored, if it is empty, an unfinished restore left it, or the
    /// restore of this name filled it.
    ///
    /// # Errors
    /// [`Error::Backup`] if it is in use; otherwise errors of the database.
    pub fn start(address: &str, restore: &str) -> Result<Self> {
        let mut engine = connect(address)?;
        engine.begin(Mode::Write)?;
        if let Err(error) = mark(&mut *engine, restore).and_then(|()| engine.commit()) {
            engine.rollback();
            return Err(error);
        }
        let file = Catalog::file(address);
        if let Some(file) = &file {
            // It counted the commits of the previous catalog.
            counter::remove(file).map_err(super::engine::database)?;
        }
        Ok(Self {
            file,
            engine,
            lines: None,
            columns: Vec::new(),
            uncommitted: 0,
            last: Vec::new(),
        })
    }

    /// Creates the tables for a dump with this description.
    ///
    /// # Errors
    /// As [`Lines::new`], or errors of the database.
    pub fn begin(&mut self, about: &Json) -> Result<()> {
        let lines = Lines::new(about)?;
        self.engine.begin(Mode::Write)?;
        let engine = &mut *self.engine;
        unmark(engine)?;
        schema::migrate_within(engine, lines.schema)?;
        for table in schema::tables(lines.schema) {
            engine.execute(&format!("DELETE FROM {table}"), &[])?;
        }
        set_mark(engine)?;
        engine.commit()?;
        self.lines = Some(lines);
        self.engine.begin(Mode::Write)
    }

    /// Takes one line.
    ///
    /// # Errors
    /// As [`Lines::take`], or errors of the database.
    pub fn take(&mut self, line: &[u8]) -> Result<()> {
        // The buffered rows belong to the previous table.
        if line.first() != Some(&b'[') {
            self.flush()?;
        }
        let Some(lines) = &mut self.lines else {
            return Err(wrong("the catalog has a line before its description"));
        };
        match lines.parse(line)? {
            Line::Table => {
                let Some(head) = &lines.open else { return Ok(()) };
                self.columns = head.types.iter().map(|sort| sort.column()).collect();
                self.last.push((head.table.clone(), head.last));
            }
            Line::Row(row) => {
                for (column, value) in self.columns.iter_mut().zip(row) {
                    match (column, value) {
                        (Column::Int(values), value) => values.push(value.as_i64()),
                        (Column::Text(values), Json::String(text)) => values.push(Some(text)),
                        (Column::Text(values), _) => values.push(None),
                    }
                }
                if self.columns.first().is_some_and(|column| column.len() >= ROWS) {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }

    /// Inserts the buffered rows into their table.
    fn flush(&mut self) -> Result<()> {
        let Some(head) = self.lines.as_ref().and_then(|lines| lines.open.as_ref()) else {
            return Ok(());
        };
        let rows = self.columns.first().map_or(0, Column::len);
        if rows == 0 {
            return Ok(());
        }
        let filled = std::mem::take(&mut self.columns);
        let empty = head.types.iter().map(|sort| sort.column()).collect();
        let named: Vec<(&str, Column)> =
            head.columns.iter().map(String::as_str).zip(filled).collect();
        self.engine.load(&head.table, &named)?;
        self.columns = empty;
        self.uncommitted += rows as u64;
        if self.uncommitted >= ROWS_TOGETHER {
            self.uncommitted = 0;
            self.engine.commit()?;
            self.engine.begin(Mode::Write)?;
        }
        Ok(())
    }

    /// Call this after the last line.
    ///
    /// # Errors
    /// As [`Lines::end`], or errors of the database.
    pub fn end(&mut self) -> Result<()> {
        self.flush()?;
        if let Some(lines) = &self.lines {
            lines.end()?;
        }
        self.engine.commit()
    }

    /// Migrates the restored catalog to the newest schema and lets programs open it.
    ///
    /// # Errors
    /// Errors of the database.
    pub fn finish(&mut self) -> Result<()> {
        let engine = &mut *self.engine;
        engine.begin(Mode::Write)?;
        unmark(engine)?;
        schema::migrate_within(engine, NEWEST)?;
        let tables = schema::tables(NEWEST);
        for (table, last) in &self.last {
            if *last > 0 && tables.contains(table.as_str()) {
                continue_numbers(engine, table, *last)?;
            }
        }
        engine.commit()?;
        match &self.file {
            Some(file) => opening::restart_counter(file),
            None => Ok(()),
        }
    }
}

/// Removes the tables of an unfinished restore, and marks the catalog as being restored.
fn mark(engine: &mut dyn Engine, restore: &str) -> Result<()> {
    match state_of(engine, Some(restore))? {
        State::Used(table) => {
            return Err(wrong(format!("the catalog is not empty: table {table} has rows")));
        }
        State::Empty | State::Unfinished => {}
    }
    if exists(engine, "catalog_schema")? {
        for view in schema::views(NEWEST) {
            engine.batch(&format!("DROP VIEW IF EXISTS {view}"))?;
        }
        for table in schema::tables(NEWEST) {
            engine.batch(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
        engine.batch("DELETE FROM catalog_schema")?;
    } else {
        engine.batch("CREATE TABLE catalog_schema (version BIGINT NOT NULL)")?;
    }
    engine.batch(&format!("CREATE TABLE IF NOT EXISTS {RESTORE} (name TEXT NOT NULL)"))?;
    engine.batch(&format!("DELETE FROM {RESTORE}"))?;
    engine.execute(&format!("INSERT INTO {RESTORE} (name) VALUES (?1)"), values![restore])?;
    set_mark(engine)
}

fn set_mark(engine: &mut dyn Engine) -> Result<()> {
    engine
        .execute("INSERT INTO catalog_schema (version) VALUES (?1)", values![UNFINISHED])
        .map(drop)
}

fn unmark(engine: &mut dyn Engine) -> Result<()> {
    engine.execute("DELETE FROM catalog_schema WHERE version = ?1", values![UNFINISHED]).map(drop)
}

/// Sets the last assigned number, so that no number is assigned twice, even if its row was deleted.
fn continue_numbers(engine: &mut dyn Engine, table: &str, last: i64) -> Result<()> {
    if engine.is_postgres() {
        return engine.batch(&format!(
            "SELECT setval(CAST(pg_get_serial_sequence('{table}', 'id') AS regclass), {last})"
        ));
    }
    engine
        .execute(
            "UPDATE sqlite_sequence SET seq = MAX(seq, ?2) WHERE name = ?1",
            values![table, last],
        )
        .map(drop)
}
