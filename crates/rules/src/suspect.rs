//! Replicas under suspicion: whoever read one found another file there than the catalog says, or none.
//!
//! A suspect is copied from only where there is nothing else, and does not make other copies
//! superfluous to the reaper. By that alone it is not declared bad: what the catalog says may be what
//! is wrong, and then the suspect is all there is. Once the file was copied from elsewhere and found
//! right, a suspect with another content is proven wrong; the finisher declares it bad, and it is fetched
//! again where it is wanted. One that is only missing may be on a disk that is not mounted: it stays
//! under suspicion until somebody declares it bad, or it is there again.
//!
//! Whoever changes a suspicion holds the row of its file.

use std::collections::BTreeSet;

use mainstay_catalog::order::lock_these;
use mainstay_catalog::{Daemon, Tx, values};
use mainstay_transfers::Fault;

use crate::api::{Did, Micros, SECOND};
use crate::error::Result;
use crate::reap::Needed;
use crate::replica;

/// How long a suspect that was missing is left alone before it is looked for again.
const AGAIN: Micros = 600 * SECOND;

/// The condition that a replica is not under suspicion.
pub(crate) fn trusted(replica: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM suspicious_replicas s WHERE s.did_id = {replica}.did_id AND s.rse_id = {replica}.rse_id)"
    )
}

/// Puts an available replica, whose file is held, under suspicion. Returns whether there is one.
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

/// Somebody says that a replica is not what it should be. Said twice, it is counted twice.
pub fn declare(tx: &mut Tx<'_>, file: &Did, rse: &str, reason: &str, now: Micros) -> Result<()> {
    let unit = replica::unit(tx, file, rse)?;
    lock_these(tx, &BTreeSet::from([unit.0]))?;
    match suspect(tx, unit, Fault::Wrong, reason, now)? {
        true => Ok(()),
        false => Err(replica::none_there(file, rse)),
    }
}

/// A file, which is held, was found to be as the catalog says, at `source` where that is known: that
/// replica is trusted, and others that differ are proven wrong.
pub(crate) fn was_right(
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

/// Trusts a replica, whose file is held, again.
pub(crate) fn trust(tx: &mut Tx<'_>, (file, rse): (i64, i64)) -> Result<()> {
    let sql = "DELETE FROM suspicious_replicas WHERE did_id = ?1 AND rse_id = ?2";
    tx.later(sql, values![file, rse])?;
    Ok(())
}

/// Suspects that are proven wrong.
pub(crate) fn proven(tx: &mut Tx<'_>, shard: (i64, i64), most: i64) -> Result<Vec<(Did, String)>> {
    let sql = "SELECT d.scope, d.name, r.rse FROM suspicious_replicas s JOIN dids d ON d.id = s.did_id
        JOIN rses r ON r.id = s.rse_id WHERE s.proven = 1 AND s.did_id % ?1 = ?2 ORDER BY s.did_id, s.rse_id LIMIT ?3";
    let rows = tx.query(sql, values![shard.1, shard.0, most])?;
    rows.iter()
        .map(|row| Ok((Did::new(row.text(0)?, row.text(1)?), row.text(2)?.to_owned())))
        .collect()
}

/// Declares a suspect bad that is proven wrong, unless it is the last copy that is not worse.
pub(crate) fn convict(tx: &mut Tx<'_>, file: &Did, rse: &str, now: Micros) -> Result<()> {
    let (id, rse_id) = replica::unit(tx, file, rse)?;
    let sql =
        "SELECT reason FROM suspicious_replicas WHERE did_id = ?1 AND rse_id = ?2 AND proven = 1";
    let Some(row) = tx.first(sql, values![id, rse_id])? else { return Ok(()) };
    replica::declare_proven_bad(tx, file, rse, row.text(0)?, now)
}

/// Suspects on an RSE whose files were missing, and that were not looked for lately.
pub(crate) fn missing(tx: &mut Tx<'_>, rse: i64, most: i64, now: Micros) -> Result<Vec<Needed>> {
    let sql = format!(
        "SELECT {} FROM suspicious_replicas s JOIN replicas p ON p.did_id = s.did_id AND p.rse_id = s.rse_id
         JOIN dids d ON d.id = s.did_id WHERE s.rse_id = ?1 AND s.missing = 1 AND s.updated_at <= ?2 ORDER BY d.id LIMIT ?3",
        Needed::COLUMNS
    );
    let rows = tx.query(&sql, values![rse, now.saturating_sub(AGAIN), most])?;
    rows.iter().map(|row| Needed::read(row, rse)).collect()
}

/// Suspects on an RSE were looked for: those that are back are trusted again, the others are left
/// alone for a while.
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
