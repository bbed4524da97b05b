//! Asks an extender elsewhere, over HTTP with JSON.
//!
//! Its answers are not trusted: anything but 200, a body that is too large or cannot be read, or
//! silence for ten seconds is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use mainstay_store::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::duration;
use crate::ledger::Target;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const LARGEST: usize = 10 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Correct the URL.
    #[error("the extender's URL must be http://HOST:PORT, not {0:?}")]
    Url(String),
    /// Retry later.
    #[error("the extender cannot be reached at {address}")]
    Connect {
        /// Where it was looked for.
        address: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Retry later.
    #[error("the connection to the extender failed")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Retry later.
    #[error("the extender did not answer within {} seconds", PATIENCE.as_secs())]
    Timeout,
    /// Retry later.
    #[error("the extender answered {0}")]
    Status(StatusCode),
    /// Retry later.
    #[error("the extender's answer cannot be read")]
    Body(#[source] serde_json::Error),
}

/// A client of one extender.
#[derive(Debug)]
pub struct Client {
    address: String,
    base: String,
    clock: Arc<dyn Clock>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScoreRequest<'a> {
    #[serde(rename = "reservationID")]
    reservation_id: &'a str,
    #[serde(rename = "reservationTTL")]
    reservation_ttl: String,
    size: u64,
    lvgs: &'a [Target],
}

#[derive(Deserialize)]
struct ScoreResponse {
    #[serde(default)]
    lvgs: Option<Vec<Scored>>,
}

#[derive(Deserialize)]
struct Scored {
    #[serde(flatten)]
    target: Target,
    #[serde(default)]
    score: i64,
}

#[derive(Serialize)]
struct NarrowRequest<'a> {
    #[serde(rename = "reservationID")]
    reservation_id: &'a str,
    #[serde(rename = "reservationTTL")]
    reservation_ttl: String,
    lvg: &'a Target,
}

impl Client {
    /// A client of the extender at `url`.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn new(url: &str, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let wrong = || Error::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        Ok(Self { address, base: uri.path().trim_end_matches('/').to_owned(), clock })
    }

    /// A score for each target, in their order; 0 for those the extender did not score.
    ///
    /// # Errors
    /// If there is no answer that can be read.
    pub async fn filter_and_score(
        &self,
        id: &str,
        size: u64,
        targets: &[Target],
        ttl: Duration,
    ) -> Result<Vec<i64>, Error> {
        let reservation_ttl = duration::format(ttl);
        let request = ScoreRequest { reservation_id: id, reservation_ttl, size, lvgs: targets };
        let answer = self.post("/v1/lvg/filter-and-score", &request).await?;
        let answer: ScoreResponse = serde_json::from_slice(&answer).map_err(Error::Body)?;
        let mut scores: BTreeMap<Target, i64> = BTreeMap::new();
        for Scored { target, score } in answer.lvgs.unwrap_or_default() {
            scores.entry(target).or_insert(score);
        }
        Ok(targets.iter().map(|target| scores.get(target).copied().unwrap_or_default()).collect())
    }

    /// Keeps the reservation on one target.
    ///
    /// # Errors
    /// If the extender does not answer 200.
    pub async fn narrow_reservation(
        &self,
        id: &str,
        target: &Target,
        ttl: Duration,
    ) -> Result<(), Error> {
        let reservation_ttl = duration::format(ttl);
        let request = NarrowRequest { reservation_id: id, reservation_ttl, lvg: target };
        self.post("/v1/lvg/narrow-reservation", &request).await.map(drop)
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        tokio::select! {
            answer = self.exchange(path, body) => answer,
            () = self.clock.sleep(PATIENCE) => Err(Error::Timeout),
        }
    }

    async fn exchange(&self, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        let failed = |error: hyper::Error| Error::Http(error.into());
        let connected = TcpStream::connect(&self.address).await;
        let stream =
            connected.map_err(|source| Error::Connect { address: self.address.clone(), source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // The connection ends with the exchange.
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let body = serde_json::to_vec(body).map_err(Error::Body)?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.base))
            .header(HOST, &self.address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::Http(error.into()))?;
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(Error::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        Ok(body.map_err(Error::Http)?.to_bytes())
    }
}
