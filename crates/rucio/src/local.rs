//! Serves the REST API to commands of the same process, without a server.

use axum::body::Body;
use axum::http::Request;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use mainstay_rules::cli::{Answer, Error, Pieces, Remote};
use serde_json::Value;
use tower::ServiceExt;

use crate::{Caller, Service, router};

/// The REST API served in this process, to the account `root`.
#[derive(Clone, Debug)]
pub struct Local {
    router: axum::Router,
}

impl Local {
    /// Serves a catalog to commands of this process.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self { router: router(service) }
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<axum::response::Response, Error> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .body(body)
            .map_err(|error| Error::Usage(error.to_string()))?;
        request.extensions_mut().insert(Caller {
            account: "root".to_owned(),
            privileged: true,
            read_only: false,
        });
        Ok(self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {}))
    }
}

impl Remote for Local {
    fn send<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        async move {
            let answer = self.ask(method, path, body).await?;
            let status = answer.status().as_u16();
            let bytes = answer
                .into_body()
                .collect()
                .await
                .map_err(|error| Error::Answer(error.to_string()))?
                .to_bytes();
            Ok(Answer { status, body: String::from_utf8_lossy(&bytes).into_owned() })
        }
        .boxed()
    }

    fn stream<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Pieces, Error>> {
        async move {
            let answer = self.ask("GET", path, None).await?;
            let status = answer.status().as_u16();
            let body = answer.into_body().into_data_stream();
            let body = body.map(|piece| piece.map_err(|error| Error::Answer(error.to_string())));
            Ok(Pieces { status, body: body.boxed() })
        }
        .boxed()
    }
}
