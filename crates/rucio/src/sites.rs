//! Handles `/rses`: storage elements (RSEs), their protocols, attributes, limits, distances and usage.

use std::sync::Arc;

use mainstay_catalog::Tx;
use mainstay_catalog::ledger::OWN_COUNT;
use mainstay_rules::api::{Did, ReplicaState, show_time};
use mainstay_rules::error::{Class, Result, refuse};
use mainstay_rules::expression::Rse;
use mainstay_rules::protocol::{self, Which};
use mainstay_rules::replica::AvailableFiles;
use mainstay_rules::rse::{self, Measured, RseSettings};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store::Access;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Map, Value, json};

use super::rules::lines_reply;
use super::{Call, Reply, attribute, created, flag, number, query_flag, show, wrong};

/// Fields of an RSE that clients may send and that are not stored.
const NOT_KEPT: &[&str] = &[
    "ASN",
    "ISP",
    "city",
    "continent",
    "country_name",
    "latitude",
    "longitude",
    "qos_class",
    "region_code",
    "time_zone",
    "vo",
];

fn settings(
    name: &str,
    body: &Map<String, Value>,
    mut settings: RseSettings,
) -> Result<RseSettings> {
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
            // Some clients send the three flags as one number.
            "availability" => {
                let sum = value.as_i64().filter(|sum| (0..=7).contains(sum));
                let sum = sum.ok_or_else(|| wrong("availability is a number from 0 to 7"))?;
                (settings.read, settings.write, settings.delete) =
                    (sum & 4 != 0, sum & 2 != 0, sum & 1 != 0);
            }
            "name" | "rse" if value.as_str() == Some(name) => {}
            "name" | "rse" => {
                let message = format!("RSE {name} keeps its name");
                return Err(refuse(Class::InputValidationError, message));
            }
            key if NOT_KEPT.contains(&key) => {
                if value.is_array() || value.is_object() || value.is_boolean() {
                    return Err(wrong(&format!("{key} is a text or a number")));
                }
            }
            _ => {
                let message = format!("{key:.40} is not a field of an RSE");
                return Err(refuse(Class::InputValidationError, message));
            }
        }
    }
    Ok(settings)
}

pub(super) async fn get_rse(call: &Call, name: String) -> Result<Reply> {
    let found = call.read(move |tx| rse::by_name(tx, &name)).await?;
    Ok(Reply::Json(show::rse_whole(&found)))
}

pub(super) async fn add_rse(call: &Call, name: String) -> Result<Reply> {
    let now = call.now();
    let body = match &call.body {
        Value::Null => Map::new(),
        _ => call.object()?.clone(),
    };
    let settings = settings(&name, &body, RseSettings::default())?;
    let seed = call.service.around.seed();
    call.write(move |tx| {
        let random = rand::RngExt::random(&mut SmallRng::seed_from_u64(seed));
        let uuid = uuid::Builder::from_random_bytes(random).into_uuid().simple().to_string();
        rse::add(tx, &name, &settings, &uuid, now)
    })
    .await?;
    Ok(created())
}

pub(super) async fn update_rse(call: &Call, name: String) -> Result<Reply> {
    let (body, now) = (call.object()?.clone(), call.now());
    call.write(move |tx| {
        let old = rse::by_name(tx, &name)?;
        let old = RseSettings {
            rse_type: old.rse_type,
            deterministic: old.deterministic,
            volatile: old.volatile,
            staging_area: old.staging_area,
            read: old.read,
            write: old.write,
            delete: old.delete,
        };
        rse::update(tx, &name, &settings(&name, &body, old)?, now)
    })
    .await?;
    Ok(created())
}

pub(super) async fn delete_rse(call: &Call, name: String) -> Result<Reply> {
    let now = call.now();
    call.write(move |tx| rse::delete(tx, &name, now)).await?;
    Ok(Reply::Done)
}

/// The attributes of an RSE.
pub(super) async fn attributes(call: &Call, name: String) -> Result<Reply> {
    let found = call.read(move |tx| rse::by_name(tx, &name)).await?;
    let shown = |value: &String| match value.as_str() {
        "true" => json!(true),
        "false" => json!(false),
        text => json!(text),
    };
    let all: Map<String, Value> =
        found.attributes.iter().map(|(key, value)| (key.clone(), shown(value))).collect();
    Ok(Reply::Json(Value::Object(all)))
}

pub(super) async fn set_attribute(call: &Call, name: String, key: String) -> Result<Reply> {
    let value = attribute(&call.body)?;
    call.write(move |tx| rse::set_attribute(tx, &name, &key, &value)).await?;
    Ok(created())
}

pub(super) async fn delete_attribute(call: &Call, name: String, key: String) -> Result<Reply> {
    call.write(move |tx| rse::delete_attribute(tx, &name, &key)).await?;
    Ok(Reply::Done)
}

/// Records the usage that the storage itself reports.
pub(super) async fn set_usage(call: &Call, name: String) -> Result<Reply> {
    let (source, used, free) = (call.text("source")?, call.number("used")?, call.number("free")?);
    let (files, now) = (number(&call.body, "files")?, call.now());
    if used < 0 || free < 0 || files.is_some_and(|files| files < 0) {
        return Err(wrong("used, free and files are not negative"));
    }
    let measured = Measured { used, free, files };
    call.write(move |tx| rse::set_usage(tx, &name, &source, &measured, now)).await?;
    Ok(Reply::Done)
}

/// The limits of an RSE.
pub(super) async fn limits(call: &Call, name: String) -> Result<Reply> {
    let found = call.read(move |tx| rse::by_name(tx, &name)).await?;
    Ok(Reply::Json(json!(found.limits)))
}

pub(super) async fn set_limit(call: &Call, rse: String) -> Result<Reply> {
    let (name, value) = (call.text("name")?, call.number("value")?);
    call.write(move |tx| rse::set_limit(tx, &rse, &name, value)).await?;
    Ok(Reply::Done)
}

pub(super) async fn delete_limit(call: &Call, rse: String) -> Result<Reply> {
    let name = call.text("name")?;
    call.write(move |tx| rse::delete_limit(tx, &rse, &name)).await?;
    Ok(Reply::Done)
}

/// The history of an RSE's usage; always empty, because none is kept.
pub(super) async fn usage_history(call: &Call, name: String) -> Result<Reply> {
    call.read(move |tx| rse::by_name(tx, &name)).await?;
    Ok(lines_reply(Vec::new()))
}

fn which(rest: &[&str]) -> Result<Which> {
    let port = rest.get(2).map(|text| text.parse::<i64>());
    let port = port.transpose().map_err(|_| wrong("a port is a number"))?;
    Ok(Which {
        scheme: rest.first().copied().unwrap_or_default().to_owned(),
        hostname: rest.get(1).map(|text| (*text).to_owned()),
        port,
    })
}

/// A filter for protocols by operation and domain.
struct WantedProtocols {
    domains: &'static [&'static str],
    operation: Option<&'static str>,
}

impl WantedProtocols {
    fn read(call: &Call) -> Result<Self> {
        let arg = |key: &str| call.arg(key).filter(|text| !["", "None"].contains(text));
        let domains: &[&str] = match arg("protocol_domain").map(str::to_ascii_lowercase).as_deref()
        {
            None | Some("all") => &["lan", "wan"],
            Some("lan") => &["lan"],
            Some("wan") => &["wan"],
            Some(_) => return Err(wrong("protocol_domain is lan, wan or ALL")),
        };
        let known = [
            "read",
            "write",
            "delete",
            "third_party_copy",
            "third_party_copy_read",
            "third_party_copy_write",
        ];
        let operation = arg("operation").map(|text| {
            let named = known.into_iter().find(|one| *one == text);
            named.ok_or_else(|| wrong(&format!("operation is one of {}", known.join(", "))))
        });
        // `default` is only checked: all protocols are shown with their ranks.
        query_flag(call, "default")?;
        Ok(Self { domains, operation: operation.transpose()? })
    }

    fn take(&self, protocol: &Protocol) -> bool {
        match self.operation {
            Some(operation) => {
                self.domains.iter().any(|one| protocol.rank(one, operation).is_some())
            }
            None if self.domains.len() > 1 => true,
            None => self.domains.iter().any(|one| {
                let ranks = protocol.domains.get(*one).and_then(Value::as_object);
                ranks.is_some_and(|all| all.keys().any(|key| protocol.rank(one, key).is_some()))
            }),
        }
    }
}

/// An RSE with its protocols, or with those of one scheme.
pub(super) async fn protocols(call: &Call, name: String, scheme: Option<String>) -> Result<Reply> {
    let wanted = WantedProtocols::read(call)?;
    let mut found = call.read(move |tx| rse::by_name(tx, &name)).await?;
    if let Some(scheme) = scheme {
        found.protocols.retain(|protocol| protocol.scheme == scheme);
        if found.protocols.is_empty() {
            let message = format!("RSE '{}' has no protocol '{scheme:.40}'", found.name);
            return Err(refuse(Class::RSEProtocolNotSupported, message));
        }
    }
    found.protocols.retain(|protocol| wanted.take(protocol));
    Ok(Reply::Json(show::rse_whole(&found)))
}

pub(super) async fn add_protocol(call: &Call, name: String, scheme: &str) -> Result<Reply> {
    let new = Protocol::read(scheme, call.object()?)?;
    let folder = new.clone();
    call.write(move |tx| protocol::add(tx, &name, &new)).await?;
    make_folder(Arc::clone(&call.service.access), folder).await;
    Ok(created())
}

pub(super) async fn update_protocols(call: &Call, name: String, address: &[&str]) -> Result<Reply> {
    let (which, body) = (which(address)?, call.object()?.clone());
    call.write(move |tx| protocol::update(tx, &name, &which, &body)).await?;
    Ok(Reply::Done)
}

pub(super) async fn delete_protocols(call: &Call, name: String, address: &[&str]) -> Result<Reply> {
    let which = which(address)?;
    call.write(move |tx| protocol::delete(tx, &name, &which)).await?;
    Ok(Reply::Done)
}

/// Creates the folder of a `file` protocol. Only registration creates it: a folder that is missing
/// later may be on a disk that is not mounted. If other machines move the files, it must be created there.
async fn make_folder(access: Arc<Access>, protocol: Protocol) {
    if protocol.scheme != "file" {
        return;
    }
    let made = tokio::task::spawn_blocking(move || access.make_folder(&protocol)).await;
    if let Ok(Err(error)) = made {
        tracing::warn!(%error, "folder of a storage element was not created");
    }
}

/// The physical names that logical names have, or would have, on an RSE.
pub(super) async fn physical_names(call: &Call, name: String) -> Result<Reply> {
    let lfns = call.query.iter().filter(|(key, _)| key == "lfn").map(|(_, value)| value.clone());
    let lfns: Vec<String> = lfns.collect();
    let scheme = call.arg("scheme").map(str::to_owned);
    let domain = call.arg("domain").unwrap_or("wan").to_owned();
    let operation = call.arg("operation").unwrap_or("write").to_owned();
    let named = call
        .read(move |tx| {
            let found = rse::by_name(tx, &name)?;
            let protocol = match &scheme {
                None => protocol::best(&found, &domain, &operation),
                Some(scheme) => {
                    let mut all = found.protocols.iter().map(|one| &**one);
                    all.find(|one| one.scheme == *scheme)
                }
            };
            let protocol = protocol.ok_or_else(|| {
                let message = format!(
                    "RSE '{}' has no protocol for this scheme, domain and operation",
                    found.name
                );
                refuse(Class::RSEProtocolNotSupported, message)
            })?;
            let mut named = Map::new();
            for lfn in &lfns {
                let did = Did::parse(lfn).ok_or_else(|| wrong("lfn is scope:name"))?;
                let path = protocol::path(&found, &did, None)?;
                named.insert(lfn.clone(), json!(protocol.name(&path)));
            }
            Ok(named)
        })
        .await?;
    Ok(Reply::Json(Value::Object(named)))
}

/// Whether a distance applies in both directions.
fn is_mutual(call: &Call) -> Result<bool> {
    Ok(query_flag(call, "bidirectional")? || flag(&call.body, "bidirectional")?.unwrap_or(false))
}

fn set_distances(
    tx: &mut Tx<'_>,
    (from, to): (&str, &str),
    mutual: bool,
    distance: i64,
) -> Result<()> {
    rse::set_distance(tx, from, to, distance)?;
    if mutual { rse::set_distance(tx, to, from, distance) } else { Ok(()) }
}

/// The distance from one RSE to another.
pub(super) async fn distance(call: &Call, from: String, to: String) -> Result<Reply> {
    let found = call
        .read(move |tx| {
            let found = rse::distance(tx, &from, &to)?;
            let (from, to) = (rse::by_name(tx, &from)?, rse::by_name(tx, &to)?);
            Ok(found.map(|distance| json!([{
                "src_rse_id": from.uuid, "dest_rse_id": to.uuid, "distance": distance, "ranking": distance,
            }])))
        })
        .await?;
    Ok(Reply::Json(found.unwrap_or_else(|| json!([]))))
}

pub(super) async fn add_distance(call: &Call, from: String, to: String) -> Result<Reply> {
    let mutual = is_mutual(call)?;
    let distance = number(&call.body, "distance")?.unwrap_or(1);
    call.write(move |tx| match rse::distance(tx, &from, &to)? {
        None => set_distances(tx, (&from, &to), mutual, distance),
        Some(_) => {
            let message = format!("Distance from {from} to {to} already exists!");
            Err(refuse(Class::Duplicate, message))
        }
    })
    .await?;
    Ok(created())
}

pub(super) async fn update_distance(call: &Call, from: String, to: String) -> Result<Reply> {
    let mutual = is_mutual(call)?;
    let distance = number(&call.body, "distance")?;
    let distance = distance.ok_or_else(|| wrong("distance is a whole number"))?;
    call.write(move |tx| match rse::distance(tx, &from, &to)? {
        Some(_) => set_distances(tx, (&from, &to), mutual, distance),
        None => {
            let message = format!("No distance from {from} to {to} is set");
            Err(refuse(Class::NoDistance, message))
        }
    })
    .await?;
    Ok(Reply::Done)
}

pub(super) async fn delete_distance(call: &Call, from: String, to: String) -> Result<Reply> {
    let mutual = is_mutual(call)?;
    call.write(move |tx| {
        rse::delete_distance(tx, &from, &to)?;
        if mutual { rse::delete_distance(tx, &to, &from) } else { Ok(()) }
    })
    .await?;
    Ok(Reply::Done)
}

pub(super) async fn list_rses(call: &Call) -> Result<Reply> {
    let expression = call.arg("expression").map(str::to_owned);
    let lines = call
        .read(move |tx| {
            let rses = mainstay_rules::rse::all(tx)?;
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
    Ok(lines_reply(lines))
}

/// How much of a dataset each RSE holds.
pub(super) async fn dataset_replicas(call: &Call, names: Vec<Did>) -> Result<Reply> {
    let lines = call
        .read(move |tx| {
            let mut lines = Vec::new();
            for name in &names {
                dataset_replica_lines(tx, name, &mut lines)?;
            }
            Ok(lines)
        })
        .await?;
    Ok(lines_reply(lines))
}

fn dataset_replica_lines(tx: &mut Tx<'_>, name: &Did, lines: &mut Vec<String>) -> Result<()> {
    let found = mainstay_rules::did::get(tx, name)?;
    let (length, bytes) = mainstay_rules::did::size(tx, found.id)?;
    let rses = mainstay_rules::rse::all(tx)?;
    for held in mainstay_rules::replica::available_by_rse(tx, found.id)? {
        let Some(rse) = rses.iter().find(|rse| rse.id == held.rse_id) else { continue };
        lines.push(dataset_replica(name, rse, (length, bytes), &held));
    }
    Ok(())
}

/// The part of a dataset that is on an RSE.
pub(super) fn dataset_replica(
    name: &Did,
    rse: &Rse,
    (length, bytes): (i64, i64),
    held: &AvailableFiles,
) -> String {
    let whole = held.files == length;
    let state = if whole { ReplicaState::Available } else { ReplicaState::Unavailable };
    json!({
        "scope": name.scope, "name": name.name, "rse": rse.name, "rse_id": rse.uuid,
        "length": length, "bytes": bytes, "available_length": held.files, "available_bytes": held.bytes,
        "state": state, "created_at": show_time(held.first), "updated_at": show_time(held.last),
        "accessed_at": show::time(held.accessed),
    })
    .to_string()
}

pub(super) async fn rse_usage(call: &Call, name: String) -> Result<Reply> {
    let source = call.arg("source").map(str::to_owned);
    let lines = call
        .read(move |tx| {
            let found = rse::by_name(tx, &name)?;
            let usage = rse::usage(tx, &name)?;
            let named = usage.iter().map(|usage| match usage.source.as_str() {
                OWN_COUNT => (rse::OWN_NAME, usage),
                other => (other, usage),
            });
            let wanted =
                named.filter(|(name, _)| source.as_ref().is_none_or(|source| source == name));
            let shown = wanted.map(|(name, usage)| {
                let total = usage.used.saturating_add(usage.free.unwrap_or(0));
                json!({
                    "rse_id": found.uuid, "rse": found.name, "source": name, "used": usage.used, "free": usage.free,
                    "total": total, "files": usage.files, "updated_at": show_time(usage.updated_at),
                })
                .to_string()
            });
            Ok(shown.collect())
        })
        .await?;
    Ok(lines_reply(lines))
}
