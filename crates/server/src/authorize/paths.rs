//! The table of paths that are not about objects: which role may use which method where.
//!
//! A path that no row names is denied to everybody but administrators. Documents that describe the API, and
//! questions about oneself, are for everybody who proved who they are. Rows that are open to all are
//! here for the docs and for `kubectl auth can-i`: such requests are answered before anybody is asked
//! who they are.

use super::{Role, Verdict};
use crate::identity::User;

/// Methods of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    /// GET and HEAD.
    Read,
    /// POST.
    Post,
    /// GET, HEAD, and POST for questions that do not fit into a path.
    Ask,
    /// All there are.
    Any,
}

impl Methods {
    fn has(self, method: &str) -> bool {
        match self {
            Self::Read => matches!(method, "GET" | "HEAD"),
            Self::Post => method == "POST",
            Self::Ask => matches!(method, "GET" | "HEAD" | "POST"),
            Self::Any => true,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Read => "GET",
            Self::Post => "POST",
            Self::Ask => "GET, POST",
            Self::Any => "any",
        }
    }

    /// The verbs that a list of rules shows.
    pub(crate) fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["get"],
            Self::Post => &["post"],
            Self::Ask => &["get", "post"],
            Self::Any => &["*"],
        }
    }
}

/// The users that a row admits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    /// Everybody, also those who do not say who they are.
    Everybody,
    /// Everybody who proved who they are, with or without a role.
    Authenticated,
    /// These roles, and administrators unless it says otherwise.
    Roles(&'static [Role]),
}

/// A path or a beginning of paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// `*` stands for one segment, `**` at the end for any rest.
    pub(crate) path: &'static str,
    pub(crate) methods: Methods,
    pub(crate) who: Who,
    /// A remark for the docs.
    pub(crate) remark: &'static str,
}

const fn row(path: &'static str, methods: Methods, who: Who, remark: &'static str) -> Row {
    Row { path, methods, who, remark }
}

const READERS: Who = Who::Roles(&[Role::Editor, Role::Viewer]);
const EDITORS: Who = Who::Roles(&[Role::Editor]);
const NODES: Who = Who::Roles(&[Role::Node]);
const ADMINS: Who = Who::Roles(&[]);

/// Every row.
pub(crate) static ROWS: &[Row] = &[
    row("/healthz", Methods::Read, Who::Everybody, ""),
    row("/livez", Methods::Read, Who::Everybody, ""),
    row("/readyz", Methods::Read, Who::Everybody, ""),
    row("/version", Methods::Read, Who::Everybody, ""),
    row("/", Methods::Read, Who::Authenticated, "the list of paths"),
    row("/api", Methods::Read, Who::Authenticated, "discovery"),
    row("/api/*", Methods::Read, Who::Authenticated, "discovery"),
    row("/apis", Methods::Read, Who::Authenticated, "discovery"),
    row("/apis/*", Methods::Read, Who::Authenticated, "discovery"),
    row("/apis/*/*", Methods::Read, Who::Authenticated, "discovery"),
    row(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        Methods::Post,
        Who::Authenticated,
        "who am I?",
    ),
    row(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        Methods::Post,
        Who::Authenticated,
        "may I do this?",
    ),
    row(
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        Methods::Post,
        Who::Authenticated,
        "what may I do?",
    ),
    row("/openapi/**", Methods::Read, Who::Authenticated, "the schemas"),
    row("/metrics", Methods::Read, READERS, ""),
    row("/mainstay/v1/ca", Methods::Read, Who::Everybody, "the certificate authority"),
    row("/mainstay/v1/join", Methods::Read, NODES, "what the token is for"),
    row("/mainstay/v1/join", Methods::Post, NODES, "a certificate for the node of the token"),
    row("/mainstay/v1/authority/**", Methods::Any, ADMINS, ""),
    row("/mainstay/v1/nodes/*/revoke", Methods::Any, ADMINS, ""),
    row("/mainstay/v1/tokens/**", Methods::Any, ADMINS, ""),
    row("/mainstay/v1/backup", Methods::Any, ADMINS, "holds every secret"),
    row("/mainstay/v1/store/**", Methods::Any, ADMINS, ""),
    row("/mainstay/v1/sessions/pools", Methods::Read, READERS, ""),
    row("/mainstay/v1/namespaces/*/applications/*/placement", Methods::Read, READERS, ""),
    row("/mainstay/v1/namespaces/*/instances/*/log", Methods::Read, READERS, "never nodes"),
    row(
        "/mainstay.agents.v1.Agents/**",
        Methods::Post,
        NODES,
        "gRPC; an agent registers only under a name that its credential speaks for",
    ),
    row("/v1/lvg/**", Methods::Read, READERS, "the scheduler extender"),
    row("/v1/lvg/**", Methods::Post, EDITORS, "the scheduler extender: reservations"),
    row(
        "/rucio/**",
        Methods::Ask,
        READERS,
        "a viewer's POST may only ask; Rucio also knows accounts of its own",
    ),
    row("/rucio/**", Methods::Any, EDITORS, ""),
];

impl Row {
    /// Whether a user may use it at all.
    pub(crate) fn admits(&self, user: &User) -> bool {
        match self.who {
            Who::Everybody | Who::Authenticated => true,
            Who::Roles(roles) => {
                user.role.is_some_and(|role| role == Role::Admin || roles.contains(&role))
            }
        }
    }
}

/// Whether a path fits a row.
fn fits(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let mut parts = pattern.split('/');
    loop {
        match (parts.next(), segments.next()) {
            (Some("**"), _) => return true,
            (Some("*"), Some(segment)) if !segment.is_empty() => {}
            (Some(part), Some(segment)) if part == segment => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Decides about a path.
pub(crate) fn judge(user: &User, method: &str, path: &str) -> Verdict {
    let fits = |row: &Row| row.admits(user) && row.methods.has(method) && fits(row.path, path);
    let allowed = user.role == Some(Role::Admin) || ROWS.iter().any(fits);
    if allowed { Verdict::Allowed } else { Verdict::Denied }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_segments() {
        let cases = [
            ("/", "/", true),
            ("/metrics", "/metrics", true),
            ("/metrics", "/metrics/more", false),
            ("/metrics", "/metricsmore", false),
            ("/openapi/**", "/openapi", true),
            ("/openapi/**", "/openapi/v3/apis", true),
            ("/openapi/**", "/openapis", false),
            ("/a/*/log", "/a/b/log", true),
            ("/a/*/log", "/a//log", false),
            ("/a/*/log", "/a/b/c/log", false),
            ("/a/*/log", "/a/b/log/", false),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }
}
