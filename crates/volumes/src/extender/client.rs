//! Asks an extender elsewhere, over HTTP or HTTPS with JSON. Whom to trust is its caller's matter.
//!
//! Its answers are not trusted: anything but 200, a body that is too large or cannot be read, or
//! silence for ten seconds is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use mainstay_store::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;

use super::{BROAD, NARROW, Request};
use crate::duration;
use crate::ledger::{self, Target};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const LARGEST: usize = 10 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Correct the URL.
    #[error("the extender's URL must be http://HOST:PORT or https://HOST:PORT, not {0:?}")]
    Url(String),
    /// Retry later.
    #[error("the extender cannot be reached at {address}")]
    Connect {
        /// Where it was looked for.
        address: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Retry later, or give the authority that signed its certificate.
    #[error("the extender at {address} cannot be trusted")]
    Tls {
        /// Where it is.
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
pub struct Client {
    address: String,
    base: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
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
    /// A client of the extender at `url`. HTTPS needs `trust` to judge its certificate.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub fn new(
        url: &str,
        trust: Option<Arc<ClientConfig>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let wrong = || Error::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let (port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(bare).map_err(|_| wrong())?;
                (443, Some((TlsConnector::from(trust.ok_or_else(wrong)?), name)))
            }
            _ => return Err(wrong()),
        };
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(port));
        Ok(Self { address, base: uri.path().trim_end_matches('/').to_owned(), tls, clock })
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
            () = self.clock.sleep(PATIENCE) => Err(Error::Timeout),
        }
    }

    async fn exchange(&self, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        let address = || self.address.clone();
        let body = serde_json::to_vec(body).map_err(Error::Body)?;
        let connected = TcpStream::connect(&self.address).await;
        let stream = connected.map_err(|source| Error::Connect { address: address(), source })?;
        match &self.tls {
            None => self.speak(stream, path, body).await,
            Some((connector, name)) => {
                let secured = connector.connect(name.clone(), stream).await;
                let stream = secured.map_err(|source| Error::Tls { address: address(), source })?;
                self.speak(stream, path, body).await
            }
        }
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Bytes, Error> {
        let failed = |error: hyper::Error| Error::Http(error.into());
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // The connection ends with the exchange.
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = http::Request::builder()
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
