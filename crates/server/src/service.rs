//! From a request to its answer: who asks, what for, whether they may, and who does it.
//!
//! Enter at [`App::answer`]. Every answer passes through it, so it is also where answers are
//! counted, and where changes leave their line in the audit log.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{Method, Request, StatusCode, Version};
use mainstay_store::clock::Clock;
use mainstay_store::object::Resource;
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Admission, Resources, Subresource};
use mainstay_store::status::{Error, Reason};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::admit::OwnOnly;
use crate::answers::Room;
use crate::audit::{Audit, AuditNote, Books, Tap};
use crate::authorize::{self, Attempt, Verb, Verdict};
use crate::body::{self, Incoming, Inside};
use crate::connection::Connections;
use crate::cursor::Seal;
use crate::discovery::serves_delete_collection;
use crate::encoding;
use crate::gate::{Gate, Pool, Who};
use crate::identity::{Role, User};
use crate::impersonate;
use crate::list::{self, Snapshots};
use crate::listen::Peer;
use crate::metrics::Metrics;
use crate::negotiate::{self, Form};
use crate::options::Limits;
use crate::path::{self, Path, Target};
use crate::query::Query;
use crate::readiness::Readiness;
use crate::render;
use crate::reply::{self, Body, Reply};
use crate::reviews;
use crate::tokens::Tokens;
use crate::watch;
use crate::write::Writing;

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
    /// What a backup holds besides the objects.
    pub(crate) parts: Vec<Arc<dyn mainstay_store::backup::PartSource>>,
    /// Told when watches shall end.
    pub(crate) stop: CancellationToken,
    pub(crate) count: AtomicU64,
}

/// What was asked, for the books.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) verb: &'static str,
    pub(crate) resource: Option<Resource>,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) user: Option<Arc<User>>,
    /// As whom the user acts, if it is somebody else.
    pub(crate) acting_as: Option<Arc<str>>,
    pub(crate) changes: bool,
    /// Whether it only asks a question, whatever its method.
    pub(crate) asks: bool,
    /// What a further dialect has to say about it.
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
        check_head(&parts, self.limits.head)?;
        if parts.uri.path() == crate::join_api::PATH {
            parts.extensions.insert(peer.session.clone());
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

    /// Who asks.
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
                let message =
                    "the certificate of this node was revoked; join again with a new token";
                return Err(Error::new(Reason::Unauthorized, message));
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

    /// Cuts an answer off when the token that asked for it ends.
    async fn until_token_ends(&self, parts: &Parts, reply: &mut Reply, farewell: Option<Bytes>) {
        if let Some(token) = bearer(parts) {
            let end = self.tokens.end(token).await;
            reply.body_mut().until(end, farewell);
        }
    }

    /// Whether a path belongs to a dialect that knows users of its own.
    fn has_own_users(&self, path: &str) -> bool {
        self.own_users.iter().any(|start| {
            path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Paths that anybody may read.
    fn open_to_all(&self, parts: &Parts, path: &str) -> Option<Result<Reply, Error>> {
        let reply = match path {
            "/version" => crate::health::version(),
            crate::authority_api::BUNDLE => crate::authority_api::bundle(self),
            path => {
                let verbose = Query::parse(parts.uri.query()).is_ok_and(|query| query.verbose);
                crate::health::probe(&self.readiness, path, verbose)?
            }
        };
        Some(read_only(&parts.method).map(|()| reply))
    }

    /// Objects of a kind.
    async fn objects(
        &self,
        parts: &Parts,
        body: Incoming,
        target: &Target<'_>,
        user: &Arc<User>,
        who: &Who,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let query = Query::parse(parts.uri.query())?;
        let registry = self.resources.registry();
        let Some(kind) = registry.find(target.group, target.version, target.plural) else {
            if let Some(review) = reviews::named(target) {
                asked.verb = method_verb(&parts.method);
                asked.asks = true;
                let _inside = body.admit(who, Pool::Requests)?;
                return reviews::answer(self, parts, body, review, user).await;
            }
            return self.unknown_kind(parts, target, &query, user, asked);
        };
        let part = part(kind, target)?;
        let verb = verb(&parts.method, kind, target, &query)?;
        let (namespace, name) = (target.namespace.as_deref(), target.name.as_deref());
        asked.verb = verb.as_str();
        asked.resource = Some(kind.resource().clone());
        asked.changes = !verb.reads();
        if asked.changes {
            target.subresource.unwrap_or_default().clone_into(&mut asked.subresource);
            namespace.unwrap_or_default().clone_into(&mut asked.namespace);
            name.unwrap_or_default().clone_into(&mut asked.name);
        }
        let attempt = Attempt {
            verb,
            group: kind.group,
            plural: kind.plural,
            subresource: target.subresource.unwrap_or_default(),
            namespace,
            name,
            fields: query.field_selector.as_deref(),
        };
        let own = match authorize::judge(user, &attempt) {
            Verdict::Allowed => None,
            Verdict::IfOwn(rule) => Some(Arc::new(OwnOnly::new(self, user, rule, kind, &attempt))),
            Verdict::Denied => return Err(authorize::forbidden(user, kind, &attempt)),
        };
        let form = negotiate::form(accept(parts))?;
        if verb == Verb::Watch {
            asked.lasting = true;
            let inside = who.enter(Pool::Watches)?;
            let watching = self.metrics.watching(kind.resource());
            let mut reply = watch::watch(self, kind, namespace, name, &query, form).await?;
            self.until_token_ends(parts, &mut reply, Some(watch::token_ended())).await;
            reply.body_mut().holding((inside, watching));
            return Ok(reply);
        }
        // A keeper may let a request wait: it must not stand in the way of those that do not.
        let pool = if self.resources.is_kept(kind) { Pool::Watches } else { Pool::Requests };
        let inside = match verb.reads() {
            true => Inside::Place(who.enter(pool)?),
            false => body.admit(who, pool)?,
        };
        let room = Room::new(who, parts);
        room.check()?;
        let writing = Writing {
            app: self,
            kind,
            namespace,
            subresource: part,
            query: &query,
            form,
            who,
            admission: own.clone().map(|own| own as Arc<dyn Admission>),
            patient: asked.patient.clone(),
        };
        let key = name.map(|name| kind.key(namespace, name));
        let mut reply = match (verb, &key) {
            (Verb::Get, Some(key)) => {
                check_version(&self.resources, kind, &query)?;
                let record = self.resources.read(kind, key).await?;
                if let Some(own) = &own {
                    own.check(&record.object()).await?;
                }
                let body = if form == Form::Plain && !query.pretty {
                    record.json().clone()
                } else {
                    render::one(kind, &record, form, &query, self.clock.now())?
                };
                reply::json(StatusCode::OK, Body::whole(body))
            }
            (Verb::Create, _) => writing.create(parts, body, &mut asked.name).await?,
            (Verb::Update, Some(key)) => writing.update(parts, body, key).await?,
            (Verb::Patch, Some(key)) => writing.patch(parts, body, key).await?,
            (Verb::Delete, Some(key)) => writing.delete(parts, body, key).await?,
            (Verb::DeleteCollection, _) => writing.delete_collection(parts, body).await?,
            _ => list::list(self, kind, namespace, &query, form, room).await?,
        };
        if !reply.body().is_whole() {
            reply.body_mut().holding(inside);
        }
        room.count(reply)
    }

    /// Kinds that are not served. `kubectl describe node` insists on asking for pods, though, and
    /// is content to hear that there are none.
    fn unknown_kind(
        &self,
        parts: &Parts,
        target: &Target<'_>,
        query: &Query<'_>,
        user: &User,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        asked.verb = method_verb(&parts.method);
        if (target.group, target.plural) != ("", "pods") || target.name.is_some() {
            return Err(no_such_resource());
        }
        read_only(&parts.method)?;
        let verb = if query.watch { Verb::Watch } else { Verb::List };
        asked.verb = verb.as_str();
        let attempt = Attempt {
            verb,
            group: "",
            plural: "pods",
            subresource: "",
            namespace: target.namespace.as_deref(),
            name: None,
            fields: None,
        };
        if authorize::judge(user, &attempt) != Verdict::Allowed {
            return Err(authorize::forbidden_path(user, verb.as_str(), parts.uri.path()));
        }
        if verb == Verb::Watch {
            return Err(wrong_method());
        }
        let none = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#;
        Ok(reply::json(StatusCode::OK, Body::whole(none)))
    }

    /// Everything that is neither objects nor discovery.
    async fn other(
        &self,
        mut parts: Parts,
        body: Incoming,
        user: &Arc<User>,
        who: &Who,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let path = parts.uri.path();
        let stays = self.streams.iter().any(|start| path.starts_with(start));
        let inside = match stays {
            true => Inside::Place(who.enter(Pool::Watches)?),
            false => body.admit(who, Pool::Requests)?,
        };
        asked.verb = method_verb(&parts.method);
        let errand = crate::store_api::Errand::named(path);
        if let Some(errand) = errand {
            errand.note(asked);
        } else if let Some(errand) = crate::authority_api::named(path) {
            errand.note(asked);
        } else if let Some(node) = crate::node_api::revoked(path) {
            crate::node_api::note(node, asked);
        }
        if authorize::paths::judge(user, parts.method.as_str(), path) != Verdict::Allowed {
            return Err(authorize::forbidden_path(user, asked.verb, path));
        }
        if let Some(rest) = path.strip_prefix("/mainstay/v1/tokens") {
            let id = rest.strip_prefix('/').unwrap_or(rest).to_owned();
            return crate::token_api::answer(self, &parts, body, &id, asked).await;
        }
        if path == crate::join_api::PATH {
            return crate::join_api::answer(self, &parts, body, user, asked).await;
        }
        if let Some(answer) = crate::authority_api::named(path) {
            return answer.answer(self, &parts).await;
        }
        if let Some(node) = crate::node_api::revoked(path) {
            return crate::node_api::revoke(self, &parts, node).await;
        }
        if let Some(errand) = errand {
            let mut reply = crate::store_api::answer(self, &parts.method, errand, asked).await?;
            self.until_token_ends(&parts, &mut reply, None).await;
            reply.body_mut().holding(inside);
            return Ok(reply);
        }
        if path == "/metrics" {
            read_only(&parts.method)?;
            return Room::new(who, &parts).count(crate::health::metrics(self));
        }
        if let Some(reply) = self.documents.other(path, &parts) {
            read_only(&parts.method)?;
            return Room::new(who, &parts).count(reply?);
        }
        parts.extensions.insert(user.clone());
        let room = Room::new(who, &parts);
        room.count(self.routed(parts, body, inside, stays, asked).await?)
    }

    /// Hands a request over to a further dialect, with its whole body unless it is a stream that
    /// stays open.
    async fn routed(
        &self,
        mut parts: Parts,
        body: Incoming,
        inside: Inside,
        stays: bool,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let Some(routes) = self.routes.clone() else {
            return Err(no_such_resource());
        };
        asked.lasting = true;
        // Dialects with users of their own know tokens of their own as well.
        let token = parts.extensions.get::<Arc<User>>().and_then(|_| bearer(&parts));
        let end = match token {
            Some(token) => Some(self.tokens.end(token).await),
            None => None,
        };
        parts.extensions.insert(asked.note.get_or_insert_default().clone());
        let body = match stays {
            true => match parts.extensions.remove::<Tap>() {
                Some(tap) => axum::body::Body::new(tap.on(body.stream())),
                None => body.stream(),
            },
            false => body::read(&parts, body, self.limits.body).await?.into(),
        };
        let request = Request::from_parts(parts, body);
        let reply = routes.oneshot(request).await;
        let mut reply = reply.map(|reply| reply.map(Body::routed)).map_err(Error::internal)?;
        if let Some(end) = end {
            reply.body_mut().until(end, None);
        }
        reply.body_mut().holding(inside);
        Ok(reply)
    }
}

/// Headers of which a request has one at most. A proxy in front that takes the other one of two
/// would have judged another request than the one that is served.
const SINGLE: [&str; 3] = ["host", "authorization", OWN_TOKEN];

/// The most header fields of a request. Over HTTP/1 the library keeps this bound.
const FIELDS: usize = 100;

/// Refuses heads that are ambiguous, and over HTTP/2 those that are too large. The library would
/// refuse large ones too, but its answer is lost on clients that see the stream refused. Over HTTP/1
/// they never get here.
fn check_head(parts: &Parts, limit: usize) -> Result<(), Error> {
    for name in SINGLE {
        if parts.headers.get_all(name).iter().nth(1).is_some() {
            return Err(Error::bad_request(format!("the request has more than one {name} header")));
        }
    }
    if parts.version != Version::HTTP_2 {
        return Ok(());
    }
    if let (Some(authority), Some(host)) = (parts.uri.authority(), parts.headers.get(HOST))
        && !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
    {
        return Err(Error::bad_request("the host header differs from :authority"));
    }
    if parts.headers.len() > FIELDS {
        let message = format!("the head of the request has more than {FIELDS} fields");
        return Err(Error::new(Reason::RequestHeaderFieldsTooLarge, message));
    }
    // As RFC 9113 counts, in section 6.5.2.
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if fields.sum::<usize>() + target <= limit {
        return Ok(());
    }
    let message = format!("the head of the request is too large: the limit is {limit} bytes");
    Err(Error::new(Reason::RequestHeaderFieldsTooLarge, message))
}

/// The token a request carries.
pub(crate) fn bearer(parts: &Parts) -> Option<&[u8]> {
    let header = parts.headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
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

/// Which part of an object a path names; refuses places where there is nothing.
fn part(kind: &Kind, target: &Target<'_>) -> Result<Option<Subresource>, Error> {
    let placed = match (kind.namespaced, &target.namespace, &target.name) {
        (true, None, Some(_)) | (false, Some(_), _) => false,
        (true, Some(_), _) | (_, None, None) | (false, None, Some(_)) => true,
    };
    match target.subresource {
        _ if !placed => Err(no_such_resource()),
        None => Ok(None),
        Some("status") if kind.has_status => Ok(Some(Subresource::Status)),
        Some("finalize") if kind.has_finalize => Ok(Some(Subresource::Finalize)),
        Some(_) => Err(no_such_resource()),
    }
}

fn verb(
    method: &Method,
    kind: &Kind,
    target: &Target<'_>,
    query: &Query<'_>,
) -> Result<Verb, Error> {
    let one = target.name.is_some();
    let whole = target.subresource.is_none();
    let everywhere = kind.namespaced && target.namespace.is_none();
    match (method.as_str(), one) {
        ("GET", _) if query.watch && whole => Ok(Verb::Watch),
        ("GET" | "HEAD", true) if target.subresource != Some("finalize") => Ok(Verb::Get),
        ("GET" | "HEAD", false) => Ok(Verb::List),
        ("POST", false) if !everywhere => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("PATCH", true) if target.subresource != Some("finalize") => Ok(Verb::Patch),
        ("DELETE", true) if whole => Ok(Verb::Delete),
        ("DELETE", false) if !everywhere && serves_delete_collection(kind) => {
            Ok(Verb::DeleteCollection)
        }
        _ => Err(wrong_method()),
    }
}

/// Refuses to read at a version that is not there yet.
fn check_version(resources: &Resources, kind: &Kind, query: &Query<'_>) -> Result<(), Error> {
    let Some(version) = query.resource_version.as_deref() else {
        return Ok(());
    };
    let requested = list::parse_version(version)?;
    let current = resources.objects().revision(kind.resource());
    if requested <= current {
        return Ok(());
    }
    let too_new = mainstay_store::objects::Error::TooNew { requested, current };
    Err(Error::from_store(kind, "", too_new))
}
