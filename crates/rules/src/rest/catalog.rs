//! `/dids`, `/replicas` and `/requests`.

use std::collections::BTreeMap;

use axum::http::Method;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::rules::{dids, new_rule, stream, whole};
use super::{Call, Reply, no_such_path, show, sites};
use crate::api::{Did, DidRecord, DidType, NewFile, ReplicaState, RequestState, show_time};
use crate::catalog::Tx;
use crate::catalog::engine::values;
use crate::did::{Child, NewDid};
use crate::error::{Class, Result, refuse};
use crate::rule::read::Filter;
use crate::rule::{add, read, transfer};
use crate::{did, replica};

pub(super) async fn dispatch(call: &Call, path: &[String]) -> Result<Reply> {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let (method, rest) = (&call.method, &parts[1..]);
    match (parts[0], method, rest) {
        ("dids", ..) => dids_at(call, rest).await,
        ("replicas", &Method::POST, []) => add_replicas(call).await,
        ("replicas", &Method::PUT, []) => update_replicas(call).await,
        ("replicas", &Method::POST, ["list"]) => list_replicas(call),
        ("replicas", &Method::POST, ["tombstone"]) => tombstones(call).await,
        ("replicas", &Method::POST, ["bad"]) => bad(call).await,
        ("replicas", &Method::GET, [scope, name @ .., "datasets"]) => {
            sites::dataset_replicas(call, Did::new(*scope, name.join("/"))).await
        }
        ("requests", &Method::GET, [scope, name @ .., rse]) => {
            request(call, Did::new(*scope, name.join("/")), rse).await
        }
        ("rses", ..) => sites::rses_at(call, rest).await,
        ("accounts", ..) => sites::accounts_at(call, rest).await,
        ("scopes", &Method::GET, []) => sites::scopes(call, None).await,
        _ => Err(no_such_path()),
    }
}

pub(super) fn wrong(what: &str) -> crate::error::Error {
    refuse(Class::InvalidObject, what)
}

pub(super) fn created() -> Reply {
    Reply::Created("Created".to_owned())
}

const DID_VERBS: &[&str] =
    &["dids", "files", "status", "rules", "associated_rules", "parents", "meta", "coverage"];

/// Splits `scope/name…[/verb]`. A name that is all there is may look like a verb.
fn split<'a>(parts: &[&'a str]) -> Option<(Did, Option<&'a str>)> {
    let (scope, rest) = parts.split_first()?;
    let (last, name) = rest.split_last()?;
    if !name.is_empty() && DID_VERBS.contains(last) {
        return Some((Did::new(*scope, name.join("/")), Some(last)));
    }
    Some((Did::new(*scope, rest.join("/")), None))
}

async fn dids_at(call: &Call, parts: &[&str]) -> Result<Reply> {
    match (&call.method, parts) {
        (&Method::POST, ["attachments"]) => return attachments(call).await,
        (&Method::POST, []) => return add_many(call).await,
        _ => {}
    }
    let Some((name, verb)) = split(parts) else { return Err(no_such_path()) };
    match (&call.method, verb) {
        (&Method::POST, None) => {
            let body = call.object()?.clone();
            add_did(call, name, body).await
        }
        (&Method::GET, None) => get_did(call, name).await,
        (&Method::PUT, Some("status")) => status(call, name).await,
        (&Method::POST, Some("dids")) => attach(call, name, call.object()?.clone(), false).await,
        (&Method::DELETE, Some("dids")) => detach(call, name).await,
        (&Method::GET, Some("dids")) => Ok(Reply::Lines(Box::new(move |tx, line| {
            did::list_content(tx, &name, &mut |child| line(show::content(&child)))
        }))),
        (&Method::GET, Some("files")) => {
            let long = call.arg("long").is_some();
            Ok(Reply::Lines(Box::new(move |tx, line| {
                did::list_files(tx, &name, &mut |child| line(show::file(&child, long)))
            })))
        }
        (&Method::GET, Some("parents")) => {
            let lines = call
                .read(move |tx| {
                    let parents = did::list_parents(tx, &name)?;
                    let shown = parents
                        .iter()
                        .map(|one| json!({"scope": one.did.scope, "name": one.did.name, "type": one.did_type}).to_string());
                    Ok(shown.collect())
                })
                .await?;
            Ok(whole(lines))
        }
        (&Method::GET, Some("rules")) => {
            let id = call.read(move |tx| Ok(did::get(tx, &name)?.id)).await?;
            Ok(stream(Filter { did_id: Some(id), ..Filter::default() }))
        }
        (&Method::GET, Some("associated_rules")) => {
            let lines = call
                .read(move |tx| {
                    let id = did::get(tx, &name)?.id;
                    let mut lines = Vec::new();
                    for rule in read::associated(tx, id)? {
                        let child = show::uuid_of(tx, rule.child_rule_id)?;
                        lines.push(Value::Object(show::rule(&rule, child)).to_string());
                    }
                    Ok(lines)
                })
                .await?;
            Ok(whole(lines))
        }
        (&Method::GET, Some("meta")) => {
            let value = call.read(move |tx| Ok(show::meta(&did::get(tx, &name)?))).await?;
            Ok(Reply::Json(value))
        }
        (&Method::GET, Some("coverage")) => {
            let found = call.read(move |tx| replica::coverage(tx, &name)).await?;
            Ok(Reply::Json(json!(found)))
        }
        _ => Err(no_such_path()),
    }
}

/// Fails unless the caller owns the scope or may do everything.
async fn own_scope(call: &Call, scope: &str, what: &str) -> Result<()> {
    if call.caller.privileged {
        return Ok(());
    }
    let scope = scope.to_owned();
    let owner = call
        .read(move |tx| tx.first("SELECT account FROM scopes WHERE scope = ?1", values![&scope]))
        .await?
        .map(|row| row.text(0).to_owned());
    match owner {
        Some(owner) => call.owner_or_privileged(what, &owner),
        None => Ok(()),
    }
}

fn new_did(name: Did, body: &Map<String, Value>, account: &str) -> Result<NewDid> {
    let kind = body.get("type").and_then(Value::as_str).and_then(DidType::read);
    let monotonic =
        body.get("statuses").and_then(|all| all.get("monotonic")).and_then(Value::as_bool);
    Ok(NewDid {
        did: name,
        did_type: kind.ok_or_else(|| wrong("type is DATASET or CONTAINER"))?,
        account: account.to_owned(),
        monotonic: monotonic.unwrap_or(false),
        lifetime: body.get("lifetime").and_then(Value::as_i64),
        meta: body.get("meta").filter(|meta| !meta.is_null()).map(Value::to_string),
    })
}

/// The children of an attachment, and the files among them that are to be registered.
fn children(body: &Map<String, Value>) -> Result<Vec<Child>> {
    let list = dids(body.get("dids"))?;
    let rows = body.get("dids").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    Ok(list
        .into_iter()
        .zip(rows)
        .map(|(did, value)| Child {
            did,
            bytes: value.get("bytes").and_then(Value::as_i64),
            adler32: text(value, "adler32"),
            md5: text(value, "md5"),
        })
        .collect())
}

/// Attaches within a transaction, registering files first when an RSE is named.
fn attach_within(
    tx: &mut Tx<'_>,
    parent: &Did,
    body: &Map<String, Value>,
    account: &str,
    again: bool,
    now: i64,
) -> Result<()> {
    let children = children(body)?;
    if let Some(rse) = body.get("rse").and_then(Value::as_str) {
        let mut files = Vec::new();
        for child in children.iter().filter(|child| child.bytes.is_some()) {
            let (adler32, md5) = (child.adler32.clone(), child.md5.clone());
            let bytes = child.bytes.unwrap_or(0);
            files.push(NewFile {
                did: child.did.clone(),
                bytes,
                adler32,
                md5,
                path: None,
                state: None,
            });
        }
        replica::add_missing_replicas(tx, rse, &files, account, now)?;
    }
    did::attach_identifier(tx, parent, &children, again, now)?;
    Ok(())
}

async fn add_did(call: &Call, name: Did, body: Map<String, Value>) -> Result<Reply> {
    own_scope(call, &name.scope, "add data identifiers in this scope").await?;
    let new = new_did(name, &body, &call.caller.account)?;
    let rules = inline_rules(call, &new.did, &body)?;
    let (account, now, seed, settings) = (
        call.caller.account.clone(),
        call.now(),
        call.service.around.seed(),
        call.service.settings.clone(),
    );
    call.write(move |tx| {
        did::add_identifier(tx, &new, now)?;
        if body.get("dids").is_some_and(|list| list.as_array().is_some_and(|list| !list.is_empty()))
        {
            attach_within(tx, &new.did, &body, &account, false, now)?;
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        for rule in &rules {
            add::add_replication_rule(tx, rule, &settings, &mut rng, now)?;
        }
        Ok(())
    })
    .await?;
    Ok(created())
}

/// Rules given with a data identifier.
fn inline_rules(
    call: &Call,
    did: &Did,
    body: &Map<String, Value>,
) -> Result<Vec<crate::api::NewRule>> {
    let list = body.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut rules = Vec::with_capacity(list.len());
    for rule in list {
        let mut rule =
            rule.as_object().cloned().ok_or_else(|| wrong("rules is a list of objects"))?;
        rule.insert("dids".to_owned(), json!([{"scope": did.scope, "name": did.name}]));
        let new = new_rule(&rule, &call.caller.account)?;
        call.owner_or_privileged("add a rule for another account", &new.account)?;
        rules.push(new);
    }
    Ok(rules)
}

async fn add_many(call: &Call) -> Result<Reply> {
    let list = match &call.body {
        Value::Array(list) => list.clone(),
        body => body
            .get("dids")
            .and_then(Value::as_array)
            .cloned()
            .ok_or_else(|| wrong("a list of data identifiers"))?,
    };
    for entry in list {
        let body = entry.as_object().cloned().ok_or_else(|| wrong("a list of objects"))?;
        let part = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        let (scope, name) =
            part("scope").zip(part("name")).ok_or_else(|| wrong("each has a scope and a name"))?;
        add_did(call, Did::new(scope, name), body).await?;
    }
    Ok(created())
}

async fn attach(call: &Call, parent: Did, body: Map<String, Value>, again: bool) -> Result<Reply> {
    own_scope(call, &parent.scope, "attach data identifiers in this scope").await?;
    let (account, now) = (call.caller.account.clone(), call.now());
    call.write(move |tx| attach_within(tx, &parent, &body, &account, again, now)).await?;
    Ok(created())
}

async fn attachments(call: &Call) -> Result<Reply> {
    let (list, again) = match &call.body {
        Value::Array(list) => (list.clone(), false),
        body => (
            body.get("attachments")
                .and_then(Value::as_array)
                .cloned()
                .ok_or_else(|| wrong("attachments is a list"))?,
            body.get("ignore_duplicate").and_then(Value::as_bool).unwrap_or(false),
        ),
    };
    for entry in list {
        let body =
            entry.as_object().cloned().ok_or_else(|| wrong("attachments is a list of objects"))?;
        let part = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        let (scope, name) =
            part("scope").zip(part("name")).ok_or_else(|| wrong("each has a scope and a name"))?;
        attach(call, Did::new(scope, name), body, again).await?;
    }
    Ok(created())
}

async fn detach(call: &Call, parent: Did) -> Result<Reply> {
    own_scope(call, &parent.scope, "detach data identifiers in this scope").await?;
    let (children, now) = (dids(call.body.get("dids"))?, call.now());
    call.write(move |tx| did::detach_identifier(tx, &parent, &children, now)).await?;
    Ok(Reply::Done)
}

async fn status(call: &Call, name: Did) -> Result<Reply> {
    own_scope(call, &name.scope, "change data identifiers in this scope").await?;
    let (body, now) = (call.object()?.clone(), call.now());
    for (key, value) in body {
        match (key.as_str(), value) {
            ("open", Value::Bool(false)) => {
                let name = name.clone();
                call.write(move |tx| did::close(tx, &name, now)).await?;
            }
            ("open", Value::Bool(true)) => {
                call.privileged("open a closed data identifier")?;
                let name = name.clone();
                call.write(move |tx| did::reopen(tx, &name, now)).await?;
            }
            ("lifetime", value) => {
                let name = name.clone();
                call.write(move |tx| did::set_lifetime(tx, &name, value.as_i64(), now)).await?;
            }
            (key, _) => {
                let message = format!("The status {key:.40} is not valid.");
                return Err(refuse(Class::UnsupportedStatus, message));
            }
        }
    }
    Ok(Reply::Done)
}

fn show_did(found: &DidRecord, size: Option<(i64, i64)>) -> Value {
    if found.did_type == DidType::File {
        return json!({
            "scope": found.did.scope, "name": found.did.name, "type": found.did_type, "account": found.account,
            "bytes": found.bytes, "length": 1, "md5": found.md5, "adler32": found.adler32,
        });
    }
    let (length, bytes) =
        size.map_or((found.length, found.bytes), |(length, bytes)| (Some(length), Some(bytes)));
    json!({
        "scope": found.did.scope, "name": found.did.name, "type": found.did_type, "account": found.account,
        "open": found.is_open, "monotonic": found.monotonic, "expired_at": show::time(found.expired_at),
        "length": length, "bytes": bytes,
    })
}

async fn get_did(call: &Call, name: Did) -> Result<Reply> {
    let deep = call.arg("dynamic_depth").is_some() || call.arg("dynamic").is_some();
    let value = call
        .read(move |tx| {
            let found = did::get(tx, &name)?;
            let size = if deep && found.did_type != DidType::File {
                Some(did::size(tx, found.id)?)
            } else {
                None
            };
            Ok(show_did(&found, size))
        })
        .await?;
    Ok(Reply::Json(value))
}

async fn add_replicas(call: &Call) -> Result<Reply> {
    let rse = call.text("rse")?;
    let list = call.field("files")?.as_array().cloned().ok_or_else(|| wrong("files is a list"))?;
    let mut files = Vec::with_capacity(list.len());
    for value in list {
        let file: NewFile = serde_json::from_value(value)
            .map_err(|error| wrong(&format!("a file is not as it should be: {error}")))?;
        files.push(file);
    }
    for scope in
        files.iter().map(|file| file.did.scope.as_str()).collect::<std::collections::BTreeSet<_>>()
    {
        own_scope(call, scope, "register files in this scope").await?;
    }
    let (account, now) = (call.caller.account.clone(), call.now());
    call.write(move |tx| replica::add_replicas(tx, &rse, &files, &account, now)).await?;
    Ok(created())
}

/// `A`: the copies are there; `U`: they could not be made.
async fn update_replicas(call: &Call) -> Result<Reply> {
    call.privileged("update replicas")?;
    let rse = call.text("rse")?;
    let names = dids(call.body.get("files"))?;
    let rows = call.field("files")?.as_array().cloned().unwrap_or_default();
    let mut well = Vec::new();
    let mut ill: BTreeMap<String, Vec<Did>> = BTreeMap::new();
    for (name, row) in names.into_iter().zip(rows) {
        let state = row.get("state").and_then(Value::as_str).and_then(ReplicaState::read);
        match state {
            Some(ReplicaState::Available) => well.push(name),
            Some(ReplicaState::Unavailable) => {
                let error = row
                    .get("error_message")
                    .and_then(Value::as_str)
                    .unwrap_or("The transfer failed");
                ill.entry(error.to_owned()).or_default().push(name);
            }
            _ => return Err(wrong("state is A or U")),
        }
    }
    let now = call.now();
    let units = |tx: &mut Tx<'_>, rse: &str, names: &[Did]| -> Result<Vec<(i64, i64)>> {
        names.iter().map(|name| replica::unit(tx, name, rse)).collect()
    };
    let at = rse.clone();
    call.write(move |tx| {
        let units = units(tx, &at, &well)?;
        transfer::successful_transfer(tx, &units, now)
    })
    .await?;
    for (error, names) in ill {
        let at = rse.clone();
        call.write(move |tx| {
            let units = units(tx, &at, &names)?;
            transfer::failed_transfer(tx, &units, &error, None, now)
        })
        .await?;
    }
    Ok(Reply::Done)
}

fn list_replicas(call: &Call) -> Result<Reply> {
    let names = dids(call.body.get("dids"))?;
    let all = call.body.get("all_states").and_then(Value::as_bool).unwrap_or(false);
    Ok(Reply::Lines(Box::new(move |tx, line| {
        for name in &names {
            let root = did::get(tx, name)?.id;
            list_replicas_below(tx, root, all, line)?;
        }
        Ok(())
    })))
}

fn list_replicas_below(
    tx: &mut Tx<'_>,
    root: i64,
    all: bool,
    line: &mut dyn FnMut(String) -> Result<()>,
) -> Result<()> {
    let mut file: Option<(i64, Value)> = None;
    let finish = |file: Option<(i64, Value)>, line: &mut dyn FnMut(String) -> Result<()>| match file
    {
        Some((_, value)) => line(value.to_string()),
        None => Ok(()),
    };
    let sql = "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
        UNION SELECT c.child, c.child_type FROM down JOIN contents c ON c.parent = down.id WHERE down.did_type = 'C'),
        files(id) AS (SELECT c.child FROM down JOIN contents c ON c.parent = down.id WHERE down.did_type = 'D'
        UNION SELECT id FROM down WHERE did_type = 'F')
        SELECT d.id, d.scope, d.name, d.bytes, d.md5, d.adler32, r.uuid, r.rse, p.state FROM files f JOIN dids d ON d.id = f.id
        LEFT JOIN replicas p ON p.did_id = d.id AND (?2 = 1 OR p.state = 'A') LEFT JOIN rses r ON r.id = p.rse_id ORDER BY d.id";
    tx.for_each(sql, values![root, all], &mut |row| {
        if file.as_ref().is_none_or(|file| file.0 != row.int(0)) {
            finish(file.take(), line)?;
            let value = json!({
                "scope": row.text(1), "name": row.text(2), "bytes": row.opt_int(3), "md5": row.opt_text(4),
                "adler32": row.opt_text(5), "pfns": {}, "rses": {}, "states": {},
            });
            file = Some((row.int(0), value));
        }
        if let (Some((_, value)), Some(rse)) = (&mut file, row.opt_text(7)) {
            value["rses"][row.text(6)] = json!([]);
            value["states"][rse.as_str()] = json!(ReplicaState::read(row.text(8)));
        }
        Ok(())
    })?;
    finish(file, line)
}

async fn tombstones(call: &Call) -> Result<Reply> {
    call.privileged("set tombstones")?;
    let list =
        call.field("replicas")?.as_array().cloned().ok_or_else(|| wrong("replicas is a list"))?;
    let now = call.now();
    for entry in list {
        let part = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(scope), Some(name), Some(rse)) = (part("scope"), part("name"), part("rse"))
        else {
            return Err(wrong("each replica has a scope, a name and an rse"));
        };
        let name = Did::new(scope, name);
        call.write(move |tx| replica::set_tombstone(tx, &name, &rse, now)).await?;
    }
    Ok(created())
}

async fn bad(call: &Call) -> Result<Reply> {
    call.privileged("declare replicas bad")?;
    let list =
        call.field("replicas")?.as_array().cloned().ok_or_else(|| wrong("replicas is a list"))?;
    let reason = call.text("reason").unwrap_or_default();
    let (account, now) = (call.caller.account.clone(), call.now());
    for entry in list {
        let part = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(scope), Some(name), Some(rse)) = (part("scope"), part("name"), part("rse"))
        else {
            return Err(wrong("each replica has a scope, a name and an rse"));
        };
        let (name, reason, account) = (Did::new(scope, name), reason.clone(), account.clone());
        call.write(move |tx| replica::declare_bad(tx, &name, &rse, &reason, &account, now)).await?;
    }
    Ok(created())
}

async fn request(call: &Call, name: Did, rse: &str) -> Result<Reply> {
    let rse = rse.to_owned();
    let value = call
        .read(move |tx| {
            let (file, at) = replica::unit(tx, &name, &rse)?;
            let sql = "SELECT q.id, q.request_type, q.state, q.activity, q.priority, q.retry_count, q.err_msg, q.requested_at, u.uuid, q.bytes
                FROM requests q LEFT JOIN rules u ON u.id = q.rule_id WHERE q.did_id = ?1 AND q.dest_rse_id = ?2 ORDER BY q.id DESC LIMIT 1";
            let row = tx.first(sql, values![file, at])?.ok_or_else(|| {
                refuse(Class::ReplicaNotFound, format!("No request found for {name} at RSE {rse}"))
            })?;
            Ok(json!({
                "id": format!("{:032x}", row.int(0)),
                "request_type": if row.text(1) == "S" { "STAGEIN" } else { "TRANSFER" },
                "scope": name.scope, "name": name.name, "dest_rse": rse, "state": RequestState::read(row.text(2)),
                "activity": row.text(3), "priority": row.int(4), "retry_count": row.int(5), "err_msg": row.opt_text(6),
                "requested_at": show_time(row.int(7)), "rule_id": row.opt_text(8), "bytes": row.int(9),
            }))
        })
        .await?;
    Ok(Reply::Json(value))
}
