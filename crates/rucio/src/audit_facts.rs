//! Describes a request and its caller, for the server's audit log.

use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;

use super::parts;
use super::route::{self, Found};

/// The facts of a request that are logged; an extension of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFacts {
    /// The account of the caller; empty if unknown.
    pub account: String,
    /// The user or account that an unauthenticated request names; may be empty.
    pub claimed: String,
    /// The first part of the path, such as `rucio/rules`.
    pub resource: String,
    /// The rest of the path.
    pub name: String,
    /// Whether the request asks for a change. A login does: it makes a token.
    pub changes: bool,
    /// Whether the credentials were refused; the status alone does not show it.
    pub denied: bool,
}

impl AuditFacts {
    pub(super) fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        let path = parts(path);
        let claimed = ["x-rucio-username", "x-rucio-account"].iter().find_map(|name| {
            headers.get(*name).and_then(|value| value.to_str().ok()).filter(|name| !name.is_empty())
        });
        Self {
            account: String::new(),
            claimed: claimed.unwrap_or_default().to_owned(),
            resource: format!("rucio/{}", path.first().map_or("", String::as_str)),
            name: path.get(1..).unwrap_or_default().join("/"),
            changes: changes(method, &path),
            denied: false,
        }
    }

    /// Takes the account from the response to a login.
    pub(super) fn add_response(&mut self, answer: &Response) {
        if answer.status() == StatusCode::OK
            && let Some(account) = answer.headers().get("x-rucio-auth-account")
        {
            self.account = String::from_utf8_lossy(account.as_bytes()).into_owned();
        }
        if !self.account.is_empty() {
            self.claimed.clear();
        }
    }
}

/// Whether a request asks for a change.
fn changes(method: &Method, path: &[String]) -> bool {
    match route::find(method, path) {
        Found::Route(route, _) => route.needs.changes(),
        _ => !matches!(*method, Method::GET | Method::HEAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_and_name_come_from_the_path() {
        let mut headers = HeaderMap::new();
        headers.insert("x-rucio-account", "eve".parse().unwrap());
        let facts = AuditFacts::of(&Method::DELETE, "/rules/abc", &headers);
        assert_eq!((facts.resource.as_str(), facts.name.as_str()), ("rucio/rules", "abc"));
        assert!(facts.changes && facts.claimed == "eve" && facts.account.is_empty());
    }
}
