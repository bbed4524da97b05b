//! Writes rules, locks, files, RSEs and usage as the JSON that clients expect.

use mainstay_catalog::Tx;
use mainstay_rules::account::Usage;
use mainstay_rules::api::{DidRecord, DidType, Micros, Rule, show_time};
use mainstay_rules::did::Listed;
use mainstay_rules::error::Result;
use mainstay_rules::expression::Rse;
use mainstay_rules::rule::read::{DatasetLock, Lock};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(super) fn time(at: Option<Micros>) -> Value {
    at.map_or(Value::Null, |at| Value::String(show_time(at)))
}

/// The UUID of the rule with this row id.
pub(super) fn uuid_of(tx: &mut Tx<'_>, id: Option<i64>) -> Result<Value> {
    let Some(id) = id else { return Ok(Value::Null) };
    let row = tx.first("SELECT uuid FROM rules WHERE id = ?1", &[id.into()])?;
    row.map_or(Ok(Value::Null), |row| Ok(Value::String(row.text(0)?.to_owned())))
}

/// A rule with all its keys; clients read each without a default.
pub(super) fn rule(rule: &Rule, child: Value) -> Map<String, Value> {
    let value = json!({
        "id": rule.uuid,
        "scope": rule.did.scope,
        "name": rule.did.name,
        "did_type": rule.did_type,
        "account": rule.account,
        "rse_expression": rule.rse_expression,
        "copies": rule.copies,
        "grouping": rule.grouping,
        "state": rule.state,
        "locks_ok_cnt": rule.counts.ok,
        "locks_replicating_cnt": rule.counts.replicating,
        "locks_stuck_cnt": rule.counts.stuck,
        "locked": rule.locked,
        "expires_at": time(rule.expires_at),
        "eol_at": time(rule.eol_at),
        "weight": rule.weight,
        "source_replica_expression": rule.source_replica_expression,
        "activity": rule.activity,
        "notification": rule.notification,
        "purge_replicas": rule.purge_replicas,
        "ignore_availability": rule.ignore_availability,
        "ignore_account_limit": rule.ignore_account_limit,
        "comments": rule.comments,
        "priority": rule.priority,
        "child_rule_id": child,
        "subscription_id": rule.subscription_id,
        "split_container": rule.split_container,
        "meta": rule.meta,
        "error": rule.error,
        "stuck_at": time(rule.stuck_at),
        "created_at": show_time(rule.created_at),
        "updated_at": show_time(rule.updated_at),
        "deleted_at": time(rule.deleted_at),
    });
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

pub(super) fn lock(lock: &Lock, rse_uuid: &str) -> String {
    json!({
        "scope": lock.did.scope, "name": lock.did.name, "rse_id": rse_uuid, "rse": lock.rse,
        "state": lock.state, "rule_id": lock.rule,
    })
    .to_string()
}

pub(super) fn dataset_lock(lock: &DatasetLock, rse_uuid: &str) -> String {
    json!({
        "rse_id": rse_uuid, "rse": lock.rse, "scope": lock.did.scope, "name": lock.did.name, "rule_id": lock.rule,
        "account": lock.account, "state": lock.state, "length": lock.length, "bytes": lock.bytes,
        "accessed_at": time(lock.accessed_at),
    })
    .to_string()
}

pub(super) fn content(child: &Listed) -> String {
    json!({
        "scope": child.did.scope, "name": child.did.name, "type": child.did_type, "bytes": child.bytes,
        "adler32": child.adler32, "md5": child.md5,
    })
    .to_string()
}

/// The metadata that is shown wherever files are listed.
#[derive(Default, Deserialize)]
struct FileMetadata {
    #[serde(default)]
    guid: Value,
    #[serde(default)]
    events: Value,
    #[serde(default)]
    lumiblocknr: Value,
}

pub(super) fn file(child: &Listed, long: bool) -> Value {
    let meta =
        child.meta.as_deref().and_then(|text| serde_json::from_str::<FileMetadata>(text).ok());
    let meta = meta.unwrap_or_default();
    let mut value = json!({
        "scope": child.did.scope, "name": child.did.name, "bytes": child.bytes, "adler32": child.adler32,
        "guid": meta.guid, "events": meta.events,
    });
    if long {
        value["lumiblocknr"] = meta.lumiblocknr;
    }
    value
}

pub(super) fn rse(rse: &Rse) -> Value {
    let availability = i64::from(rse.read) * 4 + i64::from(rse.write) * 2 + i64::from(rse.delete);
    json!({
        "id": rse.uuid, "rse": rse.name, "rse_type": rse.rse_type, "deterministic": rse.deterministic,
        "volatile": rse.volatile, "staging_area": rse.staging_area, "availability": availability,
        "availability_read": rse.read, "availability_write": rse.write, "availability_delete": rse.delete,
        "vo": "def", "region_code": null, "country_name": null, "continent": null, "time_zone": null, "ISP": null,
        "qos_class": null, "ASN": null, "deleted": false, "longitude": null, "latitude": null, "city": null,
        "deleted_at": null, "created_at": show_time(rse.times.0), "updated_at": show_time(rse.times.1),
    })
}

pub(super) fn rse_whole(rse: &Rse) -> Value {
    let mut value = self::rse(rse);
    for (key, more) in [
        ("domain", json!(["lan", "wan"])),
        ("protocols", json!(rse.protocols.iter().map(|one| one.show()).collect::<Vec<_>>())),
        ("lfn2pfn_algorithm", json!("hash")),
        ("verify_checksum", json!(true)),
        ("sign_url", Value::Null),
        ("credentials", Value::Null),
    ] {
        value[key] = more;
    }
    value
}

/// A limit as clients read it: a number, null, or the word Infinity.
pub(super) fn bound(limit: Option<i64>) -> String {
    match limit {
        None => "null".to_owned(),
        Some(..0) => "Infinity".to_owned(),
        Some(limit) => limit.to_string(),
    }
}

/// Usage of an account. A missing limit counts as 0.
pub(super) fn usage(usage: &Usage, rse_uuid: Option<&str>) -> String {
    let limit = usage.limit.unwrap_or(0);
    let (limit, left) = if limit < 0 {
        ("Infinity".to_owned(), "Infinity".to_owned())
    } else {
        (limit.to_string(), (limit - usage.bytes).to_string())
    };
    let on = Value::String(usage.on.clone());
    let head = match rse_uuid {
        Some(uuid) => format!("\"rse_id\": \"{uuid}\", \"rse\": {on}"),
        None => format!("\"rse_expression\": {on}"),
    };
    format!(
        "{{{head}, \"bytes\": {}, \"files\": {}, \"bytes_limit\": {limit}, \"bytes_remaining\": {left}}}",
        usage.bytes, usage.files
    )
}

/// The columns of a data identifier as in Rucio's metadata; columns that Mainstay does not have are
/// null.
pub(super) fn meta(found: &DidRecord) -> Value {
    let mut all = Map::new();
    for key in [
        "prod_step",
        "events",
        "version",
        "guid",
        "campaign",
        "eol_at",
        "task_id",
        "is_archive",
        "datatype",
        "panda_id",
        "constituent",
        "complete",
        "run_number",
        "lumiblocknr",
        "access_cnt",
        "stream_name",
        "provenance",
        "phys_group",
        "deleted_at",
        "accessed_at",
    ] {
        all.insert(key.to_owned(), Value::Null);
    }
    let project = found.did.scope.split('.').next().unwrap_or("");
    let lost = if found.lost { "LOST" } else { "AVAILABLE" };
    let known = json!({
        "scope": found.did.scope, "name": found.did.name, "account": found.account, "did_type": found.did_type,
        "is_open": (found.did_type != DidType::File).then_some(found.is_open), "monotonic": found.monotonic,
        "bytes": found.bytes, "length": found.length, "md5": found.md5, "adler32": found.adler32, "availability": lost,
        "project": project, "suppressed": false, "hidden": false, "obsolete": false, "transient": false, "is_new": true,
        "purge_replicas": true, "expired_at": time(found.expired_at), "closed_at": time(found.closed_at),
        "created_at": time(Some(found.created_at)), "updated_at": time(Some(found.updated_at)),
    });
    if let Value::Object(known) = known {
        all.extend(known);
    }
    Value::Object(all)
}
