//! Joining: exchanges a token for a client certificate of the node, and renews it before it expires.
//!
//! The key is created here and never leaves the machine; the server signs it for the node of the token,
//! whatever the request says. Once there is a certificate, the token is no longer needed. The key
//! is stored before the first attempt, so that a join whose response was lost can be repeated.
//!
//! The server returns the certificate authorities to trust along with the certificate. The agent polls
//! them: when the servers exchange their authority, it renews its certificate at once.

pub mod string;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use mainstay_client::tls::Trust;
use mainstay_client::{self as client, Access, Client};
use mainstay_clock::Clock;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{Options, RETRY};

/// The file with the certificate and its key.
const FILE: &str = "identity.json";
/// The file with the key of a join that is not finished.
const KEY: &str = "joining.key";
/// The path at which a server signs certificates.
const PATH: &str = "/mainstay/v1/join";
/// The path at which a server lists its certificate authorities.
const BUNDLE: &str = "/mainstay/v1/ca";
/// How many connections in a row must fail until the certificate counts as refused.
const ATTEMPTS: u32 = 3;
/// How often to check whether the certificate must be renewed: a machine may have been suspended, and
/// its clock may have been set.
const CHECK: Duration = Duration::from_secs(60);

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
    /// The token is invalid or belongs to another node. Give another.
    #[error("the server does not let node {node} in: {why}")]
    Refused {
        /// The node.
        node: String,
        /// The message of the server.
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
    /// The identity cannot be written to the state folder.
    #[error("writing the identity of this node failed")]
    Keep(#[from] std::io::Error),
}

/// The identity of this node, as stored.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    node: String,
    certificate: String,
    key: String,
    renew_at: Timestamp,
    /// The authorities to trust, as the servers sent them, the newest first.
    #[serde(default)]
    authorities: Option<String>,
    /// The authorities that were on the command line when it joined.
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
    write_private(folder, FILE, &bytes)
}

/// Writes a private file atomically.
fn write_private(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
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
    let trust = Trust::pem(ca).map_err(|error| wrong(&error))?;
    let identity = identity.map(|it| client::tls::Identity::pem(&it.certificate, &it.key));
    let identity = identity.transpose().map_err(|error| wrong(&error))?;
    let config = client::tls::config(&trust, identity.as_ref()).map_err(|error| wrong(&error))?;
    Ok(Some(Arc::new(config)))
}

/// The credentials for the first request: the certificate if there is one, else the token.
///
/// # Errors
/// [`Error::Certificate`].
pub fn access(options: &Options) -> Result<Access, Error> {
    let identity = load(options);
    let token = if identity.is_some() { None } else { options.token.clone() };
    let trusted = authorities(options, identity.as_ref());
    Ok(Access { tls: tls(trusted.as_deref(), identity.as_ref())?, token })
}

/// No credentials.
fn anonymous(options: &Options) -> Result<Access, Error> {
    let trusted = authorities(options, load(options).as_ref());
    Ok(Access { tls: tls(trusted.as_deref(), None)?, token: None })
}

/// Whether the servers accept the certificate; `None` if none of them answers. One broken connection is
/// not a refusal: it must happen several times, while requests without a certificate are answered.
async fn is_accepted(
    client: &Client,
    options: &Options,
    clock: &dyn Clock,
) -> Result<Option<bool>, Error> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            clock.sleep(RETRY.first).await;
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

/// The credentials of a join token, which is good for joining only.
///
/// # Errors
/// [`Error::Certificate`].
pub fn token_access(ca: Option<&str>, token: String) -> Result<Access, Error> {
    Ok(Access { tls: tls(ca, None)?, token: Some(token) })
}

/// Gets a certificate, unless there is a valid one. Waits for a server without a limit.
///
/// # Errors
/// [`Error`], for failures that waiting does not fix.
pub async fn join(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let node = || options.node.clone();
    match load(options) {
        // An agent starts also while no server answers.
        Some(identity) => match is_accepted(client, options, clock).await? {
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
    let key = stored_key(&options.state_dir)?;
    client.set_access(Access { token: options.token.clone(), ..anonymous(options)? });
    let mut retries = RETRY.retries();
    loop {
        let applicant =
            Applicant { node: &options.node, zone: options.zone.as_deref(), register: true };
        match request(client, &applicant, &key, clock.now()).await {
            Ok(identity) => {
                enter(client, options, identity)?;
                // The key is not needed any more; if it stays, the next join uses it again.
                let _ = std::fs::remove_file(options.state_dir.join(KEY));
                return Ok(());
            }
            Err(Failed::Unavailable(reason)) => {
                let wait = retries.failed();
                tracing::warn!(node = options.node, reason, ?wait, "joining failed; retrying");
                clock.sleep(wait).await;
            }
            Err(Failed::Final(error)) => return Err(error),
        }
    }
}

/// Gets another certificate with the current one. Tries once.
async fn renew(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let applicant = Applicant { node: &options.node, zone: None, register: false };
    let key = new_key()?;
    match request(client, &applicant, &key, clock.now()).await {
        Ok(identity) => enter(client, options, identity),
        // A third of the certificate's lifetime is left for retries.
        Err(Failed::Unavailable(reason)) => {
            tracing::warn!(
                node = options.node,
                reason,
                "certificate renewal failed; retrying later"
            );
            Ok(())
        }
        Err(Failed::Final(error)) => Err(error),
    }
}

fn new_key() -> Result<KeyPair, Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
    key.map_err(|error| Error::Certificate(error.to_string()))
}

/// The key of a join that is not finished, created at the first attempt.
fn stored_key(folder: &Path) -> Result<KeyPair, Error> {
    let known = std::fs::read_to_string(folder.join(KEY)).ok();
    if let Some(key) = known.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = new_key()?;
    write_private(folder, KEY, key.serialize_pem().as_bytes())?;
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

/// Why no certificate was issued.
enum Failed {
    /// No server answered. Retry.
    Unavailable(String),
    /// Do not retry.
    Final(Error),
}

/// The node that requests a certificate.
struct Applicant<'a> {
    node: &'a str,
    zone: Option<&'a str>,
    register: bool,
}

/// Requests a certificate once.
async fn request(
    client: &Client,
    applicant: &Applicant<'_>,
    key: &KeyPair,
    now: Timestamp,
) -> Result<Identity, Failed> {
    let unusable =
        |error: &dyn std::fmt::Display| Failed::Final(Error::Certificate(error.to_string()));
    let params = CertificateParams::new(Vec::new()).map_err(|error| unusable(&error))?;
    let csr = params.serialize_request(key).map_err(|error| unusable(&error))?;
    let csr = csr.pem().map_err(|error| unusable(&error))?;
    let Applicant { node, zone, register } = *applicant;
    let body = serde_json::to_vec(&Request { csr, node, zone, register });
    let body = body.map_err(|error| unusable(&error))?;
    let answer = client.call(Method::POST, PATH, Some(body)).await;
    let answer = answer.map_err(|failure| Failed::Unavailable(failure.explained()))?;
    match answer.code.as_u16() {
        200 | 201 => {}
        401 | 403 | 404 | 422 => {
            let (node, why) = (node.to_owned(), message(&answer.body));
            return Err(Failed::Final(Error::Refused { node, why }));
        }
        code => return Err(Failed::Unavailable(format!("the server answered {code}"))),
    }
    let granted: Granted =
        serde_json::from_slice(&answer.body).map_err(|error| unusable(&error))?;
    if granted.node != node {
        let why = format!("the token is for node {}", granted.node);
        return Err(Failed::Final(Error::Refused { node: node.to_owned(), why }));
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
fn message(body: &[u8]) -> String {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    status.get("message").and_then(serde_json::Value::as_str).unwrap_or("refused").to_owned()
}

/// Renews the certificate after two thirds of its lifetime, or when the servers exchange their
/// authority. Checks both periodically.
pub(crate) async fn keep_fresh(
    client: Arc<Client>,
    options: Options,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let interval = CHECK.min(options.heartbeat * 6).max(Duration::from_millis(100));
    loop {
        if stop.run_until_cancelled(clock.sleep(interval)).await.is_none() {
            return;
        }
        let Some(checked) = stop.run_until_cancelled(check(&client, &options, &*clock)).await
        else {
            return;
        };
        if let Err(error) = checked {
            tracing::error!(%error, "the certificate cannot be renewed; retrying");
        }
    }
}

/// Renews the certificate if that is due.
async fn check(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let Some(mut identity) = load(options) else { return join(client, options, clock).await };
    if identity.renew_at <= clock.now() {
        return join(client, options, clock).await;
    }
    let Ok(answer) = client.call(Method::GET, BUNDLE, None).await else {
        return match is_accepted(client, options, clock).await? {
            Some(false) => join(client, options, clock).await,
            Some(true) | None => Ok(()),
        };
    };
    // Servers of older versions do not send a list.
    let told = String::from_utf8_lossy(&answer.body).into_owned();
    let known = identity.authorities.as_ref().or(options.ca.as_ref());
    if answer.code != 200 || known == Some(&told) || options.ca.is_none() {
        return Ok(());
    }
    let newest = |bundle: &str| CertificateDer::from_pem_slice(bundle.as_bytes()).ok();
    let exchanged = newest(&told) != known.and_then(|known| newest(known));
    tracing::info!(exchanged, "the certificate authorities of the servers changed");
    identity.authorities = Some(told);
    enter(client, options, identity)?;
    if exchanged { renew(client, options, clock).await } else { Ok(()) }
}

/// The identity of a simulated node, kept in memory only.
pub(crate) struct SimulatedIdentity {
    client: Arc<Client>,
    ca: Option<String>,
    node: String,
    zone: Option<String>,
}

impl SimulatedIdentity {
    pub(crate) fn new(
        client: Client,
        ca: Option<String>,
        node: &str,
        zone: Option<String>,
    ) -> Self {
        Self { client: Arc::new(client), ca, node: node.to_owned(), zone }
    }

    /// The current credentials.
    pub(crate) fn credentials(&self) -> crate::link::Credentials {
        let client = self.client.clone();
        Arc::new(move || client.access())
    }

    /// Joins or renews, retrying without a limit. Returns when to renew.
    pub(crate) async fn enter(&self, clock: &dyn Clock) -> Result<Timestamp, Error> {
        let key = new_key()?;
        let zone = self.zone.as_deref();
        let applicant = Applicant { node: &self.node, zone, register: false };
        let mut retries = RETRY.retries();
        loop {
            match request(&self.client, &applicant, &key, clock.now()).await {
                Ok(identity) => {
                    let trusted = identity.authorities.as_deref().or(self.ca.as_deref());
                    let trusted = self.ca.as_ref().and(trusted);
                    let tls = tls(trusted, Some(&identity))?;
                    self.client.set_access(Access { tls, token: None });
                    return Ok(identity.renew_at);
                }
                Err(Failed::Unavailable(reason)) => {
                    let wait = retries.failed();
                    let node = &self.node;
                    tracing::warn!(
                        node,
                        reason,
                        ?wait,
                        "a simulated node failed to join; retrying"
                    );
                    clock.sleep(wait).await;
                }
                Err(Failed::Final(error)) => return Err(error),
            }
        }
    }
}
