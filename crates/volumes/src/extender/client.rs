//! A client of an external scheduler extender, over HTTP or HTTPS with JSON.
//!
//! Every answer but 200, a body that is too large or cannot be read, and no answer within ten seconds
//! is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use mainstay_client::{Access, Address, Options};
use mainstay_clock::Clock;
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::ClientConfig;

use super::{BROAD, NARROW, Request};
use crate::duration;
use crate::ledger::{self, Target};

/// The deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// The size limit of an answer, in bytes.
const MAX_ANSWER: usize = 10 << 20;

/// Why the extender gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Correct the URL.
    #[error("the extender's URL must be http://HOST:PORT or https://HOST:PORT, not {0:?}")]
    Url(String),
    /// Retry later.
    #[error("the extender cannot be reached at {address}")]
    Connect {
        /// Its address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Retry later, or give the authority that signed its certificate.
    #[error("the extender at {address} cannot be trusted")]
    Tls {
        /// Its address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Retry later.
    #[error("the connection to the extender failed")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Retry later.
    #[error("the extender did not answer within {} seconds", DEADLINE.as_secs())]
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
    http: mainstay_client::Client,
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
    lvgs: &'a [&'a Target],
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
    /// A client of the extender at `url`. HTTPS needs `trust` to verify its certificate.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn new(
        url: &str,
        trust: Option<Arc<ClientConfig>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let address = Address::parse(url).map_err(|_| Error::Url(url.to_owned()))?;
        if address.is_secure() && trust.is_none() {
            return Err(Error::Url(url.to_owned()));
        }
        let access = Access { tls: trust, token: None };
        // Every request has a connection of its own, so that none is lost with an idle one.
        let options = Options {
            connect_timeout: DEADLINE,
            timeout: DEADLINE,
            largest: MAX_ANSWER,
            idle: 0,
            ..Options::default()
        };
        let http = mainstay_client::Client::with_options(vec![address], access, options);
        Ok(Self { http, clock })
    }

    /// A score for each target, in their order; 0 for those the extender did not score.
    ///
    /// # Errors
    /// If there is no answer that can be read.
    pub async fn filter_and_score(
        &self,
        request: &Request,
        targets: &[&Target],
    ) -> Result<Vec<i64>, Error> {
        let Request { claim, reservation_id } = request;
        let size = ledger::backing_size(claim.size, claim.replicated, 1);
        let reservation_ttl = duration::format(BROAD);
        let request = ScoreRequest { reservation_id, reservation_ttl, size, lvgs: targets };
        let answer = self.post("/v1/lvg/filter-and-score", &request).await?;
        let answer: ScoreResponse = serde_json::from_slice(&answer).map_err(Error::Body)?;
        let mut scores: BTreeMap<Target, i64> = BTreeMap::new();
        for Scored { target, score } in answer.lvgs.unwrap_or_default() {
            scores.entry(target).or_insert(score);
        }
        Ok(targets.iter().map(|target| scores.get(*target).copied().unwrap_or_default()).collect())
    }

    /// Keeps the reservation on one target.
    ///
    /// # Errors
    /// If the extender does not answer 200.
    pub async fn narrow_reservation(
        &self,
        request: &Request,
        target: &Target,
    ) -> Result<(), Error> {
        let reservation_ttl = duration::format(NARROW);
        let reservation_id = &request.reservation_id;
        let request = NarrowRequest { reservation_id, reservation_ttl, lvg: target };
        self.post("/v1/lvg/narrow-reservation", &request).await.map(drop)
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        tokio::select! {
            answer = self.exchange(path, body) => answer,
            () = self.clock.sleep(DEADLINE) => Err(Error::Timeout),
        }
    }

    async fn exchange(&self, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Body)?;
        let answer = self.http.call(Method::POST, path, Some(body)).await?;
        match answer.code {
            StatusCode::OK => Ok(answer.body),
            code => Err(Error::Status(code)),
        }
    }
}

impl From<mainstay_client::Error> for Error {
    fn from(error: mainstay_client::Error) -> Self {
        use mainstay_client::Error as Http;
        match error {
            Http::Connect { server: address, source } => Self::Connect { address, source },
            Http::Handshake { server: address, source } => Self::Tls { address, source },
            Http::Timeout { .. } => Self::Timeout,
            error => Self::Http(Box::new(error)),
        }
    }
}
