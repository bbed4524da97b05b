//! Sends requests to one of several servers over kept-alive connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT, WARNING};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use mainstay_clock::Backoff;
use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use serde_json::Value;

use crate::address::Address;
use crate::call::{Call, JSON};
use crate::dial::{Connection, Dialer};
use crate::error::Error;
use crate::status::Status;
use crate::stream::{Lines, Stream};

/// The pauses before a server that answers 429 without a `Retry-After` is asked again.
const BUSY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// How often a request is sent to a server that keeps answering 429.
const TRIES: u32 = 6;
/// The longest `Retry-After` that is respected.
const LONGEST_RETRY_AFTER: u64 = 30;

/// Credentials, and the servers to trust.
#[derive(Clone, Default)]
pub struct Access {
    /// For HTTPS: the certificate authorities, and a client certificate if there is one.
    pub tls: Option<Arc<ClientConfig>>,
    /// A bearer token.
    pub token: Option<String>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// The limits of a [`Client`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sent with every request.
    pub user_agent: &'static str,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long a request may take: until its whole answer has arrived, or the head of a stream.
    pub timeout: Duration,
    /// The largest answer that is read whole, in bytes.
    pub largest: usize,
    /// How many idle connections are kept.
    pub idle: usize,
    /// Called with every warning of a server.
    pub on_warning: Option<fn(&str)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            user_agent: concat!("mainstay/", env!("CARGO_PKG_VERSION")),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(15),
            largest: 64 << 20,
            idle: 32,
            on_warning: None,
        }
    }
}

/// An answer that was read whole.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub code: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A client of one or several servers of one cluster.
///
/// The server that answered last is asked first; the next one is asked when it cannot be reached. A
/// request that may have arrived is never sent to another server.
#[derive(Debug)]
pub struct Client {
    servers: Vec<Address>,
    options: Options,
    /// The server to ask first.
    first: AtomicUsize,
    access: RwLock<Access>,
    idle: Mutex<Vec<(usize, Connection)>>,
}

impl Client {
    /// A client of these servers with the default [`Options`]. It opens no connection yet.
    #[must_use]
    pub fn new(servers: Vec<Address>, access: Access) -> Self {
        Self::with_options(servers, access, Options::default())
    }

    /// A client of these servers. It opens no connection yet.
    #[must_use]
    pub fn with_options(servers: Vec<Address>, access: Access, options: Options) -> Self {
        let (first, idle) = (AtomicUsize::new(0), Mutex::default());
        Self { servers, options, first, access: RwLock::new(access), idle }
    }

    /// The credentials in use.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access.read().clone()
    }

    /// Exchanges the credentials. Requests under way end with the old ones; no open connection is
    /// used again.
    pub fn set_access(&self, access: Access) {
        *self.access.write() = access;
        self.idle.lock().clear();
    }

    /// The addresses of all servers, separated by commas, for messages.
    #[must_use]
    pub fn servers(&self) -> String {
        let names: Vec<_> = self.servers.iter().map(Address::authority).collect();
        names.join(",")
    }

    /// The address of the server that is asked first, for messages.
    #[must_use]
    pub fn server(&self) -> &str {
        let first = self.first.load(Ordering::Relaxed);
        self.servers.get(first).map(Address::url).unwrap_or_default()
    }

    /// How long a request may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Sends a request, with a JSON body if there is one, and reads the whole answer.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, Error> {
        let call = match body {
            None => Call::without_body(method, path),
            Some(body) => Call::with_body(method, path, JSON, body),
        };
        self.send(&call).await
    }

    /// Sends a request and reads the whole answer, whatever its status code is.
    ///
    /// # Errors
    /// [`Error`] if no server answered; a write may have happened all the same.
    pub async fn send(&self, call: &Call) -> Result<Answer, Error> {
        self.bounded(self.whole(call)).await
    }

    /// Sends a request and reads the answer, which must be a success. A server that answers 429 is
    /// asked again after the time that it names.
    ///
    /// # Errors
    /// [`Error::Status`] for every answer but a success, or as [`Client::send`].
    pub async fn bytes(&self, call: Call) -> Result<Bytes, Error> {
        let mut retries = BUSY.retries();
        loop {
            let answer = self.send(&call).await?;
            if answer.code.is_success() {
                return Ok(answer.body);
            }
            let status = Status::parse(answer.code, &answer.body);
            let pause = retries.failed();
            if answer.code != StatusCode::TOO_MANY_REQUESTS || retries.failures() >= TRIES {
                return Err(status.into());
            }
            tokio::time::sleep(retry_after(&answer.headers, &status).unwrap_or(pause)).await;
        }
    }

    /// [`Client::bytes`], read as JSON.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the answer is not JSON, or as [`Client::bytes`].
    pub async fn json(&self, call: Call) -> Result<Value, Error> {
        let path = call.path.clone();
        let bytes = self.bytes(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Malformed {
            path,
            why: format!("the answer is not JSON: {error}"),
        })
    }

    /// Sends a request whose answer is read as it arrives, whatever its status code is. Returns once
    /// the head of the answer is there.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn open(&self, call: &Call) -> Result<Stream, Error> {
        let (server, connection, response) = self.bounded(self.exchange(call)).await?;
        Ok(Stream {
            code: response.status(),
            server: self.servers[server].url.clone(),
            path: call.path.clone(),
            body: response.into_body(),
            lines: Lines::default(),
            _connection: connection,
        })
    }

    /// [`Client::open`] for an answer that must be a success.
    ///
    /// # Errors
    /// [`Error::Status`] for every answer but a success, or as [`Client::send`].
    pub async fn stream(&self, call: &Call) -> Result<Stream, Error> {
        let stream = self.open(call).await?;
        if stream.code.is_success() {
            return Ok(stream);
        }
        let Stream { code, server, body, _connection, .. } = stream;
        let body = self.bounded(self.collect(call, &server, body)).await?;
        Err(Status::parse(code, &body).into())
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let timeout = self.options.timeout;
        match tokio::time::timeout(timeout, work).await {
            Ok(done) => done,
            Err(_) => Err(Error::Timeout { server: self.server().to_owned(), timeout }),
        }
    }

    async fn whole(&self, call: &Call) -> Result<Answer, Error> {
        let (server, connection, response) = self.exchange(call).await?;
        let (parts, body) = response.into_parts();
        let body = self.collect(call, &self.servers[server].url, body).await?;
        let mut idle = self.idle.lock();
        if idle.len() < self.options.idle {
            idle.push((server, connection));
        }
        Ok(Answer { code: parts.status, headers: parts.headers, body })
    }

    async fn collect(&self, call: &Call, server: &str, body: Incoming) -> Result<Bytes, Error> {
        let largest = self.options.largest;
        let read = Limited::new(body, largest).collect().await;
        read.map(http_body_util::Collected::to_bytes).map_err(|error| {
            match error.downcast::<hyper::Error>() {
                Ok(source) => Error::Broken { server: server.to_owned(), source: *source },
                Err(_) => Error::Malformed {
                    path: call.path.clone(),
                    why: format!("the answer is larger than {} MiB", largest >> 20),
                },
            }
        })
    }

    /// Sends a request over an idle connection, or over a new one.
    async fn exchange(
        &self,
        call: &Call,
    ) -> Result<(usize, Connection, Response<Incoming>), Error> {
        let access = self.access();
        if let Some(answered) = self.exchange_idle(call, &access).await? {
            return Ok(answered);
        }
        let (server, mut connection) = self.dial(&access).await?;
        let request = self.request(server, call, &access)?;
        let sent = connection.sender.send_request(request).await;
        let response = sent.map_err(|source| self.broken(server, source))?;
        self.pass_warnings_on(&response);
        Ok((server, connection, response))
    }

    /// Sends a request over an idle connection; `None` if there is none that still works. A request
    /// is only sent again if the server did not take it, or if it changes nothing.
    async fn exchange_idle(
        &self,
        call: &Call,
        access: &Access,
    ) -> Result<Option<(usize, Connection, Response<Incoming>)>, Error> {
        loop {
            let Some((server, mut connection)) = self.idle.lock().pop() else { return Ok(None) };
            if connection.sender.ready().await.is_err() {
                continue;
            }
            let request = self.request(server, call, access)?;
            match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    self.pass_warnings_on(&response);
                    return Ok(Some((server, connection, response)));
                }
                Err(error) if error.message().is_some() => {}
                Err(error) if call.method == Method::GET && !error.error().is_parse() => {}
                Err(error) => return Err(self.broken(server, error.into_error())),
            }
        }
    }

    /// Opens a connection to the first server that can be reached.
    async fn dial(&self, access: &Access) -> Result<(usize, Connection), Error> {
        let first = self.first.load(Ordering::Relaxed);
        let mut last = Error::NoServer;
        for turn in 0..self.servers.len() {
            let server = (first + turn) % self.servers.len();
            let (address, tls) = (self.servers[server].clone(), access.tls.clone());
            // If the caller gives up meanwhile, its next request starts with the next server.
            self.first.store((server + 1) % self.servers.len(), Ordering::Relaxed);
            match Dialer::new(address, tls, self.options.connect_timeout).dial().await {
                Ok(connection) => {
                    self.first.store(server, Ordering::Relaxed);
                    return Ok((server, connection));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn request(
        &self,
        server: usize,
        call: &Call,
        access: &Access,
    ) -> Result<Request<Full<Bytes>>, Error> {
        let address = &self.servers[server];
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", address.prefix, call.path))
            .header(HOST, &address.authority)
            .header(ACCEPT, call.accept)
            .header(USER_AGENT, self.options.user_agent);
        if let Some(token) = &access.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = &call.body {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        let body = call.body.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        request.body(Full::new(body)).map_err(|error| Error::Malformed {
            path: call.path.clone(),
            why: format!("not a valid request: {error}"),
        })
    }

    fn broken(&self, server: usize, source: hyper::Error) -> Error {
        Error::Broken { server: self.servers[server].url.clone(), source }
    }

    fn pass_warnings_on(&self, response: &Response<Incoming>) {
        let Some(on_warning) = self.options.on_warning else { return };
        for warning in response.headers().get_all(WARNING) {
            if let Some(text) = warning.to_str().ok().and_then(warning_text) {
                on_warning(&text);
            }
        }
    }
}

/// The text of `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(' ')?.1;
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(inner.replace("\\\"", "\"").replace("\\\\", "\\"))
}

/// How long a busy server asks its clients to wait.
fn retry_after(headers: &HeaderMap, status: &Status) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let details = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    let seconds: u64 = header.or(details)?;
    Some(Duration::from_secs(seconds.clamp(1, LONGEST_RETRY_AFTER)))
}

#[cfg(test)]
mod tests;
