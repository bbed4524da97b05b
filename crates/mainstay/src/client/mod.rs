//! A client for any server that speaks the Kubernetes dialect.
//!
//! It knows no kind: what exists is asked of the server ([`discovery`]), and tables are printed as
//! the server lays them out. [`Client`] sends one request at a time over kept-alive HTTP/1.1
//! connections; [`watch::Follow`] keeps a list current. Enter at [`Connect::client`].

pub(crate) mod connection;
pub(crate) mod discovery;
pub(crate) mod kubeconfig;
pub(crate) mod status;
pub(crate) mod tls;
pub(crate) mod watch;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT, WARNING};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use connection::{Dialer, Sender};
use kubeconfig::Target;
use status::Status;

/// The largest answer that is read: lists are asked for in pages, so a larger one is a mistake.
const LARGEST_ANSWER: usize = 256 << 20;
/// How often a server that says "too many requests" is asked again.
const PATIENCE: u32 = 6;

pub(crate) const JSON: &str = "application/json";
pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";

/// Why a request brought no answer, or a bad one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Kubeconfig(#[from] kubeconfig::Error),
    #[error(transparent)]
    Tls(#[from] tls::Error),
    #[error("cannot connect to {server}: is the server running? (`mainstay up` starts one)")]
    Connect { server: String, source: std::io::Error },
    #[error("the server at {server} did not answer within {}s", timeout.as_secs())]
    Timeout { server: String, timeout: Duration },
    #[error("the connection to the server broke")]
    Broken(#[source] hyper::Error),
    #[error("{0}")]
    Status(Box<Status>),
    #[error("the server's answer to {path} is not what was asked for: {why}")]
    Malformed { path: String, why: String },
}

impl Error {
    /// The server's own error, if it gave one.
    pub(crate) fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Another try may succeed: nothing was refused, the way there failed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken(_) => true,
            Self::Status(status) => status.code == 429 || status.code >= 500,
            _ => false,
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// One request: a path with its query, and perhaps a body.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    accept: &'static str,
    body: Option<(&'static str, Bytes)>,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), accept: JSON, body: None }
    }

    pub(crate) fn send(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: &Value,
    ) -> Self {
        Self {
            method,
            path: path.into(),
            accept: JSON,
            body: Some((content_type, Bytes::from(body.to_string()))),
        }
    }

    /// A request other than GET that says all in its path.
    pub(crate) fn without_body(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), accept: JSON, body: None }
    }

    pub(crate) fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }
}

/// An answer as it comes in.
pub(crate) type Pieces = BoxStream<'static, Result<Bytes, Error>>;

/// A connection to one server as one user; cheap to use from several places at once.
#[derive(Debug)]
pub(crate) struct Client {
    dialer: Dialer,
    authorization: Option<String>,
    namespace: String,
    idle: Mutex<Vec<Sender>>,
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(target: Target, timeout: Duration) -> Result<Self, Error> {
        Ok(Self {
            authorization: target.token.as_ref().map(|token| format!("Bearer {token}")),
            namespace: target.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            dialer: Dialer::new(&target)?,
            idle: Mutex::new(Vec::new()),
            timeout,
        })
    }

    /// The namespace of the kubeconfig's context.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The server's address, for messages.
    pub(crate) fn server(&self) -> &str {
        self.dialer.server()
    }

    /// Sends a request and reads the answer as JSON.
    pub(crate) async fn json(&self, call: Call) -> Result<Value, Error> {
        let path = call.path.clone();
        let bytes = self.bytes(call).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Malformed { path, why: error.to_string() })
    }

    /// Sends a request and reads the whole answer. A busy server is asked again as it says.
    pub(crate) async fn bytes(&self, call: Call) -> Result<Bytes, Error> {
        let mut tries = 0;
        loop {
            let (code, headers, bytes) = tokio::time::timeout(self.timeout, self.whole(&call))
                .await
                .map_err(|_| self.late())??;
            if code.is_success() {
                return Ok(bytes);
            }
            let status = Status::parse(code, &bytes);
            tries += 1;
            if code != StatusCode::TOO_MANY_REQUESTS || tries >= PATIENCE {
                return Err(status.into());
            }
            tokio::time::sleep(pause(&headers, &status)).await;
        }
    }

    /// Sends a request and reads the whole answer, whatever its code says.
    pub(crate) async fn raw(&self, call: &Call) -> Result<(StatusCode, Bytes), Error> {
        let whole = tokio::time::timeout(self.timeout, self.whole(call));
        let (code, _, bytes) = whole.await.map_err(|_| self.late())??;
        Ok((code, bytes))
    }

    /// Sends a request whose answer is a stream; only its head is awaited here.
    pub(crate) async fn stream(&self, call: &Call) -> Result<Incoming, Error> {
        let (_, response) = tokio::time::timeout(self.timeout, self.answer(call))
            .await
            .map_err(|_| self.late())??;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let code = response.status();
        let bytes = tokio::time::timeout(self.timeout, self.collect(call, response))
            .await
            .map_err(|_| self.late())??;
        Err(Status::parse(code, &bytes).into())
    }

    /// Sends a request and hands over the answer piece by piece, whatever its code says. Each piece may
    /// take as long as a whole request.
    pub(crate) async fn pieces(&self, call: &Call) -> Result<(StatusCode, Pieces), Error> {
        let (_, response) = tokio::time::timeout(self.timeout, self.answer(call))
            .await
            .map_err(|_| self.late())??;
        let code = response.status();
        let (server, timeout) = (self.server().to_owned(), self.timeout);
        let late = move || Error::Timeout { server: server.clone(), timeout };
        let body = response.into_body().into_data_stream();
        let pieces = stream::unfold((body, late), move |(mut body, late)| async move {
            let piece = match tokio::time::timeout(timeout, body.next()).await {
                Ok(piece) => piece?.map_err(Error::Broken),
                Err(_) => Err(late()),
            };
            Some((piece, (body, late)))
        });
        Ok((code, pieces.boxed()))
    }

    async fn whole(&self, call: &Call) -> Result<(StatusCode, HeaderMap, Bytes), Error> {
        let (sender, response) = self.answer(call).await?;
        let (code, headers) = (response.status(), response.headers().clone());
        let bytes = self.collect(call, response).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        Ok((code, headers, bytes))
    }

    async fn collect(&self, call: &Call, response: Response<Incoming>) -> Result<Bytes, Error> {
        Limited::new(response.into_body(), LARGEST_ANSWER)
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => Error::Broken(*error),
                Err(_) => Error::Malformed {
                    path: call.path.clone(),
                    why: format!("it is larger than {} MiB", LARGEST_ANSWER >> 20),
                },
            })
    }

    async fn answer(&self, call: &Call) -> Result<(Sender, Response<Incoming>), Error> {
        let request = self.request(call)?;
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut sender) = kept else { break };
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request.clone()).await {
                Ok(response) => return Ok((sender, said(response))),
                // The server closed the idle connection before it took the request.
                Err(error) if error.message().is_some() => {}
                Err(error) if call.method == Method::GET && !error.error().is_parse() => {}
                Err(error) => return Err(Error::Broken(error.into_error())),
            }
        }
        let mut sender = self.dialer.dial().await?;
        let response = sender.send_request(request).await.map_err(Error::Broken)?;
        Ok((sender, said(response)))
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.dialer.prefix(), call.path))
            .header(HOST, self.dialer.authority())
            .header(ACCEPT, call.accept)
            .header(USER_AGENT, concat!("mainstay/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = match &call.body {
            None => Bytes::new(),
            Some((content_type, bytes)) => {
                request = request.header(CONTENT_TYPE, *content_type);
                bytes.clone()
            }
        };
        request
            .body(Full::new(body))
            .map_err(|error| Error::Malformed { path: call.path.clone(), why: error.to_string() })
    }

    fn late(&self) -> Error {
        Error::Timeout { server: self.server().to_owned(), timeout: self.timeout }
    }
}

/// Passes the server's warnings on to the person.
fn said(response: Response<Incoming>) -> Response<Incoming> {
    for warning in response.headers().get_all(WARNING) {
        if let Some(text) = warning.to_str().ok().and_then(warning_text) {
            anstream::eprintln!("Warning: {text}");
        }
    }
    response
}

/// The text of `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(' ')?.1;
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    Some(inner.replace("\\\"", "\"").replace("\\\\", "\\"))
}

fn pause(headers: &HeaderMap, status: &Status) -> Duration {
    let header = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok());
    let details = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    Duration::from_secs(header.or(details).unwrap_or(1).clamp(1, 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_unquoted() {
        let text = warning_text(r#"299 - "unknown field \"spec.x\"""#);
        assert_eq!(text.as_deref(), Some(r#"unknown field "spec.x""#));
        assert_eq!(warning_text("199 - \"other\""), None);
    }
}
