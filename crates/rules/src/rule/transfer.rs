//! Records ended transfers: `successful_transfer`, `failed_transfer`.
//!
//! A replica can have many locks. Their rules are read, locked in order, and read again once the
//! file is locked: a rule that was added in between makes the transaction start over.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::order::{goes_with, lock_paired, lock_these};
use mainstay_catalog::{Column, Daemon, Tx, Value, values};

use crate::api::{Counts, LockState, Micros, RequestState, Rule, RuleState};
use crate::error::{Class, Error, Result, refuse};
use crate::queue::given_up;
use crate::rule::read::lock_rules;
use crate::rule::{Settings, state};

/// The request number in the history of a failure without a request.
pub(crate) const UNREQUESTED: i64 = 0;

/// A set of (file, RSE) pairs: one is passed as parameters, many through `w_pairs`.
struct Units {
    one: Option<(i64, i64)>,
    number: u64,
}

impl Units {
    fn load(tx: &mut Tx<'_>, units: &[(i64, i64)]) -> Result<Self> {
        if let [unit] = units {
            return Ok(Self { one: Some(*unit), number: 1 });
        }
        let units: BTreeSet<(i64, i64)> = units.iter().copied().collect();
        tx.clear(&["w_pairs"])?;
        tx.load(
            "w_pairs",
            &[
                ("did", Column::ints(units.iter().map(|unit| unit.0))),
                ("rse", Column::ints(units.iter().map(|unit| unit.1))),
            ],
        )?;
        Ok(Self { one: None, number: units.len() as u64 })
    }

    /// The SQL condition on two columns; the parameters of the pair follow `first` others.
    fn within(&self, file: &str, rse: &str, first: usize) -> String {
        match self.one {
            Some(_) => format!("({file} = ?{} AND {rse} = ?{})", first + 1, first + 2),
            None => format!("({file}, {rse}) IN (SELECT did, rse FROM w_pairs)"),
        }
    }

    /// The same for rows that do not change while the files are locked.
    fn held_within(
        &self,
        tx: &Tx<'_>,
        table: &str,
        (file, rse): (&str, &str),
        first: usize,
    ) -> String {
        match self.one {
            Some(_) => self.within(file, rse, first),
            None => goes_with(tx, ("", table, &[file, rse]), ("w_pairs", &["did", "rse"])),
        }
    }

    fn params(&self, mut first: Vec<Value>) -> Vec<Value> {
        if let Some((file, rse)) = self.one {
            first.extend([Value::Int(file), Value::Int(rse)]);
        }
        first
    }

    fn hold_files(&self, tx: &mut Tx<'_>) -> Result<()> {
        match self.one {
            Some((file, _)) => {
                if tx.is_postgres() {
                    tx.query("SELECT id FROM dids WHERE id = ?1 LOCK ROWS", values![file])?;
                }
                Ok(())
            }
            None => Ok(lock_paired(tx)?),
        }
    }

    fn locks(&self, tx: &mut Tx<'_>) -> Result<BTreeMap<i64, Counts>> {
        let sql = format!(
            "SELECT rule_id, state, COUNT(*) FROM locks WHERE {} GROUP BY rule_id, state",
            self.held_within(tx, "locks", ("did_id", "rse_id"), 0)
        );
        let mut found: BTreeMap<i64, Counts> = BTreeMap::new();
        for row in tx.query(&sql, &self.params(Vec::new()))? {
            let state = row.state::<LockState>(1)?;
            found.entry(row.int(0)?).or_default().add(state, row.int(2)?);
        }
        Ok(found)
    }
}

/// Records that the copies of these (file, RSE) pairs exist. A second call changes nothing.
pub fn successful_transfer(tx: &mut Tx<'_>, units: &[(i64, i64)], now: Micros) -> Result<()> {
    end(tx, units, Outcome::Success, Reporter::Other, now)
}

/// The same, reported by the worker that holds them: it has stopped writing.
pub(crate) fn finished_transfer(tx: &mut Tx<'_>, units: &[(i64, i64)], now: Micros) -> Result<()> {
    end(tx, units, Outcome::Success, Reporter::Holder, now)
}

/// Records that the copies of these (file, RSE) pairs could not be made. `broken_rule` (by number)
/// is the cause and is suspended.
pub fn failed_transfer(
    tx: &mut Tx<'_>,
    units: &[(i64, i64)],
    error: &str,
    broken_rule: Option<i64>,
    now: Micros,
) -> Result<()> {
    end(tx, units, Outcome::Failure { error, broken_rule }, Reporter::Other, now)
}

#[derive(Clone, Copy)]
enum Outcome<'a> {
    Success,
    Failure { error: &'a str, broken_rule: Option<i64> },
}

/// The source of a report about transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reporter {
    /// The worker that holds them.
    Holder,
    /// Any other client: a worker may still be writing, except for uploads, which the client
    /// reports itself.
    Other,
}

fn end(
    tx: &mut Tx<'_>,
    units: &[(i64, i64)],
    outcome: Outcome<'_>,
    reporter: Reporter,
    now: Micros,
) -> Result<()> {
    if units.is_empty() {
        return Ok(());
    }
    let units = Units::load(tx, units)?;
    let ids: BTreeSet<i64> = units.locks(tx)?.into_keys().collect();
    let rules = lock_rules(tx, &ids)?;
    units.hold_files(tx)?;
    let locks = units.locks(tx)?;
    if locks.keys().any(|id| rules.binary_search_by_key(id, |rule| rule.id).is_err()) {
        return Err(Error::moved());
    }
    write_replicas(tx, &units, outcome, now)?;
    let letter = match outcome {
        Outcome::Success => "O",
        Outcome::Failure { .. } => "S",
    };
    let sql = format!(
        "UPDATE locks SET state = '{letter}', updated_at = ?1 WHERE {} AND state <> '{letter}'",
        units.held_within(tx, "locks", ("did_id", "rse_id"), 1)
    );
    tx.later(&sql, &units.params(vec![Value::Int(now)]))?;
    if reporter == Reporter::Other {
        let which = units.held_within(tx, "requests", ("did_id", "dest_rse_id"), 1);
        let which = format!("{which} AND worker <> 'upload'");
        given_up::remember(tx, &which, &units.params(vec![Value::Int(now)]))?;
    }
    archive(tx, &units, outcome, now)?;
    for rule in &rules {
        let Some(here) = locks.get(&rule.id) else { continue };
        settle(tx, rule, *here, outcome, now)?;
    }
    Ok(())
}

fn write_replicas(tx: &mut Tx<'_>, units: &Units, outcome: Outcome<'_>, now: Micros) -> Result<()> {
    let letter = match outcome {
        Outcome::Success => "A",
        Outcome::Failure { .. } => "U",
    };
    let sql = format!(
        "UPDATE replicas SET state = CASE WHEN state = 'B' THEN state ELSE '{letter}' END, updated_at = ?1 WHERE {}",
        units.within("did_id", "rse_id", 1)
    );
    if tx.execute(&sql, &units.params(vec![Value::Int(now)]))? < units.number {
        return Err(refuse(
            Class::ReplicaNotFound,
            "No replica is registered for one of the files on this RSE",
        ));
    }
    if let Outcome::Success = outcome {
        // A file that was transferred again is no longer suspicious.
        let sql = format!(
            "DELETE FROM suspicious_replicas WHERE {}",
            units.within("did_id", "rse_id", 0)
        );
        tx.later(&sql, &units.params(Vec::new()))?;
    }
    Ok(())
}

fn archive(tx: &mut Tx<'_>, units: &Units, outcome: Outcome<'_>, now: Micros) -> Result<()> {
    let (state, error) = match outcome {
        Outcome::Success => (RequestState::Done, None),
        Outcome::Failure { error, .. } => {
            (RequestState::Failed, Some(crate::decide::clip(error, 255)))
        }
    };
    if error.is_some() {
        record_unrequested(tx, units, &error, now)?;
    }
    let noted = format!(
        "INSERT INTO requests_history (id, request_type, did_id, dest_rse_id, source_rse_id, state, rule_id, activity, bytes,
         retry_count, err_msg, requested_at, updated_at)
         SELECT id, request_type, did_id, dest_rse_id, source_rse_id, '{}', rule_id, activity, bytes, retry_count,
         COALESCE(err_msg, ?2), requested_at, ?1",
        state.letter(),
    );
    let params = units.params(vec![Value::Int(now), Value::from(error)]);
    let ended = units.held_within(tx, "requests", ("did_id", "dest_rse_id"), 2);
    if tx.is_postgres() {
        let sql = format!(
            "WITH ended AS (DELETE FROM requests WHERE {ended} RETURNING *) {noted} FROM ended"
        );
        return Ok(tx.later(&sql, &params)?);
    }
    tx.later(&format!("{noted} FROM requests WHERE {ended}"), &params)?;
    let ended = units.held_within(tx, "requests", ("did_id", "dest_rse_id"), 0);
    tx.later(&format!("DELETE FROM requests WHERE {ended}"), &units.params(Vec::new()))?;
    Ok(())
}

/// Records failures without a request in the history, so that locks stuck because of them can be
/// explained.
fn record_unrequested(
    tx: &mut Tx<'_>,
    units: &Units,
    error: &Option<String>,
    now: Micros,
) -> Result<()> {
    let sql = format!(
        "INSERT INTO requests_history (id, request_type, did_id, dest_rse_id, state, rule_id, activity, bytes, retry_count,
         err_msg, requested_at, updated_at)
         SELECT {UNREQUESTED}, 'T', locks.did_id, locks.rse_id, 'F', MIN(locks.rule_id), MIN(r.activity), MIN(locks.bytes), 0, ?2, ?1, ?1
         FROM locks JOIN rules r ON r.id = locks.rule_id WHERE {}
         AND NOT EXISTS (SELECT 1 FROM requests q WHERE q.did_id = locks.did_id AND q.dest_rse_id = locks.rse_id)
         GROUP BY locks.did_id, locks.rse_id",
        units.within("locks.did_id", "locks.rse_id", 2)
    );
    tx.later(&sql, &units.params(vec![Value::Int(now), Value::from(error.clone())]))?;
    Ok(())
}

/// Moves the rule's locks `here` to their new state.
fn settle(
    tx: &mut Tx<'_>,
    rule: &Rule,
    here: Counts,
    outcome: Outcome<'_>,
    now: Micros,
) -> Result<()> {
    let mut counts = rule.counts;
    counts.ok -= here.ok;
    counts.replicating -= here.replicating;
    counts.stuck -= here.stuck;
    match outcome {
        Outcome::Success => {
            counts.ok += here.total();
            state::settle(tx, rule, counts, !rule.incomplete, None, now)?;
        }
        Outcome::Failure { error, broken_rule } => {
            counts.stuck += here.total();
            if broken_rule == Some(rule.id) {
                let broken = Rule {
                    state: RuleState::Suspended,
                    suspended_by: Some("transfer".to_owned()),
                    ..rule.clone()
                };
                state::settle(tx, &broken, counts, !rule.incomplete, Some(error), now)?;
                state::entered(tx, rule, RuleState::Suspended, now)?;
            } else {
                state::settle(tx, rule, counts, !rule.incomplete, Some(error), now)?;
            }
        }
    }
    Ok(())
}

/// Whether a client is uploading a copy, or has uploaded it: then it may report the result itself.
pub fn is_upload(tx: &mut Tx<'_>, (file, rse): (i64, i64)) -> Result<bool> {
    let sql = "SELECT 1 FROM replicas p WHERE p.did_id = ?1 AND p.rse_id = ?2 AND (p.state = 'A' OR (p.state = 'C' AND NOT EXISTS (
        SELECT 1 FROM requests q WHERE q.did_id = p.did_id AND q.dest_rse_id = p.rse_id AND COALESCE(q.worker, '') <> 'upload')))";
    Ok(tx.first(sql, values![file, rse])?.is_some())
}

/// Records a report of a transfer tool about a request; the finisher handles the consequences.
/// Returns whether there was such a request.
pub fn report(
    tx: &mut Tx<'_>,
    (file, rse): (i64, i64),
    ended: RequestState,
    error: Option<&str>,
    now: Micros,
) -> Result<bool> {
    let sql = "UPDATE requests SET state = ?3, err_msg = ?4, updated_at = ?5 WHERE did_id = ?1 AND dest_rse_id = ?2";
    let error = error.map(|text| crate::decide::clip(text, 255));
    let found = tx.execute(sql, values![file, rse, ended.letter(), error, now])? > 0;
    tx.wake(Daemon::Finisher);
    Ok(found)
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: i64,
    pub(crate) unit: (i64, i64),
    pub(crate) state: RequestState,
    pub(crate) retries: i64,
    pub(crate) error: Option<String>,
}

/// The oldest requests that ended and wait for the finisher.
pub(crate) fn ended(tx: &mut Tx<'_>, shard: (i64, i64), most: i64) -> Result<Vec<Ended>> {
    let rows = tx.query(
        "SELECT id, did_id, dest_rse_id, state, retry_count, err_msg FROM requests
         WHERE state IN ('D', 'F', 'L', 'N', 'O', 'A', 'M') AND did_id % ?1 = ?2 ORDER BY id LIMIT ?3",
        values![shard.1, shard.0, most],
    )?;
    rows.iter()
        .map(|row| {
            Ok(Ended {
                id: row.int(0)?,
                unit: (row.int(1)?, row.int(2)?),
                state: row.state::<RequestState>(3)?,
                retries: row.opt_int(4)?.unwrap_or(0),
                error: row.opt_text(5)?,
            })
        })
        .collect()
}

/// Whether a failed request is queued again.
pub(crate) fn is_retried(ended: &Ended, settings: &Settings) -> bool {
    let hopeless = matches!(ended.state, RequestState::NoSources | RequestState::OnlyTapeSources);
    !hopeless && ended.state != RequestState::Done && ended.retries < settings.transfer_retries
}

/// Queues failed requests again, with growing delays.
pub(crate) fn requeue(
    tx: &mut Tx<'_>,
    requests: &[Ended],
    settings: &Settings,
    now: Micros,
) -> Result<()> {
    let ids: Vec<i64> = requests.iter().map(|ended| ended.id).collect();
    let files: BTreeSet<i64> = requests.iter().map(|ended| ended.unit.0).collect();
    lock_these(tx, &files)?;
    tx.execute(
        "UPDATE requests SET state = 'Q', retry_count = COALESCE(retry_count, 0) + 1, updated_at = ?2, worker = NULL,
         lease_until = NULL, not_before = ?2 + ?3 * (COALESCE(retry_count, 0) + 1) * (COALESCE(retry_count, 0) + 1)
         WHERE id IN ARRAY(?1) AND state IN ('F', 'L', 'A', 'M')",
        values![ids, now, settings.transfer_backoff],
    )?;
    Ok(())
}
