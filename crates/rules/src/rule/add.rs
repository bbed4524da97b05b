//! Adding a rule: `add_replication_rule`.

use std::collections::BTreeMap;

use mainstay_catalog::ledger::Ledger;
use mainstay_catalog::order::{lock_files, lock_tree, lock_tree_and};
use mainstay_catalog::{Answers, Daemon, Pending, Pipeline, Row, Tx, Value, values};
use rand::{Rng, RngExt};

use crate::account::{self, AskedAllowance};
use crate::api::{Counts, DidRecord, DidType, Grouping, Micros, NewRule, Rule, RuleState, SECOND};
use crate::did;
use crate::error::{Class, Error, Result, refuse};
use crate::rule::place::{self, Earlier};
use crate::rule::{Settings, message, state};

/// Creates one rule for each data identifier, all or none, and returns their identities. Locks,
/// replicas and transfers are created at once, unless the rule is large, delayed or waits for
/// approval.
pub fn add_replication_rule(
    tx: &mut Tx<'_>,
    new: &NewRule,
    settings: &Settings,
    rng: &mut dyn Rng,
    now: Micros,
) -> Result<Vec<String>> {
    new.check()?;
    let mut ask = Pipeline::default();
    let owner = account::ask_exists(&mut ask, &new.account);
    ask.rses();
    let named: Vec<Pending> = new.dids.iter().map(|did| did::ask_by_name(&mut ask, did)).collect();
    let mut answers = tx.run(ask)?;
    account::check_found(answers.first(owner).as_ref(), &new.account)?;
    let locked = check_targets(tx, new)?;
    if let Some(text) = &new.source_replica_expression {
        place::sources(tx, text)?;
    }
    let mut dids = Vec::with_capacity(new.dids.len());
    for (did, named) in new.dids.iter().zip(named) {
        let found = answers.first(named).ok_or_else(|| {
            refuse(Class::DataIdentifierNotFound, format!("Data identifier {did} is not valid."))
        })?;
        dids.push(did::from_row(&found)?);
    }
    let request = Request { new, settings, locked, now };
    let mut ledger = Ledger::default();
    let made = match dids.as_slice() {
        [did] => vec![add_single(tx, &request, did, &mut ledger, rng)?],
        _ => add_several(tx, &request, &dids, &mut ledger, rng)?,
    };
    ledger.write(tx, now)?;
    Ok(made)
}

/// A checked request.
struct Request<'a> {
    new: &'a NewRule,
    settings: &'a Settings,
    locked: bool,
    now: Micros,
}

/// The collections among data identifiers.
fn roots(dids: &[DidRecord]) -> Vec<i64> {
    dids.iter().filter(|did| did.did_type != DidType::File).map(|did| did.id).collect()
}

/// A new identity: 32 digits.
fn new_uuid(rng: &mut dyn Rng) -> String {
    uuid::Builder::from_random_bytes(rng.random()).into_uuid().simple().to_string()
}

/// Adds one rule; all its queries are sent in the round trip that locks its tree.
fn add_single(
    tx: &mut Tx<'_>,
    request: &Request<'_>,
    did: &DidRecord,
    ledger: &mut Ledger,
    rng: &mut dyn Rng,
) -> Result<String> {
    let Request { new, settings, .. } = *request;
    let uuid = new_uuid(rng);
    let roots = roots(std::slice::from_ref(did));
    let (tree, (count, asked), mut answers) = lock_tree_and(tx, &[], &roots, |ask, tree| {
        let count = must_count(new, did).then(|| ask_count(ask, new, did, settings));
        (count, Asked::ask(ask, request, did, &uuid, &datasets(&tree.down)))
    })?;
    let counted = count.map(|count| answers.number(count)).transpose()?;
    let later = is_later(new, did, settings, counted);
    let work = Work { request, uuid, later, below: &datasets(&tree.down) };
    add_one(tx, work, asked.take(&mut answers), ledger, rng)
}

/// Adds several rules, all or none: the rows of all of them are locked first, in order.
fn add_several(
    tx: &mut Tx<'_>,
    request: &Request<'_>,
    dids: &[DidRecord],
    ledger: &mut Ledger,
    rng: &mut dyn Rng,
) -> Result<Vec<String>> {
    let Request { new, settings, .. } = *request;
    let uuids: Vec<String> = dids.iter().map(|_| new_uuid(rng)).collect();
    lock_tree(tx, &[], &roots(dids))?;
    let mut ask = Pipeline::default();
    let counts: Vec<Option<Pending>> = dids
        .iter()
        .map(|did| must_count(new, did).then(|| ask_count(&mut ask, new, did, settings)))
        .collect();
    let mut answers = tx.run(ask)?;
    let mut later = Vec::with_capacity(dids.len());
    for (did, count) in dids.iter().zip(counts) {
        let counted = count.map(|count| answers.number(count)).transpose()?;
        later.push(is_later(new, did, settings, counted));
    }
    hold_files(tx, dids, &later)?;
    let mut made = Vec::with_capacity(dids.len());
    for ((did, uuid), later) in dids.iter().zip(uuids).zip(later) {
        let below = datasets(&mainstay_catalog::order::collections(tx, &[did.id])?);
        let mut ask = Pipeline::default();
        let asked = Asked::ask(&mut ask, request, did, &uuid, &below);
        let known = asked.take(&mut tx.run(ask)?);
        let work = Work { request, uuid, later, below: &below };
        made.push(add_one(tx, work, known, ledger, rng)?);
    }
    Ok(made)
}

/// The queries for one rule, all sent before the first answer is read.
struct Asked {
    did: Pending,
    inserted: Pending,
    limits: Option<AskedAllowance>,
    alone: Option<Pending>,
    has_bytes: Option<Pending>,
}

/// Their answers.
struct Known {
    /// The data identifier, read after its row was locked.
    did: Option<Row>,
    /// The row of the new rule; none if such a rule exists.
    inserted: Option<Row>,
    limits: Option<account::Limits>,
    /// The replicas of the file, for a rule on one file.
    alone: Option<Vec<Row>>,
    /// Whether a collection has any bytes, where that was queried.
    has_bytes: Option<bool>,
}

impl Asked {
    /// Adds the queries for a rule on `did`: its state, the new row, and the data for placing it.
    fn ask(
        ask: &mut Pipeline,
        request: &Request<'_>,
        did: &DidRecord,
        uuid: &str,
        below: &[i64],
    ) -> Self {
        let new = request.new;
        let file = did.did_type == DidType::File;
        // Whether it is closed or approved depends on the row that is locked now.
        let found = did::ask_by_id(ask, did.id, file);
        let inserted = ask.query(INSERT, &row(request, did, uuid));
        let placed = !new.ask_approval;
        let limits = placed.then(|| AskedAllowance::ask(ask, &new.account));
        let alone = (placed && file).then(|| place::ask_alone(ask, did.id));
        let may_hold = placed && !file && did.bytes.is_none_or(|bytes| bytes > 0);
        let has_bytes = may_hold.then(|| ask.query(HAS_BYTES, values![below.to_vec()]));
        Self { did: found, inserted, limits, alone, has_bytes }
    }

    fn take(self, answers: &mut Answers) -> Known {
        Known {
            did: answers.first(self.did),
            inserted: answers.first(self.inserted),
            limits: self.limits.map(|limits| limits.take(answers)),
            alone: self.alone.map(|alone| answers.take(alone)),
            has_bytes: self.has_bytes.map(|pending| answers.first(pending).is_some()),
        }
    }
}

/// The datasets among collections.
fn datasets(collections: &BTreeMap<i64, DidType>) -> Vec<i64> {
    collections.iter().filter(|(_, kind)| **kind == DidType::Dataset).map(|(id, _)| *id).collect()
}

/// The inputs for one rule.
struct Work<'a> {
    request: &'a Request<'a>,
    uuid: String,
    later: bool,
    below: &'a [i64],
}

/// Checks the targets as far as possible before any row is locked. Returns whether the rule is
/// locked.
fn check_targets(tx: &mut Tx<'_>, new: &NewRule) -> Result<bool> {
    let found = if new.ignore_availability {
        crate::rse::resolve(tx, &new.rse_expression)?
    } else {
        crate::rse::resolve_writable(tx, &new.rse_expression)?
    };
    let rses = crate::rse::all(tx)?;
    let targets: Vec<_> = rses.iter().filter(|rse| found.contains(&rse.id)).collect();
    if new.lifetime.is_none() && targets.iter().any(|rse| rse.staging_area) {
        let message = "Rules for a staging area must include a lifetime";
        return Err(refuse(Class::StagingAreaRuleRequiresLifetime, message));
    }
    if new.ask_approval {
        if targets.iter().any(|rse| rse.flag("block_manual_approval")) {
            let message = "Ask approval is not allowed for rules on this RSE";
            return Err(refuse(Class::ManualRuleApprovalBlocked, message));
        }
        if targets.len() > 1 {
            let message = "Ask approval is not allowed for rules with multiple RSEs";
            return Err(refuse(Class::InvalidReplicationRule, message));
        }
    }
    Ok(new.locked || (new.lifetime.is_none() && targets.iter().any(|rse| rse.rse_type == "TAPE")))
}

/// Counts the files below a collection, up to a number.
const COUNT_FILES: &str = "WITH RECURSIVE down(id, did_type) AS (SELECT id, did_type FROM dids WHERE id = ?1
    UNION SELECT c.child, c.child_type FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'C')
    SELECT COUNT(*) FROM (SELECT 1 FROM down LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type = 'D'
    LIMIT ?2) AS counted";

const HAS_BYTES: &str = "SELECT 1 FROM contents WHERE parent IN ARRAY(?1) AND bytes > 0 LIMIT 1";

/// The number of files from which a rule is large.
fn most_files(new: &NewRule, settings: &Settings) -> i64 {
    (settings.bulk + new.copies - 1) / new.copies
}

/// Whether the rule is not applied at once, regardless of its size.
fn is_later_anyway(new: &NewRule, did: &DidRecord) -> bool {
    let split = new.split_container && did.did_type == DidType::Container;
    new.asynchronous || new.ask_approval || new.delay_injection.is_some() || split
}

/// Whether the number of files decides if the rule is left to the injector.
fn must_count(new: &NewRule, did: &DidRecord) -> bool {
    did.did_type != DidType::File && !is_later_anyway(new, did)
}

/// Adds the query that counts the files of a rule, up to the number that matters.
fn ask_count(ask: &mut Pipeline, new: &NewRule, did: &DidRecord, settings: &Settings) -> Pending {
    ask.query(COUNT_FILES, values![did.id, most_files(new, settings)])
}

/// Whether the rule is left to the injector or waits for approval; `counted` is the number of its
/// files, where that decides.
fn is_later(new: &NewRule, did: &DidRecord, settings: &Settings, counted: Option<i64>) -> bool {
    counted
        .map_or_else(|| is_later_anyway(new, did), |counted| counted >= most_files(new, settings))
}

/// Locks the files of all rules that are applied now, in one statement and thus in order.
fn hold_files(tx: &mut Tx<'_>, dids: &[DidRecord], later: &[bool]) -> Result<()> {
    let now: Vec<i64> =
        dids.iter().zip(later).filter(|(_, later)| !**later).map(|(did, _)| did.id).collect();
    if now.is_empty() || !tx.is_postgres() {
        return Ok(());
    }
    tx.clear(&["w_files"])?;
    tx.execute(
        "INSERT INTO w_files (did) WITH RECURSIVE down(id, did_type) AS (
         SELECT id, did_type FROM dids WHERE id IN ARRAY(?1) UNION SELECT c.child, c.child_type FROM down
         LOOKUP JOIN contents c ON (c.parent = down.id) WHERE down.did_type <> 'F') SELECT id FROM down WHERE did_type = 'F'",
        values![now],
    )?;
    lock_files(tx)?;
    Ok(())
}

fn add_one(
    tx: &mut Tx<'_>,
    work: Work<'_>,
    known: Known,
    ledger: &mut Ledger,
    rng: &mut dyn Rng,
) -> Result<String> {
    let Some(held) = known.did else { return Err(Error::moved()) };
    let did = &did::from_row(&held)?;
    let Request { new, now, .. } = *work.request;
    let rule = inserted(known.inserted.as_ref(), &work, did)?;
    let (id, uuid) = (rule.id, rule.uuid.clone());
    if new.ask_approval {
        let state = if is_auto_approved(tx, new, did)? {
            RuleState::Inject
        } else {
            RuleState::WaitingApproval
        };
        write_state(tx, id, state)?;
        if state == RuleState::WaitingApproval {
            let payload = serde_json::json!({"rule_id": uuid, "scope": did.did.scope, "name": did.did.name, "account": new.account});
            message::send(tx, "email", &payload, now)?;
        } else {
            tx.execute("UPDATE rules SET ignore_account_limit = 1 WHERE id = ?1", values![id])?;
            tx.wake(Daemon::Injector);
        }
        state::history(tx, id, "create", now)?;
        return Ok(uuid);
    }
    let mut plan = place::prepare_with(tx, &rule, known.limits, ledger)?;
    plan.alone = known.alone;
    // A rule without bytes always fits a quota.
    if known.has_bytes.unwrap_or(did.bytes.unwrap_or(0) > 0) {
        plan.selector.check_quota()?;
    }
    if work.later {
        write_state(tx, id, RuleState::Inject)?;
        state::history(tx, id, "create", now)?;
        tx.wake(Daemon::Injector);
        return Ok(uuid);
    }
    let sets = if did.did_type == DidType::File {
        Vec::new()
    } else {
        let sets = load(tx, &rule, work.below)?;
        lock_files(tx)?;
        sets
    };
    let counts = place::place(tx, &mut plan, &sets, Earlier::None, rng, ledger, now)?;
    let applied = Rule { state: RuleState::Replicating, ..rule };
    state::settle(tx, &applied, counts, true, None, now)?;
    state::history(tx, id, "create", now)?;
    Ok(uuid)
}

fn write_state(tx: &mut Tx<'_>, id: i64, state: RuleState) -> Result<()> {
    tx.execute("UPDATE rules SET state = ?2 WHERE id = ?1", values![id, state.letter()])?;
    Ok(())
}

/// Whether the rule is approved automatically: its data identifier is closed and below the RSE's
/// thresholds.
fn is_auto_approved(tx: &mut Tx<'_>, new: &NewRule, did: &DidRecord) -> Result<bool> {
    let found = crate::rse::resolve(tx, &new.rse_expression)?;
    let rses = crate::rse::all(tx)?;
    let Some(rse) = rses.iter().find(|rse| found.contains(&rse.id)) else { return Ok(false) };
    let threshold = |key: &str| rse.attribute(key).and_then(|text| text.parse::<f64>().ok());
    let (bytes, files) = (threshold("auto_approve_bytes"), threshold("auto_approve_files"));
    if did.is_open || (bytes.is_none() && files.is_none()) {
        return Ok(false);
    }
    let below = |limit: Option<f64>, has: Option<i64>| {
        limit.is_none_or(|limit| (has.unwrap_or(0) as f64) < limit)
    };
    Ok(below(bytes, did.bytes) && below(files, did.length))
}

/// Loads the files of a rule on a collection into `w_files`, each with its group, and its datasets,
/// if there are several, into `w_sets`.
fn load(tx: &mut Tx<'_>, rule: &Rule, datasets: &[i64]) -> Result<Vec<i64>> {
    tx.clear(&["w_files"])?;
    if let [only] = datasets {
        let sql = "INSERT INTO w_files (did, dataset, bytes) SELECT child, 0, bytes FROM contents WHERE parent = ?1 ORDER BY child";
        tx.later(sql, values![*only])?;
        return Ok(vec![*only]);
    }
    let sets = place::load_sets(tx, datasets.iter().copied())?;
    let all = rule.grouping == Grouping::All;
    tx.later(
        "INSERT INTO w_files (did, dataset, bytes) SELECT c.child, CASE WHEN ?1 = 1 THEN 0 ELSE MIN(s.ord) END, MIN(c.bytes)
         FROM w_sets s LOOKUP JOIN contents c ON (c.parent = s.id) GROUP BY c.child ORDER BY c.child",
        values![all],
    )?;
    Ok(sets)
}

const INSERT: &str = "INSERT INTO rules (uuid, account, did_id, did_type, copies, rse_expression, weight, source_replica_expression,
    grouping, state, expires_at, eol_at, locked, activity, priority, comments, meta, notification, purge_replicas,
    ignore_availability, ignore_account_limit, split_container, subscription_id, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'R', ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)
    ON CONFLICT (did_id, account, rse_expression, copies) WHERE soft_deleted = 0 DO NOTHING RETURNING id";

/// The creation and expiry times of a rule.
fn times(new: &NewRule, now: Micros) -> (Micros, Option<Micros>) {
    let after = |seconds: i64| now.saturating_add(seconds.saturating_mul(SECOND));
    (new.delay_injection.map_or(now, after), new.lifetime.map(after))
}

/// The parameters of [`INSERT`] for a new rule.
fn row(request: &Request<'_>, did: &DidRecord, uuid: &str) -> Vec<Value> {
    let Request { new, locked, now, .. } = *request;
    let (created, expires) = times(new, now);
    values![
        uuid,
        &new.account,
        did.id,
        did.did_type.letter(),
        new.copies,
        &new.rse_expression,
        new.weight.clone(),
        new.source_replica_expression.clone(),
        new.grouping.letter(),
        expires,
        new.eol_at,
        locked,
        &new.activity,
        new.priority,
        new.comment.clone(),
        new.meta.clone(),
        new.notify.letter(),
        new.purge_replicas,
        new.ignore_availability,
        new.ignore_account_limit,
        new.split_container,
        new.subscription_id.clone(),
        created,
        now
    ]
    .to_vec()
}

/// The new rule, from the row that the database has returned.
fn inserted(row: Option<&Row>, work: &Work<'_>, did: &DidRecord) -> Result<Rule> {
    let Request { new, locked, now, .. } = *work.request;
    let uuid = &work.uuid;
    let (created, expires) = times(new, now);
    let Some(row) = row else {
        let message = format!(
            "A rule of {} for '{}' with {} copies on '{}' already exists",
            new.account, did.did, new.copies, new.rse_expression
        );
        return Err(refuse(Class::DuplicateRule, message));
    };
    Ok(Rule {
        id: row.int(0)?,
        uuid: uuid.clone(),
        account: new.account.clone(),
        did_id: did.id,
        did: did.did.clone(),
        did_type: did.did_type,
        copies: new.copies,
        rse_expression: new.rse_expression.clone(),
        weight: new.weight.clone(),
        source_replica_expression: new.source_replica_expression.clone(),
        grouping: new.grouping,
        state: RuleState::Replicating,
        counts: Counts::default(),
        expires_at: expires,
        eol_at: new.eol_at,
        locked,
        activity: new.activity.clone(),
        priority: new.priority,
        comments: new.comment.clone(),
        meta: new.meta.clone(),
        notification: new.notify,
        purge_replicas: new.purge_replicas,
        ignore_availability: new.ignore_availability,
        ignore_account_limit: new.ignore_account_limit,
        split_container: new.split_container,
        child_rule_id: None,
        subscription_id: new.subscription_id.clone(),
        error: None,
        stuck_at: None,
        suspended_by: None,
        incomplete: false,
        cursor: None,
        repair_at: 0,
        created_at: created,
        updated_at: now,
        deleted_at: None,
    })
}
