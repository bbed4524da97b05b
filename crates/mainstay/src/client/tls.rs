//! The TLS side of a connection: whom we trust and who we are, as rustls wants it.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::kubeconfig::{Identity, Trust};

/// Why TLS cannot be set up; nothing here is worth a retry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("a certificate authority in the kubeconfig is not usable")]
    Authority(#[source] rustls::Error),
    #[error("this machine has no certificate authorities; name one in the kubeconfig")]
    NoAuthorities,
    #[error("the client certificate and its key cannot be used")]
    Identity(#[source] rustls::Error),
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
    #[error("the server's certificate cannot be judged")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The configuration shared by every connection to one server.
pub(crate) fn config(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
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

/// Takes any certificate: for `--insecure-skip-tls-verify` and the kubeconfig field of that name.
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
