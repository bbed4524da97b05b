//! Test fixture: a catalog with RSEs, accounts, files and rules, on SQLite or PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use mainstay_catalog::private_postgres::PrivatePostgres;
use mainstay_catalog::{Catalog, Daemon, Tx, Value};
use mainstay_rules::api::{Did, DidType, Grouping, Micros, NewFile, NewRule, Rule, SECOND};
use mainstay_rules::did::{self, Child, NewDid};
use mainstay_rules::judge::{self, Done, Pass};
use mainstay_rules::rse::{self, RseSettings};
use mainstay_rules::rule::delete::{self, Deleted};
use mainstay_rules::rule::{add, read, transfer};
use mainstay_rules::{Class, Result, Settings, account, check, replica};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub(crate) const START: Micros = 1_800_000_000 * SECOND;

/// The PostgreSQL that all tests share. Without one the tests print a note; with CI set they fail.
pub(crate) fn postgres() -> Option<&'static PrivatePostgres> {
    static SERVER: OnceLock<Option<PrivatePostgres>> = OnceLock::new();
    SERVER
        .get_or_init(|| {
            let settings = [
                "fsync=off",
                "max_connections=300",
                "shared_buffers=64MB",
                "deadlock_timeout=200ms",
            ];
            match PrivatePostgres::start(&settings) {
                Ok(server) => Some(server),
                Err(why) => {
                    assert!(std::env::var_os("CI").is_none(), "PostgreSQL is needed: {why}");
                    eprintln!("!!! NOT TESTED ON PostgreSQL: {why}");
                    None
                }
            }
        })
        .as_ref()
}

pub(crate) struct World {
    pub(crate) catalog: Catalog,
    pub(crate) settings: Settings,
    pub(crate) url: String,
    now: AtomicI64,
    seed: AtomicU64,
    _folder: Option<tempfile::TempDir>,
}

static SCHEMAS: AtomicU64 = AtomicU64::new(0);
static MAKING: Mutex<()> = Mutex::new(());

impl World {
    pub(crate) fn sqlite() -> Self {
        // Memory suffices: other tests cover crashes.
        let shared = std::path::Path::new("/dev/shm");
        let folder =
            if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }
                .unwrap();
        let url = folder.path().join("catalog.db").display().to_string();
        Self::open(url, Some(folder))
    }

    pub(crate) fn on(server: &PrivatePostgres) -> Self {
        Self::open(Self::nothing_on(server), None)
    }

    /// The URL of an empty schema.
    pub(crate) fn nothing_on(server: &PrivatePostgres) -> String {
        let schema = format!("t{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        let making = MAKING.lock().unwrap();
        server.make_schema(&schema).unwrap();
        drop(making);
        server.url(&schema)
    }

    /// A world on the catalog at this URL.
    pub(crate) fn at(url: &str) -> Self {
        Self::open(url.to_owned(), None)
    }

    fn open(url: String, folder: Option<tempfile::TempDir>) -> Self {
        let catalog = Catalog::open_blocking(&url).unwrap();
        let world = Self {
            catalog,
            settings: Settings { repair_age: 0, ..Settings::default() },
            url,
            now: AtomicI64::new(START),
            seed: AtomicU64::new(1),
            _folder: folder,
        };
        for name in ["root", "jdoe", "alice"] {
            world.write(|tx| account::add(tx, name, "USER", None, START));
        }
        world.write(|tx| account::add_scope(tx, "s", "root", START));
        world
    }

    /// One world for each available database.
    pub(crate) fn each() -> Vec<Self> {
        let mut worlds = vec![Self::sqlite()];
        worlds.extend(postgres().map(Self::on));
        worlds
    }

    pub(crate) fn now(&self) -> Micros {
        self.now.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, seconds: i64) {
        self.now.fetch_add(seconds * SECOND, Ordering::Relaxed);
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    pub(crate) fn write<T>(&self, work: impl Fn(&mut Tx<'_>) -> Result<T>) -> T {
        self.catalog.write_blocking(work).unwrap()
    }

    pub(crate) fn refused<T: std::fmt::Debug>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T>,
    ) -> Class {
        let error = self.catalog.write_blocking(work).unwrap_err();
        error.class().unwrap_or_else(|| panic!("not a refusal: {error}"))
    }

    pub(crate) fn sql(&self, sql: &str) -> i64 {
        self.write(|tx| Ok(tx.number(sql, &[])?))
    }

    pub(crate) fn change(&self, sql: &str) {
        self.write(|tx| Ok(tx.execute(sql, &[])?));
    }

    pub(crate) fn rse(&self, name: &str) {
        self.rse_with(name, &RseSettings::default());
    }

    pub(crate) fn rse_with(&self, name: &str, settings: &RseSettings) {
        let (now, uuid) = (self.now(), format!("{:032x}", self.seed()));
        self.write(|tx| rse::add(tx, name, settings, &uuid, now));
        for account in ["root", "jdoe"] {
            self.limit(account, name, -1);
        }
    }

    pub(crate) fn attribute(&self, rse: &str, key: &str, value: &str) {
        self.write(|tx| rse::set_attribute(tx, rse, key, value));
    }

    pub(crate) fn limit(&self, account: &str, rse: &str, bytes: i64) {
        self.write(|tx| account::set_local_limit(tx, account, rse, Some(bytes)));
    }

    /// R1–R4, T1 = {R1, R2, R4}, T2 = {R3}.
    pub(crate) fn f4(&self) {
        self.tagged(&["R1", "R2", "R3", "R4"], &["R1", "R2", "R4"], &["R3"]);
    }

    /// R1, R3, R4, R5; T1 = {R1, R3, R5}, T2 = {R4}.
    pub(crate) fn j4(&self) {
        self.tagged(&["R1", "R3", "R4", "R5"], &["R1", "R3", "R5"], &["R4"]);
    }

    fn tagged(&self, all: &[&str], one: &[&str], two: &[&str]) {
        for name in all {
            self.rse(name);
            self.attribute(name, "fakeweight", if *name == "R1" { "10" } else { "0" });
        }
        for name in one {
            self.attribute(name, "T1", "true");
        }
        for name in two {
            self.attribute(name, "T2", "true");
        }
    }

    pub(crate) fn did(name: &str) -> Did {
        Did::new("s", name)
    }

    pub(crate) fn collection(&self, name: &str, did_type: DidType) {
        let now = self.now();
        let new = NewDid {
            did: Self::did(name),
            did_type,
            account: "root".to_owned(),
            monotonic: false,
            lifetime: None,
            meta: None,
        };
        self.write(|tx| did::add_identifier(tx, &new, now));
    }

    pub(crate) fn files(&self, names: &[String], bytes: i64, rse: &str) {
        let now = self.now();
        let file = |name: &String| NewFile {
            did: Self::did(name),
            bytes,
            adler32: None,
            md5: None,
            path: None,
            state: None,
        };
        let files: Vec<NewFile> = names.iter().map(file).collect();
        self.write(|tx| replica::add_missing_replicas(tx, rse, &files, "root", now));
    }

    pub(crate) fn attach(&self, parent: &str, children: &[String]) {
        let now = self.now();
        let children: Vec<Child> =
            children.iter().map(|name| Child::named(Self::did(name))).collect();
        self.write(|tx| did::attach_identifier(tx, &Self::did(parent), &children, false, now));
    }

    pub(crate) fn detach(&self, parent: &str, children: &[&str]) {
        let now = self.now();
        let children: Vec<Did> = children.iter().map(|name| Self::did(name)).collect();
        self.write(|tx| did::detach_identifier(tx, &Self::did(parent), &children, now));
    }

    pub(crate) fn close(&self, name: &str) {
        let now = self.now();
        self.write(|tx| did::close(tx, &Self::did(name), now));
    }

    /// A dataset of new files `NAME-0`, … on an RSE.
    pub(crate) fn dataset(&self, name: &str, number: usize, bytes: i64, rse: &str) -> Vec<String> {
        self.collection(name, DidType::Dataset);
        self.more_files(name, 0, number, bytes, rse)
    }

    pub(crate) fn more_files(
        &self,
        name: &str,
        from: usize,
        number: usize,
        bytes: i64,
        rse: &str,
    ) -> Vec<String> {
        let names: Vec<String> = (from..from + number).map(|at| format!("{name}-{at}")).collect();
        self.files(&names, bytes, rse);
        self.attach(name, &names);
        names
    }

    pub(crate) fn new_rule(name: &str, copies: i64, expression: &str) -> NewRule {
        NewRule::new(vec![Self::did(name)], "jdoe", copies, expression)
    }

    pub(crate) fn try_add(&self, new: &NewRule) -> Result<String> {
        let (now, seed) = (self.now(), self.seed());
        let made = self.catalog.write_blocking(|tx| {
            add::add_replication_rule(
                tx,
                new,
                &self.settings,
                &mut SmallRng::seed_from_u64(seed),
                now,
            )
        })?;
        Ok(made[0].clone())
    }

    pub(crate) fn add(&self, new: &NewRule) -> String {
        self.try_add(new).unwrap()
    }

    pub(crate) fn rule(
        &self,
        name: &str,
        copies: i64,
        expression: &str,
        grouping: Grouping,
    ) -> String {
        self.add(&NewRule { grouping, ..Self::new_rule(name, copies, expression) })
    }

    pub(crate) fn get(&self, uuid: &str) -> Rule {
        self.write(|tx| read::rule(tx, uuid))
    }

    /// `STATE ok/replicating/stuck`
    pub(crate) fn state(&self, uuid: &str) -> String {
        let rule = self.get(uuid);
        let counts = rule.counts;
        format!("{} {}/{}/{}", rule.state, counts.ok, counts.replicating, counts.stuck)
    }

    /// File → RSEs it is locked on by the rule.
    pub(crate) fn locks(&self, uuid: &str) -> BTreeMap<String, BTreeSet<String>> {
        let rule = self.get(uuid);
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let rows = self.write(|tx| {
            Ok(tx.query(
                "SELECT d.name, r.rse FROM locks l JOIN dids d ON d.id = l.did_id JOIN rses r ON r.id = l.rse_id WHERE l.rule_id = ?1",
                &[Value::Int(rule.id)],
            )?)
        });
        for row in rows {
            let (name, rse) = (row.text(0).unwrap(), row.text(1).unwrap());
            found.entry(name.to_owned()).or_default().insert(rse.to_owned());
        }
        found
    }

    pub(crate) fn locks_of(&self, file: &str) -> i64 {
        self.write(|tx| {
            let sql =
                "SELECT COUNT(*) FROM locks l JOIN dids d ON d.id = l.did_id WHERE d.name = ?1";
            Ok(tx.number(sql, &[Value::from(file)])?)
        })
    }

    /// (dataset, RSE, state) of the rule's dataset locks.
    pub(crate) fn dataset_locks(&self, uuid: &str) -> Vec<(String, String, String)> {
        let rule = self.get(uuid);
        let locks = self.write(|tx| read::dataset_locks(tx, read::DatasetLocksOf::Rule(rule.id)));
        locks
            .into_iter()
            .map(|lock| (lock.did.name, lock.rse, lock.state.name().to_owned()))
            .collect()
    }

    pub(crate) fn units(&self, files: &[&str], rse: &str) -> Vec<(i64, i64)> {
        self.write(|tx| files.iter().map(|file| replica::unit(tx, &Self::did(file), rse)).collect())
    }

    pub(crate) fn succeed(&self, files: &[&str], rse: &str) {
        let (now, units) = (self.now(), self.units(files, rse));
        self.write(|tx| transfer::successful_transfer(tx, &units, now));
    }

    pub(crate) fn fail(&self, files: &[&str], rse: &str) {
        let (now, units) = (self.now(), self.units(files, rse));
        self.write(|tx| transfer::failed_transfer(tx, &units, "no luck", None, now));
    }

    pub(crate) fn delete(&self, uuid: &str) {
        self.try_delete(uuid).unwrap();
    }

    pub(crate) fn try_delete(&self, uuid: &str) -> Result<()> {
        let now = self.now();
        let step = || {
            self.catalog.write_blocking(|tx| {
                delete::delete_replication_rule(tx, uuid, None, &self.settings, now)
            })
        };
        while step()? == Deleted::More {}
        Ok(())
    }

    pub(crate) fn replica(&self, file: &str, rse: &str) -> replica::Replica {
        let found = self.write(|tx| replica::list(tx, &Self::did(file)));
        found.into_iter().find(|replica| replica.rse == rse).unwrap()
    }

    pub(crate) fn judge(&self, daemon: Daemon) -> Done {
        let pass = Pass::new(self.now(), self.seed());
        judge::pass(&self.catalog, daemon, &self.settings, &pass).unwrap()
    }

    pub(crate) fn usage(&self, account: &str, rse: &str) -> (i64, i64) {
        let usage = self.write(|tx| account::local_usage(tx, account));
        usage
            .iter()
            .find(|usage| usage.on == rse)
            .map_or((0, 0), |usage| (usage.files, usage.bytes))
    }

    pub(crate) fn check(&self) {
        let found = self.catalog.read_blocking(|tx| check::check(tx, 5)).unwrap();
        assert_eq!(found, Vec::new(), "on {}", self.catalog.backend());
    }
}

pub(crate) fn names(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
