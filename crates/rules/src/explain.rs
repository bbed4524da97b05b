//! Explains a rule: for each copy, why it is where it is, why it is stuck, and how to resolve it.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::{Tx, values};
use serde_json::{Value, json};

use crate::api::{
    Did, DidType, Grouping, LockState, Micros, ReplicaState, RequestState, Rule, RuleState,
};
use crate::error::{Error, Result};
use crate::rule::place;
use crate::rule::transfer::UNREQUESTED;
use crate::select::{Verdict, Wish};

/// One copy of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named for what they hold")]
pub struct CopyOf {
    pub did: Did,
    pub rse_id: i64,
    pub rse: String,
    pub state: LockState,
    pub attempts: i64,
    pub last_error: Option<String>,
    pub last_time: Option<Micros>,
    /// The RSE of the last attempt.
    pub last_source: Option<String>,
    /// RSEs with another replica, and whether it can be read.
    pub sources: Vec<(String, bool)>,
    /// Why it is here, why it waits, and how to resolve it.
    pub why: String,
}

/// An explanation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// One sentence about the rule.
    pub summary: String,
    /// How to resolve it, if anything is wrong.
    pub remedy: Option<String>,
    /// For each RSE, whether it may take a copy, and why not.
    pub candidates: BTreeMap<String, String>,
    /// The copies; stuck ones first.
    pub copies: Vec<CopyOf>,
    /// The number of all copies.
    pub total: i64,
}

impl Why {
    /// The JSON served to clients.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let copies: Vec<Value> = self
            .copies
            .iter()
            .map(|copy| {
                json!({
                    "scope": copy.did.scope, "name": copy.did.name, "rse": copy.rse, "state": copy.state,
                    "attempts": copy.attempts, "last_error": copy.last_error, "why": copy.why,
                    "sources": copy.sources.iter().map(|(rse, open)| json!([rse, open])).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "summary": self.summary, "remedy": self.remedy, "candidates": self.candidates, "copies": copies,
            "total": self.total,
        })
    }
}

/// Explains a rule, or one file of it; at most `most` copies are listed.
pub fn explain(tx: &mut Tx<'_>, rule: &Rule, file: Option<&Did>, most: i64) -> Result<Why> {
    let only = match file {
        None => 0,
        Some(did) => crate::did::get(tx, did)?.id,
    };
    let copies = copies(tx, rule, only, most)?;
    let (candidates, refusal) = candidates(tx, rule, &copies)?;
    let total = rule.counts.total();
    Ok(Why {
        summary: summary(rule),
        remedy: remedy(rule, refusal.as_deref()),
        candidates,
        copies,
        total,
    })
}

fn summary(rule: &Rule) -> String {
    let counts = rule.counts;
    let head = format!(
        "{} copies of {} on {}: {} there, {} on their way, {} stuck; {}",
        rule.copies,
        rule.did,
        rule.rse_expression,
        counts.ok,
        counts.replicating,
        counts.stuck,
        rule.state
    );
    match &rule.error {
        Some(error) => format!("{head}: {error}"),
        None => head,
    }
}

fn remedy(rule: &Rule, refusal: Option<&str>) -> Option<String> {
    match rule.state {
        RuleState::Ok | RuleState::Replicating => None,
        RuleState::WaitingApproval => Some(
            "It needs an approval: `mainstay rules approve` or `mainstay rules deny`.".to_owned(),
        ),
        RuleState::Inject => Some("The injector applies it; nothing needs to be done.".to_owned()),
        RuleState::Suspended => Some(match rule.suspended_by.as_deref() {
            Some("user") => {
                "It was suspended by hand; set its state to STUCK to have it repaired.".to_owned()
            }
            Some("injector") => {
                "It did not fit the quota; raise it, then set its state to STUCK.".to_owned()
            }
            _ => "It was stuck for too long; set its state to STUCK to have it tried again."
                .to_owned(),
        }),
        RuleState::Stuck => Some(match refusal {
            Some(refusal) => format!(
                "As things are no RSE can be chosen ({refusal}); change that, and the repairer goes on."
            ),
            None => "The repairer tries again by itself; `mainstay rules repair` does it now."
                .to_owned(),
        }),
    }
}

/// The last transfer, if it ended and the copy does not exist.
struct Failure {
    error: Option<String>,
    at: Micros,
    source: Option<String>,
    how: Ended,
}

/// How a transfer ended without a copy.
#[derive(Clone, Copy)]
enum Ended {
    Failed,
    Cancelled,
    /// It was reported as failed without a request.
    Unrequested,
}

/// The last transfers of files that ended without a copy.
fn failures(tx: &mut Tx<'_>, files: Vec<i64>) -> Result<BTreeMap<(i64, i64), Failure>> {
    let mut failures = BTreeMap::new();
    let sql = "SELECT h.did_id, h.dest_rse_id, h.err_msg, h.updated_at, s.rse, h.state, h.id FROM requests_history h
        LEFT JOIN rses s ON s.id = h.source_rse_id WHERE h.did_id IN ARRAY(?1) ORDER BY h.updated_at, h.id";
    for row in tx.query(sql, values![files])? {
        let unit = (row.int(0)?, row.int(1)?);
        let how = match row.state(5)? {
            RequestState::Done => {
                failures.remove(&unit);
                continue;
            }
            RequestState::Cancelled => Ended::Cancelled,
            _ if row.int(6)? == UNREQUESTED => Ended::Unrequested,
            _ => Ended::Failed,
        };
        let (error, source) = (row.opt_text(2)?, row.opt_text(4)?);
        failures.insert(unit, Failure { error, at: row.int(3)?, source, how });
    }
    Ok(failures)
}

fn copies(tx: &mut Tx<'_>, rule: &Rule, only: i64, most: i64) -> Result<Vec<CopyOf>> {
    let rows = tx.query(
        "SELECT d.id, d.scope, d.name, l.rse_id, r.rse, l.state, l.repair_cnt, p.state, q.state, q.retry_count, q.err_msg, l.created_at, p.created_at, s.rse, x.reason, p.path
         FROM locks l JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id
         LEFT JOIN replicas p ON p.did_id = l.did_id AND p.rse_id = l.rse_id
         LEFT JOIN requests q ON q.did_id = l.did_id AND q.dest_rse_id = l.rse_id
         LEFT JOIN rses s ON s.id = q.source_rse_id
         LEFT JOIN suspicious_replicas x ON x.did_id = l.did_id AND x.rse_id = l.rse_id
         WHERE l.rule_id = ?1 AND (?2 = 0 OR l.did_id = ?2)
         ORDER BY CASE l.state WHEN 'S' THEN 0 WHEN 'R' THEN 1 ELSE 2 END, l.did_id, l.rse_id LIMIT ?3",
        values![rule.id, only, most],
    )?;
    let files: BTreeSet<i64> = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    let files: Vec<i64> = files.into_iter().collect();
    let mut sources: BTreeMap<i64, Vec<(i64, String, bool)>> = BTreeMap::new();
    let sql = "SELECT p.did_id, p.rse_id, r.rse, CASE WHEN p.state = 'A' AND r.availability_read = 1 THEN 1 ELSE 0 END
        FROM replicas p JOIN rses r ON r.id = p.rse_id WHERE p.did_id IN ARRAY(?1) AND p.state IN ('A', 'T') ORDER BY p.did_id, r.rse";
    for row in tx.query(sql, values![files.clone()])? {
        sources.entry(row.int(0)?).or_default().push((
            row.int(1)?,
            row.text(2)?.to_owned(),
            row.flag(3)?,
        ));
    }
    let failures = failures(tx, files)?;
    let reached: BTreeSet<i64> = crate::rse::all(tx)?
        .iter()
        .filter(|rse| !rse.protocols.is_empty())
        .map(|rse| rse.id)
        .collect();
    rows.iter()
        .map(|row| {
            let unit = (row.int(0)?, row.int(3)?);
            let others: Vec<(String, bool)> = sources
                .get(&unit.0)
                .map(|all| {
                    all.iter()
                        .filter(|one| one.0 != unit.1)
                        .map(|one| (one.1.clone(), one.2))
                        .collect()
                })
                .unwrap_or_default();
            let state = row.state::<LockState>(5)?;
            let failure = failures.get(&unit).filter(|_| state != LockState::Ok);
            let last_error =
                row.opt_text(10)?.or_else(|| failure.and_then(|failure| failure.error.clone()));
            let did = Did::new(row.text(1)?, row.text(2)?);
            let placeless = reached.contains(&unit.1)
                && state != LockState::Ok
                && row.opt_text(15)?.is_none()
                && !mainstay_transfers::protocol::has_place(&did);
            Ok(CopyOf {
                did,
                rse_id: unit.1,
                rse: row.text(4)?.to_owned(),
                state,
                attempts: row.opt_int(9)?.unwrap_or(0) + row.int(6)?,
                why: match placeless {
                    true => format!(
                        "its name has a part that {}",
                        mainstay_transfers::protocol::NO_PLACE
                    ),
                    false => why(rule, state, row, &others, failure, last_error.as_deref())?,
                },
                last_error,
                last_time: failure.map(|failure| failure.at),
                last_source: row
                    .opt_text(13)?
                    .or_else(|| failure.and_then(|failure| failure.source.clone())),
                sources: others,
            })
        })
        .collect()
}

fn why(
    rule: &Rule,
    state: LockState,
    row: &mainstay_catalog::Row,
    sources: &[(String, bool)],
    failure: Option<&Failure>,
    error: Option<&str>,
) -> Result<String> {
    let before = row.opt_int(12)?.unwrap_or(0) < row.int(11)?;
    let grouped = rule.did_type != DidType::File && rule.grouping != Grouping::None;
    let here = match (before, grouped) {
        (true, _) => "the file was here already",
        (false, true) => "the files of its group are here",
        (false, false) => "it was chosen by weight",
    };
    Ok(match state {
        LockState::Ok => match row.opt_text(14)? {
            None => format!("{here}; the copy is there"),
            Some(reason) => format!(
                "{here}; the copy is under suspicion ({reason}): if it is bad, declare it so, and it is fetched again"
            ),
        },
        LockState::Replicating => {
            let request =
                row.opt_state::<RequestState>(8)?.map_or("not asked for", RequestState::name);
            match error {
                None => format!("{here}; the transfer is {request}"),
                Some(error) => {
                    format!("{here}; the transfer is {request} after it failed ({error})")
                }
            }
        }
        LockState::Stuck => {
            let marked = row.opt_state::<ReplicaState>(7)? == Some(ReplicaState::BeingDeleted);
            let what = match marked {
                true => MARKED.to_owned(),
                false => why_stuck(rule, sources.iter().any(|source| source.1), failure, error),
            };
            format!("{here}; {what}")
        }
    })
}

const MARKED: &str = "it was marked for removal before it was wanted again: the reaper looks within two minutes \
    whether it is still there, and it is fetched anew if not";

fn why_stuck(
    rule: &Rule,
    has_source: bool,
    failure: Option<&Failure>,
    error: Option<&str>,
) -> String {
    const GONE: &str = "no readable copy exists anywhere: register one, or declare the file lost";
    const AGAIN: &str = "it is tried again after a while";
    let how = failure.map(|failure| failure.how);
    let next = if has_source { AGAIN } else { GONE };
    match (how, error, &rule.source_replica_expression) {
        (Some(Ended::Unrequested), error, _) => format!(
            "a transfer was reported as failed ({}) though the copy was not on its way, so that it counts as gone: {next}",
            error.unwrap_or("no reason given")
        ),
        _ if !has_source => GONE.to_owned(),
        (Some(Ended::Cancelled), None, _) => format!("its transfer was cancelled: {AGAIN}"),
        (_, Some(error), _) => format!("the last transfer failed ({error}): {AGAIN}"),
        (_, None, Some(expression)) => format!(
            "no source on {expression} has it: make a copy there, or drop the source expression"
        ),
        (_, None, None) => {
            "the RSE took no writes: open it for writing, or move the rule".to_owned()
        }
    }
}

/// The result of selection for every RSE now, and the reason when too few are left.
fn candidates(
    tx: &mut Tx<'_>,
    rule: &Rule,
    copies: &[CopyOf],
) -> Result<(BTreeMap<String, String>, Option<String>)> {
    let rses = crate::rse::all(tx)?;
    let held: BTreeSet<i64> = copies.iter().map(|copy| copy.rse_id).collect();
    let taken = crate::rse::resolve(tx, &rule.rse_expression).unwrap_or_default();
    let plan = match place::prepare(tx, rule, &mut Ledger::default()) {
        Ok(plan) => Ok(plan),
        Err(Error::Refused(refusal)) => Err(format!("{}: {}", refusal.class, refusal.message)),
        Err(other) => return Err(other),
    };
    let verdicts = match &plan {
        Ok(plan) => plan.selector.explain(&Wish { size: 1, copies: 1, ..Wish::default() }),
        Err(_) => BTreeMap::new(),
    };
    let verdict = |rse: &crate::expression::Rse| match verdicts.get(&rse.id) {
        _ if held.contains(&rse.id) => "holds copies of this rule".to_owned(),
        _ if !taken.contains(&rse.id) => "is not in the expression".to_owned(),
        Some(Verdict::Fits(_)) => "may take a copy".to_owned(),
        Some(Verdict::Excluded(why)) => why.clone(),
        None if !rse.write && !rule.ignore_availability => "takes no writes now".to_owned(),
        None => "has no value for the weight attribute".to_owned(),
    };
    let all = rses.iter().map(|rse| (rse.name.clone(), verdict(rse))).collect();
    Ok((all, plan.err()))
}
