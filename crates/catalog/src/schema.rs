//! The tables of the catalog: every migration in order, applied at start.
//!
//! One text serves both databases; four words are replaced for each: `BIGID` (a number assigned by
//! the database), `BIGKEY` (a number that is the primary key), `CLUSTERED` (rows stored in the
//! order of the primary key) and `FILLED n` (the fill factor of pages in percent, which leaves
//! space for updates in place). Names are stored in `dids` only; other tables refer to them by
//! number, so that a lock takes four numbers. The views `named_*` show the same rows with names,
//! for people.

use std::collections::BTreeSet;

use super::engine::{Engine, Mode};
use crate::error::{Error, Result};
use crate::values;

const MIGRATIONS: &[&str] = &[
    // 1: the catalog
    "CREATE TABLE accounts (account TEXT PRIMARY KEY, account_type TEXT NOT NULL, status TEXT NOT NULL, email TEXT,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, suspended_at BIGINT, deleted_at BIGINT) CLUSTERED;
    CREATE TABLE account_attr_map (account TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
        created_at BIGINT NOT NULL, PRIMARY KEY (account, key)) CLUSTERED;
    CREATE TABLE scopes (scope TEXT PRIMARY KEY, account TEXT NOT NULL, created_at BIGINT NOT NULL) CLUSTERED;
    CREATE INDEX scopes_account ON scopes (account);
    CREATE TABLE rses (id BIGID, uuid TEXT NOT NULL UNIQUE, rse TEXT NOT NULL, rse_type TEXT NOT NULL,
        deterministic BIGINT NOT NULL, volatile BIGINT NOT NULL, staging_area BIGINT NOT NULL,
        availability_read BIGINT NOT NULL, availability_write BIGINT NOT NULL, availability_delete BIGINT NOT NULL,
        deleted BIGINT NOT NULL DEFAULT 0, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, deleted_at BIGINT);
    CREATE UNIQUE INDEX rses_rse ON rses (rse) WHERE deleted = 0;
    CREATE TABLE rse_attr_map (rse_id BIGINT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (rse_id, key)) CLUSTERED;
    CREATE TABLE rse_limits (rse_id BIGINT NOT NULL, name TEXT NOT NULL, value BIGINT NOT NULL,
        PRIMARY KEY (rse_id, name)) CLUSTERED;
    CREATE TABLE rse_usage (rse_id BIGINT NOT NULL, source TEXT NOT NULL, used BIGINT NOT NULL, free BIGINT,
        files BIGINT NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (rse_id, source)) CLUSTERED FILLED 20;
    CREATE TABLE versions (name TEXT PRIMARY KEY, value BIGINT NOT NULL) CLUSTERED;
    CREATE TABLE dids (id BIGID, scope TEXT NOT NULL, name TEXT NOT NULL, did_type TEXT NOT NULL, account TEXT NOT NULL,
        is_open BIGINT, monotonic BIGINT NOT NULL DEFAULT 0, availability TEXT NOT NULL DEFAULT 'A',
        bytes BIGINT, length BIGINT, md5 TEXT, adler32 TEXT, expired_at BIGINT, closed_at BIGINT, accessed_at BIGINT,
        meta TEXT, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL) FILLED 90;
    CREATE UNIQUE INDEX dids_name ON dids (scope, name);
    CREATE INDEX dids_expired ON dids (expired_at) WHERE expired_at IS NOT NULL;
    CREATE TABLE contents (parent BIGINT NOT NULL, child BIGINT NOT NULL, child_type TEXT NOT NULL, bytes BIGINT,
        rule_evaluation BIGINT, created_at BIGINT NOT NULL, PRIMARY KEY (parent, child)) CLUSTERED;
    CREATE INDEX contents_child ON contents (child, parent);
    CREATE INDEX contents_new ON contents (parent) WHERE rule_evaluation = 1;
    CREATE TABLE contents_history (parent BIGINT NOT NULL, child BIGINT NOT NULL, bytes BIGINT, created_at BIGINT NOT NULL,
        deleted_at BIGINT NOT NULL);
    CREATE INDEX contents_history_parent ON contents_history (parent);
    CREATE TABLE updated_dids (id BIGID, did_id BIGINT NOT NULL, rule_evaluation_action TEXT NOT NULL,
        created_at BIGINT NOT NULL, not_before BIGINT NOT NULL DEFAULT 0);
    CREATE UNIQUE INDEX updated_dids_did ON updated_dids (did_id, rule_evaluation_action);
    CREATE TABLE detached (parent BIGINT NOT NULL, child BIGINT NOT NULL, child_type TEXT NOT NULL,
        PRIMARY KEY (parent, child)) CLUSTERED;
    CREATE TABLE replicas (did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL, bytes BIGINT NOT NULL, state TEXT NOT NULL,
        lock_cnt BIGINT NOT NULL DEFAULT 0, accessed_at BIGINT, tombstone BIGINT, path TEXT,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (did_id, rse_id)) CLUSTERED FILLED 50;
    CREATE INDEX replicas_tombstone ON replicas (rse_id, tombstone) WHERE tombstone IS NOT NULL;
    CREATE INDEX replicas_deleting ON replicas (rse_id) WHERE state = 'B';
    CREATE TABLE bad_replicas (id BIGID, did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL, reason TEXT, account TEXT,
        created_at BIGINT NOT NULL);
    CREATE TABLE rules (id BIGID, uuid TEXT NOT NULL UNIQUE, account TEXT NOT NULL, did_id BIGINT NOT NULL,
        did_type TEXT NOT NULL, copies BIGINT NOT NULL, rse_expression TEXT NOT NULL, weight TEXT,
        source_replica_expression TEXT, grouping TEXT NOT NULL, state TEXT NOT NULL,
        locks_ok_cnt BIGINT NOT NULL DEFAULT 0, locks_replicating_cnt BIGINT NOT NULL DEFAULT 0,
        locks_stuck_cnt BIGINT NOT NULL DEFAULT 0, expires_at BIGINT, eol_at BIGINT, locked BIGINT NOT NULL,
        activity TEXT NOT NULL, priority BIGINT NOT NULL, comments TEXT, meta TEXT, notification TEXT NOT NULL,
        purge_replicas BIGINT NOT NULL, ignore_availability BIGINT NOT NULL, ignore_account_limit BIGINT NOT NULL,
        split_container BIGINT NOT NULL, child_rule_id BIGINT, subscription_id TEXT, error TEXT, stuck_at BIGINT,
        suspended_by TEXT, incomplete BIGINT NOT NULL DEFAULT 0, cursor_dataset BIGINT, cursor_file BIGINT,
        repair_at BIGINT NOT NULL DEFAULT 0, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, deleted_at BIGINT)
        FILLED 50;
    CREATE UNIQUE INDEX rules_key ON rules (did_id, account, rse_expression, copies);
    CREATE INDEX rules_account ON rules (account);
    CREATE INDEX rules_expires ON rules (expires_at) WHERE expires_at IS NOT NULL;
    CREATE INDEX rules_unsettled ON rules (state) WHERE state IN ('S', 'I', 'W', 'U');
    CREATE INDEX rules_child ON rules (child_rule_id) WHERE child_rule_id IS NOT NULL;
    CREATE INDEX rules_deleted ON rules (deleted_at) WHERE deleted_at IS NOT NULL;
    CREATE TABLE rules_history (id BIGID, rule_uuid TEXT NOT NULL, did_id BIGINT NOT NULL, event TEXT NOT NULL,
        account TEXT NOT NULL, rse_expression TEXT NOT NULL, copies BIGINT NOT NULL, state TEXT NOT NULL,
        locks_ok_cnt BIGINT NOT NULL, locks_replicating_cnt BIGINT NOT NULL, locks_stuck_cnt BIGINT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL);
    CREATE INDEX rules_history_rule ON rules_history (rule_uuid);
    CREATE INDEX rules_history_did ON rules_history (did_id);
    CREATE TABLE locks (rule_id BIGINT NOT NULL, did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL, bytes BIGINT NOT NULL,
        state TEXT NOT NULL, repair_cnt BIGINT NOT NULL DEFAULT 0, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (rule_id, did_id, rse_id)) CLUSTERED FILLED 85;
    CREATE INDEX locks_unit ON locks (did_id, rse_id);
    CREATE INDEX locks_stuck ON locks (rule_id) WHERE state = 'S';
    CREATE TABLE dataset_locks (rule_id BIGINT NOT NULL, did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL,
        state TEXT NOT NULL, length BIGINT, bytes BIGINT, accessed_at BIGINT, created_at BIGINT NOT NULL,
        PRIMARY KEY (rule_id, did_id, rse_id)) CLUSTERED;
    CREATE INDEX dataset_locks_did ON dataset_locks (did_id);
    CREATE INDEX dataset_locks_rse ON dataset_locks (rse_id);
    CREATE TABLE requests (id BIGID, request_type TEXT NOT NULL, did_id BIGINT NOT NULL, dest_rse_id BIGINT NOT NULL,
        source_rse_id BIGINT, state TEXT NOT NULL, rule_id BIGINT NOT NULL, activity TEXT NOT NULL,
        priority BIGINT NOT NULL, bytes BIGINT NOT NULL, retry_count BIGINT, err_msg TEXT, attributes TEXT,
        external_id TEXT, requested_at BIGINT NOT NULL, submitted_at BIGINT, updated_at BIGINT NOT NULL);
    CREATE UNIQUE INDEX requests_unit ON requests (did_id, dest_rse_id, request_type);
    CREATE INDEX requests_ended ON requests (state, id) WHERE state NOT IN ('Q');
    CREATE TABLE requests_history (id BIGINT NOT NULL, request_type TEXT NOT NULL, did_id BIGINT NOT NULL,
        dest_rse_id BIGINT NOT NULL, source_rse_id BIGINT, state TEXT NOT NULL, rule_id BIGINT NOT NULL,
        activity TEXT NOT NULL, bytes BIGINT NOT NULL, retry_count BIGINT, err_msg TEXT, requested_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL);
    CREATE INDEX requests_history_unit ON requests_history (did_id, dest_rse_id);
    CREATE TABLE account_limits (account TEXT NOT NULL, rse_id BIGINT NOT NULL, bytes BIGINT NOT NULL,
        PRIMARY KEY (account, rse_id)) CLUSTERED;
    CREATE TABLE account_glob_limits (account TEXT NOT NULL, rse_expression TEXT NOT NULL, bytes BIGINT NOT NULL,
        PRIMARY KEY (account, rse_expression)) CLUSTERED;
    CREATE TABLE account_usage (account TEXT NOT NULL, rse_id BIGINT NOT NULL, files BIGINT NOT NULL, bytes BIGINT NOT NULL,
        PRIMARY KEY (account, rse_id)) CLUSTERED FILLED 20;
    CREATE TABLE messages (id BIGID, event_type TEXT NOT NULL, payload TEXT NOT NULL, services TEXT,
        created_at BIGINT NOT NULL);
    CREATE TABLE judges (server TEXT PRIMARY KEY, seen_at BIGINT NOT NULL) CLUSTERED;
    CREATE VIEW named_locks AS SELECT u.uuid AS rule_id, d.scope, d.name, r.rse, l.state, l.bytes, l.repair_cnt
        FROM locks l JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id;
    CREATE VIEW named_replicas AS SELECT d.scope, d.name, r.rse, p.state, p.bytes, p.lock_cnt, p.tombstone
        FROM replicas p JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id;
    CREATE VIEW named_requests AS SELECT q.id, d.scope, d.name, r.rse, q.request_type, q.state, q.activity, q.retry_count, q.err_msg
        FROM requests q JOIN dids d ON d.id = q.did_id JOIN rses r ON r.id = q.dest_rse_id;
    INSERT INTO versions VALUES ('rses', 1)",
    // 2: a rule that is being deleted no longer occupies its unique key
    "ALTER TABLE rules ADD COLUMN soft_deleted BIGINT NOT NULL DEFAULT 0;
    DROP INDEX rules_key;
    CREATE UNIQUE INDEX rules_key ON rules (did_id, account, rse_expression, copies) WHERE soft_deleted = 0;
    CREATE INDEX rules_did ON rules (did_id)",
    // 3: logins, storage protocols, and the workers of transfers
    "CREATE TABLE identities (identity TEXT NOT NULL, identity_type TEXT NOT NULL, password TEXT, email TEXT,
        created_at BIGINT NOT NULL, PRIMARY KEY (identity, identity_type)) CLUSTERED;
    CREATE TABLE account_map (identity TEXT NOT NULL, identity_type TEXT NOT NULL, account TEXT NOT NULL,
        is_default BIGINT NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (identity, identity_type, account)) CLUSTERED;
    CREATE INDEX account_map_account ON account_map (account);
    CREATE TABLE tokens (token_hash TEXT PRIMARY KEY, account TEXT NOT NULL, identity TEXT NOT NULL,
        expired_at BIGINT NOT NULL) CLUSTERED;
    CREATE INDEX tokens_expired ON tokens (expired_at);
    CREATE TABLE rse_protocols (rse_id BIGINT NOT NULL, scheme TEXT NOT NULL, hostname TEXT NOT NULL, port BIGINT NOT NULL,
        prefix TEXT NOT NULL, impl TEXT NOT NULL, domains TEXT NOT NULL, extended_attributes TEXT,
        PRIMARY KEY (rse_id, scheme, hostname, port)) CLUSTERED;
    CREATE TABLE distances (src_rse_id BIGINT NOT NULL, dest_rse_id BIGINT NOT NULL, distance BIGINT NOT NULL,
        PRIMARY KEY (src_rse_id, dest_rse_id)) CLUSTERED;
    CREATE TABLE transfer_limits (rse_expression TEXT NOT NULL, activity TEXT NOT NULL, direction TEXT NOT NULL,
        max_transfers BIGINT NOT NULL, PRIMARY KEY (rse_expression, activity, direction)) CLUSTERED;
    ALTER TABLE requests ADD COLUMN worker TEXT;
    ALTER TABLE requests ADD COLUMN lease_until BIGINT;
    ALTER TABLE requests ADD COLUMN attempt BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN not_before BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN moved BIGINT NOT NULL DEFAULT 0;
    CREATE INDEX requests_queued ON requests (activity, priority DESC, id) WHERE state = 'Q'",
    // 4: queued requests are found by their destination
    "DROP INDEX requests_queued;
    CREATE INDEX requests_queued ON requests (dest_rse_id, activity, priority DESC, id) WHERE state = 'Q'",
    // 5: replicas are found by path, and the number of a request is never reused (in SQLite the
    // highest one was, after its row was deleted)
    "CREATE INDEX replicas_path ON replicas (rse_id, path) WHERE path IS NOT NULL
    SQLITE ALONE;
    DROP VIEW named_requests;
    CREATE TABLE numbered (id INTEGER PRIMARY KEY AUTOINCREMENT, request_type TEXT NOT NULL, did_id BIGINT NOT NULL,
        dest_rse_id BIGINT NOT NULL, source_rse_id BIGINT, state TEXT NOT NULL, rule_id BIGINT NOT NULL,
        activity TEXT NOT NULL, priority BIGINT NOT NULL, bytes BIGINT NOT NULL, retry_count BIGINT, err_msg TEXT,
        attributes TEXT, external_id TEXT, requested_at BIGINT NOT NULL, submitted_at BIGINT, updated_at BIGINT NOT NULL,
        worker TEXT, lease_until BIGINT, attempt BIGINT NOT NULL DEFAULT 0, not_before BIGINT NOT NULL DEFAULT 0,
        moved BIGINT NOT NULL DEFAULT 0);
    INSERT INTO numbered SELECT id, request_type, did_id, dest_rse_id, source_rse_id, state, rule_id, activity, priority,
        bytes, retry_count, err_msg, attributes, external_id, requested_at, submitted_at, updated_at, worker, lease_until,
        attempt, not_before, moved FROM requests;
    DROP TABLE requests;
    ALTER TABLE numbered RENAME TO requests;
    CREATE UNIQUE INDEX requests_unit ON requests (did_id, dest_rse_id, request_type);
    CREATE INDEX requests_ended ON requests (state, id) WHERE state NOT IN ('Q');
    CREATE INDEX requests_queued ON requests (dest_rse_id, activity, priority DESC, id) WHERE state = 'Q';
    DELETE FROM sqlite_sequence WHERE name = 'requests';
    INSERT INTO sqlite_sequence (name, seq) SELECT 'requests', MAX((SELECT COALESCE(MAX(id), 0) FROM requests),
        (SELECT COALESCE(MAX(id), 0) FROM requests_history));
    CREATE VIEW named_requests AS SELECT q.id, d.scope, d.name, r.rse, q.request_type, q.state, q.activity, q.retry_count, q.err_msg
        FROM requests q JOIN dids d ON d.id = q.did_id JOIN rses r ON r.id = q.dest_rse_id",
    // 6: requests that were cancelled while a worker had them
    "CREATE TABLE given_up (did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL, request_id BIGINT NOT NULL,
        attempt BIGINT NOT NULL, worker TEXT, lease_until BIGINT NOT NULL,
        PRIMARY KEY (did_id, rse_id, request_id, attempt)) CLUSTERED",
    // 7: replicas whose files differ from the catalog
    "CREATE TABLE suspicious_replicas (did_id BIGINT NOT NULL, rse_id BIGINT NOT NULL, missing BIGINT NOT NULL,
        reason TEXT NOT NULL, times BIGINT NOT NULL, proven BIGINT NOT NULL, created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL, PRIMARY KEY (did_id, rse_id)) CLUSTERED;
    CREATE INDEX suspicious_missing ON suspicious_replicas (rse_id, updated_at) WHERE missing = 1;
    CREATE INDEX suspicious_proven ON suspicious_replicas (did_id) WHERE proven = 1",
    // 8: names are compared by their bytes, whatever the locale of the database
    "POSTGRES ALONE
    DROP VIEW named_locks; DROP VIEW named_replicas; DROP VIEW named_requests;
    ALTER TABLE dids ALTER COLUMN scope TYPE TEXT COLLATE \"C\", ALTER COLUMN name TYPE TEXT COLLATE \"C\";
    CREATE VIEW named_locks AS SELECT u.uuid AS rule_id, d.scope, d.name, r.rse, l.state, l.bytes, l.repair_cnt
        FROM locks l JOIN rules u ON u.id = l.rule_id JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id;
    CREATE VIEW named_replicas AS SELECT d.scope, d.name, r.rse, p.state, p.bytes, p.lock_cnt, p.tombstone
        FROM replicas p JOIN dids d ON d.id = p.did_id JOIN rses r ON r.id = p.rse_id;
    CREATE VIEW named_requests AS SELECT q.id, d.scope, d.name, r.rse, q.request_type, q.state, q.activity, q.retry_count, q.err_msg
        FROM requests q JOIN dids d ON d.id = q.did_id JOIN rses r ON r.id = q.dest_rse_id",
];

/// The part of a migration after this marker is for SQLite only.
const SQLITE_ALONE: &str = "SQLITE ALONE";

/// A migration that begins with this marker is for PostgreSQL only.
const POSTGRES_ALONE: &str = "POSTGRES ALONE";

/// Temporary tables of a connection that hold the rows a transaction works on.
const WORK_TABLES: &str = "
    CREATE TEMP TABLE IF NOT EXISTS w_names (ord BIGKEY, scope TEXT, name TEXT, bytes BIGINT, adler32 TEXT,
        md5 TEXT, path TEXT, state TEXT, id BIGINT);
    CREATE TEMP TABLE IF NOT EXISTS w_ids (id BIGKEY);
    CREATE TEMP TABLE IF NOT EXISTS w_files (did BIGKEY, dataset BIGINT, bytes BIGINT);
    CREATE TEMP TABLE IF NOT EXISTS w_some (did BIGKEY, dataset BIGINT, bytes BIGINT);
    CREATE TEMP TABLE IF NOT EXISTS w_sets (ord BIGKEY, id BIGINT);
    CREATE TEMP TABLE IF NOT EXISTS w_picks (dataset BIGINT, rse BIGINT, writable BIGINT, staging BIGINT,
        PRIMARY KEY (dataset, rse)) CLUSTERED;
    CREATE TEMP TABLE IF NOT EXISTS w_pairs (did BIGINT, rse BIGINT, bytes BIGINT, writable BIGINT, staging BIGINT,
        PRIMARY KEY (did, rse)) CLUSTERED;
    CREATE TEMP TABLE IF NOT EXISTS w_units (did BIGINT, rse BIGINT, bytes BIGINT, before TEXT, staging BIGINT,
        lock TEXT, after TEXT, transfer BIGINT, PRIMARY KEY (did, rse)) CLUSTERED;";

/// The newest schema this program knows.
pub(crate) const NEWEST: i64 = MIGRATIONS.len() as i64;

/// The version of a catalog that is being restored: no version of the program opens it.
pub(crate) const UNFINISHED: i64 = i64::MAX;

/// The tables of a schema, by name.
pub(crate) fn tables(version: i64) -> BTreeSet<&'static str> {
    names(version, "TABLE")
}

/// Its views.
pub(crate) fn views(version: i64) -> BTreeSet<&'static str> {
    names(version, "VIEW")
}

fn names(version: i64, sort: &str) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    let known = usize::try_from(version).unwrap_or(0).min(MIGRATIONS.len());
    for statement in MIGRATIONS[..known].iter().flat_map(|migration| migration.split(';')) {
        let words: Vec<&str> = statement.split_whitespace().collect();
        for at in 0..words.len() {
            match words[at..] {
                ["CREATE", what, name, ..] if what == sort => drop(names.insert(name)),
                ["DROP", what, name, ..] if what == sort => drop(names.remove(name)),
                ["ALTER", what, old, "RENAME", "TO", new, ..] if what == sort => {
                    names.remove(old);
                    names.insert(new);
                }
                _ => {}
            }
        }
    }
    names
}

fn dialect(sql: &str, postgres: bool) -> String {
    let sql = if postgres {
        sql.replace("BIGID", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
            .replace("BIGKEY", "BIGINT PRIMARY KEY")
            .replace(" CLUSTERED", "")
    } else {
        sql.replace("BIGID", "INTEGER PRIMARY KEY")
            .replace("BIGKEY", "INTEGER PRIMARY KEY")
            .replace("CLUSTERED", "WITHOUT ROWID")
    };
    let mut out = String::with_capacity(sql.len());
    let mut parts = sql.split(" FILLED ");
    out.push_str(parts.next().unwrap_or(""));
    for part in parts {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        if postgres {
            out.push_str(&format!(" WITH (fillfactor = {digits})"));
        }
        out.push_str(&part[digits.len()..]);
    }
    out.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace(" FILLED", "")
}

/// Creates the work tables of a new connection.
pub(crate) fn prepare(engine: &mut dyn Engine) -> Result<()> {
    engine.batch(&dialect(WORK_TABLES, engine.is_postgres()))
}

/// Migrates the catalog to the newest schema. Two servers that start at the same time migrate it
/// once.
pub(crate) fn migrate(engine: &mut dyn Engine) -> Result<()> {
    engine.begin(Mode::Write)?;
    let done = migrate_within(engine, NEWEST).and_then(|()| engine.commit());
    if done.is_err() {
        engine.rollback();
    }
    done
}

/// Migrates the catalog to a schema version, within a transaction.
pub(crate) fn migrate_within(engine: &mut dyn Engine, to: i64) -> Result<()> {
    if engine.is_postgres() {
        engine.batch("SELECT pg_advisory_xact_lock(7238113200514)")?;
    }
    engine.batch("CREATE TABLE IF NOT EXISTS catalog_schema (version BIGINT NOT NULL)")?;
    let found = version(engine)?;
    if found == UNFINISHED {
        return Err(Error::HalfRestored);
    }
    if found > NEWEST {
        return Err(Error::NewerSchema { found, known: NEWEST });
    }
    for version in found..to {
        let at = usize::try_from(version).unwrap_or(usize::MAX);
        let text = MIGRATIONS[at];
        let migration = match (text.strip_prefix(POSTGRES_ALONE), text.split_once(SQLITE_ALONE)) {
            (Some(_), _) if !engine.is_postgres() => String::new(),
            (Some(alone), _) => alone.to_owned(),
            (None, Some((both, _))) if engine.is_postgres() => both.to_owned(),
            (None, Some((both, alone))) => format!("{both}{alone}"),
            (None, None) => text.to_owned(),
        };
        engine.batch(&dialect(&migration, engine.is_postgres()))?;
        engine.execute("INSERT INTO catalog_schema (version) VALUES (?1)", values![version + 1])?;
    }
    Ok(())
}

/// The schema version of a catalog, 0 if it has none; the table `catalog_schema` must exist.
pub(crate) fn version(engine: &mut dyn Engine) -> Result<i64> {
    let mut found = 0;
    engine.query("SELECT COALESCE(MAX(version), 0) FROM catalog_schema", &[], &mut |row| {
        found = row.int(0)?;
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::sqlite::Sqlite;
    use super::*;

    #[test]
    fn the_names_in_the_migrations_are_those_in_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = Sqlite::open(&folder.path().join("catalog.db")).unwrap();
        migrate(&mut engine).unwrap();
        for (sort, expected) in [("table", tables(NEWEST)), ("view", views(NEWEST))] {
            let mut found = BTreeSet::new();
            let sql = "SELECT name FROM sqlite_schema WHERE type = ?1 AND name NOT LIKE 'sqlite_%'
                AND name <> 'catalog_schema'";
            let mut each = |row: super::super::Row| {
                found.insert(row.text(0)?.to_owned());
                Ok(())
            };
            engine.query(sql, values![sort], &mut each).unwrap();
            assert_eq!(found, expected.into_iter().map(str::to_owned).collect());
        }
    }
}
