//! Trust from the first start: an own certificate authority, and what is signed with it.
//!
//! The authority is made once and kept in the store. Certificates of servers are made at every
//! start for the names they are reached by, live a year, and are replaced while serving once a
//! third of that is left, so that nothing is ever renewed by hand. Client certificates are
//! optional; when one is shown it must be ours. Enter at [`Authority::load_or_create`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use mainstay_store::clock::Clock;
use mainstay_store::object::Key;
use mainstay_store::objects::{self, Objects};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::internal;

const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
const SERVER_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How far the clocks of two machines may differ.
const SKEW: Duration = Duration::from_secs(3600);

/// Why there is no trust.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not give or take the authority. Retry once the store is well.
    #[error("the certificate authority could not be read from the store")]
    Store(#[from] objects::Error),
    /// What the store holds is no authority. Do not retry.
    #[error("the certificate authority in the store is damaged")]
    Damaged,
    /// A certificate could not be made. Do not retry.
    #[error("a certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up. Do not retry.
    #[error("TLS could not be set up: {0}")]
    Tls(String),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    certificate: String,
    key: String,
}

/// The certificate authority of a cluster.
pub struct Authority {
    certificate: String,
    key: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate and its key, both as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority of this store; the first to ask makes it. Called twice it returns the same.
    ///
    /// # Errors
    /// If the store fails, or holds something that is no authority.
    pub async fn load_or_create(objects: &dyn Objects, now: Timestamp) -> Result<Self, Error> {
        let key = Key::new(&internal::resource("authorities"), None, "cluster");
        let record = match objects.get(&key).await? {
            Some(record) => record,
            None => {
                let body = internal::encode(&make_authority(now)?).map_err(|_| Error::Damaged)?;
                internal::create_or_get(objects, &key, body).await?
            }
        };
        let stored: Stored = internal::decode(&record).ok_or(Error::Damaged)?;
        Ok(Self { certificate: stored.certificate, key: stored.key })
    }

    /// The certificate everybody may know, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The private key, as PEM. Other secrets of the cluster are derived from it.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// A certificate for a server reached by `names` (host names and addresses).
    ///
    /// # Errors
    /// If a name cannot stand in a certificate.
    pub fn server(&self, names: &[String], now: Timestamp) -> Result<Pair, Error> {
        let mut params = params("mainstay-server", None, now, SERVER_LIFE);
        params.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A certificate for a client: `user` becomes its common name, `group` its organisation.
    ///
    /// # Errors
    /// If a name cannot stand in a certificate.
    pub fn client(
        &self,
        user: &str,
        group: &str,
        life: Duration,
        now: Timestamp,
    ) -> Result<Pair, Error> {
        let mut params = params(user, Some(group), now, life);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A certificate for the agent of a node, whose key is the one of the request `csr` (PEM).
    ///
    /// # Errors
    /// If the request cannot be read, or its key cannot be certified.
    pub(crate) fn node(
        &self,
        csr: &str,
        node: &str,
        now: Timestamp,
        life: Duration,
    ) -> Result<String, Error> {
        let asked = CertificateSigningRequestParams::from_pem(csr)?;
        let name = format!("system:node:{node}");
        let mut params = params(&name, Some("system:nodes"), now, life);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let granted = CertificateSigningRequestParams { params, public_key: asked.public_key };
        Ok(granted.signed_by(&issuer)?.pem())
    }

    fn sign(&self, params: CertificateParams) -> Result<Pair, Error> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn make_authority(now: Timestamp) -> Result<Stored, Error> {
    let mut params = params("mainstay-ca", None, now, AUTHORITY_LIFE);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok(Stored { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn params(name: &str, group: Option<&str>, now: Timestamp, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        let organisation = DnType::OrganizationName;
        params.distinguished_name.push(organisation, group);
    }
    let date = now.to_zoned(TimeZone::UTC);
    let (year, month, day) = (date.year(), date.month(), date.day());
    let midnight = rcgen::date_time_ymd(year.into(), month.unsigned_abs(), day.unsigned_abs());
    let since_midnight = Duration::from_secs(now.as_second().rem_euclid(86_400).unsigned_abs());
    let now = midnight + since_midnight;
    params.not_before = now - SKEW;
    params.not_after = now + life;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params
}

/// Every name this machine is reached by when it listens on `address`.
#[must_use]
pub fn names(address: IpAddr) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let uname = rustix::system::uname();
    if let Ok(host) = uname.nodename().to_str()
        && !host.is_empty()
    {
        names.push(host.to_owned());
    }
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    names.sort();
    names.dedup();
    names
}

/// The server's side of TLS, whose certificate is replaced while it serves.
#[derive(Debug)]
pub(crate) struct Tls {
    authority: Arc<Authority>,
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
    current: Arc<Current>,
    pub(crate) config: Arc<ServerConfig>,
}

#[derive(Debug)]
struct Current(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    pub(crate) fn new(
        authority: Arc<Authority>,
        names: Vec<String>,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let certified = certify(&authority, &names, &provider, now)?;
        let current = Arc::new(Current(ArcSwap::from_pointee(certified)));
        let tls = |error: rustls::Error| Error::Tls(error.to_string());
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
        roots.add(root.map_err(|_| Error::Damaged)?).map_err(tls)?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()
                .map_err(|error| Error::Tls(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(tls)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { authority, names, provider, current, config: Arc::new(config) })
    }

    /// Replaces the certificate long before it expires, for as long as it is polled.
    pub(crate) async fn keep_fresh(&self, clock: Arc<dyn Clock>) {
        let mut made = clock.now();
        loop {
            clock.sleep(DAY).await;
            let now = clock.now();
            if now.duration_since(made).unsigned_abs() < SERVER_LIFE * 2 / 3 {
                continue;
            }
            match certify(&self.authority, &self.names, &self.provider, now) {
                Ok(certified) => {
                    self.current.0.store(Arc::new(certified));
                    made = now;
                }
                Err(error) => tracing::error!(%error, "the server certificate was not renewed"),
            }
        }
    }
}

fn certify(
    authority: &Authority,
    names: &[String],
    provider: &CryptoProvider,
    now: Timestamp,
) -> Result<CertifiedKey, Error> {
    let pair = authority.server(names, now)?;
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
    let key = PrivatePkcs8KeyDer::from_pem_slice(pair.key.as_bytes());
    let (Ok(certificate), Ok(key)) = (certificate, key) else {
        return Err(Error::Damaged);
    };
    CertifiedKey::from_der(vec![certificate], PrivateKeyDer::Pkcs8(key), provider)
        .map_err(|error| Error::Tls(error.to_string()))
}

/// Who a client certificate speaks for: its common name and its organisations.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> Option<(String, Vec<String>)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok().map(str::to_owned))
        .collect();
    Some((user, groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::clock::ManualClock;

    fn now() -> Timestamp {
        "2026-11-16T12:34:56Z".parse().unwrap()
    }

    fn authority() -> Authority {
        let Stored { certificate, key } = make_authority(now()).unwrap();
        Authority { certificate, key }
    }

    #[test]
    fn a_client_certificate_names_its_user_and_group() {
        let pair = authority().client("ada", "editor", DAY, now()).unwrap();
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let (user, groups) = subject(&der).unwrap();
        assert_eq!((user.as_str(), groups), ("ada", vec!["editor".to_owned()]));
    }

    #[test]
    fn a_node_is_certified_by_its_own_name_whatever_it_asks_for() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut asked = CertificateParams::new(Vec::new()).unwrap();
        asked.distinguished_name.push(DnType::CommonName, "system:node:other");
        asked.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let csr = asked.serialize_request(&key).unwrap().pem().unwrap();
        let certificate = authority().node(&csr, "n1", now(), SERVER_LIFE).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let expected = ("system:node:n1".to_owned(), vec!["system:nodes".to_owned()]);
        assert_eq!(subject(&der), Some(expected));
        assert!(authority().node("nonsense", "n1", now(), SERVER_LIFE).is_err());
    }

    #[test]
    fn a_server_certificate_covers_every_name_and_begins_in_the_past() {
        let names = names("192.0.2.7".parse().unwrap());
        let pair = authority().server(&names, now()).unwrap();
        let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        let validity = parsed.validity();
        assert_eq!(validity.not_before.timestamp(), now().as_second() - SKEW.as_secs() as i64);
        let san = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(san.value.general_names.len(), names.len());
        assert!(names.contains(&"192.0.2.7".to_owned()));
    }

    #[tokio::test]
    async fn a_certificate_is_replaced_while_serving_once_a_third_of_its_life_is_left() {
        let clock = ManualClock::new(now());
        let tls = Tls::new(Arc::new(authority()), names([127, 0, 0, 1].into()), now()).unwrap();
        let first = tls.current.0.load_full();
        let mut renewing = Box::pin(tls.keep_fresh(clock.clone()));
        assert!(futures_util::poll!(&mut renewing).is_pending());
        for day in 0..250 {
            clock.advance(DAY);
            tokio::task::yield_now().await;
            assert!(futures_util::poll!(&mut renewing).is_pending());
            let replaced = !Arc::ptr_eq(&first, &tls.current.0.load_full());
            assert_eq!(replaced, day + 1 >= 244, "after {} days", day + 1);
        }
    }
}
