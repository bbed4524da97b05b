//! `mainstay bench disks`: what the agent adds to bare mkfs and mount, and what many disks cost.
//!
//! The first part makes real loop devices (as root), formats and mounts them with nothing but the
//! programs, then gives as many blank ones to a server and an agent, each a process of its own, and
//! times blank to Provisioned. The second part looks after simulated disks in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_disks::memory::Memory;
use mainstay_disks::metrics::Metrics;
use mainstay_disks::sim::{MemoryBackend, SimHost};
use mainstay_disks::{Disks as Looked, Options, Parts};
use mainstay_store::clock::SystemClock;
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources};
use mainstay_store::{Location, Settings};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use super::Error;
use super::report::{Format, Row, print};
use super::server::ServerProcess;
use crate::client::kubeconfig::{Kubeconfig, Overrides};
use crate::client::{Call, Client, JSON};
use crate::error::Error as CommandError;

/// How many run at once, bare and with the agent.
const AT_ONCE: usize = 5;
/// How long the simulated disks are left alone while their cost is measured.
const STEADY: Duration = Duration::from_secs(10);
/// How many events are sent to simulated disks.
const EVENTS: u64 = 200;

/// Measure disks: blank to Provisioned beside bare mkfs and mount, and many simulated disks
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay bench disks                          50 loop disks of 10 GiB, 1,000 simulated ones (as root)
  mainstay bench disks --disks 10 --size 1      fewer and smaller ones
  mainstay bench disks --disks 0                the simulated ones only; needs no root")]
pub(crate) struct Disks {
    /// Loop disks
    #[arg(long, default_value_t = 50, value_name = "N")]
    disks: usize,
    /// Their size in GiB
    #[arg(long, default_value_t = 10, value_name = "GIB")]
    size: u64,
    /// Simulated disks
    #[arg(long, default_value_t = 1000, value_name = "N")]
    simulated: usize,
    /// Look after simulated disks in this process
    #[arg(long, hide = true)]
    alone: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
}

impl Disks {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        if self.alone {
            let rows = simulate(self.simulated).await?;
            print(&rows, Format::Json)?;
            return Ok(0);
        }
        let mut rows = Vec::new();
        if self.disks > 0 {
            rows.extend(self.real().await?);
        }
        let mut shown = serde_json::to_value(&rows).unwrap_or_default();
        if self.simulated > 0 {
            let simulated = self.in_a_process_of_its_own().await?;
            if let (Some(all), Value::Array(more)) = (shown.as_array_mut(), simulated) {
                all.extend(more);
            }
        }
        let rows: Vec<Row> = shown.as_array().into_iter().flatten().map(read).collect();
        print(&rows, self.output)?;
        Ok(0)
    }

    async fn in_a_process_of_its_own(&self) -> Result<Value, CommandError> {
        let program = std::env::current_exe().map_err(Error::Start)?;
        let said = Command::new(program)
            .args(["bench", "disks", "--alone", "--simulated", &self.simulated.to_string()])
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(Error::Start)?;
        serde_json::from_slice(&said.stdout).map_err(|error| {
            let text = String::from_utf8_lossy(&said.stderr);
            CommandError::negative(format!("the simulated disks: {error}: {text}"))
        })
    }

    async fn real(&self) -> Result<Vec<Row>, CommandError> {
        let folder = tempfile::tempdir().map_err(Error::Start)?;
        let bare = {
            let yard = Yard::new(folder.path(), "bare", self.disks, self.size).await?;
            yard.bare().await?
        };
        let yard = Yard::new(folder.path(), "agent", self.disks, self.size).await?;
        let agent = yard.with_agent().await?;
        drop(yard);
        let (plain, ours) = (bare.as_secs_f64(), agent.as_secs_f64());
        let row = |case, backend: &str, seconds: f64| {
            let mut row = Row::new(case, backend, self.disks).rate(self.disks, seconds, "disks/s");
            row.p99_ms = Some((seconds * 1000.0).round());
            row
        };
        let mut ratio = Row::new("ratio", "agent/bare", self.disks);
        ratio.rate = Some((ours / plain.max(1e-9) * 100.0).round() / 100.0);
        ratio.unit = Some("times as long".into());
        Ok(vec![
            row("mkfs-mount", "bare", plain),
            row("blank-to-provisioned", "server+agent", ours),
            ratio,
        ])
    }
}

fn read(row: &Value) -> Row {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| row[name].as_f64();
    let size = usize::try_from(row["size"].as_u64().unwrap_or(0)).unwrap_or(0);
    let mut read = Row::new("", &text("backend"), size);
    read.case = text("case").into();
    read.rate = number("rate");
    read.unit = row["unit"].as_str().map(|unit| unit.to_owned().into());
    read.p50_ms = number("p50_ms");
    read.p99_ms = number("p99_ms");
    read.rss_mb = number("rss_mb");
    read
}

/// Loop devices that go with this.
struct Yard {
    folder: PathBuf,
    devices: Vec<String>,
}

impl Drop for Yard {
    fn drop(&mut self) {
        let run = |program: &str, argument: &str| {
            let mut command = std::process::Command::new(program);
            command.args(if program == "losetup" { &["--detach"][..] } else { &[] }).arg(argument);
            // What is gone already need not be taken away.
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        for device in &self.devices {
            run("umount", device);
            run("losetup", device);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Yard {
    async fn new(root: &Path, name: &str, count: usize, gib: u64) -> Result<Self, CommandError> {
        let folder = root.join(name);
        let failed = || CommandError::io(format!("{} cannot be used", folder.display()));
        std::fs::create_dir_all(folder.join("mnt")).map_err(failed())?;
        let mut yard = Self { folder: folder.clone(), devices: Vec::new() };
        for n in 0..count {
            let image = folder.join(format!("{n}.img"));
            std::fs::File::create(&image)
                .and_then(|file| file.set_len(gib << 30))
                .map_err(failed())?;
            let image = image.display().to_string();
            let device = run("losetup", &["--find", "--show", &image]).await?;
            yard.devices.push(device);
        }
        Ok(yard)
    }

    /// mkfs and mount with nothing around them, five at once.
    async fn bare(&self) -> Result<Duration, CommandError> {
        let start = Instant::now();
        let slots = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let mut all = tokio::task::JoinSet::new();
        for (n, device) in self.devices.iter().cloned().enumerate() {
            let point = self.folder.join("mnt").join(n.to_string());
            let slots = slots.clone();
            all.spawn(async move {
                let _slot = slots.acquire_owned().await;
                std::fs::create_dir_all(&point).map_err(CommandError::io("a mount point"))?;
                run("mkfs.ext4", &["-q", &device]).await?;
                run("mount", &[&device, &point.display().to_string()]).await.map(drop)
            });
        }
        while let Some(ended) = all.join_next().await {
            ended.map_err(|error| CommandError::negative(error.to_string()))??;
        }
        Ok(start.elapsed())
    }

    /// A server and an agent; from the moment the disks are asked for until all are Provisioned.
    async fn with_agent(&self) -> Result<Duration, CommandError> {
        let server = ServerProcess::start("").await?;
        let target = Kubeconfig::load(&[server.kubeconfig()])
            .and_then(|file| file.target(&Overrides::default()))
            .map_err(crate::client::Error::from)?;
        let client = Client::new(target, Duration::from_secs(30))?;
        let wish = json!({"role": "node", "node": "bench"});
        let call = Call::send(http::Method::POST, "/mainstay/v1/tokens", JSON, &wish);
        let token = client.json(call).await?["token"].as_str().unwrap_or_default().to_owned();
        let mut command = Command::new(std::env::current_exe().map_err(Error::Start)?);
        command.args(["agent", "--server", client.server(), "--token", &token, "--allow-loop"]);
        command.args(["--node-name", "bench", "--zone", "a", "--log", "error", "--ca-cert"]);
        command.arg(server.kubeconfig().with_file_name("ca.crt"));
        command.arg("--state-dir").arg(self.folder.join("state"));
        command.arg("--mount-root").arg(self.folder.join("mnt"));
        for device in &self.devices {
            command.args(["--devices", device]);
        }
        let agent = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn();
        let mut agent = agent.map_err(Error::Start)?;
        self.until(&client, |disk| disk["status"]["state"] == "Active").await?;
        let rule = json!([{"hostname": "*", "devices": ["/dev/loop*"]}]).to_string();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "disks"},
            "data": {"autoprovision.yaml": rule},
        });
        let start = Instant::now();
        let path = "/api/v1/namespaces/mainstay-system/configmaps";
        client.json(Call::send(http::Method::POST, path, JSON, &map)).await?;
        self.until(&client, |disk| disk["status"]["provisionPhase"] == "Provisioned").await?;
        let took = start.elapsed();
        agent.kill().await.map_err(Error::Connection)?;
        server.stop().await?;
        Ok(took)
    }

    async fn until(&self, client: &Client, wanted: fn(&Value) -> bool) -> Result<(), CommandError> {
        let deadline = Instant::now() + Duration::from_secs(240);
        loop {
            let path = "/apis/storage.mainstay.dev/v1/blockdevices";
            let answer = client.json(Call::get(path)).await?;
            let disks = answer["items"].as_array().cloned().unwrap_or_default();
            if disks.iter().filter(|disk| wanted(disk)).count() == self.devices.len() {
                return Ok(());
            }
            let failed = disks.iter().find(|disk| disk["status"]["provisionPhase"] == "Failed");
            if let Some(failed) = failed {
                let why = failed["status"]["failure"]["message"].to_string();
                return Err(CommandError::negative(format!("a disk failed: {why}")));
            }
            if Instant::now() > deadline {
                return Err(CommandError::negative("the disks did not settle in time"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn run(program: &str, arguments: &[&str]) -> Result<String, CommandError> {
    let said = Command::new(program).args(arguments).stdin(Stdio::null()).output().await;
    let said = said.map_err(CommandError::io(format!("{program} cannot be run")))?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(CommandError::negative(format!("{program}: {why}")));
    }
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Looks after simulated disks, and says what that costs.
async fn simulate(count: usize) -> Result<Vec<Row>, CommandError> {
    let clock = SystemClock::new();
    let wrong = |error: &dyn std::fmt::Display| CommandError::negative(error.to_string());
    let store = mainstay_store::open(&Location::Memory, &Settings::default(), clock.clone()).await;
    let store = store.map_err(|error| wrong(&error))?;
    let registry = Registry::new(builtin().into_iter().chain(mainstay_disks::kinds()));
    let registry = Arc::new(registry.map_err(|error| wrong(&error))?);
    let identities = Arc::new(RandomIdentities);
    let resources = Resources::new(store, registry, clock.clone(), identities.clone());
    let host = SimHost::new(clock);
    for n in 0..count {
        host.attach(SimHost::disk(&format!("sd{n:04}"), 1 << 40));
    }
    let parts = Parts {
        resources: resources.clone(),
        identities,
        host: Arc::new(host.clone()),
        backend: Arc::new(MemoryBackend::default()),
        memory: Arc::new(Memory::fleeting()),
        metrics: Arc::new(Metrics::default()),
    };
    let looked = Looked::start(Options::new("bench", "/mnt"), parts).await;
    let looked = looked.map_err(|error| wrong(&error))?;
    let kind = resources.kind_of::<mainstay_disks::api::BlockDevice>();
    let kind = kind.map_err(|error| wrong(&error))?.clone();
    loop {
        let all = resources.list_as::<mainstay_disks::api::BlockDevice>(None).await;
        let all = all.map_err(|error| wrong(&error))?;
        let active = all.iter().filter(|disk| !disk.status.provision_phase.is_empty()).count();
        if active == count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, versions) = (cpu_seconds(), resources.objects().revision(kind.resource()));
    tokio::time::sleep(STEADY).await;
    let idle = (cpu_seconds() - before) / STEADY.as_secs_f64() * 100.0;
    let reads = host.reads().0;
    let start = Instant::now();
    let before = cpu_seconds();
    for n in 0..EVENTS {
        host.poke(&format!("sd{n:04}"));
        while host.reads().0 < reads + n + 1 {
            tokio::task::yield_now().await;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let spent = cpu_seconds() - before;
    let per_event = (host.reads().0 - reads) as f64 / EVENTS as f64;
    let written = resources.objects().revision(kind.resource()).0 - versions.0;
    let events = usize::try_from(EVENTS).unwrap_or(0);
    let mut steady = Row::new("steady-state", "simulated", count);
    steady.rate = Some((idle * 1000.0).round() / 1000.0);
    steady.unit = Some("% of a CPU".into());
    steady.rss_mb = rss_mb();
    let mut event = Row::new("one-event", "simulated", count).rate(events, elapsed, "events/s");
    event.p50_ms = Some((spent / EVENTS as f64 * 1e6).round() / 1e3);
    let mut work = Row::new("reads-for-one-event", "simulated", count);
    work.rate = Some(per_event);
    work.unit = Some("disks".into());
    let mut writes = Row::new("writes-for-all-events", "simulated", count);
    writes.rate = Some(written as f64);
    writes.unit = Some("objects".into());
    looked.shutdown().await;
    Ok(vec![steady, event, work, writes])
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
