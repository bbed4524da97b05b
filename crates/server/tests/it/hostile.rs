//! Clients that mean no good, or do no good.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_store::clock::{ManualClock, SystemClock};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Host, MAPS, map, one};

#[tokio::test]
async fn bodies_that_are_too_much_are_refused_and_the_connection_lives() {
    let host = Host::start().await;
    let mut client = host.client().await;
    let large = format!("{{\"data\":{{\"x\":\"{}\"}}}}", "x".repeat(10 << 20));
    let refused = client.call("POST", MAPS, "application/json", large).await;
    assert!(refused.refused(413, "RequestEntityTooLarge").contains("3145728"));
    let deep = "[".repeat(1_000_000);
    for body in [deep.clone(), format!("{{\"data\":{deep}"), "{\"a\":".repeat(500_000)] {
        client.call("POST", MAPS, "application/json", body).await.refused(400, "BadRequest");
    }
    let yaml = client.call("POST", MAPS, "application/yaml", deep).await;
    yaml.refused(400, "BadRequest");
    let broken = Bytes::from_static(b"{\"metadata\":{\"name\":\"\xff\xfe\"}}");
    client.call("POST", MAPS, "application/json", broken).await.refused(400, "BadRequest");
    let long = "x".repeat(2 << 20);
    let stored = client.post(MAPS, &json!({"metadata": {"name": "a"}, "data": {"x": long}})).await;
    assert!(matches!(stored.code, 413 | 422), "{}", stored.code);
    assert_eq!(client.get(MAPS).await.ok()["items"], json!([]));
    host.stop().await;
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused() {
    let host = Host::start().await;
    let mut stream = host.connect(None).await;
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n", "x".repeat(200 << 10));
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(host.client().await.get("/healthz").await.code, 200);
    host.stop().await;
}

/// Waits until the other side closes, moving the clock.
async fn closed(clock: &Arc<ManualClock>, stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut rest = Vec::new();
    let mut end = std::pin::pin!(stream.read_to_end(&mut rest));
    loop {
        tokio::select! {
            biased;
            _ = &mut end => return,
            () = tokio::task::yield_now() => clock.advance(Duration::from_secs(1)),
        }
    }
}

#[tokio::test]
async fn half_a_handshake_and_a_slow_head_are_cut_off() {
    let (host, clock) = Host::start_manual(|_| {}).await;
    let mut silent = TcpStream::connect(host.running.local_addr()).await.unwrap();
    let mut half = TcpStream::connect(host.running.local_addr()).await.unwrap();
    // The beginning of a ClientHello.
    half.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00]).await.unwrap();
    let mut slow = host.connect(None).await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nx: ").await.unwrap();
    let mut idle = host.connect(None).await;
    for stream in [&mut silent, &mut half] {
        closed(&clock, stream).await;
    }
    closed(&clock, &mut slow).await;
    closed(&clock, &mut idle).await;
    assert_eq!(host.client().await.get("/healthz").await.code, 200);
    host.stop().await;
}

#[tokio::test]
async fn an_http1_connection_without_a_request_is_closed_in_time() {
    let (host, clock) = Host::start_manual(|options| {
        // Only the limit of a head can close them in the time that passes here.
        options.limits.idle = Duration::from_secs(1 << 40);
    })
    .await;
    let mut unused = host.connect(None).await;
    closed(&clock, &mut unused).await;
    // One that was used is idle, which has a limit of its own.
    let mut used = host.client().await;
    assert_eq!(used.get("/healthz").await.code, 200);
    let mut unused = host.connect(None).await;
    closed(&clock, &mut unused).await;
    assert_eq!(used.get("/healthz").await.code, 200);
    host.stop().await;
}

#[tokio::test]
async fn heads_that_two_readers_could_understand_differently_are_refused() {
    let host = Host::start().await;
    let bearer = format!("authorization: Bearer {}\r\nconnection: close", host.token);
    for (head, code) in [
        (format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\n{bearer}\r\n\r\n"), "HTTP/1.1 200"),
        (format!("GET {MAPS} HTTP/1.1\r\n{bearer}\r\n\r\n"), "HTTP/1.1 400"),
        ("GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "HTTP/1.1 400"),
        ("GET /healthz HTTP/1.0\r\n\r\n".to_owned(), "HTTP/1.0 200"),
    ] {
        let mut stream = host.connect(None).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(code), "{head}: {answer}");
    }
    let mut sender = http2(&host).await;
    let request = |lengths: &[&str]| {
        let request = http::Request::post(format!("https://localhost{MAPS}"));
        let request = request.header("authorization", format!("Bearer {}", host.token));
        let request = lengths
            .iter()
            .fold(request, |request, length| request.header("content-length", *length));
        request.body(Full::new(Bytes::from_static(b"{}"))).unwrap()
    };
    let answer = sender.send_request(request(&["2", "2"])).await.unwrap();
    assert_eq!(answer.status(), 400);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("content-length"), "{body:?}");
    // The library resets the stream of a request whose lengths differ.
    let reset = sender.send_request(request(&["2", "3"])).await;
    assert!(reset.is_err_and(|error| !error.is_canceled()));
    host.stop().await;
}

async fn http2(host: &Host) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let tcp = TcpStream::connect(host.running.local_addr()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(host.tls(None, &[b"h2"])));
    let stream = connector.connect(name, tcp).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A frame of HTTP/2 on stream 1, or on the connection.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

#[tokio::test]
async fn http2_connections_without_a_complete_head_are_closed_in_time() {
    let (host, clock) = Host::start_manual(|options| {
        // Only the limit of a head can close them in the time that passes here.
        options.limits.idle = Duration::from_secs(1 << 40);
    })
    .await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings = [preface.clone(), frame(4, 0, 0, &[])].concat();
    let headers = frame(1, 0, 1, &[0x82]);
    let cut = headers[..headers.len() - 1].to_vec();
    let beginnings = [
        vec![],
        preface,
        settings.clone(),
        [settings.clone(), headers].concat(),
        [settings, cut].concat(),
    ];
    for beginning in beginnings {
        let tcp = TcpStream::connect(host.running.local_addr()).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(host.tls(None, &[b"h2"])));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, tcp).await.unwrap();
        stream.write_all(&beginning).await.unwrap();
        closed(&clock, &mut stream).await;
    }
    host.stop().await;
}

#[tokio::test]
async fn thousands_of_idle_connections_do_not_delay_requests() {
    let host = Host::start().await;
    let mut idle = Vec::new();
    for _ in 0..2_000 {
        idle.push(TcpStream::connect(host.running.local_addr()).await.unwrap());
    }
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    assert_eq!(client.get(&one("a")).await.code, 200);
    let metrics = client.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let open = text.lines().find_map(|line| line.strip_prefix("mainstay_http_connections "));
    assert!(open.unwrap().parse::<u32>().unwrap() > 2_000, "{open:?}");
    host.stop().await;
}

#[tokio::test]
async fn beyond_its_connections_the_server_closes_the_longest_idle_one() {
    let host = Host::start_with(SystemClock::new(), |options| options.limits.connections = 4).await;
    let mut first = host.connect(None).await;
    for _ in 0..20 {
        assert_eq!(host.client().await.get("/healthz").await.code, 200);
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(host.client().await);
    }
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest).await;
    host.stop().await;
}

/// Routes of which one waits for ever.
fn waiting(options: &mut mainstay_server::Options) {
    let wait = axum::routing::any(std::future::pending::<()>);
    options.routes = Some(axum::Router::new().route("/wait", wait));
}

#[tokio::test]
async fn requests_beyond_the_bound_are_answered_429() {
    let host = Host::start_with(SystemClock::new(), |options| {
        options.limits.in_flight = 1;
        options.limits.watches = 1;
        waiting(options);
    })
    .await;
    let mut stuck = host.connect(None).await;
    let head =
        format!("GET /wait HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n", host.token);
    stuck.write_all(head.as_bytes()).await.unwrap();
    let mut client = host.client().await;
    let later = loop {
        let answer = client.get(MAPS).await;
        if answer.code != 200 {
            break answer;
        }
    };
    let message = later.refused(429, "TooManyRequests");
    assert!(message.contains("requests under way") && message.contains("limits.in-flight is 1"));
    assert_eq!(later.headers["retry-after"], "1");
    assert_eq!(later.body["details"]["retryAfterSeconds"], 1);
    assert_eq!(client.get("/readyz").await.code, 200);
    let lines = host.client().await.watch(&format!("{MAPS}?watch=1")).await;
    client.get(&format!("{MAPS}?watch=1")).await.refused(429, "TooManyRequests");
    drop((stuck, lines));
    while client.get(MAPS).await.code == 429 {
        tokio::task::yield_now().await;
    }
    host.stop().await;
}

#[tokio::test]
async fn requests_and_bodies_that_take_too_long_are_given_up() {
    let (host, clock) = Host::start_manual(waiting).await;
    let body = format!("POST {MAPS} HTTP/1.1\r\ncontent-length: 100\r\n");
    let cases = [
        (body, "{", "HTTP/1.1 408", "RequestTimeout"),
        ("GET /wait HTTP/1.1\r\n".to_owned(), "", "HTTP/1.1 504", "Timeout"),
    ];
    for (first, rest, code, reason) in cases {
        let mut stuck = host.connect(None).await;
        let head = format!(
            "{first}host: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{rest}",
            host.token
        );
        stuck.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        {
            let mut end = std::pin::pin!(stuck.read_to_end(&mut answer));
            loop {
                tokio::select! {
                    biased;
                    _ = &mut end => break,
                    () = tokio::task::yield_now() => clock.advance(Duration::from_millis(100)),
                }
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(code), "{answer}");
        assert!(answer.contains(&format!("\"reason\":\"{reason}\"")), "{answer}");
    }
    host.stop().await;
}

#[tokio::test]
async fn a_watcher_that_never_reads_is_cut_off() {
    let (host, clock) = Host::start_manual(|_| {}).await;
    let mut deaf = host.connect(None).await;
    let request = format!(
        "GET {MAPS}?watch=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        host.token
    );
    deaf.write_all(request.as_bytes()).await.unwrap();
    let mut client = host.client().await;
    let long = "x".repeat(700 << 10);
    let connections = async |client: &mut crate::client::Client| {
        let text = client.get("/metrics").await.bytes;
        let text = String::from_utf8_lossy(&text).into_owned();
        let open = text.lines().find_map(|line| line.strip_prefix("mainstay_http_connections "));
        open.unwrap().parse::<u32>().unwrap()
    };
    client.post(MAPS, &map("a")).await.ok();
    for round in 0.. {
        client.merge(&one("a"), &json!({"data": {"x": format!("{round}{long}")}})).await.ok();
        clock.advance(Duration::from_secs(2));
        if connections(&mut client).await == 1 {
            break;
        }
        assert!(round < 200, "the deaf watcher is still there");
    }
    host.stop().await;
}

#[tokio::test]
async fn http2_serves_many_requests_on_one_connection() {
    let host = Host::start().await;
    host.client().await.post(MAPS, &map("a")).await.ok();
    let config = host.tls(None, &[b"h2", b"http/1.1"]);
    let tcp = TcpStream::connect(host.running.local_addr()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, tcp).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = |path: &str| {
        http::Request::builder()
            .uri(format!("https://localhost{path}"))
            .header("authorization", format!("Bearer {}", host.token))
            .body(Full::<Bytes>::default())
            .unwrap()
    };
    let watch = sender.send_request(request(&format!("{MAPS}?watch=1"))).await.unwrap();
    assert_eq!(watch.status(), 200);
    let mut watch = watch.into_body();
    let answers = (0..50).map(|_| sender.send_request(request(&one("a"))));
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    let line = watch.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(line.starts_with(b"{\"type\":\"ADDED\""));
    host.stop().await;
    while let Some(frame) = watch.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.is_empty(), "the watch ended with {data:?}");
    }
}
