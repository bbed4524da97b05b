//! Asking a live engine.

use std::fmt::Write;
use std::future::Future;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::Target;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It was asked for in a way that cannot be.
    #[error("{0}")]
    Usage(String),
    /// Nobody answered, or not to the end.
    #[error("{0}")]
    Unreachable(String),
}

/// Fetches something over HTTP.
pub trait Fetch: Sync {
    /// The status and the body; an error if there was no answer.
    fn fetch(
        &self,
        target: &Target,
        method: &str,
        url: &str,
        body: Option<String>,
    ) -> impl Future<Output = Result<(u16, String), NoAnswer>> + Send;
}

/// Fetches without encryption.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpFetch;

impl Fetch for HttpFetch {
    async fn fetch(
        &self,
        target: &Target,
        method: &str,
        url: &str,
        body: Option<String>,
    ) -> Result<(u16, String), NoAnswer> {
        if url.starts_with("https:") {
            let reason = "this program does not speak TLS; `mainstay graph` does";
            return Err(NoAnswer::Usage(format!("{url}: {reason}")));
        }
        let request = hyper::Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", "application/json");
        let request = match &target.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| NoAnswer::Usage(format!("{url}: {error}")))?;
        let unreachable =
            |error: &dyn std::error::Error| NoAnswer::Unreachable(format!("{url}: {error}"));
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request).await.map_err(|error| unreachable(&error))?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| unreachable(&error))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }
}

/// The address of a question.
pub(super) fn url(base: &str, path: &str, arguments: &[(&str, Option<String>)]) -> String {
    let mut url = format!("{}/scheduler/{path}", base.trim_end_matches('/'));
    let given = arguments.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    for (position, (name, value)) in given.enumerate() {
        let _ = write!(url, "{}{name}=", if position == 0 { '?' } else { '&' });
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b':' => {
                    url.push(byte as char);
                }
                byte => {
                    let _ = write!(url, "%{byte:02X}");
                }
            }
        }
    }
    url
}
