//! `mainstay sessions`: opens, closes and lists sessions, and shows the pools of applications.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use mainstay_sessions::api::{AccessEndPoint, ApplicationSession, InstancePool};
use mainstay_sessions::engine::ApplicationView;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::watch::list;
use crate::client::{Call, Client, JSON, encode};
use crate::connect::Connect;
use crate::duration;
use crate::error::Error;
use crate::output::{self, Format, Table};

/// The pools of all applications.
const POOLS: &str = "/mainstay/v1/sessions/pools";
/// The width of the bars of `top`.
const BAR: usize = 40;

/// Open, close and list sessions of applications, and show their pools
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
        /// Show only the sessions of this application
        #[arg(long, value_name = "APP")]
        application: Option<String>,
        /// Show the sessions of all namespaces
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
    /// Show the pools of all applications as bars; refreshed in a terminal
    Top {
        /// Print once and exit
        #[arg(long)]
        once: bool,
        /// The refresh interval
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
        every: Duration,
        #[command(flatten)]
        connect: Connect,
    },
}

/// Open a session and print its endpoint
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay sessions open game                        prints an endpoint, or exits with code 1 if no instance is ready
  mainstay sessions open game --wait --timeout 30s   waits for an instance
  nc $(mainstay sessions open game | tr : ' ')       connects to it")]
struct Open {
    /// The application
    #[arg(value_name = "APP")]
    application: String,
    /// The name of the session [default: the application's name with a random suffix]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Wait for an instance if none is ready
    #[arg(long)]
    wait: bool,
    /// How long opening may take
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// Session data that is passed to the instance
    #[arg(long, value_name = "TEXT", conflicts_with = "data_file")]
    data: Option<String>,
    /// A file with the session data
    #[arg(long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// Terminate the instance when the session closes
    #[arg(long)]
    kill: bool,
    /// Whether the session survives the loss of its node
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

/// The policy for a session whose node is lost.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum NodeLoss {
    /// The session gets another instance and keeps its endpoint
    #[default]
    Recreate,
    /// The session is closed
    Close,
}

/// The namespace of the objects.
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
                let name = typed(&session)?.metadata.name;
                output::print_line(&format!("applicationsession.apps.mainstay.dev/{name}"))?;
            }
            _ => {
                let session = typed(&session)?;
                let name = &session.metadata.name;
                anstream::eprintln!(
                    "session {name} is open; close it with: mainstay sessions close {name}"
                );
                for endpoint in &session.status.access_end_points {
                    output::print_line(&address(endpoint))?;
                }
            }
        }
        Ok(0)
    }
}

/// Reads an ApplicationSession.
fn typed(object: &Value) -> Result<ApplicationSession, Error> {
    ApplicationSession::deserialize(object).map_err(|error| {
        let name = output::cell(&object["metadata"]["name"]);
        Error::negative(format!("ApplicationSession {name} cannot be read: {error}"))
    })
}

fn address(endpoint: &AccessEndPoint) -> String {
    let AccessEndPoint { ip_address: host, port, .. } = endpoint;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn show(found: &[Value], namespaces: bool, format: Option<Format>) -> Result<u8, Error> {
    match format {
        Some(Format::Json) => output::print(&output::json(&Value::Array(found.to_vec())))?,
        Some(Format::Yaml) => output::print(&output::yaml(&Value::Array(found.to_vec())))?,
        Some(Format::Name) => {
            for session in found {
                let name = typed(session)?.metadata.name;
                output::print_line(&format!("applicationsession.apps.mainstay.dev/{name}"))?;
            }
        }
        _ if found.is_empty() => anstream::eprintln!("No sessions found."),
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
                let ApplicationSession { metadata, spec, status } = typed(session)?;
                let endpoint = status.access_end_points.first().map(address);
                let mut row = vec![
                    metadata.name,
                    spec.application_name,
                    format!("{:?}", status.session_status),
                    endpoint.unwrap_or_default(),
                    status.client_sessions.len().to_string(),
                    status.instance_name,
                ];
                if wide == Some(Format::Wide) {
                    row.extend([status.node_name, status.reason]);
                }
                if namespaces {
                    row.insert(0, metadata.namespace.unwrap_or_default());
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
        let pools = client.json(Call::get(POOLS)).await?;
        let pools: Vec<ApplicationView> = serde_json::from_value(pools)
            .map_err(|error| Error::negative(format!("{POOLS} cannot be read: {error}")))?;
        let text = bars(&pools);
        if once || !terminal {
            output::print(&text)?;
            return Ok(0);
        }
        // Cursor home, the bars, and clear to the end of the screen.
        output::print(&format!("\u{1b}[H{}\u{1b}[J", text.replace('\n', "\u{1b}[K\n")))?;
        tokio::time::sleep(every).await;
    }
}

/// The pools of every application, drawn as a bar of its maximum.
fn bars(applications: &[ApplicationView]) -> String {
    use std::fmt::Write;
    const MARKS: [(InstancePool, char); 5] = [
        (InstancePool::Active, '█'),
        (InstancePool::Ready, '▒'),
        (InstancePool::Standby, '░'),
        (InstancePool::Pending, '·'),
        (InstancePool::Deleting, '×'),
    ];
    let mut text = String::new();
    if applications.is_empty() {
        return "No applications found.\n".to_owned();
    }
    let widest = applications.iter().map(|one| one.application.len()).max();
    let widest = widest.unwrap_or(0).max(11);
    for application in applications {
        let of = |wanted: InstancePool| -> u64 {
            let found = application.pools.iter().find(|pool| pool.pool == wanted);
            found.and_then(|pool| u64::try_from(pool.instances).ok()).unwrap_or(0)
        };
        let all: u64 = MARKS.iter().map(|(pool, _)| of(*pool)).sum();
        let maximum = u64::try_from(application.maximum).unwrap_or(1).max(all).max(1);
        let mut bar = String::new();
        let (mut seen, mut drawn) = (0, 0);
        for (pool, mark) in MARKS {
            seen += of(pool);
            let end = usize::try_from(seen * BAR as u64 / maximum).unwrap_or(BAR);
            bar.extend(std::iter::repeat_n(mark, end - drawn));
            drawn = end;
        }
        bar.extend(std::iter::repeat_n(' ', BAR - drawn));
        let (name, waiting) = (&application.application, application.waiting);
        let _ = writeln!(
            text,
            "{name:widest$} [{bar}] {:>6} in use {:>6} ready {:>5} standby {:>5} pending {waiting:>5} waiting, at most {maximum}",
            of(InstancePool::Active),
            of(InstancePool::Ready),
            of(InstancePool::Standby),
            of(InstancePool::Pending),
        );
    }
    text.push_str("█ in use  ▒ ready  ░ standby  · pending  × ending\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_bar_is_the_size_of_its_pool() {
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
        let text = bars(&serde_json::from_value::<Vec<_>>(pools).unwrap());
        let count = |mark: char| text.lines().next().unwrap().matches(mark).count();
        assert_eq!((count('█'), count('▒'), count('·'), count('░')), (10, 5, 5, 0), "{text}");
        assert!(text.contains("2 waiting, at most 40"), "{text}");
        assert_eq!(bars(&[]), "No applications found.\n");
    }
}
