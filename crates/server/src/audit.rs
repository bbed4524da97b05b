//! The audit log: one JSON line for every request that changes something or was denied, on every
//! part of the API.
//!
//! [`policy`] decides which requests leave a line, [`observe`] makes it of a request and its answer,
//! [`fold`] counts denials of unknown users instead of writing each, [`sink`] is where lines go. A
//! request puts its entry into a bounded queue; one thread formats and writes whatever waits there in
//! one go, and then releases the answers that wait for it: many requests share one write, as writes of
//! objects share a commit.
//!
//! Invariants: an answer that waits for its line is sent after the line was handed to every
//! sink, or after a sink failed; lines that a sink did not take are kept up to a bound and written
//! when it works again; what is lost is counted.

mod fold;
mod observe;
pub(crate) mod policy;
mod redact;
mod secret;
pub(crate) mod sink;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use http::{HeaderValue, Method, Uri};
use jiff::{SignedDuration, Timestamp};
use mainstay_store::clock::Clock;
use mainstay_store::status::{Error, Reason};
use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::readiness::Check;
use fold::{Alike, Folded, Folds};
pub use observe::AuditNote;
pub(crate) use observe::{Books, DryRun, Tap};
pub use policy::{Level, OnFailure, Outcome, Policy, Rule};
pub use sink::{Destination, Syslog};
use sink::{Line, Outlet, Rotation};

/// How many entries may wait to be written.
const QUEUE: usize = 65_536;

/// How long an answer waits for its line.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a sink that failed is tried again, and counted denials are looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// The parts of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Surface {
    /// Objects of kinds: the Kubernetes dialect.
    Objects,
    /// Tokens.
    Tokens,
    /// Nodes that join, their certificates, and the authority behind them.
    Join,
    /// Backup, compaction and checks of the store.
    Store,
    /// Rucio's dialect.
    Rucio,
    /// The streams of agents.
    Agents,
    /// The scheduler extender.
    Extender,
    /// The scheduler.
    Scheduler,
    /// The output of instances.
    Logs,
    /// Everything else.
    Other,
}

impl Surface {
    /// The part that a path belongs to.
    #[must_use]
    pub fn of(path: &str) -> Self {
        let below = |start: &str| {
            path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let ours = path.strip_prefix("/mainstay/v1/").unwrap_or_default();
        match ours.split('/').collect::<Vec<_>>().as_slice() {
            ["tokens", ..] => Self::Tokens,
            ["join" | "ca"] | ["authority", ..] | ["nodes", _, "revoke"] => Self::Join,
            ["backup"] | ["store", ..] => Self::Store,
            ["namespaces", _, "instances", _, "log"] => Self::Logs,
            _ if below("/api") || below("/apis") => Self::Objects,
            _ if below("/rucio") => Self::Rucio,
            _ if below("/mainstay.agents.v1.Agents") => Self::Agents,
            _ if below("/v1/lvg") => Self::Extender,
            _ if below("/scheduler") => Self::Scheduler,
            _ => Self::Other,
        }
    }
}

/// The policy of the log, and its sinks.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Which requests leave a line.
    pub policy: Policy,
    /// Where lines go; `audit.log` in the data folder if nothing is named.
    pub sinks: Vec<Destination>,
}

/// Metrics of the log itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    /// Lines that were never written.
    pub(crate) lost: Counter,
    /// Denials that were counted instead of written.
    pub(crate) folded: Counter,
    /// Sinks that do not take lines.
    pub(crate) failing: Gauge,
}

/// Whether lines are written, and what follows if they are not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Condition {
    failing: Arc<AtomicBool>,
    on_failure: OnFailure,
}

impl Condition {
    pub(crate) fn of(policy: &Policy) -> Self {
        Self { failing: Arc::default(), on_failure: policy.on_failure }
    }

    /// Whether requests that may change something are refused.
    fn refuses(&self) -> bool {
        self.on_failure == OnFailure::Refuse && self.failing.load(Relaxed)
    }
}

impl Check for Condition {
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        let outcome = match self.refuses() {
            true => Err("the audit log cannot be written; changes are refused".to_owned()),
            false => Ok(()),
        };
        std::future::ready(outcome).boxed()
    }
}

/// The surroundings that the log needs from its server.
#[derive(Debug)]
pub(crate) struct Around {
    /// Where lines go if the settings do not say.
    pub(crate) file: PathBuf,
    /// Makes the identities of requests unlike those of other servers.
    pub(crate) seed: String,
    pub(crate) meters: Meters,
    pub(crate) condition: Condition,
    pub(crate) clock: Arc<dyn Clock>,
}

/// One line to be. Every text of it is written by way of [`secret::hidden`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) time: Timestamp,
    #[serde(rename = "auditID", serialize_with = "as_text", skip_serializing_if = "is_empty")]
    pub(crate) audit_id: HeaderValue,
    /// Which of two lines about a request this is; empty if there is one line only.
    #[serde(serialize_with = "hidden", skip_serializing_if = "str::is_empty")]
    pub(crate) stage: &'static str,
    #[serde(serialize_with = "hidden")]
    pub(crate) user: Arc<str>,
    /// As whom they acted, if it was somebody else.
    #[serde(serialize_with = "hidden_if_any", skip_serializing_if = "Option::is_none")]
    pub(crate) impersonated_user: Option<Arc<str>>,
    #[serde(serialize_with = "hidden", skip_serializing_if = "str::is_empty")]
    pub(crate) role: &'static str,
    /// The account of another dialect.
    #[serde(serialize_with = "hidden", skip_serializing_if = "String::is_empty")]
    pub(crate) account: String,
    /// The user that a refused login named.
    #[serde(serialize_with = "hidden", skip_serializing_if = "String::is_empty")]
    pub(crate) claimed_user: String,
    pub(crate) surface: Surface,
    #[serde(serialize_with = "hidden", skip_serializing_if = "str::is_empty")]
    pub(crate) verb: &'static str,
    #[serde(serialize_with = "hidden")]
    pub(crate) resource: String,
    #[serde(serialize_with = "hidden", skip_serializing_if = "String::is_empty")]
    pub(crate) subresource: String,
    #[serde(serialize_with = "hidden", skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    #[serde(serialize_with = "hidden", skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(
        rename = "requestURI",
        serialize_with = "as_uri",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) uri: Option<Uri>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u16>,
    #[serde(serialize_with = "hidden", skip_serializing_if = "str::is_empty")]
    pub(crate) reason: &'static str,
    #[serde(serialize_with = "as_millis", skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ms: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remote: Option<IpAddr>,
    #[serde(serialize_with = "as_agent", skip_serializing_if = "Option::is_none")]
    pub(crate) user_agent: Option<HeaderValue>,
    /// How many denials like this one were counted instead of written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) folded: u64,
    /// The body, as it came.
    #[serde(skip)]
    pub(crate) body: Option<Bytes>,
    /// The body as it is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<serde_json::Value>,
    /// Why there is none.
    #[serde(serialize_with = "hidden_if_any", skip_serializing_if = "Option::is_none")]
    pub(crate) request_omitted: Option<String>,
}

fn is_empty(value: &HeaderValue) -> bool {
    value.is_empty()
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn as_text<S: serde::Serializer>(value: &HeaderValue, serializer: S) -> Result<S::Ok, S::Error> {
    hidden(value.to_str().unwrap_or_default(), serializer)
}

fn as_agent<S: serde::Serializer>(
    value: &Option<HeaderValue>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let text: String = text.unwrap_or_default().chars().take(256).collect();
    hidden(&text, serializer)
}

fn hidden<T: AsRef<str> + ?Sized, S: serde::Serializer>(
    text: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&secret::hidden(text.as_ref()))
}

fn hidden_if_any<T: AsRef<str>, S: serde::Serializer>(
    text: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    hidden(text.as_ref().map_or("", AsRef::as_ref), serializer)
}

fn as_uri<S: serde::Serializer>(uri: &Option<Uri>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = uri.as_ref().map(|uri| redact::uri(uri.path(), uri.query()));
    serializer.serialize_str(&text.unwrap_or_default())
}

fn as_millis<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let millis = (duration.unwrap_or_default().as_secs_f64() * 1e6).round() / 1e3;
    serializer.serialize_f64(millis)
}

impl Entry {
    /// A line about nothing yet.
    fn blank(time: Timestamp, surface: Surface) -> Self {
        Self {
            time,
            audit_id: HeaderValue::from_static(""),
            stage: "",
            user: ANONYMOUS.into(),
            role: "",
            impersonated_user: None,
            account: String::new(),
            claimed_user: String::new(),
            surface,
            verb: "",
            resource: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            uri: None,
            dry_run: false,
            outcome: None,
            code: None,
            reason: "",
            latency_ms: None,
            remote: None,
            user_agent: None,
            folded: 0,
            body: None,
            request: None,
            request_omitted: None,
        }
    }

    /// A line about denials that were counted.
    fn of_folded(folded: &Folded, now: Timestamp) -> Self {
        Self {
            outcome: Some(Outcome::of(folded.alike.code)),
            code: Some(folded.alike.code),
            latency_ms: Some(Duration::ZERO),
            remote: folded.alike.remote,
            folded: folded.count,
            ..Self::blank(now, folded.alike.surface)
        }
    }

    fn into_line(mut self, body_limit: usize) -> Option<Line> {
        if let Some(body) = self.body.take().filter(|body| !body.is_empty()) {
            let secrets = self.resource == "secrets";
            match redact::body(&body, body_limit, secrets) {
                Ok(value) => self.request = Some(value),
                Err(why) => self.request_omitted = Some(why),
            }
        }
        let mut text = Vec::with_capacity(512);
        serde_json::to_writer(&mut text, &self).ok()?;
        text.push(b'\n');
        let warns = self.outcome.is_some_and(|outcome| outcome != Outcome::Allowed);
        Some(Line { time: self.time, warns, text })
    }
}

/// How users are called that are not known.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Where entries are handed over.
#[derive(Debug)]
pub(crate) struct Audit {
    pub(crate) policy: Policy,
    sees_reads: bool,
    keeps_bodies: bool,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    /// The beginning of all identities of requests, another at each start.
    prefix: String,
    count: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    folds: Mutex<Folds>,
    condition: Condition,
    meters: Meters,
}

#[derive(Debug, Default)]
struct Queue {
    tickets: Vec<Ticket>,
    asleep: bool,
    closed: bool,
}

#[derive(Debug)]
struct Ticket {
    entry: Entry,
    written: Option<oneshot::Sender<()>>,
}

impl Audit {
    /// Opens the sinks, and starts the thread that writes to them.
    ///
    /// # Errors
    /// If a file cannot be opened: which, and why.
    pub(crate) fn start(
        settings: Settings,
        around: Around,
    ) -> Result<(Self, Writing), (PathBuf, io::Error)> {
        let Settings { policy, mut sinks } = settings;
        let Around { file, seed, meters, condition, clock } = around;
        if sinks.is_empty() {
            sinks.push(Destination::File(file.clone()));
        }
        let hours = i64::try_from(policy.file_hours).unwrap_or(i64::MAX / 3600);
        let rotation = Rotation {
            size: policy.file_size,
            files: policy.files,
            age: (hours > 0).then(|| SignedDuration::from_hours(hours)),
            durable: policy.durable,
        };
        let open = |sink: Destination| {
            let path = match &sink {
                Destination::File(path) => path.clone(),
                Destination::Stderr | Destination::Syslog(_) => file.clone(),
            };
            Outlet::open(sink, rotation).map_err(|error| (path, error))
        };
        let outlets = sinks.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            folds: Mutex::default(),
            condition,
            meters,
        });
        let writer = Writer {
            outlets,
            shared: shared.clone(),
            clock: clock.clone(),
            body_limit: policy.body_limit,
        };
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer.write_all())
            .map_err(|error| (file, error))?;
        let prefix = seed.get(..24).unwrap_or_default().to_owned();
        let (sees_reads, keeps_bodies) = (policy.sees_reads(), policy.keeps_bodies());
        let count = AtomicU64::new(0);
        let audit = Self { policy, sees_reads, keeps_bodies, shared, clock, prefix, count };
        Ok((audit, Writing(Some(thread))))
    }

    /// The refusal of a request that may change something or must leave a line, while the policy
    /// says so.
    pub(crate) fn refusal(&self, method: &Method, path: &str) -> Option<Error> {
        let refuses = self.shared.condition.refuses() && observe::must_be_told(method, path);
        refuses.then(|| {
            let message = "the audit log cannot be written and the audit policy says on-failure: refuse; see the server's log for the sink that fails";
            let mut error = Error::new(Reason::ServiceUnavailable, message);
            error.retry_after = Some(1);
            error
        })
    }

    /// An identity for a request.
    fn identity(&self) -> HeaderValue {
        let number = self.count.fetch_add(1, Relaxed) & 0xffff_ffff_ffff;
        let text = format!("{}{number:012x}", self.prefix);
        HeaderValue::from_maybe_shared(Bytes::from(text))
            .unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// Hands an entry over without waiting. The receiver, if one was asked for, hears when the line
    /// is written.
    fn record(&self, entry: Entry, before: bool) -> Option<oneshot::Receiver<()>> {
        let (written, receiver) = match before {
            true => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Some(receiver))
            }
            false => (None, None),
        };
        let mut queue = self.shared.queue.lock();
        if queue.tickets.len() >= QUEUE {
            drop(queue);
            self.shared.meters.lost.inc();
            return None;
        }
        queue.tickets.push(Ticket { entry, written });
        if std::mem::take(&mut queue.asleep) {
            drop(queue);
            self.shared.wake.notify_one();
        }
        receiver
    }

    /// Whether a denial of an unknown user gets a line of its own.
    fn admit(&self, alike: Alike) -> bool {
        let admitted = self.shared.folds.lock().admit(alike, self.clock.now());
        if !admitted {
            self.shared.meters.folded.inc();
        }
        admitted
    }

    /// Waits until a line is written, or for as long as is reasonable.
    async fn written(&self, receiver: oneshot::Receiver<()>) {
        let waited = select(receiver, self.clock.sleep(PATIENCE)).await;
        if let futures_util::future::Either::Right(_) = waited {
            tracing::warn!("an audit line was not written in time; the answer goes out without it");
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

/// The thread that writes. It ends once the [`Audit`] is gone and everything is written.
#[derive(Debug)]
pub(crate) struct Writing(Option<JoinHandle<()>>);

impl Writing {
    /// Waits for the thread to end.
    pub(crate) async fn ended(mut self) {
        if let Some(thread) = self.0.take() {
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }
}

/// The state of the thread that writes.
struct Writer {
    outlets: Vec<Outlet>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    body_limit: usize,
}

impl Writer {
    fn write_all(mut self) {
        loop {
            let (tickets, closed) = self.next();
            let mut waiting = Vec::with_capacity(tickets.len());
            let mut lines = Vec::with_capacity(tickets.len());
            for ticket in tickets {
                lines.extend(ticket.entry.into_line(self.body_limit));
                waiting.extend(ticket.written);
            }
            let now = self.clock.now();
            for folded in self.shared.folds.lock().due(now, closed) {
                lines.extend(Entry::of_folded(&folded, now).into_line(self.body_limit));
            }
            self.hand_over(&lines);
            for written in waiting {
                // A client that went away does not wait.
                let _ = written.send(());
            }
            if closed {
                return;
            }
        }
    }

    /// The next entries, when there are any or it is time to look around; and whether they are the
    /// last.
    fn next(&self) -> (Vec<Ticket>, bool) {
        let mut queue = self.shared.queue.lock();
        if queue.tickets.is_empty() && !queue.closed {
            queue.asleep = true;
            let busy =
                self.outlets.iter().any(Outlet::is_behind) || !self.shared.folds.lock().is_empty();
            let quiet = |queue: &mut Queue| queue.tickets.is_empty() && !queue.closed;
            match busy {
                true => drop(self.shared.wake.wait_while_for(&mut queue, quiet, PAUSE)),
                false => self.shared.wake.wait_while(&mut queue, quiet),
            }
            queue.asleep = false;
        }
        (std::mem::take(&mut queue.tickets), queue.closed)
    }

    fn hand_over(&mut self, lines: &[Line]) {
        let mut failing = 0;
        for outlet in &mut self.outlets {
            if lines.is_empty() && !outlet.is_behind() {
                continue;
            }
            let was_behind = outlet.is_behind();
            let handed = outlet.write(lines);
            self.shared.meters.lost.inc_by(handed.lost);
            let sink = &outlet.destination;
            match handed.failure {
                Some(error) => {
                    failing += 1;
                    if !was_behind {
                        tracing::error!(%sink, %error, "the audit log cannot be written; lines are kept in memory");
                    }
                }
                None if was_behind => tracing::info!(%sink, "the audit log is written again"),
                None => {}
            }
        }
        self.shared.meters.failing.set(failing);
        self.shared.condition.failing.store(failing > 0, Relaxed);
    }
}
