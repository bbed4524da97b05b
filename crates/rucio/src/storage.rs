//! Handles `/mainstay/check/storage`: compares storage with the catalog and streams the findings.
//!
//! A check may take hours. The response begins at once and has a line at least every few seconds, so
//! that clients notice a dead server; the check stops when the client disconnects. Each line is a
//! document with one key: `found`, `note`, `looked_at` (progress) and, as the last line of a complete
//! check only, `done`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use mainstay_rules::audit::decide::Patience;
use mainstay_rules::audit::{self, Finding, Step, Wanted};
use mainstay_rules::error::{Error, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Call, Reply, query_flag};

/// The longest time between two lines.
const BEAT: Duration = Duration::from_secs(5);

/// The most lines buffered for a slow reader.
const AHEAD: usize = 64;

/// The numbers of replicas and files checked so far.
#[derive(Debug, Default)]
struct Progress {
    replicas: AtomicUsize,
    files: AtomicUsize,
}

impl Progress {
    fn show(&self) -> Value {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        json!({"replicas": count(&self.replicas), "files": count(&self.files)})
    }
}

fn show(finding: &Finding) -> Value {
    let Finding { kind, rse, did, path, what } = finding;
    json!({"found": {
        "kind": kind.name(), "rse": rse, "scope": did.as_ref().map(|did| &did.scope),
        "name": did.as_ref().map(|did| &did.name), "path": path, "what": what,
    }})
}

/// The lines of a running check, and the task that runs it.
struct CheckStream {
    lines: mpsc::Receiver<Value>,
    progress: Arc<Progress>,
    work: Option<JoinHandle<Result<()>>>,
}

impl CheckStream {
    /// The next line; none after the last. An error cuts the response short.
    async fn next(mut self) -> Option<(Result<Bytes>, Self)> {
        let line = match tokio::time::timeout(BEAT, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Err(_) => Ok(json!({"looked_at": self.progress.show()})),
            Ok(None) => match self.work.take()?.await {
                Ok(done) => done.map(|()| json!({"done": self.progress.show()})),
                Err(error) => Err(Error::Internal(error.to_string())),
            },
        };
        Some((line.map(|line| Bytes::from(format!("{line}\n"))), self))
    }
}

pub(super) async fn check(call: &Call) -> Result<Reply> {
    call.privileged("check storage")?;
    let expression = call.arg("rse").filter(|text| !text.is_empty()).map(str::to_owned);
    let rses = call.read(move |tx| audit::within(tx, expression.as_deref())).await?;
    let wanted = Wanted {
        rses,
        checksums: query_flag(call, "checksums")?,
        now: call.now(),
        patience: Patience::default(),
    };
    let (sender, lines) = mpsc::channel(AHEAD);
    let progress = Arc::new(Progress::default());
    let (service, counts) = (call.service.clone(), Arc::clone(&progress));
    let work = tokio::task::spawn_blocking(move || {
        let mut follow = |step| {
            let connected = match step {
                Step::Found(finding) => sender.blocking_send(show(&finding)).is_ok(),
                Step::Note(text) => sender.blocking_send(json!({"note": text})).is_ok(),
                Step::Replicas(more) => {
                    counts.replicas.fetch_add(more, Ordering::Relaxed);
                    !sender.is_closed()
                }
                Step::Files(more) => {
                    counts.files.fetch_add(more, Ordering::Relaxed);
                    !sender.is_closed()
                }
                Step::Again(_) | Step::Reading => !sender.is_closed(),
            };
            if connected { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        audit::audit(&service.catalog, &service.access, &wanted, &mut follow)
    });
    let checks = CheckStream { lines, progress, work: Some(work) };
    Ok(Reply::Streamed(Body::from_stream(stream::unfold(checks, CheckStream::next))))
}
