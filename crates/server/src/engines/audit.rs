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
    if let (Some(note), Some(facts)) = (note, response.extensions().get::<rest::AuditFacts>()) {
        note.account(&facts.account);
        note.claimed(&facts.claimed);
        note.object(&facts.described.resource, &facts.described.name);
        note.changes(facts.described.changes);
        if facts.denied {
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
