//! Places files: chooses RSEs for them and creates locks, replicas and transfer requests.
//!
//! The files are in `w_files` (each with the group it is placed with), the datasets in `w_sets`.
//! [`Selector`] chooses; the effects of a choice are written by a fixed number of statements over
//! whole sets, however many files there are. The caller must hold the rows of the rule's
//! collections, of the rule, of the files and of the counters.

mod write;

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::{Ledger, OWN_COUNT};
use mainstay_catalog::{Column, Pending, Pipeline, Row, Tx, values};
use rand::Rng;

use crate::account;
use crate::api::{Counts, DidType, Grouping, Micros, Rule};
use crate::error::{Class, Refusal, Result, refuse};
use crate::expression::Expression;
use crate::select::{Selector, Wish};
pub(crate) use write::write_units;

/// How earlier choices of the rule affect this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// There are none: coverage and weights decide.
    None,
    /// New files go where the other files of their group are, unless they do not fit there.
    Follow,
    /// A rule applied in steps keeps the choice of its first step.
    Keep,
}

/// A rule ready to be applied: targets resolved, quotas known.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) selector: Selector,
    /// RSE → (writable, staging area), for all targets.
    targets: BTreeMap<i64, (bool, bool)>,
    sources: Option<BTreeSet<i64>>,
    /// The replicas of the file of a new rule on one file, if they were queried already
    /// ([`ask_alone`]).
    pub(crate) alone: Option<Vec<Row>>,
}

impl Plan<'_> {
    /// The RSEs that copies may be made from, if the rule restricts them.
    pub(crate) fn sources(&self) -> Option<&BTreeSet<i64>> {
        self.sources.as_ref()
    }
}

/// Resolves a rule's expressions and reads the remaining quota of its account.
pub(crate) fn prepare<'a>(
    tx: &mut Tx<'_>,
    rule: &'a Rule,
    ledger: &mut Ledger,
) -> Result<Plan<'a>> {
    prepare_with(tx, rule, None, ledger)
}

/// The same, with limits that were read already.
pub(crate) fn prepare_with<'a>(
    tx: &mut Tx<'_>,
    rule: &'a Rule,
    limits: Option<account::Limits>,
    ledger: &mut Ledger,
) -> Result<Plan<'a>> {
    let found = if rule.ignore_availability {
        crate::rse::resolve(tx, &rule.rse_expression)?
    } else {
        crate::rse::resolve_writable(tx, &rule.rse_expression)?
    };
    let sources = match &rule.source_replica_expression {
        None => None,
        Some(text) => Some(sources(tx, text)?),
    };
    let limits = match limits {
        Some(limits) => limits,
        None => account::limits(tx, &rule.account)?,
    };
    let mut allowance = account::allowance(tx, &rule.account, limits, ledger)?;
    allowance.unlimited |= rule.ignore_account_limit;
    let rses = crate::rse::all(tx)?;
    let targets: Vec<_> = rses.iter().filter(|rse| found.contains(&rse.id)).collect();
    let mut space = BTreeMap::new();
    for rse in &targets {
        if let Some(limit) = rse.limits.get("MaxSpaceAvailable").filter(|limit| **limit >= 0) {
            let sql = "SELECT used FROM rse_usage WHERE rse_id = ?1 AND source = ?2";
            let held = tx.number(sql, values![rse.id, OWN_COUNT])?;
            ledger.rests_on_space(rse.id, held, *limit);
            space.insert(rse.id, limit - held - ledger.held(rse.id));
        }
    }
    let copies = usize::try_from(rule.copies).unwrap_or(usize::MAX);
    let selector = Selector::new(&targets, rule.weight.as_deref(), copies, &allowance, &space)?;
    let targets = targets.iter().map(|rse| (rse.id, (rse.write, rse.staging_area))).collect();
    Ok(Plan { rule, selector, targets, sources, alone: None })
}

/// The RSEs of a source expression.
pub(crate) fn sources(tx: &mut Tx<'_>, text: &str) -> Result<BTreeSet<i64>> {
    let rses = crate::rse::all(tx)?;
    Expression::parse(text)
        .and_then(|parsed| parsed.resolve(&rses))
        .map_err(|refusal| refuse(Class::InvalidSourceReplicaExpression, refusal.message))
}

/// Loads the datasets of a rule into `w_sets` in the order of their names (0, 1, …). A rule on a
/// file has none.
pub(crate) fn load_sets(
    tx: &mut Tx<'_>,
    datasets: impl IntoIterator<Item = i64>,
) -> Result<Vec<i64>> {
    let ids: Vec<i64> = datasets.into_iter().collect();
    let rows = if ids.len() < 2 {
        ids
    } else {
        let sql = "SELECT id FROM dids WHERE id IN ARRAY(?1) ORDER BY scope, name";
        tx.query(sql, values![ids])?.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?
    };
    tx.clear(&["w_sets"])?;
    tx.load(
        "w_sets",
        &[("ord", Column::ints(0..rows.len() as i64)), ("id", Column::ints(rows.iter().copied()))],
    )?;
    Ok(rows)
}

/// Applies the rule to the files in `w_files` and the datasets `sets`, and counts the new locks.
pub(crate) fn place(
    tx: &mut Tx<'_>,
    plan: &mut Plan<'_>,
    sets: &[i64],
    earlier: Earlier,
    rng: &mut dyn Rng,
    ledger: &mut Ledger,
    now: Micros,
) -> Result<Counts> {
    let grouped = plan.rule.did_type != DidType::File && plan.rule.grouping != Grouping::None;
    if grouped {
        let picks = choose_groups(tx, plan, sets, earlier, rng)?;
        let picks: Vec<(i64, i64)> =
            picks.iter().flat_map(|(set, rses)| rses.iter().map(move |rse| (*set, *rse))).collect();
        lock_datasets(tx, plan.rule, sets, &picks, earlier, now)?;
        write_units(tx, plan, &Chosen::Groups(picks), ledger, now)
    } else {
        let files = choose_files(tx, plan, earlier, rng)?;
        write_units(tx, plan, &Chosen::Files(files), ledger, now)
    }
}

/// The chosen places of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// Group and RSE: all files of the group in `w_files` go there.
    Groups(Vec<(i64, i64)>),
    /// File, RSE, and the file's size.
    Files(Vec<(i64, i64, i64)>),
}

/// The group a dataset's files are placed with.
fn group(rule: &Rule, set: usize) -> i64 {
    if rule.grouping == Grouping::All { 0 } else { set as i64 }
}

fn choose_groups(
    tx: &mut Tx<'_>,
    plan: &mut Plan<'_>,
    sets: &[i64],
    earlier: Earlier,
    rng: &mut dyn Rng,
) -> Result<BTreeMap<i64, Vec<i64>>> {
    let rule = plan.rule;
    let copies = usize::try_from(rule.copies).unwrap_or(usize::MAX);
    let mut sizes: BTreeMap<i64, i64> = (0..sets.len()).map(|set| (group(rule, set), 0)).collect();
    let sql = "SELECT dataset, CAST(SUM(bytes) AS BIGINT) FROM w_files GROUP BY dataset";
    // A rule without earlier choices needs the coverage of every group.
    let mut ask = Pipeline::default();
    let sums = ask.query(sql, &[]);
    let covered = (earlier == Earlier::None).then(|| ask.query(coverage_sql(earlier), &[]));
    let mut answers = tx.run(ask)?;
    for row in answers.take(sums) {
        sizes.insert(row.int(0)?, row.int(1)?);
    }
    let former =
        if earlier == Earlier::None { BTreeMap::new() } else { former(tx, rule, sets, earlier)? };
    let mut coverage: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    if sizes.keys().any(|group| !former.contains_key(group)) {
        let rows = match covered {
            Some(covered) => answers.take(covered),
            None => tx.query(&coverage_sql(earlier), &[])?,
        };
        for row in rows {
            coverage.entry(row.int(0)?).or_default().push((row.int(1)?, row.int(2)?));
        }
    }
    let mut picks = BTreeMap::new();
    for (group, size) in sizes {
        let follow = former.get(&group).map_or(&[][..], Vec::as_slice);
        if earlier == Earlier::Keep && follow.len() >= copies {
            keep(plan, follow, size)?;
            picks.insert(group, follow.to_vec());
            continue;
        }
        let whole = if earlier == Earlier::Keep { whole(tx, rule, sets, group)? } else { None };
        let (size, coverage) = match &whole {
            Some((size, coverage)) => (*size, coverage.as_slice()),
            None => (size, coverage.get(&group).map_or(&[][..], Vec::as_slice)),
        };
        let wish = Wish { size, coverage, follow, copies, blocked: &[] };
        picks.insert(group, plan.selector.pick(&wish, rng)?);
    }
    Ok(picks)
}

/// Keeps an earlier choice, if the new files still fit.
fn keep(plan: &mut Plan<'_>, rses: &[i64], size: i64) -> Result<(), Refusal> {
    for rse in rses {
        if plan.targets.contains_key(rse) && !plan.selector.fits(*rse, size) {
            return Err(Refusal {
                class: Class::InsufficientAccountLimit,
                message: "There is insufficient quota on any of the target RSE's to fulfill the operation.".to_owned(),
            });
        }
        plan.selector.take(*rse, size);
    }
    Ok(())
}

fn coverage_sql(earlier: Earlier) -> String {
    // At creation, existing and pending copies count; later only reliable ones.
    let states = if earlier == Earlier::Follow { "IN ('A', 'C', 'T')" } else { "<> 'B'" };
    format!(
        "SELECT w.dataset, p.rse_id, CAST(SUM(p.bytes) AS BIGINT) FROM w_files w LOOKUP JOIN replicas p ON (p.did_id = w.did)
         WHERE p.state {states} GROUP BY w.dataset, p.rse_id"
    )
}

/// The RSEs that the rule has chosen for each group before, oldest choice first.
fn former(
    tx: &mut Tx<'_>,
    rule: &Rule,
    sets: &[i64],
    earlier: Earlier,
) -> Result<BTreeMap<i64, Vec<i64>>> {
    let all = rule.grouping == Grouping::All;
    // Locks of an empty dataset do not bind the choice: they move with its first files.
    let used = match earlier {
        Earlier::Keep => "1 = 1",
        _ if all => "EXISTS (SELECT 1 FROM locks l WHERE l.rule_id = k.rule_id AND l.rse_id = k.rse_id)",
        _ => "EXISTS (SELECT 1 FROM contents c JOIN locks l ON l.rule_id = k.rule_id AND l.did_id = c.child
              AND l.rse_id = k.rse_id WHERE c.parent = k.did_id)",
    };
    let within = if all { "1 = 1" } else { "k.did_id IN (SELECT id FROM w_sets)" };
    let sql = format!(
        "SELECT k.did_id, k.rse_id FROM dataset_locks k WHERE k.rule_id = ?1 AND {within} AND {used}
         ORDER BY k.created_at, k.rse_id"
    );
    let order: BTreeMap<i64, usize> = sets.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in tx.query(&sql, values![rule.id])? {
        let group = if all { Some(0) } else { order.get(&row.int(0)?).map(|at| group(rule, *at)) };
        let Some(group) = group else { continue };
        let rses = found.entry(group).or_default();
        if !rses.contains(&row.int(1)?) {
            rses.push(row.int(1)?);
        }
    }
    Ok(found)
}

/// Size and coverage of a whole group, of which only some files are in `w_files`.
type Whole = (i64, Vec<(i64, i64)>);

fn whole(tx: &mut Tx<'_>, rule: &Rule, sets: &[i64], group: i64) -> Result<Option<Whole>> {
    let all = rule.grouping == Grouping::All;
    let within: Vec<i64> = if all {
        let below = mainstay_catalog::order::collections(tx, &[rule.did_id])?;
        below.into_iter().filter(|(_, kind)| *kind == DidType::Dataset).map(|(id, _)| id).collect()
    } else {
        sets.get(usize::try_from(group).unwrap_or(usize::MAX)).copied().into_iter().collect()
    };
    let sql =
        "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM contents WHERE parent IN ARRAY(?1)";
    let size = tx.number(sql, values![within.clone()])?;
    let rows = tx.query(
        "SELECT p.rse_id, CAST(SUM(p.bytes) AS BIGINT) FROM contents c JOIN replicas p ON p.did_id = c.child
         WHERE c.parent IN ARRAY(?1) AND p.state <> 'B' GROUP BY p.rse_id",
        values![within],
    )?;
    Ok(Some((size, rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect::<Result<_>>()?)))
}

/// Locks each dataset where its files are.
fn lock_datasets(
    tx: &mut Tx<'_>,
    rule: &Rule,
    sets: &[i64],
    picks: &[(i64, i64)],
    earlier: Earlier,
    now: Micros,
) -> Result<()> {
    let all = rule.grouping == Grouping::All;
    if earlier == Earlier::Follow {
        tx.execute(
            "DELETE FROM dataset_locks WHERE rule_id = ?1 AND did_id IN (SELECT s.id FROM w_sets s JOIN w_files f
             ON f.dataset = CASE WHEN ?2 = 1 THEN 0 ELSE s.ord END)
             AND NOT EXISTS (SELECT 1 FROM contents c JOIN locks l ON l.rule_id = dataset_locks.rule_id
             AND l.did_id = c.child AND l.rse_id = dataset_locks.rse_id WHERE c.parent = dataset_locks.did_id)",
            values![rule.id, all],
        )?;
    }
    if picks.is_empty() || sets.is_empty() {
        return Ok(());
    }
    if sets.len() == 1 {
        // A single dataset, or each of a few, is locked without a table of picks; this is by far
        // the most common case.
        let rses: Vec<i64> = picks.iter().map(|pick| pick.1).collect();
        return Ok(tx.later(
            "INSERT INTO dataset_locks (rule_id, did_id, rse_id, state, length, bytes, created_at)
             SELECT ?1, d.id, r.id, 'R', CASE WHEN d.is_open = 0 THEN d.length END, CASE WHEN d.is_open = 0 THEN d.bytes END, ?4
             FROM dids d CROSS JOIN rses r WHERE d.id = ?2 AND r.id IN ARRAY(?3)
             ON CONFLICT (rule_id, did_id, rse_id) DO NOTHING",
            values![rule.id, sets[0], rses, now],
        )?);
    }
    tx.clear(&["w_picks"])?;
    tx.load(
        "w_picks",
        &[
            ("dataset", Column::ints(picks.iter().map(|pick| pick.0))),
            ("rse", Column::ints(picks.iter().map(|pick| pick.1))),
        ],
    )?;
    tx.execute(
        "INSERT INTO dataset_locks (rule_id, did_id, rse_id, state, length, bytes, created_at)
         SELECT ?1, s.id, p.rse, 'R', CASE WHEN d.is_open = 0 THEN d.length END, CASE WHEN d.is_open = 0 THEN d.bytes END, ?3
         FROM w_sets s JOIN w_picks p ON p.dataset = CASE WHEN ?2 = 1 THEN 0 ELSE s.ord END JOIN dids d ON d.id = s.id
         WHERE TRUE ON CONFLICT (rule_id, did_id, rse_id) DO NOTHING",
        values![rule.id, all, now],
    )?;
    Ok(())
}

/// A file, its size, and the RSEs it is on with the bytes there.
type Covered = (i64, i64, Vec<(i64, i64)>);

/// The replicas of a file on which a new rule has no locks yet.
const ALONE: &str = "SELECT w.id, w.bytes, p.rse_id, NULL FROM dids w
    LEFT LOOKUP JOIN replicas p ON (p.did_id = w.id AND p.state <> 'B') WHERE w.id = ?1";

/// Adds the first query of placing a new rule on one file.
pub(crate) fn ask_alone(ask: &mut Pipeline, file: i64) -> Pending {
    ask.query(ALONE, values![file])
}

/// Chooses for each file in `w_files` separately, or for the file the rule is for. Locks that the
/// rule already has on it count.
fn choose_files(
    tx: &mut Tx<'_>,
    plan: &mut Plan<'_>,
    earlier: Earlier,
    rng: &mut dyn Rng,
) -> Result<Vec<(i64, i64, i64)>> {
    let states = if earlier == Earlier::Follow { "IN ('A', 'C', 'T')" } else { "<> 'B'" };
    let locks =
        "LEFT LOOKUP JOIN locks l ON (l.rule_id = ?1 AND l.did_id = w.id AND l.rse_id = p.rse_id)";
    let (rule, file) = (plan.rule.id, plan.rule.did_id);
    let (sql, params) = match (plan.rule.did_type, earlier) {
        (DidType::File, Earlier::None) => (ALONE.to_owned(), values![file].to_vec()),
        (DidType::File, _) => (
            format!(
                "SELECT w.id, w.bytes, p.rse_id, l.rse_id FROM dids w
                 LEFT LOOKUP JOIN replicas p ON (p.did_id = w.id AND p.state {states}) {locks} WHERE w.id = ?2"
            ),
            values![rule, file].to_vec(),
        ),
        _ => (
            format!(
                "SELECT w.id, w.bytes, p.rse_id, l.rse_id FROM (SELECT did AS id, bytes FROM w_files) AS w
                 LEFT LOOKUP JOIN replicas p ON (p.did_id = w.id AND p.state {states}) {locks} ORDER BY w.id"
            ),
            values![rule].to_vec(),
        ),
    };
    let mut files: Vec<Covered> = Vec::new();
    let mut locked: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut take = |row: Row| -> Result<()> {
        let (did, bytes) = (row.int(0)?, row.int(1)?);
        if files.last().is_none_or(|file| file.0 != did) {
            files.push((did, bytes, Vec::new()));
        }
        if let (Some(rse), Some(file)) = (row.opt_int(2)?, files.last_mut()) {
            file.2.push((rse, bytes));
        }
        if let Some(rse) = row.opt_int(3)? {
            locked.entry(did).or_default().push(rse);
        }
        Ok(())
    };
    match plan.alone.take() {
        Some(rows) => rows.into_iter().try_for_each(take)?,
        None => tx.for_each(&sql, &params, &mut take)?,
    }
    let mut chosen = Vec::new();
    for (did, size, coverage) in &files {
        let blocked = locked.get(did).map_or(&[][..], Vec::as_slice);
        let copies =
            usize::try_from(plan.rule.copies).unwrap_or(usize::MAX).saturating_sub(blocked.len());
        let wish = Wish { size: *size, coverage, follow: &[], blocked, copies };
        let picked = plan.selector.pick(&wish, rng)?;
        chosen.extend(picked.into_iter().map(|rse| (*did, rse, *size)));
    }
    Ok(chosen)
}

impl Chosen {
    fn is_empty(&self) -> bool {
        match self {
            Self::Groups(picks) => picks.is_empty(),
            Self::Files(files) => files.is_empty(),
        }
    }

    /// The columns of `w_picks` or `w_pairs`.
    fn columns(&self, plan: &Plan<'_>) -> Vec<(&'static str, Column)> {
        let rses: Vec<i64> = match self {
            Self::Groups(picks) => picks.iter().map(|pick| pick.1).collect(),
            Self::Files(files) => files.iter().map(|file| file.1).collect(),
        };
        let flag = |pick: fn(&(bool, bool)) -> bool| {
            Column::ints(rses.iter().map(|rse| i64::from(plan.targets.get(rse).is_some_and(pick))))
        };
        let (writable, staging) = (flag(|both| both.0), flag(|both| both.1));
        let mut columns = match self {
            Self::Groups(picks) => {
                vec![("dataset", Column::ints(picks.iter().map(|pick| pick.0)))]
            }
            Self::Files(files) => vec![
                ("did", Column::ints(files.iter().map(|file| file.0))),
                ("bytes", Column::ints(files.iter().map(|file| file.2))),
            ],
        };
        columns.extend([
            ("rse", Column::ints(rses.iter().copied())),
            ("writable", writable),
            ("staging", staging),
        ]);
        columns
    }
}
