//! Asking for a change, and staying until it has settled.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use http::Method;
use mainstay_clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{DISKS, name, path_of, phase, said};
use crate::client::{Call, Client, MERGE_PATCH};
use crate::duration;
use crate::error::Error;
use crate::output;

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

/// Whether to stay until it is done.
#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Stay until it has settled; exit code 1 if it failed
    #[arg(long)]
    wait: bool,
    /// How long to stay
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
}

/// Writes the spec, and stays until it has settled if that was asked for.
pub(super) async fn change(
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
    let clock = SystemClock::new();
    let mut bar = Bar::new();
    loop {
        let now = client.json(Call::get(path.clone())).await?;
        bar.show(&path_of(&now), phase(&now));
        match settled(&now, generation, ends) {
            Some(Ok(())) => {
                bar.end();
                output::print_line(&format!("{} is {}", path_of(&now), phase(&now)))?;
                return Ok(0);
            }
            Some(Err(why)) => {
                bar.end();
                return Err(Error::negative(why));
            }
            None => {}
        }
        if clock.elapsed() > waiting.timeout {
            bar.end();
            let text = format!(
                "{} is still {} after {}",
                path_of(&now),
                phase(&now),
                duration::format(waiting.timeout)
            );
            return Err(Error::negative(text));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// How a disk has settled, if it has: well, or why not. One that is wanted settles as Provisioned,
/// any other in one of `ends`.
fn settled(disk: &Value, generation: i64, ends: &[&str]) -> Option<Result<(), String>> {
    let (spec, status) = (&disk["spec"], &disk["status"]);
    if status["observedGeneration"].as_i64().unwrap_or(0) < generation {
        return None;
    }
    if phase(disk) == "Failed" {
        return Some(Err(said(&status["failure"]["message"])));
    }
    if !status["operation"].is_null() {
        return None;
    }
    let wanted = spec["provision"] == true || spec["fileSystem"]["provisioned"] == true;
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut stuck = conditions.filter(|condition| {
        let kind = condition["type"].as_str().unwrap_or_default();
        ["NeedsFormat", "Refused"].contains(&kind) && condition["status"] == "True"
    });
    if let (true, Some(condition)) = (wanted, stuck.next()) {
        return Some(Err(said(&condition["message"])));
    }
    let there = if wanted { phase(disk) == "Provisioned" } else { ends.contains(&phase(disk)) };
    there.then_some(Ok(()))
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
    fn a_disk_has_settled_when_nothing_more_will_happen_by_itself() {
        let disk = |wanted: bool, phase: &str, more: Value| {
            let mut status = json!({"observedGeneration": 2, "provisionPhase": phase});
            for (key, value) in more.as_object().unwrap() {
                status[key] = value.clone();
            }
            json!({"spec": {"provision": wanted}, "status": status})
        };
        let none = || json!({});
        let needs = json!({"conditions": [
            {"type": "NeedsFormat", "status": "True", "message": "no usable filesystem"}]});
        let cases = [
            (disk(true, "Provisioned", none()), Some(Ok(()))),
            (disk(true, "Formatted", none()), None),
            (disk(false, "Formatted", none()), Some(Ok(()))),
            (disk(false, "Mounted", none()), None),
            (disk(true, "Provisioned", json!({"operation": {"id": "1"}})), None),
            (disk(true, "Provisioned", json!({"observedGeneration": 1})), None),
            (disk(true, "Failed", json!({"failure": {"message": "why"}})), Some(Err("why"))),
            (disk(true, "Unprovisioned", needs), Some(Err("no usable filesystem"))),
        ];
        for (disk, expected) in cases {
            let expected = expected.map(|ended| ended.map_err(str::to_owned));
            assert_eq!(settled(&disk, 2, &["Formatted"]), expected, "{disk}");
        }
    }

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
}
