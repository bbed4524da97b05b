//! Handles `/replicas`: registers, updates, declares and deletes replicas.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::{Tx, values};
use mainstay_rules::api::{Did, Micros, NewFile, ReplicaState};
use mainstay_rules::error::{Class, Error, Result, refuse};
use mainstay_rules::expression::Rse;
use mainstay_rules::rule::transfer;
use mainstay_rules::rule::update::read_time;
use mainstay_rules::{did, protocol, replica, suspect};
use serde_json::{Map, Value, json};

use super::dids::own_scope;
use super::rules::{dids, lines_reply};
use super::{Call, Reply, created, field, flag, show, sites, text, texts, wrong};

/// Declares replicas suspicious; returns the names that are unknown.
pub(super) async fn report_suspicious(call: &Call) -> Result<Reply> {
    let names = names(call)?;
    let unknown = declare_suspicious(call, names).await?;
    Ok(Reply::CreatedJson(json!(unknown)))
}

pub(super) fn quarantine() -> Result<Reply> {
    let why =
        "Quarantine is not supported: remove unregistered files from the storage, or register them";
    Err(refuse(Class::UnsupportedOperation, why))
}

/// The RSEs that hold several datasets, and how much of each.
pub(super) async fn datasets_bulk(call: &Call) -> Result<Reply> {
    let names = dids(call.body.get("dids"))?;
    sites::dataset_replicas(call, names).await
}

pub(super) async fn add_replicas(call: &Call) -> Result<Reply> {
    let rse = call.text("rse")?;
    let list = call.field("files")?.as_array().cloned().ok_or_else(|| wrong("files is a list"))?;
    let only_open = flag(&call.body, "ignore_availability")? == Some(false);
    let files = NewFiles::read(call, &rse, list).await?;
    let (account, now) = (call.caller.account.clone(), call.now());
    call.write(move |tx| {
        if only_open && !mainstay_rules::rse::by_name(tx, &rse)?.write {
            let message = format!("RSE {rse} is closed for writing");
            return Err(refuse(Class::RSEWriteBlocked, message));
        }
        replica::add_replicas(tx, &rse, &files.files, &account, now)?;
        files.describe(tx, now)
    })
    .await?;
    Ok(created())
}

/// Files to register on an RSE.
pub(super) struct NewFiles {
    rse: String,
    files: Vec<NewFile>,
    /// The metadata given with them.
    meta: Vec<(Did, Map<String, Value>)>,
}

impl NewFiles {
    /// Reads them, and fails unless the caller may register files in all of their scopes.
    pub(super) async fn read(call: &Call, rse: &str, list: Vec<Value>) -> Result<Self> {
        let (mut files, mut meta) = (Vec::with_capacity(list.len()), Vec::new());
        let mut named = Vec::new();
        for mut value in list {
            if let Some(bytes) = value.get("bytes").and_then(mainstay_rules::api::whole) {
                value["bytes"] = json!(bytes);
            }
            let physical = text(&value, "pfn")?.map(str::to_owned);
            // A path given directly is not checked and could be another file's.
            if value.get("path").is_some() {
                return Err(wrong("files: path cannot be set; give the location of a file as pfn"));
            }
            let given = field(&value, "meta", "an object", Value::as_object)?.cloned();
            let file: NewFile = serde_json::from_value(value)
                .map_err(|error| wrong(&format!("files: invalid entry: {error}")))?;
            named.extend(physical.map(|name| (files.len(), name)));
            let given = given.filter(|given| !given.is_empty());
            meta.extend(given.map(|given| (file.did.clone(), given)));
            files.push(file);
        }
        let at = rse.to_owned();
        let found = call.read(move |tx| mainstay_rules::rse::by_name(tx, &at)).await?;
        for (at, name) in named {
            files[at].path = path_of_pfn(&found, &files[at].did, &name)?;
        }
        let scopes: BTreeSet<&str> = files.iter().map(|file| file.did.scope.as_str()).collect();
        for scope in scopes {
            own_scope(call, scope, "register files in this scope").await?;
        }
        Ok(Self { rse: rse.to_owned(), files, meta })
    }

    /// Registers the files that are not registered yet.
    pub(super) fn register(&self, tx: &mut Tx<'_>, account: &str, now: Micros) -> Result<()> {
        replica::add_missing_replicas(tx, &self.rse, &self.files, account, now)?;
        self.describe(tx, now)
    }

    fn describe(&self, tx: &mut Tx<'_>, now: Micros) -> Result<()> {
        self.meta.iter().try_for_each(|(did, meta)| did::set_metadata(tx, did, meta, now))
    }
}

/// The path in a physical name; none on deterministic RSEs, where it follows from the logical name.
fn path_of_pfn(rse: &Rse, did: &Did, name: &str) -> Result<Option<String>> {
    let known = rse.protocols.iter().find_map(|protocol| protocol.path_of(name));
    let path = match known {
        Some(path) => path,
        None if rse.protocols.is_empty() && !name.contains("..") => {
            // The RSE has no protocol yet to compare with: take the path as it is given.
            let path = name
                .split_once("://")
                .map_or(name, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
            path.trim_matches('/').to_owned()
        }
        None => {
            let message = format!("{name:.200} is not a physical name of RSE {}", rse.name);
            return Err(refuse(Class::InvalidPath, message));
        }
    };
    if !mainstay_transfers::protocol::stays_below(&path) {
        return Err(protocol::leaves(&path));
    }
    if !rse.deterministic {
        return Ok(Some(path));
    }
    if !rse.protocols.is_empty() && path != mainstay_transfers::protocol::hashed_path(did) {
        let message = format!(
            "RSE {} is deterministic: the path of {did} must be the one computed from its name",
            rse.name
        );
        return Err(refuse(Class::InvalidPath, message));
    }
    Ok(None)
}

/// Deletes unlocked replicas: the reaper removes the files, then the catalog entries.
pub(super) async fn delete_replicas(call: &Call) -> Result<Reply> {
    call.privileged("delete replicas")?;
    let (rse, names, now) = (call.text("rse")?, dids(call.body.get("files"))?, call.now());
    flag(&call.body, "ignore_availability")?;
    call.write(move |tx| names.iter().try_for_each(|name| replica::doom(tx, name, &rse, now)))
        .await?;
    Ok(Reply::Done)
}

/// Sets the state of replicas: `A` means that the copy arrived, `U` that it failed.
///
/// An account that may register files in a scope may report its own uploads as arrived.
pub(super) async fn update_replicas(call: &Call) -> Result<Reply> {
    let rse = call.text("rse")?;
    let names = dids(call.body.get("files"))?;
    let own = call.privileged("update replicas");
    if own.is_err() {
        let scopes: BTreeSet<&str> = names.iter().map(|name| name.scope.as_str()).collect();
        for scope in scopes {
            own_scope(call, scope, "update replicas").await?;
        }
    }
    let rows = call.field("files")?.as_array().cloned().unwrap_or_default();
    let mut well = Vec::new();
    let mut ill: BTreeMap<String, Vec<Did>> = BTreeMap::new();
    for (name, row) in names.into_iter().zip(rows) {
        let state = text(&row, "state")?.and_then(ReplicaState::read);
        let error = text(&row, "error_message")?.unwrap_or("The transfer failed");
        match state {
            Some(ReplicaState::Available) => well.push(name),
            Some(ReplicaState::Unavailable) => {
                ill.entry(error.to_owned()).or_default().push(name);
            }
            _ => return Err(wrong("state is A or U")),
        }
    }
    if !ill.is_empty() {
        call.privileged("update replicas")?;
    }
    let (now, uploads) = (call.now(), own.err());
    let refusal = uploads.map(|error| error.to_string());
    call.write(move |tx| {
        let units = |tx: &mut Tx<'_>, names: &[Did]| -> Result<Vec<(i64, i64)>> {
            names.iter().map(|name| replica::unit(tx, name, &rse)).collect()
        };
        let well = units(tx, &well)?;
        if let Some(refusal) = &refusal {
            for unit in &well {
                if !transfer::is_upload(tx, *unit)? {
                    return Err(refuse(Class::AccessDenied, refusal.as_str()));
                }
            }
        }
        transfer::successful_transfer(tx, &well, now)?;
        for (error, names) in &ill {
            let ill = units(tx, names)?;
            transfer::failed_transfer(tx, &ill, error, None, now)?;
        }
        Ok(())
    })
    .await?;
    Ok(Reply::Done)
}

pub(super) async fn tombstones(call: &Call) -> Result<Reply> {
    call.privileged("set tombstones")?;
    let list = call.field("replicas")?.as_array().ok_or_else(|| wrong("replicas is a list"))?;
    let part = |entry, key| {
        text(entry, key)?
            .map(str::to_owned)
            .ok_or_else(|| wrong("each replica has a scope, a name and an rse"))
    };
    let replica =
        |entry| Ok((Did::new(part(entry, "scope")?, part(entry, "name")?), part(entry, "rse")?));
    let replicas: Vec<(Did, String)> = list.iter().map(replica).collect::<Result<_>>()?;
    let now = call.now();
    call.write(move |tx| {
        replicas.iter().try_for_each(|(name, rse)| replica::set_tombstone(tx, name, rse, now))
    })
    .await?;
    Ok(created())
}

/// A replica given as scope, name and RSE; none if no RSE has the given id.
fn replica_by_parts(rses: &[Rse], entry: &Value) -> Result<Option<(Did, String)>> {
    let wrong = || wrong("each replica is a physical name, or has a scope, a name and an rse");
    let (scope, name) = text(entry, "scope")?.zip(text(entry, "name")?).ok_or_else(wrong)?;
    let rse = match (text(entry, "rse")?, text(entry, "rse_id")?) {
        (Some(rse), _) => Some(rse),
        (None, Some(uuid)) => rses.iter().find(|rse| rse.uuid == uuid).map(|rse| rse.name.as_str()),
        (None, None) => return Err(wrong()),
    };
    Ok(rse.map(|rse| (Did::new(scope, name), rse.to_owned())))
}

pub(super) async fn bad(call: &Call) -> Result<Reply> {
    let list = call
        .field("replicas")
        .or_else(|_| call.field("pfns"))?
        .as_array()
        .cloned()
        .ok_or_else(|| wrong("replicas is a list"))?;
    Ok(Reply::CreatedJson(json!(declare_bad(call, list).await?)))
}

fn names(call: &Call) -> Result<Vec<Value>> {
    call.field("pfns")?.as_array().cloned().ok_or_else(|| wrong("pfns is a list"))
}

/// Declares physical names bad or suspicious; unknown names are ignored.
pub(super) async fn bad_names(call: &Call) -> Result<Reply> {
    let names = names(call)?;
    text(&call.body, "expires_at")?;
    match call.text("state")?.to_ascii_uppercase().as_str() {
        "BAD" => declare_bad(call, names).await?,
        "SUSPICIOUS" => declare_suspicious(call, names).await?,
        "TEMPORARY_UNAVAILABLE" => {
            let why = "TEMPORARY_UNAVAILABLE is not supported: close the RSE for reading instead";
            return Err(refuse(Class::UnsupportedOperation, why));
        }
        _ => return Err(wrong("state is BAD or SUSPICIOUS")),
    };
    Ok(created())
}

/// Unknown replicas by RSE.
type Unknown = BTreeMap<String, Vec<String>>;

async fn declare_bad(call: &Call, list: Vec<Value>) -> Result<Unknown> {
    flag(&call.body, "force")?;
    let reason = text(&call.body, "reason")?.unwrap_or_default().to_owned();
    let (account, now) = (call.caller.account.clone(), call.now());
    declare(call, list, move |tx, did, rse| {
        replica::declare_bad(tx, did, rse, &reason, &account, now)
    })
    .await
}

async fn declare_suspicious(call: &Call, list: Vec<Value>) -> Result<Unknown> {
    let reason = text(&call.body, "reason")?.unwrap_or_default().to_owned();
    let now = call.now();
    declare(call, list, move |tx, did, rse| suspect::declare(tx, did, rse, &reason, now)).await
}

/// Declares all replicas or none; returns those that are unknown.
async fn declare(
    call: &Call,
    list: Vec<Value>,
    say: impl Fn(&mut Tx<'_>, &Did, &str) -> Result<()> + Send + 'static,
) -> Result<Unknown> {
    call.privileged("declare replicas bad or suspicious")?;
    call.write(move |tx| {
        let rses = mainstay_rules::rse::all(tx)?;
        let mut unknown = Unknown::new();
        for entry in &list {
            let found = match entry {
                Value::String(name) => named(tx, &rses, name)?,
                entry => replica_by_parts(&rses, entry)?,
            };
            let (rse, what) = match found {
                None => {
                    let what = entry.as_str().map_or_else(|| entry.to_string(), str::to_owned);
                    ("Unknown".to_owned(), format!("{what} Unknown replica"))
                }
                Some((did, rse)) => match say(tx, &did, &rse) {
                    Ok(()) => continue,
                    Err(error) if is_unknown(&error) => (rse, format!("{did} Unknown replica")),
                    Err(error) => return Err(error),
                },
            };
            unknown.entry(rse).or_default().push(what);
        }
        Ok(unknown)
    })
    .await
}

/// The suspicious replicas, oldest first.
pub(super) async fn suspicious(call: &Call) -> Result<Reply> {
    let since = match call.arg("younger_than") {
        None => 0,
        Some(text) => read_time(text).ok_or_else(|| wrong("younger_than is a date"))?,
    };
    let times: i64 = match call.arg("nattempts") {
        None => 0,
        Some(text) => text.parse().map_err(|_| wrong("nattempts is a number"))?,
    };
    let on = match call.arg("rse_expression").map(str::to_owned) {
        None => None,
        Some(text) => Some(call.read(move |tx| mainstay_rules::rse::resolve(tx, &text)).await?),
    };
    Ok(Reply::Lines(Box::new(move |tx, line| {
        let sql = "SELECT d.scope, d.name, r.rse, r.uuid, s.times, s.created_at, s.reason, s.rse_id FROM suspicious_replicas s
            JOIN dids d ON d.id = s.did_id JOIN rses r ON r.id = s.rse_id WHERE s.updated_at >= ?1 AND s.times >= ?2
            ORDER BY s.created_at, s.did_id, s.rse_id";
        tx.for_each(sql, values![since, times], &mut |row| {
            let rse = row.int(7)?;
            if on.as_ref().is_some_and(|on| !on.contains(&rse)) {
                return Ok(());
            }
            let value = json!({
                "scope": row.text(0)?, "name": row.text(1)?, "rse": row.text(2)?, "rse_id": row.text(3)?,
                "cnt": row.int(4)?, "created_at": show::time(row.opt_int(5)?), "reason": row.text(6)?,
            });
            line(value.to_string())
        })
    })))
}

fn is_unknown(error: &Error) -> bool {
    matches!(error.class(), Some(Class::ReplicaNotFound | Class::DataIdentifierNotFound))
}

pub(super) async fn bad_dids(call: &Call) -> Result<Reply> {
    call.privileged("declare replicas bad")?;
    let (rse, names) = (call.text("rse")?, dids(call.body.get("dids"))?);
    let reason = text(&call.body, "reason")?.unwrap_or_default().to_owned();
    let (account, now) = (call.caller.account.clone(), call.now());
    call.write(move |tx| {
        names
            .iter()
            .try_for_each(|name| replica::declare_bad(tx, name, &rse, &reason, &account, now))
    })
    .await?;
    Ok(Reply::CreatedJson(json!({})))
}

pub(super) fn bad_states() -> Reply {
    Reply::Lines(Box::new(|tx, line| {
        let sql = "SELECT d.scope, d.name, r.rse, r.uuid, b.reason, b.account, b.created_at FROM bad_replicas b
            JOIN dids d ON d.id = b.did_id JOIN rses r ON r.id = b.rse_id ORDER BY b.id";
        tx.for_each(sql, &[], &mut |row| {
            let at = show::time(row.opt_int(6)?);
            let value = json!({
                "scope": row.text(0)?, "name": row.text(1)?, "rse": row.text(2)?, "rse_id": row.text(3)?, "state": "BAD",
                "reason": row.opt_text(4)?, "account": row.opt_text(5)?, "created_at": at, "updated_at": at,
            });
            line(value.to_string())
        })
    }))
}

/// The replica with a physical name.
fn named(tx: &mut Tx<'_>, rses: &[Rse], name: &str) -> Result<Option<(Did, String)>> {
    for rse in rses {
        let Some(path) = rse.protocols.iter().find_map(|one| one.path_of(name)) else { continue };
        if let Some(did) = replica::at_path(tx, rse, &path)? {
            return Ok(Some((did, rse.name.clone())));
        }
    }
    Ok(None)
}

/// The files that physical names belong to.
pub(super) async fn dids_of(call: &Call) -> Result<Reply> {
    let names = texts(&call.body, "pfns")?.ok_or_else(|| wrong("pfns is a list of texts"))?;
    let on = text(&call.body, "rse")?.map(str::to_owned);
    let lines = call
        .read(move |tx| {
            let rses = match &on {
                Some(on) => vec![mainstay_rules::rse::by_name(tx, on)?],
                None => mainstay_rules::rse::all(tx)?.to_vec(),
            };
            let mut lines = Vec::new();
            for name in &names {
                if let Some((did, _)) = named(tx, &rses, name)? {
                    lines.push(json!({name: {"scope": did.scope, "name": did.name}}).to_string());
                }
            }
            Ok(lines)
        })
        .await?;
    Ok(lines_reply(lines))
}

/// The datasets with at least one file on an RSE.
pub(super) async fn datasets_on(call: &Call, rse: &str) -> Result<Reply> {
    let rse = rse.to_owned();
    let found = call.read(move |tx| mainstay_rules::rse::by_name(tx, &rse)).await?;
    Ok(Reply::Lines(Box::new(move |tx, line| {
        replica::datasets_on(tx, found.id, &mut |name, (length, bytes), held| {
            line(sites::dataset_replica(&name, &found, (length, bytes), &held))
        })
    })))
}
