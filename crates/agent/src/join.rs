//! Joining: a token becomes a certificate of the node's own, which is renewed before it ends.
//!
//! The key is made here and never leaves the machine; the server signs it for this node's name,
//! whatever the request says. Once there is a certificate, the token is not needed any more. A key
//! is kept from the first attempt on, so that a join whose answer was lost can be repeated.
//!
//! With its certificate a node is told whom to trust, and looks every now and then whether that
//! changed: when the servers exchange their authority, it renews its certificate at once.

pub mod string;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use mainstay_store::clock::Clock;
use mainstay_store::kubernetes::{Access, Client};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{Options, PAUSES};

/// Where the certificate, its key and what is known of them are kept.
const FILE: &str = "identity.json";
/// Where the key of a join under way is kept.
const KEY: &str = "joining.key";
/// Where a server signs.
const PATH: &str = "/mainstay/v1/join";
/// Where a server says whom to trust.
const BUNDLE: &str = "/mainstay/v1/ca";
/// How often a certificate must be refused until it counts as refused.
const ATTEMPTS: u32 = 3;
/// How often one looks whether the certificate must be renewed, at least: a machine may have slept,
/// and its clock may have been set.
const LOOK: Duration = Duration::from_secs(60);

/// Why an agent could not join.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is neither a certificate nor a token. Give a token.
    #[error(
        "there is no certificate yet: give a token, as `mainstay token create --role node --node {node}` prints it"
    )]
    NoToken {
        /// The node.
        node: String,
    },
    /// The token is worthless or of another node. Give another.
    #[error("the server does not let node {node} in: {why}")]
    Refused {
        /// The node.
        node: String,
        /// What the server said.
        why: String,
    },
    /// The servers refuse the certificate. Give a new token.
    #[error(
        "the servers refuse the certificate of node {node}: it was revoked or has expired; give a new token, as `mainstay token create --role node --node {node}` prints it"
    )]
    Revoked {
        /// The node.
        node: String,
    },
    /// The certificate authority or the certificate cannot be used.
    #[error("the certificate of the server or of this node cannot be used: {0}")]
    Certificate(String),
    /// The identity cannot be kept.
    #[error("the identity of this node cannot be kept")]
    Keep(#[from] std::io::Error),
}

/// Who this node is.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    node: String,
    certificate: String,
    key: String,
    renew_at: Timestamp,
    /// The authorities to trust, as the servers told them, the newest first.
    #[serde(default)]
    authorities: Option<String>,
    /// The authorities that were given on the command line then.
    #[serde(default)]
    given: Option<String>,
    /// The servers it joined.
    #[serde(default)]
    servers: Vec<String>,
}

/// The body of a join request.
#[derive(Serialize)]
struct Request<'a> {
    csr: String,
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    register: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    certificate: String,
    node: String,
    lifetime_seconds: u64,
    #[serde(default)]
    authorities: Option<String>,
}

/// The identity that a state folder keeps of a node that joined.
#[derive(Clone, Debug)]
pub struct Remembered {
    /// The node.
    pub node: String,
    /// The servers it joined.
    pub servers: Vec<String>,
    /// The authorities it trusts, as PEM.
    pub authorities: Option<String>,
}

/// Reads the identity from a state folder; none if no node joined with it.
#[must_use]
pub fn remembered(state_dir: &Path) -> Option<Remembered> {
    let bytes = std::fs::read(state_dir.join(FILE)).ok()?;
    let Identity { node, servers, authorities, .. } = serde_json::from_slice(&bytes).ok()?;
    Some(Remembered { node, servers, authorities })
}

fn load(options: &Options) -> Option<Identity> {
    let bytes = std::fs::read(options.state_dir.join(FILE)).ok()?;
    let identity: Identity = serde_json::from_slice(&bytes).ok()?;
    (identity.node == options.node).then_some(identity)
}

fn store(folder: &Path, identity: &Identity) -> Result<(), Error> {
    let bytes =
        serde_json::to_vec(identity).map_err(|error| Error::Certificate(error.to_string()))?;
    keep(folder, FILE, &bytes)
}

/// Writes a private file so that it is there whole or not at all.
fn keep(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let (file, next) = (folder.join(name), folder.join(format!("{name}.next")));
    let mut written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(next, file)?;
    Ok(())
}

/// The authorities to trust: those the servers sent last, and those of the command line.
fn authorities(options: &Options, identity: Option<&Identity>) -> Option<String> {
    let given = options.ca.clone()?;
    let told =
        identity.and_then(|identity| identity.authorities.as_ref().map(|told| (identity, told)));
    match told {
        Some((identity, told)) if identity.given.as_ref() == Some(&given) => Some(told.clone()),
        Some((_, told)) => Some(format!("{given}\n{told}")),
        None => Some(given),
    }
}

fn tls(ca: Option<&str>, identity: Option<&Identity>) -> Result<Option<Arc<ClientConfig>>, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Certificate(error.to_string());
    let Some(ca) = ca else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain: Result<Vec<_>, _> =
                CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
            let (chain, key) = (chain.map_err(|e| wrong(&e))?, key.map_err(|e| wrong(&e))?);
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))?
        }
    };
    Ok(Some(Arc::new(config)))
}

/// How the servers are spoken to before anything was asked of them.
///
/// # Errors
/// [`Error::Certificate`].
pub fn access(options: &Options) -> Result<Access, Error> {
    let identity = load(options);
    let token = if identity.is_some() { None } else { options.token.clone() };
    let trusted = authorities(options, identity.as_ref());
    Ok(Access { tls: tls(trusted.as_deref(), identity.as_ref())?, token })
}

/// How the servers are spoken to by a stranger.
fn anonymous(options: &Options) -> Result<Access, Error> {
    let trusted = authorities(options, load(options).as_ref());
    Ok(Access { tls: tls(trusted.as_deref(), None)?, token: None })
}

/// Whether the servers take the certificate; `None` if none of them answers. A server that breaks a
/// connection off is not yet one that refuses: it must do so several times, and answer strangers.
async fn taken(
    client: &Client,
    options: &Options,
    clock: &dyn Clock,
) -> Result<Option<bool>, Error> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            clock.sleep(PAUSES.0).await;
        }
        if client.call(Method::GET, BUNDLE, None).await.is_ok() {
            return Ok(Some(true));
        }
        let access = client.access();
        client.set_access(anonymous(options)?);
        let reached = client.call(Method::GET, BUNDLE, None).await.is_ok();
        client.set_access(access);
        if !reached {
            return Ok(None);
        }
    }
    Ok(Some(false))
}

/// How the servers are spoken to with a join token: it is good for joining only.
///
/// # Errors
/// [`Error::Certificate`].
pub fn token_access(ca: Option<&str>, token: String) -> Result<Access, Error> {
    Ok(Access { tls: tls(ca, None)?, token: Some(token) })
}

/// Has a certificate made, unless there is one that is good. Waits for a server for as long as it
/// takes.
///
/// # Errors
/// [`Error`]: what waiting does not mend.
pub async fn join(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let node = || options.node.clone();
    match load(options) {
        // A server that is away does not keep an agent from starting.
        Some(identity) => match taken(client, options, clock).await? {
            Some(false) if options.token.is_none() => Err(Error::Revoked { node: node() }),
            Some(false) => {
                tracing::warn!(
                    node = options.node,
                    "the servers refuse the certificate; joining again with the token"
                );
                join_with_token(client, options, clock).await
            }
            Some(true) if identity.renew_at <= clock.now() => renew(client, options, clock).await,
            Some(true) | None => Ok(()),
        },
        None if options.token.is_none() => Err(Error::NoToken { node: node() }),
        None => join_with_token(client, options, clock).await,
    }
}

async fn join_with_token(
    client: &Client,
    options: &Options,
    clock: &dyn Clock,
) -> Result<(), Error> {
    let key = kept_key(&options.state_dir)?;
    client.set_access(Access { token: options.token.clone(), ..anonymous(options)? });
    let mut pause = PAUSES.0;
    loop {
        let wish = Wish { node: &options.node, zone: options.zone.as_deref(), register: true };
        match ask(client, &wish, &key, clock.now()).await {
            Ok(identity) => {
                enter(client, options, identity)?;
                // The key is not needed any more; if it stays, the next join uses it again.
                let _ = std::fs::remove_file(options.state_dir.join(KEY));
                return Ok(());
            }
            Err(Ask::Away(why)) => {
                tracing::warn!(why, ?pause, "joining failed; retrying");
                clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            Err(Ask::Never(error)) => return Err(error),
        }
    }
}

/// Has another certificate made with the one there is. Tries once.
async fn renew(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let wish = Wish { node: &options.node, zone: None, register: false };
    let key = new_key()?;
    match ask(client, &wish, &key, clock.now()).await {
        Ok(identity) => enter(client, options, identity),
        // There is time: a third of the certificate's life is left.
        Err(Ask::Away(why)) => {
            tracing::warn!(why, "renewing the certificate failed; retrying later");
            Ok(())
        }
        Err(Ask::Never(error)) => Err(error),
    }
}

fn new_key() -> Result<KeyPair, Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
    key.map_err(|error| Error::Certificate(error.to_string()))
}

/// The key of the join under way, made at the first attempt.
fn kept_key(folder: &Path) -> Result<KeyPair, Error> {
    let known = std::fs::read_to_string(folder.join(KEY)).ok();
    if let Some(key) = known.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = new_key()?;
    keep(folder, KEY, key.serialize_pem().as_bytes())?;
    Ok(key)
}

fn enter(client: &Client, options: &Options, mut identity: Identity) -> Result<(), Error> {
    identity.given.clone_from(&options.ca);
    identity.servers.clone_from(&options.servers);
    store(&options.state_dir, &identity)?;
    let trusted = authorities(options, Some(&identity));
    client.set_access(Access { tls: tls(trusted.as_deref(), Some(&identity))?, token: None });
    Ok(())
}

/// Why no certificate was given.
enum Ask {
    Away(String),
    Never(Error),
}

/// The node that asks for a certificate.
struct Wish<'a> {
    node: &'a str,
    zone: Option<&'a str>,
    register: bool,
}

async fn ask(
    client: &Client,
    wish: &Wish<'_>,
    key: &KeyPair,
    now: Timestamp,
) -> Result<Identity, Ask> {
    let never = |error: &dyn std::fmt::Display| Ask::Never(Error::Certificate(error.to_string()));
    let params = CertificateParams::new(Vec::new()).map_err(|error| never(&error))?;
    let csr = params.serialize_request(key).map_err(|error| never(&error))?;
    let csr = csr.pem().map_err(|error| never(&error))?;
    let Wish { node, zone, register } = *wish;
    let body = serde_json::to_vec(&Request { csr, node, zone, register });
    let body = body.map_err(|error| never(&error))?;
    let answer = client.call(Method::POST, PATH, Some(body)).await;
    let answer = answer.map_err(|failure| Ask::Away(failure.0))?;
    match answer.code.as_u16() {
        200 | 201 => {}
        401 | 403 | 404 | 422 => {
            let (node, why) = (node.to_owned(), said(&answer.body));
            return Err(Ask::Never(Error::Refused { node, why }));
        }
        code => return Err(Ask::Away(format!("the server answered {code}"))),
    }
    let granted: Granted = serde_json::from_slice(&answer.body).map_err(|error| never(&error))?;
    if granted.node != node {
        let why = format!("the token is for node {}", granted.node);
        return Err(Ask::Never(Error::Refused { node: node.to_owned(), why }));
    }
    let life = Duration::from_secs(granted.lifetime_seconds);
    Ok(Identity {
        node: node.to_owned(),
        certificate: granted.certificate,
        key: key.serialize_pem(),
        renew_at: now.checked_add(life * 2 / 3).unwrap_or(now),
        authorities: granted.authorities,
        given: None,
        servers: Vec::new(),
    })
}

/// The message of a refusal.
fn said(body: &[u8]) -> String {
    let said: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    said.get("message").and_then(serde_json::Value::as_str).unwrap_or("refused").to_owned()
}

/// Renews the certificate when two thirds of its life are over, or when the servers have another
/// authority. Looks at the clock and at the servers often enough to notice either.
pub(crate) async fn keep_fresh(
    client: Arc<Client>,
    options: Options,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let look = LOOK.min(options.heartbeat * 6).max(Duration::from_millis(100));
    loop {
        if stop.run_until_cancelled(clock.sleep(look)).await.is_none() {
            return;
        }
        let Some(looked) = stop.run_until_cancelled(look_after(&client, &options, &*clock)).await
        else {
            return;
        };
        if let Err(error) = looked {
            tracing::error!(%error, "the certificate cannot be renewed; retrying");
        }
    }
}

async fn look_after(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let Some(mut identity) = load(options) else { return join(client, options, clock).await };
    if identity.renew_at <= clock.now() {
        return join(client, options, clock).await;
    }
    let Ok(answer) = client.call(Method::GET, BUNDLE, None).await else {
        return match taken(client, options, clock).await? {
            Some(false) => join(client, options, clock).await,
            Some(true) | None => Ok(()),
        };
    };
    // Servers of older versions do not say.
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    let known = identity.authorities.as_ref().or(options.ca.as_ref());
    if answer.code != 200 || known == Some(&told) || options.ca.is_none() {
        return Ok(());
    }
    let newest = |bundle: &str| CertificateDer::from_pem_slice(bundle.as_bytes()).ok();
    let exchanged = newest(&told) != known.and_then(|known| newest(known));
    tracing::info!(exchanged, "the servers trust other authorities than before");
    identity.authorities = Some(told);
    enter(client, options, identity)?;
    if exchanged { renew(client, options, clock).await } else { Ok(()) }
}

/// A certificate that only memory has: for nodes that only pretend.
pub(crate) struct Pretence {
    client: Arc<Client>,
    ca: Option<String>,
    node: String,
    zone: Option<String>,
}

impl Pretence {
    pub(crate) fn new(
        client: Client,
        ca: Option<String>,
        node: &str,
        zone: Option<String>,
    ) -> Self {
        Self { client: Arc::new(client), ca, node: node.to_owned(), zone }
    }

    /// Says who we are at the moment.
    pub(crate) fn credentials(&self) -> crate::link::Credentials {
        let client = self.client.clone();
        Arc::new(move || client.access())
    }

    /// Joins, or renews what it has, as often as it takes. Says when to do it again.
    pub(crate) async fn enter(&self, clock: &dyn Clock) -> Result<Timestamp, Error> {
        let key = new_key()?;
        let wish = Wish { node: &self.node, zone: self.zone.as_deref(), register: false };
        let mut pause = PAUSES.0;
        loop {
            match ask(&self.client, &wish, &key, clock.now()).await {
                Ok(identity) => {
                    let trusted = identity.authorities.as_deref().or(self.ca.as_deref());
                    let trusted = self.ca.as_ref().and(trusted);
                    let tls = tls(trusted, Some(&identity))?;
                    self.client.set_access(Access { tls, token: None });
                    return Ok(identity.renew_at);
                }
                Err(Ask::Away(why)) => {
                    tracing::warn!(node = self.node, why, ?pause, "joining failed; retrying");
                    clock.sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                Err(Ask::Never(error)) => return Err(error),
            }
        }
    }
}
