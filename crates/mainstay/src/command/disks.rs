//! `mainstay disks`: see the disks of all nodes, and ask for what shall become of them.
//!
//! Every command writes the spec of a BlockDevice and (with `--wait`) watches its status; the agent
//! of the node does the rest. Nothing is erased unless exactly what would be lost is named.

mod settle;
mod show;

use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use mainstay_clock::{Clock, SystemClock};
use serde_json::{Value, json};

use self::settle::{Waiting, change};
use crate::client::{Call, Client, MERGE_PATCH};
use crate::connect::Connect;
use crate::error::Error;
use crate::output::{self, Format, Table};

/// Where the server has its disks.
const DISKS: &str = "/apis/storage.mainstay.dev/v1/blockdevices";
/// How long an agent may take to answer a dry run.
const DRY_RUN: Duration = Duration::from_secs(30);

/// See disks, and say what shall become of them
#[derive(Debug, Args)]
pub(crate) struct Disks {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show all disks
    List {
        /// Only those of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
        #[command(flatten)]
        connect: Connect,
    },
    /// Show one disk: what it is, how far it got, and why
    Show {
        #[command(flatten)]
        which: Which,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
        #[command(flatten)]
        connect: Connect,
    },
    /// Make a disk a pool. A disk that has no filesystem needs --format as well
    #[command(after_help = "Examples:
  mainstay disks provision worker-1:/dev/sdb --format --wait
  mainstay disks provision worker-1:/dev/sdb --format --lvm vg1
  mainstay disks provision worker-1:/dev/sdb --format --dry-run       what the safety gate would say")]
    Provision {
        /// Format it first (or wipe it, for LVM)
        #[arg(long)]
        format: bool,
        /// The filesystem to make: ext4 or xfs
        #[arg(long, value_name = "TYPE", value_parser = ["ext4", "xfs"], conflicts_with = "lvm")]
        filesystem: Option<String>,
        /// Make a volume group of this name instead of a filesystem
        #[arg(long, value_name = "NAME")]
        lvm: Option<String>,
        /// Tags that go with the pool
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        tags: Vec<String>,
        #[command(flatten)]
        erase: Erase,
        // Last, for the options of the server have a heading that would cover what follows.
        #[command(flatten)]
        asked: Asked,
    },
    /// Format a disk (once more, if it was formatted before)
    #[command(after_help = "Examples:
  mainstay disks format worker-1:/dev/sdb --dry-run                 rule by rule, nothing is written
  mainstay disks format worker-1:/dev/sdb                           a blank disk
  mainstay disks format worker-1:/dev/sdb --erase gpt,ext4          exactly what is on it")]
    Format {
        #[command(flatten)]
        erase: Erase,
        #[command(flatten)]
        asked: Asked,
    },
    /// Take a pool out of use: it is emptied first, and its data stays on the disk
    Unprovision(Asked),
    /// Try a failed disk again
    Retry(Asked),
    /// Say that a corrupted filesystem has been repaired by hand: it is mounted once more
    Repair(Asked),
    /// Print the transition table that every disk follows
    Table {
        /// As a state diagram (Mermaid)
        #[arg(long)]
        diagram: bool,
    },
}

/// Which disk.
#[derive(Debug, Args)]
struct Which {
    /// The name of a BlockDevice (or its beginning), a path, or NODE:PATH
    #[arg(value_name = "DISK")]
    disk: String,
}

/// What every change takes: a disk, a server, and whether to stay until it is done.
#[derive(Debug, Args)]
struct Asked {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    connect: Connect,
}

/// What may be lost.
#[derive(Debug, Args)]
struct Erase {
    /// The signatures whose data may be lost: exactly those `mainstay disks show` lists
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    erase: Vec<String>,
    /// Print what the safety gate would say, rule by rule, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Disks {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        match &self.action {
            Action::List { node, output, connect } => {
                list(&connect.client()?, node.as_deref(), *output).await
            }
            Action::Show { which, output, connect } => {
                let disk = find(&connect.client()?, &which.disk).await?;
                match output {
                    Some(Format::Json) => output::print(&output::json(&disk))?,
                    Some(Format::Yaml) => output::print(&output::yaml(&disk))?,
                    _ => output::print(&show::describe(&disk))?,
                }
                Ok(0)
            }
            Action::Provision { asked, format, filesystem, lvm, tags, erase } => {
                let mut spec = json!({"provision": true});
                if *format {
                    spec["fileSystem"] = json!({"forceFormatted": true});
                }
                if let Some(name) = lvm {
                    spec["provisioner"] = json!({"lvm": {"vgName": name}, "filesystem": null});
                } else if let Some(kind) = filesystem {
                    spec["provisioner"] = json!({"filesystem": {"type": kind}, "lvm": null});
                }
                if !tags.is_empty() {
                    spec["tags"] = json!(tags);
                }
                asked.erase(erase, |_| spec.clone(), &[]).await
            }
            Action::Format { asked, erase } => {
                let spec = |disk: &Value| json!({"fileSystem": {"forceFormatted": true, "formatRequest": nonce(disk)}});
                asked.erase(erase, spec, &["Formatted"]).await
            }
            Action::Unprovision(asked) => {
                let spec = json!({"provision": false, "fileSystem": {"provisioned": false}});
                asked.change(|_| spec.clone(), &["Formatted", "Unprovisioned"]).await
            }
            Action::Retry(asked) => {
                let spec = |disk: &Value| json!({"retry": nonce(disk)});
                asked.change(spec, &["Formatted", "Unprovisioned"]).await
            }
            Action::Repair(asked) => {
                let spec = json!({"fileSystem": {"repaired": true}});
                asked.change(|_| spec.clone(), &["Formatted"]).await
            }
            Action::Table { diagram } => {
                let text = match diagram {
                    true => mainstay_disks::table::diagram(),
                    false => mainstay_disks::table::text(),
                };
                output::print(&text)?;
                Ok(0)
            }
        }
    }
}

impl Asked {
    /// Writes what `spec` makes of the disk, and stays until it has settled if that was asked for.
    /// A disk that is wanted settles as Provisioned, any other in one of `ends`.
    async fn change(&self, spec: impl Fn(&Value) -> Value, ends: &[&str]) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let disk = find(&client, &self.which.disk).await?;
        change(&client, &disk, spec(&disk), &self.waiting, ends).await
    }

    /// The same for what may destroy: with the acknowledgement, or only as a question.
    async fn erase(
        &self,
        erase: &Erase,
        spec: impl Fn(&Value) -> Value,
        ends: &[&str],
    ) -> Result<u8, Error> {
        if erase.dry_run {
            let client = self.connect.client()?;
            let disk = find(&client, &self.which.disk).await?;
            return dry_run(&client, &disk, &erase.erase).await;
        }
        let acknowledged = |disk: &Value| {
            let mut spec = spec(disk);
            if !erase.erase.is_empty() {
                spec["acknowledgeDataLoss"] = json!(erase.erase);
            }
            spec
        };
        self.change(acknowledged, ends).await
    }
}

/// A value this disk has not seen: the version it is at.
fn nonce(disk: &Value) -> String {
    format!("v{}", said(&disk["metadata"]["resourceVersion"]))
}

/// A value as a person reads it; nothing if it is not there.
fn said(value: &Value) -> String {
    if value.is_null() { String::new() } else { output::cell(value) }
}

fn name(disk: &Value) -> String {
    said(&disk["metadata"]["name"])
}

fn path_of(disk: &Value) -> String {
    let now = said(&disk["status"]["deviceStatus"]["devPath"]);
    if now.is_empty() { said(&disk["spec"]["devPath"]) } else { now }
}

fn phase(disk: &Value) -> &str {
    disk["status"]["provisionPhase"].as_str().unwrap_or("Unprovisioned")
}

async fn all(client: &Client) -> Result<Vec<Value>, Error> {
    let mut answer = client.json(Call::get(DISKS)).await?;
    Ok(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// The one disk that is meant.
async fn find(client: &Client, text: &str) -> Result<Value, Error> {
    let disks = all(client).await?;
    let means = |disk: &&Value| {
        let node = said(&disk["spec"]["nodeName"]);
        name(disk) == text
            || path_of(disk) == text
            || format!("{node}:{}", path_of(disk)) == text
            || (text.len() >= 4 && name(disk).starts_with(text))
    };
    let found: Vec<&Value> = disks.iter().filter(means).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(Error::negative(format!(
            "there is no disk {text:?}; `mainstay disks list` shows all"
        ))),
        several => {
            let names: Vec<_> = several
                .iter()
                .map(|disk| {
                    format!(
                        "{}:{} ({})",
                        said(&disk["spec"]["nodeName"]),
                        path_of(disk),
                        name(disk)
                    )
                })
                .collect();
            let names = names.join(", ");
            Err(Error::usage(format!("{text:?} may be any of {names}; say which, as NODE:PATH")))
        }
    }
}

async fn list(client: &Client, node: Option<&str>, format: Option<Format>) -> Result<u8, Error> {
    let mut disks = all(client).await?;
    disks.retain(|disk| node.is_none_or(|node| disk["spec"]["nodeName"] == node));
    disks.sort_by_key(|disk| (said(&disk["spec"]["nodeName"]), path_of(disk)));
    match format {
        Some(Format::Json) => output::print(&output::json(&Value::Array(disks)))?,
        Some(Format::Yaml) => output::print(&output::yaml(&Value::Array(disks)))?,
        Some(Format::Name) => {
            for disk in &disks {
                output::print_line(&format!("blockdevice.storage.mainstay.dev/{}", name(disk)))?;
            }
        }
        _ => {
            let mut table =
                Table::new(&["NODE", "PATH", "SIZE", "TYPE", "FILESYSTEM", "PHASE", "NAME"]);
            for disk in &disks {
                let device = &disk["status"]["deviceStatus"];
                let size = device["capacity"]["sizeBytes"].as_u64().unwrap_or(0);
                table.rows.push(vec![
                    said(&disk["spec"]["nodeName"]),
                    path_of(disk),
                    mainstay_disks::size(size),
                    said(&device["details"]["driveType"]),
                    said(&device["fileSystem"]["type"]),
                    phase(disk).to_owned(),
                    name(disk),
                ]);
            }
            output::print(&table.text())?;
        }
    }
    Ok(0)
}

/// Asks the agent what the gate would say, and prints it.
async fn dry_run(client: &Client, disk: &Value, names: &[String]) -> Result<u8, Error> {
    let request = format!("{}:{}", nonce(disk), names.join(","));
    let patch = json!({"metadata": {"annotations": {"storage.mainstay.dev/dry-run": request}}});
    let path = format!("{DISKS}/{}", name(disk));
    client.json(Call::send(Method::PATCH, path.clone(), MERGE_PATCH, &patch)).await?;
    let clock = SystemClock::new();
    loop {
        let now = client.json(Call::get(path.clone())).await?;
        let answer = &now["status"]["dryRun"];
        if answer["request"] == request.as_str() {
            for rule in answer["rules"].as_array().into_iter().flatten() {
                let (number, asks) = (said(&rule["rule"]), said(&rule["asks"]));
                let line = match rule["refusal"].as_str() {
                    None => format!("{number:>2}  pass    {asks}"),
                    Some(why) => format!("{number:>2}  REFUSE  {asks}: {why}"),
                };
                output::print_line(&line)?;
            }
            let passes = answer["passes"] == true;
            let verdict = if passes { "the gate would let it pass" } else { "the gate refuses" };
            output::print_line(verdict)?;
            return Ok(u8::from(!passes));
        }
        if clock.elapsed() > DRY_RUN {
            let node = said(&now["spec"]["nodeName"]);
            return Err(Error::negative(format!(
                "the agent of {node} does not answer; is it running?"
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
