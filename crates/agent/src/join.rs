//! Joining: a token becomes a certificate of the node's own, which is renewed before it ends.
//!
//! The key is made here and never leaves the machine; the server signs it for this node's name,
//! whatever the request says. Once there is a certificate, the token is not needed any more.

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
/// Where a server signs.
const PATH: &str = "/mainstay/v1/join";

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
}

#[derive(Serialize)]
struct Request {
    csr: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    certificate: String,
    node: String,
    lifetime_seconds: u64,
}

fn load(options: &Options) -> Option<Identity> {
    let bytes = std::fs::read(options.state_dir.join(FILE)).ok()?;
    let identity: Identity = serde_json::from_slice(&bytes).ok()?;
    (identity.node == options.node).then_some(identity)
}

fn store(folder: &Path, identity: &Identity) -> Result<(), Error> {
    let (file, next) = (folder.join(FILE), folder.join("identity.next"));
    let bytes =
        serde_json::to_vec(identity).map_err(|error| Error::Certificate(error.to_string()))?;
    let mut written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    written.write_all(&bytes)?;
    written.sync_all()?;
    std::fs::rename(next, file)?;
    Ok(())
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
    Ok(Access { tls: tls(options.ca.as_deref(), identity.as_ref())?, token })
}

/// How the servers are spoken to with a token alone: for nodes that only pretend.
///
/// # Errors
/// [`Error::Certificate`].
pub fn token_access(ca: Option<&str>, token: String) -> Result<Access, Error> {
    Ok(Access { tls: tls(ca, None)?, token: Some(token) })
}

/// Has a certificate made, unless there is one. Waits for a server for as long as it takes.
///
/// # Errors
/// [`Error`]: what waiting does not mend.
pub async fn join(client: &Client, options: &Options, clock: &dyn Clock) -> Result<(), Error> {
    let renew = match load(options) {
        Some(identity) if identity.renew_at > clock.now() => return Ok(()),
        Some(_) => true,
        None => false,
    };
    if !renew && options.token.is_none() {
        return Err(Error::NoToken { node: options.node.clone() });
    }
    let mut pause = PAUSES.0;
    loop {
        match ask(client, options, clock.now()).await {
            Ok(identity) => return enter(client, options, &identity),
            Err(Ask::Away(why)) => {
                tracing::warn!(why, ?pause, "cannot join yet");
                clock.sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            // A certificate that is refused may have ended while the agent was off: the token helps.
            Err(Ask::Never(error)) if renew && options.token.is_some() => {
                tracing::warn!(%error, "the old certificate is not taken any more; using the token");
                let tls = tls(options.ca.as_deref(), None)?;
                client.set_access(Access { tls, token: options.token.clone() });
                match ask(client, options, clock.now()).await {
                    Ok(identity) => return enter(client, options, &identity),
                    Err(Ask::Never(error)) => return Err(error),
                    Err(Ask::Away(_)) => {}
                }
            }
            Err(Ask::Never(error)) => return Err(error),
        }
    }
}

fn enter(client: &Client, options: &Options, identity: &Identity) -> Result<(), Error> {
    store(&options.state_dir, identity)?;
    client.set_access(Access { tls: tls(options.ca.as_deref(), Some(identity))?, token: None });
    Ok(())
}

/// Why no certificate was given.
enum Ask {
    Away(String),
    Never(Error),
}

async fn ask(client: &Client, options: &Options, now: Timestamp) -> Result<Identity, Ask> {
    let never = |error: &dyn std::fmt::Display| Ask::Never(Error::Certificate(error.to_string()));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| never(&error))?;
    let params = CertificateParams::new(Vec::new()).map_err(|error| never(&error))?;
    let csr = params.serialize_request(&key).map_err(|error| never(&error))?;
    let csr = csr.pem().map_err(|error| never(&error))?;
    let body = serde_json::to_vec(&Request { csr }).map_err(|error| never(&error))?;
    let answer = client.call(Method::POST, PATH, Some(body)).await;
    let answer = answer.map_err(|failure| Ask::Away(failure.0))?;
    match answer.code.as_u16() {
        200 | 201 => {}
        401 | 403 | 404 | 422 => {
            let said: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let why = said.get("message").and_then(serde_json::Value::as_str).unwrap_or("refused");
            let (node, why) = (options.node.clone(), why.to_owned());
            return Err(Ask::Never(Error::Refused { node, why }));
        }
        code => return Err(Ask::Away(format!("the server answered {code}"))),
    }
    let granted: Granted = serde_json::from_slice(&answer.body).map_err(|error| never(&error))?;
    if granted.node != options.node {
        let why = format!("the token is for node {}", granted.node);
        return Err(Ask::Never(Error::Refused { node: options.node.clone(), why }));
    }
    let life = Duration::from_secs(granted.lifetime_seconds);
    let renew_at = now.checked_add(life * 2 / 3).unwrap_or(now);
    let node = options.node.clone();
    Ok(Identity { node, certificate: granted.certificate, key: key.serialize_pem(), renew_at })
}

/// Renews the certificate when two thirds of its life are over.
pub(crate) async fn keep_fresh(
    client: Arc<Client>,
    options: Options,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    loop {
        let due = load(&options).map_or(Timestamp::MIN, |identity| identity.renew_at);
        let wait = due.duration_since(clock.now());
        let wait = Duration::try_from(wait).unwrap_or(Duration::ZERO).max(Duration::from_secs(1));
        if stop.run_until_cancelled(clock.sleep(wait)).await.is_none() {
            return;
        }
        let renewed = stop.run_until_cancelled(join(&client, &options, &*clock)).await;
        if let Some(Err(error)) = renewed {
            tracing::error!(%error, "the certificate cannot be renewed; will try again");
        }
    }
}
