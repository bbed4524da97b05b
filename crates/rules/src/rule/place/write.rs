//! Writes the chosen copies: replicas, locks, requests and counters.

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::{Row, Tx, Value, values};

use super::{Chosen, Plan};
use crate::api::{Counts, LockState, Micros};
use crate::decide::{Field, copy_sql};
use crate::error::Result;

/// The decision about each unit, from `units` (did, rse, bytes, writable, staging).
fn decided(units: &str, plan: &Plan<'_>, sources: usize) -> String {
    let source = match &plan.sources {
        None => "1".to_owned(),
        Some(_) => format!(
            "CASE WHEN EXISTS (SELECT 1 FROM replicas s WHERE s.did_id = u.did AND s.state = 'A' AND s.rse_id IN ARRAY(?{sources}))
             THEN 1 ELSE 0 END"
        ),
    };
    let field = |field| copy_sql("before", "source", "writable", field);
    format!(
        "SELECT did, rse, bytes, before, staging, {} AS lock, {} AS after, {} AS transfer FROM (
            SELECT u.did AS did, u.rse AS rse, u.bytes AS bytes, COALESCE(r.state, '-') AS before, {source} AS source,
            u.writable AS writable, u.staging AS staging
            FROM {units} LEFT LOOKUP JOIN replicas r ON (r.did_id = u.did AND r.rse_id = u.rse)) AS found",
        field(Field::Lock),
        field(Field::Replica),
        field(Field::Transfer),
    )
}

const SUMS: &str = "SELECT rse, lock, COUNT(*), CAST(SUM(bytes) AS BIGINT),
    CAST(SUM(CASE WHEN before = '-' THEN 1 ELSE 0 END) AS BIGINT),
    CAST(SUM(CASE WHEN before = '-' THEN bytes ELSE 0 END) AS BIGINT), CAST(SUM(transfer) AS BIGINT),
    CAST(SUM(CASE WHEN before = '-' THEN 0 ELSE transfer END) AS BIGINT),
    CAST(SUM(CASE WHEN before = 'C' THEN 1 ELSE 0 END) AS BIGINT)";

const NEW_REPLICAS: &str =
    "INSERT INTO replicas (did_id, rse_id, bytes, state, lock_cnt, created_at, updated_at)
    SELECT did, rse, bytes, after, 1, ?1, ?1";

const NEW_LOCKS: &str =
    "INSERT INTO locks (rule_id, did_id, rse_id, bytes, state, created_at, updated_at)
    SELECT ?2, did, rse, bytes, lock, ?1, ?1";

/// A copy in transfer without a request is an upload by a client, which has a day to finish it.
/// Then the file is fetched from another RSE, or the rule becomes stuck because there is no source.
const NEW_REQUESTS: &str = "INSERT INTO requests (request_type, did_id, dest_rse_id, state, rule_id, activity, priority,
    bytes, retry_count, requested_at, updated_at, worker, lease_until, submitted_at)
    SELECT CASE WHEN staging = 1 THEN 'S' ELSE 'T' END, did, rse, CASE WHEN before = 'C' THEN 'S' ELSE 'Q' END, ?2, ?3, ?4,
    bytes, 0, ?1, ?1, CASE WHEN before = 'C' THEN 'upload' END, CASE WHEN before = 'C' THEN ?1 + 86400000000 END,
    CASE WHEN before = 'C' THEN ?1 END";

const ASKED: &str = "(transfer = 1 OR before = 'C')";

const ONE_REQUEST: &str = "ON CONFLICT (did_id, dest_rse_id, request_type) DO NOTHING";

/// Writes the effects of a choice: replicas, locks, requests, counters.
pub(crate) fn write_units(
    tx: &mut Tx<'_>,
    plan: &Plan<'_>,
    chosen: &Chosen,
    ledger: &mut Ledger,
    now: Micros,
) -> Result<Counts> {
    if chosen.is_empty() {
        return Ok(Counts::default());
    }
    let sums = if tx.is_postgres() {
        write_at_once(tx, plan, chosen, now)?
    } else {
        write_in_turn(tx, plan, chosen, now)?
    };
    let mut counts = Counts::default();
    let mut asked = false;
    for row in &sums {
        asked |= row.int(6)? > 0;
        let rse = row.int(0)?;
        counts.add(row.state::<LockState>(1)?, row.int(2)?);
        ledger.use_more(&plan.rule.account, rse, row.int(2)?, row.int(3)?);
        ledger.hold_more(rse, row.int(4)?, row.int(5)?);
    }
    if asked {
        tx.wake_workers();
    }
    Ok(counts)
}

/// PostgreSQL: one statement that decides, writes all tables and counts.
fn write_at_once(
    tx: &mut Tx<'_>,
    plan: &Plan<'_>,
    chosen: &Chosen,
    now: Micros,
) -> Result<Vec<Row>> {
    let columns = chosen.columns(plan);
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let arrays: Vec<String> = (5..5 + columns.len()).map(|at| format!("?{at}::bigint[]")).collect();
    let given = format!("unnest({}) AS p({})", arrays.join(", "), names.join(", "));
    let units = match chosen {
        Chosen::Groups(_) => format!(
            "(SELECT f.did, f.bytes, p.rse, p.writable, p.staging FROM w_files f JOIN {given} ON p.dataset = f.dataset
             ORDER BY f.did, p.rse) AS u"
        ),
        Chosen::Files(_) => format!("(SELECT * FROM {given} ORDER BY did, rse) AS u"),
    };
    let sql = format!(
        "WITH decided AS MATERIALIZED ({}),
         fresh AS ({NEW_REPLICAS} FROM decided WHERE before = '-'),
         known AS (UPDATE replicas SET lock_cnt = lock_cnt + 1, tombstone = NULL, updated_at = ?1,
            state = CASE WHEN d.transfer = 1 THEN 'C' ELSE replicas.state END FROM decided d
            WHERE replicas.did_id = d.did AND replicas.rse_id = d.rse AND d.before <> '-'),
         held AS ({NEW_LOCKS} FROM decided),
         asked AS ({NEW_REQUESTS} FROM decided WHERE {ASKED} {ONE_REQUEST})
         {SUMS} FROM decided GROUP BY rse, lock",
        decided(&units, plan, 5 + columns.len()),
    );
    let rule = plan.rule;
    let mut params = values![now, rule.id, &rule.activity, rule.priority].to_vec();
    params.extend(columns.into_iter().map(|(_, column)| Value::from(column.into_ints())));
    if let Some(sources) = &plan.sources {
        params.push(sources.iter().copied().collect::<Vec<i64>>().into());
    }
    Ok(tx.query(&sql, &params)?)
}

/// SQLite: the same in several statements, through `w_units`.
fn write_in_turn(
    tx: &mut Tx<'_>,
    plan: &Plan<'_>,
    chosen: &Chosen,
    now: Micros,
) -> Result<Vec<Row>> {
    let columns = chosen.columns(plan);
    let units = match chosen {
        Chosen::Groups(_) => {
            tx.clear(&["w_picks", "w_units"])?;
            tx.load("w_picks", &columns)?;
            "(SELECT f.did AS did, f.bytes AS bytes, p.rse AS rse, p.writable AS writable, p.staging AS staging
              FROM w_files f LOOKUP JOIN w_picks p ON (p.dataset = f.dataset)) AS u"
        }
        Chosen::Files(_) => {
            tx.clear(&["w_pairs", "w_units"])?;
            tx.load("w_pairs", &columns)?;
            "w_pairs AS u"
        }
    };
    let sql = format!(
        "INSERT INTO w_units (did, rse, bytes, before, staging, lock, after, transfer) {}",
        decided(units, plan, 1)
    );
    let sources: Vec<Value> = plan
        .sources
        .iter()
        .map(|sources| sources.iter().copied().collect::<Vec<i64>>().into())
        .collect();
    tx.execute(&sql, &sources)?;
    let sums = tx.query(&format!("{SUMS} FROM w_units GROUP BY rse, lock"), &[])?;
    let sum = |column: usize| {
        sums.iter().map(|row| row.int(column)).sum::<mainstay_catalog::Result<i64>>()
    };
    let (all, fresh, transfers, fetched) = (sum(2)?, sum(4)?, sum(6)?, sum(7)?);
    if fresh > 0 {
        let sql = format!("{NEW_REPLICAS} FROM w_units WHERE before = '-' ORDER BY did, rse");
        tx.execute(&sql, values![now])?;
    }
    if all > fresh {
        tx.execute(
            "UPDATE replicas SET lock_cnt = lock_cnt + 1, tombstone = NULL, updated_at = ?1
             WHERE (did_id, rse_id) IN (SELECT did, rse FROM w_units WHERE before <> '-')",
            values![now],
        )?;
    }
    if fetched > 0 {
        let sql = "UPDATE replicas SET state = 'C' WHERE (did_id, rse_id) IN (
            SELECT did, rse FROM w_units WHERE before <> '-' AND transfer = 1)";
        tx.execute(sql, &[])?;
    }
    let rule = plan.rule;
    let sql = format!("{NEW_LOCKS} FROM w_units ORDER BY did, rse");
    tx.execute(&sql, values![now, rule.id])?;
    if transfers + sum(8)? > 0 {
        let sql =
            format!("{NEW_REQUESTS} FROM w_units WHERE {ASKED} ORDER BY did, rse {ONE_REQUEST}");
        tx.execute(&sql, values![now, rule.id, &rule.activity, rule.priority])?;
    }
    Ok(sums)
}
