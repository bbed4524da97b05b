//! The commands of the engine: `mainstay sessions …` and `mainstay explain placement app/NAME`.
//!
//! The binary mounts [`Command`], chooses the server, and passes a client and the namespace of its
//! kubeconfig.

mod top;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use mainstay_client::watch::list;
use mainstay_client::{Call, Client, JSON, encode};
use mainstay_clock::duration;
use mainstay_terminal::Error;
use mainstay_terminal::output::{self, Format, Shape, Table};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{AccessEndPoint, ApplicationSession};

/// How much longer than opening a session may take its request may take.
const MARGIN: Duration = Duration::from_secs(5);

/// The subcommands of `mainstay sessions`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open a session and print its endpoint
    Open(Box<Open>),
    /// Close sessions
    Close {
        /// The sessions
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        place: Place,
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
    },
    /// Show the pools of all applications as bars; refreshed in a terminal
    Top {
        /// Print once and exit
        #[arg(long)]
        once: bool,
        /// The refresh interval
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
        every: Duration,
    },
}

/// The arguments of `mainstay sessions open`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay sessions open game                        prints an endpoint, or exits with code 1 if no instance is ready
  mainstay sessions open game --wait --timeout 30s   waits for an instance
  nc $(mainstay sessions open game | tr : ' ')       connects to it")]
pub struct Open {
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
pub struct Place {
    /// The namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl Place {
    /// The namespace of the flag, or else `default`.
    #[must_use]
    pub fn of<'n>(&'n self, default: &'n str) -> &'n str {
        self.namespace.as_deref().unwrap_or(default)
    }
}

fn sessions(namespace: &str) -> String {
    format!("/apis/apps.mainstay.dev/v1/namespaces/{}/applicationsessions", encode(namespace))
}

impl Command {
    /// The shortest request time-out with which this command can succeed.
    #[must_use]
    pub fn shortest_timeout(&self) -> Duration {
        match self {
            Self::Open(open) => open.timeout + MARGIN,
            Self::Close { .. } | Self::List { .. } | Self::Top { .. } => Duration::ZERO,
        }
    }

    /// Runs the command, in `namespace` unless a flag names another one; returns the exit code.
    pub async fn run(&self, client: &Client, namespace: &str) -> Result<u8, Error> {
        match self {
            Self::Open(open) => open.run(client, open.place.of(namespace)).await,
            Self::Close { names, place } => close(client, place.of(namespace), names).await,
            Self::List { application, all_namespaces, output, place } => {
                let path = match all_namespaces {
                    true => "/apis/apps.mainstay.dev/v1/applicationsessions".to_owned(),
                    false => sessions(place.of(namespace)),
                };
                let query = application
                    .as_ref()
                    .map(|name| format!("fieldSelector=spec.applicationName%3D{}", encode(name)))
                    .unwrap_or_default();
                let found = list(client, &path, &query, JSON).await?;
                let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                show(items, *all_namespaces, *output)
            }
            Self::Top { once, every } => top::top(client, *once, *every).await,
        }
    }
}

/// Closes sessions; a failure does not keep the others open.
async fn close(client: &Client, namespace: &str, names: &[String]) -> Result<u8, Error> {
    let mut worst = 0;
    for name in names {
        let path = format!("{}/{}", sessions(namespace), encode(name));
        match client.json(Call::without_body(Method::DELETE, path)).await.map_err(Error::from) {
            Ok(_) => output::print_line(&format!("session {name} closed"))?,
            Err(error) => {
                error.tell();
                worst = worst.max(error.exit_code());
            }
        }
    }
    Ok(worst)
}

/// Prints every node, with the reason if an instance of the application cannot be placed there;
/// returns the exit code.
pub async fn explain(
    client: &Client,
    namespace: &str,
    application: &str,
    shape: Shape,
) -> Result<u8, Error> {
    let (namespace, name) = (encode(namespace), encode(application));
    let object = format!("/apis/apps.mainstay.dev/v1/namespaces/{namespace}/applications/{name}");
    client.json(Call::get(object)).await?;
    let path = format!("/mainstay/v1/namespaces/{namespace}/applications/{name}/placement");
    let considered = client.json(Call::get(path)).await?;
    if shape == Shape::Json {
        output::print_line(&output::json(&considered))?;
        return Ok(0);
    }
    let mut table = Table::new(&["NODE", "CPU LEFT", "MEMORY LEFT", "PREFERRED", "VERDICT"]);
    for one in considered.as_array().into_iter().flatten() {
        let because = one["because"].as_str().unwrap_or_default();
        table.rows.push(vec![
            output::cell(&one["node"]),
            format!("{}m", output::cell(&one["left"]["cpu"])),
            output::cell(&one["left"]["memory"]),
            if one["preferred"] == true { "yes" } else { "" }.to_owned(),
            if because.is_empty() { "fits" } else { because }.to_owned(),
        ]);
    }
    output::print(&table.text())?;
    Ok(0)
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

    async fn run(&self, client: &Client, namespace: &str) -> Result<u8, Error> {
        let path = sessions(namespace);
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
