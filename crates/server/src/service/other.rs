//! Requests that are neither about objects nor about discovery: probes, tokens, joining, the
//! authority, the store, documents, and the dialects of engines.

use std::sync::Arc;

use futures_util::StreamExt;
use http::Request;
use http::request::Parts;
use http_body::Frame;
use mainstay_store::status::Error;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{App, Asked, bearer, method_verb, no_such_resource, read_only, revoked};
use crate::answers::Room;
use crate::audit::Tap;
use crate::authorize::{self, Verdict};
use crate::body::{self, Incoming, Inside};
use crate::certificates::Session;
use crate::gate::{Pool, Who};
use crate::identity::User;
use crate::query::Query;
use crate::reply::{self, Body, Reply};

impl App {
    /// Whether a path belongs to a dialect that knows users of its own.
    pub(super) fn has_own_users(&self, path: &str) -> bool {
        self.own_users.iter().any(|start| {
            path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Paths that anybody may read.
    pub(super) fn open_to_all(&self, parts: &Parts, path: &str) -> Option<Result<Reply, Error>> {
        let reply = match path {
            "/version" => crate::health::version(),
            crate::authority_api::BUNDLE => crate::authority_api::bundle(self),
            path => {
                let verbose = Query::parse(parts.uri.query()).is_ok_and(|query| query.verbose);
                crate::health::probe(&self.readiness, path, verbose)?
            }
        };
        Some(read_only(&parts.method).map(|()| reply))
    }

    /// Everything that is neither objects nor discovery.
    pub(super) async fn other(
        &self,
        mut parts: Parts,
        body: Incoming,
        user: &Arc<User>,
        who: &Who,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let path = parts.uri.path();
        let stays = self.streams.iter().any(|start| path.starts_with(start));
        let inside = match stays {
            true => Inside::Place(who.enter(Pool::Watches)?),
            false => body.admit(who, Pool::Requests)?,
        };
        asked.verb = method_verb(&parts.method);
        let errand = crate::store_api::Errand::named(path);
        if let Some(errand) = errand {
            errand.note(asked);
        } else if let Some(errand) = crate::authority_api::named(path) {
            errand.note(asked);
        } else if let Some(node) = crate::node_api::revoked(path) {
            crate::node_api::note(node, asked);
        }
        if authorize::paths::judge(user, parts.method.as_str(), path) != Verdict::Allowed {
            return Err(authorize::forbidden_path(user, asked.verb, path));
        }
        if let Some(rest) = path.strip_prefix("/mainstay/v1/tokens") {
            let id = rest.strip_prefix('/').unwrap_or(rest).to_owned();
            return crate::token_api::answer(self, &parts, body, &id, asked).await;
        }
        if path == crate::join_api::PATH {
            return crate::join_api::answer(self, &parts, body, user, asked).await;
        }
        if let Some(answer) = crate::authority_api::named(path) {
            return answer.answer(self, &parts).await;
        }
        if let Some(node) = crate::node_api::revoked(path) {
            return crate::node_api::revoke(self, &parts, node).await;
        }
        if let Some(errand) = errand {
            let mut reply = crate::store_api::answer(self, &parts.method, errand, asked).await?;
            self.until_credential_ends(&parts, &mut reply, None).await;
            reply.body_mut().holding(inside);
            return Ok(reply);
        }
        if path == "/metrics" {
            read_only(&parts.method)?;
            return Room::new(who, &parts).count(crate::health::metrics(self));
        }
        if let Some(reply) = self.documents.other(path, &parts) {
            read_only(&parts.method)?;
            return Room::new(who, &parts).count(reply?);
        }
        parts.extensions.insert(user.clone());
        let room = Room::new(who, &parts);
        room.count(self.routed(parts, body, inside, stays, asked).await?)
    }

    /// Hands a request over to a further dialect, with its whole body unless it is a stream that
    /// stays open.
    pub(super) async fn routed(
        &self,
        mut parts: Parts,
        body: Incoming,
        inside: Inside,
        stays: bool,
        asked: &mut Asked,
    ) -> Result<Reply, Error> {
        let Some(routes) = self.routes.clone() else {
            return Err(no_such_resource());
        };
        asked.lasting = true;
        // Dialects with users of their own know tokens of their own as well.
        let known = parts.extensions.get::<Arc<User>>().is_some();
        let session = parts.extensions.get::<Arc<Session>>().map(|session| session.ended());
        let end = match bearer(&parts).filter(|_| known) {
            Some(token) => Some(self.tokens.end(token).await),
            None => session.clone().filter(|_| known),
        };
        parts.extensions.insert(asked.note.get_or_insert_default().clone());
        let body = match stays {
            true => {
                let body = until(body.stream(), session.clone());
                match parts.extensions.remove::<Tap>() {
                    Some(tap) => axum::body::Body::new(tap.on(body)),
                    None => body,
                }
            }
            false => body::read(&parts, body, self.limits.body).await?.into(),
        };
        let request = Request::from_parts(parts, body);
        let reply = routes.oneshot(request).await;
        let mut reply = reply.map(|reply| reply.map(Body::routed)).map_err(Error::internal)?;
        if let Some(end) = end {
            let revoked = session.filter(|_| stays).map(|_| reply::grpc_trailers(&revoked()));
            reply.body_mut().until(end, revoked.map(Frame::trailers));
        }
        reply.body_mut().holding(inside);
        Ok(reply)
    }
}

/// A body that ends when `end` is cancelled: nothing more is taken from a node that was revoked.
fn until(body: axum::body::Body, end: Option<CancellationToken>) -> axum::body::Body {
    match end {
        None => body,
        Some(end) => {
            let pieces = body.into_data_stream().take_until(end.cancelled_owned());
            axum::body::Body::from_stream(pieces)
        }
    }
}
