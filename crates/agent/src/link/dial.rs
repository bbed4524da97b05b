//! Opens a connection to a server: TCP, TLS with the client certificate, HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper_util::rt::TokioIo;
use mainstay_client::Access;
use rustls::AlertDescription;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::Ended;

/// How long a connection may take to open.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often an idle connection is tested, and how long it has to answer.
const PULSE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));

/// How much either side may send before it is read. A node's messages are small.
const WINDOW: u32 = 256 << 10;

/// Adds the bearer token to every request.
#[derive(Clone, Debug)]
pub(super) struct Bearer(Option<HeaderValue>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0
            && let Ok(token) = tonic::metadata::MetadataValue::try_from(token.as_bytes())
        {
            request.metadata_mut().insert("authorization", token);
        }
        Ok(request)
    }
}

/// Opens a connection to a server. `revoked` is set when the server refuses the certificate: with TLS
/// 1.3 it does so after the handshake, and the HTTP library then reports a closed connection only.
///
/// # Errors
/// [`Ended::Unreachable`]; [`Ended::Revoked`] if the server refuses the certificate for that.
pub(super) async fn dial(
    server: &str,
    access: Access,
    revoked: &Arc<AtomicBool>,
) -> Result<InterceptedService<Channel, Bearer>, Ended> {
    let unreachable = |why: String| Ended::Unreachable(why);
    let uri: Uri = server.parse().map_err(|error| unreachable(format!("{server:?}: {error}")))?;
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    // TLS is done by the connector, so the channel itself uses plain HTTP/2.
    let plain = format!("http://{authority}").parse::<Uri>();
    let plain = plain.map_err(|_| unreachable(format!("{server:?}")))?;
    let endpoint = Endpoint::from(plain)
        .connect_timeout(PATIENCE)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW)
        .http2_keep_alive_interval(PULSE.0)
        .keep_alive_timeout(PULSE.1);
    let tls = access.tls.map(|tls| {
        let mut tls = rustls::ClientConfig::clone(&tls);
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(tls)
    });
    let revoked = revoked.clone();
    let connector =
        tower::service_fn(move |_: Uri| connect(uri.clone(), tls.clone(), revoked.clone()));
    let channel = tokio::time::timeout(PATIENCE, endpoint.connect_with_connector(connector)).await;
    let channel = channel.map_err(|_| unreachable(format!("no connection within {PATIENCE:?}")))?;
    let channel = channel.map_err(|error| match is_revoked(&error) {
        true => Ended::Revoked,
        false => unreachable(chain(&error)),
    })?;
    let token = access.token.map(|token| format!("Bearer {token}"));
    let token = token.and_then(|token| HeaderValue::try_from(token).ok());
    Ok(InterceptedService::new(channel, Bearer(token)))
}

/// Whether a server ended the handshake because the certificate was revoked.
pub(super) fn is_revoked(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut tls = causes.filter_map(|cause| match cause.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref()?.downcast_ref::<rustls::Error>(),
        None => cause.downcast_ref::<rustls::Error>(),
    });
    let revoked = AlertDescription::CertificateRevoked;
    tls.any(|error| *error == rustls::Error::AlertReceived(revoked))
}

/// An error and its causes in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn connect(
    uri: Uri,
    tls: Option<Arc<rustls::ClientConfig>>,
    revoked: Arc<AtomicBool>,
) -> std::io::Result<TokioIo<Box<dyn Line>>> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let (true, Some(tls)) = (secure, tls) else {
        return Ok(TokioIo::new(Box::new(stream)));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    Ok(TokioIo::new(Box::new(Watched { stream, revoked })))
}

/// A TLS stream that notes whether the server refused the certificate.
struct Watched<S> {
    stream: S,
    revoked: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &read
            && is_revoked(error)
        {
            self.revoked.store(true, Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A TCP or TLS stream.
trait Line: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Line for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_certificate_is_told_from_other_failures() {
        let alert = |alert| std::io::Error::other(rustls::Error::AlertReceived(alert));
        assert!(is_revoked(&alert(AlertDescription::CertificateRevoked)));
        assert!(!is_revoked(&alert(AlertDescription::CertificateExpired)));
        assert!(!is_revoked(&std::io::Error::other("CertificateRevoked")));
        let wrapped = Status::from_error(Box::new(alert(AlertDescription::CertificateRevoked)));
        assert!(matches!(Ended::from(wrapped), Ended::Revoked));
        assert!(matches!(Ended::from(Status::unauthenticated("x")), Ended::Revoked));
        assert!(matches!(Ended::from(Status::unavailable("x")), Ended::Server(_)));
    }

    /// A stream of which every read fails with an alert.
    struct Alerting(AlertDescription);

    impl AsyncRead for Alerting {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other(rustls::Error::AlertReceived(self.0))))
        }
    }

    #[tokio::test]
    async fn an_alert_after_the_handshake_is_noted() {
        for (alert, expected) in
            [(AlertDescription::CertificateRevoked, true), (AlertDescription::InternalError, false)]
        {
            let revoked = Arc::new(AtomicBool::new(false));
            let mut stream = Watched { stream: Alerting(alert), revoked: revoked.clone() };
            let read = tokio::io::AsyncReadExt::read_u8(&mut stream).await;
            assert!(read.is_err());
            assert_eq!(revoked.load(Relaxed), expected, "{alert:?}");
        }
    }
}
