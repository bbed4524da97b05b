//! `/mainstay/check/storage`: storage compared with the catalog, told line by line while it is looked.
//!
//! It may take hours. The answer begins at once, and a line comes at least every few seconds, so that
//! whoever waits can tell a server that works from one that is gone; when nobody listens any more
//! the looking ends. Each line is a document with one key: `found`, `note`, `looked_at` (how far
//! it is) and, at the very end and only when all was looked at, `done`.

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

use super::{Call, Reply, said};

/// How long nothing is said at most.
const BEAT: Duration = Duration::from_secs(5);

/// Lines that may wait for a slow reader.
const AHEAD: usize = 64;

/// How far it is.
#[derive(Debug, Default)]
struct Looked {
    replicas: AtomicUsize,
    files: AtomicUsize,
}

impl Looked {
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

/// What is told, and who finds it out.
struct Telling {
    lines: mpsc::Receiver<Value>,
    looked: Arc<Looked>,
    work: Option<JoinHandle<Result<()>>>,
}

impl Telling {
    /// The next line; none after the last. An error cuts the answer.
    async fn next(mut self) -> Option<(Result<Bytes>, Self)> {
        let line = match tokio::time::timeout(BEAT, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Err(_) => Ok(json!({"looked_at": self.looked.show()})),
            Ok(None) => match self.work.take()?.await {
                Ok(done) => done.map(|()| json!({"done": self.looked.show()})),
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
        checksums: said(call, "checksums")?,
        now: call.now(),
        patience: Patience::default(),
    };
    let (sender, lines) = mpsc::channel(AHEAD);
    let looked = Arc::new(Looked::default());
    let (service, counts) = (call.service.clone(), Arc::clone(&looked));
    let work = tokio::task::spawn_blocking(move || {
        let mut follow = |step| {
            let told = match step {
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
            if told { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        audit::audit(&service.catalog, &service.access, &wanted, &mut follow)
    });
    let telling = Telling { lines, looked, work: Some(work) };
    Ok(Reply::Streamed(Body::from_stream(stream::unfold(telling, Telling::next))))
}
