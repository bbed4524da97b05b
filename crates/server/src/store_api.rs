//! Requests of operators to the store: `GET /mainstay/v1/backup`, and under `/mainstay/v1/store`
//! `GET stats`, `GET check`, `POST compact` and `POST rekey`. For admins only; the caller has
//! checked that.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use mainstay_store::backup::{self, Chunks, Part};
use mainstay_store::check;
use mainstay_store::object::Resource;
use mainstay_store::objects;
use mainstay_store::snapshot::{Snapshot, Stats};
use mainstay_store::status::{Error, Reason};
use serde::Serialize;
use serde_json::json;

use crate::reply::{self, Body, Reply};
use crate::service::{App, Asked, wrong_method};

/// A request about the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Backup,
    Stats,
    Check,
    Compact,
    Rekey,
}

impl Errand {
    /// The request that a path stands for, if it is one of these.
    pub(crate) fn named(path: &str) -> Option<Self> {
        match path.strip_prefix("/mainstay/v1/")? {
            "backup" => Some(Self::Backup),
            "store/stats" => Some(Self::Stats),
            "store/check" => Some(Self::Check),
            "store/compact" => Some(Self::Compact),
            "store/rekey" => Some(Self::Rekey),
            _ => None,
        }
    }

    /// Puts it in the books, whether it is allowed or not. A backup holds every secret there is:
    /// who asked for one is worth a line.
    pub(crate) fn note(self, asked: &mut Asked) {
        asked.resource = Some(Resource::from_stored("store"));
        self.name().clone_into(&mut asked.name);
        asked.changes = matches!(self, Self::Backup | Self::Compact | Self::Rekey);
    }

    fn name(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Stats => "stats",
            Self::Check => "check",
            Self::Compact => "compact",
            Self::Rekey => "rekey",
        }
    }
}

pub(crate) async fn answer(
    app: &App,
    method: &Method,
    errand: Errand,
    asked: &mut Asked,
) -> Result<Reply, Error> {
    match (method, errand) {
        (&Method::GET, Errand::Backup) => {
            asked.lasting = true;
            let (snapshot, parts) = moment(app).await?;
            let chunks = Chunks::new(snapshot, app.clock.now());
            let body = axum::body::Body::from_stream(backup::stream(chunks, parts));
            let mut reply = Response::new(Body::routed(body));
            let lines = HeaderValue::from_static("application/x-ndjson");
            reply.headers_mut().insert(CONTENT_TYPE, lines);
            Ok(reply)
        }
        (&Method::GET, Errand::Stats) => {
            let objects = app.resources.objects();
            // Objects whose value is damaged are named instead of counted.
            let (snapshot, medium) = (objects.readable().await.map_err(failed)?, objects.medium());
            let left = match snapshot.has_retired_keys_only() {
                true => objects.values_left().await.map_err(failed)?,
                false => 0,
            };
            aside(move || Stats::of(&snapshot, &medium).with_values_left(&snapshot, left)).await
        }
        (&Method::GET, Errand::Check) => {
            // A large catalog takes minutes.
            asked.lasting = true;
            asked.patient.store(true, Relaxed);
            let mut medium = app.resources.objects().verify().await.map_err(failed)?;
            for part in &app.parts {
                let found = part.verify().await;
                medium
                    .extend(found.map_err(|error| Error::new(Reason::ServiceUnavailable, error))?);
            }
            let registry = app.resources.registry().clone();
            // Objects whose value is damaged are left out; the findings of the medium name them.
            let snapshot = app.resources.objects().readable().await.map_err(failed)?;
            aside(move || check::Report { medium, ..check::check(&snapshot, &registry) }).await
        }
        (&Method::POST, Errand::Compact) => {
            let through = snapshot(app).await?.revision;
            app.resources.objects().compact(through).await.map_err(failed)?;
            Ok(reply::value(StatusCode::OK, &json!({"compactedThrough": through.0})))
        }
        (&Method::POST, Errand::Rekey) => {
            let id = app.resources.objects().rekey().await?;
            Ok(reply::value(StatusCode::OK, &json!({"dataKey": id})))
        }
        _ => Err(wrong_method()),
    }
}

/// How long a part may take to fix its moment.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Everything there is at one moment: writes to the parts are held back while the objects' snapshot
/// is taken.
async fn moment(app: &App) -> Result<(Snapshot, Vec<Part>), Error> {
    let unavailable = |reason: String| {
        Error::new(Reason::ServiceUnavailable, format!("the backup cannot be taken: {reason}"))
    };
    let mut held = Vec::with_capacity(app.parts.len());
    for part in &app.parts {
        let fixed = tokio::time::timeout(PART_TIMEOUT, part.hold()).await;
        let fixed = fixed.unwrap_or_else(|_| Err("the rule catalog does not answer".to_owned()));
        held.push(fixed.map_err(unavailable)?);
    }
    let snapshot = snapshot(app).await?;
    Ok((snapshot, held.into_iter().map(|part| part.release()).collect()))
}

async fn snapshot(app: &App) -> Result<Snapshot, Error> {
    app.resources.objects().snapshot().await.map_err(failed)
}

/// Works something out where it holds up nobody else.
async fn aside<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Reply, Error> {
    let encoded = tokio::task::spawn_blocking(move || serde_json::to_vec(&work())).await;
    let body = encoded.map_err(Error::internal)?.map_err(Error::internal)?;
    Ok(reply::json(StatusCode::OK, Body::whole(body)))
}

fn failed(error: objects::Error) -> Error {
    Error::new(Reason::ServiceUnavailable, error.to_string())
}
