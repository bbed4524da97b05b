//! The reaper: deletes replicas without locks when space is needed.
//!
//! A replica is marked first, its file is removed from storage, and then its row is deleted. A lock
//! that is created in between turns the replica into an unavailable one, which the repairer fetches
//! again. The file of a marked replica that is needed again (locked, or the last copy while another
//! is requested) is inspected, and the replica becomes available again if the file is right. A
//! replica that a worker may still be writing is left alone until the worker stops
//! (`queue::given_up`).

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{lock_dids, lock_files, lock_these};
use mainstay_catalog::{Column, Daemon, Row, Tx, values};

use crate::api::{Did, Micros, SECOND};
use crate::decide::{Reap, reap};
use crate::error::{Error, Result};
use crate::expression::Rse;
use crate::queue::given_up;
use crate::rule::read::lock_rules;
use crate::rule::{Settings, transfer};
use crate::suspect;

/// A replica marked for deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a replica")]
pub struct Doomed {
    pub file: i64,
    pub did: Did,
    pub rse: i64,
    pub path: Option<String>,
    /// Another replica has the same path: the file must not be removed.
    pub shared: bool,
}

/// Whether the evaluator is so far behind that replicas may be needed by unprocessed changes.
pub fn is_behind(tx: &mut Tx<'_>, settings: &Settings) -> Result<bool> {
    Ok(tx.number("SELECT COUNT(*) FROM updated_dids", &[])? >= settings.reaper_backlog)
}

/// Decides which replicas may be deleted on an RSE now.
pub fn decide_for(tx: &mut Tx<'_>, rse: &Rse, settings: &Settings) -> Result<Reap> {
    let behind = is_behind(tx, settings)?;
    let sql = "SELECT free FROM rse_usage WHERE rse_id = ?1 AND free IS NOT NULL ORDER BY updated_at DESC LIMIT 1";
    let free = tx.first(sql, values![rse.id])?.map(|row| row.int(0)).transpose()?;
    let needed = rse.limits.get("MinFreeSpace").zip(free).map(|(least, free)| least - free);
    Ok(reap(rse.delete, behind, rse.flag("greedyDeletion"), needed))
}

/// How long a claim of a reaper on marked replicas lasts. Until it ends, a replica that is locked
/// again is not inspected.
const CLAIM: Micros = 60 * SECOND;

/// How much of that time a reaper uses: it may be paused at any moment and continue later.
pub const REMOVING: Duration = Duration::from_secs(20);

/// The SQL condition that no other trusted copy exists while a request or a lock needs one.
fn wanted(replica: &str) -> String {
    format!(
        "(NOT EXISTS (SELECT 1 FROM replicas o WHERE o.did_id = {replica}.did_id AND o.rse_id <> {replica}.rse_id AND o.state = 'A' AND {})
        AND (EXISTS (SELECT 1 FROM requests q WHERE q.did_id = {replica}.did_id)
        OR EXISTS (SELECT 1 FROM locks l WHERE l.did_id = {replica}.did_id AND l.rse_id <> {replica}.rse_id)))",
        suspect::trusted("o")
    )
}

/// The files among these that were attached below a rule, directly or with their collections, and
/// that the evaluator has not processed yet: the rule may be about to lock them.
fn awaited(tx: &mut Tx<'_>, files: &[i64]) -> Result<BTreeSet<i64>> {
    let waiting = "SELECT 1 FROM updated_dids WHERE rule_evaluation_action = 'A' LIMIT 1";
    if files.is_empty() || tx.first(waiting, &[])?.is_none() {
        return Ok(BTreeSet::new());
    }
    let sql = "WITH RECURSIVE up(file, id) AS (SELECT child, parent FROM contents WHERE child IN ARRAY(?1)
        UNION SELECT up.file, c.parent FROM up LOOKUP JOIN contents c ON (c.child = up.id))
        SELECT up.file FROM up JOIN updated_dids u ON u.did_id = up.id WHERE u.rule_evaluation_action = 'A'
        INTERSECT SELECT up.file FROM up JOIN rules r ON r.did_id = up.id WHERE r.deleted_at IS NULL";
    let rows = tx.query(sql, values![files.to_vec()])?;
    rows.iter().map(|row| Ok(row.int(0)?)).collect()
}

/// Marks replicas on an RSE for deletion, oldest tombstone first, at most `most`. The RSEs `beside`
/// share its storage.
pub fn mark(
    tx: &mut Tx<'_>,
    (rse, beside): (&Rse, &[i64]),
    what: Reap,
    most: i64,
    now: Micros,
) -> Result<Vec<Doomed>> {
    let (until, bytes) = match what {
        Reap::Nothing => return Ok(Vec::new()),
        Reap::Obsolete => (1, i64::MAX),
        Reap::Everything => (now, i64::MAX),
        Reap::Until(bytes) => (now, bytes),
    };
    // Exclude replicas that a transfer reads from, or that a worker may still be writing.
    let free = format!(
        "p.rse_id = ?1 AND p.tombstone < ?2 AND p.tombstone IS NOT NULL AND p.lock_cnt = 0 AND p.state <> 'B'
        AND NOT EXISTS (SELECT 1 FROM requests q WHERE q.did_id = p.did_id AND q.source_rse_id = p.rse_id)
        AND NOT {} AND {}",
        wanted("p"),
        given_up::not_being_written("p")
    );
    let sql = format!(
        "SELECT p.did_id, p.bytes, p.tombstone FROM replicas p WHERE {free} ORDER BY p.tombstone, p.did_id LIMIT ?3"
    );
    let mut files = Vec::new();
    let mut sum = 0_i64;
    for row in tx.query(&sql, values![rse.id, until, most])? {
        // Obsolete replicas are always taken.
        if sum >= bytes && row.int(2)? > 0 {
            break;
        }
        sum = sum.saturating_add(row.int(1)?);
        files.push(row.int(0)?);
    }
    let awaited = awaited(tx, &files)?;
    files.retain(|file| !awaited.contains(file));
    if files.is_empty() {
        return Ok(Vec::new());
    }
    tx.clear(&["w_files"])?;
    tx.load("w_files", &[("did", Column::ints(files.iter().copied().collect::<BTreeSet<i64>>()))])?;
    lock_files(tx)?;
    let sql = format!(
        "UPDATE replicas SET state = 'B', tombstone = 0, updated_at = ?3 WHERE (did_id, rse_id) IN (
         SELECT p.did_id, p.rse_id FROM w_files w LOOKUP JOIN replicas p ON (p.did_id = w.did) WHERE {free})"
    );
    tx.execute(&sql, values![rse.id, until, now])?;
    marked(tx, (rse.id, beside), &files)
}

fn marked(tx: &mut Tx<'_>, (rse, beside): (i64, &[i64]), files: &[i64]) -> Result<Vec<Doomed>> {
    let sql = format!(
        "SELECT d.id, d.scope, d.name, p.path, CASE WHEN EXISTS (SELECT 1 FROM replicas o WHERE o.rse_id = p.rse_id
         AND o.path = p.path AND o.did_id <> p.did_id AND o.state <> 'B') OR EXISTS (SELECT 1 FROM replicas o
         WHERE o.did_id = p.did_id AND o.rse_id IN ARRAY(?3) AND o.state <> 'B') OR EXISTS (SELECT 1 FROM replicas o
         WHERE o.rse_id IN ARRAY(?3) AND o.path = p.path AND o.state <> 'B') THEN 1 ELSE 0 END FROM replicas p JOIN dids d ON d.id = p.did_id
         WHERE p.rse_id = ?1 AND p.state = 'B' AND p.did_id IN ARRAY(?2) AND {} ORDER BY d.id",
        given_up::not_being_written("p")
    );
    let rows = tx.query(&sql, values![rse, files.to_vec(), beside.to_vec()])?;
    let doomed = |row: &mainstay_catalog::Row| {
        Ok(Doomed {
            file: row.int(0)?,
            did: Did::new(row.text(1)?, row.text(2)?),
            rse,
            path: row.opt_text(3)?,
            shared: row.flag(4)?,
        })
    };
    rows.iter().map(doomed).collect()
}

/// The SQL condition for marked replicas without locks that no other reaper has claimed. The
/// parameter is the time before which claims have expired.
fn unclaimed(replica: &str, parameter: &str) -> String {
    format!(
        "({replica}.state = 'B' AND {replica}.lock_cnt = 0 AND ({replica}.tombstone = 0 OR {replica}.tombstone IS NULL
         OR {replica}.updated_at <= {parameter}))"
    )
}

/// The SQL condition for those among them that are not needed, so that a reaper may claim them.
fn claimable(replica: &str, parameter: &str) -> String {
    format!("{} AND NOT {}", unclaimed(replica, parameter), wanted(replica))
}

/// The SQL condition for marked replicas that have locks, and whose claims have expired.
fn locked(replica: &str, parameter: &str) -> String {
    format!(
        "({replica}.state = 'B' AND {replica}.lock_cnt > 0 AND {replica}.updated_at <= {parameter})"
    )
}

/// Replicas that an interrupted reaper has marked and not deleted.
pub fn left_over(
    tx: &mut Tx<'_>,
    (rse, beside): (i64, &[i64]),
    most: i64,
    now: Micros,
) -> Result<Vec<Doomed>> {
    let sql = format!(
        "SELECT did_id FROM replicas p WHERE rse_id = ?1 AND {} AND {} ORDER BY did_id LIMIT ?3",
        claimable("p", "?2"),
        given_up::not_being_written("p")
    );
    let rows = tx.query(&sql, values![rse, now.saturating_sub(CLAIM), most])?;
    let files: Vec<i64> = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    marked(tx, (rse, beside), &files)
}

/// Claims marked replicas for one reaper, which then removes their files within [`REMOVING`].
/// Returns those that were claimed: not claimed by another reaper, not deleted since, and not
/// needed again.
pub fn claim(tx: &mut Tx<'_>, rse: i64, doomed: &[Doomed], now: Micros) -> Result<BTreeSet<i64>> {
    let files: BTreeSet<i64> = doomed.iter().map(|one| one.file).collect();
    lock_these(tx, &files)?;
    let mut files: Vec<i64> = files.into_iter().collect();
    let awaited = awaited(tx, &files)?;
    files.retain(|file| !awaited.contains(file));
    let sql = format!(
        "UPDATE replicas SET tombstone = ?3, updated_at = ?3 WHERE did_id IN ARRAY(?1) AND rse_id = ?2 AND {}
         RETURNING did_id",
        claimable("replicas", "?4")
    );
    let rows = tx.query(&sql, values![files, rse, now, now.saturating_sub(CLAIM)])?;
    rows.iter().map(|row| Ok(row.int(0)?)).collect()
}

/// Releases the claim on replicas whose files could not be removed.
pub fn unclaim(tx: &mut Tx<'_>, rse: i64, files: &[i64]) -> Result<()> {
    lock_these(tx, &files.iter().copied().collect())?;
    let sql = "UPDATE replicas SET tombstone = 0 WHERE did_id IN ARRAY(?1) AND rse_id = ?2 AND state = 'B' AND lock_cnt = 0";
    tx.execute(sql, values![files.to_vec(), rse])?;
    Ok(())
}

/// A marked replica that is needed again, and the expected properties of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The replica.
    pub doomed: Doomed,
    /// Whether it is locked; if not, it is the last copy and one is requested elsewhere.
    pub locked: bool,
    /// The size of its file.
    pub bytes: i64,
    /// Its Adler-32 checksum, if known.
    pub adler32: Option<String>,
    /// Its MD5 checksum, if known.
    pub md5: Option<String>,
}

impl Needed {
    /// Parses a row with the columns [`Needed::COLUMNS`].
    pub(crate) fn read(row: &Row, rse: i64) -> Result<Self> {
        Ok(Self {
            doomed: Doomed {
                file: row.int(0)?,
                did: Did::new(row.text(1)?, row.text(2)?),
                rse,
                path: row.opt_text(3)?,
                shared: false,
            },
            locked: row.int(7)? > 0,
            bytes: row.int(4)?,
            adler32: row.opt_text(5)?,
            md5: row.opt_text(6)?,
        })
    }

    /// The columns, for a replica `p` and its file `d`.
    pub(crate) const COLUMNS: &'static str =
        "d.id, d.scope, d.name, p.path, p.bytes, d.adler32, d.md5, p.lock_cnt";
}

/// Marked replicas that are needed again, and whose claims have expired.
pub fn needed_again(tx: &mut Tx<'_>, rse: i64, most: i64, now: Micros) -> Result<Vec<Needed>> {
    let sql = format!(
        "SELECT {} FROM replicas p JOIN dids d ON d.id = p.did_id WHERE p.rse_id = ?1 AND p.state = 'B' AND ({} OR ({} AND {})) AND {} ORDER BY d.id LIMIT ?3",
        Needed::COLUMNS,
        locked("p", "?2"),
        unclaimed("p", "?2"),
        wanted("p"),
        given_up::not_being_written("p")
    );
    let rows = tx.query(&sql, values![rse, now.saturating_sub(CLAIM), most])?;
    rows.iter().map(|row| Needed::read(row, rse)).collect()
}

/// Ends the marking of replicas that are needed again. If their files are `there`, they become
/// available; those without locks may be deleted later. If not, locked ones are fetched again.
pub fn revive(tx: &mut Tx<'_>, rse: i64, files: &[i64], there: bool, now: Micros) -> Result<()> {
    hold_with_rules(tx, rse, files)?;
    let sql = format!(
        "UPDATE replicas SET state = ?4, updated_at = ?3, tombstone = CASE WHEN lock_cnt > 0 THEN NULL ELSE 0 END
         WHERE did_id IN ARRAY(?1) AND rse_id = ?2 AND ({} OR {}) RETURNING did_id",
        locked("replicas", "?5"),
        unclaimed("replicas", "?5")
    );
    let letter = if there { "A" } else { "U" };
    let before = now.saturating_sub(CLAIM);
    let rows = tx.query(&sql, values![files.to_vec(), rse, now, letter, before])?;
    if !there {
        return Ok(());
    }
    let units: Vec<(i64, i64)> =
        rows.iter().map(|row| Ok((row.int(0)?, rse))).collect::<Result<_>>()?;
    transfer::successful_transfer(tx, &units, now)?;
    // Transfers can read them again.
    tx.wake_workers();
    Ok(())
}

/// Locks the rows of the rules that lock these files on an RSE, and then those of the files, in
/// this order as everywhere.
fn hold_with_rules(tx: &mut Tx<'_>, rse: i64, files: &[i64]) -> Result<BTreeSet<i64>> {
    let sql = "SELECT DISTINCT rule_id FROM locks WHERE did_id IN ARRAY(?1) AND rse_id = ?2";
    let rows = tx.query(sql, values![files.to_vec(), rse])?;
    let rules: BTreeSet<i64> = rows.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    lock_rules(tx, &rules)?;
    lock_these(tx, &files.iter().copied().collect())?;
    Ok(rules)
}

/// Schedules an immediate repair of rules whose locked files were removed.
pub fn repair_soon(tx: &mut Tx<'_>, rse: i64, files: &[i64]) -> Result<()> {
    let sql = "SELECT 1 FROM locks l JOIN replicas p ON p.did_id = l.did_id AND p.rse_id = l.rse_id
        WHERE l.did_id IN ARRAY(?1) AND l.rse_id = ?2 AND l.state = 'S' AND p.state = 'U' LIMIT 1";
    if tx.first(sql, values![files.to_vec(), rse])?.is_none() {
        return Ok(());
    }
    let rules = hold_with_rules(tx, rse, files)?;
    let sql =
        "UPDATE locks SET updated_at = 0 WHERE did_id IN ARRAY(?1) AND rse_id = ?2 AND state = 'S'";
    tx.execute(sql, values![files.to_vec(), rse])?;
    let sql = "UPDATE rules SET repair_at = 0 WHERE id IN ARRAY(?1) AND state = 'S'";
    tx.execute(sql, values![rules.into_iter().collect::<Vec<i64>>()])?;
    tx.wake(Daemon::Repairer);
    Ok(())
}

/// Deletes replicas whose files were removed from storage, unless a worker has written one again
/// meanwhile. A file without any replica is removed from its datasets and from the catalog.
pub fn forget(tx: &mut Tx<'_>, rse: i64, files: &[i64], now: Micros) -> Result<u64> {
    let parents = |tx: &mut Tx<'_>| -> Result<BTreeSet<i64>> {
        let sql = "SELECT DISTINCT c.parent FROM contents c WHERE c.child IN ARRAY(?1)
            AND (SELECT COUNT(*) FROM replicas p WHERE p.did_id = c.child) < 2";
        tx.query(sql, values![files.to_vec()])?.iter().map(|row| Ok(row.int(0)?)).collect()
    };
    let held = parents(tx)?;
    lock_dids(tx, &held)?;
    tx.clear(&["w_files"])?;
    tx.load("w_files", &[("did", Column::ints(files.iter().copied().collect::<BTreeSet<i64>>()))])?;
    lock_files(tx)?;
    if tx.is_postgres() && !parents(tx)?.is_subset(&held) {
        return Err(Error::moved());
    }
    tx.execute(
        "UPDATE replicas SET state = 'U', updated_at = ?2 WHERE rse_id = ?1 AND state = 'B' AND lock_cnt > 0
         AND did_id IN (SELECT did FROM w_files)",
        values![rse, now],
    )?;
    let sql = format!(
        "DELETE FROM replicas WHERE rse_id = ?1 AND state = 'B' AND lock_cnt = 0 AND did_id IN (SELECT did FROM w_files)
         AND {} RETURNING bytes",
        given_up::not_being_written("replicas")
    );
    let gone = tx.query(&sql, values![rse])?;
    tx.execute(
        "DELETE FROM suspicious_replicas WHERE rse_id = ?1 AND did_id IN (SELECT w.did FROM w_files w WHERE NOT EXISTS (
         SELECT 1 FROM replicas p WHERE p.did_id = w.did AND p.rse_id = ?1))",
        values![rse],
    )?;
    // Files that were written again are to be removed again.
    let sql = "UPDATE replicas SET tombstone = 0 WHERE rse_id = ?1 AND state = 'B' AND lock_cnt = 0
        AND did_id IN (SELECT did FROM w_files)";
    tx.execute(sql, values![rse])?;
    let mut ledger = Ledger::default();
    let bytes = gone.iter().map(|row| row.int(0)).sum::<mainstay_catalog::Result<i64>>()?;
    ledger.hold_more(rse, -(gone.len() as i64), -bytes);
    let orphan = "(SELECT w.did FROM w_files w WHERE NOT EXISTS (SELECT 1 FROM replicas p WHERE p.did_id = w.did)
        AND NOT EXISTS (SELECT 1 FROM rules r WHERE r.did_id = w.did))";
    let sql = format!(
        "UPDATE dids SET length = length - s.files, bytes = dids.bytes - s.bytes FROM (SELECT c.parent AS parent, COUNT(*) AS files,
         CAST(COALESCE(SUM(c.bytes), 0) AS BIGINT) AS bytes FROM contents c WHERE c.child IN {orphan} GROUP BY c.parent) AS s
         WHERE dids.id = s.parent AND dids.length IS NOT NULL"
    );
    tx.execute(&sql, &[])?;
    tx.execute(&format!("DELETE FROM contents WHERE child IN {orphan}"), &[])?;
    tx.execute(&format!("DELETE FROM dids WHERE id IN {orphan}"), &[])?;
    ledger.write(tx, now)?;
    Ok(gone.len() as u64)
}
