//! The session service: a tiny HTTP interface on a Unix socket, one for each instance that wants
//! one. A process reads its session there, and reports when it is open and closed, which
//! clients are connected, and pings. docs/sessions-service.md describes it for users.
//!
//! A process may ask at any time and again: every answer is the newest state, and `after` waits for
//! a newer one. Bodies, connections and waits are bounded.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_sessions::protocol::{Client, SessionPhase};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::spawn::User;
use crate::instances::Id;
use crate::private;

/// The longest a question may wait for something new.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The largest body.
const LARGEST: usize = 1 << 20;
/// The most clients of one session.
const MOST_CLIENTS: usize = 10_000;
/// Connections at once to one instance's socket.
const CONNECTIONS: usize = 16;

/// The response to a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    /// Grows with every change: for `after`.
    pub(super) number: u64,
    pub(super) state: Wanted,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) grace_seconds: Option<u32>,
}

/// The wanted state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Wanted {
    #[default]
    None,
    Open,
    Closing,
}

/// The service of one instance.
#[derive(Debug)]
pub(super) struct Service {
    seen: watch::Sender<Seen>,
    /// The last ping, by the clock's elapsed time.
    last: Mutex<Duration>,
}

impl Service {
    pub(super) fn new(number: u64, now: Duration) -> Arc<Self> {
        let seen = watch::Sender::new(Seen { number, ..Seen::default() });
        Arc::new(Self { seen, last: Mutex::new(now) })
    }

    /// Publishes a new wanted state for the process, and returns its number. A new session counts
    /// as a ping.
    pub(super) fn show(&self, seen: Seen, now: Duration) {
        if seen.state == Wanted::Open {
            self.alive(now);
        }
        self.seen.send_replace(seen);
    }

    fn alive(&self, now: Duration) {
        *self.last.lock() = now;
    }

    fn last(&self) -> Duration {
        *self.last.lock()
    }
}

/// Binds the socket of an instance, in place of one that an earlier agent left.
pub(super) fn bind(place: &Path, user: Option<User>) -> io::Result<UnixListener> {
    match std::fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(place)?;
    // Write permission on a socket is permission to connect.
    std::fs::set_permissions(place, Permissions::from_mode(private::FILE))?;
    if let Some(user) = user {
        std::os::unix::fs::chown(place, Some(user.uid), Some(user.gid))?;
    }
    Ok(listener)
}

/// Serves an instance until it is gone.
pub(super) async fn serve(
    shared: Arc<Shared>,
    id: Id,
    service: Arc<Service>,
    listener: UnixListener,
    gone: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepting = async {
            let room = room.clone().acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|(stream, _)| (stream, room))
        };
        let accepted = tokio::select! {
            () = gone.cancelled() => return,
            () = shared.stop.cancelled() => return,
            accepted = accepting => accepted,
        };
        let (stream, room) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(instance = %id, %error, "the session service failed to accept a connection; retrying");
                shared.clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (shared, id, service) = (shared.clone(), id.clone(), service.clone());
        let (stop, gone) = (shared.stop.clone(), gone.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            let answering = service_fn(|request| answer(&shared, &id, &service, request));
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new());
            tokio::select! {
                // An error means that the process closed its connection.
                _ = builder.serve_connection(TokioIo::new(stream), answering) => {}
                () = gone.cancelled() => {}
                () = stop.cancelled() => {}
            }
            drop(room);
        });
    }
}

/// Detects an instance with a session that missed its pings for too long.
pub(super) async fn listen_for_life(
    shared: Arc<Shared>,
    id: Id,
    service: Arc<Service>,
    gone: CancellationToken,
) {
    let limit = shared.options.ping * (super::MISSED + 1);
    let mut seen = service.seen.subscribe();
    let watching = async {
        loop {
            let now = seen.borrow_and_update().clone();
            let silence = async {
                loop {
                    let since = shared.clock.elapsed().saturating_sub(service.last());
                    match limit.checked_sub(since) {
                        Some(rest) if !rest.is_zero() => shared.clock.sleep(rest).await,
                        _ => return,
                    }
                }
            };
            let changed = if now.state == Wanted::Open {
                tokio::select! {
                    changed = seen.changed() => changed,
                    () = silence => {
                        shared.silent(&id, now.session.as_deref().unwrap_or_default());
                        seen.changed().await
                    }
                }
            } else {
                seen.changed().await
            };
            if changed.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = gone.cancelled() => {}
        () = shared.stop.cancelled() => {}
    }
}

fn said(status: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

fn wrong(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    said(status, serde_json::json!({ "message": message }).to_string().into_bytes())
}

/// Done, or why it cannot be.
fn done(was: bool, otherwise: &str) -> Response<Full<Bytes>> {
    if was {
        said(StatusCode::NO_CONTENT, Vec::new())
    } else {
        wrong(StatusCode::CONFLICT, otherwise)
    }
}

async fn answer(
    shared: &Shared,
    id: &Id,
    service: &Service,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    service.alive(shared.clock.elapsed());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    Ok(match (method, path.as_str()) {
        (Method::GET, "/v1/session") => look(shared, service, request.uri().query()).await,
        (Method::POST, "/v1/session/open") => {
            done(shared.said_open(id), "this instance has no session that waits to be opened")
        }
        (Method::POST, "/v1/session/closed") => {
            done(shared.said_closed(id), "this instance has no session")
        }
        (Method::PUT, "/v1/clients") => match clients(request.into_body()).await {
            Ok(clients) => done(shared.said_clients(id, clients), "this instance has no session"),
            Err(message) => wrong(StatusCode::BAD_REQUEST, &message),
        },
        (Method::POST, "/v1/health") => said(StatusCode::NO_CONTENT, Vec::new()),
        (
            _,
            "/v1/session" | "/v1/session/open" | "/v1/session/closed" | "/v1/clients"
            | "/v1/health",
        ) => wrong(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method"),
        _ => wrong(StatusCode::NOT_FOUND, "there is no such path; see /v1/session"),
    })
}

/// The state, once it has another number than `after`.
async fn look(shared: &Shared, service: &Service, query: Option<&str>) -> Response<Full<Bytes>> {
    let after = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("after="));
    let after = match after.map(str::parse::<u64>) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => return wrong(StatusCode::BAD_REQUEST, "after must be a number"),
    };
    let mut seen = service.seen.subscribe();
    if let Some(after) = after {
        tokio::select! {
            // It only ends early when the instance is gone, and then this is not read.
            _ = seen.wait_for(|seen| seen.number != after) => {}
            () = shared.clock.sleep(LONGEST_WAIT) => {}
        }
        // A process that waits here is alive: the wait counts as a ping.
        service.alive(shared.clock.elapsed());
    }
    let now = seen.borrow().clone();
    said(StatusCode::OK, serde_json::to_vec(&now).unwrap_or_default())
}

/// The ids of the connected clients, from a body.
async fn clients(body: Incoming) -> Result<Vec<String>, String> {
    let body = Limited::new(body, LARGEST).collect().await;
    let bytes = body.map_err(|error| format!("the body cannot be read: {error}"))?.to_bytes();
    let ids: Vec<String> = serde_json::from_slice(&bytes)
        .map_err(|error| format!("the body must be a JSON list of ids: {error}"))?;
    if ids.len() > MOST_CLIENTS {
        return Err(format!("{} clients are more than the {MOST_CLIENTS} there may be", ids.len()));
    }
    Ok(ids)
}

/// The clients by these ids; those known keep the time they joined.
pub(super) fn joined(ids: Vec<String>, known: &[Client], now_micros: i64) -> Vec<Client> {
    let mut unique: Vec<Client> = Vec::with_capacity(ids.len());
    let before: std::collections::HashMap<_, _> =
        known.iter().map(|client| (client.id.as_str(), client.joined_micros)).collect();
    let mut told = std::collections::HashSet::new();
    for id in ids {
        if told.insert(id.clone()) {
            let joined_micros = before.get(id.as_str()).copied().unwrap_or(now_micros);
            unique.push(Client { id, joined_micros });
        }
    }
    unique
}

/// The view of a session that a process gets in that phase.
pub(super) fn wanted(phase: Option<SessionPhase>) -> Wanted {
    match phase {
        None | Some(SessionPhase::Closed) => Wanted::None,
        Some(SessionPhase::Closing) => Wanted::Closing,
        Some(SessionPhase::Initializing | SessionPhase::Open | SessionPhase::NoHeartbeat) => {
            Wanted::Open
        }
    }
}

/// Where an instance's socket is: short, since such paths may not be long.
pub(super) fn place(folder: &Path, id: &Id) -> PathBuf {
    folder.join(format!("{}.sock", super::short_hash(&id.to_string())))
}
