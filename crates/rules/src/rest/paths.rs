//! Which paths there are, whatever is asked for there: elsewhere there is nothing, and at one of them
//! only the method can be wrong.

/// `*` is any part, `**` one or more.
const PATHS: &[&str] = &[
    "accounts",
    "accounts/*",
    "accounts/*/attr",
    "accounts/*/attr/*",
    "accounts/*/identities",
    "accounts/*/limits/global",
    "accounts/*/limits/global/**",
    "accounts/*/limits/local",
    "accounts/*/limits/local/**",
    "accounts/*/rules",
    "accounts/*/scopes",
    "accounts/*/scopes/*",
    "accounts/*/usage/global",
    "accounts/*/usage/global/**",
    "accounts/*/usage/history/*",
    "accounts/*/usage/local",
    "accounts/*/usage/local/**",
    "auth/userpass",
    "auth/validate",
    "dids",
    "dids/**",
    "locks/**",
    "mainstay/check",
    "mainstay/check/repair",
    "mainstay/expression",
    "mainstay/judge/*",
    "mainstay/rules/*/explain",
    "mainstay/rules/*/repair",
    "mainstay/transfers",
    "mainstay/transfers/finish",
    "mainstay/transfers/renew",
    "mainstay/transfers/take",
    "ping",
    "replicas",
    "replicas/*/**/datasets",
    "replicas/*/**/datasets_vp",
    "replicas/bad",
    "replicas/bad/dids",
    "replicas/bad/pfns",
    "replicas/bad/states",
    "replicas/datasets_bulk",
    "replicas/dids",
    "replicas/list",
    "replicas/quarantine",
    "replicas/rse/*",
    "replicas/suspicious",
    "replicas/tombstone",
    "requests/*/**",
    "requests/list",
    "requests/transfer_limits",
    "rses",
    "rses/*",
    "rses/*/attr",
    "rses/*/attr/*",
    "rses/*/distances/*",
    "rses/*/lfns2pfns",
    "rses/*/limits",
    "rses/*/protocols",
    "rses/*/protocols/**",
    "rses/*/usage",
    "rses/*/usage/history",
    "rules",
    "rules/*",
    "rules/*/**/history",
    "rules/*/analysis",
    "rules/*/history",
    "rules/*/locks",
    "rules/*/move",
    "rules/*/reduce",
    "scopes",
    "scopes/*/*",
    "scopes/owner",
    "subscriptions",
    "subscriptions/**",
    "traces",
];

/// Whether something is at a path.
pub(super) fn exists(path: &[String]) -> bool {
    PATHS.iter().any(|shape| fits(&shape.split('/').collect::<Vec<_>>(), path))
}

fn fits(shape: &[&str], path: &[String]) -> bool {
    match (shape, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (1..=path.len()).any(|taken| fits(rest, &path[taken..])),
        ([word, rest @ ..], [part, more @ ..]) => {
            (*word == "*" || *word == part.as_str()) && fits(rest, more)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_there_or_not() {
        for (path, there) in [
            ("ping", true),
            ("ping/x", false),
            ("", false),
            ("rules/x/locks", true),
            ("rules/x/colours", false),
            ("rules/s/a/b/history", true),
            ("dids/s/a/b/c", true),
            ("accounts/a/limits/local/R", true),
            ("accounts/a/limits/other", false),
            ("nothing", false),
        ] {
            assert_eq!(exists(&super::super::parts(path)), there, "{path}");
        }
    }
}
