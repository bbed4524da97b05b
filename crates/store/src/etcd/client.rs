//! A small etcd client: one connection at a time, moved to the next endpoint when it fails.
//!
//! A *read* is repeated on another endpoint until it is answered or its deadline passes. A *write*
//! is not: when a connection fails after the request was sent, whether etcd did it is unknown, and
//! repeating it could do it twice. The caller gets [`Error::Unknown`] and finds out by reading.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use mainstay_clock::Backoff;
use parking_lot::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::proto::{AuthenticateRequest, AuthenticateResponse, WatchRequest, WatchResponse};

/// How long one endpoint may take to answer before another is tried.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often a request is sent at most.
const ATTEMPTS: u32 = 6;
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// How long a read that a client waits for may take, with all its attempts.
const READ_DEADLINE: Duration = Duration::from_secs(4);

/// The address of etcd, and the login: `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX]`,
/// with `?ca=FILE&cert=FILE&key=FILE` for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port` of each member.
    pub endpoints: Vec<String>,
    /// User and password, if etcd asks for them.
    pub login: Option<(String, String)>,
    /// All our keys begin with this.
    pub prefix: String,
    /// TLS, if it is to be used.
    pub tls: Option<Tls>,
}

/// The files TLS needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority that signed the members' certificates.
    pub ca: Option<PathBuf>,
    /// Our own certificate.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Why an address, or a file it names, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It names no host.
    #[error("\"{0}\" names no host: write etcd://HOST:2379[,HOST:2379…]")]
    NoHost(String),
    /// It has an unknown option.
    #[error("unknown option \"{0}\" in the store's URL: ca, cert and key are known")]
    UnknownOption(String),
    /// A certificate without its key, or a key without its certificate.
    #[error("give both cert= and key=, or neither")]
    HalfIdentity,
    /// It is not an address at all.
    #[error("\"{0}\" is not a host and port")]
    Endpoint(String, #[source] tonic::transport::Error),
    /// A file could not be read.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
}

impl Address {
    /// Reads what follows `etcd://`.
    ///
    /// # Errors
    /// [`AddressError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                (Some((user.to_owned(), password.to_owned())), rest)
            }
            None => (None, rest),
        };
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<_> =
            hosts.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
        if endpoints.is_empty() {
            return Err(AddressError::NoHost(text.to_owned()));
        }
        let prefix = if prefix.is_empty() { "mainstay" } else { prefix.trim_end_matches('/') };
        Ok(Self { endpoints, login, prefix: prefix.to_owned(), tls: Tls::parse(query)? })
    }
}

impl Tls {
    fn parse(query: &str) -> Result<Option<Self>, AddressError> {
        let mut tls = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let field = match name {
                "ca" => &mut tls.ca,
                "cert" => &mut tls.cert,
                "key" => &mut tls.key,
                other => return Err(AddressError::UnknownOption(other.to_owned())),
            };
            *field = Some(value.into());
        }
        if tls.cert.is_some() != tls.key.is_some() {
            return Err(AddressError::HalfIdentity);
        }
        Ok((tls != Self::default()).then_some(tls))
    }

    fn config(&self) -> Result<ClientTlsConfig, AddressError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| AddressError::File(path.clone(), source))
        };
        let mut config = ClientTlsConfig::new();
        if let Some(ca) = &self.ca {
            config = config.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        Ok(config)
    }
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Error {
    /// The request was not sent.
    #[error("no etcd endpoint can be reached ({0})")]
    Unreachable(String),
    /// etcd refused; it did nothing.
    #[error("etcd refused: {0}")]
    Refused(String),
    /// That history is compacted away.
    #[error("etcd has compacted that revision away")]
    Compacted,
    /// The request is larger than etcd takes.
    #[error("the request is too large for etcd")]
    TooLarge,
    /// The connection failed after the request was sent: it may or may not have been done.
    #[error("the connection to etcd was lost, and whether the write was done is unknown: {0}")]
    Unknown(String),
    /// A read was not answered.
    #[error("reading from etcd failed: {0}")]
    Unread(String),
}

#[derive(Debug)]
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    login: Option<(String, String)>,
    /// Which endpoint is in use.
    current: AtomicUsize,
    session: Mutex<Option<Session>>,
}

/// A live connection, and the token it was given.
#[derive(Clone, Debug)]
struct Session {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    endpoint: usize,
}

impl Client {
    pub(super) fn new(address: &Address) -> Result<Self, AddressError> {
        let tls = address.tls.as_ref().map(Tls::config).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoints = address.endpoints.iter().map(|host| {
            let bad = |source| AddressError::Endpoint(host.clone(), source);
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(bad)?;
            let endpoint = endpoint
                .connect_timeout(TIMEOUT)
                .http2_keep_alive_interval(Duration::from_secs(2))
                .keep_alive_timeout(Duration::from_secs(3))
                .keep_alive_while_idle(true)
                .initial_stream_window_size(1 << 20)
                .initial_connection_window_size(1 << 21)
                .tcp_nodelay(true);
            match &tls {
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(bad),
                None => Ok(endpoint),
            }
        });
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        let login = address.login.clone();
        Ok(Self { endpoints, login, current: AtomicUsize::new(0), session: Mutex::new(None) })
    }

    /// Sends a request that may be repeated, for a client that waits: within [`READ_DEADLINE`].
    pub(super) async fn read<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Error>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let late = || Error::Unread(format!("no answer within {READ_DEADLINE:?}"));
        let read = tokio::time::timeout(READ_DEADLINE, self.read_patiently(path, message)).await;
        read.unwrap_or_else(|_| Err(late()))
    }

    /// Sends a request that may be repeated, until an endpoint answers or all attempts are used up.
    pub(super) async fn read_patiently<Q, A>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<A, Error>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut last = Error::Unreachable("not tried".into());
        for attempt in 0..ATTEMPTS {
            pause(attempt).await;
            match self.call(path, message.clone()).await {
                Err(Error::Unknown(reason)) => last = Error::Unread(reason),
                Err(error @ Error::Unreachable(_)) => last = error,
                outcome => return outcome,
            }
        }
        Err(last)
    }

    /// Sends a request once; another endpoint is tried only if the request was not sent.
    pub(super) async fn write<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Error>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut last = Error::Unreachable("not tried".into());
        for attempt in 0..ATTEMPTS {
            pause(attempt).await;
            match self.call(path, message.clone()).await {
                Err(error @ Error::Unreachable(_)) => last = error,
                outcome => return outcome,
            }
        }
        Err(last)
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let session = self.session().await?;
        let exchange = async {
            let mut grpc = grpc(&session);
            grpc.ready().await.map_err(|error| Error::Unreachable(error.to_string()))?;
            let request = session.sign(Request::new(message));
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| judge(&status))
        };
        let lost = || Error::Unknown("no answer in time".into());
        let outcome = tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(lost()));
        if let Err(Error::Unreachable(_) | Error::Unknown(_)) = &outcome {
            self.abandon(&session);
        }
        outcome
    }

    /// Opens a watch on an endpoint that is in touch with its leader.
    pub(super) async fn watch(
        &self,
        create: WatchRequest,
    ) -> Result<Streaming<WatchResponse>, Error> {
        let session = self.session().await?;
        let opening = async {
            let mut grpc = grpc(&session);
            grpc.ready().await.map_err(|error| Error::Unreachable(error.to_string()))?;
            // The sending half stays open for as long as the watch is wanted.
            let requests = futures_util::StreamExt::chain(
                futures_util::stream::iter([create]),
                futures_util::stream::pending(),
            );
            let mut request = session.sign(Request::new(requests));
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let answer = grpc.streaming(request, path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| judge(&status))
        };
        let lost = || Error::Unknown("no answer in time".into());
        let outcome = tokio::time::timeout(TIMEOUT, opening).await.unwrap_or_else(|_| Err(lost()));
        if outcome.is_err() {
            self.abandon(&session);
        }
        outcome
    }

    /// Leaves the present endpoint for the next one: it answers, but does not keep up.
    pub(super) fn move_on(&self) {
        let session = self.lock().clone();
        if let Some(session) = session {
            self.abandon(&session);
        }
    }

    async fn session(&self) -> Result<Session, Error> {
        if let Some(session) = &*self.lock() {
            return Ok(session.clone());
        }
        let endpoint = self.current.load(Ordering::Relaxed) % self.endpoints.len();
        let connected = self.connect(endpoint).await;
        match connected {
            Ok(session) => {
                *self.lock() = Some(session.clone());
                Ok(session)
            }
            Err(error) => {
                self.current.store(endpoint + 1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    async fn connect(&self, endpoint: usize) -> Result<Session, Error> {
        let unreachable = |error: tonic::transport::Error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            Error::Unreachable(source.unwrap_or_else(|| error.to_string()))
        };
        let channel = self.endpoints[endpoint].connect().await.map_err(unreachable)?;
        let mut session = Session { channel, token: None, endpoint };
        let Some((name, password)) = self.login.clone() else { return Ok(session) };
        let mut grpc = grpc(&session);
        grpc.ready().await.map_err(unreachable)?;
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
        let request = Request::new(AuthenticateRequest { name, password });
        let asked = tokio::time::timeout(TIMEOUT, grpc.unary(request, path, codec)).await;
        let slow = |_| Error::Unreachable("no answer to the login".into());
        let answer = asked.map_err(slow)?.map_err(|status| judge(&status))?;
        session.token = answer.into_inner().token.parse().ok();
        Ok(session)
    }

    /// Gives up a connection, unless it was replaced already.
    fn abandon(&self, session: &Session) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.endpoint == session.endpoint) {
            *current = None;
            self.current.store(session.endpoint + 1, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Option<Session>> {
        self.session.lock()
    }
}

impl Session {
    fn sign<T>(&self, mut request: Request<T>) -> Request<T> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

fn grpc(session: &Session) -> tonic::client::Grpc<Channel> {
    const LARGEST: usize = 64 << 20;
    tonic::client::Grpc::new(session.channel.clone())
        .max_decoding_message_size(LARGEST)
        .max_encoding_message_size(LARGEST)
}

/// Gives a member that is starting or electing some time before the next attempt.
async fn pause(failures: u32) {
    if failures > 0 {
        tokio::time::sleep(RETRY.after(failures)).await;
    }
}

/// Whether the request of a failed call was done, as far as its status tells.
fn judge(status: &Status) -> Error {
    let message = status.message();
    match status.code() {
        Code::OutOfRange if message.contains("compacted") => Error::Compacted,
        Code::InvalidArgument if message.contains("too large") => Error::TooLarge,
        Code::ResourceExhausted if message.contains("larger than max") => Error::TooLarge,
        // The token ran out, or the cluster forgot it: a new session gets a new one.
        Code::Unauthenticated => Error::Unreachable(message.to_owned()),
        // etcd returns these before it proposes the request.
        Code::Unavailable if message.contains("no leader") => {
            Error::Unreachable(message.to_owned())
        }
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal
        | Code::Aborted => Error::Unknown(message.to_owned()),
        _ => Error::Refused(message.to_owned()),
    }
}
