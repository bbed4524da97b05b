//! The commands of the engine: `mainstay disks …` lists the disks of all nodes, and provisions,
//! formats and releases them.
//!
//! Every command changes the spec of a BlockDevice and (with `--wait`) watches its status; the agent
//! of the node does the work. A disk is erased only if the user names exactly the data that is lost.
//! The binary mounts [`Command`], chooses the server, and passes a client.

mod follow;
mod settle;
mod show;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use mainstay_client::{Call, Client, JSON, MERGE_PATCH, watch};
use mainstay_clock::duration;
use mainstay_terminal::Error;
use mainstay_terminal::output::{self, Format, Table};
use serde::Deserialize;
use serde_json::{Value, json};

use self::settle::{Waiting, change};
use crate::api::BlockDevice;
use crate::gate;

/// The collection of BlockDevices.
const DISKS: &str = "/apis/storage.mainstay.dev/v1/blockdevices";
/// How long an agent may take to answer a dry run.
const DRY_RUN: Duration = Duration::from_secs(30);

/// The subcommands of `mainstay disks`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show all disks
    List {
        /// Show only the disks of this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Show one disk: its hardware, its phase, and its conditions
    Show {
        #[command(flatten)]
        which: Which,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Make a disk a pool. A disk without a filesystem needs --format as well
    #[command(after_help = "Examples:
  mainstay disks provision worker-1:/dev/sdb --format --wait
  mainstay disks provision worker-1:/dev/sdb --format --lvm vg1
  mainstay disks provision worker-1:/dev/sdb --format --dry-run       show the decision of the safety gate only")]
    Provision {
        /// Format the disk first (with --lvm: wipe it)
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
        /// Take over a filesystem that another program has mounted: it is unmounted there, and becomes the
        /// pool with its data
        #[arg(long, conflicts_with_all = ["format", "lvm"])]
        adopt: bool,
        #[command(flatten)]
        erase: Erase,
        #[command(flatten)]
        asked: Asked,
    },
    /// Format a disk (once more, if it was formatted before)
    #[command(after_help = "Examples:
  mainstay disks format worker-1:/dev/sdb --dry-run                 check the rules of the safety gate only
  mainstay disks format worker-1:/dev/sdb                           format a blank disk
  mainstay disks format worker-1:/dev/sdb --erase gpt,ext4          erase exactly these signatures")]
    Format {
        #[command(flatten)]
        erase: Erase,
        #[command(flatten)]
        asked: Asked,
    },
    /// Take a pool out of use: it is emptied first; data that is left stays on the disk
    Unprovision(Asked),
    /// Try a failed disk again
    Retry(Asked),
    /// Confirm that a corrupted filesystem was repaired by hand, so that it is mounted again
    Repair(Asked),
    /// Print the table of phases and transitions
    Table {
        /// As a state diagram (Mermaid)
        #[arg(long)]
        diagram: bool,
    },
}

/// The disk that a command is for.
#[derive(Debug, Args)]
pub struct Which {
    /// The name of a BlockDevice (or its beginning), a path, or NODE:PATH
    #[arg(value_name = "DISK")]
    disk: String,
}

/// The arguments of every change: a disk, and whether to wait.
#[derive(Debug, Args)]
pub struct Asked {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    waiting: Waiting,
}

/// The data that may be lost.
#[derive(Debug, Args)]
pub struct Erase {
    /// The signatures whose data may be lost: exactly those `mainstay disks show` lists. Counts for this
    /// one command
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    erase: Vec<String>,
    /// Print what the agent would do, with the rules of the safety gate, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Command {
    /// Runs the command, with a client from `connect` if it needs a server; returns the exit code.
    pub async fn run<C, E>(&self, connect: impl FnOnce() -> Result<C, E>) -> Result<u8, E>
    where
        C: Deref<Target = Client>,
        E: From<Error>,
    {
        let done = match self {
            Self::Table { diagram } => print_table(*diagram),
            other => {
                let client = connect()?;
                other.run_on(&client).await
            }
        };
        Ok(done?)
    }

    async fn run_on(&self, client: &Client) -> Result<u8, Error> {
        match self {
            Self::List { node, output } => list(client, node.as_deref(), *output).await,
            Self::Show { which, output } => {
                let (object, disk) = find(client, &which.disk).await?;
                match output {
                    Some(Format::Json) => output::print(&output::json(&object))?,
                    Some(Format::Yaml) => output::print(&output::yaml(&object))?,
                    _ => output::print(&show::describe(&disk))?,
                }
                Ok(0)
            }
            Self::Provision { asked, format, filesystem, lvm, tags, adopt, erase } => {
                let mut spec = json!({"provision": true});
                if *format {
                    spec["fileSystem"] = json!({"forceFormatted": true});
                }
                if *adopt {
                    let (_, disk) = find(client, &asked.which.disk).await?;
                    let (entry, shown) = adoption(&disk)?;
                    spec["fileSystem"] = json!({"adopt": entry});
                    output::print_line(&shown)?;
                }
                if let Some(name) = lvm {
                    spec["provisioner"] = json!({"lvm": {"vgName": name}, "filesystem": null});
                } else if let Some(kind) = filesystem {
                    spec["provisioner"] = json!({"filesystem": {"type": kind}, "lvm": null});
                }
                if !tags.is_empty() {
                    spec["tags"] = json!(tags);
                }
                asked.erase(client, erase, |_| spec.clone(), &[]).await
            }
            Self::Format { asked, erase } => {
                let spec = |disk: &BlockDevice| json!({"fileSystem": {"forceFormatted": true, "formatRequest": nonce(disk)}});
                asked.erase(client, erase, spec, &["Formatted"]).await
            }
            Self::Unprovision(asked) => {
                let spec = json!({"provision": false, "fileSystem": {"provisioned": false}});
                asked.change(client, |_| spec.clone(), &["Formatted", "Unprovisioned"]).await
            }
            Self::Retry(asked) => {
                let spec = |disk: &BlockDevice| json!({"retry": nonce(disk)});
                asked.change(client, spec, &["Formatted", "Unprovisioned"]).await
            }
            Self::Repair(asked) => {
                let spec = |disk: &BlockDevice| json!({"retry": nonce(disk), "fileSystem": {"repaired": true}});
                asked.change(client, spec, &["Formatted"]).await
            }
            Self::Table { diagram } => print_table(*diagram),
        }
    }
}

fn print_table(diagram: bool) -> Result<u8, Error> {
    output::print(&if diagram { crate::table::diagram() } else { crate::table::text() })?;
    Ok(0)
}

impl Asked {
    /// Merges the result of `spec` into the disk's spec, and waits until it has settled if asked to.
    /// A disk that is to be provisioned settles as Provisioned, any other in one of `ends`.
    async fn change(
        &self,
        client: &Client,
        spec: impl Fn(&BlockDevice) -> Value,
        ends: &[&str],
    ) -> Result<u8, Error> {
        let (_, disk) = find(client, &self.which.disk).await?;
        change(client, &disk, spec(&disk), &self.waiting, ends).await
    }

    /// [`Asked::change`] for a change that may destroy data, or only a dry run of it.
    async fn erase(
        &self,
        client: &Client,
        erase: &Erase,
        spec: impl Fn(&BlockDevice) -> Value,
        ends: &[&str],
    ) -> Result<u8, Error> {
        let acknowledged = |disk: &BlockDevice| {
            let mut spec = spec(disk);
            if !erase.erase.is_empty() {
                spec["acknowledgeDataLoss"] = json!(acknowledge(disk, &erase.erase));
            }
            spec
        };
        if erase.dry_run {
            let (_, disk) = find(client, &self.which.disk).await?;
            return dry_run(client, &disk, &acknowledged(&disk)).await;
        }
        self.change(client, acknowledged, ends).await
    }
}

/// The entries of spec.acknowledgeDataLoss for signatures that a person named: each name stands for the
/// signatures of that name that the status shows now, with their UUIDs.
fn acknowledge(disk: &BlockDevice, names: &[String]) -> BTreeSet<String> {
    let mut entries = BTreeSet::new();
    for name in names {
        let shown = disk.status.signatures.iter().filter(|found| found.name == *name);
        let before = entries.len();
        entries.extend(shown.map(|found| gate::entry(&found.name, &found.uuid)));
        if entries.len() == before {
            entries.insert(name.clone());
        }
    }
    entries
}

/// The entry that allows the filesystem on a disk to be adopted, and a line that shows it.
fn adoption(disk: &BlockDevice) -> Result<(String, String), Error> {
    let [found] = disk.status.signatures.as_slice() else {
        let names: Vec<_> =
            disk.status.signatures.iter().map(|found| found.name.as_str()).collect();
        let (place, names) = (place(disk), names.join(", "));
        return Err(Error::usage(format!(
            "{place} cannot be adopted: it must hold one filesystem, found [{names}]"
        )));
    };
    let device = &disk.status.device_status;
    let label = match device.details.label.as_str() {
        "" => String::new(),
        label => format!(", label {label}"),
    };
    let at = match device.file_system.mount_point.as_str() {
        "" => "not mounted".to_owned(),
        point => format!("mounted at {point}"),
    };
    let (place, name, uuid) = (place(disk), &found.name, &found.uuid);
    let shown = format!("{place} holds {name} (UUID {uuid}{label}), {at}; its data is kept");
    Ok((gate::entry(name, uuid), shown))
}

/// A value that the disk has not seen yet: the version it is at.
fn nonce(disk: &BlockDevice) -> String {
    format!("v{}", disk.metadata.resource_version)
}

/// The path where the disk is now, or where it was last.
fn path_of(disk: &BlockDevice) -> &str {
    match disk.status.device_status.dev_path.as_str() {
        "" => &disk.spec.dev_path,
        path => path,
    }
}

fn phase(disk: &BlockDevice) -> &str {
    match disk.status.provision_phase.as_str() {
        "" => "Unprovisioned",
        phase => phase,
    }
}

fn place(disk: &BlockDevice) -> String {
    format!("{}:{}", disk.spec.node_name, path_of(disk))
}

/// Reads a BlockDevice.
fn typed(object: &Value) -> Result<BlockDevice, Error> {
    BlockDevice::deserialize(object).map_err(|error| {
        let name = output::cell(&object["metadata"]["name"]);
        Error::negative(format!("BlockDevice {name} cannot be read: {error}"))
    })
}

/// All disks, as the server sent them and as types.
async fn all(client: &Client) -> Result<Vec<(Value, BlockDevice)>, Error> {
    let mut list = watch::list(client, DISKS, "", JSON).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    items.into_iter().map(|object| typed(&object).map(|disk| (object, disk))).collect()
}

/// The one disk that `text` names.
async fn find(client: &Client, text: &str) -> Result<(Value, BlockDevice), Error> {
    let mut found = all(client).await?;
    found.retain(|(_, disk)| is_meant(disk, text));
    match found.len() {
        0 => {
            Err(Error::negative(format!("no disk {text:?} found; `mainstay disks list` shows all")))
        }
        1 => Ok(found.remove(0)),
        _ => {
            let shown = |(_, disk): &(Value, BlockDevice)| {
                format!("{} ({})", place(disk), disk.metadata.name)
            };
            let names: Vec<_> = found.iter().map(shown).collect();
            let names = names.join(", ");
            Err(Error::usage(format!("{text:?} matches {names}; name one of them as NODE:PATH")))
        }
    }
}

fn is_meant(disk: &BlockDevice, text: &str) -> bool {
    let name = &disk.metadata.name;
    name == text
        || path_of(disk) == text
        || place(disk) == text
        || (text.len() >= 4 && name.starts_with(text))
}

async fn list(client: &Client, node: Option<&str>, format: Option<Format>) -> Result<u8, Error> {
    let mut disks = all(client).await?;
    disks.retain(|(_, disk)| node.is_none_or(|node| disk.spec.node_name == node));
    disks.sort_by_key(|(_, disk)| (disk.spec.node_name.clone(), path_of(disk).to_owned()));
    match format {
        Some(format @ (Format::Json | Format::Yaml)) => {
            let objects = Value::Array(disks.into_iter().map(|(object, _)| object).collect());
            match format {
                Format::Json => output::print(&output::json(&objects))?,
                _ => output::print(&output::yaml(&objects))?,
            }
        }
        Some(Format::Name) => {
            for (_, disk) in &disks {
                let name = &disk.metadata.name;
                output::print_line(&format!("blockdevice.storage.mainstay.dev/{name}"))?;
            }
        }
        _ => {
            let mut table =
                Table::new(&["NODE", "PATH", "SIZE", "TYPE", "FILESYSTEM", "PHASE", "NAME"]);
            for (_, disk) in &disks {
                let device = &disk.status.device_status;
                table.rows.push(vec![
                    disk.spec.node_name.clone(),
                    path_of(disk).to_owned(),
                    crate::size(device.capacity.size_bytes),
                    device.details.drive_type.clone(),
                    device.file_system.kind.clone(),
                    phase(disk).to_owned(),
                    disk.metadata.name.clone(),
                ]);
            }
            output::print(&table.text())?;
        }
    }
    Ok(0)
}

/// Asks the node's agent what it would do about a change of the spec, and prints it. The server checks
/// the change first, as it would check the real one.
async fn dry_run(client: &Client, disk: &BlockDevice, spec: &Value) -> Result<u8, Error> {
    let name = &disk.metadata.name;
    let patch = json!({ "spec": spec });
    let path = format!("{DISKS}/{name}?dryRun=All");
    let changed = client.json(Call::send(Method::PATCH, path, MERGE_PATCH, &patch)).await?;
    let request = format!("{}:{}", nonce(disk), changed["spec"]);
    let patch = json!({"metadata": {"annotations": {"storage.mainstay.dev/dry-run": request}}});
    let path = format!("{DISKS}/{name}");
    client.json(Call::send(Method::PATCH, path, MERGE_PATCH, &patch)).await?;
    let answered = follow::until(client, name, DRY_RUN, |disk| {
        disk.status.dry_run.clone().filter(|answer| answer.request == request)
    });
    let Some(answer) = answered.await? else {
        let node = &disk.spec.node_name;
        return Err(Error::negative(format!(
            "the agent of node {node} did not answer within {}; check that it is running",
            duration::format(DRY_RUN)
        )));
    };
    for rule in &answer.rules {
        let (number, asks) = (rule.rule, &rule.asks);
        output::print_line(&match &rule.refusal {
            None => format!("{number:>2}  pass    {asks}"),
            Some(why) => format!("{number:>2}  REFUSE  {asks}: {why}"),
        })?;
    }
    if !answer.rules.is_empty() {
        let passes = answer.rules.iter().all(|rule| rule.refusal.is_none());
        output::print_line(if passes { "the gate would let it pass" } else { "the gate refuses" })?;
    }
    output::print_line(&answer.decision)?;
    Ok(u8::from(!answer.passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adoption_names_the_one_filesystem_and_shows_where_it_is() {
        let mut disk: BlockDevice = serde_json::from_value(json!({
            "spec": {"nodeName": "n", "devPath": "/dev/a"},
            "status": {"signatures": [{"name": "ext4", "uuid": "u1"}], "deviceStatus":
                {"details": {"label": "home"}, "fileSystem": {"mountPoint": "/home"}}},
        }))
        .unwrap();
        let (entry, shown) = adoption(&disk).unwrap();
        assert_eq!(entry, "ext4:u1");
        assert!(shown.contains("label home), mounted at /home"), "{shown}");
        disk.status.signatures.clear();
        assert!(adoption(&disk).is_err());
    }

    #[test]
    fn a_named_signature_is_acknowledged_with_the_uuid_that_is_shown() {
        let disk = json!({
            "spec": {"nodeName": "n", "devPath": "/dev/a"},
            "status": {"signatures": [{"name": "ext4", "uuid": "u1"}, {"name": "dos"}]},
        });
        let disk: BlockDevice = serde_json::from_value(disk).unwrap();
        let names = ["ext4", "dos", "vg:a"].map(str::to_owned);
        let entries: Vec<_> = acknowledge(&disk, &names).into_iter().collect();
        assert_eq!(entries, ["dos", "ext4:u1", "vg:a"]);
    }
}
