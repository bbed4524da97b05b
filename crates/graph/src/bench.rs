//! Workloads that measure the engine.
//!
//! Each workload runs on an engine of its own with descriptors that do nothing, so that only the
//! engine is measured. Simulation is always on. Figures are wall times of the whole workload,
//! the median and the worst of three runs, except where a single operation is timed many times.
//!
//! | case | workload |
//! |---|---|
//! | W1 | one transaction: n interfaces and a bridge domain with n derived values |
//! | W2 | n transactions of one value |
//! | W3 | n tunnels, each on any address, and n routes, each on a tunnel; five values a transaction |
//! | W4 | n values wait for one; it is created |
//! | W5 | the same, re-created |
//! | W6 | a chain of n values waits for its head; built and created |
//! | W7 | full resync, nothing to do, n interfaces and n routes |
//! | W8 | one update in a graph of n |
//! | W8x32 | the same from 32 committers at once; `journal durable` waits for the flush of each |
//! | resident | bytes of memory per value of W1 |

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::descriptor::{
    AnyOf, Context, Dependency, Derived, Descriptor, Known, OperationError, PrefixModel, Retrieved,
};
use crate::engine::{Builder, Engine, Error, Options};
use crate::history::Limits;
use crate::journal::FileJournal;
use crate::key::Key;
use crate::state::Origin;
use crate::time::{Clock, SystemClock};
use crate::transaction::{Resync, Transaction};

/// One line of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The workload.
    pub case: &'static str,
    /// The mode: `history off`, `history on`, `journal` or `journal durable`.
    pub backend: &'static str,
    /// The size n of the workload.
    pub size: usize,
    /// Units per second.
    pub rate: Option<f64>,
    /// The unit.
    pub unit: &'static str,
    /// The median, in milliseconds.
    pub p50_ms: Option<f64>,
    /// The maximum, or the 99th percentile of many samples, in milliseconds.
    pub p99_ms: Option<f64>,
    /// The memory of the process afterwards, in MB.
    pub rss_mb: Option<f64>,
}

/// The workloads, and the memory of a value.
pub const CASES: [&str; 10] = ["resident", "W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W8x32"];

/// The committers of W8x32.
const COMMITTERS: u32 = 32;

/// The sizes that are measured.
pub const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Thing {
    number: u32,
    members: Vec<u32>,
}

impl Thing {
    fn new(number: u32) -> Self {
        Self { number, members: Vec::new() }
    }
}

/// A descriptor whose operations do nothing and succeed.
struct Idle {
    name: &'static str,
    model: PrefixModel<Thing>,
    depends: fn(&Key, &Thing) -> Vec<Dependency>,
    recreated: bool,
    found: Arc<Mutex<Vec<(Key, Thing)>>>,
}

impl Idle {
    fn new(name: &'static str, prefix: &str, depends: fn(&Key, &Thing) -> Vec<Dependency>) -> Self {
        let model = PrefixModel::new(prefix, |thing: &Thing| Some(thing.number.to_string()));
        Self { name, model, depends, recreated: false, found: Arc::default() }
    }
}

impl Descriptor for Idle {
    type Model = PrefixModel<Thing>;
    type Metadata = ();

    fn name(&self) -> &str {
        self.name
    }

    fn model(&self) -> &PrefixModel<Thing> {
        &self.model
    }

    async fn create(&self, _: &Context, _: &Key, _: &Thing) -> Result<(), OperationError> {
        Ok(())
    }

    async fn update(
        &self,
        _: &Context,
        _: &Key,
        _: &Thing,
        _: &Thing,
        _: Option<&()>,
    ) -> Result<Option<()>, OperationError> {
        Ok(None)
    }

    async fn delete(
        &self,
        _: &Context,
        _: &Key,
        _: &Thing,
        _: Option<&()>,
    ) -> Result<(), OperationError> {
        Ok(())
    }

    async fn retrieve(
        &self,
        _: &Context,
        _: &[Known<'_, Thing, ()>],
    ) -> Result<Vec<Retrieved<Thing, ()>>, OperationError> {
        let found = self.found.lock();
        let list = found.iter().map(|(key, value)| Retrieved {
            key: key.clone(),
            value: value.clone(),
            metadata: None,
            origin: Origin::North,
        });
        Ok(list.collect())
    }

    fn recreate(&self, _: &Key, _: &Thing, _: &Thing, _: Option<&()>) -> bool {
        self.recreated
    }

    fn derived(&self, key: &Key, value: &Thing) -> Vec<Derived> {
        let member =
            |number: &u32| Derived::new(format!("member/{key}/{number:06}"), Thing::new(*number));
        value.members.iter().map(member).collect()
    }

    fn dependencies(&self, key: &Key, value: &Thing) -> Vec<Dependency> {
        (self.depends)(key, value)
    }
}

fn interface(number: u32) -> String {
    format!("interface/{number:06}")
}

fn nothing(_: &Key, _: &Thing) -> Vec<Dependency> {
    Vec::new()
}

/// A running engine with everything the workloads need.
struct Bench {
    engine: Engine,
    clock: Arc<SystemClock>,
    stop: CancellationToken,
    worker: tokio::task::JoinHandle<()>,
    interfaces: Arc<Mutex<Vec<(Key, Thing)>>>,
    routes: Arc<Mutex<Vec<(Key, Thing)>>>,
}

impl Bench {
    fn start(history: Limits, journal: Option<FileJournal>) -> Result<Self, Error> {
        let options = Options {
            history,
            journal: journal.map(|journal| Box::new(journal) as _),
            ..Options::default()
        };
        let on_interface = |_: &Key, thing: &Thing| vec![Dependency::on(interface(thing.number))];
        let on_root = |_: &Key, _: &Thing| vec![Dependency::on("root/0")];
        let on_previous = |_: &Key, thing: &Thing| match thing.number {
            0 => vec![Dependency::on("root/0")],
            number => vec![Dependency::on(format!("link/{:06}", number - 1))],
        };
        let on_address = |_: &Key, thing: &Thing| {
            vec![Dependency::any_of(
                "address",
                AnyOf::prefixes([format!("address/{:03}/", thing.number % 100)]),
            )]
        };
        let on_tunnel =
            |_: &Key, thing: &Thing| vec![Dependency::on(format!("tunnel/{:06}", thing.number))];
        let interfaces = Idle::new("interface", "interface/", nothing);
        let routes = Idle::new("route", "route/", on_interface);
        let (seen_interfaces, seen_routes) =
            (Arc::clone(&interfaces.found), Arc::clone(&routes.found));
        let root = Idle { recreated: true, ..Idle::new("root", "root/", nothing) };
        let (engine, service) = Builder::new(options)
            .register(interfaces)?
            .register(routes)?
            .register(root)?
            .register(Idle::new("bridge-domain", "bd/", nothing))?
            .register(Idle::new("member", "member/", on_interface))?
            .register(Idle::new("leaf", "leaf/", on_root))?
            .register(Idle::new("link", "link/", on_previous))?
            .register(Idle::new("address", "address/", nothing))?
            .register(Idle::new("tunnel", "tunnel/", on_address))?
            .register(Idle::new("tunnel-route", "via/", on_tunnel))?
            .build()?;
        let stop = CancellationToken::new();
        let worker = tokio::spawn(service.run(stop.clone()));
        Ok(Self {
            engine,
            clock: SystemClock::new(),
            stop,
            worker,
            interfaces: seen_interfaces,
            routes: seen_routes,
        })
    }

    async fn finish(self) {
        self.stop.cancel();
        let _ = self.worker.await;
    }

    async fn timed(&self, transaction: Transaction) -> Result<Duration, Error> {
        let start = self.clock.elapsed();
        self.engine.commit(transaction).await?;
        Ok(self.since(start))
    }

    fn since(&self, start: Duration) -> Duration {
        self.clock.elapsed() - start
    }
}

fn many(prefix: &str, size: usize) -> Transaction {
    numbers(size).fold(Transaction::new(), |transaction, number| {
        transaction.set_typed(format!("{prefix}/{number:06}"), Thing::new(number))
    })
}

fn numbers(size: usize) -> std::ops::Range<u32> {
    0..u32::try_from(size).unwrap_or(u32::MAX)
}

async fn workload(bench: &Bench, case: &str, size: usize) -> Result<Vec<Duration>, Error> {
    let whole = |took| vec![took];
    match case {
        "W1" => {
            let members = numbers(size).collect();
            let domain = Thing { number: 0, members };
            bench.timed(many("interface", size).set_typed("bd/0", domain)).await.map(whole)
        }
        "W2" => {
            let start = bench.clock.elapsed();
            for number in numbers(size) {
                let one = Transaction::new().set_typed(interface(number), Thing::new(number));
                bench.engine.commit(one).await?;
            }
            Ok(whole(bench.since(start)))
        }
        "W3" => {
            let addresses = numbers(100).fold(Transaction::new(), |transaction, number| {
                transaction.set_typed(format!("address/{number:03}/0"), Thing::new(number))
            });
            bench.engine.commit(addresses).await?;
            let values: Vec<(String, u32)> = numbers(size)
                .flat_map(|number| {
                    [(format!("tunnel/{number:06}"), number), (format!("via/{number:06}"), number)]
                })
                .collect();
            let start = bench.clock.elapsed();
            for five in values.chunks(5) {
                let transaction =
                    five.iter().fold(Transaction::new(), |transaction, (key, number)| {
                        transaction.set_typed(key.as_str(), Thing::new(*number))
                    });
                bench.engine.commit(transaction).await?;
            }
            Ok(whole(bench.since(start)))
        }
        "W4" => {
            bench.engine.commit(many("leaf", size)).await?;
            bench.timed(Transaction::new().set_typed("root/0", Thing::new(0))).await.map(whole)
        }
        "W5" => {
            bench.engine.commit(many("leaf", size).set_typed("root/0", Thing::new(0))).await?;
            bench.timed(Transaction::new().set_typed("root/0", Thing::new(1))).await.map(whole)
        }
        "W6" => {
            let built = bench.timed(many("link", size)).await?;
            let created =
                bench.timed(Transaction::new().set_typed("root/0", Thing::new(0))).await?;
            Ok(whole(built + created))
        }
        "W7" => {
            let wanted = numbers(size).fold(many("interface", size), |transaction, number| {
                transaction.set_typed(format!("route/{number:06}"), Thing::new(number))
            });
            bench.engine.commit(wanted.clone()).await?;
            let see = |seen: &Mutex<Vec<(Key, Thing)>>, prefix: &str| {
                let all = numbers(size)
                    .map(|number| (Key::from(format!("{prefix}/{number:06}")), Thing::new(number)));
                *seen.lock() = all.collect();
            };
            see(&bench.interfaces, "interface");
            see(&bench.routes, "route");
            bench.timed(wanted.resync(Resync::FullResync)).await.map(whole)
        }
        _ => {
            bench.engine.commit(many("interface", size)).await?;
            let mut times = Vec::new();
            for round in 0..2_000_u32 {
                let key = interface(round.wrapping_mul(7_919) % u32::try_from(size).unwrap_or(1));
                let update = Transaction::new().set_typed(key, Thing::new(round + 1_000_000));
                times.push(bench.timed(update).await?);
            }
            Ok(times)
        }
    }
}

/// Updates by many committers at once: the whole time, and the time of each update.
async fn crowd(
    bench: &Bench,
    size: usize,
    durable: bool,
) -> Result<(Duration, Vec<Duration>), Error> {
    const UPDATES: u32 = 1_000;
    bench.engine.commit(many("interface", size)).await?;
    let start = bench.clock.elapsed();
    let committers = (0..COMMITTERS).map(|committer| {
        let (engine, clock) = (bench.engine.clone(), Arc::clone(&bench.clock));
        let keys = u32::try_from(size).unwrap_or(u32::MAX);
        tokio::spawn(async move {
            let mut times = Vec::new();
            for round in 0..UPDATES {
                let key = interface((round * COMMITTERS + committer).wrapping_mul(7_919) % keys);
                let value = Thing::new(round + 1_000_000);
                let update = Transaction::new().set_typed(key, value).durable(durable);
                let start = clock.elapsed();
                engine.commit(update).await?;
                times.push(clock.elapsed() - start);
            }
            Ok::<_, Error>(times)
        })
    });
    let mut times = Vec::new();
    for committer in committers.collect::<Vec<_>>() {
        times.extend(committer.await.map_err(|_| Error::Stopped)??);
    }
    Ok((bench.since(start), times))
}

fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

/// The memory of this process in bytes, if the system reports it.
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<f64>()
        .ok()
        .map(|kilobytes| kilobytes * 1024.0)
}

async fn measure(case: &'static str, size: usize, backend: &'static str) -> Result<Row, Error> {
    let history = if backend == "history off" { Limits::off() } else { Limits::default() };
    let mut times = Vec::new();
    let long = backend == "journal" && size >= 100_000;
    let rounds = if case.starts_with("W8") || long { 1 } else { 3 };
    let mut whole = None;
    for round in 0..rounds {
        let path = std::env::temp_dir()
            .join(format!("mainstay-bench-{}-{round}.journal", std::process::id()));
        let journal = match backend {
            "journal" | "journal durable" => Some(FileJournal::open(&path)?),
            _ => None,
        };
        let journalled = journal.is_some();
        let bench = Bench::start(history, journal)?;
        if case == "W8x32" {
            let (took, each) = crowd(&bench, size, backend == "journal durable").await?;
            whole = Some(took);
            times.extend(each);
        } else {
            times.extend(workload(&bench, case, size).await?);
        }
        bench.finish().await;
        if journalled {
            // A file that stays in the temporary folder does no harm.
            let _ = std::fs::remove_file(&path);
        }
    }
    times.sort_unstable();
    let at = |part: usize| {
        times.get((times.len() * part / 100).min(times.len() - 1)).copied().unwrap_or_default()
    };
    let median = at(50);
    let amount = match case {
        "W8" => 1,
        "W3" | "W7" => size * 2,
        _ => size,
    };
    Ok(Row {
        case,
        backend,
        size,
        rate: Some(match whole {
            Some(whole) => (times.len() as f64 / whole.as_secs_f64()).round(),
            None => (amount as f64 / median.as_secs_f64()).round(),
        }),
        unit: if case.starts_with("W8") { "updates/s" } else { "values/s" },
        p50_ms: Some(milliseconds(median)),
        p99_ms: Some(milliseconds(at(99))),
        rss_mb: resident().map(|bytes| (bytes / 1e5).round() / 10.0),
    })
}

/// Measures the memory of a value; must run first, on a fresh process.
async fn memory(size: usize) -> Result<Row, Error> {
    let before = resident();
    let bench = Bench::start(Limits::off(), None)?;
    workload(&bench, "W1", size).await?;
    let after = resident();
    bench.finish().await;
    let per_value =
        before.zip(after).map(|(before, after)| ((after - before) / (2 * size) as f64).round());
    Ok(Row {
        case: "resident",
        backend: "history off",
        size,
        rate: per_value,
        unit: "B/value",
        p50_ms: None,
        p99_ms: None,
        rss_mb: after.map(|bytes| (bytes / 1e5).round() / 10.0),
    })
}

/// Runs the named workloads, or all, at these sizes. Boxed so that the engine is compiled in this
/// crate.
///
/// # Errors
/// Fails if the engine fails, for instance because a journal cannot be written.
pub fn run<'a>(sizes: &'a [usize], cases: &'a [String]) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
    run_all(sizes, cases).boxed()
}

async fn run_all(sizes: &[usize], cases: &[String]) -> Result<Vec<Row>, Error> {
    let asked = |case: &str| cases.is_empty() || cases.iter().any(|one| one == case);
    let mut rows = Vec::new();
    if let Some(size) = sizes.iter().copied().max().filter(|_| asked("resident")) {
        rows.push(memory(size).await?);
    }
    for size in sizes.iter().copied() {
        for case in CASES.into_iter().filter(|case| *case != "resident" && asked(case)) {
            for backend in ["history off", "history on"].into_iter().filter(|_| case != "W8x32") {
                rows.push(measure(case, size, backend).await?);
            }
            // Each transaction waits for the disk: many of them take too long.
            let transactions = if matches!(case, "W2" | "W3") { size } else { 1 };
            if transactions <= 1_000 {
                rows.push(measure(case, size, "journal").await?);
            }
            if case == "W8x32" {
                rows.push(measure(case, size, "journal durable").await?);
            }
        }
    }
    Ok(rows)
}

/// Runs the workloads on a thread and runtime of their own, so that other tasks do not disturb them.
///
/// # Errors
/// As [`run`].
pub fn run_alone(sizes: &[usize], cases: &[String]) -> Result<Vec<Row>, Error> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|_| Error::Stopped)?;
        runtime.block_on(run(sizes, cases))
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or(Err(Error::Stopped)))
}
