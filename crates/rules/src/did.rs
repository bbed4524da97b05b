//! Data identifiers and their tree: files in datasets, datasets and containers in containers.
//!
//! Attaching and detaching lock the row of the parent, flag the changes and queue the parent for
//! the judge; the evaluator adjusts the locks later.

mod metadata;

use std::collections::BTreeSet;

use mainstay_catalog::order::{lock_dids, lock_files, lock_tree};
use mainstay_catalog::{Column, Daemon, Pending, Pipeline, Row, Tx, values};
pub use metadata::{
    below, children, is_own, meta_of, metadata, read_metadata, search_sql, top_sql,
};
pub use metadata::{delete_metadata, set_metadata};

use crate::api::{Did, DidRecord, DidType, Micros, SECOND, check_seconds};
use crate::error::{Class, Error, Result, refuse};
use crate::rule::message;
use crate::rule::read::lock_rules;

/// A child to attach, with the properties the caller expects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a file")]
pub struct Child {
    pub did: Did,
    pub bytes: Option<i64>,
    pub adler32: Option<String>,
    pub md5: Option<String>,
}

impl Child {
    /// A child without expected properties.
    #[must_use]
    pub fn named(did: Did) -> Self {
        Self { did, bytes: None, adler32: None, md5: None }
    }
}

const COLUMNS: &str =
    "id, scope, name, did_type, account, is_open, monotonic, availability, bytes, length, md5,
    adler32, expired_at, closed_at, created_at, updated_at";

pub fn from_row(row: &Row) -> Result<DidRecord> {
    Ok(DidRecord {
        id: row.int(0)?,
        did: Did::new(row.text(1)?, row.text(2)?),
        did_type: row.state::<DidType>(3)?,
        account: row.text(4)?.to_owned(),
        is_open: row.opt_int(5)?.is_some_and(|open| open != 0),
        monotonic: row.flag(6)?,
        lost: row.text(7)? == "L",
        bytes: row.opt_int(8)?,
        length: row.opt_int(9)?,
        md5: row.opt_text(10)?,
        adler32: row.opt_text(11)?,
        expired_at: row.opt_int(12)?,
        closed_at: row.opt_int(13)?,
        created_at: row.int(14)?,
        updated_at: row.int(15)?,
    })
}

pub(crate) fn not_found(did: &Did) -> Error {
    refuse(Class::DataIdentifierNotFound, format!("Data identifier '{did}' not found"))
}

/// The data identifier of this name.
pub fn get(tx: &mut Tx<'_>, did: &Did) -> Result<DidRecord> {
    find(tx, did)?.ok_or_else(|| not_found(did))
}

fn by_name_sql() -> String {
    format!("SELECT {COLUMNS} FROM dids WHERE scope = ?1 AND name = ?2")
}

fn by_id_sql(held: bool) -> String {
    format!("SELECT {COLUMNS} FROM dids WHERE id = ?1{}", if held { " LOCK ROWS" } else { "" })
}

pub(crate) fn find(tx: &mut Tx<'_>, did: &Did) -> Result<Option<DidRecord>> {
    let row = tx.first(&by_name_sql(), values![&did.scope, &did.name])?;
    row.as_ref().map(from_row).transpose()
}

/// Adds the query for the data identifier of this name; [`from_row`] reads the answer.
pub(crate) fn ask_by_name(ask: &mut Pipeline, did: &Did) -> Pending {
    ask.query(by_name_sql(), values![&did.scope, &did.name])
}

pub(crate) fn by_id(tx: &mut Tx<'_>, id: i64) -> Result<Option<DidRecord>> {
    tx.first(&by_id_sql(false), values![id])?.as_ref().map(from_row).transpose()
}

/// Adds the query for the data identifier of this number; its row is locked if `held`.
pub(crate) fn ask_by_id(ask: &mut Pipeline, id: i64, held: bool) -> Pending {
    ask.query(by_id_sql(held), values![id])
}

/// A collection to create.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a data identifier")]
pub struct NewDid {
    pub did: Did,
    pub did_type: DidType,
    pub account: String,
    pub monotonic: bool,
    /// Seconds until it expires.
    pub lifetime: Option<i64>,
    /// Client-defined JSON text.
    pub meta: Option<String>,
}

/// Creates a dataset or container.
pub fn add_identifier(tx: &mut Tx<'_>, new: &NewDid, now: Micros) -> Result<i64> {
    crate::api::check_did(&new.did)?;
    check_seconds("data identifier", new.lifetime)?;
    if new.did_type == DidType::File {
        return Err(refuse(
            Class::UnsupportedOperation,
            "Only collection (dataset/container) can be registered.",
        ));
    }
    let sql = "SELECT 1 FROM scopes WHERE scope = ?1";
    if tx.first(sql, values![&new.did.scope])?.is_none() {
        return Err(refuse(Class::ScopeNotFound, format!("Scope '{}' not found!", new.did.scope)));
    }
    let expires = new.lifetime.map(|seconds| now.saturating_add(seconds.saturating_mul(SECOND)));
    let rows = tx.query(
        "INSERT INTO dids (scope, name, did_type, account, is_open, monotonic, expired_at, meta, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?8) ON CONFLICT (scope, name) DO NOTHING RETURNING id",
        values![
            &new.did.scope,
            &new.did.name,
            new.did_type.letter(),
            &new.account,
            new.monotonic,
            expires,
            new.meta.clone(),
            now
        ],
    )?;
    match rows.first() {
        Some(row) => Ok(row.int(0)?),
        None => Err(refuse(
            Class::DataIdentifierAlreadyExists,
            format!("Data identifier '{}' already exists!", new.did),
        )),
    }
}

/// Loads names into `w_names` with their numbers.
fn load_names(tx: &mut Tx<'_>, children: &[Child]) -> Result<()> {
    tx.clear(&["w_names", "w_files"])?;
    tx.load(
        "w_names",
        &[
            ("ord", Column::ints(0..children.len() as i64)),
            ("scope", Column::texts(children.iter().map(|child| child.did.scope.clone()))),
            ("name", Column::texts(children.iter().map(|child| child.did.name.clone()))),
            ("bytes", Column::Int(children.iter().map(|child| child.bytes).collect())),
            ("adler32", Column::Text(children.iter().map(|child| child.adler32.clone()).collect())),
            ("md5", Column::Text(children.iter().map(|child| child.md5.clone()).collect())),
        ],
    )?;
    tx.execute(
        "UPDATE w_names SET id = (SELECT d.id FROM dids d WHERE d.scope = w_names.scope AND d.name = w_names.name)",
        &[],
    )?;
    let missing = "SELECT scope, name FROM w_names WHERE id IS NULL ORDER BY ord LIMIT 1";
    if let Some(row) = tx.first(missing, &[])? {
        return Err(not_found(&Did::new(row.text(0)?, row.text(1)?)));
    }
    Ok(())
}

/// Locks everything that several attachments need, in order, so that a later one never waits while
/// an earlier one holds locks. Names that do not exist are skipped.
pub fn hold_for_attaching(tx: &mut Tx<'_>, pairs: &[(&Did, &[Child])]) -> Result<()> {
    if !tx.is_postgres() {
        return Ok(());
    }
    let parents = pairs.iter().map(|(parent, _)| *parent);
    let children = pairs.iter().flat_map(|(_, children)| children.iter().map(|child| &child.did));
    let names: Vec<&Did> = parents.chain(children).collect();
    tx.clear(&["w_names", "w_files"])?;
    tx.load(
        "w_names",
        &[
            ("ord", Column::ints(0..names.len() as i64)),
            ("scope", Column::texts(names.iter().map(|name| name.scope.clone()))),
            ("name", Column::texts(names.iter().map(|name| name.name.clone()))),
        ],
    )?;
    let sql = "SELECT n.ord, d.id, d.did_type FROM w_names n LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name)";
    let (mut up, mut down, mut files) = (Vec::new(), Vec::new(), BTreeSet::new());
    for row in tx.query(sql, &[])? {
        let is_parent = row.int(0)? < pairs.len() as i64;
        match row.text(2)? {
            "F" => drop(files.insert(row.int(1)?)),
            "C" if is_parent => up.push(row.int(1)?),
            _ => down.push(row.int(1)?),
        }
    }
    lock_tree(tx, &up, &down)?;
    tx.load("w_files", &[("did", Column::ints(files))])?;
    lock_files(tx)?;
    Ok(())
}

fn unsupported(message: impl Into<String>) -> Error {
    refuse(Class::UnsupportedOperation, message)
}

/// Attaches children to a dataset or container; the evaluator applies rules to them later.
/// Returns how many were new. With `ignore_duplicate` a second call changes nothing.
pub fn attach_identifier(
    tx: &mut Tx<'_>,
    parent: &Did,
    children: &[Child],
    ignore_duplicate: bool,
    now: Micros,
) -> Result<u64> {
    let found = get(tx, parent)?;
    if found.did_type == DidType::File {
        return Err(unsupported(format!("Data identifier '{parent}' is a file")));
    }
    if children.iter().any(|child| child.did == *parent) {
        return Err(unsupported("Self-append is not valid!"));
    }
    load_names(tx, children)?;
    let to_dataset = found.did_type == DidType::Dataset;
    if to_dataset {
        lock_dids(tx, &BTreeSet::from([found.id]))?;
        tx.execute("INSERT INTO w_files (did) SELECT DISTINCT id FROM w_names", &[])?;
        lock_files(tx)?;
        check_files(tx, parent)?;
    } else {
        attach_collections(tx, &found, parent)?;
    }
    let found = by_id(tx, found.id)?.ok_or_else(|| not_found(parent))?;
    if !found.is_open {
        return Err(unsupported(format!("Data identifier '{parent}' is closed")));
    }
    let new = tx.execute(
        "INSERT INTO contents (parent, child, child_type, bytes, rule_evaluation, created_at)
         SELECT ?1, d.id, d.did_type, CASE WHEN d.did_type = 'F' THEN d.bytes END, 1, ?2
         FROM w_names n LOOKUP JOIN dids d ON (d.id = n.id) WHERE TRUE ORDER BY n.ord ON CONFLICT (parent, child) DO NOTHING",
        values![found.id, now],
    )?;
    if new < children.len() as u64 && !ignore_duplicate {
        return Err(match to_dataset {
            true => refuse(Class::FileAlreadyExists, format!("A file is already in '{parent}'")),
            false => {
                refuse(Class::DuplicateContent, format!("A collection is already in '{parent}'"))
            }
        });
    }
    if new > 0 || !to_dataset {
        queue(tx, found.id, "A", now)?;
        tx.execute("UPDATE dids SET updated_at = ?2 WHERE id = ?1", values![found.id, now])?;
    }
    Ok(new)
}

fn queue(tx: &mut Tx<'_>, did: i64, action: &str, now: Micros) -> Result<()> {
    tx.execute(
        "INSERT INTO updated_dids (did_id, rule_evaluation_action, created_at) VALUES (?1, ?2, ?3)
         ON CONFLICT (did_id, rule_evaluation_action) DO NOTHING",
        values![did, action, now],
    )?;
    tx.wake(Daemon::Evaluator);
    Ok(())
}

/// Checks the children of a dataset: files that are not lost and have the properties the caller
/// expects.
fn check_files(tx: &mut Tx<'_>, parent: &Did) -> Result<()> {
    let row = tx.first(
        "SELECT n.scope, n.name, d.did_type, d.availability FROM w_names n LEFT LOOKUP JOIN dids d ON (d.id = n.id)
         WHERE d.id IS NULL OR d.did_type <> 'F' OR d.availability = 'L'
         OR COALESCE(n.bytes <> d.bytes, FALSE) OR COALESCE(lower(n.adler32) <> lower(d.adler32), FALSE)
         OR COALESCE(lower(n.md5) <> lower(d.md5), FALSE) ORDER BY n.ord LIMIT 1",
        &[],
    )?;
    let Some(row) = row else { return Ok(()) };
    let child = Did::new(row.text(0)?, row.text(1)?);
    Err(match (row.text(2)?, row.text(3)?) {
        ("", _) => not_found(&child),
        ("F", "L") => unsupported(format!("File {child} is LOST and cannot be attached")),
        ("F", _) => refuse(
            Class::FileConsistencyMismatch,
            format!("({child}) bytes or checksums differ from those in the catalog"),
        ),
        _ => unsupported(format!(
            "Adding a collection ({child}) to a dataset ({parent}) is forbidden"
        )),
    })
}

/// Attaches the children of a container: no files, all of one type, none of them above the parent.
fn attach_collections(tx: &mut Tx<'_>, found: &DidRecord, parent: &Did) -> Result<()> {
    let sql = "SELECT d.id, d.did_type, d.scope, d.name FROM w_names n LOOKUP JOIN dids d ON (d.id = n.id) ORDER BY n.ord";
    let rows = tx.query(sql, &[])?;
    let mut types = BTreeSet::new();
    let mut children = Vec::new();
    for row in &rows {
        let did_type = row.state::<DidType>(1)?;
        types.insert(did_type);
        children.push(row.int(0)?);
        if did_type != DidType::File {
            continue;
        }
        let child = Did::new(row.text(2)?, row.text(3)?);
        return Err(unsupported(format!(
            "Adding a file ({child}) to a container ({parent}) is forbidden"
        )));
    }
    if types.len() > 1 {
        return Err(unsupported("Mixed collection is not allowed: datasets and containers"));
    }
    let tree = lock_tree(tx, &[found.id], &children)?;
    if tree.down.contains_key(&found.id) || children.iter().any(|child| tree.up.contains(child)) {
        return Err(unsupported("Circular attachment detected"));
    }
    Ok(())
}

/// Detaches children; the evaluator removes their locks later unless another path keeps them.
pub fn detach_identifier(
    tx: &mut Tx<'_>,
    parent: &Did,
    children: &[Did],
    now: Micros,
) -> Result<()> {
    let found = get(tx, parent)?;
    if children.contains(parent) {
        return Err(unsupported("Self-detach is not valid!"));
    }
    lock_dids(tx, &BTreeSet::from([found.id]))?;
    // It may have been closed before it was locked.
    let found = by_id(tx, found.id)?.ok_or_else(|| not_found(parent))?;
    let named: Vec<Child> = children.iter().cloned().map(Child::named).collect();
    load_names(tx, &named)?;
    detach_loaded(tx, &found, now)
}

/// Detaches the children in `w_names` from a locked parent.
fn detach_loaded(tx: &mut Tx<'_>, found: &DidRecord, now: Micros) -> Result<()> {
    let missing = tx.first(
        "SELECT n.scope, n.name FROM w_names n WHERE NOT EXISTS (SELECT 1 FROM contents c WHERE c.parent = ?1
         AND c.child = n.id) ORDER BY n.ord LIMIT 1",
        values![found.id],
    )?;
    if let Some(row) = missing {
        let child = Did::new(row.text(0)?, row.text(1)?);
        let message = format!("Data identifier '{child}' not found under '{}'", found.did);
        return Err(refuse(Class::DataIdentifierNotFound, message));
    }
    tx.execute(
        "INSERT INTO contents_history (parent, child, bytes, created_at, deleted_at)
         SELECT parent, child, bytes, created_at, ?2 FROM contents WHERE parent = ?1 AND child IN (SELECT id FROM w_names)",
        values![found.id, now],
    )?;
    tx.execute(
        "INSERT INTO detached (parent, child, child_type) SELECT parent, child, child_type FROM contents
         WHERE parent = ?1 AND child IN (SELECT id FROM w_names) ON CONFLICT (parent, child) DO NOTHING",
        values![found.id],
    )?;
    tx.execute(
        "DELETE FROM contents WHERE parent = ?1 AND child IN (SELECT id FROM w_names)",
        values![found.id],
    )?;
    if found.length.is_some() {
        shrink(tx, found)?;
    }
    tx.execute("UPDATE dids SET updated_at = ?2 WHERE id = ?1", values![found.id, now])?;
    queue(tx, found.id, "D", now)
}

/// Subtracts the children in `w_names` from the size of a closed parent.
fn shrink(tx: &mut Tx<'_>, found: &DidRecord) -> Result<()> {
    if found.did_type == DidType::Container {
        // A collection below may be open, or be reached by another path too: only counting gives
        // the size.
        let (length, bytes) = size(tx, found.id)?;
        let sql = "UPDATE dids SET length = ?2, bytes = ?3 WHERE id = ?1";
        return Ok(tx.execute(sql, values![found.id, length, bytes]).map(drop)?);
    }
    tx.execute(
        "UPDATE dids SET length = dids.length - gone.files, bytes = dids.bytes - gone.held FROM
         (SELECT COUNT(*) AS files, CAST(COALESCE(SUM(d.bytes), 0) AS BIGINT) AS held FROM dids d
         WHERE d.id IN (SELECT id FROM w_names)) AS gone WHERE dids.id = ?1",
        values![found.id],
    )?;
    Ok(())
}

/// Length and bytes of a collection over its files, through distinct datasets.
pub fn size(tx: &mut Tx<'_>, id: i64) -> Result<(i64, i64)> {
    let row = tx.first(
        "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
         UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C')
         SELECT COUNT(*), CAST(COALESCE(SUM(c.bytes), 0) AS BIGINT) FROM down LOOKUP JOIN contents c ON (c.parent = down.id)
         WHERE down.did_type = 'D'",
        values![id],
    )?;
    row.map_or(Ok((0, 0)), |row| Ok((row.int(0)?, row.int(1)?)))
}

/// Closes a collection: its size becomes known, and rules with a notification on closing send it.
pub fn close(tx: &mut Tx<'_>, did: &Did, now: Micros) -> Result<()> {
    let found = get(tx, did)?;
    if found.did_type == DidType::File {
        return Err(unsupported("A file cannot be closed."));
    }
    let tree = lock_tree(tx, &[found.id], &[found.id])?;
    let rules: BTreeSet<i64> = tx
        .query(
            "SELECT id FROM rules WHERE did_id IN ARRAY(?1) AND notification IN ('C', 'P')",
            values![tree.up.iter().copied().collect::<Vec<i64>>()],
        )?
        .iter()
        .map(|row| Ok(row.int(0)?))
        .collect::<Result<_>>()?;
    let rules = lock_rules(tx, &rules)?;
    let open = by_id(tx, found.id)?.ok_or_else(|| not_found(did))?.is_open;
    if !open {
        return Err(unsupported(format!("The data identifier '{did}' is already closed")));
    }
    let (length, bytes) = size(tx, found.id)?;
    tx.execute(
        "UPDATE dids SET is_open = 0, closed_at = ?2, length = ?3, bytes = ?4, updated_at = ?2 WHERE id = ?1",
        values![found.id, now, length, bytes],
    )?;
    tx.execute(
        "UPDATE dataset_locks SET length = ?2, bytes = ?3 WHERE did_id = ?1",
        values![found.id, length, bytes],
    )?;
    for rule in &rules {
        message::closed(tx, rule, found.id, now)?;
    }
    Ok(())
}

/// Opens a closed collection again; its size is then unknown until it is closed.
pub fn reopen(tx: &mut Tx<'_>, did: &Did, now: Micros) -> Result<()> {
    let found = get(tx, did)?;
    lock_dids(tx, &BTreeSet::from([found.id]))?;
    if by_id(tx, found.id)?.is_none_or(|found| found.is_open || found.did_type == DidType::File) {
        return Err(unsupported(format!("The data identifier '{did}' is not closed")));
    }
    tx.execute(
        "UPDATE dids SET is_open = 1, closed_at = NULL, length = NULL, bytes = NULL, updated_at = ?2 WHERE id = ?1",
        values![found.id, now],
    )?;
    tx.execute(
        "UPDATE dataset_locks SET length = NULL, bytes = NULL WHERE did_id = ?1",
        values![found.id],
    )?;
    Ok(())
}

/// A child as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a data identifier")]
pub struct Listed {
    pub did: Did,
    pub did_type: DidType,
    pub bytes: Option<i64>,
    pub adler32: Option<String>,
    pub md5: Option<String>,
    /// The metadata of a file, as JSON, where files are listed.
    pub meta: Option<String>,
}

fn listed(row: &Row) -> Result<Listed> {
    Ok(Listed {
        did: Did::new(row.text(0)?, row.text(1)?),
        did_type: row.state::<DidType>(2)?,
        bytes: row.opt_int(3)?,
        adler32: row.opt_text(4)?,
        md5: row.opt_text(5)?,
        meta: None,
    })
}

/// Direct children, by name.
pub fn list_content(
    tx: &mut Tx<'_>,
    did: &Did,
    each: &mut dyn FnMut(Listed) -> Result<()>,
) -> Result<()> {
    let found = get(tx, did)?;
    tx.for_each(
        "SELECT d.scope, d.name, d.did_type, d.bytes, d.adler32, d.md5 FROM contents c JOIN dids d ON d.id = c.child
         WHERE c.parent = ?1 ORDER BY c.child",
        values![found.id],
        &mut |row| each(listed(&row)?),
    )
}

/// All files below, once for each dataset they are in.
pub fn list_files(
    tx: &mut Tx<'_>,
    did: &Did,
    each: &mut dyn FnMut(Listed) -> Result<()>,
) -> Result<()> {
    let found = get(tx, did)?;
    if found.did_type == DidType::File {
        let meta = metadata(tx, found.id)?;
        return each(Listed {
            meta: Some(serde_json::Value::Object(meta).to_string()),
            did: found.did,
            did_type: DidType::File,
            bytes: found.bytes,
            adler32: found.adler32,
            md5: found.md5,
        });
    }
    tx.for_each(
        "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
         UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C')
         SELECT d.scope, d.name, d.did_type, d.bytes, d.adler32, d.md5, d.meta FROM down LOOKUP JOIN contents c ON (c.parent = down.id)
         JOIN dids d ON d.id = c.child WHERE down.did_type = 'D' ORDER BY down.id, d.id",
        values![found.id],
        &mut |row| each(Listed { meta: row.opt_text(6)?, ..listed(&row)? }),
    )
}

/// Direct parents.
pub fn list_parents(tx: &mut Tx<'_>, did: &Did) -> Result<Vec<Listed>> {
    let found = get(tx, did)?;
    let rows = tx.query(
        "SELECT d.scope, d.name, d.did_type, d.bytes, d.adler32, d.md5 FROM contents c JOIN dids d ON d.id = c.parent
         WHERE c.child = ?1 ORDER BY d.id",
        values![found.id],
    )?;
    rows.iter().map(listed).collect()
}

/// Changes when a data identifier expires: never, or in this many seconds.
pub fn set_lifetime(tx: &mut Tx<'_>, did: &Did, lifetime: Option<i64>, now: Micros) -> Result<()> {
    check_seconds("data identifier", lifetime)?;
    let found = get(tx, did)?;
    lock_dids(tx, &BTreeSet::from([found.id]))?;
    let expires = lifetime.map(|seconds| now.saturating_add(seconds.saturating_mul(SECOND)));
    tx.execute(
        "UPDATE dids SET expired_at = ?2, updated_at = ?3 WHERE id = ?1",
        values![found.id, expires, now],
    )?;
    tx.wake(Daemon::Cleaner);
    Ok(())
}

/// One step towards removing an expired collection: its rules expire, it leaves its parents, and
/// its row is deleted once no other row refers to it. Returns whether it is gone.
pub(crate) fn remove_expired(tx: &mut Tx<'_>, id: i64, now: Micros) -> Result<bool> {
    let Some(found) = by_id(tx, id)? else { return Ok(true) };
    if found.did_type == DidType::File {
        return Ok(false);
    }
    let parents: Vec<i64> = tx
        .query("SELECT parent FROM contents WHERE child = ?1", values![id])?
        .iter()
        .map(|row| Ok(row.int(0)?))
        .collect::<Result<_>>()?;
    let mut ids: BTreeSet<i64> = parents.iter().copied().collect();
    ids.insert(id);
    lock_dids(tx, &ids)?;
    let Some(found) = by_id(tx, id)? else { return Ok(true) };
    if found.expired_at.is_none_or(|at| at > now) {
        return Ok(false);
    }
    for parent in parents {
        if let Some(parent) = by_id(tx, parent)? {
            load_names(tx, &[Child::named(found.did.clone())])?;
            detach_loaded(tx, &parent, now)?;
        }
    }
    let rules = tx.execute(
        "UPDATE rules SET expires_at = ?2, locked = 0 WHERE did_id = ?1 AND (expires_at IS NULL OR expires_at > ?2 OR locked = 1)",
        values![id, now - 1],
    )?;
    let waits = tx.number(
        "SELECT (SELECT COUNT(*) FROM rules WHERE did_id = ?1) + (SELECT COUNT(*) FROM updated_dids WHERE did_id = ?1)",
        values![id],
    )?;
    if rules > 0 || waits > 0 {
        tx.wake(Daemon::Cleaner);
        return Ok(false);
    }
    tx.execute("DELETE FROM contents WHERE parent = ?1", values![id])?;
    tx.execute("DELETE FROM detached WHERE parent = ?1", values![id])?;
    tx.execute("DELETE FROM dids WHERE id = ?1", values![id])?;
    Ok(true)
}
