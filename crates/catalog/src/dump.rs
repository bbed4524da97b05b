//! Writes the catalog as text, for backups: every table, row by row, from one snapshot.
//!
//! Each table begins with a line that names its columns, their types and the highest number it has
//! assigned; each row is a JSON array. SQLite and PostgreSQL write the same format, so that a dump
//! of one can be restored into the other. No table has a foreign key, so their order does not
//! matter. Rows are streamed: a catalog of any size takes little memory.
//!
//! The snapshot is a read transaction on a connection of its own. While it begins, writers are
//! paused: on SQLite by taking the single writer's turn, on PostgreSQL by an advisory lock that
//! every writing transaction of every server takes in shared mode. They stay paused until the
//! snapshot of the object store is taken too, for [`HOLD`] at most. If a long transaction does not
//! release the lock in that time, or the object store takes longer, the backup records that the two
//! snapshots may differ (`oneMoment` is false).
//!
//! Enter at [`Catalog::hold_for_dump`]; [`super::load`] reads dumps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as sync_mpsc};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

use super::engine::{Engine, Mode, Value};
use super::postgres::Postgres;
use super::row::Row;
use super::sqlite::Sqlite;
use super::{Backend, Catalog, schema};
use crate::error::{Error, Result};
use crate::values;

/// The longest time for which writers are paused.
pub const HOLD: Duration = Duration::from_secs(1);

/// The approximate size of a piece of output in bytes, and how many pieces may wait for the reader.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// Tables that are not dumped: they describe running servers only.
pub(super) const LEFT_OUT: [&str; 1] = ["judges"];

/// The error of a dump whose reader disconnected.
const DISCONNECTED: &str = "the reader of the dump disconnected";

/// A dump whose snapshot is taken. Dropping it resumes writers and ends the dump.
#[derive(Debug)]
pub struct PendingDump {
    schema: i64,
    backend: &'static str,
    /// Whether writers were paused when the snapshot was taken.
    held: bool,
    /// Set before writers resume because [`HOLD`] has passed.
    expired: Arc<AtomicBool>,
    release: sync_mpsc::SyncSender<()>,
    lines: mpsc::Receiver<std::result::Result<Bytes, String>>,
}

/// A dump that can be read.
#[derive(Debug)]
pub struct Dump {
    /// The schema, the database it came from, and whether its snapshot matches that of the object
    /// store.
    pub about: Json,
    /// Pieces of whole lines.
    pub lines: mpsc::Receiver<std::result::Result<Bytes, String>>,
}

impl PendingDump {
    /// Resumes writers and starts the dump.
    #[must_use]
    pub fn release(self) -> Dump {
        let one_moment = self.held && !self.expired.load(Ordering::Acquire);
        // A dump that has failed already returns its error through `lines`.
        let _ = self.release.try_send(());
        let about = json!({
            "schema": self.schema, "backend": self.backend, "oneMoment": one_moment,
        });
        Dump { about, lines: self.lines }
    }
}

/// The side of a dump that its thread holds: reports the snapshot and waits for the release.
struct DumpControl {
    begun: Option<oneshot::Sender<Result<(i64, bool)>>>,
    released: sync_mpsc::Receiver<()>,
    expired: Arc<AtomicBool>,
    cancelled: bool,
}

impl DumpControl {
    /// Reports that the snapshot is taken, and waits for the release, for [`HOLD`] at most.
    fn wait(&mut self, schema: i64, held: bool) {
        if let Some(begun) = self.begun.take() {
            self.cancelled = begun.send(Ok((schema, held))).is_err();
        }
        match self.released.recv_timeout(HOLD) {
            Ok(()) => {}
            Err(sync_mpsc::RecvTimeoutError::Timeout) => {
                self.expired.store(true, Ordering::Release)
            }
            Err(sync_mpsc::RecvTimeoutError::Disconnected) => self.cancelled = true,
        }
    }

    /// Waits for the release if [`DumpControl::wait`] timed out.
    fn wait_until_released(&mut self) {
        if self.expired.load(Ordering::Acquire) && self.released.recv_timeout(HOLD * 60).is_err() {
            self.cancelled = true;
        }
    }
}

impl Catalog {
    /// Takes the snapshot of a dump, and pauses writers until [`PendingDump::release`].
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn hold_for_dump(&self) -> Result<PendingDump> {
        let (begun, beginning) = oneshot::channel();
        let (release, released) = sync_mpsc::sync_channel(1);
        let (pieces, lines) = mpsc::channel(PIECES);
        let expired = Arc::new(AtomicBool::new(false));
        let mut control = DumpControl {
            begun: Some(begun),
            released,
            expired: expired.clone(),
            cancelled: false,
        };
        let catalog = self.clone();
        // A thread of its own: a dump lasts as long as its reader takes.
        let spawned =
            std::thread::Builder::new().name("catalog-dump".to_owned()).spawn(move || {
                let dumped = catalog.dump(&mut control, &pieces);
                if let Err(error) = catalog.inner.health.note(false, dumped) {
                    match control.begun.take() {
                        Some(begun) => drop(begun.send(Err(error))),
                        None => drop(pieces.blocking_send(Err(error.to_string()))),
                    }
                }
            });
        spawned.map_err(|error| {
            Error::Database(format!("cannot start a thread for the dump: {error}"))
        })?;
        let ended =
            || Error::Database("the thread of the dump ended before it took a snapshot".to_owned());
        let (schema, held) = beginning.await.map_err(|_| ended())??;
        Ok(PendingDump { schema, backend: self.backend(), held, expired, release, lines })
    }

    /// Takes the snapshot, waits for the release, and writes every table.
    fn dump(&self, control: &mut DumpControl, pieces: &Pieces) -> Result<()> {
        match &self.inner.backend {
            Backend::Sqlite { writer, path, .. } => {
                self.inner.health.same_file(path)?;
                let mut reader = Sqlite::open_reader(path)?;
                let fix = |_: &mut Sqlite| {
                    reader.begin(Mode::Read)?;
                    let schema = schema::version(&mut reader)?;
                    control.wait(schema, true);
                    Ok(())
                };
                writer.run(fix)?;
                control.wait_until_released();
                write_all(&mut reader, control, pieces)
            }
            Backend::Postgres { address, .. } => {
                let mut reader = Postgres::connect(address)?;
                let mut holder = Postgres::connect(address)?;
                let hold = format!(
                    "BEGIN; SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock(7238113200515)",
                    HOLD.as_millis()
                );
                let held = match holder.batch(&hold) {
                    Ok(()) => true,
                    Err(Error::Database(error)) => {
                        tracing::warn!(
                            error,
                            "backup did not wait for a long transaction; objects and catalog may show different moments"
                        );
                        false
                    }
                    Err(error) => return Err(error),
                };
                reader.begin(Mode::Read)?;
                let schema = schema::version(&mut reader)?;
                control.wait(schema, held);
                holder.rollback();
                drop(holder);
                control.wait_until_released();
                write_all(&mut reader, control, pieces)
            }
        }
    }
}

type Pieces = mpsc::Sender<std::result::Result<Bytes, String>>;

fn write_all(engine: &mut dyn Engine, control: &DumpControl, pieces: &Pieces) -> Result<()> {
    if control.cancelled {
        return Err(Error::Backup(DISCONNECTED.to_owned()));
    }
    let version = schema::version(engine)?;
    let mut out = Vec::with_capacity(PIECE * 2);
    for table in schema::tables(version) {
        if !LEFT_OUT.contains(&table) {
            write_table(engine, table, &mut out, pieces)?;
        }
    }
    send(&mut out, pieces)
}

fn send(out: &mut Vec<u8>, pieces: &Pieces) -> Result<()> {
    let piece = Bytes::from(std::mem::take(out));
    out.reserve(PIECE * 2);
    if piece.is_empty() {
        return Ok(());
    }
    pieces.blocking_send(Ok(piece)).map_err(|_| Error::Backup(DISCONNECTED.to_owned()))
}

fn write_table(
    engine: &mut dyn Engine,
    table: &'static str,
    out: &mut Vec<u8>,
    pieces: &Pieces,
) -> Result<()> {
    let columns = columns(engine, table)?;
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let types: Vec<&str> = columns.iter().map(|(_, sort)| *sort).collect();
    let last = last_number(engine, table, &names)?;
    let head = json!({"table": table, "columns": names, "types": types, "last": last});
    out.extend_from_slice(head.to_string().as_bytes());
    out.push(b'\n');
    let select = format!("SELECT {} FROM {table}", names.join(", "));
    engine.query(&select, &[], &mut |row| {
        write_row(&row, out);
        if out.len() >= PIECE { send(out, pieces) } else { Ok(()) }
    })
}

fn write_row(row: &Row, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, value) in row.values().iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let json = match value {
            Value::Int(number) => Json::from(*number),
            Value::Real(number) => Json::from(*number),
            Value::Text(text) => Json::from(text.as_str()),
            Value::Null | Value::Ints(_) | Value::Texts(_) => Json::Null,
        };
        out.extend_from_slice(json.to_string().as_bytes());
    }
    out.extend_from_slice(b"]\n");
}

/// The columns of a table, and whether they hold numbers (`int`) or texts (`text`).
fn columns(engine: &mut dyn Engine, table: &str) -> Result<Vec<(String, &'static str)>> {
    let sql = if engine.is_postgres() {
        "SELECT CAST(column_name AS TEXT), CAST(data_type AS TEXT) FROM information_schema.columns
         WHERE table_schema = current_schema() AND table_name = ?1 ORDER BY ordinal_position"
    } else {
        "SELECT name, type FROM pragma_table_info(?1) ORDER BY cid"
    };
    let mut columns = Vec::new();
    engine.query(sql, values![table], &mut |row| {
        let is_text = row.text(1)?.eq_ignore_ascii_case("text");
        columns.push((row.text(0)?.to_owned(), if is_text { "text" } else { "int" }));
        Ok(())
    })?;
    if columns.is_empty() {
        return Err(Error::Database(format!("table {table} is missing in the catalog")));
    }
    Ok(columns)
}

/// The highest number that a table has ever assigned, as far as the database knows; 0 if it assigns
/// none.
fn last_number(engine: &mut dyn Engine, table: &str, columns: &[&str]) -> Result<i64> {
    if columns.first() != Some(&"id") {
        return Ok(0);
    }
    let mut last = 0;
    let mut highest = |engine: &mut dyn Engine, sql: &str| {
        engine.query(sql, &[], &mut |row| {
            last = last.max(row.int(0)?);
            Ok(())
        })
    };
    highest(engine, &format!("SELECT COALESCE(MAX(id), 0) FROM {table}"))?;
    if engine.is_postgres() {
        let sequence = format!(
            "SELECT COALESCE(pg_sequence_last_value(CAST(pg_get_serial_sequence('{table}', 'id') AS regclass)), 0)"
        );
        highest(engine, &sequence)?;
    } else {
        highest(engine, &format!("SELECT seq FROM sqlite_sequence WHERE name = '{table}'"))?;
    }
    Ok(last)
}
