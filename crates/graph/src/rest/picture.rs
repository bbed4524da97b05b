//! Serves the picture of the graph: a page for browsers, SVG or DOT for programs.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::arguments::Arguments;
use super::{Answer, Refusal};
use crate::engine::Engine;
use crate::picture::{Only, PICTURE_POLICY, POLICY, SLIDER, ViewOptions};

pub(super) async fn graph(
    State(engine): State<Engine>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["txn", "format", "only", "open"])?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_browser = accept.is_some_and(|accept| accept.contains("text/html"));
    let format = arguments.get("format").unwrap_or(if is_browser { "html" } else { "svg" });
    if !["html", "svg", "dot", "raw"].contains(&format) {
        return Err(Refusal::Bad(format!("format is {format:?}; it can be html, svg, dot or raw")));
    }
    let options = options(&arguments)?;
    let picture = engine.picture(options.transaction)?;
    let (kind, policy, body) = match format {
        "dot" => ("text/vnd.graphviz; charset=utf-8", PICTURE_POLICY, picture.dot()),
        "raw" => ("text/plain; charset=utf-8", PICTURE_POLICY, picture.dot()),
        "html" => {
            let records = engine.history(None, None);
            let ended: Vec<_> =
                records.iter().map(|one| &**one).filter(|one| !one.pre_record).collect();
            let recent = &ended[ended.len().saturating_sub(SLIDER)..];
            ("text/html; charset=utf-8", POLICY.as_str(), picture.page(&options, recent))
        }
        _ => ("image/svg+xml; charset=utf-8", PICTURE_POLICY, picture.svg_view(&options)),
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::VARY, "accept"),
    ];
    Ok((headers, body).into_response())
}

fn options(arguments: &Arguments) -> Answer<ViewOptions> {
    let only = match arguments.get("only").filter(|only| !only.is_empty()) {
        None => Only::All,
        Some(only) => Only::parse(only).ok_or_else(|| {
            Refusal::Bad(format!("only is {only:?}; it can be unwell or the name of a state"))
        })?,
    };
    let open = arguments.all("open").into_iter().collect();
    Ok(ViewOptions { transaction: arguments.number("txn")?, only, open })
}
