//! Storage elements, their attributes, limits and usage.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_catalog::ledger::OWN_COUNT;
use mainstay_catalog::{Row, Tx, values};

use crate::api::{Micros, check_rse};
use crate::error::{Class, Result, refuse};
use crate::expression::{Expression, Rse, normalise};

/// The settings of an RSE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of Rse")]
pub struct RseSettings {
    pub rse_type: String,
    pub deterministic: bool,
    pub volatile: bool,
    pub staging_area: bool,
    pub read: bool,
    pub write: bool,
    pub delete: bool,
}

impl Default for RseSettings {
    fn default() -> Self {
        Self {
            rse_type: "DISK".to_owned(),
            deterministic: true,
            volatile: false,
            staging_area: false,
            read: true,
            write: true,
            delete: true,
        }
    }
}

/// All RSEs, by number, as this transaction sees them.
pub fn all(tx: &mut Tx<'_>) -> Result<Arc<Vec<Rse>>> {
    tx.rses(load)
}

fn load(tx: &mut Tx<'_>) -> Result<Vec<Rse>> {
    let rows = tx.query(
        "SELECT id, uuid, rse, rse_type, deterministic, volatile, staging_area, availability_read,
         availability_write, availability_delete, created_at, updated_at FROM rses WHERE deleted = 0
         ORDER BY id",
        &[],
    )?;
    let mut rses: Vec<Rse> = rows.iter().map(from_row).collect::<Result<_>>()?;
    for row in tx.query("SELECT rse_id, key, value FROM rse_attr_map", &[])? {
        if let Ok(at) = rses.binary_search_by_key(&row.int(0)?, |rse| rse.id) {
            rses[at].attributes.insert(row.text(1)?.to_owned(), row.text(2)?.to_owned());
        }
    }
    for row in tx.query("SELECT rse_id, name, value FROM rse_limits", &[])? {
        if let Ok(at) = rses.binary_search_by_key(&row.int(0)?, |rse| rse.id) {
            rses[at].limits.insert(row.text(1)?.to_owned(), row.int(2)?);
        }
    }
    for (id, protocol) in crate::protocol::load(tx)? {
        if let Ok(at) = rses.binary_search_by_key(&id, |rse| rse.id) {
            rses[at].protocols.push(Arc::new(protocol));
        }
    }
    Ok(rses)
}

fn from_row(row: &Row) -> Result<Rse> {
    Ok(Rse {
        id: row.int(0)?,
        uuid: row.text(1)?.to_owned(),
        name: row.text(2)?.to_owned(),
        rse_type: row.text(3)?.to_owned(),
        deterministic: row.flag(4)?,
        volatile: row.flag(5)?,
        staging_area: row.flag(6)?,
        read: row.flag(7)?,
        write: row.flag(8)?,
        delete: row.flag(9)?,
        times: (row.int(10)?, row.int(11)?),
        ..Rse::default()
    })
}

fn check_settings(settings: &RseSettings) -> Result<()> {
    match settings.rse_type.as_str() {
        "DISK" | "TAPE" => Ok(()),
        _ => Err(refuse(Class::InvalidObject, "An RSE's type is DISK or TAPE.")),
    }
}

/// Creates an RSE; its name becomes an attribute that is true.
pub fn add(
    tx: &mut Tx<'_>,
    name: &str,
    settings: &RseSettings,
    uuid: &str,
    now: Micros,
) -> Result<i64> {
    check_rse(name)?;
    check_settings(settings)?;
    if crate::rse::all(tx)?.iter().any(|rse| rse.name == name) {
        return Err(refuse(Class::Duplicate, format!("RSE '{name}' already exists!")));
    }
    let sql = "INSERT INTO rses (uuid, rse, rse_type, deterministic, volatile, staging_area, availability_read,
        availability_write, availability_delete, created_at, updated_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10) RETURNING id";
    let id = tx.number(
        sql,
        values![
            uuid,
            name,
            &settings.rse_type,
            settings.deterministic,
            settings.volatile,
            settings.staging_area,
            settings.read,
            settings.write,
            settings.delete,
            now
        ],
    )?;
    tx.execute(
        "INSERT INTO rse_attr_map (rse_id, key, value) VALUES (?1, ?2, 'true')",
        values![id, name],
    )?;
    tx.execute(
        "INSERT INTO rse_usage (rse_id, source, used, files, updated_at) VALUES (?1, ?2, 0, 0, ?3)",
        values![id, OWN_COUNT, now],
    )?;
    tx.rses_changed()?;
    Ok(id)
}

/// Changes an RSE's settings.
pub fn update(tx: &mut Tx<'_>, name: &str, settings: &RseSettings, now: Micros) -> Result<()> {
    let before = by_name(tx, name)?;
    let id = before.id;
    check_settings(settings)?;
    // Replicas with derived paths have no stored path, and would not be found any more.
    let holds = "SELECT 1 FROM replicas WHERE rse_id = ?1 AND path IS NULL LIMIT 1";
    if before.deterministic && !settings.deterministic && tx.first(holds, values![id])?.is_some() {
        let message = format!(
            "RSE {name} holds files at places that follow from their names: it stays deterministic while they are there"
        );
        return Err(refuse(Class::RSEOperationNotSupported, message));
    }
    tx.execute(
        "UPDATE rses SET rse_type = ?2, deterministic = ?3, volatile = ?4, staging_area = ?5, availability_read = ?6,
         availability_write = ?7, availability_delete = ?8, updated_at = ?9 WHERE id = ?1",
        values![
            id,
            &settings.rse_type,
            settings.deterministic,
            settings.volatile,
            settings.staging_area,
            settings.read,
            settings.write,
            settings.delete,
            now
        ],
    )?;
    tx.rses_changed()?;
    Ok(())
}

/// Deletes an RSE that holds nothing.
pub fn delete(tx: &mut Tx<'_>, name: &str, now: Micros) -> Result<()> {
    let id = by_name(tx, name)?.id;
    let held = tx.number(
        "SELECT used + files FROM rse_usage WHERE rse_id = ?1 AND source = ?2",
        values![id, OWN_COUNT],
    )?;
    if held != 0 {
        return Err(refuse(Class::RSEOperationNotSupported, format!("RSE '{name}' is not empty.")));
    }
    tx.execute("UPDATE rses SET deleted = 1, deleted_at = ?2 WHERE id = ?1", values![id, now])?;
    tx.execute("DELETE FROM rse_attr_map WHERE rse_id = ?1", values![id])?;
    tx.rses_changed()?;
    Ok(())
}

/// The RSE of this name.
pub fn by_name(tx: &mut Tx<'_>, name: &str) -> Result<Rse> {
    let shown: String = name.chars().take(60).collect();
    crate::rse::all(tx)?.iter().find(|rse| rse.name == name).cloned().ok_or_else(|| {
        refuse(Class::RSENotFound, format!("RSE '{shown}' cannot be found in vo 'def'"))
    })
}

/// Fails unless this is a valid attribute of an RSE or an account.
pub(crate) fn check_attribute(key: &str, value: &str) -> Result<()> {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if key.is_empty() || key.len() > 255 || value.len() > 255 || !key.chars().all(legal) {
        return Err(refuse(
            Class::InvalidObject,
            "An attribute's key is made of letters, digits, . _ and -, its value of at most 255 letters.",
        ));
    }
    Ok(())
}

/// Sets an attribute.
pub fn set_attribute(tx: &mut Tx<'_>, name: &str, key: &str, value: &str) -> Result<()> {
    check_attribute(key, value)?;
    let id = by_name(tx, name)?.id;
    tx.execute(
        "INSERT INTO rse_attr_map (rse_id, key, value) VALUES (?1, ?2, ?3)
         ON CONFLICT (rse_id, key) DO UPDATE SET value = excluded.value",
        values![id, key, normalise(value)],
    )?;
    tx.rses_changed()?;
    Ok(())
}

/// Removes an attribute.
pub fn delete_attribute(tx: &mut Tx<'_>, name: &str, key: &str) -> Result<()> {
    let id = by_name(tx, name)?.id;
    let sql = "DELETE FROM rse_attr_map WHERE rse_id = ?1 AND key = ?2";
    if tx.execute(sql, values![id, key])? == 0 {
        let message = format!("RSE attribute '{key:.60}' cannot be found");
        return Err(refuse(Class::RSEAttributeNotFound, message));
    }
    tx.rses_changed()?;
    Ok(())
}

/// Sets a limit such as `MaxSpaceAvailable` or `MinFreeSpace`; a negative one means none.
pub fn set_limit(tx: &mut Tx<'_>, name: &str, limit: &str, value: i64) -> Result<()> {
    let id = by_name(tx, name)?.id;
    tx.execute(
        "INSERT INTO rse_limits (rse_id, name, value) VALUES (?1, ?2, ?3)
         ON CONFLICT (rse_id, name) DO UPDATE SET value = excluded.value",
        values![id, limit, value],
    )?;
    tx.rses_changed()?;
    Ok(())
}

/// Removes a limit.
pub fn delete_limit(tx: &mut Tx<'_>, name: &str, limit: &str) -> Result<()> {
    let id = by_name(tx, name)?.id;
    tx.execute("DELETE FROM rse_limits WHERE rse_id = ?1 AND name = ?2", values![id, limit])?;
    tx.rses_changed()?;
    Ok(())
}

/// The distance from one RSE to another; none if it is not set.
pub fn distance(tx: &mut Tx<'_>, from: &str, to: &str) -> Result<Option<i64>> {
    let (from, to) = (by_name(tx, from)?.id, by_name(tx, to)?.id);
    let sql = "SELECT distance FROM distances WHERE src_rse_id = ?1 AND dest_rse_id = ?2";
    Ok(tx.first(sql, values![from, to])?.map(|row| row.int(0)).transpose()?)
}

/// Sets the distance from one RSE to another.
pub fn set_distance(tx: &mut Tx<'_>, from: &str, to: &str, distance: i64) -> Result<()> {
    if distance < 0 {
        return Err(refuse(Class::InvalidObject, "The distance must not be negative"));
    }
    let (from, to) = (by_name(tx, from)?.id, by_name(tx, to)?.id);
    tx.execute(
        "INSERT INTO distances (src_rse_id, dest_rse_id, distance) VALUES (?1, ?2, ?3)
         ON CONFLICT (src_rse_id, dest_rse_id) DO UPDATE SET distance = excluded.distance",
        values![from, to, distance],
    )?;
    Ok(())
}

/// Removes the distance from one RSE to another.
pub fn delete_distance(tx: &mut Tx<'_>, from: &str, to: &str) -> Result<()> {
    let (from, to) = (by_name(tx, from)?.id, by_name(tx, to)?.id);
    let sql = "DELETE FROM distances WHERE src_rse_id = ?1 AND dest_rse_id = ?2";
    tx.execute(sql, values![from, to])?;
    Ok(())
}

/// The name that clients use for the catalog's own count.
pub const OWN_NAME: &str = "rucio";

/// The usage of an RSE according to one source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain numbers")]
pub struct RseUsage {
    pub source: String,
    pub used: i64,
    pub free: Option<i64>,
    pub files: i64,
    pub updated_at: Micros,
}

/// Usage of an RSE by source.
pub fn usage(tx: &mut Tx<'_>, name: &str) -> Result<Vec<RseUsage>> {
    let id = by_name(tx, name)?.id;
    let sql = "SELECT source, used, free, files, updated_at FROM rse_usage WHERE rse_id = ?1 ORDER BY source";
    let rows = tx.query(sql, values![id])?;
    let usage = |row: &Row| {
        Ok(RseUsage {
            source: row.text(0)?.to_owned(),
            used: row.int(1)?,
            free: row.opt_int(2)?,
            files: row.int(3)?,
            updated_at: row.int(4)?,
        })
    };
    rows.iter().map(usage).collect()
}

/// The usage of an RSE according to an external source, in bytes and files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain numbers")]
pub struct Measured {
    pub used: i64,
    pub free: i64,
    pub files: Option<i64>,
}

/// Records the usage that the storage itself reports.
pub fn set_usage(
    tx: &mut Tx<'_>,
    name: &str,
    source: &str,
    measured: &Measured,
    now: Micros,
) -> Result<()> {
    if [OWN_COUNT, OWN_NAME].contains(&source) {
        return Err(refuse(Class::UnsupportedOperation, "The catalog keeps its own count."));
    }
    let id = by_name(tx, name)?.id;
    tx.execute(
        "INSERT INTO rse_usage (rse_id, source, used, free, files, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (rse_id, source) DO UPDATE SET used = excluded.used, free = excluded.free, files = excluded.files,
         updated_at = excluded.updated_at",
        values![id, source, measured.used, measured.free, measured.files.unwrap_or(0), now],
    )?;
    tx.wake(mainstay_catalog::Daemon::Reaper);
    Ok(())
}

/// The RSEs that match an expression.
pub fn resolve(tx: &mut Tx<'_>, text: &str) -> Result<BTreeSet<i64>> {
    let rses = crate::rse::all(tx)?;
    Ok(Expression::parse(text)?.resolve(&rses)?)
}

/// The same, without those that are closed for writing.
pub fn resolve_writable(tx: &mut Tx<'_>, text: &str) -> Result<BTreeSet<i64>> {
    let rses = crate::rse::all(tx)?;
    let mut found = Expression::parse(text)?.resolve(&rses)?;
    found.retain(|id| rses.iter().any(|rse| rse.id == *id && rse.write));
    if found.is_empty() {
        return Err(refuse(Class::RSEWriteBlocked, "RSE excluded; not available for writing."));
    }
    Ok(found)
}
