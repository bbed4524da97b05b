//! Opening connections: TCP, then TLS unless the server is plain HTTP, then HTTP/1.1.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::Error;
use super::kubeconfig::{self, Target};
use super::tls;

pub(crate) type Sender = http1::SendRequest<Full<Bytes>>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Knows how to reach one server. The connections it opens live as long as it does.
#[derive(Debug)]
pub(crate) struct Dialer {
    server: String,
    authority: String,
    prefix: String,
    host: String,
    port: u16,
    tls: Option<Secure>,
    connections: Mutex<JoinSet<()>>,
}

struct Secure {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secure").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A byte stream to a server, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Dialer {
    pub(crate) fn new(target: &Target) -> Result<Self, Error> {
        let uri = &target.server;
        let server = uri.to_string().trim_end_matches('/').to_owned();
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let encrypted = uri.scheme_str() == Some("https");
        let tls = if encrypted {
            let name = target.server_name.clone().unwrap_or_else(|| host.clone());
            let name = ServerName::try_from(name)
                .map_err(|_| kubeconfig::Error::Address { server: server.clone() })?;
            let config = tls::config(&target.trust, target.identity.as_ref())?;
            let connector = TlsConnector::from(Arc::new(config));
            Some(Secure { connector, name })
        } else {
            None
        };
        Ok(Self {
            authority: uri.authority().map(ToString::to_string).unwrap_or_default(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            port: uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
            server,
            host,
            tls,
            connections: Mutex::new(JoinSet::new()),
        })
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A fresh connection, ready for requests.
    pub(crate) async fn dial(&self) -> Result<Sender, Error> {
        let io = TokioIo::new(self.open().await?);
        let (sender, connection) =
            http1::Builder::new().handshake(io).await.map_err(Error::Broken)?;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // An error of the connection is also the error of the request that was under way.
            drop(connection.await);
        });
        Ok(sender)
    }

    /// A fresh byte stream to the server.
    pub(crate) async fn open(&self) -> Result<Box<dyn Stream>, Error> {
        let failed = |source| Error::Connect { server: self.server.clone(), source };
        let opening = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match &self.tls {
                None => Box::new(stream),
                Some(Secure { connector, name }) => {
                    Box::new(connector.connect(name.clone(), stream).await?)
                }
            };
            Ok(stream)
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(opened) => opened.map_err(failed),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }
}
