//! Whom a server lets shake hands: clients whose certificate one of the trusted authorities signed,
//! and that was not revoked.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};

use super::{Authority, Error};
use crate::certificates::Certificates;
use crate::identity::{Claims, User};

/// The certificate that a client presented.
#[derive(Debug)]
pub(crate) struct Presented {
    pub(crate) user: User,
    /// The serial number, in hexadecimal.
    pub(crate) serial: String,
    /// Whom the certificate names as its issuer.
    pub(crate) issuer: String,
}

impl Presented {
    /// Reads a certificate.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let subject = parsed.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?;
        let groups = subject
            .iter_organization()
            .filter_map(|group| group.as_str().ok().map(str::to_owned))
            .collect();
        let user = User::of_groups(name, Claims { groups, ..Claims::default() });
        let bytes = parsed.raw_serial();
        let serial: String =
            bytes.iter().skip_while(|byte| **byte == 0).map(|byte| format!("{byte:02x}")).collect();
        let issuer = parsed.issuer().iter_common_name().next();
        let issuer = issuer.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned();
        Some(Self { user, serial, issuer })
    }
}

/// Verifies the certificates of clients. Whom it trusts can be exchanged while it is in use.
#[derive(Debug)]
pub(super) struct Clients {
    chain: ArcSwap<Chain>,
    provider: Arc<CryptoProvider>,
    certificates: Arc<Certificates>,
}

#[derive(Debug)]
struct Chain(Arc<dyn ClientCertVerifier>);

impl Clients {
    pub(super) fn new(
        authority: &Authority,
        provider: Arc<CryptoProvider>,
        certificates: Arc<Certificates>,
    ) -> Result<Arc<Self>, Error> {
        let chain = ArcSwap::from_pointee(chain(authority, provider.clone())?);
        Ok(Arc::new(Self { chain, provider, certificates }))
    }

    /// Trusts this authority from now on, and the one that it replaces.
    pub(super) fn trust(&self, authority: &Authority) -> Result<(), Error> {
        self.chain.store(Arc::new(chain(authority, self.provider.clone())?));
        Ok(())
    }
}

fn chain(authority: &Authority, provider: Arc<CryptoProvider>) -> Result<Chain, Error> {
    let mut roots = RootCertStore::empty();
    for pem in [Some(authority.certificate()), authority.previous()].into_iter().flatten() {
        let root = super::authority::der(pem)?;
        roots.add(root).map_err(|error| Error::Tls(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map(Chain)
        .map_err(|error| Error::Tls(error.to_string()))
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    // Hints cannot be lent from what may be exchanged; clients show what they have without them.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.load().0.verify_client_cert(end_entity, intermediates, now)?;
        let presented = Presented::read(end_entity)
            .ok_or(rustls::Error::from(CertificateError::BadEncoding))?;
        match &presented.user.node {
            Some(node) if !self.certificates.good(node, &presented.serial) => {
                Err(CertificateError::Revoked.into())
            }
            _ => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.load().0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.load().0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.load().0.supported_verify_schemes()
    }
}
