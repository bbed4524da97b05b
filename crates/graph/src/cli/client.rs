//! The HTTP requests of the commands. The caller of [`super::run_with`] brings the client, so that
//! this crate needs neither TLS nor an HTTP client.

use std::future::Future;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Target;

/// Why a request has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The request is wrong: a bad URL, or a certificate file that cannot be read.
    #[error("{0}")]
    Usage(String),
    /// The server cannot be reached, or broke the response off.
    #[error("{0}")]
    Unreachable(String),
}

/// An HTTP client.
pub trait Fetch: Sync {
    /// Sends a request with a JSON body; returns the status and the body of the response.
    fn fetch(
        &self,
        target: &Target,
        method: &str,
        url: &str,
        body: Option<String>,
    ) -> impl Future<Output = Result<(u16, String), NoAnswer>> + Send;
}

/// A client that also reads answers line by line while they arrive.
pub trait Follow: Fetch {
    /// Sends a GET request and calls `line` for each line of the answer, until it returns false.
    /// Returns the status, and the body if it is not a success.
    fn follow(
        &self,
        target: &Target,
        url: &str,
        line: &mut (dyn FnMut(&str) -> bool + Send),
    ) -> impl Future<Output = Result<(u16, String), NoAnswer>> + Send;
}

/// The characters that a query value is escaped for.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// The URL of a resource below `base`, with its query.
pub(super) fn url(base: &str, path: &str, arguments: &[(&str, Option<String>)]) -> String {
    let given = arguments.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let query: Vec<String> = given
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ESCAPED)))
        .collect();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{}/scheduler/{path}{mark}{}", base.trim_end_matches('/'), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        let arguments =
            [("key", Some("a/b c&d".to_owned())), ("txn", None), ("x", Some("1".into()))];
        let url = url("http://host/", "graph", &arguments);
        assert_eq!(url, "http://host/scheduler/graph?key=a/b%20c%26d&x=1");
        assert_eq!(super::url("http://host", "status", &[]), "http://host/scheduler/status");
    }
}
