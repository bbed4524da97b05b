//! Whether the server is well, what it is, and what it counted.

use http::StatusCode;
use serde_json::json;

use crate::build_info::BuildInfo;
use crate::gate::Pool;
use crate::metrics::Levels;
use crate::readiness::{Outcome, Readiness};
use crate::reply::{self, Reply};
use crate::service::App;

/// The version of the dialect that is served.
const MINOR: &str = "33";

/// `/healthz`, `/livez` and `/readyz`, each also for one check alone, as `/readyz/store`; nothing if
/// there is no such check.
pub(crate) fn probe(readiness: &Readiness, path: &str, verbose: bool) -> Option<Reply> {
    let (name, one) = match path.strip_prefix('/')?.split_once('/') {
        Some((name, one)) => (name, Some(one)),
        None => (path.strip_prefix('/')?, None),
    };
    let outcomes = match name {
        // Somebody answers, so they live.
        "healthz" | "livez" => vec![("ping", Ok(()))],
        "readyz" => readiness.outcomes(),
        _ => return None,
    };
    let Some(one) = one else { return Some(checks(name, &outcomes, verbose)) };
    let outcome = outcomes.into_iter().find(|(check, _)| *check == one)?;
    Some(checks(&format!("{name}/{one}"), &[outcome], verbose))
}

fn checks(name: &str, outcomes: &[Outcome], verbose: bool) -> Reply {
    let well = outcomes.iter().all(|(_, outcome)| outcome.is_ok());
    let code = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if well && !verbose {
        return reply::text(code, "ok");
    }
    let mut text = String::new();
    for (check, outcome) in outcomes {
        text.push_str(&match outcome {
            Ok(()) => format!("[+]{check} ok\n"),
            Err(reason) => format!("[-]{check} failed: {reason}\n"),
        });
    }
    text.push_str(&format!("{name} check {}\n", if well { "passed" } else { "failed" }));
    reply::text(code, text)
}

/// `/version`.
pub(crate) fn version() -> Reply {
    let (version, build) = (env!("CARGO_PKG_VERSION"), BuildInfo::get());
    let body = json!({
        "major": "1",
        "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+mainstay-{version}"),
        "gitCommit": build.commit,
        "gitTreeState": "",
        "buildDate": build.date_text(),
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    reply::value(StatusCode::OK, &body)
}

/// `/metrics`.
pub(crate) fn metrics(app: &App) -> Reply {
    let registry = app.resources.registry();
    let durable = registry.find("", "v1", "namespaces").or_else(|| registry.iter().next());
    let objects = app.resources.objects();
    let revision = durable.map_or(0, |kind| objects.revision(kind.resource()).0);
    app.gate.observe();
    let levels = Levels {
        in_flight: app.gate.held(Pool::Requests),
        connections: app.connections.len(),
        revision,
        writes: app.connections.writes(),
    };
    let mut reply = reply::text(StatusCode::OK, app.metrics.text(levels));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kind = http::HeaderValue::from_static(kind);
    reply.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    reply
}
