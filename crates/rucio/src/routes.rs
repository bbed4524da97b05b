//! The table of all routes: method, pattern, required rights and handler.
//!
//! The names after `|call` are bound to the matches of `*` and `**`. If two patterns match a path, the
//! first one decides for all methods; `also` decides for its own method only.

use axum::http::Method;
use futures_util::FutureExt;
use mainstay_rules::api::Did;

use super::route::Needs::{Administrator, Change, Login, Nothing, Token};
use super::route::{Handler, Needs, Route};
use super::{
    accounts, auth, dids, extensions, listing, meta, replicas, requests, rules, search, sites,
    storage,
};

const fn route(method: Method, pattern: &'static str, needs: Needs, handler: Handler) -> Route {
    Route { method, pattern, needs, handler, decides: true }
}

/// A route that leaves other methods of its paths to later patterns.
const fn also(method: Method, pattern: &'static str, needs: Needs, handler: Handler) -> Route {
    Route { method, pattern, needs, handler, decides: false }
}

/// The matched parts as an array with one element per argument of the handler.
fn open_parts<const N: usize>(parts: Vec<String>) -> [String; N] {
    let mut parts = parts.into_iter();
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// A handler for known callers; its arguments are the matches of `*` and `**`.
macro_rules! known {
    (|$call:ident $(, $part:ident)*| $body:expr) => {
        Handler::Known(|$call, parts| {
            async move {
                let [$($part),*] = open_parts(parts);
                $body
            }
            .boxed()
        })
    };
}

/// A handler that needs no token.
macro_rules! open {
    ($handler:path) => {
        Handler::Open(|call| $handler(call).boxed())
    };
}

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PUT: Method = Method::PUT;
const DELETE: Method = Method::DELETE;

const ACCOUNTS: Needs = Administrator("change accounts");
const RSES: Needs = Administrator("change RSEs");
const LIMITS: Needs = Administrator("limit transfers");

#[rustfmt::skip]
pub(super) static ROUTES: &[Route] = &[
    route(GET, "accounts", Token, known!(|call| accounts::list_accounts(call).await)),
    also(GET, "accounts/whoami", Token, known!(|call| Ok(accounts::whoami(call)))),
    route(GET, "accounts/*", Token, known!(|call, name| accounts::get_account(call, name).await)),
    route(POST, "accounts/*", ACCOUNTS, known!(|call, name| accounts::add_account(call, name).await)),
    route(PUT, "accounts/*", ACCOUNTS, known!(|call, name| accounts::update_account(call, name).await)),
    route(DELETE, "accounts/*", ACCOUNTS, known!(|call, name| accounts::delete_account(call, name).await)),
    route(GET, "accounts/*/attr", Token, known!(|call, name| accounts::attributes(call, name).await)),
    route(POST, "accounts/*/attr/*", ACCOUNTS, known!(|call, name, key| accounts::set_attribute(call, name, key).await)),
    route(DELETE, "accounts/*/attr/*", ACCOUNTS, known!(|call, name, key| accounts::delete_attribute(call, name, key).await)),
    route(GET, "accounts/*/identities", Token, known!(|call, name| accounts::list_identities(call, name).await)),
    route(POST, "accounts/*/identities", ACCOUNTS, known!(|call, name| accounts::add_identity(call, name).await)),
    route(DELETE, "accounts/*/identities", ACCOUNTS, known!(|call, name| accounts::remove_identity(call, name).await)),
    route(GET, "accounts/*/limits/global", Token, known!(|call, name| accounts::show_limits(call, name, false, true, None).await)),
    route(GET, "accounts/*/limits/global/*", Token, known!(|call, name, on| accounts::show_limits(call, name, false, true, Some(on)).await)),
    route(POST, "accounts/*/limits/global/*", ACCOUNTS, known!(|call, name, on| accounts::set_limit(call, name, true, on).await)),
    route(DELETE, "accounts/*/limits/global/*", ACCOUNTS, known!(|call, name, on| accounts::delete_limit(call, name, true, on).await)),
    route(GET, "accounts/*/limits/local", Token, known!(|call, name| accounts::show_limits(call, name, false, false, None).await)),
    route(GET, "accounts/*/limits/local/*", Token, known!(|call, name, on| accounts::show_limits(call, name, false, false, Some(on)).await)),
    route(POST, "accounts/*/limits/local/*", ACCOUNTS, known!(|call, name, on| accounts::set_limit(call, name, false, on).await)),
    route(DELETE, "accounts/*/limits/local/*", ACCOUNTS, known!(|call, name, on| accounts::delete_limit(call, name, false, on).await)),
    route(GET, "accounts/*/rules", Token, known!(|call, name| accounts::rules(call, name).await)),
    route(GET, "accounts/*/scopes", Token, known!(|call, name| accounts::scopes(call, Some(name)).await)),
    route(POST, "accounts/*/scopes/*", ACCOUNTS, known!(|call, name, scope| accounts::add_scope(call, name, scope).await)),
    route(GET, "accounts/*/usage/global", Token, known!(|call, name| accounts::show_limits(call, name, true, true, None).await)),
    route(GET, "accounts/*/usage/global/*", Token, known!(|call, name, on| accounts::show_limits(call, name, true, true, Some(on)).await)),
    route(GET, "accounts/*/usage/history/*", Token, known!(|call, name, _on| accounts::usage_history(call, name).await)),
    route(GET, "accounts/*/usage/local", Token, known!(|call, name| accounts::show_limits(call, name, true, false, None).await)),
    route(GET, "accounts/*/usage/local/*", Token, known!(|call, name, on| accounts::show_limits(call, name, true, false, Some(on)).await)),
    route(GET, "auth/userpass", Login, open!(auth::user_and_password)),
    route(GET, "auth/validate", Nothing, open!(auth::validate)),
    route(POST, "dids", Change, known!(|call| dids::add_many(call).await)),
    also(POST, "dids/attachments", Change, known!(|call| dids::attachments(call).await)),
    also(POST, "dids/bulkdidsmeta", Change, known!(|call| meta::set_bulk(call).await)),
    also(POST, "dids/bulkfiles", Token, known!(|call| dids::bulk_files(call))),
    also(POST, "dids/bulkmeta", Token, known!(|call| meta::bulk(call).await)),
    route(GET, "dids/*", Token, known!(|call, scope| dids::scope_list(call, &scope))),
    also(GET, "dids/*/dids/search", Token, known!(|call, scope| search::search(call, &scope))),
    also(GET, "dids/*/**/dids/history", Token, known!(|_call, scope, name| dids::history(Did::new(scope, name)))),
    also(POST, "dids/*/**/meta/*", Change, known!(|call, scope, name, key| meta::set_key(call, Did::new(scope, name), key).await)),
    route(GET, "dids/*/**/associated_rules", Token, known!(|call, scope, name| dids::associated_rules(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**/coverage", Token, known!(|call, scope, name| dids::coverage(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**/dids", Token, known!(|_call, scope, name| Ok(dids::content(Did::new(scope, name))))),
    route(POST, "dids/*/**/dids", Change, known!(|call, scope, name| dids::attach(call, Did::new(scope, name)).await)),
    route(DELETE, "dids/*/**/dids", Change, known!(|call, scope, name| dids::detach(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**/files", Token, known!(|call, scope, name| dids::files(call, Did::new(scope, name)))),
    route(GET, "dids/*/**/meta", Token, known!(|call, scope, name| meta::get(call, Did::new(scope, name)).await)),
    route(POST, "dids/*/**/meta", Change, known!(|call, scope, name| meta::set_all(call, Did::new(scope, name)).await)),
    route(DELETE, "dids/*/**/meta", Change, known!(|call, scope, name| meta::delete(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**/parents", Token, known!(|call, scope, name| dids::parents(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**/rules", Token, known!(|call, scope, name| dids::rules_of(call, Did::new(scope, name)).await)),
    route(PUT, "dids/*/**/status", Change, known!(|call, scope, name| dids::status(call, Did::new(scope, name)).await)),
    route(GET, "dids/*/**", Token, known!(|call, scope, name| dids::get_did(call, Did::new(scope, name)).await)),
    route(POST, "dids/*/**", Change, known!(|call, scope, name| dids::add(call, Did::new(scope, name)).await)),
    also(POST, "locks/bulk_locks_for_dids", Token, known!(|call| rules::bulk_locks(call).await)),
    route(GET, "locks/*", Token, known!(|call, rse| rules::locks_on(call, rse).await)),
    route(GET, "locks/*/**", Token, known!(|call, scope, name| rules::locks_of_did(call, Did::new(scope, name)).await)),
    route(GET, "mainstay/check", Token, known!(|call| extensions::check(call).await)),
    route(POST, "mainstay/check/repair", Change, known!(|call| extensions::mend(call).await)),
    route(GET, "mainstay/check/storage", Token, known!(|call| storage::check(call).await)),
    route(GET, "mainstay/expression", Token, known!(|call| extensions::expression(call).await)),
    route(POST, "mainstay/judge/*", Change, known!(|call, daemon| extensions::judge(call, &daemon).await)),
    route(GET, "mainstay/rules/*/explain", Token, known!(|call, rule| extensions::explain(call, &rule).await)),
    route(POST, "mainstay/rules/*/repair", Change, known!(|call, rule| extensions::repair_now(call, &rule).await)),
    route(GET, "mainstay/transfers", Token, known!(|call| extensions::moving(call).await)),
    route(POST, "mainstay/transfers", Change, known!(|call| extensions::report(call).await)),
    route(POST, "mainstay/transfers/finish", Change, known!(|call| extensions::finish(call).await)),
    route(POST, "mainstay/transfers/renew", Change, known!(|call| extensions::renew(call).await)),
    route(POST, "mainstay/transfers/take", Change, known!(|call| extensions::take(call).await)),
    route(GET, "ping", Nothing, open!(auth::ping)),
    route(POST, "replicas", Change, known!(|call| replicas::add_replicas(call).await)),
    route(PUT, "replicas", Change, known!(|call| replicas::update_replicas(call).await)),
    route(DELETE, "replicas", Change, known!(|call| replicas::delete_replicas(call).await)),
    route(POST, "replicas/bad", Change, known!(|call| replicas::bad(call).await)),
    route(POST, "replicas/bad/dids", Change, known!(|call| replicas::bad_dids(call).await)),
    route(POST, "replicas/bad/pfns", Change, known!(|call| replicas::bad_names(call).await)),
    route(GET, "replicas/bad/states", Token, known!(|_call| Ok(replicas::bad_states()))),
    route(POST, "replicas/datasets_bulk", Token, known!(|call| replicas::datasets_bulk(call).await)),
    route(POST, "replicas/dids", Token, known!(|call| replicas::dids_of(call).await)),
    route(POST, "replicas/list", Token, known!(|call| listing::list(call))),
    route(POST, "replicas/quarantine", Change, known!(|_call| replicas::quarantine())),
    route(GET, "replicas/rse/*", Token, known!(|call, rse| replicas::datasets_on(call, &rse).await)),
    route(GET, "replicas/suspicious", Token, known!(|call| replicas::suspicious(call).await)),
    route(POST, "replicas/suspicious", Change, known!(|call| replicas::report_suspicious(call).await)),
    route(POST, "replicas/tombstone", Change, known!(|call| replicas::tombstones(call).await)),
    route(GET, "replicas/*/**/datasets", Token, known!(|call, scope, name| sites::dataset_replicas(call, vec![Did::new(scope, name)]).await)),
    route(GET, "replicas/*/**/datasets_vp", Token, known!(|call, scope, name| sites::dataset_replicas(call, vec![Did::new(scope, name)]).await)),
    route(GET, "requests/list", Token, known!(|call| requests::list(call, false).await)),
    route(GET, "requests/transfer_limits", Token, known!(|call| requests::limits(call).await)),
    route(POST, "requests/transfer_limits", LIMITS, known!(|call| requests::set_limit(call).await)),
    route(PUT, "requests/transfer_limits", LIMITS, known!(|call| requests::set_limit(call).await)),
    route(DELETE, "requests/transfer_limits", LIMITS, known!(|call| requests::delete_limit(call).await)),
    route(GET, "requests/history/list", Token, known!(|call| requests::list(call, true).await)),
    route(GET, "requests/history/*/**/*", Token, known!(|call, scope, name, rse| requests::one(call, Did::new(scope, name), &rse, true).await)),
    route(GET, "requests/*/**/*", Token, known!(|call, scope, name, rse| requests::one(call, Did::new(scope, name), &rse, false).await)),
    route(GET, "requests/*/*", Token, known!(|call, scope, rse| requests::one(call, Did::new(scope, ""), &rse, false).await)),
    route(GET, "rses", Token, known!(|call| sites::list_rses(call).await)),
    route(GET, "rses/*", Token, known!(|call, name| sites::get_rse(call, name).await)),
    route(POST, "rses/*", RSES, known!(|call, name| sites::add_rse(call, name).await)),
    route(PUT, "rses/*", RSES, known!(|call, name| sites::update_rse(call, name).await)),
    route(DELETE, "rses/*", RSES, known!(|call, name| sites::delete_rse(call, name).await)),
    route(GET, "rses/*/attr", Token, known!(|call, name| sites::attributes(call, name).await)),
    route(POST, "rses/*/attr/*", RSES, known!(|call, name, key| sites::set_attribute(call, name, key).await)),
    route(DELETE, "rses/*/attr/*", RSES, known!(|call, name, key| sites::delete_attribute(call, name, key).await)),
    route(GET, "rses/*/distances/*", Token, known!(|call, from, to| sites::distance(call, from, to).await)),
    route(POST, "rses/*/distances/*", RSES, known!(|call, from, to| sites::add_distance(call, from, to).await)),
    route(PUT, "rses/*/distances/*", RSES, known!(|call, from, to| sites::update_distance(call, from, to).await)),
    route(DELETE, "rses/*/distances/*", RSES, known!(|call, from, to| sites::delete_distance(call, from, to).await)),
    route(GET, "rses/*/lfns2pfns", Token, known!(|call, name| sites::physical_names(call, name).await)),
    route(GET, "rses/*/limits", Token, known!(|call, name| sites::limits(call, name).await)),
    route(PUT, "rses/*/limits", RSES, known!(|call, name| sites::set_limit(call, name).await)),
    route(DELETE, "rses/*/limits", RSES, known!(|call, name| sites::delete_limit(call, name).await)),
    route(GET, "rses/*/protocols", Token, known!(|call, name| sites::protocols(call, name, None).await)),
    route(GET, "rses/*/protocols/*", Token, known!(|call, name, scheme| sites::protocols(call, name, Some(scheme)).await)),
    route(POST, "rses/*/protocols/*", RSES, known!(|call, name, scheme| sites::add_protocol(call, name, &scheme).await)),
    route(PUT, "rses/*/protocols/*", RSES, known!(|call, name, scheme| sites::update_protocols(call, name, &[&scheme]).await)),
    route(DELETE, "rses/*/protocols/*", RSES, known!(|call, name, scheme| sites::delete_protocols(call, name, &[&scheme]).await)),
    route(PUT, "rses/*/protocols/*/*", RSES, known!(|call, name, scheme, host| sites::update_protocols(call, name, &[&scheme, &host]).await)),
    route(DELETE, "rses/*/protocols/*/*", RSES, known!(|call, name, scheme, host| sites::delete_protocols(call, name, &[&scheme, &host]).await)),
    route(PUT, "rses/*/protocols/*/*/*", RSES, known!(|call, name, scheme, host, port| sites::update_protocols(call, name, &[&scheme, &host, &port]).await)),
    route(DELETE, "rses/*/protocols/*/*/*", RSES, known!(|call, name, scheme, host, port| sites::delete_protocols(call, name, &[&scheme, &host, &port]).await)),
    route(GET, "rses/*/usage", Token, known!(|call, name| sites::rse_usage(call, name).await)),
    route(PUT, "rses/*/usage", RSES, known!(|call, name| sites::set_usage(call, name).await)),
    route(GET, "rses/*/usage/history", Token, known!(|call, name| sites::usage_history(call, name).await)),
    route(GET, "rules", Token, known!(|call| rules::list(call))),
    route(POST, "rules", Change, known!(|call| rules::add_rule(call).await)),
    route(GET, "rules/*", Token, known!(|call, id| rules::get(call, &id).await)),
    route(PUT, "rules/*", Change, known!(|call, id| rules::put(call, &id).await)),
    route(DELETE, "rules/*", Change, known!(|call, id| rules::remove(call, &id).await)),
    route(GET, "rules/*/analysis", Token, known!(|call, id| rules::analysis(call, &id).await)),
    route(GET, "rules/*/history", Token, known!(|call, id| rules::history(call, &id).await)),
    route(GET, "rules/*/locks", Token, known!(|_call, id| Ok(rules::locks_of(&id)))),
    route(POST, "rules/*/move", Change, known!(|call, id| rules::move_rule(call, &id).await)),
    route(POST, "rules/*/reduce", Change, known!(|call, id| rules::reduce(call, &id).await)),
    route(GET, "rules/*/**/history", Token, known!(|call, scope, name| rules::did_history(call, Did::new(scope, name)).await)),
    route(GET, "scopes", Token, known!(|call| accounts::scopes(call, None).await)),
    route(GET, "scopes/owner", Token, known!(|call| accounts::scope_owners(call).await)),
    route(PUT, "scopes/*/*", Administrator("give a scope away"), known!(|call, account, scope| accounts::give_scope(call, account, scope).await)),
    route(GET, "subscriptions", Token, known!(|_call| Ok(rules::lines_reply(Vec::new())))),
    route(GET, "subscriptions/**", Token, known!(|_call, _rest| Ok(rules::lines_reply(Vec::new())))),
    route(POST, "traces", Nothing, open!(auth::trace)),
];
