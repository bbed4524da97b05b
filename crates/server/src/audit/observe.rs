//! From a request and its answer to a line: what was asked is noted when it comes in, and the books
//! are closed when its answer goes out, or when the client goes away before.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::USER_AGENT;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use http_body_util::BodyExt;
use mainstay_rucio::Described;
use mainstay_store::object::Resource;
use mainstay_store::status::Error;
use parking_lot::Mutex;

use super::fold::Alike;
use super::policy::{Decision, Level, Outcome, Seen};
use super::{ANONYMOUS, Entry, Surface};
use crate::engines::SURFACE;
use crate::listen::Peer;
use crate::path::{self, Path};
use crate::reply::Reply;
use crate::service::{App, Asked, method_verb};

/// The header in which clients may give a request an identity, and learn it.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The status code of a request whose client went away before the answer.
const GONE: u16 = 499;

/// The status code of a request whose handler panicked; its client sees the connection closed.
const FAILED: u16 = 500;

/// Whether a request may change something or must leave a line, as far as its head tells: a login to
/// Rucio and a backup are GETs and must; a question is a POST and need not.
pub(crate) fn must_be_told(method: &Method, path: &str) -> bool {
    const QUESTIONS: [&str; 3] = [
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
    ];
    if let Some(below) = rucio_path(path) {
        return Described::of(method, below).changes;
    }
    match *method {
        Method::POST => !QUESTIONS.contains(&path),
        Method::GET | Method::HEAD | Method::OPTIONS => path == "/mainstay/v1/backup",
        _ => true,
    }
}

/// The part of a path below the surface of the rule engine, if it is there.
fn rucio_path(path: &str) -> Option<&str> {
    let below = path.strip_prefix(SURFACE)?;
    (below.is_empty() || below.starts_with('/')).then_some(below)
}

/// Facts about a request that only its dialect knows. The server puts one into
/// the extensions of each request that it hands over.
#[derive(Clone, Debug, Default)]
pub struct AuditNote(Arc<Mutex<Noted>>);

#[derive(Clone, Debug, Default)]
struct Noted {
    account: String,
    claimed: String,
    resource: String,
    name: String,
    changes: Option<bool>,
    denied: bool,
}

impl AuditNote {
    /// Notes the account that was found to ask, in the dialect's own terms.
    pub fn account(&self, account: &str) {
        account.clone_into(&mut self.0.lock().account);
    }

    /// Notes as whom somebody wanted to be known who was not.
    pub fn claimed(&self, name: &str) {
        self.0.lock().claimed = name.chars().take(128).collect();
    }

    /// Notes what the request is about.
    pub fn object(&self, resource: &str, name: &str) {
        let mut noted = self.0.lock();
        resource.clone_into(&mut noted.resource);
        noted.name = name.chars().take(512).collect();
    }

    /// Notes whether the request asks for a change, where the method does not tell.
    pub fn changes(&self, changes: bool) {
        self.0.lock().changes = Some(changes);
    }

    /// Notes that the user was refused, where the status code does not tell.
    pub fn denied(&self) {
        self.0.lock().denied = true;
    }
}

/// Keeps the body of a request for the log while it is read.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    body: Arc<Mutex<BytesMut>>,
    limit: usize,
}

impl Tap {
    /// Keeps a piece. One byte more than may be shown is kept, so that it shows that there is more.
    pub(crate) fn keep(&self, data: &[u8]) {
        let mut body = self.body.lock();
        let room = (self.limit + 1).saturating_sub(body.len());
        body.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// A body that leaves a copy of what is read of it.
    pub(crate) fn on<B: http_body::Body<Data = Bytes>>(
        self,
        body: B,
    ) -> impl http_body::Body<Data = Bytes, Error = B::Error> {
        body.map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                self.keep(data);
            }
            frame
        })
    }

    fn take(&self) -> Bytes {
        std::mem::take(&mut *self.body.lock()).freeze()
    }
}

/// Among the extensions of an answer: nothing was changed, only tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DryRun;

/// The books of one request. Dropped before they are closed, they note that the client went away, or
/// that the handler failed.
pub(crate) struct Books<'a> {
    app: &'a App,
    peer: &'a Peer,
    method: Method,
    uri: Uri,
    agent: Option<HeaderValue>,
    given_id: Option<HeaderValue>,
    started: Duration,
    tap: Option<Tap>,
    /// Whether a line was written before the request was executed.
    received: bool,
    closed: bool,
    pub(crate) asked: Asked,
}

impl<'a> Books<'a> {
    pub(crate) fn open(app: &'a App, peer: &'a Peer, parts: &mut Parts, started: Duration) -> Self {
        let tap = app.audit.keeps_bodies.then(|| {
            let tap = Tap { body: Arc::default(), limit: app.audit.policy.body_limit };
            parts.extensions.insert(tap.clone());
            tap
        });
        Self {
            app,
            peer,
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            agent: parts.headers.get(USER_AGENT).cloned(),
            given_id: parts.headers.get(AUDIT_ID).cloned().filter(is_identity),
            started,
            tap,
            received: false,
            closed: false,
            asked: Asked::default(),
        }
    }

    /// Writes the first line of a request that may change something, if the policy asks for one, and
    /// waits for it: a change is never without a line, however the server ends.
    ///
    /// # Errors
    /// 503 if the line could not be written and the policy says to refuse then.
    pub(crate) async fn received(&mut self) -> Result<(), Error> {
        let audit = &self.app.audit;
        let path = self.uri.path();
        if !audit.policy.has_received() || !must_be_told(&self.method, path) {
            return Ok(());
        }
        let Some(user) = &self.asked.user else { return Ok(()) };
        let mut target = Asked { verb: method_verb(&self.method), ..Asked::default() };
        name_target(&self.method, &self.uri, &mut target);
        let resource = target.resource.map(|resource| resource.to_string()).unwrap_or_default();
        let role = user.role.map_or("", |role| role.as_str());
        let seen = Seen {
            user: &user.name,
            role,
            verb: target.verb,
            resource: &resource,
            namespace: &target.namespace,
            surface: Surface::of(path),
            // The line matters for those that will be.
            outcome: Outcome::Allowed,
            changes: true,
        };
        let decision = audit.policy.decide(&seen);
        if decision.level == Level::None || !decision.received {
            return Ok(());
        }
        let entry = Entry {
            audit_id: self.given_id.get_or_insert_with(|| audit.identity()).clone(),
            stage: "RequestReceived",
            user: user.name.clone(),
            role,
            impersonated_user: self.asked.acting_as.clone(),
            verb: target.verb,
            resource,
            subresource: target.subresource,
            namespace: target.namespace,
            name: target.name,
            uri: Some(self.uri.clone()),
            dry_run: asks_dry_run(self.uri.query()),
            remote: Some(self.peer.address.ip()),
            user_agent: self.agent.clone(),
            ..Entry::blank(self.app.clock.now(), Surface::of(path))
        };
        self.received = true;
        if let Some(receiver) = audit.record(entry, true) {
            audit.written(receiver).await;
        }
        audit.refusal(&self.method, path).map_or(Ok(()), Err)
    }

    /// Makes the line of a request, if it leaves one, and waits for it if the policy asks for that. The
    /// answer says its identity.
    pub(crate) async fn close(&mut self, reply: &mut Reply, took: Duration) {
        self.closed = true;
        let code = match Surface::of(self.uri.path()) {
            Surface::Agents => grpc_code(reply.headers(), reply.status().as_u16()),
            _ => reply.status().as_u16(),
        };
        let dry_run = reply.extensions().get::<DryRun>().is_some();
        let Some((entry, before)) = self.entry(code, dry_run, took) else { return };
        reply.headers_mut().insert(AUDIT_ID, entry.audit_id.clone());
        if let Some(receiver) = self.app.audit.record(entry, before) {
            self.app.audit.written(receiver).await;
        }
    }

    fn entry(&mut self, code: u16, dry_run: bool, took: Duration) -> Option<(Entry, bool)> {
        let (app, asked) = (self.app, &mut self.asked);
        let noted = asked.note.take().map(|note| note.0.lock().clone()).unwrap_or_default();
        let by_head = || !asked.asks && must_be_told(&self.method, self.uri.path());
        let changes = noted.changes.unwrap_or_else(|| asked.changes || by_head());
        let outcome = if noted.denied { Outcome::Denied } else { Outcome::of(code) };
        // A first line always has its second.
        let matters = changes || outcome == Outcome::Denied || self.received;
        if !matters && !app.audit.sees_reads {
            return None;
        }
        if asked.verb.is_empty() {
            asked.verb = method_verb(&self.method);
        }
        if asked.name.is_empty() && asked.namespace.is_empty() {
            name_target(&self.method, &self.uri, asked);
        }
        let resource = asked.resource.take().map(|resource| resource.to_string());
        let resource = resource.unwrap_or(noted.resource);
        let user: Arc<str> = match &asked.user {
            Some(user) => user.name.clone(),
            None if !noted.account.is_empty() => noted.account.as_str().into(),
            None => ANONYMOUS.into(),
        };
        let role = asked.user.as_ref().and_then(|user| user.role).map_or("", |role| role.as_str());
        let surface = Surface::of(self.uri.path());
        let seen = Seen {
            user: &user,
            role,
            verb: asked.verb,
            resource: &resource,
            namespace: &asked.namespace,
            surface,
            outcome,
            changes,
        };
        let Decision { level, before, .. } = app.audit.policy.decide(&seen);
        if level == Level::None && !self.received {
            return None;
        }
        let remote = self.peer.address.ip();
        let unknown = asked.user.is_none() && noted.account.is_empty();
        if unknown
            && outcome != Outcome::Allowed
            && !app.audit.admit(Alike { remote: Some(remote), surface, code })
        {
            return None;
        }
        let body = self.tap.as_ref().filter(|_| level == Level::Request).map(Tap::take);
        let asked = std::mem::take(asked);
        let entry = Entry {
            audit_id: self.given_id.take().unwrap_or_else(|| app.audit.identity()),
            stage: if self.received { "ResponseComplete" } else { "" },
            user,
            role,
            impersonated_user: asked.acting_as,
            account: noted.account,
            claimed_user: noted.claimed,
            verb: asked.verb,
            resource,
            subresource: asked.subresource,
            namespace: asked.namespace,
            name: if asked.name.is_empty() { noted.name } else { asked.name },
            uri: Some(self.uri.clone()),
            dry_run: dry_run || asks_dry_run(self.uri.query()),
            outcome: Some(outcome),
            code: Some(code),
            reason: asked.reason,
            latency_ms: Some(took),
            remote: Some(remote),
            user_agent: self.agent.take(),
            body,
            ..Entry::blank(app.clock.now(), surface)
        };
        Some((entry, before))
    }
}

impl Drop for Books<'_> {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let took = self.app.clock.elapsed().saturating_sub(self.started);
        let code = if std::thread::panicking() { FAILED } else { GONE };
        if let Some((entry, _)) = self.entry(code, false, took) {
            // The client cannot wait for the line any more.
            drop(self.app.audit.record(entry, false));
        }
    }
}

/// The object that the head of a request names, on every part of the API: for the first line, and for
/// requests that were refused before the object was looked at.
fn name_target(method: &Method, uri: &Uri, asked: &mut Asked) {
    let path = uri.path();
    if let Ok(Path::Objects(target)) = path::parse(path) {
        asked.namespace = target.namespace.as_deref().unwrap_or_default().to_owned();
        asked.name = target.name.as_deref().unwrap_or_default().to_owned();
        asked.subresource = target.subresource.unwrap_or_default().to_owned();
        let resource = || Resource::new(target.group, target.plural);
        asked.resource.get_or_insert_with(resource);
        return;
    }
    if let Some(below) = rucio_path(path) {
        let described = Described::of(method, below);
        return set_target(asked, &described.resource, &described.name);
    }
    if let Some(errand) = crate::store_api::Errand::named(path) {
        return errand.note(asked);
    }
    if let Some(node) = crate::node_api::revoked(path) {
        return crate::node_api::note(node, asked);
    }
    let ours = path.strip_prefix("/mainstay/v1/").unwrap_or_default();
    match (Surface::of(path), ours.split('/').collect::<Vec<_>>().as_slice()) {
        (Surface::Tokens, parts) => {
            set_target(asked, "tokens", parts.get(1).copied().unwrap_or_default());
        }
        (Surface::Join, ["authority" | "ca", ..]) => set_target(asked, "authorities", ""),
        (Surface::Join, _) => set_target(asked, "nodecertificates", ""),
        (Surface::Logs, ["namespaces", namespace, _, instance, _]) => {
            set_target(asked, "instances.apps.mainstay.dev", instance);
            (*namespace).clone_into(&mut asked.namespace);
            "log".clone_into(&mut asked.subresource);
        }
        (Surface::Agents, _) => set_target(asked, "agentstreams", ""),
        (Surface::Extender, _) => set_target(asked, "reservations", ""),
        (Surface::Scheduler, _) => set_target(asked, "scheduler", ""),
        _ => {}
    }
}

fn set_target(asked: &mut Asked, resource: &str, name: &str) {
    asked.resource.get_or_insert_with(|| Resource::from_stored(resource));
    asked.name = name.chars().take(512).collect();
}

fn asks_dry_run(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair == "dryRun=All"))
}

/// Whether a client's own identity for a request is one: letters, digits and dashes, not too many.
fn is_identity(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=64).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// The status code that the status of gRPC stands for; it is among the headers if the call was
/// refused.
fn grpc_code(headers: &HeaderMap, code: u16) -> u16 {
    let status = headers.get("grpc-status").and_then(|status| status.to_str().ok());
    match status.map(|status| status.parse::<u16>().unwrap_or(2)) {
        None | Some(0) => code,
        Some(1) => GONE,
        Some(3) => 400,
        Some(4) => 504,
        Some(5) => 404,
        Some(6 | 9 | 10) => 409,
        Some(7) => 403,
        Some(8) => 429,
        Some(14) => 503,
        Some(16) => 401,
        Some(_) => 500,
    }
}
