//! Handles `/dids`: data identifiers, their contents and their status.

use mainstay_catalog::{Tx, values};
use mainstay_rules::api::{Did, DidRecord, DidType, NewRule};
use mainstay_rules::did::{self, Child, NewDid};
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::replica;
use mainstay_rules::rule::add;
use mainstay_rules::rule::read::{self, Filter};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::replicas::NewFiles;
use super::rules::{dids, lines_reply, may_add, new_rule, stream};
use super::{Call, Reply, created, field, flag, list, meta, number, query_flag, show, text, wrong};

/// The files below many data identifiers, each with the one it was found below.
pub(super) fn bulk_files(call: &Call) -> Result<Reply> {
    let names = dids(call.body.get("dids"))?;
    Ok(Reply::Lines(Box::new(move |tx, line| {
        // Unknown names must fail before the first line is sent.
        names.iter().try_for_each(|name| did::get(tx, name).map(drop))?;
        for name in &names {
            did::list_files(tx, name, &mut |child| {
                let mut value = show::file(&child, false);
                value["parent_scope"] = json!(name.scope);
                value["parent_name"] = json!(name.name);
                line(value.to_string())
            })?;
        }
        Ok(())
    })))
}

/// The top-level data identifiers of a scope, or those below one of its names.
pub(super) fn scope_list(call: &Call, scope: &str) -> Result<Reply> {
    let (scope, name) = (scope.to_owned(), call.arg("name").map(str::to_owned));
    let recursive = query_flag(call, "recursive")?;
    Ok(Reply::Lines(Box::new(move |tx, line| {
        if tx.first("SELECT 1 FROM scopes WHERE scope = ?1", values![&scope])?.is_none() {
            return Err(refuse(Class::ScopeNotFound, format!("Scope '{scope:.40}' not found!")));
        }
        let mut show = |found: &DidRecord, parent: Value, level: i64| {
            let value = json!({
                "scope": found.did.scope, "name": found.did.name, "type": found.did_type, "parent": parent,
                "level": level, "bytes": found.bytes,
            });
            line(value.to_string())
        };
        let Some(name) = &name else {
            let sql = did::top_sql();
            return tx.for_each(&sql, values![&scope], &mut |row| {
                show(&did::from_row(&row)?, Value::Null, 0)
            });
        };
        let top = did::get(tx, &Did::new(scope.clone(), name.clone()))?;
        show(&top, Value::Null, 0)?;
        let parent = json!({"scope": scope, "name": name});
        if recursive {
            return did::below(tx, &[top.id], &mut |found| show(&found, parent.clone(), 1));
        }
        did::children(tx, top.id, &mut |found| show(&found, parent.clone(), 1))
    })))
}

/// The former contents of a collection.
pub(super) fn history(name: Did) -> Result<Reply> {
    Ok(Reply::Lines(Box::new(move |tx, line| {
        let id = did::get(tx, &name)?.id;
        let sql = "SELECT d.scope, d.name, d.did_type, h.bytes, h.created_at, h.deleted_at FROM contents_history h
            JOIN dids d ON d.id = h.child WHERE h.parent = ?1 ORDER BY h.deleted_at, d.scope, d.name";
        tx.for_each(sql, values![id], &mut |row| {
            let value = json!({
                "scope": row.text(0)?, "name": row.text(1)?, "type": row.state::<DidType>(2)?, "bytes": row.opt_int(3)?,
                "did_created_at": show::time(row.opt_int(4)?), "created_at": show::time(row.opt_int(4)?),
                "updated_at": show::time(row.opt_int(5)?), "deleted_at": show::time(row.opt_int(5)?),
                "adler32": null, "md5": null,
            });
            line(value.to_string())
        })
    })))
}

/// The data identifier and the key of a path `NAME/meta/KEY`. Clients do not encode slashes in keys;
/// a body with a `value` tells such a path from a name.
fn metadata_key(call: &Call, name: &Did, end: &str) -> Option<(Did, String)> {
    call.body.get("value")?;
    let (below, key) = name.name.split_once("/meta/")?;
    Some((Did::new(name.scope.as_str(), below), format!("{key}{end}")))
}

/// Adds a data identifier.
pub(super) async fn add(call: &Call, name: Did) -> Result<Reply> {
    if let Some((below, key)) = metadata_key(call, &name, "") {
        return meta::set_key(call, below, key).await;
    }
    call.object()?;
    add_all(call, vec![addition(call, name, &call.body).await?]).await
}

/// The direct contents of a collection.
pub(super) fn content(name: Did) -> Reply {
    Reply::Lines(Box::new(move |tx, line| {
        did::list_content(tx, &name, &mut |child| line(show::content(&child)))
    }))
}

/// All files below a data identifier.
pub(super) fn files(call: &Call, name: Did) -> Result<Reply> {
    let long = query_flag(call, "long")?;
    Ok(Reply::Lines(Box::new(move |tx, line| {
        did::list_files(tx, &name, &mut |child| line(show::file(&child, long).to_string()))
    })))
}

/// The collections that hold a data identifier.
pub(super) async fn parents(call: &Call, name: Did) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let parents = did::list_parents(tx, &name)?;
            let shown = parents.iter().map(|one| {
                json!({"scope": one.did.scope, "name": one.did.name, "type": one.did_type})
                    .to_string()
            });
            Ok(shown.collect())
        })
        .await?;
    Ok(lines_reply(lines))
}

/// The rules on a data identifier itself.
pub(super) async fn rules_of(call: &Call, name: Did) -> Result<Reply> {
    let id = call.read(move |tx| Ok(did::get(tx, &name)?.id)).await?;
    Ok(stream(Filter::of_did(id)))
}

/// The rules on a data identifier and on all that hold it.
pub(super) async fn associated_rules(call: &Call, name: Did) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let id = did::get(tx, &name)?.id;
            let mut lines = Vec::new();
            for rule in read::associated(tx, id)? {
                let child = show::uuid_of(tx, rule.child_rule_id)?;
                let mut shown = show::rule(&rule, child);
                shown.insert("bytes".to_owned(), Value::Null);
                lines.push(Value::Object(shown).to_string());
            }
            Ok(lines)
        })
        .await?;
    Ok(lines_reply(lines))
}

/// How much of a data identifier each RSE has.
pub(super) async fn coverage(call: &Call, name: Did) -> Result<Reply> {
    let found = call.read(move |tx| replica::coverage(tx, &name)).await?;
    Ok(Reply::Json(json!(found)))
}

/// Fails unless the caller owns the scope or is privileged.
pub(super) async fn own_scope(call: &Call, scope: &str, what: &str) -> Result<()> {
    if call.caller.privileged {
        return Ok(());
    }
    let scope = scope.to_owned();
    let owner = call
        .read(move |tx| {
            let sql = "SELECT account FROM scopes WHERE scope = ?1";
            let row = tx.first(sql, values![&scope])?;
            row.map(|row| Ok(row.text(0)?.to_owned())).transpose()
        })
        .await?;
    match owner {
        Some(owner) => call.owner_or_privileged(what, &owner),
        None => Ok(()),
    }
}

fn new_did(name: Did, body: &Value, account: &str) -> Result<NewDid> {
    let kind = text(body, "type")?.and_then(DidType::read);
    let statuses = field(body, "statuses", "an object", |value| value.as_object().map(|_| value))?;
    let monotonic = statuses.map(|statuses| flag(statuses, "monotonic")).transpose()?.flatten();
    let others = statuses.and_then(Value::as_object).into_iter().flatten();
    // New data identifiers are always open.
    let known = |(key, value): (&String, &Value)| {
        key == "monotonic" || (key == "open" && *value == Value::Bool(true))
    };
    if !others.into_iter().all(known) {
        let message = "statuses: a new data identifier is open; only monotonic can be chosen";
        return Err(refuse(Class::UnsupportedStatus, message));
    }
    let meta = field(body, "meta", "an object", Value::as_object)?;
    let meta = meta.map(did::read_metadata).transpose()?;
    let within = meta.as_ref().and_then(|meta| meta.lifetime).flatten();
    Ok(NewDid {
        did: name,
        did_type: kind.ok_or_else(|| wrong("type is DATASET or CONTAINER"))?,
        account: account.to_owned(),
        monotonic: monotonic.unwrap_or(false),
        lifetime: number(body, "lifetime")?.or(within),
        meta: meta.map(|meta| json!(meta.kept).to_string()),
    })
}

/// Children to attach to a parent, and the files among them to register first on an RSE.
struct Attachment {
    parent: Did,
    children: Vec<Child>,
    files: Option<NewFiles>,
}

/// Reads an attachment, and fails unless the caller may make it and register its files.
async fn attachment(call: &Call, parent: Did, body: &Value) -> Result<Attachment> {
    own_scope(call, &parent.scope, "attach data identifiers in this scope").await?;
    let named = dids(body.get("dids"))?;
    let child = |(did, value): (Did, &Value)| {
        Ok(Child {
            did,
            bytes: number(value, "bytes")?,
            adler32: text(value, "adler32")?.map(str::to_owned),
            md5: text(value, "md5")?.map(str::to_owned),
        })
    };
    let all = list(body, "dids")?;
    let children: Vec<Child> = named.into_iter().zip(all).map(child).collect::<Result<_>>()?;
    let files = match text(body, "rse")? {
        None => None,
        Some(rse) => {
            // Children without a size are registered already.
            let new = children.iter().zip(all).filter(|(child, _)| child.bytes.is_some());
            let new: Vec<Value> = new.map(|(_, value)| value.clone()).collect();
            Some(NewFiles::read(call, rse, new).await?)
        }
    };
    Ok(Attachment { parent, children, files })
}

/// Attaches within a transaction, registering files first where an RSE is named.
fn attach_within(
    tx: &mut Tx<'_>,
    what: &[Attachment],
    account: &str,
    again: bool,
    now: i64,
) -> Result<()> {
    if what.len() > 1 || what.iter().any(|one| one.files.is_some()) {
        let pairs: Vec<(&Did, &[Child])> =
            what.iter().map(|one| (&one.parent, one.children.as_slice())).collect();
        did::hold_for_attaching(tx, &pairs)?;
    }
    for one in what {
        if let Some(files) = &one.files {
            files.register(tx, account, now)?;
        }
        did::attach_identifier(tx, &one.parent, &one.children, again, now)?;
    }
    Ok(())
}

/// A data identifier to add, with its contents and rules.
struct Addition {
    new: NewDid,
    inside: Option<Attachment>,
    rules: Vec<NewRule>,
}

async fn addition(call: &Call, name: Did, body: &Value) -> Result<Addition> {
    own_scope(call, &name.scope, "add data identifiers in this scope").await?;
    let new = new_did(name, body, &call.caller.account)?;
    let rules = inline_rules(call, &new.did, body)?;
    text(body, "rse")?;
    let inside = match list(body, "dids")? {
        [] => None,
        _ => Some(attachment(call, new.did.clone(), body).await?),
    };
    Ok(Addition { new, inside, rules })
}

/// Adds data identifiers, all or none.
async fn add_all(call: &Call, mut all: Vec<Addition>) -> Result<Reply> {
    let inside: Vec<Attachment> = all.iter_mut().filter_map(|one| one.inside.take()).collect();
    let rules: Vec<NewRule> =
        all.iter_mut().flat_map(|one| std::mem::take(&mut one.rules)).collect();
    // Rows are locked in the order of names, so that two such requests never deadlock.
    let mut names: Vec<NewDid> = all.into_iter().map(|one| one.new).collect();
    names.sort_by(|one, other| one.did.cmp(&other.did));
    let (account, now, seed, settings) = (
        call.caller.account.clone(),
        call.now(),
        call.service.around.seed(),
        call.service.settings.clone(),
    );
    call.write(move |tx| {
        for new in &names {
            did::add_identifier(tx, new, now)?;
        }
        attach_within(tx, &inside, &account, false, now)?;
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
fn inline_rules(call: &Call, did: &Did, body: &Value) -> Result<Vec<NewRule>> {
    let mut rules = Vec::new();
    for rule in list(body, "rules")? {
        let mut rule =
            rule.as_object().cloned().ok_or_else(|| wrong("rules is a list of objects"))?;
        rule.insert("dids".to_owned(), json!([{"scope": did.scope, "name": did.name}]));
        let new = new_rule(&rule, &call.caller.account)?;
        may_add(call, &new)?;
        rules.push(new);
    }
    Ok(rules)
}

/// The entries of a list, each with the data identifier that it is about.
fn named(list: &[Value]) -> Result<Vec<(Did, &Value)>> {
    let one = |body| {
        let (scope, name) = text(body, "scope")?
            .zip(text(body, "name")?)
            .ok_or_else(|| wrong("Each entry should have a scope and a name"))?;
        Ok((Did::new(scope, name), body))
    };
    list.iter().map(one).collect()
}

pub(super) async fn add_many(call: &Call) -> Result<Reply> {
    let list = match &call.body {
        Value::Array(list) => list,
        body => body
            .get("dids")
            .and_then(Value::as_array)
            .ok_or_else(|| wrong("The body should be a list of data identifiers"))?,
    };
    let mut all = Vec::with_capacity(list.len());
    for (name, body) in named(list)? {
        all.push(addition(call, name, body).await?);
    }
    add_all(call, all).await
}

pub(super) async fn attach(call: &Call, parent: Did) -> Result<Reply> {
    if let Some((below, key)) = metadata_key(call, &parent, "/dids") {
        return meta::set_key(call, below, key).await;
    }
    let what = attachment(call, parent, &call.body).await?;
    attach_all(call, vec![what], false).await
}

pub(super) async fn attachments(call: &Call) -> Result<Reply> {
    let (list, again) = match &call.body {
        Value::Array(list) => (list, false),
        body => (
            body.get("attachments")
                .and_then(Value::as_array)
                .ok_or_else(|| wrong("attachments is a list"))?,
            flag(body, "ignore_duplicate")?.unwrap_or(false),
        ),
    };
    let mut all = Vec::with_capacity(list.len());
    for (parent, body) in named(list)? {
        all.push(attachment(call, parent, body).await?);
    }
    attach_all(call, all, again).await
}

/// Makes all attachments or none.
async fn attach_all(call: &Call, what: Vec<Attachment>, again: bool) -> Result<Reply> {
    let (account, now) = (call.caller.account.clone(), call.now());
    call.write(move |tx| attach_within(tx, &what, &account, again, now)).await?;
    Ok(created())
}

pub(super) async fn detach(call: &Call, parent: Did) -> Result<Reply> {
    own_scope(call, &parent.scope, "detach data identifiers in this scope").await?;
    let (children, now) = (dids(call.body.get("dids"))?, call.now());
    call.write(move |tx| did::detach_identifier(tx, &parent, &children, now)).await?;
    Ok(Reply::Done)
}

/// A change of a data identifier's status.
enum Change {
    Close,
    Reopen,
    Lifetime(Option<i64>),
}

pub(super) async fn status(call: &Call, name: Did) -> Result<Reply> {
    own_scope(call, &name.scope, "change data identifiers in this scope").await?;
    let mut changes = Vec::new();
    for (key, value) in call.object()? {
        changes.push(match (key.as_str(), value) {
            ("open", Value::Bool(false)) => Change::Close,
            ("open", Value::Bool(true)) => {
                call.privileged("open a closed data identifier")?;
                Change::Reopen
            }
            ("open", _) => return Err(wrong("The field open should be true or false")),
            ("lifetime", _) => Change::Lifetime(number(&call.body, "lifetime")?),
            (key, _) => {
                let message = format!("The status {key:.40} is not valid.");
                return Err(refuse(Class::UnsupportedStatus, message));
            }
        });
    }
    let now = call.now();
    call.write(move |tx| {
        changes.iter().try_for_each(|change| match change {
            Change::Close => did::close(tx, &name, now),
            Change::Reopen => did::reopen(tx, &name, now),
            Change::Lifetime(lifetime) => did::set_lifetime(tx, &name, *lifetime, now),
        })
    })
    .await?;
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

pub(super) async fn get_did(call: &Call, name: Did) -> Result<Reply> {
    let deep = match call.arg("dynamic_depth") {
        None => query_flag(call, "dynamic")?,
        Some(text) => DidType::read(text)
            .map(|_| true)
            .ok_or_else(|| wrong("dynamic_depth is FILE or DATASET"))?,
    };
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
