//! Routes: how a path and a method lead to a handler, and which methods a path has.
//!
//! A pattern is a path in which `*` stands for any one part and `**` for one or more parts, which
//! are handed over joined by slashes. The first pattern of the table that fits a path and decides has
//! all methods of that path, besides those of routes before it that do not decide. So 404, 405 and
//! `Allow` follow from the table alone.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method};
use axum::response::Response;
use futures_util::future::BoxFuture;
use mainstay_rules::error::Result;

use super::routes::ROUTES;
use super::{Call, Reply, Service};

/// What a caller must be to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: no token is asked for.
    Nothing,
    /// Nothing yet: it is the login itself, which makes a token.
    Login,
    /// A valid token. The request changes nothing.
    Token,
    /// A valid token of an account that is not limited to reading. Handlers check owners.
    Change,
    /// The right to administer; the text says what for, in refusals.
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
    /// The address it comes from, if that is known.
    pub(super) from: Option<IpAddr>,
}

/// A function that answers a request whose caller is known.
pub(super) type KnownHandler = for<'a> fn(&'a Call, Vec<String>) -> BoxFuture<'a, Result<Reply>>;

/// The function behind a route.
pub(super) enum Handler {
    /// Takes a request whose caller is known, and the parts of the path that `*` and `**` stand for.
    Known(KnownHandler),
    /// Takes a request of anybody, without its body.
    Open(for<'a> fn(&'a OpenCall<'a>) -> BoxFuture<'a, Result<Response>>),
}

/// One route.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) pattern: &'static str,
    pub(super) needs: Needs,
    pub(super) handler: Handler,
    /// Whether its pattern has all methods of a path that it fits.
    pub(super) decides: bool,
}

/// Where a request leads.
pub(super) enum Found {
    /// To this route, with the parts of the path that its pattern leaves open.
    Route(&'static Route, Vec<String>),
    /// Nowhere, but the path has other methods, as `Allow` names them.
    OtherMethods(String),
    /// Nowhere.
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

/// The parts of a path that a pattern leaves open, if it fits.
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
    fn paths_that_exist_name_their_methods_and_others_are_not_found() {
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
            let told = match find(&Method::PATCH, &path(text)) {
                Found::OtherMethods(methods) => Some(methods),
                _ => None,
            };
            assert_eq!(told.as_deref(), methods, "{text}");
        }
    }

    #[test]
    fn open_parts_of_a_pattern_are_handed_over() {
        for (text, pattern, expected) in [
            ("dids/s/a/b/files", "dids/*/**/files", &["s", "a/b"][..]),
            ("dids/s/files/files", "dids/*/**/files", &["s", "files"]),
            ("dids/s/files", "dids/*/**", &["s", "files"]),
            ("requests/s/a/b/R", "requests/*/**/*", &["s", "a/b", "R"]),
            ("dids/s/a%2Fb/meta", "dids/*/**/meta", &["s", "a/b"]),
        ] {
            let Found::Route(route, parts) = find(&Method::GET, &path(text)) else {
                panic!("{text} leads nowhere");
            };
            assert_eq!(
                (route.pattern, parts.as_slice()),
                (pattern, &expected.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn each_route_is_reached_by_an_example_of_its_pattern() {
        for route in ROUTES {
            let example = path(&route.pattern.replace("**", "x/y").replace('*', "z"));
            match find(&route.method, &example) {
                Found::Route(found, _) => assert_eq!(found.pattern, route.pattern),
                _ => panic!("{} {} is hidden by another", route.method, route.pattern),
            }
        }
    }

    /// Requests count as changes unless they are named here.
    #[test]
    fn every_route_but_questions_changes_something() {
        let questions: Vec<String> = ROUTES
            .iter()
            .filter(|route| route.method != Method::GET && !route.needs.changes())
            .map(|route| format!("{} {}", route.method, route.pattern))
            .collect();
        assert_eq!(
            questions,
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
