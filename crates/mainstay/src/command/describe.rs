//! `mainstay describe`: prints one object as text, with its conditions and events.

use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use mainstay_clock::{Clock, SystemClock};
use mainstay_store::meta::human_duration;
use mainstay_terminal::output::{self, Table, cell, clean};
use serde_json::{Map, Value};

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::list;
use crate::client::{Client, JSON};
use crate::command::get::object;
use crate::connect::Connect;
use crate::error::{Error, Failures};
use crate::ownership::LAST_APPLIED;
use crate::select::{Scope, Selectors, Wanted, wanted};

/// Show one or several objects in detail, with their events
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay describe node worker-1
  mainstay describe cm -l app=web")]
pub(crate) struct Describe {
    /// TYPE [NAME…] or TYPE/NAME…
    #[arg(value_name = "TYPE|TYPE/NAME", required = true)]
    what: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    selectors: Selectors,
    #[command(flatten)]
    connect: Connect,
}

impl Describe {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let mut failures = Failures::default();
        let mut first = true;
        for Wanted { resource, names } in wanted(&discovery, &self.what)? {
            let found = self.found(&client, &resource, &names, &mut failures).await?;
            for object in found {
                let events = events(&client, &discovery, &resource, &object).await;
                let text = describe(&object, &resource, &events, clock.now());
                output::print(&format!("{}{text}", if first { "" } else { "\n\n" }))?;
                first = false;
            }
        }
        if first && failures.code() == 0 {
            anstream::eprintln!("No resources found.");
        }
        Ok(failures.code())
    }

    async fn found(
        &self,
        client: &Client,
        resource: &Resource,
        names: &[String],
        failures: &mut Failures,
    ) -> Result<Vec<Value>, Error> {
        let namespace = self.scope.namespace(client);
        if names.is_empty() {
            let path = resource.collection(Some(namespace));
            let answer = list(client, &path, &self.selectors.query(), JSON).await?;
            return Ok(answer["items"].as_array().cloned().unwrap_or_default());
        }
        let mut found = Vec::new();
        for name in names {
            found.extend(failures.note(object(client, resource, namespace, name).await)?);
        }
        Ok(found)
    }
}

/// The events about an object, oldest first; none where the server has no events.
async fn events(
    client: &Client,
    discovery: &Discovery,
    resource: &Resource,
    object: &Value,
) -> Vec<Value> {
    let Some(kind) = discovery.by_kind("v1", "Event") else {
        return Vec::new();
    };
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut fields = vec![
        format!("involvedObject.kind={}", resource.kind),
        format!("involvedObject.name={}", text(&metadata["name"])),
    ];
    if let Some(uid) = metadata["uid"].as_str() {
        fields.push(format!("involvedObject.uid={uid}"));
    }
    let selectors = Selectors { labels: None, fields: Some(fields.join(",")) };
    let namespace = metadata["namespace"].as_str();
    let path = kind.collection(namespace);
    let answer = list(client, &path, &selectors.query(), JSON).await;
    let mut events =
        answer.ok().and_then(|answer| answer["items"].as_array().cloned()).unwrap_or_default();
    events.sort_by_key(last_seen);
    events
}

fn last_seen(event: &Value) -> String {
    ["lastTimestamp", "eventTime", "firstTimestamp"]
        .iter()
        .find_map(|field| event[field].as_str())
        .or_else(|| event["metadata"]["creationTimestamp"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// How long ago a time was, or `<unknown>`.
fn since(time: Option<&str>, now: Timestamp) -> String {
    time.and_then(|time| time.parse::<Timestamp>().ok())
        .map_or_else(|| "<unknown>".to_owned(), |time| human_duration(now.duration_since(time)))
}

/// Text built line by line.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    /// `Name:        value`; an empty name continues the line above.
    fn line(&mut self, name: &str, value: &str) {
        let label = if name.is_empty() { String::new() } else { format!("{name}:") };
        self.text.push_str(&format!("{label:<14}{value}\n"));
    }

    fn pairs(&mut self, name: &str, map: &Value) {
        let pairs: Vec<String> = map
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != LAST_APPLIED)
            .map(|(name, value)| format!("{}={}", clean(name), cell(value)))
            .collect();
        self.line(name, pairs.first().map_or("<none>", String::as_str));
        for pair in pairs.iter().skip(1) {
            self.line("", pair);
        }
    }

    /// A value as an indented outline.
    fn outline(&mut self, name: &str, value: &Value, depth: usize) {
        let pad = "  ".repeat(depth);
        match value {
            Value::Object(map) if map.is_empty() => {}
            Value::Object(map) => {
                self.text.push_str(&format!("{pad}{name}:\n"));
                for (field, value) in map {
                    self.outline(&clean(field), value, depth + 1);
                }
            }
            Value::Array(list) if list.is_empty() => {}
            Value::Array(list) if list.iter().all(|item| !item.is_object() && !item.is_array()) => {
                let items: Vec<String> = list.iter().map(cell).collect();
                self.text.push_str(&format!("{pad}{name}: {}\n", items.join(", ")));
            }
            Value::Array(list) => {
                self.text.push_str(&format!("{pad}{name}:\n"));
                for (index, item) in list.iter().enumerate() {
                    self.outline(&format!("[{index}]"), item, depth + 1);
                }
            }
            Value::String(string) if string.contains('\n') => {
                self.text.push_str(&format!("{pad}{name}:\n"));
                for line in string.lines() {
                    self.text.push_str(&format!("{pad}  {}\n", clean(line)));
                }
            }
            scalar => self.text.push_str(&format!("{pad}{name}: {}\n", cell(scalar))),
        }
    }
}

/// The whole text. Pure: the same object at the same time always reads the same.
fn describe(object: &Value, resource: &Resource, events: &[Value], now: Timestamp) -> String {
    let mut page = Page::default();
    heading(&mut page, &object["metadata"], resource, now);
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            page.outline(&title(name), value, 0);
        }
    }
    if let Some(status) = object["status"].as_object() {
        let mut rest: Map<String, Value> = status.clone();
        let conditions = rest.remove("conditions");
        page.outline("Status", &Value::Object(rest), 0);
        if let Some(Value::Array(conditions)) = conditions {
            page.text.push_str("Conditions:\n");
            page.text.push_str(&conditions_table(&conditions, now).indented(2));
        }
    }
    if events.is_empty() {
        page.line("Events", "<none>");
    } else {
        page.text.push_str("Events:\n");
        page.text.push_str(&events_table(events, now).indented(2));
    }
    page.text
}

fn heading(page: &mut Page, metadata: &Value, resource: &Resource, now: Timestamp) {
    page.line("Name", &cell(&metadata["name"]));
    if let Some(namespace) = metadata["namespace"].as_str() {
        page.line("Namespace", &clean(namespace));
    }
    page.line("Kind", &format!("{} ({})", resource.kind, resource.api_version()));
    page.pairs("Labels", &metadata["labels"]);
    page.pairs("Annotations", &metadata["annotations"]);
    let created = metadata["creationTimestamp"].as_str();
    if let Some(time) = created {
        page.line("Created", &format!("{} ({} ago)", clean(time), since(created, now)));
    }
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        page.line("Owner", &format!("{}/{}", cell(&owner["kind"]), cell(&owner["name"])));
    }
    let deleted = metadata["deletionTimestamp"].as_str();
    let finalizers = metadata["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let finalizers: Vec<String> = finalizers.iter().map(cell).collect();
    if deleted.is_some() {
        let waiting = finalizers.join(", ");
        page.line("Deleting", &format!("for {}, waiting for {waiting}", since(deleted, now)));
    } else if !finalizers.is_empty() {
        page.line("Finalizers", &finalizers.join(", "));
    }
}

fn conditions_table(conditions: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for condition in conditions {
        table.rows.push(vec![
            cell(&condition["type"]),
            cell(&condition["status"]),
            since(condition["lastTransitionTime"].as_str(), now),
            optional(&condition["reason"]),
            optional(&condition["message"]),
        ]);
    }
    table
}

fn events_table(events: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["AGE", "TYPE", "REASON", "FROM", "MESSAGE"]);
    for event in events {
        let mut age = since(Some(&last_seen(event)), now);
        let count = event["count"].as_i64().unwrap_or(1);
        if count > 1 {
            age = format!("{age} (x{count})");
        }
        let source = event["source"]["component"].as_str().filter(|name| !name.is_empty());
        let source = source.or_else(|| event["reportingComponent"].as_str());
        table.rows.push(vec![
            age,
            cell(&event["type"]),
            cell(&event["reason"]),
            clean(source.unwrap_or_default()),
            optional(&event["message"]),
        ]);
    }
    table
}

fn optional(value: &Value) -> String {
    if value.is_null() { String::new() } else { cell(value) }
}

/// `binaryData` → `Binary Data`.
fn title(field: &str) -> String {
    let mut title = String::new();
    for (at, letter) in clean(field).chars().enumerate() {
        match at {
            0 => title.extend(letter.to_uppercase()),
            _ if letter.is_uppercase() => title.extend([' ', letter]),
            _ => title.push(letter),
        }
    }
    title
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_metadata_spec_status_conditions_and_events() {
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Node".to_owned(),
            plural: "nodes".to_owned(),
            singular: "node".to_owned(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: false,
            verbs: Vec::new(),
        };
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"a": "1", "b": "2"}, "annotations": {LAST_APPLIED: "{}"},
                "finalizers": ["x/y"], "deletionTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDRs": ["a", "b"]},
            "status": {"phase": "Up", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:50Z", "reason": "Fine"}]},
        });
        let events = [json!({"type": "Normal", "reason": "Started", "count": 2,
            "lastTimestamp": "2026-01-01T00:00:40Z", "message": "it began", "source": {"component": "agent"}})];
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let expected = "\
Name:         n1
Kind:         Node (v1)
Labels:       a=1
              b=2
Annotations:  <none>
Created:      2026-01-01T00:00:00Z (60s ago)
Deleting:     for 30s, waiting for x/y
Spec:
  podCIDRs: a, b
  taints:
    [0]:
      effect: NoSchedule
      key: k
Status:
  phase: Up
Conditions:
  TYPE    STATUS   SINCE   REASON   MESSAGE
  Ready   True     10s     Fine
Events:
  AGE        TYPE     REASON    FROM    MESSAGE
  20s (x2)   Normal   Started   agent   it began
";
        assert_eq!(describe(&object, &resource, &events, now), expected);
    }
}
