//! Requests that were given up while a worker was at them.
//!
//! A worker hears only when it asks next that nobody wants its file any more, and one that is killed
//! before that leaves a draft, or the whole file. So a request that goes while its lease lasts is
//! remembered until the lease is over. Until then the reaper leaves the replica alone; afterwards it
//! removes the file with all that was on its way.
//!
//! Whatever is remembered here has a replica. Whoever changes it holds the row of its file.

use super::queue::hold;
use crate::api::Micros;
use crate::catalog::engine::values;
use crate::catalog::{Tx, Value};
use crate::error::Result;

/// How many are forgotten at once at most.
const AT_ONCE: usize = 1_000;

/// Remembers those requests among `which` that are under way and are about to be taken from their
/// workers. `params` begin with the time it is.
pub(crate) fn remember(tx: &mut Tx<'_>, which: &str, params: &[Value]) -> Result<()> {
    let sql = format!(
        "INSERT INTO given_up (did_id, rse_id, request_id, attempt, worker, lease_until)
         SELECT did_id, dest_rse_id, id, attempt, worker, lease_until FROM requests
         WHERE {which} AND state = 'S' AND lease_until >= ?1
         ON CONFLICT (did_id, rse_id, request_id, attempt) DO NOTHING"
    );
    tx.later(&sql, params)
}

/// The condition that nothing is remembered of a replica.
pub(crate) fn nobody_at(replica: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM given_up g WHERE g.did_id = {replica}.did_id AND g.rse_id = {replica}.rse_id)"
    )
}

/// Forgets those whose lease is over, on the RSEs of a shard. Returns whether there may be more.
pub(crate) fn expire(tx: &mut Tx<'_>, shard: (i64, i64), now: Micros) -> Result<bool> {
    let sql = "SELECT DISTINCT did_id FROM given_up WHERE lease_until < ?1 AND rse_id % ?2 = ?3 ORDER BY did_id LIMIT ?4";
    let rows = tx.query(sql, values![now, shard.1, shard.0, AT_ONCE as i64])?;
    if rows.is_empty() {
        return Ok(false);
    }
    let files: Vec<i64> = rows.iter().map(|row| row.int(0)).collect();
    hold(tx, files.iter().copied())?;
    tx.execute(
        "DELETE FROM given_up WHERE did_id IN ARRAY(?4) AND lease_until < ?1 AND rse_id % ?2 = ?3",
        values![now, shard.1, shard.0, files],
    )?;
    Ok(rows.len() >= AT_ONCE)
}
