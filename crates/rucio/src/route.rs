//! Finds the handler of a path and method, and the methods of a path.
//!
//! A pattern is a path in which `*` matches one part and `**` one or more parts, which are passed to
//! the handler joined by slashes. The first deciding pattern of the table that matches a path defines
//! the methods of that path, together with earlier matching routes that do not decide. So 404, 405
//! and `Allow` follow from the table alone.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use axum::http::{HeaderMap, Method};
use axum::response::Response;
use futures_util::future::BoxFuture;
use mainstay_rules::error::Result;

use super::routes::ROUTES;
use super::{Call, Reply, Service};

/// The rights that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// None: no token is required.
    Nothing,
    /// None: this is the login, which makes a token.
    Login,
    /// A valid token. The request changes nothing.
    Token,
    /// A valid token of an account that is not limited to reading. Handlers check owners.
    Change,
    /// An administrator's token; the text names the action in refusals.
    Administrator(&'static str),
}

impl Needs {
    /// Whether requests of this kind change anything.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Login | Self::Change | Self::Administrator(_))
    }
}

/// A request to a route that needs no token.
pub(super) struct OpenCall<'a> {
    pub(super) service: &'a Service,
    pub(super) headers: &'a HeaderMap,
    /// The client's address, if known.
    pub(super) from: Option<IpAddr>,
    /// Set once the user that the request names turns out to be one of the catalog.
    pub(super) user_exists: &'a AtomicBool,
}

/// A function that answers a request whose caller is known.
pub(super) type KnownHandler = for<'a> fn(&'a Call, Vec<String>) -> BoxFuture<'a, Result<Reply>>;

/// The function behind a route.
pub(super) enum Handler {
    /// Takes a request whose caller is known, and the parts of the path that `*` and `**` match.
    Known(KnownHandler),
    /// Takes a request from any caller, without its body.
    Open(for<'a> fn(&'a OpenCall<'a>) -> BoxFuture<'a, Result<Response>>),
}

/// One route.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) pattern: &'static str,
    pub(super) needs: Needs,
    pub(super) handler: Handler,
    /// Whether the search for other methods of a matching path ends here.
    pub(super) decides: bool,
}

/// The result of a search for a route.
pub(super) enum Found {
    /// The route, with the parts of the path that its wildcards match.
    Route(&'static Route, Vec<String>),
    /// The path exists with other methods, listed as in `Allow`.
    OtherMethods(String),
    /// The path does not exist.
    Nothing,
}

/// Finds the route of a request. `HEAD` is served by `GET`.
pub(super) fn find(method: &Method, path: &[String]) -> Found {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let mut decided: Option<&str> = None;
    let mut methods: Vec<&str> = Vec::new();
    for route in ROUTES {
        if decided.is_some_and(|pattern| pattern != route.pattern) {
            continue;
        }
        let Some(parts) = parts(route.pattern, path) else { continue };
        if route.method == *method {
            return Found::Route(route, parts);
        }
        if route.decides {
            decided = Some(route.pattern);
        }
        if !methods.contains(&route.method.as_str()) {
            methods.push(route.method.as_str());
            if route.method == Method::GET {
                methods.push("HEAD");
            }
        }
    }
    match methods.is_empty() {
        true => Found::Nothing,
        false => Found::OtherMethods(methods.join(", ")),
    }
}

/// The parts of a path that the wildcards of a pattern match, if it matches.
fn parts(pattern: &str, path: &[String]) -> Option<Vec<String>> {
    let shape: Vec<&str> = pattern.split('/').collect();
    let mut found = Vec::new();
    fits(&shape, path, &mut found).then_some(found)
}

fn fits(shape: &[&str], path: &[String], found: &mut Vec<String>) -> bool {
    match (shape, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (1..=path.len()).any(|taken| {
            let before = found.len();
            found.push(path[..taken].join("/"));
            let fit = fits(rest, &path[taken..], found);
            if !fit {
                found.truncate(before);
            }
            fit
        }),
        (["*", rest @ ..], [part, more @ ..]) => {
            found.push(part.clone());
            let fit = fits(rest, more, found);
            if !fit {
                found.pop();
            }
            fit
        }
        ([word, rest @ ..], [part, more @ ..]) => *word == part.as_str() && fits(rest, more, found),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        super::super::parts(text)
    }

    #[test]
    fn known_paths_list_their_methods_and_others_are_not_found() {
        for (text, methods) in [
            ("ping", Some("GET, HEAD")),
            ("ping/x", None),
            ("", None),
            ("rules/x/locks", Some("GET, HEAD")),
            ("rules/x/colours", None),
            ("rules/s/a/b/history", Some("GET, HEAD")),
            ("dids/s/a/b/c", Some("GET, HEAD, POST")),
            ("dids/s/a/b/status", Some("PUT")),
            ("dids/s/status", Some("GET, HEAD, POST")),
            ("accounts/a/limits/local/R", Some("GET, HEAD, POST, DELETE")),
            ("accounts/a/limits/other", None),
            ("nothing", None),
        ] {
            let allowed = match find(&Method::PATCH, &path(text)) {
                Found::OtherMethods(methods) => Some(methods),
                _ => None,
            };
            assert_eq!(allowed.as_deref(), methods, "{text}");
        }
    }

    #[test]
    fn wildcards_are_passed_to_the_handler() {
        for (text, pattern, expected) in [
            ("dids/s/a/b/files", "dids/*/**/files", &["s", "a/b"][..]),
            ("dids/s/files/files", "dids/*/**/files", &["s", "files"]),
            ("dids/s/files", "dids/*/**", &["s", "files"]),
            ("requests/s/a/b/R", "requests/*/**/*", &["s", "a/b", "R"]),
            ("dids/s/a%2Fb/meta", "dids/*/**/meta", &["s", "a/b"]),
        ] {
            let Found::Route(route, parts) = find(&Method::GET, &path(text)) else {
                panic!("{text} has no route");
            };
            assert_eq!(
                (route.pattern, parts.as_slice()),
                (pattern, &expected.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn no_route_is_hidden_by_another() {
        for route in ROUTES {
            let example = path(&route.pattern.replace("**", "x/y").replace('*', "z"));
            match find(&route.method, &example) {
                Found::Route(found, _) => assert_eq!(found.pattern, route.pattern),
                _ => panic!("{} {} is hidden by another", route.method, route.pattern),
            }
        }
    }

    /// Every other request counts as a change.
    #[test]
    fn only_these_routes_are_read_only() {
        let read_only: Vec<String> = ROUTES
            .iter()
            .filter(|route| route.method != Method::GET && !route.needs.changes())
            .map(|route| format!("{} {}", route.method, route.pattern))
            .collect();
        assert_eq!(
            read_only,
            [
                "POST dids/bulkfiles",
                "POST dids/bulkmeta",
                "POST locks/bulk_locks_for_dids",
                "POST replicas/datasets_bulk",
                "POST replicas/dids",
                "POST replicas/list",
                "POST traces",
            ]
        );
        let changing: Vec<&str> = ROUTES
            .iter()
            .filter(|route| route.method == Method::GET && route.needs.changes())
            .map(|route| route.pattern)
            .collect();
        assert_eq!(changing, ["auth/userpass"]);
    }
}
