//! `mainstay wait`: waits for a condition of objects by watching them, without polling.

use std::time::Duration;

use clap::Args;
use mainstay_clock::duration;
use mainstay_clock::{Clock, SystemClock};
use mainstay_terminal::output::{self, cell};
use serde_json::Value;

use crate::client::discovery::{Discovery, Resource};
use crate::client::watch::{Change, Event, EventType, Follow, list};
use crate::client::{Client, JSON};
use crate::command::delete::gone;
use crate::connect::Connect;
use crate::error::{Error, Failures};
use crate::jsonpath::JsonPath;
use crate::select::{Scope, Selectors, Wanted, wanted};

/// Wait for a condition of objects
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay wait node/worker-1 --for=condition=Ready --timeout=2m
  mainstay wait node --all --for=condition=Ready=False
  mainstay wait cm/settings --for=create
  mainstay wait cm/settings --for=delete
  mainstay wait ns/a --for=jsonpath='{.status.phase}'=Active

Exit code 1 means that the time was up first.")]
pub(crate) struct Wait {
    /// TYPE NAME…, TYPE/NAME…, or TYPE with -l or --all
    #[arg(value_name = "TYPE|TYPE/NAME", required = true)]
    what: Vec<String>,
    /// The condition to wait for: condition=NAME[=VALUE], create, delete, or jsonpath=PATH[=VALUE]
    #[arg(long = "for", value_name = "WHAT", value_parser = Goal::parse)]
    goal: Goal,
    /// How long to wait at most
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    selectors: Selectors,
    /// All objects of the type in the namespace
    #[arg(long, conflicts_with_all = ["labels", "fields"])]
    all: bool,
    #[command(flatten)]
    connect: Connect,
}

/// The condition to wait for.
#[derive(Debug, Clone, PartialEq)]
enum Goal {
    Condition { name: String, value: String },
    Path { path: JsonPath, value: Option<String> },
    Created,
    Deleted,
}

impl Goal {
    fn parse(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once('=').unwrap_or((text, ""));
        match (word.to_lowercase().as_str(), rest) {
            ("delete", "") => Ok(Self::Deleted),
            ("create", "") => Ok(Self::Created),
            ("condition", rest) if !rest.is_empty() => {
                let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
                Ok(Self::Condition { name: name.to_owned(), value: value.to_owned() })
            }
            ("jsonpath", rest) if !rest.is_empty() => {
                let (path, value) = match rest.find('}') {
                    Some(end) => (&rest[..=end], rest[end + 1..].strip_prefix('=')),
                    None => rest
                        .split_once('=')
                        .map_or((rest, None), |(path, value)| (path, Some(value))),
                };
                let path =
                    JsonPath::parse(path.trim_matches('\'')).map_err(|error| error.to_string())?;
                Ok(Self::Path { path, value: value.map(str::to_owned) })
            }
            _ => Err("wait for condition=NAME[=VALUE], create, delete or jsonpath=PATH[=VALUE]"
                .to_owned()),
        }
    }

    /// Whether an existing object meets the condition.
    fn is_met(&self, object: &Value) -> bool {
        match self {
            Self::Created => true,
            Self::Deleted => false,
            Self::Condition { name, value } => condition_is(object, name, value),
            Self::Path { path, value } => {
                let found = path.find(object);
                match value {
                    None => !found.is_empty(),
                    Some(value) => found.iter().any(|found| cell(found) == *value),
                }
            }
        }
    }
}

/// Whether the condition has this value for the current generation of the spec.
fn condition_is(object: &Value, name: &str, value: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let generation = object["metadata"]["generation"].as_i64();
    conditions.into_iter().flatten().any(|condition| {
        let is = |field: &str, text: &str| {
            condition[field].as_str().is_some_and(|found| found.eq_ignore_ascii_case(text))
        };
        let observed = condition["observedGeneration"]
            .as_i64()
            .or_else(|| object["status"]["observedGeneration"].as_i64());
        let current = observed.zip(generation).is_none_or(|(observed, now)| observed >= now);
        is("type", name) && is("status", value) && current
    })
}

impl Wait {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        let client = self.connect.client()?;
        let discovery = Discovery::load(&client).await?;
        let objects = self.objects(&client, &discovery).await?;
        if objects.is_empty() {
            return Err(Error::negative("no matching resources found"));
        }
        let clock = SystemClock::new();
        let namespace = self.scope.namespace(&client);
        let mut failures = Failures::default();
        for (resource, name) in &objects {
            let label = format!("{}/{name}", resource.label());
            let waiting = self.wait(&client, resource, namespace, name);
            let waited =
                match tokio::time::timeout(self.timeout.saturating_sub(clock.elapsed()), waiting)
                    .await
                {
                    Ok(waited) => waited,
                    // The time was used up by the objects before it: this one may meet the condition already.
                    Err(_) if self.holds(&client, resource, namespace, name).await? => Ok(()),
                    Err(_) => Err(Error::negative(format!("timed out waiting for {label}"))),
                };
            if failures.note(waited)?.is_some() {
                let met = match self.goal {
                    Goal::Deleted => "deleted",
                    Goal::Created => "created",
                    _ => "condition met",
                };
                output::print_line(&format!("{label} {met}"))?;
            }
        }
        Ok(failures.code())
    }

    async fn objects(
        &self,
        client: &Client,
        discovery: &Discovery,
    ) -> Result<Vec<(Resource, String)>, Error> {
        let mut objects = Vec::new();
        for Wanted { resource, names } in wanted(discovery, &self.what)? {
            let chosen = self.all || !self.selectors.is_empty();
            if names.is_empty() != chosen {
                return Err(Error::usage("name objects, a selector (-l), or --all"));
            }
            let mut names = names;
            if chosen {
                let path = resource.collection(Some(self.scope.namespace(client)));
                let answer = list(client, &path, &self.selectors.query(), JSON).await?;
                let items = answer["items"].as_array().cloned().unwrap_or_default();
                let found = items.iter().filter_map(|item| item["metadata"]["name"].as_str());
                names.extend(found.map(str::to_owned));
            }
            objects.extend(names.into_iter().map(|name| (resource.clone(), name)));
        }
        Ok(objects)
    }

    /// Whether the object meets the condition now.
    async fn holds(
        &self,
        client: &Client,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<bool, Error> {
        let path = resource.collection(Some(namespace));
        let answer = list(client, &path, &Selectors::named(name).query(), JSON).await?;
        let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(match self.goal {
            Goal::Deleted => items.is_empty(),
            _ => items.iter().any(|object| self.goal.is_met(object)),
        })
    }

    async fn wait(
        &self,
        client: &Client,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<(), Error> {
        if self.goal == Goal::Deleted {
            return gone(client, resource, namespace, name, "").await;
        }
        let missing = || Error::negative(format!("{}/{name} does not exist", resource.label()));
        let path = resource.collection(Some(namespace));
        let mut follow = Follow::new(client, path, Selectors::named(name).query(), JSON);
        loop {
            match follow.next().await? {
                Change::Listed(list) => {
                    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                    if items.iter().any(|object| self.goal.is_met(object)) {
                        return Ok(());
                    }
                    if items.is_empty() && self.goal != Goal::Created {
                        return Err(missing());
                    }
                }
                Change::Event(Event { kind: EventType::Deleted, .. }) => return Err(missing()),
                Change::Event(event) if self.goal.is_met(&event.object) => return Ok(()),
                Change::Event(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn goals_are_parsed_and_compared_with_objects() {
        let object = json!({
            "metadata": {"generation": 2},
            "status": {"phase": "Active", "conditions": [
                {"type": "Ready", "status": "True", "observedGeneration": 2},
                {"type": "Old", "status": "True", "observedGeneration": 1},
                {"type": "Down", "status": "False"}]},
        });
        let cases = [
            ("condition=Ready", true),
            ("condition=ready=true", true),
            ("condition=Ready=False", false),
            ("condition=Down=False", true),
            ("condition=Old", false),
            ("condition=Absent", false),
            ("jsonpath={.status.phase}=Active", true),
            ("jsonpath=.status.phase=Active", true),
            ("jsonpath={.status.phase}=Gone", false),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.other}", false),
            (r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}=True"#, true),
            ("create", true),
            ("delete", false),
        ];
        for (text, expected) in cases {
            assert_eq!(Goal::parse(text).unwrap().is_met(&object), expected, "{text}");
        }
        for text in ["", "condition", "condition=", "jsonpath=", "jsonpath={.a", "delete=x"] {
            assert!(Goal::parse(text).is_err(), "{text}");
        }
    }
}
