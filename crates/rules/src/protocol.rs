//! The protocols of RSEs in the catalog, and the paths of replicas.

use mainstay_catalog::{Row, Tx, values};
use mainstay_transfers::protocol::{NO_PLACE, Protocol, has_place, hashed_path, stays_below};
use serde_json::{Map, Value};

use crate::api::Did;
use crate::error::{Class, Error, Result, refuse};
use crate::expression::Rse;

pub(crate) fn no_place(did: &Did) -> Error {
    let message = format!("{did:.300} has a part that {NO_PLACE}");
    refuse(Class::InvalidPath, message)
}

fn from_row(row: &Row) -> Result<Protocol> {
    let parsed = |text: Option<String>| match text {
        None => Ok(Value::Null),
        Some(text) => serde_json::from_str(&text).map_err(|error| {
            Error::Internal(format!("a document in rse_protocols is not JSON: {error}"))
        }),
    };
    Ok(Protocol {
        scheme: row.text(1)?.to_owned(),
        hostname: row.text(2)?.to_owned(),
        port: row.int(3)?,
        prefix: row.text(4)?.to_owned(),
        implementation: row.text(5)?.to_owned(),
        domains: parsed(row.opt_text(6)?)?,
        extended: parsed(row.opt_text(7)?)?,
    })
}

/// The path of a replica below the prefix: `said` if it was registered with a path, else derived
/// from its name.
pub fn path(rse: &Rse, did: &Did, said: Option<&str>) -> Result<String> {
    let path = match said {
        Some(path) => path.trim_start_matches('/').to_owned(),
        None if rse.deterministic && !has_place(did) => return Err(no_place(did)),
        None if rse.deterministic => hashed_path(did),
        None => {
            let message = format!(
                "The path of {did} on {} is not known: the RSE is not deterministic, and the replica was registered without a path",
                rse.name
            );
            return Err(refuse(Class::ReplicaNotFound, message));
        }
    };
    if stays_below(&path) { Ok(path) } else { Err(leaves(&path)) }
}

/// The refusal of a path outside the folder of its RSE.
#[must_use]
pub fn leaves(path: &str) -> Error {
    refuse(Class::InvalidPath, format!("The path {path:.200} leaves the RSE's folder"))
}

/// Adds a protocol to an RSE.
pub fn add(tx: &mut Tx<'_>, rse: &str, new: &Protocol) -> Result<()> {
    new.check_folder()?;
    insert(tx, rse, new)
}

fn insert(tx: &mut Tx<'_>, rse: &str, new: &Protocol) -> Result<()> {
    let id = crate::rse::by_name(tx, rse)?.id;
    let added = tx.execute(
        "INSERT INTO rse_protocols (rse_id, scheme, hostname, port, prefix, impl, domains, extended_attributes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (rse_id, scheme, hostname, port) DO NOTHING",
        values![
            id,
            &new.scheme,
            &new.hostname,
            new.port,
            &new.prefix,
            &new.implementation,
            new.domains.to_string(),
            (!new.extended.is_null()).then(|| new.extended.to_string())
        ],
    )?;
    if added == 0 {
        let message = format!(
            "Protocol '{}' on {}:{} already registered for {rse}",
            new.scheme, new.hostname, new.port
        );
        return Err(refuse(Class::Duplicate, message));
    }
    tx.rses_changed()?;
    Ok(())
}

/// Selects protocols: all of a scheme, or those on a host, or on a port of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the parts of an address")]
pub struct Which {
    pub scheme: String,
    pub hostname: Option<String>,
    pub port: Option<i64>,
}

impl Which {
    fn takes(&self, protocol: &Protocol) -> bool {
        protocol.scheme == self.scheme
            && self.hostname.as_ref().is_none_or(|host| *host == protocol.hostname)
            && self.port.is_none_or(|port| port == protocol.port)
    }
}

fn unsupported(rse: &str, which: &Which) -> Error {
    let message = format!("RSE '{rse}' has no protocol '{}' like that", which.scheme);
    refuse(Class::RSEProtocolNotSupported, message)
}

/// Removes protocols from an RSE.
pub fn delete(tx: &mut Tx<'_>, rse: &str, which: &Which) -> Result<()> {
    let found = crate::rse::by_name(tx, rse)?;
    let mut gone = 0;
    for protocol in found.protocols.iter().filter(|protocol| which.takes(protocol)) {
        gone += tx.execute(
            "DELETE FROM rse_protocols WHERE rse_id = ?1 AND scheme = ?2 AND hostname = ?3 AND port = ?4",
            values![found.id, &protocol.scheme, &protocol.hostname, protocol.port],
        )?;
    }
    if gone == 0 { Err(unsupported(rse, which)) } else { Ok(tx.rses_changed()?) }
}

/// Changes protocols of an RSE: fields that are not in `changes` stay.
pub fn update(
    tx: &mut Tx<'_>,
    rse: &str,
    which: &Which,
    changes: &Map<String, Value>,
) -> Result<()> {
    let found = crate::rse::by_name(tx, rse)?;
    let old: Vec<_> = found.protocols.iter().filter(|one| which.takes(one)).collect();
    if old.is_empty() {
        return Err(unsupported(rse, which));
    }
    for protocol in old {
        let Value::Object(mut body) = protocol.show() else { continue };
        body.extend(changes.clone());
        let scheme = body.get("scheme").and_then(Value::as_str).unwrap_or("").to_owned();
        let new = Protocol::read(&scheme, &body)?;
        // A protocol whose folder was accepted by older rules stays valid, so that its ranks can be
        // changed.
        if (&new.scheme, &new.hostname, &new.prefix)
            != (&protocol.scheme, &protocol.hostname, &protocol.prefix)
        {
            new.check_folder()?;
        }
        let this = Which {
            scheme: protocol.scheme.clone(),
            hostname: Some(protocol.hostname.clone()),
            port: Some(protocol.port),
        };
        delete(tx, rse, &this)?;
        insert(tx, rse, &new)?;
    }
    Ok(())
}

/// Reads the protocols of all RSEs, by RSE.
pub(crate) fn load(tx: &mut Tx<'_>) -> Result<Vec<(i64, Protocol)>> {
    let rows = tx.query(
        "SELECT rse_id, scheme, hostname, port, prefix, impl, domains, extended_attributes FROM rse_protocols
         ORDER BY rse_id, scheme, hostname, port",
        &[],
    )?;
    rows.iter().map(|row| Ok((row.int(0)?, from_row(row)?))).collect()
}

/// The protocol of an RSE that ranks best for an operation.
#[must_use]
pub fn best<'a>(rse: &'a Rse, domain: &str, operation: &str) -> Option<&'a Protocol> {
    let ranked = rse.protocols.iter().filter_map(|one| Some((one.rank(domain, operation)?, one)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, protocol)| &**protocol)
}
