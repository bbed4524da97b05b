//! `mainstay disks`: see the disks of all nodes, and ask for what shall become of them.
//!
//! Every command writes the spec of a BlockDevice and (with `--wait`) watches its status; the agent
//! of the node does the rest. Nothing is erased unless exactly what would be lost is named.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use crate::client::{Call, Client, MERGE_PATCH};
use crate::connect::Connect;
use crate::duration;
use crate::error::Error;
use crate::output::{self, Format, Table};

/// Where the server has its disks.
const DISKS: &str = "/apis/storage.mainstay.dev/v1/blockdevices";
/// The way of a disk to its end, for the bar.
const WAY: [&str; 7] = [
    "Unprovisioned",
    "Formatting",
    "Formatted",
    "Mounting",
    "Mounted",
    "Provisioning",
    "Provisioned",
];

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
        #[command(flatten)]
        which: Which,
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
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        connect: Connect,
    },
    /// Format a disk (once more, if it was formatted before)
    #[command(after_help = "Examples:
  mainstay disks format worker-1:/dev/sdb --dry-run                 rule by rule, nothing is written
  mainstay disks format worker-1:/dev/sdb                           a blank disk
  mainstay disks format worker-1:/dev/sdb --erase gpt,ext4          exactly what is on it")]
    Format {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        erase: Erase,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        connect: Connect,
    },
    /// Take a pool out of use: it is emptied first, and its data stays on the disk
    Unprovision {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        connect: Connect,
    },
    /// Try a failed disk again
    Retry {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        connect: Connect,
    },
    /// Say that a corrupted filesystem has been repaired by hand: it is mounted once more
    Repair {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        waiting: Waiting,
        #[command(flatten)]
        connect: Connect,
    },
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

/// Whether to stay until it is done.
#[derive(Debug, Args)]
struct Waiting {
    /// Stay until it has settled; exit code 1 if it failed
    #[arg(long)]
    wait: bool,
    /// How long to stay
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
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
                    _ => output::print(&describe(&disk))?,
                }
                Ok(0)
            }
            Action::Provision { which, format, filesystem, lvm, tags, erase, waiting, connect } => {
                let client = connect.client()?;
                let disk = find(&client, &which.disk).await?;
                if erase.dry_run {
                    return dry_run(&client, &disk, &erase.erase).await;
                }
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
                acknowledge(&mut spec, &erase.erase);
                change(&client, &disk, spec, waiting, &["Provisioned"]).await
            }
            Action::Format { which, erase, waiting, connect } => {
                let client = connect.client()?;
                let disk = find(&client, &which.disk).await?;
                if erase.dry_run {
                    return dry_run(&client, &disk, &erase.erase).await;
                }
                let mut spec = json!({"fileSystem": {
                    "forceFormatted": true, "formatRequest": nonce(&disk),
                }});
                acknowledge(&mut spec, &erase.erase);
                change(&client, &disk, spec, waiting, &["Formatted", "Provisioned"]).await
            }
            Action::Unprovision { which, waiting, connect } => {
                let spec = json!({"provision": false, "fileSystem": {"provisioned": false}});
                let client = connect.client()?;
                let disk = find(&client, &which.disk).await?;
                change(&client, &disk, spec, waiting, &["Formatted", "Unprovisioned"]).await
            }
            Action::Retry { which, waiting, connect } => {
                let client = connect.client()?;
                let disk = find(&client, &which.disk).await?;
                let spec = json!({"retry": nonce(&disk)});
                change(&client, &disk, spec, waiting, &["Provisioned", "Formatted"]).await
            }
            Action::Repair { which, waiting, connect } => {
                let client = connect.client()?;
                let disk = find(&client, &which.disk).await?;
                let spec = json!({"fileSystem": {"repaired": true}});
                change(&client, &disk, spec, waiting, &["Provisioned", "Mounted"]).await
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

/// A value this disk has not seen: the version it is at.
fn nonce(disk: &Value) -> String {
    format!("v{}", said(&disk["metadata"]["resourceVersion"]))
}

fn acknowledge(spec: &mut Value, names: &[String]) {
    if !names.is_empty() {
        spec["acknowledgeDataLoss"] = json!(names);
    }
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

/// One disk in words.
fn describe(disk: &Value) -> String {
    let (spec, status) = (&disk["spec"], &disk["status"]);
    let device = &status["deviceStatus"];
    let details = &device["details"];
    let size = mainstay_disks::size(device["capacity"]["sizeBytes"].as_u64().unwrap_or(0));
    let mut table = Table::new(&[]);
    let mut add = |key: &str, value: String| {
        if !value.is_empty() {
            table.rows.push(vec![format!("{key}:"), value]);
        }
    };
    add("Name", name(disk));
    add("Node", said(&spec["nodeName"]));
    add("Path", path_of(disk));
    add("State", said(&status["state"]));
    add("Phase", phase(disk).to_owned());
    add("Wanted", said(&spec["provision"]));
    add("Size", size);
    add("Type", said(&details["driveType"]));
    add("Vendor", said(&details["vendor"]));
    add("Model", said(&details["model"]));
    add("Serial", said(&details["serialNumber"]));
    add("WWN", said(&details["wwn"]));
    add("Bus", said(&details["busPath"]));
    add("Filesystem", said(&device["fileSystem"]["type"]));
    add("UUID", said(&details["uuid"]));
    add("Mounted at", said(&device["fileSystem"]["mountPoint"]));
    let signatures = status["signatures"].as_array().into_iter().flatten();
    let signatures: Vec<_> = signatures.map(|found| said(&found["name"])).collect();
    add("Holds", signatures.join(", "));
    add("Operation", said(&status["operation"]["kind"]));
    add("Failure", said(&status["failure"]["message"]));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    for condition in conditions {
        let text = ["status", "reason", "message"].map(|field| said(&condition[field])).join(" ");
        add(&said(&condition["type"]), text.trim().to_owned());
    }
    table.render(false, &mut Vec::new())
}

/// Asks the agent what the gate would say, and prints it.
async fn dry_run(client: &Client, disk: &Value, names: &[String]) -> Result<u8, Error> {
    let request = format!("{}:{}", nonce(disk), names.join(","));
    let patch = json!({"metadata": {"annotations": {"storage.mainstay.dev/dry-run": request}}});
    let path = format!("{DISKS}/{}", name(disk));
    client.json(Call::send(Method::PATCH, path.clone(), MERGE_PATCH, &patch)).await?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
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
        if tokio::time::Instant::now() > deadline {
            let node = said(&now["spec"]["nodeName"]);
            return Err(Error::negative(format!(
                "the agent of {node} does not answer; is it running?"
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Writes the spec, and stays until it has settled if that was asked for.
async fn change(
    client: &Client,
    disk: &Value,
    spec: Value,
    waiting: &Waiting,
    ends: &[&str],
) -> Result<u8, Error> {
    let path = format!("{DISKS}/{}", name(disk));
    let patch = json!({ "spec": spec });
    let written = client.json(Call::send(Method::PATCH, path.clone(), MERGE_PATCH, &patch)).await?;
    let generation = written["metadata"]["generation"].as_i64().unwrap_or(0);
    if !waiting.wait {
        output::print_line(&format!(
            "{} asked for; `mainstay disks show {}` tells how far it got",
            path_of(disk),
            name(disk)
        ))?;
        return Ok(0);
    }
    let deadline = tokio::time::Instant::now() + waiting.timeout;
    let mut bar = Bar::new();
    loop {
        let now = client.json(Call::get(path.clone())).await?;
        let settled = now["status"]["observedGeneration"].as_i64().unwrap_or(0) >= generation;
        bar.show(&path_of(&now), phase(&now));
        if settled && phase(&now) == "Failed" {
            bar.end();
            return Err(Error::negative(said(&now["status"]["failure"]["message"])));
        }
        if settled && ends.contains(&phase(&now)) && now["status"]["operation"].is_null() {
            bar.end();
            output::print_line(&format!("{} is {}", path_of(&now), phase(&now)))?;
            return Ok(0);
        }
        if tokio::time::Instant::now() > deadline {
            bar.end();
            let text = format!(
                "{} is still {} after {}",
                path_of(&now),
                phase(&now),
                duration::age(waiting.timeout)
            );
            return Err(Error::negative(text));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// A bar on the terminal, if there is one.
struct Bar {
    terminal: bool,
    last: String,
}

impl Bar {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: String::new() }
    }

    fn show(&mut self, path: &str, phase: &str) {
        if self.last == phase {
            return;
        }
        phase.clone_into(&mut self.last);
        if self.terminal {
            anstream::eprint!("\r\x1b[K{}", bar(path, phase));
        } else {
            anstream::eprintln!("{path}: {phase}");
        }
    }

    fn end(&self) {
        if self.terminal {
            anstream::eprintln!();
        }
    }
}

/// How far a disk got, in one line.
fn bar(path: &str, phase: &str) -> String {
    let steps = WAY.len() - 1;
    let place = WAY.iter().position(|step| *step == phase);
    match place {
        Some(place) => {
            let (done, left) = ("█".repeat(place * 3), "░".repeat((steps - place) * 3));
            format!("{path} [{done}{left}] {place}/{steps} {phase}")
        }
        None => format!("{path} {phase}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_up() {
        assert_eq!(
            bar("/dev/a", "Unprovisioned"),
            format!("/dev/a [{}] 0/6 Unprovisioned", "░".repeat(18))
        );
        assert_eq!(
            bar("/dev/a", "Provisioned"),
            format!("/dev/a [{}] 6/6 Provisioned", "█".repeat(18))
        );
        assert_eq!(bar("/dev/a", "Unmounting"), "/dev/a Unmounting");
    }

    #[test]
    fn a_disk_is_described_with_what_matters() {
        let disk = json!({
            "metadata": {"name": "d1"},
            "spec": {"nodeName": "n1", "devPath": "/dev/sda"},
            "status": {"provisionPhase": "Failed", "failure": {"reason": "Refused", "message": "rule 4: found gpt"},
                "signatures": [{"name": "gpt"}], "deviceStatus": {"capacity": {"sizeBytes": 1_073_741_824_u64}}},
        });
        let text = describe(&disk);
        for part in ["d1", "n1", "/dev/sda", "1Gi", "gpt", "rule 4"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
