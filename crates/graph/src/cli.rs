//! The command line: `graph run` plays a scenario, the others ask a live engine over REST.
//!
//! The binary mounts [`GraphCommand`] as a subcommand and calls [`run`]; the number it answers is
//! the exit code: 0 for success, 1 for a negative finding, 2 for bad usage or input. Data goes to
//! stdout, talk to stderr.

mod client;
mod show;

use std::io::Write;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use futures_util::FutureExt;

pub use self::client::{Fetch, HttpFetch, NoAnswer};
use self::show::Question;
use crate::scenario;

/// How results are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Which view of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum ViewName {
    /// What is wanted.
    Nb,
    /// What is there.
    Sb,
    /// What is believed to be there.
    Internal,
}

/// Where a live engine is.
#[derive(Debug, Clone, clap::Args)]
pub struct Target {
    /// Where the engine's REST interface is, such as http://127.0.0.1:9191 or https://node-1:9191
    #[arg(long)]
    pub url: String,
    /// Trust these certificate authorities (PEM) instead of the machine's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Take any server certificate (insecure)
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// Bearer token to log in with
    #[arg(long, env = "MAINSTAY_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// Everything about the graph.
#[derive(Debug, Clone, Subcommand)]
pub enum GraphCommand {
    /// Play a scenario file and compare with what it expects
    Run {
        /// The scenario
        file: PathBuf,
        /// Serve REST afterwards, until interrupted
        #[arg(long)]
        serve: Option<std::net::SocketAddr>,
        /// How to show the result
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the graph of a live engine
    Show {
        #[command(flatten)]
        target: Target,
        /// As this transaction left it
        #[arg(long)]
        txn: Option<u64>,
        /// svg, dot or raw
        #[arg(long, default_value = "dot")]
        format: String,
    },
    /// Print what happened
    History {
        #[command(flatten)]
        target: Target,
        /// Only this transaction
        #[arg(long)]
        seq: Option<u64>,
        /// Only from this moment on
        #[arg(long)]
        since: Option<String>,
        /// Only up to this moment
        #[arg(long)]
        until: Option<String>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print every revision of a value
    Timeline {
        #[command(flatten)]
        target: Target,
        /// Its key
        key: String,
        /// Only the one that held at this moment
        #[arg(long)]
        time: Option<String>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the values of a descriptor or a key prefix
    Dump {
        #[command(flatten)]
        target: Target,
        /// Of this descriptor
        #[arg(long, conflicts_with = "key_prefix")]
        descriptor: Option<String>,
        /// Of the descriptor with this prefix
        #[arg(long)]
        key_prefix: Option<String>,
        /// In this view
        #[arg(long, value_enum)]
        view: Option<ViewName>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print how values stand
    Status {
        #[command(flatten)]
        target: Target,
        /// Only this value
        key: Option<String>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print what a change would do; nothing is done
    Plan {
        #[command(flatten)]
        target: Target,
        /// A YAML or JSON file with `set`, `delete`, `resync`, `on-failure`, `retry`, `description`
        #[arg(short, long)]
        file: PathBuf,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Make a change
    Commit {
        #[command(flatten)]
        target: Target,
        /// A YAML or JSON file with `set`, `delete`, `resync`, `on-failure`, `retry`, `description`
        #[arg(short, long)]
        file: PathBuf,
        /// Wait until everything is configured, at most this many seconds
        #[arg(long)]
        wait: Option<u64>,
        /// How to show it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
}

/// Runs a command over plain HTTP; the answer is the exit code. Whoever has TLS at hand calls
/// [`run_with`].
pub async fn run(command: GraphCommand) -> i32 {
    run_with(command, &HttpFetch).await
}

/// Runs a command with another way of fetching, for instance over TLS.
pub async fn run_with(command: GraphCommand, fetch: &impl Fetch) -> i32 {
    let done = match command {
        // Boxed so that the engine is compiled in this crate.
        GraphCommand::Run { file, serve, output } => play(&file, serve, output).boxed().await,
        other => ask(other, fetch).await,
    };
    match done {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("error: {problem}");
            2
        }
    }
}

/// Writes data; a reader that went away is no error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    if !text.ends_with('\n') {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}

async fn play(
    file: &PathBuf,
    serve: Option<std::net::SocketAddr>,
    output: Output,
) -> Result<i32, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let scenario =
        scenario::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let listener = match serve {
        Some(address) => Some(
            tokio::net::TcpListener::bind(address)
                .await
                .map_err(|error| format!("{address}: {error}"))?,
        ),
        None => None,
    };
    let played =
        scenario::play(&scenario).await.map_err(|error| format!("{}: {error}", file.display()))?;
    match output {
        Output::Text => print(&played.report.text()),
        Output::Json => {
            print(
                &serde_json::to_string_pretty(&played.report).map_err(|error| error.to_string())?,
            );
        }
    }
    for difference in &played.report.differences {
        eprintln!("{difference}");
    }
    let code = i32::from(!played.report.differences.is_empty());
    if let Some(listener) = listener {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        eprintln!("serving http://{address}/scheduler/ until interrupted");
        let interrupted = async {
            // If the signal cannot be waited for, serving ends at once.
            let _ = tokio::signal::ctrl_c().await;
        };
        let app = crate::rest::router(played.engine.clone());
        let served = axum::serve(listener, app).with_graceful_shutdown(interrupted).await;
        served.map_err(|error| error.to_string())?;
    }
    played.stop().await;
    Ok(code)
}

async fn ask(command: GraphCommand, fetch: &impl Fetch) -> Result<i32, String> {
    let (target, path, arguments, shown) = match &command {
        GraphCommand::Run { .. } => return Err("a scenario is played, not asked for".to_owned()),
        GraphCommand::Show { target, txn, format } => {
            let arguments =
                vec![("txn", txn.map(|txn| txn.to_string())), ("format", Some(format.clone()))];
            (target, "graph", arguments, None)
        }
        GraphCommand::History { target, seq, since, until, output } => {
            let format = if *output == Output::Json { "json" } else { "text" };
            let arguments = vec![
                ("seq-num", seq.map(|seq| seq.to_string())),
                ("since", since.clone()),
                ("until", until.clone()),
                ("format", Some(format.to_owned())),
            ];
            (target, "txn-history", arguments, None)
        }
        GraphCommand::Timeline { target, key, time, output } => {
            let arguments = vec![("key", Some(key.clone())), ("time", time.clone())];
            (target, "key-timeline", arguments, Some((Question::Timeline, *output)))
        }
        GraphCommand::Dump { target, descriptor, key_prefix, view, output } => {
            let view = view.map(|view| match view {
                ViewName::Nb => "NB".to_owned(),
                ViewName::Sb => "SB".to_owned(),
                ViewName::Internal => "internal".to_owned(),
            });
            let arguments = vec![
                ("descriptor", descriptor.clone()),
                ("key-prefix", key_prefix.clone()),
                ("view", view),
            ];
            (target, "dump", arguments, Some((Question::Dump, *output)))
        }
        GraphCommand::Status { target, key, output } => {
            (target, "status", vec![("key", key.clone())], Some((Question::Status, *output)))
        }
        GraphCommand::Plan { target, file, output } => {
            let shown = Some((Question::Plan, *output));
            return send(fetch, target, "plan", file, None, shown).await;
        }
        GraphCommand::Commit { target, file, wait, output } => {
            let shown = Some((Question::Commit, *output));
            return send(fetch, target, "commit", file, *wait, shown).await;
        }
    };
    let url = client::url(&target.url, path, &arguments);
    answer(fetch.fetch(target, "GET", &url, None).await, shown)
}

/// What to make of an answer; as it is if nothing is said.
type Shown = Option<(Question, Output)>;

async fn send(
    fetch: &impl Fetch,
    target: &Target,
    path: &str,
    file: &PathBuf,
    wait: Option<u64>,
    shown: Shown,
) -> Result<i32, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let body: serde_json::Value =
        scenario::read_yaml(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let url = client::url(&target.url, path, &[("wait", wait.map(|seconds| seconds.to_string()))]);
    answer(fetch.fetch(target, "POST", &url, Some(body.to_string())).await, shown)
}

/// Shows an answer. What the engine could not do is a negative finding, what it did not understand
/// is bad input.
fn answer(fetched: Result<(u16, String), NoAnswer>, shown: Shown) -> Result<i32, String> {
    let (status, body) = match fetched {
        Ok(fetched) => fetched,
        Err(NoAnswer::Usage(problem)) => return Err(problem),
        Err(NoAnswer::Unreachable(problem)) => {
            eprintln!("error: {problem}");
            return Ok(1);
        }
    };
    match (status, shown) {
        (200..300, Some((question, Output::Text))) => {
            print(&show::text(question, &body));
            Ok(0)
        }
        (200..300, _) => {
            print(&body);
            Ok(0)
        }
        (400, _) => Err(body),
        _ => {
            eprintln!("{}", body.trim_end());
            Ok(1)
        }
    }
}
