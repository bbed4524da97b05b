//! Whether the server is well, what it is, and what it counted.

use http::StatusCode;
use serde_json::json;

use crate::metrics::Levels;
use crate::reply::{self, Reply};
use crate::service::App;

/// The version of the dialect that is served.
const MINOR: &str = "33";

/// `/healthz`, `/livez`: somebody answers, so they are well.
pub(crate) fn live(path: &str, verbose: bool) -> Reply {
    let name = path.trim_start_matches('/');
    checks(name, &[("ping", true)], verbose)
}

/// `/readyz`: whether requests make sense yet, or still.
pub(crate) fn ready(ready: bool, verbose: bool) -> Reply {
    checks("readyz", &[("ping", true), ("store", ready), ("namespaces", ready)], verbose)
}

fn checks(name: &str, checks: &[(&str, bool)], verbose: bool) -> Reply {
    let well = checks.iter().all(|(_, well)| *well);
    let code = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if well && !verbose {
        return reply::text(code, "ok");
    }
    let mut text = String::new();
    for (check, well) in checks {
        let line = if *well { format!("[+]{check} ok\n") } else { format!("[-]{check} failed\n") };
        text.push_str(&line);
    }
    text.push_str(&format!("{name} check {}\n", if well { "passed" } else { "failed" }));
    reply::text(code, text)
}

/// `/version`.
pub(crate) fn version() -> Reply {
    let version = env!("CARGO_PKG_VERSION");
    let body = json!({
        "major": "1",
        "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+mainstay-{version}"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
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
    let levels = Levels {
        in_flight: app.requests.inside(),
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
