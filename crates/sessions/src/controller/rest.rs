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
use tokio::sync::mpsc::Receiver;

use super::handle::Handle;
use crate::engine::{ApplicationView, key};
use crate::protocol::LogChunk;

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
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], log_body(first, chunks)).into_response()
}

/// The body of a log. If the chunks end before the last one, the body ends with an error, so that the
/// client does not take a part of the log for the whole.
fn log_body(first: LogChunk, chunks: Receiver<Result<LogChunk, String>>) -> Body {
    let over = first.last;
    let rest = stream::unfold((chunks, over), |(mut chunks, over)| async move {
        if over {
            return None;
        }
        let cut = "the node disconnected, or the log was read too slowly";
        match chunks.recv().await.unwrap_or_else(|| Err(cut.to_owned())) {
            Ok(chunk) => Some((Ok(chunk.data), (chunks, chunk.last))),
            Err(why) => Some((Err(std::io::Error::other(why)), (chunks, true))),
        }
    });
    let first = stream::once(std::future::ready(Ok::<_, std::io::Error>(first.data)));
    Body::from_stream(futures_util::StreamExt::chain(first, rest))
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn chunk(data: &str, last: bool) -> LogChunk {
        LogChunk { request: 1, data: data.as_bytes().to_vec(), last }
    }

    #[tokio::test]
    async fn a_log_whose_last_chunk_is_missing_ends_with_an_error() {
        for last in [true, false] {
            let (sender, chunks) = mpsc::channel(2);
            sender.send(Ok(chunk("two", last))).await.unwrap();
            drop(sender);
            let body = log_body(chunk("one", false), chunks);
            let read = axum::body::to_bytes(body, 100).await;
            assert_eq!(read.is_ok(), last, "{read:?}");
            if let Ok(text) = read {
                assert_eq!(text, "onetwo");
            }
        }
    }
}
