//! The command line: `graph run` plays a scenario, `graph serve` runs an engine with the descriptors
//! of a scenario, and the other commands use the REST API of an engine.
//!
//! The binary mounts [`GraphCommand`] as a subcommand and calls [`run_with`]; the number it returns
//! is the exit code: 0 for success, 1 for a negative result, 2 for bad usage or input. Data goes to
//! stdout, messages to stderr.

mod client;
mod journal;
mod serve;
mod show;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use futures_util::FutureExt;

pub use self::client::{Fetch, Follow, NoAnswer};
pub use self::journal::JournalCommand;
pub use self::serve::ServeCommand;
use self::show::Question;
pub use self::watch::WatchCommand;
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
        /// Let the engine run on afterwards, on the machine's clock, and serve REST at this address
        /// until interrupted
        #[arg(long, value_name = "ADDRESS")]
        serve: Option<std::net::SocketAddr>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Run an engine with the descriptors of a scenario file, until interrupted
    Serve(ServeCommand),
    /// Print the status of values, then every change of it, until interrupted
    Watch(WatchCommand),
    /// Print the graph of an engine
    Show {
        #[command(flatten)]
        target: Target,
        /// The graph after this transaction
        #[arg(long)]
        txn: Option<u64>,
        /// Output format: html (a page for browsers), svg, dot, or raw (dot as plain text)
        #[arg(long, default_value = "dot")]
        format: String,
    },
    /// Print the transaction log
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
    /// Print every value as it was at a moment
    Snapshot {
        #[command(flatten)]
        target: Target,
        /// The moment: seconds since 1970, or like 2026-01-31T12:00:00Z; now if not given
        #[arg(long)]
        time: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print how many transactions and operations there were, and how many failed
    Stats {
        #[command(flatten)]
        target: Target,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Print whether an engine accepts transactions, and why not; exits with 1 if it does not
    Health {
        #[command(flatten)]
        target: Target,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Compare the wanted values with the south, and repair the differences
    Resync {
        #[command(flatten)]
        target: Target,
        /// Retry operations that fail
        #[arg(long)]
        retry: bool,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Restore the wanted values of the moment when a transaction had ended
    #[command(visible_alias = "rollback")]
    RollBack {
        #[command(flatten)]
        target: Target,
        /// Number of the transaction, as `graph history` shows it
        seq: u64,
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
        /// A YAML or JSON file with `set`, `delete`, `labels`, `resync`, `on-failure`, `retry` and
        /// `description`; - reads the standard input
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
        /// A YAML or JSON file with `set`, `delete`, `labels`, `resync`, `on-failure`, `retry` and
        /// `description`; - reads the standard input
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
pub async fn run_with(command: GraphCommand, fetch: &impl Follow) -> i32 {
    let done = match command {
        // Boxed so that the engine is compiled in this crate.
        GraphCommand::Run { file, serve, output } => play(&file, serve, output).boxed().await,
        GraphCommand::Journal(command) => journal::run(command),
        GraphCommand::Serve(command) => serve::run(command).boxed().await,
        GraphCommand::Watch(command) => watch::run(command, fetch).await,
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
    file: &Path,
    serve: Option<std::net::SocketAddr>,
    output: Output,
) -> Result<i32, String> {
    let scenario = scenario_in(file)?;
    let listener = match serve {
        Some(address) => Some(serve::bind(address).await?),
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
    match listener {
        Some(listener) => {
            let (engine, stop, worker) = played.go_live();
            serve::until_interrupted(engine, stop, worker, Some(listener), None).await?;
        }
        None => played.stop().await,
    }
    Ok(code)
}

/// Reads a scenario file.
fn scenario_in(file: &Path) -> Result<scenario::Scenario, String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    scenario::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
}

async fn ask(command: GraphCommand, fetch: &impl Fetch) -> Result<i32, String> {
    let (target, path, arguments, shown) = match &command {
        GraphCommand::Run { .. }
        | GraphCommand::Journal(_)
        | GraphCommand::Serve(_)
        | GraphCommand::Watch(_) => {
            return Err("this command does not use a single request".to_owned());
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
        GraphCommand::Snapshot { target, time, output } => {
            let shown = Some((Question::Snapshot, *output));
            (target, "graph-snapshot", vec![("time", time.clone())], shown)
        }
        GraphCommand::Stats { target, output } => {
            (target, "stats", Vec::new(), Some((Question::Stats, *output)))
        }
        GraphCommand::Health { target, output } => {
            (target, "health", Vec::new(), Some((Question::Health, *output)))
        }
        GraphCommand::Resync { target, retry, output } => {
            let arguments = [("retry", retry.then(|| "1".to_owned()))];
            let url = client::url(&target.url, "downstream-resync", &arguments);
            let shown = Some((Question::Resync, *output));
            return answer(fetch.fetch(target, "POST", &url, None).await, shown);
        }
        GraphCommand::RollBack { target, seq, output } => {
            let url = client::url(&target.url, "roll-back", &[("seq-num", Some(seq.to_string()))]);
            let shown = Some((Question::Commit, *output));
            return answer(fetch.fetch(target, "POST", &url, None).await, shown);
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
    file: &Path,
    arguments: &[(&str, Option<String>)],
    shown: Shown,
) -> Result<i32, String> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    let body: serde_json::Value =
        scenario::read_yaml(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let url = client::url(&target.url, path, arguments);
    answer(fetch.fetch(target, "POST", &url, Some(body.to_string())).await, shown)
}

/// Prints an answer. A failure of the engine is a negative result (1), a refused request is bad
/// input (2). The record of a failed transaction is data, as that of a successful one.
fn answer(fetched: Result<(u16, String), NoAnswer>, shown: Shown) -> Result<i32, String> {
    let (status, body) = match fetched {
        Ok(fetched) => fetched,
        Err(NoAnswer::Usage(problem)) => return Err(problem),
        Err(NoAnswer::Unreachable(problem)) => {
            eprintln!("error: {problem}");
            return Ok(1);
        }
    };
    let success = (200..300).contains(&status);
    let failure = match shown {
        // Values that failed at first and were retried until they succeeded are a success.
        Some((Question::Commit, _)) if success => None,
        Some((Question::Commit | Question::Resync, _)) => show::failure(&body),
        Some((Question::Health, _)) => show::illness(&body),
        _ => None,
    };
    if success || failure.is_some() {
        match shown {
            Some((question, Output::Text)) => print(&show::text(question, &body)),
            _ => print(&body),
        }
        return Ok(match failure {
            Some(failure) => {
                eprintln!("error: {failure}");
                1
            }
            None => 0,
        });
    }
    let problem = show::problem(status, &body);
    if status == 400 {
        return Err(problem);
    }
    eprintln!("error: {problem}");
    Ok(1)
}
