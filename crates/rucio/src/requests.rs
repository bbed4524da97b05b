//! Handles `/requests`: lists open and finished transfer requests, and limits transfers.

use mainstay_catalog::{Row, Tx, values};
use mainstay_rules::api::{Did, RequestState};
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::replica;
use serde_json::{Value, json};

use super::rules::lines_reply;
use super::{Call, Reply, created, number, show, text, wrong};

/// The SQL for open or finished requests.
fn requests_sql(over: bool) -> &'static str {
    if over {
        "SELECT q.id, q.request_type, q.state, q.activity, 0, q.retry_count, q.err_msg, q.requested_at, u.uuid, q.bytes,
         d.scope, d.name, t.rse, t.uuid, s.rse, s.uuid, q.updated_at, NULL, NULL FROM requests_history q LEFT JOIN rules u ON u.id = q.rule_id
         JOIN dids d ON d.id = q.did_id JOIN rses t ON t.id = q.dest_rse_id LEFT JOIN rses s ON s.id = q.source_rse_id"
    } else {
        "SELECT q.id, q.request_type, q.state, q.activity, q.priority, q.retry_count, q.err_msg, q.requested_at, u.uuid, q.bytes,
         d.scope, d.name, t.rse, t.uuid, s.rse, s.uuid, q.updated_at, q.submitted_at, q.external_id FROM requests q LEFT JOIN rules u
         ON u.id = q.rule_id JOIN dids d ON d.id = q.did_id JOIN rses t ON t.id = q.dest_rse_id LEFT JOIN rses s ON s.id = q.source_rse_id"
    }
}

fn shown(row: &Row) -> Result<Value> {
    Ok(json!({
        "id": format!("{:032x}", row.int(0)?),
        "request_type": if row.text(1)? == "S" { "STAGEIN" } else { "TRANSFER" },
        "state": row.state::<RequestState>(2)?, "activity": row.text(3)?, "priority": row.int(4)?,
        "retry_count": row.opt_int(5)?.unwrap_or(0), "err_msg": row.opt_text(6)?, "requested_at": show::time(row.opt_int(7)?),
        "rule_id": row.opt_text(8)?, "bytes": row.int(9)?, "scope": row.text(10)?, "name": row.text(11)?, "did_type": "FILE",
        "dest_rse": row.text(12)?, "dest_rse_id": row.text(13)?, "source_rse": row.opt_text(14)?,
        "source_rse_id": row.opt_text(15)?, "updated_at": show::time(row.opt_int(16)?),
        "submitted_at": show::time(row.opt_int(17)?), "external_id": row.opt_text(18)?,
    }))
}

pub(super) async fn one(call: &Call, name: Did, rse: &str, over: bool) -> Result<Reply> {
    let rse = rse.to_owned();
    let value = call
        .read(move |tx| {
            let (file, at) = replica::unit(tx, &name, &rse)?;
            let sql = format!(
                "{} WHERE q.did_id = ?1 AND q.dest_rse_id = ?2 ORDER BY q.id DESC LIMIT 1",
                requests_sql(over)
            );
            let row = tx.first(&sql, values![file, at])?.ok_or_else(|| {
                let message = format!("No request found for {name} at RSE {rse}");
                refuse(Class::RequestNotFound, message)
            })?;
            shown(&row)
        })
        .await?;
    Ok(Reply::Json(value))
}

/// The letter of a state. Clients know three states that requests never have here.
fn state(text: &str) -> Option<&'static str> {
    match text {
        "P" | "PREPARING" => Some("P"),
        "U" | "SUSPEND" => Some("U"),
        "W" | "WAITING" => Some("W"),
        text => RequestState::read(text).map(RequestState::letter),
    }
}

pub(super) async fn list(call: &Call, over: bool) -> Result<Reply> {
    let rse = |tx: &mut Tx<'_>, name: &Option<String>| match name {
        Some(name) => mainstay_rules::rse::by_name(tx, name).map(|rse| rse.id),
        None => Ok(0),
    };
    let arg = |key: &str| call.arg(key).filter(|text| *text != "None").map(str::to_owned);
    let (from, to) = (arg("src_rse"), arg("dst_rse"));
    // A Python list, or plain names separated by commas.
    let states = call.arg("request_states").filter(|text| *text != "None").unwrap_or("");
    let states: Vec<&'static str> = states
        .split(',')
        .map(|text| text.trim_matches(|letter: char| "[]()'\" ".contains(letter)))
        .filter(|text| !text.is_empty())
        .map(state)
        .collect::<Option<_>>()
        .ok_or_else(|| wrong("request_states are names or letters of states, such as Q,S"))?;
    let page = |key: &str, otherwise: i64| match call.arg(key).filter(|text| *text != "None") {
        None => Ok(otherwise),
        Some(text) => text
            .parse()
            .ok()
            .filter(|number| *number >= 0)
            .ok_or_else(|| wrong(&format!("{key} is a number that is not negative"))),
    };
    let (skip, most) = (page("offset", 0)?, page("limit", i64::MAX)?);
    let (from, to) = call.read(move |tx| Ok((rse(tx, &from)?, rse(tx, &to)?))).await?;
    let within = match states.is_empty() {
        true => String::new(),
        false => format!(" AND q.state IN ('{}')", states.join("', '")),
    };
    let sql = format!(
        "{} WHERE (?1 = 0 OR q.source_rse_id = ?1) AND (?2 = 0 OR q.dest_rse_id = ?2){within} ORDER BY q.id
         LIMIT ?3 OFFSET ?4",
        requests_sql(over)
    );
    Ok(Reply::Lines(Box::new(move |tx, line| {
        tx.for_each(&sql, values![from, to, most, skip], &mut |row| line(shown(&row)?.to_string()))
    })))
}

/// The limits on transfers to or from the RSEs of expressions.
pub(super) async fn limits(call: &Call) -> Result<Reply> {
    let lines = call
        .read(|tx| {
            let sql = "SELECT rse_expression, activity, direction, max_transfers FROM transfer_limits
                ORDER BY rse_expression, activity, direction";
            let rows = tx.query(sql, &[])?;
            let shown = rows.iter().map(|row| {
                let activity = Some(row.text(1)?).filter(|text| !text.is_empty());
                let value = json!({
                    "rse_expression": row.text(0)?, "activity": activity, "direction": row.text(2)?,
                    "max_transfers": row.int(3)?, "volume": null, "deadline": null, "strategy": "fifo",
                    "transfers": null, "waitings": null,
                });
                Ok(value.to_string())
            });
            shown.collect()
        })
        .await?;
    Ok(lines_reply(lines))
}

pub(super) async fn set_limit(call: &Call) -> Result<Reply> {
    let (expression, activity, direction) = limit_key(call)?;
    mainstay_rules::expression::Expression::parse(&expression)?;
    let most = call.number("max_transfers")?;
    if most < 0 {
        return Err(wrong("max_transfers is not negative"));
    }
    // Transfers are released one by one, and running ones are counted: these fields have no effect.
    for key in ["volume", "deadline", "transfers", "waitings"] {
        number(&call.body, key)?;
    }
    if text(&call.body, "strategy")?.is_some_and(|strategy| strategy != "fifo") {
        return Err(wrong("strategy is fifo"));
    }
    call.write(move |tx| {
        tx.execute(
            "INSERT INTO transfer_limits (rse_expression, activity, direction, max_transfers) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (rse_expression, activity, direction) DO UPDATE SET max_transfers = excluded.max_transfers",
            values![&expression, &activity, &direction, most],
        )?;
        Ok(())
    })
    .await?;
    Ok(created())
}

pub(super) async fn delete_limit(call: &Call) -> Result<Reply> {
    let (expression, activity, direction) = limit_key(call)?;
    call.write(move |tx| {
        tx.execute(
            "DELETE FROM transfer_limits WHERE rse_expression = ?1 AND activity = ?2 AND direction = ?3",
            values![&expression, &activity, &direction],
        )?;
        Ok(())
    })
    .await?;
    Ok(Reply::Done)
}

fn limit_key(call: &Call) -> Result<(String, String, String)> {
    let direction = text(&call.body, "direction")?.unwrap_or("DESTINATION");
    let direction = match direction.to_ascii_uppercase().as_str() {
        "S" | "SOURCE" => "SOURCE",
        "D" | "DESTINATION" => "DESTINATION",
        _ => return Err(wrong("direction is SOURCE or DESTINATION")),
    };
    let activity = text(&call.body, "activity")?.filter(|text| *text != "all_activities");
    let activity = activity.unwrap_or_default().to_owned();
    Ok((call.text("rse_expression")?, activity, direction.to_owned()))
}
