//! `mainstay bench disks`: the overhead of the agent over bare mkfs and mount, and the cost of many
//! disks.
//!
//! The first part makes real loop devices (as root), formats and mounts them with nothing but the
//! programs, then gives as many blank ones to a server and an agent, each a process of its own, and
//! times blank to Provisioned; then once more with nothing but the programs, for the mean of both. The
//! second part is [`mainstay_disks::bench`], in a process of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use mainstay_clock::SystemClock;
use mainstay_disks::bench;
use mainstay_store::kubernetes::KubernetesStore;
use mainstay_store::registry::{Registry, builtin};
use mainstay_store::resources::{RandomIdentities, Resources};
use mainstay_terminal::report::{Format, Row, print};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use super::Error;
use super::server::ServerProcess;
use crate::client::kubeconfig::{Kubeconfig, Overrides};
use crate::client::watch::{Change, Follow};
use crate::client::{Call, Client, JSON};
use crate::error::Error as CommandError;

/// How many run at once, bare and with the agent.
const AT_ONCE: usize = 5;

const DISKS: &str = "/apis/storage.mainstay.dev/v1/blockdevices";

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
    /// Manage simulated disks in this process, with the server of this kubeconfig
    #[arg(long, value_name = "FILE", hide = true)]
    alone: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Format,
}

impl Disks {
    pub(crate) async fn run(&self) -> Result<u8, CommandError> {
        if let Some(kubeconfig) = &self.alone {
            let rows = bench::simulate(objects(kubeconfig)?, self.simulated).await?;
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
        let server = ServerProcess::start("").await?;
        let said = Command::new(program)
            .args(["bench", "disks", "--simulated", &self.simulated.to_string(), "--alone"])
            .arg(server.kubeconfig())
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(Error::Start)?;
        server.stop().await?;
        serde_json::from_slice(&said.stdout).map_err(|error| {
            let text = String::from_utf8_lossy(&said.stderr);
            CommandError::negative(format!("the simulated disks: {error}: {text}"))
        })
    }

    async fn real(&self) -> Result<Vec<Row>, CommandError> {
        // Delete everything at the end only: recently freed inodes make creating files slow.
        let folder = tempfile::tempdir().map_err(Error::Start)?;
        let yard = |name| Yard::new(folder.path(), name, self.disks, self.size);
        let before = yard("before").await?.bare().await?;
        let agent = yard("agent").await?.with_agent().await?;
        let after = yard("after").await?.bare().await?;
        let (plain, ours) = ((before + after).as_secs_f64() / 2.0, agent.as_secs_f64());
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

/// The objects of a server, as an agent reaches them.
fn objects(kubeconfig: &Path) -> Result<Resources, CommandError> {
    let wrong = |error: &dyn std::fmt::Display| CommandError::negative(error.to_string());
    let target = Kubeconfig::load(&[kubeconfig.to_owned()])
        .and_then(|file| file.target(&Overrides::default()))?;
    let access = target.access().map_err(|error| wrong(&error))?;
    let client = Arc::new(mainstay_client::Client::new(vec![target.server], access));
    let registry = Registry::new(builtin().into_iter().chain(mainstay_disks::kinds()));
    let registry = Arc::new(registry.map_err(|error| wrong(&error))?);
    let clock = SystemClock::new();
    let store = KubernetesStore::new(client, registry.clone(), clock.clone(), "bench");
    Ok(Resources::new(Arc::new(store), registry, clock, Arc::new(RandomIdentities)))
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

/// Loop devices. Dropping this removes them.
struct Yard {
    folder: PathBuf,
    devices: Vec<String>,
}

impl Drop for Yard {
    fn drop(&mut self) {
        let run = |program: &str, argument: &str| {
            let mut command = std::process::Command::new(program);
            command.args(if program == "losetup" { &["--detach"][..] } else { &[] }).arg(argument);
            // An error means that it is gone already.
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        for device in &self.devices {
            run("umount", device);
            run("losetup", device);
        }
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
        // Flush earlier writes, so that they are not written back during the measurement.
        run("sync", &[]).await?;
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

    /// A server and an agent; from the request for the disks until all are Provisioned.
    async fn with_agent(&self) -> Result<Duration, CommandError> {
        let server = ServerProcess::start("").await?;
        let target = Kubeconfig::load(&[server.kubeconfig()])
            .and_then(|file| file.target(&Overrides::default()))?;
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
        self.until(&client, "", |disk| disk["status"]["state"] == "Active").await?;
        let rule = json!([{"hostname": "*", "devices": ["/dev/loop*"]}]).to_string();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "disks"},
            "data": {"autoprovision.yaml": rule},
        });
        let start = Instant::now();
        let path = "/api/v1/namespaces/mainstay-system/configmaps";
        client.json(Call::send(http::Method::POST, path, JSON, &map)).await?;
        // The server sends only disks that exist, so that this check adds little to the measured cost.
        let there = "fieldSelector=status.provisionPhase%3DProvisioned";
        self.until(&client, there, |disk| disk["status"]["provisionPhase"] == "Provisioned")
            .await?;
        let took = start.elapsed();
        agent.kill().await.map_err(Error::Connection)?;
        server.stop().await?;
        Ok(took)
    }

    /// Waits until every disk is as wanted, of those that `query` selects.
    async fn until(
        &self,
        client: &Client,
        query: &str,
        wanted: fn(&Value) -> bool,
    ) -> Result<(), CommandError> {
        let mut follow = Follow::new(client, DISKS.to_owned(), query.to_owned(), JSON);
        let mut there = BTreeSet::new();
        let all = async {
            while there.len() < self.devices.len() {
                let disks = match follow.next().await? {
                    Change::Listed(list) => list["items"].as_array().cloned().unwrap_or_default(),
                    Change::Event(event) => vec![event.object],
                };
                for disk in disks {
                    let name = disk["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    match wanted(&disk) {
                        true => there.insert(name),
                        false => there.remove(&name),
                    };
                }
            }
            Ok::<_, CommandError>(())
        };
        match tokio::time::timeout(Duration::from_secs(240), all).await {
            Ok(done) => done,
            Err(_) => Err(self.late(client).await),
        }
    }

    /// Why the disks are not as wanted in time.
    async fn late(&self, client: &Client) -> CommandError {
        let all = client.json(Call::get(DISKS)).await.unwrap_or_default();
        let disks = all["items"].as_array().into_iter().flatten();
        let failed = disks.into_iter().find(|disk| disk["status"]["provisionPhase"] == "Failed");
        CommandError::negative(match failed {
            Some(disk) => format!("a disk failed: {}", disk["status"]["failure"]["message"]),
            None => "the disks did not settle in time".to_owned(),
        })
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
