//! Serves the ledger over HTTP with the contract of the scheduler extender.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use mainstay_clock::duration;
use mainstay_store::resources::Resources;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ledger::{self, Claim, HeldReservation, Target};
use crate::reserve::{self, ReservationStore};

/// The size limit of a request, in bytes.
const LARGEST: usize = 10 << 20;

#[derive(Deserialize)]
struct ScoreRequest {
    #[serde(rename = "reservationID", default)]
    reservation_id: String,
    #[serde(rename = "reservationTTL", default)]
    reservation_ttl: String,
    #[serde(default)]
    size: i64,
    #[serde(default)]
    lvgs: Vec<Target>,
}

#[derive(Serialize)]
struct ScoreResponse {
    lvgs: Vec<Scored>,
}

#[derive(Serialize)]
struct Scored {
    #[serde(flatten)]
    target: Target,
    score: i64,
}

#[derive(Deserialize)]
struct NarrowRequest {
    #[serde(rename = "reservationID", default)]
    reservation_id: String,
    #[serde(rename = "reservationTTL", default)]
    reservation_ttl: String,
    lvg: Target,
}

/// The answer of `/v1/lvg/reservations`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReservationList {
    /// The reservations that have not expired.
    pub reservations: Vec<HeldReservation>,
}

#[derive(Default, Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// The ledger behind the routes.
#[derive(Clone, Debug)]
pub struct LedgerService {
    reserve: Arc<ReservationStore>,
    resources: Resources,
}

impl LedgerService {
    /// Serves this ledger; narrow reservations are written with `resources`.
    #[must_use]
    pub fn new(reserve: Arc<ReservationStore>, resources: Resources) -> Self {
        Self { reserve, resources }
    }
}

type Slot = Arc<OnceLock<LedgerService>>;

/// The routes of the extender: `/v1/lvg/filter-and-score` and `/v1/lvg/narrow-reservation`, and
/// beyond the contract `/v1/lvg/reservations`, which lists reservations. They answer 503 until the
/// ledger is set, because routes are built before the server has a store.
pub fn router(ledger: Slot) -> Router {
    Router::new()
        .route("/v1/lvg/filter-and-score", post(filter_and_score))
        .route("/v1/lvg/narrow-reservation", post(narrow_reservation))
        .route("/v1/lvg/reservations", get(reservations))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(ledger)
}

fn absent() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the capacity ledger is not loaded yet; retry")
}

fn refuse(code: StatusCode, error: &str) -> Response {
    (code, axum::Json(Answer { error: error.to_owned() })).into_response()
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        refuse(StatusCode::BAD_REQUEST, &format!("invalid request body: {error}")).into()
    })
}

async fn filter_and_score(State(slot): State<Slot>, body: Bytes) -> Response {
    let Some(ledger) = slot.get() else { return absent() };
    let request: ScoreRequest = match parse(&body) {
        Ok(request) => request,
        Err(refusal) => return *refusal,
    };
    let bad = |error: &str| refuse(StatusCode::BAD_REQUEST, error);
    let Ok(ttl) = duration::parse(&request.reservation_ttl) else {
        return bad("reservationTTL must be a duration, as 2s");
    };
    let size = u64::try_from(request.size).unwrap_or_default();
    if request.reservation_id.is_empty() {
        return bad("reservationID is required");
    }
    if size == 0 {
        return bad("size must be greater than 0");
    }
    if request.lvgs.is_empty() {
        return bad("lvgs must not be empty");
    }
    if request.lvgs.iter().any(|target| target.name.is_empty()) {
        return bad("lvgs[].name is required");
    }
    let claim =
        Claim { holder: request.reservation_id, volume: String::new(), size, replicated: false };
    let targets: Vec<&Target> = request.lvgs.iter().collect();
    let scores = ledger.reserve.filter_and_score(&claim, &targets, ttl, true);
    let scored = request.lvgs.into_iter().zip(scores).filter(|(_, score)| *score > 0);
    let lvgs = scored.map(|(target, score)| Scored { target, score }).collect();
    axum::Json(ScoreResponse { lvgs }).into_response()
}

async fn narrow_reservation(State(slot): State<Slot>, body: Bytes) -> Response {
    let Some(ledger) = slot.get() else { return absent() };
    let request: NarrowRequest = match parse(&body) {
        Ok(request) => request,
        Err(refusal) => return *refusal,
    };
    let bad = |error: &str| refuse(StatusCode::BAD_REQUEST, error);
    let Ok(ttl) = duration::parse(&request.reservation_ttl) else {
        return bad("reservationTTL must be a duration, as 1m0s");
    };
    if request.reservation_id.is_empty() {
        return bad("reservationID is required");
    }
    if request.lvg.name.is_empty() {
        return bad("lvg.name is required");
    }
    let (reserve, resources) = (&ledger.reserve, &ledger.resources);
    match reserve.narrow(resources, &request.reservation_id, &request.lvg, ttl).await {
        Ok(()) => axum::Json(Answer::default()).into_response(),
        // The contract answers 200 here, with the error in the body.
        Err(reserve::Error::Ledger(error)) => {
            if error == ledger::Error::Unknown
                && let Err(error) = reserve.release(resources, &request.reservation_id).await
            {
                return refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
            axum::Json(Answer { error: error.to_string() }).into_response()
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn reservations(State(slot): State<Slot>) -> Response {
    let Some(ledger) = slot.get() else { return absent() };
    axum::Json(ReservationList { reservations: ledger.reserve.held() }).into_response()
}
