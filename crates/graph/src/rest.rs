//! The engine over HTTP: `/scheduler/…`.
//!
//! The paths and arguments are those of Ligato's KVScheduler, its misspelt one included, and five of
//! ours, `plan`, `commit`, `roll-back`, `watch` and `health`. A bad argument is answered with 400 and
//! the values that are allowed, an unknown transaction, key or descriptor with 404, a moment beyond
//! the kept history with 410. A transaction that fails is answered with 409 and its whole record, the
//! error and the status of its values. An engine whose journal has failed answers commits with 503.

mod arguments;
mod picture;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::arguments::Arguments;
use self::watch::Selected;
use crate::descriptor::UserLabels;
use crate::engine::{Engine, Error, View};
use crate::history;
use crate::key::Key;
use crate::record::TransactionRecord;
use crate::status::ValueStatus;
use crate::time::parse_duration;
use crate::transaction::{OnFailure, Resync, Retry, Transaction};

/// The routes of one engine.
///
/// ```
/// use mainstay_graph::{Builder, Options, rest};
///
/// # fn main() -> Result<(), mainstay_graph::Error> {
/// let (engine, _service) = Builder::new(Options::default()).build()?;
/// let app: axum::Router = rest::router(engine);
/// // axum::serve(listener, app).await
/// # let _ = app;
/// # Ok(())
/// # }
/// ```
pub fn router(engine: Engine) -> Router {
    Router::new()
        .route("/scheduler/graph", get(picture::graph))
        .route("/scheduler/txn-history", get(transactions))
        .route("/scheduler/key-timeline", get(timeline))
        .route("/scheduler/graph-snapshot", get(snapshot))
        .route("/scheduler/graph-snaphost", get(snapshot))
        .route("/scheduler/flag-stats", get(flag_stats))
        .route("/scheduler/dump", get(dump))
        .route("/scheduler/status", get(status))
        .route("/scheduler/downstream-resync", post(downstream_resync))
        .route("/scheduler/stats", get(stats))
        .route("/scheduler/metrics", get(metrics))
        .route("/scheduler/plan", post(plan))
        .route("/scheduler/commit", post(commit))
        .route("/scheduler/health", get(health))
        .route("/scheduler/roll-back", post(roll_back))
        .route("/scheduler/watch", get(watch))
        .route("/scheduler", get(|| async { Redirect::temporary("scheduler/graph") }))
        .route("/scheduler/", get(|| async { Redirect::temporary("graph") }))
        .with_state(engine)
}

/// Why a request failed.
#[derive(Debug)]
enum Refusal {
    /// The request is not valid.
    Bad(String),
    /// The engine returned an error.
    Engine(Error),
    /// A transaction did not succeed: the error, the record, and the status of its values.
    Transaction(StatusCode, Box<NotDone>),
}

/// The answer to a transaction that did not succeed: its record, and more.
#[derive(Debug, Serialize)]
struct NotDone {
    #[serde(flatten)]
    record: Arc<TransactionRecord>,
    error: String,
    status: Vec<ValueStatus>,
}

/// An error of a transaction, with all that is known about it.
fn explained(engine: &Engine, error: Error) -> Refusal {
    let (code, record) = match &error {
        Error::Failed(record) => (StatusCode::CONFLICT, record),
        Error::NotConfigured { record, .. } => (StatusCode::REQUEST_TIMEOUT, record),
        _ => return Refusal::Engine(error),
    };
    let keys = record.values.iter().map(|one| &one.key);
    let keys: BTreeSet<&Key> = keys.chain(record.errors.iter().map(|one| &one.key)).collect();
    let status = keys.into_iter().map(|key| engine.status(key)).collect();
    let record = Arc::clone(record);
    Refusal::Transaction(code, Box::new(NotDone { record, error: error.to_string(), status }))
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Bad(reason) => (StatusCode::BAD_REQUEST, reason),
            Self::Engine(error) => {
                let status = match &error {
                    Error::Unknown(_) => StatusCode::NOT_FOUND,
                    Error::History(history::Error::Running(_)) => StatusCode::CONFLICT,
                    Error::History(_) => StatusCode::GONE,
                    Error::Refused(_) => StatusCode::BAD_REQUEST,
                    Error::QueueFull | Error::Stopped | Error::Halted(_) => {
                        StatusCode::SERVICE_UNAVAILABLE
                    }
                    Error::NotConfigured { .. } => StatusCode::REQUEST_TIMEOUT,
                    Error::Failed(_) | Error::Registration(_) => StatusCode::CONFLICT,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                (status, error.to_string())
            }
            Self::Transaction(status, not_done) => {
                return (status, Json(not_done)).into_response();
            }
        };
        (status, format!("{text}\n")).into_response()
    }
}

type Answer<T> = Result<T, Refusal>;

async fn transactions(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["format", "seq-num", "since", "until"])?;
    let records = match arguments.number("seq-num")? {
        Some(seq) => vec![engine.kept_transaction(seq)?],
        None => engine.history(arguments.time("since")?, arguments.time("until")?),
    };
    match arguments.get("format") {
        None | Some("json") if arguments.get("seq-num").is_some() => {
            Ok(Json(json!(records.first())).into_response())
        }
        None | Some("json") => Ok(Json(json!(records)).into_response()),
        Some("text") => {
            let text: String = records.iter().map(|record| crate::log::text(record)).collect();
            Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
        }
        Some(other) => Err(Refusal::Bad(format!("format is {other}; it can be json or text"))),
    }
}

async fn timeline(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["key", "time"])?;
    let key = arguments.get("key").filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| Refusal::Bad("key is missing; it names a value".to_owned()))?;
    Ok(Json(engine.timeline(key, arguments.time("time")?)?).into_response())
}

async fn snapshot(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["time"])?;
    let at = arguments.time("time")?.unwrap_or_else(|| engine.now());
    Ok(Json(engine.snapshot(at)?).into_response())
}

async fn flag_stats(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["flag", "prefix"])?;
    let flags = "last-update, error, value-state, unavailable, descriptor, derived";
    let flag = arguments.get("flag");
    let flag = flag.ok_or_else(|| Refusal::Bad(format!("flag is missing; it can be {flags}")))?;
    let stats = engine.flag_stats(flag, &arguments.all("prefix"));
    let stats = stats.map_err(|_| Refusal::Bad(format!("flag is {flag}; it can be {flags}")))?;
    Ok(Json(stats).into_response())
}

async fn dump(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["descriptor", "key-prefix", "view"])?;
    let view = match arguments.get("view") {
        None | Some("SB") => View::SB,
        Some("NB") => View::NB,
        Some("cached" | "internal") => View::Cached,
        Some(other) => {
            return Err(Refusal::Bad(format!(
                "view is {other}; it can be NB, SB, internal or cached"
            )));
        }
    };
    let descriptor = match (arguments.get("descriptor"), arguments.get("key-prefix")) {
        (Some(_), Some(_)) => {
            return Err(Refusal::Bad("give descriptor or key-prefix, not both".to_owned()));
        }
        (Some(descriptor), None) => descriptor.to_owned(),
        (None, Some(prefix)) => engine.descriptor_of_prefix(prefix)?,
        (None, None) => return Ok(Json(engine.dump_index()).into_response()),
    };
    Ok(Json(engine.dump(&descriptor, view).await?).into_response())
}

async fn status(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["key", "descriptor", "key-prefix"])?;
    let named = ["key", "descriptor", "key-prefix"];
    if named.iter().filter(|name| arguments.get(name).is_some()).count() > 1 {
        let reason = "give key, descriptor or key-prefix, not several".to_owned();
        return Err(Refusal::Bad(reason));
    }
    if let Some(key) = arguments.get("key") {
        return Ok(Json(engine.status(key)).into_response());
    }
    if let Some(descriptor) = arguments.get("descriptor") {
        let index = engine.dump_index();
        if !index.descriptors.iter().any(|known| known == descriptor) {
            return Err(Error::Unknown(format!("descriptor {descriptor}")).into());
        }
        let own = |key: &str| engine.descriptor_of_key(key).as_deref() == Some(descriptor);
        let all = engine.statuses(|_| true);
        let own: Vec<_> = all.into_iter().filter(|status| own(&status.key)).collect();
        return Ok(Json(own).into_response());
    }
    let prefix = arguments.get("key-prefix").unwrap_or_default();
    Ok(Json(engine.statuses(|key| key.starts_with(prefix))).into_response())
}

async fn downstream_resync(
    State(engine): State<Engine>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["retry", "verbose"])?;
    let mut transaction = Transaction::downstream_resync().description("requested over REST");
    if arguments.flag("retry")? {
        transaction = transaction.retry(Retry::default());
    }
    if arguments.flag("verbose")? {
        let (record, retrieved) = engine.apply_with_picture(transaction).await?;
        return Ok(Json(json!({"transaction": record, "graph": retrieved.dot()})).into_response());
    }
    Ok(Json(engine.apply(transaction).await?).into_response())
}

async fn stats(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    Arguments::parse(query.as_deref(), &[])?;
    Ok(Json(engine.stats()).into_response())
}

/// 503 if the engine accepts no transactions.
async fn health(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    Arguments::parse(query.as_deref(), &[])?;
    let health = engine.health();
    let status = if health.accepts { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, Json(health)).into_response())
}

async fn metrics(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    Arguments::parse(query.as_deref(), &[])?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], engine.stats().prometheus()).into_response())
}

/// A transaction as it is sent.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a map with the fields of a transaction: set, delete, labels, resync, on-failure, retry, description"
)]
struct Sent {
    #[serde(default)]
    set: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    delete: Vec<String>,
    /// Labels by key, for values in `set`.
    #[serde(default)]
    labels: BTreeMap<String, UserLabels>,
    #[serde(default)]
    resync: Option<SentResync>,
    #[serde(default)]
    on_failure: Option<OnFailure>,
    #[serde(default)]
    retry: Option<SentRetry>,
    #[serde(default)]
    description: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SentResync {
    Full,
    Upstream,
    Downstream,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SentRetry {
    /// `3s`, `500ms`, or a number of seconds.
    #[serde(default)]
    period: Option<serde_json::Value>,
    #[serde(default)]
    period_ms: Option<u64>,
    #[serde(default)]
    max: Option<u32>,
    #[serde(default)]
    backoff: Option<bool>,
}

fn read(body: &str) -> Answer<Transaction> {
    let sent: Sent = serde_json::from_str(body).map_err(|error| Refusal::Bad(error.to_string()))?;
    let mut transaction = Transaction::new().description(sent.description);
    if let Some(key) = sent.labels.keys().find(|key| !sent.set.contains_key(*key)) {
        return Err(Refusal::Bad(format!("labels: {key} is not in set")));
    }
    for (key, value) in sent.set {
        transaction = transaction.set(key, value);
    }
    for (key, labels) in sent.labels {
        transaction = transaction.labels(&key, labels);
    }
    for key in sent.delete {
        transaction = transaction.delete(key);
    }
    transaction = match sent.resync {
        None => transaction,
        Some(SentResync::Full) => transaction.resync(Resync::FullResync),
        Some(SentResync::Upstream) => transaction.resync(Resync::UpstreamResync),
        Some(SentResync::Downstream) => transaction.resync(Resync::DownstreamResync),
    };
    if let Some(on_failure) = sent.on_failure {
        transaction = transaction.on_failure(on_failure);
    }
    if let Some(retry) = sent.retry {
        let usual = Retry::default();
        let period = match (retry.period, retry.period_ms) {
            (None, None) => usual.period,
            (None, Some(milliseconds)) => Duration::from_millis(milliseconds),
            (Some(period), None) => read_period(&period)?,
            (Some(_), Some(_)) => {
                let reason = "a retry has a period or a period-ms, not both".to_owned();
                return Err(Refusal::Bad(reason));
            }
        };
        transaction = transaction.retry(Retry {
            period,
            max: retry.max.unwrap_or(usual.max),
            backoff: retry.backoff.unwrap_or(usual.backoff),
        });
    }
    Ok(transaction)
}

fn read_period(period: &serde_json::Value) -> Answer<Duration> {
    let text = match period {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    parse_duration(&text).ok_or_else(|| {
        Refusal::Bad(format!("the period of a retry is {text}; it must be like 3s, 500ms or 3"))
    })
}

async fn plan(
    State(engine): State<Engine>,
    RawQuery(query): RawQuery,
    body: String,
) -> Answer<Response> {
    Arguments::parse(query.as_deref(), &[])?;
    let operations = engine.plan(read(&body)?).await?;
    Ok(Json(operations).into_response())
}

async fn commit(
    State(engine): State<Engine>,
    RawQuery(query): RawQuery,
    body: String,
) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["durable", "wait"])?;
    let transaction = read(&body)?.durable(arguments.flag("durable")?);
    let done = match arguments.number("wait")? {
        Some(seconds) => {
            engine.commit_until_configured(transaction, Duration::from_secs(seconds)).await
        }
        None => engine.commit(transaction).await,
    };
    let record = done.map_err(|error| explained(&engine, error))?;
    Ok(Json(record).into_response())
}

async fn roll_back(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["seq-num"])?;
    let missing = || Refusal::Bad("seq-num is missing; it names a transaction".to_owned());
    let seq = arguments.number("seq-num")?.ok_or_else(missing)?;
    let done = engine.roll_back_to(seq).await;
    let record = done.map_err(|error| explained(&engine, error))?;
    Ok(Json(record).into_response())
}

async fn watch(State(engine): State<Engine>, RawQuery(query): RawQuery) -> Answer<Response> {
    let arguments = Arguments::parse(query.as_deref(), &["key", "key-prefix"])?;
    let selected = match (arguments.get("key"), arguments.get("key-prefix")) {
        (Some(_), Some(_)) => {
            return Err(Refusal::Bad("give key or key-prefix, not both".to_owned()));
        }
        (Some(key), None) => Selected::Key(key.to_owned()),
        (None, prefix) => Selected::Prefix(prefix.unwrap_or_default().to_owned()),
    };
    let kind = "application/x-ndjson";
    Ok(([(header::CONTENT_TYPE, kind)], watch::body(&engine, selected)).into_response())
}
