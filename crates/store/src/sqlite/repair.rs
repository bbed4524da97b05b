//! Repairs a damaged database by dropping damaged objects: the last resort without a backup.
//!
//! [`inspect`] lists everything that is wrong and names the list; [`repair`] needs that name, so
//! that only objects that were shown are dropped. Damaged objects are removed, history is
//! forgotten, and the revision moves beyond every one that was acknowledged, so that no version
//! that a client still has means another change. A copy of the files is kept.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::cache::State;
use crate::object::Revision;
use crate::snapshot::Snapshot;
use crate::value::Codec;

use super::counter::{self, Counter, Reading};
use super::load::{self, LoadError, Place};
use super::lock::Lock;
use super::{OpenError, beside, disk, rekey, unchanged};

/// The damage of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// One sentence each.
    pub lines: Vec<String>,
    /// The name of exactly these findings; empty if there are none.
    pub name: String,
}

/// Why nothing was repaired.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be opened, or is beyond repair.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The damage is not the one that was shown.
    #[error("\"{given}\" is not the name of the damage of {}: run the command without --accept again", .path.display())]
    Other {
        /// The database.
        path: PathBuf,
        /// The name that was given.
        given: String,
    },
    /// A copy could not be made.
    #[error("cannot copy {} before it is changed", .path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

/// The changes that a repair makes.
#[derive(Debug, Default)]
struct Plan {
    findings: Findings,
    drop: Vec<i64>,
    revision: Revision,
}

/// Lists everything that is wrong with a database that no process has open. Changes nothing.
///
/// # Errors
/// [`OpenError`] if it cannot be read at all.
pub fn inspect(path: &Path, codec: &Codec) -> Result<Findings, OpenError> {
    unchanged::refuse_log_alone(path)?;
    let _lock = Lock::to_look(path)?;
    let connection = unchanged::open(path).map_err(|source| OpenError::sqlite(path, source))?;
    Ok(plan(&connection, path, codec)?.findings)
}

/// A damaged database, as far as it can be read.
#[derive(Debug)]
pub struct Examined {
    /// Everything that is wrong, one sentence each.
    pub findings: Vec<String>,
    /// The objects that can be read.
    pub readable: Snapshot,
}

/// Reads as much as possible of a database that no process has open. Changes nothing.
///
/// # Errors
/// [`OpenError`] if it is in use, of another program or version, or its key is missing.
pub fn examine(path: &Path, codec: &Codec) -> Result<Examined, OpenError> {
    let nothing = || State::new(Revision::ZERO, Revision::ZERO).snapshot();
    if let Err(error) = unchanged::refuse_log_alone(path) {
        return Ok(Examined { findings: vec![error.to_string()], readable: nothing() });
    }
    let _lock = Lock::to_look(path)?;
    let unreadable = |error: OpenError| match error {
        OpenError::Damaged { what, .. } => {
            Ok(Examined { findings: vec![what], readable: nothing() })
        }
        error => Err(error),
    };
    let connection = match unchanged::open(path) {
        Ok(connection) => connection,
        Err(source) => return unreadable(OpenError::sqlite(path, source)),
    };
    let acknowledged = counter::read(&counter::path(path))
        .map_err(|source| OpenError::Io { path: counter::path(path), source })?;
    let format = match disk::identify(&connection, path) {
        Ok(Some(format)) => format,
        Ok(None) => {
            let mut findings = vec!["the database is empty".to_owned()];
            findings.extend(lost(acknowledged, Revision::ZERO));
            return Ok(Examined { findings, readable: nothing() });
        }
        Err(error) => return unreadable(error),
    };
    let mut findings = disk::integrity(&connection);
    match rekey::learn(&connection, path, codec) {
        Err(OpenError::Damaged { what, .. }) => findings.push(what),
        learnt => learnt?,
    }
    let (state, damage) = load::load_readable(&connection, codec, format);
    findings.extend(lost(acknowledged, state.revision));
    if format > 1 && acknowledged == Reading::Absent && state.revision > Revision::ZERO {
        findings.extend(disk::verify_counter(path, false));
    }
    findings.extend(damage.into_iter().map(|one| one.problem));
    findings.dedup();
    Ok(Examined { findings, readable: state.snapshot() })
}

/// The finding that acknowledged revisions are missing from a database that ends at `recovered`.
fn lost(acknowledged: Reading, recovered: Revision) -> Option<String> {
    match acknowledged {
        Reading::Acknowledged(acknowledged) if acknowledged > recovered => Some(format!(
            "revisions {} to {acknowledged} were acknowledged and are missing",
            recovered.next()
        )),
        Reading::Damaged => Some(
            "the counter of acknowledged revisions is damaged: writes may be missing".to_owned(),
        ),
        _ => None,
    }
}

/// Removes the damage that [`inspect`] found and named. Returns the copies of the files as they
/// were. Calling it again does nothing: the name is used up.
///
/// # Errors
/// [`Error`]; the database was not changed.
pub fn repair(path: &Path, codec: &Codec, name: &str) -> Result<Vec<PathBuf>, Error> {
    unchanged::refuse_log_alone(path)?;
    let lock = Lock::take(path)?;
    let sqlite = |source| OpenError::sqlite(path, source);
    let connection = disk::connect(path).map_err(sqlite)?;
    let plan = plan(&connection, path, codec)?;
    if plan.findings.name != name || name.is_empty() {
        return Err(Error::Other { path: path.into(), given: name.to_owned() });
    }
    let copies = copy(path, name)?;
    carry_out(&connection, codec, &plan).map_err(sqlite)?;
    let io = |source| OpenError::Io { path: counter::path(path), source };
    Counter::start(&counter::path(path), plan.revision).map_err(io)?;
    drop(connection);
    lock.release();
    Ok(copies)
}

fn plan(connection: &Connection, path: &Path, codec: &Codec) -> Result<Plan, OpenError> {
    let io = |source| OpenError::Io { path: counter::path(path), source };
    let acknowledged = counter::read(&counter::path(path)).map_err(io)?;
    let mut plan = Plan::default();
    let Some(format) = disk::identify(connection, path)? else {
        return Err(match acknowledged {
            Reading::Acknowledged(acknowledged) => {
                OpenError::Missing { path: path.into(), acknowledged }
            }
            _ => OpenError::Foreign { path: path.into() },
        });
    };
    // Without its keys everything would look damaged.
    rekey::learn(connection, path, codec)?;
    let beyond_repair = |source| OpenError::sqlite(path, source);
    let recovered = match load::history(connection, format) {
        Ok(history) => history.revision,
        Err(LoadError::Damaged(_)) => Revision::ZERO,
        Err(LoadError::Sqlite(source)) => return Err(beyond_repair(source)),
    };
    plan.findings.lines.extend(lost(acknowledged, recovered));
    if let Reading::Acknowledged(acknowledged) = acknowledged {
        plan.revision = acknowledged.max(plan.revision);
    }
    match load::load(connection, codec, format) {
        Ok(_) => {}
        Err(LoadError::Damaged(damage)) => {
            for one in damage {
                let consequence = match one.place {
                    Place::Object(number) => {
                        plan.drop.push(number);
                        "the object will be removed"
                    }
                    Place::Objects => "the objects that are there will be kept",
                    Place::History => "history will be forgotten",
                };
                plan.findings.lines.push(format!("{}; {consequence}", one.problem));
            }
        }
        Err(LoadError::Sqlite(source)) => return Err(beyond_repair(source)),
    }
    let newest = "SELECT max(coalesce((SELECT max(revision) FROM objects), 0),
                             coalesce((SELECT max(revision) FROM log), 0))";
    let newest = connection.query_row(newest, [], |row| load::revision(row, 0));
    let newest = newest.map_err(beyond_repair)?.max(recovered).max(plan.revision);
    plan.revision = newest.next();
    if !plan.findings.lines.is_empty() {
        let shown = format!("{} {recovered}", plan.findings.lines.join("\n"));
        plan.findings.name = format!("{:08x}", crc32fast::hash(shown.as_bytes()));
    }
    Ok(plan)
}

/// Keeps the files as they are now.
fn copy(path: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let mut copies = Vec::new();
    for file in [path.to_owned(), beside(path, "-wal")] {
        if !file.exists() {
            continue;
        }
        let copy = beside(&file, &format!(".before-repair-{name}"));
        std::fs::copy(&file, &copy).map_err(|source| Error::Copy { path: file.clone(), source })?;
        copies.push(copy);
    }
    Ok(copies)
}

fn carry_out(connection: &Connection, codec: &Codec, plan: &Plan) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    for number in &plan.drop {
        transaction.execute("DELETE FROM objects WHERE created = ?", [number])?;
    }
    let summary = load::survey(&transaction, codec, plan.revision)?;
    disk::begin_anew(&transaction, plan.revision, summary)?;
    transaction.commit()?;
    disk::checkpoint(connection, "TRUNCATE").map(drop)
}
