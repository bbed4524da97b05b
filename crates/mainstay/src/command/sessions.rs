//! `mainstay sessions`: open and close sessions, and look at what runs for them.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use crate::client::watch::list;
use crate::client::{Call, Client, JSON, encode};
use crate::connect::Connect;
use crate::duration;
use crate::error::Error;
use crate::output::{self, Format, Table};

/// How wide the bars of `top` are.
const BAR: usize = 40;

/// Open and close sessions of applications, and look at their pools
#[derive(Debug, Args)]
pub(crate) struct Sessions {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Open(Box<Open>),
    /// Close sessions
    Close {
        /// The sessions
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        connect: Connect,
    },
    /// Show sessions
    List {
        /// Only those of this application
        #[arg(long, value_name = "APP")]
        application: Option<String>,
        /// Those of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Format>,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        connect: Connect,
    },
    /// Show the pools of all applications as bars, again and again in a terminal
    Top {
        /// Print once and end
        #[arg(long)]
        once: bool,
        /// How long to wait between two looks
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
        every: Duration,
        #[command(flatten)]
        connect: Connect,
    },
}

/// Open a session and print its endpoint
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay sessions open game                        an endpoint at once, or exit code 1 if none is ready
  mainstay sessions open game --wait --timeout 30s   waits for an instance
  nc $(mainstay sessions open game | tr : ' ')       speaks to it")]
struct Open {
    /// The application
    #[arg(value_name = "APP")]
    application: String,
    /// What the session is called [default: the application's name and a random ending]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Wait for an instance if none is ready
    #[arg(long)]
    wait: bool,
    /// How long opening may take, from the moment it is asked for
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// What the instance is told about the session
    #[arg(long, value_name = "TEXT", conflicts_with = "data_file")]
    data: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// End the instance with the session
    #[arg(long)]
    kill: bool,
    /// What happens when the instance's node is lost
    #[arg(long, value_enum, default_value_t)]
    on_node_loss: NodeLoss,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    connect: Connect,
}

/// What happens to a session whose node is lost.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum NodeLoss {
    /// It gets another instance and keeps its endpoint
    #[default]
    Recreate,
    /// It is closed
    Close,
}

/// Which namespace.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl Place {
    pub(crate) fn of<'n>(&'n self, client: &'n Client) -> &'n str {
        self.namespace.as_deref().unwrap_or(client.namespace())
    }
}

fn sessions(namespace: &str) -> String {
    format!("/apis/apps.mainstay.dev/v1/namespaces/{}/applicationsessions", encode(namespace))
}

impl Sessions {
    pub(crate) async fn run(&self) -> Result<u8, Error> {
        match &self.action {
            Action::Open(open) => open.run().await,
            Action::Close { names, place, connect } => {
                let client = connect.client()?;
                let mut failures = crate::error::Failures::default();
                for name in names {
                    let path = format!("{}/{}", sessions(place.of(&client)), encode(name));
                    let call = Call::without_body(Method::DELETE, path);
                    let closed = client.json(call).await.map_err(Error::from);
                    if failures.note(closed)?.is_some() {
                        output::print_line(&format!("session {name} closed"))?;
                    }
                }
                Ok(failures.code())
            }
            Action::List { application, all_namespaces, output, place, connect } => {
                let client = connect.client()?;
                let path = match all_namespaces {
                    true => "/apis/apps.mainstay.dev/v1/applicationsessions".to_owned(),
                    false => sessions(place.of(&client)),
                };
                let query = application
                    .as_ref()
                    .map(|name| format!("fieldSelector=spec.applicationName%3D{}", encode(name)))
                    .unwrap_or_default();
                let found = list(&client, &path, &query, JSON).await?;
                let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                show(items, *all_namespaces, *output)
            }
            Action::Top { once, every, connect } => top(&connect.client()?, *once, *every).await,
        }
    }
}

impl Open {
    fn object(&self) -> Result<Value, Error> {
        let data = match (&self.data, &self.data_file) {
            (Some(data), _) => data.clone(),
            (None, Some(file)) => std::fs::read_to_string(file).map_err(|error| {
                Error::usage(format!("--data-file {}: {error}", file.display()))
            })?,
            (None, None) => String::new(),
        };
        let metadata = match &self.name {
            Some(name) => json!({"name": name}),
            None => json!({"generateName": format!("{}-", self.application)}),
        };
        let seconds = self.timeout.as_secs().max(1);
        Ok(json!({
            "apiVersion": "apps.mainstay.dev/v1",
            "kind": "ApplicationSession",
            "metadata": metadata,
            "spec": {
                "applicationName": self.application,
                "sessionData": data,
                "killInstanceWhenSessionClosed": self.kill,
                "openTimeoutSeconds": seconds,
                "openMode": if self.wait { "Wait" } else { "FailFast" },
                "onNodeLoss": match self.on_node_loss {
                    NodeLoss::Recreate => "Recreate",
                    NodeLoss::Close => "Close",
                },
            },
        }))
    }

    async fn run(&self) -> Result<u8, Error> {
        let mut connect = self.connect.clone();
        connect.request_timeout =
            connect.request_timeout.max(self.timeout + Duration::from_secs(5));
        let client = connect.client()?;
        let path = sessions(self.place.of(&client));
        let body = self.object()?;
        let session = client.json(Call::send(Method::POST, path, JSON, &body)).await?;
        match self.output {
            Some(Format::Json) => output::print(&output::json(&session))?,
            Some(Format::Yaml) => output::print(&output::yaml(&session))?,
            Some(Format::Name) => {
                let name = output::cell(&session["metadata"]["name"]);
                output::print_line(&format!("applicationsession.apps.mainstay.dev/{name}"))?;
            }
            _ => {
                let name = output::cell(&session["metadata"]["name"]);
                anstream::eprintln!(
                    "session {name} is open; close it with: mainstay sessions close {name}"
                );
                for endpoint in
                    session["status"]["accessEndPoints"].as_array().into_iter().flatten()
                {
                    output::print_line(&address(endpoint))?;
                }
            }
        }
        Ok(0)
    }
}

fn address(endpoint: &Value) -> String {
    let (host, port) = (output::cell(&endpoint["ipAddress"]), output::cell(&endpoint["port"]));
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn show(found: &[Value], namespaces: bool, format: Option<Format>) -> Result<u8, Error> {
    match format {
        Some(Format::Json) => output::print(&output::json(&Value::Array(found.to_vec())))?,
        Some(Format::Yaml) => output::print(&output::yaml(&Value::Array(found.to_vec())))?,
        Some(Format::Name) => {
            for session in found {
                let name = output::cell(&session["metadata"]["name"]);
                output::print_line(&format!("applicationsession.apps.mainstay.dev/{name}"))?;
            }
        }
        _ if found.is_empty() => anstream::eprintln!("there are no sessions"),
        wide => {
            let mut headings =
                vec!["NAME", "APPLICATION", "STATUS", "ENDPOINT", "CLIENTS", "INSTANCE"];
            if wide == Some(Format::Wide) {
                headings.extend(["NODE", "REASON"]);
            }
            if namespaces {
                headings.insert(0, "NAMESPACE");
            }
            let mut table = Table::new(&headings);
            for session in found {
                let (metadata, status) = (&session["metadata"], &session["status"]);
                let endpoints = status["accessEndPoints"].as_array();
                let endpoint = endpoints.and_then(|all| all.first()).map(address);
                let clients = status["clientSessions"].as_array().map_or(0, Vec::len);
                let text = |value: &Value| {
                    if value.is_null() { String::new() } else { output::cell(value) }
                };
                let mut row = vec![
                    text(&metadata["name"]),
                    text(&session["spec"]["applicationName"]),
                    text(&status["sessionStatus"]),
                    endpoint.unwrap_or_default(),
                    clients.to_string(),
                    text(&status["instanceName"]),
                ];
                if wide == Some(Format::Wide) {
                    row.extend([text(&status["nodeName"]), text(&status["reason"])]);
                }
                if namespaces {
                    row.insert(0, text(&metadata["namespace"]));
                }
                table.rows.push(row);
            }
            output::print(&table.text())?;
        }
    }
    Ok(0)
}

async fn top(client: &Client, once: bool, every: Duration) -> Result<u8, Error> {
    let terminal = std::io::stdout().is_terminal();
    loop {
        let pools = client.json(Call::get("/mainstay/v1/sessions/pools")).await?;
        let text = bars(&pools);
        if once || !terminal {
            output::print(&text)?;
            return Ok(0);
        }
        // Home, the picture, and nothing below it.
        output::print(&format!("\u{1b}[H{}\u{1b}[J", text.replace('\n', "\u{1b}[K\n")))?;
        tokio::time::sleep(every).await;
    }
}

/// The pools of every application, drawn as a bar of its maximum.
fn bars(pools: &Value) -> String {
    use std::fmt::Write;
    const MARKS: [(&str, char); 5] =
        [("Active", '█'), ("Ready", '▒'), ("Standby", '░'), ("Pending", '·'), ("Deleting", '×')];
    let mut text = String::new();
    let applications = pools.as_array().map(Vec::as_slice).unwrap_or_default();
    if applications.is_empty() {
        return "there are no applications\n".to_owned();
    }
    let widest = applications.iter().map(|one| output::cell(&one["application"]).len()).max();
    let widest = widest.unwrap_or(0).max(11);
    for application in applications {
        let counts: BTreeMap<&str, u64> = application["pools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pool| Some((pool["pool"].as_str()?, pool["instances"].as_u64()?)))
            .collect();
        let of = |pool: &str| counts.get(pool).copied().unwrap_or(0);
        let all: u64 = counts.values().sum();
        let maximum = application["maximum"].as_u64().unwrap_or(1).max(all).max(1);
        let mut bar = String::new();
        let (mut seen, mut drawn) = (0, 0);
        for (pool, mark) in MARKS {
            seen += of(pool);
            let end = usize::try_from(seen * BAR as u64 / maximum).unwrap_or(BAR);
            bar.extend(std::iter::repeat_n(mark, end - drawn));
            drawn = end;
        }
        bar.extend(std::iter::repeat_n(' ', BAR - drawn));
        let name = output::cell(&application["application"]);
        let waiting = application["waiting"].as_u64().unwrap_or(0);
        let _ = writeln!(
            text,
            "{name:widest$} [{bar}] {:>6} in use {:>6} ready {:>5} standby {:>5} pending {waiting:>5} waiting, at most {maximum}",
            of("Active"),
            of("Ready"),
            of("Standby"),
            of("Pending"),
        );
    }
    text.push_str("█ in use  ▒ ready  ░ standby  · pending  × ending\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_pools() {
        let pools = json!([{
            "application": "t/game",
            "pools": [
                {"pool": "Active", "instances": 10},
                {"pool": "Ready", "instances": 5},
                {"pool": "Standby", "instances": 0},
                {"pool": "Pending", "instances": 5},
                {"pool": "Deleting", "instances": 0},
            ],
            "waiting": 2,
            "maximum": 40,
        }]);
        let text = bars(&pools);
        let count = |mark: char| text.lines().next().unwrap().matches(mark).count();
        assert_eq!((count('█'), count('▒'), count('·'), count('░')), (10, 5, 5, 0), "{text}");
        assert!(text.contains("2 waiting, at most 40"), "{text}");
        assert_eq!(bars(&json!([])), "there are no applications\n");
    }
}
