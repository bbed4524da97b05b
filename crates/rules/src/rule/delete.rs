//! Deleting a rule: `delete_replication_rule`, at once or after an hour.
//!
//! A rule with very many locks is deleted in committed steps: it is marked first, any server that
//! finds the mark continues, and its counters are right until the last lock is gone.

use std::collections::BTreeSet;

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::lock_files;
use mainstay_catalog::{Daemon, Tx, values};

use crate::api::{Micros, Rule};
use crate::error::{Class, Error, Result, refuse};
use crate::rule::read::{self, lock_rules};
use crate::rule::{Settings, state};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The rule is gone.
    Gone,
    /// Locks are left: call again.
    More,
}

fn check(rule: &Rule) -> Result<()> {
    if rule.locked {
        let message =
            "The replication rule is locked and has to be unlocked before it can be deleted.";
        return Err(refuse(Class::UnsupportedOperation, message));
    }
    if rule.child_rule_id.is_some() {
        let message = "The replication rule has a child rule and thus cannot be deleted before it is satisfied.";
        return Err(refuse(Class::UnsupportedOperation, message));
    }
    Ok(())
}

/// Deletes a rule, or as many of its locks as fit one transaction. `purge` makes replicas that lose
/// their last lock obsolete at once; `None` means the setting of the rule.
pub fn delete_replication_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    purge: Option<bool>,
    settings: &Settings,
    now: Micros,
) -> Result<Deleted> {
    let rule = read::rule(tx, uuid)?;
    let rule =
        lock_rules(tx, &BTreeSet::from([rule.id]))?.pop().ok_or_else(|| read::not_found(uuid))?;
    if rule.deleted_at.is_none() {
        check(&rule)?;
    }
    remove(tx, rule, purge, settings.step.saturating_mul(5), now)
}

/// Deletes a rule whose row is locked in one step, regardless of its size.
pub(crate) fn delete_whole(
    tx: &mut Tx<'_>,
    rule: Rule,
    purge: Option<bool>,
    now: Micros,
) -> Result<()> {
    remove(tx, rule, purge, i64::MAX, now).map(drop)
}

fn remove(
    tx: &mut Tx<'_>,
    rule: Rule,
    purge: Option<bool>,
    most: i64,
    now: Micros,
) -> Result<Deleted> {
    tx.clear(&["w_units", "w_files"])?;
    let taken = tx.execute(
        "INSERT INTO w_units (did, rse, bytes, lock) SELECT did_id, rse_id, bytes, state FROM locks WHERE rule_id = ?1
         ORDER BY did_id, rse_id LIMIT ?2",
        values![rule.id, most],
    )?;
    let mut ledger = Ledger::default();
    if taken > 0 {
        tx.execute("INSERT INTO w_files (did) SELECT DISTINCT did FROM w_units", &[])?;
        lock_files(tx)?;
        // A transfer may have changed the state of a lock while this transaction waited.
        if tx.is_postgres() {
            tx.execute(
                "UPDATE w_units SET lock = l.state FROM locks l WHERE l.rule_id = ?1 AND l.did_id = w_units.did
                 AND l.rse_id = w_units.rse AND l.state <> w_units.lock",
                values![rule.id],
            )?;
        }
    }
    let counts = crate::rule::unlock::remove_locks(
        tx,
        &rule,
        purge.unwrap_or(rule.purge_replicas),
        &mut ledger,
        now,
    )?;
    if i64::try_from(taken).unwrap_or(i64::MAX) >= most {
        tx.execute(
            "UPDATE rules SET locks_ok_cnt = ?2, locks_replicating_cnt = ?3, locks_stuck_cnt = ?4,
             purge_replicas = ?5, soft_deleted = 1, deleted_at = ?6, updated_at = ?6 WHERE id = ?1",
            values![
                rule.id,
                counts.ok,
                counts.replicating,
                counts.stuck,
                purge.unwrap_or(rule.purge_replicas),
                now
            ],
        )?;
        tx.wake(Daemon::Cleaner);
        ledger.write(tx, now)?;
        return Ok(Deleted::More);
    }
    tx.execute("DELETE FROM dataset_locks WHERE rule_id = ?1", values![rule.id])?;
    // A rule that was to be replaced by this one stays.
    tx.execute(
        "UPDATE rules SET child_rule_id = NULL, expires_at = NULL WHERE child_rule_id = ?1",
        values![rule.id],
    )?;
    state::history(tx, rule.id, "delete", now)?;
    tx.execute("DELETE FROM rules WHERE id = ?1", values![rule.id])?;
    ledger.write(tx, now)?;
    Ok(Deleted::Gone)
}

/// Lets a rule expire in an hour, or earlier if its own expiry is earlier. An equal rule may be
/// added meanwhile.
pub fn expire_replication_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    purge: Option<bool>,
    settings: &Settings,
    now: Micros,
) -> Result<()> {
    let rule = read::rule(tx, uuid)?;
    let rule =
        lock_rules(tx, &BTreeSet::from([rule.id]))?.pop().ok_or_else(|| read::not_found(uuid))?;
    check(&rule)?;
    let soon = now.saturating_add(settings.soft_delete);
    let expires = rule.expires_at.map_or(soon, |at| at.min(soon));
    tx.execute(
        "UPDATE rules SET expires_at = ?2, purge_replicas = ?3, soft_deleted = 1, updated_at = ?4 WHERE id = ?1",
        values![rule.id, expires, purge.unwrap_or(rule.purge_replicas), now],
    )?;
    Ok(())
}

/// Deletes one expired rule, or a step of it. A rule that may not be deleted is left alone.
pub(crate) fn clean(tx: &mut Tx<'_>, id: i64, settings: &Settings, now: Micros) -> Result<Deleted> {
    let Some(rule) = lock_rules(tx, &BTreeSet::from([id]))?.pop() else { return Ok(Deleted::Gone) };
    let due = rule.deleted_at.is_some()
        || (rule.expires_at.is_some_and(|at| at < now)
            && !rule.locked
            && rule.child_rule_id.is_none());
    if !due {
        return Ok(Deleted::Gone);
    }
    remove(tx, rule, None, settings.step.saturating_mul(5), now)
}

/// Approves a rule that waits for approval: the injector applies it, regardless of the quota.
pub fn approve(tx: &mut Tx<'_>, uuid: &str, now: Micros) -> Result<()> {
    let rule = waiting(tx, uuid)?;
    let Some(rule) = rule else { return Ok(()) };
    tx.execute(
        "UPDATE rules SET state = 'I', ignore_account_limit = 1, updated_at = ?2 WHERE id = ?1",
        values![rule.id, now],
    )?;
    state::history(tx, rule.id, "approve", now)?;
    let payload =
        serde_json::json!({"rule_id": rule.uuid, "approved": true, "account": rule.account});
    crate::rule::message::send(tx, "email", &payload, now)?;
    tx.wake(Daemon::Injector);
    Ok(())
}

/// Denies a rule that waits for approval: it is deleted, even if it is locked.
pub fn deny(tx: &mut Tx<'_>, uuid: &str, reason: Option<&str>, now: Micros) -> Result<()> {
    let Some(rule) = waiting(tx, uuid)? else { return Ok(()) };
    let payload = serde_json::json!({
        "rule_id": rule.uuid, "approved": false, "account": rule.account, "reason": reason,
    });
    crate::rule::message::send(tx, "email", &payload, now)?;
    delete_whole(tx, rule, None, now)
}

fn waiting(tx: &mut Tx<'_>, uuid: &str) -> Result<Option<Rule>, Error> {
    let rule = read::rule(tx, uuid)?;
    let rule =
        lock_rules(tx, &BTreeSet::from([rule.id]))?.pop().ok_or_else(|| read::not_found(uuid))?;
    Ok((rule.state == crate::api::RuleState::WaitingApproval).then_some(rule))
}
