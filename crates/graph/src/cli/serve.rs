//! `graph serve`: runs an engine with the descriptors and the south of a scenario file.
//!
//! The engine uses the machine's clock, so retries run by themselves. With a journal folder, wanted
//! values, history and retries survive the process, also a kill; the simulated south is kept in the
//! same folder. SIGINT and SIGTERM end it cleanly: the transaction under way is finished first.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Options};
use crate::journal::FileJournal;
use crate::scenario;

/// How long open requests may take to end after the engine has stopped.
const DRAIN: Duration = Duration::from_secs(5);

/// Run an engine with the descriptors of a scenario file, until interrupted
#[derive(Debug, Clone, clap::Args)]
#[non_exhaustive]
pub struct ServeCommand {
    /// Scenario file: its descriptors, its south and its failures count, its steps do not
    pub file: PathBuf,
    /// Folder for the journal, made if missing; without it a restart begins anew
    #[arg(long, value_name = "FOLDER")]
    pub journal: Option<PathBuf>,
    /// Serve REST at this address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9191")]
    pub listen: SocketAddr,
    /// Serve gRPC at this address
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<SocketAddr>,
    /// Append the transaction log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

/// Runs until a signal arrives; returns the exit code.
pub(super) async fn run(command: ServeCommand) -> Result<i32, String> {
    let ServeCommand { file, journal, listen, grpc, log } = command;
    let scenario = super::scenario_in(&file)?;
    if !scenario.steps.is_empty() {
        let (count, file) = (scenario.steps.len(), file.display());
        eprintln!("note: the {count} steps of {file} are not played; `graph run` plays them");
    }
    // Taken first: an address in use must not leave traces in the journal.
    let rest = bind(listen).await?;
    let grpc = match grpc {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let mut options = Options::default();
    if let Some(folder) = &journal {
        options = options.journal(open_journal(folder)?);
    }
    if let Some(path) = &log {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        options = options.log(opened.map_err(|error| format!("{}: {error}", path.display()))?);
    }
    let (engine, service) = scenario::live(&scenario, options, journal.as_deref())
        .map_err(|error| format!("{}: {}", file.display(), super::show::chain(&error)))?;
    for notice in engine.health().notices {
        eprintln!("note: {notice}");
    }
    let stop = CancellationToken::new();
    let worker = tokio::spawn(service.run(stop.clone()));
    until_interrupted(engine, stop, worker, Some(rest), grpc).await?;
    Ok(0)
}

fn open_journal(folder: &Path) -> Result<FileJournal, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    FileJournal::open(folder).map_err(|error| super::show::chain(&error))
}

/// Takes an address.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen at {address}: {error}"))
}

/// Serves an engine until SIGINT or SIGTERM, then ends it and waits for it.
pub(super) async fn until_interrupted(
    engine: Engine,
    stop: CancellationToken,
    worker: JoinHandle<()>,
    rest: Option<TcpListener>,
    grpc: Option<TcpListener>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot listen for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let ended = CancellationToken::new();
    let mut servers = Vec::new();
    if let Some(listener) = rest {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        eprintln!("serving http://{address}/scheduler/ until interrupted");
        servers.push(serve(listener, crate::rest::router(engine.clone()), &ended));
    }
    #[cfg(feature = "grpc")]
    if let Some(listener) = grpc {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        eprintln!("serving gRPC at {address}");
        servers.push(serve(listener, crate::grpc::router(engine.clone()), &ended));
    }
    #[cfg(not(feature = "grpc"))]
    if grpc.is_some() {
        return Err("this program was built without gRPC".to_owned());
    }
    drop(engine);
    let mut worker = worker;
    let mut early = None;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        result = &mut worker => early = Some(result),
    }
    stop.cancel();
    // Watches end with the worker, so open requests end soon after it.
    let result = match early {
        Some(result) => result.map_err(|error| format!("the engine has ended: {error}")),
        None => worker.await.map_err(|error| format!("the engine has ended: {error}")),
    };
    ended.cancel();
    let drained = async {
        for server in &mut servers {
            // A server that failed has ended as well.
            let _ = server.await;
        }
    };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        servers.iter().for_each(JoinHandle::abort);
    }
    result
}

fn serve(listener: TcpListener, app: axum::Router, ended: &CancellationToken) -> JoinHandle<()> {
    let ended = ended.clone().cancelled_owned();
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).with_graceful_shutdown(ended).await {
            eprintln!("error: a listener has ended: {error}");
        }
    })
}
