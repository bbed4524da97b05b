//! Metadata of data identifiers, and searching by it.

use mainstay_catalog::{Row, Tx, values};
use serde_json::{Map, Value};

use super::{COLUMNS, from_row, get};
use crate::api::{Did, DidRecord, Micros};
use crate::error::{Class, Error, Result, refuse};
use crate::rule::update::read_time;

/// The largest metadata of one data identifier, in bytes of JSON.
const MOST: usize = 64 << 10;

/// Keys that the catalog maintains itself; metadata cannot override them.
const OWN: &[&str] = &[
    "access_cnt",
    "accessed_at",
    "account",
    "adler32",
    "availability",
    "bytes",
    "closed_at",
    "constituent",
    "created_at",
    "deleted_at",
    "did_type",
    "expired_at",
    "is_archive",
    "is_open",
    "length",
    "md5",
    "monotonic",
    "name",
    "purge_replicas",
    "scope",
    "suppressed",
    "updated_at",
];

/// Whether the catalog maintains this key itself.
pub fn is_own(key: &str) -> bool {
    OWN.contains(&key)
}

/// The value stored for a key that a client sets. A command line sends numbers and flags as texts.
fn settable(key: &str, value: &Value) -> Result<Value> {
    let wrong = |message: String| Err(refuse(Class::InvalidMetadata, message));
    if key.is_empty() || key.len() > 255 {
        return wrong("A key has 1 to 255 letters".to_owned());
    }
    if is_own(key) {
        return wrong(format!("{key} is kept by the catalog itself, and no metadata"));
    }
    let text = value.as_str();
    let (read, should) = match key {
        _ if value.is_null() => return Ok(Value::Null),
        "events" | "lumiblocknr" | "panda_id" | "run_number" | "task_id" => {
            let number =
                crate::api::whole(value).or_else(|| text.and_then(|text| text.parse().ok()));
            (number.filter(|number| *number >= 0).map(Value::from), "a number that is not negative")
        }
        "complete" | "hidden" | "is_new" | "obsolete" | "transient" => {
            let flag = value.as_bool().or(match text {
                Some("True" | "true") => Some(true),
                Some("False" | "false") => Some(false),
                _ => None,
            });
            (flag.map(Value::from), "true or false")
        }
        "eol_at" => (text.and_then(read_time).map(|_| value.clone()), "a date"),
        "campaign" | "datatype" | "guid" | "phys_group" | "prod_step" | "project"
        | "provenance" | "stream_name" | "version" => {
            ((!value.is_array() && !value.is_object()).then(|| value.clone()), "a text")
        }
        _ => return Ok(value.clone()),
    };
    read.map_or_else(|| wrong(format!("{key} should be {should}")), Ok)
}

/// Metadata from a client, checked.
#[derive(Clone, Debug)]
pub struct NewMetadata {
    /// Seconds until expiry (`None` inside: never); `None` if the client did not set it.
    pub lifetime: Option<Option<i64>>,
    /// The metadata to store.
    pub kept: Map<String, Value>,
}

/// Parses and checks metadata from a client.
pub fn read_metadata(meta: &Map<String, Value>) -> Result<NewMetadata> {
    let lifetime = match meta.get("lifetime") {
        None => None,
        Some(Value::Null) => Some(None),
        Some(value) => Some(Some(crate::api::whole(value).ok_or_else(|| {
            refuse(Class::InvalidMetadata, "A lifetime is a whole number of seconds")
        })?)),
    };
    let kept = meta.iter().filter(|(key, _)| *key != "lifetime");
    let kept = kept.map(|(key, value)| Ok((key.clone(), settable(key, value)?)));
    Ok(NewMetadata { lifetime, kept: kept.collect::<Result<_>>()? })
}

/// The metadata of a data identifier.
pub fn metadata(tx: &mut Tx<'_>, id: i64) -> Result<Map<String, Value>> {
    let row = tx.first("SELECT meta FROM dids WHERE id = ?1", values![id])?;
    row.map_or_else(|| Ok(Map::new()), |row| parsed(row.opt_text(0)?.as_deref()))
}

/// The metadata in `dids.meta`: NULL for none.
fn parsed(text: Option<&str>) -> Result<Map<String, Value>> {
    let Some(text) = text else { return Ok(Map::new()) };
    let damaged = |error| Error::Internal(format!("dids.meta is not JSON: {error}"));
    serde_json::from_str(text).map_err(damaged)
}

/// Sets keys; `lifetime` (seconds) changes the expiry instead.
pub fn set_metadata(
    tx: &mut Tx<'_>,
    did: &Did,
    meta: &Map<String, Value>,
    now: Micros,
) -> Result<()> {
    let NewMetadata { lifetime, kept } = read_metadata(meta)?;
    if let Some(seconds) = lifetime {
        super::set_lifetime(tx, did, seconds, now)?;
    }
    change(tx, did, now, |held| {
        held.extend(kept);
        Ok(())
    })
}

/// Removes a key.
pub fn delete_metadata(tx: &mut Tx<'_>, did: &Did, key: &str, now: Micros) -> Result<()> {
    change(tx, did, now, |held| match held.remove(key) {
        Some(_) => Ok(()),
        None => Err(refuse(Class::KeyNotFound, format!("{did} has no metadata {key:.60}"))),
    })
}

fn change(
    tx: &mut Tx<'_>,
    did: &Did,
    now: Micros,
    how: impl FnOnce(&mut Map<String, Value>) -> Result<()>,
) -> Result<()> {
    let id = get(tx, did)?.id;
    let row = tx.first("SELECT meta FROM dids WHERE id = ?1 LOCK ROWS", values![id])?;
    let mut held = row.map_or_else(|| Ok(Map::new()), |row| parsed(row.opt_text(0)?.as_deref()))?;
    how(&mut held)?;
    let text = Value::Object(held).to_string();
    if text.len() > MOST {
        let message = format!("{did} would have more than {MOST} bytes of metadata");
        return Err(refuse(Class::InvalidMetadata, message));
    }
    let sql = "UPDATE dids SET meta = ?2, updated_at = ?3 WHERE id = ?1";
    tx.execute(sql, values![id, text, now])?;
    Ok(())
}

/// The query for data identifiers of a scope by name prefix; `types` are letters in quotes. Their
/// metadata is the last column.
pub fn search_sql(types: &str) -> String {
    format!(
        "SELECT {COLUMNS}, meta FROM dids WHERE scope = ?1 AND name >= ?2 AND name < ?3 AND did_type IN ({types})
         ORDER BY name"
    )
}

/// The metadata in a row of [`search_sql`].
pub fn meta_of(row: &Row) -> Result<Map<String, Value>> {
    parsed(row.opt_text(row.values().len() - 1)?.as_deref())
}

/// The query for data identifiers of a scope that are in no collection.
pub fn top_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM dids WHERE scope = ?1 AND NOT EXISTS (SELECT 1 FROM contents c WHERE c.child = dids.id)
         ORDER BY name"
    )
}

/// The direct children of a collection.
pub fn children(
    tx: &mut Tx<'_>,
    id: i64,
    each: &mut dyn FnMut(DidRecord) -> Result<()>,
) -> Result<()> {
    let sql = format!(
        "SELECT {COLUMNS} FROM dids WHERE id IN (SELECT child FROM contents WHERE parent = ?1)
         ORDER BY scope, name"
    );
    tx.for_each(&sql, values![id], &mut |row| each(from_row(&row)?))
}

/// Everything below some collections, once each.
pub fn below(
    tx: &mut Tx<'_>,
    roots: &[i64],
    each: &mut dyn FnMut(DidRecord) -> Result<()>,
) -> Result<()> {
    let sql = format!(
        "WITH RECURSIVE down(id) AS (SELECT child FROM contents WHERE parent IN ARRAY(?1)
         UNION SELECT c.child FROM down LOOKUP JOIN contents c ON (c.parent = down.id))
         SELECT {COLUMNS} FROM dids WHERE id IN (SELECT id FROM down) ORDER BY scope, name"
    );
    tx.for_each(&sql, values![roots.to_vec()], &mut |row| each(from_row(&row)?))
}
