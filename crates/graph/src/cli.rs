//! The command line: `graph run` plays a scenario, the other commands use the REST API of an engine.
//!
//! The binary mounts [`GraphCommand`] as a subcommand and calls [`run_with`]; the number it returns
//! is the exit code: 0 for success, 1 for a negative result, 2 for bad usage or input. Data goes to
//! stdout, messages to stderr.

mod client;
mod journal;
mod show;

use std::io::Write;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use futures_util::FutureExt;

pub use self::client::{Fetch, NoAnswer};
pub use self::journal::JournalCommand;
use self::show::Question;
use crate::scenario;

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[non_exhaustive]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// A view of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
#[non_exhaustive]
pub enum ViewName {
    /// The wanted values.
    Nb,
    /// The values in the south.
    Sb,
    /// The values in the south as the engine remembers them.
    Internal,
}

/// The address of an engine, and how to log in.
#[derive(Debug, Clone, clap::Args)]
#[non_exhaustive]
pub struct Target {
    /// URL of the engine's REST API, such as http://127.0.0.1:9191 or https://node-1:9191
    #[arg(long)]
    pub url: String,
    /// Trust these certificate authorities (PEM) instead of the machine's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Accept any server certificate (insecure)
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// Bearer token to log in with
    #[arg(long, env = "MAINSTAY_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// The subcommands of `graph`.
#[derive(Debug, Clone, Subcommand)]
#[expect(missing_docs, reason = "the flattened field shows the documentation of Target")]
#[non_exhaustive]
pub enum GraphCommand {
    /// Play a scenario file and compare the result with its expectations
    Run {
        /// Scenario file
        file: PathBuf,
        /// Serve REST afterwards, until interrupted
        #[arg(long)]
        serve: Option<std::net::SocketAddr>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the graph of an engine
    Show {
        #[command(flatten)]
        target: Target,
        /// The graph after this transaction
        #[arg(long)]
        txn: Option<u64>,
        /// Output format: svg, dot or raw
        #[arg(long, default_value = "dot")]
        format: String,
    },
    /// Print the history of transactions
    History {
        #[command(flatten)]
        target: Target,
        /// Only this transaction
        #[arg(long)]
        seq: Option<u64>,
        /// Only transactions from this time on
        #[arg(long)]
        since: Option<String>,
        /// Only transactions up to this time
        #[arg(long)]
        until: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print every revision of a value
    Timeline {
        #[command(flatten)]
        target: Target,
        /// Key of the value
        key: String,
        /// Only the revision at this time
        #[arg(long)]
        time: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the values of a descriptor or a key prefix
    Dump {
        #[command(flatten)]
        target: Target,
        /// Name of the descriptor
        #[arg(long, conflicts_with = "key_prefix")]
        descriptor: Option<String>,
        /// Key prefix of the descriptor
        #[arg(long)]
        key_prefix: Option<String>,
        /// View of the values
        #[arg(long, value_enum)]
        view: Option<ViewName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the status of values
    Status {
        #[command(flatten)]
        target: Target,
        /// Only this value
        key: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print the operations of a transaction without running them
    Plan {
        #[command(flatten)]
        target: Target,
        /// A YAML or JSON file with `set`, `delete`, `resync`, `on-failure`, `retry`, `description`
        #[arg(short, long)]
        file: PathBuf,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Commit a transaction
    Commit {
        #[command(flatten)]
        target: Target,
        /// A YAML or JSON file with `set`, `delete`, `resync`, `on-failure`, `retry`, `description`
        #[arg(short, long)]
        file: PathBuf,
        /// Wait until every value is configured, at most this many seconds
        #[arg(long)]
        wait: Option<u64>,
        /// Wait until a crash of the machine cannot lose the transaction
        #[arg(long)]
        durable: bool,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Check or repair the journal of an engine
    #[command(subcommand)]
    Journal(JournalCommand),
}

/// Runs a command with this HTTP client; returns the exit code.
pub async fn run_with(command: GraphCommand, fetch: &impl Fetch) -> i32 {
    let done = match command {
        // Boxed so that the engine is compiled in this crate.
        GraphCommand::Run { file, serve, output } => play(&file, serve, output).boxed().await,
        GraphCommand::Journal(command) => journal::run(command),
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

/// Writes data; a closed pipe is not an error.
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
            // Without a signal handler, serving ends at once.
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
        GraphCommand::Run { .. } | GraphCommand::Journal(_) => {
            return Err("this command does not use the REST API".to_owned());
        }
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
            return send(fetch, target, "plan", file, &[], shown).await;
        }
        GraphCommand::Commit { target, file, wait, durable, output } => {
            let shown = Some((Question::Commit, *output));
            let arguments = [
                ("wait", wait.map(|seconds| seconds.to_string())),
                ("durable", durable.then(|| "1".to_owned())),
            ];
            return send(fetch, target, "commit", file, &arguments, shown).await;
        }
    };
    let url = client::url(&target.url, path, &arguments);
    answer(fetch.fetch(target, "GET", &url, None).await, shown)
}

/// How to print an answer; unchanged if none.
type Shown = Option<(Question, Output)>;

async fn send(
    fetch: &impl Fetch,
    target: &Target,
    path: &str,
    file: &PathBuf,
    arguments: &[(&str, Option<String>)],
    shown: Shown,
) -> Result<i32, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let body: serde_json::Value =
        scenario::read_yaml(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let url = client::url(&target.url, path, arguments);
    answer(fetch.fetch(target, "POST", &url, Some(body.to_string())).await, shown)
}

/// Prints an answer. A failure of the engine is a negative result (1), a refused request is bad
/// input (2).
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
