//! Which paths there are and what can be done there: elsewhere there is nothing, and at one of them
//! only the method can be wrong.

/// Paths with their methods; what is said first goes before what is said later. `*` is any part, `**`
/// one or more.
pub(super) const PATHS: &[(&str, &str)] = &[
    ("accounts", "GET"),
    ("accounts/*", "GET POST PUT DELETE"),
    ("accounts/*/attr", "GET"),
    ("accounts/*/attr/*", "POST DELETE"),
    ("accounts/*/identities", "GET POST DELETE"),
    ("accounts/*/limits/global", "GET"),
    ("accounts/*/limits/global/*", "GET POST DELETE"),
    ("accounts/*/limits/local", "GET"),
    ("accounts/*/limits/local/*", "GET POST DELETE"),
    ("accounts/*/rules", "GET"),
    ("accounts/*/scopes", "GET"),
    ("accounts/*/scopes/*", "POST"),
    ("accounts/*/usage/global", "GET"),
    ("accounts/*/usage/global/*", "GET"),
    ("accounts/*/usage/history/*", "GET"),
    ("accounts/*/usage/local", "GET"),
    ("accounts/*/usage/local/*", "GET"),
    ("auth/userpass", "GET"),
    ("auth/validate", "GET"),
    ("dids", "POST"),
    ("dids/attachments", "GET POST"),
    ("dids/bulkdidsmeta", "GET POST"),
    ("dids/bulkfiles", "GET POST"),
    ("dids/bulkmeta", "GET POST"),
    ("dids/*", "GET"),
    ("dids/*/**/associated_rules", "GET"),
    ("dids/*/**/coverage", "GET"),
    ("dids/*/**/dids", "GET POST DELETE"),
    ("dids/*/**/files", "GET"),
    ("dids/*/**/meta", "GET POST DELETE"),
    ("dids/*/**/parents", "GET"),
    ("dids/*/**/rules", "GET"),
    ("dids/*/**/status", "PUT"),
    ("dids/*/**", "GET POST"),
    ("locks/bulk_locks_for_dids", "GET POST"),
    ("locks/**", "GET"),
    ("mainstay/check", "GET"),
    ("mainstay/check/repair", "POST"),
    ("mainstay/check/storage", "GET"),
    ("mainstay/expression", "GET"),
    ("mainstay/judge/*", "POST"),
    ("mainstay/rules/*/explain", "GET"),
    ("mainstay/rules/*/repair", "POST"),
    ("mainstay/transfers", "GET POST"),
    ("mainstay/transfers/finish", "POST"),
    ("mainstay/transfers/renew", "POST"),
    ("mainstay/transfers/take", "POST"),
    ("ping", "GET"),
    ("replicas", "POST PUT DELETE"),
    ("replicas/bad", "POST"),
    ("replicas/bad/dids", "POST"),
    ("replicas/bad/pfns", "POST"),
    ("replicas/bad/states", "GET"),
    ("replicas/datasets_bulk", "POST"),
    ("replicas/dids", "POST"),
    ("replicas/list", "POST"),
    ("replicas/quarantine", "POST"),
    ("replicas/rse/*", "GET"),
    ("replicas/suspicious", "GET POST"),
    ("replicas/tombstone", "POST"),
    ("replicas/*/**/datasets", "GET"),
    ("replicas/*/**/datasets_vp", "GET"),
    ("requests/list", "GET"),
    ("requests/transfer_limits", "GET POST PUT DELETE"),
    ("requests/*/**", "GET"),
    ("rses", "GET"),
    ("rses/*", "GET POST PUT DELETE"),
    ("rses/*/attr", "GET"),
    ("rses/*/attr/*", "POST DELETE"),
    ("rses/*/distances/*", "GET POST PUT DELETE"),
    ("rses/*/lfns2pfns", "GET"),
    ("rses/*/limits", "GET PUT DELETE"),
    ("rses/*/protocols", "GET"),
    ("rses/*/protocols/*", "GET POST PUT DELETE"),
    ("rses/*/protocols/*/*", "PUT DELETE"),
    ("rses/*/protocols/*/*/*", "PUT DELETE"),
    ("rses/*/usage", "GET PUT"),
    ("rses/*/usage/history", "GET"),
    ("rules", "GET POST"),
    ("rules/*", "GET PUT DELETE"),
    ("rules/*/analysis", "GET"),
    ("rules/*/history", "GET"),
    ("rules/*/locks", "GET"),
    ("rules/*/move", "POST"),
    ("rules/*/reduce", "POST"),
    ("rules/*/**/history", "GET"),
    ("scopes", "GET"),
    ("scopes/owner", "GET"),
    ("scopes/*/*", "PUT"),
    ("subscriptions", "GET"),
    ("subscriptions/**", "GET"),
    ("traces", "POST"),
];

/// The methods that a path has, as they are told; none where nothing is.
pub(super) fn allowed(path: &[String]) -> Option<String> {
    let found = PATHS.iter().find(|(shape, _)| fits(&shape.split('/').collect::<Vec<_>>(), path));
    // Where there is something to be had, its head is.
    found.map(|(_, methods)| methods.replace("GET", "GET HEAD").replace(' ', ", "))
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
    fn a_path_is_there_with_its_methods_or_not() {
        for (path, methods) in [
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
            assert_eq!(allowed(&super::super::parts(path)).as_deref(), methods, "{path}");
        }
    }
}
