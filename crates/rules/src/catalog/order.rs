//! Taking row locks in the one order that cannot deadlock, and the trees they protect.
//!
//! Whoever changes a data identifier or applies a rule to it holds its row, and the rows of the
//! collections above or below that matter. Trees are read, locked, and read again: when they
//! changed in between, the transaction starts over ([`Error::Moved`]).

use std::collections::{BTreeMap, BTreeSet};

use super::Tx;
use super::engine::values;
use crate::api::{DidType, Micros, Rule};
use crate::error::{Error, Result};

/// The source under which the catalog keeps its own count of what an RSE holds.
pub const OWN_COUNT: &str = "mainstay";

/// A collection and those above and below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Everything above, with where it began.
    pub up: BTreeSet<i64>,
    /// All collections below, with where it began, each with its type.
    pub down: BTreeMap<i64, DidType>,
}

/// The collections above `roots`, with them.
pub fn ancestors(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeSet<i64>> {
    let mut found: BTreeSet<i64> = roots.iter().copied().collect();
    let rows = tx.query(
        "WITH RECURSIVE up(id) AS (SELECT parent FROM contents WHERE child IN ARRAY(?1)
         UNION SELECT c.parent FROM up JOIN contents c ON c.child = up.id) SELECT id FROM up",
        values![roots.to_vec()],
    )?;
    found.extend(rows.iter().map(|row| row.int(0)));
    Ok(found)
}

/// The collections below `roots`, with them. Only containers are descended.
pub fn collections(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeMap<i64, DidType>> {
    let rows = tx.query(
        "WITH RECURSIVE down(id, did_type) AS (
            SELECT id, did_type FROM dids WHERE id IN ARRAY(?1) AND did_type <> 'F'
            UNION SELECT c.child, c.child_type FROM down JOIN contents c ON c.parent = down.id
            WHERE down.did_type = 'C') SELECT id, did_type FROM down",
        values![roots.to_vec()],
    )?;
    Ok(rows.iter().filter_map(|row| Some((row.int(0), DidType::read(row.text(1))?))).collect())
}

/// Locks what is above the collections `up` and below the collections `down`, with them.
pub fn lock_tree(tx: &mut Tx<'_>, up: &[i64], down: &[i64]) -> Result<Tree> {
    let read = |tx: &mut Tx<'_>| -> Result<Tree> {
        Ok(Tree {
            up: if up.is_empty() { BTreeSet::new() } else { ancestors(tx, up)? },
            down: if down.is_empty() { BTreeMap::new() } else { collections(tx, down)? },
        })
    };
    let tree = read(tx)?;
    if !tx.is_postgres() {
        return Ok(tree);
    }
    let mut all: BTreeSet<i64> = tree.up.clone();
    all.extend(tree.down.keys());
    lock_dids(tx, &all)?;
    if !tx.unlocked_dids && read(tx)? != tree {
        return Err(Error::Moved);
    }
    Ok(tree)
}

/// Locks collections by number.
pub fn lock_dids(tx: &mut Tx<'_>, ids: &BTreeSet<i64>) -> Result<()> {
    if !tx.is_postgres() || tx.unlocked_dids {
        return Ok(());
    }
    let ids: Vec<i64> = ids.iter().copied().collect();
    tx.query("SELECT id FROM dids WHERE id IN ARRAY(?1) ORDER BY id LOCK ROWS", values![ids])?;
    Ok(())
}

/// Locks rules by number, with the rules that wait for them, and reads them. Rules that are gone
/// are left out.
pub fn lock_rules(tx: &mut Tx<'_>, ids: &BTreeSet<i64>) -> Result<Vec<Rule>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = ids.iter().copied().collect();
    if tx.is_postgres() {
        tx.query(
            "SELECT id FROM rules WHERE id IN ARRAY(?1) OR id IN (SELECT p.id FROM rules p
             WHERE p.child_rule_id IN ARRAY(?1)) ORDER BY id LOCK ROWS",
            values![ids.clone()],
        )?;
    }
    crate::rule::read::by_ids(tx, ids)
}

/// Locks the files in `w_files`.
pub fn lock_files(tx: &mut Tx<'_>) -> Result<()> {
    if tx.is_postgres() {
        tx.query(
            // One look-up for each file in order, whatever the planner believes about either table.
            "SELECT COUNT(*) FROM (SELECT did FROM w_files ORDER BY did) AS w
             CROSS JOIN LATERAL (SELECT id FROM dids WHERE id = w.did LOCK ROWS) AS held",
            &[],
        )?;
    }
    Ok(())
}

/// Locks the counters that quotas are judged by: usage of these accounts, and of RSEs that have a
/// limit of their own.
pub fn lock_counters(tx: &mut Tx<'_>, accounts: &BTreeSet<String>) -> Result<()> {
    if !tx.is_postgres() {
        return Ok(());
    }
    for account in accounts {
        let sql = "SELECT rse_id FROM account_usage WHERE account = ?1 ORDER BY rse_id LOCK ROWS";
        tx.query(sql, values![account])?;
    }
    let limited: Vec<i64> = tx
        .rses()?
        .iter()
        .filter(|rse| rse.limits.contains_key("MaxSpaceAvailable"))
        .map(|rse| rse.id)
        .collect();
    if !limited.is_empty() {
        let sql = "SELECT rse_id FROM rse_usage WHERE source = ?2 AND rse_id IN ARRAY(?1)
                   ORDER BY rse_id LOCK ROWS";
        tx.query(sql, values![limited, OWN_COUNT])?;
    }
    Ok(())
}

/// Changes to counters, gathered during a transaction and written at its end in order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    usage: BTreeMap<(String, i64), (i64, i64)>,
    rses: BTreeMap<i64, (i64, i64)>,
}

impl Ledger {
    /// An account uses more (or less) of an RSE.
    pub fn use_more(&mut self, account: &str, rse: i64, files: i64, bytes: i64) {
        let entry = self.usage.entry((account.to_owned(), rse)).or_default();
        *entry = (entry.0 + files, entry.1 + bytes);
    }

    /// An RSE holds more (or less).
    pub fn hold_more(&mut self, rse: i64, files: i64, bytes: i64) {
        let entry = self.rses.entry(rse).or_default();
        *entry = (entry.0 + files, entry.1 + bytes);
    }

    /// Bytes gathered for an account on an RSE, not yet written.
    #[must_use]
    pub fn used(&self, account: &str, rse: i64) -> i64 {
        self.usage.get(&(account.to_owned(), rse)).map_or(0, |entry| entry.1)
    }

    /// Bytes gathered for an RSE, not yet written.
    #[must_use]
    pub fn held(&self, rse: i64) -> i64 {
        self.rses.get(&rse).map_or(0, |entry| entry.1)
    }

    /// Writes everything, counters by number.
    pub fn write(self, tx: &mut Tx<'_>, now: Micros) -> Result<()> {
        for ((account, rse), (files, bytes)) in self.usage {
            if (files, bytes) == (0, 0) {
                continue;
            }
            tx.execute(
                "INSERT INTO account_usage (account, rse_id, files, bytes) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (account, rse_id) DO UPDATE SET files = account_usage.files + excluded.files,
                 bytes = account_usage.bytes + excluded.bytes",
                values![account, rse, files, bytes],
            )?;
        }
        for (rse, (files, bytes)) in self.rses {
            if (files, bytes) == (0, 0) {
                continue;
            }
            tx.execute(
                "INSERT INTO rse_usage (rse_id, source, used, files, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (rse_id, source) DO UPDATE SET used = rse_usage.used + excluded.used,
                 files = rse_usage.files + excluded.files, updated_at = excluded.updated_at",
                values![rse, OWN_COUNT, bytes, files, now],
            )?;
        }
        Ok(())
    }
}
