//! The database file: its tables, how they are read at start, and the statements of a commit.
//!
//! An object's row is numbered by the revision of its creation, which nothing else shares, so a
//! commit finds every row by number and no index has to be kept. The log is an undo log: a row
//! holds the object *before* the change. Together with the objects as they are now, walking it
//! backwards gives every change whole, at the price of one copy per change instead of two.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use crate::object::{Action, Event, Revision};
use crate::value::Codec;

use super::OpenError;
use super::counter::{self, Counter, Reading};
use super::failure::Failure;
use super::load::{self, Damage, LoadError, Loaded, Summary};
use super::rekey;

/// Marks the file as ours ("Mnst").
const APPLICATION: i64 = 0x4d6e_7374;
/// The newest format this version reads and writes. The first had no checksums.
const FORMAT: i64 = 2;

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
        floor    INTEGER NOT NULL,
        objects  INTEGER,
        digest   INTEGER
    );
    INSERT INTO history VALUES (1, 0, 0, 0, 0);
";

/// Opens a connection the way both threads need it. Closing it leaves the write-ahead log alone:
/// a database that is refused stays as it was found. A missing file is an error: the lock creates
/// it, and a new one must never take the place of one that was moved away.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::default() & !OpenFlags::SQLITE_OPEN_CREATE;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -8 * 1024)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Opens the file, makes its tables if it is new, and reads everything. Where `fresh` is set, a
/// new database may take the place of one that is known to have been there.
pub(super) fn open(path: &Path, codec: &Codec, fresh: bool) -> Result<(Disk, Loaded), OpenError> {
    let sqlite = |source| OpenError::sqlite(path, source);
    let io = |source| OpenError::Io { path: counter::path(path), source };
    let mut connection = connect(path).map_err(sqlite)?;
    if codec.sealer().has_keys() {
        // Overwritten and deleted content is zeroed.
        connection.pragma_update(None, "secure_delete", true).map_err(sqlite)?;
    }
    let acknowledged = counter::read(&counter::path(path)).map_err(io)?;
    let found = identify(&connection, path)?;
    let format = match (found, acknowledged) {
        (Some(format), _) => format,
        (None, Reading::Acknowledged(acknowledged)) if !fresh => {
            return Err(OpenError::Missing { path: path.into(), acknowledged });
        }
        (None, _) => {
            create(&connection).map_err(sqlite)?;
            FORMAT
        }
    };
    rekey::learn(&connection, path, codec)?;
    let history = load::history(&connection, format).map_err(|error| refused(path, error))?;
    if found.is_some() {
        reaches(path, acknowledged, history.revision)?;
    }
    let unguarded = format == FORMAT && history.revision > Revision(0);
    let unguarded = unguarded && acknowledged == Reading::Absent;
    if unguarded {
        tracing::warn!(
            file = %counter::path(path).display(),
            revision = history.revision.0,
            "the counter of acknowledged revisions is missing; changes lost before this start \
             cannot be noticed"
        );
    }
    let loaded = load::load(&connection, codec, format).map_err(|error| refused(path, error))?;
    if format < FORMAT {
        upgrade(&connection, loaded.summary).map_err(sqlite)?;
    }
    let log_pages = Arc::new(AtomicU32::new(0));
    let noted = log_pages.clone();
    let note = move |_: &mut rusqlite::hooks::Wal, pages| {
        noted.store(u32::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
        Ok(())
    };
    connection.wal_hook(Some(note)).map_err(sqlite)?;
    let counter = match Counter::start(&counter::path(path), history.revision) {
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            tracing::warn!("no space for the counter of acknowledged revisions; going on without");
            None
        }
        counter => Some(counter.map_err(io)?),
    };
    let (codec, summary) = (codec.clone(), loaded.summary);
    let failure = Arc::default();
    Ok((Disk { connection, log_pages, codec, summary, counter, failure, unguarded }, loaded))
}

/// Refuses a database that has less than was acknowledged.
fn reaches(path: &Path, acknowledged: Reading, recovered: Revision) -> Result<(), OpenError> {
    match acknowledged {
        Reading::Acknowledged(acknowledged) if acknowledged > recovered => {
            Err(OpenError::EndsEarly { path: path.into(), acknowledged, recovered })
        }
        Reading::Acknowledged(_) | Reading::Absent => Ok(()),
        Reading::Damaged => Err(OpenError::Damaged {
            path: counter::path(path),
            what: "it does not say which revision was acknowledged last, so lost writes cannot be \
                   ruled out"
                .to_owned(),
        }),
    }
}

/// The format of the file; `None` if it is empty.
pub(super) fn identify(connection: &Connection, path: &Path) -> Result<Option<i64>, OpenError> {
    let sqlite = |source| OpenError::sqlite(path, source);
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = pragma("application_id").map_err(sqlite)?;
    let format = pragma("user_version").map_err(sqlite)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(sqlite)?;
    match (application, format) {
        (0, 0) if tables == 0 => Ok(None),
        (APPLICATION, 1..=FORMAT) => Ok(Some(format)),
        (APPLICATION, found) if found > FORMAT => {
            Err(OpenError::Newer { path: path.into(), found, known: FORMAT })
        }
        _ => Err(OpenError::Foreign { path: path.into() }),
    }
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {SCHEMA}
         PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
    ))
}

/// Brings a database of the first format up to date. Values get their checksums when they are
/// next written; until then the digest covers them.
fn upgrade(connection: &Connection, summary: Summary) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         ALTER TABLE history ADD COLUMN objects INTEGER;
         ALTER TABLE history ADD COLUMN digest INTEGER;
         UPDATE history SET objects = {}, digest = {};
         PRAGMA user_version = {FORMAT}; COMMIT;",
        summary.objects.cast_signed(),
        summary.digest.cast_signed()
    ))
}

/// Forgets all history and says what there is at `revision`, in the newest format.
pub(super) fn begin_anew(
    connection: &Connection,
    revision: Revision,
    summary: Summary,
) -> rusqlite::Result<()> {
    let start = SCHEMA.find("CREATE TABLE history").unwrap_or_default();
    let (at, Summary { objects, digest }) = (number(revision), summary);
    connection.execute_batch(&format!(
        "DELETE FROM log; DROP TABLE history; {}
         UPDATE history SET revision = {at}, floor = {at}, objects = {}, digest = {};
         PRAGMA user_version = {FORMAT};",
        &SCHEMA[start..],
        objects.cast_signed(),
        digest.cast_signed()
    ))
}

fn refused(path: &Path, error: LoadError) -> OpenError {
    match error {
        LoadError::Sqlite(source) => OpenError::sqlite(path, source),
        LoadError::Damaged(damage) => {
            OpenError::Damaged { path: path.into(), what: listed(&damage) }
        }
    }
}

/// The first few things that are wrong, in one line.
fn listed(damage: &[Damage]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<&str> = damage.iter().take(SHOWN).map(|one| one.problem.as_str()).collect();
    let rest = damage.len().saturating_sub(SHOWN);
    let rest = if rest == 0 { String::new() } else { format!("; and {rest} more") };
    format!("{}{rest}", shown.join("; "))
}

/// Has SQLite look at every page and every index, and reads every value; returns what is wrong.
pub(super) fn verify(path: &Path, codec: &Codec) -> rusqlite::Result<Vec<String>> {
    let connection = connect(path)?;
    let mut wrong = integrity(&connection);
    // One transaction: everything is read as it was at one moment.
    let reading = connection.unchecked_transaction()?;
    match load::load(&reading, codec, FORMAT) {
        Ok(_) => {}
        Err(LoadError::Damaged(damage)) => wrong.extend(damage.into_iter().map(|one| one.problem)),
        Err(LoadError::Sqlite(error)) if is_damage(&error) => wrong.push(error.to_string()),
        Err(LoadError::Sqlite(error)) => return Err(error),
    }
    Ok(wrong)
}

/// The lines that SQLite's own check of every page and index answers, if it finds anything.
pub(super) fn integrity(connection: &Connection) -> Vec<String> {
    let lines = |connection: &Connection| -> rusqlite::Result<Vec<String>> {
        let mut check = connection.prepare("PRAGMA integrity_check")?;
        let answers = check.query_map([], |row| row.get::<_, String>(0))?;
        let mut lines = Vec::new();
        for answer in answers {
            // One answer may have several lines.
            lines.extend(answer?.lines().filter(|line| *line != "ok").map(str::to_owned));
        }
        Ok(lines)
    };
    lines(connection).unwrap_or_else(|error| vec![error.to_string()])
}

/// A problem of the counter of an open database, which was `unguarded` when it was opened.
pub(super) fn verify_counter(path: &Path, unguarded: bool) -> Option<String> {
    let file = counter::path(path);
    let shown = file.display();
    match counter::read(&file) {
        Ok(Reading::Acknowledged(_)) if unguarded => Some(format!(
            "{shown} was missing when the database was opened, and begins anew: changes lost \
             before could not be noticed"
        )),
        Ok(Reading::Acknowledged(_)) => None,
        Ok(Reading::Absent) => Some(format!("{shown} is missing: lost changes cannot be noticed")),
        Ok(Reading::Damaged) => Some(format!("{shown} is damaged: it names no revision")),
        Err(error) => Some(format!("{shown} cannot be read: {error}")),
    }
}

/// Whether an error of SQLite is about the content of the file, rather than about the machine.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error.sqlite_error_code() {
        // Our own statements are right: an unknown table or column is one that was there once.
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => true,
        Some(_) => false,
        None => true,
    }
}

/// Whether there was no space left.
pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
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

pub(super) fn decode(action: i64) -> Option<Action> {
    [Action::Added, Action::Modified, Action::Deleted].into_iter().find(|a| encode(*a) == action)
}

/// The committer's connection.
#[derive(Debug)]
pub(super) struct Disk {
    connection: Connection,
    /// How many pages the write-ahead log had after the last commit.
    log_pages: Arc<AtomicU32>,
    codec: Codec,
    summary: Summary,
    counter: Option<Counter>,
    failure: Arc<Failure>,
    /// There was no counter when the database was opened, so lost changes would not have shown.
    pub(super) unguarded: bool,
}

impl Disk {
    /// Runs `work` in one transaction that reaches `revision`, makes it durable, and notes that
    /// outside the database. On any error nothing was written.
    pub(super) fn commit(
        &mut self,
        revision: Revision,
        work: impl FnOnce(&Batch<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let outcome = self.try_commit(revision, work);
        self.failure.note(&outcome);
        outcome
    }

    /// Whether the last commit failed.
    pub(super) fn failure(&self) -> Arc<Failure> {
        self.failure.clone()
    }

    fn try_commit(
        &mut self,
        revision: Revision,
        work: impl FnOnce(&Batch<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let batch = Batch {
            connection: &transaction,
            codec: &self.codec,
            summary: Cell::new(self.summary),
        };
        work(&batch)?;
        batch.reach(revision)?;
        let summary = batch.summary.get();
        transaction.commit()?;
        self.summary = summary;
        if let Some(counter) = &mut self.counter {
            counter.note(revision);
        }
        Ok(())
    }

    /// Rewrites the values that are not current in the next rows of a column after a number.
    pub(super) fn rewrite_batch(
        &self,
        column: rekey::Column,
        after: i64,
    ) -> rusqlite::Result<rekey::Rewritten> {
        rekey::rewrite_batch(&self.connection, &self.codec, column, after)
    }

    /// How many pages the write-ahead log has since it last started over.
    pub(super) fn log_pages(&self) -> u32 {
        self.log_pages.load(Ordering::Relaxed)
    }

    /// Moves as much as possible of the write-ahead log into the main file, and returns whether all
    /// of it was moved, so that the log starts over with the next commit.
    pub(super) fn checkpoint(&self, mode: &str) -> rusqlite::Result<bool> {
        checkpoint(&self.connection, mode)
    }

    /// Lets SQLite remove its write-ahead log once the last connection is closed.
    pub(super) fn tidy_on_close(&self) -> rusqlite::Result<bool> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
    }

    /// How many bytes of the main file are free to be used again.
    pub(super) fn free_inside(&self) -> rusqlite::Result<u64> {
        let pragma =
            |name| self.connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let bytes = pragma("freelist_count")?.saturating_mul(pragma("page_size")?);
        Ok(u64::try_from(bytes).unwrap_or_default())
    }

    /// Whether the main file may become larger.
    pub(super) fn may_grow(&self, grow: bool) {
        let pages = if grow {
            Ok(i64::from(u32::MAX - 1))
        } else {
            self.connection.pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))
        };
        let set = |pages| {
            let bound = format!("PRAGMA max_page_count = {pages}");
            self.connection.query_row(&bound, [], |row| row.get::<_, i64>(0))
        };
        if let Err(error) = pages.and_then(set) {
            tracing::warn!(%error, "bounding the size of the database failed");
        }
    }

    /// A second handle of the counter, to sync it without holding up commits.
    pub(super) fn counter(&self) -> Option<std::fs::File> {
        self.counter.as_ref().and_then(|counter| counter.handle().ok())
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
    codec: &'a Codec,
    summary: Cell<Summary>,
}

impl Batch<'_> {
    /// Writes one change: the object, and how to undo it.
    pub(super) fn apply(&self, event: &Event, at: Timestamp) -> rusqlite::Result<()> {
        self.change(event)?;
        let (record, previous) = (&event.record, event.previous.as_deref());
        let key = record.key();
        self.connection
            .prepare_cached("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                number(record.revision()),
                at.as_millisecond(),
                encode(event.action),
                key.resource().as_str(),
                key.path(),
                number(record.created()),
                previous.map(|record| number(record.revision())),
                previous.map(|record| i64::try_from(record.hole()).unwrap_or(i64::MAX)),
                previous.map(|record| self.codec.encode(key, record.json())),
            ])?;
        Ok(())
    }

    /// Writes one change without a way back, which takes less space.
    pub(super) fn change(&self, event: &Event) -> rusqlite::Result<()> {
        let record = &event.record;
        let key = record.key();
        let created = number(record.created());
        let hole = i64::try_from(record.hole()).unwrap_or(i64::MAX);
        let body = || self.codec.encode(key, record.json());
        let mut summary = self.summary.get();
        if let Some(previous) = &event.previous {
            summary.remove(previous);
        }
        let rows = match event.action {
            Action::Added => self
                .connection
                .prepare_cached("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?)")?
                .execute(params![
                    created,
                    key.resource().as_str(),
                    key.path(),
                    number(record.revision()),
                    hole,
                    body()
                ])?,
            Action::Modified => self
                .connection
                .prepare_cached(
                    "UPDATE objects SET revision = ?, hole = ?, body = ? WHERE created = ?",
                )?
                .execute(params![number(record.revision()), hole, body(), created])?,
            Action::Deleted => self
                .connection
                .prepare_cached("DELETE FROM objects WHERE created = ?")?
                .execute([created])?,
        };
        if rows != 1 {
            return Err(rusqlite::Error::StatementChangedRows(rows));
        }
        if event.action != Action::Deleted {
            summary.add(record);
        }
        self.summary.set(summary);
        Ok(())
    }

    /// Notes the revision reached, and what there is at it.
    fn reach(&self, revision: Revision) -> rusqlite::Result<()> {
        let Summary { objects, digest } = self.summary.get();
        self.connection
            .prepare_cached("UPDATE history SET revision = ?, objects = ?, digest = ?")?
            .execute([number(revision), objects.cast_signed(), digest.cast_signed()])?;
        Ok(())
    }

    /// Forgets the log up to and including `through`.
    pub(super) fn forget(&self, through: Revision) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("DELETE FROM log WHERE revision <= ?")?
            .execute([number(through)])?;
        self.raise_floor(through)
    }

    /// Forgets the whole log, which reaches up to `revision`. Needs next to no space.
    pub(super) fn forget_all(&self, revision: Revision) -> rusqlite::Result<()> {
        self.connection.prepare_cached("DELETE FROM log")?.execute([])?;
        self.raise_floor(revision)
    }

    fn raise_floor(&self, through: Revision) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("UPDATE history SET floor = max(floor, ?)")?
            .execute([number(through)])?;
        Ok(())
    }
}
