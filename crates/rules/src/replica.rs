//! Replicas: which file is on which RSE, and when it may be deleted.
//!
//! A replica with locks has no tombstone. Every change locks the row of its file.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::{Ledger, OWN_COUNT};
use mainstay_catalog::order::{lock_dids, lock_files};
use mainstay_catalog::{Column, Row, Tx, values};

use crate::api::{
    Did, LARGEST_FILE, LARGEST_RSE, LockState, Micros, NewFile, ReplicaState, Rule, SECOND,
};
use crate::error::{Class, Error, Result, refuse};
use crate::expression::Rse;
use crate::rule::message;
use crate::rule::read::lock_rules;
use crate::{did, suspect};

/// When a replica without locks may be deleted on an RSE: at once, later, or only on request.
fn first_tombstone(delay: Option<&str>, now: Micros) -> Option<Micros> {
    let delay = delay?.parse::<i64>().ok()?;
    match delay {
        0 => None,
        ..0 => Some(0),
        _ => Some(now.saturating_add(delay.saturating_mul(SECOND))),
    }
}

/// Registers files on an RSE, and creates those that do not exist. A replica that is registered
/// already with the same state and path stays, so that a client without an answer may repeat the
/// call; with another state or path it is refused.
pub fn add_replicas(
    tx: &mut Tx<'_>,
    rse: &str,
    files: &[NewFile],
    account: &str,
    now: Micros,
) -> Result<()> {
    register(tx, rse, files, account, false, now).map(drop)
}

/// The same, but existing replicas are not compared. Returns how many are new.
pub fn add_missing_replicas(
    tx: &mut Tx<'_>,
    rse: &str,
    files: &[NewFile],
    account: &str,
    now: Micros,
) -> Result<u64> {
    register(tx, rse, files, account, true, now)
}

fn register(
    tx: &mut Tx<'_>,
    rse: &str,
    files: &[NewFile],
    account: &str,
    again: bool,
    now: Micros,
) -> Result<u64> {
    let rse = crate::rse::by_name(tx, rse)?;
    check_new(tx, files)?;
    // On an RSE without protocols names need no valid path.
    if rse.deterministic
        && !rse.protocols.is_empty()
        && let Some(file) =
            files.iter().find(|file| !mainstay_transfers::protocol::has_place(&file.did))
    {
        return Err(crate::protocol::no_place(&file.did));
    }
    check_sum(tx, &rse, files)?;
    load_files(tx, files)?;
    let made = tx.execute(
        "INSERT INTO dids (scope, name, did_type, account, bytes, length, md5, adler32, created_at, updated_at)
         SELECT scope, name, 'F', ?1, bytes, 1, md5, adler32, ?2, ?2 FROM w_names WHERE TRUE ORDER BY scope, name
         ON CONFLICT (scope, name) DO NOTHING",
        values![account, now],
    )?;
    // If all files were created just now, no check against existing ones is needed.
    let known = made < files.len() as u64;
    if known {
        hold_known(tx)?;
        check_known(tx)?;
    }
    let tombstone = first_tombstone(rse.attribute("tombstone_delay"), now);
    let sql = "INSERT INTO replicas (did_id, rse_id, bytes, state, lock_cnt, tombstone, path, created_at, updated_at)
         SELECT d.id, ?1, d.bytes, COALESCE(n.state, 'A'), 0, ?2, n.path, ?3, ?3
         FROM w_names n LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name) WHERE TRUE ORDER BY d.id
         ON CONFLICT (did_id, rse_id) DO NOTHING";
    let params = values![rse.id, tombstone, now];
    let (new, bytes) = if known {
        let new = tx.query(&format!("{sql} RETURNING bytes"), params)?;
        let bytes = new.iter().map(|row| row.int(0)).sum::<mainstay_catalog::Result<i64>>()?;
        (new.len() as u64, bytes)
    } else {
        (tx.execute(sql, params)?, files.iter().map(|file| file.bytes).sum())
    };
    if new < files.len() as u64 && !again {
        check_registered(tx, &rse)?;
    }
    if files.iter().any(|file| file.path.is_some()) {
        check_paths(tx, &rse)?;
    }
    if known && new > 0 {
        tx.execute(
            "UPDATE dids SET availability = 'A' WHERE availability = 'L' AND id IN (SELECT did FROM w_files)",
            &[],
        )?;
    }
    let mut ledger = Ledger::default();
    ledger.hold_more(rse.id, i64::try_from(new).unwrap_or(i64::MAX), bytes);
    ledger.write(tx, now)?;
    Ok(new)
}

/// Locks the existing files in `w_names`.
fn hold_known(tx: &mut Tx<'_>) -> Result<()> {
    tx.execute(
        "INSERT INTO w_files (did) SELECT DISTINCT d.id FROM w_names n
         LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name)",
        &[],
    )?;
    lock_files(tx)?;
    Ok(())
}

fn check_new(tx: &mut Tx<'_>, files: &[NewFile]) -> Result<()> {
    for file in files {
        crate::api::check_did(&file.did)?;
        let hex = |text: &Option<String>, length: usize| {
            text.as_ref().is_none_or(|text| {
                text.len() <= length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
        };
        let state = file.state.as_deref().is_none_or(|state| ["A", "U", "C", "T"].contains(&state));
        if let Some(path) = &file.path
            && !mainstay_transfers::protocol::stays_below(path)
        {
            return Err(crate::protocol::leaves(path));
        }
        if let Some(path) =
            file.path.as_deref().filter(|path| mainstay_transfers::protocol::is_of_a_draft(path))
        {
            let message =
                format!("Names like that of {path:.200} (.NAME.part) are for files under way");
            return Err(refuse(Class::InvalidPath, message));
        }
        let size = (0..=LARGEST_FILE).contains(&file.bytes);
        if !size || !hex(&file.adler32, 8) || !hex(&file.md5, 32) || !state {
            let message =
                format!("The size, a checksum or the state of '{}' is not valid", file.did);
            return Err(refuse(Class::InvalidObject, message));
        }
    }
    let scopes: BTreeSet<&str> = files.iter().map(|file| file.did.scope.as_str()).collect();
    for scope in scopes {
        if tx.first("SELECT 1 FROM scopes WHERE scope = ?1", values![scope])?.is_none() {
            return Err(refuse(Class::ScopeNotFound, format!("Scope '{scope}' not found!")));
        }
    }
    Ok(())
}

/// Fails when the sum of an RSE would exceed its bound. Small registrations cannot cause that.
fn check_sum(tx: &mut Tx<'_>, rse: &Rse, files: &[NewFile]) -> Result<()> {
    let new = files.iter().fold(0, |sum: i64, file| sum.saturating_add(file.bytes));
    if new < LARGEST_FILE >> 10 {
        return Ok(());
    }
    let held = "SELECT COALESCE(MAX(used), 0) FROM rse_usage WHERE rse_id = ?1 AND source = ?2";
    let held = tx.number(held, values![rse.id, OWN_COUNT])?;
    if held.saturating_add(new) <= LARGEST_RSE {
        return Ok(());
    }
    let message = format!("RSE {} would hold more than {LARGEST_RSE} bytes", rse.name);
    Err(refuse(Class::RSEOverQuota, message))
}

fn load_files(tx: &mut Tx<'_>, files: &[NewFile]) -> Result<()> {
    tx.clear(&["w_names", "w_files"])?;
    let text =
        |pick: fn(&NewFile) -> Option<String>| Column::Text(files.iter().map(pick).collect());
    tx.load(
        "w_names",
        &[
            ("ord", Column::ints(0..files.len() as i64)),
            ("scope", Column::texts(files.iter().map(|file| file.did.scope.clone()))),
            ("name", Column::texts(files.iter().map(|file| file.did.name.clone()))),
            ("bytes", Column::ints(files.iter().map(|file| file.bytes))),
            ("adler32", text(|file| file.adler32.as_ref().map(|sum| sum.to_ascii_lowercase()))),
            ("md5", text(|file| file.md5.as_ref().map(|sum| sum.to_ascii_lowercase()))),
            ("path", text(|file| file.path.clone())),
            ("state", text(|file| file.state.clone())),
        ],
    )?;
    Ok(())
}

/// Fails unless existing names are files of the same size and checksums.
fn check_known(tx: &mut Tx<'_>) -> Result<()> {
    let row = tx.first(
        "SELECT n.scope, n.name, d.did_type FROM w_names n LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name)
         WHERE (d.did_type <> 'F' OR n.bytes <> d.bytes OR COALESCE(n.adler32 <> d.adler32, FALSE) OR COALESCE(n.md5 <> d.md5, FALSE))
         ORDER BY n.ord LIMIT 1",
        &[],
    )?;
    let Some(row) = row else { return Ok(()) };
    let did = Did::new(row.text(0)?, row.text(1)?);
    Err(match row.text(2)? {
        "F" => refuse(
            Class::FileConsistencyMismatch,
            format!("({did}) bytes or checksums differ from those in the catalog"),
        ),
        _ => refuse(Class::UnsupportedOperation, format!("Data identifier '{did}' is not a file")),
    })
}

/// Fails unless existing replicas have the state and path in `w_names`.
fn check_registered(tx: &mut Tx<'_>, rse: &Rse) -> Result<()> {
    let row = tx.first(
        "SELECT n.scope, n.name FROM w_names n LOOKUP JOIN dids d ON (d.scope = n.scope AND d.name = n.name)
         LOOKUP JOIN replicas p ON (p.did_id = d.id) WHERE p.rse_id = ?1
         AND (p.state <> COALESCE(n.state, 'A') OR COALESCE(n.path <> p.path, FALSE)) ORDER BY n.ord LIMIT 1",
        values![rse.id],
    )?;
    let Some(row) = row else { return Ok(()) };
    let did = Did::new(row.text(0)?, row.text(1)?);
    let message =
        format!("'{did}' is already registered on '{}' with another state or path", rse.name);
    Err(refuse(Class::Duplicate, message))
}

/// Fails if two files have the same path on an RSE: removing one would remove both.
fn check_paths(tx: &mut Tx<'_>, rse: &Rse) -> Result<()> {
    let row = tx.first(
        "SELECT n.path, d.scope, d.name FROM w_names n LOOKUP JOIN replicas p ON (p.rse_id = ?1 AND p.path = n.path)
         LOOKUP JOIN dids d ON (d.id = p.did_id) WHERE n.path IS NOT NULL AND (d.scope <> n.scope OR d.name <> n.name)
         ORDER BY n.ord LIMIT 1",
        values![rse.id],
    )?;
    let Some(row) = row else { return Ok(()) };
    let other = Did::new(row.text(1)?, row.text(2)?);
    let message =
        format!("The path '{:.200}' on '{}' is that of '{other}'", row.text(0)?, rse.name);
    Err(refuse(Class::Duplicate, message))
}

/// A replica as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a replica")]
pub struct Replica {
    pub rse_id: i64,
    pub rse: String,
    pub state: ReplicaState,
    pub bytes: i64,
    pub lock_cnt: i64,
    pub tombstone: Option<Micros>,
    pub path: Option<String>,
    pub accessed_at: Option<Micros>,
    pub created_at: Micros,
}

fn from_row(row: &Row) -> Result<Replica> {
    Ok(Replica {
        rse_id: row.int(0)?,
        rse: row.text(1)?.to_owned(),
        state: row.state::<ReplicaState>(2)?,
        bytes: row.int(3)?,
        lock_cnt: row.int(4)?,
        tombstone: row.opt_int(5)?,
        path: row.opt_text(6)?,
        accessed_at: row.opt_int(7)?,
        created_at: row.int(8)?,
    })
}

/// The replicas of a file.
pub fn list(tx: &mut Tx<'_>, file: &Did) -> Result<Vec<Replica>> {
    let id = did::get(tx, file)?.id;
    let rows = tx.query(
        "SELECT p.rse_id, r.rse, p.state, p.bytes, p.lock_cnt, p.tombstone, p.path, p.accessed_at, p.created_at
         FROM replicas p JOIN rses r ON r.id = p.rse_id WHERE p.did_id = ?1 ORDER BY r.rse",
        values![id],
    )?;
    rows.iter().map(from_row).collect()
}

/// The numbers of a file and of an RSE.
pub fn unit(tx: &mut Tx<'_>, file: &Did, rse: &str) -> Result<(i64, i64)> {
    Ok((did::get(tx, file)?.id, crate::rse::by_name(tx, rse)?.id))
}

/// Loads files into `w_files` and locks them.
fn hold(tx: &mut Tx<'_>, files: &[i64]) -> Result<()> {
    tx.clear(&["w_files"])?;
    let files: BTreeSet<i64> = files.iter().copied().collect();
    tx.load("w_files", &[("did", Column::ints(files))])?;
    lock_files(tx)?;
    Ok(())
}

pub(crate) fn none_there(file: &Did, rse: &str) -> Error {
    refuse(Class::ReplicaNotFound, format!("No row found for '{file}' on '{rse}'"))
}

/// Makes a replica without locks obsolete at once.
pub fn set_tombstone(tx: &mut Tx<'_>, file: &Did, rse: &str, now: Micros) -> Result<()> {
    let (id, rse_id) = unit(tx, file, rse)?;
    hold(tx, &[id])?;
    let sql = "SELECT lock_cnt FROM replicas WHERE did_id = ?1 AND rse_id = ?2";
    match tx.first(sql, values![id, rse_id])? {
        None => Err(none_there(file, rse)),
        Some(row) if row.int(0)? > 0 => {
            Err(refuse(Class::ReplicaIsLocked, format!("Replica {file} on RSE {rse} is locked.")))
        }
        Some(_) => {
            let sql = "UPDATE replicas SET tombstone = 0, updated_at = ?3 WHERE did_id = ?1 AND rse_id = ?2";
            tx.execute(sql, values![id, rse_id, now])?;
            tx.wake(mainstay_catalog::Daemon::Reaper);
            Ok(())
        }
    }
}

/// Marks a replica without locks as obsolete: the reaper removes its file and its row.
pub fn doom(tx: &mut Tx<'_>, file: &Did, rse: &str, now: Micros) -> Result<()> {
    set_tombstone(tx, file, rse, now)?;
    let (id, rse_id) = unit(tx, file, rse)?;
    let sql = "UPDATE replicas SET state = 'B', updated_at = ?3 WHERE did_id = ?1 AND rse_id = ?2";
    tx.execute(sql, values![id, rse_id, now])?;
    Ok(())
}

/// The file whose replica is at this path of an RSE.
pub fn at_path(tx: &mut Tx<'_>, rse: &Rse, path: &str) -> Result<Option<Did>> {
    if !rse.deterministic {
        let sql = "SELECT d.scope, d.name FROM replicas p JOIN dids d ON d.id = p.did_id WHERE p.rse_id = ?1 AND p.path = ?2";
        let row = tx.first(sql, values![rse.id, path])?;
        return row.map(|row| Ok(Did::new(row.text(0)?, row.text(1)?))).transpose();
    }
    // scope/xx/yy/name, where the scope may have several parts.
    let parts: Vec<&str> = path.split('/').collect();
    for at in 1..parts.len().saturating_sub(2) {
        let name = parts[at + 2..].join("/");
        for scope in [parts[..at].join("."), parts[..at].join("/")] {
            let did = Did::new(scope, name.as_str());
            if mainstay_transfers::protocol::hashed_path(&did) == path
                && did::find(tx, &did)?.is_some()
            {
                return Ok(Some(did));
            }
        }
    }
    Ok(None)
}

/// Records an access: a tombstone that is set, and not obsolete, moves to that time.
pub fn touch(tx: &mut Tx<'_>, file: &Did, rse: &str, at: Micros) -> Result<()> {
    let (id, rse_id) = unit(tx, file, rse)?;
    hold(tx, &[id])?;
    let changed = tx.execute(
        "UPDATE replicas SET accessed_at = ?3, tombstone = CASE WHEN tombstone <> 0 THEN ?3 ELSE tombstone END
         WHERE did_id = ?1 AND rse_id = ?2",
        values![id, rse_id, at],
    )?;
    if changed == 0 { Err(none_there(file, rse)) } else { Ok(()) }
}

/// Bytes of a collection's files on each RSE.
pub fn coverage(tx: &mut Tx<'_>, collection: &Did) -> Result<BTreeMap<String, i64>> {
    let id = did::get(tx, collection)?.id;
    let rows = tx.query(
        "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
         UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C'),
         files(id) AS (SELECT DISTINCT c.child FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'D')
         SELECT r.rse, CAST(SUM(p.bytes) AS BIGINT) FROM files JOIN replicas p ON p.did_id = files.id
         JOIN rses r ON r.id = p.rse_id WHERE p.state <> 'B' GROUP BY r.rse",
        values![id],
    )?;
    rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.int(1)?))).collect()
}

/// The available files of a collection on one RSE.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain numbers and moments")]
pub struct AvailableFiles {
    pub rse_id: i64,
    pub files: i64,
    pub bytes: i64,
    pub first: Micros,
    pub last: Micros,
    pub accessed: Option<Micros>,
}

/// The available files of a collection by RSE; an RSE with some of them still in transfer counts
/// with the available ones.
pub fn available_by_rse(tx: &mut Tx<'_>, collection: i64) -> Result<Vec<AvailableFiles>> {
    let rows = tx.query(
        "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
         UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C'),
         files(id) AS (SELECT c.child FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'D')
         SELECT p.rse_id, CAST(SUM(CASE WHEN p.state IN ('A', 'T') THEN 1 ELSE 0 END) AS BIGINT),
         CAST(SUM(CASE WHEN p.state IN ('A', 'T') THEN p.bytes ELSE 0 END) AS BIGINT), MIN(p.created_at), MAX(p.updated_at),
         MAX(p.accessed_at) FROM files JOIN replicas p ON p.did_id = files.id WHERE p.state <> 'B' GROUP BY p.rse_id ORDER BY p.rse_id",
        values![collection],
    )?;
    let held = |row: &Row| {
        Ok(AvailableFiles {
            rse_id: row.int(0)?,
            files: row.int(1)?,
            bytes: row.int(2)?,
            first: row.int(3)?,
            last: row.int(4)?,
            accessed: row.opt_int(5)?,
        })
    };
    rows.iter().map(held).collect()
}

/// The datasets with files on an RSE, by name, each with its own length and bytes.
pub fn datasets_on(
    tx: &mut Tx<'_>,
    rse: i64,
    each: &mut dyn FnMut(Did, (i64, i64), AvailableFiles) -> Result<()>,
) -> Result<()> {
    let sql = "SELECT d.scope, d.name, (SELECT COUNT(*) FROM contents c WHERE c.parent = d.id),
        (SELECT CAST(COALESCE(SUM(c.bytes), 0) AS BIGINT) FROM contents c WHERE c.parent = d.id),
        h.files, h.bytes, h.first, h.last, h.accessed FROM (SELECT c.parent,
        CAST(SUM(CASE WHEN p.state IN ('A', 'T') THEN 1 ELSE 0 END) AS BIGINT) AS files,
        CAST(SUM(CASE WHEN p.state IN ('A', 'T') THEN p.bytes ELSE 0 END) AS BIGINT) AS bytes,
        MIN(p.created_at) AS first, MAX(p.updated_at) AS last, MAX(p.accessed_at) AS accessed
        FROM replicas p JOIN contents c ON c.child = p.did_id WHERE p.rse_id = ?1 AND p.state <> 'B' GROUP BY c.parent) h
        JOIN dids d ON d.id = h.parent ORDER BY d.scope, d.name";
    tx.for_each(sql, values![rse], &mut |row| {
        let held = AvailableFiles {
            rse_id: rse,
            files: row.int(4)?,
            bytes: row.int(5)?,
            first: row.int(6)?,
            last: row.int(7)?,
            accessed: row.opt_int(8)?,
        };
        each(Did::new(row.text(0)?, row.text(1)?), (row.int(2)?, row.int(3)?), held)
    })
}

/// Declares replicas bad. A locked one with another copy is fetched again, one without locks may be
/// deleted, and a file whose last copy is bad is lost.
pub fn declare_bad(
    tx: &mut Tx<'_>,
    file: &Did,
    rse: &str,
    reason: &str,
    account: &str,
    now: Micros,
) -> Result<()> {
    let (unit, rules) = hold_with_rules(tx, file, rse)?;
    declare_locked_bad(tx, (file, unit.0), (rse, unit.1), rules, reason, account, now)
}

/// Declares a replica bad that was proven wrong, unless there is no other trusted copy: then it
/// stays suspicious.
pub(crate) fn declare_proven_bad(
    tx: &mut Tx<'_>,
    file: &Did,
    rse: &str,
    reason: &str,
    now: Micros,
) -> Result<()> {
    let (unit, rules) = hold_with_rules(tx, file, rse)?;
    let others = format!(
        "SELECT COUNT(*) FROM replicas o WHERE o.did_id = ?1 AND o.rse_id <> ?2 AND o.state = 'A' AND {}",
        suspect::trusted("o")
    );
    if tx.number(&others, values![unit.0, unit.1])? == 0 {
        let sql = "UPDATE suspicious_replicas SET proven = 0 WHERE did_id = ?1 AND rse_id = ?2";
        return Ok(tx.execute(sql, values![unit.0, unit.1]).map(drop)?);
    }
    declare_locked_bad(tx, (file, unit.0), (rse, unit.1), rules, reason, "root", now)
}

/// Locks a file with its collections and the rules that lock it.
fn hold_with_rules(tx: &mut Tx<'_>, file: &Did, rse: &str) -> Result<((i64, i64), Vec<Rule>)> {
    let (id, rse_id) = unit(tx, file, rse)?;
    let parents = parents_of(tx, id)?;
    lock_dids(tx, &parents)?;
    let ids = rules_of(tx, id)?;
    let rules = lock_rules(tx, &ids)?;
    hold(tx, &[id])?;
    if rules_of(tx, id)? != ids || parents_of(tx, id)? != parents {
        return Err(Error::moved());
    }
    Ok(((id, rse_id), rules))
}

fn parents_of(tx: &mut Tx<'_>, file: i64) -> Result<BTreeSet<i64>> {
    let sql = "SELECT parent FROM contents WHERE child = ?1";
    tx.query(sql, values![file])?.iter().map(|row| Ok(row.int(0)?)).collect()
}

fn rules_of(tx: &mut Tx<'_>, file: i64) -> Result<BTreeSet<i64>> {
    let sql = "SELECT DISTINCT rule_id FROM locks WHERE did_id = ?1";
    tx.query(sql, values![file])?.iter().map(|row| Ok(row.int(0)?)).collect()
}

fn declare_locked_bad(
    tx: &mut Tx<'_>,
    (file, id): (&Did, i64),
    (rse, rse_id): (&str, i64),
    rules: Vec<Rule>,
    reason: &str,
    account: &str,
    now: Micros,
) -> Result<()> {
    let sql = "SELECT lock_cnt, state FROM replicas WHERE did_id = ?1 AND rse_id = ?2";
    let Some(replica) = tx.first(sql, values![id, rse_id])? else {
        return Err(none_there(file, rse));
    };
    suspect::trust(tx, (id, rse_id))?;
    tx.execute(
        "INSERT INTO bad_replicas (did_id, rse_id, reason, account, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        values![id, rse_id, reason, account, now],
    )?;
    let others =
        "SELECT COUNT(*) FROM replicas WHERE did_id = ?1 AND rse_id <> ?2 AND state IN ('A', 'T')";
    if tx.number(others, values![id, rse_id])? == 0 {
        return lose(tx, file, id, &rules, now);
    }
    if replica.int(0)? == 0 {
        let sql = "UPDATE replicas SET state = 'U', tombstone = 0, updated_at = ?3 WHERE did_id = ?1 AND rse_id = ?2";
        tx.execute(sql, values![id, rse_id, now])?;
        return Ok(());
    }
    let sql = "UPDATE replicas SET state = 'C', updated_at = ?3 WHERE did_id = ?1 AND rse_id = ?2";
    tx.execute(sql, values![id, rse_id, now])?;
    tx.execute(
        "INSERT INTO requests (request_type, did_id, dest_rse_id, state, rule_id, activity, priority, bytes, retry_count, requested_at, updated_at)
         SELECT 'T', l.did_id, l.rse_id, 'Q', MIN(l.rule_id), 'Recovery', 3, MIN(l.bytes), 0, ?3, ?3 FROM locks l
         WHERE l.did_id = ?1 AND l.rse_id = ?2 GROUP BY l.did_id, l.rse_id
         ON CONFLICT (did_id, dest_rse_id, request_type) DO NOTHING",
        values![id, rse_id, now],
    )?;
    tx.wake_workers();
    for rule in rules {
        let sql = "SELECT state FROM locks WHERE rule_id = ?1 AND did_id = ?2 AND rse_id = ?3";
        let Some(lock) = tx.first(sql, values![rule.id, id, rse_id])? else { continue };
        let before = lock.state::<LockState>(0)?;
        let sql = "UPDATE locks SET state = 'R', updated_at = ?4 WHERE rule_id = ?1 AND did_id = ?2 AND rse_id = ?3";
        tx.execute(sql, values![rule.id, id, rse_id, now])?;
        let mut rule = rule;
        rule.source_replica_expression = None;
        let sql = "UPDATE rules SET source_replica_expression = NULL WHERE id = ?1";
        tx.execute(sql, values![rule.id])?;
        let mut counts = rule.counts;
        counts.add(before, -1);
        counts.add(LockState::Replicating, 1);
        let complete = !rule.incomplete;
        crate::rule::state::settle(tx, &rule, counts, complete, None, now)?;
    }
    Ok(())
}

/// Handles the loss of a file's last copy: removes it from rules and datasets, sends a message.
fn lose(tx: &mut Tx<'_>, file: &Did, id: i64, rules: &[Rule], now: Micros) -> Result<()> {
    let mut ledger = Ledger::default();
    for rule in rules {
        tx.clear(&["w_units"])?;
        tx.execute(
            "INSERT INTO w_units (did, rse, bytes, lock) SELECT did_id, rse_id, bytes, state FROM locks
             WHERE rule_id = ?1 AND did_id = ?2",
            values![rule.id, id],
        )?;
        let counts = crate::rule::unlock::remove_locks(tx, rule, true, &mut ledger, now)?;
        // Rules that name the file itself stay, without locks.
        let named = (rule.did_id == id).then(|| format!("The last copy of {file} is lost"));
        let complete = !rule.incomplete && named.is_none();
        crate::rule::state::settle(tx, rule, counts, complete, named.as_deref(), now)?;
    }
    let sql = "UPDATE replicas SET state = 'U', tombstone = 0, updated_at = ?2 WHERE did_id = ?1";
    tx.execute(sql, values![id, now])?;
    tx.execute("DELETE FROM suspicious_replicas WHERE did_id = ?1", values![id])?;
    tx.execute(
        "UPDATE dids SET availability = 'L', updated_at = ?2 WHERE id = ?1",
        values![id, now],
    )?;
    tx.execute(
        "INSERT INTO contents_history (parent, child, bytes, created_at, deleted_at)
         SELECT parent, child, bytes, created_at, ?2 FROM contents WHERE child = ?1",
        values![id, now],
    )?;
    let sql = "UPDATE dids SET length = length - 1, bytes = bytes - (SELECT f.bytes FROM dids f WHERE f.id = ?1)
        WHERE length IS NOT NULL AND id IN (SELECT parent FROM contents WHERE child = ?1)";
    tx.execute(sql, values![id])?;
    tx.execute("DELETE FROM contents WHERE child = ?1", values![id])?;
    message::send(tx, "LOST", &serde_json::json!({"scope": file.scope, "name": file.name}), now)?;
    ledger.write(tx, now)?;
    Ok(())
}
