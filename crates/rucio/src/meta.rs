//! Handles `/dids/…/meta`: metadata of data identifiers besides the catalog's own columns.
//!
//! Each data identifier has one object of keys and values. Keys that are columns in Rucio are shown
//! among the columns, all others as JSON metadata.

use std::collections::BTreeSet;

use mainstay_catalog::Tx;
use mainstay_catalog::order::ancestors;
use mainstay_rules::api::Did;
use mainstay_rules::did;
use mainstay_rules::error::{Class, Result, refuse};
use serde_json::{Map, Value, json};

use super::dids::own_scope;
use super::rules::lines_reply;
use super::{Call, Reply, created, flag, show, text, wrong};

/// The part of the metadata to show, which Rucio calls a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Columns,
    Json,
    Both,
}

fn half(text: Option<&str>) -> Result<Half> {
    match text.map(str::to_ascii_uppercase).as_deref() {
        None | Some("DID_COLUMN") => Ok(Half::Columns),
        Some("JSON") => Ok(Half::Json),
        Some("ALL") => Ok(Half::Both),
        Some(_) => {
            let message = "The metadata plugins are DID_COLUMN, JSON and ALL";
            Err(refuse(Class::UnsupportedMetadataPlugin, message))
        }
    }
}

fn read(tx: &mut Tx<'_>, name: &Did, half: Half) -> Result<Map<String, Value>> {
    let found = did::get(tx, name)?;
    let own = did::metadata(tx, found.id)?;
    let Value::Object(mut columns) = show::meta(&found) else { return Ok(Map::new()) };
    // Earlier versions accepted keys that belong to the catalog itself.
    let allowed = own.into_iter().filter(|(key, _)| !did::is_own(key));
    let (known, free): (Map<_, _>, Map<_, _>) =
        allowed.partition(|(key, _)| columns.contains_key(key));
    if half == Half::Json {
        return Ok(free);
    }
    columns.extend(known);
    if half == Half::Both {
        columns.extend(free);
    }
    Ok(columns)
}

/// The metadata of a data identifier.
pub(super) async fn get(call: &Call, name: Did) -> Result<Reply> {
    let half = half(call.arg("plugin"))?;
    let value = call.read(move |tx| read(tx, &name, half)).await?;
    Ok(Reply::Json(Value::Object(value)))
}

/// Sets one key.
pub(super) async fn set_key(call: &Call, name: Did, key: String) -> Result<Reply> {
    let meta = Map::from_iter([(key, call.field("value")?.clone())]);
    set(call, vec![(name, meta)]).await
}

/// Sets several keys.
pub(super) async fn set_all(call: &Call, name: Did) -> Result<Reply> {
    let meta = call.field("meta")?.as_object().cloned();
    let meta = meta.ok_or_else(|| wrong("The field meta should be an object"))?;
    set(call, vec![(name, meta)]).await
}

/// Removes one key.
pub(super) async fn delete(call: &Call, name: Did) -> Result<Reply> {
    own_scope(call, &name.scope, "change metadata in this scope").await?;
    let key = call.arg("key").ok_or_else(|| wrong("The argument key is missing"))?.to_owned();
    let now = call.now();
    call.write(move |tx| did::delete_metadata(tx, &name, &key, now)).await?;
    Ok(Reply::Done)
}

/// A data identifier, and the keys to set.
type NewMetadata = (Did, Map<String, Value>);

/// Sets metadata, all or none; with `recursive` also of everything below.
async fn set(call: &Call, mut all: Vec<NewMetadata>) -> Result<Reply> {
    if flag(&call.body, "recursive")?.unwrap_or(false) {
        all = call.read(move |tx| with_descendants(tx, &all)).await?;
    }
    let scopes: BTreeSet<&str> = all.iter().map(|(name, _)| name.scope.as_str()).collect();
    for scope in scopes {
        own_scope(call, scope, "change metadata in this scope").await?;
    }
    let now = call.now();
    call.write(move |tx| {
        all.iter().try_for_each(|(name, meta)| did::set_metadata(tx, name, meta, now))
    })
    .await?;
    Ok(created())
}

fn with_descendants(tx: &mut Tx<'_>, all: &[NewMetadata]) -> Result<Vec<NewMetadata>> {
    let mut found = Vec::new();
    for (name, meta) in all {
        found.push((name.clone(), meta.clone()));
        let id = did::get(tx, name)?.id;
        did::below(tx, &[id], &mut |below| {
            found.push((below.did, meta.clone()));
            Ok(())
        })?;
    }
    Ok(found)
}

/// `bulkmeta`: the metadata of many data identifiers.
pub(super) async fn bulk(call: &Call) -> Result<Reply> {
    let names = super::rules::dids(call.body.get("dids"))?;
    let half = half(text(&call.body, "plugin")?)?;
    let inherit = flag(&call.body, "inherit")?.unwrap_or(false);
    let lines = call
        .read(move |tx| {
            let mut lines = Vec::with_capacity(names.len());
            for name in &names {
                match read(tx, name, half) {
                    Ok(mut found) => {
                        if inherit && half != Half::Columns {
                            inherited(tx, name, &mut found)?;
                        }
                        found.insert("scope".to_owned(), json!(name.scope));
                        found.insert("name".to_owned(), json!(name.name));
                        lines.push(Value::Object(found).to_string());
                    }
                    // Unknown names are left out.
                    Err(error) if error.class() == Some(Class::DataIdentifierNotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(lines)
        })
        .await?;
    Ok(lines_reply(lines))
}

/// Adds the metadata of the collections above, for keys that the data identifier itself lacks.
fn inherited(tx: &mut Tx<'_>, name: &Did, found: &mut Map<String, Value>) -> Result<()> {
    let own = did::get(tx, name)?.id;
    for id in ancestors(tx, &[own])? {
        for (key, value) in did::metadata(tx, id)? {
            if did::is_own(&key) {
                continue;
            }
            found.entry(key).or_insert(value);
        }
    }
    Ok(())
}

/// `bulkdidsmeta`: sets the metadata of many data identifiers, all or none.
pub(super) async fn set_bulk(call: &Call) -> Result<Reply> {
    let list = call
        .field("dids")?
        .as_array()
        .cloned()
        .ok_or_else(|| wrong("The field dids should be a list"))?;
    let mut all = Vec::with_capacity(list.len());
    for entry in &list {
        let part = |key: &str| entry.get(key).and_then(Value::as_str);
        let meta = entry.get("meta").and_then(Value::as_object).cloned();
        let (Some(scope), Some(name), Some(meta)) = (part("scope"), part("name"), meta) else {
            return Err(wrong("Each entry should have a scope, a name and a meta"));
        };
        all.push((Did::new(scope, name), meta));
    }
    set(call, all).await
}
