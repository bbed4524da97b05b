//! Measures the throughput of the engine end to end against a real database.
//!
//! The catalog has twenty RSEs, of which the expression matches seventeen, and an account with
//! quotas and without privileges. Every case works on its own data. [`run`] measures one catalog;
//! [`mainstay_catalog::private_postgres`] provides a PostgreSQL for it.

pub mod stage;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstay_catalog::{Catalog, Daemon};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::api::{Did, DidType, Grouping, Micros, NewFile, NewRule, RuleState};
use crate::did::{self, Child, NewDid};
use crate::error::Result;
use crate::judge::{self, Pass};
use crate::rse::{self, RseSettings};
use crate::rule::delete::{self, Deleted};
use crate::rule::{Settings, add, read, transfer};
use crate::{Environment, account, replica};

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The name of the case.
    pub case: String,
    /// `sqlite` or `postgres`.
    pub backend: String,
    /// The number of files.
    pub size: u64,
    /// Units per second.
    pub rate: f64,
    /// The unit that is counted.
    pub unit: String,
    /// Median duration of an operation.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the duration of an operation.
    pub p99_ms: Option<f64>,
    /// Peak resident memory of this process.
    pub rss_mb: Option<f64>,
}

/// The cases to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Replicas in the catalog before anything is measured.
    pub filled: u64,
    /// Files of the rule that is applied in steps; 0 leaves it out.
    pub huge: u64,
    /// Concurrent sessions in the cases with single operations.
    pub sessions: usize,
    /// Only cases whose name contains this.
    pub only: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { filled: 0, huge: 0, sessions: 4, only: None }
    }
}

const ACCOUNT: &str = "physicist";
const SCOPE: &str = "bench";

struct Bench<'a> {
    catalog: &'a Catalog,
    options: &'a Options,
    environment: Environment,
    settings: Settings,
    tag: u64,
    rows: Vec<Measured>,
    tell: &'a mut (dyn FnMut(&Measured) + Sync),
}

/// Measures a catalog and reports each row as soon as it is known.
pub fn run(
    catalog: &Catalog,
    options: &Options,
    tell: &mut (dyn FnMut(&Measured) + Sync),
) -> Result<Vec<Measured>> {
    let mut bench = Bench::new(catalog, options, tell);
    bench.furnish()?;
    if options.filled > 0 {
        bench.fill(options.filled)?;
    }
    bench.add_in_place()?;
    for (name, grouping) in
        [("DATASET", Grouping::Dataset), ("NONE", Grouping::None), ("ALL", Grouping::All)]
    {
        bench.add_new(&format!("add rule, 1000 files x 2, new, {name}"), 1_000, grouping)?;
    }
    bench.add_ten_thousand()?;
    bench.add_one_file()?;
    bench.evaluate()?;
    bench.transfers_singly()?;
    bench.transfers_in_batches()?;
    bench.delete()?;
    bench.register()?;
    if options.huge > 0 {
        bench.huge(options.huge)?;
    }
    Ok(bench.rows)
}

#[expect(clippy::disallowed_methods, reason = "measuring is about the machine's own time")]
fn clock() -> Instant {
    Instant::now()
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Peak resident memory of this process, in megabytes.
fn peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kilobytes| kilobytes / 1024.0)
}

/// Resets the peak of resident memory.
fn reset_peak() {
    // Where the reset fails, the numbers are merely higher.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

impl<'a> Bench<'a> {
    fn new(
        catalog: &'a Catalog,
        options: &'a Options,
        tell: &'a mut (dyn FnMut(&Measured) + Sync),
    ) -> Self {
        let (environment, settings) = (Environment::system(), Settings::default());
        let tag = environment.seed() >> 16;
        Self { catalog, options, environment, settings, tag, rows: Vec::new(), tell }
    }

    fn wants(&self, case: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }

    fn now(&self) -> Micros {
        self.environment.now()
    }

    fn tell(
        &mut self,
        case: &str,
        size: u64,
        count: f64,
        unit: &str,
        took: f64,
        mut each: Vec<f64>,
    ) {
        each.sort_by(f64::total_cmp);
        let at = |part: f64| {
            each.get(((each.len() as f64) * part) as usize)
                .or(each.last())
                .map(|took| took * 1000.0)
        };
        let row = Measured {
            case: case.to_owned(),
            backend: self.catalog.backend().to_owned(),
            size,
            rate: (count / took * 10.0).round() / 10.0,
            unit: unit.to_owned(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            rss_mb: peak(),
        };
        (self.tell)(&row);
        self.rows.push(row);
        reset_peak();
    }

    fn furnish(&mut self) -> Result<()> {
        let now = self.now();
        self.catalog.write_blocking(|tx| {
            if tx.first("SELECT 1 FROM accounts WHERE account = 'physicist'", &[])?.is_some() {
                return Ok(());
            }
            account::add(tx, ACCOUNT, "USER", None, now)?;
            account::add_scope(tx, SCOPE, ACCOUNT, now)?;
            for at in 0..20_u64 {
                let name = format!("SITE-{at:02}");
                rse::add(tx, &name, &RseSettings::default(), &format!("{:032x}", 7_000 + at), now)?;
                account::set_local_limit(tx, ACCOUNT, &name, Some(1 << 60))?;
                if at < 17 {
                    rse::set_attribute(tx, &name, "tier", "1")?;
                }
            }
            account::set_global_limit(tx, ACCOUNT, "tier=1", Some(1 << 60))
        })
    }

    fn name(&mut self, what: &str) -> String {
        self.tag += 1;
        format!("{what}.{}", self.tag)
    }

    fn collection(&self, name: &str) -> Result<()> {
        let now = self.now();
        let new = NewDid {
            did: Did::new(SCOPE, name),
            did_type: DidType::Dataset,
            account: ACCOUNT.to_owned(),
            monotonic: false,
            lifetime: None,
            meta: None,
        };
        self.catalog.write_blocking(|tx| did::add_identifier(tx, &new, now)).map(drop)
    }

    fn file(dataset: &str, at: u64) -> Did {
        Did::new(SCOPE, format!("{dataset}.file.{at:08}.root"))
    }

    fn register_files(&self, dataset: &str, from: u64, number: u64, rse: &str) -> Result<()> {
        let now = self.now();
        let files: Vec<NewFile> = (from..from + number)
            .map(|at| NewFile {
                did: Self::file(dataset, at),
                bytes: 1_000_000 + at as i64 % 1000,
                adler32: Some(format!("{at:08x}")),
                md5: None,
                path: None,
                state: None,
            })
            .collect();
        self.catalog.write_blocking(|tx| replica::add_replicas(tx, rse, &files, ACCOUNT, now))
    }

    fn attach(&self, dataset: &str, from: u64, number: u64) -> Result<()> {
        let now = self.now();
        let children: Vec<Child> =
            (from..from + number).map(|at| Child::named(Self::file(dataset, at))).collect();
        let parent = Did::new(SCOPE, dataset);
        self.catalog
            .write_blocking(|tx| did::attach_identifier(tx, &parent, &children, false, now))
            .map(drop)
    }

    fn dataset(&mut self, number: u64, rse: &str) -> Result<String> {
        let name = self.name("dataset");
        self.collection(&name)?;
        for from in (0..number).step_by(5_000) {
            let some = 5_000.min(number - from);
            self.register_files(&name, from, some, rse)?;
            self.attach(&name, from, some)?;
        }
        Ok(name)
    }

    fn add(&self, new: &NewRule, settings: &Settings) -> Result<String> {
        let (now, seed) = (self.now(), self.environment.seed());
        let made = self.catalog.write_blocking(|tx| {
            add::add_replication_rule(tx, new, settings, &mut SmallRng::seed_from_u64(seed), now)
        })?;
        Ok(made.into_iter().next().unwrap_or_default())
    }

    fn judge(&self, daemon: Daemon) -> Result<()> {
        let pass = Pass::new(self.now(), self.environment.seed());
        while judge::pass(self.catalog, daemon, &self.settings, &pass)?.more {}
        Ok(())
    }

    fn new_rule(name: &str, copies: i64, expression: &str) -> NewRule {
        NewRule::new(vec![Did::new(SCOPE, name)], ACCOUNT, copies, expression)
    }

    /// Adds replicas of other accounts' files in their own datasets, as in a catalog in use.
    fn fill(&mut self, number: u64) -> Result<()> {
        let began = clock();
        let mut left = number;
        while left > 0 {
            let some = left.min(50_000);
            self.dataset(some, &format!("SITE-{:02}", left / 50_000 % 20))?;
            left -= some;
        }
        self.judge(Daemon::Evaluator)?;
        if self.catalog.backend() == "postgres" {
            self.catalog.write_blocking(|tx| tx.execute("ANALYZE", &[]))?;
        }
        self.tell("fill", number, number as f64, "replicas/s", seconds(began), Vec::new());
        Ok(())
    }

    fn add_in_place(&mut self) -> Result<()> {
        let case = "add rule, 1000 files in place";
        if !self.wants(case) {
            return Ok(());
        }
        let mut each = Vec::new();
        for _ in 0..20 {
            let name = self.dataset(1_000, "SITE-03")?;
            let began = clock();
            self.add(&Self::new_rule(&name, 1, "tier=1"), &self.settings)?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 1_000, 20_000.0, "locks/s", took, each);
        Ok(())
    }

    fn add_new(&mut self, case: &str, files: u64, grouping: Grouping) -> Result<()> {
        if !self.wants(case) {
            return Ok(());
        }
        let rounds = 10;
        let mut each = Vec::new();
        for _ in 0..rounds {
            let name = self.dataset(files, "SITE-18")?;
            let rule = NewRule { grouping, ..Self::new_rule(&name, 2, "tier=1") };
            let began = clock();
            self.add(&rule, &self.settings)?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, files, (rounds * files * 2) as f64, "locks/s", took, each);
        Ok(())
    }

    fn add_ten_thousand(&mut self) -> Result<()> {
        let case = "add rule, 10000 files x 2, new";
        if !self.wants(case) {
            return Ok(());
        }
        // Applied at once and not in steps, to show that memory stays flat.
        let settings = Settings { bulk: 100_000, ..self.settings.clone() };
        let mut each = Vec::new();
        for _ in 0..3 {
            let name = self.dataset(10_000, "SITE-18")?;
            let began = clock();
            self.add(&Self::new_rule(&name, 2, "tier=1"), &settings)?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 10_000, 60_000.0, "locks/s", took, each);
        Ok(())
    }

    /// Runs `work` for each number below `number` in several sessions, and measures each call.
    fn together(
        &self,
        number: usize,
        work: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<(f64, Vec<f64>)> {
        let next = AtomicUsize::new(0);
        let began = clock();
        let done: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
            let session = || {
                let mut each = Vec::new();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= number {
                        return Ok(each);
                    }
                    let began = clock();
                    work(at)?;
                    each.push(seconds(began));
                }
            };
            let sessions: Vec<_> =
                (0..self.options.sessions).map(|_| scope.spawn(session)).collect();
            sessions
                .into_iter()
                .map(|session| {
                    session.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let took = seconds(began);
        let mut each = Vec::new();
        for session in done {
            each.extend(session?);
        }
        Ok((took, each))
    }

    fn add_one_file(&mut self) -> Result<()> {
        let case = "add rule, one file";
        if !self.wants(case) {
            return Ok(());
        }
        let name = self.dataset(2_000, "SITE-18")?;
        let rule = |at: usize| NewRule {
            dids: vec![Self::file(&name, at as u64)],
            ..Self::new_rule(&name, 1, "tier=1")
        };
        self.together(200, |at| self.add(&rule(at), &self.settings).map(drop))?;
        let (took, each) =
            self.together(1_800, |at| self.add(&rule(at + 200), &self.settings).map(drop))?;
        self.tell(case, 1, 1_800.0, "rules/s", took, each);
        Ok(())
    }

    fn evaluate(&mut self) -> Result<()> {
        let case = "evaluate 1000 attached files, new";
        if !self.wants(case) {
            return Ok(());
        }
        self.judge(Daemon::Evaluator)?;
        let mut each = Vec::new();
        for _ in 0..10 {
            let name = self.name("dataset");
            self.collection(&name)?;
            self.add(&Self::new_rule(&name, 2, "tier=1"), &self.settings)?;
            self.register_files(&name, 0, 1_000, "SITE-18")?;
            self.attach(&name, 0, 1_000)?;
            let began = clock();
            self.judge(Daemon::Evaluator)?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 1_000, 20_000.0, "locks/s", took, each);
        Ok(())
    }

    /// The (file, RSE) pairs that a rule waits for.
    fn waiting(&mut self, files: u64) -> Result<Vec<(i64, i64)>> {
        let name = self.dataset(files, "SITE-18")?;
        let settings = Settings { bulk: i64::MAX, ..self.settings.clone() };
        let uuid = self.add(&Self::new_rule(&name, 1, "tier=1"), &settings)?;
        self.catalog.read_blocking(|tx| {
            let rule = read::rule(tx, &uuid)?;
            let sql = "SELECT did_id, rse_id FROM locks WHERE rule_id = ?1 AND state = 'R'";
            let rows = tx.query(sql, &[rule.id.into()])?;
            rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect()
        })
    }

    fn transfers_singly(&mut self) -> Result<()> {
        let case = "successful transfer, one a transaction";
        if !self.wants(case) {
            return Ok(());
        }
        // Four rules, because the transfers of one server rarely all belong to one.
        let mut units = Vec::new();
        for _ in 0..4 {
            units.push(self.waiting(750)?);
        }
        let at = |at: usize| units[at % 4][at / 4];
        let (took, each) = self.together(3_000, |number| {
            let (now, unit) = (self.now(), at(number));
            self.catalog.write_blocking(|tx| transfer::successful_transfer(tx, &[unit], now))
        })?;
        self.tell(case, 1, 3_000.0, "transfers/s", took, each);
        Ok(())
    }

    fn transfers_in_batches(&mut self) -> Result<()> {
        let case = "successful transfers, 100 a transaction";
        if !self.wants(case) {
            return Ok(());
        }
        let units = self.waiting(10_000)?;
        let mut each = Vec::new();
        for batch in units.chunks(100) {
            let (now, began) = (self.now(), clock());
            self.catalog.write_blocking(|tx| transfer::successful_transfer(tx, batch, now))?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 100, units.len() as f64, "transfers/s", took, each);
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let case = "delete rule, 2000 replicating locks";
        if !self.wants(case) {
            return Ok(());
        }
        let mut each = Vec::new();
        for _ in 0..5 {
            let name = self.dataset(1_000, "SITE-18")?;
            let uuid = self.add(&Self::new_rule(&name, 2, "tier=1"), &self.settings)?;
            let (now, began) = (self.now(), clock());
            let step = || {
                let settings = &self.settings;
                self.catalog.write_blocking(|tx| {
                    delete::delete_replication_rule(tx, &uuid, None, settings, now)
                })
            };
            while step()? == Deleted::More {}
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 2_000, 10_000.0, "locks/s", took, each);
        Ok(())
    }

    fn register(&mut self) -> Result<()> {
        let case = "register 100000 files";
        if !self.wants(case) {
            return Ok(());
        }
        let name = self.name("registered");
        let mut each = Vec::new();
        for from in (0..100_000).step_by(1_000) {
            let began = clock();
            self.register_files(&name, from, 1_000, "SITE-19")?;
            each.push(seconds(began));
        }
        let took = each.iter().sum();
        self.tell(case, 100_000, 100_000.0, "files/s", took, each);
        Ok(())
    }

    /// A rule on very many files, while another session runs small operations.
    fn huge(&mut self, files: u64) -> Result<()> {
        let case = "a rule on very many files";
        if !self.wants(case) {
            return Ok(());
        }
        let name = self.dataset(files, "SITE-18")?;
        let other = self.dataset(20, "SITE-18")?;
        let uuid = self.add(&Self::new_rule(&name, 1, "tier=1"), &self.settings)?;
        reset_peak();
        let began = clock();
        let done = std::sync::atomic::AtomicBool::new(false);
        let (took, each) = std::thread::scope(|scope| {
            let injector = scope.spawn(|| {
                let injected = self.judge(Daemon::Injector);
                done.store(true, Ordering::Release);
                injected.map(|()| seconds(began))
            });
            let mut each = Vec::new();
            let mut at = 0;
            while !done.load(Ordering::Acquire) {
                let began = clock();
                if at < 20 {
                    let rule = NewRule {
                        dids: vec![Self::file(&other, at)],
                        ..Self::new_rule(&other, 1, "tier=1")
                    };
                    self.add(&rule, &self.settings)?;
                    at += 1;
                } else {
                    self.catalog.read_blocking(|tx| read::rule(tx, &uuid))?;
                }
                each.push(seconds(began));
                std::thread::sleep(Duration::from_millis(50));
            }
            let took = injector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, crate::error::Error>((took, each))
        })?;
        let rule = self.catalog.read_blocking(|tx| read::rule(tx, &uuid))?;
        let whole = rule.state == RuleState::Replicating && rule.counts.total() == files as i64;
        let unit = if whole { "locks/s" } else { "locks/s (not complete)" };
        self.tell(case, files, rule.counts.total() as f64, unit, took, each);
        Ok(())
    }
}
