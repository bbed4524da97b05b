//! The certificate authority of a cluster, and how it is exchanged for another without downtime.
//!
//! Usually there is one authority. While it is exchanged there are two: both are trusted, the new
//! one signs the certificates of nodes, and the old one still signs those of the servers, so that
//! clients which know only the old one go on. Beside its certificate a server then sends the old
//! authority's key as the new authority certified it, so that clients which know only the new one
//! get in as well. Finishing drops the old authority.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use mainstay_store::object::{Key, Record};
use mainstay_store::objects::{Change, Objects, Write};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Error, SERVER_LIFE};
use crate::internal;

const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// How far the clocks of two machines may differ.
pub(super) const SKEW: Duration = Duration::from_secs(3600);

/// An authority as the store has it. Older versions know the first two fields only.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    certificate: String,
    key: String,
    /// The authority that this one replaces, while both are trusted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    previous: Option<Box<Previous>>,
    /// From what the tags of continue tokens are made; derived from the first key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    seal: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Previous {
    certificate: String,
    key: String,
    /// Its key as the new authority certified it.
    cross: String,
}

/// The certificate authority of a cluster.
pub struct Authority {
    stored: Stored,
    name: String,
    fingerprint: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// A certificate and its key, both as PEM. Further certificates follow the first if it needs them.
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

/// A node's request for a certificate.
#[derive(Debug)]
pub(crate) struct NodeRequest {
    asked: CertificateSigningRequestParams,
}

impl NodeRequest {
    /// Reads a request as PEM and checks that its sender has the key.
    pub(crate) fn read(csr: &str) -> Result<Self, Error> {
        Ok(Self { asked: CertificateSigningRequestParams::from_pem(csr)? })
    }

    /// The SHA-256 of its public key, in hexadecimal.
    pub(crate) fn key(&self) -> String {
        hex::encode(Sha256::digest(self.asked.public_key.der_bytes()))
    }
}

/// The SHA-256 of a certificate (its DER) in hexadecimal: what join strings carry.
#[must_use]
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex::encode(Sha256::digest(certificate))
}

/// A serial number that was never given out, in hexadecimal.
pub(crate) fn serial() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let random = aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| Error::Tls("no randomness".to_owned()))?;
    // Positive, and never written with a leading zero.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(hex::encode(bytes))
}

fn key() -> Key {
    Key::new(&internal::resource("authorities"), None, "cluster")
}

/// The key under which the store has the authority.
pub(super) fn stored_key() -> Key {
    key()
}

impl Authority {
    /// The authority of this store; the first to ask makes it. Called twice it returns the same.
    ///
    /// # Errors
    /// If the store fails, or holds something that is no authority.
    pub async fn load_or_create(objects: &dyn Objects, now: Timestamp) -> Result<Self, Error> {
        let record = match objects.get(&key()).await? {
            Some(record) => record,
            None => {
                let body = internal::encode(&make(now)?).map_err(|_| Error::Damaged)?;
                internal::create_or_get(objects, &key(), body).await?
            }
        };
        Self::of(&record)
    }

    pub(super) fn of(record: &Record) -> Result<Self, Error> {
        Self::from_stored(internal::decode(record).ok_or(Error::Damaged)?)
    }

    fn from_stored(stored: Stored) -> Result<Self, Error> {
        let (name, fingerprint) =
            (name(&stored.certificate)?, fingerprint(&der(&stored.certificate)?));
        Ok(Self { stored, name, fingerprint })
    }

    /// Makes a new authority beside the one there is. Does nothing while there are two already.
    pub(super) async fn rotate(objects: &dyn Objects, now: Timestamp) -> Result<(), Error> {
        let record = objects.get(&key()).await?.ok_or(Error::Damaged)?;
        let known = Self::of(&record)?;
        if known.stored.previous.is_some() {
            return Ok(());
        }
        let mut next = make(now)?;
        let (certificate, old) = (known.stored.certificate.clone(), known.stored.key.clone());
        let cross = cross(&next, &known, now)?;
        next.seal = Some(known.seal());
        next.previous = Some(Box::new(Previous { certificate, key: old, cross }));
        write(objects, &record, &next).await
    }

    /// Drops the authority that was replaced. Does nothing when there is none.
    pub(super) async fn finish(objects: &dyn Objects) -> Result<(), Error> {
        let record = objects.get(&key()).await?.ok_or(Error::Damaged)?;
        let mut stored = Self::of(&record)?.stored;
        if stored.previous.take().is_none() {
            return Ok(());
        }
        write(objects, &record, &stored).await
    }

    /// The certificate of the authority that signs for nodes, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.stored.certificate
    }

    /// The name of the authority that signs for nodes: certificates have it as their issuer.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether certificates of this issuer count.
    pub(crate) fn trusts(&self, issuer: &str) -> bool {
        let previous = || self.previous().and_then(|previous| name(previous).ok());
        self.name == issuer || previous().is_some_and(|previous| previous == issuer)
    }

    /// Everything that is trusted, as PEM: the newest authority first.
    #[must_use]
    pub fn bundle(&self) -> String {
        let previous = self.stored.previous.as_ref().map(|previous| previous.certificate.as_str());
        [Some(self.certificate()), previous].into_iter().flatten().collect()
    }

    /// The SHA-256 of the newest certificate, in hexadecimal.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The certificate of the authority that is replaced, as PEM.
    #[must_use]
    pub fn previous(&self) -> Option<&str> {
        self.stored.previous.as_ref().map(|previous| previous.certificate.as_str())
    }

    /// A secret of the cluster that outlives its authorities.
    pub(crate) fn seal(&self) -> String {
        match &self.stored.seal {
            Some(seal) => seal.clone(),
            None => hex::encode(Sha256::digest(format!("mainstay seal\n{}", self.stored.key))),
        }
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
        match &self.stored.previous {
            None => sign(params, &self.stored.certificate, &self.stored.key),
            Some(previous) => {
                let mut pair = sign(params, &previous.certificate, &previous.key)?;
                pair.certificate.push_str(&previous.cross);
                Ok(pair)
            }
        }
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
        sign(params, &self.stored.certificate, &self.stored.key)
    }

    /// A certificate for the agent of a node, whose key is the one of the request.
    ///
    /// # Errors
    /// If its key cannot be certified.
    pub(crate) fn node(
        &self,
        request: NodeRequest,
        node: &str,
        serial: &str,
        now: Timestamp,
        life: Duration,
    ) -> Result<String, Error> {
        let name = format!("system:node:{node}");
        let mut params = params(&name, Some("system:nodes"), now, life);
        let serial = hex::decode(serial).map_err(|_| Error::Damaged)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::from_pem(&self.stored.key)?;
        let issuer = Issuer::from_ca_cert_pem(&self.stored.certificate, key)?;
        let public_key = request.asked.public_key;
        let granted = CertificateSigningRequestParams { params, public_key };
        Ok(granted.signed_by(&issuer)?.pem())
    }
}

async fn write(objects: &dyn Objects, record: &Record, next: &Stored) -> Result<(), Error> {
    let body = internal::encode(next).map_err(|_| Error::Damaged)?;
    let change = Change::Update(record.revision(), body);
    objects.write(Write { key: key(), change, fence: None }).await?;
    Ok(())
}

pub(crate) fn der(pem: &str) -> Result<CertificateDer<'static>, Error> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| Error::Damaged)
}

/// Whom a certificate names.
pub(crate) fn name(pem: &str) -> Result<String, Error> {
    let certificate = der(pem)?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(&certificate).map_err(|_| Error::Damaged)?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Ok(name.ok_or(Error::Damaged)?.to_owned())
}

fn sign(params: CertificateParams, certificate: &str, key: &str) -> Result<Pair, Error> {
    let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// The old authority's key as the new authority certifies it.
fn cross(new: &Stored, old: &Authority, now: Timestamp) -> Result<String, Error> {
    let mut params = params(&old.name, None, now, AUTHORITY_LIFE);
    authority_powers(&mut params, 0);
    let issuer = Issuer::from_ca_cert_pem(&new.certificate, KeyPair::from_pem(&new.key)?)?;
    Ok(params.signed_by(&KeyPair::from_pem(&old.stored.key)?, &issuer)?.pem())
}

pub(super) fn make(now: Timestamp) -> Result<Stored, Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // No two authorities of a cluster have the same name: an issuer is found by it.
    let mark = hex::encode(&Sha256::digest(key.public_key_raw())[..4]);
    let mut params = params(&format!("mainstay-ca {mark}"), None, now, AUTHORITY_LIFE);
    // One authority may stand between this one and a server: the one that it replaces.
    authority_powers(&mut params, 1);
    let certificate = params.self_signed(&key)?.pem();
    Ok(Stored { certificate, key: key.serialize_pem(), previous: None, seal: None })
}

fn authority_powers(params: &mut CertificateParams, below: u8) {
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
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

#[cfg(test)]
pub(super) fn sample(now: Timestamp) -> Authority {
    Authority::from_stored(make(now).unwrap()).unwrap()
}
