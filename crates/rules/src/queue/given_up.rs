//! Requests that were cancelled while a worker was processing them.
//!
//! A worker learns of a cancellation only with its next call, and one that is killed before that
//! leaves a draft or the whole file. Therefore a request that is cancelled under a valid lease is
//! recorded here until the lease expires or the worker reports that it has stopped writing. Until
//! then the reaper leaves the replica alone; afterwards it removes the file and its drafts.
//!
//! Every record has a replica. A transaction that changes a record holds the row of its file.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::{Daemon, Tx, Value, values};
use mainstay_transfers::Outcome;

use super::hold;
use crate::api::Micros;
use crate::error::{Error, Result};
use crate::expression::Rse;

/// How many records are deleted at once at most.
const AT_ONCE: usize = 1_000;

/// Records the requests among `which` that have a valid lease and are about to be cancelled. The
/// first of `params` is the current time.
pub(crate) fn remember(tx: &mut Tx<'_>, which: &str, params: &[Value]) -> Result<()> {
    let sql = format!(
        "INSERT INTO given_up (did_id, rse_id, request_id, attempt, worker, lease_until)
         SELECT did_id, dest_rse_id, id, attempt, worker, lease_until FROM requests
         WHERE {which} AND state = 'S' AND lease_until >= ?1
         ON CONFLICT (did_id, rse_id, request_id, attempt) DO NOTHING"
    );
    tx.later(&sql, params)?;
    Ok(())
}

/// The SQL condition that no worker may still be writing a replica.
pub(crate) fn not_being_written(replica: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM given_up g WHERE g.did_id = {replica}.did_id AND g.rse_id = {replica}.rse_id)"
    )
}

/// Deletes records whose lease has expired, on the RSEs of a shard. Returns whether there may be
/// more.
pub(crate) fn expire(tx: &mut Tx<'_>, shard: (i64, i64), now: Micros) -> Result<bool> {
    let sql = "SELECT DISTINCT did_id FROM given_up WHERE lease_until < ?1 AND rse_id % ?2 = ?3 ORDER BY did_id LIMIT ?4";
    let rows = tx.query(sql, values![now, shard.1, shard.0, AT_ONCE as i64])?;
    if rows.is_empty() {
        return Ok(false);
    }
    let files: Vec<i64> = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    hold(tx, files.iter().copied())?;
    tx.execute(
        "DELETE FROM given_up WHERE did_id IN ARRAY(?4) AND lease_until < ?1 AND rse_id % ?2 = ?3",
        values![now, shard.1, shard.0, files],
    )?;
    Ok(rows.len() >= AT_ONCE)
}

/// Records that a worker has stopped writing for requests it has lost. Its files may be complete,
/// on S3 even after a failure. An existing replica covers the file; a missing one is created again
/// for the reaper to remove. Returns the requests whose file or RSE is gone: they cannot have a
/// replica, so the worker removes the file.
pub(super) fn leave(
    tx: &mut Tx<'_>,
    worker: &str,
    lost: &[&Outcome],
    now: Micros,
) -> Result<Vec<i64>> {
    let rses = crate::rse::all(tx)?;
    let mut unwanted = Vec::new();
    let mut known = Vec::new();
    for one in lost {
        let rse = rses.iter().find(|rse| rse.name == one.rse);
        match (crate::did::find(tx, &one.did)?, rse) {
            (Some(file), Some(rse)) => known.push((*one, file.id, rse)),
            _ if one.error.is_none() => unwanted.push(one.request),
            _ => {}
        }
    }
    if known.is_empty() {
        return Ok(unwanted);
    }
    let files: BTreeSet<i64> = known.iter().map(|one| one.1).collect();
    hold(tx, files.iter().copied())?;
    let files: Vec<i64> = files.into_iter().collect();
    let there =
        tx.number("SELECT COUNT(*) FROM dids WHERE id IN ARRAY(?1)", values![files.clone()])?;
    if there < files.len() as i64 {
        return Err(Error::moved());
    }
    let sql = "SELECT did_id, rse_id, state FROM replicas WHERE did_id IN ARRAY(?1)";
    let rows = tx.query(sql, values![files])?;
    let states: BTreeMap<(i64, i64), &str> = rows
        .iter()
        .map(|row| Ok(((row.int(0)?, row.int(1)?), row.text(2)?)))
        .collect::<Result<_>>()?;
    let mut ledger = Ledger::default();
    for (one, file, rse) in known {
        tx.later(
            "DELETE FROM given_up WHERE did_id = ?1 AND rse_id = ?2 AND request_id = ?3 AND attempt = ?4 AND worker = ?5",
            values![file, rse.id, one.request, one.attempt, worker],
        )?;
        match states.get(&(file, rse.id)) {
            // The reaper may have removed the file before it was written again: the replica must
            // stay for now.
            Some(&"B") => tx.later(
                "INSERT INTO given_up (did_id, rse_id, request_id, attempt, worker, lease_until)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (did_id, rse_id, request_id, attempt) DO NOTHING",
                values![file, rse.id, one.request, one.attempt, worker, now],
            )?,
            Some(_) => {}
            None => put_back(tx, one, (file, rse), &mut ledger, now)?,
        }
    }
    ledger.write(tx, now)?;
    tx.wake(Daemon::Reaper);
    Ok(unwanted)
}

/// Creates the replica of a former request again, without locks, for the reaper to remove.
fn put_back(
    tx: &mut Tx<'_>,
    one: &Outcome,
    (file, rse): (i64, &Rse),
    ledger: &mut Ledger,
    now: Micros,
) -> Result<()> {
    let path = (!rse.deterministic).then(|| mainstay_transfers::protocol::hashed_path(&one.did));
    let asked = |table: &str| {
        format!(
            "EXISTS (SELECT 1 FROM {table} q WHERE q.did_id = ?1 AND q.dest_rse_id = ?2 AND q.id = ?3)"
        )
    };
    let sql = format!(
        "INSERT INTO replicas (did_id, rse_id, bytes, state, lock_cnt, tombstone, path, created_at, updated_at)
         SELECT id, ?2, bytes, 'U', 0, 0, ?4, ?5, ?5 FROM dids WHERE id = ?1 AND ({} OR {})
         ON CONFLICT (did_id, rse_id) DO NOTHING RETURNING bytes",
        asked("requests_history"),
        asked("requests")
    );
    if let Some(row) = tx.first(&sql, values![file, rse.id, one.request, path, now])? {
        ledger.hold_more(rse.id, 1, row.int(0)?);
    }
    Ok(())
}
