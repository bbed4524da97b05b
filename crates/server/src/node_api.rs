//! Revoking nodes: `POST /mainstay/v1/nodes/NAME/revoke`, and the deletion of Nodes, which
//! revokes them as well.

use http::Method;
use http::request::Parts;
use mainstay_controller::liveness::AGENT_READY;
use mainstay_store::builtin::{Node, NodeCondition};
use mainstay_store::meta::{ConditionStatus, Time};
use mainstay_store::object::{Key, Resource};
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Deleted, Subresource, WriteOptions};
use mainstay_store::status::{Details, Error, Reason};
use mainstay_store::strategy::DeleteOptions;

use crate::certificates;
use crate::reply::{self, Reply};
use crate::service::{App, Asked, wrong_method};
use crate::token_api;

/// The reason of conditions that are Unknown because the certificates of the node were revoked.
const REVOKED: &str = "CertificateRevoked";

/// The node that a path wants revoked.
pub(crate) fn revoked(path: &str) -> Option<&str> {
    let node = path.strip_prefix("/mainstay/v1/nodes/")?.strip_suffix("/revoke")?;
    (!node.is_empty() && !node.contains('/')).then_some(node)
}

/// Puts it in the books, whether it is allowed or not.
pub(crate) fn note(node: &str, asked: &mut Asked) {
    asked.changes = true;
    asked.resource = Some(Resource::from_stored("nodecertificates"));
    asked.verb = "delete";
    node.clone_into(&mut asked.name);
}

/// Revokes the certificates and join tokens of a node; the caller has checked that the user is
/// an admin. Doing it again is harmless.
pub(crate) async fn revoke(app: &App, parts: &Parts, node: &str) -> Result<Reply, Error> {
    if parts.method != Method::POST {
        return Err(wrong_method());
    }
    take_away(app, node, None).await?;
    mark_revoked(app, node).await?;
    let (name, kind) = (node.to_owned(), "nodes".to_owned());
    Ok(reply::success(&Details { name, kind, ..Details::default() }))
}

/// Revokes the certificates of a node first, so that no join gets in while its tokens go.
async fn take_away(app: &App, node: &str, uid: Option<&str>) -> Result<(), Error> {
    let done = app.certificates.revoke(node, uid).await;
    done.map_err(|error| Error::new(Reason::ServiceUnavailable, error.to_string()))?;
    app.tokens.revoke_of_node(node).await.map_err(token_api::refused)
}

/// Deletes a Node, or marks it if finalizers hold it. Either way its certificates and tokens are
/// revoked: before, so that nobody gets in while it goes, and again after, for tokens that were made
/// meanwhile. A deletion that would be refused revokes nothing.
pub(crate) async fn delete(
    app: &App,
    kind: &Kind,
    key: &Key,
    delete: &DeleteOptions,
    options: &WriteOptions,
) -> Result<Deleted, Error> {
    let trial = WriteOptions { dry_run: true, ..options.clone() };
    let tried = app.resources.delete(kind, key, delete, &trial).await?;
    if options.dry_run {
        return Ok(tried);
    }
    take_away(app, key.name(), Some(&certificates::uid(tried.record()))).await?;
    let deleted = app.resources.delete(kind, key, delete, options).await?;
    take_away(app, key.name(), Some(&certificates::uid(deleted.record()))).await?;
    if let Deleted::Marked(_) = deleted {
        mark_revoked(app, key.name()).await?;
    }
    Ok(deleted)
}

/// Writes into the Node, if there is one, that its agent cannot report any more. The heartbeats it
/// sent before would keep it Ready until they are too old.
async fn mark_revoked(app: &App, name: &str) -> Result<(), Error> {
    let now = Time::new(app.clock.now());
    let options = mainstay_controller::write::options("mainstay-server");
    let mark = |node: &mut Node| revoked_conditions(&mut node.status.conditions, now);
    let status = Some(Subresource::Status);
    match app.resources.modify_as(None, name, status, &options, mark).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Makes the conditions that an agent reports Unknown, until it joins again and reports.
fn revoked_conditions(conditions: &mut Vec<NodeCondition>, now: Time) {
    for kind in ["Ready", AGENT_READY] {
        let known = conditions.iter_mut().find(|condition| condition.kind == kind);
        let since = match &known {
            Some(known) if known.status == ConditionStatus::Unknown => known.last_transition_time,
            _ => Some(now),
        };
        let condition = NodeCondition {
            last_heartbeat_time: known.as_ref().and_then(|known| known.last_heartbeat_time),
            last_transition_time: since,
            message: Some(
                "the node's certificates were revoked: its agent cannot report until it joins again"
                    .to_owned(),
            ),
            reason: Some(REVOKED.to_owned()),
            status: ConditionStatus::Unknown,
            kind: kind.to_owned(),
        };
        match known {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
}
