//! What people ask about sessions beyond their objects: pools, placement, output.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use http::{StatusCode, header};
use mainstay_placement::machines::Considered;
use serde::Deserialize;

use super::desk::Desk;
use crate::engine::{ApplicationView, key};

/// Which part of an output is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Part {
    tail: u64,
    follow: bool,
}

pub(super) fn routes(desk: Desk) -> Router {
    Router::new()
        .route("/mainstay/v1/sessions/pools", get(pools))
        .route("/mainstay/v1/namespaces/{namespace}/applications/{name}/placement", get(placement))
        .route("/mainstay/v1/namespaces/{namespace}/instances/{name}/log", get(log))
        .with_state(desk)
}

async fn pools(State(desk): State<Desk>) -> axum::Json<Vec<ApplicationView>> {
    axum::Json(desk.top().await)
}

async fn placement(
    State(desk): State<Desk>,
    Path((namespace, name)): Path<(String, String)>,
) -> axum::Json<Vec<Considered>> {
    axum::Json(desk.explain(key(&namespace, &name)).await)
}

async fn log(
    State(desk): State<Desk>,
    Path((namespace, name)): Path<(String, String)>,
    Query(part): Query<Part>,
) -> Response {
    let mut pieces = desk.read_log(key(&namespace, &name), part.tail, part.follow).await;
    let first = match pieces.recv().await {
        Some(Ok(first)) => first,
        Some(Err(why)) => return refused(StatusCode::NOT_FOUND, &why),
        None => return refused(StatusCode::BAD_GATEWAY, "the node went away"),
    };
    let over = first.last;
    let rest = stream::unfold((pieces, over), |(mut pieces, over)| async move {
        if over {
            return None;
        }
        match pieces.recv().await? {
            Ok(piece) => Some((Ok(piece.data), (pieces, piece.last))),
            Err(why) => Some((Err(std::io::Error::other(why)), (pieces, true))),
        }
    });
    let all = futures_util::StreamExt::chain(
        stream::once(std::future::ready(Ok::<_, std::io::Error>(first.data))),
        rest,
    );
    let body = Body::from_stream(all);
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn refused(code: StatusCode, why: &str) -> Response {
    let status = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": why,
        "reason": if code == StatusCode::NOT_FOUND { "NotFound" } else { "ServiceUnavailable" },
        "code": code.as_u16(),
    });
    (code, axum::Json(status)).into_response()
}
