//! Reads a whole database: its objects, its log, and their damage.
//!
//! A value that is not as it was written is never returned. Each value has its own checksum; beside
//! them the database keeps the number of its objects and the sum of their fingerprints, so that a
//! row that vanished, came back or moved is noticed too; and the log must hold every revision there
//! is history for.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::cache::{RetentionQueue, State};
use crate::object::{Action, Event, Key, Record, Resource, Revision};
use crate::value::{self, Codec};

use super::disk::decode;

/// The file as it was found.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    pub(super) retained: RetentionQueue,
    pub(super) summary: Summary,
}

/// How many objects there are, and the sum of their fingerprints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) objects: u64,
    pub(super) digest: u64,
}

impl Summary {
    pub(super) fn add(&mut self, record: &Record) {
        self.objects = self.objects.wrapping_add(1);
        self.digest = self.digest.wrapping_add(fingerprint(record));
    }

    pub(super) fn remove(&mut self, record: &Record) {
        self.objects = self.objects.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(fingerprint(record));
    }
}

/// A number that depends on every column of an object's row.
fn fingerprint(record: &Record) -> u64 {
    let mix = |hash: u64, next: u64| {
        let hash = (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 29)
    };
    let value = u64::from(value::checksum(record.key(), record.json()));
    let hole = u64::try_from(record.hole()).unwrap_or(u64::MAX);
    [record.created().0, record.revision().0, hole].into_iter().fold(mix(1, value), mix)
}

/// Where something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the row of the object with this number.
    Object(i64),
    /// In the table of objects as a whole.
    Objects,
    /// In the log, or in the row about it.
    History,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) place: Place,
    pub(super) problem: String,
}

impl Damage {
    fn new(place: Place, problem: impl Into<String>) -> Self {
        Self { place, problem: problem.into() }
    }
}

#[derive(Debug)]
pub(super) enum LoadError {
    /// SQLite could not read on.
    Sqlite(rusqlite::Error),
    /// Everything that is wrong.
    Damaged(Vec<Damage>),
}

impl LoadError {
    /// Everything that is wrong; an error of SQLite is one thing, at `place`.
    fn into_damage(self, place: Place) -> Vec<Damage> {
        match self {
            Self::Sqlite(error) => {
                let part = if place == Place::History { "the log entries" } else { "the objects" };
                vec![Damage::new(
                    place,
                    format!("{part} are damaged and cannot be read through: {error}"),
                )]
            }
            Self::Damaged(damage) => damage,
        }
    }
}

impl From<rusqlite::Error> for LoadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// The one row of `history`.
#[derive(Clone, Copy, Debug)]
pub(super) struct History {
    pub(super) revision: Revision,
    pub(super) floor: Revision,
    /// Absent in the first format.
    pub(super) summary: Option<Summary>,
}

/// Reads the row about the whole database. `format` is its format.
pub(super) fn history(connection: &Connection, format: i64) -> Result<History, LoadError> {
    let query = if format < 2 {
        "SELECT revision, floor, NULL, NULL FROM history"
    } else {
        "SELECT revision, floor, objects, digest FROM history"
    };
    let row = connection.query_row(query, [], |row| {
        let unsigned =
            |column| row.get::<_, Option<i64>>(column).map(|n| n.map(i64::cast_unsigned));
        let (objects, digest) = (unsigned(2)?, unsigned(3)?);
        let summary = objects.zip(digest).map(|(objects, digest)| Summary { objects, digest });
        Ok(History { revision: revision(row, 0)?, floor: revision(row, 1)?, summary })
    });
    row.optional()?.ok_or_else(|| {
        LoadError::Damaged(vec![Damage::new(Place::History, "its revision is missing")])
    })
}

/// Reads everything, or returns all damage.
pub(super) fn load(
    connection: &Connection,
    codec: &Codec,
    format: i64,
) -> Result<Loaded, LoadError> {
    let history = history(connection, format)?;
    if format >= 2 && history.summary.is_none() {
        let damage = Damage::new(Place::Objects, "the number of its objects is missing");
        return Err(LoadError::Damaged(vec![damage]));
    }
    let mut reader = Reader { codec, names: Names::default(), damage: Vec::new() };
    let mut state = State::new(history.revision, history.floor);
    let summary = reader.objects(connection, &mut state)?;
    if !reader.damage.is_empty() {
        return Err(LoadError::Damaged(reader.damage));
    }
    if let Some(expected) = history.summary
        && expected != summary
    {
        return Err(LoadError::Damaged(vec![unexpected(summary, expected)]));
    }
    let mut retained = RetentionQueue::default();
    let contiguous = format >= 2;
    for (event, at) in reader.log(connection, &state, history, contiguous)?.into_iter().rev() {
        retained.note(&event, at);
        state.load_event(event);
    }
    Ok(Loaded { state, retained, summary })
}

/// Reads as much as possible, and returns all damage. The state has no history.
pub(super) fn load_readable(
    connection: &Connection,
    codec: &Codec,
    format: i64,
) -> (State, Vec<Damage>) {
    let mut damage = Vec::new();
    let history = match history(connection, format) {
        Ok(history) => history,
        Err(error) => {
            damage.extend(error.into_damage(Place::History));
            History { revision: Revision(u64::MAX), floor: Revision::ZERO, summary: None }
        }
    };
    if damage.is_empty() && format >= 2 && history.summary.is_none() {
        damage.push(Damage::new(Place::Objects, "the number of its objects is missing"));
    }
    let mut reader = Reader { codec, names: Names::default(), damage };
    let mut state = State::new(history.revision, history.floor);
    let before = reader.damage.len();
    match reader.objects(connection, &mut state) {
        Ok(found) => {
            let sound = reader.damage.len() == before;
            let expected = history.summary.filter(|expected| sound && *expected != found);
            reader.damage.extend(expected.map(|expected| unexpected(found, expected)));
        }
        Err(error) => reader.damage.extend(LoadError::from(error).into_damage(Place::Objects)),
    }
    let sound = reader.damage.is_empty();
    let log = match sound {
        true => reader.log(connection, &state, history, format >= 2).map(drop),
        // Entries do not fit objects that are damaged: only their values can be checked.
        false => reader.log_values(connection).map_err(LoadError::from),
    };
    if let Err(error) = log {
        reader.damage.extend(error.into_damage(Place::History));
    }
    (state, reader.damage)
}

/// Sums up the sound objects up to `revision`.
pub(super) fn survey(
    connection: &Connection,
    codec: &Codec,
    revision: Revision,
) -> rusqlite::Result<Summary> {
    let mut reader = Reader { codec, names: Names::default(), damage: Vec::new() };
    reader.objects(connection, &mut State::new(revision, revision))
}

fn unexpected(found: Summary, expected: Summary) -> Damage {
    let problem = if found.objects == expected.objects {
        format!("its {} objects are not the ones that were written", found.objects)
    } else {
        format!("it has {} objects, expected {}", found.objects, expected.objects)
    };
    Damage::new(Place::Objects, problem)
}

struct Reader<'a> {
    codec: &'a Codec,
    names: Names,
    damage: Vec<Damage>,
}

impl Reader<'_> {
    /// Puts every sound object into `state`, and notes the others.
    fn objects(&mut self, connection: &Connection, state: &mut State) -> rusqlite::Result<Summary> {
        let mut summary = Summary::default();
        let mut objects = connection
            .prepare("SELECT created, resource, path, revision, hole, body FROM objects")?;
        let mut rows = objects.query([])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            match self.object(row, state) {
                Ok(record) => {
                    summary.add(&record);
                    state.load(Arc::new(record));
                }
                Err(problem) => self.damage.push(Damage::new(Place::Object(number), problem)),
            }
        }
        Ok(summary)
    }

    fn object(&mut self, row: &Row<'_>, state: &State) -> Result<Record, String> {
        let unreadable = |error: rusqlite::Error| format!("a row of objects: {error}");
        let created = revision(row, 0).map_err(unreadable)?;
        let key = self.names.key(row, 1).map_err(unreadable)?;
        let record = self.record(row, key.clone(), created, 3)?;
        if state.get(&key).is_some() {
            return Err(format!("{key} is there twice"));
        }
        if record.revision() > state.revision {
            return Err(format!("{key} is newer than the database"));
        }
        Ok(record)
    }

    /// A record from the three columns `revision, hole, body` that begin at `column`.
    fn record(
        &self,
        row: &Row<'_>,
        key: Key,
        created: Revision,
        column: usize,
    ) -> Result<Record, String> {
        let unreadable = |error: rusqlite::Error| format!("{key}: {error}");
        let at = revision(row, column).map_err(unreadable)?;
        let hole: i64 = row.get(column + 1).map_err(unreadable)?;
        let hole = usize::try_from(hole).unwrap_or(usize::MAX);
        let body = row.get_ref(column + 2).map_err(unreadable)?;
        let body = body.as_blob().map_err(|error| format!("{key}: {error}"))?;
        let json = self.codec.decode(&key, body).map_err(|error| error.to_string())?.into_owned();
        Record::from_stored(key.clone(), created, at, hole, json)
            .ok_or_else(|| format!("{key} has no valid version"))
    }

    /// The changes in the log, newest first.
    fn log(
        &mut self,
        connection: &Connection,
        state: &State,
        history: History,
        contiguous: bool,
    ) -> Result<Vec<(Arc<Event>, Timestamp)>, LoadError> {
        let mut events = Vec::new();
        // Each object as it was before the changes already walked over.
        let mut earlier: BTreeMap<Key, Option<Arc<Record>>> = BTreeMap::new();
        let mut log = connection.prepare(
            "SELECT revision, at_ms, action, resource, path, created,
                    previous_revision, previous_hole, previous
             FROM log ORDER BY revision DESC",
        )?;
        let damaged =
            |problem: String| LoadError::Damaged(vec![Damage::new(Place::History, problem)]);
        let missing = |at: Revision| damaged(format!("the log entry of revision {at} is missing"));
        let mut expected = history.revision;
        let mut rows = log.query([])?;
        while let Some(row) = rows.next()? {
            let at = revision(row, 0)?;
            if contiguous && at != expected {
                return Err(missing(expected));
            }
            expected = Revision(at.0.saturating_sub(1));
            let entry = self.entry(row, at, state, &mut earlier).map_err(|problem| {
                damaged(format!("the log entry of revision {at} is wrong: {problem}"))
            })?;
            events.push(entry);
        }
        if contiguous && expected > history.floor {
            return Err(missing(expected));
        }
        Ok(events)
    }

    /// Notes every value in the log that is not as it was written.
    fn log_values(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut log = connection.prepare(
            "SELECT revision, resource, path, previous FROM log WHERE previous IS NOT NULL",
        )?;
        let mut rows = log.query([])?;
        while let Some(row) = rows.next()? {
            let (at, key) = (revision(row, 0)?, self.names.key(row, 1)?);
            let value = row.get_ref(3)?.as_blob().unwrap_or_default();
            if let Err(error) = self.codec.decode(&key, value) {
                let problem = format!("the log entry of revision {at} is wrong: {error}");
                self.damage.push(Damage::new(Place::History, problem));
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        row: &Row<'_>,
        at: Revision,
        state: &State,
        earlier: &mut BTreeMap<Key, Option<Arc<Record>>>,
    ) -> Result<(Arc<Event>, Timestamp), String> {
        let text = |error: rusqlite::Error| error.to_string();
        let time = Timestamp::from_millisecond(row.get(1).map_err(text)?)
            .map_err(|error| error.to_string())?;
        let action = decode(row.get(2).map_err(text)?).ok_or("it has no known action")?;
        let key = self.names.key(row, 3).map_err(text)?;
        let previous = match row.get::<_, Option<i64>>(6).map_err(text)? {
            None => None,
            Some(_) => {
                let created = revision(row, 5).map_err(text)?;
                Some(Arc::new(self.record(row, key.clone(), created, 6)?))
            }
        };
        let after = match earlier.get(&key) {
            Some(known) => known.clone(),
            None => state.get(&key).cloned(),
        };
        let record = match (action, &previous, after) {
            (Action::Added, None, Some(after)) => after,
            (Action::Modified, Some(previous), Some(after))
                if previous.created() == after.created() =>
            {
                after
            }
            (Action::Deleted, Some(previous), None) => Arc::new(previous.at(at)),
            _ => return Err(format!("{key} does not fit what came after")),
        };
        if record.revision() != at {
            return Err(format!("{key} was at revision {} then", record.revision()));
        }
        earlier.insert(key, previous.clone());
        Ok((Arc::new(Event::new(action, record, previous)), time))
    }
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

pub(super) fn revision(row: &Row<'_>, column: usize) -> rusqlite::Result<Revision> {
    row.get::<_, i64>(column).map(|value| Revision(value.cast_unsigned()))
}
