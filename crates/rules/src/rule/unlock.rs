//! Removes locks: of a deleted rule, of detached files, and of surplus copies.

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::{Daemon, Tx, values};

use crate::api::{Counts, LockState, Micros, Rule};
use crate::error::Result;
use crate::queue::given_up;

/// Removes the locks in `w_units` (did, rse, bytes, lock) from a rule, with all consequences: a
/// replica that loses its last lock gets a tombstone, and the transfer of one that does not exist
/// yet is cancelled. Returns the rule's counts afterwards; the caller writes them.
pub(crate) fn remove_locks(
    tx: &mut Tx<'_>,
    rule: &Rule,
    purge: bool,
    ledger: &mut Ledger,
    now: Micros,
) -> Result<Counts> {
    let mut counts = rule.counts;
    let sums = tx.query(
        "SELECT rse, lock, COUNT(*), CAST(SUM(bytes) AS BIGINT) FROM w_units GROUP BY rse, lock",
        &[],
    )?;
    for row in &sums {
        let state = row.state::<LockState>(1)?;
        counts.add(state, -row.int(2)?);
        ledger.use_more(&rule.account, row.int(0)?, -row.int(2)?, -row.int(3)?);
    }
    if sums.is_empty() {
        return Ok(counts);
    }
    tx.execute(
        "DELETE FROM locks WHERE rule_id = ?1 AND (did_id, rse_id) IN (SELECT did, rse FROM w_units)",
        values![rule.id],
    )?;
    tx.execute(
        "UPDATE replicas SET lock_cnt = lock_cnt - 1, updated_at = ?1,
         tombstone = CASE WHEN lock_cnt > 1 THEN NULL WHEN ?2 = 1 OR state IN ('U', 'C') THEN 0
            ELSE COALESCE(accessed_at, created_at) END,
         state = CASE WHEN lock_cnt = 1 AND state = 'C' THEN 'U' ELSE state END
         WHERE (did_id, rse_id) IN (SELECT did, rse FROM w_units)",
        values![now, purge],
    )?;
    cancel(tx, now)?;
    tx.wake(Daemon::Reaper);
    Ok(counts)
}

/// Cancels the transfers of `w_units` to replicas without locks.
fn cancel(tx: &mut Tx<'_>, now: Micros) -> Result<()> {
    let unwanted = "(SELECT u.did, u.rse FROM w_units u LOOKUP JOIN replicas p ON (p.did_id = u.did AND p.rse_id = u.rse)
        WHERE p.lock_cnt = 0)";
    archive(tx, unwanted, "'X'", now)
}

/// Moves requests for the given (file, RSE) pairs to the history, in the given state. Requests
/// that a worker is processing are recorded as given up.
pub(crate) fn archive(tx: &mut Tx<'_>, pairs: &str, state: &str, now: Micros) -> Result<()> {
    given_up::remember(tx, &format!("(did_id, dest_rse_id) IN {pairs}"), values![now])?;
    let sql = format!(
        "INSERT INTO requests_history (id, request_type, did_id, dest_rse_id, source_rse_id, state, rule_id, activity, bytes,
         retry_count, err_msg, requested_at, updated_at)
         SELECT id, request_type, did_id, dest_rse_id, source_rse_id, {state}, rule_id, activity, bytes, retry_count, err_msg,
         requested_at, ?1 FROM requests WHERE (did_id, dest_rse_id) IN {pairs}"
    );
    tx.execute(&sql, values![now])?;
    let sql = format!("DELETE FROM requests WHERE (did_id, dest_rse_id) IN {pairs}");
    tx.execute(&sql, &[])?;
    Ok(())
}
