//! Taking row locks in the one order that cannot deadlock, and the trees they protect.
//!
//! Whoever changes a data identifier or applies a rule to it holds its row, and the rows of the
//! collections above or below that matter. Trees are read, locked, and read again: when they
//! changed in between, the transaction starts over ([`Error::Moved`]).

use std::collections::{BTreeMap, BTreeSet};

use super::{Tx, Value};
use crate::error::{Error, Result, TxError};
use crate::state::DidType;
use crate::values;

/// A collection and those above and below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Everything above, with where it began.
    pub up: BTreeSet<i64>,
    /// All collections below, with where it began, each with its type.
    pub down: BTreeMap<i64, DidType>,
}

/// The condition that a row of a table goes with one of a work table: its `columns` are the `keys`
/// there. PostgreSQL knows nothing of work tables and would rather read the whole table, so that
/// there each is looked up. That is for rows nobody else changes now: where their files are held.
pub fn goes_with(
    tx: &Tx<'_>,
    (prefix, table, columns): (&str, &str, &[&str]),
    (work, keys): (&str, &[&str]),
) -> String {
    if !tx.is_postgres() {
        let columns: Vec<String> =
            columns.iter().map(|column| format!("{prefix}{column}")).collect();
        return format!("({}) IN (SELECT {} FROM {work})", columns.join(", "), keys.join(", "));
    }
    let same = columns.iter().zip(keys).map(|(column, key)| format!("{column} = w.{key}"));
    format!(
        "{prefix}ctid = ANY (ARRAY(SELECT l.place FROM {work} w CROSS JOIN LATERAL
         (SELECT ctid AS place FROM {table} WHERE {} OFFSET 0) AS l))",
        same.collect::<Vec<_>>().join(" AND ")
    )
}

const UP: &str = "WITH RECURSIVE up(id) AS (SELECT parent FROM contents WHERE child IN ARRAY(?1)
    UNION SELECT c.parent FROM up CROSS JOIN contents c ON (c.child = up.id)) SELECT id FROM up";

const DOWN: &str = "WITH RECURSIVE down(id, did_type) AS (
    SELECT id, did_type FROM dids WHERE id IN ARRAY(?1) AND did_type <> 'F'
    UNION SELECT c.child, c.child_type FROM down CROSS JOIN contents c ON (c.parent = down.id)
    WHERE down.did_type = 'C') SELECT id, did_type FROM down";

const HOLD: &str = "SELECT id FROM dids WHERE id IN ARRAY(?1) ORDER BY id LOCK ROWS";

/// The collections above `roots`, with them.
pub fn ancestors(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeSet<i64>> {
    let mut found: BTreeSet<i64> = roots.iter().copied().collect();
    let rows = tx.query(UP, values![roots.to_vec()])?;
    found.extend(rows.iter().map(|row| row.int(0)));
    Ok(found)
}

/// The collections below `roots`, with them. Only containers are descended.
pub fn collections(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeMap<i64, DidType>> {
    let rows = tx.query(DOWN, values![roots.to_vec()])?;
    Ok(rows.iter().filter_map(|row| Some((row.int(0), DidType::read(row.text(1))?))).collect())
}

/// Locks what is above the collections `up` and below the collections `down`, with them.
pub fn lock_tree(tx: &mut Tx<'_>, up: &[i64], down: &[i64]) -> Result<Tree> {
    lock_tree_and(tx, up, down, |_, _| Ok::<_, Error>(()))
}

/// The same; `next` may say what will be asked once the tree is held.
pub fn lock_tree_and<E: TxError>(
    tx: &mut Tx<'_>,
    up: &[i64],
    down: &[i64],
    next: impl FnOnce(&mut Tx<'_>, &Tree) -> Result<(), E>,
) -> Result<Tree, E> {
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
    if !all.is_empty() && !tx.unlocked_dids {
        tx.ahead(HOLD, values![all.iter().copied().collect::<Vec<i64>>()])?;
        if !up.is_empty() {
            tx.ahead(UP, values![up.to_vec()])?;
        }
        if !down.is_empty() {
            tx.ahead(DOWN, values![down.to_vec()])?;
        }
        next(tx, &tree)?;
    }
    lock_dids(tx, &all)?;
    if !tx.unlocked_dids && read(tx)? != tree {
        return Err(Error::Moved.into());
    }
    Ok(tree)
}

/// Locks collections by number.
pub fn lock_dids(tx: &mut Tx<'_>, ids: &BTreeSet<i64>) -> Result<()> {
    if ids.is_empty() || !tx.is_postgres() || tx.unlocked_dids {
        return Ok(());
    }
    let ids: Vec<i64> = ids.iter().copied().collect();
    tx.query(HOLD, values![ids])?;
    Ok(())
}

/// Locks the files in `w_files`.
pub fn lock_files(tx: &mut Tx<'_>) -> Result<()> {
    lock_listed(tx, "SELECT did FROM w_files", &[])
}

/// Locks the files in `w_pairs`.
pub fn lock_paired(tx: &mut Tx<'_>) -> Result<()> {
    lock_listed(tx, "SELECT DISTINCT did FROM w_pairs", &[])
}

/// Locks files by number.
pub fn lock_these(tx: &mut Tx<'_>, files: &BTreeSet<i64>) -> Result<()> {
    let files: Vec<i64> = files.iter().copied().collect();
    lock_listed(tx, "SELECT did FROM unnest(?1::bigint[]) AS listed(did)", values![files])
}

fn lock_listed(tx: &mut Tx<'_>, files: &str, params: &[Value]) -> Result<()> {
    if !tx.is_postgres() {
        return Ok(());
    }
    // One look-up for each file in order, whatever the planner believes about either table.
    let sql = format!(
        "SELECT COUNT(*) FROM ({files} ORDER BY did) AS w
         CROSS JOIN LATERAL (SELECT id FROM dids WHERE id = w.did LOCK ROWS) AS held"
    );
    tx.later(&sql, params)
}
