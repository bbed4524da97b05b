//! The invariants of the catalog, checked over all of it by SQL while it is in use.
//!
//! | | |
//! |---|---|
//! | I1 | a replica's lock count is the number of its locks, and every lock has a replica |
//! | I2 | a rule's three counters are its locks by state |
//! | I3 | every file of a rule that was evaluated has as many locks as the rule wants copies, unless the rule is stuck with an error |
//! | I4 | no rule locks a file outside its tree |
//! | I5 | a replicating lock has a copying replica and exactly one live request |
//! | I6 | a locked replica has no tombstone |
//! | I7 | usage of an account is the sum of its locks, that of an RSE the sum of its replicas |
//! | I8 | the copies of a file for one rule are on distinct RSEs |
//! | I9 | every file that a worker may be writing has a replica |
//!
//! I3 and I4 ignore changes that the evaluator has not processed yet.

use mainstay_catalog::ledger::OWN_COUNT;
use mainstay_catalog::opening::CATALOG;
use mainstay_catalog::{self as catalog, Catalog, Row, Tx, values};

use crate::api::Micros;
use crate::error::{Error, Result};

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` … `I9`.
    pub invariant: &'static str,
    /// The description, in one sentence.
    pub what: String,
}

/// The files below each rule (`files`), and the rules with pending work of the evaluator
/// (`pending`).
const TREES: &str = "WITH RECURSIVE down(rule_id, id, did_type) AS (SELECT id, did_id, did_type FROM rules
    UNION SELECT d.rule_id, c.child, c.child_type FROM down d JOIN contents c ON c.parent = d.id WHERE d.did_type = 'C'),
    pending(rule_id) AS (SELECT DISTINCT d.rule_id FROM down d JOIN updated_dids u ON u.did_id = d.id),
    files(rule_id, did_id) AS (SELECT DISTINCT d.rule_id, c.child FROM down d JOIN contents c ON c.parent = d.id
        WHERE d.did_type = 'D' UNION ALL SELECT id, did_id FROM rules WHERE did_type = 'F')";

struct Law {
    name: &'static str,
    sql: String,
    tell: fn(&Row) -> Result<String>,
}

fn laws() -> Vec<Law> {
    let law = |name, sql: &str, tell| Law { name, sql: sql.to_owned(), tell };
    vec![
        law(
            "I1",
            "SELECT d.scope, d.name, r.rse, p.lock_cnt, COALESCE(l.locks, 0) FROM replicas p
             LEFT JOIN (SELECT did_id, rse_id, COUNT(*) AS locks FROM locks GROUP BY did_id, rse_id) l
             ON l.did_id = p.did_id AND l.rse_id = p.rse_id JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id
             WHERE p.lock_cnt <> COALESCE(l.locks, 0) LIMIT ?1",
            |row| Ok(format!("{}:{} on {} counts {} locks and has {}", row.text(0)?, row.text(1)?, row.text(2)?, row.int(3)?, row.int(4)?)),
        ),
        law(
            "I1",
            "SELECT u.uuid, l.did_id, l.rse_id FROM locks l LEFT JOIN rules u ON u.id = l.rule_id
             LEFT JOIN replicas p ON p.did_id = l.did_id AND p.rse_id = l.rse_id WHERE p.did_id IS NULL OR u.id IS NULL LIMIT ?1",
            |row| Ok(format!("rule {} locks file {} on RSE {}, where there is no replica", row.opt_text(0)?.unwrap_or_default(), row.int(1)?, row.int(2)?)),
        ),
        law(
            "I2",
            "SELECT u.uuid, u.locks_ok_cnt, u.locks_replicating_cnt, u.locks_stuck_cnt, COALESCE(l.ok, 0), COALESCE(l.replicating, 0),
             COALESCE(l.stuck, 0) FROM rules u LEFT JOIN (SELECT rule_id, CAST(SUM(CASE WHEN state = 'O' THEN 1 ELSE 0 END) AS BIGINT) AS ok,
             CAST(SUM(CASE WHEN state = 'R' THEN 1 ELSE 0 END) AS BIGINT) AS replicating,
             CAST(SUM(CASE WHEN state = 'S' THEN 1 ELSE 0 END) AS BIGINT) AS stuck FROM locks GROUP BY rule_id) l ON l.rule_id = u.id
             WHERE u.locks_ok_cnt <> COALESCE(l.ok, 0) OR u.locks_replicating_cnt <> COALESCE(l.replicating, 0)
             OR u.locks_stuck_cnt <> COALESCE(l.stuck, 0) LIMIT ?1",
            |row| {
                Ok(format!(
                    "rule {} counts {}/{}/{} and has {}/{}/{}",
                    row.text(0)?, row.int(1)?, row.int(2)?, row.int(3)?, row.int(4)?, row.int(5)?, row.int(6)?
                ))
            },
        ),
        Law {
            name: "I3",
            sql: format!(
                "{TREES} SELECT u.uuid, d.scope, d.name, COALESCE(l.locks, 0), u.copies FROM files f JOIN rules u ON u.id = f.rule_id
                 JOIN dids d ON d.id = f.did_id LEFT JOIN (SELECT rule_id, did_id, COUNT(*) AS locks FROM locks GROUP BY rule_id, did_id) l
                 ON l.rule_id = f.rule_id AND l.did_id = f.did_id WHERE COALESCE(l.locks, 0) <> u.copies
                 AND u.state NOT IN ('I', 'W', 'U') AND u.deleted_at IS NULL AND NOT (u.state = 'S' AND u.error IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM pending p WHERE p.rule_id = u.id) LIMIT ?1"
            ),
            tell: |row| {
                Ok(format!("rule {} has {} locks on {}:{} and wants {}", row.text(0)?, row.int(3)?, row.text(1)?, row.text(2)?, row.int(4)?))
            },
        },
        Law {
            name: "I4",
            sql: format!(
                "{TREES} SELECT u.uuid, d.scope, d.name FROM locks l JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id
                 LEFT JOIN files f ON f.rule_id = l.rule_id AND f.did_id = l.did_id WHERE f.did_id IS NULL
                 AND NOT EXISTS (SELECT 1 FROM pending p WHERE p.rule_id = u.id)
                 AND NOT EXISTS (SELECT 1 FROM detached x WHERE x.child = l.did_id) LIMIT ?1"
            ),
            tell: |row| Ok(format!("rule {} locks {}:{}, which is not below it", row.text(0)?, row.text(1)?, row.text(2)?)),
        },
        law(
            "I5",
            "SELECT u.uuid, d.scope, d.name, r.rse, COALESCE(p.state, '-'), (SELECT COUNT(*) FROM requests q WHERE q.did_id = l.did_id
             AND q.dest_rse_id = l.rse_id) FROM locks l LEFT JOIN replicas p ON p.did_id = l.did_id AND p.rse_id = l.rse_id
             JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id
             WHERE l.state = 'R' AND (COALESCE(p.state, '-') <> 'C' OR (SELECT COUNT(*) FROM requests q WHERE q.did_id = l.did_id
             AND q.dest_rse_id = l.rse_id) <> 1) LIMIT ?1",
            |row| {
                Ok(format!(
                    "rule {} waits for {}:{} on {}, where the replica is in state {} and {} requests are live",
                    row.text(0)?, row.text(1)?, row.text(2)?, row.text(3)?, row.text(4)?, row.int(5)?
                ))
            },
        ),
        law(
            "I6",
            "SELECT d.scope, d.name, r.rse FROM replicas p JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id
             WHERE p.tombstone IS NOT NULL AND p.lock_cnt > 0 LIMIT ?1",
            |row| Ok(format!("{}:{} on {} is locked and has a tombstone", row.text(0)?, row.text(1)?, row.text(2)?)),
        ),
        law(
            "I7",
            "SELECT COALESCE(g.account, l.account), r.rse, COALESCE(g.files, 0), COALESCE(g.bytes, 0), COALESCE(l.files, 0), COALESCE(l.bytes, 0)
             FROM account_usage g FULL JOIN (SELECT u.account AS account, k.rse_id AS rse_id, COUNT(*) AS files,
             CAST(SUM(k.bytes) AS BIGINT) AS bytes FROM locks k JOIN rules u ON u.id = k.rule_id GROUP BY u.account, k.rse_id) l
             ON l.account = g.account AND l.rse_id = g.rse_id JOIN rses r ON r.id = COALESCE(g.rse_id, l.rse_id)
             WHERE COALESCE(g.files, 0) <> COALESCE(l.files, 0) OR COALESCE(g.bytes, 0) <> COALESCE(l.bytes, 0) LIMIT ?1",
            |row| {
                Ok(format!(
                    "account {} uses {} files, {} bytes on {} and its locks are {} files, {} bytes",
                    row.text(0)?, row.int(2)?, row.int(3)?, row.text(1)?, row.int(4)?, row.int(5)?
                ))
            },
        ),
        Law {
            name: "I7",
            sql: format!(
                "SELECT r.rse, COALESCE(g.files, 0), COALESCE(g.used, 0), COALESCE(l.files, 0), COALESCE(l.bytes, 0) FROM rses r
                 LEFT JOIN rse_usage g ON g.rse_id = r.id AND g.source = '{OWN_COUNT}'
                 LEFT JOIN (SELECT rse_id, COUNT(*) AS files, CAST(SUM(bytes) AS BIGINT) AS bytes FROM replicas GROUP BY rse_id) l
                 ON l.rse_id = r.id WHERE COALESCE(g.files, 0) <> COALESCE(l.files, 0) OR COALESCE(g.used, 0) <> COALESCE(l.bytes, 0) LIMIT ?1"
            ),
            tell: |row| {
                Ok(format!(
                    "RSE {} counts {} files, {} bytes and its replicas are {} files, {} bytes",
                    row.text(0)?, row.int(1)?, row.int(2)?, row.int(3)?, row.int(4)?
                ))
            },
        },
        law(
            "I8",
            "SELECT u.uuid, d.scope, d.name FROM locks l JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id
             GROUP BY u.uuid, d.scope, d.name HAVING COUNT(*) <> COUNT(DISTINCT l.rse_id) LIMIT ?1",
            |row| Ok(format!("rule {} has two copies of {}:{} on one RSE", row.text(0)?, row.text(1)?, row.text(2)?)),
        ),
        law(
            "I9",
            "SELECT w.did_id, w.rse_id FROM (SELECT did_id, dest_rse_id AS rse_id FROM requests WHERE state = 'S'
             UNION SELECT did_id, rse_id FROM given_up) AS w LEFT JOIN replicas p ON p.did_id = w.did_id AND p.rse_id = w.rse_id
             WHERE p.did_id IS NULL LIMIT ?1",
            |row| Ok(format!("file {} may be under way to RSE {}, where there is no replica", row.int(0)?, row.int(1)?)),
        ),
    ]
}

/// Checks all invariants and lists the violations, at most `most` of each.
pub fn check(tx: &mut Tx<'_>, most: i64) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    for law in laws() {
        for row in tx.query(&law.sql, values![most])? {
            found.push(Violation { invariant: law.name, what: (law.tell)(&row)? });
        }
    }
    Ok(found)
}

/// How many violations of one invariant are listed.
const MOST: i64 = 100;

/// Looks for damage in a catalog: corrupt pages and violated invariants. Returns one line per
/// finding.
///
/// # Errors
/// If the database cannot be read for another reason than damage.
pub async fn verify(catalog: &Catalog) -> Result<Vec<String>> {
    let mut wrong = catalog.verify().await?;
    match catalog.read(|tx| check(tx, MOST)).await {
        Ok(found) => wrong.extend(
            found.into_iter().map(|found| format!("{CATALOG}{} {}", found.invariant, found.what)),
        ),
        Err(Error::Catalog(error @ catalog::Error::Damaged { .. })) => {
            wrong.push(error.to_string())
        }
        Err(error) => return Err(error),
    }
    Ok(wrong)
}

/// Recomputes counters (I1, I2, I7) from the rows they count. All rows are locked meanwhile.
pub fn repair(tx: &mut Tx<'_>, now: Micros) -> Result<u64> {
    if tx.is_postgres() {
        tx.execute(
            "LOCK TABLE dids, rules, locks, replicas, account_usage, rse_usage IN SHARE ROW EXCLUSIVE MODE",
            &[],
        )?;
    }
    let count = |state: &str| {
        format!("(SELECT COUNT(*) FROM locks l WHERE l.rule_id = rules.id AND l.state = '{state}')")
    };
    let (ok, replicating, stuck) = (count("O"), count("R"), count("S"));
    let locks = "(SELECT COUNT(*) FROM locks l WHERE l.did_id = replicas.did_id AND l.rse_id = replicas.rse_id)";
    let used = "FROM locks k JOIN rules u ON u.id = k.rule_id WHERE u.account = account_usage.account AND k.rse_id = account_usage.rse_id";
    let held = "FROM replicas p WHERE p.rse_id = rse_usage.rse_id";
    let mut mended = 0;
    for sql in [
        format!(
            "UPDATE replicas SET lock_cnt = {locks}, tombstone = CASE WHEN {locks} > 0 THEN NULL ELSE COALESCE(tombstone, created_at) END
             WHERE lock_cnt <> {locks}"
        ),
        "UPDATE replicas SET tombstone = NULL WHERE lock_cnt > 0 AND tombstone IS NOT NULL".to_owned(),
        format!(
            "UPDATE rules SET locks_ok_cnt = {ok}, locks_replicating_cnt = {replicating}, locks_stuck_cnt = {stuck}
             WHERE locks_ok_cnt <> {ok} OR locks_replicating_cnt <> {replicating} OR locks_stuck_cnt <> {stuck}"
        ),
        "INSERT INTO account_usage (account, rse_id, files, bytes) SELECT DISTINCT u.account, k.rse_id, 0, 0 FROM locks k
         JOIN rules u ON u.id = k.rule_id WHERE TRUE ON CONFLICT (account, rse_id) DO NOTHING"
            .to_owned(),
        format!(
            "UPDATE account_usage SET files = (SELECT COUNT(*) {used}), bytes = (SELECT CAST(COALESCE(SUM(k.bytes), 0) AS BIGINT) {used})
             WHERE files <> (SELECT COUNT(*) {used}) OR bytes <> (SELECT CAST(COALESCE(SUM(k.bytes), 0) AS BIGINT) {used})"
        ),
        format!(
            "INSERT INTO rse_usage (rse_id, source, used, files, updated_at) SELECT DISTINCT rse_id, '{OWN_COUNT}', 0, 0, CAST(0 AS BIGINT) FROM replicas
             WHERE TRUE ON CONFLICT (rse_id, source) DO NOTHING"
        ),
    ] {
        mended += tx.execute(&sql, &[])?;
    }
    let sql = format!(
        "UPDATE rse_usage SET files = (SELECT COUNT(*) {held}), used = (SELECT CAST(COALESCE(SUM(p.bytes), 0) AS BIGINT) {held}),
         updated_at = ?1 WHERE source = '{OWN_COUNT}' AND (files <> (SELECT COUNT(*) {held})
         OR used <> (SELECT CAST(COALESCE(SUM(p.bytes), 0) AS BIGINT) {held}))"
    );
    Ok(mended + tx.execute(&sql, values![now])?)
}
