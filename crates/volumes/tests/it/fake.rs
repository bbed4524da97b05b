//! An HTTP server that acts as scheduler extender: correct, slow, invalid or down.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::routing::post;
use axum::serve::Listener;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

/// How a fake extender answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) scores: BTreeMap<String, i64>,
    pub(crate) default: Option<i64>,
    pub(crate) scoring: Mode,
    pub(crate) narrowing: Mode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Right,
    Down,
    Garbage,
    Silent,
}

type Shared = Arc<Mutex<(Answers, Vec<(String, Value)>)>>;

/// Accepts TLS connections; connections with a failed handshake are skipped.
struct Secured(TcpListener, TlsAcceptor);

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// An HTTP server that acts as extender.
pub(crate) struct Fake {
    address: SocketAddr,
    shared: Shared,
    _task: AbortOnDropHandle<()>,
}

impl Fake {
    pub(crate) async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(answers, address, listener)
    }

    /// The same with HTTPS; its certificate is for `localhost`.
    pub(crate) async fn start_tls(answers: Answers, config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(answers, address, Secured(listener, TlsAcceptor::from(Arc::new(config))))
    }

    fn serve<L: Listener<Addr = SocketAddr>>(
        answers: Answers,
        address: SocketAddr,
        listener: L,
    ) -> Self {
        let shared: Shared = Arc::new(Mutex::new((answers, Vec::new())));
        let app = axum::Router::new()
            .route("/v1/lvg/filter-and-score", post(score))
            .route("/v1/lvg/narrow-reservation", post(narrow))
            .with_state(shared.clone());
        let serve = async move { axum::serve(listener, app).await.unwrap() };
        Self { address, shared, _task: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.shared.lock().unwrap().0);
    }

    pub(crate) fn requests(&self) -> Vec<(String, Value)> {
        self.shared.lock().unwrap().1.clone()
    }
}

type Reply = (axum::http::StatusCode, String);

async fn reply(mode: Mode, right: Value) -> Reply {
    use axum::http::StatusCode;
    match mode {
        Mode::Right => (StatusCode::OK, right.to_string()),
        Mode::Down => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        Mode::Garbage => (StatusCode::OK, "{\"lvgs\": 7}".to_owned()),
        Mode::Silent => std::future::pending().await,
    }
}

async fn score(State(shared): State<Shared>, body: String) -> Reply {
    let body: Value = serde_json::from_str(&body).unwrap();
    let (mode, answer) = {
        let mut shared = shared.lock().unwrap();
        shared.1.push(("score".to_owned(), body.clone()));
        let answers = &shared.0;
        let scored: Vec<Value> = body["lvgs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|lvg| {
                let name = lvg["name"].as_str().unwrap();
                let score = answers.scores.get(name).copied().or(answers.default)?;
                let mut scored = lvg.clone();
                scored["score"] = score.into();
                Some(scored)
            })
            .collect();
        (answers.scoring, json!({"lvgs": scored}))
    };
    reply(mode, answer).await
}

async fn narrow(State(shared): State<Shared>, body: String) -> Reply {
    let mode = {
        let mut shared = shared.lock().unwrap();
        shared.1.push(("narrow".to_owned(), serde_json::from_str(&body).unwrap()));
        shared.0.narrowing
    };
    reply(mode, json!({})).await
}
