//! Handles `/accounts` and `/scopes`: accounts, their identities, attributes, scopes, limits and usage.

use mainstay_catalog::values;
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::expression::Expression;
use mainstay_rules::identity::{self, Identity};
use mainstay_rules::logins::lockout::{Account, Network};
use mainstay_rules::rule::read::Filter;
use mainstay_rules::{account, rse};
use serde_json::{Value, json};

use super::rules::{lines_reply, stream};
use super::{Call, Reply, attribute, created, flag, python, search, show, text, wrong};

/// All scopes, or those of an account.
pub(super) async fn scopes(call: &Call, account: Option<String>) -> Result<Reply> {
    let found = call
        .read(move |tx| {
            if let Some(account) = &account {
                account::check_exists(tx, account)?;
            }
            let rows = tx.query("SELECT scope, account FROM scopes ORDER BY scope", &[])?;
            let mut taken = Vec::new();
            for row in &rows {
                let owner = row.text(1)?;
                if account.as_deref().is_none_or(|account| account == owner) {
                    taken.push(row.text(0)?.to_owned());
                }
            }
            match &account {
                Some(account) if taken.is_empty() => {
                    let message = format!("Account '{account}' has no scopes");
                    Err(refuse(Class::ScopeNotFound, message))
                }
                _ => Ok(taken),
            }
        })
        .await?;
    Ok(Reply::Json(json!(found)))
}

/// Every scope with its owner.
pub(super) async fn scope_owners(call: &Call) -> Result<Reply> {
    let owners = call
        .read(|tx| {
            let rows = tx.query("SELECT scope, account FROM scopes ORDER BY scope", &[])?;
            let shown =
                rows.iter().map(|row| Ok(json!({"scope": row.text(0)?, "account": row.text(1)?})));
            shown.collect::<Result<Vec<_>>>()
        })
        .await?;
    Ok(Reply::Json(json!(owners)))
}

/// Gives a scope to another account.
pub(super) async fn give_scope(call: &Call, account: String, scope: String) -> Result<Reply> {
    call.write(move |tx| account::give_scope(tx, &scope, &account)).await?;
    Ok(created())
}

fn iso(at: Option<i64>) -> Value {
    at.and_then(|at| jiff::Timestamp::from_microsecond(at).ok())
        .map_or(Value::Null, |at| Value::String(at.strftime("%Y-%m-%dT%H:%M:%S").to_string()))
}

/// The caller's own account, as a redirection.
pub(super) fn whoami(call: &Call) -> Reply {
    Reply::Redirect(call.caller.account.clone())
}

/// Changes the fields of an account.
pub(super) async fn update_account(call: &Call, name: String) -> Result<Reply> {
    let now = call.now();
    let mut changes = Vec::new();
    for key in call.object()?.keys() {
        changes.push((key.clone(), text(&call.body, key)?.map(str::to_owned)));
    }
    call.write(move |tx| {
        changes
            .iter()
            .try_for_each(|(key, value)| account::update(tx, &name, key, value.as_deref(), now))
    })
    .await?;
    Ok(Reply::Done)
}

pub(super) async fn delete_account(call: &Call, name: String) -> Result<Reply> {
    let now = call.now();
    call.write(move |tx| account::delete(tx, &name, now)).await?;
    Ok(Reply::Done)
}

pub(super) async fn add_account(call: &Call, name: String) -> Result<Reply> {
    let (kind, now) = (call.text("type")?, call.now());
    let email = text(&call.body, "email")?.map(str::to_owned);
    call.write(move |tx| account::add(tx, &name, &kind, email.as_deref(), now)).await?;
    Ok(created())
}

/// The history of an account's usage; always empty, because none is kept.
pub(super) async fn usage_history(call: &Call, name: String) -> Result<Reply> {
    call.read(move |tx| account::check_exists(tx, &name)).await?;
    Ok(Reply::Json(json!([])))
}

/// The rules of an account.
pub(super) async fn rules(call: &Call, name: String) -> Result<Reply> {
    let filter = Filter::of_account(&name);
    call.read(move |tx| account::check_exists(tx, &name)).await?;
    Ok(stream(filter))
}

pub(super) async fn add_scope(call: &Call, name: String, scope: String) -> Result<Reply> {
    let now = call.now();
    call.write(move |tx| account::add_scope(tx, &scope, &name, now)).await?;
    Ok(created())
}

/// The attributes of an account.
pub(super) async fn attributes(call: &Call, name: String) -> Result<Reply> {
    let found = call
        .read(move |tx| {
            account::check_exists(tx, &name)?;
            let rows = tx.query(
                "SELECT key, value FROM account_attr_map WHERE account = ?1 ORDER BY key",
                values![&name],
            )?;
            rows.iter()
                .map(|row| Ok(json!({"key": row.text(0)?, "value": row.text(1)?})))
                .collect::<Result<Vec<_>>>()
        })
        .await?;
    Ok(Reply::Json(json!(found)))
}

pub(super) async fn set_attribute(call: &Call, name: String, key: String) -> Result<Reply> {
    let (value, now) = (attribute(&call.body)?, call.now());
    if text(&call.body, "key")?.is_some_and(|named| named != key) {
        return Err(wrong("The field key should be the key in the path, or be left out"));
    }
    call.write(move |tx| account::set_attribute(tx, &name, &key, &value, now)).await?;
    Ok(created())
}

pub(super) async fn delete_attribute(call: &Call, name: String, key: String) -> Result<Reply> {
    call.write(move |tx| account::delete_attribute(tx, &name, &key)).await?;
    Ok(Reply::Done)
}

/// The accounts that match every query argument: fields of the account, or attributes.
pub(super) async fn list_accounts(call: &Call) -> Result<Reply> {
    let wanted = call.query.clone();
    for (key, value) in &wanted {
        let known: &[&str] = match key.as_str() {
            "account_type" | "type" => &["USER", "GROUP", "SERVICE"],
            "status" => &["ACTIVE", "SUSPENDED", "DELETED"],
            _ => continue,
        };
        if !known.contains(&value.as_str()) {
            return Err(wrong(&format!("{key} is one of {}", known.join(", "))));
        }
    }
    let lines = call
        .read(move |tx| {
            let sql = "SELECT account, account_type, email, status FROM accounts WHERE deleted_at IS NULL ORDER BY account";
            let mut rows = tx.query(sql, &[])?;
            for (key, value) in &wanted {
                let column = match key.as_str() {
                    "account" => Some(0),
                    "account_type" | "type" => Some(1),
                    "email" => Some(2),
                    "status" => Some(3),
                    _ => None,
                };
                let own = match key.as_str() {
                    "identity" => identity::all_accounts(tx, value)?,
                    _ if column.is_some() => Vec::new(),
                    key => account::with_attribute(tx, key, value)?,
                };
                let mut kept = Vec::new();
                for row in rows {
                    let account = row.text(0)?;
                    let fits = match column {
                        Some(0) => search::fits(value, account),
                        Some(at) => row.opt_text(at)?.as_deref() == Some(value),
                        None => own.iter().any(|one| one == account),
                    };
                    if fits {
                        kept.push(row);
                    }
                }
                rows = kept;
            }
            let shown = rows.iter().map(|row| {
                let value = json!({
                    "account": row.text(0)?, "type": row.text(1)?, "email": row.opt_text(2)?,
                });
                Ok(value.to_string())
            });
            shown.collect()
        })
        .await?;
    Ok(lines_reply(lines))
}

/// The identities that may act as an account.
pub(super) async fn list_identities(call: &Call, name: String) -> Result<Reply> {
    call.owner_or_privileged("see the identities of another account", &name)?;
    let lines = call
        .read(move |tx| {
            let found = identity::list(tx, &name)?;
            let shown = found.iter().map(|one| {
                json!({"identity": one.identity, "type": one.kind, "email": one.email}).to_string()
            });
            Ok(shown.collect())
        })
        .await?;
    Ok(lines_reply(lines))
}

pub(super) async fn add_identity(call: &Call, name: String) -> Result<Reply> {
    let now = call.now();
    let new = Identity {
        identity: call.text("identity")?,
        kind: call.text("authtype")?.to_ascii_uppercase(),
        email: text(&call.body, "email")?.map(str::to_owned),
    };
    let default = flag(&call.body, "default")?.unwrap_or(false);
    let password = text(&call.body, "password")?.map(str::to_owned);
    let hash = match password {
        Some(password) => Some(hash_password(call, password).await?),
        None => None,
    };
    call.write(move |tx| identity::add(tx, &name, &new, hash.as_deref(), default, now)).await?;
    Ok(created())
}

pub(super) async fn remove_identity(call: &Call, name: String) -> Result<Reply> {
    let (identity, kind) = (call.text("identity")?, call.text("authtype")?);
    let kind = kind.to_ascii_uppercase();
    call.write(move |tx| identity::remove(tx, &name, &identity, &kind)).await?;
    Ok(Reply::Done)
}

/// Hashes a new password. It waits in the same queue as logins, which bounds memory and CPU.
async fn hash_password(call: &Call, password: String) -> Result<String> {
    let (who, now) = (Account::named(&call.caller.account), || call.now());
    let turn = call.service.logins.turn(&who, Network::default(), &now).await;
    turn?.hash(password).await
}

pub(super) async fn get_account(call: &Call, name: String) -> Result<Reply> {
    let value = call
        .read(move |tx| {
            account::check_exists(tx, &name)?;
            let sql = "SELECT account, account_type, status, email, created_at, updated_at, suspended_at FROM accounts WHERE account = ?1";
            let row = tx.first(sql, values![&name])?;
            row.map_or(Ok(Value::Null), |row| {
                Ok(json!({
                    "account": row.text(0)?, "account_type": row.text(1)?, "status": row.text(2)?, "email": row.opt_text(3)?,
                    "created_at": iso(row.opt_int(4)?), "updated_at": iso(row.opt_int(5)?), "suspended_at": iso(row.opt_int(6)?),
                    "deleted_at": null,
                }))
            })
        })
        .await?;
    Ok(Reply::Json(value))
}

/// Sets an account's limit on an RSE, or on the RSEs of an expression.
pub(super) async fn set_limit(
    call: &Call,
    owner: String,
    global: bool,
    on: String,
) -> Result<Reply> {
    let bytes = match call.field("bytes")?.as_str() {
        Some(python::INFINITY) => -1,
        _ => call.number("bytes")?,
    };
    if bytes < -1 {
        return Err(wrong("bytes is a limit, or -1 for none"));
    }
    change_limit(call, owner, global, on, Some(bytes)).await?;
    Ok(created())
}

pub(super) async fn delete_limit(
    call: &Call,
    owner: String,
    global: bool,
    on: String,
) -> Result<Reply> {
    change_limit(call, owner, global, on, None).await?;
    Ok(Reply::Done)
}

async fn change_limit(
    call: &Call,
    owner: String,
    global: bool,
    on: String,
    bytes: Option<i64>,
) -> Result<()> {
    call.write(move |tx| match global {
        true => account::set_global_limit(tx, &owner, &on, bytes),
        false => account::set_local_limit(tx, &owner, &on, bytes),
    })
    .await
}

pub(super) async fn show_limits(
    call: &Call,
    owner: String,
    usage: bool,
    global: bool,
    on: Option<String>,
) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let rses = mainstay_rules::rse::all(tx)?;
            let uuid = |id: i64| rses.iter().find(|rse| rse.id == id).map_or("", |rse| rse.uuid.as_str());
            let mut lines = Vec::new();
            let wanted = |name: &str| on.as_deref().is_none_or(|on| on == name);
            match &on {
                Some(on) if usage && global => drop(rse::resolve(tx, on)?),
                Some(on) if usage => drop(rse::by_name(tx, on)?),
                Some(on) if global => drop(Expression::parse(on)?),
                _ => {}
            }
            if global {
                for (one, set) in account::global_usage(tx, &owner)?.iter().filter(|one| wanted(&one.0.on)) {
                    if usage {
                        lines.push(show::usage(one, None));
                        continue;
                    }
                    let names: Vec<&str> = rses.iter().filter(|rse| set.contains(&rse.id)).map(|rse| rse.name.as_str()).collect();
                    let ids: Vec<&str> = set.iter().map(|id| uuid(*id)).collect();
                    let key = Value::String(one.on.clone());
                    lines.push(match &on {
                        Some(_) => format!("{key}: {}", show::bound(one.limit)),
                        None => format!(
                            "{key}: {{\"resolved_rses\": {}, \"resolved_rse_ids\": {}, \"limit\": {}}}",
                            json!(names), json!(ids), show::bound(one.limit)
                        ),
                    });
                }
                if let (Some(on), false, true) = (&on, usage, lines.is_empty()) {
                    lines.push(format!("{}: null", Value::String(on.clone())));
                }
                return Ok(lines);
            }
            let found = account::local_usage(tx, &owner)?;
            for one in found.iter().filter(|one| wanted(&one.on) && (usage || one.limit.is_some())) {
                lines.push(match usage {
                    true => show::usage(one, one.rse_id.map(uuid)),
                    false => format!("{}: {}", Value::String(one.on.clone()), show::bound(one.limit)),
                });
            }
            if let (Some(on), false, true) = (&on, usage, lines.is_empty()) {
                rse::by_name(tx, on)?;
                lines.push(format!("{}: null", Value::String(on.clone())));
            }
            Ok(lines)
        })
        .await?;
    Ok(match usage {
        true => lines_reply(lines),
        false => Reply::Text(format!("{{{}}}", lines.join(", "))),
    })
}
