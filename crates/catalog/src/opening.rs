//! Checks a catalog before it is opened, without changing it: a file that is missing, damaged, not
//! a catalog, or that lost acknowledged commits is refused, and no file or table is created.
//!
//! The check reads the header, the schema, the length of the file, and the first row of every
//! table. It takes a few milliseconds, whatever the size. [`Catalog::verify`] and [`verify_file`]
//! read every page. [`inspect`] and [`accept`] are the last resort for a catalog that lost commits:
//! they continue without them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::address::Address;
use super::counter::{self, Counter, Reading};
use super::engine::{Engine, Mode};
use super::postgres::Postgres;
use super::space::Space;
use super::sqlite::{Sqlite, failed};
use super::{Backend, Catalog, blocking, load, retry_connecting, schema};
use crate::error::{Error, Result};
use crate::values;

/// How many findings of one kind are listed at most.
const MOST: i64 = 100;

/// The prefix of findings about the catalog, beside those about other databases.
pub const CATALOG: &str = "rule catalog: ";

/// The state of a catalog before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogState {
    /// Whether it exists: the file is not empty, or the database has its tables.
    pub there: bool,
    /// Its identity, if it has one.
    pub identity: Option<String>,
    /// Whether it has the newest schema, so that opening it does not migrate it.
    pub current: bool,
}

/// Acknowledged commits that a catalog has lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// One sentence each.
    pub lines: Vec<String>,
    /// The confirmation word for exactly these losses; empty if there are none.
    pub word: String,
    /// The highest commit number known.
    newest: u64,
}

/// The path with `ending` appended to its file name.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Adds the path of the catalog to an error.
pub(super) fn with_path(path: &Path, error: Error) -> Error {
    let place = path.display().to_string();
    match error {
        Error::Damaged { what, .. } => Error::Damaged { place, what },
        Error::Full { .. } => Error::Full { place },
        Error::Disk { what, .. } => Error::Disk { place, what },
        Error::Database(text) => Error::Database(format!("{place}: {text}")),
        other => other,
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::Database(format!("{}: {error}", counter::path(path).display()))
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

/// Opens a connection that changes no file. Closing it does not checkpoint, so that the content of
/// a damaged write-ahead log is preserved.
fn open_unchanged(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    Ok(connection)
}

fn has_table(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection.query_row(sql, [table], |row| row.get::<_, i64>(0)).map(|found| found > 0)
}

fn version(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    if !has_table(connection, "versions")? {
        return Ok(None);
    }
    let sql = "SELECT value FROM versions WHERE name = ?1";
    connection.query_row(sql, [name], |row| row.get(0)).optional()
}

/// The number of the last commit in a catalog.
fn commits(connection: &Connection) -> rusqlite::Result<u64> {
    Ok(version(connection, COMMITS)?.unwrap_or_default().cast_unsigned())
}

/// The row of `versions` that counts commits.
pub(super) const COMMITS: &str = "commits";

fn identity(value: Option<i64>) -> Option<String> {
    value.map(|value| format!("{:016x}", value.cast_unsigned()))
}

/// Reads the first row of every table, and returns the number of tables.
fn check_tables(connection: &Connection, path: &Path) -> Result<usize> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let tables = || {
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<rusqlite::Result<Vec<String>>>()
    };
    let tables = tables().map_err(failed)?;
    if !tables.is_empty() && !tables.iter().any(|table| table == "catalog_schema") {
        return Err(Error::NotACatalog(path.display().to_string()));
    }
    for table in &tables {
        let first = format!("SELECT * FROM \"{}\" LIMIT 1", table.replace('"', "\"\""));
        let mut statement = connection.prepare(&first).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        rows.next().map_err(failed)?;
    }
    Ok(tables.len())
}

/// Refuses a file that lost commits, is damaged or is not a catalog; a missing file too, unless
/// `fresh` is set. Returns the number of its last commit, and whether the counter must be
/// restarted.
pub(super) fn examine(path: &Path, fresh: bool) -> Result<(u64, bool)> {
    // The counter is read first, because another process may commit at the same time.
    let acknowledged = counter::read(path).map_err(unreadable(path))?;
    if !fresh && !has_content(path) && has_content(&beside(path, "-wal")) {
        let what = "it is missing or empty, but its write-ahead log has content, which SQLite would \
                    delete";
        return Err(Error::Damaged { place: path.display().to_string(), what: what.to_owned() });
    }
    if !has_content(path) {
        return match acknowledged {
            Reading::Acknowledged(acknowledged) if acknowledged > 0 && !fresh => {
                Err(Error::Lost { place: path.display().to_string(), acknowledged })
            }
            _ => Ok((0, true)),
        };
    }
    let connection =
        open_unchanged(path).map_err(failed).map_err(|error| with_path(path, error))?;
    let tables = check_tables(&connection, path).map_err(|error| with_path(path, error))?;
    let found = commits(&connection).map_err(failed).map_err(|error| with_path(path, error))?;
    match acknowledged {
        Reading::Acknowledged(acknowledged) if tables == 0 && acknowledged > 0 && !fresh => {
            Err(Error::Lost { place: path.display().to_string(), acknowledged })
        }
        Reading::Acknowledged(acknowledged) if tables > 0 && acknowledged > found => {
            Err(Error::EndsEarly { place: path.display().to_string(), acknowledged, found })
        }
        // A new catalog replaces a missing one.
        Reading::Acknowledged(acknowledged) => Ok((found, acknowledged > found)),
        Reading::Damaged => Err(Error::Counter {
            place: path.display().to_string(),
            counter: counter::path(path).display().to_string(),
        }),
        Reading::Absent => Ok((found, true)),
    }
}

/// Opens the file of a catalog for its single writer, if [`examine`] accepts it.
pub(super) fn open_file(path: &Path, fresh: bool) -> Result<(Sqlite, Counter, Space)> {
    let (found, restart) = examine(path, fresh)?;
    if found > 0 && counter::read(path).map_err(unreadable(path))? == Reading::Absent {
        tracing::warn!(
            counter = %counter::path(path).display(),
            "the catalog's counter of acknowledged commits is missing; starting a new one: commits \
             lost before this start cannot be detected"
        );
    }
    let mut space = Space::new(path);
    let log_pages = space.log_pages();
    let open = || {
        let mut engine = Sqlite::open(path)?;
        schema::migrate(&mut engine)?;
        schema::prepare(&mut engine)?;
        engine.bound_log(log_pages)?;
        Ok(engine)
    };
    let mut engine = match open() {
        Err(Error::Full { .. } | Error::Disk { .. }) if space.is_used_up() => {
            space.release();
            open().map_err(|error| with_path(path, error))?
        }
        opened => opened.map_err(|error| with_path(path, error))?,
    };
    space.bound(&mut engine);
    let counter = if restart {
        // Moves the tables into the file itself, so that they survive the loss of its first log.
        engine.checkpoint().map_err(|error| with_path(path, error))?;
        Counter::start(path, found)
    } else {
        Counter::open(path)
    };
    Ok((engine, counter.map_err(unreadable(path))?, space))
}

/// Starts the counter of a catalog that was just restored.
pub(super) fn restart_counter(path: &Path) -> Result<()> {
    let found = open_unchanged(path).and_then(|connection| commits(&connection));
    let found = found.map_err(failed).map_err(|error| with_path(path, error))?;
    Counter::start(path, found).map(drop).map_err(unreadable(path))
}

impl Catalog {
    /// Reads the state of the catalog at `address` without changing it. Creates no file and no
    /// table.
    ///
    /// # Errors
    /// As [`Catalog::open`], but a missing file is not an error.
    pub async fn peek(address: &str) -> Result<CatalogState> {
        let address = address.to_owned();
        blocking(move || peek(&address)).await
    }

    /// The identity of this catalog, if it has one.
    pub async fn identity(&self) -> Result<Option<String>> {
        self.read(|tx| {
            let rows = tx.query("SELECT value FROM versions WHERE name = 'identity'", &[])?;
            let number = rows.first().map(|row| row.int(0)).transpose()?;
            Ok(number.map(|number| format!("{:016x}", number.cast_unsigned())))
        })
        .await
    }

    /// Gives the catalog an identity, unless it has one, and returns it.
    pub async fn give_identity(&self, fresh: u64) -> Result<String> {
        let give =
            "INSERT INTO versions (name, value) VALUES ('identity', ?1) ON CONFLICT DO NOTHING";
        self.write(move |tx| tx.execute(give, values![fresh.cast_signed()]).map(drop)).await?;
        Ok(self.identity().await?.unwrap_or_default())
    }

    /// Checks every page for damage, with SQLite's own check. Returns one line for each finding.
    ///
    /// # Errors
    /// If the database cannot be read for another reason than damage.
    pub async fn verify(&self) -> Result<Vec<String>> {
        let Backend::Sqlite { path, .. } = &self.inner.backend else { return Ok(Vec::new()) };
        let path = path.clone();
        // Opening another file, or one whose log is gone, could change it.
        if let Err(error) = self.inner.health.same_file(&path) {
            return Ok(vec![error.to_string()]);
        }
        blocking(move || {
            let connection =
                open_unchanged(&path).map_err(failed).map_err(|error| with_path(&path, error))?;
            let mut wrong = check_pages(&connection, "quick_check")?;
            let counter = counter::path(&path).display().to_string();
            match counter::read(&path).map_err(unreadable(&path))? {
                Reading::Acknowledged(_) => {}
                Reading::Absent => {
                    wrong.push(format!("{CATALOG}{counter} is missing; the next start creates it"));
                }
                Reading::Damaged => {
                    let place = path.display().to_string();
                    wrong.push(Error::Counter { place, counter }.to_string());
                }
            }
            Ok(wrong)
        })
        .await
    }
}

/// The identity in the file of a catalog, if it has one; nothing else is checked, and no file is
/// changed.
///
/// # Errors
/// If the file is damaged or cannot be read.
pub fn identity_of(path: &Path) -> Result<Option<String>> {
    if !has_content(path) {
        return Ok(None);
    }
    let found = open_unchanged(path).and_then(|connection| version(&connection, "identity"));
    Ok(identity(found.map_err(failed).map_err(|error| with_path(path, error))?))
}

/// The findings of SQLite's check of its pages.
fn check_pages(connection: &Connection, check: &str) -> Result<Vec<String>> {
    let lines = || {
        let mut statement = connection.prepare(&format!("PRAGMA {check}({MOST})"))?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        rows.collect::<rusqlite::Result<Vec<String>>>()
    };
    match lines().map_err(failed) {
        Ok(lines) if lines == ["ok"] => Ok(Vec::new()),
        // One finding may take several lines, under a heading for the database.
        Ok(lines) => Ok(lines
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| !line.starts_with("***"))
            .map(|line| format!("{CATALOG}{line}"))
            .collect()),
        Err(Error::Damaged { what, .. }) => Ok(vec![format!("{CATALOG}{what}")]),
        Err(error) => Err(error),
    }
}

fn peek(address: &str) -> Result<CatalogState> {
    if Address::is_postgres(address) {
        let address = Address::parse(address)?;
        let mut engine = retry_connecting(|| Postgres::connect(&address))?;
        engine.begin(Mode::Read)?;
        let peeked = peek_tables(&mut engine);
        engine.rollback();
        return peeked;
    }
    let path = Catalog::file(address).ok_or_else(|| Error::Address(address.to_owned()))?;
    if !has_content(&path) {
        return Ok(CatalogState { there: false, identity: None, current: false });
    }
    examine(&path, false)?;
    let read = || {
        let connection = open_unchanged(&path)?;
        let schema = match has_table(&connection, "catalog_schema")? {
            true => newest(&connection)?.unwrap_or_default(),
            false => 0,
        };
        Ok((schema, version(&connection, "identity")?))
    };
    let (schema, found) = read().map_err(failed).map_err(|error| with_path(&path, error))?;
    openable(schema)?;
    Ok(CatalogState { there: true, identity: identity(found), current: schema == schema::NEWEST })
}

fn newest(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection.query_row("SELECT MAX(version) FROM catalog_schema", [], |row| row.get(0))
}

/// Refuses a schema that this version cannot open.
fn openable(found: i64) -> Result<()> {
    match found {
        schema::UNFINISHED => Err(Error::HalfRestored),
        found if found > schema::NEWEST => Err(Error::NewerSchema { found, known: schema::NEWEST }),
        _ => Ok(()),
    }
}

fn peek_tables(engine: &mut dyn Engine) -> Result<CatalogState> {
    if !load::exists(engine, "catalog_schema")? {
        return Ok(CatalogState { there: false, identity: None, current: false });
    }
    let version = schema::version(engine)?;
    openable(version)?;
    let mut found = None;
    if load::exists(engine, "versions")? {
        let sql = "SELECT value FROM versions WHERE name = 'identity'";
        engine.query(sql, &[], &mut |row| {
            found = row.opt_int(0)?;
            Ok(())
        })?;
    }
    Ok(CatalogState { there: true, identity: identity(found), current: version == schema::NEWEST })
}

/// Checks the file of a catalog that no server uses for damage, as [`Catalog::verify`] does, and
/// that every index agrees with its table. Returns no finding if there is no catalog and none was
/// lost.
///
/// # Errors
/// If the file cannot be read for another reason than damage.
pub fn verify_file(path: &Path) -> Result<Vec<String>> {
    match examine(path, false) {
        Ok(_) => {}
        Err(
            error @ (Error::Damaged { .. }
            | Error::EndsEarly { .. }
            | Error::Counter { .. }
            | Error::Lost { .. }
            | Error::NotACatalog(_)),
        ) => return Ok(vec![error.to_string()]),
        Err(error) => return Err(error),
    }
    if !has_content(path) {
        return Ok(Vec::new());
    }
    let connection =
        open_unchanged(path).map_err(failed).map_err(|error| with_path(path, error))?;
    match newest(&connection).map_err(failed).map_err(|error| with_path(path, error))? {
        Some(schema::UNFINISHED) => Ok(vec![Error::HalfRestored.to_string()]),
        _ => check_pages(&connection, "integrity_check"),
    }
}

/// Reports which acknowledged commits the file of a catalog has lost, without changing it. No
/// server may be using it.
///
/// # Errors
/// If it cannot be read, or is not a catalog.
pub fn inspect(path: &Path) -> Result<Losses> {
    let acknowledged = counter::read(path).map_err(unreadable(path))?;
    match examine(path, false) {
        Ok(_) => return Ok(Losses::default()),
        Err(Error::EndsEarly { .. } | Error::Counter { .. }) => {}
        Err(error) => return Err(error),
    }
    let connection =
        open_unchanged(path).map_err(failed).map_err(|error| with_path(path, error))?;
    let found = commits(&connection).map_err(failed).map_err(|error| with_path(path, error))?;
    let (line, newest) = match acknowledged {
        Reading::Acknowledged(acknowledged) if acknowledged > found => {
            let first = found + 1;
            let line = format!(
                "{CATALOG}commits {first} to {acknowledged} were acknowledged and are missing"
            );
            (line, acknowledged)
        }
        Reading::Damaged => {
            let damaged = "the counter of acknowledged commits is damaged: commits may be missing";
            (format!("{CATALOG}{damaged}"), found)
        }
        _ => return Ok(Losses::default()),
    };
    let word = format!("{:08x}", crc32fast::hash(format!("{line} {found}").as_bytes()));
    Ok(Losses { lines: vec![line], word, newest })
}

/// Accepts the losses that [`inspect`] reported with `word`, so that the catalog can be opened.
/// Returns the copies it made of the files. A second call fails: a word is valid once.
///
/// # Errors
/// If the losses are not those that were reported; no file is changed then.
pub fn accept(path: &Path, word: &str) -> Result<Vec<PathBuf>> {
    let losses = inspect(path)?;
    if losses.word != word || word.is_empty() {
        let place = path.display();
        return Err(Error::Database(format!(
            "\"{word}\" is not the confirmation word for the losses of {place}: inspect it again"
        )));
    }
    let mut copies = Vec::new();
    for file in [path.to_owned(), beside(path, "-wal"), counter::path(path)] {
        if !file.exists() {
            continue;
        }
        let copy = beside(&file, &format!(".before-repair-{word}"));
        std::fs::copy(&file, &copy).map_err(|error| {
            let file = file.display();
            Error::Database(format!("cannot copy {file} before it is changed: {error}"))
        })?;
        copies.push(copy);
    }
    let next = losses.newest + 1;
    let set = "INSERT INTO versions (name, value) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    let done = Sqlite::open(path).and_then(|mut engine| {
        schema::migrate(&mut engine)?;
        engine.execute(set, values![COMMITS, next.cast_signed()])
    });
    done.map_err(|error| with_path(path, error))?;
    Counter::start(path, next).map_err(unreadable(path))?;
    Ok(copies)
}

#[cfg(test)]
mod tests;
