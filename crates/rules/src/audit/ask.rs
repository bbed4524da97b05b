//! Catalog queries of the audit: a page of replicas, or all records about a batch of paths, each in
//! a fixed number of queries.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::{Row, Tx, values};
use mainstay_transfers::store::Drafts;
use serde_json::json;

use super::decide::{Expected, Known, Writer, draft, names};
use crate::api::Did;
use crate::error::Result;
use crate::expression::Rse;
use crate::protocol;

/// The replicas that should have a file.
const THERE: &str = "p.state IN ('A', 'T')";

const COLUMNS: &str =
    "p.did_id, p.rse_id, d.scope, d.name, p.path, p.bytes, d.adler32, d.md5, p.updated_at";

/// The replica in a row; none if its RSE is not among `rses`.
fn expected(rses: &BTreeMap<i64, &Rse>, row: &Row) -> Result<Option<Expected>> {
    let Some(rse) = rses.get(&row.int(1)?) else { return Ok(None) };
    let did = Did::new(row.text(2)?, row.text(3)?);
    let path = protocol::path(rse, &did, row.opt_text(4)?.as_deref());
    Ok(Some(Expected {
        unit: (row.int(0)?, row.int(1)?),
        did,
        path: path.map_err(|error| error.to_string()),
        bytes: row.int(5)?,
        adler32: row.opt_text(6)?,
        md5: row.opt_text(7)?,
        updated_at: row.int(8)?,
    }))
}

/// The next replicas on some RSEs that should have a file, by file and RSE. The catalog stores them
/// in this order, so all RSEs together take one pass over it.
pub(super) fn replicas(
    tx: &mut Tx<'_>,
    rses: &BTreeMap<i64, &Rse>,
    after: (i64, i64),
    most: usize,
) -> Result<Vec<Expected>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM (SELECT p.did_id, p.rse_id, p.path, p.bytes, p.updated_at FROM replicas p
         WHERE (p.did_id, p.rse_id) > (?1, ?2) AND p.rse_id IN ARRAY(?3) AND {THERE}
         ORDER BY p.did_id, p.rse_id LIMIT ?4) p LOOKUP JOIN dids d ON (d.id = p.did_id) ORDER BY p.did_id, p.rse_id"
    );
    let ids: Vec<i64> = rses.keys().copied().collect();
    let rows = tx.query(&sql, values![after.0, after.1, ids, most as i64])?;
    rows.iter().filter_map(|row| expected(rses, row).transpose()).collect()
}

/// The replicas among `files` on an RSE that should still have a file, in their current state.
pub(super) fn again(tx: &mut Tx<'_>, rse: &Rse, files: &[i64]) -> Result<BTreeMap<i64, Expected>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM replicas p JOIN dids d ON d.id = p.did_id
         WHERE p.did_id IN ARRAY(?1) AND p.rse_id = ?2 AND {THERE}"
    );
    let rows = tx.query(&sql, values![files.to_vec(), rse.id])?;
    let rses = BTreeMap::from([(rse.id, rse)]);
    let mut found = BTreeMap::new();
    for row in &rows {
        if let Some(expected) = expected(&rses, row)? {
            found.insert(row.int(0)?, expected);
        }
    }
    Ok(found)
}

/// A list that was passed as JSON, as a table of three texts.
fn listed(tx: &Tx<'_>) -> &'static str {
    match tx.is_postgres() {
        true => {
            "(SELECT e ->> 0 AS path, e ->> 1 AS scope, e ->> 2 AS name FROM json_array_elements(CAST(?2 AS json)) AS e) n"
        }
        false => {
            "(SELECT value ->> 0 AS path, value ->> 1 AS scope, value ->> 2 AS name FROM json_each(?2)) n"
        }
    }
}

/// Whether a worker or an upload may be writing the file of a replica.
const BUSY: &str = "CASE WHEN p.state = 'C'
    OR EXISTS (SELECT 1 FROM requests q WHERE q.did_id = p.did_id AND q.dest_rse_id = p.rse_id)
    OR EXISTS (SELECT 1 FROM given_up g WHERE g.did_id = p.did_id AND g.rse_id = p.rse_id) THEN 1 ELSE 0 END";

/// The catalog's records about paths on an RSE, and about the files that drafts there would become.
/// Names with up to `slashes` leading slashes are considered.
pub(super) fn known(
    tx: &mut Tx<'_>,
    rse: &Rse,
    paths: &[&str],
    drafts: Drafts,
    slashes: usize,
) -> Result<Known> {
    let read: Vec<_> = paths.iter().filter_map(|path| draft(path, drafts)).collect();
    let owners = read.iter().filter_map(|draft| draft.owner.as_deref());
    let asked: BTreeSet<&str> = paths.iter().copied().chain(owners).collect();
    let mut known = Known::default();
    let mut stand = |rows: Vec<Row>| -> Result<()> {
        for row in rows {
            let busy = known.standing.entry(row.text(0)?.to_owned()).or_default();
            *busy |= row.flag(1)?;
        }
        Ok(())
    };
    let list = listed(tx);
    let said: Vec<_> = asked.iter().map(|path| json!([path, "", ""])).collect();
    let sql = format!(
        "SELECT n.path, {BUSY} FROM {list} LOOKUP JOIN replicas p ON (p.rse_id = ?1 AND p.path = n.path)"
    );
    stand(tx.query(&sql, values![rse.id, json!(said).to_string()])?)?;
    if rse.deterministic {
        let named = |path: &&str| {
            let dids = names(path, slashes);
            dids.into_iter().map(|did| json!([path, did.scope, did.name])).collect::<Vec<_>>()
        };
        let named: Vec<_> = asked.iter().flat_map(named).collect();
        let sql = format!(
            "SELECT n.path, {BUSY} FROM {list} LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name)
             LOOKUP JOIN replicas p ON (p.did_id = d.id AND p.rse_id = ?1) WHERE p.path IS NULL"
        );
        stand(tx.query(&sql, values![rse.id, json!(named).to_string()])?)?;
    }
    let requests: BTreeSet<i64> = read
        .iter()
        .filter_map(|draft| match draft.of {
            Writer::Worker(request) => Some(request),
            Writer::Upload | Writer::Either => None,
        })
        .collect();
    if !requests.is_empty() {
        let sql = "SELECT id FROM requests WHERE id IN ARRAY(?1) AND dest_rse_id = ?2
            UNION SELECT request_id FROM given_up WHERE request_id IN ARRAY(?1) AND rse_id = ?2";
        let requests: Vec<i64> = requests.into_iter().collect();
        let rows = tx.query(sql, values![requests, rse.id])?;
        known.requests = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    }
    Ok(known)
}
