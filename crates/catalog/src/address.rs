//! Parses PostgreSQL addresses (`postgres://…` or `host=…`, as libpq reads them) and makes TLS
//! connections.
//!
//! `sslmode` is one of `disable`; `prefer` (the default: TLS if the server offers it, with any
//! certificate); `require` (TLS with any certificate); `verify-ca` (TLS with a certificate of a
//! trusted authority); `verify-full` (the certificate must also be for the requested host name).
//! Authorities come from the file `sslrootcert`, else from the machine. With `sslrootcert`,
//! `require` verifies like `verify-ca`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Client, Connection, Socket};

use crate::error::{Error, Result};

/// How a server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Any certificate is accepted.
    Unverified,
    /// A trusted authority must have signed it.
    Authority,
    /// It must also be for the requested host name.
    AuthorityAndName,
}

/// The parsed address of a PostgreSQL database.
#[derive(Clone)]
pub(crate) struct Address {
    config: tokio_postgres::Config,
    tls: Tls,
}

impl Address {
    /// Whether an address is one of PostgreSQL.
    pub(crate) fn is_postgres(text: &str) -> bool {
        ["postgres://", "postgresql://", "host="].iter().any(|start| text.starts_with(start))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let SplitAddress { rest, mode, authorities } = SplitAddress::read(text);
        let wrong = |why: String| Error::Catalog { address: masked(text), why };
        let mut config: tokio_postgres::Config = rest
            .parse()
            .map_err(|error: tokio_postgres::Error| wrong(crate::postgres::with_cause(&error)))?;
        let (mode, trust) = match (mode.as_deref().unwrap_or("prefer"), &authorities) {
            ("disable", _) => (SslMode::Disable, Trust::Unverified),
            ("allow" | "prefer", _) => (SslMode::Prefer, Trust::Unverified),
            ("require", None) => (SslMode::Require, Trust::Unverified),
            ("require", Some(_)) | ("verify-ca", _) => (SslMode::Require, Trust::Authority),
            ("verify-full", _) => (SslMode::Require, Trust::AuthorityAndName),
            (other, _) => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(wrong(format!("sslmode is {known}, not {other:?}")));
            }
        };
        config.ssl_mode(mode);
        let tls = Tls::new(trust, authorities.as_deref()).map_err(wrong)?;
        Ok(Self { config, tls })
    }

    pub(crate) async fn connect(
        &self,
    ) -> std::result::Result<(Client, Connection<Socket, Stream>), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }
}

/// An address, split into the TLS options that are handled here and the rest, which the driver
/// reads.
#[derive(Debug, PartialEq, Eq)]
struct SplitAddress {
    rest: String,
    mode: Option<String>,
    authorities: Option<String>,
}

impl SplitAddress {
    fn read(text: &str) -> Self {
        let (before, mut options, between, is_url) = match text.split_once('?') {
            Some((before, query)) => (format!("{before}?"), query.split('&').collect(), "&", true),
            None if text.contains("://") => (text.to_owned(), Vec::new(), "&", true),
            None => (String::new(), text.split_whitespace().collect::<Vec<_>>(), " ", false),
        };
        let (mut mode, mut authorities) = (None, None);
        options.retain(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let value = if is_url { decoded(value) } else { value.trim_matches('\'').to_owned() };
            match key {
                "sslmode" => mode = Some(value),
                "sslrootcert" => authorities = Some(value),
                _ => return true,
            }
            false
        });
        Self { rest: format!("{before}{}", options.join(between)), mode, authorities }
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// An address without the password in it.
fn masked(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return "host=…".to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or("");
            format!("{scheme}://{user}@{host}")
        }
        None => text.to_owned(),
    }
}

/// Makes TLS connections for the driver.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    fn new(trust: Trust, authorities: Option<&str>) -> std::result::Result<Self, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new(trust, authorities, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Verifies a server's certificate as [`Trust`] requires.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
}

impl Verifier {
    fn new(
        trust: Trust,
        authorities: Option<&str>,
        provider: &Arc<CryptoProvider>,
    ) -> std::result::Result<Self, String> {
        let (provider, name) = (Arc::clone(provider), trust == Trust::AuthorityAndName);
        if trust == Trust::Unverified {
            return Ok(Self { provider, chain: None, name });
        }
        let mut roots = RootCertStore::empty();
        match authorities.filter(|file| *file != "system") {
            Some(file) => {
                let unusable = |error: String| format!("sslrootcert {file:?} is unusable: {error}");
                let found = CertificateDer::pem_file_iter(file)
                    .map_err(|error| unusable(error.to_string()))?;
                for certificate in found {
                    let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
                    roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs().certs;
                roots.add_parsable_certificates(found);
            }
        }
        if roots.is_empty() {
            return Err("no trusted certificate authority found; name one with sslrootcert".into());
        }
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { provider, chain: Some(chain), name })
    }
}

/// Verifies signatures with the provider's algorithms, in either version of TLS.
macro_rules! signatures {
    ($version:ident) => {
        fn $version(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            rustls::crypto::$version(message, certificate, signed, algorithms)
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(certificate, intermediates, name, stapled, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    signatures!(verify_tls12_signature);
    signatures!(verify_tls13_signature);

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        // Unix sockets have no host name; the server does not offer TLS on them.
        let host = if host.is_empty() { "localhost" } else { host };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Handshake { config: Arc::clone(&self.0), name })
    }
}

/// A TLS handshake that has not started yet.
pub(crate) struct Handshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let connector = tokio_rustls::TlsConnector::from(self.config);
            Ok(Stream(Box::new(connector.connect(self.name, socket).await?)))
        })
    }
}

/// An encrypted connection.
pub(crate) struct Stream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_options_are_removed_from_the_address() {
        for (text, rest, mode, authorities) in [
            ("postgres://u@h/d", "postgres://u@h/d", None, None),
            (
                "postgres://h/d?sslmode=verify-full&options=-c%20x%3Dy&sslrootcert=%2Fca%20.pem",
                "postgres://h/d?options=-c%20x%3Dy",
                Some("verify-full"),
                Some("/ca .pem"),
            ),
            ("host=h sslmode=require dbname=d", "host=h dbname=d", Some("require"), None),
        ] {
            let split = SplitAddress::read(text);
            assert_eq!(
                (split.rest.as_str(), split.mode.as_deref(), split.authorities.as_deref()),
                (rest, mode, authorities)
            );
        }
    }

    #[test]
    fn errors_for_invalid_addresses_do_not_contain_the_password() {
        for text in [
            "postgres://u:secret@h/d?sslmode=maybe",
            "postgres://u:secret@h/d?sslmode=verify-full&sslrootcert=/nonexistent",
            "postgres://u:secret@h:port/d",
        ] {
            let error = Address::parse(text).err().expect("it is wrong").to_string();
            assert!(!error.contains("secret") && error.contains("u@h"), "{error}");
        }
    }
}
