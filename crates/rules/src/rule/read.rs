//! Reading rules and their locks.

use std::collections::BTreeSet;

use mainstay_catalog::{Row, Tx, Value, values};

use crate::api::{
    Counts, Did, DidType, Grouping, LockState, Micros, Notification, Rule, RuleState, SECOND,
};
use crate::error::{Class, Error, Result, refuse};
use crate::rule::update::read_time;

const COLUMNS: &str = "r.id, r.uuid, r.account, r.did_id, d.scope, d.name, r.did_type, r.copies, r.rse_expression, r.weight,
    r.source_replica_expression, r.grouping, r.state, r.locks_ok_cnt, r.locks_replicating_cnt, r.locks_stuck_cnt,
    r.expires_at, r.eol_at, r.locked, r.activity, r.priority, r.comments, r.meta, r.notification, r.purge_replicas,
    r.ignore_availability, r.ignore_account_limit, r.split_container, r.child_rule_id, r.subscription_id, r.error,
    r.stuck_at, r.suspended_by, r.incomplete, r.cursor_dataset, r.cursor_file, r.repair_at, r.created_at, r.updated_at,
    r.deleted_at";

fn from_row(row: &Row) -> Result<Rule> {
    let cursor_file = row.opt_int(35)?;
    Ok(Rule {
        id: row.int(0)?,
        uuid: row.text(1)?.to_owned(),
        account: row.text(2)?.to_owned(),
        did_id: row.int(3)?,
        did: Did::new(row.text(4)?, row.text(5)?),
        did_type: row.state::<DidType>(6)?,
        copies: row.int(7)?,
        rse_expression: row.text(8)?.to_owned(),
        weight: row.opt_text(9)?,
        source_replica_expression: row.opt_text(10)?,
        grouping: row.state::<Grouping>(11)?,
        state: row.state::<RuleState>(12)?,
        counts: Counts { ok: row.int(13)?, replicating: row.int(14)?, stuck: row.int(15)? },
        expires_at: row.opt_int(16)?,
        eol_at: row.opt_int(17)?,
        locked: row.flag(18)?,
        activity: row.text(19)?.to_owned(),
        priority: row.int(20)?,
        comments: row.opt_text(21)?,
        meta: row.opt_text(22)?,
        notification: row.state::<Notification>(23)?,
        purge_replicas: row.flag(24)?,
        ignore_availability: row.flag(25)?,
        ignore_account_limit: row.flag(26)?,
        split_container: row.flag(27)?,
        child_rule_id: row.opt_int(28)?,
        subscription_id: row.opt_text(29)?,
        error: row.opt_text(30)?,
        stuck_at: row.opt_int(31)?,
        suspended_by: row.opt_text(32)?,
        incomplete: row.flag(33)?,
        cursor: row.opt_int(34)?.map(|dataset| (dataset, cursor_file.unwrap_or(0))),
        repair_at: row.int(36)?,
        created_at: row.int(37)?,
        updated_at: row.int(38)?,
        deleted_at: row.opt_int(39)?,
    })
}

pub(crate) fn by_ids(tx: &mut Tx<'_>, ids: Vec<i64>) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM rules r JOIN dids d ON d.id = r.did_id WHERE r.id IN ARRAY(?1) ORDER BY r.id"
    );
    tx.query(&sql, values![ids])?.iter().map(from_row).collect()
}

/// The same on PostgreSQL, with the rules that wait for them; all rows are locked in order.
pub(crate) fn held_by_ids(tx: &mut Tx<'_>, ids: Vec<i64>) -> Result<Vec<Rule>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM rules r JOIN dids d ON d.id = r.did_id WHERE r.id = ANY (ARRAY(SELECT unnest(?1::bigint[])
         UNION SELECT p.id FROM rules p WHERE p.child_rule_id IN ARRAY(?1))) ORDER BY r.id LOCK ROWS OF r"
    );
    tx.query(&sql, values![ids])?.iter().map(from_row).collect()
}

/// Locks the rows of rules by number, with the rules that wait for them, and reads them. Deleted
/// rules are left out.
pub fn lock_rules(tx: &mut Tx<'_>, ids: &BTreeSet<i64>) -> Result<Vec<Rule>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rules: Vec<i64> = ids.iter().copied().collect();
    if !tx.is_postgres() {
        return by_ids(tx, rules);
    }
    let mut found = held_by_ids(tx, rules)?;
    found.retain(|rule| ids.contains(&rule.id));
    Ok(found)
}

pub fn not_found(uuid: &str) -> Error {
    let shown: String = uuid.chars().take(60).collect();
    refuse(Class::RuleNotFound, format!("No rule with the id {shown} found"))
}

/// An identity as it is stored: 32 digits.
pub fn plain(uuid: &str) -> String {
    uuid.replace('-', "").to_ascii_lowercase()
}

/// The rule with this identity, as 32 digits or with dashes.
pub fn rule(tx: &mut Tx<'_>, uuid: &str) -> Result<Rule> {
    let sql =
        format!("SELECT {COLUMNS} FROM rules r JOIN dids d ON d.id = r.did_id WHERE r.uuid = ?1");
    let row = tx.first(&sql, values![plain(uuid)])?.ok_or_else(|| not_found(uuid))?;
    from_row(&row)
}

/// The rule with this number.
pub(crate) fn rule_by_id(tx: &mut Tx<'_>, id: i64) -> Result<Option<Rule>> {
    Ok(by_ids(tx, vec![id])?.into_iter().next())
}

/// How the value of a filter is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// A text in which `*` stands for anything, in this column.
    Pattern(&'static str),
    /// The identity of a rule.
    Identity,
    Number,
    Flag,
    State,
    DidType,
    Grouping,
    Notification,
    /// A time in seconds; stored times are finer.
    Second,
    Moment,
}

/// The keys that rules can be listed by, which are all shown fields. `#` stands for the value.
const FILTERS: &[(&str, &str, Kind)] = &[
    ("id", "r.uuid = #", Kind::Identity),
    ("account", "r.account = #", Kind::Text),
    ("scope", "d.scope = #", Kind::Pattern("d.scope")),
    ("name", "d.name = #", Kind::Text),
    ("did_type", "r.did_type = #", Kind::DidType),
    ("rse_expression", "r.rse_expression = #", Kind::Text),
    ("copies", "r.copies = #", Kind::Number),
    ("grouping", "r.grouping = #", Kind::Grouping),
    ("state", "r.state = #", Kind::State),
    ("locks_ok_cnt", "r.locks_ok_cnt = #", Kind::Number),
    ("locks_replicating_cnt", "r.locks_replicating_cnt = #", Kind::Number),
    ("locks_stuck_cnt", "r.locks_stuck_cnt = #", Kind::Number),
    ("locked", "r.locked = #", Kind::Flag),
    ("weight", "r.weight = #", Kind::Text),
    ("source_replica_expression", "r.source_replica_expression = #", Kind::Text),
    ("activity", "r.activity = #", Kind::Text),
    ("notification", "r.notification = #", Kind::Notification),
    ("purge_replicas", "r.purge_replicas = #", Kind::Flag),
    ("ignore_availability", "r.ignore_availability = #", Kind::Flag),
    ("ignore_account_limit", "r.ignore_account_limit = #", Kind::Flag),
    ("comments", "r.comments = #", Kind::Text),
    ("priority", "r.priority = #", Kind::Number),
    (
        "child_rule_id",
        "r.child_rule_id = (SELECT c.id FROM rules c WHERE c.uuid = #)",
        Kind::Identity,
    ),
    ("subscription_id", "r.subscription_id = #", Kind::Text),
    ("split_container", "r.split_container = #", Kind::Flag),
    ("meta", "r.meta = #", Kind::Text),
    ("error", "r.error = #", Kind::Text),
    ("expires_at", "r.expires_at / 1000000 = #", Kind::Second),
    ("eol_at", "r.eol_at / 1000000 = #", Kind::Second),
    ("stuck_at", "r.stuck_at / 1000000 = #", Kind::Second),
    ("created_at", "r.created_at / 1000000 = #", Kind::Second),
    ("updated_at", "r.updated_at / 1000000 = #", Kind::Second),
    ("deleted_at", "r.deleted_at / 1000000 = #", Kind::Second),
    ("created_before", "r.created_at < #", Kind::Moment),
    ("created_after", "r.created_at > #", Kind::Moment),
    ("updated_before", "r.updated_at < #", Kind::Moment),
    ("updated_after", "r.updated_at > #", Kind::Moment),
];

impl Kind {
    /// Parses a value; the error is the expected form.
    fn read(self, text: &str) -> Result<Value, &'static str> {
        let word = |word: Option<&'static str>| word.map(Value::from);
        match self {
            Self::Text | Self::Pattern(_) => Ok(Value::from(text)),
            Self::Identity => Ok(Value::from(plain(text))),
            Self::Number => text.parse().map(Value::Int).map_err(|_| "a whole number"),
            Self::Flag => match text.to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(Value::Int(1)),
                "false" | "0" => Ok(Value::Int(0)),
                _ => Err("true or false"),
            },
            Self::State => {
                word(RuleState::read(text).map(RuleState::letter)).ok_or("R, O, S, U, W or I")
            }
            Self::DidType => word(DidType::read(text).map(DidType::letter)).ok_or("F, D or C"),
            Self::Grouping => word(Grouping::read(text).map(Grouping::letter)).ok_or("A, D or N"),
            Self::Notification => {
                word(Notification::read(text).map(Notification::letter)).ok_or("Y, N, C or P")
            }
            Self::Second => {
                read_time(text).map(|at| Value::Int(at.div_euclid(SECOND))).ok_or("a date")
            }
            Self::Moment => read_time(text).map(Value::Int).ok_or("a date"),
        }
    }
}

/// Selects the rules to list; empty selects all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Conditions, each with the value of its `#`.
    conditions: Vec<(&'static str, Value)>,
    /// Columns, each with the pattern it must match.
    patterns: Vec<(&'static str, String)>,
}

impl Filter {
    /// The rules of one data identifier.
    #[must_use]
    pub fn of_did(id: i64) -> Self {
        Self { conditions: vec![("r.did_id = #", Value::Int(id))], ..Self::default() }
    }

    /// The rules of one account.
    #[must_use]
    pub fn of_account(account: &str) -> Self {
        Self { conditions: vec![("r.account = #", Value::from(account))], ..Self::default() }
    }

    /// Restricts the filter to rules whose `key` has this value.
    pub fn and(mut self, key: &str, text: &str) -> Result<Self> {
        let Some((_, condition, kind)) = FILTERS.iter().find(|(name, ..)| *name == key) else {
            let message = format!("Rules cannot be listed by {key:.40}");
            return Err(refuse(Class::InputValidationError, message));
        };
        let value = kind.read(text).map_err(|should| {
            refuse(Class::InvalidObject, format!("The filter {key} should be {should}"))
        })?;
        match *kind {
            Kind::Pattern(column) if text.contains('*') => {
                self.patterns.push((column, text.to_owned()));
            }
            _ => self.conditions.push((condition, value)),
        }
        Ok(self)
    }
}

/// A pattern with `*` as a PostgreSQL LIKE pattern.
fn like(pattern: &str) -> String {
    pattern.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%")
}

/// A pattern with `*` as a SQLite GLOB pattern, because LIKE ignores case there.
fn glob(pattern: &str) -> String {
    pattern.replace('[', "[[]").replace('?', "[?]")
}

/// Calls `each` for the rules that a filter selects, oldest first.
pub fn list(
    tx: &mut Tx<'_>,
    filter: &Filter,
    each: &mut dyn FnMut(Rule) -> Result<()>,
) -> Result<()> {
    let mut conditions = Vec::new();
    let mut params: Vec<Value> = Vec::new();
    for (condition, value) in &filter.conditions {
        params.push(value.clone());
        conditions.push(condition.replace('#', &format!("?{}", params.len())));
    }
    for (column, pattern) in &filter.patterns {
        let (matches, pattern) = match tx.is_postgres() {
            true => ("LIKE # ESCAPE '\\'", like(pattern)),
            false => ("GLOB #", glob(pattern)),
        };
        params.push(Value::from(pattern));
        conditions.push(format!("{column} {matches}").replace('#', &format!("?{}", params.len())));
    }
    let conditions =
        if conditions.is_empty() { "1 = 1".to_owned() } else { conditions.join(" AND ") };
    let sql = format!(
        "SELECT {COLUMNS} FROM rules r JOIN dids d ON d.id = r.did_id WHERE {conditions} ORDER BY r.id"
    );
    tx.for_each(&sql, &params, &mut |row| each(from_row(&row)?))
}

/// The rules of a data identifier and of all its ancestors.
pub fn associated(tx: &mut Tx<'_>, did: i64) -> Result<Vec<Rule>> {
    let above: Vec<i64> = mainstay_catalog::order::ancestors(tx, &[did])?.into_iter().collect();
    let sql = "SELECT id FROM rules WHERE did_id IN ARRAY(?1)";
    let ids =
        tx.query(sql, values![above])?.iter().map(|row| Ok(row.int(0)?)).collect::<Result<_>>()?;
    by_ids(tx, ids)
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a lock")]
pub struct Lock {
    pub rule: String,
    pub did: Did,
    pub rse_id: i64,
    pub rse: String,
    pub state: LockState,
    pub bytes: i64,
    pub repair_cnt: i64,
    pub updated_at: Micros,
}

/// Calls `each` for the locks of a rule, by file.
pub fn locks(tx: &mut Tx<'_>, rule: &Rule, each: &mut dyn FnMut(Lock) -> Result<()>) -> Result<()> {
    let uuid = rule.uuid.clone();
    tx.for_each(
        "SELECT d.scope, d.name, l.rse_id, r.rse, l.state, l.bytes, l.repair_cnt, l.updated_at FROM locks l
         JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id WHERE l.rule_id = ?1 ORDER BY l.did_id, l.rse_id",
        values![rule.id],
        &mut |row| {
            each(Lock {
                rule: uuid.clone(),
                did: Did::new(row.text(0)?, row.text(1)?),
                rse_id: row.int(2)?,
                rse: row.text(3)?.to_owned(),
                state: row.state::<LockState>(4)?,
                bytes: row.int(5)?,
                repair_cnt: row.int(6)?,
                updated_at: row.int(7)?,
            })
        },
    )
}

/// One dataset lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of a dataset lock")]
pub struct DatasetLock {
    pub rule: String,
    pub account: String,
    pub did: Did,
    pub rse_id: i64,
    pub rse: String,
    pub state: LockState,
    pub length: Option<i64>,
    pub bytes: Option<i64>,
    pub accessed_at: Option<Micros>,
}

/// Selects dataset locks by rule, dataset or RSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "what the number is of")]
pub enum DatasetLocksOf {
    Rule(i64),
    Dataset(i64),
    Rse(i64),
}

/// The dataset locks of a rule, a dataset or an RSE.
pub fn dataset_locks(tx: &mut Tx<'_>, of: DatasetLocksOf) -> Result<Vec<DatasetLock>> {
    let (column, id) = match of {
        DatasetLocksOf::Rule(id) => ("rule_id", id),
        DatasetLocksOf::Dataset(id) => ("did_id", id),
        DatasetLocksOf::Rse(id) => ("rse_id", id),
    };
    let sql = format!(
        "SELECT u.uuid, u.account, d.scope, d.name, l.rse_id, r.rse, l.state, l.length, l.bytes, l.accessed_at
         FROM dataset_locks l JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id
         JOIN rses r ON r.id = l.rse_id WHERE l.{column} = ?1 ORDER BY l.rule_id, l.did_id, l.rse_id"
    );
    let rows = tx.query(&sql, values![id])?;
    let lock = |row: &Row| {
        Ok(DatasetLock {
            rule: row.text(0)?.to_owned(),
            account: row.text(1)?.to_owned(),
            did: Did::new(row.text(2)?, row.text(3)?),
            rse_id: row.int(4)?,
            rse: row.text(5)?.to_owned(),
            state: row.state::<LockState>(6)?,
            length: row.opt_int(7)?,
            bytes: row.opt_int(8)?,
            accessed_at: row.opt_int(9)?,
        })
    };
    rows.iter().map(lock).collect()
}
