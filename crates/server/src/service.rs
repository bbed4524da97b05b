//! Answers a request: authenticates the user, finds the part of the API that the path names, and
//! passes the request on to it.
//!
//! Enter at [`App::answer`]. Every answer passes through it, so it is also where answers are
//! counted, and where changes leave their line in the audit log. [`objects`] serves objects, [`other`]
//! every other path; both ask [`crate::authorize`] before they do anything.

mod head;
mod objects;
mod other;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{Method, Request, Version};
use http_body::Frame;
use mainstay_store::clock::Clock;
use mainstay_store::object::Resource;
use mainstay_store::resources::Resources;
use mainstay_store::status::{Error, Reason};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::Room;
use crate::audit::{Audit, AuditNote, Books};
use crate::body::{self, Incoming};
use crate::certificates::Session;
use crate::connection::Connections;
use crate::cursor::Seal;
use crate::gate::{Gate, Pool};
use crate::identity::{Role, User};
use crate::list::Snapshots;
use crate::listen::Peer;
use crate::metrics::Metrics;
use crate::options::Limits;
use crate::path::{self, Path};
use crate::readiness::Readiness;
use crate::reply::{self, Reply};
use crate::tokens::Tokens;
use crate::{encoding, impersonate};

/// How many unread bodies are taken at once.
const LINGERING: usize = 256;

/// The header that carries tokens of a dialect with users of its own.
const OWN_TOKEN: &str = "x-rucio-auth-token";

/// Everything that answers requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) resources: Resources,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) authority: Arc<crate::tls::Authorities>,
    pub(crate) certificates: Arc<crate::certificates::Certificates>,
    pub(crate) seal: Seal,
    pub(crate) snapshots: Snapshots,
    pub(crate) owners: crate::owners::Owners,
    pub(crate) metrics: Metrics,
    pub(crate) audit: Audit,
    pub(crate) connections: Arc<Connections>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) turns: crate::turns::Turns,
    /// Unread bodies, taken for a while.
    pub(crate) lingering: TaskTracker,
    pub(crate) documents: crate::documents::Documents,
    pub(crate) routes: Option<axum::Router>,
    pub(crate) own_users: Vec<&'static str>,
    pub(crate) streams: Vec<&'static str>,
    /// The parts of a backup besides the objects.
    pub(crate) parts: Vec<Arc<dyn mainstay_store::backup::PartSource>>,
    /// Cancelled when watches shall end.
    pub(crate) stop: CancellationToken,
    pub(crate) count: AtomicU64,
}

/// Facts about a request, for metrics and the audit log.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) verb: &'static str,
    pub(crate) resource: Option<Resource>,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) user: Option<Arc<User>>,
    /// The user on whose behalf it is made, if it is another one.
    pub(crate) acting_as: Option<Arc<str>>,
    pub(crate) changes: bool,
    /// Whether it only asks a question, whatever its method.
    pub(crate) asks: bool,
    /// The notes of a further dialect about it.
    pub(crate) note: Option<AuditNote>,
    /// Why it was refused, in a word.
    pub(crate) reason: &'static str,
    pub(crate) lasting: bool,
    /// Whether all was said and somebody else decides how long the answer takes.
    pub(crate) patient: Arc<AtomicBool>,
}

impl App {
    /// A number between 0 and 1 that is another each time: spreads what would happen all at once.
    pub(crate) fn jitter(&self) -> f64 {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let count = self.count.fetch_add(1, Relaxed).wrapping_add(1);
        (count.wrapping_mul(GOLDEN) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Answers a request.
    pub(crate) async fn answer(
        &self,
        peer: &Peer,
        request: Request<hyper::body::Incoming>,
    ) -> Reply {
        let busy = peer.pulse.begin();
        let started = self.clock.elapsed();
        let (mut parts, body) = request.into_parts();
        let body = Incoming::new(body, &self.clock, &self.limits);
        let (version, intake) = (parts.version, body.intake());
        let wants = encoding::Wants::of(&parts.headers);
        let content_type = parts.headers.get(CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"));
        let mut books = Books::open(self, peer, &mut parts, started);
        let patient = books.asked.patient.clone();
        let routed = match self.audit.refusal(&parts.method, parts.uri.path()) {
            Some(refusal) => {
                drop(body);
                Err(refusal)
            }
            None => self.within_time(self.route(peer, parts, body, &mut books), &patient).await,
        };
        let mut reply = match routed {
            Ok(reply) => reply,
            Err(error) => {
                books.asked.reason = error.reason.as_str();
                if error.reason == Reason::TooManyRequests {
                    self.metrics.rejected.inc();
                }
                match is_grpc {
                    true => reply::grpc_refusal(&error),
                    false => reply::refusal(&error),
                }
            }
        };
        if let Some(rest) = intake.and_then(|intake| intake.take_rest())
            && version == Version::HTTP_2
        {
            self.linger(rest);
        }
        if let Some(wants) = wants {
            reply = wants.shape(reply).await;
        }
        let took = self.clock.elapsed().saturating_sub(started);
        let code = reply.status().as_u16();
        let asked = &books.asked;
        let timed = (!asked.lasting).then_some(took);
        self.metrics.answered(asked.verb, asked.resource.as_ref(), code, timed);
        books.close(&mut reply, took).await;
        reply.body_mut().send(busy);
        reply
    }

    /// Takes for a while what a client still sends though its answer is ready: a stream that is reset
    /// at once takes the answer with it, as some clients see it.
    fn linger(&self, rest: hyper::body::Incoming) {
        if self.lingering.len() >= LINGERING {
            return;
        }
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        self.lingering.spawn(async move {
            stop.run_until_cancelled(body::linger(rest, &*clock)).await;
        });
    }

    /// Gives up on what takes too long, unless it is left to a keeper, who has limits of his own. No
    /// timer is set for what is ready at once.
    async fn within_time(
        &self,
        answer: impl Future<Output = Result<Reply, Error>>,
        patient: &AtomicBool,
    ) -> Result<Reply, Error> {
        let mut answer = pin!(answer);
        if let std::task::Poll::Ready(answer) = futures_util::poll!(&mut answer) {
            return answer;
        }
        match select(answer, self.clock.sleep(self.limits.request)).await {
            Either::Left((answer, _)) => answer,
            Either::Right((_, answer)) if patient.load(Relaxed) => answer.await,
            Either::Right(_) => {
                let message = "Timeout: request did not complete within the allotted time";
                let mut error = Error::new(Reason::Timeout, message);
                error.retry_after = Some(1);
                Err(error)
            }
        }
    }

    async fn route(
        &self,
        peer: &Peer,
        mut parts: Parts,
        body: Incoming,
        books: &mut Books<'_>,
    ) -> Result<Reply, Error> {
        head::check_head(&parts, self.limits.head)?;
        if let Some(session) = &peer.session {
            parts.extensions.insert(session.clone());
        }
        let target = path::parse(parts.uri.path())?;
        if let Path::Other(path) = target
            && let Some(reply) = self.open_to_all(&parts, path)
        {
            books.asked.verb = method_verb(&parts.method);
            if reply.is_err() {
                // The refusal leaves a line, under the name of a user who gave one.
                books.asked.user = self.authenticate(peer, &parts).await.ok();
            }
            return reply;
        }
        let user = match self.authenticate(peer, &parts).await {
            Ok(user) => user,
            Err(_) if self.has_own_users(parts.uri.path()) => {
                let asked = &mut books.asked;
                asked.verb = method_verb(&parts.method);
                let who = peer.visitor.stranger(parts.headers.contains_key(OWN_TOKEN));
                let inside = body.admit(&who, Pool::Strangers)?;
                parts.extensions.insert(peer.address.ip());
                return self.routed(parts, body, inside, false, asked).await;
            }
            Err(error) => {
                books.asked.verb = method_verb(&parts.method);
                return Err(error);
            }
        };
        books.asked.user = Some(user.clone());
        let who = peer.visitor.known(&user).inspect_err(|_| peer.pulse.finish())?;
        let user = match impersonate::named(&parts.headers)? {
            None => user,
            Some(other) => {
                books.asked.acting_as = Some(other.name.as_str().into());
                let acting = impersonate::act(&user, other, |name| self.tokens.of_name(name));
                if acting.is_err() {
                    books.asked.verb = method_verb(&parts.method);
                }
                acting?
            }
        };
        let who = match books.asked.acting_as {
            None => who,
            Some(_) => peer.visitor.acting(&user),
        };
        books.received().await?;
        let asked = &mut books.asked;
        match target {
            Path::Objects(target) => self.objects(&parts, body, &target, &user, &who, asked).await,
            Path::Discovery(document) => {
                asked.verb = "get";
                let _inside = who.enter(Pool::Requests)?;
                read_only(&parts.method)?;
                Room::new(&who, &parts).count(self.documents.discovery(document, accept(&parts))?)
            }
            Path::Other(_) => {
                parts.extensions.insert(peer.address.ip());
                self.other(parts, body, &user, &who, asked).await
            }
        }
    }

    /// The user of a request.
    async fn authenticate(&self, peer: &Peer, parts: &Parts) -> Result<Arc<User>, Error> {
        let known = match parts.headers.get(AUTHORIZATION) {
            Some(_) => match bearer(parts) {
                None => None,
                Some(token) => match self.tokens.bearer(token) {
                    None => {
                        let _inside = peer.visitor.stranger(true).enter(Pool::Strangers)?;
                        self.tokens.newcomer(token).await
                    }
                    known => known,
                },
            },
            None if peer.session.as_ref().is_some_and(|session| !session.good()) => {
                return Err(revoked());
            }
            None => return peer.certified.clone().ok_or_else(unauthorized),
        };
        let known = known.ok_or_else(unauthorized)?;
        // A node's token becomes a certificate, and is good for nothing else.
        if known.role == Some(Role::Node) && parts.uri.path() != crate::join_api::PATH {
            let message =
                "a join token can only join: use the certificate that it is exchanged for";
            return Err(Error::new(Reason::Forbidden, message));
        }
        Ok(known)
    }

    /// Notes a connection that shows the certificate of a node.
    pub(crate) fn session(
        &self,
        shown: &crate::tls::Presented,
        pulse: &Arc<crate::connection::Pulse>,
    ) -> Option<Arc<crate::certificates::Session>> {
        let node = shown.user.node.as_deref()?;
        let (serial, issuer) = (shown.serial.clone(), shown.issuer.clone());
        Some(self.certificates.enter(node, serial, issuer, pulse))
    }

    /// Cuts an answer off when the token or the certificate that asked for it ends. `shown` makes the
    /// last piece of it from the reason, where the client can tell that from the rest.
    async fn until_credential_ends(
        &self,
        parts: &Parts,
        reply: &mut Reply,
        shown: Option<fn(&Error) -> Bytes>,
    ) {
        let (end, reason) = match (bearer(parts), parts.extensions.get::<Arc<Session>>()) {
            (Some(token), _) => (self.tokens.end(token).await, token_ended()),
            (None, Some(session)) => (session.ended(), revoked()),
            (None, None) => return,
        };
        reply.body_mut().until(end, shown.map(|shown| Frame::data(shown(&reason))));
    }
}

/// The token a request carries.
pub(crate) fn bearer(parts: &Parts) -> Option<&[u8]> {
    let header = parts.headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// The refusal of a node whose certificate was revoked.
pub(crate) fn revoked() -> Error {
    let message = "the certificate of this node was revoked; join again with a new token";
    Error::new(Reason::Unauthorized, message)
}

/// The end of an answer whose token was good when it began.
fn token_ended() -> Error {
    let message = "the token of this watch was revoked or has expired";
    Error::new(Reason::Unauthorized, message)
}

fn unauthorized() -> Error {
    Error::new(Reason::Unauthorized, "Unauthorized")
}

/// The refusal of a path that leads nowhere.
pub(crate) fn no_such_resource() -> Error {
    Error::new(Reason::NotFound, "the server could not find the requested resource")
}

/// Answers a path that none of the routes of others matches.
pub(crate) async fn nowhere() -> http::Response<axum::body::Body> {
    reply::refusal(&no_such_resource()).map(axum::body::Body::new)
}

/// The refusal of a method.
pub(crate) fn wrong_method() -> Error {
    let message = "the server does not allow this method on the requested resource";
    Error::new(Reason::MethodNotAllowed, message)
}

fn read_only(method: &Method) -> Result<(), Error> {
    if matches!(*method, Method::GET | Method::HEAD) { Ok(()) } else { Err(wrong_method()) }
}

pub(crate) fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

pub(crate) fn accept(parts: &Parts) -> Option<&str> {
    // A header that is no text accepts nothing we have.
    parts.headers.get(ACCEPT).map(|value| value.to_str().unwrap_or("?/?"))
}
