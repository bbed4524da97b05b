//! Data keys in the database, and rewriting values with the current one.
//!
//! At start every value is brought to what the key file asks for, before the store is served
//! ([`rewrite`]). While it is served, [`DataKeyChange`] stores a new data key and has the committer
//! rewrite a few hundred values at a time between its commits. A change that is interrupted is
//! finished by the next start.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use crate::cache::Cache;
use crate::object::{Key, Resource, Revision};
use crate::objects::{Change, Error, Write};
use crate::seal::{DataKey, KeyError, KeyState, data_keys, not_encrypted};
use crate::value::Codec;

use super::OpenError;
use super::committer::Job;
use super::disk::{checkpoint, connect};
use super::load::revision;

/// How many values are rewritten in one transaction.
const TOGETHER: usize = 512;

/// Learns every data key in the database. Changes nothing. A damaged data key is no error here: it
/// and the values under it are reported when they are loaded, and all other values can be read.
pub(super) fn learn(connection: &Connection, path: &Path, codec: &Codec) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::sqlite(path, source);
    let mut keys = connection
        .prepare("SELECT path, body, created FROM objects WHERE resource = ?")
        .map_err(sqlite)?;
    let mut rows = keys.query([data_keys().as_str()]).map_err(sqlite)?;
    while let Some(row) = rows.next().map_err(sqlite)? {
        let name: String = row.get(0).map_err(sqlite)?;
        let body: Vec<u8> = row.get(1).map_err(sqlite)?;
        let key = Key::from_stored(data_keys(), &name);
        let object = codec.decode(&key, &body).ok();
        let object = object.and_then(|json| serde_json::from_slice(&json).ok());
        let created = revision(row, 2).map_err(sqlite)?;
        let learnt = match object {
            Some(object) => codec.sealer().learn(&object, created),
            None => Err(KeyError::Damaged { id: name.clone() }),
        };
        match learnt {
            Err(KeyError::Damaged { .. }) => codec.sealer().note_damaged(&name),
            learnt => learnt.map_err(|source| OpenError::Key { path: path.into(), source })?,
        }
    }
    Ok(())
}

/// A column of values: its table, its number, and the value.
pub(super) type Column = (&'static str, &'static str, &'static str);

const COLUMNS: [Column; 2] = [("objects", "created", "body"), ("log", "revision", "previous")];

pub(super) fn rewrite(path: &Path, codec: &Codec) -> rusqlite::Result<u64> {
    let connection = connect(path)?;
    connection.pragma_update(None, "secure_delete", true)?;
    let mut rewritten = 0;
    for column in COLUMNS {
        let mut after = Some(i64::MIN);
        while let Some(from) = after {
            let batch = rewrite_batch(&connection, codec, column, from)?;
            rewritten += batch.rewritten;
            after = batch.last;
        }
    }
    if rewritten > 0 {
        // Neither the log nor free pages keep a value as it was.
        checkpoint(&connection, "TRUNCATE")?;
        connection.execute_batch("VACUUM")?;
        checkpoint(&connection, "TRUNCATE")?;
    }
    Ok(rewritten)
}

/// A batch of values that was looked at.
#[derive(Debug)]
pub(super) struct Rewritten {
    /// The number of its last row, if there may be more rows.
    last: Option<i64>,
    /// How many values were not current.
    rewritten: u64,
}

/// Rewrites the values that are not current in the next rows after a number.
pub(super) fn rewrite_batch(
    connection: &Connection,
    codec: &Codec,
    (table, number, value): Column,
    after: i64,
) -> rusqlite::Result<Rewritten> {
    let transaction = connection.unchecked_transaction()?;
    let mut batch = Rewritten { last: None, rewritten: 0 };
    let mut stale = Vec::new();
    {
        let mut select = transaction.prepare_cached(&format!(
            "SELECT {number}, resource, path, {value} FROM {table} WHERE {number} > ? ORDER BY {number} LIMIT {TOGETHER}"
        ))?;
        let mut rows = select.query([after])?;
        while let Some(row) = rows.next()? {
            let at: i64 = row.get(0)?;
            batch.last = Some(at);
            let resource = Resource::from_stored(row.get_ref(1)?.as_str()?);
            let key = Key::from_stored(resource, row.get_ref(2)?.as_str()?);
            let Some(stored) = row.get::<_, Option<Vec<u8>>>(3)? else { continue };
            if !codec.sealer().is_current(&key, &stored) {
                stale.push((at, key, stored));
            }
        }
    }
    let mut update = transaction
        .prepare_cached(&format!("UPDATE {table} SET {value} = ? WHERE {number} = ?"))?;
    for (at, key, stored) in stale {
        // All were read when the database was opened.
        let plain = codec.decode(&key, &stored).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(
                3,
                rusqlite::types::Type::Blob,
                Box::new(error),
            )
        })?;
        update.execute(params![codec.encode(&key, &plain), at])?;
        batch.rewritten += 1;
    }
    drop(update);
    transaction.commit()?;
    Ok(batch)
}

/// A change of the data key while the store is served.
#[derive(Clone, Debug)]
pub(super) struct DataKeyChange {
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) cache: Arc<Cache>,
    pub(super) codec: Codec,
}

impl DataKeyChange {
    /// Stores a new data key, which seals every value from then on.
    pub(super) async fn begin(&self) -> Result<DataKey, Error> {
        let sealer = self.codec.sealer();
        let made = sealer.new_data_key(KeyState::Active).map_err(key_error)?;
        let (true, Some(new)) = (sealer.seals(), made) else { return Err(not_encrypted()) };
        let event = self.write(new.key(), Change::Create(new.body())).await?;
        sealer.learn(&event.record.object(), event.record.created()).map_err(key_error)?;
        Ok(new)
    }

    /// Rewrites every value that is not sealed with `new`, and removes the older data keys.
    pub(super) async fn finish(&self, new: DataKey) -> Result<u64, Error> {
        let mut rewritten = 0;
        for column in COLUMNS {
            let mut after = Some(i64::MIN);
            while let Some(from) = after {
                let (reply, done) = oneshot::channel();
                let job = Job::Rewrite { column, after: from, reply };
                self.jobs.send(job).await.map_err(|_| Error::Closed)?;
                let batch = done.await.map_err(|_| Error::Closed)??;
                rewritten += batch.rewritten;
                after = batch.last;
            }
        }
        self.settle(new).await?;
        Ok(rewritten)
    }

    /// Notes that every value is sealed with `new`, and removes the older data keys.
    async fn settle(&self, new: DataKey) -> Result<(), Error> {
        let keys: Vec<(Key, Revision)> = {
            let state = self.cache.load();
            state.members(&data_keys()).map(|key| (key.key().clone(), key.revision())).collect()
        };
        let complete = self.codec.sealer().in_state(&new, KeyState::Complete);
        let (own, complete) = (new.key(), complete.map_err(key_error)?);
        for (key, at) in keys {
            let change = match key == own {
                true => Change::Update(at, complete.body()),
                false => Change::Delete(at),
            };
            self.write(key, change).await?;
        }
        Ok(())
    }

    async fn write(&self, key: Key, change: Change) -> Result<Arc<crate::object::Event>, Error> {
        let (reply, done) = oneshot::channel();
        let write = Write { key, change, fence: None };
        self.jobs.send(Job::Write { write, reply }).await.map_err(|_| Error::Closed)?;
        done.await.map_err(|_| Error::Closed)?
    }
}

fn key_error(error: KeyError) -> Error {
    Error::Unavailable { reason: error.to_string() }
}
