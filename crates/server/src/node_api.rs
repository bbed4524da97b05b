//! Revoking nodes: `POST /mainstay/v1/nodes/NAME/revoke`, and the deletion of Nodes, which
//! revokes them as well.

use http::Method;
use http::request::Parts;
use mainstay_store::object::{Key, Resource};
use mainstay_store::registry::Kind;
use mainstay_store::resources::{Deleted, WriteOptions};
use mainstay_store::status::{Details, Error, Reason};
use mainstay_store::strategy::DeleteOptions;

use crate::certificates;
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

/// Revokes the certificates and join tokens of a node; the caller has checked that the user is
/// an admin. Doing it again is harmless.
pub(crate) async fn revoke(app: &App, parts: &Parts, node: &str) -> Result<Reply, Error> {
    if parts.method != Method::POST {
        return Err(wrong_method());
    }
    take_away(app, node, None).await?;
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
    Ok(deleted)
}
