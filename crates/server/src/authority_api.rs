//! The certificate authority over HTTP. Everybody may read whom to trust
//! (`GET /mainstay/v1/ca`, PEM); admins look at the authority (`GET /mainstay/v1/authority`),
//! exchange it (`POST …/rotate`) and finish that (`POST …/finish`).

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use mainstay_store::builtin::{Lease, Node};
use mainstay_store::object::Resource;
use mainstay_store::status::{Error, Reason};
use serde_json::{Value, json};

use crate::authorize::own::NODE_LEASES;
use crate::reply::{self, Reply};
use crate::service::{App, Asked, wrong_method};
use crate::tls;

/// Where everybody may read whom to trust.
pub(crate) const BUNDLE: &str = "/mainstay/v1/ca";
/// How long an exchange may take until this server shows it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The trusted authorities, as PEM. A client that does not trust the connection yet must compare them
/// with a fingerprint.
pub(crate) fn bundle(app: &App) -> Reply {
    let mut reply = reply::text(StatusCode::OK, app.authority.current().bundle());
    let pem = HeaderValue::from_static("application/x-pem-file");
    reply.headers_mut().insert(CONTENT_TYPE, pem);
    reply
}

/// A request about the authority.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand {
    Show,
    Rotate,
    Finish,
}

/// The request that a path stands for, if it is one of these.
pub(crate) fn named(path: &str) -> Option<Errand> {
    match path.strip_prefix("/mainstay/v1/authority")? {
        "" => Some(Errand::Show),
        "/rotate" => Some(Errand::Rotate),
        "/finish" => Some(Errand::Finish),
        _ => None,
    }
}

impl Errand {
    /// Puts it in the books, whether it is allowed or not.
    pub(crate) fn note(self, asked: &mut Asked) {
        asked.resource = Some(Resource::from_stored("authorities"));
        asked.changes = !matches!(self, Self::Show);
    }

    /// Answers; the caller has checked that the user is an admin.
    pub(crate) async fn answer(self, app: &App, parts: &Parts) -> Result<Reply, Error> {
        // Nodes that must join again, because they had nothing but the authority that was given up.
        let mut cut_off = Vec::new();
        match (self, &parts.method) {
            (Self::Show, &Method::GET) => {}
            (Self::Rotate, &Method::POST) => {
                app.authority.rotate().await.map_err(unavailable)?;
                settled(app, true).await?;
            }
            (Self::Finish, &Method::POST) => {
                let force = parts.uri.query().is_some_and(|query| query.contains("force=true"));
                let behind = behind(app).await?;
                if !behind.is_empty() && !force {
                    return Err(still_needed(&behind));
                }
                app.authority.finish().await.map_err(unavailable)?;
                settled(app, false).await?;
                cut_off = behind;
            }
            _ => return Err(wrong_method()),
        }
        let mut shown = show(app).await?;
        if !cut_off.is_empty() {
            shown["nodesOfPrevious"] = json!(cut_off);
        }
        Ok(reply::value(StatusCode::OK, &shown))
    }
}

fn unavailable(error: tls::Error) -> Error {
    Error::new(Reason::ServiceUnavailable, error.to_string())
}

fn still_needed(behind: &[String]) -> Error {
    let message = format!(
        "{} nodes have certificates of the old authority only: {}; their agents renew them by themselves once they are up; revoke nodes that are gone for good, or finish with --force",
        behind.len(),
        behind.join(", ")
    );
    Error::new(Reason::Conflict, message)
}

/// Waits until this server serves with what is stored.
async fn settled(app: &App, two: bool) -> Result<(), Error> {
    let shown = async {
        while app.authority.current().previous().is_some() != two {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shown).await.map_err(|_| {
        let message = "stored, but this server does not serve with it yet; look again later";
        Error::new(Reason::ServiceUnavailable, message)
    })
}

async fn show(app: &App) -> Result<Value, Error> {
    let authority = app.authority.current();
    let described = |pem: &str| -> Option<Value> {
        let der = tls::der(pem).ok()?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
        let time = |time: x509_parser::time::ASN1Time| {
            jiff::Timestamp::from_second(time.timestamp()).ok().map(|time| time.to_string())
        };
        let validity = parsed.validity();
        Some(json!({
            "name": tls::name(pem).ok()?,
            "fingerprint": tls::fingerprint(&der),
            "notBefore": time(validity.not_before),
            "notAfter": time(validity.not_after),
        }))
    };
    Ok(json!({
        "current": described(authority.certificate()),
        "previous": authority.previous().and_then(described),
        "nodesOfPrevious": behind(app).await?,
    }))
}

/// The nodes that have a certificate of the old authority, and none of the new one.
async fn behind(app: &App) -> Result<Vec<String>, Error> {
    let authority = app.authority.current();
    if authority.previous().is_none() {
        return Ok(Vec::new());
    }
    let now = app.clock.now();
    let records = app.certificates.records();
    let mut behind: Vec<String> = Vec::new();
    for (node, record) in &records {
        let mut good = record.certificates.iter().filter(|issued| issued.expires > now).peekable();
        if good.peek().is_some() && !good.any(|issued| issued.authority == authority.name()) {
            behind.push(node.clone());
        }
    }
    // Agents of older versions have certificates that no record lists; they have heartbeats.
    let kinds = app.resources.registry();
    if kinds.find("coordination.k8s.io", "v1", "leases").is_some() {
        let leases = app.resources.list_as::<Lease>(Some(NODE_LEASES)).await?;
        let names = leases.into_iter().map(|lease| lease.metadata.name);
        for node in names.filter(|node| !records.contains_key(node)) {
            // The heartbeat of a node that was removed needs nothing.
            if app.resources.get_as::<Node>(None, &node).await?.is_some() {
                behind.push(node);
            }
        }
    }
    behind.sort();
    behind.dedup();
    Ok(behind)
}
