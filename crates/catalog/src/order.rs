//! Takes row locks in the one order that cannot deadlock, and reads the trees of collections they
//! protect.
//!
//! A transaction that changes a data identifier, or applies a rule to it, locks its row, and the
//! rows of the collections above or below that matter. Trees are read, locked, and read again: if
//! they changed in between, the transaction starts over ([`Error::Moved`]).

use std::collections::{BTreeMap, BTreeSet};

use super::{Answers, Pipeline, Row, Tx, Value};
use crate::error::{Error, Result};
use crate::state::DidType;
use crate::values;

/// A collection and those above and below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The collections above, including the starting points.
    pub up: BTreeSet<i64>,
    /// The collections below, including the starting points, each with its type.
    pub down: BTreeMap<i64, DidType>,
}

/// The SQL condition that a row of a table matches a row of a work table: its `columns` equal the
/// `keys` there. PostgreSQL has no statistics of work tables and would scan the whole table, so
/// there each row is looked up by its physical place (`ctid`). Use this only for rows that no other
/// transaction can change now: those of locked files.
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
    UNION SELECT c.parent FROM up LOOKUP JOIN contents c ON (c.child = up.id)) SELECT id FROM up";

const DOWN: &str = "WITH RECURSIVE down(id, did_type) AS (
    SELECT id, did_type FROM dids WHERE id IN ARRAY(?1) AND did_type <> 'F'
    UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id)
    WHERE down.did_type = 'C') SELECT id, did_type FROM down";

const LOCK_DIDS: &str = "SELECT id FROM dids WHERE id IN ARRAY(?1) ORDER BY id LOCK ROWS";

/// The collections above `roots`, including `roots`.
pub fn ancestors(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeSet<i64>> {
    let rows = tx.query(UP, values![roots.to_vec()])?;
    with_roots(roots, &rows)
}

/// The numbers in the first column, and the roots.
fn with_roots(roots: &[i64], rows: &[Row]) -> Result<BTreeSet<i64>> {
    let above = rows.iter().map(|row| row.int(0));
    roots.iter().map(|root| Ok(*root)).chain(above).collect()
}

/// The collections below `roots`, including `roots`. Only containers are descended into.
pub fn collections(tx: &mut Tx<'_>, roots: &[i64]) -> Result<BTreeMap<i64, DidType>> {
    let rows = tx.query(DOWN, values![roots.to_vec()])?;
    with_types(&rows)
}

fn with_types(rows: &[Row]) -> Result<BTreeMap<i64, DidType>> {
    rows.iter().map(|row| Ok((row.int(0)?, row.state(1)?))).collect()
}

/// Locks the collections above `up` and below `down`, including `up` and `down`.
pub fn lock_tree(tx: &mut Tx<'_>, up: &[i64], down: &[i64]) -> Result<Tree> {
    let (tree, (), _) = lock_tree_and(tx, up, down, |_, _| ())?;
    Ok(tree)
}

/// As [`lock_tree`]; `more` adds queries that run once the tree is locked, in the same round trip.
/// Returns the result of `more` and the answers.
pub fn lock_tree_and<T>(
    tx: &mut Tx<'_>,
    up: &[i64],
    down: &[i64],
    more: impl FnOnce(&mut Pipeline, &Tree) -> T,
) -> Result<(Tree, T, Answers)> {
    let mut ask = Pipeline::default();
    let above = (!up.is_empty()).then(|| ask.query(UP, values![up.to_vec()]));
    let below = (!down.is_empty()).then(|| ask.query(DOWN, values![down.to_vec()]));
    let mut answers = tx.run(ask)?;
    let tree = Tree {
        up: above.map_or_else(|| Ok(BTreeSet::new()), |at| with_roots(up, &answers.take(at)))?,
        down: below.map_or_else(|| Ok(BTreeMap::new()), |at| with_types(&answers.take(at)))?,
    };
    let all: BTreeSet<i64> = tree.up.iter().chain(tree.down.keys()).copied().collect();
    let held = tx.is_postgres() && !tx.unlocked_dids && !all.is_empty();
    let mut ask = Pipeline::default();
    let (mut above, mut below) = (None, None);
    if held {
        ask.query(LOCK_DIDS, values![all.into_iter().collect::<Vec<i64>>()]);
        above = (!up.is_empty()).then(|| ask.query(UP, values![up.to_vec()]));
        below = (!down.is_empty()).then(|| ask.query(DOWN, values![down.to_vec()]));
    }
    let asked = more(&mut ask, &tree);
    let mut answers = tx.run(ask)?;
    let moved = match (above, below) {
        (Some(at), _) if with_roots(up, &answers.take(at))? != tree.up => true,
        (_, Some(at)) => with_types(&answers.take(at))? != tree.down,
        _ => false,
    };
    if moved { Err(Error::Moved) } else { Ok((tree, asked, answers)) }
}

/// Locks collections by number.
pub fn lock_dids(tx: &mut Tx<'_>, ids: &BTreeSet<i64>) -> Result<()> {
    if ids.is_empty() || !tx.is_postgres() || tx.unlocked_dids {
        return Ok(());
    }
    let ids: Vec<i64> = ids.iter().copied().collect();
    tx.query(LOCK_DIDS, values![ids])?;
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
    // One lookup per file, in order, whatever sizes the planner assumes for the tables.
    let sql = format!(
        "SELECT COUNT(*) FROM ({files} ORDER BY did) AS w
         CROSS JOIN LATERAL (SELECT id FROM dids WHERE id = w.did LOCK ROWS) AS held"
    );
    tx.later(&sql, params)
}
