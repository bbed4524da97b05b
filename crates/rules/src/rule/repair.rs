//! Repairs a stuck rule.
//!
//! Locks whose copy has arrived become OK, surplus ones are removed, files without enough locks get
//! them, and the rest is retried: on another RSE if files are placed separately, else in place with
//! growing delays. A repair is one transaction.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{lock_files, lock_tree};
use mainstay_catalog::{Column, Tx, values};
use rand::Rng;

use crate::api::{Counts, DidType, Grouping, LockState, Micros, ReplicaState, Rule, RuleState};
use crate::error::{Error, Result};
use crate::rule::place::{self, Chosen, Earlier, Plan};
use crate::rule::read::{self, lock_rules};
use crate::rule::{Settings, state, unlock};
use crate::select::Wish;

/// Repairs one stuck rule and returns the state it is in afterwards.
pub fn repair_rule(
    tx: &mut Tx<'_>,
    id: i64,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<Option<RuleState>> {
    let Some(rule) = read::rule_by_id(tx, id)? else { return Ok(None) };
    let roots: Vec<i64> =
        if rule.did_type == DidType::File { Vec::new() } else { vec![rule.did_id] };
    let tree = lock_tree(tx, &[], &roots)?;
    let Some(rule) = lock_rules(tx, &BTreeSet::from([id]))?.pop() else { return Ok(None) };
    let expired = rule.expires_at.is_some_and(|at| at < now) && !rule.locked;
    if rule.state != RuleState::Stuck || expired || rule.deleted_at.is_some() {
        return Ok(Some(rule.state));
    }
    tx.execute("UPDATE rules SET repair_at = ?2 WHERE id = ?1", values![rule.id, now])?;
    let rule = Rule { repair_at: now, stuck_at: rule.stuck_at.or(Some(now)), ..rule };
    if rule.stuck_at.is_some_and(|at| now - at > settings.suspend_after) {
        let given_up = Rule {
            state: RuleState::Suspended,
            suspended_by: Some("repairer".to_owned()),
            ..rule.clone()
        };
        let state = state::settle(tx, &given_up, rule.counts, !rule.incomplete, None, now)?;
        state::entered(tx, &rule, state, now)?;
        return Ok(Some(state));
    }
    let datasets: Vec<i64> = tree
        .down
        .iter()
        .filter(|(_, kind)| **kind == DidType::Dataset)
        .map(|(id, _)| *id)
        .collect();
    let mut repair =
        Repair { rule: &rule, datasets, settings, now, ledger: Ledger::default(), error: None };
    repair.run(tx, rng)?;
    let complete = repair.complete(tx)?;
    let error = repair.error.take();
    repair.ledger.write(tx, now)?;
    let counts = recount(tx, rule.id)?;
    let open = counts.stuck == 0 && complete;
    let rule = Rule { error: if open { None } else { rule.error.clone() }, ..rule };
    state::settle(tx, &rule, counts, complete, error.as_deref(), now).map(Some)
}

/// The counters of a rule, from its locks.
pub(crate) fn recount(tx: &mut Tx<'_>, rule: i64) -> Result<Counts> {
    let mut counts = Counts::default();
    let sql = "SELECT state, COUNT(*) FROM locks WHERE rule_id = ?1 GROUP BY state";
    for row in tx.query(sql, values![rule])? {
        counts.add(row.state::<LockState>(0)?, row.int(1)?);
    }
    Ok(counts)
}

struct Repair<'a> {
    rule: &'a Rule,
    datasets: Vec<i64>,
    settings: &'a Settings,
    now: Micros,
    ledger: Ledger,
    error: Option<String>,
}

/// Files of the rule with the number of their locks.
const FILES: &str = "(SELECT DISTINCT c.child AS did FROM contents c WHERE c.parent IN ARRAY(?2)
    UNION SELECT d.id FROM dids d WHERE d.id = ?3 AND d.did_type = 'F')";

impl Repair<'_> {
    fn run(&mut self, tx: &mut Tx<'_>, rng: &mut dyn Rng) -> Result<()> {
        self.hold_files(tx)?;
        self.drop_surplus(tx)?;
        self.settle_arrived(tx)?;
        let plan = place::prepare(tx, self.rule, &mut self.ledger);
        let mut plan = match plan {
            Ok(plan) => plan,
            Err(error) => return self.note(error),
        };
        if let Err(error) = self.place_missing(tx, &mut plan, rng) {
            self.note(error)?;
        }
        self.retry(tx, &mut plan, rng)?;
        self.drop_empty_dataset_locks(tx)
    }

    /// Keeps a refusal as the rule's error; the changes so far remain valid.
    fn note(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Refused(refusal) => {
                self.error = Some(format!("{}: {}", refusal.class, refusal.message));
                Ok(())
            }
            other => Err(other),
        }
    }

    fn scope(&self) -> [mainstay_catalog::Value; 3] {
        [self.rule.id.into(), self.datasets.clone().into(), self.rule.did_id.into()]
    }

    /// Locks the files with stuck locks, and those with fewer locks than copies. Lost files are
    /// left out: they cannot be locked.
    fn hold_files(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        tx.clear(&["w_files", "w_some"])?;
        let sql = "INSERT INTO w_files (did) SELECT DISTINCT did_id FROM locks WHERE rule_id = ?1 AND state = 'S'
            ORDER BY did_id LIMIT ?2";
        tx.execute(sql, values![self.rule.id, self.settings.bulk])?;
        let sql = format!(
            "INSERT INTO w_some (did, dataset, bytes) SELECT f.did, (SELECT COUNT(*) FROM locks l WHERE l.rule_id = ?1
             AND l.did_id = f.did), d.bytes FROM {FILES} AS f JOIN dids d ON d.id = f.did WHERE (SELECT COUNT(*) FROM locks l
             WHERE l.rule_id = ?1 AND l.did_id = f.did) <> ?4 AND d.availability <> 'L' ORDER BY f.did LIMIT ?5"
        );
        let mut params = self.scope().to_vec();
        params.extend([self.rule.copies.into(), self.settings.bulk.into()]);
        tx.execute(&sql, &params)?;
        tx.execute("INSERT INTO w_files (did) SELECT did FROM w_some WHERE TRUE ON CONFLICT (did) DO NOTHING", &[])?;
        lock_files(tx)?;
        Ok(())
    }

    /// Removes stuck locks that are not needed because enough others are not stuck.
    fn drop_surplus(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        tx.clear(&["w_units"])?;
        let taken = tx.execute(
            "INSERT INTO w_units (did, rse, bytes, lock) SELECT l.did_id, l.rse_id, l.bytes, l.state FROM locks l
             WHERE l.rule_id = ?1 AND l.state = 'S' AND l.did_id IN (SELECT did FROM w_files) AND (SELECT COUNT(*) FROM locks g
             WHERE g.rule_id = ?1 AND g.did_id = l.did_id AND g.state <> 'S') >= ?2",
            values![self.rule.id, self.rule.copies],
        )?;
        if taken > 0 {
            unlock::remove_locks(tx, self.rule, true, &mut self.ledger, self.now)?;
        }
        Ok(())
    }

    /// Makes stuck locks OK whose copy exists by now.
    fn settle_arrived(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        tx.execute(
            "UPDATE locks SET state = 'O', updated_at = ?2 WHERE rule_id = ?1 AND state = 'S' AND EXISTS (
             SELECT 1 FROM replicas p WHERE p.did_id = locks.did_id AND p.rse_id = locks.rse_id AND p.state IN ('A', 'T'))",
            values![self.rule.id, self.now],
        )?;
        Ok(())
    }

    /// Adds locks to files with fewer locks than copies, preferably on RSEs of the rule.
    fn place_missing(
        &mut self,
        tx: &mut Tx<'_>,
        plan: &mut Plan<'_>,
        rng: &mut dyn Rng,
    ) -> Result<()> {
        let none = "SELECT COUNT(*) FROM w_some WHERE dataset < ?1";
        if tx.number(none, values![self.rule.copies])? == 0 {
            return Ok(());
        }
        let grouped = self.rule.did_type != DidType::File && self.rule.grouping != Grouping::None;
        let sets = place::load_sets(tx, self.datasets.iter().copied())?;
        tx.clear(&["w_files"])?;
        if grouped {
            tx.execute(
                "INSERT INTO w_files (did, dataset, bytes) SELECT w.did, CASE WHEN ?1 = 1 THEN 0 ELSE MIN(s.ord) END, MIN(w.bytes)
                 FROM w_some w LOOKUP JOIN contents c ON (c.child = w.did) JOIN w_sets s ON s.id = c.parent
                 WHERE w.dataset = 0 GROUP BY w.did",
                values![self.rule.grouping == Grouping::All],
            )?;
            place::place(tx, plan, &sets, Earlier::Follow, rng, &mut self.ledger, self.now)?;
            tx.clear(&["w_files"])?;
        }
        let from = i64::from(grouped);
        let sql = "INSERT INTO w_files (did, dataset, bytes) SELECT did, 0, bytes FROM w_some WHERE dataset >= ?1 AND dataset < ?2";
        if tx.execute(sql, values![from, self.rule.copies])? > 0 {
            self.place_singly(tx, plan, rng)?;
        }
        Ok(())
    }

    fn place_singly(
        &mut self,
        tx: &mut Tx<'_>,
        plan: &mut Plan<'_>,
        rng: &mut dyn Rng,
    ) -> Result<()> {
        let sql = "SELECT DISTINCT rse_id FROM dataset_locks WHERE rule_id = ?1";
        let follow: Vec<i64> = tx
            .query(sql, values![self.rule.id])?
            .iter()
            .map(|row| Ok(row.int(0)?))
            .collect::<Result<_>>()?;
        let files = self.files_with_locks(tx)?;
        let mut chosen = Vec::new();
        for (did, file) in &files {
            let copies = usize::try_from(self.rule.copies)
                .unwrap_or(usize::MAX)
                .saturating_sub(file.locked.len());
            let wish = Wish {
                size: file.bytes,
                coverage: &file.coverage,
                follow: &follow,
                blocked: &file.locked,
                copies,
            };
            let picked = plan.selector.pick(&wish, rng)?;
            chosen.extend(picked.into_iter().map(|rse| (*did, rse, file.bytes)));
        }
        place::write_units(tx, plan, &Chosen::Files(chosen), &mut self.ledger, self.now)?;
        Ok(())
    }

    /// The files in `w_files` with their replicas and the locks of this rule.
    fn files_with_locks(&self, tx: &mut Tx<'_>) -> Result<BTreeMap<i64, FileOf>> {
        let mut files: BTreeMap<i64, FileOf> = BTreeMap::new();
        let sql = "SELECT w.did, d.bytes, p.rse_id, p.state, l.rse_id FROM w_files w LEFT LOOKUP JOIN dids d ON (d.id = w.did)
            LEFT LOOKUP JOIN replicas p ON (p.did_id = w.did)
            LEFT LOOKUP JOIN locks l ON (l.rule_id = ?1 AND l.did_id = w.did AND l.rse_id = p.rse_id)";
        for row in tx.query(sql, values![self.rule.id])? {
            let file = files.entry(row.int(0)?).or_default();
            file.bytes = row.int(1)?;
            let state = row.opt_state::<ReplicaState>(3)?;
            let usable = state.is_some_and(|state| {
                use ReplicaState::{Available, Copying, TemporaryUnavailable};
                matches!(state, Available | Copying | TemporaryUnavailable)
            });
            if let Some(rse) = row.opt_int(2)?.filter(|_| usable) {
                file.coverage.push((rse, file.bytes));
            }
            file.locked.extend(row.opt_int(4)?);
        }
        Ok(files)
    }

    /// Retries stuck locks, on another RSE or in place.
    fn retry(&mut self, tx: &mut Tx<'_>, plan: &mut Plan<'_>, rng: &mut dyn Rng) -> Result<()> {
        let singly = self.rule.did_type == DidType::File || self.rule.grouping == Grouping::None;
        let first_by_source = self.rule.source_replica_expression.is_some();
        if first_by_source {
            self.retry_in_place(tx, plan, "l.repair_cnt = 0")?;
        }
        if singly {
            self.move_elsewhere(tx, plan, rng)?;
        }
        let stuck_for = self.rule.stuck_at.map_or(0, |at| self.now - at);
        let delay =
            crate::decide::retry_delay(&self.rule.activity, stuck_for, &self.settings.retry_delays);
        self.retry_in_place(
            tx,
            plan,
            &format!("l.updated_at <= {}", self.now.saturating_sub(delay)),
        )
    }

    /// Moves stuck locks of separately placed files to another RSE with room.
    fn move_elsewhere(
        &mut self,
        tx: &mut Tx<'_>,
        plan: &mut Plan<'_>,
        rng: &mut dyn Rng,
    ) -> Result<()> {
        tx.clear(&["w_files"])?;
        let sql = "INSERT INTO w_files (did) SELECT DISTINCT did_id FROM locks WHERE rule_id = ?1 AND state = 'S'
            ORDER BY did_id LIMIT ?2";
        tx.execute(sql, values![self.rule.id, self.settings.bulk])?;
        let files = self.files_with_locks(tx)?;
        let sql = "SELECT did_id, rse_id, bytes FROM locks WHERE rule_id = ?1 AND state = 'S' AND did_id IN (SELECT did FROM w_files)";
        let mut moves: Vec<(i64, i64, i64, i64)> = Vec::new();
        for row in tx.query(sql, values![self.rule.id])? {
            let (did, rse, size) = (row.int(0)?, row.int(1)?, row.int(2)?);
            let Some(file) = files.get(&did) else { continue };
            let mut blocked = file.locked.clone();
            blocked.extend(moves.iter().filter(|unit| unit.0 == did).map(|unit| unit.2));
            let wish =
                Wish { size, coverage: &file.coverage, follow: &[], blocked: &blocked, copies: 1 };
            if let Some(to) =
                plan.selector.pick(&wish, rng).ok().and_then(|picked| picked.first().copied())
            {
                moves.push((did, rse, to, size));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        tx.clear(&["w_pairs", "w_units"])?;
        tx.load(
            "w_pairs",
            &[
                ("did", Column::ints(moves.iter().map(|unit| unit.0))),
                ("rse", Column::ints(moves.iter().map(|unit| unit.1))),
            ],
        )?;
        tx.execute(
            "INSERT INTO w_units (did, rse, bytes, lock) SELECT l.did_id, l.rse_id, l.bytes, l.state FROM w_pairs w
             LOOKUP JOIN locks l ON (l.rule_id = ?1 AND l.did_id = w.did AND l.rse_id = w.rse)",
            values![self.rule.id],
        )?;
        unlock::remove_locks(tx, self.rule, true, &mut self.ledger, self.now)?;
        let chosen = moves.iter().map(|(did, _, to, size)| (*did, *to, *size)).collect();
        place::write_units(tx, plan, &Chosen::Files(chosen), &mut self.ledger, self.now)?;
        Ok(())
    }

    /// Retries stuck locks that are due in place, if the RSE takes writes and the source expression
    /// has a source.
    fn retry_in_place(&mut self, tx: &mut Tx<'_>, plan: &Plan<'_>, due: &str) -> Result<()> {
        let rses = crate::rse::all(tx)?;
        let open: Vec<i64> = rses
            .iter()
            .filter(|rse| rse.write || self.rule.ignore_availability)
            .map(|rse| rse.id)
            .collect();
        let (source, mut params) = match plan.sources() {
            None => ("1 = 1", Vec::new()),
            Some(sources) => (
                "EXISTS (SELECT 1 FROM replicas s WHERE s.did_id = l.did_id AND s.state = 'A' AND s.rse_id IN ARRAY(?4))",
                vec![sources.iter().copied().collect::<Vec<i64>>().into()],
            ),
        };
        tx.clear(&["w_units"])?;
        let sql = format!(
            "INSERT INTO w_units (did, rse, bytes, before) SELECT l.did_id, l.rse_id, l.bytes, p.state FROM locks l
             JOIN replicas p ON p.did_id = l.did_id AND p.rse_id = l.rse_id WHERE l.rule_id = ?1 AND l.state = 'S'
             AND p.state IN ('U', 'D', 'C') AND l.rse_id IN ARRAY(?2) AND {source} AND {due} ORDER BY l.did_id LIMIT ?3"
        );
        let mut all = values![self.rule.id, open, self.settings.bulk].to_vec();
        all.append(&mut params);
        if tx.execute(&sql, &all)? == 0 {
            return Ok(());
        }
        let now = self.now;
        tx.execute(
            "UPDATE locks SET state = 'R', repair_cnt = repair_cnt + 1, updated_at = ?2 WHERE rule_id = ?1
             AND (did_id, rse_id) IN (SELECT did, rse FROM w_units)",
            values![self.rule.id, now],
        )?;
        tx.execute(
            "UPDATE replicas SET state = 'C', updated_at = ?1 WHERE (did_id, rse_id) IN (SELECT did, rse FROM w_units)",
            values![now],
        )?;
        tx.execute(
            "INSERT INTO requests (request_type, did_id, dest_rse_id, state, rule_id, activity, priority, bytes, retry_count,
             requested_at, updated_at) SELECT 'T', did, rse, 'Q', ?1, ?2, ?3, bytes, 1, ?4, ?4 FROM w_units WHERE TRUE
             ORDER BY did, rse ON CONFLICT (did_id, dest_rse_id, request_type) DO NOTHING",
            values![self.rule.id, &self.rule.activity, self.rule.priority, now],
        )?;
        tx.wake_workers();
        Ok(())
    }

    /// Removes dataset locks on RSEs where the rule locks no file of the dataset.
    fn drop_empty_dataset_locks(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let has = |more: &str| {
            format!(
                "EXISTS (SELECT 1 FROM contents c JOIN locks l ON l.rule_id = dataset_locks.rule_id AND l.did_id = c.child {more}
                 WHERE c.parent = dataset_locks.did_id)"
            )
        };
        let sql = format!(
            "DELETE FROM dataset_locks WHERE rule_id = ?1 AND {} AND NOT {}",
            has(""),
            has("AND l.rse_id = dataset_locks.rse_id")
        );
        tx.execute(&sql, values![self.rule.id])?;
        Ok(())
    }

    /// Whether every file has as many locks as the rule wants copies.
    fn complete(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let sql = format!(
            "SELECT COUNT(*) FROM {FILES} AS f WHERE (SELECT COUNT(*) FROM locks l WHERE l.rule_id = ?1
             AND l.did_id = f.did) < ?4"
        );
        let mut params = self.scope().to_vec();
        params.push(self.rule.copies.into());
        Ok(tx.number(&sql, &params)? == 0)
    }
}

/// A file, the RSEs it is on, and the RSEs where a rule locks it.
#[derive(Debug, Default)]
struct FileOf {
    bytes: i64,
    coverage: Vec<(i64, i64)>,
    locked: Vec<i64>,
}
