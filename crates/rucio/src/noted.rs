//! What a request is about and who asked, for the log of the server around this surface.

use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;

use super::parts;
use super::route::{self, Found};

/// What the surface has found out about a request: among the extensions of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The account that asks; empty if it is not known.
    pub account: String,
    /// The user that somebody said to be; empty if nobody said.
    pub claimed: String,
    /// What the request is about: the first part of the path, as `rucio/rules`.
    pub resource: String,
    /// The rest of the path.
    pub name: String,
    /// Whether the request asks for a change; a login makes a token and is one.
    pub changes: bool,
    /// Whether the credentials were refused, whatever the status says.
    pub denied: bool,
}

impl Noted {
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

    /// Adds what the answer tells: a login says whose token it made.
    pub(super) fn hear(&mut self, answer: &Response) {
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
    fn a_request_is_named_by_its_path() {
        let mut headers = HeaderMap::new();
        headers.insert("x-rucio-account", "eve".parse().unwrap());
        let noted = Noted::of(&Method::DELETE, "/rules/abc", &headers);
        assert_eq!((noted.resource.as_str(), noted.name.as_str()), ("rucio/rules", "abc"));
        assert!(noted.changes && noted.claimed == "eve" && noted.account.is_empty());
    }
}
