//! One who takes all there is, and the others, who are served all the same.

use std::convert::Infallible;
use std::net::Shutdown;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_server::Options;
use mainstay_store::clock::{Clock, SystemClock};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::client::{Client, Host, MAPS, map, one};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

type Sender = SendRequest<BoxBody<Bytes, Infallible>>;

/// A connection of several requests at once, and its socket, to cut it.
pub(crate) async fn multiplexed(host: &Host) -> (Sender, std::net::TcpStream) {
    let tcp = TcpStream::connect(host.running.local_addr()).await.unwrap().into_std().unwrap();
    let socket = tcp.try_clone().unwrap();
    let tcp = TcpStream::from_std(tcp).unwrap();
    let connector = TlsConnector::from(Arc::new(host.tls(None, &[b"h2"])));
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, tcp).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(async move {
        // It ends when it is cut.
        let _ = connection.await;
    });
    (sender, socket)
}

pub(crate) fn whole(body: impl Into<Bytes>) -> BoxBody<Bytes, Infallible> {
    Full::new(body.into()).boxed()
}

/// A body that begins and never ends.
fn unfinished() -> BoxBody<Bytes, Infallible> {
    let begin = stream::iter([Ok(Frame::data(Bytes::from_static(b"{")))]);
    BodyExt::boxed(StreamBody::new(begin.chain(stream::pending())))
}

pub(crate) fn request(
    method: &str,
    path: &str,
    token: Option<&str>,
    body: BoxBody<Bytes, Infallible>,
) -> Request<BoxBody<Bytes, Infallible>> {
    let request = Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header("content-type", "application/json");
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    request.body(body).unwrap()
}

async fn read(answer: Response<Incoming>) -> (u16, Value) {
    let (parts, body) = answer.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default())
}

/// How much is held, by pool, and class.
async fn held(client: &mut Client, pool: &str, class: &str) -> i64 {
    let text = String::from_utf8(client.get("/metrics").await.bytes.to_vec()).unwrap();
    let line = format!("mainstay_http_held{{pool=\"{pool}\",class=\"{class}\"}} ");
    let found = text.lines().find_map(|found| found.strip_prefix(&line));
    found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse().unwrap()
}

async fn until_held(client: &mut Client, pool: &str, class: &str, wanted: i64) {
    while held(client, pool, class).await != wanted {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn review(client: &mut Client) -> u16 {
    client.post(REVIEWS, &json!({"kind": "SelfSubjectReview"})).await.code
}

#[tokio::test]
async fn one_viewer_with_unfinished_bodies_does_not_delay_others() {
    let host = Host::start().await;
    let eve = host.token(json!({"role": "viewer", "name": "eve"})).await;
    let other = host.token(json!({"role": "viewer", "name": "other"})).await;
    let mut admin = host.client().await;
    admin.post(MAPS, &map("a")).await.ok();
    let mut lines = Vec::new();
    let mut streams = JoinSet::new();
    for _ in 0..6 {
        let (sender, socket) = multiplexed(&host).await;
        for _ in 0..1_000 {
            let mut sender = sender.clone();
            let request = request("POST", REVIEWS, Some(&eve), unfinished());
            streams.spawn(async move {
                sender.ready().await.ok()?;
                let answer = sender.send_request(request).await.ok()?;
                Some(read(answer).await)
            });
        }
        lines.push((sender, socket));
    }
    // Half of the 832 that users can have.
    until_held(&mut admin, "bodies", "users", 416).await;
    let (code, refused) = streams.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(code, 429, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("request bodies on their way"), "{message}");
    assert!(message.contains("\"eve\"") && message.contains("limits.bodies"), "{message}");
    assert_eq!(refused["details"]["retryAfterSeconds"], 1);
    let mut viewer = host.client_with(Some(other)).await;
    for turn in 0..20 {
        assert_eq!(admin.get(&one("a")).await.code, 200);
        assert_eq!(admin.post(MAPS, &map(&format!("b{turn}"))).await.code, 201);
        assert_eq!(viewer.get(MAPS).await.code, 200);
        assert_eq!(review(&mut viewer).await, 201);
    }
    let mut same = host.client_with(Some(eve)).await;
    assert_eq!(same.get(&one("a")).await.code, 200, "what needs no body is not held up");
    drop(same);
    for (_, socket) in &lines {
        socket.shutdown(Shutdown::Both).unwrap();
    }
    until_held(&mut admin, "bodies", "users", 0).await;
    drop(viewer);
    until_held(&mut admin, "user-connections", "users", 0).await;
    assert_eq!(held(&mut admin, "requests", "users").await, 0);
    assert_eq!(held(&mut admin, "body-bytes", "users").await, 0);
    until_held(&mut admin, "address-connections", "loopback", 1).await;
    host.stop().await;
}

#[tokio::test]
async fn bodies_that_break_off_in_any_way_leave_nothing_behind() {
    let host = Host::start().await;
    let eve = host.token(json!({"role": "viewer", "name": "eve"})).await;
    let mut admin = host.client().await;
    for _ in 0..3 {
        // Reset.
        let (mut sender, socket) = multiplexed(&host).await;
        let asked = sender.send_request(request("POST", REVIEWS, Some(&eve), unfinished()));
        let asked = tokio::spawn(asked);
        until_held(&mut admin, "bodies", "users", 1).await;
        asked.abort();
        until_held(&mut admin, "bodies", "users", 0).await;
        // Cut.
        let asked = sender.send_request(request("POST", REVIEWS, Some(&eve), unfinished()));
        let asked = tokio::spawn(asked);
        until_held(&mut admin, "bodies", "users", 1).await;
        socket.shutdown(Shutdown::Both).unwrap();
        until_held(&mut admin, "bodies", "users", 0).await;
        assert!(asked.await.unwrap().is_err());
        // Closed halfway over HTTP/1, with more promised.
        let mut plain = host.connect(None).await;
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {eve}\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{{"
        );
        plain.write_all(head.as_bytes()).await.unwrap();
        until_held(&mut admin, "bodies", "users", 1).await;
        assert_eq!(held(&mut admin, "body-bytes", "users").await, 100_000 - (16 << 10));
        drop(plain);
        until_held(&mut admin, "bodies", "users", 0).await;
        assert_eq!(held(&mut admin, "body-bytes", "users").await, 0);
    }
    until_held(&mut admin, "user-connections", "users", 0).await;
    host.stop().await;
}

#[tokio::test]
async fn the_memory_of_bodies_is_shared_too() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.limits.body_memory = 4 << 20;
    })
    .await;
    let eve = host.token(json!({"role": "editor", "name": "eve"})).await;
    let mut admin = host.client().await;
    let mut held_up = Vec::new();
    let promise = |token: &str| {
        format!(
            "POST {MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n{{"
        )
    };
    for bodies in 1..=2 {
        let mut stream = host.connect(None).await;
        stream.write_all(promise(&eve).as_bytes()).await.unwrap();
        held_up.push(stream);
        until_held(&mut admin, "bodies", "users", bodies).await;
    }
    let mut stream = host.connect(None).await;
    stream.write_all(promise(&eve).as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 429");
    let large = "x".repeat(500_000);
    let made = json!({"metadata": {"name": "large"}, "data": {"x": large}});
    assert_eq!(admin.post(MAPS, &made).await.code, 201, "administrators have a reserve");
    host.stop().await;
}

/// A dialect with users of its own, below `/own`: `wait` answers when there is a permit, all others
/// answer how long the body was.
fn own(options: &mut Options, permits: Arc<Semaphore>) {
    let wait = any(move || {
        let permits = permits.clone();
        async move {
            permits.acquire().await.unwrap().forget();
            StatusCode::UNAUTHORIZED
        }
    });
    let length = any(|body: axum::body::Body| async move {
        body.collect().await.map(|body| body.to_bytes().len().to_string()).unwrap()
    });
    let routes = Router::new().route("/own/wait", wait).route("/own/length", length);
    options.routes = Some(routes);
    options.own_users = vec!["/own"];
}

#[tokio::test]
async fn a_flood_of_unknown_users_makes_no_known_one_wait() {
    let permits = Arc::new(Semaphore::new(0));
    let host = Host::start_with(SystemClock::new(), |options| own(options, permits.clone())).await;
    let mut admin = host.client().await;
    let (sender, _socket) = multiplexed(&host).await;
    let mut logins = JoinSet::new();
    for _ in 0..900 {
        let mut sender = sender.clone();
        logins.spawn(async move {
            sender.ready().await.unwrap();
            let answer = sender.send_request(request("GET", "/own/wait", None, whole(""))).await;
            read(answer.unwrap()).await
        });
    }
    // One after the other on each, all sent at once.
    let mut pipelined = Vec::new();
    for _ in 0..100 {
        let mut stream = host.connect(None).await;
        let login = "GET /own/wait HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
        stream.write_all(login.as_bytes()).await.unwrap();
        pipelined.push(stream);
    }
    // 512, of which tokens that others may know have 256 for themselves: half of the rest.
    until_held(&mut admin, "unauthenticated", "anonymous", 128).await;
    let (code, refused) = logins.join_next().await.unwrap().unwrap();
    assert_eq!(code, 429);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("unauthenticated requests"), "{message}");
    for _ in 0..50 {
        assert_eq!(admin.get(MAPS).await.code, 200);
        assert_eq!(admin.get("/readyz").await.code, 200);
        assert_eq!(review(&mut admin).await, 201);
    }
    assert_eq!(held(&mut admin, "requests", "users").await, 0);
    // Those who show a token of the dialect have places of their own.
    let mut client = host.client_with(None).await;
    let asked = client.request("GET", "/own/length").header("x-rucio-auth-token", "t");
    assert_eq!(client.send(asked.body(Full::default()).unwrap()).await.code, 200);
    let mut forged = host.client_with(Some("mst_forged".to_owned())).await;
    forged.get(MAPS).await.refused(401, "Unauthorized");
    drop(pipelined);
    permits.add_permits(10_000);
    while logins.join_next().await.is_some() {}
    until_held(&mut admin, "unauthenticated", "anonymous", 0).await;
    host.stop().await;
}

#[tokio::test]
async fn bodies_for_further_dialects_keep_the_bound_and_arrive_whole() {
    let host = Host::start_with(SystemClock::new(), |options| {
        own(options, Arc::new(Semaphore::new(0)));
    })
    .await;
    for token in [None, Some(host.token.clone())] {
        let mut client = host.client_with(token.clone()).await;
        let fits = client.call("POST", "/own/length", "text/plain", vec![b'x'; 3 << 20]).await;
        assert_eq!((fits.code, fits.bytes), (200, Bytes::from((3 << 20).to_string())));
        let large = client.call("POST", "/own/length", "text/plain", vec![b'x'; 4 << 20]).await;
        assert!(large.refused(413, "RequestEntityTooLarge").contains("3145728"));
        // Without a length.
        let (mut sender, _socket) = multiplexed(&host).await;
        let piece = Bytes::from(vec![b'x'; 64 << 10]);
        let pieces = stream::iter((0..100).map(move |_| Ok(Frame::data(piece.clone()))));
        let body = BodyExt::boxed(StreamBody::new(pieces));
        let answer = sender.send_request(request("POST", "/own/length", token.as_deref(), body));
        let (code, refused) = read(answer.await.unwrap()).await;
        assert_eq!(code, 413, "{refused}");
    }
    host.stop().await;
}

#[tokio::test]
async fn large_writes_of_every_form_are_done_on_threads_of_their_own() {
    let host = Host::start().await;
    let mut admin = host.client().await;
    let large = "x".repeat(400_000);
    let made = json!({"metadata": {"name": "l"}, "data": {"x": large}});
    assert_eq!(admin.post(MAPS, &made).await.code, 201);
    assert_eq!(admin.post(MAPS, &made).await.code, 409, "refusals arrive too");
    assert_eq!(
        admin.put(&one("l"), &json!({"metadata": {"name": "l"}, "data": {"y": large}})).await.code,
        200
    );
    // The patches are small, and what they change is not.
    assert_eq!(admin.merge(&one("l"), &json!({"data": {"z": "1"}})).await.code, 200);
    let copies: Vec<_> = (0..3)
        .map(|n| json!({"op": "copy", "from": "/data/z", "path": format!("/data/c{n}")}))
        .collect();
    let json_patch = json!(copies).to_string();
    let patched = admin.call("PATCH", &one("l"), "application/json-patch+json", json_patch).await;
    assert_eq!(patched.code, 200);
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": large}});
    let path = format!("{}?fieldManager=t", one("a"));
    let applied =
        admin.call("PATCH", &path, "application/apply-patch+yaml", config.to_string()).await;
    assert_eq!(applied.code, 201);
    let stored = admin.get(&one("l")).await.ok();
    assert_eq!((&stored["data"]["c2"], &stored["data"]["z"]), (&json!("1"), &json!("1")));
    host.stop().await;
}

#[tokio::test]
async fn early_refusals_over_http2_arrive_whole() {
    let host = Host::start().await;
    let viewer = host.token(json!({"role": "viewer"})).await;
    let cases =
        [(Some("mst_wrong".to_owned()), 401), (Some(viewer), 403), (Some(host.token.clone()), 413)];
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 20 << 20]).unwrap();
    for (token, code) in &cases {
        let (mut sender, _socket) = multiplexed(&host).await;
        for _ in 0..5 {
            let body = whole(vec![b'x'; 20 << 20]);
            let asked = request("POST", MAPS, token.as_deref(), body);
            let (found, status) = read(sender.send_request(asked).await.unwrap()).await;
            assert_eq!((found, &status["code"]), (*code, &json!(code)), "{status}");
        }
        let output = tokio::process::Command::new("curl")
            .args(["-sS", "--http2", "-X", "POST", "-H", "expect:", "-w", "%{http_code}"])
            .args(["-H", "content-type: application/json", "--cacert"])
            .arg(host.dir.path().join("ca.crt"))
            .arg("--data-binary")
            .arg(format!("@{}", large.display()))
            .args(["-H", &format!("authorization: Bearer {}", token.as_deref().unwrap())])
            .arg(format!("{}{MAPS}", host.running.url()))
            .stdin(Stdio::null())
            .output()
            .await
            .expect("curl is needed");
        let text = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(text.ends_with(&format!("}}{code}")), "{text} {wrong}");
    }
    host.stop().await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.limits.connections = 32;
    })
    .await;
    let mut busy = Vec::new();
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.push(host.token(json!({"role": "viewer"})).await);
    }
    for token in tokens.iter().cycle().take(16) {
        let mut stream = host.connect(None).await;
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).await.unwrap();
        busy.push(stream);
    }
    // Half are taken, and none of them is idle: the next from here waits.
    let mut waiting = TcpStream::connect(host.running.local_addr()).await.unwrap();
    let elsewhere = TcpSocket::new_v4().unwrap();
    elsewhere.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let tcp = elsewhere.connect(host.running.local_addr()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(host.tls(None, &[b"http/1.1"])));
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name.clone(), tcp).await.unwrap();
    let mut client = Client::new(stream, Some(host.token.clone())).await;
    assert_eq!(client.get("/metrics").await.code, 200, "another address has room");
    assert_eq!(held(&mut client, "address-connections", "loopback").await, 17);
    until_held(&mut client, "waiting-connections", "loopback", 1).await;
    busy.pop();
    until_held(&mut client, "waiting-connections", "loopback", 0).await;
    let config = Arc::new(host.tls(None, &[b"http/1.1"]));
    let connector = TlsConnector::from(config);
    let stream = connector.connect(name, &mut waiting).await.unwrap();
    drop(stream);
    host.stop().await;
}

/// A client that takes the heads of answers and very little of their bodies.
async fn unread(host: &Host) -> Sender {
    let tcp = TcpStream::connect(host.running.local_addr()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(host.tls(None, &[b"h2"])));
    let name = ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, tcp).await.unwrap();
    let handshake = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1_000)
        .initial_connection_window_size(65_535)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(async move {
        // It ends when it is cut.
        let _ = connection.await;
    });
    sender
}

async fn large_map(admin: &mut Client) {
    let made = json!({"metadata": {"name": "large"}, "data": {"x": "x".repeat(600_000)}});
    assert_eq!(admin.post(MAPS, &made).await.code, 201);
}

async fn ask(sender: &Sender, path: &str, token: &str) -> Response<Incoming> {
    let mut sender = sender.clone();
    sender.ready().await.unwrap();
    sender.send_request(request("GET", path, Some(token), whole(""))).await.unwrap()
}

#[tokio::test]
async fn answers_that_are_not_read_take_no_more_than_their_share_of_memory() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.limits.answer_memory = 4 << 20;
    })
    .await;
    let eve = host.token(json!({"role": "viewer", "name": "eve"})).await;
    let other = host.token(json!({"role": "viewer", "name": "other"})).await;
    let mut admin = host.client().await;
    large_map(&mut admin).await;
    let mut taken = Vec::new();
    let mut bounds = Vec::new();
    for path in [MAPS, &one("large"), MAPS, MAPS] {
        let sender = unread(&host).await;
        loop {
            let answer = ask(&sender, path, &eve).await;
            if answer.status() == 200 {
                taken.push((sender.clone(), answer));
                continue;
            }
            assert_eq!(answer.status(), 429);
            assert_eq!(answer.headers()["retry-after"], "1");
            bounds.push(answer);
            break;
        }
    }
    // About half of the 3.25 MiB that users can have.
    assert_eq!(taken.len(), 3);
    assert!(held(&mut admin, "answer-bytes", "users").await > 1_200_000);
    let (_, refused) = read(bounds.remove(0)).await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("\"eve\"") && message.contains("limits.answer-memory"), "{message}");
    let mut viewer = host.client_with(Some(other)).await;
    assert_eq!(viewer.get(MAPS).await.code, 200, "others have a share of their own");
    assert_eq!(admin.get(MAPS).await.code, 200);
    // Answers that are read, and those that are no longer wanted, give everything back.
    let (code, list) = read(taken.remove(0).1).await;
    assert_eq!((code, list["items"][0]["metadata"]["name"].as_str()), (200, Some("large")));
    drop((taken, bounds));
    until_held(&mut admin, "answer-bytes", "users", 0).await;
    host.stop().await;
}

#[tokio::test]
async fn one_answer_may_be_larger_than_all_the_memory_of_answers() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.limits.answer_memory = 100_000;
    })
    .await;
    let mut admin = host.client().await;
    large_map(&mut admin).await;
    for _ in 0..3 {
        let list = admin.get(MAPS).await;
        assert_eq!(list.code, 200);
        assert!(list.bytes.len() > 600_000);
    }
    host.stop().await;
}

#[tokio::test]
async fn a_connection_that_takes_nothing_of_its_answers_is_closed_over_http2_too() {
    let long = Duration::from_secs(24 * 3600);
    let (host, clock) = Host::start_manual(|options| options.limits.idle = long).await;
    let mut admin = host.client().await;
    large_map(&mut admin).await;
    let sender = unread(&host).await;
    let answers = [ask(&sender, MAPS, &host.token).await, ask(&sender, "/version", "").await];
    let begun = clock.elapsed();
    while !sender.is_closed() {
        assert!(clock.elapsed() < begun + long, "it is never closed");
        clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let patience = mainstay_server::Limits::default().stall;
    assert!(clock.elapsed().saturating_sub(begun) > patience, "it had its time");
    drop(answers);
    let mut admin = host.client().await;
    until_held(&mut admin, "answer-bytes", "administrators", 0).await;
    host.stop().await;
}
