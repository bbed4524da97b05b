//! Tests that a request with an unsupported method is answered with the supported ones in `Allow`.

use axum::body::Body;
use axum::http::Request;
use mainstay_rucio::{Caller, router};
use tower::ServiceExt;

use crate::surface::service;
use crate::world::World;

/// The status of an answer, and the methods it names.
fn asked(world: &World, method: &str, path: &str) -> (u16, Vec<String>) {
    let caller = Caller { account: "root".to_owned(), privileged: true, read_only: false };
    let request = Request::builder().method(method).uri(path).extension(caller);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let request = request.body(Body::empty()).unwrap();
        let answer = router(service(world)).oneshot(request).await.unwrap();
        let told = answer.headers().get("allow").map(|told| told.to_str().unwrap().to_owned());
        let told = told.unwrap_or_default();
        let methods = told.split(", ").filter(|word| !word.is_empty()).map(str::to_owned);
        (answer.status().as_u16(), methods.collect())
    })
}

#[test]
fn unsupported_methods_return_405_with_the_supported_ones() {
    let world = World::sqlite();
    for path in [
        "/accounts",
        "/accounts/x",
        "/accounts/x/attr",
        "/accounts/x/attr/k",
        "/accounts/x/identities",
        "/accounts/x/limits/global",
        "/accounts/x/limits/global/E",
        "/accounts/x/limits/local",
        "/accounts/x/limits/local/R",
        "/accounts/x/rules",
        "/accounts/x/scopes",
        "/accounts/x/scopes/s",
        "/accounts/x/usage/global",
        "/accounts/x/usage/global/E",
        "/accounts/x/usage/history/R",
        "/accounts/x/usage/local",
        "/accounts/x/usage/local/R",
        "/auth/userpass",
        "/auth/validate",
        "/dids",
        "/dids/s",
        "/dids/attachments",
        "/dids/bulkdidsmeta",
        "/dids/bulkfiles",
        "/dids/bulkmeta",
        "/dids/s/n",
        "/dids/s/a/b%2Fc",
        "/dids/s/files",
        "/dids/s/dids/search",
        "/dids/s/n/associated_rules",
        "/dids/s/n/coverage",
        "/dids/s/n/dids",
        "/dids/s/n/dids/history",
        "/dids/s/a/b/files",
        "/dids/s/n/meta",
        "/dids/s/n/meta/k",
        "/dids/s/n/parents",
        "/dids/s/n/rules",
        "/dids/s/n/status",
        "/locks/R",
        "/locks/s/n",
        "/locks/bulk_locks_for_dids",
        "/mainstay/check",
        "/mainstay/check/repair",
        "/mainstay/check/storage",
        "/mainstay/expression",
        "/mainstay/judge/evaluator",
        "/mainstay/rules/x/explain",
        "/mainstay/rules/x/repair",
        "/mainstay/transfers",
        "/mainstay/transfers/finish",
        "/mainstay/transfers/renew",
        "/mainstay/transfers/take",
        "/ping",
        "/replicas",
        "/replicas/bad",
        "/replicas/bad/dids",
        "/replicas/bad/pfns",
        "/replicas/bad/states",
        "/replicas/datasets_bulk",
        "/replicas/dids",
        "/replicas/list",
        "/replicas/quarantine",
        "/replicas/rse/R",
        "/replicas/s/n/datasets",
        "/replicas/s/n/datasets_vp",
        "/replicas/suspicious",
        "/replicas/tombstone",
        "/requests/history/list",
        "/requests/history/s/n/R",
        "/requests/list",
        "/requests/s/n/R",
        "/requests/transfer_limits",
        "/rses",
        "/rses/R",
        "/rses/R/attr",
        "/rses/R/attr/k",
        "/rses/R/distances/S",
        "/rses/R/lfns2pfns",
        "/rses/R/limits",
        "/rses/R/protocols",
        "/rses/R/protocols/file",
        "/rses/R/protocols/file/host",
        "/rses/R/protocols/file/host/1",
        "/rses/R/usage",
        "/rses/R/usage/history",
        "/rules",
        "/rules/x",
        "/rules/x/analysis",
        "/rules/x/history",
        "/rules/x/locks",
        "/rules/x/move",
        "/rules/x/reduce",
        "/rules/s/n/history",
        "/scopes",
        "/scopes/owner",
        "/scopes/x/s",
        "/subscriptions",
        "/subscriptions/x/y",
        "/traces",
    ] {
        let (status, told) = asked(&world, "PATCH", path);
        assert_eq!(status, 405, "{path}");
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE"] {
            let (status, again) = asked(&world, method, path);
            assert!(status < 500, "{method} {path}: {status}");
            let is_told = told.iter().any(|one| one == method);
            assert_eq!(status != 405, is_told, "{method} {path}: {status}, told {told:?}");
            assert_eq!(again, if is_told { Vec::new() } else { told.clone() }, "{method} {path}");
        }
    }
    for path in ["/", "/nothing", "/rules/x/colours", "/accounts/x/limits/local/R/S"] {
        assert_eq!(asked(&world, "GET", path), (404, Vec::new()), "{path}");
    }
}
