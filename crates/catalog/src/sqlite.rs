//! The catalog in one SQLite file, with one writer and several readers.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};

use super::engine::{Column, Engine, Mode, Value, with_arrays, with_ordered_lookups};
use super::row::Row;
use super::space::is_bookkeeping;
use crate::error::{Error, Result};

pub(crate) struct Sqlite {
    connection: Connection,
    /// Statements as written, each with its form for SQLite.
    rewritten: HashMap<Arc<str>, Rewritten>,
    /// Whether the transaction has changed a table other than work tables.
    changed: bool,
    /// The most pages the file may have, if its growth is bounded.
    bounds: Option<Bounds>,
}

/// The most pages that the file of a catalog may have on a full disk.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// For new rows.
    rows: u64,
    /// For bookkeeping (see [`super::space`]).
    bookkeeping: u64,
    /// The bound that is set.
    current: u64,
}

/// A statement as SQLite takes it.
struct Rewritten {
    sql: String,
    /// Whether it may change tables other than the connection's own work tables.
    changes_catalog: bool,
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(value) => ValueRef::Integer(*value),
            Self::Real(value) => ValueRef::Real(*value),
            Self::Text(value) => ValueRef::Text(value.as_bytes()),
            Self::Ints(values) => {
                let texts: Vec<String> = values.iter().map(i64::to_string).collect();
                return Ok(ToSqlOutput::from(format!("[{}]", texts.join(","))));
            }
            Self::Texts(values) => {
                let texts = serde_json::Value::from(values.as_slice());
                return Ok(ToSqlOutput::from(texts.to_string()));
            }
        }))
    }
}

pub(super) fn failed(error: rusqlite::Error) -> Error {
    let place = String::new;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            Error::Damaged { place: place(), what: error.to_string() }
        }
        Some(ErrorCode::DiskFull) => Error::Full { place: place() },
        Some(ErrorCode::SystemIoFailure) => Error::Disk { place: place(), what: error.to_string() },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::Unavailable(error.to_string())
        }
        _ if error.to_string().contains("integer overflow") => Error::Overflow,
        _ => Error::Database(error.to_string()),
    }
}

/// Makes the file accessible to its owner only, from its creation on, because it holds credentials.
/// SQLite creates the files beside it with the same mode; files of older versions are corrected. An
/// existing file is not opened here: closing it would release SQLite's locks of the whole process.
fn make_private(path: &Path) -> Result<()> {
    let wrong = |path: &Path, error| Error::Database(format!("{}: {error}", path.display()));
    match File::options().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(wrong(path, error)),
        _ => {}
    }
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let name = PathBuf::from(name);
        let mode = match std::fs::metadata(&name) {
            Ok(found) => found.permissions().mode(),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(wrong(&name, error)),
        };
        if mode & 0o077 == 0 {
            continue;
        }
        match std::fs::set_permissions(&name, Permissions::from_mode(mode & 0o700)) {
            // The last connection to the catalog was closed and has just removed it.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(wrong(&name, error)),
            _ => {}
        }
    }
    Ok(())
}

impl Sqlite {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        make_private(path)?;
        Self::connect(path, OpenFlags::default())
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Self> {
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(30)).map_err(failed)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; \
                 PRAGMA cache_size = -131072; PRAGMA wal_autocheckpoint = 8000; \
                 PRAGMA foreign_keys = OFF;",
            )
            .map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(400);
        Ok(Self { connection, rewritten: HashMap::new(), changed: false, bounds: None })
    }

    /// Opens a read connection with a small cache of its own; the page cache of the system holds
    /// the rest. A missing file is an error.
    pub(crate) fn open_reader(path: &Path) -> Result<Self> {
        let reader = Self::connect(path, OpenFlags::default() & !OpenFlags::SQLITE_OPEN_CREATE)?;
        reader.connection.execute_batch("PRAGMA cache_size = -16384").map_err(failed)?;
        Ok(reader)
    }
}

impl Sqlite {
    /// Moves the write-ahead log into the file and empties it, as far as readers permit.
    pub(super) fn checkpoint(&self) -> Result<()> {
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        moved.map_err(failed)
    }

    /// Moves as much of the write-ahead log into the file as possible without waiting. Returns
    /// whether all of it was moved, so that the log starts over with the next commit.
    pub(super) fn move_log(&self) -> Result<bool> {
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            let (busy, written, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(busy == 0 && written == moved)
        });
        moved.map_err(failed)
    }

    /// Sets how many pages the write-ahead log may have before a commit moves it into the file.
    pub(super) fn bound_log(&self, pages: u64) -> Result<()> {
        let set = format!("PRAGMA wal_autocheckpoint = {pages}");
        self.connection.query_row(&set, [], |_| Ok(())).map_err(failed)
    }

    /// How many bytes of the file are free to be used again.
    pub(super) fn free_inside(&self) -> Result<u64> {
        Ok(self.pragma("freelist_count")?.saturating_mul(self.pragma("page_size")?))
    }

    fn pragma(&self, name: &str) -> Result<u64> {
        let read = self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        read.map(i64::cast_unsigned).map_err(failed)
    }

    /// Keeps the file from growing for new rows, and lets it grow by so many pages for bookkeeping;
    /// or, with `None`, ends that.
    pub(super) fn bound_growth(&mut self, bookkeeping: Option<u64>) {
        match (bookkeeping, self.pragma("page_count")) {
            (None, _) => {
                self.bounds = None;
                self.set_most_pages(u64::from(u32::MAX - 1));
            }
            (Some(more), Ok(pages)) => {
                let bookkeeping = self.bounds.map_or(pages + more, |bounds| bounds.bookkeeping);
                self.bounds = Some(Bounds { rows: pages, bookkeeping, current: pages });
                self.set_most_pages(pages);
            }
            (Some(_), Err(error)) => {
                tracing::warn!(%error, "the size of the rule catalog cannot be read; it is not bounded");
            }
        }
    }

    fn set_most_pages(&self, pages: u64) {
        let set = format!("PRAGMA max_page_count = {pages}");
        if let Err(error) = self.connection.query_row(&set, [], |_| Ok(())) {
            tracing::warn!(%error, "bounding the size of the rule catalog failed");
        }
    }

    /// Sets the bound of the file's growth that applies to a statement, if there is one.
    fn bound_for(&mut self, sql: &str) {
        if self.bounds.is_some() {
            self.bound_statement(is_bookkeeping(sql));
        }
    }

    fn bound_statement(&mut self, is_bookkeeping: bool) {
        let Some(bounds) = &mut self.bounds else { return };
        let wanted = if is_bookkeeping { bounds.bookkeeping } else { bounds.rows };
        if bounds.current != wanted {
            bounds.current = wanted;
            self.set_most_pages(wanted);
        }
    }

    /// Whether the transaction may have changed a table other than work tables.
    pub(super) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Gives the transaction, which is about to be committed, the next number.
    pub(super) fn number(&mut self) -> Result<u64> {
        let sql = "INSERT INTO versions (name, value) VALUES (?1, 1) \
                   ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value";
        let mut statement = self.connection.prepare_cached(sql).map_err(failed)?;
        let number = statement.query_row([super::opening::COMMITS], |row| row.get::<_, i64>(0));
        number.map(i64::cast_unsigned).map_err(failed)
    }
}

/// Whether a statement changes nothing but a work table.
fn is_work(sql: &str) -> bool {
    let mut words = sql.split_whitespace();
    let table = match words.next() {
        Some("INSERT" | "DELETE") => words.nth(1),
        Some("UPDATE") => words.next(),
        _ => None,
    };
    table.is_some_and(|table| table.starts_with("w_"))
}

/// A statement as written, and its form for SQLite, which is cached.
fn known<'a>(
    rewritten: &'a mut HashMap<Arc<str>, Rewritten>,
    sql: &str,
) -> (Arc<str>, &'a Rewritten) {
    let written: Arc<str> = match rewritten.get_key_value(sql) {
        Some((written, _)) => Arc::clone(written),
        None => sql.into(),
    };
    let form = rewritten
        .entry(Arc::clone(&written))
        .or_insert_with(|| Rewritten { changes_catalog: !is_work(sql), sql: rewrite(sql) });
    (written, form)
}

/// Rewrites a statement for SQLite. Row locks are left out, because there is only one writer.
fn rewrite(sql: &str) -> String {
    with_arrays(
        &with_ordered_lookups(sql).replace("LOCK ROWS", ""),
        "IN (SELECT value FROM json_each(",
        "))",
    )
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Int(value),
        ValueRef::Real(value) => Value::Real(value),
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            Value::Text(String::from_utf8_lossy(text).into_owned())
        }
    }
}

impl Engine for Sqlite {
    fn begin(&mut self, mode: Mode) -> Result<()> {
        let sql = if mode == Mode::Write { "BEGIN IMMEDIATE" } else { "BEGIN" };
        self.changed = false;
        self.connection.execute_batch(sql).map_err(failed)
    }

    fn commit(&mut self) -> Result<()> {
        self.connection.execute_batch("COMMIT").map_err(failed)
    }

    fn rollback(&mut self) {
        // Fails only if no transaction is open.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    fn query(
        &mut self,
        sql: &str,
        params: &[Value],
        each: &mut dyn FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        self.bound_for(sql);
        let (written, rewritten) = known(&mut self.rewritten, sql);
        let mut statement = self.connection.prepare_cached(&rewritten.sql).map_err(failed)?;
        self.changed |= rewritten.changes_catalog && !statement.readonly();
        let width = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let mut values = Vec::with_capacity(width);
            for column in 0..width {
                values.push(value(row.get_ref(column).map_err(failed)?));
            }
            each(Row::new(values, &written))?;
        }
        Ok(())
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64> {
        self.bound_for(sql);
        let (_, rewritten) = known(&mut self.rewritten, sql);
        let mut statement = self.connection.prepare_cached(&rewritten.sql).map_err(failed)?;
        let changed = statement.execute(rusqlite::params_from_iter(params)).map_err(failed)?;
        self.changed |= changed > 0 && rewritten.changes_catalog;
        Ok(changed as u64)
    }

    fn later(&mut self, sql: &str, params: &[Value]) -> Result<()> {
        self.execute(sql, params).map(drop)
    }

    fn batch(&mut self, sql: &str) -> Result<()> {
        self.connection.execute_batch(sql).map_err(failed)
    }

    fn load(&mut self, table: &str, columns: &[(&str, Column)]) -> Result<()> {
        self.changed |= !table.starts_with("w_");
        self.bound_statement(table.starts_with("w_"));
        let rows = columns.first().map_or(0, |(_, column)| column.len());
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let marks: Vec<String> = (1..=names.len()).map(|at| format!("?{at}")).collect();
        let sql =
            format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), marks.join(", "));
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        for row in 0..rows {
            for (at, (_, column)) in columns.iter().enumerate() {
                let bound = match column {
                    Column::Int(values) => statement.raw_bind_parameter(at + 1, values[row]),
                    Column::Text(values) => {
                        statement.raw_bind_parameter(at + 1, values[row].as_deref())
                    }
                };
                bound.map_err(failed)?;
            }
            statement.raw_execute().map_err(failed)?;
        }
        Ok(())
    }

    fn clear(&mut self, tables: &[&str]) -> Result<()> {
        for table in tables {
            self.execute(&format!("DELETE FROM {table}"), &[])?;
        }
        Ok(())
    }

    fn is_postgres(&self) -> bool {
        false
    }

    fn is_usable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_access_the_files_of_the_catalog() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalog.db");
        let names = ["catalog.db", "catalog.db-wal", "catalog.db-shm"];
        let modes = || {
            names.map(|name| {
                let found = std::fs::metadata(folder.path().join(name)).unwrap();
                found.permissions().mode() & 0o777
            })
        };
        let mut first = Sqlite::open(&path).unwrap();
        first.batch("CREATE TABLE t (a INTEGER)").unwrap();
        assert_eq!(modes(), [0o600; 3], "from its creation on");
        for name in names {
            let open = Permissions::from_mode(0o644);
            std::fs::set_permissions(folder.path().join(name), open).unwrap();
        }
        let second = Sqlite::open(&path).unwrap();
        assert_eq!(modes(), [0o600; 3], "files of an older version are corrected");
        drop((first, second));
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut third = Sqlite::open(&path).unwrap();
        third.batch("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(modes(), [0o600; 3]);
    }
}
