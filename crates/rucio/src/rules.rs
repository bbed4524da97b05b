//! Handles `/rules` and `/locks`: adds, lists, changes, moves and deletes rules, and lists locks.

use std::collections::BTreeMap;

use mainstay_catalog::{Tx, values};
use mainstay_rules::api::{
    DEFAULT_ACTIVITY, Did, Grouping, LockState, NewRule, Notification, Rule, RuleState,
    check_activity,
};
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::rule::read::{self, DatasetLocksOf, Filter};
use mainstay_rules::rule::update::{self, Move};
use mainstay_rules::rule::{add, delete};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::{Call, Reply, show};

fn wrong(key: &str, should: &str) -> mainstay_rules::error::Error {
    refuse(Class::InvalidObject, format!("Problem validating rule: {key} should be {should}"))
}

fn text(body: &Map<String, Value>, key: &str) -> Result<Option<String>> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(key, "a text")),
    }
}

fn flag(body: &Map<String, Value>, key: &str) -> Result<bool> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong(key, "true or false")),
    }
}

fn number(body: &Map<String, Value>, key: &str) -> Result<Option<i64>> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            mainstay_rules::api::whole(value).map(Some).ok_or_else(|| wrong(key, "a whole number"))
        }
    }
}

/// Reads a list of names.
pub(super) fn dids(value: Option<&Value>) -> Result<Vec<Did>> {
    let wrong = || super::wrong("The names should be a list of objects with a scope and a name");
    let list = value.and_then(Value::as_array).ok_or_else(wrong)?;
    let did = |value: &Value| {
        let part = |key: &str| value.get(key).and_then(Value::as_str);
        Some(Did::new(part("scope")?, part("name")?))
    };
    list.iter().map(|value| did(value).ok_or_else(wrong)).collect()
}

/// Reads a new rule from a request.
pub(super) fn new_rule(body: &Map<String, Value>, caller: &str) -> Result<NewRule> {
    let activity = text(body, "activity")?.unwrap_or_else(|| DEFAULT_ACTIVITY.to_owned());
    check_activity(&activity)?;
    let notify = match text(body, "notify")? {
        None => Notification::No,
        Some(text) => Notification::read(&text).ok_or_else(|| wrong("notify", "Y, N, C or P"))?,
    };
    let account = text(body, "account")?.unwrap_or_else(|| caller.to_owned());
    let copies = number(body, "copies")?.ok_or_else(|| wrong("copies", "a whole number"))?;
    let expression =
        text(body, "rse_expression")?.ok_or_else(|| wrong("rse_expression", "a text"))?;
    Ok(NewRule {
        grouping: text(body, "grouping")?
            .and_then(|text| Grouping::read(&text))
            .unwrap_or(Grouping::Dataset),
        weight: text(body, "weight")?,
        lifetime: number(body, "lifetime")?,
        locked: flag(body, "locked")?,
        source_replica_expression: text(body, "source_replica_expression")?,
        activity,
        notify,
        purge_replicas: flag(body, "purge_replicas")?,
        ignore_availability: flag(body, "ignore_availability")?,
        ignore_account_limit: false,
        comment: text(body, "comment")?,
        ask_approval: flag(body, "ask_approval")?,
        asynchronous: flag(body, "asynchronous")?,
        delay_injection: number(body, "delay_injection")?,
        priority: number(body, "priority")?.unwrap_or(3),
        split_container: flag(body, "split_container")?,
        meta: body.get("meta").map(update::meta).transpose()?.flatten(),
        subscription_id: text(body, "subscription_id")?,
        eol_at: None,
        ..NewRule::new(dids(body.get("dids"))?, account, copies, expression)
    })
}

/// Fails unless the caller may add this rule; every path that adds rules checks it.
pub(super) fn may_add(call: &Call, new: &NewRule) -> Result<()> {
    call.owner_or_privileged("add a rule for another account", &new.account)?;
    if new.locked {
        call.privileged("add a locked rule")?;
    }
    Ok(())
}

pub(super) async fn add_rule(call: &Call) -> Result<Reply> {
    let new = new_rule(call.object()?, &call.caller.account)?;
    may_add(call, &new)?;
    let (now, seed, settings) =
        (call.now(), call.service.around.seed(), call.service.settings.clone());
    let made = call
        .write(move |tx| {
            add::add_replication_rule(tx, &new, &settings, &mut SmallRng::seed_from_u64(seed), now)
        })
        .await?;
    Ok(Reply::Created(json!(made).to_string()))
}

pub(super) fn list(call: &Call) -> Result<Reply> {
    let filter = call
        .query
        .iter()
        .try_fold(Filter::default(), |filter, (key, text)| filter.and(key, text))?;
    Ok(stream(filter))
}

/// Streams the rules that match a filter.
pub(super) fn stream(filter: Filter) -> Reply {
    Reply::Lines(Box::new(move |tx, line| {
        // Few rules have a child, so all their ids are read first.
        let rows = tx.query(
            "SELECT p.id, c.uuid FROM rules p JOIN rules c ON c.id = p.child_rule_id",
            &[],
        )?;
        let children: BTreeMap<i64, String> = rows
            .iter()
            .map(|row| Ok((row.int(0)?, row.text(1)?.to_owned())))
            .collect::<Result<_>>()?;
        read::list(tx, &filter, &mut |rule| {
            let child = children.get(&rule.id).map_or(Value::Null, |uuid| json!(uuid));
            let mut shown = show::rule(&rule, child);
            shown.insert("bytes".to_owned(), Value::Null);
            line(Value::Object(shown).to_string())
        })
    }))
}

pub(super) async fn get(call: &Call, id: &str) -> Result<Reply> {
    let id = id.to_owned();
    let shown = call
        .read(move |tx| {
            let rule = read::rule(tx, &id)?;
            let child = show::uuid_of(tx, rule.child_rule_id)?;
            Ok(Value::Object(show::rule(&rule, child)))
        })
        .await?;
    Ok(Reply::Json(shown))
}

/// The rule, if the caller may change it.
async fn owned(call: &Call, id: &str, what: &str) -> Result<Rule> {
    let id = id.to_owned();
    let rule = call.read(move |tx| read::rule(tx, &id)).await?;
    call.owner_or_privileged(what, &rule.account)?;
    Ok(rule)
}

pub(super) async fn put(call: &Call, id: &str) -> Result<Reply> {
    let options =
        call.field("options")?.as_object().cloned().ok_or_else(|| wrong("options", "an object"))?;
    let (id, now) = (id.to_owned(), call.now());
    if let Some(approve) = options.get("approve") {
        call.privileged("approve or deny a rule")?;
        let approve = approve.as_bool().ok_or_else(|| wrong("approve", "true or false"))?;
        let reason = text(&options, "comment")?;
        call.write(move |tx| match approve {
            true => delete::approve(tx, &id, now),
            false => delete::deny(tx, &id, reason.as_deref(), now),
        })
        .await?;
        return Ok(Reply::Done);
    }
    owned(call, &id, "update a rule").await?;
    if options.contains_key("account")
        || options.contains_key("locked")
        || options.contains_key("boost_rule")
    {
        call.privileged("change the account, the lock or the urgency of a rule")?;
    }
    let caller = call.caller.clone();
    call.write(move |tx| match caller.privileged {
        true => update::update_rule(tx, &id, &options, now),
        false => update::update_own_rule(tx, &id, &options, &caller.account, now),
    })
    .await?;
    Ok(Reply::Done)
}

pub(super) async fn remove(call: &Call, id: &str) -> Result<Reply> {
    owned(call, id, "delete a rule").await?;
    let purge = super::flag(&call.body, "purge_replicas")?;
    let at_once = super::flag(&call.body, "immediately")?.unwrap_or(false);
    let (id, now, settings) = (id.to_owned(), call.now(), call.service.settings.clone());
    if !at_once {
        call.write(move |tx| delete::expire_replication_rule(tx, &id, purge, &settings, now))
            .await?;
        return Ok(Reply::Done);
    }
    loop {
        let (id, settings) = (id.clone(), settings.clone());
        let step = call
            .write(move |tx| delete::delete_replication_rule(tx, &id, purge, &settings, now))
            .await?;
        if step == delete::Deleted::Gone {
            return Ok(Reply::Done);
        }
    }
}

pub(super) async fn move_rule(call: &Call, id: &str) -> Result<Reply> {
    owned(call, id, "move a rule").await?;
    let expression = call.text("rse_expression")?;
    let overrides = match call.body.get("override") {
        None | Some(Value::Null) => Map::new(),
        Some(value) => value.as_object().cloned().ok_or_else(|| wrong("override", "an object"))?,
    };
    if overrides.contains_key("account") {
        call.privileged("move a rule to another account")?;
    }
    for key in ["locked", "ignore_account_limit"] {
        if overrides.get(key).is_some_and(|value| *value != Value::Bool(false)) {
            call.privileged("lock a rule or lift its limits by moving it")?;
        }
    }
    let privileged = call.caller.privileged;
    let (id, now, seed, settings) =
        (id.to_owned(), call.now(), call.service.around.seed(), call.service.settings.clone());
    let made = call
        .write(move |tx| {
            let mut rng = SmallRng::seed_from_u64(seed);
            let to = Move { expression: &expression, overrides: &overrides, privileged };
            update::move_rule(tx, &id, &to, &settings, &mut rng, now)
        })
        .await?;
    Ok(Reply::Created(json!(made).to_string()))
}

pub(super) async fn reduce(call: &Call, id: &str) -> Result<Reply> {
    owned(call, id, "reduce a rule").await?;
    let copies = call.number("copies")?;
    let exclude = text(call.object()?, "exclude_expression")?;
    let (id, now, seed, settings) =
        (id.to_owned(), call.now(), call.service.around.seed(), call.service.settings.clone());
    let made = call
        .write(move |tx| {
            let mut rng = SmallRng::seed_from_u64(seed);
            update::reduce_rule(tx, &id, copies, exclude.as_deref(), &settings, &mut rng, now)
        })
        .await?;
    // The stock client takes only 200 here.
    Ok(Reply::Json(json!(made)))
}

fn rse_uuids(tx: &mut Tx<'_>) -> Result<BTreeMap<i64, String>> {
    Ok(mainstay_rules::rse::all(tx)?.iter().map(|rse| (rse.id, rse.uuid.clone())).collect())
}

pub(super) fn locks_of(id: &str) -> Reply {
    let id = id.to_owned();
    Reply::Lines(Box::new(move |tx, line| {
        let rule = read::rule(tx, &id)?;
        let uuids = rse_uuids(tx)?;
        let uuid = |rse: i64| uuids.get(&rse).map_or("", String::as_str);
        read::locks(tx, &rule, &mut |lock| line(show::lock(&lock, uuid(lock.rse_id))))
    }))
}

pub(super) async fn history(call: &Call, id: &str) -> Result<Reply> {
    let uuid = read::plain(id);
    let lines = call.read(move |tx| history_where(tx, "rule_uuid = ?1", values![&uuid])).await?;
    if lines.is_empty() {
        return Err(read::not_found(id));
    }
    Ok(lines_reply(lines))
}

pub(super) async fn did_history(call: &Call, did: Did) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let id = mainstay_rules::did::get(tx, &did)?.id;
            history_where(tx, "did_id = ?1 AND event IN ('create', 'delete')", values![id])
        })
        .await?;
    Ok(lines_reply(lines))
}

fn history_where(
    tx: &mut Tx<'_>,
    condition: &str,
    params: &[mainstay_catalog::Value],
) -> Result<Vec<String>> {
    let sql = format!(
        "SELECT rule_uuid, created_at, updated_at, rse_expression, state, account, locks_ok_cnt, locks_stuck_cnt,
         locks_replicating_cnt FROM rules_history WHERE {condition} ORDER BY id"
    );
    let rows = tx.query(&sql, params)?;
    let shown = rows.iter().map(|row| {
        let value = json!({
            "rule_id": row.text(0)?, "created_at": mainstay_rules::api::show_time(row.int(1)?),
            "updated_at": mainstay_rules::api::show_time(row.int(2)?), "rse_expression": row.text(3)?,
            "state": row.state::<RuleState>(4)?, "account": row.text(5)?, "locks_ok_cnt": row.int(6)?,
            "locks_stuck_cnt": row.int(7)?, "locks_replicating_cnt": row.int(8)?,
        });
        Ok(value.to_string())
    });
    shown.collect()
}

/// A reply of lines that are already in memory.
pub(super) fn lines_reply(lines: Vec<String>) -> Reply {
    Reply::Lines(Box::new(move |_, line| lines.iter().try_for_each(|text| line(text.clone()))))
}

pub(super) async fn analysis(call: &Call, id: &str) -> Result<Reply> {
    let id = id.to_owned();
    let value = call
        .read(move |tx| {
            let rule = read::rule(tx, &id)?;
            let why = mainstay_rules::explain::explain(tx, &rule, None, 1_000)?;
            let uuids = rse_uuids(tx)?;
            let transfers: Vec<Value> = why
                .copies
                .iter()
                .filter(|copy| copy.state == LockState::Stuck)
                .map(|copy| {
                    json!({
                        "scope": copy.did.scope, "name": copy.did.name, "rse": copy.rse,
                        "rse_id": uuids.get(&copy.rse_id), "attempts": copy.attempts, "last_error": copy.last_error,
                        "last_source": copy.last_source, "last_time": show::time(copy.last_time),
                        "sources": copy.sources.iter().map(|(rse, available)| json!([rse, available])).collect::<Vec<_>>(),
                    })
                })
                .collect();
            let error = rule.error.unwrap_or_else(|| {
                format!("This replication rule is currently {}", rule.state)
            });
            Ok(json!({"rule_error": error, "transfers": transfers}))
        })
        .await?;
    Ok(Reply::Json(value))
}

/// Fails if the request asks for other locks than dataset locks.
fn check_lock_type(call: &Call) -> Result<()> {
    if call.arg("did_type").is_some_and(|kind| !kind.eq_ignore_ascii_case("dataset")) {
        return Err(super::wrong("did_type should be dataset: only dataset locks are listed"));
    }
    Ok(())
}

/// The dataset locks on an RSE.
pub(super) async fn locks_on(call: &Call, rse: String) -> Result<Reply> {
    check_lock_type(call)?;
    let lines = call.read(move |tx| {
        let of = DatasetLocksOf::Rse(mainstay_rules::rse::by_name(tx, &rse)?.id);
        dataset_lock_lines(tx, of)
    });
    Ok(lines_reply(lines.await?))
}

/// The locks of a dataset.
pub(super) async fn locks_of_did(call: &Call, did: Did) -> Result<Reply> {
    check_lock_type(call)?;
    let lines = call.read(move |tx| {
        let of = DatasetLocksOf::Dataset(mainstay_rules::did::get(tx, &did)?.id);
        dataset_lock_lines(tx, of)
    });
    Ok(lines_reply(lines.await?))
}

fn dataset_lock_lines(tx: &mut Tx<'_>, of: DatasetLocksOf) -> Result<Vec<String>> {
    let uuids = rse_uuids(tx)?;
    let uuid = |rse: i64| uuids.get(&rse).map_or("", String::as_str);
    Ok(read::dataset_locks(tx, of)?
        .iter()
        .map(|lock| show::dataset_lock(lock, uuid(lock.rse_id)))
        .collect())
}

pub(super) async fn bulk_locks(call: &Call) -> Result<Reply> {
    check_lock_type(call)?;
    let dids = dids(call.body.get("dids"))?;
    for entry in super::list(&call.body, "dids")? {
        super::text(entry, "type")?;
    }
    let lines = call
        .read(move |tx| {
            let mut lines = Vec::new();
            for did in &dids {
                let root = mainstay_rules::did::get(tx, did)?.id;
                for id in mainstay_catalog::order::collections(tx, &[root])?.into_keys() {
                    lines.extend(dataset_lock_lines(tx, DatasetLocksOf::Dataset(id))?);
                }
            }
            Ok(lines)
        })
        .await?;
    Ok(lines_reply(lines))
}
