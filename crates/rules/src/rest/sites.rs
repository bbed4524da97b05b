//! `/rses`, `/accounts`, `/scopes`, and what of a dataset is on which RSE.

use axum::http::Method;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::catalog::{created, wrong};
use super::rules::{stream, whole};
use super::{Call, Reply, no_such_path, show};
use crate::api::{Did, ReplicaState, show_time};
use crate::catalog::engine::values;
use crate::error::Result;
use crate::rse::RseSettings;
use crate::rule::read::Filter;
use crate::{account, rse};

fn settings(body: &Map<String, Value>, mut settings: RseSettings) -> Result<RseSettings> {
    for (key, value) in body {
        let flag = || value.as_bool().ok_or_else(|| wrong(&format!("{key:.40} is true or false")));
        match key.as_str() {
            "deterministic" => settings.deterministic = flag()?,
            "volatile" => settings.volatile = flag()?,
            "staging_area" => settings.staging_area = flag()?,
            "availability_read" => settings.read = flag()?,
            "availability_write" => settings.write = flag()?,
            "availability_delete" => settings.delete = flag()?,
            "rse_type" => settings.rse_type = value.as_str().unwrap_or("").to_ascii_uppercase(),
            // Kept by clients that know the sum of the three.
            "availability" => {
                let sum = value.as_i64().unwrap_or(7);
                (settings.read, settings.write, settings.delete) =
                    (sum & 4 != 0, sum & 2 != 0, sum & 1 != 0);
            }
            _ => {}
        }
    }
    Ok(settings)
}

pub(super) async fn rses_at(call: &Call, parts: &[&str]) -> Result<Reply> {
    if call.method != Method::GET {
        call.privileged("change RSEs")?;
    }
    let now = call.now();
    let owned: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    match (&call.method, parts) {
        (&Method::GET, []) => list_rses(call).await,
        (&Method::GET, [_]) => {
            let found = call.read(move |tx| rse::by_name(tx, &owned[0])).await?;
            Ok(Reply::Json(show::rse_whole(&found)))
        }
        (&Method::POST, [_]) => {
            let body = call.body.as_object().cloned().unwrap_or_default();
            let (settings, seed) =
                (settings(&body, RseSettings::default())?, call.service.around.seed());
            call.write(move |tx| {
                let random = rand::RngExt::random(&mut SmallRng::seed_from_u64(seed));
                let uuid =
                    uuid::Builder::from_random_bytes(random).into_uuid().simple().to_string();
                rse::add(tx, &owned[0], &settings, &uuid, now)
            })
            .await?;
            Ok(created())
        }
        (&Method::PUT, [_]) => {
            let body = call.object()?.clone();
            call.write(move |tx| {
                let old = rse::by_name(tx, &owned[0])?;
                let old = RseSettings {
                    rse_type: old.rse_type,
                    deterministic: old.deterministic,
                    volatile: old.volatile,
                    staging_area: old.staging_area,
                    read: old.read,
                    write: old.write,
                    delete: old.delete,
                };
                rse::update(tx, &owned[0], &settings(&body, old)?, now)
            })
            .await?;
            Ok(created())
        }
        (&Method::DELETE, [_]) => {
            call.write(move |tx| rse::delete(tx, &owned[0], now)).await?;
            Ok(Reply::Done)
        }
        (&Method::GET, [_, "attr"]) => {
            let found = call.read(move |tx| rse::by_name(tx, &owned[0])).await?;
            let shown = |value: &String| match value.as_str() {
                "true" => json!(true),
                "false" => json!(false),
                text => json!(text),
            };
            let all: Map<String, Value> =
                found.attributes.iter().map(|(key, value)| (key.clone(), shown(value))).collect();
            Ok(Reply::Json(Value::Object(all)))
        }
        (&Method::POST, [_, "attr", _]) => {
            let value = match call.field("value")? {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            call.write(move |tx| rse::set_attribute(tx, &owned[0], &owned[2], &value)).await?;
            Ok(created())
        }
        (&Method::DELETE, [_, "attr", _]) => {
            call.write(move |tx| rse::delete_attribute(tx, &owned[0], &owned[2])).await?;
            Ok(Reply::Done)
        }
        (&Method::GET, [_, "usage"]) => rse_usage(call, owned).await,
        (&Method::PUT, [_, "usage"]) => {
            let (source, used, free) =
                (call.text("source")?, call.number("used")?, call.number("free")?);
            call.write(move |tx| rse::set_usage(tx, &owned[0], &source, used, free, now)).await?;
            Ok(Reply::Done)
        }
        (&Method::GET, [_, "limits"]) => {
            let found = call.read(move |tx| rse::by_name(tx, &owned[0])).await?;
            Ok(Reply::Json(json!(found.limits)))
        }
        (&Method::PUT, [_, "limits"]) => {
            let (name, value) = (call.text("name")?, call.number("value")?);
            call.write(move |tx| rse::set_limit(tx, &owned[0], &name, value)).await?;
            Ok(Reply::Done)
        }
        _ => Err(no_such_path()),
    }
}

async fn list_rses(call: &Call) -> Result<Reply> {
    let expression = call.arg("expression").map(str::to_owned);
    let lines = call
        .read(move |tx| {
            let rses = tx.rses()?;
            Ok(match &expression {
                None => rses.iter().map(|rse| show::rse(rse).to_string()).collect(),
                Some(text) => {
                    let found = rse::resolve(tx, text)?;
                    let taken = rses.iter().filter(|rse| found.contains(&rse.id));
                    taken.map(|rse| json!({"rse": rse.name}).to_string()).collect()
                }
            })
        })
        .await?;
    Ok(whole(lines))
}

/// How much of a dataset each RSE holds.
pub(super) async fn dataset_replicas(call: &Call, name: Did) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let found = crate::did::get(tx, &name)?;
            let (length, bytes) = crate::did::size(tx, found.id)?;
            let rses = tx.rses()?;
            let mut lines = Vec::new();
            for held in crate::replica::held_by_rse(tx, found.id)? {
                let Some(rse) = rses.iter().find(|rse| rse.id == held.rse_id) else { continue };
                let whole = held.files == length;
                let state = if whole { ReplicaState::Available } else { ReplicaState::Unavailable };
                let value = json!({
                    "scope": name.scope, "name": name.name, "rse": rse.name, "rse_id": rse.uuid,
                    "length": length, "bytes": bytes, "available_length": held.files, "available_bytes": held.bytes,
                    "state": state, "created_at": show_time(held.first), "updated_at": show_time(held.last),
                    "accessed_at": show::time(held.accessed),
                });
                lines.push(value.to_string());
            }
            Ok(lines)
        })
        .await?;
    Ok(whole(lines))
}

async fn rse_usage(call: &Call, owned: Vec<String>) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let found = rse::by_name(tx, &owned[0])?;
            let usage = rse::usage(tx, &owned[0])?;
            let shown = usage.iter().map(|usage| {
                let total = usage.free.map(|free| free.saturating_add(usage.used));
                json!({
                    "rse_id": found.uuid, "rse": found.name, "source": usage.source, "used": usage.used, "free": usage.free,
                    "total": total, "files": usage.files, "updated_at": show_time(usage.updated_at),
                })
                .to_string()
            });
            Ok(shown.collect())
        })
        .await?;
    Ok(whole(lines))
}

pub(super) async fn scopes(call: &Call, account: Option<String>) -> Result<Reply> {
    let found = call
        .read(move |tx| {
            let rows = tx.query("SELECT scope, account FROM scopes ORDER BY scope", &[])?;
            let taken = rows
                .iter()
                .filter(|row| account.as_deref().is_none_or(|account| account == row.text(1)));
            Ok(taken.map(|row| row.text(0).to_owned()).collect::<Vec<_>>())
        })
        .await?;
    Ok(Reply::Json(json!(found)))
}

fn iso(at: Option<i64>) -> Value {
    at.and_then(|at| jiff::Timestamp::from_microsecond(at).ok())
        .map_or(Value::Null, |at| Value::String(at.strftime("%Y-%m-%dT%H:%M:%S").to_string()))
}

pub(super) async fn accounts_at(call: &Call, parts: &[&str]) -> Result<Reply> {
    let now = call.now();
    let owned: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    if call.method != Method::GET {
        call.privileged("change accounts")?;
    }
    match (&call.method, parts) {
        (&Method::GET, []) => {
            let lines = call
                .read(|tx| {
                    let rows = tx.query("SELECT account, account_type, email FROM accounts WHERE deleted_at IS NULL ORDER BY account", &[])?;
                    let shown = rows.iter().map(|row| {
                        json!({"account": row.text(0), "type": row.text(1), "email": row.opt_text(2)}).to_string()
                    });
                    Ok(shown.collect())
                })
                .await?;
            Ok(whole(lines))
        }
        (&Method::GET, [_]) => get_account(call, owned).await,
        (&Method::POST, [_]) => {
            let kind = call.text("type")?;
            let email = call.body.get("email").and_then(Value::as_str).map(str::to_owned);
            call.write(move |tx| account::add(tx, &owned[0], &kind, email.as_deref(), now)).await?;
            Ok(created())
        }
        (&Method::GET, [_, "rules"]) => {
            Ok(stream(Filter { account: Some(owned[0].clone()), ..Filter::default() }))
        }
        (&Method::GET, [_, "scopes"]) => scopes(call, Some(owned[0].clone())).await,
        (&Method::POST, [_, "scopes", _]) => {
            call.write(move |tx| account::add_scope(tx, &owned[2], &owned[0], now)).await?;
            Ok(created())
        }
        (&Method::GET, [_, "attr"]) => {
            let found = call
                .read(move |tx| {
                    let rows = tx.query(
                        "SELECT key, value FROM account_attr_map WHERE account = ?1 ORDER BY key",
                        values![&owned[0]],
                    )?;
                    Ok(rows
                        .iter()
                        .map(|row| json!({"key": row.text(0), "value": row.text(1)}))
                        .collect::<Vec<_>>())
                })
                .await?;
            Ok(Reply::Json(json!(found)))
        }
        (&Method::POST, [_, "attr", _]) => {
            let value = match call.field("value")? {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            call.write(move |tx| account::set_attribute(tx, &owned[0], &owned[2], &value, now))
                .await?;
            Ok(created())
        }
        (method, [_, what @ ("limits" | "usage"), which @ ("local" | "global"), rest @ ..]) => {
            limits_at(
                call,
                method,
                &owned[0],
                what,
                *which == "global",
                rest.first().map(|part| (*part).to_owned()),
            )
            .await
        }
        _ => Err(no_such_path()),
    }
}

async fn get_account(call: &Call, owned: Vec<String>) -> Result<Reply> {
    let value = call
        .read(move |tx| {
            account::check_exists(tx, &owned[0])?;
            let sql = "SELECT account, account_type, status, email, created_at, updated_at, suspended_at FROM accounts WHERE account = ?1";
            let row = tx.first(sql, values![&owned[0]])?;
            Ok(row.map_or(Value::Null, |row| {
                json!({
                    "account": row.text(0), "account_type": row.text(1), "status": row.text(2), "email": row.opt_text(3),
                    "created_at": iso(row.opt_int(4)), "updated_at": iso(row.opt_int(5)), "suspended_at": iso(row.opt_int(6)),
                    "deleted_at": null,
                })
            }))
        })
        .await?;
    Ok(Reply::Json(value))
}

async fn limits_at(
    call: &Call,
    method: &Method,
    owner: &str,
    what: &str,
    global: bool,
    on: Option<String>,
) -> Result<Reply> {
    let owner = owner.to_owned();
    match (method, what, on) {
        (&Method::POST, "limits", Some(on)) => {
            let bytes = match call.field("bytes")? {
                Value::Null => -1,
                value => value.as_i64().ok_or_else(|| wrong("bytes is a whole number"))?,
            };
            call.write(move |tx| match global {
                true => account::set_global_limit(tx, &owner, &on, Some(bytes)),
                false => account::set_local_limit(tx, &owner, &on, Some(bytes)),
            })
            .await?;
            Ok(created())
        }
        (&Method::DELETE, "limits", Some(on)) => {
            call.write(move |tx| match global {
                true => account::set_global_limit(tx, &owner, &on, None),
                false => account::set_local_limit(tx, &owner, &on, None),
            })
            .await?;
            Ok(Reply::Done)
        }
        (&Method::GET, what, on) => {
            let usage = what == "usage";
            show_limits(call, owner, usage, global, on).await
        }
        _ => Err(no_such_path()),
    }
}

async fn show_limits(
    call: &Call,
    owner: String,
    usage: bool,
    global: bool,
    on: Option<String>,
) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let rses = tx.rses()?;
            let uuid = |id: i64| rses.iter().find(|rse| rse.id == id).map_or("", |rse| rse.uuid.as_str());
            let mut lines = Vec::new();
            let wanted = |name: &str| on.as_deref().is_none_or(|on| on == name);
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
        true => whole(lines),
        false => Reply::Text(format!("{{{}}}", lines.join(", "))),
    })
}
