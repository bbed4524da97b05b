//! The file: its tables, how they are read at start, and the statements of a commit.
//!
//! An object's row is numbered by the revision of its creation, which nothing else shares, so a
//! commit finds every row by number and no index has to be kept. The log is an undo log: a row
//! holds the object *before* the change. Together with the objects as they are now, walking it
//! backwards gives every change whole, at the price of one copy per change instead of two.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::cache::{Ledger, State};
use crate::object::{Action, Event, Key, Record, Resource, Revision};

use super::OpenError;

/// Marks the file as ours ("Mnst").
const APPLICATION: i64 = 0x4d6e_7374;
/// The newest format this version reads and writes.
const FORMAT: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE objects (
        created  INTEGER PRIMARY KEY,
        resource TEXT    NOT NULL,
        path     TEXT    NOT NULL,
        revision INTEGER NOT NULL,
        hole     INTEGER NOT NULL,
        body     BLOB    NOT NULL
    );
    CREATE TABLE log (
        revision          INTEGER PRIMARY KEY,
        at_ms             INTEGER NOT NULL,
        action            INTEGER NOT NULL,
        resource          TEXT    NOT NULL,
        path              TEXT    NOT NULL,
        created           INTEGER NOT NULL,
        previous_revision INTEGER,
        previous_hole     INTEGER,
        previous          BLOB
    );
    CREATE TABLE history (
        only     INTEGER PRIMARY KEY CHECK (only = 1),
        revision INTEGER NOT NULL,
        floor    INTEGER NOT NULL
    );
    INSERT INTO history VALUES (1, 0, 0);
";

/// Opens a connection the way both threads need it.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -8 * 1024)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// The file as it was found.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    pub(super) ledger: Ledger,
}

/// Opens the file, makes its tables if it is new, and reads everything.
pub(super) fn open(path: &Path) -> Result<(Disk, Loaded), OpenError> {
    let sqlite = |source: rusqlite::Error| match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
            OpenError::Damaged { path: path.into(), what: source.to_string() }
        }
        _ => OpenError::Sqlite { path: path.into(), source },
    };
    let mut connection = connect(path).map_err(sqlite)?;
    identify(&connection, path, &sqlite)?;
    let loaded = load(&connection).map_err(|error| match error {
        LoadError::Sqlite(source) => sqlite(source),
        LoadError::Damaged(what) => OpenError::Damaged { path: path.into(), what },
    })?;
    let log_pages = Arc::new(AtomicU32::new(0));
    let noted = log_pages.clone();
    let note = move |_: &mut rusqlite::hooks::Wal, pages| {
        noted.store(u32::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
        Ok(())
    };
    connection.wal_hook(Some(note)).map_err(sqlite)?;
    Ok((Disk { connection, log_pages }, loaded))
}

fn identify(
    connection: &Connection,
    path: &Path,
    sqlite: &impl Fn(rusqlite::Error) -> OpenError,
) -> Result<(), OpenError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = pragma("application_id").map_err(sqlite)?;
    let format = pragma("user_version").map_err(sqlite)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(sqlite)?;
    match (application, format) {
        (0, 0) if tables == 0 => connection
            .execute_batch(&format!(
                "BEGIN IMMEDIATE; {SCHEMA}
                 PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
            ))
            .map_err(sqlite),
        (APPLICATION, FORMAT) => Ok(()),
        (APPLICATION, found) if found > FORMAT => {
            Err(OpenError::Newer { path: path.into(), found, known: FORMAT })
        }
        _ => Err(OpenError::Foreign { path: path.into() }),
    }
}

/// Has SQLite look at every page and every index; returns its complaints.
pub(super) fn verify(path: &Path) -> rusqlite::Result<Vec<String>> {
    let connection = connect(path)?;
    let mut check = connection.prepare("PRAGMA integrity_check")?;
    let answers = check.query_map([], |row| row.get::<_, String>(0))?;
    answers.filter(|answer| !matches!(answer, Ok(answer) if answer == "ok")).collect()
}

enum LoadError {
    Sqlite(rusqlite::Error),
    Damaged(String),
}

impl From<rusqlite::Error> for LoadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn load(connection: &Connection) -> Result<Loaded, LoadError> {
    let history = connection
        .query_row("SELECT revision, floor FROM history", [], |row| {
            Ok((revision(row, 0)?, revision(row, 1)?))
        })
        .optional()?;
    let (current, floor) =
        history.ok_or_else(|| LoadError::Damaged("it does not say its revision".into()))?;
    let mut state = State::new(current, floor);
    let mut names = Names::default();

    let mut objects =
        connection.prepare("SELECT created, resource, path, revision, hole, body FROM objects")?;
    let mut rows = objects.query([])?;
    while let Some(row) = rows.next()? {
        let created = revision(row, 0)?;
        let key = names.key(row, 1)?;
        let stored = stored(row, key.clone(), created, 3)?
            .ok_or_else(|| LoadError::Damaged(format!("{key} has no valid version")))?;
        if state.get(&key).is_some() {
            return Err(LoadError::Damaged(format!("{key} is there twice")));
        }
        if stored.revision() > current {
            return Err(LoadError::Damaged(format!("{key} is newer than the database")));
        }
        state.load(Arc::new(stored));
    }

    let mut ledger = Ledger::default();
    for (event, at) in load_log(connection, &state, &mut names)?.into_iter().rev() {
        ledger.note(&event, at);
        state.load_event(event);
    }
    Ok(Loaded { state, ledger })
}

/// The changes in the log, newest first.
fn load_log(
    connection: &Connection,
    state: &State,
    names: &mut Names,
) -> Result<Vec<(Arc<Event>, Timestamp)>, LoadError> {
    let mut events = Vec::new();
    // What each object was before the changes already walked over.
    let mut earlier: BTreeMap<Key, Option<Arc<Record>>> = BTreeMap::new();
    let mut log = connection.prepare(
        "SELECT revision, at_ms, action, resource, path, created,
                previous_revision, previous_hole, previous
         FROM log ORDER BY revision DESC",
    )?;
    let mut rows = log.query([])?;
    while let Some(row) = rows.next()? {
        let at = revision(row, 0)?;
        let damaged = || LoadError::Damaged(format!("the log entry of revision {at} is wrong"));
        let time = Timestamp::from_millisecond(row.get(1)?).map_err(|_| damaged())?;
        let action = decode(row.get(2)?).ok_or_else(damaged)?;
        let key = names.key(row, 3)?;
        let previous = match row.get::<_, Option<i64>>(6)? {
            None => None,
            Some(_) => {
                let created = revision(row, 5)?;
                Some(Arc::new(stored(row, key.clone(), created, 6)?.ok_or_else(damaged)?))
            }
        };
        let after = match earlier.get(&key) {
            Some(known) => known.clone(),
            None => state.get(&key).cloned(),
        };
        let record = match (action, &previous, after) {
            (Action::Added, None, Some(after)) | (Action::Modified, Some(_), Some(after)) => after,
            (Action::Deleted, Some(previous), None) => Arc::new(previous.at(at)),
            _ => return Err(damaged()),
        };
        if record.revision() != at {
            return Err(damaged());
        }
        earlier.insert(key, previous.clone());
        events.push((Arc::new(Event::new(action, record, previous)), time));
    }
    Ok(events)
}

/// Collections are few and objects many: their names are shared.
#[derive(Default)]
struct Names(BTreeMap<String, Resource>);

impl Names {
    fn key(&mut self, row: &Row<'_>, column: usize) -> rusqlite::Result<Key> {
        let name = row.get_ref(column)?.as_str()?;
        let resource = match self.0.get(name) {
            Some(resource) => resource.clone(),
            None => {
                let resource = Resource::from_stored(name);
                self.0.insert(name.to_owned(), resource.clone());
                resource
            }
        };
        Ok(Key::from_stored(resource, row.get_ref(column + 1)?.as_str()?))
    }
}

/// A record from the three columns `revision, hole, body` that begin at `column`.
fn stored(
    row: &Row<'_>,
    key: Key,
    created: Revision,
    column: usize,
) -> rusqlite::Result<Option<Record>> {
    let at = revision(row, column)?;
    let hole = usize::try_from(row.get::<_, i64>(column + 1)?).unwrap_or(usize::MAX);
    Ok(Record::from_stored(key, created, at, hole, row.get(column + 2)?))
}

fn revision(row: &Row<'_>, column: usize) -> rusqlite::Result<Revision> {
    row.get::<_, i64>(column).map(|value| Revision(value.cast_unsigned()))
}

fn number(revision: Revision) -> i64 {
    revision.0.cast_signed()
}

fn encode(action: Action) -> i64 {
    match action {
        Action::Added => 0,
        Action::Modified => 1,
        Action::Deleted => 2,
    }
}

fn decode(action: i64) -> Option<Action> {
    [Action::Added, Action::Modified, Action::Deleted].into_iter().find(|a| encode(*a) == action)
}

/// The committer's connection.
#[derive(Debug)]
pub(super) struct Disk {
    connection: Connection,
    /// How many pages the write-ahead log had after the last commit.
    log_pages: Arc<AtomicU32>,
}

impl Disk {
    /// Runs `work` in one transaction and makes it durable. On any error nothing was written.
    pub(super) fn commit(
        &mut self,
        work: impl FnOnce(&Batch<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        work(&Batch { connection: &transaction })?;
        transaction.commit()
    }

    /// How many pages the write-ahead log has since it last began anew.
    pub(super) fn log_pages(&self) -> u32 {
        self.log_pages.load(Ordering::Relaxed)
    }

    /// Moves what it can of the write-ahead log into the main file, and says whether all of it
    /// was moved, so that the log begins anew with the next commit.
    pub(super) fn checkpoint(&self, mode: &str) -> rusqlite::Result<bool> {
        checkpoint(&self.connection, mode)
    }
}

pub(super) fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<bool> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, written, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && written == moved)
    })
}

/// The statements of one transaction.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    connection: &'a Connection,
}

impl Batch<'_> {
    /// Writes one change: the object, and how to undo it.
    pub(super) fn apply(&self, event: &Event, at: Timestamp) -> rusqlite::Result<()> {
        let record = &event.record;
        let key = record.key();
        let (resource, path) = (key.resource().as_str(), key.path());
        let created = number(record.created());
        let hole = i64::try_from(record.hole()).unwrap_or(i64::MAX);
        match event.action {
            Action::Added => self
                .connection
                .prepare_cached("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?)")?
                .execute(params![
                    created,
                    resource,
                    path,
                    number(record.revision()),
                    hole,
                    &record.json()[..]
                ])?,
            Action::Modified => self
                .connection
                .prepare_cached(
                    "UPDATE objects SET revision = ?, hole = ?, body = ? WHERE created = ?",
                )?
                .execute(params![number(record.revision()), hole, &record.json()[..], created])?,
            Action::Deleted => self
                .connection
                .prepare_cached("DELETE FROM objects WHERE created = ?")?
                .execute([created])?,
        };
        let previous = event.previous.as_deref();
        self.connection
            .prepare_cached("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                number(record.revision()),
                at.as_millisecond(),
                encode(event.action),
                resource,
                path,
                created,
                previous.map(|record| number(record.revision())),
                previous.map(|record| i64::try_from(record.hole()).unwrap_or(i64::MAX)),
                previous.map(|record| &record.json()[..]),
            ])?;
        Ok(())
    }

    /// Notes the revision reached.
    pub(super) fn reach(&self, revision: Revision) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("UPDATE history SET revision = ?")?
            .execute([number(revision)])?;
        Ok(())
    }

    /// Forgets the log up to and including `through`.
    pub(super) fn forget(&self, through: Revision) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("DELETE FROM log WHERE revision <= ?")?
            .execute([number(through)])?;
        self.connection
            .prepare_cached("UPDATE history SET floor = max(floor, ?)")?
            .execute([number(through)])?;
        Ok(())
    }
}
