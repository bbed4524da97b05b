//! Opens connections: TCP, then TLS unless the address is plain HTTP, then HTTP/1.1.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::{Address, Error};

/// A byte stream to a server, encrypted or not.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// An open HTTP/1.1 connection. It closes when this is dropped.
#[derive(Debug)]
pub struct Connection {
    pub(crate) sender: http1::SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

/// Opens connections to one server.
#[derive(Clone)]
pub struct Dialer {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    timeout: Duration,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Dialer {
    /// Opens connections to `address` within `timeout` each. HTTPS needs `tls`.
    #[must_use]
    pub fn new(address: Address, tls: Option<Arc<ClientConfig>>, timeout: Duration) -> Self {
        Self { address, tls, timeout }
    }

    /// Where the server is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A new HTTP/1.1 connection.
    ///
    /// # Errors
    /// [`Error`] if the server cannot be reached or is not trusted.
    pub async fn dial(&self) -> Result<Connection, Error> {
        let io = TokioIo::new(self.open().await?);
        let opened = http1::Builder::new().handshake(io).await;
        let (sender, connection) =
            opened.map_err(|source| Error::Broken { server: self.address.url.clone(), source })?;
        // An error of the connection is reported by the request that is under way.
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender, _task: AbortOnDropHandle::new(task) })
    }

    /// A new byte stream to the server.
    ///
    /// # Errors
    /// [`Error`] if the server cannot be reached or is not trusted.
    pub async fn open(&self) -> Result<Box<dyn Transport>, Error> {
        let server = || self.address.url.clone();
        match tokio::time::timeout(self.timeout, self.open_unbounded()).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(Error::Connect { server: server(), source: io::ErrorKind::TimedOut.into() })
            }
        }
    }

    async fn open_unbounded(&self) -> Result<Box<dyn Transport>, Error> {
        let Address { host, port, secure, .. } = &self.address;
        let server = || self.address.url.clone();
        let unreachable = |source| Error::Connect { server: server(), source };
        let untrusted = |source| Error::Handshake { server: server(), source };
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        if !secure {
            return Ok(Box::new(stream));
        }
        let tls = self
            .tls
            .clone()
            .ok_or_else(|| untrusted(io::Error::other("no certificate authority is configured")))?;
        let name = ServerName::try_from(self.address.certified_name().to_owned())
            .map_err(|error| untrusted(io::Error::other(error)))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(untrusted)?;
        Ok(Box::new(stream))
    }
}
