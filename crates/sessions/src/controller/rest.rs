//! REST endpoints beside the objects: instance pools, placement of an application, logs.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use http::{StatusCode, header};
use mainstay_placement::machines::Considered;
use serde::Deserialize;

use super::handle::Handle;
use crate::engine::{ApplicationView, key};

/// The query of a log request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogQuery {
    tail: u64,
    follow: bool,
}

pub(super) fn routes(handle: Handle) -> Router {
    Router::new()
        .route("/mainstay/v1/sessions/pools", get(pools))
        .route("/mainstay/v1/namespaces/{namespace}/applications/{name}/placement", get(placement))
        .route("/mainstay/v1/namespaces/{namespace}/instances/{name}/log", get(log))
        .with_state(handle)
}

async fn pools(State(handle): State<Handle>) -> axum::Json<Vec<ApplicationView>> {
    axum::Json(handle.top().await)
}

async fn placement(
    State(handle): State<Handle>,
    Path((namespace, name)): Path<(String, String)>,
) -> axum::Json<Vec<Considered>> {
    axum::Json(handle.explain(key(&namespace, &name)).await)
}

async fn log(
    State(handle): State<Handle>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
) -> Response {
    let mut chunks = handle.read_log(key(&namespace, &name), query.tail, query.follow).await;
    let first = match chunks.recv().await {
        Some(Ok(first)) => first,
        Some(Err(why)) => return refused(StatusCode::NOT_FOUND, &why),
        None => {
            return refused(
                StatusCode::BAD_GATEWAY,
                "the node closed its stream before the log arrived; try again",
            );
        }
    };
    let over = first.last;
    let rest = stream::unfold((chunks, over), |(mut chunks, over)| async move {
        if over {
            return None;
        }
        match chunks.recv().await? {
            Ok(chunk) => Some((Ok(chunk.data), (chunks, chunk.last))),
            Err(why) => Some((Err(std::io::Error::other(why)), (chunks, true))),
        }
    });
    let all = futures_util::StreamExt::chain(
        stream::once(std::future::ready(Ok::<_, std::io::Error>(first.data))),
        rest,
    );
    let body = Body::from_stream(all);
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// An error as the API's `Status`.
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
