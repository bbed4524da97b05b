//! Asks for a change, and waits until the disk has settled.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use http::Method;
use mainstay_client::{Call, Client, MERGE_PATCH};
use mainstay_clock::duration;
use mainstay_store::meta::ConditionStatus;
use mainstay_terminal::{Error, output};
use serde_json::{Value, json};

use super::{DISKS, follow, path_of, phase};
use crate::api::BlockDevice;

/// The phases of a disk up to Provisioned, for the bar.
const PHASES: [&str; 7] = [
    "Unprovisioned",
    "Formatting",
    "Formatted",
    "Mounting",
    "Mounted",
    "Provisioning",
    "Provisioned",
];

/// Whether to wait until the disk has settled.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Wait until the disk has settled; exit code 1 if it failed
    #[arg(long)]
    wait: bool,
    /// How long to wait at most
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
}

/// Merges `spec` into the disk's spec, and waits until the disk has settled if asked to.
pub(super) async fn change(
    client: &Client,
    disk: &BlockDevice,
    spec: Value,
    waiting: &Waiting,
    ends: &[&str],
) -> Result<u8, Error> {
    let name = &disk.metadata.name;
    let path = format!("{DISKS}/{name}");
    let patch = json!({ "spec": spec });
    let written = client.json(Call::send(Method::PATCH, path, MERGE_PATCH, &patch)).await?;
    let generation = written["metadata"]["generation"].as_i64().unwrap_or(0);
    if !waiting.wait {
        output::print_line(&format!(
            "{} requested; `mainstay disks show {name}` shows the progress",
            path_of(disk),
        ))?;
        return Ok(0);
    }
    let mut bar = Bar::new();
    let mut last = format!("{} is still {}", path_of(disk), phase(disk));
    let ended = follow::until(client, name, waiting.timeout, |now| {
        bar.show(path_of(now), phase(now));
        last = format!("{} is still {}", path_of(now), phase(now));
        let settled = settled(now, generation, ends)?;
        Some(settled.map(|()| format!("{} is {}", path_of(now), phase(now))))
    })
    .await;
    bar.end();
    match ended? {
        Some(Ok(text)) => {
            output::print_line(&text)?;
            Ok(0)
        }
        Some(Err(why)) => Err(Error::negative(why)),
        None => {
            let time = duration::format(waiting.timeout);
            Err(Error::negative(format!("{last} after {time}")))
        }
    }
}

/// Whether a disk has settled: well, or with the reason why not. A disk that is to be provisioned
/// settles as Provisioned, any other in one of `ends`.
fn settled(disk: &BlockDevice, generation: i64, ends: &[&str]) -> Option<Result<(), String>> {
    let BlockDevice { spec, status, .. } = disk;
    if status.observed_generation.unwrap_or(0) < generation {
        return None;
    }
    if phase(disk) == "Failed" {
        let failure = status.failure.as_ref();
        return Some(Err(failure.map(|failure| failure.message.clone()).unwrap_or_default()));
    }
    if status.operation.is_some() {
        return None;
    }
    let wanted = spec.provision || spec.file_system.provisioned;
    let mut stuck = status.conditions.iter().filter(|condition| {
        let blocks = ["NeedsFormat", "Refused"].contains(&condition.kind.as_str());
        blocks && condition.status == ConditionStatus::True
    });
    if let (true, Some(condition)) = (wanted, stuck.next()) {
        return Some(Err(condition.message.clone()));
    }
    let there = if wanted { phase(disk) == "Provisioned" } else { ends.contains(&phase(disk)) };
    there.then_some(Ok(()))
}

/// Shows the progress: as a bar on a terminal, else as lines.
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

/// The progress of a disk, in one line.
fn bar(path: &str, phase: &str) -> String {
    let steps = PHASES.len() - 1;
    let place = PHASES.iter().position(|step| *step == phase);
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
    fn a_disk_has_settled_when_no_operation_is_left() {
        let disk = |wanted: bool, phase: &str, more: Value| {
            let mut status = json!({"observedGeneration": 2, "provisionPhase": phase});
            for (key, value) in more.as_object().unwrap() {
                status[key] = value.clone();
            }
            let spec = json!({"nodeName": "n", "devPath": "/dev/a", "provision": wanted});
            let disk = json!({"metadata": {"name": "d"}, "spec": spec, "status": status});
            serde_json::from_value::<BlockDevice>(disk).unwrap()
        };
        let none = || json!({});
        let needs = json!({"conditions": [
            {"type": "NeedsFormat", "status": "True", "message": "no usable filesystem"}]});
        let cases = [
            (disk(true, "Provisioned", none()), Some(Ok(()))),
            (disk(true, "Formatted", none()), None),
            (disk(false, "Formatted", none()), Some(Ok(()))),
            (disk(false, "Mounted", none()), None),
            (disk(true, "Provisioned", json!({"operation": {"id": "1", "kind": "Format"}})), None),
            (disk(true, "Provisioned", json!({"observedGeneration": 1})), None),
            (
                disk(true, "Failed", json!({"failure": {"reason": "R", "message": "why"}})),
                Some(Err("why")),
            ),
            (disk(true, "Unprovisioned", needs), Some(Err("no usable filesystem"))),
        ];
        for (disk, expected) in cases {
            let expected = expected.map(|ended| ended.map_err(str::to_owned));
            assert_eq!(settled(&disk, 2, &["Formatted"]), expected, "{disk:?}");
        }
    }

    #[test]
    fn the_bar_shows_the_share_of_phases_that_are_done() {
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
}
