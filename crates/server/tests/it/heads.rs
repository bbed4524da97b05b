//! Heads of requests that are malformed, ambiguous or too large are refused, over HTTP/1.1 and HTTP/2.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{Host, MAPS, map, one};
use crate::overload::{multiplexed, request, whole};

/// Sends raw bytes, and reads until the other side closes.
async fn raw(host: &Host, bytes: &[u8]) -> String {
    let mut stream = host.connect(None).await;
    // The server may have closed the connection already.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn heads_with_bare_line_ends_or_of_more_than_64_kib_are_refused() {
    let host = Host::start().await;
    let wrong = [
        "GET /healthz HTTP/1.1\nhost: x\nconnection: close\n\n",
        "GET /healthz HTTP/1.1\r\nhost: x\nconnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\n",
        "POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n",
        "POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 1\r\nconnection: close\r\n\r\na",
        "GET /healthz HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: a/b?c\r\nconnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: u:p@x\r\nconnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: a\r\nAuthorization: a\r\nconnection: close\r\n\r\n",
    ];
    for head in wrong {
        let answer = raw(&host, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{head:?}: {answer}");
    }
    // The second of two, after a body that has such ends in it.
    let mut client = host.client().await;
    client.post(MAPS, &map("a")).await.ok();
    let patch = "{\n\n}";
    let both = format!(
        "PATCH {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/merge-patch+json\r\ncontent-length: {}\r\n\r\n{patch}GET /healthz HTTP/1.1\nhost: x\r\n\r\n",
        one("a"),
        host.token,
        patch.len()
    );
    let answer = raw(&host, both.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("HTTP/1.1 400"), "{answer}");
    for (size, code) in [(60_000, 200), (70_000, 431), (300_000, 431)] {
        let long = "x".repeat(size);
        let head = format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\nlong: {long}\r\n\r\n"
        );
        let answer = raw(&host, head.as_bytes()).await;
        let refused = format!("HTTP/1.1 {code}");
        // A connection that closes while the client still sends may lose the answer.
        assert!(answer.starts_with(&refused) || (size > 200_000 && answer.is_empty()), "{answer}");
        if size < 100_000 {
            let (mut sender, _socket) = multiplexed(&host).await;
            let mut asked = request("GET", "/healthz", None, whole(""));
            asked.headers_mut().insert("long", long.parse().unwrap());
            assert_eq!(sender.send_request(asked).await.unwrap().status(), code);
        }
    }
    host.stop().await;
}

#[tokio::test]
async fn a_broken_chunk_size_is_answered_400() {
    let host = Host::start().await;
    for size in ["x", "", "fffffffffffffffff", "-1"] {
        let post = format!(
            "POST {MAPS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\n{{}}\r\n0\r\n\r\n",
            host.token
        );
        let answer = raw(&host, post.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{size:?}: {answer}");
        assert!(answer.contains("\"reason\":\"BadRequest\""), "{size:?}: {answer}");
    }
    host.stop().await;
}

#[tokio::test]
async fn more_than_a_hundred_fields_are_answered_431() {
    let host = Host::start().await;
    for (count, code) in [(90, 200), (110, 431)] {
        let fields: String = (0..count).map(|n| format!("x-{n}: 1\r\n")).collect();
        let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        let answer = raw(&host, head.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{count}: {answer}");
        let (mut sender, _socket) = multiplexed(&host).await;
        let mut asked = request("GET", "/healthz", None, whole(""));
        for n in 0..count {
            let name = http::HeaderName::try_from(format!("x-{n}")).unwrap();
            asked.headers_mut().insert(name, "1".parse().unwrap());
        }
        assert_eq!(sender.send_request(asked).await.unwrap().status(), code);
    }
    host.stop().await;
}

#[tokio::test]
async fn ambiguous_hosts_and_credentials_are_refused_over_http2() {
    let host = Host::start().await;
    let (mut sender, _socket) = multiplexed(&host).await;
    let cases: [(&[(&str, &str)], u16); 5] = [
        (&[], 200),
        (&[("host", "LOCALHOST")], 200),
        (&[("host", "elsewhere")], 400),
        (&[("host", "localhost"), ("host", "localhost")], 400),
        (&[("authorization", "Bearer a"), ("authorization", "Bearer a")], 400),
    ];
    for (fields, code) in cases {
        let mut asked = request("GET", "/healthz", None, whole(""));
        for (name, value) in fields {
            asked.headers_mut().append(*name, value.parse().unwrap());
        }
        let answer = sender.send_request(asked).await.unwrap();
        assert_eq!(answer.status(), code, "{fields:?}");
    }
    host.stop().await;
}

#[tokio::test]
async fn refused_calls_of_grpc_get_a_grpc_status() {
    let host = Host::start().await;
    let viewer = host.token(json!({"role": "viewer"})).await;
    let (mut sender, _socket) = multiplexed(&host).await;
    for (token, status) in [("mst_wrong", "16"), (viewer.as_str(), "7")] {
        let path = "/mainstay.agents.v1.Agents/Connect";
        let mut asked = request("POST", path, Some(token), whole(""));
        asked.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        let answer = sender.send_request(asked).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["grpc-status"]),
            (200, &status.parse().unwrap())
        );
        assert!(!answer.headers()["grpc-message"].is_empty());
        assert_eq!(answer.headers()["content-type"], "application/grpc");
    }
    host.stop().await;
}
