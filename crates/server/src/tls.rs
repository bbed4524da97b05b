//! TLS: the cluster's own certificate authority, and certificates for servers and clients.
//!
//! The authority is made when a server first starts on an empty store, and kept there, so every
//! server of the cluster and every restart trusts the same one. Server certificates are made at every
//! start for the names they are reached by, live a year, and are replaced while serving once a
//! third of that is left, when the names of the machine change, and when the authority is exchanged.
//! The clock is looked at when a client shakes hands, for a machine may have slept or been set.
//! Client certificates are optional; when one is shown it must be ours and not be revoked. Enter at
//! [`Authority::load_or_create`] and [`Tls::new`].

mod authority;
mod clients;
mod names;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use mainstay_store::clock::Clock;
use mainstay_store::objects::{self, Error as StoreError, Objects, Scope};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

pub use self::authority::{Authority, Pair, fingerprint};
pub(crate) use self::authority::{NodeRequest, der, name, serial};
use self::clients::Clients;
pub(crate) use self::clients::Presented;
pub use self::names::names;
use crate::certificates::Certificates;

const SERVER_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often one looks whether the certificate is still right.
const LOOK: Duration = Duration::from_secs(60);

/// Why there is no trust.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not give or take the authority. Retry once the store is well.
    #[error("the certificate authority could not be read from the store")]
    Store(#[from] objects::Error),
    /// The stored authority is damaged. Do not retry.
    #[error("the certificate authority in the store is damaged")]
    Damaged,
    /// A certificate could not be made. Do not retry.
    #[error("a certificate could not be made")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up. Do not retry.
    #[error("TLS could not be set up: {0}")]
    Tls(String),
}

/// The authority as all servers of the cluster have it now.
#[derive(Debug)]
pub(crate) struct Authorities {
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    current: ArcSwap<Authority>,
}

impl Authorities {
    pub(crate) async fn load(
        objects: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let current = Authority::load_or_create(&*objects, clock.now()).await?;
        Ok(Arc::new(Self { objects, clock, current: ArcSwap::from_pointee(current) }))
    }

    /// The authority now.
    pub(crate) fn current(&self) -> Arc<Authority> {
        self.current.load_full()
    }

    /// Begins to exchange the authority. Called while that goes on it does nothing.
    pub(crate) async fn rotate(&self) -> Result<(), Error> {
        Authority::rotate(&*self.objects, self.clock.now()).await
    }

    /// Ends the exchange: only the new authority counts. Called again it does nothing.
    pub(crate) async fn finish(&self) -> Result<(), Error> {
        Authority::finish(&*self.objects).await
    }

    /// Follows what any server does to the authority until the store closes; `changed` is told.
    pub(crate) async fn follow(
        &self,
        changed: &(dyn Fn(&Arc<Authority>) -> Result<(), Error> + Send + Sync),
    ) -> Result<(), Error> {
        let key = authority::stored_key();
        loop {
            let from = self.objects.revision(key.resource());
            if let Some(record) = self.objects.get(&key).await? {
                self.adopt(Authority::of(&record)?, changed)?;
            }
            let ended = match self.objects.watch(Scope::all(key.resource()), from).await {
                Ok(mut changes) => loop {
                    match changes.next().await {
                        Ok(events) => {
                            if let Some(event) = events.last() {
                                self.adopt(Authority::of(&event.record)?, changed)?;
                            }
                        }
                        Err(error) => break error,
                    }
                },
                Err(error) => error,
            };
            match ended {
                StoreError::Closed => return Ok(()),
                StoreError::Expired { .. } | StoreError::TooNew { .. } => {}
                error => return Err(error.into()),
            }
        }
    }

    fn adopt(
        &self,
        next: Authority,
        changed: &(dyn Fn(&Arc<Authority>) -> Result<(), Error> + Send + Sync),
    ) -> Result<(), Error> {
        if next.bundle() == self.current.load().bundle() {
            return Ok(());
        }
        let next = Arc::new(next);
        changed(&next)?;
        self.current.store(next);
        Ok(())
    }
}

/// The server's side of TLS, whose certificate is replaced while it serves.
#[derive(Debug)]
pub(crate) struct Tls {
    clients: Arc<Clients>,
    current: Arc<Current>,
    pub(crate) config: Arc<ServerConfig>,
}

/// For which names, and since and until when, there is a certificate.
#[derive(Debug)]
struct Certified {
    key: Arc<CertifiedKey>,
    names: Vec<String>,
    made: Timestamp,
}

impl Certified {
    /// Whether it is time for another: a third of its life is left, or the clock was set back.
    fn is_due(&self, now: Timestamp) -> bool {
        let age = now.duration_since(self.made);
        match Duration::try_from(age) {
            Ok(age) => age >= SERVER_LIFE * 2 / 3,
            Err(_) => age.unsigned_abs() >= authority::SKEW,
        }
    }
}

#[derive(Debug)]
struct Current {
    certified: ArcSwap<Certified>,
    authority: ArcSwap<Authority>,
    listen: IpAddr,
    given: Vec<String>,
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn Clock>,
}

impl Current {
    fn certify(&self, names: Vec<String>) -> Result<(), Error> {
        let now = self.clock.now();
        let next = certify(&self.authority.load(), names, &self.provider, now)?;
        self.certified.store(Arc::new(next));
        Ok(())
    }

    fn key(&self) -> Arc<CertifiedKey> {
        let certified = self.certified.load();
        if !certified.is_due(self.clock.now()) {
            return certified.key.clone();
        }
        if let Err(error) = self.certify(certified.names.clone()) {
            tracing::error!(%error, "the server certificate was not renewed");
        }
        self.certified.load().key.clone()
    }

    /// Makes another certificate if the names of this machine changed, or it is time.
    fn look(&self) {
        let names = names(self.listen, &self.given);
        let certified = self.certified.load();
        if (names != certified.names || certified.is_due(self.clock.now()))
            && let Err(error) = self.certify(names)
        {
            tracing::error!(%error, "making the server certificate anew failed; retrying");
        }
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

impl Tls {
    /// TLS for a server that listens on `listen` and is also reached by the names `given`.
    pub(crate) fn new(
        authority: Arc<Authority>,
        listen: IpAddr,
        given: Vec<String>,
        certificates: Arc<Certificates>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let certified = certify(&authority, names(listen, &given), &provider, clock.now())?;
        let clients = Clients::new(&authority, provider.clone(), certificates)?;
        let current = Arc::new(Current {
            certified: ArcSwap::from_pointee(certified),
            authority: ArcSwap::new(authority),
            listen,
            given,
            provider: provider.clone(),
            clock,
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Tls(error.to_string()))?
            .with_client_cert_verifier(clients.clone())
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { clients, current, config: Arc::new(config) })
    }

    /// Serves with another authority from now on.
    pub(crate) fn exchange(&self, authority: &Arc<Authority>) -> Result<(), Error> {
        self.clients.trust(authority)?;
        self.current.authority.store(authority.clone());
        self.current.certify(self.current.certified.load().names.clone())
    }

    /// Looks after the certificate, for as long as it is polled.
    pub(crate) async fn keep_fresh(&self, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep(LOOK).await;
            self.current.look();
        }
    }
}

fn certify(
    authority: &Authority,
    names: Vec<String>,
    provider: &CryptoProvider,
    now: Timestamp,
) -> Result<Certified, Error> {
    let pair = authority.server(&names, now)?;
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect();
    let key = PrivatePkcs8KeyDer::from_pem_slice(pair.key.as_bytes());
    let (Ok(chain), Ok(key)) = (chain, key) else {
        return Err(Error::Damaged);
    };
    let key = CertifiedKey::from_der(chain, PrivateKeyDer::Pkcs8(key), provider)
        .map_err(|error| Error::Tls(error.to_string()))?;
    Ok(Certified { key: Arc::new(key), names, made: now })
}
