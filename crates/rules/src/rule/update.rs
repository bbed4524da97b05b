//! Changes a rule: its options, its RSEs (move), its number of copies (reduce).

use std::collections::BTreeSet;

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{lock_files, lock_tree};
use mainstay_catalog::{Daemon, Tx, values};
use rand::Rng;
use serde_json::{Map, Value};

use crate::api::{
    Counts, Did, DidType, Grouping, HORIZON, Micros, NewRule, Notification, Rule, RuleState,
    SECOND, check_activity,
};
use crate::error::{Class, Error, Result, refuse};
use crate::queue::given_up;
use crate::rule::read::{self, lock_rules};
use crate::rule::{Settings, add, delete, state};

fn invalid(message: impl Into<String>) -> Error {
    refuse(Class::InputValidationError, message)
}

/// The requested changes of a rule.
#[derive(Clone, Copy)]
struct Asked<'a> {
    options: &'a Map<String, Value>,
    /// The rules whose rows are locked.
    rules: &'a [Rule],
    /// The account whose rules may change; none if all may.
    within: Option<&'a str>,
    now: Micros,
}

impl Asked<'_> {
    /// Whether the transfers of the rule are cancelled, even if other rules wait for them.
    fn cancels(&self) -> bool {
        self.options.get("cancel_requests") == Some(&Value::Bool(true))
    }
}

/// Changes options of a rule; all of them or none.
pub fn update_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    options: &Map<String, Value>,
    now: Micros,
) -> Result<()> {
    update(tx, uuid, options, None, now)
}

/// The same for an account that may change only its own rules.
pub fn update_own_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    options: &Map<String, Value>,
    account: &str,
    now: Micros,
) -> Result<()> {
    update(tx, uuid, options, Some(account), now)
}

fn update(
    tx: &mut Tx<'_>,
    uuid: &str,
    options: &Map<String, Value>,
    within: Option<&str>,
    now: Micros,
) -> Result<()> {
    let rule = read::rule(tx, uuid)?;
    let mut ids = BTreeSet::from([rule.id]);
    if let Some(Value::String(child)) = options.get("child_rule_id") {
        ids.insert(read::rule(tx, child)?.id);
    }
    let cancel = options.get("cancel_requests").is_some_and(|value| value == &Value::Bool(true));
    if cancel {
        let sql = "SELECT DISTINCT o.rule_id FROM locks l JOIN locks o ON o.did_id = l.did_id AND o.rse_id = l.rse_id
            WHERE l.rule_id = ?1 AND l.state = 'R'";
        for row in tx.query(sql, values![rule.id])? {
            ids.insert(row.int(0)?);
        }
    }
    let rules = lock_rules(tx, &ids)?;
    for (key, value) in options {
        let Some(rule) = read::rule_by_id(tx, rule.id)? else { return Err(read::not_found(uuid)) };
        let asked = Asked { options, rules: &rules, within, now };
        update_one(tx, &rule, key, value, asked)?;
    }
    tx.execute("UPDATE rules SET updated_at = ?2 WHERE id = ?1", values![rule.id, now])?;
    Ok(())
}

fn set(
    tx: &mut Tx<'_>,
    rule: &Rule,
    column: &str,
    value: impl Into<mainstay_catalog::Value>,
) -> Result<()> {
    let sql = format!("UPDATE rules SET {column} = ?2 WHERE id = ?1");
    tx.execute(&sql, &[rule.id.into(), value.into()])?;
    Ok(())
}

fn text(key: &str, value: &Value, most: usize) -> Result<Option<String>> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.chars().count() <= most => Ok(Some(text.clone())),
        _ => Err(invalid(format!("{key} is a text of at most {most} letters"))),
    }
}

fn number(key: &str, value: &Value) -> Result<Option<i64>> {
    match value {
        Value::Null => Ok(None),
        value => {
            let wrong = || invalid(format!("{key} is a whole number, or null"));
            value.as_i64().map(Some).ok_or_else(wrong)
        }
    }
}

fn flag(key: &str, value: &Value) -> Result<bool> {
    value.as_bool().ok_or_else(|| invalid(format!("{key} is true or false")))
}

fn update_one(
    tx: &mut Tx<'_>,
    rule: &Rule,
    key: &str,
    value: &Value,
    asked: Asked<'_>,
) -> Result<()> {
    let now = asked.now;
    match key {
        "comment" | "comments" => set(tx, rule, "comments", text(key, value, 250)?),
        "locked" => set(tx, rule, "locked", flag(key, value)?),
        "purge_replicas" => set(tx, rule, "purge_replicas", flag(key, value)?),
        "meta" => set(tx, rule, "meta", meta(value)?),
        "lifetime" => {
            let seconds = match value {
                Value::Null => None,
                value => Some(
                    value
                        .as_i64()
                        .filter(|seconds| (-HORIZON..=HORIZON).contains(seconds))
                        .ok_or_else(|| invalid("lifetime is a number of seconds, or null"))?,
                ),
            };
            tx.wake(Daemon::Cleaner);
            revive(tx, rule)?;
            set(tx, rule, "expires_at", seconds.map(|seconds| now + seconds * SECOND))
        }
        "eol_at" => match value {
            Value::Null => set(tx, rule, "eol_at", None::<i64>),
            value => {
                let at = value
                    .as_str()
                    .and_then(read_time)
                    .ok_or_else(|| invalid("eol_at is a date"))?;
                set(tx, rule, "eol_at", at)
            }
        },
        "account" => move_account(tx, rule, value),
        "activity" => change_activity(tx, rule, value, now),
        "source_replica_expression" => {
            let expression = text(key, value, 255)?;
            if let Some(expression) = &expression {
                crate::rule::place::sources(tx, expression)?;
            }
            set(tx, rule, "source_replica_expression", expression)
        }
        "priority" => change_priority(tx, rule, value),
        "state" => change_state(tx, rule, value, asked),
        "cancel_requests" => match asked.options.contains_key("state") {
            true => Ok(()),
            false => Err(invalid("cancel_requests goes with state")),
        },
        "child_rule_id" => change_child(tx, rule, value),
        "boost_rule" if flag(key, value)? => boost(tx, rule),
        "boost_rule" => Ok(()),
        _ => Err(invalid(format!("{key:.40} is not a valid option to set."))),
    }
}

/// Client-defined JSON, stored as text.
pub fn meta(value: &Value) -> Result<Option<String>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.clone(),
        Value::Object(_) => value.to_string(),
        _ => return Err(invalid("meta is an object or a text")),
    };
    if text.chars().count() > 3999 {
        return Err(invalid("meta is at most 3999 letters"));
    }
    Ok(Some(text))
}

/// Parses a date in the formats of clients, or RFC 3339.
pub fn read_time(text: &str) -> Option<Micros> {
    if let Ok(stamp) = text.parse::<jiff::Timestamp>() {
        return Some(stamp.as_microsecond());
    }
    let formats = [
        "%a, %d %b %Y %H:%M:%S UTC",
        "%Y-%m-%dT%H:%M:%S",
        "%Y-%m-%d %H:%M:%S",
        "%Y-%m-%dT%H:%M:%S%.f",
        "%Y-%m-%d %H:%M:%S%.f",
        "%Y-%m-%d",
    ];
    let civil = formats.iter().find_map(|format| {
        let parsed = jiff::fmt::strtime::parse(format, text).ok()?;
        parsed.to_datetime().or_else(|_| parsed.to_date().map(Into::into)).ok()
    })?;
    // The last supported day has no timestamp, but is a valid date.
    let since =
        civil.duration_since(jiff::civil::date(1970, 1, 1).to_datetime(jiff::civil::Time::MIN));
    i64::try_from(since.as_micros()).ok()
}

/// Fails when the account has another rule with the same key.
fn check_key(tx: &mut Tx<'_>, rule: &Rule, account: &str) -> Result<()> {
    let key = "SELECT 1 FROM rules WHERE did_id = ?1 AND account = ?2 AND rse_expression = ?3 AND copies = ?4
        AND soft_deleted = 0 AND id <> ?5";
    let params = values![rule.did_id, account, &rule.rse_expression, rule.copies, rule.id].to_vec();
    if tx.first(key, &params)?.is_some() {
        return Err(refuse(Class::DuplicateRule, format!("{account} has such a rule already")));
    }
    Ok(())
}

/// Cancels the deletion of a rule that gets another lifetime, unless an equal rule was added
/// meanwhile.
fn revive(tx: &mut Tx<'_>, rule: &Rule) -> Result<()> {
    check_key(tx, rule, &rule.account)?;
    tx.execute(
        "UPDATE rules SET soft_deleted = 0 WHERE id = ?1 AND deleted_at IS NULL",
        values![rule.id],
    )?;
    Ok(())
}

fn move_account(tx: &mut Tx<'_>, rule: &Rule, value: &Value) -> Result<()> {
    let account = value.as_str().ok_or_else(|| invalid("account is a name"))?;
    crate::account::check_exists(tx, account)?;
    if account == rule.account {
        return Ok(());
    }
    let sql = "SELECT rse_id, COUNT(*), CAST(SUM(bytes) AS BIGINT) FROM locks WHERE rule_id = ?1 GROUP BY rse_id";
    let mut ledger = Ledger::default();
    for row in tx.query(sql, values![rule.id])? {
        ledger.use_more(&rule.account, row.int(0)?, -row.int(1)?, -row.int(2)?);
        ledger.use_more(account, row.int(0)?, row.int(1)?, row.int(2)?);
    }
    check_key(tx, rule, account)?;
    set(tx, rule, "account", account)?;
    Ok(ledger.write(tx, rule.updated_at)?)
}

/// Loads the files of a rule's locks in one state into `w_files` and locks them.
fn hold(tx: &mut Tx<'_>, rule: i64, state: &str) -> Result<()> {
    tx.clear(&["w_files", "w_units"])?;
    let sql = "INSERT INTO w_files (did) SELECT DISTINCT did_id FROM locks WHERE rule_id = ?1 AND state = ?2";
    tx.execute(sql, values![rule, state])?;
    lock_files(tx)?;
    Ok(())
}

fn change_activity(tx: &mut Tx<'_>, rule: &Rule, value: &Value, now: Micros) -> Result<()> {
    let activity = text("activity", value, 50)?.ok_or_else(|| invalid("activity is a text"))?;
    check_activity(&activity)?;
    hold(tx, rule.id, "R")?;
    set(tx, rule, "activity", activity.as_str())?;
    // Running transfers start again under the new activity.
    let these = "(did_id, dest_rse_id) IN (SELECT did_id, rse_id FROM locks WHERE rule_id = ?2 AND state = 'R')";
    given_up::remember(tx, these, values![now, rule.id])?;
    let sql = format!(
        "UPDATE requests SET activity = ?3, state = 'Q', external_id = NULL, submitted_at = NULL, updated_at = ?1
         WHERE {these} AND state IN ('Q', 'G', 'S')"
    );
    tx.execute(&sql, values![now, rule.id, activity])?;
    Ok(())
}

fn change_priority(tx: &mut Tx<'_>, rule: &Rule, value: &Value) -> Result<()> {
    let priority = value.as_i64().filter(|priority| (1..=5).contains(priority));
    let priority = priority.ok_or_else(|| invalid("priority is a number from 1 to 5"))?;
    hold(tx, rule.id, "R")?;
    set(tx, rule, "priority", priority)?;
    tx.execute(
        "UPDATE requests SET priority = ?2 WHERE (did_id, dest_rse_id) IN (
         SELECT did_id, rse_id FROM locks WHERE rule_id = ?1 AND state = 'R')",
        values![rule.id, priority],
    )?;
    Ok(())
}

fn change_state(tx: &mut Tx<'_>, rule: &Rule, value: &Value, asked: Asked<'_>) -> Result<()> {
    let now = asked.now;
    if rule.state == RuleState::WaitingApproval {
        let message = "The rule waits for approval: approve it, or deny it";
        return Err(refuse(Class::UnsupportedOperation, message));
    }
    match value.as_str().and_then(RuleState::read) {
        Some(RuleState::Suspended) => {
            let by = Rule {
                state: RuleState::Suspended,
                suspended_by: Some("user".to_owned()),
                ..rule.clone()
            };
            state::settle(tx, &by, rule.counts, !rule.incomplete, None, now)?;
            state::entered(tx, rule, RuleState::Suspended, now)
        }
        Some(RuleState::Stuck) => {
            hold(tx, rule.id, "R")?;
            tx.execute(
                "INSERT INTO w_units (did, rse, bytes, lock) SELECT did_id, rse_id, bytes, state FROM locks
                 WHERE rule_id = ?1 AND state = 'R'",
                values![rule.id],
            )?;
            if asked.cancels() {
                if let Some(account) = asked.within {
                    check_alone(tx, account)?;
                }
                return cancel_all(tx, asked.rules, now);
            }
            make_stuck(tx, rule, now)
        }
        _ => Err(invalid("A rule's state can be set to SUSPENDED or STUCK")),
    }
}

/// Turns the replicating locks of one rule STUCK. A replica that no other rule waits for is given
/// up.
fn make_stuck(tx: &mut Tx<'_>, rule: &Rule, now: Micros) -> Result<()> {
    let sql = "UPDATE locks SET state = 'S', updated_at = ?2 WHERE rule_id = ?1 AND state = 'R'";
    let moved = i64::try_from(tx.execute(sql, values![rule.id, now])?).unwrap_or(0);
    let alone = "(SELECT u.did, u.rse FROM w_units u WHERE NOT EXISTS (SELECT 1 FROM locks o WHERE o.did_id = u.did
        AND o.rse_id = u.rse AND o.state = 'R'))";
    let sql = format!(
        "UPDATE replicas SET state = 'U', updated_at = ?1 WHERE state = 'C' AND (did_id, rse_id) IN {alone}"
    );
    tx.execute(&sql, values![now])?;
    crate::rule::unlock::archive(tx, alone, "'X'", now)?;
    let counts = Counts {
        replicating: rule.counts.replicating - moved,
        stuck: rule.counts.stuck + moved,
        ..rule.counts
    };
    // A rule set to STUCK by a user is STUCK even if all its locks are OK; the repairer checks all
    // of it.
    let active = Rule { state: RuleState::Replicating, suspended_by: None, ..rule.clone() };
    state::settle(tx, &active, counts, false, Some("Set to STUCK by hand"), now)?;
    Ok(())
}

/// Fails if a rule of another account waits for a transfer in `w_units`. The files are locked, so
/// no such rule can be added meanwhile.
fn check_alone(tx: &mut Tx<'_>, account: &str) -> Result<()> {
    let sql =
        "SELECT 1 FROM w_units u LOOKUP JOIN locks o ON (o.did_id = u.did AND o.rse_id = u.rse)
        JOIN rules r ON r.id = o.rule_id WHERE r.account <> ?1 LIMIT 1";
    if tx.first(sql, values![account])?.is_none() {
        return Ok(());
    }
    let message = format!("Account {account} can not cancel transfers that others wait for");
    Err(refuse(Class::AccessDenied, message))
}

/// Cancels the transfers in `w_units`: every rule that waited for one becomes STUCK.
fn cancel_all(tx: &mut Tx<'_>, rules: &[Rule], now: Micros) -> Result<()> {
    let mut units: Vec<(i64, i64)> = Vec::new();
    for row in tx.query("SELECT did, rse FROM w_units", &[])? {
        units.push((row.int(0)?, row.int(1)?));
    }
    if units.is_empty() {
        return match rules.first() {
            Some(rule) => make_stuck(tx, rule, now),
            None => Ok(()),
        };
    }
    let these = "(did_id, dest_rse_id) IN (SELECT did, rse FROM w_units)";
    given_up::remember(tx, these, values![now])?;
    crate::rule::transfer::failed_transfer(tx, &units, "Cancelled by hand", None, now)
}

fn change_child(tx: &mut Tx<'_>, rule: &Rule, value: &Value) -> Result<()> {
    let child = text("child_rule_id", value, 60)?;
    let Some(child) = child else {
        if rule.child_rule_id.is_none() {
            return Err(invalid("Cannot detach child when no such relationship exists"));
        }
        return Ok(tx
            .execute(
                "UPDATE rules SET child_rule_id = NULL, expires_at = NULL WHERE id = ?1",
                values![rule.id],
            )
            .map(drop)?);
    };
    let child = read::rule(tx, &child)?;
    if child.did_id != rule.did_id {
        return Err(invalid("Parent and child rule must be set on the same dataset."));
    }
    if child.id == rule.id {
        return Err(invalid("Cannot set child rule to itself"));
    }
    if child.state != RuleState::Ok {
        set(tx, rule, "child_rule_id", child.id)?;
    }
    Ok(())
}

/// Lets the repairer process the rule and its stuck locks as if a day had passed.
fn boost(tx: &mut Tx<'_>, rule: &Rule) -> Result<()> {
    let day = 86_400 * SECOND;
    tx.execute("UPDATE rules SET repair_at = repair_at - ?2 WHERE id = ?1", values![rule.id, day])?;
    let sql = "UPDATE locks SET updated_at = updated_at - ?2 WHERE rule_id = ?1 AND state = 'S'";
    tx.execute(sql, values![rule.id, day])?;
    tx.wake(Daemon::Repairer);
    Ok(())
}

/// A new rule with the settings of an old one.
pub(crate) fn as_new(rule: &Rule, dids: Vec<Did>, now: Micros) -> NewRule {
    NewRule {
        grouping: rule.grouping,
        weight: rule.weight.clone(),
        lifetime: rule.expires_at.map(|at| (at - now) / SECOND),
        locked: rule.locked,
        source_replica_expression: rule.source_replica_expression.clone(),
        activity: rule.activity.clone(),
        notify: rule.notification,
        purge_replicas: rule.purge_replicas,
        ignore_availability: rule.ignore_availability,
        ignore_account_limit: rule.ignore_account_limit,
        comment: rule.comments.clone(),
        priority: rule.priority,
        split_container: rule.split_container,
        meta: rule.meta.clone(),
        eol_at: rule.eol_at,
        subscription_id: rule.subscription_id.clone(),
        ..NewRule::new(dids, rule.account.clone(), rule.copies, rule.rse_expression.clone())
    }
}

fn override_with(new: &mut NewRule, overrides: &Map<String, Value>) -> Result<()> {
    let unsupported =
        |key: &str| refuse(Class::UnsupportedOperation, format!("Cannot override {key:.40}"));
    for (key, value) in overrides {
        let wrong = || invalid(format!("{key:.40} has a value of the wrong kind"));
        match key.as_str() {
            "account" => new.account = value.as_str().ok_or_else(wrong)?.to_owned(),
            "copies" => new.copies = value.as_i64().ok_or_else(wrong)?,
            "activity" => {
                new.activity = value.as_str().ok_or_else(wrong)?.to_owned();
                check_activity(&new.activity)?;
            }
            "grouping" => {
                let said = text(key, value, 50)?.and_then(|text| Grouping::read(&text));
                new.grouping = said.unwrap_or(Grouping::Dataset);
            }
            "weight" => new.weight = text(key, value, 255)?,
            "lifetime" => new.lifetime = number(key, value)?,
            "locked" => new.locked = flag(key, value)?,
            "source_replica_expression" => new.source_replica_expression = text(key, value, 255)?,
            "notify" => {
                new.notify = value.as_str().and_then(Notification::read).ok_or_else(wrong)?
            }
            "purge_replicas" => new.purge_replicas = flag(key, value)?,
            "ignore_availability" => new.ignore_availability = flag(key, value)?,
            "ignore_account_limit" => new.ignore_account_limit = flag(key, value)?,
            "comment" => new.comment = text(key, value, 250)?,
            "ask_approval" => new.ask_approval = flag(key, value)?,
            "asynchronous" => new.asynchronous = flag(key, value)?,
            "delay_injection" => new.delay_injection = number(key, value)?,
            "priority" => new.priority = value.as_i64().ok_or_else(wrong)?,
            "split_container" => new.split_container = flag(key, value)?,
            "meta" => new.meta = meta(value)?,
            _ => return Err(unsupported(key)),
        }
    }
    Ok(())
}

/// Locks the rows needed to replace a rule, in order, and reads the rule.
fn hold_to_replace(tx: &mut Tx<'_>, uuid: &str) -> Result<Rule> {
    let rule = read::rule(tx, uuid)?;
    if rule.did_type != DidType::File {
        lock_tree(tx, &[], &[rule.did_id])?;
    }
    lock_rules(tx, &BTreeSet::from([rule.id]))?.pop().ok_or_else(|| read::not_found(uuid))
}

/// The target of a move.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The new expression.
    pub expression: &'a str,
    /// Other fields of the new rule that differ.
    pub overrides: &'a Map<String, Value>,
    /// Whether the caller may add locked rules and rules without quota.
    pub privileged: bool,
}

/// Moves a rule to another expression: a new rule is added, and the old one is deleted once it is
/// OK.
pub fn move_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    to: &Move<'_>,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<String> {
    let rule = hold_to_replace(tx, uuid)?;
    if rule.child_rule_id.is_some() {
        return Err(refuse(Class::RuleReplaceFailed, "The rule must not have a child rule."));
    }
    if rule.state == RuleState::WaitingApproval {
        let message = "The rule waits for approval, which is for where it is.";
        return Err(refuse(Class::RuleReplaceFailed, message));
    }
    let mut new = as_new(&rule, vec![rule.did.clone()], now);
    if !to.privileged {
        // Both were granted for the former RSEs.
        (new.locked, new.ignore_account_limit) = (false, false);
    }
    new.rse_expression = to.expression.to_owned();
    override_with(&mut new, to.overrides)?;
    let made = add::add_replication_rule(tx, &new, settings, rng, now)?;
    let made = made.into_iter().next().unwrap_or_default();
    let child = read::rule(tx, &made)?;
    if child.state != RuleState::Ok {
        set(tx, &rule, "child_rule_id", child.id)?;
    }
    set(tx, &rule, "expires_at", now)?;
    tx.wake(Daemon::Cleaner);
    Ok(made)
}

/// Reduces the copies of a rule that is OK: a new rule takes over copies that are there already.
pub fn reduce_rule(
    tx: &mut Tx<'_>,
    uuid: &str,
    copies: i64,
    exclude: Option<&str>,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<String> {
    let rule = hold_to_replace(tx, uuid)?;
    let failed = |message: &str| refuse(Class::RuleReplaceFailed, message);
    if rule.state != RuleState::Ok {
        return Err(failed("The source rule must be in state OK."));
    }
    if copies >= rule.copies {
        return Err(failed("Copies of the new rule must be smaller than the original ones."));
    }
    let mut new = as_new(&rule, vec![rule.did.clone()], now);
    new.copies = copies;
    new.rse_expression = match exclude {
        Some(exclude) => format!("({})\\({exclude})", rule.rse_expression),
        None => rule.rse_expression.clone(),
    };
    let made = add::add_replication_rule(tx, &new, settings, rng, now)?;
    let made = made.into_iter().next().unwrap_or_default();
    if read::rule(tx, &made)?.state != RuleState::Ok {
        return Err(failed("The replacement of the rule failed."));
    }
    delete::delete_whole(tx, rule, None, now)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_in_all_formats_of_clients() {
        let at = 1_794_780_174 * SECOND;
        for (text, meant) in [
            ("2026-11-15T22:02:54Z", Some(at)),
            ("Sun, 15 Nov 2026 22:02:54 UTC", Some(at)),
            ("2026-11-15T22:02:54", Some(at)),
            ("2026-11-15 22:02:54", Some(at)),
            ("2026-11-15 22:02:54.250000", Some(at + 250_000)),
            ("1970-01-02", Some(86_400 * SECOND)),
            ("9999-12-31T23:59:59", Some(253_402_300_799 * SECOND)),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(read_time(text), meant, "{text}");
        }
    }
}
