//! `mainstay watch`: prints every change to objects of one or several types, with the changed fields.

use std::collections::BTreeMap;

use clap::Args;
use mainstay_terminal::output::{self, cell, clean};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::{Change, Event, EventType, Follow};
use crate::client::{Client, JSON};
use crate::connect::Connect;
use crate::error::Error;
use crate::select::{Scope, Selectors, wanted};

/// How many changed fields a line shows.
const SHOWN: usize = 4;

/// Print every change as it happens, across types
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay watch nodes,leases -A              changes of two types, everywhere
  mainstay watch cm -l app=web -o json        one JSON event a line, for programs")]
pub(crate) struct Watch {
    /// TYPE[,TYPE…] or TYPE/NAME…
    #[arg(value_name = "TYPE|TYPE/NAME", required = true)]
    what: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    /// Objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    selectors: Selectors,
    /// Do not print the objects that exist already
    #[arg(long)]
    only_changes: bool,
    /// Output format: lines for people, or one JSON event a line
    #[arg(short, long, value_enum, default_value_t, hide_default_value = true)]
    output: Lines,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Lines {
    /// One line a change
    #[default]
    Text,
    /// `{"type":…,"object":…}`, one a line
    Json,
}

impl Watch {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let (sender, mut receiver) = mpsc::channel(64);
        let mut follows = Vec::new();
        for wanted in wanted(&discovery, &self.what)? {
            let queries = match wanted.names.as_slice() {
                [] => vec![self.selectors.query()],
                names => names
                    .iter()
                    .map(|name| Selectors {
                        labels: self.selectors.labels.clone(),
                        fields: Some(format!("metadata.name={name}")),
                    })
                    .map(|selectors| selectors.query())
                    .collect(),
            };
            for query in queries {
                follows.push(self.follow(&client, wanted.resource.clone(), query, sender.clone()));
            }
        }
        drop(sender);
        let printing = async {
            while let Some(line) = receiver.recv().await {
                output::print_line(&line)?;
            }
            Ok::<u8, Error>(0)
        };
        tokio::select! {
            printed = printing => printed,
            followed = futures_util::future::try_join_all(follows) => followed.map(|_| 0),
        }
    }

    async fn follow(
        &self,
        client: &Client,
        resource: Resource,
        query: String,
        lines: mpsc::Sender<String>,
    ) -> Result<(), Error> {
        let namespace = (!self.all_namespaces).then(|| self.scope.namespace(client));
        let mut follow = Follow::new(client, resource.collection(namespace), query, JSON);
        let mut known: BTreeMap<String, Value> = BTreeMap::new();
        let mut begun = false;
        loop {
            let events = match follow.next().await? {
                Change::Event(event) => vec![event],
                Change::Listed(list) => relisted(&known, &list, &resource),
            };
            for event in events {
                let key = key(&event.object);
                let before = match event.kind {
                    EventType::Deleted => known.remove(&key),
                    _ => known.insert(key, event.object.clone()),
                };
                if begun || !self.only_changes {
                    let line = self.line(&resource, &event, before.as_ref());
                    if lines.send(line).await.is_err() {
                        return Ok(());
                    }
                }
            }
            begun = true;
        }
    }

    fn line(&self, resource: &Resource, event: &Event, before: Option<&Value>) -> String {
        if self.output == Lines::Json {
            return json!({"type": event.kind.word(), "object": event.object}).to_string();
        }
        let metadata = &event.object["metadata"];
        let place =
            metadata["namespace"].as_str().map(|namespace| format!(" -n {}", clean(namespace)));
        let colour = match event.kind {
            EventType::Added => "\x1b[32m",
            EventType::Deleted => "\x1b[31m",
            _ => "\x1b[33m",
        };
        let changes = match (event.kind, before) {
            (EventType::Modified, Some(before)) => format!("  {}", summary(before, &event.object)),
            _ => String::new(),
        };
        format!(
            "{colour}{:<8}\x1b[0m {}/{}{}{changes}",
            event.kind.word(),
            resource.label(),
            cell(&metadata["name"]),
            place.unwrap_or_default(),
        )
    }
}

fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{}/{}", cell(&metadata["namespace"]), cell(&metadata["name"]))
}

/// The events that lead from the known objects to a new list.
fn relisted(known: &BTreeMap<String, Value>, list: &Value, resource: &Resource) -> Vec<Event> {
    let mut events = Vec::new();
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = Vec::new();
    for item in items {
        let mut object = item.clone();
        if let Some(map) = object.as_object_mut() {
            map.entry("apiVersion").or_insert_with(|| resource.api_version().into());
            map.entry("kind").or_insert_with(|| resource.kind.clone().into());
        }
        let key = key(&object);
        match known.get(&key) {
            None => events.push(Event { kind: EventType::Added, object }),
            Some(before)
                if before["metadata"]["resourceVersion"]
                    != object["metadata"]["resourceVersion"] =>
            {
                events.push(Event { kind: EventType::Modified, object });
            }
            Some(_) => {}
        }
        seen.push(key);
    }
    for (key, object) in known {
        if !seen.contains(key) {
            events.push(Event { kind: EventType::Deleted, object: object.clone() });
        }
    }
    events
}

/// The first changed fields, as `path: before → after`.
fn summary(before: &Value, after: &Value) -> String {
    let mut changes = Vec::new();
    differences("", before, after, &mut changes);
    let more = changes.len().saturating_sub(SHOWN);
    changes.truncate(SHOWN);
    let mut text = changes.join(", ");
    if more > 0 {
        text.push_str(&format!(", and {more} more"));
    }
    text
}

fn differences(path: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    let dull = [".metadata.resourceVersion", ".metadata.managedFields", ".metadata.generation"];
    if before == after || dull.contains(&path) {
        return;
    }
    let nothing = Map::new();
    match (before.as_object(), after.as_object()) {
        (None, None) => {
            let side =
                |value: &Value| if value.is_null() { "–".to_owned() } else { short(value) };
            let path = path.trim_start_matches('.');
            changes.push(format!("{}: {} → {}", clean(path), side(before), side(after)));
        }
        (one, other) => {
            let (one, other) = (one.unwrap_or(&nothing), other.unwrap_or(&nothing));
            let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let path = format!("{path}.{name}");
                let side = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
                differences(&path, &side(one), &side(other), changes);
            }
        }
    }
}

fn short(value: &Value) -> String {
    let text = cell(value);
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_lists_the_changed_fields() {
        let before =
            json!({"metadata": {"resourceVersion": "1"}, "spec": {"a": 1, "b": {"c": true}}});
        let after = json!({"metadata": {"resourceVersion": "2", "labels": {"x": "y"}}, "spec": {"a": 2, "b": {"c": true}}});
        assert_eq!(summary(&before, &after), "metadata.labels.x: – → y, spec.a: 1 → 2");
    }
}
