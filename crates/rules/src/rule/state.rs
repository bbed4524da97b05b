//! Writes the state of a rule that follows from its locks, with all consequences.

use mainstay_catalog::{Daemon, Tx, values};

use crate::api::{Counts, Micros, Rule, RuleState};
use crate::decide;
use crate::error::Result;
use crate::rule::message;

/// Appends the rule to its history.
pub(crate) fn history(tx: &mut Tx<'_>, rule: i64, event: &str, now: Micros) -> Result<()> {
    tx.later(
        "INSERT INTO rules_history (rule_uuid, did_id, event, account, rse_expression, copies, state, locks_ok_cnt,
         locks_replicating_cnt, locks_stuck_cnt, created_at, updated_at)
         SELECT uuid, did_id, ?2, account, rse_expression, copies, state, locks_ok_cnt, locks_replicating_cnt,
         locks_stuck_cnt, created_at, ?3 FROM rules WHERE id = ?1",
        values![rule, event, now],
    )?;
    Ok(())
}

/// Writes the counters of a locked rule and the state that follows from them. `rule` is the rule
/// before the change; `error` is the reason why it is incomplete or stuck, if that is new.
pub(crate) fn settle(
    tx: &mut Tx<'_>,
    rule: &Rule,
    counts: Counts,
    complete: bool,
    error: Option<&str>,
    now: Micros,
) -> Result<RuleState> {
    let state = decide::settle(rule, counts, complete);
    let stuck = matches!(state, RuleState::Stuck | RuleState::Suspended);
    let error = match (stuck, error) {
        (false, _) => None,
        (true, Some(error)) => Some(decide::clip(error, 248)),
        (true, None) => rule
            .error
            .clone()
            .or_else(|| (state == RuleState::Stuck).then(|| "MissingSourceReplica".to_owned())),
    };
    // The repairer counts from the first failure until all copies exist, not from the last state
    // change.
    let stuck_at = match state {
        RuleState::Ok => None,
        RuleState::Stuck => rule.stuck_at.or(Some(now)),
        _ => rule.stuck_at,
    };
    let newly_stuck = state == RuleState::Stuck && rule.state != RuleState::Stuck;
    let repair_at = if newly_stuck { now } else { rule.repair_at };
    let suspended_by = if state == RuleState::Suspended { rule.suspended_by.clone() } else { None };
    tx.later(
        "UPDATE rules SET state = ?2, locks_ok_cnt = ?3, locks_replicating_cnt = ?4, locks_stuck_cnt = ?5, error = ?6,
         stuck_at = ?7, incomplete = ?8, repair_at = ?9, suspended_by = ?10, updated_at = ?11 WHERE id = ?1",
        values![
            rule.id,
            state.letter(),
            counts.ok,
            counts.replicating,
            counts.stuck,
            error,
            stuck_at,
            !complete,
            repair_at,
            suspended_by,
            now
        ],
    )?;
    if newly_stuck {
        tx.wake(Daemon::Repairer);
    }
    message::progress(tx, rule, counts, now)?;
    if state == rule.state {
        return Ok(state);
    }
    entered(tx, rule, state, now)?;
    Ok(state)
}

/// Handles the change of a rule to another state: updates its dataset locks, sends messages, and
/// releases rules that wait for it.
pub(crate) fn entered(tx: &mut Tx<'_>, rule: &Rule, state: RuleState, now: Micros) -> Result<()> {
    let lock = match state {
        RuleState::Ok => "O",
        RuleState::Replicating | RuleState::Inject | RuleState::WaitingApproval => "R",
        RuleState::Stuck | RuleState::Suspended => "S",
    };
    if rule.did_type != crate::api::DidType::File {
        let sql = "UPDATE dataset_locks SET state = ?2 WHERE rule_id = ?1 AND state <> ?2";
        tx.later(sql, values![rule.id, lock])?;
    }
    history(tx, rule.id, "state", now)?;
    if state == RuleState::Ok {
        message::rule_ok(tx, rule, now)?;
        release_parents(tx, rule.id)?;
    }
    Ok(())
}

/// Releases the rules that waited for this one.
pub(crate) fn release_parents(tx: &mut Tx<'_>, rule: i64) -> Result<()> {
    let sql = "UPDATE rules SET child_rule_id = NULL WHERE child_rule_id = ?1";
    if tx.execute(sql, values![rule])? > 0 {
        tx.wake(Daemon::Cleaner);
    }
    Ok(())
}
