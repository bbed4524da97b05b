//! TLS: which servers are trusted, and which certificate the client shows.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::{self, PemObject};

/// Why TLS cannot be set up. Do not retry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Correct the certificate.
    #[error("a certificate authority cannot be used")]
    Authority(#[source] rustls::Error),
    /// Give a certificate authority.
    #[error("this machine has no certificate authorities; name one")]
    NoAuthorities,
    /// Correct the certificate or the key.
    #[error("the client certificate and its key cannot be used")]
    Identity(#[source] rustls::Error),
    /// Correct the PEM file.
    #[error("the PEM of a certificate or key cannot be read")]
    Pem(#[source] pem::Error),
    /// A defect of this program.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    /// Correct the certificate authorities.
    #[error("the certificate authorities cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Which server certificates are accepted.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Certificates that one of these authorities signed.
    Authorities(Vec<CertificateDer<'static>>),
    /// Certificates that an authority of the machine's list signed.
    System,
    /// Every certificate. The caller must compare a fingerprint, or a person must have asked for it.
    Nothing,
}

impl Trust {
    /// Trusts the authorities in a PEM text.
    ///
    /// # Errors
    /// [`Error::Pem`].
    pub fn pem(text: &str) -> Result<Self, Error> {
        Ok(Self::Authorities(certificates(text.as_bytes())?))
    }
}

/// A client certificate with its key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate, then those that lead to its authority.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The private key.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a certificate chain and a key from PEM texts.
    ///
    /// # Errors
    /// [`Error::Pem`].
    pub fn pem(certificate: &str, key: &str) -> Result<Self, Error> {
        let certificates = certificates(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(Error::Pem)?;
        Ok(Self { certificates, key })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(Error::Pem)
}

/// The configuration shared by all connections to a cluster.
///
/// # Errors
/// [`Error`].
pub fn config(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(Error::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(verifier(trust, &provider)?);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(Identity { certificates, key }) => builder
            .with_client_auth_cert(certificates.clone(), key.clone_key())
            .map_err(Error::Identity),
    }
}

fn verifier(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Nothing => return Ok(Arc::new(Unverified(Arc::clone(provider)))),
        Trust::Authorities(list) => {
            for certificate in list {
                roots.add(certificate.clone()).map_err(Error::Authority)?;
            }
        }
        Trust::System => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::NoAuthorities);
            }
        }
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(verifier.build()?)
}

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
