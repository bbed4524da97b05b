//! HTTPS to one of several servers: requests over kept-alive connections, and streams of lines.
//!
//! The server that answered last is asked first; when it cannot be reached, the next one is. Who we
//! are ([`Access`]) can be exchanged while requests go on: a renewed certificate needs no restart.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long a connection may take to open, and an answer to come.
const PATIENCE: Duration = Duration::from_secs(15);
/// The largest answer that is read whole.
const LARGEST: usize = 64 << 20;
/// How many connections are kept for later.
const KEPT: usize = 32;

type Sender = http1::SendRequest<Full<Bytes>>;

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not an address of a server, as https://host:7443")]
pub struct AddressError {
    address: String,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    authority: String,
    secure: bool,
}

impl Address {
    /// Reads `https://HOST:PORT` (or `http://`, for a loopback address).
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { address: text.to_owned() };
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().ok_or_else(wrong)?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: uri.authority().map(ToString::to_string).unwrap_or_default(),
            secure,
        })
    }
}

/// Who we are and whom we trust.
#[derive(Clone, Default)]
pub struct Access {
    /// For servers with HTTPS: the authorities, and our certificate if we have one.
    pub tls: Option<Arc<ClientConfig>>,
    /// A token, for as long as there is no certificate.
    pub token: Option<String>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// Its code.
    pub code: StatusCode,
    /// All it said.
    pub body: Bytes,
}

/// Why no server answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// A way to several servers.
#[derive(Debug)]
pub struct Client {
    servers: Vec<Address>,
    first: AtomicUsize,
    access: RwLock<Access>,
    idle: Mutex<Vec<(usize, Sender)>>,
}

impl Client {
    /// A way to these servers; nothing is opened yet.
    #[must_use]
    pub fn new(servers: Vec<Address>, access: Access) -> Self {
        let (first, idle) = (AtomicUsize::new(0), Mutex::default());
        Self { servers, first, access: RwLock::new(access), idle }
    }

    /// Who we are at the moment.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Exchanges who we are; open connections are not used again.
    pub fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The servers, for messages.
    #[must_use]
    pub fn servers(&self) -> String {
        let names: Vec<_> = self.servers.iter().map(|server| server.authority.as_str()).collect();
        names.join(",")
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// [`Failure`] if no server answered; a write may have happened all the same.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, Failure> {
        let work = async {
            let (server, sender, response) = self.send(method, path, body).await?;
            let code = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| Failure(format!("the answer broke off: {error}")))?;
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < KEPT {
                idle.push((server, sender));
            }
            Ok(Answer { code, body: body.to_bytes() })
        };
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure(format!("no answer within {}s", PATIENCE.as_secs()))),
        }
    }

    /// Sends a request whose answer is a stream of lines.
    ///
    /// # Errors
    /// [`Failure`] if no server answered.
    pub(super) async fn stream(&self, path: &str) -> Result<Lines, Failure> {
        let sent = tokio::time::timeout(PATIENCE, self.send(Method::GET, path, None)).await;
        let (_, sender, response) =
            sent.map_err(|_| Failure(format!("no answer within {}s", PATIENCE.as_secs())))??;
        let code = response.status();
        Ok(Lines { code, body: response.into_body(), buffer: Vec::new(), _sender: sender })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(usize, Sender, Response<Incoming>), Failure> {
        let access = self.access();
        let body = body.map(Bytes::from);
        // A kept connection may have been closed meanwhile; only what it did not take is sent anew.
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((server, mut sender)) = kept else { break };
            if sender.ready().await.is_err() {
                continue;
            }
            let request = self.request(server, &method, path, body.clone(), &access)?;
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((server, sender, response)),
                Err(error) if error.message().is_some() || method == Method::GET => {}
                Err(error) => {
                    return Err(Failure(format!("the connection broke: {}", error.error())));
                }
            }
        }
        let first = self.first.load(Ordering::Relaxed);
        let mut last = Failure("there is no server".to_owned());
        for turn in 0..self.servers.len() {
            let server = (first + turn) % self.servers.len();
            match self.dial(server, &access).await {
                Ok(mut sender) => {
                    self.first.store(server, Ordering::Relaxed);
                    let request = self.request(server, &method, path, body, &access)?;
                    let response = sender.send_request(request).await;
                    let response = response
                        .map_err(|error| Failure(format!("the connection broke: {error}")))?;
                    return Ok((server, sender, response));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn request(
        &self,
        server: usize,
        method: &Method,
        path: &str,
        body: Option<Bytes>,
        access: &Access,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(HOST, &self.servers[server].authority)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("mainstay-agent/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &access.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(body.unwrap_or_default());
        request.body(body).map_err(|error| Failure(format!("{path} cannot be asked for: {error}")))
    }

    async fn dial(&self, server: usize, access: &Access) -> Result<Sender, Failure> {
        let Address { host, port, authority, secure } = &self.servers[server];
        let failed = |error: &dyn std::fmt::Display| {
            Failure(format!("{authority} cannot be reached: {error}"))
        };
        let open = async {
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            let stream = stream.map_err(|error| failed(&error))?;
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            if !secure {
                return shake(stream).await;
            }
            let tls = access.tls.clone();
            let tls = tls.ok_or_else(|| failed(&"no certificate authority was given"))?;
            let name = ServerName::try_from(host.clone()).map_err(|error| failed(&error))?;
            let stream = TlsConnector::from(tls).connect(name, stream).await;
            shake(stream.map_err(|error| failed(&error))?).await
        };
        match tokio::time::timeout(PATIENCE, open).await {
            Ok(opened) => opened,
            Err(_) => Err(failed(&"it took too long")),
        }
    }
}

/// Speaks HTTP/1.1 over a stream. The connection ends with its sender.
async fn shake<S>(stream: S) -> Result<Sender, Failure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let opened = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|error| Failure(format!("no HTTP: {error}")))?;
    // It ends when its sender is dropped; an error is also that of the request under way.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// A stream of lines.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) code: StatusCode,
    body: Incoming,
    buffer: Vec<u8>,
    _sender: Sender,
}

impl Lines {
    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// [`Failure`] if the stream broke.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Failure(format!("the watch broke: {error}"))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = Address::parse("https://[::1]:7443/").unwrap();
        assert_eq!((address.host.as_str(), address.port, address.secure), ("::1", 7443, true));
        assert_eq!(Address::parse("http://localhost").unwrap().port, 80);
        for wrong in ["", "host:7443", "ftp://a", "https://"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
