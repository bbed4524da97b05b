//! A server to talk to, and a small client to talk to it with.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use mainstay_server::{Options, Running, Server};
use mainstay_store::Location;
use mainstay_store::clock::{Clock, ManualClock, SystemClock};
use mainstay_store::registry::{Registry, builtin};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A server in a folder of its own.
pub(crate) struct Host {
    pub(crate) running: Running,
    pub(crate) dir: TempDir,
    pub(crate) token: String,
}

pub(crate) fn registry() -> Arc<Registry> {
    Arc::new(Registry::new(builtin()).unwrap())
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::start_with(SystemClock::new(), |_| {}).await
    }

    pub(crate) async fn start_manual(
        change: impl FnOnce(&mut Options),
    ) -> (Self, Arc<ManualClock>) {
        let clock = ManualClock::new("2026-11-16T00:00:00Z".parse().unwrap());
        (Self::start_with(clock.clone(), change).await, clock)
    }

    pub(crate) async fn start_with(
        clock: Arc<dyn Clock>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), clock, change).await
    }

    pub(crate) async fn start_in(
        dir: TempDir,
        clock: Arc<dyn Clock>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut options = Options::new(listen, dir.path().to_owned(), registry(), clock);
        options.store = Location::Memory;
        change(&mut options);
        let running = Server::start(options).await.unwrap();
        let kubeconfig = std::fs::read_to_string(running.kubeconfig()).unwrap();
        let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
        let token = token.unwrap().to_owned();
        Self { running, dir, token }
    }

    /// A connection whose requests carry the admin's token.
    pub(crate) async fn client(&self) -> Client {
        self.client_with(Some(self.token.clone())).await
    }

    pub(crate) async fn client_with(&self, token: Option<String>) -> Client {
        Client::new(self.connect(None).await, token).await
    }

    /// A connection that shows a certificate.
    pub(crate) async fn certified_client(&self, certificate: &str, key: &str) -> Client {
        let pair = Some((certificate, key));
        Client::new(self.connect(pair).await, None).await
    }

    pub(crate) async fn connect(&self, pair: Option<(&str, &str)>) -> TlsStream<TcpStream> {
        let config = self.tls(pair, &[b"http/1.1"]);
        let tcp = TcpStream::connect(self.running.local_addr()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    }

    pub(crate) fn tls(
        &self,
        pair: Option<(&str, &str)>,
        protocols: &[&[u8]],
    ) -> rustls::ClientConfig {
        let authority = std::fs::read_to_string(self.dir.path().join("ca.crt")).unwrap();
        tls_with(&authority, pair, protocols)
    }
}

/// A client that trusts these authorities and may show a certificate.
pub(crate) fn tls_with(
    authorities: &str,
    pair: Option<(&str, &str)>,
    protocols: &[&[u8]],
) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(one.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config
}

impl Host {
    pub(crate) async fn token(&self, body: Value) -> String {
        let mut client = self.client().await;
        let created = client.post("/mainstay/v1/tokens", &body).await;
        assert_eq!(created.code, 201, "{created:?}");
        created.body["token"].as_str().unwrap().to_owned()
    }

    /// A connection that shows the certificate of a node, which joins for it.
    pub(crate) async fn joined(&self, node: &str) -> Client {
        let pair = self.join(node).await;
        self.certified_client(&pair.0, &pair.1).await
    }

    /// The certificate and key of a node that joins with a token of its own.
    pub(crate) async fn join(&self, node: &str) -> (String, String) {
        let token = self.token(serde_json::json!({"role": "node", "node": node})).await;
        let (csr, key) = request();
        let mut client = self.client_with(Some(token)).await;
        let granted = client.post(JOIN, &serde_json::json!({"csr": csr})).await.ok();
        (granted["certificate"].as_str().unwrap().to_owned(), key)
    }

    /// Whether the server lets a client shake hands and ask something.
    pub(crate) async fn lets_in(&self, config: rustls::ClientConfig) -> bool {
        let tcp = TcpStream::connect(self.running.local_addr()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connected = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
        let Ok(mut stream) = connected else { return false };
        // With TLS 1.3 a client learns that it is refused when it first reads.
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        stream.read_u8().await.is_ok()
    }

    pub(crate) async fn stop(self) -> TempDir {
        self.running.shut_down().await;
        self.dir
    }
}

/// Where nodes join.
pub(crate) const JOIN: &str = "/mainstay/v1/join";

/// A request for a certificate as PEM, and its key.
pub(crate) fn request() -> (String, String) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let asked = rcgen::CertificateParams::new(Vec::new()).unwrap();
    (asked.serialize_request(&key).unwrap().pem().unwrap(), key.serialize_pem())
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    pub(crate) body: Value,
}

impl Answer {
    /// Asserts that it is a refusal of this class, a proper `Status`.
    #[track_caller]
    pub(crate) fn refused(&self, code: u16, reason: &str) -> &str {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!((self.code, self.body["reason"].as_str()), (code, Some(reason)), "{text}");
        assert_eq!(self.body["kind"], "Status", "{text}");
        assert_eq!(self.body["apiVersion"], "v1", "{text}");
        assert_eq!(self.body["status"], "Failure", "{text}");
        assert_eq!(self.body["code"], code, "{text}");
        self.body["message"].as_str().unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(matches!(self.code, 200 | 201), "{}", String::from_utf8_lossy(&self.bytes));
        self.body
    }
}

/// A connection.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
}

impl Client {
    pub(crate) async fn new(stream: TlsStream<TcpStream>, token: Option<String>) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, token }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    pub(crate) async fn open(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> (StatusCode, HeaderMap, Incoming) {
        self.sender.ready().await.unwrap();
        let (parts, body) = self.sender.send_request(request).await.unwrap().into_parts();
        (parts.status, parts.headers, body)
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let (status, headers, body) = self.open(request).await;
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Answer { code: status.as_u16(), headers, bytes, body }
    }

    /// Sends a request, unless the connection is or gets closed.
    pub(crate) async fn try_send(&mut self, request: Request<Full<Bytes>>) -> Option<Answer> {
        self.sender.ready().await.ok()?;
        let (parts, body) = self.sender.send_request(request).await.ok()?.into_parts();
        let bytes = body.collect().await.ok()?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Some(Answer { code: parts.status.as_u16(), headers: parts.headers, bytes, body })
    }

    pub(crate) async fn call(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: impl Into<Bytes>,
    ) -> Answer {
        let request = self.request(method, path).header("content-type", kind);
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let request = self.request("GET", path).body(Full::default()).unwrap();
        self.send(request).await
    }

    pub(crate) async fn get_as(&mut self, path: &str, accept: &str) -> Answer {
        let request = self.request("GET", path).header("accept", accept);
        self.send(request.body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, "application/json", body.to_string()).await
    }

    pub(crate) async fn put(&mut self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, "application/json", body.to_string()).await
    }

    pub(crate) async fn merge(&mut self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, "application/merge-patch+json", body.to_string()).await
    }

    pub(crate) async fn delete(&mut self, path: &str) -> Answer {
        self.call("DELETE", path, "application/json", "").await
    }

    /// Opens a watch on a connection of its own.
    pub(crate) async fn watch(mut self, path: &str) -> Lines {
        let request = self.request("GET", path).body(Full::default()).unwrap();
        let (status, _, body) = self.open(request).await;
        assert_eq!(status, 200);
        Lines { body, read: BytesMut::new(), client: self }
    }

    pub(crate) async fn watch_as(mut self, path: &str, accept: &str) -> Lines {
        let request = self.request("GET", path).header("accept", accept);
        let (status, _, body) = self.open(request.body(Full::default()).unwrap()).await;
        assert_eq!(status, 200);
        Lines { body, read: BytesMut::new(), client: self }
    }
}

/// The lines of a watch.
pub(crate) struct Lines {
    body: Incoming,
    read: BytesMut,
    #[expect(dead_code, reason = "the connection lives as long as its watch")]
    client: Client,
}

impl Lines {
    /// The frames as they arrive.
    pub(crate) fn frames(&mut self) -> &mut Incoming {
        &mut self.body
    }

    /// The next event, or none if the watch ended cleanly.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }

    /// The type of the next event, the name of its object and its version.
    pub(crate) async fn seen(&mut self) -> (String, String, String) {
        let event = self.next().await.expect("the watch ended");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &event["object"]["metadata"];
        (text(&event["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"]))
    }

    /// The type of the next event and the name of its object.
    pub(crate) async fn brief(&mut self) -> String {
        let (kind, name, _) = self.seen().await;
        format!("{kind} {name}").trim_end().to_owned()
    }
}

/// A ConfigMap.
pub(crate) fn map(name: &str) -> Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}})
}

pub(crate) fn labelled(name: &str, color: &str) -> Value {
    let mut map = map(name);
    map["metadata"]["labels"] = serde_json::json!({"color": color});
    map
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn one(name: &str) -> String {
    format!("{MAPS}/{name}")
}
