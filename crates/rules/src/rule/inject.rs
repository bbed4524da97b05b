//! Injects a rule: one that is large, delayed or approved is applied in committed steps.
//!
//! The progress is written with each step (the dataset and the last file in it), so that the next
//! step, also after a crash, neither repeats nor skips a file. Files that are attached meanwhile
//! are processed by the evaluator; files that have locks already are skipped.

use std::collections::BTreeSet;

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{collections, lock_files, lock_tree};
use mainstay_catalog::{Column, Tx, values};
use rand::Rng;

use crate::api::{Counts, DidType, Grouping, Micros, NewRule, Rule, RuleState, SECOND};
use crate::error::{Class, Error, Refusal, Result};
use crate::rule::place::{self, Earlier};
use crate::rule::read::{self, lock_rules};
use crate::rule::{Settings, add, delete, state};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It is applied, or cannot be.
    Whole,
    /// There are more files: inject it again.
    More,
    /// It is not due yet.
    NotYet,
}

/// Does one step of applying a rule.
pub fn inject(
    tx: &mut Tx<'_>,
    id: i64,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<Injected> {
    let Some(rule) = read::rule_by_id(tx, id)? else { return Ok(Injected::NotYet) };
    let split = rule.did_type == DidType::Container
        && (rule.split_container || rule.did.name.contains(".r2d2_request."));
    let tree = lock_tree(tx, &[], &[rule.did_id])?;
    let Some(rule) = lock_rules(tx, &BTreeSet::from([id]))?.pop() else {
        return Ok(Injected::NotYet);
    };
    let soon = now.saturating_add(300 * SECOND);
    let ends = rule.expires_at.is_some_and(|at| at < soon) && rule.child_rule_id.is_none();
    if rule.state != RuleState::Inject || rule.created_at > now || ends || rule.deleted_at.is_some()
    {
        return Ok(Injected::NotYet);
    }
    let datasets: Vec<i64> = tree
        .down
        .iter()
        .filter(|(_, kind)| **kind == DidType::Dataset)
        .map(|(id, _)| *id)
        .collect();
    if split {
        split_container(tx, rule, &datasets, settings, rng, now)?;
        return Ok(Injected::Whole);
    }
    let step = next_files(tx, &rule, &datasets, settings.step)?;
    lock_files(tx)?;
    // The rule rarely has locks between the first and the last of these files: one query shows it.
    let locked =
        "SELECT 1 FROM locks WHERE rule_id = ?1 AND did_id >= (SELECT MIN(did) FROM w_files)
        AND did_id <= (SELECT MAX(did) FROM w_files) LIMIT 1";
    if tx.first(locked, values![rule.id])?.is_some() {
        tx.execute(
            "DELETE FROM w_files WHERE EXISTS (SELECT 1 FROM locks l WHERE l.rule_id = ?1 AND l.did_id = w_files.did)",
            values![rule.id],
        )?;
    }
    let mut ledger = Ledger::default();
    let placed = apply(tx, &rule, &step, rng, &mut ledger, now);
    let new = match placed {
        Ok(new) => new,
        Err(Error::Refused(refusal)) => return stopped(tx, &rule, &refusal, now),
        Err(other) => return Err(other),
    };
    ledger.write(tx, now)?;
    let mut counts = rule.counts;
    counts.ok += new.ok;
    counts.replicating += new.replicating;
    counts.stuck += new.stuck;
    if let Some((dataset, file)) = step.next {
        state::settle(tx, &rule, counts, true, None, now)?;
        let sql = "UPDATE rules SET cursor_dataset = ?2, cursor_file = ?3 WHERE id = ?1";
        tx.execute(sql, values![rule.id, dataset, file])?;
        return Ok(Injected::More);
    }
    tx.execute(
        "UPDATE rules SET cursor_dataset = NULL, cursor_file = NULL WHERE id = ?1",
        values![rule.id],
    )?;
    let applied = Rule { state: RuleState::Replicating, ..rule };
    state::settle(tx, &applied, counts, true, None, now)?;
    Ok(Injected::Whole)
}

/// The files of one step, in `w_files`.
struct Step {
    sets: Vec<i64>,
    /// The position after which the next step begins, if there is one.
    next: Option<(i64, i64)>,
}

fn next_files(tx: &mut Tx<'_>, rule: &Rule, datasets: &[i64], most: i64) -> Result<Step> {
    if rule.did_type == DidType::File {
        tx.clear(&["w_files"])?;
        let sql = "INSERT INTO w_files (did) VALUES (?1)";
        tx.execute(sql, values![rule.did_id])?;
        return Ok(Step { sets: Vec::new(), next: None });
    }
    let (from, mut after) = rule.cursor.unwrap_or((0, 0));
    let mut rows: Vec<(i64, i64, i64)> = Vec::new();
    let mut sets = Vec::new();
    let mut next = None;
    for dataset in datasets.iter().copied().filter(|id| *id >= from) {
        let left = most - rows.len() as i64;
        let after = if dataset == from { std::mem::take(&mut after) } else { 0 };
        let sql = "SELECT child, bytes FROM contents WHERE parent = ?1 AND child > ?2 ORDER BY child LIMIT ?3";
        let found = tx.query(sql, values![dataset, after, left])?;
        let group = if rule.grouping == Grouping::All { 0 } else { sets.len() as i64 };
        sets.push(dataset);
        let full = found.len() as i64 >= left;
        let mut last = after;
        for row in &found {
            last = row.int(0)?;
            rows.push((last, group, row.int(1)?));
        }
        if full {
            next = Some((dataset, last));
            break;
        }
    }
    // A file in two of these datasets is placed with the first.
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(row.0));
    tx.clear(&["w_files", "w_sets"])?;
    tx.load(
        "w_sets",
        &[("ord", Column::ints(0..sets.len() as i64)), ("id", Column::ints(sets.iter().copied()))],
    )?;
    tx.load(
        "w_files",
        &[
            ("did", Column::ints(rows.iter().map(|row| row.0))),
            ("dataset", Column::ints(rows.iter().map(|row| row.1))),
            ("bytes", Column::ints(rows.iter().map(|row| row.2))),
        ],
    )?;
    Ok(Step { sets, next })
}

fn apply(
    tx: &mut Tx<'_>,
    rule: &Rule,
    step: &Step,
    rng: &mut dyn Rng,
    ledger: &mut Ledger,
    now: Micros,
) -> Result<Counts> {
    let mut plan = place::prepare(tx, rule, ledger)?;
    place::place(tx, &mut plan, &step.sets, Earlier::Keep, rng, ledger, now)
}

/// Handles a rule that cannot be applied: a missing quota suspends it, other errors are left to the
/// repairer.
fn stopped(tx: &mut Tx<'_>, rule: &Rule, refusal: &Refusal, now: Micros) -> Result<Injected> {
    let error = format!("{}: {}", refusal.class, refusal.message);
    if refusal.class == Class::RSEWriteBlocked {
        // The cause is temporary: the injector retries it.
        let sql = "UPDATE rules SET error = ?2, repair_at = ?3 WHERE id = ?1";
        tx.execute(
            sql,
            values![rule.id, crate::decide::clip(&error, 248), now.saturating_add(60 * SECOND)],
        )?;
        return Ok(Injected::NotYet);
    }
    let suspended = refusal.class == Class::InsufficientAccountLimit;
    let (state, by) = if suspended {
        (RuleState::Suspended, Some("injector"))
    } else {
        (RuleState::Replicating, None)
    };
    let stopped = Rule { state, suspended_by: by.map(str::to_owned), ..rule.clone() };
    state::settle(tx, &stopped, rule.counts, false, Some(&error), now)?;
    if suspended {
        state::entered(tx, rule, RuleState::Suspended, now)?;
    }
    Ok(Injected::Whole)
}

/// A container becomes one rule for each dataset that has none like it yet.
fn split_container(
    tx: &mut Tx<'_>,
    rule: Rule,
    datasets: &[i64],
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<()> {
    let below = collections(tx, datasets)?;
    let mut dids = Vec::new();
    for id in below.keys() {
        let sql = "SELECT 1 FROM rules WHERE did_id = ?1 AND account = ?2 AND rse_expression = ?3";
        if tx.first(sql, values![*id, &rule.account, &rule.rse_expression])?.is_none() {
            dids.extend(crate::did::by_id(tx, *id)?.map(|found| found.did));
        }
    }
    if !dids.is_empty() {
        let new = NewRule {
            grouping: Grouping::Dataset,
            asynchronous: true,
            split_container: false,
            delay_injection: None,
            ..crate::rule::update::as_new(&rule, dids, now)
        };
        add::add_replication_rule(tx, &new, settings, rng, now)?;
    }
    delete::delete_whole(tx, rule, None, now)
}
