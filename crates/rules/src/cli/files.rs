//! Shared parts of upload and download, and the command `transfers`.
//!
//! Upload and download reach the storage from this machine, by the protocols of the RSE; the bytes
//! do not pass through the server. A file gets its final name only when it is complete, and is
//! registered only when it has that name.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_transfers::copy::{Adding, Sums};
use mainstay_transfers::protocol::Protocol;
use mainstay_transfers::store;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{Cli, Error, Format, part, table};

/// How many bytes are read at a time.
pub(super) const PIECE: usize = 1 << 20;

pub(super) fn failed(what: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |error| Error::Usage(format!("{}: {error}", what.display()))
}

/// Progress on a terminal: one line that is overwritten.
pub(super) struct Bar {
    name: String,
    whole: u64,
    pub(super) done: u64,
    shown: Option<u64>,
}

impl Bar {
    pub(super) fn new(name: &str, whole: u64) -> Self {
        let shown = std::io::stderr().is_terminal().then_some(101);
        Self { name: name.to_owned(), whole, done: 0, shown }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let part = self.done.saturating_mul(100).checked_div(self.whole).unwrap_or(100);
        if self.shown.is_some_and(|shown| shown != part) {
            self.shown = Some(part);
            let full = usize::try_from(part.min(100) / 4).unwrap_or(0);
            let (full, rest) = ("#".repeat(full), " ".repeat(25 - full.min(25)));
            eprint!("\r{} [{full}{rest}] {part} %", self.name);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }
}

pub(super) fn stored(error: store::Error) -> Error {
    Error::Failed(error.to_string())
}

/// Runs blocking work on disks and networks on a thread for it.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::Failed(error.to_string()))?
}

/// Exit codes of a program ended by SIGINT or SIGTERM.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// Runs work that would leave a partial file if it were killed. The first SIGINT or SIGTERM sets
/// `stop`; a second one ends the work at once.
pub(super) async fn run_interruptible(
    stop: &AtomicBool,
    work: impl Future<Output = Result<u8, Error>>,
) -> Result<u8, Error> {
    let failed = |error| Error::Failed(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut signalled = async || {
        tokio::select! {
            _ = interrupt.recv() => INTERRUPTED,
            _ = terminate.recv() => TERMINATED,
        }
    };
    let mut work = std::pin::pin!(work);
    let code = tokio::select! {
        done = &mut work => return done,
        code = signalled() => code,
    };
    stop.store(true, Ordering::Release);
    eprintln!("stopping …");
    tokio::select! {
        done = work => match done {
            Err(Error::Interrupted) => Ok(code),
            done => done,
        },
        code = signalled() => Ok(code),
    }
}

/// Fails once the user has interrupted the command.
pub(super) fn check_stop(stop: &AtomicBool) -> Result<(), Error> {
    match stop.load(Ordering::Acquire) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// The protocols that can write or read an RSE from this machine, the best first.
pub(super) fn usable_protocols(rse: &Value, operation: &str) -> Result<Vec<Protocol>, Error> {
    let list = rse["protocols"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut ways: Vec<(i64, Protocol)> = Vec::new();
    for one in list {
        let (Some(scheme), Some(body)) = (one["scheme"].as_str(), one.as_object()) else {
            continue;
        };
        let read = Protocol::read(scheme, body);
        let protocol = read.map_err(|error| Error::Answer(error.to_string()))?;
        if let Some(rank) = protocol.rank("wan", operation)
            && store::is_known(&protocol)
        {
            ways.push((rank, protocol));
        }
    }
    ways.sort_by_key(|(rank, _)| *rank);
    Ok(ways.into_iter().map(|(_, protocol)| protocol).collect())
}

/// A transfer with the full name of its file; a table shortens a very long name, so that the other
/// columns stay on the screen.
fn named(transfer: &Value, format: Format) -> Value {
    let text = |key: &str| transfer[key].as_str().unwrap_or_default();
    let name = format!("{}:{}", text("scope"), text("name"));
    let mut shown = transfer.clone();
    shown["name"] = Value::String(match format {
        Format::Table => table::shortened(&name),
        _ => name,
    });
    shown
}

impl Cli<'_> {
    /// An RSE as the server returns it.
    pub(super) async fn rse_named(&self, rse: &str) -> Result<Value, Error> {
        self.value("GET", &format!("/rses/{}", part(rse)), None).await
    }

    pub(super) async fn transfers(&mut self, most: u32) -> Result<u8, Error> {
        let value = self.value("GET", &format!("/mainstay/transfers?most={most}"), None).await?;
        if self.format == Format::Json {
            table::value(self.out, self.format, &value)?;
            return Ok(0);
        }
        let format = self.format;
        let list = |key: &str| -> Vec<Value> {
            value[key].as_array().into_iter().flatten().map(|one| named(one, format)).collect()
        };
        let columns =
            ["name", "source", "destination", "bytes", "moved", "bytes_per_second", "worker"];
        table::rows(self.out, self.format, &list("moving"), &columns)?;
        let waiting = list("waiting");
        if !waiting.is_empty() {
            writeln!(self.out)?;
            let columns = ["name", "destination", "bytes", "activity", "why"];
            table::rows(self.out, self.format, &waiting, &columns)?;
        }
        Ok(0)
    }
}

/// The checksums of a file.
pub(super) fn sums_of(mut from: impl Read, what: &Path, stop: &AtomicBool) -> Result<Sums, Error> {
    let mut adding = Adding::new(true);
    let mut piece = vec![0; PIECE];
    loop {
        check_stop(stop)?;
        match from.read(&mut piece).map_err(failed(what))? {
            0 => return Ok(adding.sums()),
            read => adding.add(&piece[..read]),
        }
    }
}
