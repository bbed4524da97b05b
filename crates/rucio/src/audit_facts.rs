//! Describes a request and its caller, for the server's audit log.

use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;

use super::parts;
use super::route::{self, Found};

/// The facts of a request that its method and path tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// The first part of the path, such as `rucio/rules`.
    pub resource: String,
    /// The rest of the path.
    pub name: String,
    /// Whether the request asks for a change. A login does: it makes a token.
    pub changes: bool,
}

impl Described {
    /// Describes a request; `path` is relative to the mount point.
    #[must_use]
    pub fn of(method: &Method, path: &str) -> Self {
        let path = parts(path);
        Self {
            resource: format!("rucio/{}", path.first().map_or("", String::as_str)),
            name: path.get(1..).unwrap_or_default().join("/"),
            changes: changes(method, &path),
        }
    }
}

/// The facts of a request that are logged; an extension of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFacts {
    /// The account of the caller; empty if unknown.
    pub account: String,
    /// The user or account that an unauthenticated request names; may be empty. Only the length of a
    /// name that is no user's: people type passwords where a name belongs.
    pub claimed: String,
    /// Whether it is the name of a user.
    pub(super) claim_exists: bool,
    /// The object and the kind of request.
    pub described: Described,
    /// Whether the credentials were refused; the status alone does not show it.
    pub denied: bool,
}

impl AuditFacts {
    pub(super) fn of(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        let claimed = ["x-rucio-username", "x-rucio-account"].iter().find_map(|name| {
            headers.get(*name).and_then(|value| value.to_str().ok()).filter(|name| !name.is_empty())
        });
        Self {
            account: String::new(),
            claimed: claimed.unwrap_or_default().to_owned(),
            claim_exists: false,
            described: Described::of(method, path),
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
        } else if !self.claim_exists && !self.claimed.is_empty() {
            self.claimed = unknown_user(&self.claimed);
        }
    }
}

/// The words for a name that is no user's.
pub(super) fn unknown_user(name: &str) -> String {
    format!("unknown, {} characters", name.chars().count())
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
        let described = &facts.described;
        assert_eq!((described.resource.as_str(), described.name.as_str()), ("rucio/rules", "abc"));
        assert!(described.changes && facts.claimed == "eve" && facts.account.is_empty());
    }

    #[test]
    fn names_of_users_are_shown_and_others_are_not() {
        let refused = Response::default();
        let claimed = |claim_exists, account: &str| {
            let (claimed, account) = ("hunter2".to_owned(), account.to_owned());
            let mut facts = AuditFacts { claimed, claim_exists, account, ..AuditFacts::default() };
            facts.add_response(&refused);
            facts.claimed
        };
        assert_eq!(claimed(true, ""), "hunter2");
        assert_eq!(claimed(false, ""), "unknown, 7 characters");
        assert_eq!(claimed(false, "root"), "");
    }
}
