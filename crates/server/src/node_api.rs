//! Revoking nodes: `POST /mainstay/v1/nodes/NAME/revoke`, and what follows when a Node is deleted.

use http::Method;
use http::request::Parts;
use mainstay_store::object::Resource;
use mainstay_store::status::{Details, Error, Reason};

use crate::reply::{self, Reply};
use crate::service::{App, Asked, wrong_method};
use crate::token_api;

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

/// Revokes the certificates and join tokens of a node; whoever calls has checked that the user is
/// an admin. Doing it again is harmless.
pub(crate) async fn revoke(app: &App, parts: &Parts, node: &str) -> Result<Reply, Error> {
    if parts.method != Method::POST {
        return Err(wrong_method());
    }
    app.tokens.revoke_of_node(node).await.map_err(token_api::refused)?;
    let done = app.certificates.revoke(node).await;
    done.map_err(|error| Error::new(Reason::ServiceUnavailable, error.to_string()))?;
    let (name, kind) = (node.to_owned(), "nodes".to_owned());
    Ok(reply::success(&Details { name, kind, ..Details::default() }))
}

/// After a Node was deleted: its tokens go as well, and its certificates are revoked before the
/// deletion is answered. A failure here leaves that to the feed of deleted Nodes.
pub(crate) async fn deleted(app: &App, node: &str) {
    if let Ok(None) = app.resources.get_as::<mainstay_store::builtin::Node>(None, node).await {
        if let Err(error) = app.tokens.revoke_of_node(node).await {
            tracing::warn!(node, %error, "the join tokens of a deleted node were not revoked");
        }
        app.certificates.settled(node).await;
    }
}
