//! Accounts, scopes, limits and usage.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_catalog::ledger::{Ledger, UsageSnapshot};
use mainstay_catalog::{Answers, Pending, Pipeline, Row, Tx, values};

use crate::api::{Micros, check_account, check_scope};
use crate::error::{Class, Result, refuse};
use crate::expression::Expression;
use crate::select::Allowance;

/// Creates an account.
pub fn add(
    tx: &mut Tx<'_>,
    account: &str,
    kind: &str,
    email: Option<&str>,
    now: Micros,
) -> Result<()> {
    check_account(account)?;
    if !matches!(kind, "USER" | "GROUP" | "SERVICE") {
        return Err(refuse(Class::InvalidObject, "An account's type is USER, GROUP or SERVICE."));
    }
    let added = tx.execute(
        "INSERT INTO accounts (account, account_type, status, email, created_at, updated_at)
         VALUES (?1, ?2, 'ACTIVE', ?3, ?4, ?4) ON CONFLICT (account) DO NOTHING",
        values![account, kind, email, now],
    )?;
    if added == 0 {
        return Err(refuse(Class::Duplicate, format!("Account ID '{account}' already exists!")));
    }
    Ok(())
}

/// Creates the account `root`, which exists from the first start on.
pub fn add_root(tx: &mut Tx<'_>, now: Micros) -> Result<()> {
    match add(tx, "root", "SERVICE", None, now) {
        Err(error) if error.class() == Some(Class::Duplicate) => Ok(()),
        other => other,
    }
}

const EXISTS: &str = "SELECT 1 FROM accounts WHERE account = ?1 AND deleted_at IS NULL";

/// Adds the query whether an account exists; [`check_found`] reads the answer.
pub(crate) fn ask_exists(ask: &mut Pipeline, account: &str) -> Pending {
    ask.query(EXISTS, values![account])
}

/// Fails unless the account exists.
pub fn check_exists(tx: &mut Tx<'_>, account: &str) -> Result<()> {
    let found = tx.first(EXISTS, values![account])?;
    check_found(found.as_ref(), account)
}

/// Fails unless a row was found for the account.
pub(crate) fn check_found(found: Option<&Row>, account: &str) -> Result<()> {
    if found.is_none() {
        let shown: String = account.chars().take(60).collect();
        return Err(refuse(
            Class::AccountNotFound,
            format!("Account with ID '{shown}' cannot be found"),
        ));
    }
    Ok(())
}

/// Gives an account a scope.
pub fn add_scope(tx: &mut Tx<'_>, scope: &str, account: &str, now: Micros) -> Result<()> {
    check_scope(scope)?;
    check_exists(tx, account)?;
    let added = tx.execute(
        "INSERT INTO scopes (scope, account, created_at) VALUES (?1, ?2, ?3) ON CONFLICT (scope) DO NOTHING",
        values![scope, account, now],
    )?;
    if added == 0 {
        return Err(refuse(Class::Duplicate, format!("Scope '{scope}' already exists!")));
    }
    Ok(())
}

/// Sets an attribute of an account.
pub fn set_attribute(
    tx: &mut Tx<'_>,
    account: &str,
    key: &str,
    value: &str,
    now: Micros,
) -> Result<()> {
    crate::rse::check_attribute(key, value)?;
    check_exists(tx, account)?;
    tx.execute(
        "INSERT INTO account_attr_map (account, key, value, created_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (account, key) DO UPDATE SET value = excluded.value",
        values![account, key, value, now],
    )?;
    Ok(())
}

/// The accounts of which an attribute has this value; true and false are written in either case.
pub fn with_attribute(tx: &mut Tx<'_>, key: &str, value: &str) -> Result<Vec<String>> {
    let sql = "SELECT account, value FROM account_attr_map WHERE key = ?1";
    let rows = tx.query(sql, values![key])?;
    let mut taken = Vec::new();
    for row in &rows {
        if row.text(1)?.eq_ignore_ascii_case(value) {
            taken.push(row.text(0)?.to_owned());
        }
    }
    Ok(taken)
}

/// Removes an attribute of an account.
pub fn delete_attribute(tx: &mut Tx<'_>, account: &str, key: &str) -> Result<()> {
    check_exists(tx, account)?;
    let sql = "DELETE FROM account_attr_map WHERE account = ?1 AND key = ?2";
    if tx.execute(sql, values![account, key])? == 0 {
        return Err(refuse(Class::KeyNotFound, format!("Account {account} has no {key:.60}")));
    }
    Ok(())
}

/// Changes an account's `status`, `email` or `account_type`. The account root cannot be suspended:
/// no other account could undo it.
pub fn update(
    tx: &mut Tx<'_>,
    account: &str,
    key: &str,
    value: Option<&str>,
    now: Micros,
) -> Result<()> {
    check_exists(tx, account)?;
    if (account, key) == ("root", "status") && value != Some("ACTIVE") {
        return Err(refuse(Class::AccessDenied, "The account root cannot be suspended"));
    }
    let sql = match (key, value) {
        ("status", Some("ACTIVE" | "SUSPENDED")) => {
            "UPDATE accounts SET status = ?2, suspended_at = CASE WHEN ?2 = 'SUSPENDED' THEN CAST(?3 AS BIGINT) END, updated_at = CAST(?3 AS BIGINT) WHERE account = ?1"
        }
        ("email", _) => "UPDATE accounts SET email = ?2, updated_at = ?3 WHERE account = ?1",
        ("account_type", Some("USER" | "GROUP" | "SERVICE")) => {
            "UPDATE accounts SET account_type = ?2, updated_at = ?3 WHERE account = ?1"
        }
        _ => {
            let message = format!("{key:.40} cannot be set to this value");
            return Err(refuse(Class::InputValidationError, message));
        }
    };
    tx.execute(sql, values![account, value, now])?;
    Ok(())
}

/// Deletes an account. Its data stays; its tokens become invalid.
pub fn delete(tx: &mut Tx<'_>, account: &str, now: Micros) -> Result<()> {
    check_exists(tx, account)?;
    if account == "root" {
        return Err(refuse(Class::AccessDenied, "The account root cannot be deleted"));
    }
    let sql = "UPDATE accounts SET status = 'DELETED', deleted_at = ?2, updated_at = ?2 WHERE account = ?1";
    tx.execute(sql, values![account, now])?;
    tx.execute("DELETE FROM tokens WHERE account = ?1", values![account])?;
    Ok(())
}

/// Gives a scope to another account.
pub fn give_scope(tx: &mut Tx<'_>, scope: &str, account: &str) -> Result<()> {
    check_exists(tx, account)?;
    let sql = "UPDATE scopes SET account = ?2 WHERE scope = ?1";
    if tx.execute(sql, values![scope, account])? == 0 {
        return Err(refuse(Class::ScopeNotFound, format!("Scope '{scope:.40}' not found!")));
    }
    Ok(())
}

/// Sets a local limit; −1 means infinite, none removes it.
pub fn set_local_limit(
    tx: &mut Tx<'_>,
    account: &str,
    rse: &str,
    bytes: Option<i64>,
) -> Result<()> {
    check_exists(tx, account)?;
    let id = crate::rse::by_name(tx, rse)?.id;
    match bytes {
        None => {
            tx.execute(
                "DELETE FROM account_limits WHERE account = ?1 AND rse_id = ?2",
                values![account, id],
            )?;
        }
        Some(bytes) => {
            tx.execute(
                "INSERT INTO account_limits (account, rse_id, bytes) VALUES (?1, ?2, ?3)
                 ON CONFLICT (account, rse_id) DO UPDATE SET bytes = excluded.bytes",
                values![account, id, bytes],
            )?;
            // The row that selections lock must exist before the first of them.
            tx.execute(
                "INSERT INTO account_usage (account, rse_id, files, bytes) VALUES (?1, ?2, 0, 0)
                 ON CONFLICT (account, rse_id) DO NOTHING",
                values![account, id],
            )?;
        }
    }
    Ok(())
}

/// Sets a limit over all RSEs of an expression; −1 means infinite, none removes it.
pub fn set_global_limit(
    tx: &mut Tx<'_>,
    account: &str,
    expression: &str,
    bytes: Option<i64>,
) -> Result<()> {
    check_exists(tx, account)?;
    Expression::parse(expression)?;
    match bytes {
        None => tx.execute(
            "DELETE FROM account_glob_limits WHERE account = ?1 AND rse_expression = ?2",
            values![account, expression],
        )?,
        Some(bytes) => tx.execute(
            "INSERT INTO account_glob_limits (account, rse_expression, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT (account, rse_expression) DO UPDATE SET bytes = excluded.bytes",
            values![account, expression, bytes],
        )?,
    };
    Ok(())
}

/// The usage and the limit of an account on one RSE, or on all RSEs of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "plain numbers")]
pub struct Usage {
    /// The RSE's number, or none for an expression.
    pub rse_id: Option<i64>,
    /// The RSE's name or the expression.
    pub on: String,
    pub files: i64,
    pub bytes: i64,
    /// The limit; none means there is no row, −1 infinite.
    pub limit: Option<i64>,
}

/// Usage and limits by RSE.
pub fn local_usage(tx: &mut Tx<'_>, account: &str) -> Result<Vec<Usage>> {
    check_exists(tx, account)?;
    let rses = crate::rse::all(tx)?;
    let mut found: BTreeMap<i64, Usage> = BTreeMap::new();
    let name = |id: i64| rses.iter().find(|rse| rse.id == id).map(|rse| rse.name.clone());
    for row in tx.query(
        "SELECT rse_id, files, bytes FROM account_usage WHERE account = ?1",
        values![account],
    )? {
        if let Some(on) = name(row.int(0)?) {
            let usage = Usage {
                rse_id: Some(row.int(0)?),
                on,
                files: row.int(1)?,
                bytes: row.int(2)?,
                limit: None,
            };
            found.insert(row.int(0)?, usage);
        }
    }
    for row in
        tx.query("SELECT rse_id, bytes FROM account_limits WHERE account = ?1", values![account])?
    {
        if let Some(on) = name(row.int(0)?) {
            let empty = Usage { rse_id: Some(row.int(0)?), on, files: 0, bytes: 0, limit: None };
            found.entry(row.int(0)?).or_insert(empty).limit = Some(row.int(1)?);
        }
    }
    let mut found: Vec<Usage> =
        found.into_values().filter(|usage| usage.limit.is_some() || usage.bytes != 0).collect();
    found.sort_by(|left, right| left.on.cmp(&right.on));
    Ok(found)
}

/// Usage and limits by expression. A limit whose expression matches no RSE has no usage.
pub fn global_usage(tx: &mut Tx<'_>, account: &str) -> Result<Vec<(Usage, BTreeSet<i64>)>> {
    let local = local_usage(tx, account)?;
    let rses = crate::rse::all(tx)?;
    let sql = "SELECT rse_expression, bytes FROM account_glob_limits WHERE account = ?1 ORDER BY rse_expression";
    let mut found = Vec::new();
    for row in tx.query(sql, values![account])? {
        let set = Expression::parse(row.text(0)?)
            .and_then(|parsed| parsed.resolve(&rses))
            .unwrap_or_default();
        let inside = local.iter().filter(|usage| usage.rse_id.is_some_and(|id| set.contains(&id)));
        let (files, bytes) =
            inside.fold((0, 0), |sum, usage| (sum.0 + usage.files, sum.1 + usage.bytes));
        let limit = Some(row.int(1)?);
        found.push((Usage { rse_id: None, on: row.text(0)?.to_owned(), files, bytes, limit }, set));
    }
    Ok(found)
}

const ALLOWED: &str = "SELECT u.rse_id, u.bytes, l.bytes,
    (SELECT 1 FROM account_attr_map m WHERE m.account = a.account AND m.key = 'admin')
    FROM accounts a LEFT LOOKUP JOIN account_usage u ON (u.account = a.account)
    LEFT LOOKUP JOIN account_limits l ON (l.account = a.account AND l.rse_id = u.rse_id) WHERE a.account = ?1";

const ALLOWED_OVER: &str =
    "SELECT rse_expression, bytes FROM account_glob_limits WHERE account = ?1";

/// The queries for the remaining quota of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedAllowance {
    local: Pending,
    global: Pending,
}

/// Their answers.
#[derive(Debug)]
pub(crate) struct Limits {
    local: Vec<Row>,
    global: Vec<Row>,
}

impl AskedAllowance {
    /// Adds the queries for the remaining quota of an account.
    pub(crate) fn ask(ask: &mut Pipeline, account: &str) -> Self {
        let local = ask.query(ALLOWED, values![account]);
        Self { local, global: ask.query(ALLOWED_OVER, values![account]) }
    }

    /// Takes their answers.
    pub(crate) fn take(self, answers: &mut Answers) -> Limits {
        Limits { local: answers.take(self.local), global: answers.take(self.global) }
    }
}

/// Reads the limits and the usage of an account.
pub(crate) fn limits(tx: &mut Tx<'_>, account: &str) -> Result<Limits> {
    let mut ask = Pipeline::default();
    let asked = AskedAllowance::ask(&mut ask, account);
    Ok(asked.take(&mut tx.run(ask)?))
}

/// The remaining quota of the account, pending changes in `ledger` included. `ledger` records the
/// rows that the result depends on.
pub(crate) fn allowance(
    tx: &mut Tx<'_>,
    account: &str,
    limits: Limits,
    ledger: &mut Ledger,
) -> Result<Allowance> {
    let Limits { local: rows, global: over } = limits;
    if rows.first().map_or(Ok(None), |row| row.opt_int(3))?.is_some() {
        return Ok(Allowance { unlimited: true, ..Allowance::default() });
    }
    let mut seen = UsageSnapshot::default();
    let mut local = BTreeMap::new();
    for row in rows {
        let Some(rse) = row.opt_int(0)? else { continue };
        let used = row.int(1)?;
        seen.used.insert(rse, used);
        let Some(limit) = row.opt_int(2)? else { continue };
        if limit >= 0 {
            seen.local.insert(rse, limit);
        }
        local.insert(rse, (limit >= 0).then(|| limit - used - ledger.used(account, rse)));
    }
    let mut global = Vec::new();
    if !over.is_empty() {
        let rses = crate::rse::all(tx)?;
        for row in over {
            // A limit whose expression no longer matches any RSE has no effect.
            let Ok(set) = Expression::parse(row.text(0)?).and_then(|parsed| parsed.resolve(&rses))
            else {
                continue;
            };
            let limit = row.int(1)?;
            if limit < 0 {
                global.push((set, None));
                continue;
            }
            let of =
                |rse: &i64| seen.used.get(rse).copied().unwrap_or(0) + ledger.used(account, *rse);
            let used: i64 = set.iter().map(of).sum();
            seen.global.push((set.clone(), limit));
            global.push((set, Some(limit - used)));
        }
    }
    ledger.rests_on(account, seen);
    Ok(Allowance { unlimited: false, local, global })
}
