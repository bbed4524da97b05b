//! Evaluates a changed data identifier: attached files get locks, detached files lose them.
//!
//! One call is one transaction with a bounded number of files; it returns whether more is left. A
//! rule that cannot take the new files becomes STUCK with the reason, without affecting other
//! rules.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{collections, lock_files, lock_tree};
use mainstay_catalog::{Tx, values};
use rand::Rng;

use crate::api::{DidType, Grouping, Micros, Rule};
use crate::error::{Error, Result};
use crate::rule::place::{self, Earlier};
use crate::rule::read::lock_rules;
use crate::rule::{Settings, state, unlock};

/// Whether a data identifier still has unprocessed changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// None are left.
    Whole,
    /// There is more: evaluate it again.
    More,
}

fn forget(tx: &mut Tx<'_>, did: i64, action: &str) -> Result<()> {
    let sql = "DELETE FROM updated_dids WHERE did_id = ?1 AND rule_evaluation_action = ?2";
    tx.execute(sql, values![did, action])?;
    Ok(())
}

fn flagged(tx: &mut Tx<'_>, did: i64, most: i64) -> Result<Vec<(i64, bool)>> {
    let rows = tx.query(
        "SELECT child, CASE WHEN child_type = 'F' THEN 1 ELSE 0 END FROM contents WHERE parent = ?1 AND rule_evaluation = 1
         ORDER BY child LIMIT ?2",
        values![did, most],
    )?;
    rows.iter().map(|row| Ok((row.int(0)?, row.flag(1)?))).collect()
}

/// Applies the rules of a data identifier and of its ancestors to the children that were attached
/// to it.
pub fn evaluate_attach(
    tx: &mut Tx<'_>,
    did: i64,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<Evaluated> {
    let children = flagged(tx, did, settings.step)?;
    let below: Vec<i64> = children.iter().filter(|(_, file)| !file).map(|(id, _)| *id).collect();
    let tree = lock_tree(tx, &[did], &below)?;
    if tx.is_postgres() && flagged(tx, did, settings.step)? != children {
        return Err(Error::moved());
    }
    if children.is_empty() {
        forget(tx, did, "A")?;
        return Ok(Evaluated::Whole);
    }
    let rules = active_rules(tx, &tree.up)?;
    let rules = lock_rules(tx, &rules)?;
    let datasets: Vec<i64> = if below.is_empty() {
        vec![did]
    } else {
        tree.down.iter().filter(|(_, kind)| **kind == DidType::Dataset).map(|(id, _)| *id).collect()
    };
    let sets = place::load_sets(tx, datasets)?;
    let files_only = below.is_empty();
    let taken =
        if rules.is_empty() { 0 } else { new_files(tx, did, files_only, &rules, settings)? };
    hold(tx)?;
    let mut ledger = Ledger::default();
    for rule in &rules {
        apply(tx, rule, &sets, &mut ledger, rng, now)?;
    }
    ledger.write(tx, now)?;
    if !files_only && taken >= settings.bulk {
        return Ok(Evaluated::More);
    }
    let ids: Vec<i64> = children.iter().map(|(id, _)| *id).collect();
    let sql = "UPDATE contents SET rule_evaluation = NULL WHERE parent = ?1 AND child IN ARRAY(?2)";
    tx.execute(sql, values![did, ids])?;
    if (children.len() as i64) < settings.step {
        forget(tx, did, "A")?;
        return Ok(Evaluated::Whole);
    }
    Ok(Evaluated::More)
}

/// Rules that take new files: not suspended, not waiting, and of those being injected only the ones
/// that have begun (the others read the tree when they begin).
fn active_rules(tx: &mut Tx<'_>, dids: &BTreeSet<i64>) -> Result<BTreeSet<i64>> {
    let rows = tx.query(
        "SELECT id FROM rules WHERE did_id IN ARRAY(?1) AND deleted_at IS NULL AND state NOT IN ('U', 'W')
         AND (state <> 'I' OR cursor_dataset IS NOT NULL)",
        values![dids.iter().copied().collect::<Vec<i64>>()],
    )?;
    rows.iter().map(|row| Ok(row.int(0)?)).collect()
}

/// Loads the new files into `w_some`, each with the first dataset it is in.
fn new_files(
    tx: &mut Tx<'_>,
    did: i64,
    files_only: bool,
    rules: &[Rule],
    settings: &Settings,
) -> Result<i64> {
    tx.clear(&["w_some"])?;
    let taken = if files_only {
        tx.execute(
            "INSERT INTO w_some (did, dataset, bytes) SELECT child, 0, bytes FROM contents WHERE parent = ?1
             AND rule_evaluation = 1 ORDER BY child LIMIT ?2",
            values![did, settings.step],
        )?
    } else {
        // Skip rules that could not take all files before: the repairer completes them.
        let waiting: Vec<i64> =
            rules.iter().filter(|rule| !rule.incomplete).map(|rule| rule.id).collect();
        tx.execute(
            "INSERT INTO w_some (did, dataset, bytes) SELECT c.child, MIN(s.ord), MIN(c.bytes) FROM w_sets s
             LOOKUP JOIN contents c ON (c.parent = s.id) WHERE EXISTS (SELECT 1 FROM rules r WHERE r.id IN ARRAY(?1)
             AND NOT EXISTS (SELECT 1 FROM locks l WHERE l.rule_id = r.id AND l.did_id = c.child))
             GROUP BY c.child ORDER BY c.child LIMIT ?2",
            values![waiting, settings.bulk],
        )?
    };
    Ok(i64::try_from(taken).unwrap_or(i64::MAX))
}

fn hold(tx: &mut Tx<'_>) -> Result<()> {
    if !tx.is_postgres() {
        return Ok(());
    }
    tx.clear(&["w_files"])?;
    tx.execute("INSERT INTO w_files (did) SELECT did FROM w_some", &[])?;
    lock_files(tx)?;
    Ok(())
}

fn apply(
    tx: &mut Tx<'_>,
    rule: &Rule,
    sets: &[i64],
    ledger: &mut Ledger,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<()> {
    tx.clear(&["w_files"])?;
    tx.execute(
        "INSERT INTO w_files (did, dataset, bytes) SELECT w.did, CASE WHEN ?2 = 1 THEN 0 ELSE w.dataset END, w.bytes
         FROM w_some w WHERE NOT EXISTS (SELECT 1 FROM locks l WHERE l.rule_id = ?1 AND l.did_id = w.did)",
        values![rule.id, rule.grouping == Grouping::All],
    )?;
    let done = place::prepare(tx, rule, ledger)
        .and_then(|mut plan| place::place(tx, &mut plan, sets, Earlier::Follow, rng, ledger, now));
    match done {
        Ok(new) => {
            let mut counts = rule.counts;
            counts.ok += new.ok;
            counts.replicating += new.replicating;
            counts.stuck += new.stuck;
            let error = (new.stuck > 0).then_some("MissingSourceReplica");
            state::settle(tx, rule, counts, !rule.incomplete, error, now)?;
        }
        // Choosing fails before anything is written, so nothing needs to be undone.
        Err(Error::Refused(refusal)) => {
            let error = format!("{}: {}", refusal.class, refusal.message);
            state::settle(tx, rule, rule.counts, false, Some(&error), now)?;
        }
        Err(other) => return Err(other),
    }
    Ok(())
}

/// Removes the locks of detached files, unless a file is still below the rule by another path.
pub fn evaluate_detach(
    tx: &mut Tx<'_>,
    did: i64,
    settings: &Settings,
    now: Micros,
) -> Result<Evaluated> {
    let tree = lock_tree(tx, &[did], &[])?;
    let sql = "SELECT child, child_type FROM detached WHERE parent = ?1 ORDER BY child LIMIT ?2";
    let gone = tx.query(sql, values![did, settings.bulk])?;
    let mut files: Vec<i64> = Vec::new();
    for row in &gone {
        if row.state::<DidType>(1)? == DidType::File {
            files.push(row.int(0)?);
        }
    }
    let whole = files.len() < gone.len();
    // A detached file may be locked by any rule that reached it through this data identifier.
    let sql = "SELECT DISTINCT rule_id FROM locks WHERE did_id IN ARRAY(?1)";
    let mut ids: BTreeSet<i64> = tx
        .query(sql, values![files.clone()])?
        .iter()
        .map(|row| Ok(row.int(0)?))
        .collect::<Result<_>>()?;
    if whole {
        let sql = "SELECT id FROM rules WHERE did_id IN ARRAY(?1)";
        let above = tree.up.iter().copied().collect::<Vec<i64>>();
        for row in tx.query(sql, values![above])? {
            ids.insert(row.int(0)?);
        }
    }
    let mut rules = lock_rules(tx, &ids)?;
    rules.retain(|rule| rule.did_type != DidType::File);
    let mut reach: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for rule in &rules {
        let below = collections(tx, &[rule.did_id])?;
        reach.insert(
            rule.id,
            below
                .into_iter()
                .filter(|(_, kind)| *kind == DidType::Dataset)
                .map(|(id, _)| id)
                .collect(),
        );
    }
    tx.clear(&["w_files", "w_some"])?;
    for rule in &rules {
        orphans(
            tx,
            "w_files (did)",
            "DISTINCT l.did_id",
            rule,
            &reach[&rule.id],
            (!whole).then_some(&files),
            settings,
        )?;
    }
    lock_files(tx)?;
    let mut ledger = Ledger::default();
    let mut more = false;
    for rule in &rules {
        tx.clear(&["w_units"])?;
        let into = "w_units (did, rse, bytes, lock)";
        let columns = "l.did_id, l.rse_id, l.bytes, l.state";
        let taken = orphans(
            tx,
            into,
            columns,
            rule,
            &reach[&rule.id],
            (!whole).then_some(&files),
            settings,
        )?;
        more |= taken >= settings.bulk;
        let counts = unlock::remove_locks(tx, rule, rule.purge_replicas, &mut ledger, now)?;
        if whole {
            let sql = "SELECT DISTINCT did_id FROM dataset_locks WHERE rule_id = ?1";
            let mut lost: Vec<i64> = Vec::new();
            for row in tx.query(sql, values![rule.id])? {
                lost.push(row.int(0)?);
            }
            lost.retain(|id| !reach[&rule.id].contains(id));
            let sql = "DELETE FROM dataset_locks WHERE rule_id = ?1 AND did_id IN ARRAY(?2)";
            tx.execute(sql, values![rule.id, lost])?;
        }
        state::settle(tx, rule, counts, !rule.incomplete, None, now)?;
    }
    ledger.write(tx, now)?;
    if more {
        return Ok(Evaluated::More);
    }
    let seen: Vec<i64> = gone.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    tx.execute(
        "DELETE FROM detached WHERE parent = ?1 AND child IN ARRAY(?2)",
        values![did, seen],
    )?;
    if gone.len() as i64 >= settings.bulk {
        return Ok(Evaluated::More);
    }
    forget(tx, did, "D")?;
    Ok(Evaluated::Whole)
}

/// Collects the locks of a rule on files that are no longer in any of its datasets.
fn orphans(
    tx: &mut Tx<'_>,
    into: &str,
    columns: &str,
    rule: &Rule,
    datasets: &[i64],
    among: Option<&Vec<i64>>,
    settings: &Settings,
) -> Result<i64> {
    let within = if among.is_some() { "l.did_id IN ARRAY(?4)" } else { "1 = 1" };
    let conflict = if into.starts_with("w_files") { "ON CONFLICT (did) DO NOTHING" } else { "" };
    let sql = format!(
        "INSERT INTO {into} SELECT {columns} FROM locks l WHERE l.rule_id = ?1 AND {within} AND NOT EXISTS (
         SELECT 1 FROM contents c WHERE c.child = l.did_id AND c.parent IN ARRAY(?2)) ORDER BY l.did_id LIMIT ?3 {conflict}"
    );
    let mut params = values![rule.id, datasets.to_vec(), settings.bulk].to_vec();
    if let Some(files) = among {
        params.push(files.clone().into());
    }
    Ok(i64::try_from(tx.execute(&sql, &params)?).unwrap_or(i64::MAX))
}
