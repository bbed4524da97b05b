//! Data keys in the database, and writing values anew with the current one.

use std::path::Path;

use rusqlite::{Connection, params};

use crate::object::{Key, Resource};
use crate::seal::{KeyError, data_keys};
use crate::value::Codec;

use super::OpenError;
use super::disk::{checkpoint, connect};

/// How many values are written anew in one transaction.
const TOGETHER: usize = 512;

/// Learns every data key in the database. Changes nothing.
pub(super) fn learn(connection: &Connection, path: &Path, codec: &Codec) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::sqlite(path, source);
    let mut keys =
        connection.prepare("SELECT path, body FROM objects WHERE resource = ?").map_err(sqlite)?;
    let mut rows = keys.query([data_keys().as_str()]).map_err(sqlite)?;
    while let Some(row) = rows.next().map_err(sqlite)? {
        let name: String = row.get(0).map_err(sqlite)?;
        let body: Vec<u8> = row.get(1).map_err(sqlite)?;
        let key = Key::from_stored(data_keys(), &name);
        let object = codec.decode(&key, &body).ok();
        let object = object.and_then(|json| serde_json::from_slice(&json).ok());
        let learnt = match object {
            Some(object) => codec.sealer().learn(&object),
            None => Err(KeyError::Damaged { id: name }),
        };
        learnt.map_err(|source| OpenError::Key { path: path.into(), source })?;
    }
    Ok(())
}

/// A column of values: its table, its number, and the value.
const COLUMNS: [(&str, &str, &str); 2] =
    [("objects", "created", "body"), ("log", "revision", "previous")];

pub(super) fn rewrite(path: &Path, codec: &Codec) -> rusqlite::Result<u64> {
    let mut connection = connect(path)?;
    connection.pragma_update(None, "secure_delete", true)?;
    let mut rewritten = 0;
    for column in COLUMNS {
        let mut after = Some(i64::MIN);
        while let Some(from) = after {
            after = rewrite_some(&mut connection, codec, column, from, &mut rewritten)?;
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

/// Looks at the next rows after a number; returns the last of them, if there may be more.
fn rewrite_some(
    connection: &mut Connection,
    codec: &Codec,
    (table, number, value): (&str, &str, &str),
    after: i64,
    rewritten: &mut u64,
) -> rusqlite::Result<Option<i64>> {
    let transaction = connection.transaction()?;
    let mut last = None;
    let mut stale = Vec::new();
    {
        let mut select = transaction.prepare_cached(&format!(
            "SELECT {number}, resource, path, {value} FROM {table} WHERE {number} > ? ORDER BY {number} LIMIT {TOGETHER}"
        ))?;
        let mut rows = select.query([after])?;
        while let Some(row) = rows.next()? {
            let at: i64 = row.get(0)?;
            last = Some(at);
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
        *rewritten += 1;
    }
    drop(update);
    transaction.commit()?;
    Ok(last)
}
