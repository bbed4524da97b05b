//! Suspicious replicas: a reader found no file, or another content than the catalog records.
//!
//! A suspicious replica is used as a source only if there is no other, and does not make other
//! copies surplus for the reaper. It is not declared bad at once: the catalog may be wrong, and
//! then it is the only copy. Once the file was copied from another RSE and was right, a suspicious
//! replica with another content is proven wrong; the finisher declares it bad, and it is fetched
//! again where it is needed. A missing file may be on a disk that is not mounted: the replica stays
//! suspicious until a user declares it bad, or the file is back.
//!
//! A transaction that changes these records holds the row of the file.

use std::collections::BTreeSet;

use mainstay_catalog::order::lock_these;
use mainstay_catalog::{Daemon, Tx, values};
use mainstay_transfers::Fault;

use crate::api::{Did, Micros, SECOND};
use crate::error::Result;
use crate::reap::Needed;
use crate::replica;

/// How long a missing file is left alone before the reaper looks for it again.
const AGAIN: Micros = 600 * SECOND;

/// The SQL condition that a replica is not suspicious.
pub(crate) fn trusted(replica: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM suspicious_replicas s WHERE s.did_id = {replica}.did_id AND s.rse_id = {replica}.rse_id)"
    )
}

/// Records an available replica, whose file is locked, as suspicious. Returns whether there is one.
pub fn suspect(
    tx: &mut Tx<'_>,
    (file, rse): (i64, i64),
    fault: Fault,
    reason: &str,
    now: Micros,
) -> Result<bool> {
    let sql = "INSERT INTO suspicious_replicas (did_id, rse_id, missing, reason, times, proven, created_at, updated_at)
        SELECT did_id, rse_id, ?3, ?4, 1, 0, ?5, ?5 FROM replicas WHERE did_id = ?1 AND rse_id = ?2 AND state = 'A'
        ON CONFLICT (did_id, rse_id) DO UPDATE SET missing = excluded.missing, reason = excluded.reason,
        times = suspicious_replicas.times + 1, updated_at = excluded.updated_at";
    let missing = i64::from(fault == Fault::Missing);
    let reason = crate::decide::clip(reason, 255);
    Ok(tx.execute(sql, values![file, rse, missing, reason, now])? > 0)
}

/// Records a user's report that a replica is wrong. Repeated reports are counted.
pub fn declare(tx: &mut Tx<'_>, file: &Did, rse: &str, reason: &str, now: Micros) -> Result<()> {
    let unit = replica::unit(tx, file, rse)?;
    lock_these(tx, &BTreeSet::from([unit.0]))?;
    match suspect(tx, unit, Fault::Wrong, reason, now)? {
        true => Ok(()),
        false => Err(replica::none_there(file, rse)),
    }
}

/// Records that a locked file was copied and was right, from `source` if that is known: that
/// replica is trusted again, and others with another content are proven wrong.
pub(crate) fn confirm_content(
    tx: &mut Tx<'_>,
    file: i64,
    source: Option<i64>,
    now: Micros,
) -> Result<()> {
    if let Some(source) = source {
        trust(tx, (file, source))?;
    }
    let sql = "UPDATE suspicious_replicas SET proven = 1, updated_at = ?2 WHERE did_id = ?1 AND missing = 0 AND proven = 0";
    tx.later(sql, values![file, now])?;
    tx.wake(Daemon::Finisher);
    Ok(())
}

/// Trusts a replica, whose file is locked, again.
pub(crate) fn trust(tx: &mut Tx<'_>, (file, rse): (i64, i64)) -> Result<()> {
    let sql = "DELETE FROM suspicious_replicas WHERE did_id = ?1 AND rse_id = ?2";
    tx.later(sql, values![file, rse])?;
    Ok(())
}

/// Suspicious replicas that are proven wrong.
pub(crate) fn proven(tx: &mut Tx<'_>, shard: (i64, i64), most: i64) -> Result<Vec<(Did, String)>> {
    let sql = "SELECT d.scope, d.name, r.rse FROM suspicious_replicas s JOIN dids d ON d.id = s.did_id
        JOIN rses r ON r.id = s.rse_id WHERE s.proven = 1 AND s.did_id % ?1 = ?2 ORDER BY s.did_id, s.rse_id LIMIT ?3";
    let rows = tx.query(sql, values![shard.1, shard.0, most])?;
    rows.iter()
        .map(|row| Ok((Did::new(row.text(0)?, row.text(1)?), row.text(2)?.to_owned())))
        .collect()
}

/// Declares a replica bad that is proven wrong, unless it is the last usable copy.
pub(crate) fn declare_bad_if_proven(
    tx: &mut Tx<'_>,
    file: &Did,
    rse: &str,
    now: Micros,
) -> Result<()> {
    let (id, rse_id) = replica::unit(tx, file, rse)?;
    let sql =
        "SELECT reason FROM suspicious_replicas WHERE did_id = ?1 AND rse_id = ?2 AND proven = 1";
    let Some(row) = tx.first(sql, values![id, rse_id])? else { return Ok(()) };
    replica::declare_proven_bad(tx, file, rse, row.text(0)?, now)
}

/// Suspicious replicas on an RSE whose files were missing, and that were not looked for recently.
pub(crate) fn missing(tx: &mut Tx<'_>, rse: i64, most: i64, now: Micros) -> Result<Vec<Needed>> {
    let sql = format!(
        "SELECT {} FROM suspicious_replicas s JOIN replicas p ON p.did_id = s.did_id AND p.rse_id = s.rse_id
         JOIN dids d ON d.id = s.did_id WHERE s.rse_id = ?1 AND s.missing = 1 AND s.updated_at <= ?2 ORDER BY d.id LIMIT ?3",
        Needed::COLUMNS
    );
    let rows = tx.query(&sql, values![rse, now.saturating_sub(AGAIN), most])?;
    rows.iter().map(|row| Needed::read(row, rse)).collect()
}

/// Records a search for missing files on an RSE: those that are back are trusted again, the others
/// are left alone for a while.
pub(crate) fn looked_for(
    tx: &mut Tx<'_>,
    rse: i64,
    (back, missing): (&[i64], &[i64]),
    now: Micros,
) -> Result<()> {
    lock_these(tx, &back.iter().chain(missing).copied().collect())?;
    let sql =
        "DELETE FROM suspicious_replicas WHERE rse_id = ?1 AND did_id IN ARRAY(?2) AND missing = 1";
    tx.execute(sql, values![rse, back.to_vec()])?;
    let sql =
        "UPDATE suspicious_replicas SET updated_at = ?3 WHERE rse_id = ?1 AND did_id IN ARRAY(?2)";
    tx.execute(sql, values![rse, missing.to_vec(), now])?;
    Ok(())
}
