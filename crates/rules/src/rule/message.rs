//! The outbox: messages about rules for other systems.

use mainstay_catalog::{Tx, values};
use serde_json::{Value, json};

use crate::api::{Counts, Micros, Notification, Rule, RuleState};
use crate::decide;
use crate::error::Result;

/// Puts a message into the outbox.
pub fn send(tx: &mut Tx<'_>, event: &str, payload: &Value, now: Micros) -> Result<()> {
    tx.execute(
        "INSERT INTO messages (event_type, payload, created_at) VALUES (?1, ?2, ?3)",
        values![event, payload.to_string(), now],
    )?;
    Ok(())
}

/// The messages in the outbox, oldest first.
pub fn list(tx: &mut Tx<'_>) -> Result<Vec<(String, Value)>> {
    let rows = tx.query("SELECT event_type, payload FROM messages ORDER BY id", &[])?;
    let read = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    rows.iter().map(|row| Ok((row.text(0)?.to_owned(), read(row.text(1)?)))).collect()
}

fn is_closed(tx: &mut Tx<'_>, did: i64) -> Result<bool> {
    let sql = "SELECT COALESCE(is_open, 0) FROM dids WHERE id = ?1";
    match tx.first(sql, values![did])? {
        Some(row) => Ok(!row.flag(0)?),
        None => Ok(false),
    }
}

/// Sends the message that a rule has become OK.
pub(crate) fn rule_ok(tx: &mut Tx<'_>, rule: &Rule, now: Micros) -> Result<()> {
    if rule.notification == Notification::No {
        return Ok(());
    }
    let closed = is_closed(tx, rule.did_id)?;
    if decide::announces_ok(rule.notification, closed) {
        announce(tx, rule, now)?;
    }
    let only_closed = rule.notification != Notification::Yes;
    datasets_ok(tx, rule, None, only_closed, now)
}

fn announce(tx: &mut Tx<'_>, rule: &Rule, now: Micros) -> Result<()> {
    let payload = json!({"scope": rule.did.scope, "name": rule.did.name, "rule_id": rule.uuid});
    send(tx, "RULE_OK", &payload, now)
}

fn datasets_ok(
    tx: &mut Tx<'_>,
    rule: &Rule,
    dataset: Option<i64>,
    only_closed: bool,
    now: Micros,
) -> Result<()> {
    let rows = tx.query(
        "SELECT d.scope, d.name, r.rse, r.uuid FROM dataset_locks l JOIN dids d ON d.id = l.did_id
         JOIN rses r ON r.id = l.rse_id WHERE l.rule_id = ?1 AND (?2 = 0 OR d.id = ?2) AND (?3 = 0 OR d.is_open = 0)
         ORDER BY l.did_id, l.rse_id",
        values![rule.id, dataset.unwrap_or(0), only_closed],
    )?;
    for row in rows {
        let payload = json!({
            "scope": row.text(0)?, "name": row.text(1)?, "rse": row.text(2)?, "rse_id": row.text(3)?, "rule_id": rule.uuid,
        });
        send(tx, "DATASETLOCK_OK", &payload, now)?;
    }
    Ok(())
}

/// Sends the messages of an OK rule that waited for its collection to be closed.
pub(crate) fn closed(tx: &mut Tx<'_>, rule: &Rule, did: i64, now: Micros) -> Result<()> {
    if rule.state != RuleState::Ok {
        return Ok(());
    }
    if rule.did_id == did {
        announce(tx, rule, now)?;
    }
    datasets_ok(tx, rule, Some(did), true, now)
}

/// Sends the progress of a rule when it has passed another ten per cent.
pub(crate) fn progress(tx: &mut Tx<'_>, rule: &Rule, counts: Counts, now: Micros) -> Result<()> {
    let (before, after) = (decide::progress(rule.counts), decide::progress(counts));
    if rule.notification != Notification::Progress
        || before == after
        || !is_closed(tx, rule.did_id)?
    {
        return Ok(());
    }
    let payload = json!({
        "scope": rule.did.scope, "name": rule.did.name, "rule_id": rule.uuid, "progress": after,
    });
    send(tx, "RULE_PROGRESS", &payload, now)
}
