//! Measures the cost of many simulated disks on one node.
//!
//! [`simulate`] runs the engine on a simulated host and on the objects of a server. The processor
//! time and memory are those of this process, which must therefore do nothing else.

#![expect(clippy::disallowed_methods, reason = "benchmarks measure real time")]

use std::sync::Arc;
use std::time::Duration;

use mainstay_clock::SystemClock;
use mainstay_host::sim::SimHost;
use mainstay_store::object::Revision;
use mainstay_store::objects::At;
use mainstay_store::resources::{RandomIdentities, Resources};
use mainstay_terminal::Error;
use mainstay_terminal::report::Row;
use tokio::time::Instant;

use crate::api::BlockDevice;
use crate::backend::MemoryBackend;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::{Disks, Options, Parts};

/// How long the cost of idle disks is measured.
const STEADY: Duration = Duration::from_secs(10);
/// How long to wait for all reports.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many events are sent to them.
const EVENTS: u64 = 200;

fn wrong(error: &dyn std::fmt::Display) -> Error {
    Error::negative(error.to_string())
}

/// Manages simulated disks, and measures the cost.
pub async fn simulate(resources: Resources, count: usize) -> Result<Vec<Row>, Error> {
    let host = SimHost::new(SystemClock::new());
    for n in 0..count {
        host.attach(SimHost::disk(&name(n), 1 << 40));
    }
    let parts = Parts {
        resources: resources.clone(),
        identities: Arc::new(RandomIdentities),
        host: Arc::new(host.clone()),
        backend: Arc::new(MemoryBackend::default()),
        memory: Arc::new(Memory::fleeting()),
        metrics: Arc::new(Metrics::default()),
    };
    let started = Disks::start(Options::new("bench", "/mnt"), parts).await;
    let engine = started.map_err(|error| wrong(&error))?;
    settled(&resources, count).await?;
    idle().await;
    let before = cpu_seconds();
    tokio::time::sleep(STEADY).await;
    let idle = (cpu_seconds() - before) / STEADY.as_secs_f64() * 100.0;
    let mut steady = Row::new("steady-state", "simulated", count);
    steady.rate = Some((idle * 1000.0).round() / 1000.0);
    steady.unit = Some("% of a CPU".into());
    steady.rss_mb = rss_mb();
    let mut rows = vec![steady];
    rows.extend(event_cost("one-event", &host, &resources, count, |name| host.poke(name)).await?);
    let changed = |name: &str| host.edit(name, |disk| disk.numa = Some(1));
    rows.extend(event_cost("one-change", &host, &resources, count, changed).await?);
    engine.shutdown().await;
    Ok(rows)
}

fn name(n: usize) -> String {
    format!("sd{n:04}")
}

fn disks() -> usize {
    usize::try_from(EVENTS).unwrap_or(0)
}

/// Waits until every disk is reported and no more writes happen.
async fn settled(resources: &Resources, count: usize) -> Result<(), Error> {
    let mut last = None;
    loop {
        let versions = versions(resources).await?;
        let reported = versions.iter().filter(|(_, reported)| *reported).count();
        if reported == count && last.as_ref() == Some(&versions) {
            return Ok(());
        }
        last = Some(versions);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until the agent is idle: events are written with a delay.
async fn idle() {
    let begun = Instant::now();
    let mut spent = cpu_seconds();
    while begun.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu_seconds();
        if now <= spent {
            return;
        }
        spent = now;
    }
}

/// The version of each object, and whether it has a phase. The objects are not decoded, so that
/// this check adds little to the measured cost.
async fn versions(resources: &Resources) -> Result<Vec<(Revision, bool)>, Error> {
    let kind = resources.kind_of::<BlockDevice>().map_err(|error| wrong(&error))?;
    let all = resources.list(kind, At::Latest).await.map_err(|error| wrong(&error))?;
    let phase = b"\"provisionPhase\"";
    let reported = |json: &[u8]| json.windows(phase.len()).any(|part| part == phase);
    let records = all.range(None, None);
    Ok(records.map(|record| (record.revision(), reported(record.json()))).collect())
}

/// Sends an event about one disk after the other, and measures the cost of one: time and processor time,
/// disks read, objects written.
async fn event_cost(
    case: &'static str,
    host: &SimHost,
    resources: &Resources,
    count: usize,
    send: impl Fn(&str),
) -> Result<Vec<Row>, Error> {
    let (reads, before) = (host.reads().0, versions(resources).await?);
    let spent = cpu_seconds();
    let start = Instant::now();
    for n in 0..disks() {
        let seen = host.reads().0;
        send(&name(n % count.max(1)));
        while host.reads().0 == seen {
            tokio::task::yield_now().await;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    settled(resources, count).await?;
    let spent = cpu_seconds() - spent;
    let now = versions(resources).await?;
    let written = now.iter().zip(&before).filter(|(new, old)| new != old).count();
    let mut event = Row::new(case, "simulated", count).rate(disks(), elapsed, "events/s");
    event.p50_ms = Some((spent / EVENTS as f64 * 1e6).round() / 1e3);
    let share = |what: f64| Some((what / EVENTS as f64 * 100.0).round() / 100.0);
    let mut work = Row::new("disks-read", case, count);
    work.rate = share((host.reads().0 - reads) as f64);
    work.unit = Some("for each".into());
    let mut writes = Row::new("objects-written", case, count);
    writes.rate = share(written as f64);
    writes.unit = Some("for each".into());
    Ok(vec![event, work, writes])
}

/// The processor time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Resident memory in megabytes (10⁶ bytes).
fn rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some((kilobytes * 1.024 / 100.0).round() / 10.0)
}
