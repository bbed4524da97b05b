//! Adds to the audit lines of requests to an engine the facts that only the engine knows.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use mainstay_rucio as rest;

use crate::audit::AuditNote;

/// Adds the account and the object of a request to the rule engine.
pub(super) async fn rules(request: Request, next: Next) -> Response {
    let note = request.extensions().get::<AuditNote>().cloned();
    let response = next.run(request).await;
    if let (Some(note), Some(noted)) = (note, response.extensions().get::<rest::Noted>()) {
        note.account(&noted.account);
        note.claimed(&noted.claimed);
        note.object(&noted.resource, &noted.name);
        note.changes(noted.changes);
        if noted.denied {
            note.denied();
        }
    }
    response
}

/// Adds the node that the stream of an agent is for.
pub(super) fn stream(extensions: &http::Extensions, node: &str) {
    if let Some(note) = extensions.get::<AuditNote>() {
        note.object("agentstreams", node);
    }
}
