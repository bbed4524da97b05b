//! Joining: `POST /mainstay/v1/join` signs the key of an agent for the node it speaks for, and
//! `GET` tells the bearer of a join token for which node it is.
//!
//! The caller has a join token, or the certificate of a node, which it renews. The certificate
//! names that node, whatever the request says. A node's zone is fixed when it joins first: the
//! token says it, or else the agent. Repeating a join with the same key is harmless.

use http::request::Parts;
use http::{Method, StatusCode};
use mainstay_store::builtin::Node;
use mainstay_store::object::Resource;
use mainstay_store::resources::WriteOptions;
use mainstay_store::status::{Error, Reason};
use mainstay_store::strategy::DeleteOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::authorize;
use crate::body::{self, Incoming};
use crate::certificates::{self, Grounds, Issued, NodeRecord, Session, expiry};
use crate::identity::{Role, User};
use crate::negotiate::Format;
use crate::reply::{self, Reply};
use crate::service::{App, Asked, bearer, wrong_method};
use crate::tls::{self, NodeRequest};
use crate::token_api;
use crate::tokens::Description;

/// Where an agent joins.
pub(crate) const PATH: &str = "/mainstay/v1/join";
/// The label that has a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The label that has a node's name.
const HOST: &str = "kubernetes.io/hostname";

/// The request of an agent. Older agents send the request for a certificate only.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wish {
    csr: String,
    /// The node it wants to be.
    #[serde(default)]
    node: Option<String>,
    /// The zone it says it is in.
    #[serde(default)]
    zone: Option<String>,
    /// Whether there shall be a Node object for it.
    #[serde(default)]
    register: bool,
}

pub(crate) async fn answer(
    app: &App,
    parts: &Parts,
    incoming: Incoming,
    user: &User,
    asked: &mut Asked,
) -> Result<Reply, Error> {
    let token = match bearer(parts) {
        Some(token) => Some((token, described(app, token, user, asked.verb).await?)),
        None => None,
    };
    if parts.method == Method::GET {
        let Some((_, token)) = token else { return Err(wrong_method()) };
        let told = json!({"node": token.node, "nodePrefix": token.node_prefix, "zone": token.zone});
        return Ok(reply::value(StatusCode::OK, &told));
    }
    if parts.method != Method::POST {
        return Err(wrong_method());
    }
    asked.changes = true;
    asked.resource = Some(Resource::from_stored("nodecertificates"));
    user.node.clone().unwrap_or_default().clone_into(&mut asked.name);
    let bytes = body::read_small(parts, incoming, &app.limits).await?;
    let object = body::object(Format::Json, &bytes)?.object;
    let wish = Wish::deserialize(Value::Object(object))
        .map_err(|error| Error::bad_request(format!("join: {error}")))?;
    let request = NodeRequest::read(&wish.csr).map_err(|error| {
        let message = format!("csr: it must be a certificate request as PEM: {error}");
        Error::new(Reason::Invalid, message)
    })?;
    let node = match &token {
        Some((_, token)) => token.node_for(wish.node.as_deref()).map_err(forbidden)?,
        None => own_node(user, wish.node.as_deref(), asked.verb)?,
    };
    node.clone_into(&mut asked.name);
    let (grounds, zone) = match &token {
        Some((bytes, token)) => {
            let record = app.certificates.of_node(&node).await.map_err(unavailable)?;
            let fresh = record.takes_token(token.created);
            fresh.map_err(|refusal| forbidden(refusal.to_string()))?;
            let zone = zone_of(app, &node, &record, token, &wish).await?;
            app.tokens.consume(bytes, &node, &request.key()).await.map_err(token_api::refused)?;
            (Grounds::Token(token.created), zone)
        }
        None => {
            let session = parts.extensions.get::<Arc<Session>>().cloned();
            let session = session.ok_or_else(|| authorize::forbidden_path(user, "join", PATH))?;
            (Grounds::Certificate(session.serial.clone()), None)
        }
    };
    let (uid, made) = match (&token, wish.register) {
        (Some(_), true) => register(app, &node, zone.as_deref()).await?,
        _ => (existing(app, &node).await?.map(|node| node.metadata.uid), false),
    };
    let granted = grant(app, request, &node, &grounds, uid.clone(), zone.as_deref()).await;
    let refused = granted.is_err();
    if let (true, true, Some(uid)) = (refused, made, uid) {
        take_back(app, &node, uid).await;
    }
    granted
}

/// Removes the Node that was just made for a join that is then refused: the node was revoked
/// meanwhile.
async fn take_back(app: &App, node: &str, uid: String) {
    let noted = app.certificates.disown(node, &uid).await;
    let delete = DeleteOptions { uid: Some(uid), ..DeleteOptions::default() };
    let options = WriteOptions::default();
    let removed = app.resources.delete_as::<Node>(None, node, &delete, &options).await;
    if let Some(error) = noted.err().map(unavailable).or(removed.err()) {
        tracing::warn!(node, %error, "the Node of a refused join was not removed");
    }
}

/// Refuses to give anything to a Node that is on its way out.
fn staying(node: Node) -> Result<Node, Error> {
    let name = &node.metadata.name;
    match node.metadata.deletion_timestamp {
        None => Ok(node),
        Some(_) => {
            let why = format!(
                "node {name} is being deleted, but its finalizers hold it; join again when it is gone"
            );
            Err(Error::new(Reason::Conflict, why))
        }
    }
}

/// The description of the token that a request carries.
async fn described(app: &App, token: &[u8], user: &User, verb: &str) -> Result<Description, Error> {
    if user.role != Some(Role::Node) {
        return Err(authorize::forbidden_path(user, verb, PATH));
    }
    let known = app.tokens.describe(token).await;
    known.ok_or_else(|| Error::new(Reason::Unauthorized, "Unauthorized"))
}

/// The node whose certificate a request shows.
fn own_node(user: &User, asked: Option<&str>, verb: &str) -> Result<String, Error> {
    match (&user.node, asked) {
        (None, _) => Err(authorize::forbidden_path(user, verb, PATH)),
        (Some(node), Some(asked)) if node != asked => {
            Err(forbidden(format!("the certificate is for node {node}")))
        }
        (Some(node), _) => Ok(node.clone()),
    }
}

fn forbidden(why: String) -> Error {
    Error::new(Reason::Forbidden, why)
}

fn unavailable(error: mainstay_store::objects::Error) -> Error {
    Error::new(Reason::ServiceUnavailable, error.to_string())
}

async fn existing(app: &App, node: &str) -> Result<Option<Node>, Error> {
    app.resources.get_as::<Node>(None, node).await?.map(staying).transpose()
}

/// The zone a node is in once it has joined with a token.
async fn zone_of(
    app: &App,
    node: &str,
    record: &NodeRecord,
    token: &Description,
    wish: &Wish,
) -> Result<Option<String>, Error> {
    let labelled =
        existing(app, node).await?.and_then(|mut node| node.metadata.labels.remove(ZONE));
    let recorded = labelled.or_else(|| record.zone.clone());
    let asked = wish.zone.as_deref().filter(|zone| !zone.is_empty());
    let fixed = recorded.is_some() || record.joined();
    decide_zone(node, token.zone.as_deref(), asked, recorded, fixed)
        .map_err(|why| Error::new(Reason::Invalid, why))
}

/// Decides about a node's zone: the token's, else the agent's at its first join, else none.
fn decide_zone(
    node: &str,
    token: Option<&str>,
    asked: Option<&str>,
    recorded: Option<String>,
    fixed: bool,
) -> Result<Option<String>, String> {
    if let (Some(token), Some(asked)) = (token, asked)
        && token != asked
    {
        return Err(format!(
            "zone: the token is for zone {token}, but the agent says {asked}; start the agent without --zone"
        ));
    }
    match (token.or(asked), &recorded) {
        (Some(wanted), Some(recorded)) if wanted != recorded => Err(format!(
            "zone: node {node} is in zone {recorded}, not {wanted}; an administrator can change that with `kubectl label node {node} {ZONE}={wanted} --overwrite`"
        )),
        (Some(wanted), None) if fixed => Err(format!(
            "zone: node {node} joined without a zone, and cannot choose {wanted} now; an administrator can set it with `kubectl label node {node} {ZONE}={wanted}`"
        )),
        (Some(wanted), None) => Ok(Some(wanted.to_owned())),
        _ => Ok(recorded),
    }
}

/// Makes the Node object of a node that joins, or labels the one that is there. Says its identity,
/// and whether it was made now.
async fn register(
    app: &App,
    name: &str,
    zone: Option<&str>,
) -> Result<(Option<String>, bool), Error> {
    let options = WriteOptions { manager: "mainstay-server".to_owned(), ..WriteOptions::default() };
    let mut labels = vec![(HOST.to_owned(), name.to_owned())];
    labels.extend(zone.map(|zone| (ZONE.to_owned(), zone.to_owned())));
    let mut node = Node::default();
    node.metadata.name = name.to_owned();
    node.metadata.labels.extend(labels.iter().cloned());
    match app.resources.create_as(&node, &options).await {
        Ok(made) => return Ok((Some(made.metadata.uid), true)),
        Err(error) if error.is_already_exists() => {}
        Err(error) => return Err(error),
    }
    let labelled = app.resources.modify_as(None, name, None, &options, |node: &mut Node| {
        for (label, value) in &labels {
            node.metadata.labels.entry(label.clone()).or_insert_with(|| value.clone());
        }
    });
    match labelled.await {
        Ok((node, _)) => Ok((Some(staying(node)?.metadata.uid), false)),
        Err(error) => Err(error),
    }
}

/// Records a certificate and signs it.
async fn grant(
    app: &App,
    request: NodeRequest,
    node: &str,
    grounds: &Grounds,
    uid: Option<String>,
    zone: Option<&str>,
) -> Result<Reply, Error> {
    let (now, life) = (app.clock.now(), app.limits.node_certificate);
    let authority = app.authority.current();
    let serial = tls::serial().map_err(Error::internal)?;
    let issued = Issued {
        serial: serial.clone(),
        key: request.key(),
        authority: authority.name().to_owned(),
        uid,
        expires: expiry(now, life),
    };
    app.certificates.issue(node, grounds, &issued, zone).await.map_err(|error| match error {
        certificates::Error::Refused(refusal) => forbidden(refusal.to_string()),
        certificates::Error::Store(error) => unavailable(error),
    })?;
    let signed = authority.node(request, node, &serial, now, life);
    let certificate = signed.map_err(|error| {
        Error::new(Reason::Invalid, format!("csr: its key cannot be certified: {error}"))
    })?;
    let granted = json!({
        "certificate": certificate,
        "node": node,
        "zone": zone,
        "authorities": authority.bundle(),
        "lifetimeSeconds": life.as_secs(),
    });
    Ok(reply::value(StatusCode::CREATED, &granted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_the_tokens_or_the_agents_first_word() {
        type Text = Option<&'static str>;
        type Case = ((Text, Text, Text, bool), Result<Text, &'static str>);
        let cases: [Case; 11] = [
            ((None, None, None, false), Ok(None)),
            ((None, Some("a"), None, false), Ok(Some("a"))),
            ((Some("a"), None, None, false), Ok(Some("a"))),
            ((Some("a"), Some("a"), None, false), Ok(Some("a"))),
            ((Some("a"), Some("b"), None, false), Err("the token is for zone a")),
            ((None, Some("b"), Some("a"), true), Err("is in zone a, not b")),
            ((Some("b"), None, Some("a"), true), Err("is in zone a, not b")),
            ((None, None, Some("a"), true), Ok(Some("a"))),
            ((None, Some("a"), Some("a"), true), Ok(Some("a"))),
            ((None, Some("a"), None, true), Err("joined without a zone")),
            ((None, None, None, true), Ok(None)),
        ];
        for ((token, asked, recorded, fixed), expected) in cases {
            let zone = decide_zone("n1", token, asked, recorded.map(str::to_owned), fixed);
            match (zone, expected) {
                (Ok(zone), Ok(expected)) => assert_eq!(zone.as_deref(), expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (zone, expected) => panic!("{token:?} {asked:?}: {zone:?}, not {expected:?}"),
            }
        }
    }
}
