use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::watch::{Change, EventType, Follow};

/// The next step of a scripted server after an answer.
#[derive(Clone, Copy)]
enum Then {
    Keep,
    Close,
}

/// A server that gives these answers, one a request, over any number of connections one after the
/// other; it reports the requests.
async fn scripted(answers: Vec<(String, Then)>) -> (Address, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut open: Option<TcpStream> = None;
        for (answer, then) in answers {
            let (mut stream, request) = loop {
                let mut stream = match open.take() {
                    Some(stream) => stream,
                    None => listener.accept().await.unwrap().0,
                };
                if let Some(request) = read_request(&mut stream).await {
                    break (stream, request);
                }
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            sender.send(request).await.unwrap();
            if matches!(then, Then::Keep) {
                open = Some(stream);
            }
        }
        // An unexpected request hangs instead of being refused.
        std::future::pending::<()>().await;
    });
    (address, receiver)
}

/// Reads one request; `None` if the client closed the connection.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            return None;
        }
        text.extend_from_slice(&buffer[..read]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(whole);
            }
        }
    }
}

fn answer(code: u16, body: &str) -> (String, Then) {
    (format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()), Then::Keep)
}

fn client(servers: Vec<Address>) -> Client {
    let options = Options { connect_timeout: Duration::from_millis(200), ..Options::default() };
    Client::with_options(servers, Access::default(), options)
}

/// A port that refuses connections.
async fn refusing() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
}

#[tokio::test]
async fn unreachable_servers_are_passed_over_and_the_one_that_answered_is_asked_first() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // It accepts TCP and never shakes hands.
    let silent_address = format!("https://{}", silent.local_addr().unwrap());
    let silent_address = Address::parse(&silent_address).unwrap();
    let (good, mut requests) = scripted(vec![answer(200, "1"), answer(200, "2")]).await;
    let tls = Some(Arc::new(crate::tls::config(&crate::tls::Trust::Nothing, None).unwrap()));
    let client = client(vec![refusing().await, silent_address, good.clone()]);
    client.set_access(Access { tls, token: None });
    for expected in ["1", "2"] {
        assert_eq!(client.send(&Call::get("/a")).await.unwrap().body, expected);
        assert!(requests.recv().await.unwrap().starts_with("GET /a HTTP/1.1"));
        assert_eq!(client.server(), good.url());
        client.set_access(client.access());
    }
}

#[tokio::test]
async fn errors_name_the_server_and_the_cause() {
    let address = refusing().await;
    let error = client(vec![address.clone()]).send(&Call::get("/")).await.unwrap_err();
    assert!(error.is_transient());
    let text = error.explained();
    assert!(text.starts_with(&format!("cannot connect to {}: ", address.url())), "{text}");
    let none = client(Vec::new()).send(&Call::get("/")).await.unwrap_err();
    assert_eq!(none.explained(), "no server address is configured");
}

#[tokio::test]
async fn a_read_is_repeated_on_a_new_connection_and_a_write_is_not() {
    let cut = (String::new(), Then::Close);
    let script = vec![answer(200, "a"), cut.clone(), answer(200, "b"), cut, answer(200, "c")];
    let (address, mut requests) = scripted(script).await;
    let client = client(vec![address]);
    assert_eq!(client.send(&Call::get("/1")).await.unwrap().body, "a");
    assert_eq!(client.send(&Call::get("/2")).await.unwrap().body, "b");
    let write = Call::send(Method::POST, "/3", JSON, &Value::Null);
    let error = client.send(&write).await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    assert_eq!(client.send(&Call::get("/4")).await.unwrap().body, "c");
    drop(client);
    let mut paths = Vec::new();
    for _ in 0..5 {
        let request = requests.recv().await.unwrap();
        paths.push(request.split(' ').nth(1).unwrap().to_owned());
    }
    assert_eq!(paths, ["/1", "/2", "/2", "/3", "/4"]);
}

#[tokio::test]
async fn new_credentials_are_used_from_the_next_request_on() {
    let (address, mut requests) = scripted(vec![answer(200, ""), answer(200, "")]).await;
    let client = client(vec![address]);
    for token in ["old", "new"] {
        client.set_access(Access { tls: None, token: Some(token.to_owned()) });
        client.send(&Call::get("/")).await.unwrap();
        let request = requests.recv().await.unwrap();
        assert!(request.contains(&format!("authorization: Bearer {token}\r\n")), "{request}");
    }
}

#[tokio::test]
async fn answers_that_break_off_are_errors() {
    let half = ("HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\nhalf".to_owned(), Then::Close);
    let (address, _requests) = scripted(vec![half.clone(), half]).await;
    let client = client(vec![address]);
    let error = client.send(&Call::get("/")).await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    let mut stream = client.stream(&Call::get("/")).await.unwrap();
    assert_eq!(stream.piece().await.unwrap().unwrap(), "half");
    let error = stream.piece().await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
}

#[tokio::test]
async fn answers_that_are_too_large_are_errors() {
    let (address, _requests) = scripted(vec![answer(200, "12345")]).await;
    let options = Options { largest: 4, ..Options::default() };
    let client = Client::with_options(vec![address], Access::default(), options);
    let error = client.send(&Call::get("/big")).await.unwrap_err();
    assert_eq!(error.to_string(), "/big: the answer is larger than 0 MiB");
}

#[tokio::test]
async fn refusals_carry_the_servers_status() {
    let body = r#"{"reason":"NotFound","message":"x not found","code":404}"#;
    let (address, _requests) = scripted(vec![answer(404, body), answer(404, body)]).await;
    let client = client(vec![address]);
    let error = client.json(Call::get("/x")).await.unwrap_err();
    assert!(error.is_not_found() && !error.is_transient());
    assert_eq!(error.to_string(), "x not found (NotFound)");
    assert!(client.stream(&Call::get("/x")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_broken_watch_is_resumed_at_the_last_version() {
    let list = answer(200, r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#);
    let event = r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"6"}}}"#;
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let head = "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n";
    let cut = (format!("{head}{}", chunk(&format!("{event}\n"))), Then::Close);
    let gone = r#"{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"too old"}}"#;
    let expired = (format!("{head}{}", chunk(&format!("\n{gone}\n"))), Then::Close);
    let (address, mut requests) = scripted(vec![list.clone(), cut, expired, list]).await;
    let client = client(vec![address]);
    let mut follow = Follow::new(&client, "/things".to_owned(), "a=b".to_owned(), JSON);
    assert!(matches!(follow.next().await.unwrap(), Change::Listed(_)));
    match follow.next().await.unwrap() {
        Change::Event(event) => assert_eq!(event.kind, EventType::Added),
        other => panic!("{other:?}"),
    }
    assert!(matches!(follow.next().await.unwrap(), Change::Listed(_)), "expired: listed again");
    let mut next = async || requests.recv().await.unwrap();
    assert!(next().await.starts_with("GET /things?a=b&limit=500 "));
    assert!(next().await.contains("resourceVersion=5 "));
    assert!(next().await.contains("resourceVersion=6 "));
    assert!(next().await.starts_with("GET /things?a=b&limit=500 "));
}

#[test]
fn warnings_are_unquoted() {
    let text = warning_text(r#"299 - "unknown field \"spec.x\"""#);
    assert_eq!(text.as_deref(), Some(r#"unknown field "spec.x""#));
    assert_eq!(warning_text("199 - \"other\""), None);
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let header = |seconds: &str| HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]);
    let details = crate::status::Details { retry_after_seconds: Some(3), causes: None };
    let status = Status { details: Some(details), ..Status::default() };
    let seconds = |headers, status| retry_after(&headers, status).map(|time| time.as_secs());
    assert_eq!(seconds(header("2"), &status), Some(2));
    assert_eq!(seconds(HeaderMap::new(), &status), Some(3));
    assert_eq!(seconds(header("0"), &status), Some(1));
    assert_eq!(seconds(header("9999"), &status), Some(30));
    assert_eq!(seconds(HeaderMap::new(), &Status::default()), None);
}
